//! Logins by fixed bytes: valid ones here, attacks on this layer in `attacks.rs`.

mod attacks;

use super::*;
use crate::chap::{Response, Secret};
use crate::negotiate::Digest;
use crate::text::{encode_hex, parse};
use crate::wire::{Itt, LoginFlags, LoginRequest, LoginResponse, Pdu};
use proptest::prelude::*;
use stream::Entropy;

const INITIATOR: &str = "InitiatorName=iqn.2026-11.io.example:host TargetName=iqn.2026-11.io.example:disk";
const SECRET: &[u8] = b"sixteen byte key";
const MUTUAL: &[u8] = b"another long key";

/// T=1, security to operational.
const S_TO_O: u8 = 0x81;
const S_TO_F: u8 = 0x83;
const O_TO_F: u8 = 0x87;
const S: u8 = 0x00;
const O: u8 = 0x04;
const MORE: u8 = 0x40;

fn header(flags: u8, len: usize) -> LoginRequest {
    let mut request = LoginRequest::new();
    request.flags = LoginFlags(flags);
    request.isid = Isid([0x80, 1, 2, 3, 0, 0]);
    request.itt = Itt::new(5);
    request.cid = Cid::new(1);
    request.cmd_sn = Sn::new(100);
    request.exp_stat_sn = Sn::new(7);
    request.set_data_len(len);
    request
}

fn bytes(text: &str) -> Vec<u8> {
    if text.is_empty() { Vec::new() } else { (text.replace(' ', "\0") + "\0").into_bytes() }
}

fn account(name: &str, secret: &[u8]) -> ChapAccount {
    ChapAccount { name: name.to_owned(), secret: Secret::new(secret.to_vec()) }
}

fn chap() -> ChapAccounts {
    ChapAccounts {
        accounts: vec![account("alice", SECRET)],
        mutual: Some(account("disk", MUTUAL)),
        demands_mutual: false,
        algorithms: Algorithm::ALL.to_vec(),
    }
}

/// A login and the world above it.
struct Target {
    login: Login,
    entropy: Entropy,
    policy: LoginPolicy,
}

impl Target {
    fn new(auth: AuthPolicy) -> Self {
        let policy = LoginPolicy {
            auth,
            limits: NegotiationLimits::default(),
            portal_group_tag: 1,
            target_alias: None,
        };
        Self { login: Login::new(), entropy: Entropy::new([1; 32]), policy }
    }

    fn raw(&mut self, request: LoginRequest, data: &[u8]) -> LoginAction {
        let step = self.login.handle_request(request.as_bhs(), data, &mut self.entropy);
        let LoginAction::Authorize(_) = step else { return step };
        self.login.authorize(Authorization::Granted(Box::new(self.policy.clone())), &mut self.entropy)
    }

    fn say(&mut self, flags: u8, text: &str) -> LoginAction {
        let data = bytes(text);
        let step = self.raw(header(flags, data.len()), &data);
        let LoginAction::Complete(_) = step else { return step };
        self.login.complete(LoginCompletion::NewSession { tsih: Tsih::new(0x77), window: 32 })
    }

    /// The text of the response that lets the login go on, and its flags.
    fn answer(&mut self, flags: u8, text: &str) -> (u8, String) {
        match self.say(flags, text) {
            LoginAction::Send(pdu) | LoginAction::Established(pdu, _) => {
                let text = String::from_utf8(pdu.text).unwrap();
                (pdu.bhs.flags, text.trim_end_matches('\0').replace('\0', " "))
            }
            other => panic!("{other:?}"),
        }
    }

    fn refusal(&mut self, flags: u8, text: &str) -> LoginStatus {
        refusal(self.say(flags, text))
    }
}

