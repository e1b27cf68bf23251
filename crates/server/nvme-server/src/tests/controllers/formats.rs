//! Format NVM.

use nvme::Status;

use super::*;
use crate::FormatFailure;

fn format(nsid: u32, dword: u32) -> Sqe {
    admin(0x80, nsid, &[dword], 0)
}

fn world() -> (World, Host) {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    world.add(4096, |_| {});
    let read_only = NamespaceEntry { nsid: 2, read_only: true, ..entry(1) };
    let host = world.controller(spec(1, 1, vec![entry(0), read_only]));
    (world, host)
}

fn begin(world: &mut World, host: Host) {
    let (id, _) = *world.formats.last().expect("a format is on its way");
    world.cores[host.shard].server.handle_format_begun(id);
    world.run();
}

fn end(world: &mut World, host: Host, end: Result<(), FormatFailure>) {
    let (id, _) = world.formats.pop().expect("a format is on its way");
    let (core, mut cx) = world.parts.core(host.shard);
    core.server.handle_format_end(&mut cx, id, end);
    world.run();
}

#[test]
fn a_format_is_answered_when_it_has_ended() {
    let ends = [
        (Ok(()), Status::SUCCESS),
        (Err(FormatFailure::Failed), Status::SANITIZE_FAILED.with_do_not_retry()),
        (Err(FormatFailure::Refused(volume::Refusal::NotFenced)), Status::INTERNAL_ERROR),
        (
            Err(FormatFailure::Refused(volume::Refusal::NotReady(volume::UnservableReason::Formatting(7)))),
            Status::FORMAT_IN_PROGRESS,
        ),
    ];
    for (how, status) in ends {
        let (mut world, host) = world();
        // With and without an erase of user data.
        for dword in [0, 1 << 9] {
            let started = world.start(host, &format(1, dword), &[]);
            world.run();
            assert_eq!(world.end(started), None);
            assert_eq!(world.formats.last().map(|(_, volume)| *volume), Some(entry(0).volume));
            end(&mut world, host, how);
            assert_eq!(world.status(started), status);
        }
    }
}

#[test]
fn formats_that_there_are_not_are_refused() {
    let (mut world, host) = world();
    let invalid_format = Status::INVALID_FORMAT.with_do_not_retry();
    let invalid_field = Status::INVALID_FIELD.with_do_not_retry();
    for (sqe, status) in [
        (format(1, 1), invalid_format),
        (format(1, 1 << 12), invalid_format),
        (format(1, 1 << 4), invalid_format),
        (format(1, 1 << 5), invalid_format),
        (format(1, 2 << 9), invalid_field),
        (format(0xffff_ffff, 0), invalid_field),
        (format(0, 0), Status::INVALID_NAMESPACE.with_do_not_retry()),
        (format(9, 0), Status::INVALID_NAMESPACE.with_do_not_retry()),
    ] {
        assert_eq!(world.command(host, &sqe, &[]), status, "{sqe:?}");
    }
    // Who may only read destroys nothing.
    let refused = world.command(host, &format(2, 0), &[]);
    assert_eq!(refused.without_retry_hints(), Status::NAMESPACE_WRITE_PROTECTED);
    assert!(world.formats.is_empty());
}

#[test]
fn a_format_goes_on_without_its_host() {
    let (mut world, host) = world();
    world.start(host, &format(1, 0), &[]);
    world.run();
    begin(&mut world, host);
    world.close(host);
    world.run();
    assert_eq!(world.gone.len(), 1);
    end(&mut world, host, Ok(()));
}

/// No reset and no end of a controller is complete while a format that it has asked for may still begin.
#[test]
fn a_controller_is_not_gone_while_its_format_may_still_begin() {
    for begins in [true, false] {
        let settle = |world: &mut World, host| {
            if begins {
                begin(world, host);
            } else {
                end(world, host, Err(FormatFailure::Refused(volume::Refusal::Conflict)));
            }
        };
        let (mut world, host) = self::world();
        world.start(host, &format(1, 0), &[]);
        world.run();
        assert_eq!(world.set(host, Property::CC, 0x0046_0000), Status::SUCCESS);
        assert_eq!(world.property(host, Property::CSTS, 4), 1, "the reset is not complete");
        settle(&mut world, host);
        assert_eq!(world.property(host, Property::CSTS, 4), 0);

        let (mut world, host) = self::world();
        world.start(host, &format(1, 0), &[]);
        world.run();
        world.close(host);
        world.run();
        assert!(world.gone.is_empty());
        settle(&mut world, host);
        assert_eq!(world.gone, [(1, crate::ControllerEnd::Closed)]);
    }
}

/// The same of a request to a volume's home.
#[test]
fn a_controller_is_not_gone_while_its_request_has_no_answer() {
    let (mut world, host) = world();
    let mut protect = admin(0x09, 1, &[0x84, 1], 0);
    protect.flags = 0x40;
    world.start(host, &protect, &[]);
    world.hold_messages = true;
    world.close(host);
    assert!(world.gone.is_empty());
    world.hold_messages = false;
    world.run();
    assert_eq!(world.gone, [(1, crate::ControllerEnd::Closed)]);
}

#[test]
fn identify_says_how_far_a_format_is() {
    let (mut world, host) = world();
    let progress = |world: &mut World| {
        let data = world.good(host, &admin(0x06, 1, &[0], 4096), &[]);
        let independent = world.good(host, &admin(0x06, 1, &[8], 4096), &[]);
        assert_eq!(data[32], independent[3]);
        data[32]
    };
    assert_eq!(progress(&mut world), 0x80);
    let who = spec(1, 1, vec![]).nexus;
    world.request(0, volume::VolumeRequest::FormatStart { who }).unwrap();
    assert_eq!(progress(&mut world), 0x80 | 100);
    let read = super::super::transfer(nvme::Opcode::READ, 0, 1);
    let queue = world.connect(1, &join(1, 1, 0)).unwrap();
    assert_eq!(world.command(queue, &read, &[]), Status::FORMAT_IN_PROGRESS);
    world.request(0, volume::VolumeRequest::SanitizeEnd { done: true }).unwrap();
    assert_eq!(progress(&mut world), 0x80);
    let controller = world.good(host, &admin(0x06, 0, &[1], 4096), &[]);
    assert_eq!((controller[256] & 2, controller[524]), (2, 8), "OACS, FNA");
}
