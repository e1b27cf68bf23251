//! Queues whose hosts must authenticate: what is served before, success, failure.

use nvme::auth::{
    Concatenation, ConcatenationPolicy, Credentials, DhGroup, DhchapKey, DhchapPolicy, DhchapSecret, Hash,
    HostProgress, MESSAGE_LEN_MAX, auth_sqe,
};
use nvme::fabrics::{ConnectRefusal, ConnectResult, Property};
use nvme::{FabricsType, Opcode, Status};

use super::super::transfer;
use super::*;
use crate::{CommandKey, ControllerEnd, RequiredAuthentication};

const SECRET: &str = "DHHC-1:01:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
const OTHER: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

fn credentials(secret: &str) -> Credentials {
    let (host, subsystem) = (host(1).nqn, subsystem().nqn.clone());
    let key: DhchapKey = DhchapSecret::parse(secret).unwrap().derive_key(host.as_str());
    Credentials {
        host_nqn: host.as_str().to_owned(),
        subsystem_nqn: subsystem.as_str().to_owned(),
        host: Some(key),
        controller: None,
    }
}

fn policy(group: DhGroup) -> DhchapPolicy {
    DhchapPolicy { hashes: vec![Hash::Sha256], groups: vec![group] }
}

fn world(group: DhGroup) -> (World, Host) {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let auth = RequiredAuthentication {
        credentials: credentials(SECRET),
        policy: policy(group),
        concatenation: ConcatenationPolicy::Refused,
    };
    let host = world.open(ControllerSpec { auth: Some(Arc::new(auth)), ..spec(2, 1, vec![entry(0)]) });
    (world, host)
}

impl World {
    /// Authenticates a queue as a host with this secret does. Whether it got in.
    fn authenticate(&mut self, queue: Host, secret: &str, group: DhGroup) -> bool {
        self.authenticate_for(queue, secret, group, Concatenation::None)
    }

    fn authenticate_for(
        &mut self,
        queue: Host,
        secret: &str,
        group: DhGroup,
        concatenation: Concatenation,
    ) -> bool {
        // What the host draws is not what the controller does.
        let mut fill = |bytes: &mut [u8]| bytes.fill(0x5a);
        let (credentials, policy) = (credentials(secret), policy(group));
        let (mut host, first) = nvme::auth::HostAuthenticator::start_concatenation(
            credentials,
            policy,
            (7, concatenation),
            &mut fill,
        );
        let mut progress = HostProgress::Send(first);
        loop {
            progress = match progress {
                HostProgress::Send(message) => {
                    let sqe = auth_sqe(FabricsType::AUTHENTICATION_SEND, message.len() as u32);
                    assert_eq!(self.ends(queue, &sqe, &message).status, Status::SUCCESS);
                    host.handle_sent()
                }
                HostProgress::Receive => {
                    let len = MESSAGE_LEN_MAX as u32;
                    let mut sqe = auth_sqe(FabricsType::AUTHENTICATION_RECEIVE, len);
                    sqe.dptr.length = U32::new(len);
                    let message = self.good(queue, &sqe, &[]);
                    host.handle_message(&message)
                }
                HostProgress::Compute(work) => host.handle_computed(work.run()),
                HostProgress::Authenticated => return true,
                HostProgress::Failed(_) => return false,
            };
        }
    }
}

#[test]
fn each_queue_authenticates_before_it_is_served() {
    for group in [DhGroup::Null, DhGroup::Ffdhe2048] {
        let (mut world, host) = world(group);
        assert_eq!(world.server(host).connect_completion(host.key).result, 2 | 1 << 17);
        assert!(world.authenticate(host, SECRET, group));
        assert_eq!(world.set(host, Property::CC, 0x0046_0001), Status::SUCCESS);
        let queue = world.connect(2, &join(1, 1, 1)).unwrap();
        let read = transfer(Opcode::READ, 0, 1);
        let key = CommandKey { queue: queue.key, tag: 9 };
        let now = world.now;
        assert_eq!(world.server(queue).inline_io_for(now, key, &read, 0), None);
        assert_eq!(world.command(queue, &read, &[]), Status::AUTHENTICATION_REQUIRED.with_do_not_retry());
        assert!(world.authenticate(queue, SECRET, group));
        assert_eq!(world.command(queue, &read, &[]), Status::SUCCESS);
        assert!(world.server(queue).inline_io_for(now, key, &read, 0).is_some());
        // Once more, while it is served.
        assert!(world.authenticate(queue, SECRET, group));
        world.pass(100);
        assert_eq!(world.command(queue, &read, &[]), Status::SUCCESS);
        assert!(world.gone.is_empty() && world.ended.is_empty());
    }
}

