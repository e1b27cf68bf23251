//! Attacks on the login, by fixed bytes; see `docs/attacks.md`.

use super::*;

#[test]
fn attack_03_other_protocols_get_no_word() {
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0x41].repeat(4);
    let http = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:3260\r\nUser-Agent: curl".to_vec();
    for first in [hello, http] {
        let mut login = Login::new();
        let step = login.handle_header(Bhs::from_prefix(&first).unwrap()).unwrap_err();
        assert!(matches!(*step, LoginAction::Drop(LoginEndCause::NotLogin(_))), "{step:?}");
    }
}

#[test]
fn attack_04_no_text_where_names_are_due() {
    for flags in [S_TO_O, O_TO_F, S] {
        assert_eq!(Target::new(AuthPolicy::None).refusal(flags, ""), LoginStatus::MISSING_PARAMETER);
    }
    let no_target = "InitiatorName=iqn.2026-11.io.example:host";
    assert_eq!(Target::new(AuthPolicy::None).refusal(S_TO_O, no_target), LoginStatus::MISSING_PARAMETER);
}

#[test]
fn attack_05_segments_beyond_8192_are_refused_by_the_header() {
    for len in [8193, 65_536, 0xff_ffff] {
        let mut login = Login::new();
        let step = login.handle_header(header(S, len).as_bhs()).unwrap_err();
        assert_eq!(refusal(*step), LoginStatus::INITIATOR_ERROR);
    }
    assert_eq!(Login::new().handle_header(header(S, 8190).as_bhs()).unwrap(), 8192);
    let mut bhs = header(S, 0).to_bhs();
    bhs.ahs_words = 1;
    assert_eq!(refusal(*Login::new().handle_header(&bhs).unwrap_err()), LoginStatus::INITIATOR_ERROR);
}

#[test]
fn attack_06_malformed_and_endless_text() {
    let long_key = format!("{INITIATOR} {}=1", "K".repeat(64));
    for text in ["NoEquals", "=x", &long_key] {
        assert_eq!(Target::new(AuthPolicy::None).refusal(S_TO_O, text), LoginStatus::INITIATOR_ERROR);
    }
    let mut t = Target::new(AuthPolicy::None);
    let piece = [b'K'; 8192];
    let mut pieces = 0;
    let status = loop {
        match t.raw(header(S | MORE, piece.len()), &piece) {
            LoginAction::Send(pdu) => assert!(pdu.text.is_empty() && pdu.bhs.flags == S),
            step => break refusal(step),
        }
        pieces += 1;
    };
    assert_eq!((pieces, status), (TEXT_LEN_MAX / piece.len(), LoginStatus::INITIATOR_ERROR));
    let mut t = Target::new(AuthPolicy::None);
    let answered =
        (0..1000).take_while(|_| matches!(t.raw(header(S | MORE, 0), &[]), LoginAction::Send(_))).count();
    assert_eq!(answered, LOGIN_REQUESTS_MAX as usize);
}

#[test]
fn attack_07_ten_thousand_unknown_keys() {
    let text = format!("{INITIATOR} {}", "X=1 ".repeat(10_000).trim_end());
    let mut t = Target::new(AuthPolicy::None);
    let data = bytes(&text);
    let outcome = data.chunks(8192).find_map(|piece| match t.raw(header(S | MORE, piece.len()), piece) {
        LoginAction::Send(_) => None,
        step => Some(refusal(step)),
    });
    assert_eq!(outcome, Some(LoginStatus::INITIATOR_ERROR));
    let text = format!("{INITIATOR} {}", "X=1 ".repeat(PAIRS_MAX).trim_end());
    assert_eq!(Target::new(AuthPolicy::None).refusal(S_TO_O, &text), LoginStatus::INITIATOR_ERROR);
}

