//! Answers that find no memory: they wait for it, without side effects.

use std::sync::Arc;

use nvme::auth::{ConcatenationPolicy, Credentials, DhGroup, DhchapPolicy, DhchapSecret, Hash, auth_sqe};
use nvme::reservation::{Register, RegisterAction, RegisterKeys, Report};
use nvme::{FabricsType, fabrics::Property};
use volume::reservation::{Action, Key, ReservationType};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::controllers::{admin, entry, event_request, get_feature, get_log, host, join, spec, subsystem};
use super::*;
use crate::{ControllerSpec, RequiredAuthentication};

/// All that there is of the memory for headers, and so of any.
fn take_all(world: &World) -> Vec<buf::SgMut> {
    let sizes = [1 << 20, 64 << 10, 4096, 512];
    sizes
        .into_iter()
        .flat_map(|len| std::iter::from_fn(move || world.pool.take_sg(MemoryClass::Wire, len)))
        .collect()
}

fn controller() -> (World, Host) {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let host = world.controller(spec(2, 1, vec![entry(0)]));
    (world, host)
}

#[test]
fn answers_of_the_admin_queue_wait_for_memory() {
    let (mut world, host) = controller();
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    world.good(queue, &transfer(Opcode::READ, 0, 1), &[]);
    let all = take_all(&world);
    let commands =
        [admin(0x06, 0, &[1], 4096), get_log(2, 512), get_feature(0x81, 0, 1, 16), get_log(3, 512)];
    let started: Vec<Started> = commands
        .iter()
        .enumerate()
        .map(|(at, sqe)| world.start(host, &with_cid(*sqe, at as u16), &[]))
        .collect();
    world.run();
    assert!(started.iter().all(|one| world.end(*one).is_none()));
    // What needs no memory is answered; what waits can be aborted, and then asks for nothing.
    assert_eq!(world.property(host, Property::CSTS, 4), 1);
    let aborted = world.ends(host, &admin(0x08, 0, &[3 << 16], 0), &[]);
    assert_eq!((aborted.result, world.status(started[3])), (0, Status::ABORT_REQUESTED));
    drop(all);
    world.run();
    assert!(started[..3].iter().all(|one| world.status(*one) == Status::SUCCESS));
    assert_eq!(world.bytes(started[0]).len(), 4096);
    assert_eq!(world.bytes(started[1])[32], 1, "the page was made when there was memory");
    assert_eq!(world.bytes(started[2]), [1; 16]);
    assert_eq!((world.lent(), world.hungry.len()), (0, 0));
}

#[test]
fn a_page_that_was_gathered_waits_for_memory() {
    let (mut world, host) = controller();
    world.connect(2, &join(1, 1, 1)).unwrap();
    world.hold_messages = true;
    let health = world.start(host, &get_log(2, 512), &[]);
    let all = take_all(&world);
    world.hold_messages = false;
    world.run();
    assert_eq!((world.end(health), world.hungry.len()), (None, 1));
    drop(all);
    world.run();
    assert_eq!((world.status(health), world.bytes(health).len()), (Status::SUCCESS, 512));
}

