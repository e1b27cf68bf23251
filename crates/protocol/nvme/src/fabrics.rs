//! Fabrics commands: Connect, Property Get and Set, Disconnect (NVMe Base §6).
//!
//! Invariant: a [`Connect`] is consistent in itself: record format 0, at least two entries, at least 32 on
//! the admin queue. Only the target can check its names and numbers.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::cqe::Completion;
use crate::name::{HostId, NQN_FIELD_LEN, Nqn};
use crate::sqe::{FabricsType, Opcode, Sqe};
use crate::status::Status;

/// What the host asks for when a queue comes up (NVMe Base §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The queue: 0 is the admin queue.
    pub qid: u16,
    /// Entries of the submission queue: 2 to 65536.
    pub entries: u32,
    /// Whether SQHD counts; else completions may be left to SUCCESS flags.
    pub flow_control: bool,
    /// Whether the host deletes I/O queues one by one (by Disconnect).
    pub individual_deletion: bool,
    /// Keep Alive Timeout in milliseconds; 0 is none. Of the admin queue only.
    pub kato_ms: u32,
}

impl Connect {
    /// The least that an admin queue has.
    pub const ADMIN_ENTRIES_MIN: u32 = 32;
    const QID_AT: u16 = 42;
    const SQSIZE_AT: u16 = 44;

    /// Reads a command of type [`FabricsType::CONNECT`].
    pub fn parse(sqe: &Sqe) -> Result<Connect, ConnectRefusal> {
        let (format, qid) = (sqe.cdw(10) as u16, Self::qid(sqe));
        if format != 0 {
            return Err(ConnectRefusal::Format);
        }
        let entries = u32::from(sqe.cdw(11) as u16) + 1;
        let least = if qid == 0 { Self::ADMIN_ENTRIES_MIN } else { 2 };
        if entries < least {
            return Err(ConnectRefusal::SQSIZE);
        }
        let attributes = sqe.cdw(11) >> 16;
        Ok(Connect {
            qid,
            entries,
            flow_control: attributes & 4 == 0,
            individual_deletion: attributes & 8 != 0,
            kato_ms: sqe.cdw(12),
        })
    }

    /// Whether a command of this type, well-formed or not, is for an Admin Queue.
    pub fn is_for_admin_queue(sqe: &Sqe) -> bool {
        Self::qid(sqe) == 0
    }

    fn qid(sqe: &Sqe) -> u16 {
        (sqe.cdw(10) >> 16) as u16
    }

    /// The command, for a host to send: its identifier and its data pointer are the transport's.
    pub fn to_sqe(&self) -> Sqe {
        let mut sqe = fabrics_sqe(FabricsType::CONNECT);
        sqe.cdw10[0] = U32::new(u32::from(self.qid) << 16);
        let attributes = u32::from(!self.flow_control) << 2 | u32::from(self.individual_deletion) << 3;
        sqe.cdw10[1] = U32::new((self.entries - 1) & 0xffff | attributes << 16);
        sqe.cdw10[2] = U32::new(self.kato_ms);
        sqe
    }
}

/// A fabrics command of this kind, all else zero but the SGL flag.
fn fabrics_sqe(kind: FabricsType) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    sqe.opcode = Opcode::FABRICS;
    sqe.flags = 0x40;
    sqe.nsid = U32::new(kind.0.into());
    sqe
}

/// The data of a Connect as it is on the wire: 1024 bytes (NVMe Base §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// HOSTID.
    pub host_id: [u8; 16],
    /// CNTLID: [`ConnectData::DYNAMIC`] with an admin queue, the controller's with an I/O queue.
    pub cntlid: U16,
    /// Reserved.
    pub reserved: [u8; 238],
    /// SUBNQN.
    pub subsystem: [u8; NQN_FIELD_LEN],
    /// HOSTNQN.
    pub host: [u8; NQN_FIELD_LEN],
    /// Reserved.
    pub reserved_end: [u8; 256],
}

const _: () = assert!(size_of::<ConnectData>() == 1024);

impl ConnectData {
    /// Bytes.
    pub const LEN: u32 = 1024;
    /// Any controller: the dynamic model.
    pub const DYNAMIC: u16 = 0xffff;

