//! The layers of the workspace: who may depend on whom, and where what is dangerous may stand.
//!
//! Dependencies point down only, as the table below says; a crate may also name what it reaches
//! through its own dependencies. Development dependencies are free. `unsafe` stands in the crates
//! that touch memory, rings or foreign code; below the worlds nothing reads a clock, starts a
//! thread, prints or locks, so that the same code runs in production and in simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::Report;
use crate::metadata::{self, Package};

/// A layer: its directory under `crates/`, the layers it stands on, the foreign crates it may use.
struct Layer {
    name: &'static str,
    on: &'static [&'static str],
    foreign: Foreign,
}

/// Foreign crates that a layer may depend on.
enum Foreign {
    /// These and no others.
    Only(&'static [&'static str]),
    /// Its own choice: a crate above the data path.
    Any,
}

use Foreign::{Any, Only};

const TABLE: &[Layer] = &[
    Layer { name: "buf", on: &[], foreign: Only(&["libc", "smallvec", "rand_chacha"]) },
    Layer { name: "stream", on: &["buf"], foreign: Only(&["smallvec"]) },
    Layer { name: "scsi", on: &[], foreign: Only(&["zerocopy"]) },
    Layer { name: "nvme", on: &[], foreign: Only(NVME_WORDS) },
    Layer { name: "volume", on: &["buf"], foreign: Only(&["smallvec"]) },
    Layer { name: "iscsi", on: &["stream"], foreign: Only(PROTOCOL) },
    Layer { name: "nvme-tcp", on: &["stream", "nvme"], foreign: Only(PROTOCOL) },
    Layer { name: "scsi-server", on: &["scsi", "volume"], foreign: Only(&["smallvec"]) },
    Layer { name: "nvme-server", on: &["nvme", "volume"], foreign: Only(&["smallvec", "zerocopy"]) },
    Layer { name: "endpoint", on: &["stream", "volume"], foreign: Only(&["smallvec"]) },
    Layer { name: "backends", on: &["endpoint", "stream", "volume"], foreign: Only(&["libc", "smallvec"]) },
    Layer {
        name: "target",
        on: &["endpoint", "iscsi", "scsi-server", "nvme-tcp", "nvme-server"],
        foreign: Only(&["smallvec"]),
    },
    Layer {
        name: "host",
        on: &["endpoint", "volume", "backends", "iscsi", "scsi", "nvme-tcp", "nvme"],
        foreign: Only(&["smallvec", "strsim", "zeroize"]),
    },
    Layer { name: "reactor", on: &["endpoint"], foreign: Only(&["libc", "io-uring", "smallvec", "rustix"]) },
    Layer { name: "sim", on: &["endpoint"], foreign: Only(&["smallvec"]) },
    Layer { name: "attach", on: &["volume"], foreign: Any },
    Layer { name: "rbd", on: &["volume"], foreign: Any },
    Layer { name: "eval", on: &[], foreign: Any },
    Layer { name: "lab", on: &["eval"], foreign: Any },
    Layer { name: "bench", on: &["iscsi", "nvme-tcp"], foreign: Any },
    Layer { name: "initiator", on: &["host", "reactor", "backends"], foreign: Any },
    Layer { name: "capi", on: &["initiator"], foreign: Any },
    Layer {
        name: "blockwire",
        on: &["reactor", "target", "initiator", "backends", "attach", "eval", "lab", "rbd"],
        foreign: Any,
    },
];

/// What a transport needs beside the wire's layout: hashes for authentication.
const PROTOCOL: &[&str] =
    &["zerocopy", "smallvec", "md-5", "sha1", "sha2", "sha3", "digest", "hmac", "subtle", "zeroize"];

/// What NVMe's words need beside layout: hashes and modular powers for DH-HMAC-CHAP.
const NVME_WORDS: &[&str] = &["zerocopy", "sha2", "hmac", "subtle", "zeroize", "crypto-bigint"];

const UNSAFE_ALLOWED: &[&str] = &["buf", "reactor", "attach", "rbd", "capi", "bench"];

