//! Both ends of a login against each other, and targets that cheat.

use super::*;
use crate::chap::Secret;
use crate::login::{
    AuthPolicy, Authorization, ChapAccounts, EstablishedConnection, Login, LoginAction, LoginCompletion,
    LoginPolicy,
};
use crate::negotiate::{Digest, NegotiationViolation};

fn account(name: &str, secret: &[u8]) -> ChapAccount {
    ChapAccount { name: name.to_owned(), secret: Secret::new(secret.to_vec()) }
}

fn wanted(credentials: Option<Credentials>) -> LoginConfig {
    LoginConfig {
        initiator_name: "iqn.2026-11.io.example:host".to_owned(),
        alias: None,
        target_name: Some("iqn.2026-11.io.example:disk".to_owned()),
        isid: Isid::random([1, 2, 3], 4),
        tsih: Tsih::NONE,
        cid: Cid::new(0),
        cmd_sn: Sn::new(u32::MAX),
        limits: NegotiationLimits::default(),
        credentials,
    }
}

fn credentials(target: Option<ChapAccount>) -> Option<Credentials> {
    Some(Credentials {
        ours: account("alice", b"our secret of length"),
        target,
        algorithms: Algorithm::ALL.to_vec(),
    })
}

fn access(auth: AuthPolicy) -> LoginPolicy {
    LoginPolicy {
        auth,
        limits: NegotiationLimits::default(),
        portal_group_tag: 7,
        target_alias: Some("the disk".to_owned()),
    }
}

fn chap() -> ChapAccounts {
    ChapAccounts {
        accounts: vec![account("alice", b"our secret of length")],
        mutual: Some(account("disk", b"the target's own one")),
        demands_mutual: false,
        algorithms: Algorithm::ALL.to_vec(),
    }
}

/// Lets both ends talk until one of them is done.
fn run(
    wanted: LoginConfig,
    access: LoginPolicy,
) -> Result<(LoggedInConnection, EstablishedConnection), LoginFailure> {
    let (mut ours, mut theirs) = (Entropy::new([1; 32]), Entropy::new([2; 32]));
    let (mut initiator, mut request) = InitiatorLogin::start(wanted)?;
    let mut target = Login::new();
    let mut established = None;
    loop {
        assert_eq!(target.handle_header(&request.bhs).unwrap(), request.bhs.padded_data_len());
        let mut step = target.handle_request(&request.bhs, &request.text, &mut theirs);
        let response = loop {
            match step {
                LoginAction::Authorize(_) => {
                    step = target.authorize(Authorization::Granted(Box::new(access.clone())), &mut theirs);
                }
                LoginAction::Complete(_) => {
                    step = target.complete(LoginCompletion::NewSession { tsih: Tsih::new(3), window: 64 });
                }
                LoginAction::Send(pdu) | LoginAction::Refuse(pdu, _) => break pdu,
                LoginAction::Established(pdu, end) => {
                    established = Some(*end);
                    break pdu;
                }
                LoginAction::Drop(cause) => panic!("{cause:?}"),
            }
        };
        match initiator.handle_response(&response.bhs, &response.text, &mut ours)? {
            LoginProgress::Send(next) => request = next,
            LoginProgress::Established(logged_in) => return Ok((*logged_in, established.unwrap())),
        }
    }
}

#[test]
fn both_ends_come_to_the_same_session() {
    let (ours, theirs) = run(wanted(None), access(AuthPolicy::None)).unwrap();
    assert_eq!(ours.params, theirs.params);
    assert_eq!((ours.tsih, ours.portal_group_tag), (Tsih::new(3), Some(7)));
    assert_eq!(
        (ours.cmd_sn, theirs.exp_cmd_sn, ours.exp_cmd_sn),
        (Sn::new(u32::MAX), ours.cmd_sn, ours.cmd_sn)
    );
    assert_eq!((ours.max_cmd_sn, ours.exp_stat_sn), (Sn::new(62), theirs.stat_sn));
    assert_eq!(theirs.user, None);
}

#[test]
fn digests_and_windows_follow_both_ends_limits() {
    let mut wanted = wanted(None);
    wanted.limits.header_digest = vec![Digest::Crc32c];
    wanted.limits.first_burst = 4096;
    let mut access = access(AuthPolicy::None);
    access.limits.initial_r2t = true;
    access.limits.data_digest = vec![Digest::Crc32c];
    let (ours, _) = run(wanted.clone(), access.clone()).unwrap();
    assert_eq!((ours.params.header_digest, ours.params.data_digest), (Digest::Crc32c, Digest::Crc32c));
    assert_eq!((ours.params.first_burst, ours.params.initial_r2t), (4096, true));
    access.limits.header_digest = vec![Digest::None];
    assert!(run(wanted, access).is_err());
}

