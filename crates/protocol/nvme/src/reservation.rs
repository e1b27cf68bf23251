//! Reservations (NVMe Base §7.2 to §7.5, §8.19): the commands' dwords and lists, the report in both
//! layouts, and the notification log page (§5.16.1.24).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::sqe::Sqe;

/// IEKEY: the existing key is not looked at.
const IGNORE_KEY: u32 = 1 << 3;

/// What Reservation Register does (RREGA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterAction {
    /// Register a key.
    Register,
    /// Remove the registration.
    Unregister,
    /// Replace the key.
    Replace,
}

/// Reservation Register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// What to do.
    pub action: RegisterAction,
    /// Do it whatever key is registered (IEKEY).
    pub ignore_key: bool,
    /// Whether registrations and reservation shall survive power loss; `None` leaves that (CPTPL).
    pub persist: Option<bool>,
}

impl Register {
    /// What the command says; `None` if it has a value that is not defined.
    pub fn from_sqe(sqe: &Sqe) -> Option<Self> {
        let dword = sqe.cdw(10);
        let action = match dword & 7 {
            0 => RegisterAction::Register,
            1 => RegisterAction::Unregister,
            2 => RegisterAction::Replace,
            _ => return None,
        };
        let persist = match dword >> 30 {
            0 => None,
            2 => Some(false),
            3 => Some(true),
            _ => return None,
        };
        Some(Register { action, ignore_key: dword & IGNORE_KEY != 0, persist })
    }

    /// Puts it into a command.
    pub fn write_to_sqe(self, sqe: &mut Sqe) {
        let persist = self.persist.map_or(0, |persist| 2 + u32::from(persist));
        let ignore = if self.ignore_key { IGNORE_KEY } else { 0 };
        sqe.cdw10[0] = U32::new(self.action as u32 | ignore | persist << 30);
    }
}

/// The list of Reservation Register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegisterKeys {
    /// The key that is registered (CRKEY).
    pub current: U64,
    /// The key to register (NRKEY).
    pub new: U64,
}

/// What Reservation Acquire does (RACQA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireAction {
    /// Take the reservation.
    Acquire,
    /// Remove others' registrations, and take the reservation if they had it.
    Preempt,
    /// So, and end their commands.
    PreemptAndAbort,
}

/// Reservation Acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// What to do.
    pub action: AcquireAction,
    /// IEKEY, which must be clear.
    pub ignore_key: bool,
    /// The reservation's type (RTYPE).
    pub kind: u8,
}

impl Acquire {
    /// What the command says; `None` if it has a value that is not defined.
    pub fn from_sqe(sqe: &Sqe) -> Option<Self> {
        let dword = sqe.cdw(10);
        let action = match dword & 7 {
            0 => AcquireAction::Acquire,
            1 => AcquireAction::Preempt,
            2 => AcquireAction::PreemptAndAbort,
            _ => return None,
        };
        Some(Acquire { action, ignore_key: dword & IGNORE_KEY != 0, kind: (dword >> 8) as u8 })
    }

    /// Puts it into a command.
    pub fn write_to_sqe(self, sqe: &mut Sqe) {
        sqe.cdw10[0] = action_dword(self.action as u32, self.ignore_key, self.kind);
    }
}

/// The list of Reservation Acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AcquireKeys {
    /// The key that is registered (CRKEY).
    pub current: U64,
    /// Whose registrations to remove (PRKEY).
    pub preempted: U64,
}

/// What Reservation Release does (RRELA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseAction {
    /// Give the reservation up.
    Release,
    /// Remove the reservation and all registrations.
    Clear,
}

/// Reservation Release. Its list is the key that is registered (CRKEY): 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// What to do.
    pub action: ReleaseAction,
    /// IEKEY, which must be clear.
    pub ignore_key: bool,
    /// The reservation's type (RTYPE).
    pub kind: u8,
}

impl Release {
    /// What the command says; `None` if it has a value that is not defined.
    pub fn from_sqe(sqe: &Sqe) -> Option<Self> {
        let dword = sqe.cdw(10);
        let action = match dword & 7 {
            0 => ReleaseAction::Release,
            1 => ReleaseAction::Clear,
            _ => return None,
        };
        Some(Release { action, ignore_key: dword & IGNORE_KEY != 0, kind: (dword >> 8) as u8 })
    }

    /// Puts it into a command.
    pub fn write_to_sqe(self, sqe: &mut Sqe) {
        sqe.cdw10[0] = action_dword(self.action as u32, self.ignore_key, self.kind);
    }
}

fn action_dword(action: u32, ignore_key: bool, kind: u8) -> U32 {
    U32::new(action | if ignore_key { IGNORE_KEY } else { 0 } | u32::from(kind) << 8)
}

/// Reservation Report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Bytes to transfer (NUMD): 4 to 2^34.
    pub len: u64,
    /// With 128-bit host identifiers (EDS).
    pub extended: bool,
}

