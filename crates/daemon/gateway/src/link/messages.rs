//! The messages between members as bytes. A number that stands before a variant is never given to another.

use group::{
    Answer, Command, GroupId, InstanceId, LinkMessage, LinkPayload, LostController, ResetAnswer, Snapshot,
    Term,
};
use volume::reservation::{Action, Key, RegisterMode, RegistrationRequest, ReservationType};
use volume::{
    Durability, Extent, Failure, Fault, Geometry, Identity, Notice, NoticeCause, NoticeReceivers, Op,
    Outcome, PathAccess, PortId, Refusal, Requester, SanitizeKind, Span, UnservableReason, Uuid,
    VolumeRequest,
};

use super::wire::{Malformed, Reader, Wire};

impl Wire for LinkPayload {
    fn encode(&self, to: &mut Vec<u8>) {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX).encode(to);
        to.extend_from_slice(&self.0);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let length = usize::try_from(u32::decode(from)?).map_err(|_| Malformed)?;
        Ok(LinkPayload(from.slice(length)?.into()))
    }
}

macro_rules! wire_enum {
    ($ty:ty as $of:ident { $($tag:literal $variant:ident $(($($inner:ident),*))? $({$($field:ident),*})?,)* }) => {
        impl Wire for $ty {
            fn encode(&self, to: &mut Vec<u8>) {
                match self {
                    $($of::$variant $(($($inner),*))? $({$($field),*})? => {
                        to.push($tag);
                        $($($inner.encode(to);)*)?
                        $($($field.encode(to);)*)?
                    })*
                }
            }

            fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(match u8::decode(from)? {
                    $($tag => {
                        $($(let $inner = Wire::decode(from)?;)*)?
                        $($(let $field = Wire::decode(from)?;)*)?
                        $of::$variant $(($($inner),*))? $({$($field),*})?
                    })*
                    _ => return Err(Malformed),
                })
            }
        }
    };
}

macro_rules! wire_struct {
    ($of:ident { $($field:ident),* } $(where $is_sound:ident)?) => {
        impl Wire for $of {
            fn encode(&self, to: &mut Vec<u8>) {
                let $of { $($field),* } = self;
                $($field.encode(to);)*
            }

            fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                $(let $field = Wire::decode(from)?;)*
                let value = $of { $($field),* };
                $(if !$is_sound(&value) {
                    return Err(Malformed);
                })?
                Ok(value)
            }
        }
    };
}

macro_rules! wire_numbers {
    ($($of:ident),*) => {$(
        impl Wire for $of {
            fn encode(&self, to: &mut Vec<u8>) {
                self.0.encode(to);
            }

            fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                Wire::decode(from).map($of)
            }
        }
    )*};
}

wire_numbers!(GroupId, InstanceId, Key, PortId, Term, Uuid);

wire_enum! { LinkMessage<LinkPayload> as LinkMessage {
    0 KeepAlive { store_silent },
    1 Settled,
    2 Forward { number, group, term, volume, who, command },
    3 Answer { number, answer },
    4 NotOwner { number },
    5 Notices { group, term, sequence, volume, notices },
    6 NoticesSoFar { group, term, sequence },
    7 Busy { number },
    8 Snapshot { group, term, volume, snapshot },
    9 ResetController { number, controller },
    10 ControllerReset { number, answer },
    11 SettleInstance { instance },
    12 InstanceSettled { instance },
    13 Cancel { number },
} }

wire_enum! { ResetAnswer as ResetAnswer { 0 Gone, 1 NotPermitted, 2 Unknown, } }

wire_enum! { Command<LinkPayload> as Command {
    0 Io { op, payload },
    1 Change(request),
} }

wire_enum! { Answer<LinkPayload> as Answer {
    0 Io { result, payload },
    1 Change(result),
} }

wire_enum! { Op as Op {
    0 Read(span),
    1 Write(span, durability),
    2 WriteAtomic(span),
    3 Flush,
    4 Compare(span),
    5 CompareAndWrite(span),
    6 WriteZeroes { span, unmap },
    7 WriteSame(span),
    8 Or(span),
    9 Unmap(spans),
    10 Verify(span),
    11 MarkBad(span),
    12 Prefetch(span),
    13 Extents(span),
    14 Sanitize(kind),
} }

wire_enum! { VolumeRequest as VolumeRequest {
    0 Reserve { who, action },
    1 SetAccess { ports, to, by },
    2 Resize(geometry),
    3 WriteProtect(on),
    4 BackingReadOnly(on),
    5 WriteProtectByHost { by, on },
    6 HostSettings { by, bits },
    7 PreventRemoval { by, on },
    8 Eject { by },
    9 Load { by },
    10 Stop,
    11 Start,
    12 Reset,
    13 ClearTasks { by },
    14 AbortTasks { of },
    15 NexusLost(who),
    16 SanitizeStart { who },
    17 SanitizeEnd { done },
    18 SanitizeForgive,
    19 MarkBad { who, span },
    20 ClearBad { who, span },
    21 Withdraw,
    22 Remove,
    23 FormatStart { who },
    24 SetPreferred { ports, on },
    25 Refresh,
} }

