//! How much the kernel holds of what many links send at once.
//!
//! A socket's send buffer grows to megabytes while its peer takes what comes. What a crowd of such links holds
//! together has left the processor's caches before the peer copies it. So while many links have large sends out, each
//! has a small buffer: more than what is under way to a near peer, and little enough that all of them together stay in
//! a cache. A link that sends alone, or nearly so, has the system's own sizes again, because with a small buffer it
//! would wait for room.
//!
//! Invariant: a size that somebody else has set, such as `send_buffer` of a portal, stays; and so does that of a link
//! whose peer is not near, which needs its buffer for what is under way.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::socket;

/// A send of so many bytes counts: what is smaller is in the peer's hands soon.
const LARGE_SEND_BYTES: usize = 64 << 10;
/// From so many large sends at once on, buffers are small.
const MANY_LINKS: usize = 8;
/// Down to so many they stay small.
const FEW_LINKS: usize = 4;
/// Bytes of a small buffer; the kernel doubles it for its own needs. It is what any process may set by default.
const SMALL_BUFFER_BYTES: i32 = 208 << 10;
/// A peer is near if an answer takes no longer than this, in microseconds: with a small buffer for each of a crowd, more
/// than 60 Gbit/s are still under way.
const NEAR_US_MAX: u32 = 200;

/// Large sends that are out, of all links of a shard.
#[derive(Debug, Default)]
pub(crate) struct LargeSends {
    out: usize,
}

/// What a link has to do with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkSendBuffer {
    /// Its send that is out counts.
    counts: bool,
    buffer: BufferSize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BufferSize {
    /// The system's.
    #[default]
    Own,
    /// Small, by us.
    Small,
    /// It is left alone: somebody else has set it, its peer is far, or the system does not say.
    Fixed,
}

impl LinkSendBuffer {
    /// The link goes to another shard, which knows nothing of its buffer: it has the system's size again.
    pub(crate) fn restore_buffer(&mut self, fd: &OwnedFd) {
        if std::mem::take(&mut self.buffer) == BufferSize::Small {
            // Where that fails it stays small, and is served all the same.
            let _ = socket::unset_send_buffer(fd);
        }
    }
}

impl LargeSends {
    /// A send of so many bytes starts.
    #[inline]
    pub(crate) fn note_send_started(&mut self, link: &mut LinkSendBuffer, fd: &OwnedFd, bytes: usize) {
        if bytes < LARGE_SEND_BYTES {
            return;
        }
        self.out += 1;
        link.counts = true;
        match link.buffer {
            BufferSize::Own if self.out >= MANY_LINKS => {
                let is_ours = is_near(fd) && !socket::is_send_buffer_set(fd);
                let made = is_ours && socket::set_send_buffer(fd, SMALL_BUFFER_BYTES).is_ok();
                link.buffer = if made { BufferSize::Small } else { BufferSize::Fixed };
            }
            BufferSize::Small if self.out <= FEW_LINKS => {
                // What cannot be taken back stays as it is.
                let freed = socket::unset_send_buffer(fd).is_ok();
                link.buffer = if freed { BufferSize::Own } else { BufferSize::Fixed };
            }
            BufferSize::Own | BufferSize::Small | BufferSize::Fixed => {}
        }
    }

    /// The link's send has ended, however.
    #[inline]
    pub(crate) fn note_send_ended(&mut self, link: &mut LinkSendBuffer) {
        if std::mem::take(&mut link.counts) {
            self.out -= 1;
        }
    }
}

fn is_near(fd: &OwnedFd) -> bool {
    socket::min_rtt_us(fd.as_raw_fd()).is_some_and(|us| us <= NEAR_US_MAX)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Both ends of a connection within this machine.
    fn connected() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near.into(), listener.accept().unwrap().0)
    }

    #[test]
    fn buffers_are_small_while_many_send_much() {
        let mut sends = LargeSends::default();
        let mut all: Vec<_> = (0..MANY_LINKS + 2).map(|_| (LinkSendBuffer::default(), connected())).collect();
        for (link, (fd, _)) in &mut all {
            sends.note_send_started(link, fd, LARGE_SEND_BYTES - 1);
        }
        assert_eq!(sends.out, 0, "small sends are no crowd");
        for (link, (fd, _)) in &mut all {
            sends.note_send_started(link, fd, LARGE_SEND_BYTES);
        }
        let sizes: Vec<BufferSize> = all.iter().map(|(link, _)| link.buffer).collect();
        assert!(sizes[..MANY_LINKS - 1].iter().all(|size| *size == BufferSize::Own), "{sizes:?}");
        assert!(sizes[MANY_LINKS - 1..].iter().all(|size| *size == BufferSize::Small), "{sizes:?}");
        let small = &all[MANY_LINKS].1.0;
        assert!(socket::is_send_buffer_set(small) && !socket::is_send_buffer_set(&all[0].1.0));
        for (link, _) in &mut all {
            sends.note_send_ended(link);
            sends.note_send_ended(link);
        }
        assert_eq!(sends.out, 0, "each ends once");
        let (link, (fd, _)) = &mut all[MANY_LINKS];
        sends.note_send_started(link, fd, 1 << 20);
        assert!(link.buffer == BufferSize::Own && !socket::is_send_buffer_set(fd), "it sends alone");
        let (link, (fd, _)) = &mut all[MANY_LINKS + 1];
        assert!(socket::is_send_buffer_set(fd));
        link.restore_buffer(fd);
        assert!(!socket::is_send_buffer_set(fd), "it goes elsewhere");
    }

    #[test]
    fn a_size_that_somebody_has_set_stays() {
        let mut sends = LargeSends { out: MANY_LINKS };
        let (fd, _peer) = connected();
        socket::set_send_buffer(&fd, 64 << 10).unwrap();
        let mut link = LinkSendBuffer::default();
        sends.note_send_started(&mut link, &fd, 1 << 20);
        assert_eq!(link.buffer, BufferSize::Fixed);
        sends.note_send_ended(&mut link);
        sends.out = 0;
        sends.note_send_started(&mut link, &fd, 1 << 20);
        assert!(socket::is_send_buffer_set(&fd));
    }

    #[test]
    fn a_peer_that_does_not_say_how_near_it_is_is_far() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_near(&one.into()));
        assert!(is_near(&connected().0), "the same machine");
    }
}
