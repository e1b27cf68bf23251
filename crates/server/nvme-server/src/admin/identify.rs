//! Identify (NVMe Base §5.17): the subsystem, the controller and its namespaces. A host sees its own
//! namespaces. Lists of controllers are in `controller_list.rs`.

use nvme::Status;
use nvme::identify::controller::NvmController;
use nvme::identify::namespace::with_oui;
use nvme::identify::{
    self, Cns, Controller as Data, Descriptors, Identify, IndependentNamespace, LbaFormat, NSID_ALL,
    Namespace,
};
use nvme::property::VERSION;
use volume::{Geometry, VolumeId};
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32, U64};

use super::AdminOutcome;
use crate::context::Volume;
use crate::controller::{Controller, RETRY_DELAY, abort, ana, errors, events};
use crate::exec::{COPY_BLOCKS_MAX, COPY_RANGE_BLOCKS_MAX, COPY_RANGES_MAX, UNCORRECTABLE_MAX_POWER};
use crate::server::Server;
use crate::spec::{KAS, NamespaceEntry, namespaces_max};
use crate::status;

/// Not listed: FFFFFFFEh and above name no namespace to begin a list behind.
const LIST_AFTER_MAX: u32 = 0xffff_fffd;

pub(super) fn execute(
    server: &Server,
    cntlid: u16,
    identify: Identify,
    room: u32,
) -> Result<AdminOutcome, Status> {
    let controller = server.controllers.find(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let bytes = answer(server, controller, identify)?;
    if (room as usize) < bytes.len() {
        return Err(Status::SGL_LENGTH_INVALID.final_());
    }
    Ok(AdminOutcome::bytes(bytes))
}

fn answer(
    server: &Server,
    controller: &Controller,
    identify: Identify,
) -> Result<[u8; identify::LEN], Status> {
    if controller.is_discovery() {
        return match identify.cns {
            Cns::CONTROLLER => Ok(zerocopy::transmute!(discovery(controller))),
            _ => Err(Status::INVALID_FIELD.final_()),
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
        return Err(Status::INVALID_FIELD.final_());
    }
    match cns {
        Cns::NAMESPACE | Cns::ALLOCATED_NAMESPACE => {
            let shown = place(server, controller, nsid)?.map(|(entry, volume)| namespace(entry, volume));
            Ok(zerocopy::transmute!(shown.unwrap_or_else(Namespace::new_zeroed)))
        }
        Cns::CONTROLLER => Ok(zerocopy::transmute!(io(server, controller))),
        Cns::ACTIVE_NAMESPACES
        | Cns::COMMAND_SET_ACTIVE_NAMESPACES
        | Cns::ALLOCATED_NAMESPACES
        | Cns::COMMAND_SET_ALLOCATED_NAMESPACES => list(server, controller, nsid),
        Cns::NAMESPACE_DESCRIPTORS => {
            let (_, volume) = must_be(server, controller, nsid)?;
            Ok(*descriptors(volume).bytes())
        }
        // The NVM command set says nothing there: no storage tags, no protection.
        Cns::COMMAND_SET_NAMESPACE | Cns::COMMAND_SET_ALLOCATED_NAMESPACE => {
            place(server, controller, nsid)?;
            Ok([0; identify::LEN])
        }
        Cns::COMMAND_SET_CONTROLLER => Ok(zerocopy::transmute!(nvm())),
        Cns::INDEPENDENT_NAMESPACE => {
            let shown = place(server, controller, nsid)?.map(|(entry, volume)| independent(entry, volume));
            Ok(zerocopy::transmute!(shown.unwrap_or_else(IndependentNamespace::new_zeroed)))
        }
        Cns::COMMAND_SETS => match identify.controller {
            0xffff => Ok(identify::command_sets()),
            asked if asked == controller.spec.cntlid => Ok(identify::command_sets()),
            _ => Err(Status::INVALID_FIELD.final_()),
        },
        _ => Err(Status::INVALID_FIELD.final_()),
    }
}

/// A namespace, `None` if it is not active.
fn place<'a>(
    server: &'a Server,
    controller: &'a Controller,
    nsid: u32,
) -> Result<Option<(&'a NamespaceEntry, &'a Volume)>, Status> {
    // No namespace management: there is nothing common to all namespaces to be asked for.
    if nsid == 0 || nsid > controller.spec.subsystem.nsid_max {
        return Err(Status::INVALID_NAMESPACE.final_());
    }
    let Some(entry) = controller.namespace(nsid) else { return Ok(None) };
    match server.context.volumes.get(entry.volume) {
        Some(volume) => Ok(Some((entry, volume))),
        None if entry.volume == VolumeId::AWAY => Err(status::not_here(entry.volume)),
        None => Ok(None),
    }
}

pub(super) fn must_be<'a>(
    server: &'a Server,
    controller: &'a Controller,
    nsid: u32,
) -> Result<(&'a NamespaceEntry, &'a Volume), Status> {
    place(server, controller, nsid)?.ok_or(Status::INVALID_NAMESPACE.final_())
}