#[test]
fn chap_in_both_directions() {
    for target in [None, Some(account("disk", b"the target's own one"))] {
        let (_, theirs) = run(wanted(credentials(target)), access(AuthPolicy::Required(chap()))).unwrap();
        assert_eq!(theirs.user.as_deref(), Some("alice"));
    }
    let wrong = Some(account("disk", b"not the right secret"));
    let refused = run(wanted(credentials(wrong)), access(AuthPolicy::Required(chap())));
    assert_eq!(refused.unwrap_err(), LoginFailure::Authentication);
    let refused = run(wanted(None), access(AuthPolicy::Required(chap())));
    assert_eq!(refused.unwrap_err(), LoginFailure::CredentialsMissing);
    let mut mallory = credentials(None);
    mallory.as_mut().unwrap().ours.secret = Secret::new(b"a wrong one".to_vec());
    let refused = run(wanted(mallory), access(AuthPolicy::Required(chap())));
    assert_eq!(refused.unwrap_err(), LoginFailure::Refused(LoginStatus::AUTHENTICATION_FAILURE));
}

#[test]
fn discovery_logs_in_too() {
    let mut discovery = wanted(None);
    discovery.target_name = None;
    let (ours, theirs) = run(discovery, access(AuthPolicy::None)).unwrap();
    assert_eq!(ours.params, theirs.params);
    assert_eq!(ours.params.session_type, SessionType::Discovery);
}

pub fn respond(flags: u8, tsih: u16, text: &str) -> LoginPdu {
    let data = if text.is_empty() { Vec::new() } else { (text.replace(' ', "\0") + "\0").into_bytes() };
    let mut response = LoginResponse::new();
    response.flags = LoginFlags(flags);
    (response.isid, response.itt, response.tsih) = (Isid::random([1, 2, 3], 4), ITT, Tsih::new(tsih));
    response.set_data_len(data.len());
    LoginPdu { bhs: response.to_bhs(), text: data }
}

/// What the initiator makes of a target's responses.
fn against(credentials: Option<Credentials>, responses: &[LoginPdu]) -> Result<LoginProgress, LoginFailure> {
    let mut entropy = Entropy::new([1; 32]);
    let (mut login, first) = InitiatorLogin::start(wanted(credentials)).unwrap();
    let mut last = Ok(LoginProgress::Send(first));
    for response in responses {
        last = login.handle_response(&response.bhs, &response.text, &mut entropy);
    }
    last
}

/// tgt answers a name that it does not know with nothing but opcode, task tag and status.
#[test]
fn a_refusal_is_heard_without_an_isid() {
    let mut bytes = [0; crate::wire::BHS_LEN];
    bytes[0] = 0x23;
    (bytes[36], bytes[37]) = (2, 3);
    let refusal = |bytes: &[u8]| LoginPdu { bhs: *Bhs::from_prefix(bytes).unwrap(), text: Vec::new() };
    assert_eq!(
        against(None, &[refusal(&bytes)]).unwrap_err(),
        LoginFailure::Refused(LoginStatus::TARGET_NOT_FOUND)
    );
    // Success without it is none.
    (bytes[36], bytes[37]) = (0, 0);
    assert_eq!(against(None, &[refusal(&bytes)]).unwrap_err(), LoginFailure::Malformed);
}

#[test]
fn attack_90_targets_that_skip_and_downgrade() {
    let secured = || credentials(None);
    let cases = [
        (secured(), vec![respond(0x81, 0, "AuthMethod=CHAP")], LoginFailure::Malformed),
        (secured(), vec![respond(0x83, 1, "")], LoginFailure::Malformed),
        (secured(), vec![respond(0, 0, "AuthMethod=None")], LoginFailure::Authentication),
        (secured(), vec![respond(0, 0, "")], LoginFailure::Authentication),
        (None, vec![respond(0x83, 1, "AuthMethod=None")], LoginFailure::Malformed),
        (None, vec![respond(0, 0, "AuthMethod=CHAP")], LoginFailure::Authentication),
        (None, vec![respond(0x81, 0, ""), respond(0x87, 0, "")], LoginFailure::Malformed),
        (
            None,
            vec![respond(0x81, 0, ""), respond(0x87, 1, "MaxBurstLength=16777215")],
            LoginFailure::Violation(NegotiationViolation::Value(crate::keys::Key::MaxBurstLength)),
        ),
        (
            None,
            vec![respond(0x81, 0, ""), respond(0x87, 1, "HeaderDigest=MD5")],
            LoginFailure::Violation(NegotiationViolation::Value(crate::keys::Key::HeaderDigest)),
        ),
    ];
    for (credentials, responses, failure) in cases {
        assert_eq!(against(credentials, &responses).unwrap_err(), failure, "{responses:?}");
    }
}