#[test]
fn attack_70_nothing_is_served_while_authentication_is_due() {
    let (mut world, host) = world(DhGroup::Null);
    let required = Status::AUTHENTICATION_REQUIRED.with_do_not_retry();
    for opcode in 0..=0xff {
        let sqe = admin(opcode, 4, &[1], 4096);
        assert_eq!(world.ends(host, &sqe, &[]).status, required, "{opcode:#x}");
    }
    for kind in [0, 1, 4, 8, 0xc0] {
        assert_eq!(world.ends(host, &admin(0x7f, kind, &[], 0), &[]).status, required, "type {kind:#x}");
    }
}

#[test]
fn a_wrong_secret_ends_the_association() {
    let (mut world, host) = world(DhGroup::Ffdhe2048);
    assert!(!world.authenticate(host, OTHER, DhGroup::Ffdhe2048));
    world.run();
    assert_eq!(
        (world.ended.as_slice(), world.gone.as_slice()),
        (&[host][..], &[(2, ControllerEnd::Unauthenticated)][..])
    );
}

#[test]
fn attack_77_a_host_that_falls_silent_is_closed_when_its_time_is_over() {
    let (mut world, host) = world(DhGroup::Null);
    world.withhold = true;
    let sqe = auth_sqe(FabricsType::AUTHENTICATION_SEND, 100);
    let started = world.start(host, &sqe, &[0; 100]);
    // One at a time.
    let second = world.start(host, &sqe, &[0; 100]);
    assert_eq!(world.status(second), Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry());
    world.pass(29);
    assert!(world.gone.is_empty());
    world.pass(1);
    assert_eq!(world.end(started), Some(End::Retired));
    assert_eq!(world.gone, [(2, ControllerEnd::Unauthenticated)]);
}

/// Begins to authenticate, up to the work that the controller has from it.
fn offer(world: &mut World, queue: Host, group: DhGroup) {
    let mut fill = |bytes: &mut [u8]| bytes.fill(0x5a);
    let (_, first) = nvme::auth::HostAuthenticator::start(credentials(SECRET), policy(group), 7, &mut fill);
    let sqe = auth_sqe(FabricsType::AUTHENTICATION_SEND, first.len() as u32);
    world.start(queue, &sqe, &first);
    world.run();
}

/// Nothing is computed for who has gone, and going then is no way to be spared the back-off.
#[test]
fn attack_77_work_of_a_queue_that_closes_is_not_done_and_counts_as_a_failure() {
    let (mut world, host) = world(DhGroup::Ffdhe8192);
    world.computes = false;
    offer(&mut world, host, DhGroup::Ffdhe8192);
    assert_eq!(world.uncomputed.len(), 1);
    world.close(host);
    world.run();
    assert_eq!((world.uncomputed.as_slice(), world.unproven.as_slice()), (&[][..], &[host.key][..]));
    // Who goes when it was computed has cost as much.
    let (mut world, host) = self::world(DhGroup::Ffdhe2048);
    offer(&mut world, host, DhGroup::Ffdhe2048);
    world.close(host);
    world.run();
    assert_eq!(world.unproven, [host.key]);
    // Who has proved itself and is cut off while it does so again has not failed.
    let (mut world, host) = self::world(DhGroup::Ffdhe2048);
    assert!(world.authenticate(host, SECRET, DhGroup::Ffdhe2048));
    offer(&mut world, host, DhGroup::Ffdhe2048);
    world.close(host);
    world.run();
    assert!(world.unproven.is_empty());
}

#[test]
fn a_host_that_is_not_computed_for_is_told_and_blamed_for_nothing() {
    let (mut world, host) = world(DhGroup::Ffdhe2048);
    world.computes = false;
    offer(&mut world, host, DhGroup::Ffdhe2048);
    let id = world.uncomputed[0];
    world.not_computed(host, id);
    world.run();
    assert_eq!(world.gone, [(2, ControllerEnd::Overloaded)]);
    assert!(world.unproven.is_empty());
}

