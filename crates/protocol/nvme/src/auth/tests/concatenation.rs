//! Secure channel concatenation: both ends generate one PSK, which an independent computation gives too
//! (`vectors/generated_psk.py`), and nothing else is agreed to.

use super::*;
use crate::Nqn;
use crate::tls::{CipherSuite, GeneratedPsk, PskIdentity, PskKind};

/// What came of an exchange.
struct Exchange {
    ended: Result<(), HostFault>,
    host: Option<GeneratedPsk>,
    controller: Option<(Concatenation, GeneratedPsk)>,
    /// R1, and R2 if it was there.
    responses: (Vec<u8>, Option<Vec<u8>>),
}

fn exchange(
    (hash, group): (Hash, DhGroup),
    proof: Option<DhchapKey>,
    concatenation: Concatenation,
    controller: &mut ControllerAuthenticator,
) -> Exchange {
    let terms = (0x1234, concatenation);
    let (mut host, first) =
        HostAuthenticator::start_concatenation(credentials(proof), only(hash, group), terms, &mut counter());
    let (mut progress, mut responses) = (HostProgress::Send(first), (Vec::new(), None));
    let len = hash.len();
    let ended = loop {
        progress = match progress {
            HostProgress::Send(message) => {
                if message[..2] == [1, 2] {
                    responses.0 = message[16..16 + len].to_vec();
                }
                send(controller, &message);
                host.handle_sent()
            }
            HostProgress::Receive => {
                let given = controller.handle_receive(MESSAGE_LEN_MAX as u32).unwrap().message;
                if given[..2] == [1, 3] && given[8] == 1 {
                    responses.1 = Some(given[16..16 + len].to_vec());
                }
                host.handle_message(&given)
            }
            HostProgress::Compute(work) => host.handle_computed(work.run()),
            HostProgress::Authenticated => break Ok(()),
            HostProgress::Failed(fault) => break Err(fault),
        };
    };
    Exchange { ended, host: host.take_psk(), controller: controller.take_psk(), responses }
}

