//! What of a volume outlives power, as bytes: reservations that persist, bad blocks, path states and
//! write protection, and whether a sanitize was begun that has not ended well. Versioned, checksummed, bound to the volume's UUID.
//!
//! ```text
//! "BWPR" version=6 flags uuid[16] reservations (see `reservation/saved.rs`)
//! count(u16) × { lba(u64) blocks(u16) }     bad blocks; none in version 1
//! protection(u8)                            1 by the operator, 2 by a host; from version 3 on; 4 a sanitize is
//!                                           owed; from version 4 on
//! count(u16) × { port(u16) state(u8) }      paths that are not optimized; from version 3 on; the uppermost bit of the
//!                                           state: preferred; from version 6 on
//! crc32c(u32) of all before; numbers little-endian
//! ```
//!
//! Invariant: bytes that differ anywhere from what was written are refused, never read as "nothing".

pub(crate) mod reader;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::bad_blocks::BadBlocks;
use crate::facts::Uuid;
use crate::io::Span;
use crate::requester::{PathAccess, PortId};
use crate::reservation::Reservations;
use crate::view::{HostWriteProtection, VolumeState};
use reader::RecordReader;

const MAGIC: &[u8; 4] = b"BWPR";
/// Version 1 knew neither Host NQNs nor bad blocks, version 2 neither paths nor protection, version 3 no sanitize. Up to
/// version 4 all iSCSI targets had their portal groups' port numbers ([`renumber_ports`]). Version 5 knew no preferred
/// paths and no standby.
const VERSION: u8 = 6;

/// The bit of a path's state that says that it is preferred.
const PREFERRED: u8 = 0x80;

const FLAG_PROTECTED_BY_OPERATOR: u8 = 1;
const FLAG_PROTECTED_BY_HOST: u8 = 2;
const FLAG_SANITIZE_OWED: u8 = 4;

/// States of paths, by their numbers in the record.
const ACCESS_CODES: [PathAccess; 6] = [
    PathAccess::Optimized,
    PathAccess::NonOptimized,
    PathAccess::Inaccessible,
    PathAccess::PersistentLoss,
    PathAccess::Transition,
    PathAccess::Standby,
];

/// What of a volume outlives power.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PersistentState {
    pub(crate) reservations: Arc<Reservations>,
    pub(crate) bad: Arc<BadBlocks>,
    /// Ascending, none of them optimized.
    pub(crate) access: Vec<(PortId, PathAccess)>,
    pub(crate) preferred: Vec<PortId>,
    pub(crate) write_protected: bool,
    pub(crate) host_protection: HostWriteProtection,
    pub(crate) owes_sanitize: bool,
}

impl PersistentState {
    pub(crate) fn from_volume_state(standing: &VolumeState) -> PersistentState {
        PersistentState {
            reservations: standing.reservations.clone(),
            bad: standing.bad.clone(),
            access: standing.access.clone(),
            preferred: standing.preferred.clone(),
            write_protected: standing.write_protected,
            host_protection: standing.host_protection,
            owes_sanitize: standing.owes_sanitize,
        }
    }
}

/// Why a volume's record cannot be trusted. The volume must not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// Not such a record.
    Foreign,
    /// Written by a later version of this software.
    Version(u8),
    /// The record is of another volume.
    OtherVolume(Uuid),
    /// The bytes do not have the checksum that they were written with.
    Checksum,
    /// The checksum is right, the contents contradict themselves.
    Contents,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::Foreign => write!(f, "not a volume's record"),
            RecordError::Version(version) => {
                write!(f, "written in format {version}, which is not known here")
            }
            RecordError::OtherVolume(uuid) => write!(f, "of another volume: {uuid}"),
            RecordError::Checksum => write!(f, "wrong checksum"),
            RecordError::Contents => write!(f, "contradictory contents"),
        }
    }
}

impl std::error::Error for RecordError {}

/// Each path that is not optimized, or is preferred, with its code, ascending.
#[expect(clippy::expect_used, reason = "the table has every state")]
fn path_codes(kept: &PersistentState) -> BTreeMap<PortId, u8> {
    let code =
        |state| ACCESS_CODES.iter().position(|known| *known == state).expect("the table has every state");
    let mut codes: BTreeMap<PortId, u8> =
        kept.access.iter().map(|(port, state)| (*port, code(*state) as u8)).collect();
    kept.preferred.iter().for_each(|port| *codes.entry(*port).or_default() |= PREFERRED);
    codes
}

