//! Files of Chelsio's target, served: the targets match the files, and the vendor's options work.

use std::{
    fs,
    net::SocketAddr,
    process::Output,
    sync::atomic::{AtomicU16, Ordering},
};

use iscsi::{
    initiator::{Credentials, LoginConfig, LoginFailure},
    negotiate::{Digest, NegotiationLimits},
    wire::{Isid, LoginStatus},
};

use crate::{
    daemon::{Daemon, Place},
    initiator::{HOST, Initiator, proof, wanted},
};

const PAPER: &str = include_str!("../../../daemon/chiscsi-config/tests/papers/t5-chiscsi.conf");
const TARGET: &str = "iqn.2004-05.com.chelsio.target0";

/// The paper's file but for its address and device, which other machines have not.
fn papers_file(place: &Place) -> String {
    let device = place.path("ssdb1");
    fs::File::create(&device).unwrap().set_len(64 << 20).unwrap();
    let text = PAPER.replace("102.11.11.32:3260", "127.0.0.1:0");
    place.write("chiscsi.conf", &text.replace("/dev/ssdb1", &device.to_string_lossy()))
}

fn serve(place: &Place, text: &str) -> Daemon {
    let path = place.write("chiscsi.conf", text);
    place.serve_as(&["--chiscsi", &path], &[])
}

/// A login that offers more of everything than the file allows.
fn greedy(header: Vec<Digest>, data: Vec<Digest>) -> iscsi::initiator::LoginConfig {
    let limits = NegotiationLimits {
        header_digest: header,
        data_digest: data,
        mrdsl: 1 << 20,
        max_connections: 16,
        initial_r2t: false,
        immediate_data: true,
        max_burst: 8 << 20,
        first_burst: 1 << 20,
        max_outstanding_r2t: 16,
        ..NegotiationLimits::default()
    };
    LoginConfig { limits, ..wanted(HOST, Some(TARGET), None) }
}

#[test]
fn what_is_negotiated_is_what_the_papers_file_says() {
    let place = Place::new();
    let daemon = place.serve_as(&["--chiscsi", &papers_file(&place)], &[]);
    assert_eq!(
        (daemon.addresses.len(), daemon.nvme),
        (1, None),
        "it listens where the file says and nowhere else"
    );
    for (offer, header, data) in [
        (
            (vec![Digest::None, Digest::Crc32c], vec![Digest::Crc32c, Digest::None]),
            Digest::None,
            Digest::Crc32c,
        ),
        ((vec![Digest::Crc32c], vec![Digest::None]), Digest::Crc32c, Digest::None),
        ((vec![Digest::None], vec![Digest::None]), Digest::None, Digest::None),
    ] {
        let session = Initiator::connect(daemon.at, greedy(offer.0, offer.1)).unwrap();
        let params = &session.logged.params;
        assert_eq!((params.header_digest, params.data_digest), (header, data), "HeaderDigest, DataDigest");
        assert_eq!(params.target_mrdsl, 8192, "MaxRecvDataSegmentLength");
        assert_eq!((params.immediate_data, params.initial_r2t), (true, true), "ImmediateData, InitialR2T");
        assert_eq!((params.max_outstanding_r2t, params.max_connections), (1, 4));
        assert_eq!((params.first_burst, params.max_burst), (65_536, 262_144), "the format's own defaults");
        assert_eq!(session.logged.portal_group_tag, Some(1), "PortalGroup");
    }
    let mut lookup = Initiator::connect(daemon.at, wanted(HOST, None, None)).unwrap();
    assert_eq!(lookup.send_targets("All"), format!("TargetName={TARGET}\0TargetAddress={},1\0", daemon.at));
    // Our own tools see the same.
    let url = format!("iscsi://{}/{TARGET}/0", daemon.at);
    let out =
        std::process::Command::new(env!("CARGO_BIN_EXE_blockwire")).args(["info", &url, "--json"]).output();
    let info: serde_json::Value = serde_json::from_slice(&out.unwrap().stdout).unwrap();
    let seen = &info["paths"][0]["negotiated"];
    for (key, value) in [
        ("MaxRecvDataSegmentLength (target)", "8192"),
        ("InitialR2T", "Yes"),
        ("ImmediateData", "Yes"),
        ("MaxOutstandingR2T", "1"),
        ("TargetPortalGroupTag", "1"),
        ("FirstBurstLength", "65536"),
        ("MaxBurstLength", "262144"),
    ] {
        assert_eq!(seen[key], value, "{key}");
    }
    assert_eq!(daemon.ask(&format!("target show {TARGET}")).lines().nth(1), Some("alias     iscsitarget0"));
}

