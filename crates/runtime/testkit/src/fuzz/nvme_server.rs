//! Fuzz functions for the NVMe server: commands of every kind on an admin queue and on I/O queues of two
//! shards, with aborts, lost links, changes of the volumes and passing time between them. Checks: no panic,
//! every command ends once, the controller goes when its links do, and all memory comes back.

use nvme::fabrics::{Property, PropertyAccess};
use nvme::{FabricsType, Opcode, SglDescriptor, Sqe};
use volume::{PathAccess, PortId, VolumeRequest};
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32};

mod harness;

pub use harness::RunCounts;
use harness::{Harness, VOLUME_BLOCKS, namespace_entry};

/// Longer inputs show nothing new.
pub const INPUT_MAX: usize = 4 << 10;

/// Opcodes of I/O queues, and two that are none.
const IO_OPCODES: [u8; 16] =
    [0x02, 0x01, 0x00, 0x05, 0x01, 0x08, 0x09, 0x0c, 0x04, 0x19, 0x0d, 0x11, 0x15, 0x0e, 0x7d, 0x03];
/// Opcodes of the admin queue, and two that are none.
const ADMIN_OPCODES: [u8; 10] = [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x0c, 0x18, 0xc0, 0x01];
const NSIDS: [u32; 8] = [1, 1, 1, 1, 2, 3, 0, 0xffff_ffff];

struct FuzzInput<'a>(&'a [u8]);

impl FuzzInput<'_> {
    fn next_byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn next_dword(&mut self) -> u32 {
        u32::from_le_bytes([self.next_byte(), self.next_byte(), self.next_byte(), self.next_byte()])
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.next_byte()) % from.len()]
    }
}

/// Carries the bytes out.
pub fn commands(data: &[u8]) {
    run_commands(data);
}

/// The same, and how far they got.
pub fn run_commands(data: &[u8]) -> RunCounts {
    let mut bytes = FuzzInput(&data[..data.len().min(INPUT_MAX)]);
    let mut harness = Harness::new();
    let enable = PropertyAccess::property_set_sqe(Property::CC, 0x0046_0001);
    let mut cid = 0;
    // Most inputs begin with a controller that works.
    if bytes.next_byte() % 8 != 7 {
        harness.start_command(true, 0, &enable, Vec::new());
        (1..=3).for_each(|qid| harness.connect_io_queue(qid));
    }
    while !bytes.0.is_empty() {
        cid += 1;
        match bytes.next_byte() % 64 {
            0..=13 | 32..=55 => {
                let (sqe, out) = io_command(&mut bytes, cid);
                harness.start_command(false, bytes.next_byte().into(), &sqe, out);
            }
            14 => start_fused_pair(&mut harness, &mut bytes, cid),
            15..=18 => {
                let (sqe, out) = admin_command(&mut bytes, cid);
                harness.start_command(true, 0, &sqe, out);
            }
            19 => harness.start_command(true, 0, &enable, Vec::new()),
            20 | 56 | 57 => (0..=bytes.next_byte() % 16).for_each(|_| harness.send_oldest_data()),
            21..=23 | 58..=61 => (0..=bytes.next_byte() % 64).for_each(|_| _ = harness.advance_one()),
            24 | 62 => harness.run_until_idle(),
            25 => harness.abort_command(bytes.next_byte().into()),
            26 => harness.close_link(bytes.next_byte().into()),
            27 | 63 => {
                harness.open_controller();
                harness.start_command(true, 0, &enable, Vec::new());
                harness.connect_io_queue(u16::from(bytes.next_byte() % 6));
            }
            28 | 29 => change_volumes(&mut harness, &mut bytes),
            30 => harness.advance_time(u64::from(bytes.next_byte()) * 8),
            _ => harness.start_command(
                false,
                bytes.next_byte().into(),
                &fabrics_command(&mut bytes, cid),
                Vec::new(),
            ),
        }
    }
    harness.finish_and_check()
}

