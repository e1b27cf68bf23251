//! Hostile bytes against the servers' protocols: the fuzzers' code on stable Rust, with every stored seed and
//! arbitrary bytes.

use proptest::prelude::*;
use testkit::corpus::FuzzBody;
use testkit::fuzz::local as bodies;

/// Every body, with the folder of its seeds.
const BODIES: [(&str, FuzzBody); 2] = [("nbd", bodies::nbd), ("vhost", bodies::vhost)];

#[test]
fn stored_seeds() {
    testkit::corpus::run_seeds(&BODIES);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn arbitrary_clients(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        bodies::nbd(&data);
    }

    #[test]
    fn arbitrary_front_ends(request in 0..45_u32, data in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = request.to_ne_bytes().to_vec();
        bytes.extend(1_u32.to_ne_bytes());
        bytes.extend((data.len() as u32).to_ne_bytes());
        bytes.extend(&data);
        bodies::vhost(&bytes);
        bodies::vhost(&data);
    }
}