impl Report {
    /// What the command says.
    pub fn from_sqe(sqe: &Sqe) -> Self {
        Report { len: (u64::from(sqe.cdw(10)) + 1) * 4, extended: sqe.cdw(11) & 1 != 0 }
    }

    /// Puts it into a command.
    pub fn write_to_sqe(self, sqe: &mut Sqe) {
        sqe.cdw10[0] = U32::new((self.len / 4 - 1) as u32);
        sqe.cdw10[1] = U32::new(self.extended.into());
    }
}

/// What Reservation Report tells of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationSummary {
    /// Counts changes of registrations (GEN).
    pub generation: u32,
    /// The reservation's type; 0 if there is none (RTYPE).
    pub kind: u8,
    /// Whether it survives power loss (PTPLS).
    pub persists: bool,
}

/// What Reservation Report tells of a registrant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// Its controller; FFFFh in the dynamic controller model.
    pub cntlid: u16,
    /// Whether it holds the reservation.
    pub holds: bool,
    /// Its host identifier; without EDS the first 8 bytes only.
    pub host: [u8; 16],
    /// Its key.
    pub key: u64,
}

/// The head of the Reservation Status, without EDS all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ReservationStatusHeader {
    generation: U32,
    kind: u8,
    registrants: U16,
    reserved: [u8; 2],
    persists: u8,
    reserved_10: [u8; 14],
}

const _: () = assert!(size_of::<ReservationStatusHeader>() == 24);

/// Length of the head with EDS.
const EXTENDED_HEADER_LEN: usize = 64;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RegisteredController {
    cntlid: U16,
    status: u8,
    reserved: [u8; 5],
    host: [u8; 8],
    key: U64,
}

const _: () = assert!(size_of::<RegisteredController>() == 24);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ExtendedRegisteredController {
    cntlid: U16,
    status: u8,
    reserved: [u8; 5],
    key: U64,
    host: [u8; 16],
    reserved_32: [u8; 32],
}

const _: () = assert!(size_of::<ExtendedRegisteredController>() == 64);

/// The Reservation Status data structure, whole.
pub fn encode_status(summary: ReservationSummary, registrants: &[Registrant], extended: bool) -> Vec<u8> {
    let head = ReservationStatusHeader {
        generation: U32::new(summary.generation),
        kind: summary.kind,
        registrants: U16::new(registrants.len() as u16),
        reserved: [0; 2],
        persists: summary.persists.into(),
        reserved_10: [0; 14],
    };
    let mut bytes = head.as_bytes().to_vec();
    if !extended {
        for one in registrants {
            let mut host = [0; 8];
            host.copy_from_slice(&one.host[..8]);
            let (cntlid, key) = (U16::new(one.cntlid), U64::new(one.key));
            let entry =
                RegisteredController { cntlid, status: one.holds.into(), reserved: [0; 5], host, key };
            bytes.extend_from_slice(entry.as_bytes());
        }
        return bytes;
    }
    bytes.resize(EXTENDED_HEADER_LEN, 0);
    for one in registrants {
        let entry = ExtendedRegisteredController {
            cntlid: U16::new(one.cntlid),
            status: one.holds.into(),
            reserved: [0; 5],
            key: U64::new(one.key),
            host: one.host,
            reserved_32: [0; 32],
        };
        bytes.extend_from_slice(entry.as_bytes());
    }
    bytes
}

