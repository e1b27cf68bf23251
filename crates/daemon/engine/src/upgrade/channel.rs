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
use std::time::{Duration, Instant};

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
/// The longest message to the old process, whatever binary sends it: the reason of a refusal.
const REPLY_BYTES_MAX: usize = 64 << 10;
/// Bytes that are read at a time, so that memory is taken only for what has come.
const READ_BYTES: usize = 64 << 10;

/// One end.
#[derive(Debug)]
pub(super) struct Channel {
    socket: UnixStream,
    /// How long a whole message may take.
    patience: Duration,
    /// The longest message, and the most descriptors of one, that are received.
    bounds: (usize, usize),
}

impl Channel {
    /// The end of the new process.
    pub(super) fn to_predecessor(socket: UnixStream, patience: Duration) -> Self {
        Channel { socket, patience, bounds: (MESSAGE_BYTES_MAX, DESCRIPTORS_MAX) }
    }

    /// The end of the old process, to which a wrong binary may send anything.
    pub(super) fn to_successor(socket: UnixStream, patience: Duration) -> Self {
        Channel { socket, patience, bounds: (REPLY_BYTES_MAX, 0) }
    }

    /// No message takes longer than this, from its first byte to its last descriptor, however slowly it comes.
    pub(super) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Whether the other end is open and has sent nothing that was not received.
    pub(super) fn is_quiet(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let came = rustix::net::recv(self.socket.as_fd(), &mut [0_u8; 1][..], flags);
        came.is_err_and(|why| why == rustix::io::Errno::AGAIN)
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
        let until = Instant::now() + self.patience;
        let head = [bytes.len() as u32, descriptors.len() as u32].map(u32::to_le_bytes).concat();
        self.write_until(until, &head)?;
        self.write_until(until, &bytes)?;
        for some in descriptors.chunks(DESCRIPTORS_PER_BYTE) {
            self.socket.set_write_timeout(Some(time_left(until)?))?;
            self.send_descriptors(some)?;
        }
        Ok(())
    }

    fn write_until(&self, until: Instant, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.socket.set_write_timeout(Some(time_left(until)?))?;
            match (&self.socket).write(bytes) {
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    fn read_until(&self, until: Instant, into: &mut [u8]) -> io::Result<()> {
        let mut got = 0;
        while let Some(rest) = into.get_mut(got..).filter(|rest| !rest.is_empty()) {
            self.socket.set_read_timeout(Some(time_left(until)?))?;
            match (&self.socket).read(rest) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => got += read,
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
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
        let until = Instant::now() + self.patience;
        let mut head = [0; 8];
        self.read_until(until, &mut head)?;
        let [a, b, c, d, e, f, g, h] = head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let sent = u32::from_le_bytes([e, f, g, h]) as usize;
        if length > self.bounds.0 || sent > self.bounds.1 {
            return Err(ChannelError::Long);
        }
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let at = bytes.len();
            bytes.resize(length.min(at + READ_BYTES), 0);
            self.read_until(until, bytes.get_mut(at..).unwrap_or_default())?;
        }
        let mut descriptors = Vec::new();
        for _ in 0..sent.div_ceil(DESCRIPTORS_PER_BYTE) {
            self.socket.set_read_timeout(Some(time_left(until)?))?;
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

/// What is left of a message's time; the error is that of a socket whose time is over.
fn time_left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    fn pair() -> (Channel, Channel) {
        let (one, other) = UnixStream::pair().unwrap();
        let patience = Duration::from_secs(10);
        (Channel::to_successor(one, patience), Channel::to_predecessor(other, patience))
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
        other.set_patience(Duration::from_millis(20));
        let why = other.receive().unwrap_err();
        assert!(why.to_string().contains("in time"), "{why}");
        drop(one);
    }

    /// Each byte comes in time, and the message does not.
    #[test]
    fn a_message_that_trickles_in_is_not_waited_for() {
        let (one, mut other) = pair();
        other.set_patience(Duration::from_millis(200));
        let socket = one.socket.try_clone().unwrap();
        let trickling = std::thread::spawn(move || {
            let mut head = 1000_u32.to_le_bytes().to_vec();
            head.resize(1000, 0);
            // The receiver has gone at some time.
            head.iter()
                .take_while(|byte| {
                    std::thread::sleep(Duration::from_millis(20));
                    (&socket).write_all(&[**byte]).is_ok()
                })
                .count()
        });
        let begun = Instant::now();
        let why = other.receive().unwrap_err();
        assert!(why.to_string().contains("in time"), "{why}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        drop((one, other));
        assert!(trickling.join().unwrap() < 1000);
    }

    /// Any binary may be started as the one that takes over.
    #[test]
    fn what_a_binary_sends_is_bounded() {
        for head in [*b"\xff\xff\xff\x0f\0\0\0\0", *b"\x05\0\0\0\x01\0\0\0"] {
            let (mut one, other) = pair();
            (&other.socket).write_all(&head).unwrap();
            let why = one.receive().unwrap_err();
            assert!(matches!(why, ChannelError::Long), "{why}");
        }
    }

    #[test]
    fn what_was_not_received_is_noticed() {
        let (one, mut other) = pair();
        assert!(one.is_quiet());
        other.send(&HandOverMessage::Refused("late".to_owned()), &[]).unwrap();
        assert!(!one.is_quiet());
        let (one, other) = pair();
        drop(other);
        assert!(!one.is_quiet(), "the other process has ended");
    }
}
