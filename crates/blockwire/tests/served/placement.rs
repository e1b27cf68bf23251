//! Rules of placement: which core serves whom, and what is said of it.

use crate::{
    daemon::{Place, cores},
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
            let listed = daemon.ask_json("connection list");
            let connection = &listed.as_array().expect("a list")[0];
            assert_eq!(connection["shard"], shard, "{listed}");
            assert_eq!(connection["placement"], format!("rule 2: cores {core}, least loaded"));
            let card = daemon.ask(&format!("connection show {}", connection["id"]));
            assert!(card.contains("placement  rule 2: cores "), "{card}");
            session.log_out().unwrap();
        }
    }
}