fn refusal(step: LoginAction) -> LoginStatus {
    match step {
        LoginAction::Refuse(pdu, cause) => {
            let status = LoginResponse::from_bhs(&pdu.bhs).status;
            assert_eq!(status, cause.login_status());
            assert!(status.class > 0 && pdu.bhs.flags & 0x80 == 0);
            status
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_login_without_authentication_in_three_stages() {
    let mut t = Target::new(AuthPolicy::None);
    let first = format!("{INITIATOR} SessionType=Normal AuthMethod=CHAP,None InitiatorAlias=me");
    assert_eq!(t.answer(S_TO_O, &first), (S_TO_O, "TargetPortalGroupTag=1 AuthMethod=None".to_owned()));
    let offer =
        "HeaderDigest=CRC32C,None MaxRecvDataSegmentLength=65536 InitialR2T=No FirstBurstLength=262144";
    let LoginAction::Established(pdu, established) = t.say(O_TO_F, offer) else { panic!() };
    let text = "HeaderDigest=CRC32C InitialR2T=No FirstBurstLength=65536 MaxRecvDataSegmentLength=262144";
    assert_eq!(pdu.text, bytes(text));
    let response = LoginResponse::from_bhs(&pdu.bhs);
    assert_eq!((response.flags.0, response.tsih, response.itt), (O_TO_F, Tsih::new(0x77), Itt::new(5)));
    assert_eq!(
        (response.stat_sn, response.exp_cmd_sn, response.max_cmd_sn),
        (Sn::new(8), Sn::new(100), Sn::new(131))
    );
    assert_eq!((established.stat_sn, established.exp_cmd_sn), (Sn::new(9), Sn::new(100)));
    assert_eq!(established.identity.initiator_name.as_str(), "iqn.2026-11.io.example:host");
    assert_eq!(established.initiator_alias.as_deref(), Some("me"));
    assert_eq!((established.user, established.portal_group_tag), (None, 1));
    let p = established.params;
    assert_eq!((p.initiator_mrdsl, p.target_mrdsl, p.header_digest), (65_536, 262_144, Digest::Crc32c));
    assert_eq!((p.initial_r2t, p.first_burst, p.max_outstanding_r2t), (false, 65_536, 1));
}

#[test]
fn a_login_may_skip_either_stage() {
    let mut t = Target::new(AuthPolicy::None);
    t.policy.limits.max_burst = 262_144;
    assert_eq!(t.answer(S_TO_F, INITIATOR).0, S_TO_F);
    let mut t = Target::new(AuthPolicy::None);
    assert_eq!(t.answer(O_TO_F, INITIATOR).0, O_TO_F);
    // Limits below the defaults send the initiator through the operational stage, with a question to answer.
    let mut t = Target::new(AuthPolicy::None);
    t.policy.limits.immediate_data = false;
    assert_eq!(t.answer(S_TO_F, INITIATOR).0, S_TO_O);
    let question = "MaxRecvDataSegmentLength=262144 ImmediateData=No".to_owned();
    assert_eq!(t.answer(O_TO_F, ""), (O, question));
    let LoginAction::Established(_, established) = t.say(O_TO_F, "ImmediateData=No") else { panic!() };
    assert!(!established.params.immediate_data);
}

#[test]
fn a_discovery_login_names_no_target() {
    let mut t = Target::new(AuthPolicy::None);
    let first = "InitiatorName=iqn.2026-11.io.example:host SessionType=Discovery AuthMethod=None";
    assert_eq!(t.answer(S_TO_O, first), (S_TO_O, "AuthMethod=None".to_owned()));
    let LoginAction::Established(_, established) = t.say(O_TO_F, "MaxBurstLength=512") else { panic!() };
    assert_eq!(established.params.session_type, SessionType::Discovery);
    assert_eq!(established.identity.target_name, None);
}

/// CHAP up to the challenge: gives identifier and challenge.
fn challenge(t: &mut Target, algorithms: &str) -> (Algorithm, u8, Vec<u8>) {
    let (flags, text) = t.answer(S, &format!("{INITIATOR} AuthMethod=CHAP,None"));
    assert_eq!((flags, text.as_str()), (S, "TargetPortalGroupTag=1 AuthMethod=CHAP"));
    let (flags, text) = t.answer(S, &format!("CHAP_A={algorithms}"));
    assert_eq!(flags, S);
    let data = bytes(&text);
    let pairs = parse(&data).unwrap();
    let value = |key| crate::chap::find_value(&pairs, key).unwrap();
    let algorithm = Algorithm(value("CHAP_A").parse().unwrap());
    (algorithm, value("CHAP_I").parse().unwrap(), crate::text::parse_binary(value("CHAP_C"), 1024).unwrap())
}

fn response_to((algorithm, identifier, challenge): &(Algorithm, u8, Vec<u8>), secret: &[u8]) -> String {
    let secret = Secret::new(secret.to_vec());
    encode_hex(Response::compute(*algorithm, *identifier, &secret, challenge).unwrap().as_slice())
}

/// The most wanted method that is offered, whatever the initiator would rather have.
#[test]
fn our_order_of_methods_decides() {
    for (offer, wanted, dispensable) in [
        ("CHAP,None", "CHAP", "None"),
        ("None,CHAP", "CHAP", "None"),
        ("None", "None", "None"),
        ("CHAP", "CHAP", "CHAP"),
    ] {
        let policies =
            [(AuthPolicy::Optional(chap()), wanted), (AuthPolicy::Dispensable(chap()), dispensable)];
        for (policy, method) in policies {
            let mut t = Target::new(policy.clone());
            let answer = t.answer(S, &format!("{INITIATOR} AuthMethod={offer}")).1;
            assert!(answer.ends_with(&format!("AuthMethod={method}")), "{offer}, {policy:?}: {answer}");
        }
    }
    let mut t = Target::new(AuthPolicy::Dispensable(chap()));
    assert!(
        matches!(t.say(O_TO_F, INITIATOR), LoginAction::Established(..)),
        "who says nothing need not prove anything"
    );
}

#[test]
fn chap_takes_the_strongest_algorithm_of_both() {
    for (offer, chosen) in [("5", 5), ("5,6", 6), ("5,7,6", 7), ("0x8,5", 8), ("5,6,7,8,9", 8)] {
        let mut t = Target::new(AuthPolicy::Required(chap()));
        let challenge = challenge(&mut t, offer);
        assert_eq!(challenge.0, Algorithm(chosen), "{offer}");
        let text = format!("CHAP_N=alice CHAP_R={}", response_to(&challenge, SECRET));
        assert_eq!(t.answer(S_TO_O, &text), (S_TO_O, String::new()));
        let LoginAction::Established(_, established) = t.say(O_TO_F, "") else { panic!() };
        assert_eq!(established.user.as_deref(), Some("alice"));
        assert_eq!(established.algorithm, Some(Algorithm(chosen)));
    }
    let mut t = Target::new(AuthPolicy::Required(chap()));
    t.answer(S, &format!("{INITIATOR} AuthMethod=CHAP"));
    assert_eq!(t.refusal(S, "CHAP_A=9,300,x"), LoginStatus::AUTHENTICATION_FAILURE);
}

#[test]
fn mutual_chap_proves_the_target() {
    let mut t = Target::new(AuthPolicy::Required(chap()));
    let challenge = challenge(&mut t, "7");
    let theirs = (Algorithm::SHA256, 9, vec![0x5a; 32]);
    let text = format!(
        "CHAP_N=alice CHAP_R={} CHAP_I=9 CHAP_C={}",
        response_to(&challenge, SECRET),
        encode_hex(&theirs.2)
    );
    let proof = format!("CHAP_N=disk CHAP_R={}", response_to(&theirs, MUTUAL));
    assert_eq!(t.answer(S_TO_O, &text), (S_TO_O, proof));
}

#[test]
fn text_in_pieces_is_joined() {
    let mut t = Target::new(AuthPolicy::None);
    let data = bytes(INITIATOR);
    let (a, b) = data.split_at(20);
    assert!(matches!(t.raw(header(S | MORE, a.len()), a), LoginAction::Send(_)));
    let LoginAction::Send(pdu) = t.raw(header(S_TO_O, b.len()), b) else { panic!() };
    assert_eq!(pdu.bhs.flags, S_TO_O);
}

#[test]
fn text_while_an_answer_is_fetched_is_refused() {
    let mut t = Target::new(AuthPolicy::None);
    t.answer(S_TO_O, INITIATOR);
    let keys: Vec<_> = (0..120).map(|i| format!("X-{i:061}=")).collect();
    assert_eq!(t.answer(O, &keys.join(" ")).0, O | MORE);
    assert_eq!(t.refusal(O, "MaxBurstLength=512"), LoginStatus::INITIATOR_ERROR);
}

#[test]
fn an_added_connection_negotiates_no_session_keys() {
    let mut t = Target::new(AuthPolicy::None);
    let data = bytes(&format!("{INITIATOR} MaxBurstLength=512"));
    let mut request = header(O_TO_F, data.len());
    request.tsih = Tsih::new(3);
    assert_eq!(refusal(t.raw(request, &data)), LoginStatus::INITIATOR_ERROR);
}

#[test]
fn what_is_fixed_may_not_change() {
    let changes: [fn(&mut LoginRequest); 6] = [
        |r| r.itt = Itt::new(6),
        |r| r.isid = Isid([0x80, 9, 9, 9, 0, 0]),
        |r| r.cid = Cid::new(2),
        |r| r.tsih = Tsih::new(1),
        |r| r.version_max = 1,
        |r| r.op = crate::wire::OpByte::new(Opcode::LOGIN_REQUEST),
    ];
    for change in changes {
        let mut t = Target::new(AuthPolicy::None);
        t.answer(S_TO_O, INITIATOR);
        let mut request = header(O_TO_F, 0);
        change(&mut request);
        assert_eq!(refusal(t.raw(request, &[])), LoginStatus::INITIATOR_ERROR);
    }
    let mut t = Target::new(AuthPolicy::None);
    t.answer(S_TO_O, INITIATOR);
    assert_eq!(t.refusal(O, "SessionType=Discovery"), LoginStatus::INITIATOR_ERROR);
    let mut t = Target::new(AuthPolicy::None);
    t.answer(S_TO_O, INITIATOR);
    let nop = crate::wire::NopOut::new();
    let step = *t.login.handle_header(nop.as_bhs()).unwrap_err();
    assert_eq!(refusal(step), LoginStatus::INVALID_DURING_LOGIN);
}

#[test]
fn versions_session_types_and_redirections() {
    let data = bytes(INITIATOR);
    let mut request = header(S_TO_O, data.len());
    (request.version_max, request.version_min) = (3, 1);
    let step = Target::new(AuthPolicy::None).raw(request, &data);
    assert_eq!(refusal(step), LoginStatus::UNSUPPORTED_VERSION);
    let text = format!("{INITIATOR} SessionType=Other");
    let status = Target::new(AuthPolicy::None).refusal(S_TO_O, &text);
    assert_eq!(status, LoginStatus::SESSION_TYPE_NOT_SUPPORTED);
    let address = TargetAddress::parse("[2001:db8::1]:3260,4").unwrap();
    for (authorization, status) in [
        (Authorization::MovedTemporarily(address.clone()), LoginStatus::MOVED_TEMPORARILY),
        (Authorization::MovedPermanently(address), LoginStatus::MOVED_PERMANENTLY),
    ] {
        let mut t = Target::new(AuthPolicy::None);
        t.login.handle_request(header(S_TO_O, data.len()).as_bhs(), &data, &mut t.entropy);
        let LoginAction::Refuse(pdu, _) = t.login.authorize(authorization, &mut t.entropy) else { panic!() };
        assert_eq!(LoginResponse::from_bhs(&pdu.bhs).status, status);
        assert_eq!(pdu.text, b"TargetAddress=[2001:db8::1]:3260\0");
    }
}

#[test]
fn a_request_before_our_answer_is_refused() {
    let mut t = Target::new(AuthPolicy::None);
    let data = bytes(INITIATOR);
    let request = header(S_TO_O, data.len());
    assert!(matches!(
        t.login.handle_request(request.as_bhs(), &data, &mut t.entropy),
        LoginAction::Authorize(_)
    ));
    assert_eq!(
        refusal(t.login.handle_request(request.as_bhs(), &data, &mut t.entropy)),
        LoginStatus::INITIATOR_ERROR
    );
}

/// The figure that the pre-authentication budget counts with.
const _: () = assert!(LOGIN_MEMORY_MAX <= 56 * 1024);

/// Text that is likely to get somewhere.
fn any_text() -> impl Strategy<Value = String> {
    let words = prop_oneof![
        Just(INITIATOR.to_owned()),
        Just("AuthMethod=CHAP,None".to_owned()),
        Just("AuthMethod=None".to_owned()),
        Just("CHAP_A=7,5".to_owned()),
        Just("CHAP_N=alice CHAP_R=0x00".to_owned()),
        Just("CHAP_I=1 CHAP_C=0x00".to_owned()),
        Just("SessionType=Discovery".to_owned()),
        Just("MaxRecvDataSegmentLength=512".to_owned()),
        Just("ImmediateData=No FirstBurstLength=512".to_owned()),
        "[A-Z][a-z]{0,3}=[ -~]{0,4}",
        "\\PC{0,12}",
    ];
    proptest::collection::vec(words, 0..5).prop_map(|words| words.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever is sent: no panic, bounded answers, and never full feature phase without the secret.
    #[test]
    fn nobody_gets_past_required_chap(
        requests in proptest::collection::vec((prop_oneof![Just(S), Just(O), Just(S_TO_O), Just(S_TO_F), Just(O_TO_F), any::<u8>()], any_text()), 1..8),
    ) {
        let mut t = Target::new(AuthPolicy::Required(chap()));
        for (flags, text) in requests {
            match t.say(flags, &text) {
                LoginAction::Send(pdu) => prop_assert!(pdu.text.len() <= LOGIN_SEGMENT_LEN_MAX),
                LoginAction::Refuse(..) | LoginAction::Drop(_) => break,
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }

    #[test]
    fn any_header_is_survived(header in proptest::array::uniform32(any::<u8>()), rest in proptest::array::uniform16(any::<u8>()), login in any::<bool>()) {
        let mut bytes = [&header[..], &rest[..]].concat();
        if login {
            bytes[0] = 0x43;
        }
        let bhs = *Bhs::from_prefix(&bytes).unwrap();
        let mut t = Target::new(AuthPolicy::None);
        if let Ok(len) = t.login.handle_header(&bhs) {
            prop_assert!(len <= LOGIN_SEGMENT_LEN_MAX);
            t.login.handle_request(&bhs, &vec![0; bhs.data_len()], &mut t.entropy);
        }
    }
}

/// Nothing may lead to full feature phase that no question was asked for: the fault is the target's own.
#[test]
fn an_answer_that_the_login_did_not_ask_for_lets_nobody_in() {
    const TARGET_ERROR: LoginStatus = LoginStatus { class: 3, detail: 0 };
    let granted = |t: &Target| Authorization::Granted(Box::new(t.policy.clone()));
    let session = LoginCompletion::NewSession { tsih: Tsih::new(0x77), window: 32 };
    let text = bytes(INITIATOR);
    // Before the first request.
    let mut t = Target::new(AuthPolicy::None);
    assert_eq!(refusal(t.login.complete(session)), TARGET_ERROR);
    let mut t = Target::new(AuthPolicy::None);
    let answer = granted(&t);
    assert_eq!(refusal(t.login.authorize(answer, &mut t.entropy)), TARGET_ERROR);
    // Instead of the answer that is awaited.
    let mut t = Target::new(AuthPolicy::None);
    let asked = t.login.handle_request(header(O_TO_F, text.len()).as_bhs(), &text, &mut t.entropy);
    assert!(matches!(asked, LoginAction::Authorize(_)), "{asked:?}");
    assert_eq!(refusal(t.login.complete(session)), TARGET_ERROR);
    let mut t = Target::new(AuthPolicy::None);
    let asked = t.raw(header(O_TO_F, text.len()), &text);
    assert!(matches!(asked, LoginAction::Complete(_)), "{asked:?}");
    let answer = granted(&t);
    assert_eq!(refusal(t.login.authorize(answer, &mut t.entropy)), TARGET_ERROR);
    // Once more, when the login is over.
    let answer = granted(&t);
    assert_eq!(refusal(t.login.authorize(answer, &mut t.entropy)), TARGET_ERROR);
    assert_eq!(refusal(t.login.complete(session)), TARGET_ERROR);
}
