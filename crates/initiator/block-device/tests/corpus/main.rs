//! Hostile bytes against the fronts' protocols: the fuzzers' bodies on stable Rust, with every stored
//! seed and arbitrary bytes.

mod bodies;

use std::path::Path;

use proptest::prelude::*;

type Body = fn(&[u8]);

/// Every body, with the folder of its seeds.
const BODIES: [(&str, Body); 2] = [("nbd", bodies::nbd), ("vhost", bodies::vhost)];

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
