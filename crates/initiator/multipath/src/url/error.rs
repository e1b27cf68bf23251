//! Errors of URLs, and the right form.

use std::fmt;

use super::Protocol;

/// A part of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// In front of `://`.
    Scheme,
    /// In front of `@`.
    User,
    /// Behind the user's `%`.
    Password,
    /// The machine.
    Host,
    /// Behind its colon.
    Port,
    /// The name of the target or subsystem.
    Target,
    /// The logical unit's or namespace's number.
    Unit,
    /// This option.
    Option(String),
}

/// What is wrong with a part. What a user wrote is shown only where it cannot be a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It is not there.
    Missing,
    /// No scheme of ours.
    Scheme(String),
    /// More bytes than this.
    Long(usize),
    /// More URLs than this.
    TooMany(usize),
    /// A character that may not stand there.
    Character,
    /// A `%` without two hexadecimal digits behind it.
    Escape,
    /// A slash that must be written `%2F`.
    Slash,
    /// An IPv6 address that is none, or stands without its brackets.
    Bracket,
    /// No number from the first to the second.
    Range(u32, u32),
    /// No name of its kind.
    Name,
    /// This protocol has no such thing here.
    NotHere,
    /// An option that is not known, and the nearest that is.
    Unknown(Option<&'static str>),
    /// The value must be one of these, or be written so.
    Value(&'static str),
    /// It was said twice, and not alike.
    Twice,
    /// It says the same as this other.
    Clashes(&'static str),
    /// It makes sense with this only.
    Needs(&'static str),
}

/// Why a text is no URL of a remote volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlError {
    /// Whose rules it breaks; `None`: the protocol is not known.
    pub protocol: Option<Protocol>,
    /// Where.
    pub part: Part,
    /// What.
    pub wrong: Wrong,
}

impl UrlError {
    fn subject(&self) -> &str {
        let nvme = self.protocol == Some(Protocol::Nvme);
        match &self.part {
            Part::Whole => "the URL",
            Part::Scheme => "the scheme in front of ://",
            Part::User => "the user before @",
            Part::Password => "the password behind the user's %",
            Part::Host => "the host",
            Part::Port => "the port",
            Part::Target if nvme => "the subsystem's name",
            Part::Target => "the target's name",
            Part::Unit if nvme => "the namespace's number",
            Part::Unit => "the logical unit's number",
            Part::Option(key) => key,
        }
    }
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = self.subject();
        match &self.wrong {
            Wrong::Missing => write!(f, "{subject} is missing")?,
            Wrong::Scheme(found) => write!(f, "{subject} is \"{found}\", not iscsi or nvme+tcp")?,
            Wrong::Long(most) => write!(f, "{subject} has more than {most} bytes")?,
            Wrong::TooMany(most) => write!(f, "more than {most} URLs for one volume")?,
            Wrong::Character => write!(f, "{subject} contains a character that is not allowed there")?,
            Wrong::Escape => {
                write!(f, "{subject} contains a % without two hexadecimal digits after it; write %25 for %")?
            }
            Wrong::Slash => write!(f, "{subject} holds a slash; write %2F")?,
            Wrong::Bracket => write!(f, "{subject} is no IPv6 address in brackets, as in [fe80::1]:3260")?,
            Wrong::Range(least, most) => write!(f, "{subject} is no number from {least} to {most}")?,
            Wrong::Name if self.protocol == Some(Protocol::Nvme) => {
                write!(f, "{subject} is no NQN: nqn.yyyy-mm.reversed.domain:anything")?
            }
            Wrong::Name => write!(f, "{subject} is no iSCSI name: iqn.yyyy-mm.reversed.domain:anything")?,
            Wrong::NotHere => match (&self.part, self.protocol) {
                (Part::User, _) => write!(
                    f,
                    "NVMe/TCP has no user before @; its secrets are options: secret_file or secret_env"
                )?,
                (_, Some(Protocol::Nvme)) => write!(f, "the option {subject} is of iSCSI")?,
                _ => write!(f, "the option {subject} is of NVMe/TCP")?,
            },
            Wrong::Unknown(Some(near)) => {
                write!(f, "the option \"{subject}\" is not known; did you mean \"{near}\"?")?
            }
            Wrong::Unknown(None) => write!(f, "the option \"{subject}\" is not known")?,
            Wrong::Value(want) => write!(f, "the option {subject} must be {want}")?,
            Wrong::Twice => write!(f, "the option {subject} is given twice, and not alike")?,
            Wrong::Clashes(other) => write!(f, "the option {subject} says the same as {other}: give one")?,
            Wrong::Needs(other) => write!(f, "the option {subject} needs {other}")?,
        }
        match (&self.part, self.protocol) {
            (Part::Option(_), _) => Ok(()),
            (_, Some(protocol)) => write!(f, "; a right one: {}", protocol.example()),
            (_, None) => {
                write!(f, "; right ones: {}, {}", Protocol::Iscsi.example(), Protocol::Nvme.example())
            }
        }
    }
}

impl std::error::Error for UrlError {}
