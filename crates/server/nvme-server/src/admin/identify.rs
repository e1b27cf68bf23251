//! Identify (NVMe Base §5.17): the subsystem, the controller and its namespaces. A host sees its own
//! namespaces. Lists of controllers are in `controller_list.rs`.

use nvme::Status;
use nvme::identify::controller::IdentifyNvmController;
use nvme::identify::namespace::identifiers_from_oui;
use nvme::identify::{
    self, Cns, IdentificationDescriptors, Identify, IdentifyController as Data, IdentifyIndependentNamespace,
    IdentifyNamespace, LbaFormat, NSID_ALL,
};
use nvme::property::VERSION;
use volume::{Geometry, UnservableReason, VolumeId};
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32, U64};

use super::AdminOutcome;
use crate::context::ServedVolume;
use crate::controller::reset::RESETS_MAX;
use crate::controller::{Controller, RETRY_DELAY, abort, ana, async_events, error_log};
use crate::exec::{COPY_BLOCKS_MAX, COPY_RANGE_BLOCKS_MAX, COPY_RANGES_MAX, UNCORRECTABLE_MAX_POWER};
use crate::server::Server;
use crate::spec::{KEEP_ALIVE_GRANULARITY, NamespaceEntry, namespaces_max};
use crate::status;

/// Not listed: FFFFFFFEh and above name no namespace to begin a list behind.
const LIST_AFTER_MAX: u32 = 0xffff_fffd;

pub(super) fn execute_identify(
    server: &Server,
    cntlid: u16,
    identify: Identify,
    room: u32,
) -> Result<AdminOutcome, Status> {
    let controller = server.controllers.find(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let bytes = identify_data(server, controller, identify)?;
    if (room as usize) < bytes.len() {
        return Err(Status::SGL_LENGTH_INVALID.with_do_not_retry());
    }
    Ok(AdminOutcome::with_data(bytes))
}

fn identify_data(
    server: &Server,
    controller: &Controller,
    identify: Identify,
) -> Result<[u8; identify::IDENTIFY_LEN], Status> {
    if controller.is_discovery() {
        return match identify.cns {
            Cns::CONTROLLER => Ok(zerocopy::transmute!(discovery_controller_data(controller))),
            _ => Err(Status::INVALID_FIELD.with_do_not_retry()),
        };
    }
    let Identify { cns, nsid, command_set, .. } = identify;
    let of_a_command_set = matches!(
        cns,
        Cns::COMMAND_SET_NAMESPACE
            | Cns::COMMAND_SET_CONTROLLER
            | Cns::COMMAND_SET_ACTIVE_NAMESPACES
            | Cns::COMMAND_SET_ALLOCATED_NAMESPACES
            | Cns::COMMAND_SET_ALLOCATED_NAMESPACE
    );
    if of_a_command_set && command_set != 0 {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    match cns {
        Cns::NAMESPACE | Cns::ALLOCATED_NAMESPACE => {
            let shown = find_namespace(server, controller, nsid)?
                .map(|(entry, volume)| namespace_data(entry, volume));
            Ok(zerocopy::transmute!(shown.unwrap_or_else(IdentifyNamespace::new_zeroed)))
        }
        Cns::CONTROLLER => Ok(zerocopy::transmute!(io_controller_data(server, controller))),
        Cns::ACTIVE_NAMESPACES
        | Cns::COMMAND_SET_ACTIVE_NAMESPACES
        | Cns::ALLOCATED_NAMESPACES
        | Cns::COMMAND_SET_ALLOCATED_NAMESPACES => active_namespace_list(server, controller, nsid),
        Cns::NAMESPACE_DESCRIPTORS => {
            let (_, volume) = require_namespace(server, controller, nsid)?;
            Ok(*namespace_descriptors(volume).bytes())
        }
        // The NVM command set says nothing there: no storage tags, no protection.
        Cns::COMMAND_SET_NAMESPACE | Cns::COMMAND_SET_ALLOCATED_NAMESPACE => {
            find_namespace(server, controller, nsid)?;
            Ok([0; identify::IDENTIFY_LEN])
        }
        Cns::COMMAND_SET_CONTROLLER => Ok(zerocopy::transmute!(nvm_controller_data())),
        Cns::INDEPENDENT_NAMESPACE => {
            let shown = find_namespace(server, controller, nsid)?
                .map(|(entry, volume)| independent_namespace_data(entry, volume));
            Ok(zerocopy::transmute!(shown.unwrap_or_else(IdentifyIndependentNamespace::new_zeroed)))
        }
        Cns::COMMAND_SETS => match identify.controller {
            0xffff => Ok(identify::encode_command_sets()),
            asked if asked == controller.spec.cntlid => Ok(identify::encode_command_sets()),
            _ => Err(Status::INVALID_FIELD.with_do_not_retry()),
        },
        _ => Err(Status::INVALID_FIELD.with_do_not_retry()),
    }
}

/// A namespace, `None` if it is not active.
fn find_namespace<'a>(
    server: &'a Server,
    controller: &'a Controller,
    nsid: u32,
) -> Result<Option<(&'a NamespaceEntry, &'a ServedVolume)>, Status> {
    // No namespace management: there is nothing common to all namespaces to be asked for.
    if nsid == 0 || nsid > controller.spec.subsystem.nsid_max {
        return Err(Status::INVALID_NAMESPACE.with_do_not_retry());
    }
    let Some(entry) = controller.namespace(nsid) else { return Ok(None) };
    match server.context.volumes.get(entry.volume) {
        Some(volume) => Ok(Some((entry, volume))),
        None if entry.volume == VolumeId::UNAVAILABLE => Err(status::volume_absent(entry.volume)),
        None => Ok(None),
    }
}

pub(super) fn require_namespace<'a>(
    server: &'a Server,
    controller: &'a Controller,
    nsid: u32,
) -> Result<(&'a NamespaceEntry, &'a ServedVolume), Status> {
    find_namespace(server, controller, nsid)?.ok_or(Status::INVALID_NAMESPACE.with_do_not_retry())
}

