//! Both ends together, golden bytes, and messages of hostile hosts and controllers.

use super::*;
use crate::sqe::Direction;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001";
const SUBSYSTEM: &str = "nqn.2026-11.io.blockwire:disks";
const SECRET: &str = "DHHC-1:01:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

/// Counts, so that all bytes are known.
fn counter() -> impl FnMut(&mut [u8]) {
    let mut next = 0u8;
    move |bytes: &mut [u8]| {
        for byte in bytes {
            *byte = next;
            next = next.wrapping_add(1);
        }
    }
}

fn key(owner: &str) -> DhchapKey {
    DhchapSecret::parse(SECRET).unwrap().derive_key(owner)
}

fn credentials(controller: Option<DhchapKey>) -> Credentials {
    Credentials {
        host_nqn: HOST.to_owned(),
        subsystem_nqn: SUBSYSTEM.to_owned(),
        host: Some(key(HOST)),
        controller,
    }
}

fn only(hash: Hash, group: DhGroup) -> DhchapPolicy {
    DhchapPolicy { hashes: vec![hash], groups: vec![group] }
}

/// An Authentication Send and all the work that it needs.
fn send(controller: &mut ControllerAuthenticator, message: &[u8]) -> ControllerProgress {
    let progress = controller.handle_send(message, &mut counter());
    match progress {
        ControllerProgress::Compute(work) => controller.handle_computed(work.run()),
        other => other,
    }
}

/// Carries a whole transaction; how it ended at the host and at the controller.
fn carry(
    host: (Credentials, DhchapPolicy),
    controller: &mut ControllerAuthenticator,
) -> (Result<(), HostFault>, Option<FailureExplanation>) {
    let (mut host, first) = HostAuthenticator::start(host.0, host.1, 0x1234, &mut counter());
    let mut progress = HostProgress::Send(first);
    let mut ended = None;
    loop {
        progress = match progress {
            HostProgress::Send(message) => {
                assert!(message.len() <= MESSAGE_LEN_MAX);
                if let ControllerProgress::End(explanation) = send(controller, &message) {
                    ended = Some(explanation);
                }
                host.handle_sent()
            }
            HostProgress::Receive => {
                let given = controller.handle_receive(MESSAGE_LEN_MAX as u32).unwrap();
                if let AuthOutcome::End(explanation) = given.outcome {
                    ended = Some(explanation);
                }
                host.handle_message(&given.message)
            }
            HostProgress::Compute(work) => host.handle_computed(work.run()),
            HostProgress::Authenticated => return (Ok(()), ended),
            HostProgress::Failed(fault) => return (Err(fault), ended),
        };
    }
}

#[test]
fn both_ends_agree_with_every_hash_and_group() {
    let groups = DhchapPolicy::default().groups;
    for (n, group) in groups.into_iter().enumerate() {
        let hash = [Hash::Sha256, Hash::Sha384, Hash::Sha512][n % 3];
        for proof in [None, Some(key(SUBSYSTEM))] {
            let mut controller =
                ControllerAuthenticator::new(credentials(proof.clone()), DhchapPolicy::default());
            assert_eq!((controller.state(), controller.is_authenticated()), (AuthState::Pending, false));
            let ended = carry((credentials(proof), only(hash, group)), &mut controller);
            assert_eq!(ended, (Ok(()), None), "{hash:?} {group:?}");
            assert_eq!((controller.state(), controller.is_authenticated()), (AuthState::Authenticated, true));
        }
    }
}

#[test]
fn a_host_may_authenticate_again_and_loses_the_queue_if_it_fails() {
    let mut controller = ControllerAuthenticator::new(credentials(None), DhchapPolicy::default());
    let policy = only(Hash::Sha256, DhGroup::Null);
    assert_eq!(carry((credentials(None), policy.clone()), &mut controller).0, Ok(()));
    let again = message::encode_negotiate(9, &policy, Concatenation::None);
    assert!(matches!(send(&mut controller, &again), ControllerProgress::Answer));
    assert_eq!((controller.state(), controller.is_authenticated()), (AuthState::Reauthenticating, true));
    controller.handle_receive(4096).unwrap();
    assert!(matches!(send(&mut controller, &again), ControllerProgress::Answer));
    assert_eq!((controller.state(), controller.is_authenticated()), (AuthState::Failed, false));
}

