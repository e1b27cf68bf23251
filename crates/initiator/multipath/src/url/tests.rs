//! Valid URLs, invalid ones, and their messages.

use super::*;
use iscsi::chap::Algorithm;
use std::time::Duration;

const DISK: &str = "iqn.2026-11.io.blockwire:disk";
const SUBSYSTEM: &str = "nqn.2026-11.io.blockwire:disk";

fn parse(text: &str) -> Url {
    Url::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> String {
    match Url::parse(text) {
        Ok(url) => panic!("{text} is taken as {url:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_generated_key_of_a_controller_that_proves_nothing_is_warned_of() {
    let warning = |options: &str| {
        Url::parse(&format!("nvme+tcp://h/nqn.2026-11.x:y/1{options}")).unwrap().warning().is_some()
    };
    assert!(warning("?secret_file=/s&concat=yes"));
    for calm in ["", "?secret_file=/s", "?secret_file=/s&concat=no", "?tls_key_file=/k"] {
        assert!(!warning(calm), "{calm}");
    }
    assert!(!warning("?secret_file=/s&mutual_secret_file=/m&concat=yes"));
    assert!(!warning("?secret_file=/s&mutual_secret_env=M&concat=yes"));
}

#[test]
fn a_path_may_say_where_it_leaves_this_machine() {
    for url in ["iscsi://h/iqn.2026-11.x:y/0", "nvme+tcp://h/nqn.2026-11.x:y/1"] {
        let parse = |option: &str| Url::parse(&format!("{url}?{option}"));
        let options = parse("host_traddr=192.0.2.7&host_iface=eth0.5").unwrap().options;
        assert_eq!(options.host_address, Some("192.0.2.7".parse().unwrap()));
        assert_eq!(options.host_interface.unwrap().as_str(), "eth0.5");
        for good in ["host_traddr=2001:db8::7", "host_traddr=[2001:db8::7]", "host_iface=abcdefghijklmno"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for wrong in [
            "host_traddr=",
            "host_traddr=eth0",
            "host_traddr=0.0.0.0",
            "host_traddr=224.0.0.1",
            "host_iface=",
            "host_iface=abcdefghijklmnop",
            "host_iface=a/b",
            "host_iface=..",
            "host_iface=a%20b",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

#[test]
fn plain_ones_are_read() {
    let url = parse(&format!("iscsi://10.0.0.1/{DISK}/3"));
    assert_eq!(url.protocol, Protocol::Iscsi);
    assert_eq!((url.port, url.machine), (3260, UrlHost::Address([10, 0, 0, 1].into())));
    assert_eq!(url.target, TargetSelector::Iscsi(IscsiName::parse(DISK).unwrap(), Some(3)));
    let url = parse(&format!("NVMe+TCP://store-7.example:4421/{SUBSYSTEM}/12"));
    assert_eq!((url.port, &url.machine), (4421, &UrlHost::Name("store-7.example".into())));
    assert_eq!(url.target, TargetSelector::Nvme(Nqn::parse(SUBSYSTEM).unwrap(), Some(12)));
    assert!(url.has_volume());
}

#[test]
fn addresses_of_six_stand_in_brackets() {
    let url = parse("iscsi://[fe80::1]:860/");
    assert_eq!((url.port, &url.machine), (860, &UrlHost::Address("fe80::1".parse().unwrap())));
    for text in ["nvme+tcp://[fe80::1%eth0]", "nvme+tcp://[fe80::1%25eth0]"] {
        assert_eq!(parse(text).machine, UrlHost::Name("fe80::1%eth0".into()));
    }
    for text in ["iscsi://fe80::1/", "iscsi://[fe80::1", "iscsi://[fe80::1]860", "iscsi://[10.0.0.1]"] {
        assert!(refused(text).contains("brackets"), "{text}");
    }
}

#[test]
fn without_a_target_it_is_discovery() {
    for (text, port) in [
        ("iscsi://h", 3260),
        ("iscsi://h/", 3260),
        ("nvme+tcp://h", 8009),
        ("nvme+tcp://h/nqn.2014-08.org.nvmexpress.discovery", 8009),
    ] {
        let url = parse(text);
        assert_eq!((&url.target, url.port), (&TargetSelector::Discovery, port), "{text}");
        assert!(!url.has_volume());
    }
    let url = parse(&format!("nvme+tcp://h/{SUBSYSTEM}"));
    assert_eq!((url.port, &url.target), (4420, &TargetSelector::Nvme(Nqn::parse(SUBSYSTEM).unwrap(), None)));
    assert_eq!(
        url.missing_volume_error().to_string(),
        "the namespace's number is missing; a right one: \
         nvme+tcp://10.0.0.1:4420/nqn.2026-11.io.blockwire:disk/1"
    );
}

#[test]
fn users_and_passwords_are_read_and_never_shown() {
    let url = parse(&format!("iscsi://iqn.2026-11.x:me%p%40ss%2fw%25rd@h/{DISK}/0"));
    let user = url.user.as_ref().unwrap();
    assert_eq!(user.name, "iqn.2026-11.x:me");
    assert_eq!(user.secret.as_ref().unwrap().expose(), b"p@ss/w%rd");
    // An @ of a password may stand as it is, since the last one counts.
    let odd = parse(&format!("iscsi://me%hunter2@hunter2@h/{DISK}/0"));
    assert_eq!(odd.user.as_ref().unwrap().secret.as_ref().unwrap().expose(), b"hunter2@hunter2");
    for url in [&url, &odd] {
        let shown = format!("{url:?} {url}");
        assert!(!shown.contains("p@ss") && !shown.contains("hunter2"), "{shown}");
    }
    for text in [
        "iscsi://me%hunter2/hunter2@h/x/0",
        "iscsi://me%hunter2%@h/x/0",
        "iscsi://me%hunter2@/x/0",
        "iscsi://me%hunter2@h:x/0",
        "iscsi://me%hunter2@h/hunter2/0",
        "iscsi://%hunter2@h/",
        "iscsi://me%hunter2@h/iqn.2026-11.x/0?secret_file=hunter2",
        "nvme+tcp://me%hunter2@h/",
        "http://me%hunter2@h/",
        "iscsi://me%hunter2hunter2",
    ] {
        let error = refused(text);
        assert!(!error.contains("hunter2"), "{text}: {error}");
    }
    for text in ["iscsi://me@h/", "iscsi://me%@h/"] {
        let error = refused(text);
        assert!(error.contains("has no secret: add ?secret_file=FILE"), "a user needs a secret: {error}");
    }
    assert!(refused("nvme+tcp://me@h/").contains("secret_file"));
}

#[test]
fn errors_name_the_part_and_show_a_right_one() {
    for (text, part) in [
        ("10.0.0.1", "the scheme in front of :// is missing; right ones: iscsi://"),
        ("nvme://h/x/1", "the scheme in front of :// is \"nvme\", not iscsi or nvme+tcp"),
        ("iscsi:///x/0", "the host is missing; a right one: iscsi://10.0.0.1:3260/"),
        ("iscsi://h:0/", "the port is no number from 1 to 65535"),
        ("iscsi://h:65536/", "the port is no number"),
        ("iscsi://h y/", "the host contains a character"),
        ("iscsi://h/disk/0", "the target's name is no iSCSI name"),
        ("nvme+tcp://h/iqn.2026-11.x/1", "the subsystem's name is no NQN"),
        ("nvme+tcp://h/nqn.2026-11.x%zz/1", "the subsystem's name contains a % without"),
        ("nvme+tcp://h/nqn.2026-11.x/0", "the namespace's number is no number from 1 to 4294967294"),
        ("iscsi://h/iqn.2026-11.x/16384", "the logical unit's number is no number from 0 to 16383"),
        ("iscsi://h/iqn.2026-11.x/0/1", "the logical unit's number"),
        ("iscsi://h/#x", "the URL contains a character"),
    ] {
        let error = refused(text);
        assert!(error.starts_with(part), "{text}: {error}");
        assert!(error.contains("a right one: ") || error.contains("right ones: "), "{error}");
    }
}

#[test]
fn options_are_typed() {
    let url = parse(&format!(
        "iscsi://me@h/{DISK}/0?digest=both&commands=64&secret_env=PW&chap=sha256+md5&connections=4&\
         immediate=no&first_burst=64K&max_burst=1M&keep_alive=off&command_timeout=90&connect_timeout=500ms&\
         loss_timeout=never&policy=round-robin&mutual_user=t&mutual_secret_file=%2Fetc%2Fs&ro=yes"
    ));
    let options = &url.options;
    assert_eq!(options.digests, Some(DigestOptions { header: true, data: true }));
    assert_eq!((options.commands, options.connections), (Some(64), Some(4)));
    assert_eq!(options.secret, Some(SecretSource::Environment("PW".into())));
    assert_eq!(options.mutual_secret, Some(SecretSource::File("/etc/s".into())));
    assert_eq!(options.chap, Some(vec![Algorithm::SHA256, Algorithm::MD5]));
    assert_eq!((options.first_burst, options.max_burst), (Some(65_536), Some(1 << 20)));
    assert_eq!((options.immediate, options.initial_r2t, options.read_only), (Some(false), None, Some(true)));
    assert_eq!(options.keep_alive, Some(Duration::ZERO));
    assert_eq!(options.command_timeout, Some(Duration::from_secs(90)));
    assert_eq!(options.connect_timeout, Some(Duration::from_millis(500)));
    assert_eq!(options.volume.loss_timeout, Some(Duration::MAX));
    assert_eq!(options.volume.policy, Some(PathPolicy::RoundRobin));
    let url = parse("nvme+tcp://h/?host_id=01234567-89ab-4cde-8f00-112233445566&queues=4&host_nqn=nqn.x");
    assert_eq!(url.options.host_id.unwrap().bytes()[..4], [0x01, 0x23, 0x45, 0x67]);
    assert_eq!((url.options.queues, url.options.host_nqn.unwrap().as_str()), (Some(4), "nqn.x"));
}

#[test]
fn numbers_that_are_negotiated_have_the_ranges_of_their_keys() {
    let of = |query: &str| parse(&format!("iscsi://h/{DISK}/0?{query}")).options;
    assert_eq!(of("max_outstanding_r2t=65535").max_outstanding_r2t, Some(65_535));
    assert_eq!((of("time2wait=0").time2wait, of("time2retain=1h").time2retain), (Some(0), Some(3600)));
    assert_eq!((of("protocol_level=0").protocol_level, of("time2wait=2m").time2wait), (Some(0), Some(120)));
    for (query, error) in [
        ("max_outstanding_r2t=0", "the option max_outstanding_r2t must be a number from 1 to 65535"),
        ("max_outstanding_r2t=65536", "the option max_outstanding_r2t must be a number from 1 to 65535"),
        ("time2wait=61m", "the option time2wait must be whole seconds, up to 1h"),
        ("time2retain=500ms", "the option time2retain must be whole seconds, up to 1h"),
        ("protocol_level=3", "the option protocol_level must be 0, 1 (RFC 7143) or 2 (RFC 7144)"),
        ("hpda=0", "the option hpda is of NVMe/TCP"),
    ] {
        let found = refused(&format!("iscsi://h/{DISK}/0?{query}"));
        assert!(found.starts_with(error), "{query}: {found}");
    }
    let of = |query: &str| parse(&format!("nvme+tcp://h/{SUBSYSTEM}/1?{query}")).options;
    let options = of("max_r2t=16&hpda=31&flow_control=yes");
    assert_eq!((options.max_r2t, options.hpda, options.flow_control), (Some(16), Some(31), Some(true)));
    for (query, error) in [
        ("max_r2t=0", "the option max_r2t must be a number from 1 to 16"),
        ("max_r2t=17", "the option max_r2t must be a number from 1 to 16"),
        ("hpda=32", "the option hpda must be a number from 0 to 31"),
        ("flow_control=2", "the option flow_control must be yes or no"),
        ("time2wait=2", "the option time2wait is of iSCSI"),
    ] {
        let found = refused(&format!("nvme+tcp://h/{SUBSYSTEM}/1?{query}"));
        assert!(found.starts_with(error), "{query}: {found}");
    }
}

/// Who looks for an option finds it in the documents, with its key as it is typed.
#[test]
fn every_option_is_documented() {
    let page = include_str!("../../../../../docs/initiator.md");
    for key in Options::keys() {
        assert!(page.contains(&format!("| `{key}` |")), "{key} is not in a table of docs/initiator.md");
    }
}

#[test]
fn wrong_options_are_told_with_the_nearest_known() {
    for (query, error) in [
        ("digets=both", "the option \"digets\" is not known; did you mean \"digest\"?"),
        ("zzz=1", "the option \"zzz\" is not known"),
        ("digest=crc", "the option digest must be none, header, data or both"),
        ("commands=0", "the option commands must be a number from 1 to 4096"),
        ("queues=2", "the option queues is of NVMe/TCP"),
        ("commands=1&commands=2", "the option commands is given twice, and not alike"),
        ("secret_file=a&secret_env=b", "the option secret_env says the same as secret_file: give one"),
        ("secret_file=a", "the option secret_file needs a user before @"),
        ("first_burst=1M&max_burst=64K", "the option first_burst must be at most max_burst"),
        ("loss_timeout=5x", "the option loss_timeout must be a time, as 500ms or 10s, or never"),
        ("reconnect_delay=0", "the option reconnect_delay must be a time above zero"),
    ] {
        let found = refused(&format!("iscsi://h/{DISK}/0?{query}"));
        assert!(found.starts_with(error), "{query}: {found}");
    }
    assert!(refused("nvme+tcp://h/?initiator=x").starts_with("the option initiator is of iSCSI"));
    for key in Options::keys() {
        let error = refused(&format!("iscsi://h/?{key}x=1"));
        assert!(error.contains("is not known"), "{error}");
    }
}

#[test]
fn urls_of_one_volume_are_joined() {
    let text =
        format!("iscsi://a/{DISK}/0?policy=round-robin,nvme+tcp://b/{SUBSYSTEM}/1,iscsi://[::1]/{DISK}/0");
    let urls = Url::parse_joined(&text).unwrap();
    assert_eq!(urls.len(), 3);
    assert!(urls.iter().all(|url| url.options.volume.policy == Some(PathPolicy::RoundRobin)));
    let clash = format!("iscsi://a/{DISK}/0?fast_fail=1,iscsi://b/{DISK}/0?fast_fail=2");
    let error = Url::parse_joined(&clash).unwrap_err().to_string();
    assert!(error.contains("fast_fail is given twice"), "{error}");
    assert!(Url::parse_joined("").is_err());
    let many = vec!["iscsi://a/iqn.2026-11.x/0"; URLS_MAX + 1].join(",");
    assert!(Url::parse_joined(&many).unwrap_err().to_string().contains("more than 32 URLs"));
}

#[test]
fn what_is_shown_is_read_again() {
    for text in [
        &format!("iscsi://h:860/{DISK}/7"),
        &format!("nvme+tcp://[::1]:4420/{SUBSYSTEM}/1"),
        "nvme+tcp://h:4420/nqn.2026-11.x:a%2Fb%2C%25/1",
        "iscsi://[fe80::1%eth0]:3260",
    ] {
        let url = parse(text);
        assert_eq!(url.to_string(), *text);
        assert_eq!(parse(&url.to_string()), url);
    }
}

#[test]
fn a_volume_that_any_of_its_urls_calls_read_only_is_not_written() {
    let joined = |options: [&str; 2]| {
        let [a, b] = options;
        Url::parse_joined(&format!("iscsi://10.0.0.1/iqn.2026-11.x:d/0{a},nvme+tcp://10.0.1.1/nqn.x:d/1{b}"))
    };
    for options in [["?ro=yes", ""], ["", "?ro=yes"], ["?ro=yes", "?ro=yes"]] {
        let urls = joined(options).unwrap();
        assert!(
            urls.iter().all(|url| crate::VolumeSettings::from_options(&url.options).read_only),
            "{options:?}"
        );
    }
    assert!(joined(["?ro=yes", "?ro=no"]).is_err(), "the two contradict each other");
    assert!(!crate::VolumeSettings::from_options(&joined(["", "?ro=no"]).unwrap()[0].options).read_only);
}

/// No text makes it panic, and what is taken is shown in a form that is taken.
#[test]
fn any_text_is_read_or_refused() {
    let pieces = "iscsi:// nvme+tcp:// / ? & = , @ % %2 %41 [ ] : ::1 h 0 1 \
        iqn.2026-11.x nqn.x policy ro yes é \0 # . -";
    let pieces: Vec<&str> = pieces.split(' ').collect();
    let mut state = 1u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut taken = 0;
    for _ in 0..50_000 {
        let mut text = String::from(pieces[next(2)]);
        (0..next(9)).for_each(|_| text.push_str(pieces[next(pieces.len())]));
        if let Ok(mut url) = Url::parse(&text) {
            // Its password is not shown, and a name without one is refused.
            url.user = None;
            let again = parse(&url.to_string());
            assert_eq!(
                (again.target, again.machine, again.port),
                (url.target, url.machine, url.port),
                "{text}"
            );
            taken += 1;
        }
        let _ = Url::parse_joined(&text).map_err(|error| error.to_string());
    }
    assert!(taken > 200, "{taken}");
}
