//! A refused command has changed nothing: each refusal of each verb that can destroy data, with files and
//! volumes compared byte for byte.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use ::client::{Initiator, ReservationOp, Settings, VolumeHandle};

use crate::daemon::{Daemon, Place};
use crate::verbs::{fails, good, json, urls};

mod local_disks;
mod raw_commands;
mod resume_records;
mod table;

pub use local_disks::Loop;
pub use resume_records::identity;

const VOLUMES: &str = "
[[volume]]
name = \"a\"
source = \"ram:2M\"
[[volume]]
name = \"b\"
source = \"ram:2M\"
[[volume]]
name = \"small\"
source = \"ram:1M\"
[[volume]]
name = \"fixed\"
source = \"ram:2M,ro\"
[[volume]]
name = \"reserved\"
source = \"ram:2M\"
[[volume]]
name = \"kept\"
source = \"file:work/served.img,size=2M\"
[[volume]]
name = \"golden\"
source = \"file:work/fixed.img,ro\"
";

const MIB: usize = 1 << 20;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at ^ at >> 9) as u8 ^ seed).collect()
}

/// Everything that verbs could destroy, and a daemon that serves some of it.
struct Stage {
    place: Place,
    daemon: Daemon,
    work: PathBuf,
    initiator: Initiator,
    volumes: Vec<(&'static str, VolumeHandle)>,
}

/// What holds before and after.
#[derive(PartialEq, Eq)]
struct Seen {
    /// Files with what they hold, links with where they lead.
    files: BTreeMap<PathBuf, Vec<u8>>,
    volumes: Vec<Vec<u8>>,
    reservations: String,
    listed: serde_json::Value,
    paths: serde_json::Value,
}

impl Stage {
    fn new() -> Stage {
        let place = Place::new();
        let work = place.path("work");
        fs::create_dir_all(work.join("dir/full")).unwrap();
        let put = |name: &str, bytes: Vec<u8>| fs::write(work.join(name), bytes).unwrap();
        put("source.img", pattern(MIB, 1));
        put("big.img", pattern(3 * MIB, 2));
        put("odd.img", pattern(MIB + 13, 3));
        put("other.img", pattern(2 * MIB, 4));
        put("fixed.img", pattern(MIB, 10));
        put("empty.img", Vec::new());
        put("notes.txt", b"dear diary".to_vec());
        put("dir/full/file", b"something".to_vec());
        std::os::unix::fs::symlink("source.img", work.join("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", work.join("dangling")).unwrap();
        fs::hard_link(work.join("source.img"), work.join("hard")).unwrap();
        let daemon = place.serve(VOLUMES, &["--nvme", "127.0.0.1:0"]);
        let mut initiator = Initiator::new(Settings::default()).unwrap();
        let mut volumes = Vec::new();
        for (name, seed) in [("a", 5), ("b", 6), ("small", 7), ("fixed", 0), ("reserved", 8), ("kept", 9)] {
            let volume = initiator.open(&urls(&daemon, name)[1]).unwrap();
            let bytes = initiator.known_geometry(volume).unwrap().capacity_bytes() as usize;
            if name != "fixed" {
                initiator.write_at(volume, 0, &pattern(bytes, seed)).unwrap();
                initiator.flush(volume).unwrap();
            }
            volumes.push((name, volume));
        }
        let reserved = &urls(&daemon, "reserved")[0];
        good(&["reserve", reserved, "register", "--key", "0xabc1"]);
        good(&["reserve", reserved, "reserve", "--key", "0xabc1", "--type", "write-exclusive"]);
        Stage { place, daemon, work, initiator, volumes }
    }

    fn seen(&mut self) -> Seen {
        let mut files = BTreeMap::new();
        let mut directories = vec![self.work.clone(), self.place.path("state")];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
                let kind = entry.symlink_metadata().unwrap().file_type();
                if kind.is_dir() {
                    files.insert(entry.clone(), b"a directory".to_vec());
                    directories.push(entry);
                } else if kind.is_symlink() {
                    let leads = fs::read_link(&entry).unwrap().to_string_lossy().into_owned();
                    files.insert(entry, leads.into_bytes());
                } else {
                    let bytes = fs::read(&entry).unwrap();
                    files.insert(entry, bytes);
                }
            }
        }
        let mut volumes = Vec::new();
        let mut reservations = String::new();
        for (_, volume) in self.volumes.clone() {
            let mut bytes = vec![0; self.initiator.known_geometry(volume).unwrap().capacity_bytes() as usize];
            self.initiator.read_at(volume, 0, &mut bytes).unwrap();
            volumes.push(bytes);
            let claims = self.initiator.run_reservation_op(volume, ReservationOp::Report).unwrap().unwrap();
            reservations += &format!("{:?} {:?}\n", claims.held, claims.registrations);
        }
        let list = self.daemon.ask_json("volume list");
        let of = |one: &serde_json::Value| {
            let keys = ["name", "uuid", "size_bytes", "block_bytes", "source", "read_only"];
            keys.iter().map(|key| one[key].clone()).collect::<Vec<_>>()
        };
        let listed = list.as_array().unwrap().iter().map(of).collect::<Vec<_>>().into();
        Seen { files, volumes, reservations, listed, paths: self.daemon.ask_json("path list") }
    }

