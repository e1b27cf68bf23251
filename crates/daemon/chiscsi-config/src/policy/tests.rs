//! Policies: the examples of cop(8), their effects, and rules with errors.

use endpoint::{AcceptedSocket, ListenerId};
use shard::Condition;

use super::*;

fn read_text(text: &str) -> (Vec<PlacementDraft>, Vec<LineReport>, Vec<String>) {
    let (sink, mut draft) = (Sink::default(), Draft::default());
    let lines = read_policy(&SourceText::new("cop.conf", text.to_owned()), &sink, &mut draft);
    let errors = sink.into_result(()).err().unwrap_or_default();
    (draft.placement, lines, errors.iter().map(ToString::to_string).collect())
}

fn by(peer: &str, local: &str) -> AcceptedSocket {
    AcceptedSocket {
        listener: ListenerId(0),
        peer: peer.parse().unwrap(),
        local: local.parse().unwrap(),
        cpu: None,
    }
}

/// Whether a filter holds for a connection.
fn holds(filter: &str, peer: &str, local: &str) -> bool {
    let (rules, _, errors) = read_text(&format!("{filter} => offload\n"));
    assert_eq!(errors, Vec::<String>::new(), "{filter}");
    rules.first().is_some_and(|rule| rule.when.matches(&by(peer, local)))
}

#[test]
fn filters_of_the_manual_choose_their_connections() {
    for (filter, peer, local, want) in [
        ("popen && dst port 5001", "10.0.0.1:9", "10.0.0.2:5001", true),
        ("popen && dst port 5001", "10.0.0.1:5001", "10.0.0.2:9", false),
        ("src host 102.50.50.1", "102.50.50.1:9", "10.0.0.2:3260", true),
        ("src host 102.50.50.1", "10.0.0.2:9", "102.50.50.1:3260", false),
        ("dst host 167.32.1.3", "10.0.0.2:9", "167.32.1.3:3260", true),
        ("host 68.3.127.238 or 68.3.127.239", "68.3.127.239:1", "10.0.0.1:1", true),
        ("host 68.3.127.238 or 68.3.127.239", "10.0.0.1:1", "68.3.127.238:1", true),
        ("host 68.3.127.238 or 68.3.127.239", "10.0.0.1:1", "68.3.127.237:1", false),
        ("dst net 168.192/16 or 121.101.2/24", "10.0.0.1:1", "121.101.2.9:1", true),
        ("dst net 168.192/16 or 121.101.2/24", "10.0.0.1:1", "121.101.3.9:1", false),
        ("src host 102.60.60.3 and dst net 10.10/16", "102.60.60.3:1", "10.10.9.9:1", true),
        ("src host 102.60.60.3 and dst net 10.10/16", "102.60.60.3:1", "10.11.9.9:1", false),
        ("src host 102.60.60.3 dst net 10.10/16", "102.60.60.3:1", "10.11.9.9:1", false),
        ("dst port 22 or 23", "10.0.0.1:1", "10.0.0.2:23", true),
        ("dst port http and dst net 10.4/16", "10.0.0.1:1", "10.4.0.2:80", true),
        ("src and dst port 80", "10.0.0.1:80", "10.0.0.2:80", true),
        ("src and dst port 80", "10.0.0.1:81", "10.0.0.2:80", false),
        ("src or dst port 80", "10.0.0.1:81", "10.0.0.2:80", true),
        ("vers 6", "[2001:db8::1]:1", "[2001:db8::2]:1", true),
        ("vers 6", "10.0.0.1:1", "10.0.0.2:1", false),
        ("src port & 0xfc00 = 0", "10.0.0.1:1023", "10.0.0.2:1", true),
        ("src port & 0xfc00 = 0", "10.0.0.1:1024", "10.0.0.2:1", false),
        ("src port >= 1024 and src port < 2048", "10.0.0.1:2047", "10.0.0.2:1", true),
        ("net 10.0.0.0 mask 8", "10.9.9.9:1", "11.0.0.1:1", true),
        ("src host != 10.0.0.1", "10.0.0.1:1", "10.0.0.2:1", false),
        ("not (src host 10.0.0.1 or dst port 3260)", "10.0.0.3:1", "10.0.0.2:3261", true),
        ("!!popen", "10.0.0.3:1", "10.0.0.2:3261", true),
        ("vers 4 ? src host 10.0.0.1 : src host ::1", "10.0.0.1:1", "10.0.0.2:1", true),
        ("vers 4 ? src host 10.0.0.1 : src host ::1", "[::1]:1", "[::1]:1", true),
        ("dest net 2001:db8::/32", "[::1]:1", "[2001:db8::9]:1", true),
        ("host 10.0.0.1 and 10.0.0.2", "10.0.0.1:1", "10.0.0.2:1", true),
        ("-", "10.0.0.1:1", "10.0.0.2:1", true),
        ("all", "10.0.0.1:1", "10.0.0.2:1", true),
        ("dst port iscsi-target", "10.0.0.1:1", "10.0.0.2:3260", true),
    ] {
        assert_eq!(holds(filter, peer, local), want, "{filter}: {peer} to {local}");
    }
}