    /// Reads the data: all that a Connect carries.
    pub fn parse(bytes: &[u8; Self::LEN as usize]) -> ConnectData {
        zerocopy::transmute!(*bytes)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    /// What a host sends.
    pub fn new(who: &ConnectNames) -> Self {
        ConnectData {
            host_id: who.host_id.bytes(),
            cntlid: U16::new(who.cntlid),
            reserved: [0; 238],
            subsystem: who.subsystem.to_field(),
            host: who.host.to_field(),
            reserved_end: [0; 256],
        }
    }

    /// Reads the names. The refusal names the field.
    pub fn names(&self) -> Result<ConnectNames, ConnectRefusal> {
        let host_id = HostId::new(self.host_id).ok_or(ConnectRefusal::HOSTID)?;
        let subsystem = Nqn::from_field(&self.subsystem).map_err(|_| ConnectRefusal::SUBNQN)?;
        // SPDK's programs send none unless they are told one. Such a host is known by its identifier, under
        // the name that a host without a better one makes of it (NVMe Base §4.5.1): rules that let every
        // host come let it come.
        let host = if self.host == [0; NQN_FIELD_LEN] {
            Nqn::parse(&format!("nqn.2014-08.org.nvmexpress:uuid:{host_id}"))
        } else {
            Nqn::from_field(&self.host)
        };
        let host = host.map_err(|_| ConnectRefusal::HOSTNQN)?;
        Ok(ConnectNames { host_id, cntlid: self.cntlid.get(), subsystem, host })
    }
}

/// Who connects to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectNames {
    /// The host's identifier.
    pub host_id: HostId,
    /// The controller asked for.
    pub cntlid: u16,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The host's name.
    pub host: Nqn,
}

/// Why a Connect is refused; [`Completion`] is made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectRefusal {
    /// A record format that is not known.
    Format,
    /// No memory or no controller for it now; or the queue is in use by a connection on its way.
    Busy,
    /// This parameter.
    Parameter {
        /// Offset of the field in the command or in the data.
        at: u16,
        /// Whether it is in the data.
        in_data: bool,
        /// Whether trying again is pointless as things are configured.
        lasting: bool,
    },
    /// The host is not allowed here.
    Host,
    /// Not now: the queue is connected already, or the controller is not ready.
    Sequence,
    /// The keep-alive timeout is not acceptable.
    KeepAlive,
}

impl ConnectRefusal {
    /// Bad SQSIZE.
    pub const SQSIZE: ConnectRefusal = ConnectRefusal::invalid_parameter(Connect::SQSIZE_AT, false, true);
    /// Bad QID.
    pub const QID: ConnectRefusal = ConnectRefusal::invalid_parameter(Connect::QID_AT, false, true);
    /// Bad HOSTID.
    pub const HOSTID: ConnectRefusal = ConnectRefusal::invalid_parameter(0, true, true);
    /// Bad CNTLID. It may have been good until a moment ago, and a host that starts over gets a good
    /// one: so this is not lasting.
    pub const CNTLID: ConnectRefusal = ConnectRefusal::invalid_parameter(16, true, false);
    /// Bad SUBNQN.
    pub const SUBNQN: ConnectRefusal = ConnectRefusal::invalid_parameter(256, true, true);
    /// Bad HOSTNQN.
    pub const HOSTNQN: ConnectRefusal = ConnectRefusal::invalid_parameter(512, true, true);

    const fn invalid_parameter(at: u16, in_data: bool, lasting: bool) -> ConnectRefusal {
        ConnectRefusal::Parameter { at, in_data, lasting }
    }
}

/// In words, with what to do about it.
impl core::fmt::Display for ConnectRefusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match *self {
            ConnectRefusal::Format => "its Connect has a format that is not known",
            ConnectRefusal::Busy => "no place for it now: it may retry",
            ConnectRefusal::SQSIZE => "it asked for a queue of a size that is not granted: see queue_depth",
            ConnectRefusal::HOSTID => "its host identifier is none: give the machine one (/etc/nvme/hostid)",
            ConnectRefusal::SUBNQN => "the name of the subsystem that it asked for is none",
            ConnectRefusal::HOSTNQN => "its host NQN is none: give the machine one (nvme gen-hostnqn, /etc/nvme/hostnqn)",
            ConnectRefusal::Parameter { at, in_data, .. } => {
                let place = if in_data { "data" } else { "command" };
                return write!(f, "the {place} of its Connect has a wrong value at offset {at}");
            }
            ConnectRefusal::Host => "its host is not allowed here",
            ConnectRefusal::Sequence => "its queue is connected already, or its controller is not ready",
            ConnectRefusal::KeepAlive => {
                "its keep-alive timeout is none that is granted: see keep_alive, and nvme connect --keep-alive-tmo"
            }
        })
    }
}

