//! Whatever a host asks for, it is shown what it may use and nothing else, over both protocols and in both worlds.

use crate::daemon::{Daemon, Place, volume, worlds};
use crate::host::{Host, Names, Queue};
use crate::initiator::{Data, Initiator, wanted};

const DISKS: &str = "iqn.2026-11.test:disks";
const OTHER: &str = "iqn.2026-11.test:other";
const ANN: &str = "iqn.2026-11.test:ann";
const BEN: &str = "iqn.2026-11.test:ben";
const LOGS: &str = "nqn.2026-11.test:logs";
const SPARE: &str = "nqn.2026-11.test:spare";

/// Ann has one of three units and one of three namespaces, and Ben all the rest of what there is.
fn config() -> String {
    let volumes: String = ["a", "b", "c", "d"].map(|name| volume(name, "ram:1M")).concat();
    volumes
        + &format!(
            r#"
[[target]]
name = "{DISKS}"
luns = [{{ lun = 0, volume = "a" }}, {{ lun = 5, volume = "b" }}, {{ lun = 300, volume = "c" }}]
[[target]]
name = "{OTHER}"
luns = [{{ lun = 0, volume = "d" }}]
[[subsystem]]
nqn = "{LOGS}"
namespaces = [{{ nsid = 1, volume = "a" }}, {{ nsid = 2, volume = "b" }}, {{ nsid = 7, volume = "c" }}]
[[subsystem]]
nqn = "{SPARE}"
namespaces = [{{ nsid = 1, volume = "d" }}]
[[host]]
name = "ann"
both = true
iqn = ["{ANN}"]
nqn = ["nqn.2026-11.test:ann"]
access = [{{ target = "{DISKS}", luns = [5] }}, {{ subsystem = "{LOGS}", namespaces = [2] }}]
[[host]]
name = "ben"
both = true
iqn = ["{BEN}"]
nqn = ["nqn.2026-11.test:ben"]
access = [{{ target = "{OTHER}" }}, {{ subsystem = "{SPARE}" }}]
"#
        )
}

fn served(place: &Place, world: &str) -> Daemon {
    place.serve(&config(), &["--io", world, "--nvme", "127.0.0.1:0"])
}

fn discovered(daemon: &Daemon, host: &str, which: &str) -> Vec<String> {
    let mut discovery = Initiator::connect(daemon.at, wanted(host, None, None)).unwrap();
    let text = discovery.send_targets(which);
    text.split('\0').filter_map(|pair| pair.strip_prefix("TargetName=")).map(str::to_owned).collect()
}

#[test]
fn discovery_names_the_targets_that_the_initiator_may_use() {
    for world in worlds() {
        let place = Place::new();
        let daemon = served(&place, world);
        assert_eq!(discovered(&daemon, ANN, "All"), [DISKS]);
        assert_eq!(discovered(&daemon, BEN, "All"), [OTHER]);
        assert!(discovered(&daemon, "iqn.2026-11.test:stranger", "All").is_empty());
        assert_eq!(discovered(&daemon, ANN, DISKS), [DISKS]);
        assert!(
            discovered(&daemon, ANN, OTHER).is_empty(),
            "it is not confirmed that there is one of that name"
        );
        // In a session nothing more is shown than outside of one.
        let mut session = Initiator::connect(daemon.at, wanted(ANN, Some(DISKS), None)).unwrap();
        session.settle(5);
        assert!(!session.send_targets(OTHER).contains("other"));
    }
}

#[test]
fn report_luns_lists_the_units_that_the_initiator_may_use() {
    for world in worlds() {
        let place = Place::new();
        let daemon = served(&place, world);
        let mut session = Initiator::connect(daemon.at, wanted(ANN, Some(DISKS), None)).unwrap();
        session.settle(5);
        // 101h is the well known unit REPORT LUNS.
        for (select, want) in [(0, &[5u16][..]), (1, &[0x101]), (2, &[5, 0x101])] {
            let mut cdb = [0; 12];
            (cdb[0], cdb[2], cdb[8]) = (0xa0, select, 2);
            // A unit that is not there answers it too.
            for lun in [5, 0] {
                let data = session.command(lun, &cdb, Data::In(512)).unwrap().good();
                let length = u32::from_be_bytes(data[..4].try_into().unwrap()) as usize;
                let units = data[8..8 + length].chunks(8);
                let mut units: Vec<u16> =
                    units.map(|unit| u16::from_be_bytes([unit[0], unit[1]]) & 0x3fff).collect();
                units.sort_unstable();
                assert_eq!(units, want, "{world}: select {select} of unit {lun}");
            }
        }
        for hidden in [0, 300, 1] {
            let inquiry = session.command(hidden, &[0x12, 0, 0, 0, 36, 0], Data::In(36)).unwrap().good();
            assert_eq!(inquiry[0], 0x7f, "unit {hidden} is not there");
            let read = session.read(hidden, 0, 1).unwrap();
            assert_eq!((read.status, read.sense.map(|(_, code, _)| code)), (2, Some(0x25)), "unit {hidden}");
        }
        assert_eq!(session.read(5, 0, 1).unwrap().good(), [0; 512]);
    }
}

