//! Discovery by our target's own discovery controllers.

use std::sync::Arc;

use blockwire_multipath::DownReason;
use blockwire_multipath::nvme::{Discovery, DiscoveryReport, Settings};
use nvme::Nqn;
use shard::{Exports, Referral};

use crate::world::{REFUSED, World};
use crate::{exports, settings};
use testkit::target::SUBSYSTEM_NQN;

fn discover(addresses: &[&str], exports: Arc<Exports>) -> Result<DiscoveryReport, DownReason> {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    let settings = Settings { addresses, subsystem: Nqn::discovery_service(), ..settings() };
    let mut world = World::new(Discovery::new(settings), exports);
    world.host(|discovery, cx| discovery.start(cx));
    for _ in 0..10_000 {
        while world.step() {}
        if let Some(outcome) = world.path.poll_outcome() {
            return outcome;
        }
        world.sleep(std::time::Duration::from_secs(1));
    }
    panic!("discovery does not end");
}

#[test]
fn subsystems_are_found_by_either_port_and_none_twice() {
    for port in ["127.0.0.1:8009", "127.0.0.1:4420"] {
        let survey = discover(&[port], exports()).unwrap();
        assert_eq!(survey.subsystems.len(), 1, "{survey:?}");
        let found = &survey.subsystems[0];
        assert_eq!((found.subsystem.as_str(), found.address.port()), (SUBSYSTEM_NQN, 4420));
        assert!(!found.tls && found.told_by == port.parse().unwrap());
        assert!(survey.troubles.is_empty() && survey.skipped == 0);
    }
}

#[test]
fn referrals_are_followed_and_those_that_fail_cost_only_themselves() {
    let mut exports = Exports::clone(&exports());
    let referral =
        |address: &str| Referral { address: address.parse().unwrap(), port: 9, nqn: Nqn::DISCOVERY.into() };
    exports.nvme.referrals = ["127.0.0.1:8009", "127.0.0.1:4420", "127.0.0.7:8009"].map(referral).into();
    let survey = discover(&["127.0.0.1:8009"], Arc::new(exports)).unwrap();
    assert_eq!(survey.subsystems.len(), 1, "{survey:?}");
    assert_eq!(survey.troubles, [("127.0.0.7:8009".parse().unwrap(), DownReason::Unreachable(REFUSED))]);
}

#[test]
fn the_next_address_is_tried_and_nobody_at_all_is_a_failure() {
    let survey = discover(&["127.0.0.9:8009", "127.0.0.1:8009"], exports()).unwrap();
    assert_eq!((survey.subsystems.len(), survey.troubles.len()), (1, 1));
    assert_eq!(discover(&["127.0.0.9:8009"], exports()), Err(DownReason::Unreachable(REFUSED)));
    assert!(discover(&[], exports()).is_err());
}