fn list(server: &Server, controller: &Controller, after: u32) -> Result<[u8; identify::LEN], Status> {
    if after > LIST_AFTER_MAX {
        return Err(Status::INVALID_NAMESPACE.final_());
    }
    // One whose volume is away is active all the same, or hosts would drop their disk.
    let is_active = |entry: &&NamespaceEntry| {
        entry.volume == VolumeId::AWAY || server.context.volumes.get(entry.volume).is_some()
    };
    let active = controller.namespaces.iter().filter(is_active);
    Ok(identify::namespace_list(active.map(|entry| entry.nsid), after))
}

/// What both kinds of controllers say.
fn common(controller: &Controller) -> Data {
    let spec = &controller.spec;
    let mut data = Data::new_zeroed();
    data.sn = spec.subsystem.serial;
    data.mn = spec.subsystem.model;
    data.fr = spec.subsystem.firmware;
    data.mdts = spec.limits.transfer.mdts();
    data.cntlid = U16::new(spec.cntlid);
    data.ver = U32::new(VERSION);
    data.aerl = (events::EVENTS_MAX - 1) as u8;
    data.lpa = Data::LPA_OFFSET;
    data.elpe = (errors::ENTRIES - 1) as u8;
    data.crdt[0] = U16::new(RETRY_DELAY);
    data.kas = U16::new(KAS);
    data.maxcmd = U16::new(spec.limits.entries as u16);
    data.sgls = U32::new(Data::SGLS_TCP);
    data.subnqn = spec.subsystem.nqn.field();
    data.msdbd = 1;
    data
}

fn discovery(controller: &Controller) -> Data {
    let mut data = common(controller);
    data.oaes = U32::new(Data::OAES_DISCOVERY_CHANGE);
    data.cntrltype = Data::TYPE_DISCOVERY;
    // DCTYPE is not reported: a direct discovery controller has Discovery Information Management.
    data
}

