//! What a process does to files below a directory, from its system calls as `strace` tells them.
//!
//! Invariant: what is not understood of a call that changes files ends the test. Nothing is left out in silence.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

/// A file, whatever its name is by now.
pub type Inode = usize;

/// A change of the files below the root; paths are from there on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new file.
    Make(PathBuf, Inode),
    /// A new directory.
    MakeDir(PathBuf),
    Write(Inode, usize, Vec<u8>),
    SetLen(Inode, usize),
    Sync(Inode),
    SyncDir(PathBuf),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    /// The process has told somebody that what it did up to here is done.
    Told(u32),
}

/// The names of marks, before their numbers.
const TOLD: &str = "told-";
/// Calls that are looked at.
const CALLS: &str = "openat,open,creat,close,dup,dup2,dup3,fcntl,write,pwrite64,writev,pwritev,pwritev2,fsync,fdatasync,\
sync,syncfs,sync_file_range,msync,truncate,ftruncate,fallocate,rename,renameat,renameat2,link,linkat,symlink,symlinkat,\
unlink,unlinkat,rmdir,mkdir,mkdirat,copy_file_range,sendfile,io_uring_setup";

/// Says in a process that is traced that what it did up to here is done.
pub fn tell(root: &Path, number: u32) {
    std::fs::write(root.join(format!("{TOLD}{number}")), []).unwrap();
}

/// Runs this test program again, for the one test `scenario`, and gives what that did below `root`.
pub fn of(scenario: &str, root: &Path, environment: (&str, &Path)) -> Vec<Change> {
    let log = root.with_extension("strace");
    let program = std::env::current_exe().unwrap();
    let out = Command::new("strace")
        .args(["-f", "-xx", "-s", "1048576", "-e", &format!("trace={CALLS}"), "-o"])
        .arg(&log)
        .arg(program)
        .args(["--exact", scenario, "--test-threads=1", "--nocapture"])
        .env(environment.0, environment.1)
        .stdin(Stdio::null())
        .output()
        .expect("strace runs: install it (tests/setup.sh crash)");
    assert!(out.status.success(), "{scenario}: {}", String::from_utf8_lossy(&out.stderr));
    let text = std::fs::read_to_string(&log).unwrap();
    let mut trace = Trace { root, files: BTreeMap::new(), names: BTreeMap::new(), made: 0, changes: vec![] };
    whole_calls(&text).iter().for_each(|call| trace.take(call));
    assert!(
        trace.changes.iter().any(|change| matches!(change, Change::Told(_))),
        "{scenario} told nothing: {text}"
    );
    trace.changes
}

/// The calls, each in one line without its process: one that another interrupts comes in two parts.
fn whole_calls(text: &str) -> Vec<String> {
    let mut begun: BTreeMap<&str, &str> = BTreeMap::new();
    let mut calls = vec![];
    for line in text.lines() {
        let (process, call) = line.split_once(' ').expect("a line begins with a process");
        let call = call.trim_start();
        if let Some(first) = call.strip_suffix(" <unfinished ...>") {
            begun.insert(process, first);
        } else if let Some(rest) = call.strip_prefix("<... ") {
            let first = begun.remove(process).expect("what goes on has begun");
            let (_, rest) = rest.split_once(" resumed>").expect("what goes on says so");
            calls.push(format!("{first}{rest}"));
        } else if !call.starts_with("+++") && !call.starts_with("---") {
            calls.push(call.to_owned());
        }
    }
    calls
}

/// An open file of the process.
#[derive(Clone, Debug)]
enum Open {
    File { inode: Inode, at: usize, appends: bool },
    Dir(PathBuf),
    Told,
}

struct Trace<'a> {
    root: &'a Path,
    files: BTreeMap<i64, Open>,
    names: BTreeMap<PathBuf, Option<Inode>>,
    made: usize,
    changes: Vec<Change>,
}