#[test]
fn attack_08_answers_beyond_8_kib_are_split() {
    let mut t = Target::new(AuthPolicy::None);
    t.answer(S_TO_O, INITIATOR);
    let keys: Vec<_> = (0..120).map(|i| format!("X-{i:061}=")).collect();
    let data = bytes(&keys.join(" "));
    // The session is asked for before the answer goes out.
    let LoginAction::Complete(_) = t.raw(header(O_TO_F, data.len()), &data) else { panic!() };
    let LoginAction::Send(first) =
        t.login.complete(LoginCompletion::NewSession { tsih: Tsih::new(9), window: 1 })
    else {
        panic!()
    };
    assert_eq!((first.text.len(), first.bhs.flags), (8192, O | MORE));
    assert_eq!(LoginResponse::from_bhs(&first.bhs).tsih, Tsih::NONE);
    let mut text = first.text;
    let LoginAction::Established(last, established) = t.raw(header(O_TO_F, 0), &[]) else { panic!() };
    assert_eq!((last.bhs.flags, LoginResponse::from_bhs(&last.bhs).tsih), (O_TO_F, Tsih::new(9)));
    assert_eq!(established.stat_sn, LoginResponse::from_bhs(&last.bhs).stat_sn.next());
    text.extend(last.text);
    assert!(text.len() < TEXT_LEN_MAX);
    assert_eq!(parse(&text).unwrap().iter().filter(|p| p.value == "NotUnderstood").count(), 120);
}

#[test]
fn attack_09_stages_that_do_not_exist() {
    // CSG 2, CSG 3, NSG 2, NSG 0 and 1 behind or at CSG, T with C.
    for flags in [0x08, 0x0c, 0x82, 0x80, 0x84, 0x85, 0x86, 0xc1, 0xc7] {
        let status = Target::new(AuthPolicy::None).refusal(flags, INITIATOR);
        assert_eq!(status, LoginStatus::INITIATOR_ERROR, "{flags:#x}");
    }
    let mut t = Target::new(AuthPolicy::None);
    t.answer(S_TO_O, INITIATOR);
    assert_eq!(t.refusal(S_TO_F, ""), LoginStatus::INITIATOR_ERROR, "back to the security stage");
    let mut t = Target::new(AuthPolicy::None);
    t.answer(S, INITIATOR);
    assert_eq!(t.refusal(O_TO_F, ""), LoginStatus::INITIATOR_ERROR, "on without a transition");
}

#[test]
fn attack_10_no_way_around_chap() {
    let denied = LoginStatus::AUTHENTICATION_FAILURE;
    let required = || Target::new(AuthPolicy::Required(chap()));
    assert_eq!(required().refusal(S_TO_F, INITIATOR), denied, "no method");
    assert_eq!(required().refusal(S_TO_F, &format!("{INITIATOR} AuthMethod=None")), denied);
    assert_eq!(required().refusal(S_TO_F, &format!("{INITIATOR} AuthMethod=KRB5,SRP")), denied);
    let begun = format!("{INITIATOR} AuthMethod=CHAP");
    // A transition that is asked for with the offer is only not granted.
    let mut t = required();
    assert_eq!(t.answer(S_TO_F, &begun).0, S);
    assert_eq!(t.refusal(S_TO_F, ""), denied, "instead of CHAP_A");
    let mut t = required();
    t.answer(S, &begun);
    assert_eq!(t.refusal(S_TO_F, "CHAP_A=5"), denied);
    let mut t = required();
    challenge(&mut t, "5");
    assert_eq!(t.refusal(S_TO_F, ""), denied, "instead of CHAP_R");
    let mut t = required();
    challenge(&mut t, "5");
    assert_eq!(t.refusal(S_TO_F, "CHAP_N=alice"), denied);
    for key in ["CHAP_A=5", "CHAP_R=0x00", "CHAP_N=alice"] {
        assert_eq!(required().refusal(S, &format!("{begun} {key}")), denied, "ahead of its turn: {key}");
    }
    let mut t = required();
    t.answer(S, &begun);
    assert_eq!(t.refusal(S, "AuthMethod=None"), LoginStatus::INITIATOR_ERROR, "a second choice");
}

#[test]
fn attack_11_operational_stage_first() {
    let denied = LoginStatus::AUTHENTICATION_FAILURE;
    for flags in [O, O_TO_F] {
        assert_eq!(Target::new(AuthPolicy::Required(chap())).refusal(flags, INITIATOR), denied);
    }
    let mut t = Target::new(AuthPolicy::Optional(chap()));
    assert!(matches!(t.say(O_TO_F, INITIATOR), LoginAction::Established(..)));
}

