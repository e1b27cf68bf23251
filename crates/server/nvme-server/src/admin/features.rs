//! Get FeatureValues and Set FeatureValues (NVMe Base §5.15, §5.27).
//!
//! [`TABLE`] lists the features and their capabilities. None can be saved: persistent settings are
//! configured.

use buf::{Sg, Time};
use nvme::feature::{Capabilities, FeatureSelect, Fid, GetFeatures, SetFeatures};
use nvme::identify::NSID_ALL;
use nvme::log::effects::FeatureScope;
use nvme::{Completion, Status};
use volume::VolumeRequest;
use volume::reservation::Action;

use super::AdminOutcome;
use super::identify::names_no_namespace;
use crate::controller::feature_values::{FeatureValues, HOST_BEHAVIOR_LEN, TIMESTAMP_LEN};
use crate::controller::{AdminWait, Controller, WaitingCommand};
use crate::server::Server;
use crate::status;
use crate::step::{CommandKey, Step};

/// A feature.
pub(super) struct Feature {
    pub(super) fid: Fid,
    pub(super) scope: FeatureScope,
    /// Whether it can be set.
    changeable: bool,
    /// Whether discovery controllers have it too.
    discovery: bool,
}

const fn feature(fid: Fid, scope: FeatureScope, changeable: bool, discovery: bool) -> Feature {
    Feature { fid, scope, changeable, discovery }
}

/// The features that there are.
pub(super) const TABLE: [Feature; 16] = [
    feature(Fid::ARBITRATION, FeatureScope::Controller, true, false),
    feature(Fid::POWER_MANAGEMENT, FeatureScope::Controller, true, false),
    feature(Fid::TEMPERATURE_THRESHOLD, FeatureScope::Controller, true, false),
    feature(Fid::ERROR_RECOVERY, FeatureScope::Namespace, true, false),
    // What the volumes' caches do is configured; Flush is honoured whatever they do.
    feature(Fid::VOLATILE_WRITE_CACHE, FeatureScope::Controller, false, false),
    feature(Fid::NUMBER_OF_QUEUES, FeatureScope::Controller, true, false),
    feature(Fid::WRITE_ATOMICITY, FeatureScope::Controller, true, false),
    feature(Fid::ASYNC_EVENT_CONFIGURATION, FeatureScope::Controller, true, true),
    feature(Fid::TIMESTAMP, FeatureScope::Controller, true, false),
    feature(Fid::KEEP_ALIVE_TIMER, FeatureScope::Controller, true, true),
    feature(Fid::HOST_BEHAVIOR, FeatureScope::Controller, true, false),
    feature(Fid::COMMAND_SET_PROFILE, FeatureScope::Controller, true, false),
    // Connect has set it (NVMe Base §5.27.1.25).
    feature(Fid::HOST_IDENTIFIER, FeatureScope::Controller, false, false),
    feature(Fid::RESERVATION_NOTIFICATION_MASK, FeatureScope::Namespace, true, false),
    // A registration changes it too (CPTPL), and it is the same for both protocols.
    feature(Fid::RESERVATION_PERSISTENCE, FeatureScope::Namespace, true, false),
    feature(Fid::NAMESPACE_WRITE_PROTECTION, FeatureScope::Namespace, true, false),
];

/// The longest data of a feature.
pub(super) const DATA_LEN_MAX: usize = HOST_BEHAVIOR_LEN;
/// The longest data that is taken for a feature: hosts may send a page where less means something.
const DATA_OUT_MAX: usize = 4096;
/// The write protection states of feature 84h: none, and until it is taken back.
const PROTECTED: u32 = 1;
/// Bits of feature 82h that mean something.
const MASKS: u8 = 0b1110;

fn find(controller: &Controller, fid: Fid) -> Result<&'static Feature, Status> {
    let known = TABLE.iter().find(|feature| feature.fid == fid);
    known
        .filter(|feature| feature.discovery || !controller.is_discovery())
        .ok_or(Status::INVALID_FIELD.final_())
}

/// Whether the feature may be asked for by this NSID.
fn check_namespace(controller: &Controller, feature: &Feature, nsid: u32, all: bool) -> Result<(), Status> {
    match feature.scope {
        FeatureScope::Controller if names_no_namespace(nsid) => Ok(()),
        FeatureScope::Controller => Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.final_()),
        FeatureScope::Namespace if nsid == NSID_ALL && all => Ok(()),
        FeatureScope::Namespace if controller.namespace(nsid).is_some() => Ok(()),
        FeatureScope::Namespace => Err(Status::INVALID_NAMESPACE.final_()),
    }
}

