//! The commands, one row each: operation code, service action, usage bitmap, parser.
//!
//! A usage bitmap (SPC-4 §6.35.3) has a one for each bit of the CDB that the device server uses. A CDB with
//! any other bit set is refused with a pointer to it. CONTROL is all zero: NACA is not supported (NORMACA =
//! 0), and LINK no longer exists.

use super::{CDB_LEN_MAX, Cdb, CdbError, Command, parse};
use crate::wire::{bits, copy_truncated};

/// Reads the fields of a CDB whose reserved bits are known to be zero.
pub(super) type ParseCdb = fn(&Cdb) -> Result<Command, CdbError>;

/// One command, as REPORT SUPPORTED OPERATION CODES shows it.
#[derive(Debug)]
pub struct CommandDescriptor {
    /// The command's name in the standards.
    pub name: &'static str,
    /// The service action, for operation codes that have them.
    pub action: Option<u8>,
    opcode: u8,
    /// Operation code, then one mask per byte; as long as the CDB.
    usage: &'static [u8],
    /// The bits that must be zero, the first byte of the CDB uppermost.
    reserved: u128,
    /// Without one of these the command is unknown.
    needs: CommandSet,
    parse: ParseCdb,
}

impl CommandDescriptor {
    /// Operation code.
    pub fn opcode(&self) -> u8 {
        self.opcode
    }

    /// Bytes of the CDB.
    #[expect(clippy::len_without_is_empty, reason = "the length of a CDB")]
    pub fn len(&self) -> usize {
        self.usage.len()
    }

    /// CDB USAGE DATA: the bitmap with operation code and service action in their places.
    pub fn cdb_usage_data(&self) -> impl Iterator<Item = u8> + '_ {
        self.usage.iter().enumerate().map(|(at, mask)| match (at, self.action) {
            (1, Some(action)) => (mask & !ACTION) | action,
            _ => *mask,
        })
    }

    fn check_reserved(&self, cdb: &Cdb) -> Result<(), CdbError> {
        let stray = u128::from_be_bytes(*cdb) & self.reserved;
        if stray == 0 {
            return Ok(());
        }
        let at = stray.leading_zeros() as u8;
        Err(CdbError::Field { byte: at / 8, bit: Some(7 - at % 8) })
    }
}

/// Which commands a logical unit has: the common ones always, the others by feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandSet(u16);

impl CommandSet {
    /// Only what every logical unit has.
    pub const BASIC: CommandSet = CommandSet(0);
    /// UNMAP and GET LBA STATUS (thin volumes).
    pub const UNMAP: CommandSet = CommandSet(1 << 0);
    /// WRITE ATOMIC(16).
    pub const ATOMIC: CommandSet = CommandSet(1 << 1);
    /// SANITIZE.
    pub const SANITIZE: CommandSet = CommandSet(1 << 2);
    /// EXTENDED COPY and RECEIVE COPY RESULTS.
    pub const COPY: CommandSet = CommandSet(1 << 3);
    /// REPORT TARGET PORT GROUPS.
    pub const ALUA: CommandSet = CommandSet(1 << 4);
    /// SET TARGET PORT GROUPS.
    pub const SET_ALUA: CommandSet = CommandSet(1 << 5);
    /// PREVENT ALLOW MEDIUM REMOVAL.
    pub const REMOVABLE: CommandSet = CommandSet(1 << 6);
    /// COMPARE AND WRITE.
    pub const COMPARE_AND_WRITE: CommandSet = CommandSet(1 << 7);
    /// READ BUFFER and WRITE BUFFER.
    pub const BUFFER: CommandSet = CommandSet(1 << 8);
    /// SANITIZE with BLOCK ERASE (thin volumes: it demands LBPME = 1).
    pub const BLOCK_ERASE: CommandSet = CommandSet(1 << 9);
    /// All.
    pub const ALL: CommandSet = CommandSet((1 << 10) - 1);

    /// Both sets together.
    pub const fn with(self, other: CommandSet) -> CommandSet {
        CommandSet(self.0 | other.0)
    }

