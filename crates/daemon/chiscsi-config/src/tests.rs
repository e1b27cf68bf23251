//! Complete files: the paper's and the vendor's samples as printed, and files with errors.

use std::path::Path;

use super::*;
use config::{
    check::{self, CommandLineOptions},
    diagnostic::Diagnostic,
    plan::{AuthMethod, CoreChoice, DigestPolicy, Negotiation, Plan, Protocol},
};
use control::report::line::{self, Treatment};

const PAPER: &str = include_str!("../tests/papers/t5-chiscsi.conf");
const PAPER_POLICY: &str = include_str!("../tests/papers/t5-cop.conf");

type Read = Result<(Plan, Vec<LineReport>, Vec<String>), Vec<String>>;

fn read_as(text: &str, is_world_readable: bool) -> Read {
    let (sink, mut draft) = (Sink::default(), Draft::default());
    let text = SourceText::new("chiscsi.conf", text.to_owned());
    let lines = translate::read_into_draft(
        &text,
        Path::new("/etc/chelsio-iscsi"),
        is_world_readable,
        &sink,
        &mut draft,
    );
    let options = CommandLineOptions { allow_anonymous: true, ..CommandLineOptions::default() };
    let plan = check::resolve_draft(draft, &options, &sink);
    let shown = |list: Vec<Diagnostic>| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    sink.into_result(plan).map(|(plan, warnings)| (plan, lines, shown(warnings))).map_err(shown)
}

fn read(text: &str) -> (Plan, Vec<LineReport>) {
    let (plan, lines, _) = read_as(text, false).unwrap();
    (plan, lines)
}

fn errors(text: &str) -> Vec<String> {
    read_as(text, false).map(|(plan, ..)| panic!("accepted: {plan:?}")).unwrap_err()
}

fn treated(lines: &[LineReport], text: &str) -> Treatment {
    let found = lines.iter().find(|line| line.text.starts_with(text));
    found.unwrap_or_else(|| panic!("no line {text} in {lines:#?}")).treatment
}

/// A target with what it needs, and `rest`.
fn target(rest: &str) -> String {
    format!("target:\nTargetName=iqn.2026-11.test:t\nTargetDevice=r,MEM\nPortalGroup=1@127.0.0.1\n{rest}")
}

#[test]
fn the_papers_file_as_printed() {
    let (plan, lines) = read(PAPER);
    let target = &plan.ways.targets[0];
    assert_eq!((plan.ways.targets.len(), plan.ways.subsystems.len()), (1, 0), "nothing but what it says");
    assert_eq!(target.name, "iqn.2004-05.com.chelsio.target0");
    assert_eq!(target.alias.as_deref(), Some("iscsitarget0"));
    assert_eq!(
        target.negotiation,
        Negotiation {
            header_digest: DigestPolicy::Allow,
            data_digest: DigestPolicy::Allow,
            max_connections: 4,
            initial_r2t: true,
            immediate_data: true,
            first_burst: 65_536,
            max_burst: 262_144,
            max_receive: 8192,
            max_outstanding_r2t: 1,
        }
    );
    assert_eq!((target.commands, target.open, target.auth.is_none()), (2048, true, true));
    assert_eq!((target.portals.as_slice(), target.listeners.as_deref()), (&[1][..], Some(&[0][..])));
    let portal = &plan.portals[0];
    assert_eq!(
        (portal.protocol, portal.address.to_string().as_str(), portal.tag, plan.portals.len()),
        (Protocol::Iscsi, "102.11.11.32:3260", 1, 1)
    );
    assert_eq!(
        (plan.volumes[0].name.as_str(), plan.volumes[0].spec.to_string().as_str()),
        ("ssdb1", "/dev/ssdb1")
    );
    assert_eq!((target.luns[0].lun, target.luns[0].volume.as_str()), (0, "ssdb1"));
    // (2048 + 1) commands of one segment of 8 KiB are an eighth of it at most.
    assert_eq!(plan.limits.memory, 256 << 20);
    let said: Vec<(usize, Treatment)> = lines.iter().map(|line| (line.line, line.treatment)).collect();
    let mut all = vec![(5, Treatment::Meaningless), (6, Treatment::Emulated)];
    all.extend((10..=21).map(|line| (line, Treatment::Applied)));
    assert_eq!(said, all, "every setting of it, once");
}

