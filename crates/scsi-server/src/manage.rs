//! Task management (SAM-5 §7): a function is answered only when every task that it affects has ended.

use scsi::sense::Additional;
use scsi::sense::Sense;
use volume::{Adoption, AskId, Refusal, VolumeId};

use crate::exec::lun;
use crate::server::Server;
use crate::status;
use crate::step::{Managed, Management, NexusKey, Step, TaskKey};

/// A function that waits for tasks to end.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The function's own task.
    pub(crate) function: TaskKey,
    /// What it waits for.
    affected: Vec<TaskKey>,
}

impl Server {
    /// A task management function has come; [`Step::Managed`] follows.
    pub fn manage(&mut self, key: TaskKey, what: Management) {
        let outcome = match what {
            Management::AbortTask { tag } => return self.abort_task(key, tag),
            Management::AbortTaskSet(unit) => self.on_unit(key, unit, |server, volume| {
                server.end_tasks(key, |task, on| task.nexus == key.nexus && on == volume)
            }),
            Management::ClearTaskSet(unit) => self.on_unit(key, unit, |server, volume| {
                server.tell_others(key.nexus, volume, Sense::COMMANDS_CLEARED.code);
                server.end_tasks(key, |_, on| on == volume)
            }),
            Management::LogicalUnitReset(unit) => self.on_unit(key, unit, |server, volume| {
                server.tell_all(volume, Sense::BUS_DEVICE_RESET.code);
                server.end_tasks(key, |_, on| on == volume)
            }),
            Management::ClearAca(unit) => self.on_unit(key, unit, |_, _| Some(Managed::Complete)),
            Management::TargetReset => {
                let volumes: Vec<_> = self.nexus(key.nexus).luns.iter().map(|entry| entry.volume).collect();
                for &volume in &volumes {
                    self.tell_all(volume, Sense::BUS_DEVICE_RESET.code);
                }
                self.end_tasks(key, |_, on| volumes.contains(&on))
            }
            Management::NexusReset => {
                for pending in &mut self.state_mut(key.nexus).attentions {
                    pending.raise(Sense::IT_NEXUS_LOSS.code);
                }
                self.end_tasks(key, |task, _| task.nexus == key.nexus)
            }
            Management::QueryTask { tag } => {
                let live = tag.and_then(|tag| self.find(TaskKey { tag, ..key })).is_some();
                Some(if live { Managed::Succeeded } else { Managed::Complete })
            }
            Management::QueryTaskSet(unit) => self.on_unit(key, unit, |server, volume| {
                let live =
                    server.tasks.iter().any(|(_, task)| task.key.nexus == key.nexus && task.volume == volume);
                Some(if live { Managed::Succeeded } else { Managed::Complete })
            }),
            Management::QueryAsyncEvent(unit) => match self.find_unit(key.nexus, unit) {
                Some(at) => {
                    let waits = self.state(key.nexus).attentions[at].first().is_some();
                    Some(if waits { Managed::Succeeded } else { Managed::Complete })
                }
                None => Some(Managed::NoUnit),
            },
        };
        if let Some(outcome) = outcome {
            self.steps.push_back(Step::Managed { task: key, outcome });
        }
    }

    fn abort_task(&mut self, key: TaskKey, tag: Option<u64>) {
        let found = tag.and_then(|tag| self.find(TaskKey { tag, ..key }));
        let outcome = match found {
            Some(slot) => {
                let victim = self.tasks.get(slot).key;
                self.end_tasks(key, |task, _| task == victim)
            }
            None => Some(Managed::NoTask),
        };
        if let Some(outcome) = outcome {
            self.steps.push_back(Step::Managed { task: key, outcome });
        }
    }

    fn find_unit(&self, nexus: NexusKey, unit: [u8; 8]) -> Option<usize> {
        self.state(nexus).find(lun(unit)?)
    }

    fn on_unit(
        &mut self,
        key: TaskKey,
        unit: [u8; 8],
        act: impl FnOnce(&mut Self, VolumeId) -> Option<Managed>,
    ) -> Option<Managed> {
        match self.find_unit(key.nexus, unit) {
            Some(at) => {
                let volume = self.nexus(key.nexus).luns[at].volume;
                act(self, volume)
            }
            None => Some(Managed::NoUnit),
        }
    }

    /// Aborts the tasks that `which` names. `None`: the answer follows when they have ended.
    fn end_tasks(&mut self, function: TaskKey, which: impl Fn(TaskKey, VolumeId) -> bool) -> Option<Managed> {
        let victims: Vec<(u32, TaskKey)> = self
            .tasks
            .iter()
            .filter(|(_, task)| which(task.key, task.volume))
            .map(|(slot, task)| (slot, task.key))
            .collect();
        if victims.is_empty() {
            return Some(Managed::Complete);
        }
        let affected = victims.iter().map(|&(_, key)| key).collect();
        self.managing.push(Pending { function, affected });
        for (slot, _) in victims {
            self.abort_slot(slot);
        }
        None
    }

    fn tell_all(&mut self, volume: VolumeId, code: Additional) {
        for state in self.nexuses.iter_mut().flatten() {
            for (entry, pending) in state.spec.luns.iter().zip(&mut state.attentions) {
                if entry.volume == volume {
                    pending.raise(code);
                }
            }
        }
    }

    fn tell_others(&mut self, but: NexusKey, volume: VolumeId, code: Additional) {
        let affected: Vec<NexusKey> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.volume == volume && task.key.nexus != but)
            .map(|(_, task)| task.key.nexus)
            .collect();
        for nexus in affected {
            let state = self.state_mut(nexus);
            for (entry, pending) in state.spec.luns.iter().zip(&mut state.attentions) {
                if entry.volume == volume {
                    pending.raise(code);
                }
            }
        }
    }
}

/// A task has ended: functions that waited for it may be answered.
pub(crate) fn ended(server: &mut Server, task: TaskKey) {
    if server.managing.is_empty() {
        return;
    }
    let steps = &mut server.steps;
    server.managing.retain_mut(|pending| {
        pending.affected.retain(|&key| key != task);
        let waits = !pending.affected.is_empty();
        if !waits {
            steps.push_back(Step::Managed { task: pending.function, outcome: Managed::Complete });
        }
        waits
    });
}

/// The volume's home has answered a function.
pub(crate) fn answered(_server: &mut Server, _id: AskId, _result: Result<(), Refusal>) {}

/// A change of a volume: ends the tasks that it ends, and queues what must be reported.
pub(crate) fn adopt(server: &mut Server, volume: VolumeId, adoption: &Adoption) {
    for state in server.nexuses.iter_mut().flatten() {
        for notice in adoption.notices.iter().filter(|notice| notice.is_for(&state.spec.nexus.identity)) {
            let code = status::attention(notice.cause);
            for (entry, pending) in state.spec.luns.iter().zip(&mut state.attentions) {
                if entry.volume == volume {
                    pending.raise(code);
                }
            }
        }
    }
    let victims: Vec<u32> = server
        .tasks
        .iter()
        .filter(|(_, task)| task.volume == volume)
        .filter(|(_, task)| adoption.aborts(&server.nexus(task.key.nexus).nexus.identity))
        .map(|(slot, _)| slot)
        .collect();
    for slot in victims {
        server.abort_slot(slot);
    }
}
