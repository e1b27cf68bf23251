//! What is refused, where, and with which suggestion; and what is accepted.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::{
    check::CommandLineOptions,
    plan::{AuthMethod, ChapAlgorithm, DigestPolicy, Plan},
};

pub(super) fn load(text: &str, options: &CommandLineOptions) -> Result<(Plan, Vec<String>), Vec<String>> {
    load_in(Path::new("/etc/blockwire"), text, options, false)
}

pub(super) fn load_in(
    directory: &Path,
    text: &str,
    options: &CommandLineOptions,
    world_readable: bool,
) -> Result<(Plan, Vec<String>), Vec<String>> {
    let sink = Sink::default();
    let mut draft = Draft::default();
    read_text(
        &SourceText::new("blockwire.toml", text.to_owned()),
        directory,
        world_readable,
        &sink,
        &mut draft,
    );
    let plan = check::resolve_draft(draft, options, &sink);
    let shown = |list: Vec<diagnostic::Diagnostic>| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    sink.into_result(plan).map(|(plan, warnings)| (plan, shown(warnings))).map_err(shown)
}

pub(super) fn errors(text: &str) -> Vec<String> {
    load(text, &CommandLineOptions::default()).map(|(plan, _)| panic!("accepted: {plan:?}")).unwrap_err()
}

/// A document with one sound volume and portal, before `rest`.
fn with(rest: &str) -> String {
    format!(
        "[[volume]]\nname = \"a\"\nsource = \"ram:1M\"\n[[portal]]\nprotocol = \"iscsi\"\naddress = \"127.0.0.1\"\n{rest}"
    )
}

