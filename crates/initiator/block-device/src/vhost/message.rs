//! Messages of vhost-user (QEMU's docs/interop/vhost-user.rst; numbers in native byte order): bytes and
//! descriptors of a socket become typed messages, or a refusal.

use smallvec::SmallVec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The longest payload of a message that is taken, in bytes.
pub const PAYLOAD_MAX: usize = 4096;
/// Regions of memory in one message (VHOST_USER_MAX_RAM_SLOTS of the old form).
pub(super) const REGIONS_PER_MESSAGE: usize = 8;
/// Bytes of the device's configuration that one message may carry.
pub(super) const CONFIG_MAX: usize = 256;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY_FLAG: u32 = 4;
const NEED_REPLY_FLAG: u32 = 8;

/// Of the payload of messages that bring a descriptor: none comes.
const NO_FD_FLAG: u64 = 0x100;
const INDEX_MASK: u64 = 0xff;

pub(super) mod feature {
    pub(in crate::vhost) const RING_INDIRECT_DESC: u64 = 1 << 28;
    pub(in crate::vhost) const RING_EVENT_IDX: u64 = 1 << 29;
    pub(in crate::vhost) const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub(in crate::vhost) const VERSION_1: u64 = 1 << 32;
}

pub(super) mod protocol_feature {
    pub(in crate::vhost) const MQ: u64 = 1 << 0;
    pub(in crate::vhost) const REPLY_ACK: u64 = 1 << 3;
    pub(in crate::vhost) const BACKEND_REQ: u64 = 1 << 5;
    pub(in crate::vhost) const CONFIG: u64 = 1 << 9;
    pub(in crate::vhost) const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub(in crate::vhost) const RESET_DEVICE: u64 = 1 << 13;
    pub(in crate::vhost) const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
}

mod request {
    pub(super) const GET_FEATURES: u32 = 1;
    pub(super) const SET_FEATURES: u32 = 2;
    pub(super) const SET_OWNER: u32 = 3;
    pub(super) const RESET_OWNER: u32 = 4;
    pub(super) const SET_MEM_TABLE: u32 = 5;
    pub(super) const SET_VRING_NUM: u32 = 8;
    pub(super) const SET_VRING_ADDR: u32 = 9;
    pub(super) const SET_VRING_BASE: u32 = 10;
    pub(super) const GET_VRING_BASE: u32 = 11;
    pub(super) const SET_VRING_KICK: u32 = 12;
    pub(super) const SET_VRING_CALL: u32 = 13;
    pub(super) const SET_VRING_ERR: u32 = 14;
    pub(super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(super) const GET_QUEUE_NUM: u32 = 17;
    pub(super) const SET_VRING_ENABLE: u32 = 18;
    pub(super) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(super) const GET_CONFIG: u32 = 24;
    pub(super) const SET_CONFIG: u32 = 25;
    pub(super) const GET_INFLIGHT_FD: u32 = 31;
    pub(super) const SET_INFLIGHT_FD: u32 = 32;
    pub(super) const RESET_DEVICE: u32 = 34;
    pub(super) const GET_MAX_MEM_SLOTS: u32 = 36;
    pub(super) const ADD_MEM_REG: u32 = 37;
    pub(super) const REM_MEM_REG: u32 = 38;
}

/// Of the channel in the other direction: the configuration has changed.
pub(super) const BACKEND_CONFIG_CHANGE: u32 = 2;

/// In front of every message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Header {
    pub(super) request: u32,
    pub(super) flags: u32,
    pub(super) size: u32,
}

pub(super) const HEADER_LEN: usize = size_of::<Header>();

/// Where a piece of the machine's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemoryRegion {
    /// Its address as the guest knows it.
    pub guest: u64,
    /// Bytes.
    pub size: u64,
    /// Its address as the front end knows it.
    pub user: u64,
    /// Where in the descriptor's file it begins.
    pub offset: u64,
}

/// Where a ring's three parts are, as the front end knows addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingLayout {
    /// The descriptors.
    pub descriptors: u64,
    /// What was used.
    pub used: u64,
    /// What is available.
    pub available: u64,
}

