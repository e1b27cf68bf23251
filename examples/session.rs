//! Both ends of an NVMe/TCP queue, without a socket.
//!
//! It shows that a protocol connection is a state machine. It says what it wants to receive and to send
//! (`poll_recv`, `poll_send`), takes completions (`handle_recv`, `handle_written`, `handle_send_released`), and
//! reports events (`poll_event`). A *world* moves the bytes: io_uring, the simulator, or here the function
//! `carry`. iSCSI sessions implement the same traits ([`stream::Connection`], [`stream::TargetConnection`]).
//!
//! The host reads 4 KiB. A connection does not execute commands, so this program plays the server.
//!
//! `cargo run -p blockwire-examples --example session`

#![forbid(unsafe_code)]

use std::fmt::Debug;

use buf::{Cx, Entropy, MemoryClass, Payload, Pool, Time};
use nvme::{Completion, Opcode, Sqe};
use nvme_tcp::{ConnectedQueueSize, ControllerQueue, HostQueue, HostQueueSettings, QueueLimits};
use stream::{Connection, HostConnection, HostEvent, LinkNumber, Received, TargetConnection, TargetEvent};
use zerocopy::FromZeros;

const LINK: LinkNumber = LinkNumber(0);
const LEN: usize = 4096;
const READ: Opcode = Opcode(2);
const SIZE: ConnectedQueueSize = ConnectedQueueSize { entries: 32, flow_control: true, in_capsule_max: 8192 };

/// A world of one direction: takes what one side sends, and gives it to the other. False: nothing was to be sent.
fn carry<F: Connection, T: Connection>(cx: &mut Cx<'_>, from: &mut F, to: &mut T) -> bool
where
    T::LinkFault: Debug,
{
    let Some(sent) = from.poll_send(cx, LINK) else { return false };
    let mut bytes = vec![0; sent.len];
    sent.copy_to(0, &mut bytes);
    // The socket has taken the bytes; the kernel has let go of their memory. With zero-copy the latter comes later.
    from.handle_written(cx, LINK, Ok(()));
    from.handle_send_released(cx, LINK, sent);

    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let mut receive = to.poll_recv(cx, LINK).expect("the other side listens");
        let mut came = 0;
        // Payload whose place is known goes straight there, what follows it into memory that the world attaches.
        if let Some(direct) = &mut receive.direct {
            for slice in direct.data.slices_mut(direct.want.clone()) {
                let len = slice.len().min(rest.len() - came);
                slice[..len].copy_from_slice(&rest[came..came + len]);
                came += len;
            }
        }
        let staged = receive.stage_len.min(rest.len() - came);
        if staged > 0 {
            let mut stage = cx.pool.take(MemoryClass::Wire, staged).expect("the pool has memory");
            stage.copy_from_slice(&rest[came..came + staged]);
            receive.stage = Some(stage);
            came += staged;
        }
        rest = &rest[came..];
        to.handle_recv(cx, LINK, receive, Received::Bytes(came)).expect("the peer keeps the protocol");
    }
    true
}

/// The server: opens the queue at Connect, answers each read with a block of one byte, anything else with success.
fn serve(cx: &mut Cx<'_>, controller: &mut ControllerQueue) {
    while let Some(event) = controller.poll_event() {
        let TargetEvent::Command { tag, command, .. } = event else { continue };
        if command.opcode == Opcode::FABRICS {
            assert!(controller.finish_connect(cx, SIZE), "the pool can promise memory for 32 commands");
        } else if command.opcode == READ {
            let mut block = cx.pool.take_sg(MemoryClass::Wire, LEN).expect("the pool has memory");
            block.copy_from(0, &[0x5a; LEN]);
            controller.send_data(cx, tag, 0, block.freeze());
        }
        controller.respond(cx, tag, Completion::SUCCESS);
    }
}

/// Moves bytes until the host tells something.
fn next_event(
    cx: &mut Cx<'_>,
    host: &mut HostQueue,
    controller: &mut ControllerQueue,
) -> HostEvent<nvme::Cqe> {
    loop {
        if let Some(event) = host.poll_event() {
            return event;
        }
        let there = carry(cx, host, controller);
        controller.resume_parsing(cx).expect("the host keeps the protocol");
        serve(cx, controller);
        let back = carry(cx, controller, host);
        host.resume_parsing(cx).expect("the controller keeps the protocol");
        assert!(there || back, "one of both has something to say");
    }
}

fn main() {
    // The same seed and the same times give the same bytes: that is how the simulator repeats a history.
    let (pool, mut entropy) = (Pool::new(16 << 20), Entropy::new([0; 32]));
    let cx = &mut Cx { now: Time(1), pool: &pool, entropy: &mut entropy };
    let mut host = HostQueue::new(cx, HostQueueSettings::default());
    let mut controller = ControllerQueue::new(cx, QueueLimits::default());

    // ICReq and ICResp settle digests and alignment. Then one Connect may go.
    assert!(matches!(next_event(cx, &mut host, &mut controller), HostEvent::Ready));
    let mut connect = Sqe::new_zeroed();
    (connect.opcode, connect.nsid) = (Opcode::FABRICS, u32::from(nvme::FabricsType::CONNECT.0).into());
    host.submit(cx, connect, Payload::None).expect("the first command fits");
    assert!(matches!(next_event(cx, &mut host, &mut controller), HostEvent::Completed { .. }));
    host.finish_connect(SIZE);

    let mut read = Sqe::new_zeroed();
    read.opcode = READ;
    let memory = pool.take_sg(MemoryClass::Wire, LEN).expect("the pool has memory");
    let tag = host.submit(cx, read, Payload::In(memory)).expect("31 commands fit");
    let HostEvent::Completed { tag: of, payload, .. } = next_event(cx, &mut host, &mut controller) else {
        panic!("a command that was submitted ends");
    };
    assert_eq!(of, tag);
    let mut block = [0; LEN];
    payload.into_sg().copy_to(0, &mut block);
    assert_eq!(block, [0x5a; LEN]);
    println!("the host has read {LEN} bytes of {:#x}", block[0]);
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_read_brings_what_the_server_sent() {
        super::main();
    }
}
