//! The end of a daemon, in order or at once.

use std::{sync::Arc, thread};

use crate::{Engine, StopMode, daemon::StopSignal, state::StateDir};
use process::{exit::Exit, log::area};
use recovery::attachments::Attachments;

/// Waits for the end and goes through it: cleanly, or at once when asked twice. It succeeds if all that was written
/// is safe.
pub(super) fn wait_and_stop(
    engine: &Arc<dyn Engine>,
    attachments: &Arc<Attachments>,
    ending: &StopSignal,
    state: &StateDir,
) -> Exit {
    let how = ending.wait();
    state.note_stopping();
    notify_systemd(&[sd_notify::NotifyState::Stopping]);
    tracing::info!(target: area::SERVE, how = if how == StopMode::Now { "at once" } else { "in order" }, "stopping");
    if how == StopMode::Now {
        engine.stop(StopMode::Now);
        let is_lost = engine.group().is_some_and(|group| group.lost().is_some());
        return if is_lost { Exit::Failure } else { Exit::Success };
    }
    let (stopping, attachments) = (engine.clone(), attachments.clone());
    let stop = move || {
        // They may be of volumes that are served here.
        attachments.detach_all();
        stopping.stop(StopMode::Clean)
    };
    let Ok(clean) = thread::Builder::new().name("stop".to_owned()).spawn(stop) else {
        engine.stop(StopMode::Now);
        return Exit::Failure;
    };
    if ending.wait_for_immediate_stop(|| clean.is_finished()) {
        tracing::warn!(target: area::SERVE, "stopping immediately: commands in flight are lost");
        engine.stop(StopMode::Now);
        return Exit::Failure;
    }
    match clean.join() {
        Ok(true) => Exit::Success,
        Ok(false) | Err(_) => Exit::Failure,
    }
}

/// Without systemd there is nobody to tell, which is no mistake.
pub(super) fn notify_systemd(state: &[sd_notify::NotifyState<'_>]) {
    if let Err(why) = sd_notify::notify(state) {
        tracing::warn!(target: area::SERVE, %why, "cannot notify systemd");
    }
}
