//! How many cores, links and connections a load needs, from what I/Os were measured to cost.
//!
//! The cost of a size follows from measured sizes next to it ([`predict_cost`]): a line through both neighbours, and lines
//! through those beyond them, which say how far the cost may bend in between. Sizes on the other side of a threshold (the
//! target asks for a write's data; what is in flight is more than a cache holds) tell nothing.
//! Invariant: a cost is given with its bounds, or not at all.

mod local;
mod measured;

use serde::{Deserialize, Serialize};

pub use local::{BoundsMeaning, MISS_MAX, PredictedCost, PredictionError, SPREAD_MAX, predict_cost};
use measured::IN_CAPSULE_BYTES_DEFAULT;
pub use measured::{CostSeries, cost_series};

/// What an I/O of one size was measured to cost one side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IoCost {
    /// Its bytes.
    pub bytes: f64,
    /// Bytes in flight: those of an I/O times I/Os in flight.
    pub in_flight: f64,
    /// Processor seconds for each, of each round.
    pub rounds: Vec<f64>,
    /// How full the cores of that side were, 0 to 1.
    pub fill: f64,
    /// Whether its data does not ride with its command: the target asks for it.
    pub is_asked: bool,
}

impl IoCost {
    /// Processor seconds for each: the mean of the rounds.
    pub fn seconds(&self) -> f64 {
        self.rounds.iter().sum::<f64>() / self.rounds.len().max(1) as f64
    }

    /// Highest less lowest round, as part of the mean.
    pub fn spread(&self) -> f64 {
        let (low, high) = self.bounds();
        (high - low) / self.seconds()
    }

    /// The lowest and the highest round.
    pub fn bounds(&self) -> (f64, f64) {
        self.rounds
            .iter()
            .fold((f64::INFINITY, 0.0), |(low, high), one| (f64::min(low, *one), f64::max(high, *one)))
    }

    /// Whether a target asks for the data of a write of so many bytes of which so many ride with their command.
    pub fn needs_r2t(rw: &str, bytes: f64, rides: f64) -> bool {
        rw.contains("write") && bytes > rides
    }
}

/// Costs of each size at the fill that is planned: between two fills that were measured, in proportion; else those of
/// the nearest.
pub fn costs_at_fill(costs: &[IoCost], fill: f64) -> Vec<IoCost> {
    let mut sizes: Vec<f64> = costs.iter().map(|cost| cost.bytes).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let of_size = |bytes: f64| {
        let mine = || costs.iter().filter(move |cost| cost.bytes == bytes);
        let below = mine().filter(|cost| cost.fill <= fill).max_by(|a, b| a.fill.total_cmp(&b.fill));
        let above = mine().filter(|cost| cost.fill > fill).min_by(|a, b| a.fill.total_cmp(&b.fill));
        match (below, above) {
            (Some(below), Some(above)) => {
                let part = (fill - below.fill) / (above.fill - below.fill);
                let rounds = below.rounds.iter().zip(&above.rounds);
                let rounds = rounds.map(|(one, two)| one + (two - one) * part).collect();
                Some(IoCost { rounds, fill, ..above.clone() })
            }
            (one, other) => one.or(other).cloned(),
        }
    };
    sizes.into_iter().filter_map(of_size).collect()
}

/// What leaving a size out shows.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOutPrediction {
    /// What was measured, and not used.
    pub measured: IoCost,
    /// What all others predict, or why they do not.
    pub predicted: Result<PredictedCost, PredictionError>,
}

impl HeldOutPrediction {
    /// How far the prediction is off, as part of what was measured: above 0 it is too high.
    pub fn relative_error(&self) -> Option<f64> {
        self.predicted.ok().map(|predicted| predicted.seconds / self.measured.seconds() - 1.0)
    }

    /// Whether it is off by no more than a prediction may be.
    pub fn is_within_tolerance(&self) -> bool {
        self.relative_error().is_some_and(|part| part.abs() <= MISS_MAX)
    }
}