#[test]
fn the_papers_file_is_open_beyond_the_machine_and_says_what_to_do() {
    let (sink, mut draft) = (Sink::default(), Draft::default());
    let text = SourceText::new("chiscsi.conf", PAPER.to_owned());
    translate::read_into_draft(&text, Path::new("/"), false, &sink, &mut draft);
    let plan = check::resolve_draft(draft, &CommandLineOptions::default(), &sink);
    let wrong = sink.into_result(plan).unwrap_err();
    assert!(
        wrong[0]
            .to_string()
            .starts_with("chiscsi.conf:21:13: portal 102.11.11.32:3260 is reachable from other machines")
    );
}

#[test]
fn the_papers_policy_as_printed() {
    let (sink, mut draft) = (Sink::default(), Draft::default());
    let lines = policy::read_policy(&SourceText::new("cop.conf", PAPER_POLICY.to_owned()), &sink, &mut draft);
    let rule = &draft.placement[0];
    assert_eq!((draft.placement.len(), rule.bind, rule.nth), (1, CoreChoice::Random, None));
    assert_eq!(rule.when, ::shard::Condition::Always);
    let said: Vec<(&str, Treatment)> =
        lines.iter().map(|line| (line.text.as_str(), line.treatment)).collect();
    assert_eq!(
        said,
        [
            ("any =>", Treatment::Applied),
            ("offload", Treatment::Meaningless),
            ("ddp", Treatment::Meaningless),
            ("bind random", Treatment::Applied),
        ]
    );
    assert!(sink.is_clean());
}

/// The values of the vendor's sample file and of its users' guide.
const SAMPLE: &str = r#"
global:
    iscsi_auth_order=ACL
    DISC_AuthMethod=CHAP
    DISC_Auth_CHAP_Policy=Mutual
    DISC_Auth_CHAP_Initiator="initiator_id1":"initiator_sec1"
    DISC_Auth_CHAP_Target="target_id1":"target_secret1"
    iscsi_target_vendor_id=Chelsio
    iscsi_login_complete_time=300
    iscsi_chelsio_ini_idstr=cxgb4i
target:
    TargetName=iqn.2004-05.com.chelsio.target
    HeaderDigest=CRC32C
    DataDigest = None
    TargetDevice=/dev/sdb,SYNC
    TargetDevice=ramdisk1,MEM
    TargetDevice=ramdisk2,MEM,NULLRW,size=16MB
    PortalGroup=1@192.168.1.1:3260,timeout=20
    PortalGroup=2@192.168.1.2:3260
    ACL_Enable=Yes
    ACL=iname=iqn.2004-08.com.chelsio.test1
    ACL=sip=192.164.1.100;lun=0:R,1~9:RW
    ACL=dip=192.168.1.2;lun=ALL:R
    AuthMethod=CHAP
    Auth_CHAP_Policy=Mutual
    Auth_CHAP_ChallengeLength=16
    Auth_CHAP_Target="target_id1":"target_secret1"
    Auth_CHAP_Initiator="initiator_id1":"initiator_sec1"
    Auth_CHAP_Initiator="initiator_id2":"initiator_sec2"
    RegisteriSNS=Yes
    ShadowMode=No
    DefaultTime2Wait=2
target:
    TargetName=iqn.2004-05.com.chelsio.other
    TargetDevice=/dev/sdb,SYNC
    TargetDevice=ramdisk1,MEM,size=32MB,RO
    PortalGroup=1@192.168.1.3:3260
    AuthMethod=None
    Auth_CHAP_Initiator="initiator_id1":"initiator_sec1"
    ACL=sip=192.0.2.1
"#;