fn active_namespace_list(
    server: &Server,
    controller: &Controller,
    after: u32,
) -> Result<[u8; identify::IDENTIFY_LEN], Status> {
    if after > LIST_AFTER_MAX {
        return Err(Status::INVALID_NAMESPACE.with_do_not_retry());
    }
    // One whose volume is away is active all the same, or hosts would drop their disk.
    let is_active = |entry: &&NamespaceEntry| {
        entry.volume == VolumeId::UNAVAILABLE || server.context.volumes.get(entry.volume).is_some()
    };
    let active = controller.namespaces.iter().filter(is_active);
    Ok(identify::encode_namespace_list(active.map(|entry| entry.nsid), after))
}

/// What both kinds of controllers say.
fn common_controller_data(controller: &Controller) -> Data {
    let spec = &controller.spec;
    let mut data = Data::new_zeroed();
    data.sn = spec.subsystem.serial;
    data.mn = spec.subsystem.model;
    data.fr = spec.subsystem.firmware;
    data.mdts = spec.limits.transfer.mdts();
    data.cntlid = U16::new(spec.cntlid);
    data.ver = U32::new(VERSION);
    data.aerl = (async_events::EVENT_REQUESTS_MAX - 1) as u8;
    data.lpa = Data::LPA_OFFSET;
    data.elpe = (error_log::ERROR_LOG_ENTRIES - 1) as u8;
    data.crdt[0] = U16::new(RETRY_DELAY);
    data.kas = U16::new(KEEP_ALIVE_GRANULARITY);
    data.maxcmd = U16::new(spec.limits.entries as u16);
    data.sgls = U32::new(Data::SGLS_TCP);
    data.subnqn = spec.subsystem.nqn.to_field();
    data.msdbd = 1;
    data
}

fn discovery_controller_data(controller: &Controller) -> Data {
    let mut data = common_controller_data(controller);
    data.oaes = U32::new(Data::OAES_DISCOVERY_CHANGE);
    data.cntrltype = Data::TYPE_DISCOVERY;
    // DCTYPE is not reported: a direct discovery controller has Discovery Information Management.
    data
}