/// What the memory for requests in flight is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InflightLayout {
    /// Bytes.
    pub size: u64,
    /// Where in the file.
    pub offset: u64,
    /// Queues.
    pub queues: u16,
    /// Descriptors of each.
    pub queue_size: u16,
    /// None.
    pub padding: [u8; 4],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RingState {
    index: u32,
    number: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RingAddresses {
    index: u32,
    flags: u32,
    descriptors: u64,
    used: u64,
    available: u64,
    log: u64,
}

/// In front of configuration bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ConfigHeader {
    /// First byte.
    pub offset: u32,
    /// How many.
    pub size: u32,
    /// Whether it is the guest's driver that writes.
    pub flags: u32,
}

/// A message of the front end. Descriptors come beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Which features there are.
    GetFeatures,
    /// Which of them the driver took.
    SetFeatures(u64),
    /// A session begins.
    SetOwner,
    /// A session ends: all rings stop.
    Reset,
    /// The whole memory; a descriptor for each region.
    SetMemory(SmallVec<[MemoryRegion; 1]>),
    /// One more region, with its descriptor.
    AddRegion(MemoryRegion),
    /// One region less.
    RemoveRegion(MemoryRegion),
    /// How many regions may be added.
    GetRegionsMax,
    /// A ring's length.
    SetRingSize(u32, u32),
    /// A ring's place.
    SetRingAt(u32, RingLayout),
    /// Where in the available ring to begin.
    SetRingBase(u32, u32),
    /// Stop a ring; say where it was.
    GetRingBase(u32),
    /// The descriptor that is readable when there is work; or none.
    SetKick(u32, bool),
    /// The descriptor to write to when work was done; or none.
    SetCall(u32, bool),
    /// The descriptor to write to when a ring is broken; or none.
    SetError(u32, bool),
    /// Which features of this protocol there are.
    GetProtocolFeatures,
    /// Which of them the front end took.
    SetProtocolFeatures(u64),
    /// How many queues there may be.
    GetQueueCount,
    /// Whether a ring may be worked on.
    SetRingEnabled(u32, bool),
    /// The socket for messages in the other direction.
    SetBackendSocket,
    /// Bytes of the configuration.
    GetConfig(ConfigHeader),
    /// Bytes for the configuration.
    SetConfig(ConfigHeader, SmallVec<[u8; 64]>),
    /// Memory for requests in flight is wanted.
    GetInflight(InflightLayout),
    /// Memory of requests in flight, from before.
    SetInflight(InflightLayout),
    /// Something else.
    Unknown(u32),
}

/// A message with what stands around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// What it says.
    pub message: Message,
    /// Its number, for the answer.
    pub request: u32,
    /// Whether the front end waits for an acknowledgement.
    pub need_reply: bool,
}

/// Why bytes are no message: the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Takes a message from the server of `input`: how many bytes it has, or `None` if it is not all there.
pub fn parse_input(input: &[u8]) -> Result<Option<(usize, ReceivedMessage)>, Malformed> {
    let Ok((header, rest)) = Header::read_from_prefix(input) else { return Ok(None) };
    if header.flags & VERSION_MASK != VERSION
        || header.flags & REPLY_FLAG != 0
        || header.size as usize > PAYLOAD_MAX
    {
        return Err(Malformed);
    }
    let Some(payload) = rest.get(..header.size as usize) else { return Ok(None) };
    let envelope = ReceivedMessage {
        message: parse_message(header.request, payload)?,
        request: header.request,
        need_reply: header.flags & NEED_REPLY_FLAG != 0,
    };
    Ok(Some((HEADER_LEN + payload.len(), envelope)))
}

/// The payload as one value, which it must fill.
fn parse_exact<T: FromBytes>(payload: &[u8]) -> Result<T, Malformed> {
    T::read_from_bytes(payload).map_err(|_| Malformed)
}

/// A number whose upper bits say whether a descriptor comes.
fn parse_index_and_fd_flag(payload: &[u8]) -> Result<(u32, bool), Malformed> {
    let number: u64 = parse_exact(payload)?;
    Ok(((number & INDEX_MASK) as u32, number & NO_FD_FLAG == 0))
}

