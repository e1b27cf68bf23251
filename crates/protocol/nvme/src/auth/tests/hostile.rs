//! Rows 76 and 77 of the list of attacks: malformed messages end in a failure and never in an authenticated
//! queue.

use super::*;

fn negotiate() -> Vec<u8> {
    message::encode_negotiate(7, &only(Hash::Sha256, DhGroup::Null), Concatenation::None)
}

fn with(mut message: Vec<u8>, changes: &[(usize, u8)]) -> Vec<u8> {
    for (at, value) in changes {
        message[*at] = *value;
    }
    message
}

/// The controller says success to the command and then this, once, and is of no more use.
fn refused(controller: &mut ControllerAuthenticator, transaction: u8, explanation: u8) {
    assert_eq!((controller.state(), controller.is_authenticated()), (AuthState::Failed, false));
    let given = controller.handle_receive(4096).unwrap();
    assert_eq!(given.message, [0, 0xf1, 0, 0, transaction, 0, 1, explanation]);
    assert_eq!(given.outcome, AuthOutcome::End(FailureExplanation(explanation)));
    let again = controller.handle_send(&negotiate(), &mut counter());
    assert!(matches!(again, ControllerProgress::End(_)), "{again:?}");
    assert!(!controller.is_authenticated());
}

#[test]
fn attack_76_negotiations_whose_lengths_lie() {
    let napd = |n: u8| with(negotiate(), &[(7, n)]);
    let two = |second: u8| {
        let mut message = with(negotiate(), &[(7, 2), (8, 9)]);
        message.extend_from_slice(&negotiate()[8..]);
        with(message, &[(72, second)])
    };
    let rows = [
        (negotiate()[..8].to_vec(), 6),
        (negotiate()[..71].to_vec(), 6),
        ([negotiate(), vec![0]].concat(), 6),
        (napd(0), 6),
        (napd(2), 6),
        (napd(255), 6),
        (two(9), 2),
        (with(negotiate(), &[(8, 0)]), 2),
        (with(negotiate(), &[(10, 31)]), 6),
        (with(negotiate(), &[(10, 255)]), 6),
        (with(negotiate(), &[(10, 0)]), 6),
        (with(negotiate(), &[(11, 31)]), 6),
        (with(negotiate(), &[(11, 0)]), 6),
        (with(negotiate(), &[(6, 1)]), 3),
        (with(negotiate(), &[(12, 9)]), 4),
        (with(negotiate(), &[(42, 9)]), 5),
    ];
    for (message, explanation) in rows {
        let mut controller =
            ControllerAuthenticator::new(credentials(None), only(Hash::Sha256, DhGroup::Null));
        assert!(matches!(send(&mut controller, &message), ControllerProgress::Answer));
        refused(&mut controller, 7, explanation);
    }
    // Less than a header has no transaction that could be named.
    for len in 0..8 {
        let mut controller = ControllerAuthenticator::new(credentials(None), DhchapPolicy::default());
        assert!(matches!(send(&mut controller, &negotiate()[..len]), ControllerProgress::Answer));
        refused(&mut controller, 0, 6);
    }
    // The second descriptor is the one that is known.
    let mut controller = ControllerAuthenticator::new(credentials(None), DhchapPolicy::default());
    assert!(matches!(send(&mut controller, &two(1)), ControllerProgress::Answer));
    assert_eq!(controller.handle_receive(4096).unwrap().outcome, AuthOutcome::Continue);
}