fn io_controller_data(server: &Server, controller: &Controller) -> Data {
    let spec = &controller.spec;
    let mut data = common_controller_data(controller);
    data.rab = 6;
    data.cmic = Data::CMIC_PORTS | Data::CMIC_CONTROLLERS | Data::CMIC_ANA;
    data.oaes = U32::new(Data::OAES_NAMESPACE_ATTRIBUTE | Data::OAES_ANA_CHANGE);
    data.ctratt = U32::new(Data::CTRATT_HOST_ID_128 | Data::CTRATT_TRAFFIC_KEEP_ALIVE);
    data.cntrltype = Data::TYPE_IO;
    (data.ciu, data.cirn) = (controller.instance.uniquifier, U64::new(controller.instance.random_number));
    data.ccrl = RESETS_MAX;
    data.nvmsr = 1;
    data.oacs = U16::new(Data::OACS_FORMAT);
    data.fna = Data::FNA_NO_BROADCAST;
    data.acl = (abort::ABORTS_MAX - 1) as u8;
    // One slot, read only.
    data.frmw = 1 | 1 << 1;
    data.lpa |= Data::LPA_COMMAND_EFFECTS | Data::LPA_SUPPORTED_PAGES;
    data.anatt = ana::TRANSITION_SECONDS;
    data.anacap = Data::ANACAP_ALL_STATES;
    data.anagrpmax = U32::new(spec.subsystem.ana_group_max);
    data.nanagrpid = U32::new(spec.subsystem.ana_group_max);
    (data.sqes, data.cqes) = (0x66, 0x44);
    data.nn = U32::new(spec.subsystem.nsid_max);
    data.mnan = U32::new(spec.subsystem.nsid_max.min(namespaces_max(spec.limits.transfer)));
    data.oncs = U16::new(
        Data::ONCS_COMPARE
            | Data::ONCS_WRITE_UNCORRECTABLE
            | Data::ONCS_DATASET_MANAGEMENT
            | Data::ONCS_WRITE_ZEROES
            | Data::ONCS_SELECT
            | Data::ONCS_RESERVATIONS
            | Data::ONCS_TIMESTAMP
            | Data::ONCS_VERIFY
            | Data::ONCS_COPY,
    );
    data.fuses = U16::new(Data::FUSES_COMPARE_AND_WRITE);
    // Whatever the volumes are like, since others may come: hosts never flush where there is no cache. Namespaces
    // without one say so themselves (VWCNP).
    data.vwc = Data::VWC_PRESENT | Data::VWC_FLUSH_ALL;
    data.nwpc = Data::NWPC_WRITE_PROTECT;
    let volumes = controller.namespaces.iter().filter_map(|entry| server.context.volumes.get(entry.volume));
    let least =
        volumes.map(|volume| AtomicLimits::from_geometry(&volume.view.geometry)).reduce(AtomicLimits::min);
    let atomics = least.unwrap_or_default();
    data.awun = U16::new(atomics.normal);
    data.awupf = U16::new(atomics.power_fail);
    data.acwu = U16::new(atomics.compare_and_write);
    data.cdfs = U16::new(1);
    data.ioccsz = U32::new((64 + spec.limits.in_capsule) / 16);
    data.iorcsz = U32::new(1);
    data.ofcs = U16::new(Data::OFCS_DISCONNECT);
    data
}

/// Atomic lengths in blocks, 0's based (NVM command set §2.1.4).
///
/// AWUN binds every plain write, not only those that ask for it as SCSI's WRITE ATOMIC does. Plain
/// writes take no lock here, so they promise one block, and so does a power failure: AWUPF must not
/// exceed AWUN. The volume's `atomic` is what SCSI's command may ask for.
#[derive(Clone, Copy, Default)]
struct AtomicLimits {
    normal: u16,
    power_fail: u16,
    compare_and_write: u16,
}

impl AtomicLimits {
    fn from_geometry(geometry: &Geometry) -> AtomicLimits {
        let based = |blocks: u32| blocks.saturating_sub(1).min(0xffff) as u16;
        let normal = 0;
        let power_fail = based(geometry.atomic_powerfail).min(normal);
        AtomicLimits { normal, power_fail, compare_and_write: based(geometry.caw_max) }
    }

    fn min(self, other: AtomicLimits) -> AtomicLimits {
        AtomicLimits {
            normal: self.normal.min(other.normal),
            power_fail: self.power_fail.min(other.power_fail),
            compare_and_write: self.compare_and_write.min(other.compare_and_write),
        }
    }
}