#[test]
fn a_file_with_all_forms() {
    let (plan, lines) = read(SAMPLE);
    let [first, second] = &plan.ways.targets[..] else { panic!("{:?}", plan.ways.targets) };
    assert_eq!(first.negotiation.header_digest, DigestPolicy::Require);
    assert_eq!(first.negotiation.data_digest, DigestPolicy::Off);
    assert_eq!((first.inquiry.vendor.as_str(), first.nop_timeout.unwrap().as_secs()), ("Chelsio", 20));
    assert_eq!(second.negotiation.max_connections, 1, "the format's own default");
    // Groups of one tag at different addresses stay apart.
    assert_eq!((first.portals.as_slice(), first.listeners.as_deref()), (&[1, 2][..], Some(&[0, 1][..])));
    assert_eq!((second.portals.as_slice(), second.listeners.as_deref()), (&[1][..], Some(&[2][..])));
    let volumes: Vec<String> = plan.volumes.iter().map(|one| format!("{}={}", one.name, one.spec)).collect();
    assert_eq!(
        volumes,
        ["sdb=/dev/sdb,cache=off", "ramdisk1=ram:16M", "ramdisk2=null:16M", "ramdisk1-2=ram:32M,ro=on"],
        "a device is one volume, whatever target shares it"
    );
    assert_eq!(second.luns.iter().map(|lun| lun.volume.as_str()).collect::<Vec<_>>(), ["sdb", "ramdisk1-2"]);
    let auth = first.auth.as_ref().unwrap();
    assert_eq!((auth.methods.as_slice(), auth.mutual), (&[AuthMethod::Chap][..], true));
    let users: Vec<&str> = auth.chap.iter().map(|one| one.user.as_str()).collect();
    assert_eq!(users, ["initiator_id1", "initiator_id2"]);
    assert!(auth.chap.iter().all(|one| one.mutual.as_ref().unwrap().0 == "target_id1"));
    assert!(second.auth.is_none() && second.open && !first.open);
    assert_eq!(
        (plan.auth.discovery.len(), plan.auth.mutual, plan.limits.login_timeout.as_secs()),
        (1, true, 300)
    );
    // The access list of the first target, in its order.
    let hosts: Vec<_> = plan.hosts.iter().map(|host| (host.name.as_str(), &host.grants[0])).collect();
    assert_eq!(
        hosts.iter().map(|one| one.0).collect::<Vec<_>>(),
        ["ACL of line 21", "ACL of line 22", "ACL of line 23"]
    );
    assert!(hosts.iter().all(|(_, grant)| grant.target.as_deref() == Some(first.name.as_str())));
    assert_eq!((hosts[0].1.luns.as_ref(), hosts[0].1.read_only), (None, false));
    assert_eq!(hosts[1].1.luns.as_deref(), Some(&[(0, true), (1, false), (2, false)][..]));
    assert_eq!((hosts[2].1.read_only, hosts[2].1.locals.len()), (true, 1));
    for (text, treatment) in [
        ("iscsi_auth_order", Treatment::Applied),
        ("iscsi_chelsio_ini_idstr", Treatment::Meaningless),
        ("Auth_CHAP_ChallengeLength", Treatment::Emulated),
        ("RegisteriSNS", Treatment::Meaningless),
        ("ShadowMode", Treatment::Unused),
        ("DefaultTime2Wait", Treatment::Meaningless),
        ("TargetDevice=ramdisk2", Treatment::Emulated),
        ("ACL=sip=192.0.2.1", Treatment::Unused),
        ("ACL=sip=192.164", Treatment::Applied),
    ] {
        assert_eq!(treated(&lines, text), treatment, "{text}");
    }
    let unused = lines.iter().rev().find(|line| line.text.starts_with("Auth_CHAP_Initiator")).unwrap();
    assert_eq!((unused.treatment, unused.line), (Treatment::Unused, 39));
    let shown = line::format_lines(&lines);
    assert!(shown.contains("\"initiator_id1\":\"...\""));
    for secret in ["initiator_sec", "target_secret"] {
        assert!(!shown.contains(secret) && !format!("{plan:?}{lines:?}").contains(secret));
    }
}

#[test]
fn the_window_takes_as_much_memory_as_it_needs_and_no_more_than_there_may_be() {
    let memory = |rest: &str| read(&target(rest)).0.limits.memory;
    assert_eq!(memory(""), 128 << 20, "64 commands have room in what there is");
    assert_eq!(memory("TargetSessionMaxCmd=2048\nImmediateData=No\n"), 128 << 20, "nothing comes unasked");
    assert_eq!(memory("TargetSessionMaxCmd=2048\n"), 256 << 20);
    assert_eq!(memory("TargetSessionMaxCmd=2048\nInitialR2T=No\n"), 1 << 30);
    let (_, lines) = read(&target("TargetSessionMaxCmd=2048\nInitialR2T=No\n"));
    assert_eq!(treated(&lines, "TargetSessionMaxCmd"), Treatment::Emulated);
}

#[test]
fn redirection() {
    let groups = "target:\nTargetName=iqn.2026-11.test:t\nTargetDevice=r,MEM\n\
                  PortalGroup=1@10.193.184.81:3260,[2,3]\nPortalGroup=2@10.193.184.85:3261\n\
                  PortalGroup=3@10.193.184.85:3262\n";
    for (mode, own) in [("No", 3), ("Yes", 1)] {
        let (plan, lines) = read(&format!("{groups}ShadowMode={mode}\n"));
        let target = &plan.ways.targets[0];
        assert_eq!((plan.portals.len(), target.portals.len()), (own, own), "ShadowMode={mode}");
        assert_eq!(target.sent_on[0].group, 1);
        let to: Vec<String> = target.sent_on[0].to.iter().map(ToString::to_string).collect();
        assert_eq!(to, ["10.193.184.85:3261", "10.193.184.85:3262"]);
        assert_eq!(treated(&lines, "PortalGroup=1"), Treatment::Emulated);
        assert_eq!(treated(&lines, "PortalGroup=2"), Treatment::Applied);
        assert_eq!(treated(&lines, "ShadowMode"), Treatment::Applied);
    }
}

