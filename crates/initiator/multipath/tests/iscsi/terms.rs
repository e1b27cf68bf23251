//! Negotiation: each option of a URL reaches the session, and a target that supports more than we do agrees
//! on what we support.

use blockwire_multipath::{AnyPath, HostIdentity, Url, UrlSecrets};
use iscsi::negotiate::{Digest, NegotiationLimits, TaskReporting};
use volume::{Durability, Op, Outcome};

use super::{IscsiPath, run, settings, span, up, world_of};
use testkit::delivery;
use testkit::target;

/// The path that a URL with these options makes.
fn path(query: &str) -> IscsiPath {
    let url = Url::parse(&format!("iscsi://127.0.0.1/{}/0?{query}", target::TARGET_NAME)).unwrap();
    let who = HostIdentity {
        initiator: "iqn.2026-11.test:host".to_owned(),
        host: nvme::Nqn::parse("nqn.2026-11.test:host").unwrap(),
        host_id: nvme::HostId::new([1; 16]).unwrap(),
        isid: [1, 2, 3],
    };
    match AnyPath::from_url(&url, settings().portals, &who, &UrlSecrets::default(), 4).unwrap() {
        AnyPath::Iscsi(path) => *path,
        AnyPath::Nvme(_) => unreachable!("the URL says iscsi"),
    }
}

/// Logs in, writes and reads 300 KiB; gives what was agreed.
fn agreed(path: IscsiPath, terms: &target::TargetLimits) -> Vec<(String, String)> {
    let mut world = world_of(path, terms);
    let info = up(&mut world);
    let content: Vec<u8> = (0..300 << 10).map(|at| (at * 11 + at / 512) as u8).collect();
    let blocks = content.len() as u64 / 512;
    let payload = delivery::payload_with_bytes(&world.pool, &content);
    assert_eq!(
        run(&mut world, Op::Write(span(3, blocks), Durability::Cached), payload).0,
        Ok(Outcome::Complete)
    );
    let room = delivery::payload_for_read(&world.pool, content.len());
    let (how, payload) = run(&mut world, Op::Read(span(3, blocks)), room);
    assert_eq!(how, Ok(Outcome::Complete));
    assert!(delivery::payload_bytes(payload) == content, "what is read is not what was written");
    info.terms.clone()
}

fn value<'a>(terms: &'a [(String, String)], key: &str) -> &'a str {
    terms.iter().find(|(known, _)| known == key).map_or("", |(_, value)| value)
}

/// A target that agrees to everything.
fn generous() -> target::TargetLimits {
    let digests = vec![Digest::None, Digest::Crc32c];
    let negotiation = NegotiationLimits {
        header_digest: digests.clone(),
        data_digest: digests,
        mrdsl: 262_144,
        max_connections: 16,
        max_burst: (1 << 24) - 1,
        first_burst: 65_536,
        time2wait: 0,
        time2retain: 3600,
        max_outstanding_r2t: 65_535,
        protocol_level: 31,
        ..NegotiationLimits::default()
    };
    target::TargetLimits { negotiation, ..target::TargetLimits::default() }
}

#[test]
fn each_option_reaches_the_session() {
    for (query, key, want) in [
        ("digest=header", "HeaderDigest", "CRC32C"),
        ("digest=data", "DataDigest", "CRC32C"),
        ("digest=data", "HeaderDigest", "None"),
        ("connections=2", "MaxConnections", "2"),
        ("immediate=no", "ImmediateData", "No"),
        ("initial_r2t=yes", "InitialR2T", "Yes"),
        ("initial_r2t=no", "InitialR2T", "No"),
        ("first_burst=512", "FirstBurstLength", "512"),
        ("max_burst=16M", "MaxBurstLength", "16777215"),
        ("max_burst=512&first_burst=512", "MaxBurstLength", "512"),
        ("max_recv=512", "MaxRecvDataSegmentLength (ours)", "512"),
        ("max_recv=16M", "MaxRecvDataSegmentLength (ours)", "16777215"),
        ("max_outstanding_r2t=1&max_burst=4K", "MaxOutstandingR2T", "1"),
        ("max_outstanding_r2t=65535&max_burst=4K", "MaxOutstandingR2T", "65535"),
        ("time2wait=0", "DefaultTime2Wait", "0"),
        ("time2wait=1h", "DefaultTime2Wait", "3600"),
        ("time2retain=20", "DefaultTime2Retain", "20"),
        ("protocol_level=0", "iSCSIProtocolLevel", "0"),
        ("protocol_level=1", "iSCSIProtocolLevel", "1"),
        ("protocol_level=2", "iSCSIProtocolLevel", "2"),
        ("", "ErrorRecoveryLevel", "0"),
    ] {
        let terms = agreed(path(query), &generous());
        assert_eq!(value(&terms, key), want, "{query}: {terms:?}");
    }
}

/// Recovery levels, data out of order and other reports than RFC 3720's are not ours, whatever a target would
/// do, and whatever an owner asks of the session.
#[test]
fn a_target_that_wants_more_gets_what_we_can() {
    let more = NegotiationLimits {
        max_connections: 65_535,
        time2wait: 7,
        data_pdu_in_order: false,
        data_sequence_in_order: false,
        erl: 2,
        task_reporting: vec![TaskReporting::FastAbort, TaskReporting::ResponseFence, TaskReporting::Rfc3720],
        protocol_level: 31,
        ..generous().negotiation
    };
    let target = target::TargetLimits { negotiation: more.clone(), ..target::TargetLimits::default() };
    let mut settings = settings();
    settings.negotiation = more;
    for path in [path(""), IscsiPath::new(settings).unwrap()] {
        let terms = agreed(path, &target);
        for (key, want) in [
            ("MaxConnections", "1"),
            ("DataPDUInOrder", "Yes"),
            ("DataSequenceInOrder", "Yes"),
            ("ErrorRecoveryLevel", "0"),
            ("TaskReporting", "RFC3720"),
            ("DefaultTime2Wait", "7"),
        ] {
            assert_eq!(value(&terms, key), want, "{key}: {terms:?}");
        }
    }
}

/// And one that allows less has its way: the session is what both can do.
#[test]
fn a_target_that_allows_less_has_its_way() {
    let less = NegotiationLimits {
        header_digest: vec![Digest::None],
        data_digest: vec![Digest::None],
        mrdsl: 512,
        max_connections: 1,
        initial_r2t: true,
        immediate_data: false,
        max_burst: 1024,
        first_burst: 512,
        time2wait: 3600,
        time2retain: 0,
        max_outstanding_r2t: 1,
        task_reporting: vec![TaskReporting::Rfc3720],
        protocol_level: 0,
        ..NegotiationLimits::default()
    };
    let target = target::TargetLimits { negotiation: less, ..target::TargetLimits::default() };
    let all =
        "connections=16&immediate=yes&initial_r2t=no&max_burst=16M&max_outstanding_r2t=9&time2retain=1h";
    let terms = agreed(path(all), &target);
    for (key, want) in [
        ("MaxConnections", "1"),
        ("InitialR2T", "Yes"),
        ("ImmediateData", "No"),
        ("MaxBurstLength", "1024"),
        ("MaxOutstandingR2T", "1"),
        ("MaxRecvDataSegmentLength (target)", "512"),
        ("DefaultTime2Wait", "3600"),
        ("DefaultTime2Retain", "0"),
        ("iSCSIProtocolLevel", "0"),
    ] {
        assert_eq!(value(&terms, key), want, "{key}: {terms:?}");
    }
}