#[test]
fn wrong_keys_are_refused_on_both_sides() {
    let wrong = DhchapSecret::generate(Some(Hash::Sha384), &mut counter());
    let refused = (Err(HostFault::Refused(FailureExplanation::FAILED)), Some(FailureExplanation::FAILED));
    for group in [DhGroup::Null, DhGroup::Ffdhe2048] {
        let policy = only(Hash::Sha384, group);
        // A host with another key, and a host that the controller has no key of.
        let other = Credentials { host: Some(wrong.derive_key(HOST)), ..credentials(None) };
        let mut controller = ControllerAuthenticator::new(credentials(None), DhchapPolicy::default());
        assert_eq!(carry((other, policy.clone()), &mut controller), refused);
        assert_eq!(controller.state(), AuthState::Failed);
        let decoy = Credentials { host: None, ..credentials(None) };
        let mut controller = ControllerAuthenticator::new(decoy, DhchapPolicy::default());
        assert_eq!(carry((credentials(None), policy.clone()), &mut controller), refused);
        assert_eq!(controller.failure(), AuthFailure::Host);
        // A controller that is to prove itself and has no key, or another.
        let mut controller = ControllerAuthenticator::new(credentials(None), DhchapPolicy::default());
        let host = || (credentials(Some(key(SUBSYSTEM))), policy.clone());
        assert_eq!(carry(host(), &mut controller), refused);
        assert_eq!(controller.failure(), AuthFailure::NoControllerKey);
        let mut controller = ControllerAuthenticator::new(
            credentials(Some(wrong.derive_key(SUBSYSTEM))),
            DhchapPolicy::default(),
        );
        let ended = (Err(HostFault::Wrong(FailureExplanation::FAILED)), Some(FailureExplanation::FAILED));
        assert_eq!(carry(host(), &mut controller), ended);
        assert_eq!(controller.failure(), AuthFailure::RefusedByHost(FailureExplanation::FAILED));
        assert!(!controller.is_authenticated());
    }
}

#[test]
fn nothing_in_common_is_said_by_name() {
    let rows = [
        (Hash::Sha256, DhGroup::Null, FailureExplanation::HASH),
        (Hash::Sha512, DhGroup::Ffdhe8192, FailureExplanation::GROUP),
    ];
    for (hash, group, explanation) in rows {
        let policy = only(Hash::Sha512, DhGroup::Null);
        let mut controller = ControllerAuthenticator::new(credentials(None), policy);
        let ended = carry((credentials(None), only(hash, group)), &mut controller);
        assert_eq!(ended, (Err(HostFault::Refused(explanation)), Some(explanation)));
    }
}

