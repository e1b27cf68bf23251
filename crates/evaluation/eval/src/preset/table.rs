//! One preset for each experiment of the papers.

use std::time::Duration;

use super::{ExperimentKind, Preset, Protocol, SystemPairing, VolumeMedium, Wire};
use crate::fio::IoDirection::{Mixed, Read, Write};

const KIB: u32 = 1024;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const BOTH_PROTOCOLS: &[Protocol] = &[Protocol::Iscsi, Protocol::NvmeTcp];
const ALL_WIRES: &[Wire] = &[Wire::Loopback, Wire::Veth { mtu: 1500 }, Wire::Veth { mtu: 9000 }];
const LOOPBACK_ONLY: &[Wire] = &[Wire::Loopback];
const JUMBO_VETH: &[Wire] = &[Wire::Veth { mtu: 9000 }];

/// What all presets have unless they say otherwise.
const PRESET_DEFAULTS: Preset = Preset {
    id: "",
    title: "",
    paper: None,
    at: "",
    figures: &[],
    kind: ExperimentKind::Block,
    volumes: (1, 256 * MIB),
    targets: None,
    media: &[VolumeMedium::Ram],
    hosts: 1,
    protocols: BOTH_PROTOCOLS,
    pairing: SystemPairing::All,
    wires: LOOPBACK_ONLY,
    connections: &[],
    directions: &[Read, Write],
    sizes: &[4 * KIB],
    orders: &[true],
    shapes: &[],
    rates: &[],
    scales_cores: false,
    depth: 32,
    threads: 1,
    runtime: Duration::from_secs(60),
    rounds: 5,
};

