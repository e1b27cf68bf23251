//! Task management (SAM-5 §7): a function is answered only when every task that it affects has ended.
//!
//! Functions for one nexus are executed here, because a nexus lives on one shard. Functions for all nexuses
//! of a logical unit go through the volume's home, and are answered when every shard has ended its tasks. A
//! nexus gets no response for its own tasks that it ends. For tasks of others, TASK ABORTED is returned if
//! TAS is 1 (SPC-4 §7.5.8); otherwise there is no response, and CLEAR TASK SET establishes a unit attention.

use buf::Cx;
use scsi::lun::LunAddress;
use scsi::sense::Sense;
use volume::{AbortScope, IoId, NoticeCause, Refusal, RequestId, ViewUpdate, VolumeId, VolumeRequest};

use crate::context::ExecContext;
use crate::exec;
use crate::nexus::LunEntry;
use crate::server::Server;
use crate::status;
use crate::step::{
    DeviceStep, ManagementEnd, ManagementFunction, ManagementOutcome, NexusKey, Step, TaskKey,
};
use crate::task::{Task, TaskEnding, TaskPhase};
use crate::unit::LogicalUnit;

impl Server {
    /// A task management function has come; [`ManagementEnd`](crate::ManagementEnd) follows.
    pub fn start_management(&mut self, key: TaskKey, what: ManagementFunction) {
        let nexus = key.nexus;
        match what {
            ManagementFunction::AbortTask { tag } => match self.find_live_task(nexus, tag) {
                Some(slot) => {
                    let victim = self.context.tasks.get(slot).key;
                    self.end_tasks_for_function(key, |task| task.key == victim, &[]);
                }
                None => self.push_management_end(key, ManagementOutcome::NoTask),
            },
            ManagementFunction::AbortTaskSet(unit) => {
                self.with_lun_entry(key, unit, |server, LunEntry { lun, .. }| {
                    server.end_tasks_for_function(
                        key,
                        |task| task.key.nexus == nexus && task.lun == lun,
                        &[],
                    );
                })
            }
            ManagementFunction::ClearTaskSet(unit) => {
                self.with_lun_entry(key, unit, |server, LunEntry { volume, .. }| {
                    let by = server.context.nexus(nexus).nexus.identity.clone();
                    server.end_tasks_for_function(
                        key,
                        |_| false,
                        &[(volume, VolumeRequest::ClearTasks { by })],
                    );
                })
            }
            ManagementFunction::LogicalUnitReset(unit) => {
                self.with_lun_entry(key, unit, |server, LunEntry { volume, .. }| {
                    server.end_tasks_for_function(key, |_| false, &[(volume, VolumeRequest::Reset)]);
                })
            }
            // NORMACA is 0: there never is an auto contingent allegiance.
            ManagementFunction::ClearAca(unit) => {
                self.with_lun_entry(key, unit, |server, _| {
                    server.push_management_end(key, ManagementOutcome::NotSupported)
                });
            }
            ManagementFunction::TargetReset => {
                let requests: Vec<_> = self
                    .nexus_volumes(nexus)
                    .into_iter()
                    .map(|volume| (volume, VolumeRequest::Reset))
                    .collect();
                self.end_tasks_for_function(key, |_| false, &requests);
            }
            ManagementFunction::NexusReset => {
                for lun in &mut self.context.nexus_state_mut(nexus).luns {
                    lun.attentions.raise(Sense::IT_NEXUS_LOSS.code);
                }
                let who = self.context.nexus(nexus).nexus.identity.clone();
                let lost = |volume| (volume, VolumeRequest::NexusLost(who.clone()));
                let requests: Vec<_> = self.nexus_volumes(nexus).into_iter().map(lost).collect();
                self.end_tasks_for_function(key, |task| task.key.nexus == nexus, &requests);
            }
            ManagementFunction::QueryTask { tag } => {
                let found = self.find_live_task(nexus, tag).is_some();
                self.push_management_end(key, outcome_if_found(found));
            }
            ManagementFunction::QueryTaskSet(unit) => {
                self.with_lun_entry(key, unit, |server, LunEntry { lun, .. }| {
                    let found = server
                        .context
                        .tasks
                        .iter()
                        .any(|(_, task)| task.key.nexus == nexus && task.lun == lun);
                    server.push_management_end(key, outcome_if_found(found));
                })
            }
            ManagementFunction::QueryAsyncEvent(unit) => {
                self.with_lun_entry(key, unit, |server, LunEntry { lun, .. }| {
                    let state = server.context.nexus_state(nexus);
                    let state = state.lun_index(lun).and_then(|at| state.luns.get(at));
                    let found = state.is_some_and(|state| state.attentions.peek_oldest().is_some());
                    server.push_management_end(key, outcome_if_found(found));
                })
            }
        }
        self.start_ready_tasks();
    }