#[test]
fn a_session_may_have_2048_commands_in_work() {
    let place = Place::new();
    let daemon = place.serve_as(&["--chiscsi", &papers_file(&place)], &[]);
    let mut session = Initiator::ready(daemon.at, TARGET);
    assert_eq!(session.fill_window(0, 3000).unwrap(), 2048, "TargetSessionMaxCmd, and not one more");
    let listed = daemon.ask_json("connection list");
    assert_eq!(listed[0]["negotiated"]["commands"], 2048, "{listed}");
    assert_eq!(daemon.ask_json("session list")[0]["commands"], 2048);
}

fn login(
    at: SocketAddr,
    name: &str,
    target: Option<&str>,
    credentials: Option<Credentials>,
) -> Result<(), LoginFailure> {
    // The end of a session may be recorded after its logout response, and an ISID belongs to the user of its
    // session until then: each login has an ISID of its own.
    static QUALIFIER: AtomicU16 = AtomicU16::new(1);
    let isid = Isid::random([1, 2, 3], QUALIFIER.fetch_add(1, Ordering::Relaxed));
    let login = LoginConfig { isid, ..wanted(name, target, credentials) };
    Initiator::connect(at, login).map(|session| session.log_out().unwrap())
}

const DENIED: Result<(), LoginFailure> = Err(LoginFailure::Refused(LoginStatus::AUTHENTICATION_FAILURE));

#[test]
fn chap_one_way_and_mutual_as_the_file_has_them() {
    let ids = "Auth_CHAP_Target=\"target_id1\":\"target_secret1\"\n\
               Auth_CHAP_Initiator=\"initiator_id1\":\"initiator_sec1\"\n\
               Auth_CHAP_Initiator=\"initiator_id2\":\"initiator_sec2\"\n";
    let target = |name: &str, rest: &str| {
        format!(
            "target:\nTargetName=iqn.2026-11.test:{name}\nTargetDevice=r,MEM\nPortalGroup=1@127.0.0.1:0\n{ids}{rest}\n"
        )
    };
    let look_ids = "global:\nDISC_AuthMethod=CHAP\nDISC_Auth_CHAP_Policy=Mutual\n\
         DISC_Auth_CHAP_Initiator=\"look_id1\":\"look_secret1\"\nDISC_Auth_CHAP_Target=\"self_id1\":\"self_secret11\"\n";
    // One daemon for each: after five wrong secrets a source has to wait.
    let served = |name: &str, rest: &str| {
        let place = Place::new();
        let daemon = serve(&place, &(look_ids.to_owned() + &target(name, rest)));
        (place, daemon)
    };
    let oneway = served("oneway", "AuthMethod=CHAP\nAuth_CHAP_Policy=Oneway");
    let mutual = served("mutual", "AuthMethod=CHAP\nAuth_CHAP_Policy=Mutual");
    let free = served("free", "AuthMethod=None,CHAP\nAuth_CHAP_Policy=Mutual");
    let none = served("none", "AuthMethod=None");
    let to = |name: &str, credentials| {
        let at = match name {
            "oneway" => &oneway,
            "mutual" => &mutual,
            "free" => &free,
            _ => &none,
        };
        login(at.1.at, HOST, Some(&format!("iqn.2026-11.test:{name}")), credentials)
    };
    let one = |secret| proof("initiator_id1", secret, None);
    let both = |secret, theirs| proof("initiator_id1", secret, Some(("target_id1", theirs)));
    let (own, theirs, wrong) = ("initiator_sec1", "target_secret1", "a wrong secret");
    assert_eq!(to("oneway", one(own)), Ok(()));
    assert_eq!(to("oneway", both(own, theirs)), Ok(()), "who wants more than one way has it");
    assert_eq!(to("oneway", proof("initiator_id2", "initiator_sec2", None)), Ok(()));
    assert_eq!(to("oneway", one(wrong)), DENIED);
    assert_eq!(to("oneway", None), Err(LoginFailure::CredentialsMissing));
    assert_eq!(to("mutual", both(own, theirs)), Ok(()));
    assert_eq!(to("mutual", one(own)), DENIED, "the right secret, but one way");
    assert_eq!(to("mutual", both(wrong, theirs)), DENIED);
    assert_eq!(
        to("mutual", both(own, wrong)),
        Err(LoginFailure::Authentication),
        "we are not who was expected"
    );
    assert_eq!(to("free", None), Ok(()));
    assert_eq!(to("free", both(own, theirs)), Ok(()));
    assert_eq!(to("free", one(own)), DENIED);
    assert_eq!(to("none", None), Ok(()));
    let daemon = &none.1;
    let look = |credentials| login(daemon.at, HOST, None, credentials);
    assert_eq!(look(proof("look_id1", "look_secret1", Some(("self_id1", "self_secret11")))), Ok(()));
    assert_eq!(look(proof("look_id1", "look_secret1", None)), DENIED);
    assert_eq!(look(None), Err(LoginFailure::CredentialsMissing));
    let said = [&oneway, &mutual, &free, &none]
        .map(|(_, daemon)| daemon.log() + &daemon.ask("iscsictl --json") + &daemon.ask("iscsictl -c --json"));
    let said = said.concat();
    for secret in [own, theirs, wrong, "look_secret1", "self_secret11", "initiator_sec2"] {
        assert!(!said.contains(secret));
    }
}

