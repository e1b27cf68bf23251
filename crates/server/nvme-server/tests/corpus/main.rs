//! Hostile commands against a controller and its queues: the fuzzer's code on stable Rust, with every stored
//! seed and arbitrary bytes.

use proptest::prelude::*;
use testkit::fuzz::nvme_server as bodies;

#[test]
fn stored_seeds() {
    testkit::corpus::run_seeds(&[("commands", bodies::commands)]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn arbitrary_commands(data in prop::collection::vec(any::<u8>(), 0..1200)) {
        bodies::commands(&data);
    }
}

/// Many commands are good: else the body would show nothing.
#[test]
fn arbitrary_bytes_get_far() {
    let data: Vec<u8> = (0..4000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let reached = bodies::run_commands(&data);
    assert!(reached.commands > 150 && reached.good > 30 && reached.retired > 5, "{reached:?}");
    assert!(reached.joined > 3, "{reached:?}");
}