#[test]
fn one_mistake_one_line() {
    let mut wrong = Vec::new();
    for (rest, want) in [
        (
            "[[target]]\nname = 'iqn.2026-11.io:t'\nluns2 = []\nluns = [{lun = 0, volume = 'a'}]",
            "9:1: unknown key \"luns2\" in [[target]]; did you mean \"luns\"?",
        ),
        (
            "[[target]]\nname = 'iqn.2026-11.io:t'\nluns = [{lun = 0, volume = 'b'}]",
            "9:28: there is no volume \"b\"; known: a",
        ),
        (
            "[[target]]\nname = 'iqn.2026-11.io:t'\nluns = [{lun = 0, volum = 'a'}]",
            "9:19: unknown key \"volum\" in luns of [[target]]; did you mean \"volume\"?",
        ),
        (
            "[[target]]\nname = 'iqn.2026-11.io:t'\nluns = [{lun = 16384, volume = 'a'}]",
            "9:16: lun in luns of [[target]] must be from 0 to 16383",
        ),
        ("[[target]]\nname = 'iqn.2026-11.io:t'", "8:8: target \"iqn.2026-11.io:t\" has no luns"),
        (
            "[[target]]\nname = 't'\nluns = [{lun = 0, volume = 'a'}]",
            "8:8: name in [[target]]: \"t\" is not an iSCSI name: it begins with iqn., eui. or naa.",
        ),
        (
            "[[target]]\nname = 'iqn.2026-11.io:t'\nportals = [7]\nluns = [{lun = 0, volume = 'a'}]",
            "9:12: there is no portal with tag 7; known: 1",
        ),
        (
            "[[target]]\nname = 'iqn.2026-11.io:t'\nluns = [{lun = 0, volume = 'a'}]\nfirst_burst = '2M'",
            "10:15: first_burst in [[target]] must not be larger than max_burst (RFC 7143 §13.14)",
        ),
        (
            "[[target]]\nname = 'iqn.2026-11.io:t'\nluns = [{lun = 0, volume = 'a'}]\nmax_burst = 511",
            "10:13: max_burst in [[target]] must be from 512 to 16777215",
        ),
        (
            "[[target]]\nname = 'iqn.2026-11.io:t'\nluns = [{lun = 0, volume = 'a'}]\nmax_outstanding_r2t = -1",
            "10:23: max_outstanding_r2t in [[target]] must be from 1 to 65535",
        ),
        (
            "[[target]]\nname = 'iqn.2026-11.io:t'\nluns = [{lun = 0, volume = 'a'}]\nheader_digest = 'crc'",
            "10:17: header_digest in [[target]]: unknown value \"crc\"; known: off, allow, require",
        ),
        (
            "[[portal]]\nprotocol = 'iscsi'\naddress = '192.0.2.1'\nannounce = true",
            "10:12: announce in [[portal]] applies to NVMe/TCP: initiators of iSCSI find no targets by mDNS",
        ),
        (
            "[[portal]]\nprotocol = 'nvme-discovery'\naddress = '[::1]'\nannounce = true",
            "10:12: announce in [[portal]] needs an address that other machines reach",
        ),
        (
            "[[target]]\nname = 'iqn.2026-11.io:t'\nluns = [{lun = 0, volume = 'a'}]\nvendor = 'TOO LONG A NAME'",
            "10:10: vendor in [[target]]: \"TOO LONG A NAME\" is not 1 to 8 printable ASCII characters",
        ),
        (
            "[[target]]\nname = 'iqn.2026-11.io:t'\nredirect = {to = '0.0.0.0'}",
            "9:18: to in redirect of [[target]]: \"0.0.0.0\" is not an address that an initiator can connect to",
        ),
        (
            "[[volume]]\nname = 'a'\nsource = 'ram:2M'",
            "8:8: volume \"a\" is already named at blockwire.toml:2:8",
        ),
        (
            "[[volume]]\nname = 'b'\nsource = 'ram:2M,blok=512'",
            "9:10: source in [[volume]]: unknown key \"blok\"; did you mean \"block\"?",
        ),
        (
            "[[volume]]\nname = 'b'\nsource = 'ram:2M,block=512'\nblock = 4096",
            "10:9: key \"block\" of [[volume]] is already part of its source",
        ),
        (
            "[[volume]]\nname = 'b'\nsource = 'ram:2M'\nphysical = 100",
            "10:12: physical is a power of two from 512 to 64K in [[volume]]",
        ),
        ("[[volume]]\nname = 'b'", "7:1: [[volume]] needs the key \"source\""),
        (
            "[[volume]]\nname = 5\nsource = 'ram:1M'",
            "8:8: name in [[volume]] must be a text in quotes, not a number",
        ),
        ("[volumes]", "7:2: unknown key \"volumes\" in the top level; did you mean \"volume\"?"),
        (
            "[target]\nname = 'iqn.2026-11.io:t'",
            "7:1: target in the top level is a list of tables: write [[target]]",
        ),
        ("[[limits]]", "7:1: limits in the top level stands once, as [limits]"),
        ("[limits]\nmemory = '1M'", "8:10: memory in [limits] must be from 8388608 to 1099511627776 bytes"),
        (
            "[[portal]]\nprotocol = 'iscsi'\naddress = '127.0.0.1:3260'",
            "9:11: portal 127.0.0.1:3260 is already in use by 127.0.0.1:3260 at blockwire.toml:6:11",
        ),
        (
            "[[portal]]\nprotocol = 'nvm'\naddress = '127.0.0.1:4420'",
            "8:12: protocol in [[portal]]: unknown value \"nvm\"; did you mean \"nvme\"?",
        ),
        (
            "[[portal]]\nprotocol = 'iscsi'\naddress = '[::1]'\ndscp = 'af49'",
            "10:8: dscp in [[portal]]: \"af49\" is not 0 to 63 or a name such as \"cs1\", \"af41\" or \"ef\"",
        ),
        (
            "[[host]]\nname = 'h'\niqn = ['iqn.2026-11.io:i']\naccess = [{target = 'iqn.2026-11.io.blockwire:b'}]",
            "10:21: there is no target \"iqn.2026-11.io.blockwire:b\"; did you mean \"iqn.2026-11.io.blockwire:a\"?",
        ),
        (
            "[[host]]\nname = 'h'\niqn = ['iqn.2026-11.io:i']\naccess = [{target = 'iqn.2026-11.io.blockwire:a', luns = [1]}]",
            "10:21: target \"iqn.2026-11.io.blockwire:a\" has no lun 1",
        ),
        (
            "[[host]]\nname = 'h'\naccess = [{target = '*'}]",
            "7:1: [[host]] needs \"iqn\", \"nqn\" or \"sources\"; otherwise it would match every \
             host",
        ),
        (
            "[[host]]\nname = 'h'\nsources = ['10.0.0.1/8']\naccess = [{target = '*'}]",
            "9:12: sources in [[host]]: \"10.0.0.1/8\" has bits set beyond its prefix; did you mean 10.0.0.0/8?",
        ),
        (
            "[auth]\nmethods = ['none']\nchap = {user = 'u', secret = '123456789012'}",
            "8:11: methods in [auth] lacks \"chap\", but there are CHAP users",
        ),
        (
            "[auth]\nhashes = ['sha512']",
            "8:11: hashes in [auth]: unknown value \"sha512\"; did you mean \"sha1\"?",
        ),
        (
            "[auth]\nchap = {user = 'u', secret = '12345678901'}",
            "8:30: the secret has fewer than 12 bytes (RFC 7143 §9.2.1); see allow_short_secrets in [auth]",
        ),
        (
            "[auth]\nchap = {user = 'u', secret = '123456789012', mutual_user = 't', mutual_secret = '123456789012'}",
            "8:30: the secrets of the two directions must differ (RFC 7143 §9.2.1)",
        ),
        (
            "[auth]\nchap = {user = 'u', secret = '123456789012', mutual_user = 't'}",
            "8:60: chap needs \"mutual_secret\" or \"mutual_secret_file\" beside mutual_user",
        ),
        ("[auth]\nchap = {user = 'u'}", "8:8: chap needs the key \"secret\" or \"secret_file\""),
    ] {
        let (got, want) = (errors(&with(rest)), format!("blockwire.toml:{want}"));
        // Some mistakes have consequences; the first line must name the mistake itself.
        if !got.contains(&want) || got.len() > 2 {
            wrong.push(format!("{rest}\n got {got:#?}\nwant {want:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_mistake_is_shown_at_once_in_order() {
    let got = errors(
        "nod = 1\n[[volume]]\nname = \"X\"\nsource = \"ram:1M\"\n[[portal]]\nprotocol = \"iscsi\"\naddress = \"x\"\n",
    );
    assert_eq!(got.len(), 3, "{got:#?}");
    assert!(got[0].starts_with("blockwire.toml:1:1: unknown key \"nod\""));
    assert!(got[1].starts_with("blockwire.toml:3:8: name in [[volume]]"));
    assert!(got[2].starts_with("blockwire.toml:7:11: address in [[portal]]"));
}

#[test]
fn syntax_errors_name_the_line() {
    let got = errors("[[volume]]\nname = \"a\nsource = \"ram:1M\"\n");
    assert!(got[0].starts_with("blockwire.toml:2:"), "{got:#?}");
}

#[test]
fn nothing_is_open_to_strangers_unless_said() {
    let public = |rest: &str| {
        format!(
            "node = \"n\"\n[[volume]]\nname = \"a\"\nsource = \"ram:1M\"\n[[portal]]\nprotocol = \"iscsi\"\naddress = \"0.0.0.0\"\n{rest}"
        )
    };
    let refused = |rest: &str| {
        let got = errors(&public(rest));
        assert!(got.len() == 1 && got[0].contains("requires no authentication"), "{rest}: {got:#?}");
        let options = CommandLineOptions { allow_anonymous: true, ..CommandLineOptions::default() };
        load(&public(rest), &options).expect("allowed when said");
    };
    let accepted = |rest: &str| {
        load(&public(rest), &CommandLineOptions::default()).unwrap_or_else(|got| panic!("{rest}: {got:#?}"));
    };
    let chap = "chap = {user = \"u\", secret = \"123456789012\"}\n";
    let host = "[[host]]\nname = \"h\"\niqn = [\"iqn.2026-11.io:i\"]\naccess = [{target = \"*\"}]\n";
    refused("");
    refused(host);
    refused(&format!("[auth]\n{chap}methods = [\"chap\", \"none\"]\n"));
    refused("[auth]\ndiscovery = {user = \"u\", secret = \"123456789012\"}\n");
    accepted(&format!("[auth]\n{chap}"));
    accepted(&format!("{host}{chap}"));
    accepted(&format!("[auth]\n{chap}{host}"));
    // A host's grant is for another target: this one is reached by nobody.
    let other = "[[target]]\nname = \"iqn.2026-11.io:t\"\nluns = [{lun = 0, volume = \"a\"}]\nopen = false\n";
    accepted(other);
}

#[test]
fn a_name_for_two_machines_is_warned_about() {
    let text = "[[volume]]\nname = \"a\"\nsource = \"ram:1M\"\n[[portal]]\nprotocol = \"iscsi\"\naddress = \"0.0.0.0\"\n";
    let options = CommandLineOptions { allow_anonymous: true, ..CommandLineOptions::default() };
    let (_, warnings) = load(text, &options).unwrap();
    assert!(warnings.len() == 1 && warnings[0].contains("no node name is set"), "{warnings:#?}");
}

#[test]
fn a_full_configuration_becomes_a_plan() {
    let text = EXAMPLE_TOML;
    let (plan, warnings) = load(text, &CommandLineOptions::default()).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    for wrong in [
        "chap = [{user = \"u\", secret = \"123456789012\", mutual_user = \"t\", mutual_secret = \"abcdefghijkl\"}, \
         {user = \"v\", secret = \"223456789012\", mutual_user = \"w\", mutual_secret = \"abcdefghijkl\"}]",
        "chap = [{user = \"u\", secret = \"123456789012\", mutual_user = \"t\", mutual_secret = \"abcdefghijkl\"}, \
         {user = \"v\", secret = \"abcdefghijkl\"}]",
        "chap = [{user = \"u\", secret = \"123456789012\"}, {user = \"u\", secret = \"abcdefghijkl\"}]",
    ] {
        let got = errors(&with(&format!("[auth]\n{wrong}")));
        assert_eq!(got.len(), 1, "{wrong}: {got:#?}");
    }
    assert_eq!(plan.node.as_ref().unwrap().as_str(), "rack4");
    assert_eq!(plan.volumes.len(), 4);
    assert_eq!(plan.portals.iter().map(|portal| portal.tag).collect::<Vec<_>>(), [1, 1, 2, 1, 1]);
    assert_eq!(plan.portals[0].tcp.dscp, Some(34));
    let names: Vec<&str> = plan.ways.targets.iter().map(|target| target.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "iqn.2026-11.com.example:db",
            "iqn.2026-11.com.example:moved",
            "iqn.2026-11.io.blockwire:rack4:scratch"
        ]
    );
    let db = &plan.ways.targets[0];
    assert_eq!(db.portals, [1]);
    assert_eq!(
        db.luns.iter().map(|lun| (lun.lun, lun.read_only)).collect::<Vec<_>>(),
        [(0, false), (1, true)]
    );
    assert_eq!(db.negotiation.data_digest, DigestPolicy::Require);
    assert!(!db.open, "a [[host]] exists, so targets are closed unless said");
    assert!(plan.ways.targets[1].redirect.as_ref().unwrap().permanent);
    let host = &plan.hosts[1];
    assert!(host.sources[0].contains("192.0.2.77".parse().unwrap()));
    assert_eq!(host.chap[0].user, "db1");
    assert_eq!(host.chap[0].mutual.as_ref().unwrap().0, "rack4");
    assert_eq!(plan.auth.methods(), [AuthMethod::Chap]);
    assert_eq!(plan.auth.chap_algorithms(true), [ChapAlgorithm::Sha3_256, ChapAlgorithm::Sha256]);
    assert_eq!(plan.auth.discovery[0].user, "discover");
    assert_eq!(plan.limits.nop_interval.as_secs(), 10);
    assert_eq!((plan.limits.sessions, plan.limits.login_timeout.as_secs()), (Some(2000), 20));
}

#[test]
fn secret_files_must_be_private() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("s");
    let text = with("[auth]\nchap = {user = \"u\", secret_file = \"s\"}");
    let run = |mode: u32, content: &str| {
        fs::write(&file, content).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        load_in(directory.path(), &text, &CommandLineOptions::default(), true)
    };
    let (plan, _) = run(0o600, "123456789012\n").unwrap();
    assert_eq!(plan.auth.chap[0].secret.expose(), b"123456789012");
    let got = run(0o640, "123456789012\n").unwrap_err();
    assert_eq!(
        got,
        ["blockwire.toml:8:35: secret_file \"s\" has mode 0640: others can use it; chmod 600 it"]
    );
    let got = run(0o600, "topsecret\n").unwrap_err();
    assert!(got.len() == 1 && !got[0].contains("topsecret"), "{got:?}");
    let (_, warnings) = run(0o600, "12345678901234567\n").unwrap();
    assert!(warnings[0].contains("Windows"), "{warnings:?}");
    let inline = with("[auth]\nchap = {user = \"u\", secret = \"123456789012\"}");
    let got = load_in(directory.path(), &inline, &CommandLineOptions::default(), true).unwrap_err();
    assert!(got[0].contains("others can read it") && !got[0].contains("123456789012"), "{got:?}");
}

#[test]
fn short_secrets_are_accepted_only_when_said() {
    let text = with("[auth]\nallow_short_secrets = true\nchap = {user = \"u\", secret = \"short\"}");
    load(&text, &CommandLineOptions::default()).unwrap();
    let text = with("[auth]\nallow_short_secrets = true\nchap = {user = \"u\", secret = \"\"}");
    assert_eq!(errors(&text).len(), 1);
}

#[test]
fn parts_are_merged_in_order_and_name_their_file() {
    let directory = tempfile::tempdir().unwrap();
    let main = directory.path().join("blockwire.toml");
    let parts = directory.path().join("conf.d");
    fs::create_dir(&parts).unwrap();
    fs::write(&main, with("[limits]\nnop_timeout = 5\n")).unwrap();
    fs::write(parts.join("20.toml"), "[[volume]]\nname = \"c\"\nsource = \"ram:1M\"\n").unwrap();
    fs::write(parts.join("10.toml"), "[[volume]]\nname = \"b\"\nsource = \"file:b.img,size=1M\"\n").unwrap();
    fs::write(parts.join("ignored.toml~"), "nonsense").unwrap();
    let sink = Sink::default();
    let draft = ConfigFiles::read(&main, &sink).draft(&sink);
    let plan = check::resolve_draft(draft, &CommandLineOptions::default(), &sink);
    let (plan, _) = sink.into_result(plan).unwrap();
    assert_eq!(plan.volumes.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(plan.volumes[1].spec.source.path(), Some(&parts.join("b.img")));

    fs::write(parts.join("30.toml"), "[limits]\nnop_timeout = 6\n").unwrap();
    let sink = Sink::default();
    ConfigFiles::read(&main, &sink).draft(&sink);
    let got = sink.into_result(()).unwrap_err();
    assert!(
        got.len() == 1 && got[0].to_string().contains("conf.d/30.toml:1:1: [limits] is already set at"),
        "{got:?}"
    );
}

#[test]
fn the_reference_in_the_documentation_is_the_schema() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/configuration.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once("<!-- reference: generated -->\n").expect("opening mark");
    let (_, after) = rest.split_once("<!-- end of reference -->\n").expect("closing mark");
    let example = format!("```toml\n{}```\n", EXAMPLE_TOML);
    let (head, tail) = before.split_once("<!-- example: checked -->\n").expect("mark of the example");
    let (_, tail) = tail.split_once("<!-- end of example -->\n").expect("mark of its end");
    let want = format!(
        "{head}<!-- example: checked -->\n{example}<!-- end of example -->\n{tail}<!-- reference: generated -->\n{}<!-- end of reference -->\n{after}",
        schema::markdown_reference()
    );
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &want).unwrap();
    }
    assert!(
        page == want || std::env::var_os("BLESS").is_some(),
        "docs/configuration.md is stale: run the tests of blockwire with BLESS=1"
    );
}