/// The record's bytes: of the reservations everything, or only that nothing is to be kept.
pub(crate) fn save(uuid: Uuid, kept: &PersistentState) -> Vec<u8> {
    let PersistentState { reservations, bad, .. } = kept;
    let paths = path_codes(kept);
    let lists = reservations.registrants().len() * 64 + bad.spans().len() * 10 + paths.len() * 3;
    let mut out = Vec::with_capacity(64 + lists);
    out.extend_from_slice(MAGIC);
    out.push(VERSION);
    out.push(reservations.saved_flags());
    out.extend_from_slice(&uuid.0);
    reservations.save_to(&mut out);
    out.extend_from_slice(&(bad.spans().len() as u16).to_le_bytes());
    for span in bad.spans() {
        out.extend_from_slice(&span.lba.to_le_bytes());
        out.extend_from_slice(&(span.blocks as u16).to_le_bytes());
    }
    let by_operator = if kept.write_protected { FLAG_PROTECTED_BY_OPERATOR } else { 0 };
    let by_host =
        if kept.host_protection == HostWriteProtection::Lasting { FLAG_PROTECTED_BY_HOST } else { 0 };
    let sanitize = if kept.owes_sanitize { FLAG_SANITIZE_OWED } else { 0 };
    out.push(by_operator | by_host | sanitize);
    out.extend_from_slice(&(paths.len() as u16).to_le_bytes());
    for (port, code) in paths {
        out.extend_from_slice(&port.0.to_le_bytes());
        out.push(code);
    }
    out.extend_from_slice(&buf::crc32c::crc32c(&out).to_le_bytes());
    out
}

/// Ports that lead to a volume and have numbers of their own, where an earlier release gave several one number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortRenumbering {
    /// The number of before, and one of those that have come of it.
    pub pairs: Vec<(PortId, PortId)>,
    /// Numbers of before that lead to the volume no more.
    pub gone: Vec<PortId>,
}

/// A record as it is to be read. What a release that knew no other numbers said of a port, it says of all that have come
/// of it: who was registered, and the state of the paths. Who held the reservation holds it by one of them, by the same
/// number if that is still in use.
pub fn renumber_ports(record: &[u8], uuid: Uuid, splits: &PortRenumbering) -> Result<Vec<u8>, RecordError> {
    let (mut kept, version) = restore_versioned(record, uuid, false)?;
    if version > 4 || splits.pairs.is_empty() {
        return Ok(record.to_vec());
    }
    kept.reservations = Arc::new(kept.reservations.renumber_ports(splits));
    let state_of = |from| kept.access.iter().find(|(port, _)| *port == from).map(|(_, state)| *state);
    let states = splits.pairs.iter().filter_map(|(from, to)| Some((*to, state_of(*from)?)));
    let mut access: Vec<_> = states.collect();
    access.extend(kept.access.iter().filter(|(port, _)| !splits.gone.contains(port)));
    access.sort_unstable_by_key(|(port, _)| *port);
    access.dedup_by_key(|(port, _)| *port);
    kept.access = access;
    Ok(save(uuid, &kept))
}

/// What [`save`], or an older version of it, wrote for this volume.
pub(crate) fn restore_record(
    bytes: &[u8],
    uuid: Uuid,
    persist_forced: bool,
) -> Result<PersistentState, RecordError> {
    restore_versioned(bytes, uuid, persist_forced).map(|(kept, _)| kept)
}

/// And the version that wrote it.
fn restore_versioned(
    bytes: &[u8],
    uuid: Uuid,
    persist_forced: bool,
) -> Result<(PersistentState, u8), RecordError> {
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or(RecordError::Foreign)?;
    let mut from = RecordReader(body);
    if from.array::<4>().ok_or(RecordError::Foreign)? != *MAGIC {
        return Err(RecordError::Foreign);
    }
    if buf::crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return Err(RecordError::Checksum);
    }
    let [version] = from.array().ok_or(RecordError::Contents)?;
    if version == 0 || version > VERSION {
        return Err(RecordError::Version(version));
    }
    let [flags] = from.array().ok_or(RecordError::Contents)?;
    let of = Uuid(from.array().ok_or(RecordError::Contents)?);
    if of != uuid {
        return Err(RecordError::OtherVolume(of));
    }
    let kept = restore_body(&mut from, version, flags, persist_forced).ok_or(RecordError::Contents)?;
    if from.0.is_empty() { Ok((kept, version)) } else { Err(RecordError::Contents) }
}

