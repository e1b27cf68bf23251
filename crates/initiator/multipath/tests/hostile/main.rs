//! Hostile targets: the messages of a correct one, changed PDU by PDU, in a world of one thread that a seed
//! determines.

mod mangle;
mod world;

use mangle::Protocol;
use testkit::seeds;
use world::{Session, Tally};

/// Sessions with one protocol: `many` of them.
fn play(protocol: Protocol, name: &str, many: u64) {
    let test = format!("blockwire-multipath --test hostile {name}");
    let (total, runs) = seeds::run_all_seeds(many, &test, |seed| Session::new(seed, protocol).play());
    let Tally { well, failed, connections, changed } = total;
    let eventful = well > 500 && failed > 50 && changed > 100 && connections > 100;
    assert!(runs < 50 || eventful, "nothing much happens: {total:?}");
}

#[test]
fn sessions_with_hostile_iscsi_targets_end_well() {
    play(Protocol::Iscsi, "sessions_with_hostile_iscsi", 150);
}

#[test]
fn sessions_with_hostile_nvme_controllers_end_well() {
    play(Protocol::Nvme, "sessions_with_hostile_nvme", 150);
}

/// One seed is one history.
#[test]
fn a_seed_determines_everything() {
    for protocol in [Protocol::Iscsi, Protocol::Nvme] {
        let [one, other] = [(); 2].map(|()| format!("{:?}", Session::new(7, protocol).play()));
        assert_eq!(one, other);
    }
}

/// Sessions that found something: a controller of queues of one command, in which a compare and write, a pair,
/// waited for ever with all that stood behind it.
#[test]
fn sessions_that_found_something_end_well() {
    Session::new(96, Protocol::Nvme).play();
}