    /// This set less another.
    pub const fn without(self, other: CommandSet) -> CommandSet {
        CommandSet(self.0 & !other.0)
    }

    /// Whether everything of `other` is in this set.
    pub const fn contains(self, other: CommandSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// The commands of the set, by ascending operation code and service action.
    pub fn descriptors(self) -> impl Iterator<Item = &'static CommandDescriptor> + Clone {
        COMMAND_TABLE.iter().filter(move |entry| self.contains(entry.needs))
    }

    /// The commands with one operation code.
    pub fn descriptors_with_opcode(
        self,
        opcode: u8,
    ) -> impl Iterator<Item = &'static CommandDescriptor> + Clone {
        let start = FIRST_ROW_BY_OPCODE.get(usize::from(opcode)).copied().unwrap_or(u8::MAX);
        let same = COMMAND_TABLE.get(usize::from(start)..).unwrap_or(&[]);
        same.iter()
            .take_while(move |entry| entry.opcode() == opcode)
            .filter(move |entry| self.contains(entry.needs))
    }

    /// Reads a CDB; commands outside the set are unknown.
    pub fn parse(self, bytes: &[u8]) -> Result<Command, CdbError> {
        let opcode = *bytes.first().ok_or(CdbError::Truncated)?;
        let mut known = self.descriptors_with_opcode(opcode);
        let first = known.clone().next().ok_or(CdbError::UnknownOpcode)?;
        let mut cdb = [0; CDB_LEN_MAX];
        match bytes.first_chunk() {
            // Usually so many come: what is behind the CDB is cut off in one step.
            Some(bytes) => {
                let behind = 8 * (CDB_LEN_MAX - first.len());
                cdb = (u128::from_be_bytes(*bytes) >> behind << behind).to_be_bytes();
            }
            None => {
                let given = bytes.get(..first.len()).ok_or(CdbError::Truncated)?;
                copy_truncated(&mut cdb, given);
            }
        }
        let entry = known
            .find(|entry| entry.action.is_none_or(|action| action == bits(cdb[1], 4, 0)))
            .ok_or(CdbError::UnknownServiceAction)?;
        entry.check_reserved(&cdb)?;
        (entry.parse)(&cdb)
    }
}

/// A whole byte.
const F: u8 = 0xff;
/// GROUP NUMBER (SBC-4: six bits).
const G: u8 = 0x3f;
/// SERVICE ACTION.
const ACTION: u8 = 0x1f;
/// DPO, FUA and the obsolete FUA_NV; not RDPROTECT or WRPROTECT, since there is no protection information.
const RW: u8 = 0x1a;
/// DPO and BYTCHK; not VRPROTECT.
const VFY: u8 = 0x16;
/// IMMED and the obsolete SYNC_NV: the whole cache is synchronized all the same.
const SYNC: u8 = 0x06;

const fn descriptor(name: &'static str, usage: &'static [u8], parse: ParseCdb) -> CommandDescriptor {
    CommandDescriptor {
        name,
        action: None,
        opcode: usage_opcode(usage),
        usage,
        reserved: reserved_bits(usage),
        needs: CommandSet::BASIC,
        parse,
    }
}

/// What a usage bitmap begins with.
const fn usage_opcode(usage: &[u8]) -> u8 {
    match usage {
        [opcode, ..] => *opcode,
        [] => 0,
    }
}

/// The bits of a CDB with this usage that must be zero.
const fn reserved_bits(usage: &[u8]) -> u128 {
    let mut bits = 0;
    let mut at = 0;
    let mut rest = usage;
    while let [mask, behind @ ..] = rest {
        if at > 0 {
            bits |= (!*mask as u128) << (8 * (CDB_LEN_MAX - 1 - at));
        }
        at += 1;
        rest = behind;
    }
    bits
}

const fn action_descriptor(
    name: &'static str,
    action: u8,
    usage: &'static [u8],
    parse: ParseCdb,
) -> CommandDescriptor {
    CommandDescriptor { action: Some(action), ..descriptor(name, usage, parse) }
}