#[test]
fn an_io_queue_that_does_not_authenticate_ends_alone() {
    let (mut world, host) = world(DhGroup::Null);
    assert!(world.authenticate(host, SECRET, DhGroup::Null));
    assert_eq!(world.set(host, Property::CC, 0x0046_0001), Status::SUCCESS);
    let silent = world.connect(2, &join(1, 1, 1)).unwrap();
    world.pass(30);
    assert_eq!(world.ended, [silent]);
    assert_eq!(world.unproven, [], "silence proves nothing, and costs nothing");
    // Anybody may connect in the host's name: so it must not cost the host its controller.
    let wrong = world.connect(2, &join(1, 1, 1)).unwrap();
    assert!(!world.authenticate(wrong, OTHER, DhGroup::Null));
    world.run();
    assert_eq!((world.ended.as_slice(), world.unproven.as_slice()), (&[silent, wrong][..], &[wrong.key][..]));
    let cut = world.connect(2, &join(1, 1, 1)).unwrap();
    world.close(cut);
    world.pass(20);
    assert_eq!(world.gone, []);
    // One that was the host's is its loss, however it fails.
    let own = world.connect(2, &join(1, 1, 1)).unwrap();
    assert!(world.authenticate(own, SECRET, DhGroup::Null));
    assert!(!world.authenticate(own, OTHER, DhGroup::Null));
    world.pass(5);
    assert_eq!(world.gone, [(2, ControllerEnd::QueueLost)]);
}

#[test]
fn a_secret_that_changes_holds_for_queues_that_connect_later() {
    let (mut world, host) = world(DhGroup::Null);
    let auth = |secret| RequiredAuthentication {
        credentials: credentials(secret),
        policy: policy(DhGroup::Null),
        concatenation: ConcatenationPolicy::Refused,
    };
    let other = Some(Arc::new(auth(OTHER)));
    assert!(!world.server(host).change_authentication(2, &other), "who has not proved it begins again");
    assert!(world.authenticate(host, SECRET, DhGroup::Null));
    assert!(world.server(host).change_authentication(2, &other));
    assert_eq!(world.set(host, Property::CC, 0x0046_0001), Status::SUCCESS);
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    assert!(world.authenticate(queue, OTHER, DhGroup::Null));
    assert!(world.server(host).change_authentication(2, &None));
    assert!(!world.server(host).change_authentication(2, &other), "it has not proved who it is");
}

#[test]
fn messages_of_wrong_lengths_are_refused_before_they_are_read() {
    let (mut world, host) = world(DhGroup::Null);
    let long = auth_sqe(FabricsType::AUTHENTICATION_SEND, MESSAGE_LEN_MAX as u32 + 1);
    let status = world.ends(host, &long, &vec![0; MESSAGE_LEN_MAX + 1]).status;
    assert_eq!(status, Status::INVALID_FIELD.with_do_not_retry());
    let short = auth_sqe(FabricsType::AUTHENTICATION_SEND, 100);
    assert_eq!(world.ends(host, &short, &[0; 99]).status, Status::SGL_LENGTH_INVALID.with_do_not_retry());
    let mut other = short;
    other.cdw10[0] = U32::new(0);
    assert_eq!(world.ends(host, &other, &[0; 100]).status, Status::INVALID_FIELD.with_do_not_retry());
    let receive = auth_sqe(FabricsType::AUTHENTICATION_RECEIVE, 4096);
    assert_eq!(world.ends(host, &receive, &[]).status, Status::SGL_LENGTH_INVALID.with_do_not_retry());
    assert!(world.gone.is_empty());
}

/// Who has proved nothing holds a queue's identifier against nobody; who proves first has it.
#[test]
fn attack_77_an_unproven_queue_keeps_nobody_out() {
    let (mut world, host) = world(DhGroup::Null);
    assert!(world.authenticate(host, SECRET, DhGroup::Null));
    assert_eq!(world.set(host, Property::CC, 0x0046_0001), Status::SUCCESS);
    let strangers: Vec<Host> = (0..3).map(|_| world.connect(2, &join(1, 1, 1)).unwrap()).collect();
    // They count as queues of nobody.
    let granted = world.ends(host, &set_feature(7, 0, 0x0001_0001), &[]);
    assert_eq!((granted.status, granted.result), (Status::SUCCESS, 0x0001_0001));
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    assert!(world.authenticate(queue, SECRET, DhGroup::Null));
    world.run();
    let mut ended = world.ended.clone();
    ended.sort_by_key(|queue| queue.key);
    assert_eq!(ended, strangers, "those who proved nothing go, and end nothing else");
    let read = transfer(Opcode::READ, 0, 1);
    assert_eq!(world.command(queue, &read, &[]), Status::SUCCESS);
    assert_eq!(world.connect(2, &join(1, 1, 1)).err(), Some(ConnectRefusal::Sequence));
    // Its reports and aborts are the queue's that has proved.
    assert_eq!(world.good(host, &get_log(2, 512), &[])[64], 1);
    world.pass(10);
    assert!(world.gone.is_empty());
    assert_eq!(world.set(host, Property::CC, 0x0046_0000), Status::SUCCESS);
    world.run();
    assert_eq!(world.property(host, Property::CSTS, 4), 0, "the reset is complete");
}

