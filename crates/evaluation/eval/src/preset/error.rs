//! Why a preset cannot be run here.

use std::fmt;

/// Why nothing of a preset can be done here, and what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// It is no load on volumes alone, and has a runner of its own.
    OtherRunner(&'static str),
    /// None of the systems that were named is here; which are.
    NoSystems {
        /// Targets that are here.
        targets: Vec<String>,
        /// Initiators that are here.
        initiators: Vec<String>,
    },
    /// It is about links that are held to a speed, and others were named.
    OwnLinks(&'static str),
    /// Its links cannot be made here.
    NoLinks(&'static str, NetworkNamespaceError),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::OtherRunner(preset) => {
                write!(f, "{preset} is not a load on volumes alone: it has a runner of its own")
            }
            PlanError::NoSystems { targets, initiators } => write!(
                f,
                "none of the systems that were named is here (targets: {}; initiators: {})",
                targets.join(", "),
                initiators.join(", ")
            ),
            PlanError::OwnLinks(preset) => {
                write!(f, "{preset} is about links that are held to a speed: it has its own")
            }
            PlanError::NoLinks(preset, why) => {
                write!(f, "{preset} needs a link that can be congested, and network namespaces: {why}")
            }
        }
    }
}

impl std::error::Error for PlanError {}

/// Why network namespaces cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkNamespaceError {
    /// The ends run on other machines, whose network is used as it is.
    OtherMachines,
    /// `ip` is not installed.
    NoIp,
    /// The kernel refused: what `ip` said.
    Refused(String),
}

impl fmt::Display for NetworkNamespaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetworkNamespaceError::OtherMachines => f.write_str("other machines are named"),
            NetworkNamespaceError::NoIp => f.write_str("ip(8) is missing: apt install iproute2"),
            NetworkNamespaceError::Refused(why) => write!(f, "{why}; it takes root"),
        }
    }
}
