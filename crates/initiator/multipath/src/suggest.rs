//! "Did you mean": the nearest known word, for every message that refuses an unknown one.

/// The candidate nearest to `word`, if one is near enough to be a likely slip of the keyboard.
///
/// Near enough means a similarity of at least 0.7 (Jaro-Winkler), one slip in three letters, or
/// one word being the start of the other; anything further apart would only mislead.
pub fn nearest_word<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let near = |candidate: &str| {
        let slips = strsim::damerau_levenshtein(&word, candidate);
        slips * 3 <= word.chars().count() || (word.len() >= 2 && candidate.starts_with(&word))
    };
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(&word, candidate), candidate))
        .filter(|(score, candidate)| *score >= 0.7 || near(candidate))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// The sentence that follows an unknown word: `; did you mean "size"?`, or the whole list of what is known.
pub fn unknown_word_hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match nearest_word(word, known.clone()) {
        Some(candidate) => format!("; did you mean \"{candidate}\"?"),
        None => {
            let all: Vec<&str> = known.into_iter().collect();
            format!("; known: {}", all.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_found_and_strangers_are_not() {
        let known = ["size", "block", "physical", "ro", "uuid"];
        for (word, want) in [
            ("siez", Some("size")),
            ("blocks", Some("block")),
            ("phys", Some("physical")),
            ("UUID", Some("uuid")),
            ("ucid", Some("uuid")),
            ("qqq", None),
        ] {
            assert_eq!(nearest_word(word, known), want, "{word}");
        }
        assert_eq!(unknown_word_hint("qqq", known), "; known: size, block, physical, ro, uuid");
    }
}