/// Reads a Reservation Status data structure: what it tells of all, how many registrants there are,
/// and those of them that `bytes` still holds. `None`: not even the head.
pub fn decode_status(bytes: &[u8], extended: bool) -> Option<(ReservationSummary, usize, Vec<Registrant>)> {
    let (head, rest) = ReservationStatusHeader::read_from_prefix(bytes).ok()?;
    let summary = ReservationSummary {
        generation: head.generation.get(),
        kind: head.kind,
        persists: head.persists & 1 != 0,
    };
    let count = usize::from(head.registrants.get());
    let short = |entry: &RegisteredController| {
        let mut host = [0; 16];
        host[..8].copy_from_slice(&entry.host);
        Registrant { cntlid: entry.cntlid.get(), holds: entry.status & 1 != 0, host, key: entry.key.get() }
    };
    let long = |entry: &ExtendedRegisteredController| Registrant {
        cntlid: entry.cntlid.get(),
        holds: entry.status & 1 != 0,
        host: entry.host,
        key: entry.key.get(),
    };
    let registrants = if extended {
        let rest = bytes.get(EXTENDED_HEADER_LEN..).unwrap_or_default();
        let entries = rest.chunks_exact(size_of::<ExtendedRegisteredController>()).take(count);
        entries
            .filter_map(|entry| ExtendedRegisteredController::ref_from_bytes(entry).ok())
            .map(long)
            .collect()
    } else {
        let entries = rest.chunks_exact(size_of::<RegisteredController>()).take(count);
        entries.filter_map(|entry| RegisteredController::ref_from_bytes(entry).ok()).map(short).collect()
    };
    Some((summary, count, registrants))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqe::Opcode;

    fn sqe(opcode: Opcode, dword: u32) -> Sqe {
        let mut sqe = Sqe::read_from_bytes(&[0; 64]).unwrap();
        sqe.opcode = opcode;
        sqe.cdw10[0] = U32::new(dword);
        sqe
    }

    /// Dword 10 as in NVMe Base 2.0, figures 401 (Acquire), 405 (Register), 409 (Release).
    #[test]
    fn dword_10_of_the_commands() {
        let words = [
            (0, RegisterAction::Register, false, None),
            (0x8000_0001, RegisterAction::Unregister, false, Some(false)),
            (0xc000_000a, RegisterAction::Replace, true, Some(true)),
        ];
        for (dword, action, ignore_key, persist) in words {
            let register = Register { action, ignore_key, persist };
            let mut command = sqe(Opcode::RESERVATION_REGISTER, dword);
            assert_eq!(Register::from_sqe(&command), Some(register));
            command.cdw10[0] = U32::ZERO;
            register.write_to_sqe(&mut command);
            assert_eq!(command.cdw(10), dword);
        }
        for dword in [3, 7, 0x4000_0000] {
            assert_eq!(Register::from_sqe(&sqe(Opcode::RESERVATION_REGISTER, dword)), None);
        }
        let acquire = Acquire { action: AcquireAction::PreemptAndAbort, ignore_key: false, kind: 6 };
        let mut command = sqe(Opcode::RESERVATION_ACQUIRE, 0x0602);
        assert_eq!(Acquire::from_sqe(&command), Some(acquire));
        acquire.write_to_sqe(&mut command);
        assert_eq!(command.cdw(10), 0x0602);
        assert_eq!(Acquire::from_sqe(&sqe(Opcode::RESERVATION_ACQUIRE, 3)), None);
        let release = Release { action: ReleaseAction::Clear, ignore_key: true, kind: 1 };
        let mut command = sqe(Opcode::RESERVATION_RELEASE, 0x0109);
        assert_eq!(Release::from_sqe(&command), Some(release));
        release.write_to_sqe(&mut command);
        assert_eq!(command.cdw(10), 0x0109);
        assert_eq!(Release::from_sqe(&sqe(Opcode::RESERVATION_RELEASE, 2)), None);
        let mut command = sqe(Opcode::RESERVATION_REPORT, 1023);
        command.cdw10[1] = U32::new(1);
        assert_eq!(Report::from_sqe(&command), Report { len: 4096, extended: true });
        assert_eq!(Report::from_sqe(&sqe(Opcode::RESERVATION_REPORT, u32::MAX)).len, 1 << 34);
    }

    fn status() -> (ReservationSummary, [Registrant; 2]) {
        let summary = ReservationSummary { generation: 0x0102_0304, kind: 5, persists: true };
        let host = std::array::from_fn(|at| 0x10 + at as u8);
        let a = Registrant { cntlid: 0xffff, holds: true, host, key: 0x1122_3344_5566_7788 };
        let b = Registrant { cntlid: 7, holds: false, host: [0xbb; 16], key: 1 };
        (summary, [a, b])
    }

    /// Built by hand from NVMe Base 2.0, figures 413 and 414 (Reservation Status, Registered Controller).
    #[test]
    fn the_status_with_64_bit_host_identifiers() {
        let (summary, registrants) = status();
        let bytes = encode_status(summary, &registrants, false);
        #[rustfmt::skip]
        let golden = [
            4, 3, 2, 1, 5, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0xff, 0xff, 1, 0, 0, 0, 0, 0, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17,
            0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
            7, 0, 0, 0, 0, 0, 0, 0, 0xbb, 0xbb, 0xbb, 0xbb, 0xbb, 0xbb, 0xbb, 0xbb, 1, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(bytes, golden);
        let (got, count, list) = decode_status(&bytes, false).unwrap();
        assert_eq!((got, count, list[1].key), (summary, 2, 1));
    }

    /// Built by hand from NVMe Base 2.0, figures 415 and 416 (the extended structures).
    #[test]
    fn the_status_with_128_bit_host_identifiers() {
        let (summary, registrants) = status();
        let bytes = encode_status(summary, &registrants, true);
        let mut golden = vec![4, 3, 2, 1, 5, 2, 0, 0, 0, 1];
        golden.resize(64, 0);
        golden.extend([0xff, 0xff, 1, 0, 0, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        golden.extend(0x10..0x20);
        golden.resize(128, 0);
        golden.extend([7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend([0xbb; 16]);
        golden.resize(192, 0);
        assert_eq!(bytes, golden);
        assert_eq!(decode_status(&bytes, true), Some((summary, 2, registrants.to_vec())));
        // What a short report still holds.
        assert_eq!(decode_status(&bytes[..190], true).unwrap().2, registrants[..1]);
        assert_eq!(decode_status(&bytes[..30], true).unwrap().1, 2);
        assert_eq!(decode_status(&bytes[..23], true), None);
    }
}