#[test]
fn the_discovery_log_names_the_subsystems_that_the_host_may_use() {
    for world in worlds() {
        let place = Place::new();
        let daemon = served(&place, world);
        let names = |host: &str| {
            let subsystem = "nqn.2014-08.org.nvmexpress.discovery".to_owned();
            let names = Names { subsystem, nqn: format!("nqn.2026-11.test:{host}"), id: [9; 16] };
            let log = Queue::enabled(daemon.nvme.unwrap(), &names).log_page(0x70, 8192).good();
            let count = u64::from_le_bytes(log[8..16].try_into().unwrap()) as usize;
            let entries = log[1024..].chunks(1024).take(count);
            let name = |entry: &[u8]| {
                let name: Vec<u8> = entry[256..512].iter().copied().take_while(|byte| *byte != 0).collect();
                String::from_utf8(name).unwrap()
            };
            let mut found: Vec<String> =
                entries.map(name).filter(|name| !name.contains("discovery")).collect();
            found.dedup();
            found
        };
        assert_eq!(names("ann"), [LOGS]);
        assert_eq!(names("ben"), [SPARE]);
        assert!(names("stranger").is_empty());
        let other =
            Names { subsystem: SPARE.to_owned(), nqn: "nqn.2026-11.test:ann".to_owned(), id: [9; 16] };
        assert!(Queue::connect(daemon.nvme.unwrap(), &other, 0, 0xffff).is_err());
    }
}

#[test]
fn identify_and_logs_tell_of_the_namespaces_that_the_host_may_use() {
    /// Invalid Namespace or Format, whether it is to be tried again or not.
    const NO_NAMESPACE: u16 = 0x00b;
    for world in worlds() {
        let place = Place::new();
        let daemon = served(&place, world);
        let names = Names { subsystem: LOGS.to_owned(), nqn: "nqn.2026-11.test:ann".to_owned(), id: [9; 16] };
        let mut host = Host::ready(daemon.nvme.unwrap(), &names);
        let words = |data: Vec<u8>| -> Vec<u32> {
            let words = data.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
            words.take_while(|word| *word != 0).collect()
        };
        // Active namespaces; of one command set; allocated ones, if that list is there at all.
        assert_eq!(words(host.admin.identify(0x02, 0).good()), [2]);
        for cns in [0x07, 0x10] {
            let list = host.admin.identify(cns, 0);
            assert!(list.status != 0 || words(list.data) == [2], "CNS {cns:#x}");
        }
        for hidden in [1, 7, 3] {
            let namespace = host.admin.identify(0x00, hidden);
            let shows_nothing = namespace.status != 0 || namespace.data.iter().all(|byte| *byte == 0);
            assert!(shows_nothing, "{hidden}");
            for cns in [0x03, 0x05, 0x08, 0x11] {
                let told = host.admin.identify(cns, hidden);
                assert!(
                    told.status != 0 || told.data.iter().all(|byte| *byte == 0),
                    "CNS {cns:#x} of {hidden}"
                );
            }
            let read =
                host.io.command(crate::host::Sqe::new(2, hidden).cdw(10, 0), crate::host::Data::In(512));
            assert_eq!(read.unwrap().status & 0xff, NO_NAMESPACE, "{hidden}");
        }
        assert!(host.admin.identify(0x00, 2).good().iter().any(|byte| *byte != 0));
        // ANA: groups with their namespaces. The header has 16 bytes, a descriptor 32 and then its namespaces.
        let log = host.admin.log_page(0x0c, 4096).good();
        let groups = u16::from_le_bytes([log[8], log[9]]);
        let mut at = 16;
        let mut listed = Vec::new();
        for _ in 0..groups {
            let count = u32::from_le_bytes(log[at + 4..at + 8].try_into().unwrap()) as usize;
            listed.extend(words(log[at + 32..][..4 * count].to_vec()));
            at += 32 + 4 * count;
        }
        assert_eq!(listed, [2], "{world}");
    }
}
