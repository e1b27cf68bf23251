//! The name of a group of gateways.

use std::fmt;
use std::str::FromStr;

/// The longest name, in bytes.
const LEN_MAX: usize = 48;

/// A group's name: letters, digits, `-` and `_`. The names of its objects are made of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupName(String);

/// Why a text is no name of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupNameError {
    /// It is empty or longer than 48 bytes.
    Length,
    /// It has a character other than letters, digits, `-` and `_`.
    Character(char),
}

impl fmt::Display for GroupNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupNameError::Length => write!(f, "the name of a group has 1 to {LEN_MAX} characters"),
            GroupNameError::Character(found) => {
                write!(f, "the name of a group has letters, digits, - and _ only, not {found:?}")
            }
        }
    }
}

impl std::error::Error for GroupNameError {}

impl FromStr for GroupName {
    type Err = GroupNameError;

    fn from_str(text: &str) -> Result<Self, GroupNameError> {
        if text.is_empty() || text.len() > LEN_MAX {
            return Err(GroupNameError::Length);
        }
        let is_allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        match text.chars().find(|c| !is_allowed(c)) {
            Some(found) => Err(GroupNameError::Character(found)),
            None => Ok(GroupName(text.to_owned())),
        }
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_letters_digits_and_dashes() {
        assert_eq!("rack-7_b".parse::<GroupName>().unwrap().to_string(), "rack-7_b");
        assert_eq!("".parse::<GroupName>(), Err(GroupNameError::Length));
        assert_eq!("a".repeat(49).parse::<GroupName>(), Err(GroupNameError::Length));
        // A dot would let one group's objects be another's.
        assert_eq!("a.owner".parse::<GroupName>(), Err(GroupNameError::Character('.')));
        assert_eq!("ä".parse::<GroupName>(), Err(GroupNameError::Character('ä')));
    }
}