fn restore_body(
    from: &mut RecordReader<'_>,
    version: u8,
    flags: u8,
    persist_forced: bool,
) -> Option<PersistentState> {
    let reservations = Reservations::restore_from(from, flags, version > 1, persist_forced)?;
    let mut kept = PersistentState { reservations: Arc::new(reservations), ..PersistentState::default() };
    if version > 1 {
        kept.bad = Arc::new(restore_bad(from)?);
    }
    if version > 2 {
        let [protection] = from.array()?;
        let known = FLAG_PROTECTED_BY_OPERATOR
            | FLAG_PROTECTED_BY_HOST
            | if version > 3 { FLAG_SANITIZE_OWED } else { 0 };
        if protection & !known != 0 {
            return None;
        }
        kept.owes_sanitize = protection & FLAG_SANITIZE_OWED != 0;
        kept.write_protected = protection & FLAG_PROTECTED_BY_OPERATOR != 0;
        if protection & FLAG_PROTECTED_BY_HOST != 0 {
            kept.host_protection = HostWriteProtection::Lasting;
        }
        restore_paths(from, version, &mut kept)?;
    }
    Some(kept)
}

/// Paths that are not optimized, and those that are preferred.
fn restore_paths(from: &mut RecordReader<'_>, version: u8, kept: &mut PersistentState) -> Option<()> {
    let count = u16::from_le_bytes(from.array()?);
    let mut last = None;
    for _ in 0..count {
        let port = PortId(u16::from_le_bytes(from.array()?));
        let [code] = from.array()?;
        let is_preferred = version > 5 && code & PREFERRED != 0;
        let code = if is_preferred { code & !PREFERRED } else { code };
        let state = *ACCESS_CODES.get(usize::from(code))?;
        if last.is_some_and(|last| last >= port) || (state == PathAccess::Optimized && !is_preferred) {
            return None;
        }
        last = Some(port);
        if state != PathAccess::Optimized {
            kept.access.push((port, state));
        }
        if is_preferred {
            kept.preferred.push(port);
        }
    }
    Some(())
}

