//! The layers of the workspace: which crate depends on which, and where `unsafe`, clocks, threads and locks
//! are allowed.
//!
//! The table names every direct dependency of every crate: one that is not named is refused, and so is one
//! that is named but not used. Dependencies point down only; development dependencies are free.
//! ARCHITECTURE.md has the same table. `unsafe` is allowed in the crates that touch memory, rings or foreign
//! code. Below the worlds no code reads a clock, starts a thread, prints or locks, so that the same code runs
//! in production and in simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::Report;
use crate::metadata::{self, Package};

/// A crate: its directory, the crates of this workspace that it names, the foreign crates it may use.
struct Layer {
    directory: &'static str,
    on: &'static str,
    foreign: Foreign,
}

impl Layer {
    /// Its name: the last part of its directory.
    fn name(&self) -> &'static str {
        self.directory.rsplit('/').next().unwrap_or(self.directory)
    }

    /// The crates of this workspace that it names.
    fn on(&self) -> impl Iterator<Item = &'static str> + Clone {
        self.on.split_ascii_whitespace()
    }
}

/// Foreign crates that a layer may depend on.
enum Foreign {
    /// These and no others.
    Only(&'static [&'static str]),
    /// Its own choice: a crate above the data path.
    Any,
}

use Foreign::{Any, Only};

/// From the bottom to the top: a crate stands on crates above its row in this list only.
const TABLE: &[Layer] = &[
    Layer { directory: "core/buf", on: "", foreign: Only(&["libc", "smallvec", "rand_chacha"]) },
    Layer { directory: "core/flight-recorder", on: "buf", foreign: Only(&[]) },
    Layer { directory: "core/stream", on: "buf", foreign: Only(&["smallvec", "serde", "postcard"]) },
    Layer { directory: "core/volume", on: "buf", foreign: Only(&["serde"]) },
    Layer { directory: "core/endpoint", on: "buf stream volume", foreign: Only(&[]) },
    Layer { directory: "core/backends", on: "buf endpoint stream volume", foreign: Only(&[]) },
    Layer { directory: "protocol/scsi", on: "", foreign: Only(&[]) },
    Layer { directory: "protocol/nvme", on: "", foreign: Only(NVME) },
    Layer { directory: "protocol/nbd", on: "", foreign: Only(&["zerocopy"]) },
    Layer {
        directory: "protocol/tls",
        on: "",
        foreign: Only(&["foreign-types", "openssl", "openssl-sys", "zeroize"]),
    },
    Layer { directory: "protocol/iscsi", on: "buf stream", foreign: Only(ISCSI) },
    Layer {
        directory: "protocol/nvme-tcp",
        on: "buf nvme stream tls",
        foreign: Only(&["smallvec", "serde", "zerocopy"]),
    },
    Layer { directory: "server/scsi-server", on: "buf scsi volume", foreign: Only(&["serde"]) },
    Layer { directory: "server/group", on: "buf volume", foreign: Only(&[]) },
    Layer { directory: "server/nvme-server", on: "buf nvme volume", foreign: Only(&["serde", "zerocopy"]) },
    Layer {
        directory: "server/shard",
        on: "buf endpoint flight-recorder group iscsi nvme nvme-server nvme-tcp scsi scsi-server stream tls \
             volume",
        foreign: Only(&["smallvec", "serde"]),
    },
    Layer {
        directory: "initiator/multipath",
        on: "backends buf endpoint iscsi nvme nvme-tcp scsi stream tls volume",
        foreign: Only(&["smallvec", "strsim", "zeroize"]),
    },
    Layer {
        directory: "runtime/reactor",
        on: "buf endpoint stream volume",
        foreign: Only(&["io-uring", "libc", "rustix"]),
    },
    Layer { directory: "runtime/sim", on: "buf endpoint stream volume", foreign: Only(&[]) },
    Layer {
        directory: "initiator/client",
        on: "backends buf endpoint iscsi multipath nvme reactor volume",
        foreign: Any,
    },
    Layer { directory: "initiator/capi", on: "buf client volume", foreign: Any },
    Layer { directory: "initiator/block-device", on: "buf nbd volume", foreign: Any },
    Layer {
        directory: "runtime/testkit",
        on: "block-device buf endpoint iscsi nvme nvme-server nvme-tcp scsi-server shard sim \
             stream tls volume",
        foreign: Any,
    },
    Layer { directory: "evaluation/eval", on: "", foreign: Any },
    Layer { directory: "evaluation/lab", on: "eval", foreign: Any },
    Layer { directory: "evaluation/bench", on: "eval iscsi nvme nvme-tcp", foreign: Any },
    Layer {
        directory: "examples",
        on: "buf client endpoint nvme nvme-tcp reactor shard stream volume",
        foreign: Only(&["zerocopy"]),
    },
    Layer { directory: "daemon/sandbox", on: "", foreign: Only(&["landlock", "libc", "seccompiler"]) },
    Layer { directory: "daemon/rbd", on: "buf reactor", foreign: Only(&["libc"]) },
    Layer {
        directory: "daemon/nbd-disk",
        on: "buf nbd reactor",
        foreign: Only(&["libc", "rustix", "tracing", "zerocopy"]),
    },
    Layer {
        directory: "daemon/gateway",
        on: "buf group rbd tls volume",
        foreign: Only(&["libc", "rustix", "serde_json", "zeroize"]),
    },
    Layer { directory: "daemon/process", on: "client sandbox", foreign: Any },
    Layer { directory: "daemon/nvme-keys", on: "nvme process", foreign: Any },
    Layer { directory: "daemon/config", on: "backends group multipath nvme sandbox shard", foreign: Any },
    Layer { directory: "daemon/control", on: "process", foreign: Any },
    Layer {
        directory: "daemon/chiscsi-config",
        on: "config control endpoint multipath process shard",
        foreign: Any,
    },
    Layer { directory: "daemon/import", on: "config process", foreign: Any },
    Layer { directory: "daemon/metrics", on: "control", foreign: Any },
    Layer {
        directory: "daemon/recovery",
        on: "block-device buf client control multipath process volume",
        foreign: Any,
    },
    Layer { directory: "initiator/mdns", on: "client process", foreign: Any },
    Layer {
        directory: "daemon/engine",
        on: "backends buf chiscsi-config client config control endpoint flight-recorder gateway group iscsi mdns \
             metrics multipath nbd-disk nvme nvme-server process rbd reactor recovery sandbox scsi-server shard stream \
             tls volume",
        foreign: Any,
    },
    Layer { directory: "daemon/diagnosis", on: "control engine flight-recorder process", foreign: Any },
    Layer {
        directory: "initiator/transfer",
        on: "buf client config engine process recovery volume",
        foreign: Any,
    },
    Layer { directory: "initiator/nodes", on: "client control multipath process recovery", foreign: Any },
    Layer { directory: "initiator/reports", on: "client transfer volume", foreign: Any },
    Layer {
        directory: "evaluation/eval-verbs",
        on: "backends bench buf client config control endpoint eval lab multipath process reactor \
             stream transfer volume",
        foreign: Any,
    },
    Layer {
        directory: "cli",
        on: "block-device chiscsi-config client config control diagnosis engine eval-verbs import \
             mdns multipath nodes nvme nvme-keys process recovery reports sandbox transfer volume",
        foreign: Any,
    },
];