#[test]
fn attack_12_and_15_wrong_responses_all_look_the_same() {
    let mut t = Target::new(AuthPolicy::Required(chap()));
    let good = response_to(&challenge(&mut t, "7"), SECRET);
    let wrong = response_to(&(Algorithm::SHA256, 0, vec![1]), SECRET);
    let base64_junk = format!("0b{}", "A".repeat(2000));
    let (shorter, longer, odd) = (&good[..good.len() - 2], format!("{good}00"), format!("{good}0"));
    let mut refusals = Vec::new();
    for (name, response) in [
        ("alice", wrong.as_str()),
        ("mallory", &good),
        ("alice", shorter),
        ("alice", &longer),
        ("alice", &odd),
        ("alice", "0bZZZ"),
        ("alice", &base64_junk),
        ("alice", ""),
    ] {
        let mut t = Target::new(AuthPolicy::Required(chap()));
        challenge(&mut t, "7");
        let LoginAction::Refuse(pdu, _) = t.say(S_TO_O, &format!("CHAP_N={name} CHAP_R={response}")) else {
            panic!()
        };
        assert_eq!(LoginResponse::from_bhs(&pdu.bhs).status, LoginStatus::AUTHENTICATION_FAILURE);
        refusals.push(pdu);
    }
    assert!(refusals.windows(2).all(|two| two[0] == two[1]), "byte for byte");
}

#[test]
fn attack_13_and_14_mutual_chap_with_bad_challenges() {
    let junk = encode_hex(&[7; 1025]);
    let cases =
        ["CHAP_I=256 CHAP_C=0x00", "CHAP_I=-1 CHAP_C=0x00", "CHAP_I=1", "CHAP_C=0x00", "CHAP_I=1 CHAP_C=0x"];
    let reflected = |c: &(Algorithm, u8, Vec<u8>)| format!("CHAP_I={} CHAP_C={}", c.1, encode_hex(&c.2));
    for case in 0..=cases.len() {
        let mut t = Target::new(AuthPolicy::Required(chap()));
        let challenge = challenge(&mut t, "5");
        let extra = cases.get(case).map_or_else(|| reflected(&challenge), |text| (*text).to_owned());
        let text = format!("CHAP_N=alice CHAP_R={} {extra}", response_to(&challenge, SECRET));
        assert_eq!(t.refusal(S_TO_O, &text), LoginStatus::AUTHENTICATION_FAILURE, "{extra}");
    }
    let mut t = Target::new(AuthPolicy::Required(chap()));
    let c = challenge(&mut t, "5");
    let text = format!("CHAP_N=alice CHAP_R={} CHAP_I=1 CHAP_C={junk}", response_to(&c, SECRET));
    assert_eq!(t.refusal(S_TO_O, &text), LoginStatus::INITIATOR_ERROR, "longer than the text may be");
    // The response that our own secret gives, sent back as the initiator's.
    let mut t = Target::new(AuthPolicy::Required(ChapAccounts {
        accounts: vec![account("alice", MUTUAL)],
        ..chap()
    }));
    let c = challenge(&mut t, "5");
    let text = format!("CHAP_N=alice CHAP_R={}", response_to(&c, MUTUAL));
    assert_eq!(t.refusal(S_TO_O, &text), LoginStatus::AUTHENTICATION_FAILURE);
    // One-way only, where the target wants to prove itself too: the right secret alone does not do.
    let demanding = ChapAccounts { demands_mutual: true, ..chap() };
    for policy in [AuthPolicy::Required(demanding.clone()), AuthPolicy::Optional(demanding)] {
        let mut t = Target::new(policy.clone());
        let c = challenge(&mut t, "5");
        let text = format!("CHAP_N=alice CHAP_R={}", response_to(&c, SECRET));
        assert_eq!(t.refusal(S_TO_O, &text), LoginStatus::AUTHENTICATION_FAILURE);
        let mut t = Target::new(policy);
        let c = challenge(&mut t, "5");
        let both = format!("CHAP_N=alice CHAP_R={} CHAP_I=1 CHAP_C=0x0102", response_to(&c, SECRET));
        assert!(t.answer(S_TO_O, &both).1.contains("CHAP_N=disk"), "with both directions it goes on");
    }
    // Mutual authentication without a secret of ours.
    let mut t = Target::new(AuthPolicy::Required(ChapAccounts { mutual: None, ..chap() }));
    let c = challenge(&mut t, "5");
    let text = format!("CHAP_N=alice CHAP_R={} CHAP_I=1 CHAP_C=0x0102", response_to(&c, SECRET));
    assert_eq!(t.refusal(S_TO_O, &text), LoginStatus::AUTHENTICATION_FAILURE);
}

#[test]
fn attack_16_accounts_that_change_during_a_login() {
    let mut t = Target::new(AuthPolicy::Required(chap()));
    let challenge = challenge(&mut t, "7");
    // The configuration forgets the account; the login goes on by what it was granted, and owns it.
    t.policy.auth = AuthPolicy::Required(ChapAccounts { accounts: Vec::new(), ..chap() });
    let text = format!("CHAP_N=alice CHAP_R={}", response_to(&challenge, SECRET));
    assert_eq!(t.answer(S_TO_O, &text), (S_TO_O, String::new()));
}

