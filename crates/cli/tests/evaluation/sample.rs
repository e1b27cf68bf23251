//! Made-up records for tests of the verbs.

use eval::Histogram;
use eval::cpu::{CpuTimes, CpuUsage};
use eval::record::{EndUsage, Machine, Point, RECORD_SCHEMA_VERSION, Record, Run};

/// The same numbers at each call.
struct Random(u64);

impl Random {
    /// From 0 to 1.
    fn part(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// What an I/O costs a system: processor seconds of the target for each, and for each byte.
#[derive(Clone, Copy)]
pub struct System {
    /// Its name.
    pub name: &'static str,
    /// Seconds for each I/O.
    pub per_io: f64,
    /// Seconds for each byte.
    pub per_byte: f64,
}

/// Ours.
pub const OURS: System = System { name: "blockwire", per_io: 2e-6, per_byte: 1e-10 };

/// How long a run takes, in seconds.
const LENGTH: f64 = 0.02;

/// One run at a depth of 32, on two cores, the initiator as costly as ours.
fn run(system: System, bytes: u64, random: &mut Random) -> Run {
    let wobble = 1.0 + (random.part() - 0.5) * 0.02;
    let each = |system: System| (system.per_io + system.per_byte * bytes as f64) * wobble;
    let (target, initiator) = (each(system), each(OURS));
    let ios = (LENGTH * 0.95 / target.max(initiator)) as u64;
    let mut latency = Histogram::default();
    let mean = LENGTH * 32e9 / ios as f64;
    let shape: Vec<f64> = (0..ios).map(|_| 0.6 - 0.4 * (1.0 - random.part()).ln()).collect();
    let scale = mean * ios as f64 / shape.iter().sum::<f64>();
    shape.iter().for_each(|part| latency.record((part * scale) as u64));
    let busy = [target, initiator].map(|each| each * ios as f64);
    let kinds = |busy: f64| CpuTimes {
        user: busy * 0.4,
        system: busy * 0.4,
        softirq: busy * 0.2,
        idle: LENGTH - busy,
        ..CpuTimes::default()
    };
    let cores = CpuUsage { cores: vec![(0, kinds(busy[0])), (1, kinds(busy[1]))], switches: ios * 2 };
    let side = |each: f64| {
        let used = each * ios as f64;
        // As most kernels count: what interrupts take is in it.
        let process = (used * 0.4, used * 0.6);
        Some(EndUsage { cores: cores.clone(), process, resident: 64 << 20, ..EndUsage::default() })
    };
    Run {
        seconds: LENGTH,
        ios,
        moved: ios * bytes,
        latency,
        target: side(target),
        initiator: side(initiator),
        retransmits: Some(0),
        packets: Some(ios * 2),
        ..Run::default()
    }
}

/// Several runs of each load on each system.
pub fn record(preset: &str, systems: &[System], sizes: &[u64], runs: usize, seed: u64) -> Record {
    let mut random = Random(seed);
    let mut points = Vec::new();
    for system in systems {
        for rw in ["randread", "randwrite"] {
            for bytes in sizes {
                let runs = (0..runs).map(|_| run(*system, *bytes, &mut random)).collect();
                points.push(Point {
                    target: system.name.into(),
                    initiator: "blockwire".into(),
                    protocol: "iscsi".into(),
                    rw: rw.into(),
                    bytes: *bytes,
                    depth: 32,
                    connections: 1,
                    mtu: 9000,
                    is_closed: true,
                    steady_after: Some(5),
                    runs,
                    ..Point::default()
                });
            }
        }
    }
    let facts = [("processor", "made up"), ("cores", "2"), ("kernel", "6.12.0"), ("load average", "0.10")];
    let facts = facts.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let paper = eval::preset::Preset::find(preset).and_then(|preset| preset.paper).map(str::to_owned);
    Record {
        schema: RECORD_SCHEMA_VERSION,
        preset: preset.into(),
        title: "Figures that were never measured".into(),
        paper,
        started: "2026-11-22T08:00:00Z".into(),
        seconds: 120.0,
        commands: vec![format!("blockwire eval run {preset}")],
        environment: vec![Machine { role: "both".into(), facts: facts.to_vec() }],
        notes: vec!["This record is for tests; nothing was measured.".into()],
        configurations: Vec::new(),
        points,
    }
}
