//! Get FeatureValues and Set FeatureValues (NVMe Base §5.15, §5.27).
//!
//! [`FEATURES`] lists the features and their capabilities. None can be saved: persistent settings are
//! configured.

use buf::{Sg, Time};
use nvme::feature::{FeatureCapabilities, FeatureId, FeatureSelect, GetFeatures, SetFeatures};
use nvme::identify::NSID_ALL;
use nvme::log::effects::FeatureScope;
use nvme::{Completion, Status};
use volume::VolumeRequest;
use volume::reservation::Action;

use super::AdminOutcome;
use super::identify::is_controller_scope_nsid;
use crate::controller::feature_values::{FeatureValues, HOST_BEHAVIOR_LEN, TIMESTAMP_LEN};
use crate::controller::{AdminWait, Controller, WaitingCommand};
use crate::server::Server;
use crate::status;
use crate::step::{CommandKey, Step};

/// A feature.
pub(super) struct Feature {
    pub(super) fid: FeatureId,
    pub(super) scope: FeatureScope,
    /// Whether it can be set.
    changeable: bool,
    /// Whether discovery controllers have it too.
    discovery: bool,
}

const fn feature_entry(fid: FeatureId, scope: FeatureScope, changeable: bool, discovery: bool) -> Feature {
    Feature { fid, scope, changeable, discovery }
}

/// The features that there are.
pub(super) const FEATURES: [Feature; 16] = [
    feature_entry(FeatureId::ARBITRATION, FeatureScope::Controller, true, false),
    feature_entry(FeatureId::POWER_MANAGEMENT, FeatureScope::Controller, true, false),
    feature_entry(FeatureId::TEMPERATURE_THRESHOLD, FeatureScope::Controller, true, false),
    feature_entry(FeatureId::ERROR_RECOVERY, FeatureScope::Namespace, true, false),
    // What the volumes' caches do is configured; Flush is honoured whatever they do.
    feature_entry(FeatureId::VOLATILE_WRITE_CACHE, FeatureScope::Controller, false, false),
    feature_entry(FeatureId::NUMBER_OF_QUEUES, FeatureScope::Controller, true, false),
    feature_entry(FeatureId::WRITE_ATOMICITY, FeatureScope::Controller, true, false),
    feature_entry(FeatureId::ASYNC_EVENT_CONFIGURATION, FeatureScope::Controller, true, true),
    feature_entry(FeatureId::TIMESTAMP, FeatureScope::Controller, true, false),
    feature_entry(FeatureId::KEEP_ALIVE_TIMER, FeatureScope::Controller, true, true),
    feature_entry(FeatureId::HOST_BEHAVIOR, FeatureScope::Controller, true, false),
    feature_entry(FeatureId::COMMAND_SET_PROFILE, FeatureScope::Controller, true, false),
    // Connect has set it (NVMe Base §5.27.1.25).
    feature_entry(FeatureId::HOST_IDENTIFIER, FeatureScope::Controller, false, false),
    feature_entry(FeatureId::RESERVATION_NOTIFICATION_MASK, FeatureScope::Namespace, true, false),
    // A registration changes it too (CPTPL), and it is the same for both protocols.
    feature_entry(FeatureId::RESERVATION_PERSISTENCE, FeatureScope::Namespace, true, false),
    feature_entry(FeatureId::NAMESPACE_WRITE_PROTECTION, FeatureScope::Namespace, true, false),
];

/// The longest data of a feature.
pub(super) const DATA_LEN_MAX: usize = HOST_BEHAVIOR_LEN;
/// The longest data that is taken for a feature: hosts may send a page where less means something.
const DATA_OUT_MAX: usize = 4096;
/// The write protection states of feature 84h: none, and until it is taken back.
const WRITE_PROTECTED: u32 = 1;
/// Bits of feature 82h that mean something.
const RESERVATION_MASK_BITS: u8 = 0b1110;