#[test]
fn attack_17_and_19_the_session_is_judged_by_name_and_isid() {
    let mut t = Target::new(AuthPolicy::None);
    let data = bytes(INITIATOR);
    let mut request = header(S_TO_F, data.len());
    (request.tsih, request.cid) = (Tsih::new(0x1234), Cid::new(0xffff));
    let LoginAction::Authorize(question) = t.login.handle_request(request.as_bhs(), &data, &mut t.entropy)
    else {
        panic!()
    };
    assert_eq!((question.tsih, question.cid, question.isid), (request.tsih, request.cid, request.isid));
    assert_eq!(question.initiator_name.as_str(), "iqn.2026-11.io.example:host");
    for status in [LoginStatus::SESSION_DOES_NOT_EXIST, LoginStatus::TOO_MANY_CONNECTIONS] {
        let mut t = Target::new(AuthPolicy::None);
        let LoginAction::Complete(_) = t.raw(request, &data) else { panic!() };
        assert_eq!(refusal(t.login.complete(LoginCompletion::Refused(status))), status);
        let mut t = Target::new(AuthPolicy::None);
        t.login.handle_request(request.as_bhs(), &data, &mut t.entropy);
        assert_eq!(refusal(t.login.authorize(Authorization::Refused(status), &mut t.entropy)), status);
    }
    let mut t = Target::new(AuthPolicy::None);
    t.raw(request, &data);
    let join = LoginCompletion::Join { exp_cmd_sn: Sn::new(500), max_cmd_sn: Sn::new(563) };
    let LoginAction::Established(pdu, established) = t.login.complete(join) else { panic!() };
    let response = LoginResponse::from_bhs(&pdu.bhs);
    assert_eq!(
        (response.tsih, response.exp_cmd_sn, response.max_cmd_sn),
        (Tsih::new(0x1234), Sn::new(500), Sn::new(563))
    );
    assert_eq!((established.tsih, established.exp_cmd_sn), (Tsih::new(0x1234), Sn::new(500)));
}

#[test]
fn attack_20_numbers_in_the_login() {
    for value in ["0", "511", "16777216", "18446744073709551616", "8192abc", "-1", "0x"] {
        let mut t = Target::new(AuthPolicy::None);
        t.answer(S_TO_O, INITIATOR);
        let status = t.refusal(O_TO_F, &format!("MaxRecvDataSegmentLength={value}"));
        assert_eq!(status, LoginStatus::INITIATOR_ERROR, "{value}");
        let mut t = Target::new(AuthPolicy::None);
        t.answer(S_TO_O, INITIATOR);
        assert!(
            t.answer(O, &format!("MaxBurstLength={value}")).1.contains("MaxBurstLength=Reject"),
            "{value}"
        );
    }
}

#[test]
fn attack_21_names_that_are_none() {
    let long = format!("iqn.2026-11.io.example:{}", "a".repeat(201));
    for name in [&long, "iqn.2026-11.io.example:../../etc", "%s%n", "", "iqn.2026-11.io.example:\u{1}"] {
        let initiator = format!("InitiatorName={name} TargetName=iqn.2026-11.io.example:disk");
        assert_eq!(
            Target::new(AuthPolicy::None).refusal(S_TO_O, &initiator),
            LoginStatus::INITIATOR_ERROR,
            "{name}"
        );
        let target = format!("InitiatorName=iqn.2026-11.io.example:host TargetName={name}");
        assert_eq!(
            Target::new(AuthPolicy::None).refusal(S_TO_O, &target),
            LoginStatus::TARGET_NOT_FOUND,
            "{name}"
        );
    }
    let not_utf8 = b"InitiatorName=iqn.2026-11.io.example:\xff\xfe\0";
    let step = Target::new(AuthPolicy::None).raw(header(S_TO_O, not_utf8.len()), not_utf8);
    assert_eq!(refusal(step), LoginStatus::INITIATOR_ERROR);
    let nul = b"InitiatorName=iqn.2026-11.io.example:a\0b\0TargetName=iqn.2026-11.io.example:disk\0";
    let step = Target::new(AuthPolicy::None).raw(header(S_TO_O, nul.len()), nul);
    assert_eq!(refusal(step), LoginStatus::INITIATOR_ERROR);
}
