//! What a nexus is for another process that goes on with it: per logical unit the unit attentions that wait and a
//! deferred error, the echo buffer, and what RECEIVE COPY RESULTS can tell. Volumes are named by their UUIDs.
//!
//! Invariant: a nexus is saved when no task of it is in work. The new process makes its specification from its own
//! configuration; what a nexus reached is as it was, until the configuration is applied to it.

use std::fmt;

use scsi::extended_copy::{CopyState, CopyStatus};
use scsi::sense::Sense;
use scsi::status::Status;
use serde::{Deserialize, Serialize};
use volume::VolumeId;

use crate::exec::report::ECHO_LEN;
use crate::nexus::{COPY_RECORDS_MAX, CopyRecord, LunEntry, LunState, NexusSpec, NexusState};
use crate::server::Server;
use crate::step::NexusKey;
use crate::unit_attention::UnitAttentions;

/// How many LUNs there are at most.
const LUNS_MAX: usize = 16_384;

/// A nexus, as plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NexusSnapshot {
    /// The relative target port identifier.
    port: u16,
    luns: Vec<LunBody>,
    echo: Option<Vec<u8>>,
    copies: Vec<CopyBody>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LunBody {
    lun: u16,
    /// `None`: its volume is away.
    volume: Option<[u8; 16]>,
    read_only: bool,
    /// Codes, oldest first.
    attentions: Vec<u16>,
    /// In descriptor format.
    deferred: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CopyBody {
    id: u8,
    done: bool,
    segments: u16,
    bytes: u64,
    /// Status, and sense data in descriptor format.
    failure: Option<(u8, Vec<u8>)>,
}

/// Why a nexus cannot go on from what was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NexusRestoreError {
    /// It came by another target port than the one that its name has now.
    OtherPort,
    /// The snapshot contradicts itself, in this.
    Contradiction(&'static str),
}

/// In words.
impl fmt::Display for NexusRestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NexusRestoreError::OtherPort => f.write_str("its target port has another number now"),
            NexusRestoreError::Contradiction(what) => {
                write!(f, "a snapshot that contradicts itself ({what})")
            }
        }
    }
}

impl std::error::Error for NexusRestoreError {}

fn sense_bytes(sense: &Sense) -> Vec<u8> {
    let mut bytes = vec![0; Sense::LEN_MAX];
    let len = sense.encode(true, &mut bytes);
    bytes.truncate(len);
    bytes
}

fn sense_of(bytes: &[u8]) -> Option<Sense> {
    Some(Sense::decode(bytes)?.sense)
}

impl Server {
    /// How many tasks and functions are in work, for hosts or for the server itself.
    pub fn work_count(&self) -> usize {
        let waits = !self.context.functions.is_empty() || !self.context.steps.is_empty();
        self.context.tasks.iter().count() + usize::from(waits)
    }

    /// A nexus for another process. No task of it may be in work.
    pub fn save_nexus(&self, key: NexusKey) -> NexusSnapshot {
        let state = self.context.nexus_state(key);
        let lun = |(entry, state): (&LunEntry, &LunState)| LunBody {
            lun: entry.lun,
            volume: self.context.logical_unit(entry.volume).map(|unit| unit.spec.uuid.0),
            read_only: entry.read_only,
            attentions: state.attentions.iter().map(|code| code.0).collect(),
            deferred: state.deferred.as_ref().map(sense_bytes),
        };
        let copy = |copy: &CopyRecord| CopyBody {
            id: copy.id,
            done: copy.status.state == CopyState::Done,
            segments: copy.status.segments,
            bytes: copy.status.bytes,
            failure: copy.failure.as_ref().map(|(status, sense)| (status.0, sense_bytes(sense))),
        };
        NexusSnapshot {
            port: state.spec.nexus.port.0,
            luns: state.spec.luns.iter().zip(&state.luns).map(lun).collect(),
            echo: state.echo.clone(),
            copies: state.copies.iter().map(copy).collect(),
        }
    }

    /// Opens a nexus that goes on from what was saved. Of `spec` its logical units are replaced by those that it
    /// had; a volume that is not here is away.
    ///
    /// # Errors
    /// The snapshot contradicts itself, or is of another target port. Nothing is opened then.
    pub fn restore_nexus(
        &mut self,
        spec: NexusSpec,
        snapshot: &NexusSnapshot,
    ) -> Result<NexusKey, NexusRestoreError> {
        let check = |sound: bool, what| sound.then_some(()).ok_or(NexusRestoreError::Contradiction(what));
        if spec.nexus.port.0 != snapshot.port {
            return Err(NexusRestoreError::OtherPort);
        }
        check(snapshot.luns.len() <= LUNS_MAX, "logical units")?;
        check(snapshot.luns.is_sorted_by(|one, next| one.lun < next.lun), "logical units")?;
        check(snapshot.copies.len() <= COPY_RECORDS_MAX, "copies")?;
        check(
            snapshot.echo.as_ref().is_none_or(|echo| echo.len() <= usize::from(ECHO_LEN)),
            "the echo buffer",
        )?;
        let mut luns = Vec::with_capacity(snapshot.luns.len());
        for body in &snapshot.luns {
            let attentions = UnitAttentions::from_codes(&body.attentions)
                .ok_or(NexusRestoreError::Contradiction("unit attentions"))?;
            let deferred = match &body.deferred {
                Some(bytes) => {
                    Some(sense_of(bytes).ok_or(NexusRestoreError::Contradiction("a deferred error"))?)
                }
                None => None,
            };
            luns.push(LunState { attentions, deferred, ..self.new_lun_state() });
        }
        let copies = snapshot.copies.iter().map(restored_copy).collect::<Result<Vec<_>, _>>()?;
        let entries = snapshot.luns.iter().map(|body| self.lun_entry(body)).collect();
        let spec = NexusSpec { luns: entries, ..spec };
        let mut state = NexusState::new(spec, luns);
        (state.echo, state.copies) = (snapshot.echo.clone(), copies);
        Ok(self.context.insert_nexus(state))
    }

    fn lun_entry(&self, body: &LunBody) -> LunEntry {
        let is_it = |uuid: &[u8; 16]| {
            self.context.units.iter().find(|(_, unit)| unit.spec.uuid.0 == *uuid).map(|(volume, _)| volume)
        };
        let volume = body.volume.as_ref().and_then(is_it).unwrap_or(VolumeId::UNAVAILABLE);
        LunEntry { lun: body.lun, volume, read_only: body.read_only }
    }
}

fn restored_copy(body: &CopyBody) -> Result<CopyRecord, NexusRestoreError> {
    let state = if body.done { CopyState::Done } else { CopyState::Failed };
    let failure = match &body.failure {
        Some((status, sense)) => {
            let sense = sense_of(sense).ok_or(NexusRestoreError::Contradiction("a copy's failure"))?;
            Some((Status(*status), sense))
        }
        None => None,
    };
    let status = CopyStatus { state, segments: body.segments, bytes: body.bytes };
    Ok(CopyRecord { id: body.id, status, failure })
}
