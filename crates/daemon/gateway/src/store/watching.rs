//! The watch of the group's notices. One that is lost is made again; what was missed meanwhile is told as unknown.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use buf::Errno;
use rbd::WatchEvent;

use super::open::watch_again;
use super::{Shared, StoreEvent, lock, names};

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Watches. Waits for the cluster.
pub(super) fn begin(shared: &Arc<Shared>) -> Result<(), Errno> {
    let own = Arc::downgrade(shared);
    let object = names::notices(&shared.options.group);
    let watch = shared.pool.watch(&object, move |event| {
        let Some(shared) = own.upgrade() else { return };
        match event {
            WatchEvent::Notified { by, .. } if by == shared.client.instance() => {}
            WatchEvent::Notified { message, .. } => (shared.mailbox)(match names::decode(&message) {
                Some(object) => StoreEvent::Changed(object),
                None => StoreEvent::ChangesMissed,
            }),
            WatchEvent::Lost(_) => watch_again(&shared),
        }
    })?;
    *lock(&shared.watch) = Some(watch);
    Ok(())
}

/// On the watch's own thread: until it watches again, or this instance is barred, or nobody wants it any more.
pub(super) fn begin_again(shared: &Arc<Shared>) {
    let Some(lost) = lock(&shared.watch).take() else { return };
    drop(lost);
    // The store itself is gone if this is the only one that is left.
    while Arc::strong_count(shared) > 1 {
        match begin(shared) {
            Ok(()) => return (shared.mailbox)(StoreEvent::ChangesMissed),
            Err(Errno(libc::ESHUTDOWN)) => return (shared.mailbox)(StoreEvent::Fenced),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}