fn namespace_data(entry: &NamespaceEntry, volume: &ServedVolume) -> IdentifyNamespace {
    let geometry = &volume.view.geometry;
    let atomics = AtomicLimits::from_geometry(geometry);
    let mut data = IdentifyNamespace::new_zeroed();
    let blocks = U64::new(geometry.blocks);
    (data.nsze, data.ncap, data.nuse) = (blocks, blocks, U64::new(namespace_utilization(volume)));
    data.nsfeat = IdentifyNamespace::NSFEAT_ATOMICS | IdentifyNamespace::NSFEAT_PERFORMANCE;
    data.nmic = IdentifyNamespace::NMIC_SHARED;
    data.rescap = IdentifyNamespace::RESCAP_ALL;
    data.fpi = format_progress(volume);
    data.dlfeat = IdentifyNamespace::DLFEAT_WRITE_ZEROES;
    // Who calls itself thin must know how much is used.
    if geometry.thin && volume.info.shared.allocated_bytes().is_some() {
        data.nsfeat |= IdentifyNamespace::NSFEAT_THIN;
    }
    // What is not thin keeps its blocks, and what they say.
    if geometry.thin && geometry.dealloc_reads_zero {
        data.dlfeat |= IdentifyNamespace::DLFEAT_ZEROES;
    }
    data.nawun = U16::new(atomics.normal);
    data.nawupf = U16::new(atomics.power_fail);
    data.nacwu = U16::new(atomics.compare_and_write);
    let bytes = geometry.capacity_bytes();
    data.nvmcap[0] = U64::new(bytes);
    let unit = U16::new((geometry.physical / geometry.logical).saturating_sub(1) as u16);
    (data.npwg, data.npwa, data.npdg, data.npda, data.nows) = (unit, unit, unit, unit, unit);
    data.mssrl = U16::new(COPY_RANGE_BLOCKS_MAX);
    data.mcl = U32::new(COPY_BLOCKS_MAX);
    data.msrc = (COPY_RANGES_MAX - 1) as u8;
    data.anagrpid = U32::new(entry.ana_group);
    data.nsattr = namespace_attributes(entry, volume);
    if let Some(oui) = volume.info.facts.oui {
        (data.eui64, data.nguid) = identifiers_from_oui(oui, volume.info.facts.uuid.0);
    }
    let shift = geometry.logical.ilog2() as u8;
    data.lbaf[0] = LbaFormat { metadata: U16::ZERO, shift, performance: 0 };
    data
}

/// NUSE. A thin namespace (THINP) must show what was deallocated there; of one that is not, all may be
/// shown as allocated at all times (NVM command set §4.1.5.1).
fn namespace_utilization(volume: &ServedVolume) -> u64 {
    let geometry = &volume.view.geometry;
    let allocated = volume.info.shared.allocated_bytes().filter(|_| geometry.thin);
    allocated.map_or(geometry.blocks, |bytes| {
        // A granule may reach beyond the end, and file systems count what they note beside the data.
        bytes.div_ceil(u64::from(geometry.logical)).min(geometry.blocks)
    })
}

/// FPI: how many percent of a format are left, if one runs.
fn format_progress(volume: &ServedVolume) -> u8 {
    const SUPPORTED: u8 = 1 << 7;
    let left = match volume.view.not_ready {
        // Not 0 while it runs.
        Some(UnservableReason::Formatting(_)) => {
            ((65_536 - u32::from(volume.view.sanitized.get())) * 100).div_ceil(65_536) as u8
        }
        Some(_) | None => 0,
    };
    SUPPORTED | left
}

fn namespace_attributes(entry: &NamespaceEntry, volume: &ServedVolume) -> u8 {
    let protected =
        volume.view.is_write_protected_for_all() || volume.view.host_protection.is_on() || entry.read_only;
    if protected { IdentifyNamespace::NSATTR_WRITE_PROTECTED } else { 0 }
}

fn independent_namespace_data(entry: &NamespaceEntry, volume: &ServedVolume) -> IdentifyIndependentNamespace {
    let mut data = IdentifyIndependentNamespace::new_zeroed();
    if !volume.view.geometry.write_cache {
        data.nsfeat = IdentifyIndependentNamespace::NSFEAT_NO_CACHE;
    }
    data.nmic = IdentifyNamespace::NMIC_SHARED;
    data.rescap = IdentifyNamespace::RESCAP_ALL;
    data.fpi = format_progress(volume);
    data.anagrpid = U32::new(entry.ana_group);
    data.nsattr = namespace_attributes(entry, volume);
    if volume.view.not_ready.is_none() {
        data.nstat = IdentifyIndependentNamespace::NSTAT_READY;
    }
    data
}

fn namespace_descriptors(volume: &ServedVolume) -> IdentificationDescriptors {
    let facts = &volume.info.facts;
    let mut descriptors = IdentificationDescriptors::default();
    if let Some(oui) = facts.oui {
        let (eui64, nguid) = identifiers_from_oui(oui, facts.uuid.0);
        descriptors.push_eui64(eui64);
        descriptors.push_nguid(nguid);
    }
    descriptors.push_uuid(facts.uuid.0);
    descriptors.push_command_set(0);
    descriptors
}

fn nvm_controller_data() -> IdentifyNvmController {
    let mut data = IdentifyNvmController::new_zeroed();
    data.write_uncorrectable = UNCORRECTABLE_MAX_POWER;
    data
}

/// Whether NSID may stand where a command is about the controller: none or all.
pub(super) fn is_controller_scope_nsid(nsid: u32) -> bool {
    nsid == 0 || nsid == NSID_ALL
}
