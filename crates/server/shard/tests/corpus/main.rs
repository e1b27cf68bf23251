//! Hostile bytes: known attacks, and the fuzzers' code on stable Rust with every stored seed and arbitrary
//! bytes.

mod attacks;

use proptest::prelude::*;
use testkit::corpus::FuzzBody;
use testkit::fuzz::iscsi as bodies;

/// Every body, with the folder of its seeds.
const BODIES: [(&str, FuzzBody); 6] = [
    ("login", bodies::login),
    ("text", bodies::text),
    ("session", bodies::session),
    ("headers", bodies::headers),
    ("cdb", bodies::cdb),
    ("reservations", bodies::reservations),
];

#[test]
fn stored_seeds() {
    testkit::corpus::run_seeds(&BODIES);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn arbitrary_logins(data in prop::collection::vec(any::<u8>(), 0..400)) {
        bodies::login(&data);
    }

    #[test]
    fn arbitrary_texts(seed: u16, data in "([A-Za-z]{1,20}=[0-9a-zA-Z,.:-]{0,20}\0){0,30}") {
        bodies::text(&[&seed.to_le_bytes(), data.as_bytes()].concat());
    }

    #[test]
    fn arbitrary_headers(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        bodies::headers(&data);
    }

    #[test]
    fn arbitrary_sessions(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        bodies::session(&data);
    }

    #[test]
    fn arbitrary_commands(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        bodies::cdb(&data);
    }

    #[test]
    fn arbitrary_reservations(data in prop::collection::vec(any::<u8>(), 0..600)) {
        bodies::reservations(&data);
    }
}
