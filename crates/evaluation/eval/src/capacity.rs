//! How many cores, links and connections a load needs, from measured costs of I/Os.
//!
//! The model: an I/O costs a fixed time and a time per byte, and a write whose data the target has to request
//! (R2T) an additional fixed time. They are fitted by least squares to measured costs, none below zero, each
//! point weighted by the inverse of its cost, so that small I/Os count as much as large ones. The error is
//! the residual of the fit plus the noise of the points. Invariant: no figure is given without a fit of at
//! least two sizes.

mod measured;
mod solve;

use serde::{Deserialize, Serialize};

pub use measured::{Series, series};

/// What an I/O was measured to cost one side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Its bytes.
    pub bytes: f64,
    /// Processor seconds for each.
    pub seconds: f64,
    /// Spread of the runs: highest less lowest, as part of the median.
    pub noise: f64,
    /// Whether its data does not ride with its command: the target asks for it.
    pub is_asked: bool,
}

/// What an I/O costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// Processor seconds for each I/O.
    pub per_io: f64,
    /// Processor seconds for each byte.
    pub per_byte: f64,
    /// Processor seconds more for each I/O whose data is asked for.
    pub per_ask: f64,
    /// How far a prediction may be off, as part of it.
    pub error: f64,
}

/// Why there is no fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Fewer than two different sizes were measured.
    OneSize,
    /// Fewer than four were, so that without one of them no fit could tell how far it is off.
    FewSizes,
    /// A cost or a size is not above zero.
    NotPositive,
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Unfit::OneSize => "the run has one I/O size only: measure at least two, for example 4k and 128k",
            Unfit::FewSizes => "to leave a size out and predict it takes four sizes, or five if the data of some writes rides with their command \
                 and that of others is asked for: one more than terms are fitted, so that the fit knows its own error",
            Unfit::NotPositive => "a cost in the run is not above zero: it was too short to be measured",
        })
    }
}

impl std::error::Error for Unfit {}

impl Fit {
    /// Fits what was measured.
    pub fn of(costs: &[Cost]) -> Result<Fit, Unfit> {
        if costs.iter().any(|cost| cost.seconds.is_nan() || cost.seconds <= 0.0 || cost.bytes <= 0.0) {
            return Err(Unfit::NotPositive);
        }
        let first = costs.first().ok_or(Unfit::OneSize)?.bytes;
        if costs.iter().all(|cost| cost.bytes == first) {
            return Err(Unfit::OneSize);
        }
        let (per_io, per_byte, per_ask) = solve::least(costs, has_ask(costs));
        let mut fit = Fit { per_io, per_byte, per_ask, error: 0.0 };
        let miss = |cost: &Cost| (fit.cost(cost.bytes, cost.is_asked) / cost.seconds - 1.0).abs();
        let worst = costs.iter().map(miss).fold(0.0, f64::max);
        let noise = costs.iter().map(|cost| cost.noise / 2.0).fold(0.0, f64::max);
        fit.error = worst + noise;
        Ok(fit)
    }

    /// Processor seconds of an I/O of so many bytes, which the target asks for or not.
    pub fn cost(&self, bytes: f64, is_asked: bool) -> f64 {
        self.per_io + self.per_byte * bytes + if is_asked { self.per_ask } else { 0.0 }
    }
}

/// Bytes of a write that ride with its command; the target asks for those of larger ones. NVMe/TCP: what a capsule
/// holds; iSCSI: the first burst, of others than named as RFC 7143 has it unless it is negotiated.
fn rides(target: &str, protocol: &str) -> f64 {
    match (protocol, target) {
        ("nvme-tcp", _) => IN_CAPSULE,
        (_, "blockwire") => 16_384.0,
        (_, "spdk-iscsi") => 8192.0,
        _ => 65_536.0,
    }
}

/// Whether a target asks for the data of a load's I/Os.
pub fn is_asked(target: &str, protocol: &str, rw: &str, bytes: f64) -> bool {
    rw.contains("write") && bytes > rides(target, protocol)
}

/// How many sizes these costs are of.
fn sizes(costs: &[Cost]) -> usize {
    let mut sizes: Vec<f64> = costs.iter().map(|cost| cost.bytes).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    sizes.len()
}

/// Whether costs are of both kinds and enough to tell three terms and how far they are off.
fn has_ask(costs: &[Cost]) -> bool {
    is_of_both(costs) && sizes(costs) > 3
}

fn is_of_both(costs: &[Cost]) -> bool {
    costs.iter().any(|cost| cost.is_asked) && costs.iter().any(|cost| !cost.is_asked)
}

/// What leaving a size out of the fit shows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Miss {
    /// What was measured, and not used.
    pub measured: Cost,
    /// What the fit of all others predicts, in processor seconds.
    pub predicted: f64,
    /// How far that fit says it may be off, as part of it.
    pub error: f64,
}

impl Miss {
    /// How far the prediction is off, as part of what was measured: above 0 it is too high.
    pub fn part(&self) -> f64 {
        self.predicted / self.measured.seconds - 1.0
    }

