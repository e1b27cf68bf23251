//! The stored seeds of the fuzzers: `fuzz/seeds`, one folder per fuzz target.

use std::path::Path;

/// Fewer seeds than this show nothing.
const SEEDS_MIN: usize = 3;

/// What is done with a seed: one of the functions of [`fuzz`](crate::fuzz).
pub type FuzzBody = fn(&[u8]);

/// Gives every stored seed to its body; each body stands beside the name of its folder.
pub fn run_seeds(bodies: &[(&str, FuzzBody)]) {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds");
    for (name, body) in bodies {
        let mut count = 0;
        for file in std::fs::read_dir(seeds.join(name)).expect("every body has seeds") {
            let path = file.unwrap().path();
            println!("{}", path.display());
            body(&std::fs::read(&path).unwrap());
            count += 1;
        }
        assert!(count >= SEEDS_MIN, "{name}: {count} seeds");
    }
}