/// What iSCSI needs beside the wire's layout: hashes for CHAP, and the form of snapshots.
const ISCSI: &[&str] =
    &["zerocopy", "smallvec", "serde", "md-5", "sha1", "sha2", "sha3", "subtle", "zeroize"];

/// What NVMe needs beside layout: hashes and modular powers for DH-HMAC-CHAP.
const NVME: &[&str] = &["zerocopy", "sha2", "hmac", "subtle", "zeroize", "crypto-bigint"];

const UNSAFE_ALLOWED: &[&str] =
    &["buf", "tls", "reactor", "rbd", "nbd-disk", "block-device", "capi", "testkit", "bench"];

/// Crates that only tests may depend on.
const FOR_TESTS: &[&str] = &["testkit"];

/// Most lines of the binary's sources, without tests: it has verbs, output and exit codes, and no more.
const BINARY_LINES_MAX: usize = 6_000;

/// Crates in which nothing but `Cx` may tell the time or give randomness.
const BELOW_THE_WORLDS: &[&str] = &[
    "buf",
    "flight-recorder",
    "stream",
    "scsi",
    "nvme",
    "nbd",
    "tls",
    "volume",
    "iscsi",
    "nvme-tcp",
    "scsi-server",
    "nvme-server",
    "group",
    "endpoint",
    "backends",
    "shard",
    "multipath",
];

