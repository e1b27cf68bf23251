//! Ending an attachment of another process.

use std::thread;
use std::time::{Duration, Instant};

use control::{Request, client};
use process::exit::{Exit, Failure};

use crate::attach_recovery::abandon;
use crate::list::{AttachState, FoundAttachment};
use crate::users;

/// How long a device may be in use by who only looks at it.
const TRANSIENT_USE_TIMEOUT: Duration = Duration::from_secs(1);

/// Ends an attachment, and waits until it is gone. `now`: also while it is in use.
///
/// # Errors
/// It is in use, or its holder does not end it.
pub fn detach(found: &FoundAttachment, now: bool) -> Result<(), Failure> {
    let record = &found.record;
    if !now {
        refuse_if_used(found)?;
    }
    if found.state != AttachState::Serving {
        return abandon(found);
    }
    if let (Some(control), Some(way)) = (&record.control, record.ways.first()) {
        let request = Request::Detach { way: way.clone(), now };
        return client::send_request_to_user(control, request, found.dir.owner_uid()).map(drop);
    }
    let signal = || match record.holder.signal(rustix::process::Signal::TERM, found.dir.owner_uid()) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::failed(format!("process {}: {why}", record.holder.pid)))
        }
        // One that has just ended needs no signal.
        Ok(()) | Err(_) => Ok(()),
    };
    signal()?;
    if now {
        thread::sleep(Duration::from_millis(50));
        signal()?;
    }
    let until = Instant::now() + Duration::from_secs(30);
    while record.holder.is_running().unwrap_or(true) {
        if Instant::now() >= until {
            let users = users::attachment_users(record).join("; ");
            let why =
                format!("{} is still in use ({users}): stop that, or use --now", found.access_points_text());
            return Err(Failure::new(Exit::RequestTimeout, why));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// What is used is not pulled from under its users.
fn refuse_if_used(found: &FoundAttachment) -> Result<(), Failure> {
    // Some look at every device for a moment when it changes.
    let until = Instant::now() + TRANSIENT_USE_TIMEOUT;
    loop {
        let users = users::attachment_users(&found.record);
        if users.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            let why = format!(
                "{} is in use: {}; stop that first, or use --now, and its users get errors",
                found.access_points_text(),
                users.join("; ")
            );
            return Err(Failure::failed(why));
        }
        thread::sleep(Duration::from_millis(50));
    }
}
