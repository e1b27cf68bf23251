//! What a controller reports about itself and a namespace, validated once: later code can rely on the values.
//!
//! Invariant: nothing here is allocated by a number that the controller chose.

use std::time::Duration;

use nvme::ControllerInstance;
use nvme::identify::controller::IdentifyNvmController;
use nvme::identify::{
    IdentifyController, IdentifyIndependentNamespace, IdentifyNamespace, NamespaceIdentifiers,
};
use nvme::log::ana;
use nvme::property::ControllerCapabilities;
use volume::{Geometry, PathAccess, Uuid};

use super::settings::Settings;

/// The least page of a controller, in bytes: CAP.MPSMIN of 0, on which MDTS and the like stand.
const MEMORY_PAGE_MIN: u64 = 4096;
/// Blocks of one command.
pub(super) const BLOCKS_PER_COMMAND_MAX: u32 = 65_536;
/// ANA groups whose state is read: as many as fit 32 KiB.
const ANA_GROUPS_MAX: u32 = 1024;
/// Ranges of one Dataset Management.
pub(super) const DSM_RANGES_MAX: u16 = 256;

/// What a controller said that cannot be, or that is not spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnusableFacts {
    /// This claim contradicts the standard, or what was said before.
    Lie(&'static str),
    /// It may be, but is not spoken here.
    Foreign(&'static str),
    /// It is not there.
    Absent(&'static str),
}

/// A controller, as far as a host must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ControllerFacts {
    pub(super) cntlid: u16,
    pub(super) version: u32,
    pub(super) serial: [u8; 20],
    pub(super) model: [u8; 40],
    pub(super) firmware: [u8; 8],
    /// MDTS in bytes; `None`: no limit.
    pub(super) transfer_max: Option<u64>,
    /// MDTS is believed up to here only: a page, for log pages.
    pub(super) in_capsule_max: u32,
    pub(super) max_commands: Option<u16>,
    pub(super) oncs: u16,
    pub(super) fused: bool,
    pub(super) write_cache: bool,
    pub(super) any_traffic_keeps_alive: bool,
    /// What Keep Alive Timeouts are rounded up to.
    pub(super) keep_alive_unit: Duration,
    /// CQT.
    pub(super) quiesce: Duration,
    pub(super) events: u32,
    /// Asynchronous Event Requests that may wait: at least 1.
    pub(super) event_requests: u16,
    /// Aborts that may be in work: at least 1.
    pub(super) aborts: u16,
    /// CRDT 1 to 3.
    pub(super) retry_delays: [Duration; 3],
    /// Groups of paths, if their state is told.
    pub(super) ana_groups: Option<u32>,
    pub(super) logs_by_offset: bool,
    /// By what another controller may be asked to reset it; `None`: it does not say.
    pub(super) instance: Option<ControllerInstance>,
    /// How many resets of other controllers it may have under way (CCRL); 0: it does none.
    pub(super) peer_resets: u8,
    /// Atomics of namespaces without their own, in blocks.
    atomic: u32,
    atomic_powerfail: u32,
    compare_and_write: u32,
}

impl ControllerFacts {
    /// Judges Identify Controller of an I/O controller; `cntlid` is what Connect answered.
    pub(super) fn from_identify(
        said: &IdentifyController,
        cntlid: u16,
        nsid: u32,
    ) -> Result<Self, UnusableFacts> {
        let lie = |what| Err(UnusableFacts::Lie(what));
        if said.cntlid.get() != cntlid {
            return lie("Identify shows another CNTLID than Connect");
        }
        match said.cntrltype {
            // 0 is what controllers before 1.4 say.
            0 | IdentifyController::TYPE_IO => {}
            IdentifyController::TYPE_DISCOVERY => {
                return Err(UnusableFacts::Foreign("this is a discovery controller"));
            }
            _ => return Err(UnusableFacts::Foreign("this is no I/O controller")),
        }
        if said.kas.get() == 0 {
            return lie("KAS is 0: a controller on fabrics has Keep Alive");
        }
        if (said.sqes & 15, said.sqes >> 4) < (6, 6) || said.sqes & 15 > 6 || said.cqes & 15 > 4 {
            return lie("SQES or CQES do not allow entries of 64 and 16 bytes");
        }
        if said.sgls.get() & 3 == 0 {
            return lie("SGLS is 0, but fabrics require SGLs for data");
        }
        if said.icdoff.get() != 0 {
            return lie("ICDOFF is not 0, as NVMe/TCP requires");
        }
        if said.ioccsz.get() < 4 || said.iorcsz.get() < 1 {
            return lie("IOCCSZ or IORCSZ are shorter than an entry");
        }
        if said.nn.get() == 0 || nsid > said.nn.get() && said.mnan.get() == 0 {
            return lie("NN names no such namespace");
        }
        if said.mnan.get() > said.nn.get() {
            return lie("MNAN is more than NN");
        }
        let ana = said.cmic & IdentifyController::CMIC_ANA != 0;
        if ana && (said.nanagrpid.get() == 0 || said.nanagrpid.get() > said.anagrpmax.get().max(1)) {
            return lie("NANAGRPID is 0, or more than ANAGRPMAX");
        }
        let transfer_max = match said.mdts {
            0 => None,
            shift => Some(
                MEMORY_PAGE_MIN
                    .checked_shl(shift.into())
                    .filter(|bytes| bytes >> shift == MEMORY_PAGE_MIN)
                    .unwrap_or(u64::MAX),
            ),
        };
        let delay = |units: u16| Duration::from_millis(u64::from(units) * 100);
        Ok(ControllerFacts {
            cntlid,
            version: said.ver.get(),
            serial: said.sn,
            model: said.mn,
            firmware: said.fr,
            transfer_max,
            in_capsule_max: (said.ioccsz.get().saturating_mul(16)).saturating_sub(64),
            max_commands: Some(said.maxcmd.get()).filter(|&most| most > 0),
            oncs: said.oncs.get(),
            fused: said.fuses.get() & IdentifyController::FUSES_COMPARE_AND_WRITE != 0,
            write_cache: said.vwc & IdentifyController::VWC_PRESENT != 0,
            any_traffic_keeps_alive: said.ctratt.get() & IdentifyController::CTRATT_TRAFFIC_KEEP_ALIVE != 0,
            keep_alive_unit: delay(said.kas.get()),
            quiesce: Duration::from_millis(said.cqt.get().into()),
            events: said.oaes.get(),
            event_requests: u16::from(said.aerl) + 1,
            aborts: u16::from(said.acl) + 1,
            retry_delays: said.crdt.map(|units| delay(units.get())),
            ana_groups: ana.then_some(said.nanagrpid.get().min(ANA_GROUPS_MAX)),
            logs_by_offset: said.lpa & IdentifyController::LPA_OFFSET != 0,
            instance: Some(ControllerInstance {
                cntlid,
                uniquifier: said.ciu,
                random_number: said.cirn.get(),
            })
            .filter(|instance| instance.uniquifier != 0 && instance.random_number != 0),
            peer_resets: said.ccrl,
            atomic: u32::from(said.awun.get()) + 1,
            atomic_powerfail: u32::from(said.awupf.get()) + 1,
            compare_and_write: u32::from(said.acwu.get()) + 1,
        })
    }

    /// Whether an optional command is there (a bit of ONCS).
    pub(super) fn supports(&self, oncs: u16) -> bool {
        self.oncs & oncs != 0
    }

    /// How many bytes of the ANA log tell all groups, without their namespaces.
    pub(super) fn ana_log_len(&self) -> Option<usize> {
        let groups = self.ana_groups? as usize;
        let room = self.transfer_max.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
        Some((ana::HEADER_LEN + groups * ana::DESCRIPTOR_LEN).min(room) / 4 * 4)
    }
}

/// Limits of commands without data, in blocks; 0 in the structure is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommandLimits {
    pub(super) verify: u32,
    pub(super) write_zeroes: u32,
    pub(super) write_uncorrectable: u32,
    /// Ranges of Dataset Management, blocks of each, and of all.
    pub(super) ranges: u16,
    pub(super) range_blocks: u32,
    pub(super) blocks: u64,
}