fn controller(concatenation: ConcatenationPolicy, proof: Option<DhchapKey>) -> ControllerAuthenticator {
    ControllerAuthenticator::new(credentials(proof), DhchapPolicy::default())
        .with_concatenation(concatenation)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn names() -> (Nqn, Nqn) {
    (Nqn::parse(HOST).unwrap(), Nqn::parse(SUBSYSTEM).unwrap())
}

#[test]
fn both_ends_generate_the_psk_that_another_computation_gives() {
    let rows = [
        (
            Hash::Sha256,
            "62735f89796dfff215d377219ae14dc6318b24402ae3511e3500bfb8ddec3ee1",
            "ca4f3e7a7b9f640de81344f232f5bdb8fd1fd7731e51f862e74a64d17eaee9b2",
            "NVMe1G01 nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001 nqn.2026-11.io.blockwire:disks KpnsWfLXC1Tnw0CNxdNxyzdCZY0r8E8tmPWR0f6XSV0=",
            "fc5d0f48aa18689f871be83aa0ff684974ce224674ef3a194d8bb58fb0b9b887",
        ),
        (
            Hash::Sha384,
            "23a4dbf8c2ecb27e9c3e00ab439b00fdbd7765914b29ed40f9c2fc00f83316fe302f1b9423357ca9bffb7f26ddbe970e",
            "b49c24ed03de99e5230a6e2d4d356de2cdfb129fd7752937ce0d080f4b961d77e978b07c161260e26efdc00662e67da9",
            "NVMe1G02 nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001 nqn.2026-11.io.blockwire:disks 6utJLN08IHTQXQGh7cf+A5lICn5v42H6kK27fimFdl4PZ/R3HgzCjYs2Tel+JxAU",
            "f02b8b9aa31ffb90fc2b685228d7b28f066045706e87579c7e67f360fd94370ad696b0af2644c548c489d8c3f57630cd",
        ),
    ];
    for (hash, first, second, identity, psk) in rows {
        let (new, allowed) = (Concatenation::NewPsk, ConcatenationPolicy::Allowed);
        let mut controller = controller(allowed, Some(key(SUBSYSTEM)));
        let got = exchange((hash, DhGroup::Ffdhe2048), Some(key(SUBSYSTEM)), new, &mut controller);
        assert_eq!(got.ended, Ok(()));
        assert_eq!(hex(&got.responses.0), first);
        assert_eq!(hex(&got.responses.1.unwrap()), second);
        let (of, other) = got.controller.unwrap();
        assert_eq!(of, new);
        let (host, subsystem) = names();
        for generated in [got.host.unwrap(), other] {
            let found = generated.identity(&host, &subsystem).unwrap();
            assert_eq!(found.to_string(), identity);
            assert_eq!(PskIdentity::parse(identity.as_bytes()).unwrap(), found);
            let derived = generated.tls_psk(&found).unwrap();
            assert_eq!((hex(derived.expose()).as_str(), derived.suite().hash()), (psk, hash));
            // Not under a name of the other kind.
            let retained = PskIdentity::parse(identity.replace("1G", "1R").as_bytes()).unwrap();
            assert!(retained.kind == PskKind::Retained && generated.tls_psk(&retained).is_none());
        }
        assert!(controller.is_authenticated() && controller.awaits_tls());
    }
}

#[test]
fn a_host_that_asks_for_no_proof_gets_a_psk_all_the_same() {
    for policy in [ConcatenationPolicy::Allowed, ConcatenationPolicy::Required] {
        let mut controller = controller(policy, None);
        let new = Concatenation::NewPsk;
        let got = exchange((Hash::Sha384, DhGroup::Ffdhe2048), None, new, &mut controller);
        assert_eq!((got.ended, got.responses.1), (Ok(()), None));
        let (host, subsystem) = names();
        let identity = |psk: &GeneratedPsk| psk.identity(&host, &subsystem).unwrap();
        assert_eq!(identity(&got.host.unwrap()), identity(&got.controller.unwrap().1));
        assert!(controller.is_authenticated());
    }
    let mut plain = controller(ConcatenationPolicy::Allowed, None);
    let got = exchange((Hash::Sha384, DhGroup::Ffdhe2048), None, Concatenation::None, &mut plain);
    assert!(got.ended.is_ok() && got.host.is_none() && got.controller.is_none() && !plain.awaits_tls());
}

#[test]
fn a_psk_is_replaced_on_a_queue_whose_host_is_known_by_one() {
    let mut controller = controller(ConcatenationPolicy::Replacement, None).proven();
    assert_eq!((controller.state(), controller.negotiated_method()), (AuthState::Authenticated, None));
    let replace = Concatenation::ReplacePsk;
    let got = exchange((Hash::Sha256, DhGroup::Ffdhe2048), None, replace, &mut controller);
    assert!(got.ended.is_ok() && got.host.is_some());
    assert_eq!(got.controller.unwrap().0, replace);
    assert!(!controller.awaits_tls(), "it is secured");
}

#[test]
fn attack_76_concatenations_that_may_not_be() {
    let mismatch = Err(HostFault::Refused(FailureExplanation::CONCATENATION));
    let group = (Hash::Sha256, DhGroup::Ffdhe2048);
    use {Concatenation as Wanted, ConcatenationPolicy as Allowed};
    for (policy, wanted) in [
        (Allowed::Refused, Wanted::NewPsk),
        (Allowed::Refused, Wanted::ReplacePsk),
        (Allowed::Allowed, Wanted::ReplacePsk),
        (Allowed::Required, Wanted::None),
        (Allowed::Required, Wanted::ReplacePsk),
        (Allowed::Replacement, Wanted::NewPsk),
    ] {
        let mut controller = controller(policy, None);
        let got = exchange(group, None, wanted, &mut controller);
        assert!(got.ended == mismatch && got.controller.is_none(), "{policy:?} {wanted:?}");
        assert_eq!(controller.state(), AuthState::Failed);
    }
    // SC_C of a draft, and ones that there are not.
    for sc_c in [1, 4, 0xff] {
        let mut negotiate = message::encode_negotiate(7, &only(group.0, group.1), Concatenation::None);
        negotiate[6] = sc_c;
        let mut controller = controller(Allowed::Allowed, None);
        send(&mut controller, &negotiate);
        let given = controller.handle_receive(4096).unwrap();
        assert_eq!(given.outcome, AuthOutcome::End(FailureExplanation::CONCATENATION));
    }
    // Without a group there is no session key, and SHA-512 is no suite's.
    for (hash, group, explanation) in [
        (Hash::Sha256, DhGroup::Null, FailureExplanation::GROUP),
        (Hash::Sha512, DhGroup::Ffdhe2048, FailureExplanation::HASH),
    ] {
        let mut negotiate = message::encode_negotiate(7, &only(hash, group), Concatenation::None);
        negotiate[6] = 2;
        let mut controller = controller(Allowed::Allowed, None);
        send(&mut controller, &negotiate);
        assert_eq!(controller.handle_receive(4096).unwrap().outcome, AuthOutcome::End(explanation));
    }
}

/// A controller that has given its challenge to a host that wants a PSK, and the reply that would be right.
fn asked() -> (ControllerAuthenticator, Vec<u8>) {
    let mut controller = controller(ConcatenationPolicy::Allowed, None);
    let (policy, terms) = (only(Hash::Sha256, DhGroup::Ffdhe2048), (7, Concatenation::NewPsk));
    let (mut host, first) =
        HostAuthenticator::start_concatenation(credentials(None), policy, terms, &mut counter());
    send(&mut controller, &first);
    host.handle_sent();
    let challenge = controller.handle_receive(4096).unwrap();
    let HostProgress::Compute(work) = host.handle_message(&challenge.message) else { panic!() };
    let HostProgress::Send(reply) = host.handle_computed(work.run()) else { panic!() };
    (controller, reply)
}

#[test]
fn attack_76_a_psk_without_a_challenge_or_with_another_sc_c() {
    let (mut right, reply) = asked();
    assert_eq!((reply[8], &reply[12..16]), (1, &[0; 4][..]), "CVALID without S2");
    send(&mut right, &reply);
    assert_eq!(right.handle_receive(4096).unwrap().outcome, AuthOutcome::Authenticated);
    // CVALID is cleared: the PSK would depend on what this side has drawn alone.
    let (mut controller, mut without) = asked();
    without[8] = 0;
    send(&mut controller, &without);
    assert_eq!(
        controller.handle_receive(4096).unwrap().outcome,
        AuthOutcome::End(FailureExplanation::PAYLOAD)
    );
    // Somebody in between has set SC_C: the host has answered for another.
    let mut controller = self::controller(ConcatenationPolicy::Allowed, None);
    let policy = only(Hash::Sha256, DhGroup::Ffdhe2048);
    let (mut host, mut first) =
        HostAuthenticator::start(credentials(Some(key(SUBSYSTEM))), policy, 7, &mut counter());
    first[6] = 2;
    send(&mut controller, &first);
    host.handle_sent();
    let challenge = controller.handle_receive(4096).unwrap();
    let HostProgress::Compute(work) = host.handle_message(&challenge.message) else { panic!() };
    let HostProgress::Send(reply) = host.handle_computed(work.run()) else { panic!() };
    send(&mut controller, &reply);
    assert_eq!(
        controller.handle_receive(4096).unwrap().outcome,
        AuthOutcome::End(FailureExplanation::FAILED)
    );
    assert!(controller.take_psk().is_none());
}

#[test]
fn sha_256_comes_first_unless_hashes_are_ordered() {
    let hash_of = |hashes: &[Hash]| {
        let policy = DhchapPolicy { hashes: hashes.to_vec(), ..DhchapPolicy::default() };
        let controller = ControllerAuthenticator::new(credentials(None), policy);
        let mut controller = controller.with_concatenation(ConcatenationPolicy::Allowed);
        let terms = (7, Concatenation::NewPsk);
        let (_, first) = HostAuthenticator::start_concatenation(
            credentials(None),
            DhchapPolicy::default(),
            terms,
            &mut counter(),
        );
        send(&mut controller, &first);
        Hash::from_id(controller.handle_receive(4096).unwrap().message[8]).unwrap()
    };
    assert_eq!(hash_of(&DhchapPolicy::default().hashes), Hash::Sha256);
    assert_eq!(hash_of(&[Hash::Sha384, Hash::Sha256]), Hash::Sha384);
}

#[test]
fn a_suite_goes_with_each_hash_that_may_be_used() {
    for (hash, suite) in
        [(Hash::Sha256, CipherSuite::Aes128GcmSha256), (Hash::Sha384, CipherSuite::Aes256GcmSha384)]
    {
        let mut controller = controller(ConcatenationPolicy::Allowed, None);
        let got = exchange((hash, DhGroup::Ffdhe3072), None, Concatenation::NewPsk, &mut controller);
        let (host, subsystem) = names();
        assert_eq!(got.host.unwrap().identity(&host, &subsystem).unwrap().suite, suite);
    }
}
