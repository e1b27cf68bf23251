//! Volumes of one thread: how they are opened, what C is told of them, and how they end.
//!
//! Invariant: a handle is made from a box when its volume is kept, and freed once, when the volume is kept no more.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use client::{Failure, Fault, VolumeEvent, VolumeHandle};

use super::InitiatorContext;
use crate::abi;
use crate::status::{Status, usage_error};

/// What a caller's handle points to.
#[derive(Debug)]
pub struct Volume {
    pub(crate) state: *mut InitiatorContext,
    pub(crate) handle: VolumeHandle,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenState {
    Opening,
    Open,
    Failed,
}

pub(crate) struct OpenVolume {
    pub(crate) handle: VolumeHandle,
    pub(crate) open_state: OpenState,
    pub(crate) urls: String,
    /// When it was begun; its paths have said that it is open.
    pub(super) begun: Instant,
    pub(super) is_open: bool,
    /// Why it is not open, if its paths do not say it.
    pub(crate) why: Option<client::Error>,
    /// The caller's; made from a box.
    pub(super) at: NonNull<Volume>,
}

impl InitiatorContext {
    pub(crate) fn open_volume(&self, handle: VolumeHandle) -> Option<&OpenVolume> {
        self.volumes.iter().find(|opened| opened.handle == handle)
    }

    /// Keeps a volume, and makes the caller's handle of it.
    pub(crate) fn insert_volume(
        &mut self,
        handle: VolumeHandle,
        open_state: OpenState,
        urls: &str,
    ) -> NonNull<Volume> {
        let at = NonNull::from(Box::leak(Box::new(Volume { state: self, handle })));
        let (begun, urls) = (Instant::now(), urls.to_owned());
        self.volumes.push(OpenVolume { handle, open_state, urls, begun, is_open: false, why: None, at });
        at
    }

    /// A volume is open when it can be used, as for who waits for it; and not for ever about to be.
    pub(super) fn update_open_state(&mut self, at: usize) {
        let initiator = &mut self.initiator;
        let Some(opened) = self.volumes.get_mut(at) else { return };
        while let Some(event) = initiator.poll_event(opened.handle) {
            match event {
                VolumeEvent::Open => opened.is_open = true,
                VolumeEvent::Failed => return opened.open_state = OpenState::Failed,
                VolumeEvent::Changed | VolumeEvent::Path(_) | VolumeEvent::Closed => {}
            }
        }
        match initiator.check_usable(opened.handle).filter(|_| opened.is_open) {
            Some(Ok(())) => opened.open_state = OpenState::Open,
            Some(Err(why)) => (opened.open_state, opened.why) = (OpenState::Failed, Some(why)),
            None if opened.begun.elapsed() >= initiator.settings().open_timeout => {
                opened.why = Some(initiator.open_timeout_error(opened.handle, &opened.urls));
                opened.open_state = OpenState::Failed;
            }
            None => {}
        }
    }

    /// How long it takes until a volume is not about to be opened any more.
    pub(super) fn open_time_left(&self) -> Option<Duration> {
        let most = self.initiator.settings().open_timeout;
        let opening = self.volumes.iter().filter(|opened| opened.open_state == OpenState::Opening);
        opening.map(|opened| most.saturating_sub(opened.begun.elapsed())).min()
    }

    pub(super) fn volumes_opening(&self) -> usize {
        self.volumes.iter().filter(|opened| opened.open_state == OpenState::Opening).count()
    }

    /// Ends a volume and frees its handle.
    pub(crate) fn close_volume(&mut self, volume: VolumeHandle) -> Result<(), client::Error> {
        let Some(at) = self.volumes.iter().position(|opened| opened.handle == volume) else { return Ok(()) };
        let grace = self.initiator.settings().close_timeout;
        let begun = Instant::now();
        let open_state = |this: &Self| this.open_volume(volume).map(|opened| opened.open_state);
        while open_state(self) == Some(OpenState::Open)
            && self.has_operations(volume)
            && begun.elapsed() < grace
        {
            self.turn(Some(grace.saturating_sub(begun.elapsed())));
            self.drain_completions();
        }
        let closed = if open_state(self) == Some(OpenState::Open) {
            self.initiator.close(volume)
        } else {
            self.initiator.drop_volume(volume);
            Ok(())
        };
        // What had not ended never will: only its memory is still to come back.
        for number in self.commands.slot_numbers() {
            let Some(command) = self.commands.get_mut(number) else { continue };
            if let Some(task) = self.tasks.get_mut(command.task).filter(|task| task.volume == volume) {
                task.failure.get_or_insert(Failure::Failed(Fault::Aborted));
                command.ended = true;
                self.finish_command_if_idle(number);
            }
        }
        for task in self.tasks.slot_numbers() {
            if let Some(waiting) = self.tasks.get_mut(task).filter(|task| task.volume == volume) {
                waiting.failure.get_or_insert(Failure::Failed(Fault::Aborted));
                self.finish_task_if_idle(task);
            }
        }
        self.reap_returned_loans();
        while self.has_operations(volume) {
            self.turn(Some(Duration::from_millis(10)));
            self.reap_returned_loans();
        }
        let opened = self.volumes.swap_remove(at);
        let handle = opened.at;
        let before = self.completed.len();
        self.completed.retain(|completion| completion.volume != handle.as_ptr().cast());
        self.in_flight -= (before - self.completed.len()) as u32;
        // SAFETY: `insert_volume` made it from a box, and it has just left the list: this is done once.
        drop(unsafe { Box::from_raw(handle.as_ptr()) });
        // What ended of other volumes while this one was waited for is announced by nothing else.
        self.drain_completions();
        closed
    }
}

/// What C is told of a volume.
pub(crate) fn abi_geometry(state: &InitiatorContext, volume: VolumeHandle) -> Result<abi::Geometry, Status> {
    if state.open_volume(volume).is_none_or(|opened| opened.open_state != OpenState::Open) {
        return Err(usage_error("the volume is not open: wait until bw_state() says so"));
    }
    let geometry = state.initiator.geometry(volume).ok_or_else(|| usage_error("there is no such volume"))?;
    let flag = |is: bool, flag: u32| if is { flag } else { 0 };
    Ok(abi::Geometry {
        bytes: geometry.capacity_bytes(),
        block: geometry.logical,
        physical: geometry.physical,
        io_max: geometry.max_io,
        flags: flag(state.initiator.is_read_only(volume), abi::BW_GEOMETRY_READ_ONLY)
            | flag(geometry.write_cache, abi::BW_GEOMETRY_WRITE_CACHE)
            | flag(geometry.thin, abi::BW_GEOMETRY_THIN)
            | flag(geometry.dealloc_reads_zero, abi::BW_GEOMETRY_ZEROES),
    })
}