fn build_sqe(opcode: u8, cid: u16, nsid: u32, len: u32) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    (sqe.opcode, sqe.flags) = (Opcode(opcode), 0x40);
    (sqe.cid, sqe.nsid, sqe.dptr.length) = (U16::new(cid), U32::new(nsid), U32::new(len));
    sqe.dptr.identifier = SglDescriptor::TRANSPORT;
    sqe
}

/// A command of an I/O queue: near the start of the volume or behind its end, of few blocks, mostly with
/// the length that it should have.
fn io_command(bytes: &mut FuzzInput<'_>, cid: u16) -> (Sqe, Vec<u8>) {
    let (opcode, nsid, shape) = (bytes.pick(&IO_OPCODES), bytes.pick(&NSIDS), bytes.next_byte());
    let (first, count, flags) = (bytes.next_byte(), u32::from(bytes.next_byte() % 9), bytes.next_byte());
    let mut sqe = build_sqe(opcode, cid, nsid, 0);
    if shape < 32 {
        sqe.flags |= shape & 3;
    }
    if shape & 0x40 != 0 {
        sqe.dptr.identifier = SglDescriptor::IN_CAPSULE;
    }
    let mut out = Vec::new();
    let len = match opcode {
        0x09 | 0x19 | 0x0d | 0x11 | 0x15 | 0x0e => fill_list_command(&mut sqe, bytes, count, flags, &mut out),
        _ => {
            sqe.cdw10[0] = U32::new(u32::from(first) % (VOLUME_BLOCKS as u32 + 4));
            sqe.cdw10[2] = U32::new(count | u32::from(flags & 0xc3) << 24);
            (count + 1) * 512
        }
    };
    let wrong = shape & 0x3f == 0x3f;
    sqe.dptr.length = U32::new(if wrong { bytes.next_dword() } else { len });
    (sqe, out)
}

/// Dwords and list of a command that brings one, or wants a report.
fn fill_list_command(
    sqe: &mut Sqe,
    bytes: &mut FuzzInput<'_>,
    count: u32,
    flags: u8,
    out: &mut Vec<u8>,
) -> u32 {
    let small = |bytes: &mut FuzzInput<'_>| u64::from(bytes.next_byte() % 80).to_le_bytes();
    match sqe.opcode.0 {
        0x09 => {
            sqe.cdw10[0] = U32::new(count);
            sqe.cdw10[1] = U32::new(u32::from(flags & 7));
            for _ in 0..=count {
                out.extend([0, 0, 0, 0, bytes.next_byte() % 16, 0, 0, 0]);
                out.extend(small(bytes));
            }
        }
        0x19 => {
            sqe.cdw10[0] = U32::new(u32::from(bytes.next_byte() % 80));
            sqe.cdw10[2] = U32::new(count | u32::from(flags) << 24);
            for _ in 0..=count {
                out.extend([0; 8]);
                out.extend(small(bytes));
                out.extend([bytes.next_byte() % 8, 0, 0, 0, 0, 0, 0, 0]);
                out.extend([0; 8]);
            }
        }
        0x0e => {
            sqe.cdw10[0] = U32::new(u32::from(flags));
            sqe.cdw10[1] = U32::new(u32::from(flags % 4 != 3));
            return (u32::from(flags) + 1) * 4;
        }
        opcode => {
            sqe.cdw10[0] = U32::new((count % 4) | u32::from(flags & 0xc8) << 24 | u32::from(flags % 8) << 8);
            let keys = if opcode == 0x15 { 1 } else { 2 };
            for _ in 0..keys {
                out.extend(u64::from(bytes.next_byte() % 3).to_le_bytes());
            }
        }
    }
    out.len() as u32
}

/// A fused pair, perhaps with something between its halves.
fn start_fused_pair(harness: &mut Harness, bytes: &mut FuzzInput<'_>, cid: u16) {
    let (shape, which) = (bytes.next_byte(), usize::from(bytes.next_byte()));
    let half = |opcode, part, cid| {
        let mut sqe = build_sqe(opcode, cid, 1, 512);
        sqe.flags |= part;
        sqe.cdw10[0] = U32::new(u32::from(shape % 4));
        if shape & 0x10 != 0 {
            sqe.dptr.identifier = SglDescriptor::IN_CAPSULE;
        }
        sqe
    };
    harness.start_command(false, which, &half(0x05, 1, cid), vec![shape & 1; 512]);
    if shape & 0x20 != 0 {
        let (between, out) = io_command(bytes, cid | 0x4000);
        harness.start_command(false, which, &between, out);
    }
    harness.start_command(false, which, &half(0x01, 2, cid | 0x8000), vec![shape >> 7; 512]);
}