    /// Whether what was measured lies within the prediction's own error.
    pub fn is_within(&self) -> bool {
        (self.predicted - self.measured.seconds).abs() <= self.error * self.predicted
    }
}

/// Leaves each size out in turn and predicts it from all others. The only size of its kind, whose data rides with
/// its command or is asked for, is not predicted from those of the other kind.
///
/// # Errors
/// If fewer than four sizes were measured (of both kinds: five), or a cost is not above zero.
pub fn misses(costs: &[Cost]) -> Result<Vec<Miss>, Unfit> {
    let mut found = Vec::new();
    for measured in costs {
        let left: Vec<Cost> = costs.iter().filter(|cost| cost.bytes != measured.bytes).copied().collect();
        if !left.iter().any(|cost| cost.is_asked == measured.is_asked) {
            continue;
        }
        // As many sizes as terms would be fitted without any error, whatever they are.
        if sizes(&left) < 3 || is_of_both(&left) && !has_ask(&left) {
            return Err(Unfit::FewSizes);
        }
        let fit = Fit::of(&left)?;
        let predicted = fit.cost(measured.bytes, measured.is_asked);
        found.push(Miss { measured: *measured, predicted, error: fit.error });
    }
    if found.is_empty() { Err(Unfit::FewSizes) } else { Ok(found) }
}

/// Data of a write in an NVMe/TCP command's capsule.
const IN_CAPSULE: f64 = 8192.0;

/// Bytes that an I/O has beside its payload in the payload's direction: headers of its PDUs, and the
/// command or the answer. iSCSI: 48 bytes each (RFC 7143, 11.1), data in segments of at most 256 KiB.
/// NVMe/TCP: a command capsule of 72 bytes, else 24 each; writes up to 8 KiB ride in their capsule.
pub fn headers(protocol: &str, is_write: bool, bytes: f64) -> f64 {
    const SEGMENT: f64 = 262_144.0;
    let segments = (bytes / SEGMENT).ceil().max(1.0);
    match (protocol, is_write) {
        ("nvme-tcp", true) if bytes <= IN_CAPSULE => 72.0,
        ("nvme-tcp", true) => 72.0 + 24.0 * segments,
        ("nvme-tcp", false) => 24.0 * segments + 24.0,
        ("iscsi", _) => 48.0 * segments + 48.0,
        _ => 0.0,
    }
}

/// A load that is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
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
    /// Whether the target asks for its data.
    pub is_asked: bool,
    /// How full a core may be, 0 to 1.
    pub fill: f64,
    /// I/Os per second that one connection was measured to carry.
    pub per_connection: f64,
}

/// What it needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Need {
    /// Cores of the side that the fit is of: as computed, and if the fit errs to either side.
    pub cores: f64,
    /// If the fit errs downwards.
    pub cores_least: f64,
    /// If the fit errs upwards.
    pub cores_most: f64,
    /// Bits per second on the wire, in the direction of the payload.
    pub wire: f64,
    /// Links.
    pub links: u32,
    /// Most I/Os per second that one link carries.
    pub line_rate: f64,
    /// Connections.
    pub connections: u32,
}

/// Bytes that each frame has beside TCP's payload: Ethernet with preamble, gap and checksum (38), IPv4
/// (20), TCP with timestamps (32); the last two are part of the MTU.
const FRAME: f64 = 38.0;
const TCP_IP: f64 = 52.0;

