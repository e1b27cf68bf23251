//! What a failure of the power may leave of a traced process's files.
//!
//! The file system promises what POSIX does, and no more. A file's contents are stable when the file was synced,
//! its name when the directory was. Before that each change of a directory may have reached the medium or not, each
//! by itself, and of a file each sector of 512 bytes, and its length with or without its contents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sim::SimRng;

use crate::trace::{Change, Inode};

const SECTOR: usize = 512;
/// Changes of directories of which every selection is tried.
const EVERY_MAX: usize = 4;
/// Selections and contents that chance decides.
const DRAWN: usize = 4;

/// A name's file; `None`: a directory.
type Node = Option<Inode>;

/// One change of directories: what the names become. It is made in whole.
#[derive(Clone, Debug)]
struct Naming {
    names: Vec<(PathBuf, Option<Node>)>,
}

#[derive(Clone, Debug, Default)]
struct Contents {
    stable: Vec<u8>,
    now: Vec<u8>,
}

/// The files at a moment.
#[derive(Clone, Debug, Default)]
pub struct Medium {
    stable: BTreeMap<PathBuf, Node>,
    /// What they are named now.
    names: BTreeMap<PathBuf, Node>,
    pending: Vec<Naming>,
    contents: BTreeMap<Inode, Contents>,
    /// What was told last.
    pub told: Option<u32>,
}

/// Files and directories (`None`) as they are left.
pub type Left = BTreeMap<PathBuf, Option<Vec<u8>>>;

impl Medium {
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Make(path, inode) => {
                self.contents.entry(*inode).or_default();
                self.name(vec![(path.clone(), Some(Some(*inode)))]);
            }
            Change::MakeDir(path) => self.name(vec![(path.clone(), Some(None))]),
            Change::Link(from, to) => self.name(vec![(to.clone(), Some(self.names[from]))]),
            Change::Rename(from, to) => {
                let node = self.names[from];
                self.name(vec![(from.clone(), None), (to.clone(), Some(node))]);
            }
            Change::Remove(path) => self.name(vec![(path.clone(), None)]),
            Change::Write(inode, offset, data) => {
                let now = &mut self.contents.get_mut(inode).expect("it was made").now;
                now.resize(now.len().max(offset + data.len()), 0);
                now[*offset..offset + data.len()].copy_from_slice(data);
            }
            Change::SetLen(inode, len) => {
                self.contents.get_mut(inode).expect("it was made").now.resize(*len, 0);
            }
            Change::Sync(inode) => {
                let contents = self.contents.get_mut(inode).expect("it was made");
                contents.stable.clone_from(&contents.now);
            }
            Change::SyncDir(directory) => self.sync_directory(directory),
            Change::Told(number) => self.told = Some(*number),
        }
    }

    fn name(&mut self, names: Vec<(PathBuf, Option<Node>)>) {
        put(&mut self.names, &names);
        self.pending.push(Naming { names });
    }

    fn sync_directory(&mut self, directory: &Path) {
        let is_in = |naming: &Naming| naming.names.iter().any(|(path, _)| path.parent() == Some(directory));
        let (synced, rest) = std::mem::take(&mut self.pending).into_iter().partition(is_in);
        self.pending = rest;
        let synced: Vec<Naming> = synced;
        synced.iter().for_each(|naming| put(&mut self.stable, &naming.names));
    }

    /// What a failure of the power may leave at this moment, each state once.
    pub fn crash_states(&self, chance: &mut SimRng) -> BTreeSet<Left> {
        let many = self.pending.len();
        let mut selections: BTreeSet<Vec<bool>> = BTreeSet::new();
        if many <= EVERY_MAX {
            selections
                .extend((0..1u32 << many).map(|bits| (0..many).map(|at| bits >> at & 1 != 0).collect()));
        } else {
            selections.extend((0..=many).map(|end| (0..many).map(|at| at < end).collect()));
            selections.extend((0..many).map(|one| (0..many).map(|at| at == one).collect()));
            selections.extend((0..many).map(|one| (0..many).map(|at| at != one).collect()));
            for _ in 0..DRAWN {
                selections.insert((0..many).map(|_| chance.chance_permille(500)).collect());
            }
        }
        let mut states = BTreeSet::new();
        for selected in &selections {
            let mut names = self.stable.clone();
            let made = self.pending.iter().zip(selected).filter(|(_, selected)| **selected);
            made.for_each(|(naming, _)| put(&mut names, &naming.names));
            for how in 0..4 + DRAWN {
                let contents = |inode: &Inode| self.contents[inode].left(how, chance);
                states.insert(reachable(&names, contents));
            }
        }
        states
    }
}

fn put(names: &mut BTreeMap<PathBuf, Node>, changed: &[(PathBuf, Option<Node>)]) {
    for (path, node) in changed {
        match node {
            Some(node) => names.insert(path.clone(), *node),
            None => names.remove(path),
        };
    }
}

/// The files that names lead to: what is in a directory without a name is lost.
fn reachable(names: &BTreeMap<PathBuf, Node>, mut contents: impl FnMut(&Inode) -> Vec<u8>) -> Left {
    let mut left = Left::new();
    // A directory comes before what is in it.
    for (path, node) in names {
        let parent = path.parent().unwrap_or(Path::new(""));
        if parent.as_os_str().is_empty() || left.get(parent) == Some(&None) {
            left.insert(path.clone(), node.as_ref().map(&mut contents));
        }
    }
    left
}

impl Contents {
    /// What is left: nothing that is not stable; all; the length alone; the contents, as far as the length that is stable
    /// lets them be read; or each sector by chance.
    fn left(&self, how: usize, chance: &mut SimRng) -> Vec<u8> {
        let (stable, now) = (&self.stable, &self.now);
        let sectors = |len: usize, mut new: Box<dyn FnMut() -> bool + '_>| {
            let mut left = vec![0; len];
            for (number, sector) in left.chunks_mut(SECTOR).enumerate() {
                let from = if new() { now } else { stable };
                let begin = number * SECTOR;
                let end = (begin + sector.len()).min(from.len());
                if begin < end {
                    sector[..end - begin].copy_from_slice(&from[begin..end]);
                }
            }
            left
        };
        match how {
            0 => stable.clone(),
            1 => now.clone(),
            2 => sectors(now.len(), Box::new(|| false)),
            3 => sectors(stable.len(), Box::new(|| true)),
            _ => {
                let len = if chance.chance_permille(500) { now.len() } else { stable.len() };
                sectors(len, Box::new(|| chance.chance_permille(500)))
            }
        }
    }
}

/// Makes these files in an empty directory.
pub fn lay_out(left: &Left, root: &Path) {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    for (path, contents) in left {
        let path = root.join(path);
        match contents {
            None => std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap(),
            Some(bytes) => {
                let open = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
                std::io::Write::write_all(&mut open.unwrap(), bytes).unwrap();
            }
        }
    }
}