#[test]
fn settings_come_to_placement_or_to_a_word_why_not() {
    let text = "# a comment\n\nsrc host 10.0.0.1 => offload bind 7 !ddp class 1 # behind it\n\
                dst port 3261 => offload bind cpu cong highspeed\nall => !offload\n";
    let (rules, lines, errors) = read_text(text);
    assert_eq!((rules.len(), errors.len()), (3, 0));
    assert_eq!((rules[0].nth, rules[0].bind), (Some(7), CoreChoice::Cpu));
    assert_eq!((rules[1].nth, rules[1].bind), (None, CoreChoice::Cpu));
    assert_eq!(rules[2].when, Condition::Always);
    let said: Vec<(usize, &str, Treatment)> =
        lines.iter().map(|line| (line.line, line.text.as_str(), line.treatment)).collect();
    assert_eq!(
        said,
        [
            (3, "src host 10.0.0.1 =>", Treatment::Applied),
            (3, "offload", Treatment::Meaningless),
            (3, "bind 7", Treatment::Emulated),
            (3, "!ddp", Treatment::Meaningless),
            (3, "class 1", Treatment::Meaningless),
            (4, "dst port 3261 =>", Treatment::Applied),
            (4, "offload", Treatment::Meaningless),
            (4, "bind cpu", Treatment::Emulated),
            (4, "cong highspeed", Treatment::Meaningless),
            (5, "all =>", Treatment::Applied),
            (5, "!offload", Treatment::Meaningless),
        ]
    );
}

#[test]
fn rules_that_fit_nothing_here_are_said_to() {
    for (filter, word) in [
        ("listen", "listening sockets"),
        ("listen and (src port http or nfs)", "listening sockets"),
        ("aopen && dst port 80", "listening sockets"),
        ("dst port nfs && dscp != 0 && popen", "the DSCP value"),
        ("dst net 168.192/16 and mark 12", "the mark"),
        ("vlan & 0xff == 7", "the VLAN tag"),
        ("tos 8", "the TOS value"),
    ] {
        let (rules, lines, errors) = read_text(&format!("{filter}=> offload class 3 !!!ddp\n"));
        assert_eq!((rules.len(), errors.len()), (0, 0), "{filter}");
        assert_eq!(lines[0].treatment, Treatment::Meaningless);
        assert!(lines[0].note.contains(word), "{filter}: {}", lines[0].note);
        assert!(lines[1..].iter().all(|line| line.treatment == Treatment::Unused), "{filter}");
    }
    let (rules, ..) = read_text("listen or src host 10.0.0.1 => bind random\n");
    assert_eq!(rules.len(), 1, "one part of it can still fit");
}

#[test]
fn mistakes_have_their_line_and_column() {
    let deep = format!("{}any{} => offload\n", "(".repeat(40), ")".repeat(40));
    let long = format!("any {} => offload\n", "or any ".repeat(400));
    for (text, want) in [
        ("", "cop.conf:1:1: there is no rule in it"),
        ("any offload\n", "cop.conf:1:1: expected \"filter => settings\""),
        ("any => offload => ddp\n", "cop.conf:1:16: a second \"=>\""),
        (" => offload\n", "cop.conf:1:2: expected a filter"),
        ("any => offlaod\n", "cop.conf:1:8: unknown setting \"offlaod\"; did you mean \"offload\"?"),
        ("any => bind\n", "cop.conf:1:12: \"bind\" needs a value"),
        ("any => bind 5000\n", "cop.conf:1:13: bind takes a queue's number, random or cpu, not \"5000\""),
        ("any => !bind random\n", "cop.conf:1:9: \"bind\" cannot be negated"),
        ("any => not\n", "cop.conf:1:11: expected a setting after \"not\""),
        ("any => class 16\n", "cop.conf:1:14: class takes a number from 0 to 15"),
        ("any => cong bbr\n", "cop.conf:1:13: unknown congestion algorithm \"bbr\""),
        ("\nsrc 10.0.0.1 => offload\n", "cop.conf:2:5: expected host, net or port after src and dst"),
        ("src host 10.0.0 => offload\n", "cop.conf:1:10: \"10.0.0\" is not an IP address"),
        ("src host < 10.0.0.1 => offload\n", "cop.conf:1:10: addresses can only be compared with == and !="),
        ("net 10.0.0.1/33 => offload\n", "cop.conf:1:5: \"10.0.0.1/33\" is not a network"),
        ("net 10.0.0.1 => offload\n", "cop.conf:1:5: \"10.0.0.1\" is not a network"),
        ("port 65536 => offload\n", "cop.conf:1:6: \"65536\" is not a number up to 65535"),
        ("port no-such-service-x => offload\n", "cop.conf:1:6: \"no-such-service-x\" is not a number"),
        ("(any => offload\n", "cop.conf:1:6: expected \")\""),
        ("any ) => offload\n", "cop.conf:1:5: \")\" is not expected here"),
        ("any ? all => offload\n", "cop.conf:1:11: expected \":\""),
        ("anny => offload\n", "cop.conf:1:1: \"anny\" is not a filter"),
        ("any and => offload\n", "cop.conf:1:9: expected a filter"),
        ("10.0.0.1 => offload\n", "cop.conf:1:1: \"10.0.0.1\" is not a filter"),
        ("src vers 4 => offload\n", "src and dst are allowed only before host, net and port"),
        ("any $ all => offload\n", "cop.conf:1:5: \"$\" has no meaning in a rule"),
        (deep.as_str(), "more than 32 levels"),
        (long.as_str(), "more than 512 words"),
    ] {
        let (_, _, errors) = read_text(text);
        assert!(
            errors.first().is_some_and(|line| line.contains(want)),
            "{text:.60}\n got {errors:?}\nwant {want}"
        );
    }
    let many = "any => offload\n".repeat(1025);
    assert!(read_text(&many).2[0].contains("more than 1024 rules"));
}