    /// The transport has ended tasks of this logical unit by itself, since a connection was lost while
    /// its session goes on: the next command to it is told (47h/7Fh, RFC 7143 §11.14.5).
    pub fn handle_commands_cleared(&mut self, nexus: NexusKey, unit: [u8; 8]) {
        let Some(LunAddress::Unit(lun)) = LunAddress::parse(&unit) else { return };
        let state = self.context.nexus_state_mut(nexus);
        let place = u16::try_from(lun.number()).ok().and_then(|lun| state.lun_index(lun));
        if let Some(lun) = place.and_then(|at| state.luns.get_mut(at)) {
            lun.attentions.raise(Sense::COMMANDS_CLEARED_BY_TRANSPORT.code);
        }
    }

    fn push_management_end(&mut self, task: TaskKey, outcome: ManagementOutcome) {
        self.context.steps.push_back(Step::Other(DeviceStep::ManagementEnd(ManagementEnd { task, outcome })));
    }

    fn find_live_task(&self, nexus: NexusKey, tag: Option<u64>) -> Option<u32> {
        self.context.find_task(TaskKey { nexus, tag: tag? })
    }

    /// The volumes that a nexus reaches, each once. One that is away has no home, and nothing to be ended.
    fn nexus_volumes(&self, nexus: NexusKey) -> Vec<VolumeId> {
        let volumes = self.context.nexus(nexus).luns.iter().map(|entry| entry.volume);
        let mut volumes: Vec<_> = volumes.filter(|volume| *volume != VolumeId::UNAVAILABLE).collect();
        volumes.sort_unstable();
        volumes.dedup();
        volumes
    }

    /// The volume's home has answered a `Step::VolumeRequest`.
    pub fn handle_volume_answer(&mut self, _cx: &mut Cx<'_>, id: RequestId, result: Result<(), Refusal>) {
        match self.context.tasks.slot_of_io(IoId(id.0)) {
            Some(slot) if self.context.tasks.get(slot).ending == TaskEnding::No => {
                exec::handle_volume_answer(&mut self.context, slot, result);
            }
            Some(slot) => self.finish_terminated(slot),
            None => {
                let ExecContext { functions, tasks, steps, .. } = &mut self.context;
                // Whatever of this shard's was told to end but still waits for its own answer from home.
                functions.handle_volume_answer(id, result.is_ok(), |volume| {
                    let told = |task: &Task| task.ending != TaskEnding::No && !task.is_internal();
                    let late = tasks.iter().filter(|(_, task)| told(task) && task.volume == volume);
                    late.map(|(_, task)| task.key).collect()
                });
                functions.answer_finished(steps);
            }
        }
        self.start_ready_tasks();
    }

    /// The volume has changed: takes the new view over, ends the tasks that the change ends, and
    /// queues what must be reported.
    pub fn update_view(&mut self, volume: VolumeId, update: &ViewUpdate) {
        // A reset takes TAS back, but what it ends ends as TAS was before.
        let answered = self.context.logical_unit(volume).is_some_and(LogicalUnit::reports_task_aborted);
        if let Some(unit) = self.context.units.get_mut(volume) {
            unit.view = update.view.clone();
        }
        self.end_tasks_and_notify(volume, update, answered);
        self.start_ready_tasks();
    }

