//! Hostile bytes against the controller's side of a queue: the fuzzers' code on stable Rust, with every
//! stored seed and arbitrary bytes.

use proptest::prelude::*;
use testkit::corpus::FuzzBody;
use testkit::fuzz::nvme_tcp as bodies;

/// Every body, with the folder of its seeds.
const BODIES: [(&str, FuzzBody); 3] =
    [("capsules", bodies::capsules), ("pdus", bodies::pdus), ("records", bodies::records)];

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

proptest! {
    // Each may shake hands.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn arbitrary_records(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        bodies::records(&data);
    }
}

/// Most commands of the structured body are served: else it would show nothing.
#[test]
fn structured_bytes_get_far() {
    let data: Vec<u8> = (0..1200u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let reached = bodies::run_pdus(&data);
    assert!(reached.commands > 20 && reached.received > 2, "{reached:?}");
}

/// What a host that has the key sends is served, as far as it is not changed on the way.
#[test]
fn records_get_far_and_a_changed_one_is_the_end() {
    let capsule = |cid: u8| {
        let mut pdu = vec![4, 0, 72, 0, 72, 0, 0, 0, 2, 0x40, cid, 0];
        pdu.resize(72, 0);
        pdu
    };
    // Parts of 17 bytes and one.
    let plain: Vec<u8> = (0..6).flat_map(capsule).collect();
    let reached = bodies::run_records(&[&[8, 0], &plain[..]].concat());
    assert!(reached.commands > 0, "{reached:?}");
}