    fn run(&self, line: &str) -> Output {
        let mut words: Vec<String> = line.split(' ').map(|word| self.word(word)).collect();
        if ["volume", "path", "detach", "iscsictl", "connect-all"].contains(&words[0].as_str()) {
            words.extend(["--control".to_owned(), self.place.path("control").display().to_string()]);
        }
        Command::new(env!("CARGO_BIN_EXE_blockwire"))
            .args(words)
            .current_dir(&self.work)
            .env("HOME", self.place.path(""))
            .env("RUNTIME_DIRECTORY", self.place.path("run"))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// `iscsi:NAME` and `nvme:NAME` are volumes of the daemon, `striped:NAME` is one over it and another, `gone:`
    /// is one that nobody serves.
    fn word(&self, word: &str) -> String {
        let url = |name: &str, at: usize| match name {
            "nobody" => urls(&self.daemon, "a")[at].replace(":a/", ":nobody/"),
            name => urls(&self.daemon, name)[at].clone(),
        };
        match word.split_once(':') {
            Some(("iscsi", name)) => url(name, 0),
            Some(("nvme", name)) => url(name, 1),
            Some(("gone", _)) => {
                let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
                format!("iscsi://{closed}/iqn.2026-11.io.blockwire:a/0?open_timeout=0s")
            }
            Some(("striped", name)) => format!("stripe:{}+{}", url("b", 1), url(name, 0)),
            _ => word.to_owned(),
        }
    }

    /// Each line is refused with this exit code and word, and all is as it was.
    fn refuses(&mut self, table: &[(&str, i32, &str)]) {
        let before = self.seen();
        for (line, exit, said) in table {
            let out = self.run(line);
            let complained = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(*exit), "{line}: {complained}");
            assert!(complained.contains(said), "{line}: {complained}");
            let after = self.seen();
            let changed = |what: &str| panic!("{line}: it was refused, and has changed {what}");
            for (path, bytes) in &before.files {
                if after.files.get(path) != Some(bytes) {
                    changed(&path.display().to_string());
                }
            }
            if let Some((path, _)) = after.files.iter().find(|(path, _)| !before.files.contains_key(*path)) {
                changed(&format!("what is there: {} is new", path.display()));
            }
            for (at, (name, _)) in self.volumes.iter().enumerate() {
                if after.volumes[at] != before.volumes[at] {
                    changed(&format!("volume {name}"));
                }
            }
            assert_eq!(after.reservations, before.reservations, "{line}");
            assert_eq!(after.listed, before.listed, "{line}");
            assert_eq!(after.paths, before.paths, "{line}");
        }
    }
}