/// A controller that has given its challenge, and the reply that would be right.
fn asked(group: DhGroup, proof: Option<DhchapKey>) -> (ControllerAuthenticator, Vec<u8>) {
    let mut controller = ControllerAuthenticator::new(credentials(proof.clone()), DhchapPolicy::default());
    let policy = only(Hash::Sha256, group);
    let (mut host, first) = HostAuthenticator::start(credentials(proof), policy, 7, &mut counter());
    send(&mut controller, &first);
    host.handle_sent();
    let challenge = controller.handle_receive(4096).unwrap();
    match host.handle_message(&challenge.message) {
        HostProgress::Send(reply) => (controller, reply),
        HostProgress::Compute(work) => match host.handle_computed(work.run()) {
            HostProgress::Send(reply) => (controller, reply),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn attack_76_replies_whose_lengths_and_values_lie() {
    let (mut controller, reply) = asked(DhGroup::Null, None);
    assert!(matches!(send(&mut controller, &reply), ControllerProgress::Answer));
    assert_eq!(
        controller.handle_receive(16).unwrap().outcome,
        AuthOutcome::Authenticated,
        "the reply is right"
    );
    // Linux numbers its challenge also where it sends none.
    let (mut controller, reply) = asked(DhGroup::Null, None);
    assert!(matches!(send(&mut controller, &with(reply, &[(12, 1)])), ControllerProgress::Answer));
    assert_eq!(
        controller.handle_receive(16).unwrap().outcome,
        AuthOutcome::Authenticated,
        "the number means nothing"
    );
    let (_, reply) = asked(DhGroup::Null, None);
    let rows = [
        (reply[..15].to_vec(), 6),
        (reply[..79].to_vec(), 6),
        ([reply.clone(), vec![0; 4]].concat(), 6),
        (with(reply.clone(), &[(6, 48)]), 6),
        (with(reply.clone(), &[(6, 0)]), 6),
        // DHVLEN without a group, and more than there is.
        (with(reply.clone(), &[(10, 4)]), 6),
        (with(reply.clone(), &[(11, 0xff)]), 6),
        ([with(reply.clone(), &[(10, 4)]), vec![0, 0, 0, 2]].concat(), 6),
        // CVALID without an S2, and one that there is not.
        (with(reply.clone(), &[(8, 1)]), 6),
        (with(reply.clone(), &[(8, 2), (12, 1)]), 6),
        // A proof that no one can give, and a response with one bit changed.
        (with(reply.clone(), &[(8, 1), (12, 1)]), 1),
        (with(reply.clone(), &[(16, reply[16] ^ 1)]), 1),
        (with(reply.clone(), &[(47, reply[47] ^ 0x80)]), 1),
    ];
    for (message, explanation) in rows {
        let (mut controller, _) = asked(DhGroup::Null, None);
        assert!(matches!(send(&mut controller, &message), ControllerProgress::Answer));
        refused(&mut controller, 7, explanation);
    }
}

#[test]
fn attack_76_public_values_that_give_the_secret_away() {
    let (_, reply) = asked(DhGroup::Ffdhe2048, None);
    let value = 16 + 2 * 32;
    let small = |n: u8| {
        let mut bytes = vec![0; 256];
        bytes[255] = n;
        bytes
    };
    let prime = DhGroup::Ffdhe2048.prime();
    let mut below = prime.clone();
    below[255] = 0xfe;
    for bytes in [small(0), small(1), below, prime, vec![0xff; 256]] {
        let (mut controller, _) = asked(DhGroup::Ffdhe2048, None);
        let message = [&reply[..value], &bytes].concat();
        assert!(
            matches!(controller.handle_send(&message, &mut counter()), ControllerProgress::Answer),
            "no work is done"
        );
        refused(&mut controller, 7, 6);
    }
    // None at all, one byte too few, and none of four.
    for (len, tail) in [(0u16, 0), (255, 255), (260, 260)] {
        let (mut controller, _) = asked(DhGroup::Ffdhe2048, None);
        let mut message = reply[..value].to_vec();
        message[10..12].copy_from_slice(&len.to_le_bytes());
        message.resize(value + tail, 5);
        assert!(matches!(controller.handle_send(&message, &mut counter()), ControllerProgress::Answer));
        refused(&mut controller, 7, 6);
    }
}

#[test]
fn attack_76_messages_out_of_order_or_of_another_transaction() {
    let success2 = message::encode_success2(7);
    let failure2 = message::encode_failure(message::MessageType::FAILURE2, 7, FailureExplanation::FAILED);
    let (_, reply) = asked(DhGroup::Null, None);
    // Nothing has begun.
    for message in [&success2, &reply] {
        let mut controller = ControllerAuthenticator::new(credentials(None), DhchapPolicy::default());
        assert!(matches!(send(&mut controller, message), ControllerProgress::Answer));
        refused(&mut controller, 7, 7);
    }
    // The reply is awaited.
    for message in [&success2, &negotiate(), &with(reply.clone(), &[(0, 0)]), &with(reply.clone(), &[(1, 9)])]
    {
        let (mut controller, _) = asked(DhGroup::Null, None);
        assert!(matches!(send(&mut controller, message), ControllerProgress::Answer));
        refused(&mut controller, 7, 7);
    }
    let (mut controller, _) = asked(DhGroup::Null, None);
    assert!(matches!(send(&mut controller, &with(reply.clone(), &[(4, 8)])), ControllerProgress::Answer));
    refused(&mut controller, 8, 7);
    // The host gives up: the association ends with the answer.
    let (mut controller, _) = asked(DhGroup::Null, None);
    assert!(matches!(send(&mut controller, &failure2), ControllerProgress::End(FailureExplanation::FAILED)));
    assert_eq!(controller.state(), AuthState::Failed);
    // Success1 was never fetched, or Success2 comes a second time.
    let (mut controller, reply) = asked(DhGroup::Null, Some(key(SUBSYSTEM)));
    send(&mut controller, &reply);
    assert!(matches!(send(&mut controller, &success2), ControllerProgress::Answer));
    refused(&mut controller, 7, 7);
    let (mut controller, reply) = asked(DhGroup::Null, Some(key(SUBSYSTEM)));
    send(&mut controller, &reply);
    controller.handle_receive(4096).unwrap();
    assert!(matches!(send(&mut controller, &success2[..15]), ControllerProgress::Answer));
    refused(&mut controller, 7, 6);
}

#[test]
fn attack_76_fetching_out_of_turn_or_into_too_little_room() {
    // Nothing is to be fetched.
    let mut controller = ControllerAuthenticator::new(credentials(None), DhchapPolicy::default());
    assert_eq!(controller.handle_receive(4096).unwrap().message, [0, 0xf1, 0, 0, 0, 0, 1, 7]);
    assert_eq!(controller.state(), AuthState::Failed);
    // Room for part of a challenge, and for less than a failure.
    let mut controller = ControllerAuthenticator::new(credentials(None), DhchapPolicy::default());
    send(&mut controller, &negotiate());
    assert_eq!(controller.handle_receive(47).unwrap().outcome, AuthOutcome::End(FailureExplanation::PAYLOAD));
    assert!(!controller.is_authenticated());
    for room in [0, 7] {
        let (mut controller, reply) = asked(DhGroup::Null, None);
        send(&mut controller, &reply);
        assert_eq!(controller.handle_receive(room), Err(Status::INVALID_FIELD.with_do_not_retry()));
        assert_eq!((controller.state(), controller.is_authenticated()), (AuthState::Failed, false));
    }
    let (mut controller, reply) = asked(DhGroup::Null, None);
    send(&mut controller, &reply);
    let given = controller.handle_receive(15).unwrap();
    assert_eq!(given.message, [0, 0xf1, 0, 0, 7, 0, 1, 6]);
    assert!(!controller.is_authenticated());
}

#[test]
fn attack_76_the_controllers_own_challenge_and_old_sequence_numbers() {
    let proof = || Some(key(SUBSYSTEM));
    // C2 is C1.
    let (mut controller, mut reply) = asked(DhGroup::Null, proof());
    let own: Vec<u8> = (4..36).collect();
    reply[48..80].copy_from_slice(&own);
    assert!(matches!(send(&mut controller, &reply), ControllerProgress::Answer));
    refused(&mut controller, 7, 1);
    // S2 of the transaction before.
    let mut controller = ControllerAuthenticator::new(credentials(proof()), DhchapPolicy::default());
    let host = || (credentials(proof()), only(Hash::Sha256, DhGroup::Null));
    assert_eq!(carry(host(), &mut controller).0, Ok(()));
    let again = carry(host(), &mut controller);
    assert_eq!(again.0, Err(HostFault::Refused(FailureExplanation::FAILED)));
    assert!(!controller.is_authenticated());
}

/// The owner's deadline sees `AuthState::Pending` until the host is in; what is computed for a queue that
/// has moved on, or comes twice, changes nothing.
#[test]
fn attack_77_silence_and_work_that_comes_back_too_late() {
    let mut controller =
        ControllerAuthenticator::new(credentials(None), only(Hash::Sha256, DhGroup::Ffdhe2048));
    let (_, first) = HostAuthenticator::start(credentials(None), DhchapPolicy::default(), 7, &mut counter());
    let ControllerProgress::Compute(work) = controller.handle_send(&first, &mut counter()) else {
        panic!("work")
    };
    assert_eq!(controller.state(), AuthState::Pending);
    // Another message while the work is out.
    let late = work.run();
    assert!(matches!(controller.handle_send(&first, &mut counter()), ControllerProgress::Answer));
    assert_eq!(controller.state(), AuthState::Failed);
    assert!(matches!(controller.handle_computed(late.clone()), ControllerProgress::Answer));
    assert_eq!(controller.state(), AuthState::Failed);
    refused(&mut controller, 7, 7);

    // What was computed for the challenge is no session key.
    let (mut controller, reply) = asked(DhGroup::Ffdhe2048, None);
    assert!(matches!(controller.handle_send(&reply, &mut counter()), ControllerProgress::Compute(_)));
    assert!(matches!(controller.handle_computed(late), ControllerProgress::Answer));
    assert_eq!((controller.state(), controller.is_authenticated()), (AuthState::Pending, false));
    drop(controller);
}

#[test]
fn attack_109_challenges_and_successes_that_lie() {
    let policy = || only(Hash::Sha256, DhGroup::Null);
    let start = || HostAuthenticator::start(credentials(None), policy(), 7, &mut counter()).0;
    let mut challenge = vec![1, 1, 0, 0, 7, 0, 32, 0, 1, 0, 0, 0, 1, 0, 0, 0];
    challenge.extend([9; 32]);
    let rows = [
        (challenge[..7].to_vec(), 6),
        (challenge[..47].to_vec(), 6),
        (with(challenge.clone(), &[(4, 8)]), 7),
        (with(challenge.clone(), &[(1, 3)]), 7),
        // HL 0, of another hash, of one that was not offered; HASHID of none.
        (with(challenge.clone(), &[(6, 0)]), 4),
        (with(challenge.clone(), &[(6, 48)]), 4),
        (with(challenge.clone(), &[(6, 64), (8, 3)]), 4),
        (with(challenge.clone(), &[(8, 0)]), 4),
        (with(challenge.clone(), &[(8, 0xff)]), 4),
        // A group that was not offered, and one that is none.
        (with(challenge.clone(), &[(9, 1)]), 5),
        (with(challenge.clone(), &[(9, 6)]), 5),
        // DHVLEN 65535, or 1024 that do not come.
        (with(challenge.clone(), &[(10, 0xff), (11, 0xff)]), 6),
        (with(challenge.clone(), &[(11, 4)]), 6),
        (with(challenge.clone(), &[(12, 0)]), 6),
    ];
    for (message, explanation) in rows {
        let mut host = start();
        assert!(matches!(host.handle_sent(), HostProgress::Receive));
        let HostProgress::Send(failure) = host.handle_message(&message) else { panic!("a failure") };
        assert_eq!(failure, [0, 0xf0, 0, 0, 7, 0, 1, explanation], "{message:02x?}");
        let HostProgress::Failed(fault) = host.handle_sent() else { panic!("the end") };
        assert_eq!(fault, HostFault::Wrong(FailureExplanation(explanation)));
        assert!(!format!("{fault} {fault:?} {host:?}").contains(&SECRET[10..20]));
    }
    // With a group, DHVLEN must be that of the group, whatever room there is.
    let mut lengths = vec![1, 1, 0, 0, 7, 0, 32, 0, 1, 1, 0xff, 0xff, 1, 0, 0, 0];
    lengths.extend([9; 32 + 256]);
    let group = only(Hash::Sha256, DhGroup::Ffdhe2048);
    let mut host = HostAuthenticator::start(credentials(None), group, 7, &mut counter()).0;
    host.handle_sent();
    let HostProgress::Send(failure) = host.handle_message(&lengths) else { panic!("a failure") };
    assert_eq!(failure, [0, 0xf0, 0, 0, 7, 0, 1, 6]);
    // A success that proves nothing where a proof was asked for, or a wrong one, or half of one.
    let success = |hl, valid, r2: usize| {
        [&[1, 3, 0, 0, 7, 0, hl, 0, valid, 0, 0, 0, 0, 0, 0, 0][..], &vec![9; r2]].concat()
    };
    for (message, explanation) in [
        (message::encode_success1(7, Hash::Sha256, None), 1),
        (success(32, 0, 32), 1),
        (success(32, 1, 32), 1),
        (success(32, 1, 31), 6),
        (success(32, 2, 32), 6),
        (success(0, 1, 0), 4),
        (success(48, 1, 48), 4),
        // Or the challenge again in its place.
        (challenge.clone(), 7),
    ] {
        let mut host =
            HostAuthenticator::start(credentials(Some(key(SUBSYSTEM))), policy(), 7, &mut counter()).0;
        host.handle_sent();
        assert!(matches!(host.handle_message(&challenge), HostProgress::Send(_)));
        host.handle_sent();
        let HostProgress::Send(failure) = host.handle_message(&message) else { panic!("{message:02x?}") };
        assert_eq!(failure, [0, 0xf0, 0, 0, 7, 0, 1, explanation], "{message:02x?}");
        assert!(matches!(host.handle_sent(), HostProgress::Failed(_)));
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(256))]

    /// Whatever comes in whatever order: no panic, and no host without the key is let in.
    #[test]
    fn attack_76_random_messages_authenticate_nobody(
        turns in proptest::collection::vec(
            (0..4_u8, proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200), 0..1200_u32),
            1..12,
        ),
    ) {
        let policy = DhchapPolicy { groups: vec![DhGroup::Null], ..DhchapPolicy::default() };
        let mut controller = ControllerAuthenticator::new(credentials(Some(key(SUBSYSTEM))), policy);
        let offer = negotiate();
        let mut valid = asked(DhGroup::Null, None).1;
        valid[16] ^= 1;
        for (kind, bytes, room) in turns {
            let mut message = [&offer[..], &valid, &message::encode_success2(7), &[]][usize::from(kind)].to_vec();
            // Bytes over the end of a message that would be in order.
            for (at, byte) in bytes.iter().enumerate().filter(|(_, byte)| **byte < 32) {
                match message.get_mut(at) {
                    Some(place) => *place = *byte,
                    None => message.push(*byte),
                }
            }
            drop(send(&mut controller, &message));
            if room % 3 == 0 {
                drop(controller.handle_receive(room));
            }
            proptest::prop_assert!(!controller.is_authenticated());
        }
    }

    #[test]
    fn random_texts_are_no_secrets(text in "(DHHC-1:0[0-4]:)?[A-Za-z0-9+/=:]{0,120}:?") {
        proptest::prop_assert!(DhchapSecret::parse(&text).is_err());
    }
}