fn restore_bad(from: &mut RecordReader<'_>) -> Option<BadBlocks> {
    let count = u16::from_le_bytes(from.array()?);
    let mut spans = Vec::new();
    for _ in 0..count {
        let lba = u64::from_le_bytes(from.array()?);
        let blocks = u64::from(u16::from_le_bytes(from.array()?));
        spans.push(Span { lba, blocks });
    }
    BadBlocks::from_spans(spans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Span;

    const UUID: Uuid = Uuid([9; 16]);

    /// Bytes that `alter` changes, with the checksum that they should have.
    fn altered(mut bytes: Vec<u8>, alter: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let body = bytes.len() - 4;
        alter(&mut bytes[..body]);
        let crc = buf::crc32c::crc32c(&bytes[..body]).to_le_bytes();
        bytes[body..].copy_from_slice(&crc);
        bytes
    }

    #[test]
    fn bad_blocks_paths_and_protection_come_back() {
        let bad = Arc::new(BadBlocks::default().with_span(Span { lba: 1 << 40, blocks: 4096 }).unwrap());
        let access = vec![(PortId(1), PathAccess::Transition), (PortId(7), PathAccess::PersistentLoss)];
        for (write_protected, host_protection) in [
            (false, HostWriteProtection::None),
            (true, HostWriteProtection::None),
            (false, HostWriteProtection::Lasting),
            (true, HostWriteProtection::Lasting),
        ] {
            let (bad, access) = (bad.clone(), access.clone());
            let owes_sanitize = write_protected;
            let kept = PersistentState {
                bad,
                access,
                write_protected,
                host_protection,
                owes_sanitize,
                ..PersistentState::default()
            };
            assert_eq!(restore_record(&save(UUID, &kept), UUID, false), Ok(kept));
        }
        let until_reset = PersistentState {
            host_protection: HostWriteProtection::UntilReset,
            ..PersistentState::default()
        };
        assert_eq!(restore_record(&save(UUID, &until_reset), UUID, false), Ok(PersistentState::default()));
    }

    /// The record ends: protection(u8) count(u16) { port(u16) state(u8) } { port(u16) state(u8) }.
    #[test]
    fn paths_that_contradict_themselves_are_refused() {
        let access = vec![(PortId(1), PathAccess::Transition), (PortId(7), PathAccess::Inaccessible)];
        let good = save(UUID, &PersistentState { access, ..PersistentState::default() });
        let refused = |from_end: usize, to: u8| {
            let bytes = altered(good.clone(), |body| body[body.len() - from_end] = to);
            assert_eq!(restore_record(&bytes, UUID, false), Err(RecordError::Contents), "{from_end}: {to}");
        };
        refused(1, 0); // Optimized is not listed,
        refused(1, PREFERRED | 6); // nor is a state that is none preferred.
        refused(1, 6); // There is no such state.
        refused(3, 1); // The same port twice.
        refused(8, 1); // More behind the list than it counts.
        refused(8, 3); // Less.
        refused(9, 8); // Protection by nobody known.
    }

    #[test]
    fn preferred_paths_are_kept_in_whatever_state_and_no_older_version_knows_them() {
        let kept = PersistentState {
            access: vec![(PortId(1), PathAccess::Standby), (PortId(4), PathAccess::NonOptimized)],
            preferred: vec![PortId(2), PortId(4)],
            ..PersistentState::default()
        };
        let saved = save(UUID, &kept);
        assert_eq!(restore_record(&saved, UUID, false), Ok(kept));
        let old = altered(saved, |body| body[4] = 5);
        assert_eq!(restore_record(&old, UUID, false), Err(RecordError::Contents));
    }

    /// What version 1 wrote: an initiator's key 1, a host's key 2 that holds Write Exclusive.
    #[test]
    fn the_first_version_is_still_read() {
        let mut old = b"BWPR\x01\x01".to_vec();
        old.extend_from_slice(&UUID.0);
        old.extend_from_slice(&[1, 1, 0, 2, 0]);
        old.extend_from_slice(&[0, 1, 0, 0x40, 0, 0, 0, 0, 7, 1, 0, 0, 0, 0, 0, 0, 0, 5]);
        old.extend_from_slice(b"iqn.a");
        old.push(1);
        old.extend_from_slice(&[4; 16]);
        old.extend_from_slice(&2u64.to_le_bytes());
        old.extend_from_slice(&buf::crc32c::crc32c(&old).to_le_bytes());
        let kept = restore_record(&old, UUID, false).unwrap();
        assert!(kept.bad.is_empty() && kept.reservations.persists() && kept.access.is_empty());
        let keys: Vec<u64> = kept.reservations.registrants().iter().map(|one| one.key.0).collect();
        assert_eq!(keys, [1, 2]);
        let host = crate::Identity::Host([4; 16]);
        assert!(kept.reservations.is_holder(&host));
        assert_eq!(kept.reservations.host_nqn(&[4; 16]), None, "version 1 knew no names");
        assert_eq!(restore_record(&save(UUID, &kept), UUID, false), Ok(kept));
    }

    /// What version 2 wrote: no reservations, blocks 5 and 6 bad.
    #[test]
    fn the_second_version_is_still_read() {
        let mut old = b"BWPR\x02\x00".to_vec();
        old.extend_from_slice(&UUID.0);
        old.extend_from_slice(&[0, 0xff, 0xff, 0, 0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
        old.extend_from_slice(&buf::crc32c::crc32c(&old).to_le_bytes());
        let bad = Arc::new(BadBlocks::default().with_span(Span { lba: 5, blocks: 2 }).unwrap());
        assert_eq!(
            restore_record(&old, UUID, false),
            Ok(PersistentState { bad, ..PersistentState::default() })
        );
    }

    /// What version 3 wrote: protection by the operator; it knew of no sanitize.
    #[test]
    fn the_third_version_is_still_read() {
        let kept = PersistentState { write_protected: true, ..PersistentState::default() };
        let old = altered(save(UUID, &kept), |body| body[4] = 3);
        assert_eq!(restore_record(&old, UUID, false), Ok(kept));
        let owing = altered(
            save(UUID, &PersistentState { owes_sanitize: true, ..PersistentState::default() }),
            |body| body[4] = 3,
        );
        assert_eq!(restore_record(&owing, UUID, false), Err(RecordError::Contents));
    }

    /// What version 4 wrote, of a release that numbered ports by portal group alone: `iqn.a` is registered by port 1 and
    /// holds Write Exclusive, `iqn.b` by port 2, a host by any; the paths by port 1 are closed.
    fn fourth() -> Vec<u8> {
        let mut old = b"BWPR\x04\x01".to_vec();
        old.extend_from_slice(&UUID.0);
        old.extend_from_slice(&[1, 0, 0, 3, 0]);
        old.extend_from_slice(&[0, 1, 0, 0x40, 0, 0, 0, 0, 7, 1, 0, 0, 0, 0, 0, 0, 0, 5]);
        old.extend_from_slice(b"iqn.a");
        old.extend_from_slice(&[0, 2, 0, 0x40, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 0, 0, 0, 5]);
        old.extend_from_slice(b"iqn.b");
        old.push(1);
        old.extend_from_slice(&[4; 16]);
        old.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0, 5]);
        old.extend_from_slice(b"nqn.h");
        old.extend_from_slice(&[0, 0, 0, 1, 0, 1, 0, 2]);
        old.extend_from_slice(&buf::crc32c::crc32c(&old).to_le_bytes());
        old
    }

    /// Neither who was registered nor a closed path is lost where a port got a number of its own since.
    #[test]
    fn what_an_older_release_saved_for_a_port_holds_for_those_that_were_split_from_it() {
        let port = |number| PortId(number);
        let old = restore_record(&fourth(), UUID, false).unwrap();
        assert_eq!(old.access, [(port(1), PathAccess::Inaccessible)]);
        let splits = |pairs: &[(u16, u16)], gone: &[u16]| PortRenumbering {
            pairs: pairs.iter().map(|(from, to)| (port(*from), port(*to))).collect(),
            gone: gone.iter().copied().map(port).collect(),
        };
        let split = renumber_ports(&fourth(), UUID, &splits(&[(1, 9)], &[])).unwrap();
        let kept = restore_record(&split, UUID, false).unwrap();
        let who = |name: &str, port| {
            let (name, isid) = (name.into(), [0x40, 0, 0, 0, 0, 7]);
            crate::Identity::Initiator { name, isid, port: PortId(port) }
        };
        let registered = |kept: &PersistentState| -> Vec<(crate::Identity, u64)> {
            kept.reservations.registrants().iter().map(|one| ((*one.identity).clone(), one.key.0)).collect()
        };
        let host = crate::Identity::Host([4; 16]);
        let (a, b, later) = (who("iqn.a", 1), who("iqn.b", 2), who("iqn.a", 9));
        let all = [(a.clone(), 1), (later.clone(), 1), (b.clone(), 2), (host.clone(), 3)];
        assert_eq!(registered(&kept), all);
        assert!(kept.reservations.is_holder(&a) && !kept.reservations.is_holder(&later));
        assert_eq!(kept.access, [(port(1), PathAccess::Inaccessible), (port(9), PathAccess::Inaccessible)]);
        assert_eq!(kept.reservations.host_nqn(&[4; 16]).map(|nqn| &**nqn), Some("nqn.h"));
        // By the old number nothing leads to the volume any more.
        let moved = renumber_ports(&fourth(), UUID, &splits(&[(1, 9)], &[1])).unwrap();
        let kept = restore_record(&moved, UUID, false).unwrap();
        assert_eq!(registered(&kept), [(later.clone(), 1), (b, 2), (host, 3)]);
        assert!(kept.reservations.is_holder(&later));
        assert_eq!(kept.access, [(port(9), PathAccess::Inaccessible)]);
        // What this release wrote says of each port what it means.
        assert_eq!(renumber_ports(&split, UUID, &splits(&[(2, 8)], &[2])).unwrap(), split);
        assert_eq!(renumber_ports(&fourth(), UUID, &splits(&[], &[])).unwrap(), fourth());
    }

    #[test]
    fn a_later_version_is_refused() {
        let later = altered(save(UUID, &PersistentState::default()), |body| body[4] = VERSION + 1);
        assert_eq!(restore_record(&later, UUID, false), Err(RecordError::Version(VERSION + 1)));
    }
}
