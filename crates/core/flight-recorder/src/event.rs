//! An event, and how it lies in slots.
//!
//! An event is a head slot and the slots of its texts behind it. Each slot has 32 bytes, numbers are little-endian:
//!
//! | bytes | head | text |
//! |---|---|---|
//! | 0 | kind | 255 |
//! | 1 | bit 0: it has a peer | bits 0 to 4: bytes of text; bits 5 to 7: which text |
//! | 2-3 | check | check |
//! | 4-7 | port of the peer, and the number (16 bits); without a peer 0 | text |
//! | 8-15 | time, nanoseconds of the shard's clock | text |
//! | 16-31 | address of the peer (IPv4 as mapped to IPv6); without one the number (64 bits) and 0 | text |

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use buf::{Time, crc32c::crc32c};

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 32;
/// Bytes of text in a slot.
const TEXT_SLOT_BYTES: usize = 28;
/// Bytes of one text at most: names of iSCSI and NVMe have at most 223. What is longer is cut.
const TEXT_BYTES_MAX: usize = 8 * TEXT_SLOT_BYTES;
/// Texts of an event at most.
const TEXTS_MAX: usize = 4;
/// Slots of an event at most.
pub const EVENT_SLOTS_MAX: usize = 1 + TEXTS_MAX * TEXT_BYTES_MAX / TEXT_SLOT_BYTES;

const TEXT_SLOT: u8 = 255;
const HAS_PEER: u8 = 1;

/// Bytes of a slot.
pub type Slot = [u8; SLOT_BYTES];