#[test]
fn a_copy_that_is_refused_changes_nothing() {
    Stage::new().refuses(&[
        // To itself, by whatever name.
        ("copy source.img source.img", 2, "the same volume"),
        ("copy source.img ./source.img", 2, "the same volume"),
        ("copy source.img link", 2, "the same volume"),
        ("copy link source.img --force", 2, "the same volume"),
        ("copy source.img hard", 2, "the same volume"),
        ("copy iscsi:a iscsi:a", 2, "the same volume"),
        ("copy iscsi:a nvme:a --force", 2, "the same volume"),
        // What is not there, or no end of a copy.
        ("copy absent.img source.img", 1, "absent.img"),
        ("copy absent.img iscsi:a", 1, "absent.img"),
        ("copy empty.img iscsi:a", 2, "holds nothing"),
        ("copy empty.img source.img", 2, "holds nothing"),
        ("copy dir source.img", 2, "neither a file nor a block device"),
        ("copy iscsi:a dir", 1, "dir"),
        ("copy iscsi:a dangling", 1, "dangling"),
        ("copy iscsi:a absent/disk.img", 1, "absent"),
        ("copy iscsi:a /dev/null", 2, "neither a file nor a block device"),
        ("copy gone:a source.img", 8, "is the target running"),
        ("copy iscsi:nobody source.img", 21, "nobody"),
        ("copy nvme:nobody source.img", 21, "nobody"),
        ("copy source.img gone:a", 8, "is the target running"),
        ("copy source.img iscsi:nobody", 21, "nobody"),
        ("copy iscsi://nonsense source.img", 2, "iscsi://"),
        // A volume's name that is none.
        ("copy source.img demo", 2, "not a volume's URL"),
        ("copy iscsi:a demo", 2, "not a volume's URL"),
        // What does not fit, or must not be written to.
        ("copy big.img iscsi:small", 2, "make it larger"),
        ("copy odd.img nvme:small", 2, "make it larger"),
        ("copy iscsi:a nvme:small", 2, "make it larger"),
        ("copy source.img iscsi:fixed", 2, "read-only"),
        ("copy source.img nvme:fixed --force", 2, "read-only"),
        // What somebody uses.
        ("copy iscsi:a served.img", 1, "locked by another process"),
        ("copy iscsi:a served.img --force", 1, "locked by another process"),
        ("copy iscsi:kept served.img", 1, "locked by another process"),
        ("copy served.img iscsi:b", 2, "open for writing in another process"),
        ("copy source.img iscsi:reserved", 2, "write-exclusive"),
        ("copy source.img nvme:reserved", 2, "write-exclusive"),
        ("copy source.img striped:reserved", 2, "write-exclusive"),
    ]);
}

#[test]
fn a_read_that_is_refused_leaves_its_file_alone() {
    Stage::new().refuses(&[
        ("read gone:a -o source.img", 8, "is the target running"),
        ("read iscsi:nobody -o source.img", 21, "nobody"),
        ("read nvme:nobody --output link", 21, "nobody"),
        ("read nvme:nobody --output absent.img", 21, "nobody"),
        ("read iscsi://nonsense -o source.img", 2, "iscsi://"),
        ("read iscsi:a --offset 2M --length 512 -o source.img", 2, "beyond its end"),
        ("read iscsi:a --offset 3M -o source.img", 2, "beyond its end"),
        ("read nvme:a --length 3M -o source.img", 2, "beyond its end"),
        ("read nvme:a --offset 100 -o source.img", 2, "multiple"),
        ("read iscsi:kept -o served.img", 1, "locked by another process"),
        ("read iscsi:a -o served.img --force", 1, "locked by another process"),
        ("read iscsi:a -o dir", 1, "dir"),
        ("read iscsi:a -o dangling", 1, "dangling"),
        ("read iscsi:a -o absent/file", 1, "absent"),
        ("read iscsi:a --json", 2, "--output"),
    ]);
}

