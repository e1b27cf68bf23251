//! Hostile bytes against the controller's side of a queue: the fuzzers' code on stable Rust, with every
//! stored seed and arbitrary bytes.

use proptest::prelude::*;
use testkit::corpus::FuzzBody;
use testkit::fuzz::nvme_tcp as bodies;

/// Every body, with the folder of its seeds.
const BODIES: [(&str, FuzzBody); 2] = [("capsules", bodies::capsules), ("pdus", bodies::pdus)];

#[test]
fn stored_seeds() {
    testkit::corpus::run_seeds(&BODIES);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn arbitrary_capsules(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        bodies::capsules(&data);
    }

    #[test]
    fn arbitrary_pdus(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        bodies::pdus(&data);
    }
}

/// Most commands of the structured body are served: else it would show nothing.
#[test]
fn structured_bytes_get_far() {
    let data: Vec<u8> = (0..1200u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let reached = bodies::run_pdus(&data);
    assert!(reached.commands > 20 && reached.received > 2, "{reached:?}");
}
