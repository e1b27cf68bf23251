//! Which program made a record: its commit, and how it was built.
//!
//! Invariant: what was not told when it was built is left out; nothing is guessed.

/// How this program was built, as facts of a record: commit, flags, profile, features.
pub(super) fn build_facts() -> Vec<(String, String)> {
    let told = [("commit", option_env!("BLOCKWIRE_COMMIT")), ("build flags", option_env!("BLOCKWIRE_FLAGS"))];
    let told = told.into_iter().filter_map(|(name, value)| Some((name, value?.trim())));
    let told =
        told.filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.to_owned(), value.to_owned()));
    std::iter::once(("build".to_owned(), build_options())).chain(told).collect()
}

/// What the compiler was told, as far as the program itself knows.
fn build_options() -> String {
    let kind = if cfg!(debug_assertions) { "debug" } else { "release" };
    let mut features = Vec::new();
    for (name, is_on) in [
        ("sse4.2", cfg!(target_feature = "sse4.2")),
        ("avx2", cfg!(target_feature = "avx2")),
        ("avx512f", cfg!(target_feature = "avx512f")),
        ("aes", cfg!(target_feature = "aes")),
        ("crc", cfg!(target_feature = "crc")),
    ] {
        features.extend(is_on.then_some(name));
    }
    let features =
        if features.is_empty() { "no feature beyond its baseline".to_owned() } else { features.join(", ") };
    format!("{kind}, {} {}, {features}", std::env::consts::ARCH, std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_build_says_what_it_is_and_nothing_empty() {
        let facts = super::build_facts();
        assert!(facts.iter().any(|(name, value)| name == "build" && value.contains(std::env::consts::ARCH)));
        assert!(facts.iter().all(|(_, value)| !value.is_empty()), "{facts:?}");
    }
}