wire_enum! { Action as Action {
    0 Register(request),
    1 Move { key, new, to, unregister, persist },
    2 Reserve { key, kind },
    3 Release { key, kind },
    4 Clear { key },
    5 Preempt { key, victim, kind, abort },
    6 Persist { on },
    7 LegacyReserve,
    8 LegacyRelease,
} }

wire_enum! { RegisterMode as RegisterMode { 0 Set, 1 Add, 2 Replace, 3 Remove, } }

wire_enum! { ReservationType as ReservationType {
    0 WriteExclusive,
    1 ExclusiveAccess,
    2 WriteExclusiveRegistrants,
    3 ExclusiveAccessRegistrants,
    4 WriteExclusiveAll,
    5 ExclusiveAccessAll,
} }

wire_enum! { Identity as Identity { 0 Initiator { name, isid, port }, 1 Host(id), } }

wire_enum! { PathAccess as PathAccess {
    0 Optimized,
    1 NonOptimized,
    2 Inaccessible,
    3 PersistentLoss,
    4 Transition,
    5 Standby,
} }

wire_enum! { Durability as Durability { 0 Cached, 1 Stable, } }

wire_enum! { SanitizeKind as SanitizeKind { 0 Overwrite { pattern, passes, invert }, 1 BlockErase, } }

wire_enum! { Outcome as Outcome { 0 Complete, 1 Extents(extents), } }

wire_enum! { Failure as Failure { 0 Refused(refusal), 1 Failed(fault), } }

wire_enum! { Refusal as Refusal {
    0 Conflict,
    1 Inaccessible(access),
    2 OutOfRange,
    3 ReadOnly,
    4 AtomicUnit,
    5 NotReady(why),
    6 Unsupported,
    7 Busy,
    8 NoRegistrationSpace,
    9 NoMarkSpace,
    10 NotRegistered,
    11 InvalidRelease,
    12 InvalidAction,
    13 NothingReserved,
    14 NotDurable,
    15 RemovalPrevented,
    16 NotFenced,
} }

wire_enum! { UnservableReason as UnservableReason {
    0 Stopped,
    1 NoMedium,
    2 Sanitizing(progress),
    3 SanitizeFailed,
    4 SyncFailed,
    5 Removed,
    6 Formatting(progress),
} }

wire_enum! { Fault as Fault {
    0 Medium(lba),
    1 Unwritable(lba),
    2 Miscompare(at),
    3 NoSpace,
    4 Sync,
    5 PathLost,
    6 Aborted,
    7 Internal,
} }

wire_enum! { NoticeReceivers as NoticeReceivers {
    0 All,
    1 AllBut(one),
    2 Initiators,
    3 InitiatorsBut(one),
    4 These(these),
} }

wire_enum! { NoticeCause as NoticeCause {
    0 RegistrationsPreempted,
    1 ReservationsReleased,
    2 ReservationsPreempted,
    3 CapacityChanged,
    4 AccessChanged,
    5 IdentityChanged,
    6 InventoryChanged,
    7 WriteProtectChanged,
    8 SettingsChanged,
    9 MediumChanged,
    10 SanitizeDone,
    11 TasksCleared,
    12 Reset,
    13 ThinThresholdReached,
} }

/// The longest record: one of 1,024 registrants with names of 223 bytes, and as many bad blocks, has less than 1 MiB.
const RECORD_MAX: usize = 2 << 20;

impl Wire for Snapshot {
    fn encode(&self, to: &mut Vec<u8>) {
        self.geometry.encode(to);
        u32::try_from(self.record.len()).unwrap_or(u32::MAX).encode(to);
        to.extend_from_slice(&self.record);
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let geometry = Wire::decode(from)?;
        let length = usize::try_from(u32::decode(from)?).map_err(|_| Malformed)?;
        if length > RECORD_MAX {
            return Err(Malformed);
        }
        Ok(Snapshot { geometry, record: from.slice(length)?.into() })
    }
}

wire_struct!(LostController { cntlid, uniquifier, random_number, subsystem, host, host_id });
wire_struct!(Notice { to, cause });
wire_struct!(Requester { identity, port, read_only });
wire_struct!(RegistrationRequest { mode, current, new, also, ports, nqn, persist });
wire_struct!(Span { lba, blocks });
wire_struct!(Extent { span, mapped });
wire_struct!(Geometry {
    blocks,
    logical,
    physical,
    dio_align,
    max_io,
    thin,
    write_cache,
    atomic,
    atomic_powerfail,
    caw_max,
    dealloc_reads_zero,
    lends
} where is_sound_geometry);

/// Whether blocks can be like this: servers divide by these lengths and take their logarithms.
fn is_sound_geometry(geometry: &Geometry) -> bool {
    let Geometry { logical, physical, dio_align, atomic_powerfail, .. } = *geometry;
    logical.is_power_of_two()
        && logical >= 512
        && physical.is_power_of_two()
        && physical >= logical
        && dio_align.is_power_of_two()
        && atomic_powerfail > 0
}