const fn requires_set(entry: CommandDescriptor, needs: CommandSet) -> CommandDescriptor {
    CommandDescriptor { needs, ..entry }
}

/// Rows of one operation code stand together, ascending.
#[rustfmt::skip]
static COMMAND_TABLE: &[CommandDescriptor] = &[
    descriptor("TEST UNIT READY", &[0x00, 0, 0, 0, 0, 0], parse::test_unit_ready),
    descriptor("REQUEST SENSE", &[0x03, 1, 0, 0, F, 0], parse::request_sense),
    descriptor("FORMAT UNIT", &[0x04, 0x3f, 0, 0, 0, 0], parse::format_unit),
    descriptor("READ(6)", &[0x08, 0x1f, F, F, F, 0], parse::read_6),
    descriptor("WRITE(6)", &[0x0a, 0x1f, F, F, F, 0], parse::write_6),
    descriptor("INQUIRY", &[0x12, 1, F, F, F, 0], parse::inquiry),
    descriptor("MODE SELECT(6)", &[0x15, 0x11, 0, 0, F, 0], parse::mode_select_6),
    descriptor("RESERVE(6)", &[0x16, 0, 0, 0, 0, 0], parse::reserve),
    descriptor("RELEASE(6)", &[0x17, 0, 0, 0, 0, 0], parse::release),
    descriptor("MODE SENSE(6)", &[0x1a, 0x08, F, F, F, 0], parse::mode_sense_6),
    descriptor("START STOP UNIT", &[0x1b, 1, 0, 0x0f, 0xf7, 0], parse::start_stop),
    descriptor("SEND DIAGNOSTIC", &[0x1d, 0x07, 0, 0, 0, 0], parse::send_diagnostic),
    requires_set(descriptor("PREVENT ALLOW MEDIUM REMOVAL", &[0x1e, 0, 0, 0, 1, 0], parse::prevent_allow), CommandSet::REMOVABLE),
    descriptor("READ CAPACITY(10)", &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], parse::read_capacity_10),
    descriptor("READ(10)", &[0x28, RW, F, F, F, F, G, F, F, 0], parse::read_10),
    descriptor("WRITE(10)", &[0x2a, RW, F, F, F, F, G, F, F, 0], parse::write_10),
    descriptor("WRITE AND VERIFY(10)", &[0x2e, VFY, F, F, F, F, G, F, F, 0], parse::write_and_verify_10),
    descriptor("VERIFY(10)", &[0x2f, VFY, F, F, F, F, G, F, F, 0], parse::verify_10),
    descriptor("PRE-FETCH(10)", &[0x34, 0x02, F, F, F, F, G, F, F, 0], parse::pre_fetch_10),
    descriptor("SYNCHRONIZE CACHE(10)", &[0x35, SYNC, F, F, F, F, G, F, F, 0], parse::synchronize_cache_10),
    descriptor("READ DEFECT DATA(10)", &[0x37, 0, 0x1f, 0, 0, 0, 0, F, F, 0], parse::read_defects_10),
    requires_set(descriptor("WRITE BUFFER", &[0x3b, 0x1f, F, F, F, F, F, F, F, 0], parse::write_buffer), CommandSet::BUFFER),
    requires_set(descriptor("READ BUFFER", &[0x3c, 0x1f, F, F, F, F, F, F, F, 0], parse::read_buffer), CommandSet::BUFFER),
    descriptor("WRITE SAME(10)", &[0x41, 0x18, F, F, F, F, G, F, F, 0], parse::write_same_10),
    requires_set(descriptor("UNMAP", &[0x42, 1, 0, 0, 0, 0, G, F, F, 0], parse::unmap), CommandSet::UNMAP),
    requires_set(action_descriptor("SANITIZE, overwrite", 0x01, &[0x48, 0xbf, 0, 0, 0, 0, 0, F, F, 0], parse::sanitize), CommandSet::SANITIZE),
    requires_set(action_descriptor("SANITIZE, block erase", 0x02, &[0x48, 0xbf, 0, 0, 0, 0, 0, 0, 0, 0], parse::sanitize), CommandSet::BLOCK_ERASE),
    requires_set(action_descriptor("SANITIZE, exit failure mode", 0x1f, &[0x48, 0xbf, 0, 0, 0, 0, 0, 0, 0, 0], parse::sanitize), CommandSet::SANITIZE),
    descriptor("LOG SENSE", &[0x4d, 0, F, F, 0, F, F, F, F, 0], parse::log_sense),
    descriptor("MODE SELECT(10)", &[0x55, 0x11, 0, 0, 0, 0, 0, F, F, 0], parse::mode_select_10),
    descriptor("RESERVE(10)", &[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0], parse::reserve),
    descriptor("RELEASE(10)", &[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0], parse::release),
    descriptor("MODE SENSE(10)", &[0x5a, 0x18, F, F, 0, 0, 0, F, F, 0], parse::mode_sense_10),
    action_descriptor("PERSISTENT RESERVE IN, read keys", 0x00, &[0x5e, ACTION, 0, 0, 0, 0, 0, F, F, 0], parse::reserve_in),
    action_descriptor("PERSISTENT RESERVE IN, read reservation", 0x01, &[0x5e, ACTION, 0, 0, 0, 0, 0, F, F, 0], parse::reserve_in),
    action_descriptor("PERSISTENT RESERVE IN, report capabilities", 0x02, &[0x5e, ACTION, 0, 0, 0, 0, 0, F, F, 0], parse::reserve_in),
    action_descriptor("PERSISTENT RESERVE IN, read full status", 0x03, &[0x5e, ACTION, 0, 0, 0, 0, 0, F, F, 0], parse::reserve_in),
    action_descriptor("PERSISTENT RESERVE OUT, register", 0x00, &[0x5f, ACTION, F, 0, 0, F, F, F, F, 0], parse::reserve_out),
    action_descriptor("PERSISTENT RESERVE OUT, reserve", 0x01, &[0x5f, ACTION, F, 0, 0, F, F, F, F, 0], parse::reserve_out),
    action_descriptor("PERSISTENT RESERVE OUT, release", 0x02, &[0x5f, ACTION, F, 0, 0, F, F, F, F, 0], parse::reserve_out),
    action_descriptor("PERSISTENT RESERVE OUT, clear", 0x03, &[0x5f, ACTION, F, 0, 0, F, F, F, F, 0], parse::reserve_out),
    action_descriptor("PERSISTENT RESERVE OUT, preempt", 0x04, &[0x5f, ACTION, F, 0, 0, F, F, F, F, 0], parse::reserve_out),
    action_descriptor("PERSISTENT RESERVE OUT, preempt and abort", 0x05, &[0x5f, ACTION, F, 0, 0, F, F, F, F, 0], parse::reserve_out),
    action_descriptor("PERSISTENT RESERVE OUT, register and ignore existing key", 0x06, &[0x5f, ACTION, F, 0, 0, F, F, F, F, 0], parse::reserve_out),
    action_descriptor("PERSISTENT RESERVE OUT, register and move", 0x07, &[0x5f, ACTION, F, 0, 0, F, F, F, F, 0], parse::reserve_out),
    requires_set(action_descriptor("EXTENDED COPY(LID1)", 0x00, &[0x83, ACTION, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], parse::extended_copy), CommandSet::COPY),
    requires_set(action_descriptor("RECEIVE COPY STATUS(LID1)", 0x00, &[0x84, ACTION, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], parse::copy_results), CommandSet::COPY),
    requires_set(action_descriptor("RECEIVE COPY DATA(LID1)", 0x01, &[0x84, ACTION, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], parse::copy_results), CommandSet::COPY),
    requires_set(action_descriptor("RECEIVE COPY OPERATING PARAMETERS", 0x03, &[0x84, ACTION, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], parse::copy_results), CommandSet::COPY),
    requires_set(action_descriptor("RECEIVE COPY FAILURE DETAILS(LID1)", 0x04, &[0x84, ACTION, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], parse::copy_results), CommandSet::COPY),
    descriptor("READ(16)", &[0x88, RW, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], parse::read_16),
    requires_set(descriptor("COMPARE AND WRITE", &[0x89, RW, F, F, F, F, F, F, F, F, 0, 0, 0, F, G, 0], parse::compare_and_write), CommandSet::COMPARE_AND_WRITE),
    descriptor("WRITE(16)", &[0x8a, RW, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], parse::write_16),
    descriptor("ORWRITE(16)", &[0x8b, RW, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], parse::or_write),
    descriptor("WRITE AND VERIFY(16)", &[0x8e, VFY, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], parse::write_and_verify_16),
    descriptor("VERIFY(16)", &[0x8f, VFY, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], parse::verify_16),
    descriptor("PRE-FETCH(16)", &[0x90, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], parse::pre_fetch_16),
    descriptor("SYNCHRONIZE CACHE(16)", &[0x91, SYNC, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], parse::synchronize_cache_16),
    descriptor("WRITE SAME(16)", &[0x93, 0x19, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], parse::write_same_16),
    requires_set(descriptor("WRITE ATOMIC(16)", &[0x9c, 0x18, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], parse::write_atomic), CommandSet::ATOMIC),
    action_descriptor("READ CAPACITY(16)", 0x10, &[0x9e, ACTION, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], parse::read_capacity_16),
    requires_set(action_descriptor("GET LBA STATUS", 0x12, &[0x9e, ACTION, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0], parse::get_lba_status), CommandSet::UNMAP),
    descriptor("REPORT LUNS", &[0xa0, 0, F, 0, 0, 0, F, F, F, F, 0, 0], parse::report_luns),
    requires_set(action_descriptor("REPORT TARGET PORT GROUPS", 0x0a, &[0xa3, 0x3f, 0, 0, 0, 0, F, F, F, F, 0, 0], parse::report_target_port_groups), CommandSet::ALUA),
    action_descriptor("REPORT SUPPORTED OPERATION CODES", 0x0c, &[0xa3, ACTION, 0x87, F, F, F, F, F, F, F, 0, 0], parse::report_opcodes),
    action_descriptor("REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", 0x0d, &[0xa3, ACTION, 0x80, 0, 0, 0, F, F, F, F, 0, 0], parse::report_task_management),
    requires_set(action_descriptor("SET TARGET PORT GROUPS", 0x0a, &[0xa4, ACTION, 0, 0, 0, 0, F, F, F, F, 0, 0], parse::set_target_port_groups), CommandSet::SET_ALUA),
    descriptor("READ(12)", &[0xa8, RW, F, F, F, F, F, F, F, F, G, 0], parse::read_12),
    descriptor("WRITE(12)", &[0xaa, RW, F, F, F, F, F, F, F, F, G, 0], parse::write_12),
    descriptor("WRITE AND VERIFY(12)", &[0xae, VFY, F, F, F, F, F, F, F, F, G, 0], parse::write_and_verify_12),
    descriptor("VERIFY(12)", &[0xaf, VFY, F, F, F, F, F, F, F, F, G, 0], parse::verify_12),
    descriptor("READ DEFECT DATA(12)", &[0xb7, 0x1f, F, F, F, F, F, F, F, F, 0, 0], parse::read_defects_12),
];

/// The first row of each operation code, so that the hot path searches nothing.
static FIRST_ROW_BY_OPCODE: [u8; 256] = first_rows();

#[expect(clippy::indexing_slicing, reason = "done when this is compiled, which fails if it is wrong")]
const fn first_rows() -> [u8; 256] {
    assert!(COMMAND_TABLE.len() < 255, "a row number fits into a byte");
    let mut first = [u8::MAX; 256];
    let mut row = COMMAND_TABLE.len();
    while row > 0 {
        row -= 1;
        first[COMMAND_TABLE[row].opcode as usize] = row as u8;
    }
    first
}
