//! Outcomes of every kind of key, from both ends.

use super::*;
use crate::text::parse;
use proptest::prelude::*;

fn target(limits: NegotiationLimits) -> Negotiation {
    Negotiation::new(Role::Target, LoginKind::Leading, SessionType::Normal, limits)
}

fn say(n: &mut Negotiation, text: &str) -> Result<String, NegotiationViolation> {
    let bytes = text.replace(' ', "\0") + "\0";
    let mut out = TextBuf::new();
    n.handle_text(&parse(bytes.as_bytes()).unwrap(), TextPhase::Operational, &mut out)?;
    Ok(String::from_utf8(out.as_bytes().to_vec()).unwrap().trim_end_matches('\0').replace('\0', " "))
}

#[test]
fn each_key_is_answered_by_its_function() {
    let rows = [
        ("HeaderDigest=CRC32C,None", "HeaderDigest=CRC32C"),
        ("DataDigest=None,CRC32C", "DataDigest=None"),
        ("DataDigest=MD5", "DataDigest=Reject"),
        ("MaxConnections=9", "MaxConnections=4"),
        ("MaxConnections=0", "MaxConnections=Reject"),
        ("MaxConnections=65536", "MaxConnections=Reject"),
        ("InitialR2T=No", "InitialR2T=No"),
        ("InitialR2T=Yes", "InitialR2T=Yes"),
        ("InitialR2T=Maybe", "InitialR2T=Reject"),
        ("ImmediateData=No", "ImmediateData=No"),
        ("MaxBurstLength=16777215", "MaxBurstLength=1048576"),
        ("MaxBurstLength=511", "MaxBurstLength=Reject"),
        ("FirstBurstLength=262144", "FirstBurstLength=65536"),
        ("DefaultTime2Wait=0", "DefaultTime2Wait=2"),
        ("DefaultTime2Wait=5", "DefaultTime2Wait=5"),
        ("DefaultTime2Retain=20", "DefaultTime2Retain=0"),
        ("MaxOutstandingR2T=16", "MaxOutstandingR2T=8"),
        ("DataPDUInOrder=No", "DataPDUInOrder=Yes"),
        ("DataSequenceInOrder=No", "DataSequenceInOrder=Yes"),
        ("ErrorRecoveryLevel=2", "ErrorRecoveryLevel=0"),
        ("TaskReporting=FastAbort,RFC3720", "TaskReporting=RFC3720"),
        ("TaskReporting=FastAbort", "TaskReporting=Reject"),
        ("iSCSIProtocolLevel=3", "iSCSIProtocolLevel=2"),
        ("X-com.example.Key=1", "X-com.example.Key=NotUnderstood"),
        ("X-com.example.Key=NotUnderstood", ""),
        ("X#NodeArchitecture=x86", ""),
        ("IFMarker=No", "IFMarker=No"),
        ("OFMarker=Yes", "OFMarker=No"),
        ("IFMarkInt=1~2", "IFMarkInt=Reject"),
        ("OFMarkInt=1", "OFMarkInt=Reject"),
        ("MaxRecvDataSegmentLength=4096", ""),
        ("InitiatorAlias=me", ""),
    ];
    for (offer, answer) in rows {
        assert_eq!(say(&mut target(NegotiationLimits::default()), offer).as_deref(), Ok(answer), "{offer}");
    }
}

