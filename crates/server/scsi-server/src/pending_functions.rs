//! Task management functions that wait for the tasks they end.

use std::collections::VecDeque;

use volume::{IdSpace, RequestId, VolumeId, VolumeRequest};

use crate::step::{DeviceStep, ManagementEnd, ManagementOutcome, NexusKey, Step, TaskKey};

/// Requests of functions have numbers from here on; those of tasks are below.
const FUNCTION_REQUEST_BASE: u64 = 1 << 61;

/// A function that waits for tasks to end.
#[derive(Debug)]
struct PendingFunction {
    /// The function's own task.
    function: TaskKey,
    /// The tasks that it waits for.
    affected: Vec<TaskKey>,
    /// The answers that it waits for.
    requests: Vec<(RequestId, VolumeId)>,
    outcome: ManagementOutcome,
}

/// The functions that wait.
#[derive(Debug, Default)]
pub(crate) struct PendingFunctions {
    pending: Vec<PendingFunction>,
    /// How often functions have asked so far.
    asked: u64,
}

impl PendingFunctions {
    /// A function waits for these tasks, and for the answers to what it asks of volumes.
    pub(crate) fn add_function(
        &mut self,
        function: TaskKey,
        affected: Vec<TaskKey>,
        requests: &[(VolumeId, VolumeRequest)],
        steps: &mut VecDeque<Step>,
    ) {
        let mut pending = PendingFunction {
            function,
            affected,
            requests: Vec::new(),
            outcome: ManagementOutcome::Complete,
        };
        for (volume, request) in requests {
            self.asked += 1;
            let id = RequestId::in_space(IdSpace::Scsi, FUNCTION_REQUEST_BASE | self.asked);
            pending.requests.push((id, *volume));
            steps.push_back(Step::VolumeRequest { volume: *volume, id, request: request.clone() });
        }
        self.pending.push(pending);
    }

    /// A task has ended: functions that waited for it may be answered.
    pub(crate) fn note_task_ended(&mut self, task: TaskKey, steps: &mut VecDeque<Step>) {
        if self.pending.is_empty() {
            return;
        }
        for pending in &mut self.pending {
            pending.affected.retain(|&key| key != task);
        }
        self.answer_finished(steps);
    }

    /// A volume's home has answered. `late` gives the tasks of the volume that were told to end and have not yet.
    pub(crate) fn handle_volume_answer(
        &mut self,
        id: RequestId,
        well: bool,
        late: impl FnOnce(VolumeId) -> Vec<TaskKey>,
    ) {
        let Some(pending) = self.pending.iter_mut().find(|pending| pending.has_request(id)) else { return };
        let volume = pending.requests.iter().find(|(asked, _)| *asked == id).map(|(_, volume)| *volume);
        pending.requests.retain(|(asked, _)| *asked != id);
        if !well {
            pending.outcome = ManagementOutcome::Rejected;
        }
        pending.affected.extend(volume.map(late).unwrap_or_default());
    }

    /// Answers the functions that wait for nothing more.
    pub(crate) fn answer_finished(&mut self, steps: &mut VecDeque<Step>) {
        self.pending.retain(|pending| {
            let waits = !pending.affected.is_empty() || !pending.requests.is_empty();
            if !waits {
                let end = ManagementEnd { task: pending.function, outcome: pending.outcome };
                steps.push_back(Step::Other(DeviceStep::ManagementEnd(end)));
            }
            waits
        });
    }

    /// Whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// A function is not waited for any more.
    pub(crate) fn remove_function(&mut self, function: TaskKey) {
        self.pending.retain(|pending| pending.function != function);
    }

    /// A nexus is gone, with its functions.
    pub(crate) fn remove_functions_of_nexus(&mut self, nexus: NexusKey) {
        self.pending.retain(|pending| pending.function.nexus != nexus);
    }

    /// The nexus whose function has asked this.
    pub(crate) fn requesting_nexus(&self, id: RequestId) -> Option<NexusKey> {
        let pending = self.pending.iter().find(|pending| pending.has_request(id));
        pending.map(|pending| pending.function.nexus)
    }
}

impl PendingFunction {
    fn has_request(&self, id: RequestId) -> bool {
        self.requests.iter().any(|(asked, _)| *asked == id)
    }
}