/// A page that is not given is not read.
#[test]
fn no_notice_is_lost_for_want_of_memory() {
    let (mut world, host) = controller();
    let who =
        |id| Requester { identity: Arc::new(Identity::Host([id; 16])), port: PortId(1), read_only: false };
    for (id, key) in [(1, 0x11), (9, 0x99)] {
        let action = super::controllers::events::register(key);
        world.request(0, VolumeRequest::Reserve { who: who(id), action }).unwrap();
    }
    let kind = ReservationType::WriteExclusive;
    let preempt = Action::Preempt { key: Some(Key(0x99)), victim: Key(0x11), kind, abort: false };
    world.request(0, VolumeRequest::Reserve { who: who(9), action: preempt }).unwrap();
    let request = world.start(host, &event_request(1), &[]);
    assert_eq!(world.event(request), Some(0x0080_0006));
    let all = take_all(&world);
    let log = world.start(host, &with_cid(get_log(0x80, 64), 5), &[]);
    world.run();
    assert_eq!(world.end(log), None);
    world.ends(host, &admin(0x08, 0, &[5 << 16], 0), &[]);
    assert_eq!(world.status(log), Status::ABORT_REQUESTED);
    drop(all);
    assert_eq!(world.good(host, &get_log(0x80, 64), &[])[..9], [1, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn a_reservation_report_waits_for_memory() {
    let (mut world, host) = disk();
    let mut set = sqe(Opcode::RESERVATION_REGISTER);
    Register { action: RegisterAction::Register, ignore_key: false, persist: None }.write_to_sqe(&mut set);
    let keys = RegisterKeys { current: U64::ZERO, new: U64::new(0x11) };
    assert_eq!(world.command(host, &set, keys.as_bytes()), Status::SUCCESS);
    let mut sqe = sqe(Opcode::RESERVATION_REPORT);
    Report { len: 4096, extended: true }.write_to_sqe(&mut sqe);
    sqe.dptr.length = U32::new(4096);
    let all = take_all(&world);
    let reports = [1, 2, 3].map(|cid| world.start(host, &with_cid(sqe, cid), &[]));
    world.run();
    assert!(reports.iter().all(|one| world.end(*one).is_none()));
    assert!(world.server(host).context.abort_cid(host.key, 2));
    drop(all);
    world.run();
    let ends = reports.map(|one| world.status(one));
    assert_eq!(ends, [Status::SUCCESS, Status::ABORT_REQUESTED, Status::SUCCESS]);
    assert_eq!(world.bytes(reports[0]), world.bytes(reports[2]));
    let all = take_all(&world);
    // It is kept while nothing changes, so it needs no more memory; a change makes another.
    assert_eq!(world.command(host, &sqe, &[]), Status::SUCCESS);
    drop(all);
    world.request(0, VolumeRequest::WriteProtect(true)).unwrap();
    let all = take_all(&world);
    let last = world.start(host, &sqe, &[]);
    world.run();
    world.close(host);
    assert_eq!(world.end(last), Some(End::Retired));
    drop(all);
    world.run();
    assert_eq!(world.hungry.len(), 0);
}

#[test]
fn a_message_of_authentication_waits_for_memory() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    let secret = DhchapSecret::parse("DHHC-1:01:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:").unwrap();
    let host_nqn = host(1).nqn.as_str().to_owned();
    let key = Some(secret.derive_key(&host_nqn));
    let subsystem_nqn = subsystem().nqn.as_str().to_owned();
    let credentials = Credentials { host_nqn, subsystem_nqn, host: key, controller: None };
    let policy = DhchapPolicy { hashes: vec![Hash::Sha256], groups: vec![DhGroup::Null] };
    let auth = RequiredAuthentication {
        credentials: credentials.clone(),
        policy: policy.clone(),
        concatenation: ConcatenationPolicy::Refused,
    };
    let queue = world.open(ControllerSpec { auth: Some(Arc::new(auth)), ..spec(2, 1, vec![entry(0)]) });
    let (_, first) =
        nvme::auth::HostAuthenticator::start(credentials, policy, 7, &mut |bytes| bytes.fill(0x5a));
    let send = auth_sqe(FabricsType::AUTHENTICATION_SEND, first.len() as u32);
    assert_eq!(world.ends(queue, &send, &first).status, Status::SUCCESS);
    let mut receive = auth_sqe(FabricsType::AUTHENTICATION_RECEIVE, 4096);
    receive.dptr.length = U32::new(4096);
    let all = take_all(&world);
    let waiting = world.start(queue, &receive, &[]);
    world.run();
    assert_eq!(world.end(waiting), None);
    let second = world.ends(queue, &receive, &[]);
    assert_eq!(second.status, Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry(), "one at a time");
    drop(all);
    world.run();
    assert_eq!((world.status(waiting), world.bytes(waiting).len()), (Status::SUCCESS, 4096));
    assert_eq!(world.bytes(waiting)[1], 1, "a challenge");
}

/// Where nothing can wait, hosts that know of delays are told one (ACRE, CRD).
#[test]
fn who_knows_of_delays_is_told_to_come_again_after_one() {
    let (mut world, host) = controller();
    assert_eq!(world.good(host, &admin(0x06, 0, &[1], 4096), &[])[128..130], [1, 0], "CRDT1: 100 ms");
    let early = world.connect(2, &join(1, 1, 1)).unwrap();
    // A fence that does not come to an end, and as many asks behind it as wait at all.
    world.disks.hold.set(true);
    world.start(early, &transfer(Opcode::WRITE, 0, 1), &block(1));
    world.request_later(0, VolumeRequest::WriteProtect(true));
    for other in 0..volume::REQUESTS_MAX as u64 {
        let mut id = [0xaa; 16];
        id[..8].copy_from_slice(&other.to_le_bytes());
        world.request_later(
            0,
            VolumeRequest::HostSettings { by: Arc::new(volume::Identity::Host(id)), bits: 0 },
        );
    }
    let mut set = sqe(Opcode::RESERVATION_REGISTER);
    Register { action: RegisterAction::Register, ignore_key: false, persist: None }.write_to_sqe(&mut set);
    let keys = RegisterKeys { current: U64::ZERO, new: U64::new(0x11) };
    let protect = admin(0x09, 1, &[0x84, 1], 0);
    assert_eq!(world.command(early, &set, keys.as_bytes()), Status::COMMAND_INTERRUPTED);
    assert_eq!(world.ends(host, &protect, &[]).status, Status::COMMAND_INTERRUPTED);
    let mut behavior = [0; 512];
    behavior[0] = 1;
    world.good(host, &admin(0x09, 0, &[0x16], 512), &behavior);
    let late = world.connect(2, &join(2, 1, 0)).unwrap();
    let delayed = nvme::Status(0x0821);
    for queue in [early, late] {
        assert_eq!(world.command(queue, &set, keys.as_bytes()), delayed);
    }
    assert_eq!(world.ends(host, &protect, &[]).status, delayed);
}
