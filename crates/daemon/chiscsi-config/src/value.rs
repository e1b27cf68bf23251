//! Values that several keys share: numbers, words, lists. Words are case-sensitive, as the format requires.

use std::ops::RangeInclusive;

use multipath::suggest;

use super::error::ValueError;

/// The known word nearest to one that is not, letters of either case being the same.
pub fn nearest_word<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower: Vec<String> = known.iter().map(|known| known.to_ascii_lowercase()).collect();
    let near = suggest::nearest_word(word, lower.iter().map(String::as_str))?;
    known.iter().copied().find(|known| known.eq_ignore_ascii_case(near))
}

/// The sentence that follows an unknown word.
pub fn suggestion(word: &str, known: &[&str]) -> String {
    match nearest_word(word, known) {
        Some(near) => format!("; did you mean \"{near}\"?"),
        None => format!("; known: {}", known.join(", ")),
    }
}

/// A number in a range.
pub fn parse_number(text: &str, range: RangeInclusive<u64>) -> Result<u64, ValueError> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse::<u64>().ok().filter(|number| digits && range.contains(number));
    let (min, max) = range.into_inner();
    number.ok_or_else(|| ValueError::Number { text: text.to_owned(), min, max })
}

/// `Yes` or `No`.
pub fn parse_switch(text: &str) -> Result<bool, ValueError> {
    parse_keyword(text, &[("Yes", true), ("No", false)])
}

/// One of some words.
pub fn parse_keyword<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, ValueError> {
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let known = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
    Err(ValueError::Word { text: text.to_owned(), known })
}

/// A value that only `only` may have: the format knows others, its software never did.
pub fn require_only(text: &str, only: &str) -> Result<(), ValueError> {
    if text == only {
        Ok(())
    } else {
        Err(ValueError::Fixed { text: text.to_owned(), only: only.to_owned() })
    }
}

/// Parts between commas, without blanks around them; none may be empty.
pub fn split_parts(text: &str) -> Result<Vec<&str>, ValueError> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if parts.iter().any(|part| part.is_empty()) {
        return Err(ValueError::EmptyElement(text.to_owned()));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        assert_eq!(parse_number("2048", 1..=2048), Ok(2048));
        for text in ["", "0", "2049", "-1", "+1", "1 ", "0x10", "99999999999999999999"] {
            assert!(parse_number(text, 1..=2048).is_err(), "{text}");
        }
        assert_eq!((parse_switch("Yes"), parse_switch("No")), (Ok(true), Ok(false)));
        assert_eq!(parse_switch("yes").unwrap_err().to_string(), "takes \"Yes\" or \"No\", not \"yes\"");
        assert!(require_only("No", "No").is_ok() && require_only("Yes", "No").is_err());
        assert_eq!(split_parts("None, CRC32C"), Ok(vec!["None", "CRC32C"]));
        assert!(split_parts("None,,CRC32C").is_err() && split_parts("").is_err());
    }
}