/// What code below the worlds must not say.
const AMBIENT: &[&str] = &[
    "std::thread",
    "thread::spawn",
    "thread_local!",
    "Instant::now",
    "SystemTime",
    "println!",
    "print!(",
    concat!("dbg", "!("),
    "Mutex<",
    "RwLock<",
    "async fn",
    "async move",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
];

/// Checks the whole workspace.
pub fn check(root: &Path) -> Result<Report, String> {
    let members: Vec<Package> = metadata::load(root)?.into_iter().filter(|package| package.member).collect();
    let mut findings = dependency_findings(&members);
    for package in &members {
        findings.extend(place_finding(root, package));
        findings.extend(source_findings(package)?);
    }
    let page = read(&root.join("ARCHITECTURE.md"))?;
    if !page.contains(&table(&members)) {
        findings.push(
            "ARCHITECTURE.md: its table of crates is not that of `cargo run -p xtask -- layers --table`"
                .to_owned(),
        );
    }
    Ok(Report { findings, notes: Vec::new(), summary: format!("{} crates", members.len()) })
}

/// Prints the table of ARCHITECTURE.md.
pub fn print_table(root: &Path) -> Result<Report, String> {
    let members: Vec<Package> = metadata::load(root)?.into_iter().filter(|package| package.member).collect();
    print!("{}", table(&members));
    Ok(Report { findings: Vec::new(), notes: Vec::new(), summary: format!("{} crates", members.len()) })
}

/// The crates as ARCHITECTURE.md shows them: where they stand, what they are, what they name.
fn table(members: &[Package]) -> String {
    let mut text = "| crate | what it is | depends on | `unsafe` |\n|---|---|---|---|\n".to_owned();
    for layer in TABLE {
        let found = members.iter().find(|package| layer_name(&package.name) == layer.name());
        let Some(package) = found else { continue };
        let on: Vec<String> = layer.on().map(|name| format!("`{name}`")).collect();
        let allowed = if UNSAFE_ALLOWED.contains(&layer.name()) { "yes" } else { "no" };
        let what = package.description.trim_end_matches('.');
        let on = if on.is_empty() { "nothing".to_owned() } else { on.join(", ") };
        let _ = writeln!(text, "| `{}` | {what} | {on} | {allowed} |", layer.directory);
    }
    text
}

/// A crate that does not stand in the directory that the table names.
fn place_finding(root: &Path, package: &Package) -> Option<String> {
    let layer = TABLE.iter().find(|layer| layer.name() == layer_name(&package.name))?;
    let is = package.directory.strip_prefix(root).unwrap_or(&package.directory);
    // The examples are looked for at the top.
    let shelf = if layer.directory == "examples" { "" } else { "crates" };
    let wanted = Path::new(shelf).join(layer.directory);
    (is != wanted)
        .then(|| format!("{} stands in {}, not in {}", package.name, is.display(), wanted.display()))
}

/// The layer's name of a workspace package: crates carry the project's name as a prefix.
fn layer_name(package: &str) -> &str {
    match package {
        "blockwire" => "cli",
        other => other.strip_prefix("blockwire-").unwrap_or(other),
    }
}

fn dependency_findings(members: &[Package]) -> Vec<String> {
    let ours: BTreeMap<&str, &str> =
        members.iter().map(|package| (package.name.as_str(), layer_name(&package.name))).collect();
    let mut findings = Vec::new();
    for package in members.iter().filter(|package| package.name != "xtask") {
        let name = layer_name(&package.name);
        let Some(layer) = TABLE.iter().find(|layer| layer.name() == name) else {
            findings.push(format!("{name} has no row in the dependency table"));
            continue;
        };
        let named: BTreeSet<&str> = package.normal.iter().chain(&package.build).map(String::as_str).collect();
        for dependency in &named {
            match (ours.get(dependency), &layer.foreign) {
                (Some(other), _) if FOR_TESTS.contains(other) => findings
                    .push(format!("{name} must name {other} under [dev-dependencies] only: it is for tests")),
                (Some(other), _) if layer.on().any(|on| on == *other) => {}
                (Some(other), _) => findings.push(format!("{name} must not depend on {other}")),
                (None, Only(list)) if !list.contains(dependency) => {
                    findings.push(format!("{name} must not use the foreign crate {dependency}"));
                }
                (None, Only(_) | Any) => {}
            }
        }
        let foreign: &[&str] = if let Only(list) = &layer.foreign { list } else { &[] };
        let unused = layer.on().filter(|on| !named.iter().any(|dependency| ours.get(dependency) == Some(on)));
        for row in unused.chain(foreign.iter().copied().filter(|foreign| !named.contains(foreign))) {
            findings.push(format!("{name} does not depend on {row}, which its row names"));
        }
    }
    findings
}