#[test]
fn mistakes_have_a_place_and_a_way_out() {
    let mut wrong = Vec::new();
    let in_a_target = [
        (
            "  InitialR2t=Yes\n",
            "5:3: unknown key \"InitialR2t\" in \"target:\"; did you mean \"InitialR2T\"?",
        ),
        ("InitialR2T=yes\n", "5:12: InitialR2T takes \"Yes\" or \"No\", not \"yes\""),
        ("InitialR2T=No\nInitialR2T=No\n", "6:12: InitialR2T is already set at chiscsi.conf:5:12"),
        (
            "TargetSessionMaxCmd=2049\n",
            "5:21: TargetSessionMaxCmd takes a number from 1 to 2048, not \"2049\"",
        ),
        (
            "MaxRecvDataSegmentLength=511\n",
            "5:26: MaxRecvDataSegmentLength takes a number from 512 to 16777215",
        ),
        ("FirstBurstLength=65536\nMaxBurstLength=8192\n", "5:18: first_burst"),
        ("ErrorRecoveryLevel=2\n", "5:20: ErrorRecoveryLevel can only be \"0\", not \"2\""),
        ("HeaderDigest=CRC32\n", "5:14: HeaderDigest takes \"None\" or \"CRC32C\", not \"CRC32\""),
        ("AuthMethod=CHAP\n", "1:1: AuthMethod=CHAP needs the key \"Auth_CHAP_Initiator\""),
        (
            "Auth_CHAP_Policy=Mutual\nAuth_CHAP_Initiator=\"a\":\"secretsecret\"\n",
            "1:1: Auth_CHAP_Policy=Mutual needs the key \"Auth_CHAP_Target\"",
        ),
        (
            "Auth_CHAP_Initiator=a:secretsecret\n",
            "5:21: Auth_CHAP_Initiator is \"id\":\"secret\", both in double quotes",
        ),
        (
            "Auth_CHAP_Initiator=\"a\":\"secretsecret\"\nAuth_CHAP_Target=\"b\":\"secretsecret\"\n",
            "5:21: CHAP: the secrets of the two directions must differ",
        ),
        (
            "Auth_CHAP_Initiator=\"a\":\"secretsecret\"\nAuth_CHAP_Initiator=\"a\":\"secretsecret2\"\n",
            "6:21: CHAP: user \"a\" stands twice",
        ),
        ("Auth_CHAP_ChallengeLength=17\n", "5:27: Auth_CHAP_ChallengeLength takes a multiple of 16"),
        ("ACL=lun=ALL:R\n", "5:5: ACL needs iname=, sip= or dip="),
        ("TargetDevice=r,MEM\n", "5:14: TargetDevice: this target has two RAM disks named \"r\""),
        (
            "TargetDevice=/dev/x\nTargetDevice=/dev/x,RO\n",
            "6:14: TargetDevice /dev/x has other options at chiscsi.conf:5:14",
        ),
        ("TargetDevice=/dev/x\nTargetDevice=/dev/x\n", "6:14: volume \"x\" appears twice in target"),
        ("TargetDevice=/dev/x,NULLRW\n", "5:14: TargetDevice with NULLRW needs size="),
        (
            "PortalGroup=2@127.0.0.1\n",
            "5:13: PortalGroup 2 has the address 127.0.0.1:3260, which is of group 1",
        ),
        (
            "PortalGroup=2@127.0.0.2,[7]\n",
            "5:13: PortalGroup redirects to group 7, which this target does not have",
        ),
        (
            "PortalGroup=2@127.0.0.2,[3]\nPortalGroup=3@127.0.0.3,[2]\n",
            "5:13: PortalGroup redirects to group 3, which redirects itself",
        ),
        (
            "TargetAlias=a\nTargetName=iqn.2026-11.test:u\n",
            "6:12: TargetName is already set at chiscsi.conf:2:12",
        ),
    ];
    let whole = [
        ("", "1:1: there is no \"target:\" in it"),
        ("TargetName=a\n", "1:1: is before the first block"),
        ("global:\n\ntarget\n", "3:1: expected key=value"),
        (
            "global:\nglobal:\ntarget:\n",
            "2:1: there can be only one \"global:\"; the first is at chiscsi.conf:1:1",
        ),
        (
            "global:\niscsi_offload_mode=TOS\n",
            "2:20: iscsi_offload_mode takes \"AUTO\" or \"TOE\" or \"ULP\", not \"TOS\"",
        ),
        ("global:\niscsi_acl_order=ISNS\n", "2:17: iscsi_acl_order can only be \"CONFIG\" here"),
        ("global:\niscsi_target_vendor_id=TooLongName\n", "2:24: iscsi_target_vendor_id takes 1 to 8"),
        ("target:\n", "1:1: this target needs the key \"TargetName\""),
        (
            "target:\nTargetName=iqn.2026-11.test:t\nTargetDevice=r,MEM\n",
            "1:1: this target needs the key \"PortalGroup\"",
        ),
    ];
    let twice = target("") + &target("");
    let rows = in_a_target.map(|(rest, want)| (target(rest), want)).into_iter();
    let rows = rows.chain(whole.map(|(text, want)| (text.to_owned(), want)));
    for (text, want) in
        rows.chain([(twice, "6:12: target \"iqn.2026-11.test:t\" is already named at chiscsi.conf:2:12")])
    {
        let (got, want) = (errors(&text), format!("chiscsi.conf:{want}"));
        if !got.iter().any(|line| line.starts_with(&want)) {
            wrong.push(format!("{text}\n got {got:#?}\nwant {want}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn all_mistakes_are_said_at_once_and_no_secret() {
    let text = target("InitialR2T=yes\nACL=x\nAuth_CHAP_Initiator=\"a\":\"secret,secret\"\nNope=1\n");
    let got = errors(&text);
    assert_eq!(got.len(), 4, "{got:#?}");
    assert!(!got.join("").contains("secret,secret"));
}

#[test]
fn a_file_with_secrets_is_not_for_everybody_to_read() {
    let text = target("Auth_CHAP_Initiator=\"a\":\"secretsecret\"\n");
    let wrong = read_as(&text, true).unwrap_err();
    assert_eq!(wrong, ["chiscsi.conf:5:21: this file holds a secret and others can read it; chmod o= it"]);
    assert!(read_as(&target(""), true).is_ok(), "without one it may be");
    let short = target("Auth_CHAP_Initiator=\"a\":\"secret\"\n");
    let (_, _, warnings) = read_as(&short, false).unwrap();
    assert!(warnings[0].starts_with("chiscsi.conf:5:21: the secret has fewer than 12 bytes"), "{warnings:?}");
}

#[test]
fn hostile_files_end_with_a_word_and_not_otherwise() {
    let own = tempfile::tempdir().unwrap();
    let path = own.path().join("chiscsi.conf");
    let why = |path: &Path| {
        let (sink, mut draft) = (Sink::default(), Draft::default());
        read_file(path, &sink, &mut draft);
        sink.into_result(()).unwrap_err()[0].message.clone()
    };
    assert!(why(&path).starts_with("cannot be read"));
    assert_eq!(why(own.path()), "is not a regular file");
    std::fs::write(&path, [0xff, 0xfe, b'\n']).unwrap();
    assert!(why(&path).starts_with("cannot be read"), "it is no text");
    std::fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert_eq!(why(&path), "is larger than 1 MiB");
    // As many blocks as fit the file, and lines that never end.
    let many = "target:\n".repeat(100_000);
    assert!(errors(&many).iter().any(|line| line.contains("more than 1024 blocks")));
    let acl = format!("ACL=sip={}192.0.2.1\n", "192.0.2.1,".repeat(50_000));
    assert!(errors(&target(&acl))[0].contains("more than 256 in one list"));
    let groups = |count: u32| {
        let group = |n| format!("PortalGroup=2@10.{}.{}.1\n", n / 256, n % 256);
        errors(&target(&(0..count).map(group).collect::<String>()))
    };
    assert!(groups(30_000).iter().any(|line| line.contains("more than 1024 times")));
    assert!(groups(300).iter().any(|line| line.contains("more than 256 portals")));
    let acls = "ACL=sip=192.0.2.1\n".repeat(1025);
    assert!(errors(&target(&acls))[0].contains("more than 1024 times"));
    for text in [
        "target:\n=\n",
        "target:\n=x\n",
        "target:\nACL=\n",
        "target:\nTargetDevice=\0\n",
        "\u{feff}target:\n",
    ] {
        assert!(!errors(text).is_empty(), "{text:?}");
    }
}