impl CommandLimits {
    /// Of a controller that tells none: what a command of these carries is what a transfer carries.
    pub(super) fn defaults(transfer_blocks: u32) -> Self {
        let most = transfer_blocks;
        CommandLimits {
            verify: most,
            write_zeroes: most,
            write_uncorrectable: most,
            ranges: DSM_RANGES_MAX,
            range_blocks: u32::MAX,
            blocks: u64::MAX,
        }
    }

    /// Judges the I/O command set specific structure of the NVM command set (CNS 06h). If it is empty,
    /// the controller has no say in it: `unknown` holds.
    pub(super) fn from_identify(said: &IdentifyNvmController, shift: u8, unknown: CommandLimits) -> Self {
        let power = |units: u8, without: u32| match units {
            0 => without,
            power => {
                let bytes = MEMORY_PAGE_MIN.checked_shl(power.into()).unwrap_or(u64::MAX);
                u32::try_from(bytes >> shift).unwrap_or(u32::MAX).clamp(1, BLOCKS_PER_COMMAND_MAX)
            }
        };
        let blocks = u64::from(said.blocks[0].get()) | u64::from(said.blocks[1].get()) << 32;
        let or = |number: u64, without: u64| if number == 0 { without } else { number };
        CommandLimits {
            verify: power(said.verify, unknown.verify),
            write_zeroes: power(said.write_zeroes, unknown.write_zeroes),
            write_uncorrectable: power(said.write_uncorrectable, unknown.write_uncorrectable),
            ranges: or(said.ranges.into(), DSM_RANGES_MAX.into()) as u16,
            range_blocks: or(said.range_blocks.get().into(), u32::MAX.into()) as u32,
            blocks: or(blocks, u64::MAX),
        }
    }
}

