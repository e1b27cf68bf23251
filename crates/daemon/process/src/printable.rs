//! Names of foreign origin, in a form that can be shown in the log, in tables, in JSON and in errors.
//!
//! A host chooses its NQN, an initiator its name and alias, a target its discovery records. Any of them may
//! contain characters that a terminal does not show as they are: controls, line and paragraph separators
//! (U+2028, U+2029), overrides of the writing direction (U+202E), invisible ones. They could forge lines,
//! hide their neighbours, or control the terminal. All text that this program outputs goes through this
//! module, so that it has one form everywhere: `\uXXXX`, as in JSON.
//!
//! Invariant: the result contains no such character, except line ends and tabs where requested.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a character does not show as itself.
pub fn is_hidden(c: char) -> bool {
    // The standard library knows which are printable; it escapes quotes and backslashes besides.
    !matches!(c, '"' | '\'' | '\\') && c.escape_debug().len() > 1
}

/// The text with every hidden character written as `\uXXXX`; of one beyond U+FFFF, as JSON has it, two.
pub fn escape_line(text: &str) -> Cow<'_, str> {
    escape_hidden(text, is_hidden)
}

/// The same for a text of several lines, whose line ends and tabs stay.
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    escape_hidden(text, |c| !matches!(c, '\n' | '\t') && is_hidden(c))
}

fn escape_hidden(text: &str, hides: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&hides) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if hides(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hidden_character_is_shown_as_it_is() {
        let evil = "nqn.a\u{202e}txt\u{2028}b\u{2029}c\u{200b}d\u{feff}e\u{1b}[2J\u{85}\u{7f}\u{e0001}\n";
        let shown = escape_line(evil);
        assert!(!shown.chars().any(is_hidden), "{shown}");
        assert!(shown.starts_with("nqn.a\\u202etxt\\u2028b\\u2029c\\u200bd\\ufeffe\\u001b[2J\\u0085\\u007f"));
        assert!(shown.ends_with("\\udb40\\udc01\\u000a"));
        assert_eq!(escape_lines("a\nb\u{2028}\n"), "a\nb\\u2028\n");
        for plain in ["iqn.2026-11.test:host", "Prüfung 日本 'a' \"b\" \\ é"] {
            assert!(matches!(escape_line(plain), Cow::Borrowed(_)), "{plain}");
        }
    }

    #[test]
    fn json_means_the_same_as_before() {
        let evil = "a\u{202e}b\u{2028}\u{e0001}\\\"\n";
        let json = serde_json::json!({ "name": evil }).to_string();
        let shown = escape_line(&json);
        assert!(!shown.chars().any(is_hidden));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap()["name"], evil);
    }
}