/// Two that prove themselves under one identifier: the first has it, and the other ends.
#[test]
fn one_queue_has_an_identifier_in_the_end() {
    let (mut world, host) = world(DhGroup::Null);
    assert!(world.authenticate(host, SECRET, DhGroup::Null));
    assert_eq!(world.set(host, Property::CC, 0x0046_0001), Status::SUCCESS);
    let [first, second] = [0, 1].map(|_| world.connect(2, &join(1, 1, 1)).unwrap());
    world.hold_messages = true;
    for queue in [first, second] {
        assert!(world.authenticate(queue, SECRET, DhGroup::Null));
    }
    world.hold_messages = false;
    world.run();
    assert_eq!(world.ended, [second]);
    assert_eq!(world.command(first, &transfer(Opcode::READ, 0, 1), &[]), Status::SUCCESS);
    assert!(world.gone.is_empty(), "the association goes on");
}

/// A controller on whose admin queue a PSK may be generated; and what comes of an authentication with this SC_C.
fn concatenating(policy_of: ConcatenationPolicy) -> (World, Host) {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let (credentials, policy) = (credentials(SECRET), policy(DhGroup::Ffdhe2048));
    let auth = RequiredAuthentication { credentials, policy, concatenation: policy_of };
    let host = world.open(ControllerSpec { auth: Some(Arc::new(auth)), ..spec(2, 1, vec![entry(0)]) });
    (world, host)
}

#[test]
fn a_queue_that_awaits_tls_shows_what_it_is_and_changes_nothing() {
    let (mut world, host) = concatenating(ConcatenationPolicy::Allowed);
    assert!(world.authenticate_for(host, SECRET, DhGroup::Ffdhe2048, Concatenation::NewPsk));
    assert_eq!(world.generated, [host.key]);
    assert_eq!(world.set(host, Property::CC, 0x0046_0001), Status::SUCCESS);
    world.good(host, &admin(0x06, 0, &[1], 4096), &[]);
    let denied = Status::OPERATION_DENIED.with_do_not_retry();
    // Sanitize, Namespace Attachment, Security Send, a feature that is of the namespace.
    for (opcode, value) in [(0x84, 2), (0x15, 0), (0x81, 0), (0x09, 0x84)] {
        assert_eq!(world.ends(host, &admin(opcode, 1, &[value], 0), &[]).status, denied, "{opcode:#x}");
    }
    // No I/O queue in front of the channel.
    assert_eq!(world.connect(2, &join(1, 1, 1)).err(), Some(ConnectRefusal::Host));
}

#[test]
fn where_tls_is_required_nothing_but_a_new_psk_will_do() {
    let (mut world, host) = concatenating(ConcatenationPolicy::Required);
    let connected = ConnectResult::parse(world.server(host).connect_completion(host.key).result);
    assert_eq!((connected.authenticate, connected.secure_channel), (false, true));
    let early = world.ends(host, &admin(0x06, 0, &[1], 4096), &[]).status;
    assert_eq!(early, Status::AUTHENTICATION_REQUIRED.with_do_not_retry());
    assert!(!world.authenticate(host, SECRET, DhGroup::Ffdhe2048));
    world.run();
    assert_eq!(world.gone, [(2, ControllerEnd::Unauthenticated)]);
    let (mut world, host) = concatenating(ConcatenationPolicy::Required);
    assert!(world.authenticate_for(host, SECRET, DhGroup::Ffdhe2048, Concatenation::NewPsk));
}

#[test]
fn a_host_known_by_its_psk_is_served_and_may_have_it_replaced() {
    let (mut world, host) = concatenating(ConcatenationPolicy::Replacement);
    let connected = ConnectResult::parse(world.server(host).connect_completion(host.key).result);
    assert_eq!((connected.authenticate, connected.secure_channel), (false, false));
    assert_eq!(world.set(host, Property::CC, 0x0046_0001), Status::SUCCESS);
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    assert!(!ConnectResult::parse(world.server(queue).connect_completion(queue.key).result).authenticate);
    assert!(world.ends(queue, &transfer(Opcode(2), 0, 1), &[]).status.is_success());
    assert!(world.authenticate_for(host, SECRET, DhGroup::Ffdhe2048, Concatenation::ReplacePsk));
    assert_eq!(world.generated, [host.key]);
    assert!(world.gone.is_empty() && world.connect(2, &join(2, 1, 1)).is_ok());
    // And loses the association if it fails.
    assert!(!world.authenticate_for(host, OTHER, DhGroup::Ffdhe2048, Concatenation::ReplacePsk));
    world.run();
    assert_eq!(world.gone, [(2, ControllerEnd::Unauthenticated)]);
}
