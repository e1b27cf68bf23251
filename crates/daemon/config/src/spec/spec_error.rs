//! Why a SPEC is refused, in words for who wrote it.

use std::fmt;

use super::{KEYS, KINDS};
use multipath::suggest;

/// Why a SPEC is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecError {
    /// No kind that anyone knows.
    UnknownKind(String),
    /// The part after the kind is missing.
    NoArgument(&'static str),
    /// An image of Ceph that is not named as it must be.
    BadImage(String),
    /// A URL that makes no sense or names no volume, in words without a password.
    BadUrl(String),
    /// A URL with a password in it.
    Password,
    /// A stripe that is not written as it must be.
    BadStripe(backends::stripe::StripeSyntaxError),
    /// A leg of a stripe that is a stripe itself.
    NestedStripe,
    /// What is wrong with a leg of a stripe, counted from 1.
    BadLeg(usize, Box<SpecError>),
    /// `/dev/...` was expected where another absolute path stands.
    NotADevice(String),
    /// A key that does not exist.
    UnknownKey(String),
    /// The same key twice.
    Repeated(String),
    /// A value that the key does not take.
    BadValue {
        /// The key.
        key: String,
        /// What is wrong, as the rest of a sentence that begins with the key.
        why: String,
    },
    /// A backslash at the end, or before something that needs none.
    BadEscape,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecError::UnknownKind(kind) => {
                let hint = suggest::unknown_word_hint(kind, KINDS);
                write!(f, "unknown kind of volume \"{kind}\"{hint} (or a device as /dev/NAME)")
            }
            SpecError::NoArgument("file") => write!(f, "file: needs a path, as in file:/srv/disk.img"),
            SpecError::NoArgument("rbd") => write!(f, "rbd: needs an image, as in rbd:POOL/IMAGE"),
            SpecError::BadImage(image) => write!(
                f,
                "\"{image}\" does not name an image: write rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE"
            ),
            SpecError::NoArgument(kind) => write!(f, "{kind}: needs a size, as in {kind}:64M"),
            SpecError::BadUrl(why) => f.write_str(why),
            SpecError::Password => f.write_str(
                "a URL of a served volume must not hold a password: write it to a file and add ?secret_file=FILE, \
                 or name a variable of the daemon's environment with ?secret_env=NAME",
            ),
            SpecError::BadStripe(why) => why.fmt(f),
            SpecError::NestedStripe => f.write_str("a stripe cannot be a leg of another"),
            SpecError::BadLeg(leg, why) => write!(f, "leg {leg} of the stripe: {why}"),
            SpecError::NotADevice(path) => {
                write!(f, "\"{path}\" is not under /dev; write file:{path} for a file")
            }
            SpecError::UnknownKey(key) => write!(f, "unknown key \"{key}\"{}", suggest::unknown_word_hint(key, KEYS)),
            SpecError::Repeated(key) => write!(f, "key \"{key}\" is given twice"),
            SpecError::BadValue { key, why } => write!(f, "{key} {why}"),
            SpecError::BadEscape => write!(f, "a backslash must be followed by \",\", \"+\" or \"\\\""),
        }
    }
}

impl std::error::Error for SpecError {}