fn admin_command(bytes: &mut FuzzInput<'_>, cid: u16) -> (Sqe, Vec<u8>) {
    let (opcode, nsid, shape) = (bytes.pick(&ADMIN_OPCODES), bytes.pick(&NSIDS), bytes.next_byte());
    let (low, high) = (bytes.next_byte(), bytes.next_byte());
    let (dword, len) = match opcode {
        0x02 => (u32::from(low) | u32::from(high) << 16, (u32::from(high) + 1) * 4),
        0x06 => (u32::from(low), 4096),
        0x08 => (u32::from(low % 5) | u32::from(cid.wrapping_sub(u16::from(high))) << 16, 0),
        _ => (u32::from(low), if low % 16 == 1 { 4096 } else { 0 }),
    };
    let mut sqe = build_sqe(opcode, cid, nsid, len);
    sqe.cdw10[0] = U32::new(dword);
    if shape & 1 != 0 {
        for place in &mut sqe.cdw10[1..] {
            *place = U32::new(bytes.next_byte().into());
        }
    }
    if shape & 0x3f == 0x3f {
        sqe.dptr.length = U32::new(bytes.next_dword());
        sqe.cdw10[0] = U32::new(bytes.next_dword());
    }
    if opcode == 0x7f || shape & 0x38 == 0x38 {
        return (fabrics_command(bytes, cid), Vec::new());
    }
    (sqe, Vec::new())
}

/// A fabrics command: properties, mostly; on any queue.
fn fabrics_command(bytes: &mut FuzzInput<'_>, cid: u16) -> Sqe {
    const FABRICS_TYPES: [FabricsType; 6] = [
        FabricsType::PROPERTY_SET,
        FabricsType::PROPERTY_GET,
        FabricsType::DISCONNECT,
        FabricsType::CONNECT,
        FabricsType::AUTHENTICATION_SEND,
        FabricsType::AUTHENTICATION_RECEIVE,
    ];
    let (kind, offset, value) = (bytes.pick(&FABRICS_TYPES), bytes.next_byte(), bytes.next_byte());
    let mut sqe = build_sqe(0x7f, cid, u32::from(kind.0), 0);
    sqe.cdw10[0] = U32::new(u32::from(value & 1));
    sqe.cdw10[1] = U32::new(if value & 2 == 0 { 0x14 } else { offset.into() });
    // Enable, disable, and both kinds of shutdown.
    sqe.cdw10[2] = U32::new(0x0046_0000 | u32::from(value >> 2 & 1) | u32::from(value >> 3 & 3) << 14);
    sqe
}

/// Something happens to the volumes, or to what the host sees of them.
fn change_volumes(harness: &mut Harness, bytes: &mut FuzzInput<'_>) {
    let (what, volume) = (bytes.next_byte(), u32::from(bytes.next_byte()));
    let ports = vec![PortId(1)];
    let request = match what % 10 {
        0 => VolumeRequest::SetAccess { ports, to: PathAccess::Inaccessible, by: None },
        1 => VolumeRequest::SetAccess { ports, to: PathAccess::Transition, by: None },
        2 | 3 => VolumeRequest::SetAccess { ports, to: PathAccess::Optimized, by: None },
        4 => VolumeRequest::WriteProtect(true),
        5 => VolumeRequest::WriteProtect(false),
        6 => VolumeRequest::Stop,
        7 => VolumeRequest::Start,
        8 => return harness.change_namespaces(vec![namespace_entry(0, what & 0x80 != 0)]),
        _ => {
            return harness
                .change_namespaces(vec![namespace_entry(0, false), namespace_entry(1, what & 0x80 != 0)]);
        }
    };
    harness.send_volume_request(volume, request);
}