/// Get FeatureValues.
pub(super) fn get(
    server: &Server,
    now: Time,
    cntlid: u16,
    get: GetFeatures,
    room: u32,
) -> Result<AdminOutcome, Status> {
    let controller = server.controllers.find(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let feature = find(controller, get.fid)?;
    // NVMe Base §5.15: an NSID means nothing to a feature of the controller.
    if feature.scope == FeatureScope::Namespace {
        let all = get.fid == Fid::ERROR_RECOVERY;
        check_namespace(controller, feature, get.nsid, all)?;
    }
    match get.select {
        FeatureSelect::Supported => {
            let per_namespace = feature.scope == FeatureScope::Namespace;
            let can = Capabilities { saveable: false, per_namespace, changeable: feature.changeable };
            Ok(AdminOutcome::result(can.dword()))
        }
        FeatureSelect::Current => value(server, now, controller, get, &controller.features, room),
        // Nothing is saved, so what is saved is the default (NVMe Base §5.15.1).
        FeatureSelect::Default | FeatureSelect::Saved => {
            value(server, now, controller, get, &FeatureValues::default(), room)
        }
    }
}

fn value(
    server: &Server,
    now: Time,
    controller: &Controller,
    get: GetFeatures,
    features: &FeatureValues,
    room: u32,
) -> Result<AdminOutcome, Status> {
    let current = get.select == FeatureSelect::Current;
    let dword = match get.fid {
        Fid::ARBITRATION => features.arbitration,
        Fid::POWER_MANAGEMENT => features.power,
        Fid::TEMPERATURE_THRESHOLD => {
            *features.thresholds.get(threshold(get.argument)?).ok_or(Status::INVALID_FIELD.final_())?
        }
        Fid::ERROR_RECOVERY => features.error_recovery,
        Fid::VOLATILE_WRITE_CACHE => 1,
        Fid::NUMBER_OF_QUEUES if current => queues(controller.granted),
        Fid::NUMBER_OF_QUEUES => queues(controller.spec.limits.queues),
        Fid::WRITE_ATOMICITY => features.atomicity,
        Fid::ASYNC_EVENT_CONFIGURATION if current => controller.events.configuration,
        Fid::ASYNC_EVENT_CONFIGURATION | Fid::COMMAND_SET_PROFILE => 0,
        Fid::KEEP_ALIVE_TIMER => controller.kato_ms(),
        Fid::TIMESTAMP => return bytes(&features.timestamp(controller.opened, now), room),
        Fid::HOST_BEHAVIOR => return bytes(&features.behavior, room),
        // EXHID: the host asks for 128 bits, as fabrics demand.
        Fid::HOST_IDENTIFIER if get.argument & 1 == 0 => return Err(Status::INVALID_FIELD.final_()),
        Fid::HOST_IDENTIFIER => return bytes(&controller.spec.host.id.bytes(), room),
        Fid::RESERVATION_NOTIFICATION_MASK => features.mask(get.nsid).into(),
        Fid::RESERVATION_PERSISTENCE => {
            of_volume(server, controller, get.nsid, |view| u32::from(view.reservations.persists()))?
        }
        Fid::NAMESPACE_WRITE_PROTECTION => of_volume(server, controller, get.nsid, |view| {
            let reads = controller.namespace(get.nsid).is_some_and(|entry| entry.read_only);
            if reads || view.is_protected() || view.host_protection.is_on() { PROTECTED } else { 0 }
        })?,
        _ => return Err(Status::INVALID_FIELD.final_()),
    };
    Ok(AdminOutcome::result(dword))
}

fn bytes(bytes: &[u8], room: u32) -> Result<AdminOutcome, Status> {
    if (room as usize) < bytes.len() {
        return Err(Status::SGL_LENGTH_INVALID.final_());
    }
    Ok(AdminOutcome::bytes(bytes))
}

fn of_volume(
    server: &Server,
    controller: &Controller,
    nsid: u32,
    what: impl Fn(&volume::View) -> u32,
) -> Result<u32, Status> {
    let entry = controller.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.final_())?;
    let volume = server.context.volumes.get(entry.volume).ok_or_else(|| status::not_here(entry.volume))?;
    Ok(what(&volume.view))
}

/// Both halves of feature 07h: queues of either kind, 0's based.
fn queues(granted: u16) -> u32 {
    let based = u32::from(granted - 1);
    based | based << 16
}

