//! Latency of commands, from the listings of all shards.

use control::report::{LatencyReport, StageReport};
use shard::{CommandClass, Latency, Stage, StageHistograms};

/// The word of a class.
pub fn class_word(class: CommandClass) -> &'static str {
    match class {
        CommandClass::Read => "read",
        CommandClass::Write => "write",
        CommandClass::Other => "other",
    }
}

/// The word of a stage.
pub fn stage_word(stage: Stage) -> &'static str {
    match stage {
        Stage::Receive => "receive",
        Stage::Wait => "wait",
        Stage::Queue => "queue",
        Stage::Backend => "backend",
        Stage::Send => "send",
    }
}

/// The histograms of a class over several shards or connections; `None`: it had no command.
pub fn sum<'a>(all: impl IntoIterator<Item = &'a Latency>, class: CommandClass) -> Option<StageHistograms> {
    let mut found: Option<StageHistograms> = None;
    for stages in all.into_iter().filter_map(|latency| latency.class(class)) {
        match &mut found {
            Some(sum) => sum.iter_mut().zip(&stages).for_each(|(sum, more)| sum.merge(more)),
            None => found = Some(stages),
        }
    }
    found
}

/// The classes that had commands.
pub fn report<'a>(all: impl IntoIterator<Item = &'a Latency> + Clone) -> Vec<LatencyReport> {
    let of = |class| {
        let stages = sum(all.clone(), class)?;
        let stage = |(stage, histogram): (Stage, &shard::Histogram)| {
            StageReport::new(stage_word(stage), &histogram.counts, histogram.sum_ns)
        };
        let stages = Stage::ALL.into_iter().zip(&stages).map(stage).collect();
        Some(LatencyReport { class: class_word(class).to_owned(), stages })
    };
    CommandClass::ALL.into_iter().filter_map(of).collect()
}
