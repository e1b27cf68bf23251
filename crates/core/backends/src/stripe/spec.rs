//! The text form of a stripe: `stripe:LEG+LEG...[,key=value]...`.
//!
//! A comma, a plus sign or a backslash that belongs to a leg is escaped with a backslash; the plus signs of
//! `nvme+tcp://` and `nbd+unix://` need none. Invariant: [`cut`] parses what [`format_legs`] prints.

use std::fmt;

use super::LEGS_MAX;

/// What it begins with.
const STRIPE_PREFIX: &str = "stripe:";

/// The two halves of `nvme+tcp://` and of `nbd+unix://`.
const SCHEME_HALVES: [[&str; 2]; 2] = [["nvme", "tcp://"], ["nbd", "unix://"]];

/// A stripe as it was written, cut; what legs and fields mean is for others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedStripe {
    /// The legs, two at least.
    pub legs: Vec<String>,
    /// What follows them.
    pub fields: Vec<String>,
}

/// Why it is not written as it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripeSyntaxError {
    /// A backslash at the end, or before something that needs none.
    Escape,
    /// Nothing stands where this leg should, counted from 1.
    NoLeg(usize),
    /// One leg is no stripe.
    OneLeg,
    /// More than [`LEGS_MAX`].
    TooMany,
}

impl fmt::Display for StripeSyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StripeSyntaxError::Escape => write!(f, "a backslash must be followed by \",\", \"+\" or \"\\\""),
            StripeSyntaxError::NoLeg(leg) => {
                write!(f, "stripe: leg {leg} is empty; a stripe is written stripe:VOLUME+VOLUME")
            }
            StripeSyntaxError::OneLeg => write!(
                f,
                "stripe: needs two legs at least, as in stripe:/dev/sdb+/dev/sdc (a comma inside of a leg is \
                 written \\,)"
            ),
            StripeSyntaxError::TooMany => write!(f, "stripe: has more than {LEGS_MAX} legs"),
        }
    }
}

impl std::error::Error for StripeSyntaxError {}

/// Whether a stripe is meant.
pub fn is_meant(text: &str) -> bool {
    text.starts_with(STRIPE_PREFIX)
}

/// Cuts a stripe into legs and fields, without their backslashes.
///
/// # Errors
/// What is not written as it must be.
pub fn parse_stripe(text: &str) -> Result<ParsedStripe, StripeSyntaxError> {
    let mut rest = text.strip_prefix(STRIPE_PREFIX).unwrap_or(text);
    let mut cut = ParsedStripe { legs: vec![String::new()], fields: Vec::new() };
    loop {
        let in_legs = cut.fields.is_empty();
        let mut chars = rest.chars();
        // There is one leg from the beginning.
        let (Some(c), Some(last)) = (chars.next(), cut.fields.last_mut().or(cut.legs.last_mut())) else {
            break;
        };
        let behind = chars.as_str();
        rest = behind;
        match c {
            '\\' => match behind.chars().next() {
                Some(escaped @ (',' | '+' | '\\')) => {
                    last.push(escaped);
                    rest = behind.get(1..).unwrap_or_default();
                }
                _ => return Err(StripeSyntaxError::Escape),
            },
            ',' => cut.fields.push(String::new()),
            '+' if in_legs && !is_scheme_plus(last, behind) => cut.legs.push(String::new()),
            c => last.push(c),
        }
    }
    match &cut.legs[..] {
        legs if legs.len() > LEGS_MAX => Err(StripeSyntaxError::TooMany),
        legs if legs.iter().any(|leg| leg.trim().is_empty()) => {
            Err(StripeSyntaxError::NoLeg(1 + legs.iter().position(|leg| leg.trim().is_empty()).unwrap_or(0)))
        }
        [_] => Err(StripeSyntaxError::OneLeg),
        _ => Ok(cut),
    }
}

/// Whether the plus sign between these is the one of a scheme.
fn is_scheme_plus(before: &str, behind: &str) -> bool {
    let begun = before.rsplit(',').next();
    SCHEME_HALVES.iter().any(|[first, second]| begun == Some(first) && behind.starts_with(second))
}

/// The legs as they are written.
pub fn format_legs<'a>(legs: impl Iterator<Item = &'a str>) -> String {
    let mut text = STRIPE_PREFIX.to_owned();
    for (at, leg) in legs.enumerate() {
        if at > 0 {
            text.push('+');
        }
        for (at, c) in leg.char_indices() {
            let is_plain = match c {
                '+' => leg.split_at_checked(at).is_some_and(|(before, rest)| {
                    is_scheme_plus(before, rest.strip_prefix('+').unwrap_or_default())
                }),
                c => !matches!(c, ',' | '\\'),
            };
            if !is_plain {
                text.push('\\');
            }
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn legs(text: &str) -> Vec<String> {
        parse_stripe(text).unwrap().legs
    }

    #[test]
    fn legs_are_cut_at_plus_signs() {
        assert_eq!(legs("stripe:a+b+c"), ["a", "b", "c"]);
        assert_eq!(legs(r"stripe:file:/a\+b\,c+/dev/sdb"), ["file:/a+b,c", "/dev/sdb"]);
        assert_eq!(
            legs(r"stripe:nvme+tcp://h/n/1\,nvme+tcp://i/n/1+iscsi://h/n/0"),
            ["nvme+tcp://h/n/1,nvme+tcp://i/n/1", "iscsi://h/n/0"]
        );
        assert_eq!(legs(r"stripe:nvme\+tcp://h/n/1+ram:1M"), ["nvme+tcp://h/n/1", "ram:1M"]);
        let cut = parse_stripe("stripe:a+b,chunk=4K,name=x+y").unwrap();
        assert_eq!(cut.fields, ["chunk=4K", "name=x+y"]);
    }

    #[test]
    fn what_is_not_written_well_is_named() {
        let of = |text: &str| parse_stripe(text).unwrap_err();
        assert_eq!(of("stripe:a"), StripeSyntaxError::OneLeg);
        assert_eq!(of("stripe:a,b"), StripeSyntaxError::OneLeg);
        assert_eq!(of("stripe:a++b"), StripeSyntaxError::NoLeg(2));
        assert_eq!(of("stripe:"), StripeSyntaxError::NoLeg(1));
        assert_eq!(of(r"stripe:a+b\"), StripeSyntaxError::Escape);
        assert_eq!(of(r"stripe:a+\b"), StripeSyntaxError::Escape);
        assert_eq!(of(&format!("stripe:a{}", "+a".repeat(LEGS_MAX))), StripeSyntaxError::TooMany);
        assert!(parse_stripe(&format!("stripe:a{}", "+a".repeat(LEGS_MAX - 1))).is_ok());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            legs in prop::collection::vec("(nvme\\+tcp://|,nvme\\+tcp://)?[a-z+,\\\\:/]{1,12}", 2..5)
        ) {
            let text = format_legs(legs.iter().map(String::as_str));
            prop_assert_eq!(parse_stripe(&text).unwrap(), ParsedStripe { legs, fields: Vec::new() });
        }
    }
}
