//! Placement rules: which core serves a connection, and the report of it.

use crate::{
    daemon::{Place, cores, volume},
    host::{Host, Names},
    initiator::{HOST, Initiator},
};

const DISK: &str = "iqn.2026-11.test:disk";

#[test]
fn sessions_go_where_the_first_rule_that_fits_says() {
    let cores = cores();
    let list: Vec<String> = cores.iter().map(ToString::to_string).collect();
    for (shard, core) in cores.iter().enumerate().take(4) {
        let place = Place::new();
        let config = format!(
            r#"
[[volume]]
name = "disk"
source = "ram:1M"
[[target]]
name = "{DISK}"
luns = [{{ lun = 0, volume = "disk" }}]
[[host]]
name = "host"
iqn = ["{HOST}"]
access = [{{ target = "{DISK}" }}]
[[placement]]
protocol = "nvme"
bind = "random"
[[placement]]
host = "host"
volume = "disk"
sources = ["127.0.0.0/8"]
cores = [{core}]
[[placement]]
cores = {cores:?}
"#
        );
        let daemon = place.serve(&config, &["--cores", &list.join(",")]);
        for _ in 0..3 {
            let mut session = Initiator::ready(daemon.at, DISK);
            session.read(0, 0, 1).unwrap().good();
            let listed = daemon.connections(1);
            let connection = &listed[0];
            assert_eq!(connection["shard"], shard, "{listed:?}");
            assert_eq!(connection["placement"], format!("rule 2: cores {core}, least loaded"));
            let card = daemon.ask(&format!("connection show {}", connection["id"]));
            assert!(card.contains("placement  rule 2: cores "), "{card}");
            session.log_out().unwrap();
        }
    }
}

/// Over loopback a connection's bytes come in on the core of the peer, which a rule may follow.
#[test]
fn sessions_follow_the_core_that_takes_their_bytes_in() {
    let cores = cores();
    let list: Vec<String> = cores.iter().map(ToString::to_string).collect();
    let place = Place::new();
    let config = volume("disk", "ram:1M") + "[[placement]]\nbind = \"queue\"\n";
    let daemon = place.serve(&config, &["--cores", &list.join(",")]);
    for (shard, core) in cores.iter().enumerate().take(4) {
        let (at, core) = (daemon.at, *core);
        let peer = move || {
            let mut own = rustix::thread::CpuSet::new();
            own.set(core);
            rustix::thread::sched_setaffinity(None, &own).unwrap();
            Initiator::ready(at, "iqn.2026-11.io.blockwire:disk")
        };
        let session = std::thread::spawn(peer).join().unwrap();
        let listed = daemon.connections(1);
        assert_eq!(listed[0]["shard"], shard, "{listed:?}");
        assert_eq!(listed[0]["placement"], "rule 1: cores all, its network queue's");
        session.log_out().unwrap();
    }
}

/// The queues of a controller go round the cores of its rule: all of them are on its one core; or one on each.
#[test]
fn queues_go_round_the_cores_of_the_first_rule_that_fits() {
    let cores = cores();
    let list: Vec<String> = cores.iter().map(ToString::to_string).collect();
    for (shard, core) in cores.iter().enumerate().take(4) {
        let place = Place::new();
        let config = format!(
            r#"
[[volume]]
name = "disk"
source = "ram:1M"
[[placement]]
protocol = "iscsi"
cores = [{}]
[[placement]]
protocol = "nvme"
volume = "disk"
cores = [{core}]
"#,
            cores[0]
        );
        let daemon = place.serve(&config, &["--cores", &list.join(","), "--nvme", "127.0.0.1:0"]);
        let mut host = Host::ready(daemon.nvme.expect("a listener"), &Names::of("disk"));
        host.read(0).good();
        let listed = daemon.connections(2);
        for queue in &listed {
            assert_eq!(queue["shard"], shard, "{listed:?}");
            assert_eq!(queue["placement"], format!("rule 2: cores {core}, least loaded"));
        }
    }
    let place = Place::new();
    let arguments = ["--cores", &list.join(","), "--nvme", "127.0.0.1:0"];
    let daemon = place.serve(&volume("disk", "ram:1M"), &arguments);
    let mut host = Host::ready(daemon.nvme.expect("a listener"), &Names::of("disk"));
    host.read(0).good();
    let listed = daemon.connections(2);
    let shards: std::collections::BTreeSet<u64> =
        listed.iter().map(|queue| queue["shard"].as_u64().expect("a number")).collect();
    assert_eq!(shards.len(), cores.len().min(2), "{listed:?}");
}