#[test]
fn violations_are_named() {
    let rows = [
        ("TargetAlias=x", NegotiationViolation::Sender(Key::TargetAlias)),
        ("TargetPortalGroupTag=1", NegotiationViolation::Sender(Key::TargetPortalGroupTag)),
        ("SendTargets=All", NegotiationViolation::Phase(Key::SendTargets)),
        ("CHAP_A=5", NegotiationViolation::Phase(Key::ChapA)),
        (
            "ErrorRecoveryLevel=0 ErrorRecoveryLevel=0",
            NegotiationViolation::Redeclared(Key::ErrorRecoveryLevel),
        ),
        (
            "FirstBurstLength=512 FirstBurstLength=512",
            NegotiationViolation::Redeclared(Key::FirstBurstLength),
        ),
    ];
    for (offer, violation) in rows {
        assert_eq!(say(&mut target(NegotiationLimits::default()), offer), Err(violation), "{offer}");
    }
    let mut added =
        Negotiation::new(Role::Target, LoginKind::Added, SessionType::Normal, NegotiationLimits::default());
    assert_eq!(say(&mut added, "HeaderDigest=None").as_deref(), Ok("HeaderDigest=None"));
    assert_eq!(
        say(&mut added, "MaxBurstLength=512"),
        Err(NegotiationViolation::LeadingOnly(Key::MaxBurstLength))
    );
    let mut out = TextBuf::new();
    let operational = [KeyValue { key: "MaxBurstLength", value: "512" }];
    let refused =
        target(NegotiationLimits::default()).handle_text(&operational, TextPhase::Security, &mut out);
    assert_eq!(refused, Err(NegotiationViolation::Phase(Key::MaxBurstLength)));
}

#[test]
fn attack_20_segment_lengths_out_of_range() {
    for value in ["0", "511", "16777216", "18446744073709551616", "8192abc", "-1", "0x", ""] {
        let offer = format!("MaxRecvDataSegmentLength={value}");
        let refused = say(&mut target(NegotiationLimits::default()), &offer);
        assert_eq!(refused, Err(NegotiationViolation::Value(Key::MaxRecvDataSegmentLength)), "{offer}");
    }
    let mut n = target(NegotiationLimits::default());
    say(&mut n, "MaxRecvDataSegmentLength=16777215").unwrap();
    assert_eq!(n.params().initiator_mrdsl, 16_777_215);
}

#[test]
fn discovery_makes_data_keys_irrelevant() {
    let mut n = Negotiation::new(
        Role::Target,
        LoginKind::Leading,
        SessionType::Discovery,
        NegotiationLimits::default(),
    );
    let offer = "MaxBurstLength=512 ErrorRecoveryLevel=1 DefaultTime2Wait=2 InitialR2T=No HeaderDigest=None";
    let answer = "MaxBurstLength=Irrelevant ErrorRecoveryLevel=0 DefaultTime2Wait=2 InitialR2T=Irrelevant HeaderDigest=None";
    assert_eq!(say(&mut n, offer).as_deref(), Ok(answer));
    n.propose_needed(&mut TextBuf::new()).unwrap();
}

#[test]
fn first_burst_never_exceeds_max_burst_in_either_order() {
    for offer in ["FirstBurstLength=65536 MaxBurstLength=4096", "MaxBurstLength=4096 FirstBurstLength=65536"]
    {
        let mut n = target(NegotiationLimits::default());
        assert_eq!(say(&mut n, offer).as_deref(), Ok("MaxBurstLength=4096 FirstBurstLength=4096"));
        n.finish_after_proposals();
        assert_eq!(n.params().first_burst, 4096);
    }
}

impl Negotiation {
    fn finish_after_proposals(&mut self) {
        self.propose_needed(&mut TextBuf::new()).unwrap();
        self.proposed = KeySet::default();
        self.finish().unwrap();
    }
}

