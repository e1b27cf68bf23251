//! Every verb of the command line: which ones write, and which test shows that a refused one has changed
//! nothing.

use std::fs;

use super::{MIB, pattern};
use crate::daemon::Place;

/// Verbs that write, and the test that one that is refused has changed nothing.
const WRITING: &[(&str, &str)] = &[
    ("serve", "what_cannot_be_served_is_neither_made_nor_changed"),
    ("volume create", "a_volume_verb_that_is_refused_changes_nothing"),
    ("volume delete", "a_volume_verb_that_is_refused_changes_nothing"),
    ("volume retry", "a_volume_verb_that_is_refused_changes_nothing"),
    ("volume set", "a_volume_verb_that_is_refused_changes_nothing"),
    ("volume snapshot", "a_volume_verb_that_is_refused_changes_nothing"),
    ("volume clone", "a_volume_verb_that_is_refused_changes_nothing"),
    ("volume resize", "a_volume_verb_that_is_refused_changes_nothing"),
    ("host key", "load_that_is_refused_writes_nothing"),
    ("import", "load_that_is_refused_writes_nothing"),
    ("key derive", "load_that_is_refused_writes_nothing"),
    ("key generate", "load_that_is_refused_writes_nothing"),
    ("path set", "a_path_that_cannot_be_set_stays_as_it_is"),
    ("read", "a_read_that_is_refused_leaves_its_file_alone"),
    ("write", "a_write_that_is_refused_leaves_its_volume_alone"),
    ("copy", "a_copy_that_is_refused_changes_nothing"),
    ("reserve", "a_reservation_that_is_refused_stands_as_it_did"),
    ("attach", "an_attachment_that_is_refused_changes_nothing"),
    ("detach", "an_attachment_that_is_refused_changes_nothing"),
    ("bench", "load_that_is_refused_writes_nothing"),
    ("eval run", "an_evaluation_that_is_refused_changes_nothing"),
    ("eval report", "an_evaluation_that_is_refused_changes_nothing"),
    ("eval export", "an_evaluation_that_is_refused_changes_nothing"),
    ("eval import", "an_evaluation_that_is_refused_changes_nothing"),
    ("iscsictl", "an_option_of_iscsictl_that_is_refused_changes_nothing"),
    ("scsi", "a_raw_command_that_is_refused_leaves_its_volume_alone"),
    ("nvme admin-passthru", "a_raw_command_that_is_refused_leaves_its_volume_alone"),
    ("nvme io-passthru", "a_raw_command_that_is_refused_leaves_its_volume_alone"),
    ("node add", "a_node_that_is_refused_stays_as_it_was"),
    ("node discover", "a_node_that_is_refused_stays_as_it_was"),
    ("node remove", "a_node_that_is_refused_stays_as_it_was"),
    ("node set", "a_node_that_is_refused_stays_as_it_was"),
    ("connect-all", "a_node_that_is_refused_stays_as_it_was"),
    ("host block", "a_host_that_is_refused_is_blocked_nowhere"),
    ("host unblock", "a_host_that_is_refused_is_blocked_nowhere"),
    ("gateway drain", "a_gateway_verb_without_a_group_is_refused"),
    ("gateway fence", "a_gateway_verb_without_a_group_is_refused"),
    ("apply", "a_configuration_that_is_refused_changes_nothing"),
    ("rollback", "a_configuration_that_is_refused_changes_nothing"),
    ("backup", "what_cannot_be_backed_up_or_restored_is_refused_and_nothing_is_changed"),
    ("restore", "what_cannot_be_backed_up_or_restored_is_refused_and_nothing_is_changed"),
    ("upgrade", "a_binary_that_does_not_take_over_leaves_the_old_one_serving"),
    ("man", "pages_that_cannot_be_written_leave_what_is_there"),
];

/// Verbs that only look, or that only end something.
const READING: &str = "completions, connection list, connection show, discover, doctor, eval bare, eval compare, eval list, \
    eval plan, eval stream, flight-recorder, gateway list, host list, host show, info, keep, key check, node list, \
    node show, path list, plan, reservation list, \
    reservation show, session kill, session list, shard list, status, stop, subsystem list, subsystem show, \
    target list, target show, top, verify, volume list, volume show";

/// A verb that is added stands in one of the lists, and what the first says is a test here.
#[test]
fn each_verb_that_writes_has_its_test() {
    fn verbs(command: &clap::Command, before: &str, found: &mut Vec<String>) {
        for verb in command.get_subcommands() {
            let name = format!("{before}{}", verb.get_name());
            match verb.has_subcommands() {
                true => verbs(verb, &format!("{name} "), found),
                false => found.push(name),
            }
        }
    }
    let source = concat!(
        include_str!("../refused.rs"),
        include_str!("../backup.rs"),
        include_str!("../upgrade.rs"),
        include_str!("local_disks.rs"),
        include_str!("raw_commands.rs"),
        include_str!("resume_records.rs"),
        include_str!("table.rs")
    );
    let mut found = Vec::new();
    verbs(&<blockwire::cli::Cli as clap::CommandFactory>::command(), "", &mut found);
    found.sort();
    let mut named: Vec<&str> = WRITING.iter().map(|(verb, _)| *verb).chain(READING.split(", ")).collect();
    named.sort_unstable();
    assert_eq!(found, named);
    for (verb, test) in WRITING {
        let begin =
            source.find(&format!("#[test]\nfn {test}()")).unwrap_or_else(|| panic!("{verb}: no test {test}"));
        let body = &source[begin..][..source[begin..].find("\n}\n").unwrap()];
        let runs = format!("\"{verb}");
        assert!(
            body.contains(&runs) || *verb == "serve" && body.contains("place.refused"),
            "{test} does not run `{verb}`"
        );
    }
}

