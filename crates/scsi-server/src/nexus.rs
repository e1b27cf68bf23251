//! An I_T nexus: who it is, and which logical units it reaches under which numbers.

use std::sync::Arc;

use volume::{Nexus, VolumeId};

use crate::attention::Attentions;
use crate::step::TaskKey;

/// One LUN of a nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LunEntry {
    /// The number: 0 to 16383.
    pub lun: u16,
    /// The volume behind it.
    pub volume: VolumeId,
    /// Whether this nexus may only read it.
    pub read_only: bool,
}

/// What INQUIRY shows: printable ASCII.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    /// T10 vendor identification, at most 8 characters.
    pub vendor: String,
    /// Product identification, at most 16 characters.
    pub product: String,
    /// Product revision level, at most 4 characters.
    pub revision: String,
}

/// What the device server must know of a nexus.
#[derive(Clone, Debug)]
pub struct NexusSpec {
    /// Who it is.
    pub nexus: Nexus,
    /// The target's name.
    pub target: Arc<str>,
    /// The target portal group tag.
    pub portal_group: u16,
    /// What it reaches, ascending by LUN.
    pub luns: Vec<LunEntry>,
    /// What INQUIRY shows of every logical unit.
    pub product: Arc<Product>,
    /// Whether SET TARGET PORT GROUPS is allowed.
    pub explicit_alua: bool,
}

/// A nexus on this shard.
#[derive(Debug)]
pub(crate) struct NexusState {
    pub(crate) spec: NexusSpec,
    /// Beside `spec.luns`.
    pub(crate) attentions: Vec<Attentions>,
    /// Slot of the task whose tag has this low half; checked against the whole tag when used.
    slots: Vec<u32>,
}

impl NexusState {
    /// A nexus with nothing in flight and nothing to report.
    pub(crate) fn new(spec: NexusSpec) -> Self {
        let attentions = vec![Attentions::default(); spec.luns.len()];
        NexusState { spec, attentions, slots: Vec::new() }
    }

    /// Notes where a task is. The low half of a tag is a dense index (see [`TaskKey`]).
    pub(crate) fn remember(&mut self, key: TaskKey, slot: u32) {
        let at = key.tag as u32 as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, u32::MAX);
        }
        self.slots[at] = slot;
    }

    /// Where a task may be: the caller checks.
    pub(crate) fn recall(&self, key: TaskKey) -> Option<u32> {
        self.slots.get(key.tag as u32 as usize).copied()
    }

    /// The place in `spec.luns` of a LUN.
    pub(crate) fn find(&self, lun: u16) -> Option<usize> {
        self.spec.luns.binary_search_by_key(&lun, |entry| entry.lun).ok()
    }
}
