//! When the commands of a connection entered each stage, and what their stages took together.
//!
//! Only commands with a task have an entry: those that are carried out at once need none. The table is as long
//! as the most tasks that the connection ever had at one time, which its queue or window bounds.

use buf::Time;
use stream::{LabelledResponses, Tag};
use volume::{Io, Op, OperationTimes, VolumeId};

use super::local_volumes::LocalVolumes;
use crate::latency::{CommandLatency, LatencyClass, StageTimes};

/// The latency of a connection's commands, and where its tasks stand.
#[derive(Debug)]
pub(super) struct CommandTimes {
    /// When the latest bytes came from the socket.
    pub(super) received: Time,
    pub(super) latency: CommandLatency,
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
    /// The limits of its volume and host have let its data through.
    is_paid: bool,
}

/// A command's class and volume in one number that is not 0.
fn encode_label(volume: VolumeId, class: LatencyClass) -> u64 {
    // Of the volume's number the upmost two bits are lost: its place has come to be used a billion times then, and
    // nothing is counted.
    volume.0 << 2 | (class as u64 + 1)
}

/// What [`encode_label`] was made of.
fn decode_label(label: u64) -> Option<(VolumeId, LatencyClass)> {
    let class = LatencyClass::ALL.get((label & 3).checked_sub(1)? as usize)?;
    Some((VolumeId(label >> 2), *class))
}

fn latency_class_of(io: &Io, to_peer: bool) -> LatencyClass {
    match io.op {
        Op::Read(_) if to_peer => LatencyClass::Read,
        Op::Write(..) | Op::WriteAtomic(_) => LatencyClass::Write,
        _ => LatencyClass::Other,
    }
}

impl CommandTimes {
    /// Of a connection that is here from now on.
    pub(super) fn new(now: Time) -> Self {
        CommandTimes { received: now, latency: CommandLatency::default(), tasks: Vec::new() }
    }

    /// A command becomes a task.
    pub(super) fn start_task(&mut self, now: Time, tag: Tag) {
        let at = tag.slot();
        if self.tasks.len() <= at {
            self.tasks.resize(at + 1, TaskTimes::default());
        }
        if let Some(task) = self.tasks.get_mut(at) {
            let receive = ns_between(self.received, now);
            let stages = StageTimes { receive, ..StageTimes::default() };
            *task = TaskTimes { tag: tag.to_bits(), idle_since: now, stages, ..TaskTimes::default() };
        }
    }

    fn task_mut(&mut self, tag: Tag) -> Option<&mut TaskTimes> {
        self.tasks.get_mut(tag.slot()).filter(|task| task.tag == tag.to_bits())
    }

    /// The data of a task counts for the limits of its volume and host when it is asked for.
    pub(super) fn set_paid(&mut self, tag: Tag) {
        if let Some(task) = self.task_mut(tag) {
            task.is_paid = true;
        }
    }

    /// Whether the data of a task has been counted; it is for one operation only.
    pub(super) fn take_paid(&mut self, tag: Tag) -> bool {
        self.task_mut(tag).is_some_and(|task| std::mem::take(&mut task.is_paid))
    }

    /// An operation of a task goes to its volume.
    pub(super) fn note_submit(&mut self, now: Time, tag: Tag, volume: VolumeId, io: &Io, to_peer: bool) {
        let Some(task) = self.task_mut(tag) else { return };
        if task.operations == 0 {
            task.stages.wait += ns_between(task.idle_since, now);
        }
        task.operations += 1;
        if task.label == 0 {
            task.label = encode_label(volume, latency_class_of(io, to_peer));
        }
    }

    /// An operation of a task has ended.
    pub(super) fn note_done(&mut self, now: Time, tag: Tag, times: OperationTimes) {
        let Some(task) = self.task_mut(tag) else { return };
        task.operations = task.operations.saturating_sub(1);
        task.idle_since = now;
        task.stages.queue += ns_between(times.submitted, times.begun);
        task.stages.backend += ns_between(times.begun, now);
    }

    /// A task is answered: it counts for its connection and its volume. Gives the label of its answer.
    pub(super) fn count_answer(&mut self, tag: Tag, volumes: &mut LocalVolumes) -> u64 {
        let Some(TaskTimes { label, stages, .. }) = self.task_mut(tag).map(std::mem::take) else { return 0 };
        let Some((volume, class)) = decode_label(label) else { return 0 };
        self.latency.count_answered(class, stages);
        if let Some(latency) = volumes.latency_of(volume) {
            latency.count_answered(class, stages);
        }
        label
    }

    /// How long ago the latest bytes came, in nanoseconds.
    #[inline]
    pub(super) fn receive_ns(&self, now: Time) -> u64 {
        ns_between(self.received, now)
    }

    /// A plain read or write was carried out at once, and counts for its connection. Gives the label of its answer.
    #[inline]
    pub(super) fn count_inline_answer(&mut self, now: Time, (volume, is_write): (VolumeId, bool)) -> u64 {
        let class = if is_write { LatencyClass::Write } else { LatencyClass::Read };
        self.latency.count_inline(class, self.receive_ns(now));
        encode_label(volume, class)
    }

    /// The socket has taken answers.
    #[inline]
    pub(super) fn count_written(&mut self, now: Time, run: LabelledResponses, volumes: &mut LocalVolumes) {
        let Some((volume, class)) = decode_label(run.label) else { return };
        let waited = ns_between(run.since, now);
        self.latency.count_sent(class, waited, run.count);
        if let Some(latency) = volumes.latency_of(volume) {
            latency.count_sent(class, waited, run.count);
        }
    }
}

fn ns_between(from: Time, to: Time) -> u64 {
    to.0.saturating_sub(from.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_not_0_and_is_read_back() {
        for (place, life) in [(0, 0), (1, 7), (9_999, 1), (u32::MAX, 1 << 20)] {
            for class in LatencyClass::ALL {
                let volume = VolumeId::new(place, life);
                assert_eq!(decode_label(encode_label(volume, class)), Some((volume, class)));
            }
        }
        assert_eq!(decode_label(0), None);
    }
}
