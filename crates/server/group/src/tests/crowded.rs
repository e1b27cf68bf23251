//! An owner that executes as many commands as it takes: a host of another gateway is told to try another path at once,
//! and its command is not executed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use buf::Time;
use volume::{Identity, Op, PortId, Requester, Span, Uuid};

use crate::ids::{ExecutionId, GroupId, InstanceId, LinkId, MapEpoch, RequestId, Version};
use crate::link::{Answer, Command, PathError};
use crate::member::{COMMANDS_MAX, Member, MemberConfig, Output, Timing};
use crate::store::{ObjectName, StoreReply, StoreRequest};

const GROUP: GroupId = GroupId(1);
const VOLUME: Uuid = Uuid([1; 16]);

/// Two members, a link between them, and a store that answers at once.
struct Pair {
    members: [Member<u64>; 2],
    objects: BTreeMap<ObjectName, (u64, Vec<u8>)>,
    now: Time,
    link: LinkId,
    executing: Vec<ExecutionId>,
    answers: Vec<(RequestId, Option<PathError>)>,
}

impl Pair {
    fn new() -> Pair {
        let member = |number: u8| {
            let name: Arc<str> = format!("gateway{number}").into();
            Member::new(MemberConfig {
                instance: InstanceId(number.into()),
                gateway: name.clone(),
                state: Uuid([number; 16]),
                address: name,
                portals: "".into(),
                groups: BTreeMap::from([(GROUP, vec![VOLUME])]),
                timing: Timing::default(),
            })
        };
        let members = [member(1), member(2)];
        let (objects, now) = (BTreeMap::new(), Time(1_000_000_000));
        let link = LinkId(0);
        Pair { members, objects, now, link, executing: Vec::new(), answers: Vec::new() }
    }

    fn reply(&mut self, request: StoreRequest) -> StoreReply {
        match request {
            StoreRequest::Read(object) => {
                let (version, value) = self.objects.get(&object).cloned().unwrap_or_default();
                StoreReply::Contents { version: Version(version), value }
            }
            StoreRequest::Swap { object, expected, value } => {
                let known = self.objects.entry(object).or_default();
                if known.0 != expected.0 {
                    return StoreReply::Mismatch;
                }
                *known = (expected.0 + 1, value);
                StoreReply::Swapped(Version(expected.0 + 1))
            }
            StoreRequest::Blocklist { .. } => StoreReply::Blocklisted(MapEpoch(1)),
            _ => StoreReply::Done,
        }
    }

    /// Until nothing is left to do.
    fn run(&mut self) {
        let mut messages = VecDeque::new();
        loop {
            let mut idle = true;
            for at in [0, 1] {
                while let Some(output) = self.members[at].poll_output() {
                    idle = false;
                    match output {
                        Output::Store { ticket, request } => {
                            let reply = self.reply(request);
                            self.members[at].handle_reply(self.now, ticket, reply);
                        }
                        Output::Send { message, .. } => messages.push_back((1 - at, self.link, message)),
                        Output::Connect { .. } => {
                            self.link.0 += 1;
                            for (end, other) in [(0, 2), (1, 1)] {
                                self.members[end].handle_link_up(self.now, self.link, InstanceId(other));
                            }
                        }
                        Output::CloseLink(link) => {
                            self.members.iter_mut().for_each(|end| end.handle_link_down(self.now, link));
                        }
                        Output::Execute { execution, .. } => self.executing.push(execution),
                        Output::Answer { id, result } => self.answers.push((id, result.err())),
                        _ => {}
                    }
                }
            }
            while let Some((to, link, message)) = messages.pop_front() {
                idle = false;
                self.members[to].handle_link_message(self.now, link, message);
            }
            if idle {
                return;
            }
        }
    }

    fn submit(&mut self, at: usize, id: u64) {
        let identity = Arc::new(Identity::Host([7; 16]));
        let who = Requester { identity, port: PortId(1), read_only: false };
        let command = Command::Io { op: Op::Read(Span { lba: 0, blocks: 1 }), payload: None };
        self.members[at].submit(self.now, RequestId(id), VOLUME, who, command);
    }
}

#[test]
fn a_command_that_a_full_owner_does_not_take_is_answered_at_once() {
    let mut pair = Pair::new();
    for at in [0, 1, 0, 1, 0, 1] {
        pair.now = Time(pair.now.0 + 300_000_000);
        pair.members[at].handle_timeout(pair.now);
        pair.run();
    }
    assert!(pair.members[0].serves(GROUP).is_some(), "the first to join serves");
    // Commands of its own hosts, of whose executions it has no limit of its own, and then one of the other's.
    for id in 0..COMMANDS_MAX as u64 * 2 {
        pair.submit(0, id);
    }
    pair.run();
    assert_eq!((pair.executing.len(), pair.answers.len()), (COMMANDS_MAX * 2, 0));
    pair.submit(1, 1);
    pair.run();
    assert_eq!(pair.answers, [(RequestId(1), Some(PathError::Busy))]);
    assert_eq!(pair.executing.len(), COMMANDS_MAX * 2);
    // One has ended: there is room.
    let ended = pair.executing.pop().unwrap();
    let answer = Answer::Io { result: Ok(volume::Outcome::Complete), payload: None };
    pair.members[0].handle_executed(pair.now, ended, answer);
    pair.submit(1, 2);
    pair.run();
    assert_eq!((pair.executing.len(), pair.answers.len()), (COMMANDS_MAX * 2, 2));
}