/// Crates in which nothing but `Cx` may tell the time or give randomness.
const BELOW_THE_WORLDS: &[&str] = &[
    "buf",
    "stream",
    "scsi",
    "nvme",
    "volume",
    "iscsi",
    "nvme-tcp",
    "scsi-server",
    "nvme-server",
    "endpoint",
    "backends",
    "target",
    "host",
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
        findings.extend(source_findings(package)?);
    }
    Ok(Report { findings, notes: Vec::new(), summary: format!("{} crates", members.len()) })
}

/// The layer's name of a workspace package: crates carry the project's name as a prefix.
fn layer_name(package: &str) -> &str {
    package.strip_prefix("blockwire-").unwrap_or(package)
}

/// All layers that a layer reaches by the table.
fn reachable(name: &str) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = vec![name];
    while let Some(next) = open.pop() {
        let Some(layer) = TABLE.iter().find(|layer| layer.name == next) else { continue };
        for below in layer.on {
            if found.insert(*below) {
                open.push(below);
            }
        }
    }
    found
}

fn dependency_findings(members: &[Package]) -> Vec<String> {
    let ours: BTreeMap<&str, &str> =
        members.iter().map(|package| (package.name.as_str(), layer_name(&package.name))).collect();
    let mut findings = Vec::new();
    for package in members.iter().filter(|package| package.name != "xtask") {
        let name = layer_name(&package.name);
        let Some(layer) = TABLE.iter().find(|layer| layer.name == name) else {
            findings.push(format!("{name} has no row in the dependency table"));
            continue;
        };
        let below = reachable(name);
        for dependency in package.normal.iter().chain(&package.build) {
            match (ours.get(dependency.as_str()), &layer.foreign) {
                (Some(other), _) if below.contains(other) => {}
                (Some(other), _) => findings.push(format!("{name} must not depend on {other}")),
                (None, Only(list)) if !list.contains(&dependency.as_str()) => {
                    findings.push(format!("{name} must not use the foreign crate {dependency}"));
                }
                (None, Only(_) | Any) => {}
            }
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
            license: None,
            member: true,
            normal: normal.iter().map(|name| (*name).to_owned()).collect(),
            build: Vec::new(),
            roots: Vec::new(),
            directory: PathBuf::new(),
        }
    }

    #[test]
    fn what_is_reached_may_be_named() {
        let members = [
            package("blockwire-buf", &["libc"]),
            package("blockwire-stream", &["blockwire-buf"]),
            package("blockwire-iscsi", &["blockwire-stream", "blockwire-buf", "zerocopy"]),
        ];
        assert_eq!(dependency_findings(&members), Vec::<String>::new());
    }

    #[test]
    fn a_dependency_upwards_or_sideways_is_found() {
        let members = [
            package("blockwire-volume", &["blockwire-scsi"]),
            package("blockwire-scsi", &[]),
            package("blockwire-scsi-server", &["blockwire-iscsi"]),
            package("blockwire-iscsi", &[]),
            package("blockwire-reactor", &["blockwire-sim"]),
            package("blockwire-sim", &[]),
        ];
        let findings = dependency_findings(&members);
        assert_eq!(
            findings,
            [
                "volume must not depend on scsi",
                "scsi-server must not depend on iscsi",
                "reactor must not depend on sim",
            ]
        );
    }

    #[test]
    fn a_foreign_crate_on_the_data_path_is_found() {
        let findings = dependency_findings(&[package("blockwire-scsi", &["tokio"])]);
        assert_eq!(findings, ["scsi must not use the foreign crate tokio"]);
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        let findings = dependency_findings(&[package("blockwire-helpers", &[])]);
        assert_eq!(findings, ["helpers has no row in the dependency table"]);
    }

    #[test]
    fn the_table_has_no_cycle_and_no_unknown_layer() {
        for layer in TABLE {
            assert!(!reachable(layer.name).contains(layer.name), "{} reaches itself", layer.name);
            for below in layer.on {
                assert!(TABLE.iter().any(|other| other.name == *below), "{below} has no row");
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