#[test]
fn what_the_defaults_would_give_away_is_proposed() {
    let limits = NegotiationLimits {
        immediate_data: false,
        first_burst: 8192,
        initial_r2t: false,
        data_digest: vec![Digest::Crc32c],
        max_burst: 65_536,
        ..NegotiationLimits::default()
    };
    let mut n = target(limits.clone());
    let mut out = TextBuf::new();
    assert!(!n.values_within_limits());
    assert_eq!(n.propose_needed(&mut out), Ok(true));
    assert_eq!(
        out.as_bytes(),
        b"DataDigest=CRC32C\0ImmediateData=No\0MaxBurstLength=65536\0FirstBurstLength=8192\0"
    );
    assert_eq!(n.finish(), Err(NegotiationViolation::NoAgreement(Key::DataDigest)), "unanswered");
    assert_eq!(say(&mut n, "ImmediateData=Yes"), Err(NegotiationViolation::Value(Key::ImmediateData)));
    let mut n = target(limits);
    n.propose_needed(&mut TextBuf::new()).unwrap();
    let answers = "DataDigest=CRC32C ImmediateData=No MaxBurstLength=65536 FirstBurstLength=4096";
    assert_eq!(say(&mut n, answers).as_deref(), Ok(""));
    assert_eq!(n.finish(), Ok(()));
    assert_eq!((n.params().first_burst, n.params().data_digest), (4096, Digest::Crc32c));
}

#[test]
fn a_default_above_max_burst_needs_no_round_trip() {
    let mut n = target(NegotiationLimits::default());
    assert_eq!(say(&mut n, "MaxBurstLength=4096").as_deref(), Ok("MaxBurstLength=4096"));
    assert_eq!(n.propose_needed(&mut TextBuf::new()), Ok(false));
    assert_eq!(n.finish(), Ok(()));
    assert_eq!(n.params().first_burst, 4096);
}

#[test]
fn a_rejected_digest_that_we_require_ends_the_login() {
    let mut n =
        target(NegotiationLimits { header_digest: vec![Digest::Crc32c], ..NegotiationLimits::default() });
    assert_eq!(say(&mut n, "HeaderDigest=None").as_deref(), Ok("HeaderDigest=Reject"));
    n.propose_needed(&mut TextBuf::new()).unwrap();
    n.proposed = KeySet::default();
    assert_eq!(n.finish(), Err(NegotiationViolation::NoAgreement(Key::HeaderDigest)));
}

/// Targets that are older than RFC 5048 and RFC 7144.
#[test]
fn a_peer_that_does_not_know_a_key_gets_its_default() {
    let limits =
        NegotiationLimits { task_reporting: vec![TaskReporting::Rfc3720], ..NegotiationLimits::default() };
    let mut n = Negotiation::new(Role::Initiator, LoginKind::Leading, SessionType::Normal, limits);
    n.propose_all(&mut TextBuf::new()).unwrap();
    n.proposed = KeySet::default();
    n.proposed.insert(Key::TaskReporting);
    n.proposed.insert(Key::ProtocolLevel);
    assert_eq!(
        say(&mut n, "TaskReporting=NotUnderstood iSCSIProtocolLevel=NotUnderstood").as_deref(),
        Ok("")
    );
    assert_eq!(n.finish(), Ok(()));
    assert_eq!((n.params().task_reporting, n.params().protocol_level), (TaskReporting::Rfc3720, 1));
}

/// Such a target is no reason against a level below the default.
#[test]
fn who_knows_no_levels_has_none() {
    let limits = NegotiationLimits { protocol_level: 0, ..NegotiationLimits::default() };
    let mut n = Negotiation::new(Role::Initiator, LoginKind::Leading, SessionType::Normal, limits);
    n.proposed.insert(Key::ProtocolLevel);
    assert_eq!(say(&mut n, "iSCSIProtocolLevel=NotUnderstood").as_deref(), Ok(""));
    assert_eq!(n.finish(), Ok(()));
    assert_eq!(n.params().protocol_level, 0);
}