impl From<ConnectRefusal> for Completion {
    fn from(refusal: ConnectRefusal) -> Self {
        match refusal {
            ConnectRefusal::Format => Status::CONNECT_INCOMPATIBLE_FORMAT.with_do_not_retry().into(),
            ConnectRefusal::Busy => Status::CONTROLLER_BUSY.into(),
            ConnectRefusal::Parameter { at, in_data, lasting } => {
                let status = Status::CONNECT_INVALID_PARAMETERS;
                let result = u64::from(at) | u64::from(in_data) << 16;
                Completion { result, status: if lasting { status.with_do_not_retry() } else { status } }
            }
            ConnectRefusal::Host => Status::CONNECT_INVALID_HOST.with_do_not_retry().into(),
            ConnectRefusal::Sequence => Status::COMMAND_SEQUENCE_ERROR.into(),
            ConnectRefusal::KeepAlive => Status::KEEP_ALIVE_INVALID.with_do_not_retry().into(),
        }
    }
}

/// What a Connect that succeeded answers in dword 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResult {
    /// The controller.
    pub cntlid: u16,
    /// ATR: the queue must authenticate before anything else.
    pub authenticate: bool,
    /// ASCR: the host must authenticate with secure channel concatenation, and come again over TLS.
    pub secure_channel: bool,
}

impl From<ConnectResult> for Completion {
    fn from(connected: ConnectResult) -> Self {
        let required = u64::from(connected.authenticate) << 17 | u64::from(connected.secure_channel) << 18;
        let result = u64::from(connected.cntlid) | required;
        Completion { result, status: Status::SUCCESS }
    }
}

impl ConnectResult {
    /// Reads the answer's dword 0, for a host.
    pub fn parse(result: u64) -> ConnectResult {
        ConnectResult {
            cntlid: result as u16,
            authenticate: result & 1 << 17 != 0,
            secure_channel: result & 1 << 18 != 0,
        }
    }
}

/// A property's place (NVMe Base §3.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Property(pub u32);

impl Property {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: Property = Property(0x00);
    /// Version, 4 bytes.
    pub const VS: Property = Property(0x08);
    /// Controller Configuration, 4 bytes.
    pub const CC: Property = Property(0x14);
    /// Controller Status, 4 bytes.
    pub const CSTS: Property = Property(0x1c);
    /// Controller Ready Timeouts, 4 bytes.
    pub const CRTO: Property = Property(0x68);
}

/// Property Get or Property Set (NVMe Base §6.5, §6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyAccess {
    /// Which.
    pub property: Property,
    /// Bytes: 4 or 8.
    pub len: u8,
    /// Of Property Set: what to set.
    pub value: u64,
}

impl PropertyAccess {
    /// Reads a command; `None` if its size is neither.
    pub fn parse(sqe: &Sqe) -> Option<PropertyAccess> {
        let len = match sqe.cdw(10) & 7 {
            0 => 4,
            1 => 8,
            _ => return None,
        };
        Some(PropertyAccess { property: Property(sqe.cdw(11)), len, value: sqe.cdw_pair(12) })
    }

    /// A Property Get, for a host to send.
    pub fn property_get_sqe(property: Property, len: u8) -> Sqe {
        let mut sqe = fabrics_sqe(FabricsType::PROPERTY_GET);
        sqe.cdw10[0] = U32::new(u32::from(len == 8));
        sqe.cdw10[1] = U32::new(property.0);
        sqe
    }

    /// A Property Set of 4 bytes, for a host to send.
    pub fn property_set_sqe(property: Property, value: u32) -> Sqe {
        let mut sqe = fabrics_sqe(FabricsType::PROPERTY_SET);
        sqe.cdw10[1] = U32::new(property.0);
        sqe.cdw10[2] = U32::new(value);
        sqe
    }
}

/// Disconnect (NVMe Base §6.4): whether its record format is known.
pub fn disconnect_is_valid(sqe: &Sqe) -> bool {
    sqe.cdw(10) & 0xffff == 0
}

#[cfg(test)]
mod tests;