macro_rules! event_kinds {
    ($($(#[$doc:meta])* $kind:ident = $code:literal, $name:literal;)*) => {
        /// What happened. The number and the texts that an event has are told of each kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum EventKind {
            $($(#[$doc])* $kind = $code,)*
        }

        impl EventKind {
            /// All kinds.
            pub const ALL: &[EventKind] = &[$(EventKind::$kind,)*];

            /// In words that are joined by hyphens.
            pub fn name(self) -> &'static str {
                match self {
                    $(EventKind::$kind => $name,)*
                }
            }
        }
    };
}

event_kinds! {
    /// The shard has begun.
    Start = 1, "start";
    /// The shard is asked to stop in order.
    Stop = 2, "stop";
    /// An initiator has logged in: host, target.
    Login = 3, "login";
    /// A login was refused, or was not finished: host, target, cause.
    LoginRefused = 4, "login-refused";
    /// An iSCSI session has ended: host, target.
    SessionEnded = 5, "session-ended";
    /// A host has a controller, which is the number: host, target.
    Connect = 6, "connect";
    /// A Connect was refused, or was not finished: host, target, cause.
    ConnectRefused = 7, "connect-refused";
    /// A controller, the number, has ended: host, target, cause.
    ControllerEnded = 8, "controller-ended";
    /// A peer broke the protocol: host, target, cause.
    ProtocolViolation = 9, "protocol-violation";
    /// Something that the log tells of a volume: volume, cause.
    VolumeNotice = 10, "volume-notice";
    /// A path, the number, to a volume of another machine is down: volume, cause.
    RemotePathDown = 11, "remote-path-down";
    /// A path, the number, to a volume of another machine is up again: volume.
    RemotePathUp = 12, "remote-path-up";
    /// A reservation action is asked for: volume, host, cause: which.
    Reservation = 13, "reservation";
    /// Another change of a volume is asked for: volume, host, cause: which.
    VolumeChange = 14, "volume-change";
    /// A change was refused: volume, cause.
    ChangeRefused = 15, "change-refused";
    /// A change of a volume, the number, goes to all shards and waits for what is in flight: volume.
    Fence = 16, "fence";
    /// The volume's state could not be saved: volume.
    RecordNotSaved = 17, "record-not-saved";
    /// A host asks for a task management function, the number is its LUN: host, cause: which.
    TaskManagement = 18, "task-management";
    /// An operation of a volume failed: volume, cause.
    OperationFailed = 19, "operation-failed";
    /// An operation of a volume has ended that took long, the number is nanoseconds: volume, cause: which.
    SlowOperation = 20, "slow-operation";
    /// Commands begin to wait for payload memory.
    MemoryWait = 21, "memory-wait";
    /// No command waits for payload memory any more.
    MemoryFree = 22, "memory-free";
    /// A volume is served: volume.
    VolumeAdded = 23, "volume-added";
    /// A volume is served no more: volume.
    VolumeRemoved = 24, "volume-removed";
    /// What leads to which volumes, and for whom, has changed.
    ExportsChanged = 25, "exports-changed";
    /// Events of a kind, the number is how many, were not recorded in a second: cause: which kind.
    Suppressed = 26, "suppressed";
}

impl EventKind {
    /// Of its number in a slot.
    pub fn of_code(code: u8) -> Option<EventKind> {
        EventKind::ALL.iter().copied().find(|kind| *kind as u8 == code)
    }

    /// Whether a peer can cause it at will without having been let in.
    pub fn is_from_strangers(self) -> bool {
        matches!(self, EventKind::LoginRefused | EventKind::ConnectRefused | EventKind::ProtocolViolation)
    }
}

/// Which text of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TextField {
    /// Why, or which action.
    Cause = 0,
    /// The name of a volume.
    Volume = 1,
    /// The name of an initiator or host.
    Host = 2,
    /// The name of a target or subsystem.
    Target = 3,
}

impl TextField {
    fn of_code(code: u8) -> Option<TextField> {
        [TextField::Cause, TextField::Volume, TextField::Host, TextField::Target]
            .into_iter()
            .find(|field| *field as u8 == code)
    }
}

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    pub(crate) kind: EventKind,
    peer: Option<SocketAddr>,
    number: u64,
    texts: [Option<(TextField, &'a str)>; TEXTS_MAX],
}

impl<'a> Event<'a> {
    /// Nothing but its kind.
    pub fn new(kind: EventKind) -> Self {
        Event { kind, peer: None, number: 0, texts: [None; TEXTS_MAX] }
    }

    /// Whose connection it is about.
    #[must_use]
    pub fn with_peer(self, peer: SocketAddr) -> Self {
        Event { peer: Some(peer), ..self }
    }

    /// Its number. Of an event with a peer, 16 bits of it are kept.
    #[must_use]
    pub fn with_number(self, number: u64) -> Self {
        Event { number, ..self }
    }

    /// One of its texts, of which the first 224 bytes are kept; more than four are not.
    #[must_use]
    pub fn with_text(mut self, field: TextField, text: &'a str) -> Self {
        if let Some(free) = self.texts.iter_mut().find(|one| one.is_none()) {
            *free = Some((field, text));
        }
        self
    }

    /// Gives its slots, in order.
    pub(crate) fn encode(&self, now: Time, mut put: impl FnMut(&Slot)) {
        let mut words = [0_u64; 4];
        let mut flags = 0;
        if let Some(peer) = self.peer {
            flags = HAS_PEER;
            let address = match peer.ip() {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            let bits = address.to_bits();
            words[0] = (u64::from(peer.port()) << 32) | ((self.number & 0xffff) << 48);
            (words[2], words[3]) = ((bits >> 64) as u64, bits as u64);
        } else {
            words[2] = self.number;
        }
        words[0] |= u64::from(self.kind as u8) | (u64::from(flags) << 8);
        words[1] = now.0;
        put(&seal(slot_of(words)));
        for (field, text) in self.texts.iter().flatten() {
            let bytes = text.as_bytes();
            for piece in
                bytes.get(..bytes.len().min(TEXT_BYTES_MAX)).unwrap_or_default().chunks(TEXT_SLOT_BYTES)
            {
                let mut slot = [0; SLOT_BYTES];
                let (head, room) = slot.split_at_mut(SLOT_BYTES - TEXT_SLOT_BYTES);
                room.iter_mut().zip(piece).for_each(|(into, byte)| *into = *byte);
                head.iter_mut()
                    .zip([TEXT_SLOT, piece.len() as u8 | ((*field as u8) << 5)])
                    .for_each(|(into, byte)| *into = byte);
                put(&seal(slot));
            }
        }
    }
}

fn slot_of(words: [u64; 4]) -> Slot {
    let mut slot = [0; SLOT_BYTES];
    for (into, word) in slot.chunks_exact_mut(8).zip(words) {
        into.copy_from_slice(&word.to_le_bytes());
    }
    slot
}

/// The check of a slot, in which its own bytes count as 0.
fn check_of(slot: &Slot) -> [u8; 2] {
    let mut bare = *slot;
    bare.iter_mut().skip(2).take(2).for_each(|byte| *byte = 0);
    let crc = crc32c(&bare);
    (((crc >> 16) ^ crc) as u16).to_le_bytes()
}

fn seal(mut slot: Slot) -> Slot {
    let check = check_of(&slot);
    slot.iter_mut().skip(2).zip(check).for_each(|(into, byte)| *into = byte);
    slot
}

/// What a slot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SlotContent<'a> {
    /// Nothing yet.
    Empty,
    /// Bytes that no recorder wrote.
    Damaged,
    /// The head of an event.
    Head { code: u8, time: u64, peer: Option<SocketAddr>, number: u64 },
    /// A piece of a text of the event before it.
    Text { field: Option<TextField>, bytes: &'a [u8] },
}

/// Reads a slot.
pub(crate) fn decode_slot(slot: &Slot) -> SlotContent<'_> {
    let [code, flags, check_low, check_high, ..] = *slot;
    if slot.iter().all(|byte| *byte == 0) {
        return SlotContent::Empty;
    }
    if check_of(slot) != [check_low, check_high] || code == 0 {
        return SlotContent::Damaged;
    }
    if code == TEXT_SLOT {
        let bytes =
            slot.get(SLOT_BYTES - TEXT_SLOT_BYTES..).and_then(|room| room.get(..usize::from(flags & 31)));
        return match bytes {
            Some(bytes) => SlotContent::Text { field: TextField::of_code(flags >> 5), bytes },
            None => SlotContent::Damaged,
        };
    }
    let mut words = slot
        .chunks_exact(8)
        .map(|word| word.iter().rev().fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte)));
    let mut word = || words.next().unwrap_or_default();
    let (first, time, high, low) = (word(), word(), word(), word());
    if flags & HAS_PEER == 0 {
        return SlotContent::Head { code, time, peer: None, number: high };
    }
    let address = Ipv6Addr::from_bits((u128::from(high) << 64) | u128::from(low));
    let peer = SocketAddr::new(IpAddr::V6(address).to_canonical(), (first >> 32) as u16);
    SlotContent::Head { code, time, peer: Some(peer), number: first >> 48 }
}