#[test]
fn a_target_may_have_credentials_of_its_own() {
    let base = "[[volume]]\nname = \"a\"\nsource = \"ram:1M\"\n[[portal]]\nprotocol = \"iscsi\"\naddress = \"192.0.2.1\"\n";
    let target = |rest: &str| {
        format!("{base}[[target]]\nname = \"iqn.2026-11.io:t\"\nluns = [{{lun = 0, volume = \"a\"}}]\n{rest}")
    };
    let own = "chap = {user = \"u\", secret = \"secret of 12 bytes\", mutual_user = \"t\", mutual_secret = \"another secret\"}\n";
    let (plan, _) =
        load(&target(&format!("{own}mutual = \"require\"\n")), &CommandLineOptions::default()).unwrap();
    let auth = plan.ways.targets[0].auth.as_ref().unwrap();
    assert!(
        auth.mutual && auth.methods.is_empty() && auth.chap[0].user == "u",
        "and that is enough beyond loopback"
    );
    let optional = target(&format!("{own}methods = [\"chap\", \"none\"]\n"));
    assert!(
        errors(&optional)[0].contains("requires no authentication"),
        "who may come without is nobody proved"
    );
    for (rest, want) in [
        ("mutual = \"require\"", "10:10: mutual in [[target]] has no effect without chap"),
        ("methods = [\"chap\"]", "10:11: methods in [[target]] has no effect without chap"),
        (
            "methods = [\"none\"]\nchap = {user = \"u\", secret = \"secret of 12 bytes\"}",
            "10:11: methods in [[target]] lacks \"chap\"",
        ),
        (
            "mutual = \"require\"\nchap = {user = \"u\", secret = \"secret of 12 bytes\"}",
            "10:10: mutual = \"require\" needs a mutual_user",
        ),
    ] {
        let got = errors(&target(rest));
        let want = format!("blockwire.toml:{want}");
        assert!(got.iter().any(|line| line.starts_with(&want)), "{rest}\n got {got:#?}\nwant {want}");
    }
}

