//! Latency of commands, from the listings of all shards.

use control::report::{LatencyReport, StageReport};
use shard::{CommandLatency, LatencyClass, LatencyStage, StageHistograms};

/// The word of a class.
pub fn class_word(class: LatencyClass) -> &'static str {
    match class {
        LatencyClass::Read => "read",
        LatencyClass::Write => "write",
        LatencyClass::Other => "other",
    }
}

/// The word of a stage.
pub fn stage_word(stage: LatencyStage) -> &'static str {
    match stage {
        LatencyStage::Receive => "receive",
        LatencyStage::Wait => "wait",
        LatencyStage::Queue => "queue",
        LatencyStage::Backend => "backend",
        LatencyStage::Send => "send",
    }
}

/// The histograms of a class over several shards or connections; `None`: it had no command.
pub fn merge_histograms<'a>(
    all: impl IntoIterator<Item = &'a CommandLatency>,
    class: LatencyClass,
) -> Option<StageHistograms> {
    let mut found: Option<StageHistograms> = None;
    for stages in all.into_iter().filter_map(|latency| latency.class_histograms(class)) {
        match &mut found {
            Some(sum) => sum.iter_mut().zip(&stages).for_each(|(sum, more)| sum.merge(more)),
            None => found = Some(stages),
        }
    }
    found
}

/// The classes that had commands.
pub fn latency_reports<'a>(all: impl IntoIterator<Item = &'a CommandLatency> + Clone) -> Vec<LatencyReport> {
    let of = |class| {
        let stages = merge_histograms(all.clone(), class)?;
        let stage = |(stage, histogram): (LatencyStage, &shard::Histogram)| {
            StageReport::new(stage_word(stage), &histogram.counts, histogram.sum_ns)
        };
        let stages = LatencyStage::ALL.into_iter().zip(&stages).map(stage).collect();
        Some(LatencyReport { class: class_word(class).to_owned(), stages })
    };
    LatencyClass::ALL.into_iter().filter_map(of).collect()
}