#[test]
fn access_lists_by_name_by_source_by_address_and_by_logical_unit() {
    let place = Place::new();
    let daemon = serve(
        &place,
        "target:\nTargetName=iqn.2026-11.test:t\n\
         TargetDevice=r0,MEM\nTargetDevice=r1,MEM\nTargetDevice=r2,MEM,RO\n\
         PortalGroup=1@127.0.0.1:0\nPortalGroup=2@[::1]:0\nACL_Enable=Yes\n\
         ACL=iname=iqn.2026-11.test:reader;lun=ALL:R\n\
         ACL=iname=iqn.2026-11.test:some,iqn.2026-11.test:more;lun=0:R,1:RW\n\
         ACL=iname=iqn.2026-11.test:near;dip=::1\n\
         ACL=sip=::1;lun=1~2:RW\n",
    );
    let [four, six] = daemon.addresses[..] else { panic!("{:?}", daemon.addresses) };
    let open = |at, name: &str| {
        Initiator::connect(at, wanted(&format!("iqn.2026-11.test:{name}"), Some("iqn.2026-11.test:t"), None))
    };
    let unauthorized = LoginFailure::Refused(LoginStatus::AUTHORIZATION_FAILURE);
    let block = [0xa5; 512];
    // What each logical unit answers to a write: done, write-protected, or not there.
    let writes = |at, name: &str| {
        let mut session = open(at, name).unwrap();
        (0..3)
            .map(|lun| {
                let ended = (0..4).map(|_| session.write(lun, 0, &block).unwrap());
                let ended =
                    ended.into_iter().find(|ended| ended.sense.is_none_or(|sense| sense.0 != 6)).unwrap();
                match ended.sense {
                    None => "done",
                    Some((7, 0x27, _)) => "protected",
                    Some((5, 0x25, _)) => "absent",
                    other => panic!("{other:?}"),
                }
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(writes(four, "reader"), ["protected"; 3]);
    assert_eq!(writes(four, "some"), ["protected", "done", "absent"]);
    assert_eq!(writes(four, "more"), ["protected", "done", "absent"]);
    assert_eq!(writes(six, "near"), ["done", "done", "protected"], "RO of a device comes before an ACL");
    assert_eq!(open(four, "near").err(), Some(unauthorized.clone()), "by the other address");
    assert_eq!(writes(six, "stranger"), ["absent", "done", "protected"], "by where it comes from");
    assert_eq!(open(four, "stranger").err(), Some(unauthorized));
    // Discovery tells nobody of what it may not reach.
    let mut lookup = Initiator::connect(four, wanted("iqn.2026-11.test:stranger", None, None)).unwrap();
    assert_eq!(lookup.send_targets("All"), "");
    let _session = open(four, "some").unwrap();
    let listed = daemon.ask_json("session list");
    let mut known = listed.as_array().unwrap().iter();
    let host = known.find(|one| one["initiator"] == "iqn.2026-11.test:some").map(|one| &one["host"]);
    assert_eq!(host, Some(&"ACL of line 10".into()));
}

#[test]
fn groups_of_one_tag_stay_with_their_target_and_redirections_lead_on() {
    let place = Place::new();
    let daemon = serve(
        &place,
        "target:\nTargetName=iqn.2026-11.test:a\nTargetDevice=r,MEM\nPortalGroup=1@127.0.0.1:0\n\
         target:\nTargetName=iqn.2026-11.test:b\nTargetDevice=r,MEM\nPortalGroup=1@127.0.0.2:0\n\
         target:\nTargetName=iqn.2026-11.test:c\nTargetDevice=r,MEM\nShadowMode=Yes\n\
         PortalGroup=3@127.0.0.3:0,[4]\nPortalGroup=4@192.0.2.9:3261\n",
    );
    let [a, b, c] = daemon.addresses[..] else { panic!("{:?}", daemon.addresses) };
    let to = |at, name: &str| login(at, HOST, Some(&format!("iqn.2026-11.test:{name}")), None);
    let nowhere = Err(LoginFailure::Refused(LoginStatus::TARGET_NOT_FOUND));
    assert_eq!((to(a, "a"), to(b, "b")), (Ok(()), Ok(())));
    assert_eq!((to(a, "b"), to(b, "a")), (nowhere.clone(), nowhere));
    match to(c, "c") {
        Err(LoginFailure::Moved(LoginStatus::MOVED_TEMPORARILY, address)) => {
            assert_eq!(address.without_portal_group_tag().to_string(), "192.0.2.9:3261");
        }
        other => panic!("{other:?}"),
    }
    let mut lookup = Initiator::connect(a, wanted(HOST, None, None)).unwrap();
    let told = lookup.send_targets("iqn.2026-11.test:b");
    assert_eq!(told, format!("TargetName=iqn.2026-11.test:b\0TargetAddress={b},1\0"));
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn targets_are_stopped_started_and_reloaded_by_the_vendors_options() {
    let place = Place::new();
    let path = papers_file(&place);
    let daemon = place.serve_as(&["--chiscsi", &path], &[]);
    let mut session = Initiator::ready(daemon.at, TARGET);
    let listed = daemon.ask(&format!("iscsictl -r target={TARGET}"));
    assert!(listed.contains(&format!("HANDLE=0x0001 Initiator={HOST}")), "{listed}");
    let others = daemon.ask(&format!("iscsictl -r target={TARGET} -k initiator=iqn.2026-11.test:x"));
    assert!(others.ends_with("has no sessions\n"));
    // Stop: who is there is asked to go, and nobody comes.
    assert_eq!(daemon.ask("iscsictl -s target=ALL"), format!("{TARGET}: stopped\n"));
    assert_eq!(session.wait_told().unwrap(), 1, "asked to log out");
    session.log_out().unwrap();
    let again = || login(daemon.at, HOST, Some(TARGET), None);
    assert_eq!(again(), Err(LoginFailure::Refused(LoginStatus::TARGET_NOT_FOUND)));
    assert!(daemon.ask("target list").contains("stopped"));
    assert_eq!(daemon.ask(&format!("iscsictl -f {path} -S target=ALL")), format!("{TARGET}: started\n"));
    assert_eq!(again(), Ok(()));
    // Reload: what changed holds for new sessions.
    let before = Initiator::ready(daemon.at, TARGET);
    let text = fs::read_to_string(&path).unwrap();
    place.write(
        "chiscsi.conf",
        &text.replace("MaxConnections=4", "MaxConnections=2").replace("=8192", "=16384"),
    );
    assert_eq!(daemon.ask("iscsictl -S"), format!("{TARGET}: reloaded\n"));
    let after = Initiator::connect(daemon.at, greedy(vec![Digest::None], vec![Digest::None])).unwrap();
    assert_eq!((after.logged.params.max_connections, after.logged.params.target_mrdsl), (2, 16_384));
    drop(after);
    drop(before);
    let shown = daemon.ask(&format!("iscsictl -c target={TARGET} -k MaxConnections"));
    assert_eq!(shown, "target:\n\tMaxConnections=2\n");
    assert!(
        daemon.ask("iscsictl -c").lines().all(|line| !line.contains("MaxConnections")),
        "of all in short"
    );
    // What cannot be changed, or cannot be read, changes nothing.
    place.write("chiscsi.conf", &text.replace("TargetDevice=", "TargetDevice=r,MEM\nTargetDevice="));
    let out = daemon.run("iscsictl -S target=ALL");
    assert!(
        out.status.code() == Some(1) && said(&out).contains("a device (TargetDevice) changed"),
        "{}",
        said(&out)
    );
    place.write("chiscsi.conf", "target:\nTargetNam=x\n");
    let out = daemon.run("iscsictl -S target=ALL");
    assert_eq!(out.status.code(), Some(2));
    assert!(said(&out).contains("chiscsi.conf:2:1: unknown key \"TargetNam\""), "{}", said(&out));
    assert_eq!(again(), Ok(()));
    for (line, exit, word) in [
        ("iscsictl -s", 2, "-s needs target=NAME or target=ALL"),
        ("iscsictl -s target=iqn.x:nobody", 21, "there is no target"),
        ("iscsictl -r target=ALL", 2, "-r needs the name of one target"),
        ("iscsictl -F", 2, "-F is not implemented"),
        ("iscsictl -G iscsi_offload_mode=AUTO", 2, "-G is not implemented"),
        ("iscsictl -W", 2, "-W is not implemented"),
        ("iscsictl -f /nowhere -S target=ALL", 2, "the daemon was not started with /nowhere"),
        ("iscsictl -D xyz", 2, "hexadecimal"),
        ("iscsictl -D 0x777", 21, "there is no iSCSI session 0x777"),
        ("iscsictl -S -s target=ALL", 2, "cannot be used with"),
    ] {
        let out = daemon.run(line);
        assert_eq!(out.status.code(), Some(exit), "{line}: {}", said(&out));
        assert!(said(&out).contains(word), "{line}: {}", said(&out));
    }
}

/// 32 jobs of 64 I/Os are more than a volume of the initiator takes at once: the rest waits.
#[test]
fn fios_job_of_the_paper_runs_on_a_volume() {
    let place = Place::new();
    let text = PAPER.replace("102.11.11.32:3260", "127.0.0.1:0").replace("/dev/ssdb1", "r,MEM,size=1024MB");
    let daemon = serve(&place, &text);
    let job = include_str!("../../../daemon/chiscsi-config/tests/papers/t5-random-read.fio")
        .replace("runtime=60", "runtime=1");
    let map = format!("/dev/sdb=iscsi://{}/{TARGET}/0", daemon.at);
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_blockwire"))
        .args(["bench", "--json", "--job", &place.write("vm.fio", &job), "--map", &map])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", said(&out));
    let shown: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let job = &shown["jobs"][0];
    assert_eq!(
        (&job["name"], &job["in_flight"], &job["errors"]),
        (&"random_read_4k".into(), &2048.into(), &0.into())
    );
    assert!(job["read"]["ios"].as_u64().unwrap() > 2048, "{job}");
}

#[test]
fn a_session_is_dropped_by_its_handle() {
    let place = Place::new();
    let daemon = place.serve_as(&["--chiscsi", &papers_file(&place)], &[]);
    let mut session = Initiator::ready(daemon.at, TARGET);
    let listed = daemon.ask(&format!("iscsictl -r target={TARGET}"));
    let handle = listed.split("HANDLE=").nth(1).unwrap().split(' ').next().unwrap();
    daemon.ask(&format!("iscsictl -D {handle}"));
    assert!(session.wait_gone());
    assert_eq!(login(daemon.at, HOST, Some(TARGET), None), Ok(()), "it may come back");
}

#[test]
fn each_line_is_reported_at_the_start_and_when_asked_for() {
    let place = Place::new();
    let policy = place.write("cop.conf", "src host ::1 => offload bind 1\nany => offload ddp bind random\n");
    let path = place.write(
        "chiscsi.conf",
        "global:\niscsi_offload_mode=ULP\ntarget:\nTargetName=iqn.2026-11.test:t\nTargetDevice=r,MEM\n\
         PortalGroup=1@127.0.0.1:0,[::1]:0\n",
    );
    let daemon = place.serve_as(&["--chiscsi", &path, "--policy", &policy], &[]);
    let lines = daemon.ask("iscsictl");
    assert!(daemon.log().contains(&lines), "{lines}\n{}", daemon.log());
    for (text, word) in [
        ("iscsi_offload_mode=ULP", "meaningless"),
        ("TargetDevice=r,MEM", "applied"),
        ("src host ::1 =>", "applied"),
        ("bind 1", "emulated"),
        ("ddp", "meaningless"),
        ("bind random", "applied"),
    ] {
        assert!(lines.lines().any(|line| line.contains(text) && line.contains(word)), "{text}: {lines}");
    }
    assert!(
        daemon.ask("iscsictl -g").contains("iscsi_offload_mode")
            && !daemon.ask("iscsictl -g").contains("bind")
    );
    let json = daemon.ask_json("iscsictl");
    assert_eq!((&json[0]["line"], &json[0]["treatment"]), (&2.into(), &"meaningless".into()));
    // The rules place connections.
    for (at, rule) in daemon
        .addresses
        .clone()
        .into_iter()
        .zip(["rule 2: cores all, random", "rule 1: cores number 1 of all"])
    {
        let session = Initiator::ready(at, "iqn.2026-11.test:t");
        let placed = daemon.ask_json("connection list")[0]["placement"].to_string();
        assert!(placed.contains(rule), "{at}: {placed}");
        session.log_out().unwrap();
        let gone = (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            daemon.ask_json("connection list").as_array().unwrap().is_empty()
        });
        assert!(gone);
    }
    // Without such files there is nothing to report.
    let other = Place::new();
    let daemon = other.serve("[[volume]]\nname = \"a\"\nsource = \"ram:1M\"\n", &[]);
    assert_eq!(daemon.run("iscsictl").status.code(), Some(21));
    assert_eq!(
        daemon.ask("iscsictl -s target=iqn.2026-11.io.blockwire:a"),
        "iqn.2026-11.io.blockwire:a: stopped\n"
    );
    assert_eq!(daemon.ask("iscsictl -S target=ALL"), "iqn.2026-11.io.blockwire:a: started\n");
}

#[test]
fn wrong_files_are_refused_with_file_and_line() {
    let place = Place::new();
    let path = place
        .write("chiscsi.conf", "target:\nTargetName=iqn.2026-11.test:t\nInitialR2t=Yes\nPortalGroup=1@x\n");
    let (exit, said) = place.refused(&["--chiscsi", &path]);
    assert_eq!(exit, Some(2));
    assert!(said.contains("chiscsi.conf:3:1: unknown key \"InitialR2t\""), "{said}");
    assert!(said.contains("chiscsi.conf:4:13: PortalGroup is TAG@ADDRESS"), "{said}");
    let policy = place.write("cop.conf", "any => offlaod\n");
    let (exit, said) = place.refused(&["--policy", &policy]);
    assert_eq!(exit, Some(2));
    assert!(said.contains("cop.conf:1:8: unknown setting \"offlaod\"; did you mean \"offload\"?"), "{said}");
    let (exit, said) = place.refused(&["--chiscsi", &path, "--config", &path]);
    assert!(exit == Some(2) && said.contains("cannot be used with"), "{said}");
    let open = place.write("open.conf", PAPER);
    let (exit, said) = place.refused(&["--chiscsi", &open]);
    assert_eq!(exit, Some(2));
    assert!(
        said.contains("open.conf:21:13: portal 102.11.11.32:3260 is reachable from other machines"),
        "{said}"
    );
}
