//! Runs experiments: the known systems, their processors and machines, and the directory for files.

use std::path::PathBuf;

use crate::Failure;
use crate::initiator::Initiator;
use crate::link::{Link, RemoteMachines};
use crate::progress::ProgressDisplay;
use crate::target::{ServingTarget, Target};

/// Which processors belong to which end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreAssignment {
    /// The target's; empty: all.
    pub target: Vec<usize>,
    /// The initiators'; empty: all.
    pub initiator: Vec<usize>,
}

impl CoreAssignment {
    /// So many for the target: its own first, then those of initiators.
    pub fn target_cores(&self, count: Option<u32>) -> Vec<usize> {
        let Some(count) = count.map(|count| count as usize) else {
            return self.target.clone();
        };
        if self.target.is_empty() {
            return (0..count).collect();
        }
        let others = self.initiator.iter().filter(|core| !self.target.contains(core));
        self.target.iter().chain(others).copied().take(count).collect()
    }

    /// The first half of a machine's for the target, the rest for initiators; all for both if there is
    /// one only.
    pub fn split_in_half(cores: usize) -> CoreAssignment {
        match cores {
            0 | 1 => CoreAssignment::default(),
            _ => CoreAssignment { target: (0..cores / 2).collect(), initiator: (cores / 2..cores).collect() },
        }
    }
}

/// Who runs a plan.
pub struct Runner<'a> {
    /// Targets that are known.
    pub targets: &'a [Box<dyn Target>],
    /// Initiators that are known.
    pub initiators: &'a [Box<dyn Initiator>],
    /// Which processors are whose.
    pub cores: CoreAssignment,
    /// Machines reached by ssh; `None`: all is on this one.
    pub machines: Option<RemoteMachines>,
    /// For files and logs.
    pub dir: PathBuf,
    /// Who is told.
    pub live: &'a mut dyn ProgressDisplay,
}

/// A target that serves over a link. The target goes before the link.
pub(crate) struct Testbed {
    pub(crate) serving: ServingTarget,
    pub(crate) link: Link,
}

impl Runner<'_> {
    /// The target of this name.
    ///
    /// # Errors
    /// If none is known: which are.
    pub fn find_target(&self, name: &str) -> Result<&dyn Target, Failure> {
        let found = self.targets.iter().find(|target| target.name() == name);
        found.map(|target| &**target).ok_or_else(|| {
            let known: Vec<&str> = self.targets.iter().map(|target| target.name()).collect();
            Failure::new(format!("unknown target {name}; known: {}", known.join(", ")))
        })
    }

    /// The initiator of this name.
    ///
    /// # Errors
    /// If none is known: which are.
    pub fn find_initiator(&self, name: &str) -> Result<&dyn Initiator, Failure> {
        let found = self.initiators.iter().find(|initiator| initiator.name() == name);
        found.map(|initiator| &**initiator).ok_or_else(|| {
            let known: Vec<&str> = self.initiators.iter().map(|initiator| initiator.name()).collect();
            Failure::new(format!("unknown initiator {name}; known: {}", known.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_shared_out() {
        assert_eq!(CoreAssignment::split_in_half(1), CoreAssignment::default());
        assert_eq!(CoreAssignment::split_in_half(2), CoreAssignment { target: vec![0], initiator: vec![1] });
        assert_eq!(CoreAssignment::split_in_half(5).initiator, [2, 3, 4]);
        let of = |cores: CoreAssignment, count| cores.target_cores(count);
        assert_eq!(of(CoreAssignment::split_in_half(4), Some(1)), [0]);
        assert_eq!(of(CoreAssignment::split_in_half(4), Some(3)), [0, 1, 2]);
        assert_eq!(
            (of(CoreAssignment::split_in_half(2), None), of(CoreAssignment::default(), Some(2))),
            (vec![0], vec![0, 1])
        );
    }
}
