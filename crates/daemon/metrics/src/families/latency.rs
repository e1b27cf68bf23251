//! Histograms of latency, by volume and by session.

use crate::exposition::{Exposition, Labels, MetricKind};
use control::report::{LatencyReport, ObservationReport, StageReport};

use super::{ns_to_seconds, session_labels};

/// Histograms are given of so many volumes, and of so many sessions, that had commands: a histogram has a hundred
/// lines. `blockwire_latency_omitted` says of how many they were left out.
pub const HISTOGRAMS_MAX: usize = 1000;

/// Buckets of histograms end at each second of the ends that are counted: powers of four of a microsecond.
const BUCKET_BOUNDS: std::ops::RangeInclusive<u32> = 0..=13;

pub(super) fn write_latency(out: &mut Exposition, observed: &ObservationReport) {
    fn nonempty_latency(latency: Option<&Vec<LatencyReport>>) -> Option<&Vec<LatencyReport>> {
        latency.filter(|classes| !classes.is_empty())
    }
    let help = "Time of commands by stage: receive, wait, queue, backend, send.";
    out.begin_family("blockwire_volume_latency_seconds", MetricKind::Histogram, help);
    let volumes =
        observed.volumes.iter().filter_map(|one| Some((one, nonempty_latency(one.latency.as_ref())?)));
    let mut left_out = [0_usize; 2];
    for (at, (volume, classes)) in volumes.enumerate() {
        if at >= HISTOGRAMS_MAX {
            left_out[0] += 1;
            continue;
        }
        classes.iter().for_each(|class| write_histograms(out, &[("volume", &volume.name)], class));
    }
    out.begin_family("blockwire_session_latency_seconds", MetricKind::Histogram, help);
    let sessions =
        observed.sessions.iter().filter_map(|one| Some((one, nonempty_latency(one.latency.as_ref())?)));
    for (at, (session, classes)) in sessions.enumerate() {
        if at >= HISTOGRAMS_MAX {
            left_out[1] += 1;
            continue;
        }
        let id = session.id.to_string();
        classes.iter().for_each(|class| write_histograms(out, &session_labels(session, &id), class));
    }
    let help = "Volumes and sessions whose latency is left out here: there are too many.";
    out.begin_family("blockwire_latency_omitted", MetricKind::Gauge, help);
    let [volumes, sessions] = left_out;
    out.push_sample(&[("of", "volume")], volumes);
    out.push_sample(&[("of", "session")], sessions);
}

fn write_histograms(out: &mut Exposition, who: Labels<'_>, class: &LatencyReport) {
    for stage in &class.stages {
        let mut labels = who.to_vec();
        labels.push(("command", &class.class));
        labels.push(("stage", &stage.stage));
        out.push_histogram(&labels, cumulative_buckets(stage), stage.commands, ns_to_seconds(stage.sum_ns));
    }
}

/// How many took no longer than each bound, in seconds.
fn cumulative_buckets(stage: &StageReport) -> impl Iterator<Item = (f64, u64)> + '_ {
    BUCKET_BOUNDS.map(|power| {
        let micros = 1_u64 << (2 * power);
        let within = stage.buckets.iter().filter(|bucket| bucket.up_to_us.is_some_and(|end| end <= micros));
        (micros as f64 / 1e6, within.map(|bucket| bucket.commands).sum())
    })
}