/// A start that is refused makes no file and notes nothing, and enlarges nothing.
#[test]
fn what_cannot_be_served_is_neither_made_nor_changed() {
    let place = Place::new();
    let files = ["old.img", "new.img", "small.img"].map(|name| place.path(name));
    fs::write(&files[0], pattern(MIB, 1)).unwrap();
    fs::write(&files[2], [0; 100]).unwrap();
    let file = |at: usize, keys: &str| format!("file:{}{keys}", files[at].display());
    let (made, grown, small) = (file(1, ",size=1M"), file(0, ",size=2M"), file(2, ""));
    for (wrong, said) in [
        ("--volume=x=tape:0", "tape"),
        ("--volume=a=ram:1M", "a"),
        ("--iscsi=nowhere", "nowhere"),
        ("--iscsi=0.0.0.0", "allow-anonymous"),
        ("--config=/absent/blockwire.toml", "absent"),
        ("--sideways", "sideways"),
    ] {
        let volumes = ["a", &made, "b", &grown, "c", &small];
        let volumes: Vec<String> =
            volumes.chunks(2).map(|one| format!("--volume={}={}", one[0], one[1])).collect();
        let line: Vec<&str> = volumes.iter().map(String::as_str).chain([wrong]).collect();
        let (exit, complained) = place.refused(&line);
        assert!(exit == Some(2) || exit == Some(1), "{wrong}: {complained}");
        assert!(complained.contains(said), "{wrong}: {complained}");
        assert!(!files[1].exists(), "{wrong}: a file was made");
        // What a volume was created with stands in the state directory, so it is opened before the plan is checked.
        let kept =
            fs::read_dir(place.path("state")).into_iter().flatten().map(|one| one.unwrap().file_name());
        assert_eq!(
            kept.filter(|name| name != "lock").count(),
            0,
            "{wrong}: something is in the state directory"
        );
        assert!(fs::read(&files[0]).unwrap() == pattern(MIB, 1), "{wrong}: a file was enlarged");
        assert_eq!(fs::read(&files[2]).unwrap(), [0; 100], "{wrong}");
    }
}

/// No file is made, nothing is noted, and the volumes are as they were; see `apply` for more of what is refused.
#[test]
fn a_configuration_that_is_refused_changes_nothing() {
    let place = Place::new();
    let config = "[[volume]]\nname = \"a\"\nsource = \"ram:1M\"\n";
    let daemon = place.serve(config, &[]);
    let noted = || {
        let state = fs::read_dir(place.path("state")).unwrap();
        let mut names: Vec<_> = state.map(|one| one.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = (noted(), daemon.ask("volume list"), daemon.ask("target list"));
    let made = "[[volume]]\nname = \"b\"\nsource = \"file:b.img,size=1M\"\n";
    place.write("next.toml", &format!("{config}{made}[limits]\nmemory = \"32M\"\n"));
    for (line, said) in [
        ("apply next.toml", "needs a restart"),
        ("apply absent.toml", "absent.toml"),
        ("rollback", "nothing to roll back to"),
    ] {
        let out = daemon.run(line);
        let complained = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && complained.contains(said), "{line}: {complained}");
        assert_eq!((noted(), daemon.ask("volume list"), daemon.ask("target list")), before, "{line}");
        assert!(!place.path("b.img").exists(), "{line}");
    }
}

/// A daemon that is no gateway hands nothing over and bars nobody.
#[test]
fn a_gateway_verb_without_a_group_is_refused() {
    let place = Place::new();
    let daemon = place.serve("[[volume]]\nname = \"a\"\nsource = \"ram:1M\"\n", &[]);
    let before = daemon.ask("volume list");
    for line in ["gateway list", "gateway drain", "gateway drain --off", "gateway fence a"] {
        let out = daemon.run(line);
        let complained = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(21), "{line}: {complained}");
        assert!(complained.contains("no [group]"), "{line}: {complained}");
        assert_eq!(daemon.ask("volume list"), before, "{line}");
    }
}

/// Nobody is shut out or let in by a name that is wrong, and none is kept.
#[test]
fn a_host_that_is_refused_is_blocked_nowhere() {
    let place = Place::new();
    let config = "[[volume]]\nname = \"a\"\nsource = \"ram:1M\"\n[[host]]\nname = \"net\"\nsources = [\"127.0.0.0/8\"]\n\
                  access = [{ target = \"*\" }]\n[[host]]\nname = \"off\"\niqn = [\"iqn.2026-11.test:off\"]\nblocked = true\n";
    let daemon = place.serve(config, &[]);
    let before = daemon.ask("host list");
    for (line, exit, said) in [
        ("host block nett", 21, "did you mean \"net\""),
        ("host block iqn.", 21, "say its iSCSI name"),
        ("host block net", 2, "blocked = true"),
        ("host unblock nett", 21, "did you mean \"net\""),
        ("host unblock off", 1, "blocked by the configuration"),
        ("host unblock iqn.2026-11.test:off", 1, "blocked by the configuration"),
        ("host unblock nqn.2026-11.test:other", 21, "is not blocked"),
    ] {
        let out = daemon.run(line);
        let complained = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && complained.contains(said), "{line}: {complained}");
        assert_eq!(out.status.code(), Some(exit), "{line}: {complained}");
        assert_eq!(daemon.ask("host list"), before, "{line}");
        assert!(!place.path("state").join("blocked-hosts").exists(), "{line}");
    }
}