#[test]
fn a_write_that_is_refused_leaves_its_volume_alone() {
    Stage::new().refuses(&[
        ("write gone:a -i source.img", 8, "is the target running"),
        ("write iscsi:nobody -i source.img", 21, "nobody"),
        ("write iscsi:small -i big.img", 2, "beyond its end"),
        ("write nvme:small -i odd.img", 2, "beyond its end"),
        ("write iscsi:a --offset 1536K -i source.img", 2, "beyond its end"),
        ("write iscsi:a --offset 4M -i source.img", 2, "beyond its end"),
        ("write iscsi:a --offset 100 -i source.img", 2, "multiple"),
        ("write nvme:a --length 2M -i source.img", 2, "the input has"),
        ("write nvme:small --length 2M", 2, "beyond its end"),
        ("write iscsi:small --length 2M -i /dev/zero", 2, "beyond its end"),
        ("write iscsi:small -i /dev/zero", 2, "beyond its end"),
        ("write nvme:fixed -i source.img", 2, "read-only"),
        ("write iscsi:reserved -i source.img", 2, "write-exclusive"),
        ("write nvme:reserved -i source.img", 2, "write-exclusive"),
        ("write striped:reserved -i source.img", 2, "write-exclusive"),
        ("write nvme:reserved -i source.img --force", 1, "reserv"),
        ("write iscsi:a -i dir", 2, "a directory"),
        ("write iscsi:a -i absent.img", 1, "absent.img"),
    ]);
}

#[test]
fn a_comparison_changes_nothing_whatever_it_finds() {
    Stage::new().refuses(&[
        ("verify source.img iscsi:a", 1, "bytes"),
        ("verify other.img iscsi:a", 1, "differs"),
        ("verify iscsi:a nvme:b", 1, "differs"),
        ("verify iscsi:a dir", 2, "neither"),
        ("verify iscsi:a absent.img", 1, "absent.img"),
        ("verify iscsi:a gone:b", 8, "is the target running"),
    ]);
}

#[test]
fn a_reservation_that_is_refused_stands_as_it_did() {
    Stage::new().refuses(&[
        ("reserve iscsi:reserved release --key 0xdead --type write-exclusive", 1, "reserv"),
        ("reserve iscsi:reserved release --key 0xabc1 --type exclusive-access", 1, "another type"),
        ("reserve iscsi:reserved release --key 0xabc1", 2, "--type"),
        ("reserve iscsi:reserved clear --key 0xdead", 1, "reserv"),
        ("reserve nvme:reserved clear --key 0xabc1", 1, "reserv"),
        ("reserve iscsi:reserved clear", 2, "--key"),
        ("reserve nvme:reserved preempt --key 0xabc1 --victim 0xabc1 --type write-exclusive", 1, "reserv"),
        ("reserve iscsi:reserved preempt --key 0xabc1 --type write-exclusive", 2, "--victim"),
        (
            "reserve iscsi:reserved preempt-abort --key 0xdead --victim 0xabc1 --type write-exclusive",
            1,
            "reserv",
        ),
        ("reserve iscsi:reserved unregister --key 0xdead", 1, "reserv"),
        ("reserve iscsi:reserved replace --key 0xdead --new-key 1", 1, "reserv"),
        ("reserve iscsi:reserved replace --key 0xabc1", 2, "--new-key"),
        ("reserve iscsi:reserved register --key 0xabc2", 1, "reserv"),
        ("reserve iscsi:reserved reserve --key 0xabc1 --type exclusive-access", 1, "reserv"),
        ("reserve nvme:reserved reserve --key 0xabc1 --type exclusive-access", 1, "reserv"),
        ("reserve gone:a clear --key 1", 8, "is the target running"),
    ]);
}

#[test]
fn an_attachment_that_is_refused_changes_nothing() {
    Stage::new().refuses(&[
        ("attach iscsi:a --via nbd --at source.img", 1, "source.img"),
        ("attach iscsi:a --via nbd --at dir", 1, "dir"),
        ("attach nvme:a --via vhost-user --at source.img", 1, "source.img"),
        ("attach iscsi:a --via fuse --at source.img", 1, "source.img"),
        ("attach iscsi:a --via nbd --at absent/socket", 1, "absent"),
        ("attach gone:a --via nbd --at source.img", 8, "is the target running"),
        ("attach iscsi:nobody --via nbd --at new.sock", 21, "nobody"),
        ("attach iscsi:a --via floppy", 2, "floppy"),
        ("attach iscsi:a --recover --via nbd --at source.img", 1, "source.img"),
        ("detach source.img", 21, "source.img"),
        ("detach dir --now", 21, "dir"),
        ("detach 1", 21, "1"),
    ]);
}

