//! Hostile bytes: known attacks, and the fuzzers' bodies on stable Rust with every stored seed and
//! arbitrary bytes.

mod attacks;
mod bodies;
#[path = "../simulation/rig.rs"]
mod rig;

use std::path::Path;

use proptest::prelude::*;

type Body = fn(&[u8]);

/// Every body, with the folder of its seeds.
const BODIES: [(&str, Body); 6] = [
    ("login", bodies::login),
    ("text", bodies::text),
    ("session", bodies::session),
    ("headers", bodies::headers),
    ("cdb", bodies::cdb),
    ("reservations", bodies::reservations),
];

#[test]
fn stored_seeds() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds");
    for (name, body) in BODIES {
        let mut count = 0;
        for file in std::fs::read_dir(seeds.join(name)).expect("every body has seeds") {
            let path = file.unwrap().path();
            println!("{}", path.display());
            body(&std::fs::read(&path).unwrap());
            count += 1;
        }
        assert!(count >= 3, "{name}: {count} seeds");
    }
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