#[test]
fn a_grant_may_name_addresses_of_ours() {
    let with = |through: &str| {
        format!(
            "[[volume]]\nname = \"a\"\nsource = \"ram:1M\"\n[[portal]]\nprotocol = \"iscsi\"\naddress = \"127.0.0.1\"\n\
             [[host]]\nname = \"h\"\nsources = [\"127.0.0.1\"]\naccess = [{{target = \"*\", through = {through}}}]\n"
        )
    };
    let (plan, _) = load(&with("[\"127.0.0.1\", \"::1\"]"), &CommandLineOptions::default()).unwrap();
    assert_eq!(plan.hosts[0].grants[0].locals.len(), 2);
    assert!(errors(&with("[\"127.0.0.0/8\"]"))[0].contains("through in access of [[host]]"));
    assert!(errors(&with("[]"))[0].contains("holds no address"));
}

#[test]
fn a_daemon_has_a_sandbox_if_the_section_is_there_or_the_command_line_says_so() {
    let is_enabled = |rest: &str, sandbox| {
        let options = CommandLineOptions { sandbox, ..CommandLineOptions::default() };
        load(&with(rest), &options).unwrap().0.sandbox.is_enabled
    };
    for (rest, expected) in [("", false), ("[sandbox]\n", true), ("[sandbox]\nenabled = false\n", false)] {
        assert_eq!(is_enabled(rest, None), expected, "{rest}");
        assert!(is_enabled(rest, Some(true)) && !is_enabled(rest, Some(false)), "{rest}");
    }
}
