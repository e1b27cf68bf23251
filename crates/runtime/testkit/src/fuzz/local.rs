//! Fuzz functions for local servers and parsers: each takes arbitrary bytes and panics if an invariant does
//! not hold.

use block_device::nbd::{CommandKind, Export, OPTION_LEN_MAX, Session, SessionEvent};
use block_device::vhost;

/// A client of the NBD server. The first byte says in which pieces the others arrive.
///
/// Holds: a call uses no more than it got and, when it wants more, could not have been given more room;
/// every payload that follows a request is announced; what is said is bounded by what was asked.
pub fn nbd(data: &[u8]) {
    let Some((&pace, data)) = data.split_first() else { return };
    let export = Export {
        name: "disk".into(),
        description: "a disk".into(),
        size: 1 << 30,
        read_only: pace & 0x80 != 0,
        minimum: 512,
        preferred: 4096,
        fast_zero: pace & 0x40 != 0,
        unmapped_is_zero: true,
    };
    let mut out = Vec::new();
    let mut session = Session::new(&mut out);
    let greeting = out.len();
    let (mut stage, mut payload) = (Vec::new(), 0_usize);
    for piece in data.chunks(usize::from(pace & 0x3f) * 7 + 1) {
        stage.extend_from_slice(piece);
        loop {
            let now = payload.min(stage.len());
            stage.drain(..now);
            payload -= now;
            if payload > 0 {
                break;
            }
            let (used, step) = session.handle_input(&stage, &export, &mut out);
            assert!(used <= stage.len(), "used more than there was");
            stage.drain(..used);
            match step {
                SessionEvent::More => {
                    assert!(stage.len() < OPTION_LEN_MAX + 16, "waits with {} bytes at hand", stage.len());
                    break;
                }
                SessionEvent::Close => return,
                SessionEvent::Request(request) => {
                    assert!(session.is_transmission() || request.kind == Ok(CommandKind::Disconnect));
                    assert!(
                        !matches!(request.kind, Ok(CommandKind::Write { .. }))
                            || request.payload == request.len
                    );
                    payload = request.payload as usize;
                }
            }
        }
    }
    assert!(out.len() - greeting <= 40 * data.len() + 400, "{} bytes for {}", out.len(), data.len());
}

/// A front end's messages over vhost-user.
///
/// Holds: a message uses no more than there is; what is not all there may still become one only while it
/// is shorter than the longest message; a list has no more entries than a message has room for.
pub fn vhost(mut data: &[u8]) {
    loop {
        match vhost::parse_input(data) {
            Err(vhost::Malformed) => return,
            Ok(None) => {
                assert!(data.len() < 12 + vhost::PAYLOAD_MAX, "waits with {} bytes at hand", data.len());
                return;
            }
            Ok(Some((used, envelope))) => {
                assert!((12..=12 + vhost::PAYLOAD_MAX).contains(&used) && used <= data.len());
                match envelope.message {
                    vhost::Message::SetMemory(regions) => assert!((1..=8).contains(&regions.len())),
                    vhost::Message::SetConfig(at, bytes) => assert_eq!(bytes.len(), at.size as usize),
                    vhost::Message::GetConfig(at) => assert!(at.offset + at.size <= 256),
                    _ => {}
                }
                data = &data[used..];
            }
        }
    }
}