/// LIO answers neither order once it is offered Yes.
#[test]
fn an_offer_with_one_result_needs_no_answer() {
    let limits = NegotiationLimits {
        initial_r2t: true,
        immediate_data: false,
        data_pdu_in_order: true,
        data_sequence_in_order: true,
        ..NegotiationLimits::default()
    };
    let all = [Key::InitialR2T, Key::ImmediateData, Key::DataPduInOrder, Key::DataSequenceInOrder];
    let unanswered = |limits: NegotiationLimits| {
        let mut n = Negotiation::new(Role::Initiator, LoginKind::Leading, SessionType::Normal, limits);
        n.propose_all(&mut TextBuf::new()).unwrap();
        n.proposed = KeySet::default();
        all.into_iter().for_each(|key| {
            n.proposed.insert(key);
        });
        n
    };
    let mut n = unanswered(limits.clone());
    n.params.max_burst = limits.max_burst;
    n.params.time2wait = limits.time2wait;
    assert_eq!(n.finish(), Ok(()));
    let p = n.params();
    assert!(p.initial_r2t && !p.immediate_data && p.data_pdu_in_order && p.data_sequence_in_order);
    for (other, key) in [
        (NegotiationLimits { initial_r2t: false, ..limits.clone() }, Key::InitialR2T),
        (NegotiationLimits { immediate_data: true, ..limits.clone() }, Key::ImmediateData),
        (NegotiationLimits { data_pdu_in_order: false, ..limits.clone() }, Key::DataPduInOrder),
        (NegotiationLimits { data_sequence_in_order: false, ..limits }, Key::DataSequenceInOrder),
    ] {
        assert_eq!(unanswered(other).finish(), Err(NegotiationViolation::NoAgreement(key)));
    }
}

fn any_limits() -> impl Strategy<Value = NegotiationLimits> {
    let digests = prop_oneof![
        Just(vec![Digest::None]),
        Just(vec![Digest::None, Digest::Crc32c]),
        Just(vec![Digest::Crc32c, Digest::None]),
    ];
    let bytes = 512u32..(1 << 24);
    let booleans = proptest::array::uniform4(any::<bool>());
    (
        digests.clone(),
        digests,
        [bytes.clone(), bytes.clone(), bytes],
        1u32..65536,
        0u32..3601,
        0u32..3601,
        booleans,
    )
        .prop_map(
            |(header_digest, data_digest, [mrdsl, max_burst, first], count, time2wait, time2retain, b)| {
                NegotiationLimits {
                    header_digest,
                    data_digest,
                    mrdsl,
                    max_burst,
                    first_burst: first.min(max_burst),
                    max_connections: count,
                    max_outstanding_r2t: count,
                    time2wait,
                    time2retain,
                    initial_r2t: b[0],
                    immediate_data: b[1],
                    data_pdu_in_order: b[2],
                    data_sequence_in_order: b[3],
                    ..NegotiationLimits::default()
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever two honest ends want, they come to the same values, and those keep both ends' limits.
    #[test]
    fn both_ends_agree(ours in any_limits(), theirs in any_limits()) {
        let mut t = target(ours);
        let mut i = Negotiation::new(Role::Initiator, LoginKind::Leading, SessionType::Normal, theirs);
        let (mut offer, mut answer, mut rest) = (TextBuf::new(), TextBuf::new(), TextBuf::new());
        i.propose_all(&mut offer).unwrap();
        t.handle_text(&parse(offer.as_bytes()).unwrap(), TextPhase::Operational, &mut answer).unwrap();
        t.declare_recv_segment_len(&mut answer).unwrap();
        t.propose_needed(&mut answer).unwrap();
        i.handle_text(&parse(answer.as_bytes()).unwrap(), TextPhase::Operational, &mut rest).unwrap();
        prop_assert!(rest.is_empty());
        prop_assert_eq!(t.finish(), Ok(()));
        prop_assert_eq!(i.finish(), Ok(()));
        prop_assert_eq!(t.params(), i.params());
        prop_assert!(t.params().first_burst <= t.params().max_burst);
    }

    #[test]
    fn any_value_is_answered_or_refused(row in 0..KEY_RULES.len(), value in "[ -~]{0,20}") {
        let mut n = target(NegotiationLimits::default());
        let before = n.params().clone();
        let pair = [KeyValue { key: KEY_RULES[row].name, value: &value }];
        let mut out = TextBuf::new();
        if n.handle_text(&pair, TextPhase::Operational, &mut out).is_err() {
            prop_assert_eq!(n.params(), &before);
        }
    }
}