fn source_findings(package: &Package) -> Result<Vec<String>, String> {
    let name = layer_name(&package.name);
    let mut findings = Vec::new();
    if !UNSAFE_ALLOWED.contains(&name) {
        for root in &package.roots {
            if !read(root)?.contains("#![forbid(unsafe_code)]") {
                findings.push(format!("{}: lacks #![forbid(unsafe_code)]", root.display()));
            }
        }
    }
    if name == "cli" {
        let files = rust_files(&package.directory.join("src"))?;
        let texts = files.iter().map(|file| read(file)).collect::<Result<Vec<_>, _>>()?;
        let lines: usize = texts.iter().map(|text| lines_without_tests(text)).sum();
        if lines > BINARY_LINES_MAX {
            findings.push(format!(
                "{name} has {lines} lines without tests, more than {BINARY_LINES_MAX}: what is no argument, output or \
                 exit code belongs in a crate below"
            ));
        }
    }
    if BELOW_THE_WORLDS.contains(&name) {
        for file in rust_files(&package.directory.join("src"))? {
            let text = read(&file)?;
            for (line, word) in ambient_words(&text) {
                findings.push(format!("{}:{line}: {word} below the worlds", file.display()));
            }
        }
    }
    Ok(findings)
}

/// Lines before the module of tests.
fn lines_without_tests(text: &str) -> usize {
    text.split("\n#[cfg(test)]\nmod tests {").next().map_or(0, |code| code.lines().count())
}

/// Forbidden words of a source text and their lines; comments and what only tests are built from
/// are free.
fn ambient_words(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    // The indentation of a test item that is open: rustfmt closes it at the same one.
    let mut free: Option<usize> = None;
    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default().trim_end();
        let indent = code.len() - code.trim_start().len();
        match free {
            Some(at) if indent == at && (code.ends_with('}') || code.ends_with(';')) => free = None,
            Some(_) => {}
            None if is_test_attribute(code.trim_start()) => free = code.ends_with(']').then_some(indent),
            None => {
                found.extend(
                    AMBIENT.iter().filter(|word| code.contains(**word)).map(|word| (index + 1, *word)),
                );
            }
        }
    }
    found
}

/// Whether the item behind this attribute is built for tests only: `cfg(test)`, alone or as a
/// condition among `all`.
fn is_test_attribute(code: &str) -> bool {
    ["#[cfg(test)]", "#[cfg(all(test,"].iter().any(|start| code.starts_with(start))
}