/// An answer may not lie beyond what was offered, whichever key it is.
#[test]
fn attack_90_answers_beyond_the_offer() {
    use crate::keys::Key;
    for (answer, key) in [
        ("MaxConnections=5", Key::MaxConnections),
        ("FirstBurstLength=65540", Key::FirstBurstLength),
        ("DefaultTime2Wait=1", Key::DefaultTime2Wait),
        ("DefaultTime2Retain=1", Key::DefaultTime2Retain),
        ("MaxOutstandingR2T=9", Key::MaxOutstandingR2T),
        ("MaxOutstandingR2T=0", Key::MaxOutstandingR2T),
        ("DataPDUInOrder=No", Key::DataPduInOrder),
        ("DataSequenceInOrder=No", Key::DataSequenceInOrder),
        ("ErrorRecoveryLevel=1", Key::ErrorRecoveryLevel),
        ("iSCSIProtocolLevel=3", Key::ProtocolLevel),
        ("TaskReporting=FastAbort", Key::TaskReporting),
        ("MaxRecvDataSegmentLength=511", Key::MaxRecvDataSegmentLength),
    ] {
        let responses = [respond(0x81, 0, ""), respond(0x87, 1, answer)];
        let failure = LoginFailure::Violation(NegotiationViolation::Value(key));
        assert_eq!(against(None, &responses).unwrap_err(), failure, "{answer}");
    }
}

#[test]
fn attack_91_challenges_that_were_not_offered() {
    let begun = respond(0, 0, "AuthMethod=CHAP");
    let long = format!("CHAP_A=5 CHAP_I=1 CHAP_C=0x{}", "ab".repeat(1025));
    for text in [
        "CHAP_A=9 CHAP_I=1 CHAP_C=0x0102",
        "CHAP_A=5 CHAP_I=256 CHAP_C=0x0102",
        "CHAP_A=5 CHAP_I=1 CHAP_C=0x123",
    ] {
        let failed = against(credentials(None), &[begun.clone(), respond(0, 0, text)]);
        assert_eq!(failed.unwrap_err(), LoginFailure::Authentication, "{text}");
    }
    assert!(against(credentials(None), &[begun.clone(), respond(0, 0, &long)]).is_err());
    // An algorithm that we know and did not offer: a downgrade.
    let mut strong = credentials(None);
    strong.as_mut().unwrap().algorithms = vec![Algorithm::SHA256];
    let failed = against(strong, &[begun, respond(0, 0, "CHAP_A=5 CHAP_I=1 CHAP_C=0x0102")]);
    assert_eq!(failed.unwrap_err(), LoginFailure::Authentication);
}

#[test]
fn attack_91_our_own_challenge_reflected() {
    // One secret for both directions: what we answer on one connection would prove the target on another.
    let same = credentials(Some(account("disk", b"our secret of length")));
    let mut entropy = Entropy::new([1; 32]);
    let begun = respond(0, 0, "AuthMethod=CHAP");
    let mut challenged = |challenge: &str| {
        let (mut login, _) = InitiatorLogin::start(wanted(same.clone())).unwrap();
        login.handle_response(&begun.bhs, &begun.text, &mut entropy).unwrap();
        let pdu = respond(0, 0, challenge);
        let Ok(LoginProgress::Send(answer)) = login.handle_response(&pdu.bhs, &pdu.text, &mut entropy) else {
            panic!()
        };
        let text = String::from_utf8(answer.text).unwrap();
        let value = |key: &str| {
            let pair = text.split('\0').find_map(|pair| pair.strip_prefix(key)).unwrap();
            pair.trim_start_matches('=').to_owned()
        };
        (login, value("CHAP_I"), value("CHAP_C"), value("CHAP_R"))
    };
    let (mut first, identifier, challenge, _) = challenged("CHAP_A=5 CHAP_I=1 CHAP_C=0x0102");
    let (_, _, _, proof) = challenged(&format!("CHAP_A=5 CHAP_I={identifier} CHAP_C={challenge}"));
    let pdu = respond(0x81, 0, &format!("CHAP_N=disk CHAP_R={proof}"));
    let outcome = first.handle_response(&pdu.bhs, &pdu.text, &mut Entropy::new([9; 32]));
    assert_eq!(outcome.unwrap_err(), LoginFailure::Authentication);
}

#[test]
fn attack_92_a_target_that_does_not_prove_itself() {
    let mutual = || credentials(Some(account("disk", b"the target's own one")));
    let begun = [respond(0, 0, "AuthMethod=CHAP"), respond(0, 0, "CHAP_A=5 CHAP_I=1 CHAP_C=0x0102")];
    for proof in ["", "CHAP_N=disk CHAP_R=0x00", "CHAP_N=disk"] {
        let responses = [&begun[..], &[respond(0x81, 0, proof)]].concat();
        assert_eq!(against(mutual(), &responses).unwrap_err(), LoginFailure::Authentication, "{proof}");
    }
}

#[test]
fn redirections_are_parsed() {
    let mut moved = respond(0, 0, "TargetAddress=[::1]:3261");
    moved.bhs.rest[16..18].copy_from_slice(&[1, 1]);
    let Err(LoginFailure::Moved(status, address)) = against(None, &[moved]) else { panic!() };
    assert_eq!((status, address.to_string().as_str()), (LoginStatus::MOVED_TEMPORARILY, "[::1]:3261"));
    let mut nowhere = respond(0, 0, "TargetAddress=host:0");
    nowhere.bhs.rest[16..18].copy_from_slice(&[1, 1]);
    assert_eq!(against(None, &[nowhere]).unwrap_err(), LoginFailure::Malformed);
}