impl Load {
    /// What the load needs of a side that costs as much as the fit says.
    pub fn need(&self, fit: &Fit) -> Need {
        let cores = self.iops * fit.cost(self.bytes, self.is_asked) / self.fill;
        let stream = self.bytes + self.headers;
        let segment = self.mtu - TCP_IP;
        let each = 8.0 * stream * (self.mtu + FRAME) / segment;
        let wire = self.iops * each;
        Need {
            cores,
            cores_least: cores * (1.0 - fit.error).max(0.0),
            cores_most: cores * (1.0 + fit.error),
            wire,
            links: (wire / self.link).ceil() as u32,
            line_rate: self.link / each,
            connections: (self.iops / self.per_connection).ceil() as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(bytes: f64, seconds: f64) -> Cost {
        Cost { bytes, seconds, noise: 0.0, is_asked: false }
    }

    #[test]
    fn a_straight_line_is_found_again() {
        let line = |bytes: f64| cost(bytes, 1e-6 + bytes * 2e-10);
        let fit = Fit::of(&[line(4096.0), line(16_384.0), line(131_072.0)]).unwrap();
        assert!((fit.per_io / 1e-6 - 1.0).abs() < 1e-9 && (fit.per_byte / 2e-10 - 1.0).abs() < 1e-9);
        assert!(fit.error < 1e-9);
        // One that was not used for the fit.
        assert!((fit.cost(65_536.0, false) / line(65_536.0).seconds - 1.0).abs() < 1e-9);
    }

    #[test]
    fn noise_and_misfit_are_the_error() {
        let points = [cost(4096.0, 1.1e-6), cost(8192.0, 1.0e-6), cost(131_072.0, 20e-6)];
        let fit = Fit::of(&points).unwrap();
        assert!(fit.error > 0.02, "{fit:?}");
        let noisy = points.map(|point| Cost { noise: 0.2, ..point });
        assert!((Fit::of(&noisy).unwrap().error - fit.error - 0.1).abs() < 1e-12);
    }

    #[test]
    fn what_cannot_be_fitted_is_refused() {
        assert_eq!(Fit::of(&[cost(4096.0, 1e-6); 3]), Err(Unfit::OneSize));
        assert_eq!(Fit::of(&[]), Err(Unfit::OneSize));
        assert_eq!(Fit::of(&[cost(4096.0, 0.0), cost(8192.0, 1.0)]), Err(Unfit::NotPositive));
    }

    #[test]
    fn terms_too_small_to_see_are_zero() {
        let flat = Fit::of(&[cost(512.0, 1e-6), cost(4096.0, 0.99e-6)]).unwrap();
        assert_eq!(flat.per_byte, 0.0);
        let steep = Fit::of(&[cost(512.0, 1e-7), cost(4096.0, 1e-6)]).unwrap();
        assert_eq!(steep.per_io, 0.0);
    }

    #[test]
    fn a_load_needs_what_arithmetic_says() {
        let fit = Fit { per_io: 1e-6, per_byte: 0.0, per_ask: 0.0, error: 0.1 };
        let load = Load {
            iops: 2.9e6,
            bytes: 4096.0,
            link: 100e9,
            mtu: 9000.0,
            headers: 96.0,
            is_asked: false,
            fill: 1.0,
            per_connection: 100_000.0,
        };
        let need = load.need(&fit);
        assert!((need.cores - 2.9).abs() < 1e-9 && (need.cores_most - 3.19).abs() < 1e-9);
        // 4,192 bytes in frames of 8,948: 98.2 Gb/s; one link just carries it.
        assert_eq!((need.links, need.connections), (1, 29));
        assert!((need.wire / 98.2e9 - 1.0).abs() < 0.001, "{}", need.wire);
        assert!(need.line_rate > 2.9e6);
        assert_eq!(Load { mtu: 1500.0, ..load }.need(&fit).links, 2, "smaller frames do not fit one link");
    }

    #[test]
    fn a_size_that_was_left_out_is_predicted() {
        let line = |bytes: f64| cost(bytes, 1e-6 + bytes * 2e-10);
        let costs = [line(4096.0), line(16_384.0), line(65_536.0), line(131_072.0)];
        for miss in misses(&costs).unwrap() {
            assert!(miss.part().abs() < 1e-9, "{miss:?}");
        }
        let mut bent = costs;
        bent[1].seconds *= 1.5;
        let misses = misses(&bent).unwrap();
        assert!((misses[1].part() + 1.0 / 3.0).abs() < 1e-9 && !misses[1].is_within(), "{misses:?}");
        // Of three, two would be left: a line through both fits them without any error, whatever they are.
        assert_eq!(super::misses(&costs[..3]), Err(Unfit::FewSizes));
    }

    /// A step where data begins to be asked for is no slope.
    #[test]
    fn what_is_asked_for_costs_more() {
        let step = |bytes: f64| {
            let is_asked = bytes > 8192.0;
            let more = if is_asked { 3e-6 } else { 0.0 };
            Cost { is_asked, ..cost(bytes, 1e-6 + bytes * 2e-10 + more) }
        };
        let costs = [2048.0, 4096.0, 16_384.0, 65_536.0, 262_144.0].map(step);
        let fit = Fit::of(&costs).unwrap();
        assert!((fit.per_io / 1e-6 - 1.0).abs() < 1e-6 && (fit.per_ask / 3e-6 - 1.0).abs() < 1e-6, "{fit:?}");
        let load = step(32_768.0);
        assert!((fit.cost(load.bytes, true) / load.seconds - 1.0).abs() < 1e-6);
        for miss in misses(&costs).unwrap() {
            assert!(miss.part().abs() < 1e-6, "{miss:?}");
        }
        // One that rides alone is not predicted from those that do not, and three terms take four sizes.
        let lone = misses(&[costs.as_slice(), &[step(131_072.0)]].concat()[1..]).unwrap();
        assert!(lone.iter().all(|miss| miss.measured.bytes > 8192.0), "{lone:?}");
        assert_eq!(misses(&costs[1..]), Err(Unfit::FewSizes));
        assert_eq!((rides("spdk-nvmf", "nvme-tcp"), rides("blockwire", "iscsi")), (8192.0, 16_384.0));
    }

    #[test]
    fn headers_are_those_of_the_standards() {
        assert_eq!(headers("iscsi", false, 4096.0), 96.0);
        assert_eq!(headers("iscsi", true, 524_288.0), 144.0);
        assert_eq!(headers("nvme-tcp", true, 4096.0), 72.0);
        assert_eq!(headers("nvme-tcp", true, 65_536.0), 96.0);
        assert_eq!(headers("nvme-tcp", false, 4096.0), 48.0);
    }
}