#[test]
fn a_volume_verb_that_is_refused_changes_nothing() {
    let mut stage = Stage::new();
    let served = stage.work.join("served.img");
    let alias = format!("volume create c=file:{},size=4M", served.display());
    let taken = format!("volume create kept=file:{}/new.img,size=1M", stage.work.display());
    let grown = format!("volume create a=file:{}/source.img,size=4M", stage.work.display());
    let missing = format!("volume create c=file:{}/absent.img", stage.work.display());
    let nowhere = format!("volume create c=file:{}/absent/new.img,size=1M", stage.work.display());
    let directory = format!("volume create c=file:{}/dir,size=1M", stage.work.display());
    let empty = format!("volume create c=file:{}/empty.img", stage.work.display());
    let uuid = json(&["info", &urls(&stage.daemon, "a")[0], "--json"])["uuid"].as_str().unwrap().to_owned();
    // These are refused when the file has been made, or made larger.
    let as_another = format!("volume create c=file:{}/new.img,size=1M,uuid={uuid}", stage.work.display());
    let grown_as_another =
        format!("volume create c=file:{}/source.img,size=4M,uuid={uuid}", stage.work.display());
    let strange = format!("volume create C=file:{}/source.img,size=4M", stage.work.display());
    let legs = ["one", "two"].map(|leg| stage.work.join(leg));
    legs.iter().for_each(|leg| fs::write(leg, pattern(MIB, 11)).unwrap());
    let striped = format!("stripe:file:{}+file:{}", legs[0].display(), legs[1].display());
    let striped = stage.run(&format!("volume create striped={striped}"));
    assert!(striped.status.success(), "{}", String::from_utf8_lossy(&striped.stderr));
    let taken_file = format!("volume snapshot kept {}/source.img", stage.work.display());
    let taken_name = format!("volume clone kept a {}/new.img", stage.work.display());
    stage.refuses(&[
        (&taken_file, 1, "exists"),
        (&taken_name, 1, "\"a\""),
        ("volume snapshot a work/new.img", 1, "is in no file"),
        ("volume snapshot nobody work/new.img", 21, "nobody"),
        ("volume clone striped twin work/new.img", 1, "is a stripe"),
        ("volume clone nobody twin work/new.img", 21, "nobody"),
        ("volume snapshot kept work/none/new.img", 1, "none/new.img"),
        (&alias, 1, "already open"),
        (&taken, 1, "kept"),
        (&grown, 1, "\"a\""),
        (&missing, 1, "does not exist"),
        (&nowhere, 1, "absent"),
        (&directory, 1, "not a regular file"),
        (&empty, 1, "smaller than one block"),
        ("volume create c=file:", 2, ""),
        (&as_another, 1, "already used by volume \"a\""),
        (&grown_as_another, 1, "already used by volume \"a\""),
        (&strange, 2, "C"),
        ("volume delete nobody", 21, "nobody"),
        ("volume delete nobody --force", 21, "nobody"),
        ("volume delete a", 1, "force"),
        ("volume delete kept", 1, "force"),
        ("volume resize kept 1M", 1, "shrink"),
        ("volume resize kept 1000001", 2, "multiple of the block"),
        ("volume resize kept 0", 2, "multiple of the block"),
        ("volume resize fixed 4M", 2, "write-protected"),
        ("volume resize fixed 1M --shrink", 2, "write-protected"),
        ("volume resize golden 4M", 2, "write-protected"),
        ("volume resize golden 512K --shrink", 2, "write-protected"),
        ("volume resize striped 1M --shrink", 2, "the size of its legs"),
        ("volume resize nobody 4M", 21, "nobody"),
        ("volume resize nobody 1M --shrink", 21, "nobody"),
        ("volume retry nobody", 21, "nobody"),
        ("volume retry a", 1, "has not failed"),
        ("volume set fixed --read-only off", 1, "opened read-only"),
        ("volume set nobody --read-only on", 21, "nobody"),
        ("volume set a --read-only perhaps", 2, "perhaps"),
    ]);
}