/// Source files of a directory, without files that hold tests only.
fn rust_files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(next) = open.pop() {
        let entries = std::fs::read_dir(&next).map_err(|e| format!("{}: {e}", next.display()))?;
        for entry in entries {
            let path = entry.map_err(|error| error.to_string())?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if path.is_dir() && stem != "tests" {
                open.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") && !is_test_file(stem) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn is_test_file(stem: &str) -> bool {
    stem == "tests" || stem.ends_with("_tests")
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, normal: &[&str]) -> Package {
        Package {
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            description: String::new(),
            license: None,
            member: true,
            normal: normal.iter().map(|name| (*name).to_owned()).collect(),
            build: Vec::new(),
            roots: Vec::new(),
            directory: PathBuf::new(),
        }
    }

    const STREAM: &[&str] = &["blockwire-buf", "smallvec", "serde", "postcard"];

    fn found(name: &str, normal: &[&str]) -> Vec<String> {
        let mut members: Vec<Package> =
            TABLE.iter().map(|layer| package(&format!("blockwire-{}", layer.name()), &[])).collect();
        members.push(package("blockwire", &[]));
        members.retain(|member| member.name != name);
        members.push(package(name, normal));
        let name = format!("{} ", layer_name(name));
        dependency_findings(&members).into_iter().filter(|finding| finding.starts_with(&name)).collect()
    }

    #[test]
    fn lines_end_where_tests_begin() {
        assert_eq!(lines_without_tests("one\ntwo\n\n#[cfg(test)]\nmod tests {\n}\n"), 2);
        assert_eq!(lines_without_tests("one\n#[cfg(test)]\nmod other_tests;\nlast\n"), 4);
    }

    #[test]
    fn what_the_row_names_may_be_used() {
        assert_eq!(found("blockwire-stream", STREAM), Vec::<String>::new());
    }

    #[test]
    fn what_is_only_reached_through_others_is_found() {
        let findings = found(
            "blockwire-scsi-server",
            &["blockwire-buf", "blockwire-scsi", "blockwire-volume", "blockwire-stream", "serde"],
        );
        assert_eq!(findings, ["scsi-server must not depend on stream"]);
    }

    #[test]
    fn a_dependency_upwards_or_sideways_is_found() {
        assert_eq!(
            found("blockwire-volume", &["blockwire-buf", "blockwire-scsi", "serde"]),
            ["volume must not depend on scsi"]
        );
        let sim = [
            "blockwire-buf",
            "blockwire-endpoint",
            "blockwire-reactor",
            "blockwire-stream",
            "blockwire-volume",
        ];
        assert_eq!(found("blockwire-sim", &sim), ["sim must not depend on reactor"]);
    }

    #[test]
    fn a_row_that_names_what_is_not_used_is_found() {
        assert_eq!(
            found("blockwire-stream", &["blockwire-buf", "serde", "postcard"]),
            ["stream does not depend on smallvec, which its row names"]
        );
    }

    #[test]
    fn a_crate_for_tests_is_no_dependency_of_what_ships() {
        assert_eq!(
            found("blockwire-stream", &[STREAM, &["blockwire-testkit"]].concat()),
            ["stream must name testkit under [dev-dependencies] only: it is for tests"]
        );
        assert_eq!(
            found(
                "blockwire-capi",
                &["blockwire-buf", "blockwire-client", "blockwire-testkit", "blockwire-volume"]
            ),
            ["capi must name testkit under [dev-dependencies] only: it is for tests"]
        );
        let mut rows = TABLE.iter().flat_map(Layer::on);
        assert!(rows.all(|on| !FOR_TESTS.contains(&on)), "a row names a crate for tests");
    }

    #[test]
    fn a_foreign_crate_on_the_data_path_is_found() {
        assert_eq!(found("blockwire-scsi", &["tokio"]), ["scsi must not use the foreign crate tokio"]);
    }

    #[test]
    fn a_crate_in_another_directory_is_found() {
        let mut moved = package("blockwire-scsi", &[]);
        moved.directory = PathBuf::from("/tree/crates/core/scsi");
        let finding = place_finding(Path::new("/tree"), &moved);
        assert_eq!(
            finding.as_deref(),
            Some("blockwire-scsi stands in crates/core/scsi, not in crates/protocol/scsi")
        );
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        let findings = dependency_findings(&[package("blockwire-helpers", &[])]);
        assert_eq!(findings, ["helpers has no row in the dependency table"]);
    }

    #[test]
    fn each_row_stands_on_rows_above_it() {
        for (index, layer) in TABLE.iter().enumerate() {
            for below in layer.on() {
                assert!(
                    TABLE[..index].iter().any(|other| other.name() == below),
                    "{} stands on {below}, which has no row above it",
                    layer.name()
                );
            }
        }
    }

    #[test]
    fn ambient_words_are_found_in_code_only() {
        let text = "// Instant::now is a clock\nlet t = Instant::now();\n#[cfg(test)]\nSystemTime";
        assert_eq!(ambient_words(text), [(2, "Instant::now")]);
    }

    #[test]
    fn only_what_tests_are_built_from_is_free() {
        let text = "#[cfg(all(test, loom))]\nmod model {\n    fn f() {\n        thread::spawn(g);\n    }\n}\n\
                    fn after() {\n    thread::spawn(g);\n}\n";
        assert_eq!(ambient_words(text), [(8, "thread::spawn")]);
        let text = "#[cfg(test)]\nmod tests;\n#[cfg(any(test, fast))]\nfn f() { Instant::now() }\n";
        assert_eq!(ambient_words(text), [(4, "Instant::now")]);
    }

    #[test]
    fn a_root_without_forbid_is_found() {
        let root = std::env::temp_dir().join(format!("xtask-layers-{}.rs", std::process::id()));
        std::fs::write(&root, "//! A crate.\n").unwrap();
        let mut found = package("blockwire-scsi", &[]);
        found.roots.push(root.clone());
        found.directory = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let findings = source_findings(&found).unwrap();
        std::fs::remove_file(&root).unwrap();
        assert!(findings.iter().any(|f| f.contains("lacks #![forbid(unsafe_code)]")), "{findings:?}");
    }
}