/// The responses were computed by Python's hmac and hashlib from the fields of NVMe Base §8.3.5.5.
#[test]
fn golden_bytes_without_a_group() {
    let mut controller =
        ControllerAuthenticator::new(credentials(Some(key(SUBSYSTEM))), only(Hash::Sha256, DhGroup::Null));
    let host = credentials(Some(key(SUBSYSTEM)));
    let policy = DhchapPolicy { hashes: vec![Hash::Sha256, Hash::Sha512], groups: vec![DhGroup::Null] };
    let (mut host, first) = HostAuthenticator::start(host, policy, 0x1234, &mut counter());
    let mut negotiate = vec![0, 0, 0, 0, 0x34, 0x12, 0, 1, 1, 0, 2, 1, 1, 3];
    negotiate.resize(8 + 64, 0);
    assert_eq!(first, negotiate);
    assert!(matches!(send(&mut controller, &first), ControllerProgress::Answer));
    assert!(matches!(host.handle_sent(), HostProgress::Receive));

    let challenge = controller.handle_receive(48).unwrap();
    let mut want = vec![1, 1, 0, 0, 0x34, 0x12, 32, 0, 1, 0, 0, 0, 1, 1, 2, 3];
    want.extend(4..36);
    assert_eq!((challenge.message.clone(), challenge.outcome), (want, AuthOutcome::Continue));

    let HostProgress::Send(reply) = host.handle_message(&challenge.message) else { panic!("a reply") };
    let mut want = vec![1, 2, 0, 0, 0x34, 0x12, 32, 0, 1, 0, 0, 0, 0, 1, 2, 3];
    want.extend(hex(R1));
    want.extend(68..100);
    assert_eq!(reply, want);
    assert!(matches!(send(&mut controller, &reply), ControllerProgress::Answer));
    assert!(matches!(host.handle_sent(), HostProgress::Receive));

    let success = controller.handle_receive(48).unwrap();
    let mut want = vec![1, 3, 0, 0, 0x34, 0x12, 32, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    want.extend(hex(R2));
    assert_eq!((success.message.clone(), success.outcome), (want, AuthOutcome::Continue));
    assert!(!controller.is_authenticated());
    let HostProgress::Send(success2) = host.handle_message(&success.message) else { panic!("success 2") };
    assert_eq!(success2, [1, 4, 0, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(matches!(send(&mut controller, &success2), ControllerProgress::Authenticated));
    assert!(matches!(host.handle_sent(), HostProgress::Authenticated));
}

/// The same with ffdhe2048 and SHA-512: what the host's response is, by Python.
#[test]
fn golden_response_with_a_group() {
    let mut controller =
        ControllerAuthenticator::new(credentials(None), only(Hash::Sha512, DhGroup::Ffdhe2048));
    let (mut host, first) =
        HostAuthenticator::start(credentials(None), DhchapPolicy::default(), 7, &mut counter());
    send(&mut controller, &first);
    host.handle_sent();
    let challenge = controller.handle_receive(4096).unwrap().message;
    assert_eq!(challenge.len(), 16 + 64 + 256);
    let HostProgress::Compute(work) = host.handle_message(&challenge) else { panic!("work") };
    assert_eq!(format!("{work:?}"), "DhComputation(Ffdhe2048, ..)");
    let HostProgress::Send(reply) = host.handle_computed(work.run()) else { panic!("a reply") };
    assert_eq!(reply.len(), 16 + 2 * 64 + 256);
    assert_eq!(reply[16..80], hex(R1_GROUP));
}

const R1: &str = "0b0b8c77436156b640ab061bd22841fdafaf25636c1e37d859a4c147c4e8dcad";
const R2: &str = "ac83f06c2957ea754e850c33e71c4a819d5b670ca55e045668b3ff00435572f7";
const R1_GROUP: &str = "1a40ec885eefad14f3710cfe34aaae2fff5d2892a246cdc22b91b3a653e6f391480e999f849499c6a95e6ca09437bbe5531ad3922e118eba57c59f36fe207fe3";

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16).unwrap()).collect()
}

#[test]
fn the_commands_say_what_they_carry() {
    let sqe = auth_sqe(FabricsType::AUTHENTICATION_SEND, 72);
    assert_eq!((transfer_len(&sqe), sqe.direction()), (Ok(72), Direction::ToController));
    assert_eq!(sqe.as_bytes()[40..48], [0, 1, 1, 0xe9, 72, 0, 0, 0]);
    let receive = auth_sqe(FabricsType::AUTHENTICATION_RECEIVE, 4096);
    assert_eq!(receive.direction(), Direction::ToHost);
    for (at, value) in [(41, 0), (42, 2), (43, 0xe8), (44, 0)] {
        let mut bytes = sqe;
        bytes.as_mut_bytes()[at] = value;
        assert_eq!(transfer_len(&bytes), Err(Status::INVALID_FIELD.with_do_not_retry()));
    }
}

#[test]
fn nothing_secret_is_shown() {
    let mut controller =
        ControllerAuthenticator::new(credentials(None), only(Hash::Sha256, DhGroup::Ffdhe2048));
    let (host, first) =
        HostAuthenticator::start(credentials(None), DhchapPolicy::default(), 7, &mut counter());
    let progress = controller.handle_send(&first, &mut counter());
    let shown = format!("{controller:?} {host:?} {progress:?} {:?}", credentials(None).host);
    assert_eq!(shown, "Controller(Pending) Host(..) Compute(DhComputation(Ffdhe2048, ..)) Some(Key(..))");
    let ControllerProgress::Compute(work) = progress else { panic!("work") };
    assert_eq!(format!("{:?}", work.run()), "DhResult(..)");
}

/// What can be carried to another thread is.
const _: () = {
    const fn is_send<T: Send + 'static>() {}
    is_send::<DhComputation>();
    is_send::<DhResult>();
    is_send::<ControllerAuthenticator>();
    is_send::<Credentials>();
};

mod concatenation;
mod hostile;
