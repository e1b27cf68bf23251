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

/// How many known words a message lists at most.
const LISTED_WORDS_MAX: usize = 8;

/// The sentence that follows an unknown word: `; did you mean "size"?`, or what is known: of many, those most alike.
pub fn unknown_word_hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    if let Some(candidate) = nearest_word(word, known.clone()) {
        return format!("; did you mean \"{candidate}\"?");
    }
    let mut all: Vec<&str> = known.into_iter().collect();
    let unlisted = all.len().saturating_sub(LISTED_WORDS_MAX);
    if unlisted == 0 {
        return format!("; known: {}", all.join(", "));
    }
    let word = word.to_ascii_lowercase();
    all.sort_by(|a, b| strsim::jaro_winkler(&word, b).total_cmp(&strsim::jaro_winkler(&word, a)));
    all.truncate(LISTED_WORDS_MAX);
    format!("; known: {} and {unlisted} more", all.join(", "))
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

    #[test]
    fn of_many_words_those_most_alike_are_listed() {
        let names: Vec<String> = (0..1000).map(|number| format!("volume{number}")).collect();
        let known = names.iter().map(String::as_str).chain(["xyz"]);
        let hint = unknown_word_hint("wxqq", known);
        assert!(hint.starts_with("; known: xyz, volume") && hint.ends_with(" and 993 more"), "{hint}");
    }
}