impl Trace<'_> {
    fn take(&mut self, call: &str) {
        let (name, rest) = call.split_once('(').expect("a call has arguments");
        let (arguments, result) = rest.rsplit_once(" = ").expect("a call has a result");
        let arguments = arguments.trim_end().strip_suffix(')').expect("arguments end");
        let arguments: Vec<&str> = arguments.split(", ").collect();
        let result: i64 = match result.split(' ').next().and_then(|word| word.parse().ok()) {
            Some(result) if result >= 0 => result,
            // It has failed, or the process has ended: nothing has changed.
            _ => return,
        };
        let number = |at: usize| arguments[at].parse::<i64>().expect("a number");
        match name {
            "openat" => self.opened(self.path(arguments[0], arguments[1]), arguments[2], result),
            "open" => self.opened(self.path(CWD, arguments[0]), arguments[1], result),
            "close" => drop(self.files.remove(&number(0))),
            "fcntl" if arguments[1].starts_with("F_DUPFD") => self.copy(number(0), result),
            "dup" | "dup2" | "dup3" => self.copy(number(0), result),
            "fcntl" => {}
            "write" => self.write(number(0), None, arguments[1]),
            "pwrite64" => self.write(number(0), Some(number(3) as usize), arguments[1]),
            "fsync" | "fdatasync" => match self.files.get(&number(0)) {
                Some(Open::File { inode, .. }) => self.changes.push(Change::Sync(*inode)),
                Some(Open::Dir(path)) => self.changes.push(Change::SyncDir(path.clone())),
                Some(Open::Told) | None => {}
            },
            "ftruncate" => {
                if let Some(Open::File { inode, .. }) = self.files.get(&number(0)) {
                    self.changes.push(Change::SetLen(*inode, number(1) as usize));
                }
            }
            "rename" => self.rename(self.path(CWD, arguments[0]), self.path(CWD, arguments[1])),
            "renameat" | "renameat2" => {
                let to = self.path(arguments[2], arguments[3]);
                self.rename(self.path(arguments[0], arguments[1]), to);
            }
            "link" => self.link(self.path(CWD, arguments[0]), self.path(CWD, arguments[1])),
            "linkat" => {
                let to = self.path(arguments[2], arguments[3]);
                self.link(self.path(arguments[0], arguments[1]), to);
            }
            "unlink" | "rmdir" => self.remove(self.path(CWD, arguments[0])),
            "unlinkat" => self.remove(self.path(arguments[0], arguments[1])),
            "mkdir" => self.make_dir(self.path(CWD, arguments[0])),
            "mkdirat" => self.make_dir(self.path(arguments[0], arguments[1])),
            // Whether holes can be punched is tried behind the end of a file, which changes nothing.
            "fallocate" if arguments[1].contains("FALLOC_FL_KEEP_SIZE") => {}
            _ => {
                let ours = arguments.iter().any(|word| match word.parse() {
                    Ok(file) => self.files.contains_key(&file),
                    Err(_) => self.path(CWD, word).is_some(),
                });
                assert!(!ours, "what this does is not known here: {call}");
            }
        }
    }

    /// The path below the root that a call names, if it is one.
    fn path(&self, directory: &str, name: &str) -> Option<PathBuf> {
        let name = name.strip_prefix('"')?.strip_suffix('"')?;
        let name = PathBuf::from(String::from_utf8(bytes(name)).expect("a path of this test"));
        if let Some(file) = name.to_str()?.strip_prefix("/proc/self/fd/") {
            let Open::File { inode, .. } = self.files.get(&file.parse().ok()?)? else { return None };
            return self
                .names
                .iter()
                .find(|(_, known)| **known == Some(*inode))
                .map(|(path, _)| path.clone());
        }
        let whole = match directory.parse().ok().and_then(|file: i64| self.files.get(&file)) {
            Some(Open::Dir(at)) => self.root.join(at).join(name),
            _ => name,
        };
        let below = whole.strip_prefix(self.root).ok()?;
        Some(below.components().filter(|part| matches!(part, Component::Normal(_))).collect())
    }

    fn opened(&mut self, path: Option<PathBuf>, flags: &str, file: i64) {
        let Some(path) = path else {
            self.files.remove(&file);
            return;
        };
        if let Some(number) = path.to_str().and_then(|path| path.strip_prefix(TOLD)) {
            self.changes.push(Change::Told(number.parse().expect("a mark has a number")));
            self.files.insert(file, Open::Told);
            return;
        }
        if flags.contains("O_DIRECTORY")
            || path.as_os_str().is_empty()
            || self.names.get(&path) == Some(&None)
        {
            self.files.insert(file, Open::Dir(path));
            return;
        }
        let inode = match self.names.get(&path) {
            Some(Some(inode)) => *inode,
            _ => {
                assert!(flags.contains("O_CREAT"), "{} was not there", path.display());
                self.made += 1;
                self.names.insert(path.clone(), Some(self.made));
                self.changes.push(Change::Make(path, self.made));
                self.made
            }
        };
        if flags.contains("O_TRUNC") {
            self.changes.push(Change::SetLen(inode, 0));
        }
        self.files.insert(file, Open::File { inode, at: 0, appends: flags.contains("O_APPEND") });
    }

    fn copy(&mut self, of: i64, to: i64) {
        match self.files.get(&of).cloned() {
            Some(open) => self.files.insert(to, open),
            None => self.files.remove(&to),
        };
    }

    fn write(&mut self, file: i64, offset: Option<usize>, data: &str) {
        let Some(Open::File { inode, at, appends }) = self.files.get_mut(&file) else { return };
        assert!(!*appends, "what is appended is not followed");
        let data = data.strip_prefix('"').and_then(|data| data.strip_suffix('"')).expect("data is whole");
        let data = bytes(data);
        let begin = offset.unwrap_or(*at);
        if offset.is_none() {
            *at += data.len();
        }
        self.changes.push(Change::Write(*inode, begin, data));
    }

    fn rename(&mut self, from: Option<PathBuf>, to: Option<PathBuf>) {
        let (Some(from), Some(to)) = (from, to) else { return };
        let node = self.names.remove(&from).expect("what is renamed is there");
        self.names.insert(to.clone(), node);
        self.changes.push(Change::Rename(from, to));
    }

    fn link(&mut self, from: Option<PathBuf>, to: Option<PathBuf>) {
        let (Some(from), Some(to)) = (from, to) else { return };
        let node = *self.names.get(&from).expect("what is linked is there");
        self.names.insert(to.clone(), node);
        self.changes.push(Change::Link(from, to));
    }

    fn remove(&mut self, path: Option<PathBuf>) {
        if let Some(path) = path {
            self.names.remove(&path);
            self.changes.push(Change::Remove(path));
        }
    }

    fn make_dir(&mut self, path: Option<PathBuf>) {
        if let Some(path) = path {
            self.names.insert(path.clone(), None);
            self.changes.push(Change::MakeDir(path));
        }
    }
}

const CWD: &str = "AT_FDCWD";

/// The bytes of a string that strace has written in hexadecimal.
fn bytes(text: &str) -> Vec<u8> {
    let each = text.split("\\x").skip(1);
    each.map(|digits| u8::from_str_radix(digits, 16).expect("strace -xx writes two digits")).collect()
}
