//! Errors in a value of a `chiscsi.conf`; the text follows the key.

use std::fmt;

use config::{name::NameError, network::AddressError};

/// The form of `PortalGroup`.
pub const PORTAL_FORM: &str = "is TAG@ADDRESS[:PORT], for example 1@192.0.2.10:3260";

/// Why a value is refused.
#[derive(Debug, PartialEq, Eq)]
pub enum ValueError {
    /// It lacks its form, or breaks a rule that names nothing of it.
    Form(&'static str),
    /// No number, or one out of its range.
    Number {
        /// What was written.
        text: String,
        /// The least one.
        min: u64,
        /// The greatest one.
        max: u64,
    },
    /// None of the words that may stand there.
    Word {
        /// What was written.
        text: String,
        /// What may be.
        known: Vec<String>,
    },
    /// Another value than the only one that the format's software has.
    Fixed {
        /// What was written.
        text: String,
        /// The only value.
        only: String,
    },
    /// A list with nothing between two commas.
    EmptyElement(String),
    /// More than so many of what is named.
    TooMany(usize, &'static str),
    /// A key that stands more often in a block than so.
    TooOften(usize),
    /// An initiator's or a target's name that is none.
    Name(NameError),
    /// A portal without an address.
    Portal(AddressError),
    /// An address that stands twice.
    SameAddress(std::net::SocketAddr),
    /// No IP address.
    Address(String),
    /// A part of an ACL without a key.
    NoAclKey(String),
    /// A key of an ACL that stands twice.
    SameAclKey(String),
    /// A key that an ACL does not have, and what may be meant.
    AclKey(String, String),
    /// A range of logical units that ends before it begins.
    Range(String),
    /// An option that a device does not have, and what may be meant.
    Option(String, String),
    /// Protection information.
    Protection(String),
    /// A name of a device that is too long, or not plain.
    DeviceName(usize, String, String),
    /// No multiple of 16.
    Multiple(String),
    /// No vendor's name.
    Vendor(String),
    /// What is wrong with a part of the value, which is said first.
    Part(&'static str, Box<ValueError>, &'static str),
}

impl ValueError {
    /// It is in this part of the value.
    pub fn within_part(self, before: &'static str, behind: &'static str) -> Self {
        ValueError::Part(before, Box::new(self), behind)
    }
}

impl From<&'static str> for ValueError {
    fn from(form: &'static str) -> Self {
        ValueError::Form(form)
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueError::Form(form) => f.write_str(form),
            ValueError::Number { text, min, max } => {
                write!(f, "takes a number from {min} to {max}, not \"{text}\"")
            }
            ValueError::Word { text, known } => write!(f, "takes {}, not \"{text}\"", known.join(" or ")),
            ValueError::Fixed { text, only } => write!(f, "can only be \"{only}\", not \"{text}\""),
            ValueError::EmptyElement(text) => write!(f, "has an empty element in \"{text}\""),
            ValueError::TooMany(most, what) => write!(f, "names more than {most} {what}"),
            ValueError::TooOften(most) => write!(f, "appears more than {most} times in one block"),
            ValueError::Name(why) => why.fmt(f),
            ValueError::Portal(why) => write!(f, "{}: {why}", PORTAL_FORM),
            ValueError::SameAddress(address) => write!(f, "names {address} twice"),
            ValueError::Address(text) => write!(f, "\"{text}\" is not an IP address"),
            ValueError::NoAclKey(part) => {
                write!(f, "expected iname=, sip=, dip= or lun= where \"{part}\" stands")
            }
            ValueError::SameAclKey(key) => write!(f, "names {key}= twice; one takes a list"),
            ValueError::AclKey(key, hint) => write!(f, "has no part \"{key}\"{hint}"),
            ValueError::Range(text) => write!(f, "has a range that ends before it begins: \"{text}\""),
            ValueError::Option(option, hint) => write!(f, "has no option \"{option}\"{hint}"),
            ValueError::Protection(part) => {
                write!(f, "asks for protection information ({part}), which is not implemented")
            }
            ValueError::DeviceName(longest, key, value) => {
                write!(f, "takes at most {longest} letters and digits as {key}, not \"{value}\"")
            }
            ValueError::Multiple(text) => write!(f, "takes a multiple of 16, not \"{text}\""),
            ValueError::Vendor(text) => {
                write!(f, "takes 1 to 8 printable ASCII characters, not \"{text}\"")
            }
            ValueError::Part(before, why, behind) => write!(f, "{before}{why}{behind}"),
        }
    }
}

impl std::error::Error for ValueError {}

/// Why a key is refused.
#[derive(Debug, PartialEq, Eq)]
pub enum KeyError {
    /// It belongs into the other kind of block.
    OtherBlock {
        /// The key.
        name: String,
        /// Where it stands.
        block: &'static str,
        /// Where it belongs.
        other: &'static str,
    },
    /// Nobody knows it.
    Unknown {
        /// The key.
        name: String,
        /// Where it stands.
        block: &'static str,
        /// The known key that is nearest.
        near: Option<&'static str>,
    },
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::OtherBlock { name, block, other } => {
                write!(f, "key \"{name}\" belongs in \"{other}\", not in \"{block}\"")
            }
            KeyError::Unknown { name, block, near: Some(near) } => {
                write!(f, "unknown key \"{name}\" in \"{block}\"; did you mean \"{near}\"?")
            }
            KeyError::Unknown { name, block, near: None } => {
                write!(f, "unknown key \"{name}\" in \"{block}\"")
            }
        }
    }
}

impl std::error::Error for KeyError {}
