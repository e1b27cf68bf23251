//! Hostile files: the fuzzer's code on stable Rust, with every stored seed and arbitrary text.

mod body;

use proptest::prelude::*;

#[test]
fn stored_seeds() {
    testkit::corpus::run_seeds(&[("import", body::import)]);
}

/// Words of the formats, so that more than the first line is reached.
const WORDS: [&str; 40] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    "\n",
    " ",
    "<target iqn.2026-11.x:y>",
    "</target>",
    "backing-store",
    "lun",
    "include",
    "f",
    "target",
    "auth-group",
    "portal-group",
    "listen",
    "chap",
    "option",
    "HANDLER",
    "DEVICE",
    "TARGET_DRIVER",
    "iscsi",
    "TARGET",
    "GROUP",
    "LUN",
    "INITIATOR",
    "enabled",
    "1",
    "0",
    "filename",
    "path",
    "/a",
    "\"targets\"",
    "\"tpgs\"",
    "\"luns\"",
    "\"subsystems\"",
    "99999999999999999999",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn arbitrary_words(format in 0..6_u8, words in prop::collection::vec(prop::sample::select(&WORDS[..]), 0..80)) {
        let mut data = vec![format];
        data.extend(words.join(" ").bytes());
        body::import(&data);
    }

    #[test]
    fn arbitrary_text(format in 0..6_u8, text in "\\PC{0,200}") {
        let mut data = vec![format];
        data.extend(text.bytes());
        body::import(&data);
    }
}