/// What the blocks of a namespace are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockFormat {
    pub(super) geometry: Geometry,
    /// Shift of the block size.
    pub(super) shift: u8,
}

impl BlockFormat {
    /// Blocks that one transfer carries.
    pub(super) fn transfer_blocks(&self) -> u32 {
        self.geometry.max_io >> self.shift
    }
}

/// A namespace, as far as a host must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamespaceFacts {
    /// `None`: the path is in a state in which the controller does not tell.
    pub(super) format: Option<BlockFormat>,
    pub(super) write_protected: bool,
    pub(super) ana_group: u32,
    pub(super) shared: bool,
    pub(super) reservations: u8,
    /// Whether Write Zeroes may deallocate.
    pub(super) zeroes_deallocate: bool,
    pub(super) eui64: [u8; 8],
    pub(super) nguid: [u8; 16],
}

impl NamespaceFacts {
    /// Judges Identify Namespace (CNS 00h) of a namespace of the NVM command set.
    pub(super) fn from_identify(
        said: &IdentifyNamespace,
        controller: &ControllerFacts,
        settings: &Settings,
    ) -> Result<Self, UnusableFacts> {
        // The ANA states in which nothing is served let a controller tell no size (NVMe Base 2.1 §8.1.1): a
        // group shows that the namespace is there all the same.
        let is_silent = said.nsze.get() == 0
            && said.ncap.get() == 0
            && controller.ana_groups.is_some()
            && said.anagrpid.get() != 0;
        let format =
            if is_silent { None } else { Some(BlockFormat::from_identify(said, controller, settings)?) };
        Ok(NamespaceFacts {
            format,
            write_protected: said.nsattr & IdentifyNamespace::NSATTR_WRITE_PROTECTED != 0,
            ana_group: said.anagrpid.get(),
            shared: said.nmic & IdentifyNamespace::NMIC_SHARED != 0,
            reservations: said.rescap,
            zeroes_deallocate: said.dlfeat & IdentifyNamespace::DLFEAT_WRITE_ZEROES != 0,
            eui64: said.eui64,
            nguid: said.nguid,
        })
    }

    /// Takes what does not depend on the command set (CNS 08h).
    pub(super) fn merge_independent(mut self, said: &IdentifyIndependentNamespace) -> Self {
        self.write_protected |= said.nsattr & IdentifyNamespace::NSATTR_WRITE_PROTECTED != 0;
        self
    }
}

