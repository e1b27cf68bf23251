//! Messages between a holder, its guardian and the process that takes over: JSON in messages of a Unix
//! socket, with descriptors.
//!
//! Invariants: a message is received whole or not at all, and descriptors belong to the message with which
//! they arrived. A guardian may be of an earlier version than the process that takes over: fields of a
//! message are never renamed.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use client::Geometry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use control::secret_url::SecretUrl;

/// The longest message, in bytes; a path has at most 4 KiB, and a stripe's name those of its legs.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Descriptors of one message: the kernel's end of FUSE, and a loop device.
const MESSAGE_FDS_MAX: usize = 2;

/// What is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "via", rename_all = "kebab-case")]
pub(super) enum RecoveryState {
    /// The kernel's end of a FUSE mount, and with `device` the loop device; both are descriptors.
    Fuse {
        dir: PathBuf,
        write_max: u32,
        /// The mount's name.
        name: u64,
        /// Device and inode of the directory, if it was made by us.
        made: Option<(u64, u64)>,
        by_program: bool,
        device: bool,
    },
    Ublk {
        number: u32,
        /// Its server, as the driver knows it; 0: it was not said.
        #[serde(default)]
        process: u32,
    },
    Nbd {
        path: PathBuf,
        shape: ClientGeometry,
    },
    VhostUser {
        path: PathBuf,
        id: String,
        shape: ClientGeometry,
    },
}

/// What clients of a socket know of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClientGeometry {
    blocks: u64,
    logical: u32,
    physical: u32,
    max_io: u32,
    thin: bool,
    write_cache: bool,
    dealloc_reads_zero: bool,
    pub(super) read_only: bool,
}

impl ClientGeometry {
    pub(super) fn of(geometry: &Geometry, read_only: bool) -> ClientGeometry {
        let Geometry { blocks, logical, physical, max_io, thin, write_cache, dealloc_reads_zero, .. } =
            *geometry;
        ClientGeometry { blocks, logical, physical, max_io, thin, write_cache, dealloc_reads_zero, read_only }
    }

    pub(super) fn to_geometry(self) -> Geometry {
        let ClientGeometry {
            blocks, logical, physical, max_io, thin, write_cache, dealloc_reads_zero, ..
        } = self;
        Geometry {
            blocks,
            logical,
            physical,
            dio_align: 1,
            max_io,
            thin,
            write_cache,
            atomic: 0,
            atomic_powerfail: 1,
            caw_max: 0,
            dealloc_reads_zero,
            lends: false,
        }
    }
}

/// To the guardian.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "kebab-case")]
pub(super) enum GuardianRequest {
    /// From the holder: it serves; this is to be kept if it is killed, and the record goes with it.
    Hold {
        #[serde(rename = "charge")]
        state: RecoveryState,
        #[serde(rename = "note")]
        record: PathBuf,
        timeout_ms: u64,
        #[serde(rename = "called")]
        url: Option<SecretUrl>,
    },
    /// From the holder: the device's users are asked to go, so nobody else may have it open.
    LetGo,
    /// From the holder: it has ended in good order.
    Leave,
    /// From who takes over what a killed holder had.
    Take,
    /// From who wants no more waiting: I/O shall fail now.
    End,
    /// How it stands?
    #[serde(rename = "ask")]
    Status,
}

/// From the guardian.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "kebab-case")]
pub(super) enum GuardianReply {
    /// It holds on.
    Held,
    /// Here it is; the holder has been dead for so long.
    #[serde(rename = "taken")]
    TakeoverResult {
        #[serde(rename = "charge")]
        state: RecoveryState,
        dead_ms: u64,
        #[serde(rename = "called")]
        url: Option<SecretUrl>,
    },
    /// The holder lives.
    Busy,
    /// The holder is dead; I/O waits for so long yet, or fails already.
    Waiting { left_ms: Option<u64> },
    /// There is no more waiting.
    Ended,
}

/// Sends a message.
pub(super) fn send_message(
    to: &OwnedFd,
    message: &impl Serialize,
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    assert!(files.len() <= MESSAGE_FDS_MAX, "a message has room for its descriptors");
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is too long"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    rustix::net::sendmsg(to, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message; `None`: the other side is gone. It waits no longer than `wait`.
pub(super) fn receive_message<T: DeserializeOwned>(
    from: &OwnedFd,
    wait: Duration,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    if !wait_readable(from, wait)? {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let came = match rustix::net::recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Ok(came) => came,
        Err(rustix::io::Errno::CONNRESET) => return Ok(None),
        Err(why) => return Err(why.into()),
    };
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            files.extend(came);
        }
    }
    if came.bytes == 0 {
        return Ok(None);
    }
    if came.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message was cut off"));
    }
    Ok(Some((serde_json::from_slice(bytes.get(..came.bytes).unwrap_or_default())?, files)))
}

/// Waits until there is something to receive, or the other side is gone.
fn wait_readable(fd: &OwnedFd, wait: Duration) -> io::Result<bool> {
    Ok(poll_readable(&[fd.as_fd()], Some(wait))?.first() == Some(&true))
}

/// Waits until one of these is readable or at its end; which ones are. Not for longer than `wait`.
pub(super) fn poll_readable(fds: &[BorrowedFd<'_>], wait: Option<Duration>) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let wait = wait.map(|wait| Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(wait.subsec_nanos()),
    });
    match poll(&mut polled, wait.as_ref()) {
        Ok(_) => Ok(polled.iter().map(|one| !one.revents().is_empty()).collect()),
        Err(rustix::io::Errno::INTR) => Ok(vec![false; fds.len()]),
        Err(why) => Err(why.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guardian_of_an_earlier_version_is_understood_and_understands() {
        let state = || RecoveryState::Ublk { number: 7, process: 9 };
        let (url, record) = (Some(SecretUrl::from("u")), PathBuf::from("/r"));
        let requests = [
            (
                GuardianRequest::Hold { state: state(), record, timeout_ms: 1, url: url.clone() },
                r#"{"word":"hold","charge":{"via":"ublk","number":7,"process":9},"note":"/r","timeout_ms":1,"called":"u"}"#,
            ),
            (GuardianRequest::LetGo, r#"{"word":"let-go"}"#),
            (GuardianRequest::Leave, r#"{"word":"leave"}"#),
            (GuardianRequest::Take, r#"{"word":"take"}"#),
            (GuardianRequest::End, r#"{"word":"end"}"#),
            (GuardianRequest::Status, r#"{"word":"ask"}"#),
        ];
        for (request, text) in requests {
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
            assert_eq!(serde_json::from_str::<GuardianRequest>(text).unwrap(), request);
        }
        let answers = [
            (GuardianReply::Held, r#"{"word":"held"}"#),
            (
                GuardianReply::TakeoverResult { state: state(), dead_ms: 1, url },
                r#"{"word":"taken","charge":{"via":"ublk","number":7,"process":9},"dead_ms":1,"called":"u"}"#,
            ),
            (GuardianReply::Busy, r#"{"word":"busy"}"#),
            (GuardianReply::Waiting { left_ms: None }, r#"{"word":"waiting","left_ms":null}"#),
            (GuardianReply::Ended, r#"{"word":"ended"}"#),
        ];
        for (answer, text) in answers {
            assert_eq!(serde_json::to_string(&answer).unwrap(), text);
            assert_eq!(serde_json::from_str::<GuardianReply>(text).unwrap(), answer);
        }
    }
}