/// All presets.
pub static PRESETS: &[Preset] = &[
    Preset {
        id: "quick",
        title: "A first look: 4 KiB random reads and writes, one volume, one minute",
        connections: &[1],
        runtime: Duration::from_secs(2),
        rounds: 3,
        ..PRESET_DEFAULTS
    },
    Preset {
        id: "t6-100g-sweep",
        title: "Throughput and processor use against I/O size: 18 RAM LUNs, 3 initiators",
        paper: Some("t6-100g"),
        at: "Commands used; Figure 2",
        figures: &["t6-100g."],
        volumes: (18, 512 * MIB),
        hosts: 3,
        protocols: &[Protocol::Iscsi],
        wires: ALL_WIRES,
        sizes: &[4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB],
        threads: 20,
        ..PRESET_DEFAULTS
    },
    Preset {
        id: "demartek-vdbench",
        title: "4 KiB at maximum rate, 24 sessions: three set-ups of target and initiator",
        paper: Some("demartek"),
        at: "Synthetic vdbench; vdbench Test Results",
        figures: &[
            "demartek.target-read",
            "demartek.target-write",
            "demartek.software-target-read",
            "demartek.software-target-write",
            "demartek.hardware-target-read",
            "demartek.hardware-target-write",
            "demartek.initiator-read",
            "demartek.initiator-write",
            "demartek.initiator-cpu",
            "demartek.summary-",
            "demartek.ssds",
            "demartek.partitions",
            "demartek.targets",
            "demartek.initiators",
            "demartek.sessions",
        ],
        volumes: (24, 256 * MIB),
        hosts: 4,
        protocols: &[Protocol::Iscsi],
        pairing: SystemPairing::ThreeSetUps,
        wires: JUMBO_VETH,
        threads: 6,
        ..PRESET_DEFAULTS
    },
    Preset {
        id: "demartek-oltp",
        title: "A database on RAID 0 of six LUNs: time for a fixed number of transactions",
        paper: Some("demartek"),
        at: "Real-World MySQL OLTP",
        figures: &[
            "demartek.target-oltp",
            "demartek.software-target-oltp",
            "demartek.hardware-target-oltp",
            "demartek.initiator-oltp",
            "demartek.users",
            "demartek.transactions",
            "demartek.databases",
        ],
        kind: ExperimentKind::Oltp { users: 70, transactions: 20_000, databases: 4 },
        volumes: (24, 44 * GIB),
        hosts: 4,
        protocols: &[Protocol::Iscsi],
        pairing: SystemPairing::ThreeSetUps,
        wires: JUMBO_VETH,
        directions: &[],
        sizes: &[],
        ..PRESET_DEFAULTS
    },
    Preset {
        id: "connections",
        title: "1, 256 and 16,384 connections: IOPS, processor and memory",
        paper: Some("windows-100g"),
        at: "iSCSI Adapters that meet the Requirements",
        figures: &["windows-100g.connections"],
        connections: &[1, 256, 16_384],
        depth: 1,
        runtime: Duration::from_secs(30),
        rounds: 3,
        ..PRESET_DEFAULTS
    },
    Preset {
        id: "unified-wire",
        title: "iSCSI, NVMe/TCP and a plain stream at once over one link",
        paper: Some("t6-100g"),
        at: "The Chelsio iSCSI Offload Solution",
        kind: ExperimentKind::MixedTraffic,
        protocols: &[Protocol::Iscsi, Protocol::NvmeTcp, Protocol::Stream],
        wires: &[Wire::Veth { mtu: 9000 }, Wire::Limited { mtu: 9000, limit: 1_000_000_000 }],
        sizes: &[64 * KIB],
        depth: 8,
        runtime: Duration::from_secs(30),
        ..PRESET_DEFAULTS
    },
    Preset {
        id: "t5-vm",
        title: "Initiator and target on one host, one of them in a virtual machine",
        paper: Some("t5-vm"),
        at: "I/O Benchmarking Configuration",
        figures: &["t5-vm."],
        kind: ExperimentKind::Machine,
        volumes: (1, GIB),
        protocols: &[Protocol::Iscsi],
        directions: &[Read, Write, Mixed(50)],
        sizes: &[4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB],
        depth: 64,
        threads: 32,
        ..PRESET_DEFAULTS
    },
    Preset {
        id: "windows-100g",
        title: "512 bytes to 512 KiB on 16 RAM LUNs of two targets, 8 outstanding each",
        paper: Some("windows-100g"),
        at: "Test Configuration; Figure 1",
        figures: &["windows-100g.read", "windows-100g.write", "windows-100g.throughput", "windows-100g.cpu"],
        volumes: (16, 600 * MIB),
        targets: Some(2),
        protocols: &[Protocol::Iscsi],
        wires: ALL_WIRES,
        sizes: &[
            512,
            KIB,
            2 * KIB,
            4 * KIB,
            8 * KIB,
            16 * KIB,
            32 * KIB,
            64 * KIB,
            128 * KIB,
            256 * KIB,
            512 * KIB,
        ],
        depth: 8,
        threads: 16,
        ..PRESET_DEFAULTS
    },
    Preset {
        id: "nvme-tcp-iops",
        title: "4 KiB IOPS, and bandwidth against size, over NVMe/TCP",
        paper: Some("sdc2021"),
        at: "NVMe/TCP (TOE), Target Bandwidth & IOPs",
        figures: &["sdc2021.iops", "sdc2021.throughput", "sdc2021.cpu"],
        volumes: (4, 256 * MIB),
        media: &[VolumeMedium::Null, VolumeMedium::Ram],
        protocols: &[Protocol::NvmeTcp],
        wires: ALL_WIRES,
        sizes: &[4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB],
        threads: 4,
        ..PRESET_DEFAULTS
    },
    Preset {
        id: "nvme-tcp-latency",
        title: "One 4 KiB I/O at a time: local, remote, and the difference",
        paper: Some("sdc2021"),
        at: "NVMe/TCP Latency Measurement Comparison",
        figures: &["sdc2021.kernel-", "sdc2021.spdk-", "sdc2021.headline-"],
        protocols: &[Protocol::Local, Protocol::NvmeTcp, Protocol::Iscsi],
        // The paper's latencies are those of an SSD.
        media: &[VolumeMedium::Ram, VolumeMedium::File],
        depth: 1,
        runtime: Duration::from_secs(30),
        ..PRESET_DEFAULTS
    },
    Preset {
        id: "nvme-tcp-jitter",
        title: "Latency and its deviation on a congested link",
        paper: Some("sdc2021"),
        at: "TOE Jitter Handling",
        figures: &["sdc2021.jitter-"],
        protocols: BOTH_PROTOCOLS,
        wires: &[
            Wire::Veth { mtu: 1500 },
            Wire::Congested { mtu: 1500, limit: 1_000_000_000 },
            Wire::Congested { mtu: 9000, limit: 1_000_000_000 },
        ],
        runtime: Duration::from_secs(30),
        ..PRESET_DEFAULTS
    },
    Preset {
        id: "protocol-efficiency",
        title: "Processor time for each I/O: 8 KiB and 1 MiB random reads",
        paper: Some("sdc2021"),
        at: "Protocol Productivity vs Resource Used",
        figures: &["sdc2021.aic-", "sdc2021.sas-", "sdc2021.sata-"],
        protocols: &[Protocol::Local, Protocol::Iscsi, Protocol::NvmeTcp],
        directions: &[Read],
        sizes: &[8 * KIB, 1 << 20],
        depth: 128,
        runtime: Duration::from_secs(30),
        ..PRESET_DEFAULTS
    },
    Preset {
        id: "latency-load",
        title: "Latency against load: 10 to 100 % of each system's maximum rate, open loop",
        rates: &[10, 20, 30, 40, 50, 60, 70, 80, 90, 100],
        depth: 128,
        connections: &[1],
        ..PRESET_DEFAULTS
    },
    Preset {
        id: "core-scaling",
        title: "IOPS against the target's processors: 1, 2, … of the machine's",
        volumes: (4, 256 * MIB),
        scales_cores: true,
        threads: 4,
        ..PRESET_DEFAULTS
    },
    Preset {
        id: "mixes",
        title: "70 % reads, reads and writes, random and in order, by depth and threads",
        volumes: (4, 256 * MIB),
        directions: &[Mixed(70), Read, Write],
        orders: &[true, false],
        shapes: &[(1, 1), (8, 1), (32, 1), (8, 4), (32, 4)],
        ..PRESET_DEFAULTS
    },
];
