//! The socket between both processes: messages, each with descriptors.
//!
//! ```text
//! length of the message (u32), number of descriptors (u32), the message, and for each 64 descriptors one byte that
//! carries them (SCM_RIGHTS)
//! ```
//! Numbers are little-endian.
//!
//! Invariant: a message counts only with all of its descriptors: the kernel truncates them silently where the limit of
//! open files is reached.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::{ChannelError, FORMAT, HandOverMessage};

/// Descriptors that one byte carries; the kernel takes up to 253.
const DESCRIPTORS_PER_BYTE: usize = 64;
/// The longest message: what all shards have in memory of hosts' data is less.
const MESSAGE_BYTES_MAX: usize = 1 << 30;
/// The most descriptors of one message: far more than a process may open.
const DESCRIPTORS_MAX: usize = 1 << 21;

/// One end.
#[derive(Debug)]
pub(super) struct Channel {
    socket: UnixStream,
}

impl Channel {
    pub(super) fn new(socket: UnixStream) -> Self {
        Channel { socket }
    }

    /// Nothing is waited for longer than this.
    pub(super) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(Some(patience))?;
        self.socket.set_write_timeout(Some(patience))
    }

    pub(super) fn send(
        &mut self,
        message: &HandOverMessage,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let bytes = stream::snapshot::write(FORMAT, message);
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(ChannelError::Long);
        }
        self.socket.write_all(&(bytes.len() as u32).to_le_bytes())?;
        self.socket.write_all(&(descriptors.len() as u32).to_le_bytes())?;
        self.socket.write_all(&bytes)?;
        for some in descriptors.chunks(DESCRIPTORS_PER_BYTE) {
            self.send_descriptors(some)?;
        }
        Ok(())
    }

    fn send_descriptors(&self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_BYTE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let sent = rustix::net::sendmsg(
            self.socket.as_fd(),
            &[IoSlice::new(&[0])],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        if sent == 1 { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    pub(super) fn receive(&mut self) -> Result<(HandOverMessage, Vec<OwnedFd>), ChannelError> {
        let mut head = [0; 8];
        self.socket.read_exact(&mut head)?;
        let [a, b, c, d, e, f, g, h] = head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let sent = u32::from_le_bytes([e, f, g, h]) as usize;
        if length > MESSAGE_BYTES_MAX || sent > DESCRIPTORS_MAX {
            return Err(ChannelError::Long);
        }
        let mut bytes = Vec::new();
        let read = (&self.socket).take(length as u64).read_to_end(&mut bytes)?;
        if read < length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let mut descriptors = Vec::new();
        for _ in 0..sent.div_ceil(DESCRIPTORS_PER_BYTE) {
            self.receive_descriptors(&mut descriptors)?;
        }
        if descriptors.len() != sent {
            return Err(ChannelError::Descriptors { sent, came: descriptors.len() });
        }
        let message = stream::snapshot::read(FORMAT, &bytes).map_err(ChannelError::Message)?;
        Ok((message, descriptors))
    }

    fn receive_descriptors(&self, into: &mut Vec<OwnedFd>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_BYTE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let came = rustix::net::recvmsg(
            self.socket.as_fd(),
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                into.extend(descriptors);
            }
        }
        if came.bytes == 1 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    fn pair() -> (Channel, Channel) {
        let (one, other) = UnixStream::pair().unwrap();
        (Channel::new(one), Channel::new(other))
    }

    #[test]
    fn messages_come_with_their_descriptors_in_order() {
        let (mut one, mut other) = pair();
        let files: Vec<File> = (0..150).map(|_| File::open("/dev/null").unwrap()).collect();
        let own: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        one.send(&HandOverMessage::Links { shard: 3 }, &own).unwrap();
        one.send(&HandOverMessage::Refused("no".to_owned()), &[]).unwrap();
        let (message, came) = other.receive().unwrap();
        assert!(matches!(message, HandOverMessage::Links { shard: 3 }), "{message:?}");
        assert_eq!(came.len(), files.len());
        let same = File::from(came.into_iter().next_back().unwrap());
        assert_eq!(same.metadata().unwrap().ino(), files[149].metadata().unwrap().ino());
        let (message, came) = other.receive().unwrap();
        assert!(matches!(message, HandOverMessage::Refused(why) if why == "no") && came.is_empty());
    }

    #[test]
    fn an_end_and_a_stranger_are_told_apart() {
        let (one, mut other) = pair();
        drop(one);
        let why = other.receive().unwrap_err();
        assert!(why.to_string().contains("has ended"), "{why}");
        let (one, mut other) = pair();
        (&one.socket).write_all(b"\x05\0\0\0\0\0\0\0hello").unwrap();
        let why = other.receive().unwrap_err();
        assert!(why.to_string().contains("not a snapshot"), "{why}");
        let (one, mut other) = pair();
        other.set_patience(Duration::from_millis(20)).unwrap();
        let why = other.receive().unwrap_err();
        assert!(why.to_string().contains("in time"), "{why}");
        drop(one);
    }
}
