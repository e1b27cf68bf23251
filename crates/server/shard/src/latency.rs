//! How long commands take, by stage: histograms per volume and per connection, always on.
//!
//! All times are those of the shard's turns: what begins and ends within one turn takes 0 ns. So a read of
//! memory that is answered at once is in the first bucket of every stage but [`LatencyStage::Send`].
//!
//! Invariant: a command that read, wrote or changed a volume and was answered counts once in each stage. One that
//! still waits to be sent counts in all but the last.

/// What a command did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyClass {
    /// Read data for its host.
    Read,
    /// Wrote data of its host.
    Write,
    /// Anything else that the volume had to do: flush, unmap, compare, copy.
    Other,
}

impl LatencyClass {
    /// All of them, in the order of [`CommandLatency::class_histograms`].
    pub const ALL: [LatencyClass; 3] = [LatencyClass::Read, LatencyClass::Write, LatencyClass::Other];
}

/// A stage of a command's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyStage {
    /// From the bytes of its header coming from the socket to its start. More than a turn only where it waits in the
    /// byte stream, for instance for memory of commands before it.
    Receive,
    /// From its start until an operation of it goes to the volume: for memory, for its data from the host, for
    /// leave to have more on its way to the host.
    Wait,
    /// With the volume, but not with what stores its blocks: excluded by an operation on the same blocks, or by a
    /// change of reservations.
    Queue,
    /// With what stores the blocks: memory, file, device, or another machine.
    Backend,
    /// From its answer to the moment when the socket has taken all of it.
    Send,
}

impl LatencyStage {
    /// All of them, in the order in which a command goes through them.
    pub const ALL: [LatencyStage; 5] = [
        LatencyStage::Receive,
        LatencyStage::Wait,
        LatencyStage::Queue,
        LatencyStage::Backend,
        LatencyStage::Send,
    ];
}

/// How many buckets a [`Histogram`] has.
pub const BUCKETS: usize = 28;

/// Counts of durations: bucket 0 up to 1 µs, bucket `n` up to 2ⁿ µs, the last one all that is longer (67 s).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// By bucket.
    pub counts: [u64; BUCKETS],
    /// Of all of them together, in nanoseconds.
    pub sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; BUCKETS], sum_ns: 0 }
    }
}

impl Histogram {
    #[inline]
    fn record(&mut self, ns: u64, count: u64) {
        let micros = ns.saturating_sub(1) / 1000;
        let at = (u64::BITS - micros.leading_zeros()) as usize;
        if let Some(bucket) = self.counts.get_mut(at.min(BUCKETS - 1)) {
            *bucket += count;
        }
        self.sum_ns = self.sum_ns.saturating_add(ns.saturating_mul(count));
    }

    /// Adds what another one counted.
    pub fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// How many it counted.
    pub fn total_count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// A histogram for each stage, in the order of [`LatencyStage::ALL`].
pub type StageHistograms = [Histogram; LatencyStage::ALL.len()];

/// The latency of the commands of a connection, or of a volume on one shard.
///
/// It takes [`CommandLatency::CLASS_BYTES`] for each class, from its first command on.
#[derive(Clone, Debug, Default)]
pub struct CommandLatency {
    classes: [Option<Box<StageHistograms>>; LatencyClass::ALL.len()],
    /// Reads and writes that were carried out in the turn in which they came: in no histogram of theirs but
    /// those of [`LatencyStage::Send`], and of [`LatencyStage::Receive`] if they are `late` too.
    at_once: [u64; 2],
    /// Those of them whose header had waited in the byte stream.
    late: [u64; 2],
}

/// Times of the stages of a command before its answer, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StageTimes {
    pub(crate) receive: u64,
    pub(crate) wait: u64,
    pub(crate) queue: u64,
    pub(crate) backend: u64,
}

impl CommandLatency {
    /// Bytes on the heap for each class of commands.
    pub const CLASS_BYTES: usize = size_of::<StageHistograms>();

    #[inline]
    fn stages_mut(&mut self, class: LatencyClass) -> Option<&mut StageHistograms> {
        let slot = self.classes.get_mut(class as usize)?;
        Some(slot.get_or_insert_with(|| Box::new([Histogram::default(); LatencyStage::ALL.len()])))
    }

    #[inline]
    fn record(&mut self, class: LatencyClass, stage: LatencyStage, ns: u64, count: u64) {
        if let Some(histogram) = self.stages_mut(class).and_then(|stages| stages.get_mut(stage as usize)) {
            histogram.record(ns, count);
        }
    }

