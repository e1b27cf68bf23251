//! Why a script is refused.

use std::fmt;

/// Why a script is refused, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    /// Which file; `None`: the command line.
    pub file: Option<String>,
    /// Which line, or argument, from 1; 0: the whole.
    pub position: usize,
    /// What is wrong.
    pub reason: ScriptErrorReason,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.position) {
            (Some(file), 0) => write!(f, "{file}: {}", self.reason),
            (Some(file), line) => write!(f, "{file}:{line}: {}", self.reason),
            (None, 0) => self.reason.fmt(f),
            (None, argument) => write!(f, "argument {argument}: {}", self.reason),
        }
    }
}

impl std::error::Error for ScriptError {}

/// What is wrong with a script. Its text says what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptErrorReason {
    /// A value is not of the form that its option takes: the value, and what is expected.
    BadValue(String, &'static str),
    /// A number is outside its range.
    OutOfRange {
        /// As it was written.
        text: String,
        /// The smallest that is taken.
        least: String,
        /// The largest.
        most: String,
    },
    /// A third value after a comma.
    ThirdValue,
    /// The option has no value.
    NoValue(String),
    /// `...` does not stand between two names of a range.
    BadRange(String),
    /// `verify` names a method that is not supported.
    UnknownVerify(String),
    /// The option asks for what is not done here.
    Unsupported(&'static str),
    /// No option of fio that is known here, and the known one that is most like it.
    UnknownOption(String, Option<&'static str>),
    /// A line of a job file that cannot be read: why.
    BadLine(&'static str),
    /// A word of a command line that is no option.
    NotAnOption(String),
    /// A job cannot be run as it is: its name, and why.
    BadJob(String, &'static str),
    /// There is nothing to run: why.
    NoJob(&'static str),
    /// A job uses a file that stands for no volume.
    NotMapped {
        /// The job's name.
        job: String,
        /// The file.
        file: String,
    },
}

impl fmt::Display for ScriptErrorReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScriptErrorReason::BadValue(text, expected) => write!(f, "\"{text}\" {expected}"),
            ScriptErrorReason::OutOfRange { text, least, most } => {
                write!(f, "\"{text}\" is no number from {least} to {most}")
            }
            ScriptErrorReason::ThirdValue => {
                f.write_str("a third value is for trims, which have the writes' here")
            }
            ScriptErrorReason::NoValue(option) => write!(f, "\"{option}\" needs a value"),
            ScriptErrorReason::BadRange(text) => write!(
                f,
                "\"...\" in \"{text}\" must stand between two names that differ in their last letter"
            ),
            ScriptErrorReason::UnknownVerify(method) => {
                write!(f, "verify={method} is not supported; write verify=crc32c")
            }
            ScriptErrorReason::Unsupported(why)
            | ScriptErrorReason::BadLine(why)
            | ScriptErrorReason::NoJob(why) => f.write_str(why),
            ScriptErrorReason::UnknownOption(option, Some(known)) => {
                write!(f, "fio's \"{option}\" is not supported; did you mean \"{known}\"?")
            }
            ScriptErrorReason::UnknownOption(option, None) => {
                write!(f, "fio's \"{option}\" is not supported")
            }
            ScriptErrorReason::NotAnOption(word) => {
                write!(f, "\"{word}\": options begin with --; a job file stands alone")
            }
            ScriptErrorReason::BadJob(name, why) => write!(f, "job \"{name}\" {why}"),
            ScriptErrorReason::NotMapped { job, file } => {
                write!(f, "job \"{job}\" uses {file}: say which volume it is with --map {file}=URL")
            }
        }
    }
}