fn parse_message(request: u32, payload: &[u8]) -> Result<Message, Malformed> {
    let state = || parse_exact::<RingState>(payload).map(|state| (state.index, state.number));
    Ok(match request {
        request::GET_FEATURES => Message::GetFeatures,
        request::SET_FEATURES => Message::SetFeatures(parse_exact(payload)?),
        request::SET_OWNER => Message::SetOwner,
        request::RESET_OWNER | request::RESET_DEVICE => Message::Reset,
        request::SET_MEM_TABLE => Message::SetMemory(parse_memory_table(payload)?),
        request::ADD_MEM_REG => Message::AddRegion(parse_memory_region(payload)?),
        request::REM_MEM_REG => Message::RemoveRegion(parse_memory_region(payload)?),
        request::GET_MAX_MEM_SLOTS => Message::GetRegionsMax,
        request::SET_VRING_NUM => state().map(|(index, size)| Message::SetRingSize(index, size))?,
        request::SET_VRING_ADDR => {
            let at: RingAddresses = parse_exact(payload)?;
            let RingAddresses { descriptors, used, available, .. } = at;
            Message::SetRingAt(at.index, RingLayout { descriptors, used, available })
        }
        request::SET_VRING_BASE => state().map(|(index, base)| Message::SetRingBase(index, base))?,
        request::GET_VRING_BASE => state().map(|(index, _)| Message::GetRingBase(index))?,
        request::SET_VRING_KICK => {
            parse_index_and_fd_flag(payload).map(|(index, fd)| Message::SetKick(index, fd))?
        }
        request::SET_VRING_CALL => {
            parse_index_and_fd_flag(payload).map(|(index, fd)| Message::SetCall(index, fd))?
        }
        request::SET_VRING_ERR => {
            parse_index_and_fd_flag(payload).map(|(index, fd)| Message::SetError(index, fd))?
        }
        request::GET_PROTOCOL_FEATURES => Message::GetProtocolFeatures,
        request::SET_PROTOCOL_FEATURES => Message::SetProtocolFeatures(parse_exact(payload)?),
        request::GET_QUEUE_NUM => Message::GetQueueCount,
        request::SET_VRING_ENABLE => state().map(|(index, on)| Message::SetRingEnabled(index, on != 0))?,
        request::SET_BACKEND_REQ_FD => Message::SetBackendSocket,
        request::GET_CONFIG => parse_config(payload).map(|(at, _)| Message::GetConfig(at))?,
        request::SET_CONFIG => {
            parse_config(payload).map(|(at, bytes)| Message::SetConfig(at, bytes.into()))?
        }
        request::GET_INFLIGHT_FD => Message::GetInflight(parse_exact(payload)?),
        request::SET_INFLIGHT_FD => Message::SetInflight(parse_exact(payload)?),
        other => Message::Unknown(other),
    })
}

fn parse_memory_table(payload: &[u8]) -> Result<SmallVec<[MemoryRegion; 1]>, Malformed> {
    let (head, mut rest) = payload.split_first_chunk::<8>().ok_or(Malformed)?;
    let [a, b, c, d, ..] = *head;
    let count = u32::from_ne_bytes([a, b, c, d]) as usize;
    if count == 0 || count > REGIONS_PER_MESSAGE {
        return Err(Malformed);
    }
    let mut regions = SmallVec::new();
    for _ in 0..count {
        let (region, behind) = MemoryRegion::read_from_prefix(rest).map_err(|_| Malformed)?;
        regions.push(region);
        rest = behind;
    }
    Ok(regions)
}

/// One region, behind eight bytes of padding.
fn parse_memory_region(payload: &[u8]) -> Result<MemoryRegion, Malformed> {
    parse_exact(payload.get(8..).ok_or(Malformed)?)
}

fn parse_config(payload: &[u8]) -> Result<(ConfigHeader, &[u8]), Malformed> {
    let (at, bytes) = ConfigHeader::read_from_prefix(payload).map_err(|_| Malformed)?;
    let end = at.offset.checked_add(at.size).ok_or(Malformed)?;
    if end as usize > CONFIG_MAX || bytes.len() != at.size as usize {
        return Err(Malformed);
    }
    Ok((at, bytes))
}

/// An answer, appended to `out`.
pub(super) fn append_reply(out: &mut Vec<u8>, request: u32, parts: &[&[u8]]) {
    let size = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
    out.extend_from_slice(Header { request, flags: VERSION | REPLY_FLAG, size }.as_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// A message in the other direction that wants no answer.
pub(super) fn backend_message(request: u32) -> [u8; HEADER_LEN] {
    zerocopy::transmute!(Header { request, flags: VERSION, size: 0 })
}
