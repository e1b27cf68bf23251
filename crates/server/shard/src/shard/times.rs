//! When the commands of a connection entered each stage, and what their stages took together.
//!
//! Only commands with a task have an entry: those that are carried out at once need none. The table is as long
//! as the most tasks that the connection ever had at one time, which its queue or window bounds.

use buf::Time;
use stream::{AnswerRun, Tag};
use volume::{Io, Op, OperationTimes, VolumeId};

use super::volumes::LocalVolumes;
use crate::latency::{CommandClass, Latency, StageTimes};

/// The latency of a connection's commands, and where its tasks stand.
#[derive(Debug)]
pub(super) struct CommandTimes {
    /// When the latest bytes came from the socket.
    pub(super) received: Time,
    pub(super) latency: Latency,
    /// By the slot of a command's tag.
    tasks: Vec<TaskTimes>,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, Default)]
struct TaskTimes {
    /// The command that has the slot.
    tag: u64,
    /// Since when no operation of it is with its volume.
    idle_since: Time,
    /// How many are.
    operations: u32,
    /// What it does to which volume; 0 until it has begun an operation.
    label: u64,
    stages: StageTimes,
}

/// A command's class and volume in one number that is not 0.
fn label(volume: VolumeId, class: CommandClass) -> u64 {
    // Of the volume's number the upmost two bits are lost: its place has come to be used a billion times then, and
    // nothing is counted.
    volume.0 << 2 | (class as u64 + 1)
}

/// What [`label`] was made of.
fn of_label(label: u64) -> Option<(VolumeId, CommandClass)> {
    let class = CommandClass::ALL.get((label & 3).checked_sub(1)? as usize)?;
    Some((VolumeId(label >> 2), *class))
}

fn class_of(io: &Io, to_peer: bool) -> CommandClass {
    match io.op {
        Op::Read(_) if to_peer => CommandClass::Read,
        Op::Write(..) | Op::WriteAtomic(_) => CommandClass::Write,
        _ => CommandClass::Other,
    }
}

impl CommandTimes {
    /// Of a connection that is here from now on.
    pub(super) fn new(now: Time) -> Self {
        CommandTimes { received: now, latency: Latency::default(), tasks: Vec::new() }
    }

    /// A command becomes a task.
    pub(super) fn start(&mut self, now: Time, tag: Tag) {
        let at = tag.slot();
        if self.tasks.len() <= at {
            self.tasks.resize(at + 1, TaskTimes::default());
        }
        if let Some(task) = self.tasks.get_mut(at) {
            let receive = nanoseconds(self.received, now);
            let stages = StageTimes { receive, ..StageTimes::default() };
            *task = TaskTimes { tag: tag.to_bits(), idle_since: now, operations: 0, label: 0, stages };
        }
    }

    fn task(&mut self, tag: Tag) -> Option<&mut TaskTimes> {
        self.tasks.get_mut(tag.slot()).filter(|task| task.tag == tag.to_bits())
    }

    /// An operation of a task goes to its volume.
    pub(super) fn submit(&mut self, now: Time, tag: Tag, volume: VolumeId, io: &Io, to_peer: bool) {
        let Some(task) = self.task(tag) else { return };
        if task.operations == 0 {
            task.stages.wait += nanoseconds(task.idle_since, now);
        }
        task.operations += 1;
        if task.label == 0 {
            task.label = label(volume, class_of(io, to_peer));
        }
    }

    /// An operation of a task has ended.
    pub(super) fn done(&mut self, now: Time, tag: Tag, times: OperationTimes) {
        let Some(task) = self.task(tag) else { return };
        task.operations = task.operations.saturating_sub(1);
        task.idle_since = now;
        task.stages.queue += nanoseconds(times.submitted, times.begun);
        task.stages.backend += nanoseconds(times.begun, now);
    }

    /// A task is answered: it counts for its connection and its volume. Gives the label of its answer.
    pub(super) fn answer(&mut self, tag: Tag, volumes: &mut LocalVolumes) -> u64 {
        let Some(TaskTimes { label, stages, .. }) = self.task(tag).map(std::mem::take) else { return 0 };
        let Some((volume, class)) = of_label(label) else { return 0 };
        self.latency.count_answered(class, stages);
        if let Some(latency) = volumes.latency_of(volume) {
            latency.count_answered(class, stages);
        }
        label
    }

    /// A plain read or write was carried out at once, and counts for its connection and its volume. Gives the label
    /// of its answer.
    #[inline]
    pub(super) fn answer_at_once(
        &mut self,
        now: Time,
        (volume, is_write): (VolumeId, bool),
        volumes: &mut LocalVolumes,
    ) -> u64 {
        let class = if is_write { CommandClass::Write } else { CommandClass::Read };
        let receive = nanoseconds(self.received, now);
        self.latency.count_at_once(class, receive);
        if let Some(latency) = volumes.latency_of(volume) {
            latency.count_at_once(class, receive);
        }
        label(volume, class)
    }

    /// The socket has taken answers.
    #[inline]
    pub(super) fn sent(&mut self, now: Time, run: AnswerRun, volumes: &mut LocalVolumes) {
        let Some((volume, class)) = of_label(run.label) else { return };
        let waited = nanoseconds(run.since, now);
        self.latency.count_sent(class, waited, run.count);
        if let Some(latency) = volumes.latency_of(volume) {
            latency.count_sent(class, waited, run.count);
        }
    }
}

fn nanoseconds(from: Time, to: Time) -> u64 {
    to.0.saturating_sub(from.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_not_0_and_is_read_back() {
        for (place, life) in [(0, 0), (1, 7), (9_999, 1), (u32::MAX, 1 << 20)] {
            for class in CommandClass::ALL {
                let volume = VolumeId::new(place, life);
                assert_eq!(of_label(label(volume, class)), Some((volume, class)));
            }
        }
        assert_eq!(of_label(0), None);
    }
}
