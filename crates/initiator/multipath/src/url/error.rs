//! Errors of URLs, and the right form.

use std::fmt;

use super::Protocol;

/// A part of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UrlPart {
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
pub enum UrlProblem {
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
    pub part: UrlPart,
    /// What.
    pub wrong: UrlProblem,
}

impl UrlError {
    fn part_description(&self) -> &str {
        let nvme = self.protocol == Some(Protocol::Nvme);
        match &self.part {
            UrlPart::Whole => "the URL",
            UrlPart::Scheme => "the scheme in front of ://",
            UrlPart::User => "the user before @",
            UrlPart::Password => "the password behind the user's %",
            UrlPart::Host => "the host",
            UrlPart::Port => "the port",
            UrlPart::Target if nvme => "the subsystem's name",
            UrlPart::Target => "the target's name",
            UrlPart::Unit if nvme => "the namespace's number",
            UrlPart::Unit => "the logical unit's number",
            UrlPart::Option(key) => key,
        }
    }
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = self.part_description();
        match &self.wrong {
            UrlProblem::Missing if self.part == UrlPart::Password => {
                return f.write_str(
                    "the user before @ has no secret: add ?secret_file=FILE or ?secret_env=NAME to the URL",
                );
            }
            UrlProblem::Missing => write!(f, "{subject} is missing")?,
            UrlProblem::Scheme(found) => write!(f, "{subject} is \"{found}\", not iscsi or nvme+tcp")?,
            UrlProblem::Long(most) => write!(f, "{subject} has more than {most} bytes")?,
            UrlProblem::TooMany(most) => write!(f, "more than {most} URLs for one volume")?,
            UrlProblem::Character => write!(f, "{subject} contains a character that is not allowed there")?,
            UrlProblem::Escape => {
                write!(f, "{subject} contains a % without two hexadecimal digits after it; write %25 for %")?
            }
            UrlProblem::Slash => write!(f, "{subject} holds a slash; write %2F")?,
            UrlProblem::Bracket => {
                write!(f, "{subject} is no IPv6 address in brackets, as in [fe80::1]:3260")?
            }
            UrlProblem::Range(least, most) => write!(f, "{subject} is no number from {least} to {most}")?,
            UrlProblem::Name if self.protocol == Some(Protocol::Nvme) => {
                write!(f, "{subject} is no NQN: nqn.yyyy-mm.reversed.domain:anything")?
            }
            UrlProblem::Name => {
                write!(f, "{subject} is no iSCSI name: iqn.yyyy-mm.reversed.domain:anything")?
            }
            UrlProblem::NotHere => match (&self.part, self.protocol) {
                (UrlPart::User, _) => write!(
                    f,
                    "NVMe/TCP has no user before @; its secrets are options: secret_file or secret_env"
                )?,
                (_, Some(Protocol::Nvme)) => write!(f, "the option {subject} is of iSCSI")?,
                _ => write!(f, "the option {subject} is of NVMe/TCP")?,
            },
            UrlProblem::Unknown(Some(near)) => {
                write!(f, "the option \"{subject}\" is not known; did you mean \"{near}\"?")?
            }
            UrlProblem::Unknown(None) => write!(f, "the option \"{subject}\" is not known")?,
            UrlProblem::Value(want) => write!(f, "the option {subject} must be {want}")?,
            UrlProblem::Twice => write!(f, "the option {subject} is given twice, and not alike")?,
            UrlProblem::Clashes(other) => {
                write!(f, "the option {subject} says the same as {other}: give one")?
            }
            UrlProblem::Needs(other) => write!(f, "the option {subject} needs {other}")?,
        }
        match (&self.part, self.protocol) {
            (UrlPart::Option(_), _) => Ok(()),
            (_, Some(protocol)) => write!(f, "; a right one: {}", protocol.example_url()),
            (_, None) => {
                write!(f, "; right ones: {}, {}", Protocol::Iscsi.example_url(), Protocol::Nvme.example_url())
            }
        }
    }
}

impl std::error::Error for UrlError {}
