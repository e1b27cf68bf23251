//! Commands of a gateway's own hosts that its target executes without the member, as shards do while a group is
//! optimized.

use super::*;

/// Marks executions that the member does not know of.
const OWN: u64 = 1 << 63;

/// Which groups are served so, and what is under way.
#[derive(Debug, Default)]
pub(super) struct Direct {
    open: BTreeSet<GroupId>,
    begun: BTreeMap<ExecutionId, GroupId>,
    quiescing: BTreeMap<GroupId, u64>,
}

pub(super) fn is_own(execution: ExecutionId) -> bool {
    execution.0 & OWN != 0
}

/// The host's command.
pub(super) fn command_of(execution: ExecutionId) -> u64 {
    execution.0 & !OWN
}

fn group_of(volume: Uuid) -> GroupId {
    GroupId(u32::from(volume.0[0]))
}

impl Direct {
    pub(super) fn takes(&self, volume: Uuid) -> bool {
        self.open.contains(&group_of(volume))
    }

    pub(super) fn begin(&mut self, command: u64, volume: Uuid) -> ExecutionId {
        let execution = ExecutionId(OWN | command);
        self.begun.insert(execution, group_of(volume));
        execution
    }

    pub(super) fn end(&mut self, execution: ExecutionId) {
        self.begun.remove(&execution);
    }

    pub(super) fn set(&mut self, group: GroupId, open: bool) {
        if open {
            self.open.insert(group);
        } else {
            self.open.remove(&group);
        }
    }

    pub(super) fn quiesce(&mut self, group: GroupId, round: u64) {
        self.open.remove(&group);
        self.quiescing.insert(group, round);
    }

    fn poll_quiesced(&mut self) -> Option<(GroupId, u64)> {
        let (group, _) =
            self.quiescing.iter().find(|(group, _)| !self.begun.values().any(|of| of == *group))?;
        let group = *group;
        self.quiescing.remove_entry(&group)
    }
}

impl World {
    /// Answers the member when nothing of a group is under way any more.
    pub(super) fn tell_quiesced(&mut self, gateway: usize) {
        while let Some(process) = &mut self.gateways[gateway].process
            && let Some((group, round)) = process.direct.poll_quiesced()
        {
            let instance = process.instance;
            let delay = self.rng.below(2 * MS);
            self.after(delay, Event::Input(instance, Input::Quiesced(group, round)));
        }
    }
}

impl World {
    /// Does what a target wants.
    pub(super) fn wants(&mut self, gateway: usize, wants: Vec<Want>) {
        for want in wants {
            let now = self.local(gateway);
            let Some(process) = &mut self.gateways[gateway].process else { return };
            let instance = process.instance;
            match want {
                Want::Executed(execution, answer) if direct::is_own(execution) => {
                    process.direct.end(execution);
                    self.host_answer(direct::command_of(execution), Self::as_seen(Ok(answer)));
                    self.tell_quiesced(gateway);
                }
                Want::Executed(execution, answer) => process.member.handle_executed(now, execution, answer),
                Want::Io(io) => {
                    let delay = self.rng.below(2 * MS);
                    self.after(delay, Event::Send(instance, Sending::Io(io)));
                }
                Want::Store(volume, term, ticket, bytes) => {
                    process.member.store_record(now, volume, term, ticket, &bytes)
                }
                Want::Publish(volume, term, snapshot, notices) => {
                    process.member.publish(now, volume, term, snapshot, notices);
                }
            }
        }
    }
}