#[test]
fn a_path_that_cannot_be_set_stays_as_it_is() {
    Stage::new().refuses(&[
        ("path set nobody --state inaccessible", 21, "nobody"),
        ("path set a --port 9 --state inaccessible", 21, "no such path"),
        ("path set a --port 1", 2, "--state"),
        ("path set nobody --preferred on", 21, "nobody"),
        ("path set a --group 9 --state inaccessible", 21, "no such path"),
        ("path set a --port 1 --group 1 --state inaccessible", 2, "--group"),
        ("path set a --state asleep", 2, "asleep"),
        ("path set a", 2, "--state"),
    ]);
}

#[test]
fn an_option_of_iscsictl_that_is_refused_changes_nothing() {
    Stage::new().refuses(&[
        ("iscsictl -S target=iqn.2026-11.x:nobody", 21, "nobody"),
        ("iscsictl -S target=ALL -f notes.txt", 2, "notes.txt"),
        ("iscsictl -s target=iqn.2026-11.x:nobody", 21, "nobody"),
        ("iscsictl -s target=ALL,iqn.2026-11.io.blockwire:a", 2, "target=ALL"),
        ("iscsictl -s", 2, "target="),
        ("iscsictl -D nonsense", 2, "nonsense"),
        ("iscsictl -D 0x1", 21, "1"),
        ("iscsictl -W", 2, "-W"),
    ]);
}

#[test]
fn pages_that_cannot_be_written_leave_what_is_there() {
    Stage::new().refuses(&[("man source.img", 1, "source.img"), ("man", 2, "DIRECTORY")]);
}

#[test]
fn load_that_is_refused_writes_nothing() {
    Stage::new().refuses(&[
        ("bench nvme:fixed --rw=write --runtime=1", 2, "read-only"),
        ("bench nvme:a nvme:fixed --rw=write --runtime=1", 2, "read-only"),
        ("bench nvme:a iscsi:nobody --rw=write --runtime=1", 21, "nobody"),
        ("bench nvme:a --rw=write --bs=100 --runtime=1", 2, ""),
        ("bench nvme:a --rw=write --bs=4M --runtime=1", 2, "hold no I/O"),
        ("bench nvme:a --rw=write --sideways=1", 2, "sideways"),
        ("bench nvme:reserved --rw=write --runtime=1", 2, "write-exclusive"),
        ("bench iscsi:reserved --rw=randrw --runtime=1 --threads 2", 2, "write-exclusive"),
        ("bench file:served.img --rw=read --runtime=1", 1, "in use by another process"),
        ("bench file:served.img --rw=write --runtime=1", 1, "locked by another process"),
        ("bench file:served.img --rw=write --runtime=1 --force", 1, "locked by another process"),
        ("bench file:fixed.img --rw=write --runtime=1", 1, "locked by another process"),
        ("bench file:fixed.img --rw=randtrim --runtime=1", 1, "locked by another process"),
        ("bench file:absent.img --rw=write --runtime=1", 1, "absent.img"),
        ("host key source.img", 1, "source.img"),
        ("host key link", 1, "link"),
        ("key generate source.img", 1, "source.img"),
        ("key generate --kind tls --hash sha512 new.key", 2, "sha512"),
        ("key generate link", 1, "link"),
        ("key derive source.img --host nqn.h --output new.key", 1, "source.img"),
        ("import lio absent.json -o new.toml", 2, "absent.json"),
    ]);
}