/// Which threshold: THSEL in bits 21:20. Only the composite temperature (TMPSEL 0) is there.
fn threshold(argument: u32) -> Result<usize, Status> {
    match (argument >> 16 & 15, argument >> 20 & 3) {
        (0, kind @ (0 | 1)) => Ok(kind as usize),
        _ => Err(Status::INVALID_FIELD.final_()),
    }
}

/// Set FeatureValues.
pub(super) fn set(
    server: &mut Server,
    now: Time,
    cntlid: u16,
    key: CommandKey,
    cid: u16,
    set: SetFeatures,
    data_out: u32,
) -> Result<AdminOutcome, Status> {
    let controller = server.controllers.find_mut(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let feature = find(controller, set.fid)?;
    if set.save {
        return Err(Status::FEATURE_NOT_SAVEABLE.final_());
    }
    let all = matches!(set.fid, Fid::ERROR_RECOVERY | Fid::RESERVATION_NOTIFICATION_MASK);
    check_namespace(controller, feature, set.nsid, all)?;
    match set.fid {
        // Its value is right whatever it is; only the data says what it is.
        Fid::TIMESTAMP => {
            return receive_feature_data(server, cntlid, key, cid, set, TIMESTAMP_LEN, data_out);
        }
        Fid::HOST_BEHAVIOR => {
            return receive_feature_data(server, cntlid, key, cid, set, HOST_BEHAVIOR_LEN, data_out);
        }
        Fid::NAMESPACE_WRITE_PROTECTION => return protect(server, cntlid, key, cid, set),
        // What is so already may be set so.
        Fid::VOLATILE_WRITE_CACHE if set.value & 1 == 1 => return Ok(AdminOutcome::SUCCESS),
        Fid::HOST_IDENTIFIER => return Err(Status::COMMAND_SEQUENCE_ERROR.final_()),
        Fid::RESERVATION_PERSISTENCE => return persist(server, cntlid, key, cid, set),
        _ => {}
    }
    if !feature.changeable {
        return Err(Status::FEATURE_NOT_CHANGEABLE.final_());
    }
    let outcome = controller.set(now, set);
    if set.fid == Fid::KEEP_ALIVE_TIMER {
        let messages = controller.settings_messages();
        server.context.steps.extend(messages);
    }
    server.controllers.complete_event_requests(&mut server.context.steps, cntlid);
    server.controllers.arm(cntlid);
    outcome
}

impl Controller {
    /// Sets a feature that needs no data.
    fn set(&mut self, now: Time, set: SetFeatures) -> Result<AdminOutcome, Status> {
        let invalid = Err(Status::INVALID_FIELD.final_());
        match set.fid {
            Fid::ARBITRATION => self.features.arbitration = set.value,
            // There is one power state.
            Fid::POWER_MANAGEMENT if set.value & 0x1f != 0 => return invalid,
            Fid::POWER_MANAGEMENT => self.features.power = set.value & 0xff,
            Fid::TEMPERATURE_THRESHOLD => {
                let every = if set.value >> 16 & 15 == 15 { set.value & !(15 << 16) } else { set.value };
                let place = self.features.thresholds.get_mut(threshold(every)?);
                *place.ok_or(Status::INVALID_FIELD.final_())? = set.value & 0xffff;
            }
            // DULBE: reads of deallocated blocks are no errors here.
            Fid::ERROR_RECOVERY if set.value & 1 << 16 != 0 => return invalid,
            Fid::ERROR_RECOVERY => self.features.error_recovery = set.value & 0xffff,
            Fid::WRITE_ATOMICITY => self.features.atomicity = set.value & 1,
            Fid::NUMBER_OF_QUEUES => return self.grant_queues(set.value),
            Fid::ASYNC_EVENT_CONFIGURATION => self.events.configuration = set.value,
            Fid::KEEP_ALIVE_TIMER if self.set_kato(now, set.value) => {}
            Fid::KEEP_ALIVE_TIMER => return Err(Status::KEEP_ALIVE_INVALID.final_()),
            // One combination of command sets: the NVM command set.
            Fid::COMMAND_SET_PROFILE if set.value & 0x1ff != 0 => return invalid,
            Fid::COMMAND_SET_PROFILE => {}
            Fid::RESERVATION_NOTIFICATION_MASK => {
                let mask = set.value as u8 & MASKS;
                let namespaces = self.namespaces.clone();
                for entry in namespaces.iter().filter(|entry| [entry.nsid, NSID_ALL].contains(&set.nsid)) {
                    self.features.set_mask(entry.nsid, mask);
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
            return Err(Status::INVALID_FIELD.final_());
        }
        // What is connected keeps its numbers (NVMe Base §5.27.1.5).
        if self.members.iter().any(|member| member.proven) {
            return Err(Status::COMMAND_SEQUENCE_ERROR.final_());
        }
        let least = submission.min(completion) as u16 + 1;
        self.granted = least.min(self.spec.limits.queues);
        let completion = Completion { result: queues(self.granted).into(), ..Completion::SUCCESS };
        Ok(AdminOutcome::Done(completion))
    }
}

fn receive_feature_data(
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
        return Err(Status::SGL_LENGTH_INVALID.final_());
    }
    wait(server, cntlid, WaitingCommand { key, cid, on: AdminWait::Feature(set) });
    server.context.steps.push_back(Step::Receive { command: key, at: 0, len: data_out });
    Ok(AdminOutcome::Later)
}

fn wait(server: &mut Server, cntlid: u16, waiting: WaitingCommand) {
    if let Some(controller) = server.controllers.find_mut(cntlid) {
        controller.waiting.push(waiting);
    }
}

/// The data of a feature is here.
pub(super) fn data(
    server: &mut Server,
    now: Time,
    cntlid: u16,
    set: SetFeatures,
    data: &Sg,
) -> Result<AdminOutcome, Status> {
    let controller = server.controllers.find_mut(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    if set.fid == Fid::TIMESTAMP {
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
            return Err(Status::INVALID_FIELD.final_());
        }
        controller.features.behavior = bytes;
        let messages = controller.settings_messages();
        server.context.steps.extend(messages);
    }
    Ok(AdminOutcome::SUCCESS)
}

/// Feature 84h: the write protection that SCSI hosts see as SWP.
fn protect(
    server: &mut Server,
    cntlid: u16,
    key: CommandKey,
    cid: u16,
    set: SetFeatures,
) -> Result<AdminOutcome, Status> {
    let on = match set.value & 7 {
        0 => false,
        PROTECTED => true,
        _ => return Err(Status::INVALID_FIELD.final_()),
    };
    let controller = server.controllers.find(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let entry = controller.namespace(set.nsid).ok_or(Status::INVALID_NAMESPACE.final_())?;
    let volume = server.context.volumes.get(entry.volume).ok_or_else(|| status::not_here(entry.volume))?;
    // What the operator or the backing protects no host opens, and who may only read changes nothing for others.
    if entry.read_only || (!on && volume.view.is_protected()) {
        return if on { Ok(AdminOutcome::SUCCESS) } else { Err(Status::FEATURE_NOT_CHANGEABLE.final_()) };
    }
    let (volume, by) = (entry.volume, controller.spec.nexus.identity.clone());
    let id = server.controllers.next_request();
    wait(server, cntlid, WaitingCommand { key, cid, on: AdminWait::VolumeRequest(id) });
    server.context.steps.push_back(Step::VolumeRequest {
        volume,
        id,
        request: VolumeRequest::WriteProtectByHost { by, on },
    });
    Ok(AdminOutcome::Later)
}

/// Feature 83h (PTPL).
fn persist(
    server: &mut Server,
    cntlid: u16,
    key: CommandKey,
    cid: u16,
    set: SetFeatures,
) -> Result<AdminOutcome, Status> {
    let on = set.value & 1 == 1;
    let controller = server.controllers.find(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let entry = controller.namespace(set.nsid).ok_or(Status::INVALID_NAMESPACE.final_())?;
    let volume = server.context.volumes.get(entry.volume).ok_or_else(|| status::not_here(entry.volume))?;
    let reservations = &volume.view.reservations;
    if reservations.persists() == on {
        return Ok(AdminOutcome::SUCCESS);
    }
    // What is configured to last no host ends, and who may only read changes nothing for others.
    if entry.read_only || (!on && reservations.must_persist()) {
        return Err(Status::FEATURE_NOT_CHANGEABLE.final_());
    }
    let (volume, who) = (entry.volume, controller.spec.nexus.clone());
    let id = server.controllers.next_request();
    wait(server, cntlid, WaitingCommand { key, cid, on: AdminWait::VolumeRequest(id) });
    let action = Action::Persist { on };
    server.context.steps.push_back(Step::VolumeRequest {
        volume,
        id,
        request: VolumeRequest::Reserve { who, action },
    });
    Ok(AdminOutcome::Later)
}