    /// Ends the tasks that a change ends, and queues what must be reported. `handle_volume_answer`: TAS.
    fn end_tasks_and_notify(&mut self, volume: VolumeId, update: &ViewUpdate, answered: bool) {
        let asker = requesting_nexus(&self.context, update);
        let asked = update.asked.filter(|(shard, _)| *shard == self.context.shard).map(|(_, id)| IoId(id.0));
        let none = update.abort == AbortScope::Nobody;
        let victims = self.context.tasks.tasks_matching_unless(none, |slot, task| {
            let requests =
                task.phase == TaskPhase::VolumeRequest && asked == Some(self.context.tasks.io_id(slot));
            let who = &self.context.nexus(task.key.nexus).nexus.identity;
            task.volume == volume && !task.is_internal() && !requests && update.aborts_tasks_of(who)
        });
        for (at, state) in self.context.nexuses.iter_mut().enumerate() {
            let Some(state) = state else { continue };
            let who = state.spec.nexus.identity.clone();
            for notice in update.notices.iter().filter(|notice| notice.is_for(&who)) {
                // Only whose commands were cleared is told so, and was not told by their status (SAM-5 §5.14).
                let spared = victims.iter().all(|(_, task)| task.nexus.0 as usize != at);
                if notice.cause == NoticeCause::TasksCleared && (spared || answered) {
                    continue;
                }
                if let Some(code) = status::unit_attention_code(notice.cause) {
                    state.raise_attention(volume, code);
                }
            }
        }
        self.terminate_tasks_with(&victims, |victim| match asker {
            Some(asker) if asker == victim.nexus => TaskEnding::Silent,
            _ if answered => TaskEnding::Aborted,
            _ => TaskEnding::Silent,
        });
    }

    /// Ends the tasks for which `which` holds, asks what there is to ask, and answers when all that is done.
    fn end_tasks_for_function(
        &mut self,
        function: TaskKey,
        which: impl Fn(&Task) -> bool,
        requests: &[(VolumeId, VolumeRequest)],
    ) {
        let victims = self.context.tasks.tasks_matching(|_, task| which(task) && !task.is_internal());
        let affected = victims.iter().map(|&(_, key)| key).collect();
        let ExecContext { functions, steps, .. } = &mut self.context;
        functions.add_function(function, affected, requests, steps);
        self.terminate_tasks(&victims, TaskEnding::Silent);
        let ExecContext { functions, steps, .. } = &mut self.context;
        functions.answer_finished(steps);
    }

    fn with_lun_entry(&mut self, key: TaskKey, unit: [u8; 8], act: impl FnOnce(&mut Self, LunEntry)) {
        let state = self.context.nexus_state(key.nexus);
        let at = match LunAddress::parse(&unit) {
            Some(LunAddress::Unit(lun)) => {
                u16::try_from(lun.number()).ok().and_then(|lun| state.lun_index(lun))
            }
            Some(LunAddress::WellKnown(_)) | None => None,
        };
        match at.and_then(|at| state.spec.luns.get(at)).copied() {
            Some(entry) => act(self, entry),
            None => self.push_management_end(key, ManagementOutcome::NoUnit),
        }
    }
}

fn outcome_if_found(found: bool) -> ManagementOutcome {
    if found { ManagementOutcome::Succeeded } else { ManagementOutcome::Complete }
}

/// The nexus whose command or function is behind a change; `None`: it is of another shard, whose nexuses have
/// no tasks here, or none of SCSI's.
fn requesting_nexus(context: &ExecContext, update: &ViewUpdate) -> Option<NexusKey> {
    let (_, id) = update.asked.filter(|(shard, _)| *shard == context.shard)?;
    if let Some(slot) = context.tasks.slot_of_io(IoId(id.0)) {
        return Some(context.tasks.get(slot).key.nexus);
    }
    context.functions.requesting_nexus(id)
}