fn io(server: &Server, controller: &Controller) -> Data {
    let spec = &controller.spec;
    let mut data = common(controller);
    data.rab = 6;
    data.cmic = Data::CMIC_PORTS | Data::CMIC_CONTROLLERS | Data::CMIC_ANA;
    data.oaes = U32::new(Data::OAES_NAMESPACE_ATTRIBUTE | Data::OAES_ANA_CHANGE);
    data.ctratt = U32::new(Data::CTRATT_HOST_ID_128 | Data::CTRATT_TRAFFIC_KEEP_ALIVE);
    data.cntrltype = Data::TYPE_IO;
    data.nvmsr = 1;
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
    let least = volumes.map(|volume| Atomics::of(&volume.view.geometry)).reduce(Atomics::least);
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
struct Atomics {
    normal: u16,
    power_fail: u16,
    compare_and_write: u16,
}

impl Atomics {
    fn of(geometry: &Geometry) -> Atomics {
        let based = |blocks: u32| blocks.saturating_sub(1).min(0xffff) as u16;
        let normal = 0;
        let power_fail = based(geometry.atomic_powerfail).min(normal);
        Atomics { normal, power_fail, compare_and_write: based(geometry.caw_max) }
    }

    fn least(self, other: Atomics) -> Atomics {
        Atomics {
            normal: self.normal.min(other.normal),
            power_fail: self.power_fail.min(other.power_fail),
            compare_and_write: self.compare_and_write.min(other.compare_and_write),
        }
    }
}

fn namespace(entry: &NamespaceEntry, volume: &Volume) -> Namespace {
    let geometry = &volume.view.geometry;
    let atomics = Atomics::of(geometry);
    let mut data = Namespace::new_zeroed();
    let blocks = U64::new(geometry.blocks);
    (data.nsze, data.ncap, data.nuse) = (blocks, blocks, U64::new(used(volume)));
    data.nsfeat = Namespace::NSFEAT_ATOMICS | Namespace::NSFEAT_PERFORMANCE;
    data.nmic = Namespace::NMIC_SHARED;
    data.rescap = Namespace::RESCAP_ALL;
    data.dlfeat = Namespace::DLFEAT_WRITE_ZEROES;
    // Who calls itself thin must know how much is used.
    if geometry.thin && volume.info.shared.allocated().is_some() {
        data.nsfeat |= Namespace::NSFEAT_THIN;
    }
    // What is not thin keeps its blocks, and what they say.
    if geometry.thin && geometry.dealloc_reads_zero {
        data.dlfeat |= Namespace::DLFEAT_ZEROES;
    }
    data.nawun = U16::new(atomics.normal);
    data.nawupf = U16::new(atomics.power_fail);
    data.nacwu = U16::new(atomics.compare_and_write);
    let bytes = geometry.bytes();
    data.nvmcap[0] = U64::new(bytes);
    let unit = U16::new((geometry.physical / geometry.logical).saturating_sub(1) as u16);
    (data.npwg, data.npwa, data.npdg, data.npda, data.nows) = (unit, unit, unit, unit, unit);
    data.mssrl = U16::new(COPY_RANGE_BLOCKS_MAX);
    data.mcl = U32::new(COPY_BLOCKS_MAX);
    data.msrc = (COPY_RANGES_MAX - 1) as u8;
    data.anagrpid = U32::new(entry.ana_group);
    data.nsattr = attributes(entry, volume);
    if let Some(oui) = volume.info.facts.oui {
        (data.eui64, data.nguid) = with_oui(oui, volume.info.facts.uuid.0);
    }
    let shift = geometry.logical.ilog2() as u8;
    data.lbaf[0] = LbaFormat { metadata: U16::ZERO, shift, performance: 0 };
    data
}

/// NUSE. A thin namespace (THINP) must show what was deallocated there; of one that is not, all may be
/// shown as allocated at all times (NVM command set §4.1.5.1).
fn used(volume: &Volume) -> u64 {
    let geometry = &volume.view.geometry;
    let allocated = volume.info.shared.allocated().filter(|_| geometry.thin);
    allocated.map_or(geometry.blocks, |bytes| {
        // A granule may reach beyond the end, and file systems count what they note beside the data.
        bytes.div_ceil(u64::from(geometry.logical)).min(geometry.blocks)
    })
}

fn attributes(entry: &NamespaceEntry, volume: &Volume) -> u8 {
    let protected = volume.view.is_protected() || volume.view.host_protection.is_on() || entry.read_only;
    if protected { Namespace::NSATTR_WRITE_PROTECTED } else { 0 }
}

fn independent(entry: &NamespaceEntry, volume: &Volume) -> IndependentNamespace {
    let mut data = IndependentNamespace::new_zeroed();
    if !volume.view.geometry.write_cache {
        data.nsfeat = IndependentNamespace::NSFEAT_NO_CACHE;
    }
    data.nmic = Namespace::NMIC_SHARED;
    data.rescap = Namespace::RESCAP_ALL;
    data.anagrpid = U32::new(entry.ana_group);
    data.nsattr = attributes(entry, volume);
    if volume.view.not_ready.is_none() {
        data.nstat = IndependentNamespace::NSTAT_READY;
    }
    data
}

fn descriptors(volume: &Volume) -> Descriptors {
    let facts = &volume.info.facts;
    let mut descriptors = Descriptors::default();
    if let Some(oui) = facts.oui {
        let (eui64, nguid) = with_oui(oui, facts.uuid.0);
        descriptors.eui64(eui64);
        descriptors.nguid(nguid);
    }
    descriptors.uuid(facts.uuid.0);
    descriptors.command_set(0);
    descriptors
}

fn nvm() -> NvmController {
    let mut data = NvmController::new_zeroed();
    data.write_uncorrectable = UNCORRECTABLE_MAX_POWER;
    data
}

/// Whether NSID may stand where a command is about the controller: none or all.
pub(super) fn names_no_namespace(nsid: u32) -> bool {
    nsid == 0 || nsid == NSID_ALL
}