    /// A plain read or write was carried out in the turn of its start, `receive_ns` after its header had come.
    #[inline]
    pub(crate) fn count_inline(&mut self, class: LatencyClass, receive_ns: u64) {
        let at = class as usize;
        if let Some(count) = self.at_once.get_mut(at) {
            *count += 1;
        }
        if receive_ns > 0 {
            if let Some(count) = self.late.get_mut(at) {
                *count += 1;
            }
            self.record(class, LatencyStage::Receive, receive_ns, 1);
        }
    }

    /// A command is answered.
    pub(crate) fn count_answered(&mut self, class: LatencyClass, times: StageTimes) {
        self.record(class, LatencyStage::Receive, times.receive, 1);
        self.record(class, LatencyStage::Wait, times.wait, 1);
        self.record(class, LatencyStage::Queue, times.queue, 1);
        self.record(class, LatencyStage::Backend, times.backend, 1);
    }

    /// The socket has so many answers, each so long after it was given.
    #[inline]
    pub(crate) fn count_sent(&mut self, class: LatencyClass, waited_ns: u64, count: u32) {
        self.record(class, LatencyStage::Send, waited_ns, u64::from(count));
    }

    /// The histograms of a class; `None`: it has had no command.
    pub fn class_histograms(&self, class: LatencyClass) -> Option<StageHistograms> {
        let at = class as usize;
        let at_once = self.at_once.get(at).copied().unwrap_or(0);
        let late = self.late.get(at).copied().unwrap_or(0);
        let counted = self.classes.get(at).and_then(Option::as_deref);
        if at_once == 0 && counted.is_none() {
            return None;
        }
        let mut stages = counted.copied().unwrap_or_default();
        for (stage, histogram) in LatencyStage::ALL.into_iter().zip(&mut stages) {
            let more = match stage {
                LatencyStage::Receive => at_once.saturating_sub(late),
                LatencyStage::Wait | LatencyStage::Queue | LatencyStage::Backend => at_once,
                LatencyStage::Send => 0,
            };
            histogram.record(0, more);
        }
        Some(stages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_at_powers_of_two_of_a_microsecond() {
        let bucket = |ns| {
            let mut histogram = Histogram::default();
            histogram.record(ns, 1);
            histogram.counts.iter().position(|count| *count == 1).unwrap()
        };
        for (ns, at) in [
            (0, 0),
            (1_000, 0),
            (1_001, 1),
            (2_000, 1),
            (2_001, 2),
            (4_000, 2),
            (1_024_000, 10),
            (1_024_001, 11),
            (67_108_864_000, 26),
            (67_108_864_001, 27),
            (u64::MAX, 27),
        ] {
            assert_eq!(bucket(ns), at, "{ns} ns");
        }
    }

    #[test]
    fn what_was_done_at_once_is_in_the_first_bucket_of_each_stage_before_its_sending() {
        let mut latency = CommandLatency::default();
        assert!(LatencyClass::ALL.iter().all(|class| latency.class_histograms(*class).is_none()));
        latency.count_inline(LatencyClass::Read, 0);
        latency.count_inline(LatencyClass::Read, 3_000);
        latency.count_sent(LatencyClass::Read, 9_000, 2);
        let times = StageTimes { receive: 0, wait: 5_000, queue: 0, backend: 70_000 };
        latency.count_answered(LatencyClass::Read, times);
        let [receive, wait, queue, backend, send] = latency.class_histograms(LatencyClass::Read).unwrap();
        assert_eq!((receive.total_count(), receive.counts[0], receive.counts[2]), (3, 2, 1));
        assert_eq!((wait.total_count(), wait.counts[0], wait.counts[3], wait.sum_ns), (3, 2, 1, 5_000));
        assert_eq!((queue.total_count(), queue.counts[0]), (3, 3));
        assert_eq!((backend.total_count(), backend.counts[7]), (3, 1));
        assert_eq!((send.total_count(), send.counts[4], send.sum_ns), (2, 2, 18_000));
        assert!(latency.class_histograms(LatencyClass::Write).is_none());
    }

    #[test]
    fn a_connection_at_rest_holds_no_histogram() {
        assert!(size_of::<CommandLatency>() <= 64);
        assert_eq!(CommandLatency::CLASS_BYTES, 5 * (BUCKETS + 1) * 8);
    }
}