#[test]
fn an_evaluation_that_is_refused_changes_nothing() {
    let mut stage = Stage::new();
    fs::create_dir(stage.work.join("taken")).unwrap();
    fs::write(stage.work.join("taken/record.json"), "hours of a run").unwrap();
    let password = urls(&stage.daemon, "a")[0].replace("://", "://me%a-long-password@");
    let told = format!("eval run quick --url={password}");
    stage.refuses(&[
        ("eval run nonsense --url iscsi:a", 2, "nonsense"),
        (&told, 2, "would appear in the report"),
        ("eval run quick --url iscsi:a --out taken", 2, "the record of another run"),
        ("eval run quick --url iscsi:a --out source.img", 1, "source.img"),
        ("eval run quick --target tgt --url iscsi:a --force", 2, "--out"),
        // These begin, read what may be read, and say what was refused in a record of their own.
        ("eval run quick --url=iscsi://nonsense --scale smallest --time 5 --out ../1", 1, "name is missing"),
        ("eval run quick --url iscsi:reserved --scale smallest --time 5 --out ../2", 0, "write-exclusive"),
        ("eval run quick --url nvme:fixed --scale smallest --time 5 --out ../3", 0, "read-only"),
        ("eval import notes.txt --out taken", 2, "the record of another run"),
        ("eval import notes.txt --out new", 1, "notes.txt"),
        ("eval export nonsense --as fio --out source.img", 2, "nonsense"),
        ("eval report taken --out source.img", 1, "record.json"),
    ]);
}

/// What waits writes would go to another volume: note and socket stay as they are.
#[test]
fn a_recovery_of_another_volume_leaves_what_waits() {
    let mut stage = Stage::new();
    let other = json(&["info", &urls(&stage.daemon, "b")[0], "--json"])["uuid"].as_str().unwrap().to_owned();
    let notes = stage.place.path("run/attached");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&notes).unwrap();
    let socket = notes.join("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    // Of a process that is dead, whose users are still at its socket.
    let note = serde_json::json!({
        "pid": u32::MAX >> 2, "started": 1, "url": urls(&stage.daemon, "b")[0], "via": "nbd",
        "ways": [socket], "uuid": other, "block": 512,
    });
    fs::write(notes.join("1.json"), note.to_string()).unwrap();
    let recover = |options: &str| format!("attach iscsi:a --at {} {options}", socket.display());
    let (plain, other, by_fuse) =
        (recover("--via nbd"), recover("--via nbd --recover"), recover("--via fuse --recover"));
    stage.refuses(&[
        (&plain, 1, "waiting to be recovered"),
        (&other, 2, "writes would go to another volume"),
        (&by_fuse, 2, "was attached via nbd"),
    ]);
    assert_eq!(fs::read_to_string(notes.join("1.json")).unwrap(), note.to_string());
    assert!(socket.symlink_metadata().is_ok());
}

/// One of several threads cannot begin: the others must not have begun either.
#[test]
fn load_of_which_a_part_is_refused_writes_nothing() {
    let mut stage = Stage::new();
    let a = urls(&stage.daemon, "a")[1].clone();
    let fixed = urls(&stage.daemon, "fixed")[1].clone();
    // The second thread has a worker of the first job alone.
    let job = format!(
        "[global]\nrw=write\nbs=4k\nruntime=1\ntime_based\n[one]\nnumjobs=2\nfilename={}\n[two]\nfilename={}\n",
        "/dev/one", "/dev/two"
    );
    fs::write(stage.work.join("job.fio"), job).unwrap();
    let line = format!("bench --threads 2 --job job.fio --map /dev/one={a} --map /dev/two={fixed}");
    stage.refuses(&[(&line, 2, "read-only")]);
}

/// What is wanted all the same is done.
#[test]
fn force_overwrites_what_is_reserved_by_a_kind_that_lets_us() {
    let stage = Stage::new();
    let url = &urls(&stage.daemon, "reserved")[0];
    good(&["reserve", url, "release", "--key", "0xabc1", "--type", "write-exclusive"]);
    let source = stage.work.join("source.img");
    let source = source.to_str().unwrap();
    // Registered, and nothing held.
    good(&["copy", source, url]);
    good(&["reserve", url, "reserve", "--key", "0xabc1", "--type", "write-exclusive"]);
    // Asked for, it is tried: the target refuses it itself.
    fails(&["copy", source, url, "--force"], 1, "reserv");
    good(&["reserve", url, "clear", "--key", "0xabc1"]);
    good(&["copy", source, url, "--verify"]);
}