impl BlockFormat {
    fn from_identify(
        said: &IdentifyNamespace,
        controller: &ControllerFacts,
        settings: &Settings,
    ) -> Result<Self, UnusableFacts> {
        let blocks = said.nsze.get();
        if blocks == 0 && said.ncap.get() == 0 {
            return Err(UnusableFacts::Absent(
                "the namespace does not exist, or is not accessible to this host",
            ));
        }
        if blocks == 0 {
            return Err(UnusableFacts::Lie("NSZE is 0"));
        }
        let format =
            said.current_lba_format().ok_or(UnusableFacts::Lie("FLBAS names a format that there is not"))?;
        let shift = match format.shift {
            9 | 12 => format.shift,
            0..9 | 63.. => return Err(UnusableFacts::Lie("LBADS is no size of a block")),
            _ => return Err(UnusableFacts::Foreign("its blocks have neither 512 nor 4096 bytes")),
        };
        if format.metadata.get() != 0 {
            return Err(UnusableFacts::Foreign("its blocks have metadata"));
        }
        if said.dps & 7 != 0 {
            return Err(UnusableFacts::Lie("it has protection information without metadata"));
        }
        // No byte of it may stand where 63 bits do not reach.
        if blocks.checked_shl(shift.into()).is_none_or(|bytes| bytes >> shift != blocks || bytes >> 63 != 0) {
            return Err(UnusableFacts::Lie("NSZE is more than can be addressed"));
        }
        let logical = 1_u32 << shift;
        let own = said.nsfeat & IdentifyNamespace::NSFEAT_ATOMICS != 0;
        let choose = |ours: u16, theirs: u32| if own && ours > 0 { u32::from(ours) + 1 } else { theirs };
        let room = controller.transfer_max.unwrap_or(u64::MAX).min(settings.transfer_max.into());
        let room = u32::try_from(room).unwrap_or(u32::MAX) >> shift;
        let room = room.clamp(1, BLOCKS_PER_COMMAND_MAX);
        let can = controller.fused && controller.supports(IdentifyController::ONCS_COMPARE);
        let compare_and_write = if can { choose(said.nacwu.get(), controller.compare_and_write) } else { 0 };
        // A write that crosses a boundary is not atomic whatever its length.
        let bounded = said.nabsn.get() != 0 || said.nabspf.get() != 0;
        let atomic = |own: u16, theirs: u32| if bounded { 1 } else { choose(own, theirs).min(room) };
        let performance = said.nsfeat & IdentifyNamespace::NSFEAT_PERFORMANCE != 0;
        let granularity = if performance { u32::from(said.npwg.get()) + 1 } else { 1 };
        let granularity = if granularity.is_power_of_two() { granularity.min(256) } else { 1 };
        Ok(BlockFormat {
            geometry: Geometry {
                blocks,
                logical,
                physical: logical * granularity,
                dio_align: logical,
                max_io: room << shift,
                thin: said.nsfeat & IdentifyNamespace::NSFEAT_THIN != 0,
                write_cache: controller.write_cache,
                atomic: atomic(said.nawun.get(), controller.atomic),
                atomic_powerfail: atomic(said.nawupf.get(), controller.atomic_powerfail),
                caw_max: compare_and_write.min(room),
                dealloc_reads_zero: said.dlfeat & 7 == IdentifyNamespace::DLFEAT_ZEROES,
                lends: false,
            },
            shift,
        })
    }
}

/// The name by which paths are known to be of one volume.
pub(super) fn volume_uuid(said: &NamespaceIdentifiers) -> Option<Uuid> {
    said.uuid.filter(|uuid| *uuid != [0; 16]).map(Uuid)
}

/// What a volume without a UUID is known by. The controller's serial number is that of all its namespaces, so where
/// the namespace has a name of its own it stands behind it.
pub(super) fn volume_serial(
    controller: &ControllerFacts,
    namespace: &NamespaceFacts,
    said: &NamespaceIdentifiers,
) -> String {
    let serial = ascii_field_text(&controller.serial);
    let hex = |name: &[u8]| name.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let nguid = said.nguid.unwrap_or(namespace.nguid);
    let eui64 = said.eui64.unwrap_or(namespace.eui64);
    match () {
        () if volume_uuid(said).is_some() => serial,
        () if nguid != [0; 16] => format!("{serial} NGUID {}", hex(&nguid)),
        () if eui64 != [0; 8] => format!("{serial} EUI64 {}", hex(&eui64)),
        () => serial,
    }
}

/// The state of paths of this group, by the log; a group that is not in it does not serve. Nor does any by a log
/// that has more groups than the controller (`most`): what it says of one cannot be told from what it makes up.
pub(super) fn ana_group_access(log: &[u8], group: u32, most: u32) -> PathAccess {
    let count = match log.get(8..10) {
        Some(&[low, high]) => u32::from(u16::from_le_bytes([low, high])),
        Some(_) | None => 0,
    };
    // Of more groups than are read it is not known how many there are.
    if most < ANA_GROUPS_MAX && count > most {
        return PathAccess::Inaccessible;
    }
    match ana::find_group_state(log, group) {
        Some(ana::AnaState::Optimized) => PathAccess::Optimized,
        Some(ana::AnaState::NonOptimized) => PathAccess::NonOptimized,
        Some(ana::AnaState::PersistentLoss) => PathAccess::PersistentLoss,
        Some(ana::AnaState::Change) => PathAccess::Transition,
        Some(ana::AnaState::Inaccessible) | None => PathAccess::Inaccessible,
    }
}

/// How long a controller may take until CSTS.RDY follows CC.EN (CAP.TO, in 500 ms).
pub(super) fn ready_timeout(capabilities: &ControllerCapabilities, settings: &Settings) -> Duration {
    Duration::from_millis(500 * u64::from(capabilities.timeout.max(1))).min(settings.times.ready_max)
}

/// Text of a fixed field: printable ASCII, without what fills it; anything else shows as `?`.
pub(super) fn ascii_field_text(field: &[u8]) -> String {
    let said = field.iter().take_while(|&&byte| byte != 0);
    let text = said.map(|&byte| if (b' '..=b'~').contains(&byte) { byte.into() } else { '?' });
    text.collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests;