/// Leaves each size out in turn and predicts it from all others. A size whose own rounds differ too much is no measure of a
/// prediction, and is refused as such.
pub fn leave_one_out(costs: &[IoCost], cache: Option<f64>) -> Vec<HeldOutPrediction> {
    let each = costs.iter().map(|measured| {
        let left: Vec<IoCost> = costs.iter().filter(|cost| cost.bytes != measured.bytes).cloned().collect();
        let noise = local::noise(measured);
        let predicted = noise.map_or_else(|| predict_cost(&left, measured, cache), Err);
        HeldOutPrediction { measured: measured.clone(), predicted }
    });
    each.collect()
}

/// Bytes that an I/O has beside its payload in the payload's direction: headers of its PDUs, and the
/// command or the answer. iSCSI: 48 bytes each (RFC 7143, 11.1), data in segments of at most 256 KiB.
/// NVMe/TCP: a command capsule of 72 bytes, else 24 each; writes up to 8 KiB ride in their capsule. The bare responder
/// has a header of 48 bytes.
pub fn header_bytes(protocol: &str, is_write: bool, bytes: f64) -> f64 {
    const DATA_SEGMENT_BYTES: f64 = 262_144.0;
    let segments = (bytes / DATA_SEGMENT_BYTES).ceil().max(1.0);
    match (protocol, is_write) {
        ("nvme-tcp", true) if bytes <= IN_CAPSULE_BYTES_DEFAULT => 72.0,
        ("nvme-tcp", true) => 72.0 + 24.0 * segments,
        ("nvme-tcp", false) => 24.0 * segments + 24.0,
        ("iscsi", _) => 48.0 * segments + 48.0,
        ("bare", _) => 48.0,
        _ => 0.0,
    }
}

/// A load that is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedLoad {
    /// I/Os per second.
    pub iops: f64,
    /// Bytes of each.
    pub bytes: f64,
    /// Bits per second of one link, as it is sold: 100e9.
    pub link: f64,
    /// Bytes of an Ethernet frame's payload: 1500 or 9000.
    pub mtu: f64,
    /// Bytes of protocol headers for each I/O, both ways together.
    pub headers: f64,
    /// How full a core may be, 0 to 1.
    pub fill: f64,
    /// I/Os per second that one connection alone was measured to carry; `None`: none was measured alone.
    pub per_connection: Option<f64>,
}

/// What it needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadNeeds {
    /// Cores of the side that the cost is of.
    pub cores: f64,
    /// By the lower bound of the cost.
    pub cores_least: f64,
    /// By its upper bound.
    pub cores_most: f64,
    /// Bits per second on the wire, in the direction of the payload.
    pub wire: f64,
    /// Links.
    pub links: u32,
    /// Most I/Os per second that one link carries.
    pub line_rate: f64,
    /// Connections; `None`: what one carries was not measured.
    pub connections: Option<u32>,
}

/// Bytes that each frame has beside TCP's payload: Ethernet with preamble, gap and checksum (38), IPv4
/// (20), TCP with timestamps (32); the last two are part of the MTU.
const FRAME_OVERHEAD_BYTES: f64 = 38.0;
const TCP_IP_HEADER_BYTES: f64 = 52.0;

impl PlannedLoad {
    /// Bits of an I/O on the wire.
    fn wire_bits_per_io(&self) -> f64 {
        8.0 * (self.bytes + self.headers) * (self.mtu + FRAME_OVERHEAD_BYTES)
            / (self.mtu - TCP_IP_HEADER_BYTES)
    }

    /// Most I/Os per second that one link carries.
    pub fn line_rate_iops(&self) -> f64 {
        self.link / self.wire_bits_per_io()
    }

