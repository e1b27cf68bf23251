//! An I_T nexus: its identity, and the logical units that it reaches by number.

use std::sync::Arc;

use scsi::extended_copy::CopyStatus;
use scsi::sense::{AdditionalSenseCode, Sense};
use scsi::status::Status;
use volume::{PortId, Requester, VolumeId};

use crate::step::{NexusKey, TaskKey};
use crate::task_set::TaskSet;
use crate::unit_attention::UnitAttentions;

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

/// A volume that a nexus has no LUN of, and may name in a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyVolume {
    /// The volume.
    pub volume: VolumeId,
    /// Whether it may only be the source.
    pub read_only: bool,
}

/// What INQUIRY shows: printable ASCII.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InquiryProduct {
    /// T10 vendor identification, at most 8 characters.
    pub vendor: String,
    /// Product identification, at most 16 characters.
    pub product: String,
    /// Product revision level, at most 4 characters.
    pub revision: String,
}

impl Default for InquiryProduct {
    /// This project's.
    fn default() -> Self {
        InquiryProduct { vendor: "BLOCKWIR".into(), product: "Volume".into(), revision: "0".into() }
    }
}

/// A target port: a portal group of the target. Its target port group has the same number as the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetPort {
    /// The relative target port identifier.
    pub port: PortId,
    /// The target portal group tag.
    pub portal_group: u16,
}

/// What the device server must know of a nexus.
#[derive(Clone, Debug)]
pub struct NexusSpec {
    /// Who it is.
    pub nexus: Requester,
    /// The target's name.
    pub target: Arc<str>,
    /// The target portal group tag.
    pub portal_group: u16,
    /// All ports of the target, the nexus' own included, ascending by port.
    pub ports: Arc<[TargetPort]>,
    /// What it reaches, ascending by LUN.
    pub luns: Vec<LunEntry>,
    /// What INQUIRY shows of every logical unit.
    pub product: Arc<InquiryProduct>,
    /// Whether SET TARGET PORT GROUPS is allowed.
    pub explicit_alua: bool,
}

/// What is kept per LUN of a nexus.
#[derive(Debug)]
pub(crate) struct LunState {
    /// Tells two makings of the same LUN apart.
    pub(crate) serial: u32,
    pub(crate) attentions: UnitAttentions,
    pub(crate) order: TaskSet,
    /// Flushes that go on behind a command that was answered (see `exec/cache.rs`).
    pub(crate) flushes: u8,
    /// What became of one of them, to be told once.
    pub(crate) deferred: Option<Sense>,
}

impl LunState {
    pub(crate) fn new(serial: u32) -> Self {
        LunState {
            serial,
            attentions: UnitAttentions::default(),
            order: TaskSet::default(),
            flushes: 0,
            deferred: None,
        }
    }
}

/// A copy that RECEIVE COPY RESULTS can ask about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyRecord {
    pub(crate) id: u8,
    pub(crate) status: CopyStatus,
    pub(crate) failure: Option<(Status, Sense)>,
}

/// How many copies a nexus is told about.
pub(crate) const COPY_RECORDS_MAX: usize = 16;

/// A nexus on this shard.
#[derive(Debug)]
pub(crate) struct NexusState {
    pub(crate) spec: NexusSpec,
    /// Beside `spec.luns`.
    pub(crate) luns: Vec<LunState>,
    /// Slot of the task whose tag has this low half; checked against the whole tag when used.
    slots: Vec<u32>,
    /// What WRITE BUFFER has put into the echo buffer.
    pub(crate) echo: Option<Vec<u8>>,
    /// Ended and running copies, oldest first, at most [`COPY_RECORDS_MAX`].
    pub(crate) copies: Vec<CopyRecord>,
    /// What copies of it may name beyond its logical units; what was last said of that.
    pub(crate) copy_volumes: Vec<CopyVolume>,
    /// In whose name copies are made (see `ExecContext::open_internal_nexus`).
    pub(crate) internal_nexus: Option<NexusKey>,
}

impl NexusState {
    /// A nexus with nothing in flight and nothing to report.
    pub(crate) fn new(spec: NexusSpec, luns: Vec<LunState>) -> Self {
        NexusState {
            spec,
            luns,
            slots: Vec::new(),
            echo: None,
            copies: Vec::new(),
            copy_volumes: Vec::new(),
            internal_nexus: None,
        }
    }

    /// Notes where a task is. The low half of a tag is a dense index (see [`TaskKey`]).
    pub(crate) fn note_task_slot(&mut self, key: TaskKey, slot: u32) {
        let at = key.tag as u32 as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, u32::MAX);
        }
        if let Some(place) = self.slots.get_mut(at) {
            *place = slot;
        }
    }

    /// Where a task may be: the caller checks.
    pub(crate) fn task_slot(&self, key: TaskKey) -> Option<u32> {
        self.slots.get(key.tag as u32 as usize).copied()
    }

    /// The place in `spec.luns` of a LUN.
    pub(crate) fn lun_index(&self, lun: u16) -> Option<usize> {
        self.spec.luns.binary_search_by_key(&lun, |entry| entry.lun).ok()
    }

    /// What is kept of the LUN that a task came by, if it is still there.
    pub(crate) fn lun_state_mut(&mut self, lun: u16, serial: u32) -> Option<&mut LunState> {
        let at = self.lun_index(lun)?;
        let state = self.luns.get_mut(at)?;
        (state.serial == serial).then_some(state)
    }

    /// Adds a unit attention for a volume, by whatever LUNs it is reached.
    pub(crate) fn raise_attention(&mut self, volume: VolumeId, code: AdditionalSenseCode) {
        for (entry, state) in self.spec.luns.iter().zip(&mut self.luns) {
            if entry.volume == volume {
                state.attentions.raise(code);
            }
        }
    }

    /// The copy of this list identifier.
    pub(crate) fn copy_record_mut(&mut self, id: u8) -> Option<&mut CopyRecord> {
        self.copies.iter_mut().find(|copy| copy.id == id)
    }
}