fn find_feature(controller: &Controller, fid: FeatureId) -> Result<&'static Feature, Status> {
    let known = FEATURES.iter().find(|feature| feature.fid == fid);
    known
        .filter(|feature| feature.discovery || !controller.is_discovery())
        .ok_or(Status::INVALID_FIELD.with_do_not_retry())
}

/// Whether the feature may be asked for by this NSID.
fn check_namespace(controller: &Controller, feature: &Feature, nsid: u32, all: bool) -> Result<(), Status> {
    match feature.scope {
        FeatureScope::Controller if is_controller_scope_nsid(nsid) => Ok(()),
        FeatureScope::Controller => Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.with_do_not_retry()),
        FeatureScope::Namespace if nsid == NSID_ALL && all => Ok(()),
        FeatureScope::Namespace if controller.namespace(nsid).is_some() => Ok(()),
        FeatureScope::Namespace => Err(Status::INVALID_NAMESPACE.with_do_not_retry()),
    }
}

/// Get FeatureValues.
pub(super) fn get_features(
    server: &Server,
    now: Time,
    cntlid: u16,
    get: GetFeatures,
    room: u32,
) -> Result<AdminOutcome, Status> {
    let controller = server.controllers.find(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let feature = find_feature(controller, get.fid)?;
    // NVMe Base §5.15: an NSID means nothing to a feature of the controller.
    if feature.scope == FeatureScope::Namespace {
        let all = get.fid == FeatureId::ERROR_RECOVERY;
        check_namespace(controller, feature, get.nsid, all)?;
    }
    match get.select {
        FeatureSelect::Supported => {
            let per_namespace = feature.scope == FeatureScope::Namespace;
            let can = FeatureCapabilities { saveable: false, per_namespace, changeable: feature.changeable };
            Ok(AdminOutcome::with_result(can.to_dword()))
        }
        FeatureSelect::Current => feature_value(server, now, controller, get, &controller.features, room),
        // Nothing is saved, so what is saved is the default (NVMe Base §5.15.1).
        FeatureSelect::Default | FeatureSelect::Saved => {
            feature_value(server, now, controller, get, &FeatureValues::default(), room)
        }
    }
}

fn feature_value(
    server: &Server,
    now: Time,
    controller: &Controller,
    get: GetFeatures,
    features: &FeatureValues,
    room: u32,
) -> Result<AdminOutcome, Status> {
    let current = get.select == FeatureSelect::Current;
    let dword = match get.fid {
        FeatureId::ARBITRATION => features.arbitration,
        FeatureId::POWER_MANAGEMENT => features.power,
        FeatureId::TEMPERATURE_THRESHOLD => *features
            .thresholds
            .get(threshold_index(get.argument)?)
            .ok_or(Status::INVALID_FIELD.with_do_not_retry())?,
        FeatureId::ERROR_RECOVERY => features.error_recovery,
        FeatureId::VOLATILE_WRITE_CACHE => 1,
        FeatureId::NUMBER_OF_QUEUES if current => queue_count_dword(controller.granted),
        FeatureId::NUMBER_OF_QUEUES => queue_count_dword(controller.spec.limits.queues),
        FeatureId::WRITE_ATOMICITY => features.atomicity,
        FeatureId::ASYNC_EVENT_CONFIGURATION if current => controller.events.configuration,
        FeatureId::ASYNC_EVENT_CONFIGURATION | FeatureId::COMMAND_SET_PROFILE => 0,
        FeatureId::KEEP_ALIVE_TIMER => controller.kato_ms(),
        FeatureId::TIMESTAMP => return data_outcome(&features.timestamp(controller.opened, now), room),
        FeatureId::HOST_BEHAVIOR => return data_outcome(&features.behavior, room),
        // EXHID: the host asks for 128 bits, as fabrics demand.
        FeatureId::HOST_IDENTIFIER if get.argument & 1 == 0 => {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        FeatureId::HOST_IDENTIFIER => return data_outcome(&controller.spec.host.id.bytes(), room),
        FeatureId::RESERVATION_NOTIFICATION_MASK => features.reservation_mask(get.nsid).into(),
        FeatureId::RESERVATION_PERSISTENCE => {
            value_from_view(server, controller, get.nsid, |view| u32::from(view.reservations.persists()))?
        }
        FeatureId::NAMESPACE_WRITE_PROTECTION => value_from_view(server, controller, get.nsid, |view| {
            let reads = controller.namespace(get.nsid).is_some_and(|entry| entry.read_only);
            if reads || view.is_write_protected_for_all() || view.host_protection.is_on() {
                WRITE_PROTECTED
            } else {
                0
            }
        })?,
        _ => return Err(Status::INVALID_FIELD.with_do_not_retry()),
    };
    Ok(AdminOutcome::with_result(dword))
}

fn data_outcome(bytes: &[u8], room: u32) -> Result<AdminOutcome, Status> {
    if (room as usize) < bytes.len() {
        return Err(Status::SGL_LENGTH_INVALID.with_do_not_retry());
    }
    Ok(AdminOutcome::with_data(bytes))
}

fn value_from_view(
    server: &Server,
    controller: &Controller,
    nsid: u32,
    what: impl Fn(&volume::View) -> u32,
) -> Result<u32, Status> {
    let entry = controller.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.with_do_not_retry())?;
    let volume =
        server.context.volumes.get(entry.volume).ok_or_else(|| status::volume_absent(entry.volume))?;
    Ok(what(&volume.view))
}

/// Both halves of feature 07h: queues of either kind, 0's based.
fn queue_count_dword(granted: u16) -> u32 {
    let based = u32::from(granted - 1);
    based | based << 16
}

/// Which threshold: THSEL in bits 21:20. Only the composite temperature (TMPSEL 0) is there.
fn threshold_index(argument: u32) -> Result<usize, Status> {
    match (argument >> 16 & 15, argument >> 20 & 3) {
        (0, kind @ (0 | 1)) => Ok(kind as usize),
        _ => Err(Status::INVALID_FIELD.with_do_not_retry()),
    }
}

/// Set FeatureValues.
pub(super) fn set_features(
    server: &mut Server,
    now: Time,
    cntlid: u16,
    key: CommandKey,
    cid: u16,
    set: SetFeatures,
    data_out: u32,
) -> Result<AdminOutcome, Status> {
    let controller = server.controllers.find_mut(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let feature = find_feature(controller, set.fid)?;
    if set.save {
        return Err(Status::FEATURE_NOT_SAVEABLE.with_do_not_retry());
    }
    let all = matches!(set.fid, FeatureId::ERROR_RECOVERY | FeatureId::RESERVATION_NOTIFICATION_MASK);
    check_namespace(controller, feature, set.nsid, all)?;
    match set.fid {
        // Its value is right whatever it is; only the data says what it is.
        FeatureId::TIMESTAMP => {
            return request_feature_data(server, cntlid, key, cid, set, TIMESTAMP_LEN, data_out);
        }
        FeatureId::HOST_BEHAVIOR => {
            return request_feature_data(server, cntlid, key, cid, set, HOST_BEHAVIOR_LEN, data_out);
        }
        FeatureId::NAMESPACE_WRITE_PROTECTION => return set_write_protection(server, cntlid, key, cid, set),
        // What is so already may be set so.
        FeatureId::VOLATILE_WRITE_CACHE if set.value & 1 == 1 => return Ok(AdminOutcome::SUCCESS),
        FeatureId::HOST_IDENTIFIER => return Err(Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry()),
        FeatureId::RESERVATION_PERSISTENCE => return set_ptpl(server, cntlid, key, cid, set),
        _ => {}
    }
    if !feature.changeable {
        return Err(Status::FEATURE_NOT_CHANGEABLE.with_do_not_retry());
    }
    let outcome = controller.set_feature(now, set);
    if set.fid == FeatureId::KEEP_ALIVE_TIMER {
        let messages = controller.settings_messages();
        server.context.steps.extend(messages);
    }
    server.controllers.complete_event_requests(&mut server.context.steps, cntlid);
    server.controllers.schedule_deadline(cntlid);
    outcome
}

impl Controller {
    /// Sets a feature that needs no data.
    fn set_feature(&mut self, now: Time, set: SetFeatures) -> Result<AdminOutcome, Status> {
        let invalid = Err(Status::INVALID_FIELD.with_do_not_retry());
        match set.fid {
            FeatureId::ARBITRATION => self.features.arbitration = set.value,
            // There is one power state.
            FeatureId::POWER_MANAGEMENT if set.value & 0x1f != 0 => return invalid,
            FeatureId::POWER_MANAGEMENT => self.features.power = set.value & 0xff,
            FeatureId::TEMPERATURE_THRESHOLD => {
                let every = if set.value >> 16 & 15 == 15 { set.value & !(15 << 16) } else { set.value };
                let place = self.features.thresholds.get_mut(threshold_index(every)?);
                *place.ok_or(Status::INVALID_FIELD.with_do_not_retry())? = set.value & 0xffff;
            }
            // DULBE: reads of deallocated blocks are no errors here.
            FeatureId::ERROR_RECOVERY if set.value & 1 << 16 != 0 => return invalid,
            FeatureId::ERROR_RECOVERY => self.features.error_recovery = set.value & 0xffff,
            FeatureId::WRITE_ATOMICITY => self.features.atomicity = set.value & 1,
            FeatureId::NUMBER_OF_QUEUES => return self.grant_queues(set.value),
            FeatureId::ASYNC_EVENT_CONFIGURATION => self.events.configuration = set.value,
            FeatureId::KEEP_ALIVE_TIMER if self.set_kato(now, set.value) => {}
            FeatureId::KEEP_ALIVE_TIMER => return Err(Status::KEEP_ALIVE_INVALID.with_do_not_retry()),
            // One combination of command sets: the NVM command set.
            FeatureId::COMMAND_SET_PROFILE if set.value & 0x1ff != 0 => return invalid,
            FeatureId::COMMAND_SET_PROFILE => {}
            FeatureId::RESERVATION_NOTIFICATION_MASK => {
                let mask = set.value as u8 & RESERVATION_MASK_BITS;
                let namespaces = self.namespaces.clone();
                for entry in namespaces.iter().filter(|entry| [entry.nsid, NSID_ALL].contains(&set.nsid)) {
                    self.features.set_reservation_mask(entry.nsid, mask);
                }
            }
            _ => return invalid,
        }
        Ok(AdminOutcome::SUCCESS)
    }

    /// Feature 07h: as many queues as asked for, submission and completion alike, up to the limit.
    fn grant_queues(&mut self, value: u32) -> Result<AdminOutcome, Status> {
        let (submission, completion) = (value & 0xffff, value >> 16);
        if submission == 0xffff || completion == 0xffff {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        // What is connected keeps its numbers (NVMe Base §5.27.1.5).
        if self.members.iter().any(|member| member.proven) {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry());
        }
        let least = submission.min(completion) as u16 + 1;
        self.granted = least.min(self.spec.limits.queues);
        let completion = Completion { result: queue_count_dword(self.granted).into(), ..Completion::SUCCESS };
        Ok(AdminOutcome::Done(completion))
    }
}

fn request_feature_data(
    server: &mut Server,
    cntlid: u16,
    key: CommandKey,
    cid: u16,
    set: SetFeatures,
    len: usize,
    data_out: u32,
) -> Result<AdminOutcome, Status> {
    // All of it is received, so what an SGL says is not taken for its word.
    if !(len..=DATA_OUT_MAX).contains(&(data_out as usize)) {
        return Err(Status::SGL_LENGTH_INVALID.with_do_not_retry());
    }
    push_waiting(server, cntlid, WaitingCommand { key, cid, on: AdminWait::Feature(set) });
    server.context.steps.push_back(Step::Receive { command: key, at: 0, len: data_out, volume: None });
    Ok(AdminOutcome::Later)
}

fn push_waiting(server: &mut Server, cntlid: u16, waiting: WaitingCommand) {
    if let Some(controller) = server.controllers.find_mut(cntlid) {
        controller.waiting.push(waiting);
    }
}

/// The data of a feature is here.
pub(super) fn handle_feature_data(
    server: &mut Server,
    now: Time,
    cntlid: u16,
    set: SetFeatures,
    data: &Sg,
) -> Result<AdminOutcome, Status> {
    let controller = server.controllers.find_mut(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    if set.fid == FeatureId::TIMESTAMP {
        let mut bytes = [0; 6];
        data.copy_to(0, &mut bytes);
        let [a, b, c, d, e, f] = bytes;
        controller.features.timestamp = Some((u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), now));
    } else {
        let mut bytes = vec![0; HOST_BEHAVIOR_LEN];
        data.copy_to(0, &mut bytes);
        // ACRE says 0 or 1; extended formats (LBAFEE) are not offered.
        let at = |place: usize| bytes.get(place).copied().unwrap_or(0);
        if at(0) > 1 || at(2) != 0 {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        controller.features.behavior = bytes;
        let messages = controller.settings_messages();
        server.context.steps.extend(messages);
    }
    Ok(AdminOutcome::SUCCESS)
}

/// Feature 84h: the write protection that SCSI hosts see as SWP.
fn set_write_protection(
    server: &mut Server,
    cntlid: u16,
    key: CommandKey,
    cid: u16,
    set: SetFeatures,
) -> Result<AdminOutcome, Status> {
    let on = match set.value & 7 {
        0 => false,
        WRITE_PROTECTED => true,
        _ => return Err(Status::INVALID_FIELD.with_do_not_retry()),
    };
    let controller = server.controllers.find(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let entry = controller.namespace(set.nsid).ok_or(Status::INVALID_NAMESPACE.with_do_not_retry())?;
    let volume =
        server.context.volumes.get(entry.volume).ok_or_else(|| status::volume_absent(entry.volume))?;
    // What the operator or the backing protects no host opens, and who may only read changes nothing for others.
    if entry.read_only || (!on && volume.view.is_write_protected_for_all()) {
        return if on {
            Ok(AdminOutcome::SUCCESS)
        } else {
            Err(Status::FEATURE_NOT_CHANGEABLE.with_do_not_retry())
        };
    }
    let (volume, by) = (entry.volume, controller.spec.nexus.identity.clone());
    let id = server.controllers.next_request_id();
    push_waiting(server, cntlid, WaitingCommand { key, cid, on: AdminWait::VolumeRequest(id) });
    server.context.steps.push_back(Step::VolumeRequest {
        volume,
        id,
        request: VolumeRequest::WriteProtectByHost { by, on },
    });
    Ok(AdminOutcome::Later)
}

/// Feature 83h (PTPL).
fn set_ptpl(
    server: &mut Server,
    cntlid: u16,
    key: CommandKey,
    cid: u16,
    set: SetFeatures,
) -> Result<AdminOutcome, Status> {
    let on = set.value & 1 == 1;
    let controller = server.controllers.find(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let entry = controller.namespace(set.nsid).ok_or(Status::INVALID_NAMESPACE.with_do_not_retry())?;
    let volume =
        server.context.volumes.get(entry.volume).ok_or_else(|| status::volume_absent(entry.volume))?;
    let reservations = &volume.view.reservations;
    if reservations.persists() == on {
        return Ok(AdminOutcome::SUCCESS);
    }
    // What is configured to last no host ends, and who may only read changes nothing for others.
    if entry.read_only || (!on && reservations.must_persist()) {
        return Err(Status::FEATURE_NOT_CHANGEABLE.with_do_not_retry());
    }
    let (volume, who) = (entry.volume, controller.spec.nexus.clone());
    let id = server.controllers.next_request_id();
    push_waiting(server, cntlid, WaitingCommand { key, cid, on: AdminWait::VolumeRequest(id) });
    let action = Action::Persist { on };
    server.context.steps.push_back(Step::VolumeRequest {
        volume,
        id,
        request: VolumeRequest::Reserve { who, action },
    });
    Ok(AdminOutcome::Later)
}