    /// What the load needs of a side whose I/Os cost so much.
    pub fn needs(&self, cost: &PredictedCost) -> LoadNeeds {
        let cores = |seconds: f64| self.iops * seconds / self.fill;
        let wire = self.iops * self.wire_bits_per_io();
        LoadNeeds {
            cores: cores(cost.seconds),
            cores_least: cores(cost.low),
            cores_most: cores(cost.high),
            wire,
            links: (wire / self.link).ceil() as u32,
            line_rate: self.line_rate_iops(),
            connections: self.per_connection.map(|rate| (self.iops / rate).ceil() as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Five rounds of a size, a tenth of a percent apart.
    pub(super) fn cost(bytes: f64, seconds: f64) -> IoCost {
        let rounds = [0.999, 1.0, 1.001, 1.0, 1.0].map(|part| part * seconds).to_vec();
        IoCost { bytes, in_flight: 32.0 * bytes, rounds, fill: 1.0, is_asked: false }
    }

    #[test]
    fn a_load_needs_what_arithmetic_says() {
        let cost = PredictedCost {
            seconds: 1e-6,
            low: 0.9e-6,
            high: 1.1e-6,
            chance: BoundsMeaning::Range(2),
            fill: 1.0,
        };
        let load = PlannedLoad {
            iops: 2.9e6,
            bytes: 4096.0,
            link: 100e9,
            mtu: 9000.0,
            headers: 96.0,
            fill: 1.0,
            per_connection: Some(100_000.0),
        };
        let need = load.needs(&cost);
        assert!((need.cores - 2.9).abs() < 1e-9 && (need.cores_most - 3.19).abs() < 1e-9);
        // 4,192 bytes in frames of 8,948: 98.2 Gb/s; one link just carries it.
        assert_eq!((need.links, need.connections), (1, Some(29)));
        assert!((need.wire / 98.2e9 - 1.0).abs() < 0.001, "{}", need.wire);
        assert!(need.line_rate > 2.9e6);
        assert_eq!(
            PlannedLoad { per_connection: None, ..load }.needs(&cost).connections,
            None,
            "nothing is divided by 18"
        );
        assert_eq!(
            PlannedLoad { mtu: 1500.0, ..load }.needs(&cost).links,
            2,
            "smaller frames do not fit one link"
        );
    }

    /// A core that is half full does its work for other costs than one that is saturated.
    #[test]
    fn costs_are_those_of_the_planned_fill() {
        let full = |fill: f64, seconds: f64| IoCost { fill, ..cost(4096.0, seconds) };
        let costs = [full(0.5, 2e-6), full(1.0, 1e-6), IoCost { fill: 1.0, ..cost(8192.0, 3e-6) }];
        let at = |fill: f64| costs_at_fill(&costs, fill).iter().map(IoCost::seconds).collect::<Vec<_>>();
        let near = |found: Vec<f64>, want: [f64; 2]| {
            assert!(found.iter().zip(want).all(|(one, other)| (one / other - 1.0).abs() < 1e-9), "{found:?}");
        };
        near(at(0.8), [1.4e-6, 3e-6]);
        near(at(0.2), [2e-6, 3e-6]);
        near(at(1.0), [1e-6, 3e-6]);
    }

    #[test]
    fn sizes_that_were_left_out_are_predicted_or_refused() {
        let line = |bytes: f64| cost(bytes, 1e-6 + bytes * 2e-10);
        let costs = [4096.0, 16_384.0, 65_536.0, 131_072.0, 262_144.0].map(line);
        let found = leave_one_out(&costs, None);
        let said: Vec<bool> = found.iter().map(|miss| miss.predicted.is_ok()).collect();
        assert_eq!(said, [false, true, true, true, false], "nothing is said beyond what was measured");
        assert!(
            found.iter().filter_map(HeldOutPrediction::relative_error).all(|part| part.abs() < 0.01),
            "{found:?}"
        );
        assert!(found[1].is_within_tolerance() && !found[0].is_within_tolerance());
        // Rounds that differ by a fifth neither predict nor are predicted.
        let mut noisy = costs.clone();
        noisy[2].rounds[0] *= 1.2;
        let found = leave_one_out(&noisy, None);
        assert!(found.iter().take(4).all(|miss| miss.predicted.is_err()), "{found:?}");
        assert!(matches!(found[2].predicted, Err(PredictionError::Noisy(_))), "{found:?}");
    }

    #[test]
    fn headers_are_those_of_the_standards() {
        assert_eq!(header_bytes("iscsi", false, 4096.0), 96.0);
        assert_eq!(header_bytes("iscsi", true, 524_288.0), 144.0);
        assert_eq!(header_bytes("nvme-tcp", true, 4096.0), 72.0);
        assert_eq!(header_bytes("nvme-tcp", true, 65_536.0), 96.0);
        assert_eq!(header_bytes("nvme-tcp", false, 4096.0), 48.0);
    }
}
