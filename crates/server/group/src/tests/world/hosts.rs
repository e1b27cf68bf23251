//! Hosts: each has two commands under way, reads, writes and reservation requests.

use super::*;

impl World {
    pub(super) fn host_turn(&mut self, who: u8) {
        if self.quiet {
            return;
        }
        let gateway = self.rng.below(self.gateways.len() as u64) as usize;
        let Some(instance) = self.instance_of(gateway) else {
            return self.after(5 * MS, Event::Host(who));
        };
        let group = GroupId(self.rng.between(1, self.plan.groups as u64) as u32);
        let volume = *self.rng.pick(&self.layout[&group]);
        self.number += 1;
        let id = self.number;
        let (what, command) = self.choose(who, volume, id);
        let pending = Pending { host: who, begin: self.now, volume, what };
        self.checks.asked(&pending);
        self.pending.insert(id, (instance, pending));
        let port = PortId(gateway as u16 + 1);
        let requester = Requester { identity: host(who), port, read_only: false };
        let delay = self.rng.below(MS);
        self.after(delay, Event::Input(instance, Input::Submit(id, volume, requester, command)));
    }

    pub(super) fn choose(&mut self, who: u8, volume: Uuid, id: u64) -> (Ask, Command<u64>) {
        let lba = self.rng.below(BLOCKS);
        let span = Span { lba, blocks: 1 };
        let reserve = |action| Command::Change(VolumeRequest::Reserve { who: requester(who), action });
        let kind = ReservationType::WriteExclusiveRegistrants;
        let roll = self.rng.below(100);
        if roll < 40 {
            return (Ask::Read(lba), Command::Io { op: Op::Read(span), payload: None });
        }
        let write = Op::Write(span, Durability::Cached);
        if roll < 85 {
            return (Ask::Write(lba, id), Command::Io { op: write, payload: Some(id) });
        }
        let Some(&key) = self.keys.get(&(who, volume)) else {
            let register = RegistrationRequest::new(None, Key(id));
            return (Ask::Register(id), reserve(Action::Register(register)));
        };
        let victim = self.rng.between(1, self.plan.hosts as u64) as u8;
        let victims = self.keys.get(&(victim, volume)).copied().filter(|_| victim != who);
        let key = Some(Key(key));
        match (self.rng.below(10), victims) {
            (0..=5, Some(other)) => {
                let abort = self.rng.chance_permille(500);
                let action = Action::Preempt { key, victim: Key(other), kind, abort };
                (Ask::Preempt { victim }, reserve(action))
            }
            (6, _) => {
                let register = RegistrationRequest::new(key, Key::NONE);
                (Ask::Unregister, reserve(Action::Register(register)))
            }
            _ => (Ask::Reserve, reserve(Action::Reserve { key, kind })),
        }
    }

    pub(super) fn as_seen(result: Result<Answer<u64>, crate::link::PathError>) -> Answered {
        match result {
            Ok(Answer::Io { result: Ok(_), payload }) => Answered::Good(payload),
            Ok(Answer::Change(Ok(()))) => Answered::Good(None),
            Ok(Answer::Io { result: Err(_), .. } | Answer::Change(Err(_))) => Answered::Refused,
            Err(why) => Answered::Path(why),
        }
    }

    pub(super) fn host_answer(&mut self, id: u64, answer: Answered) {
        let (at, pending) = self.pending.remove(&id).expect("a command is answered once");
        let group = GroupId(u32::from(pending.volume.0[0]));
        let (who, volume) = (pending.host, pending.volume);
        match (pending.what, answer) {
            (Ask::Register(key), Answered::Good(_)) => {
                self.keys.insert((who, volume), key);
            }
            (Ask::Read(_) | Ask::Write(..), Answered::Good(_)) => {
                let owner = self.gateway_of(at).and_then(|gateway| self.gateways[gateway].process.as_ref());
                let here = owner.is_some_and(|process| process.member.serves(group).is_some());
                self.checks.tally.forwarded += u64::from(!here);
            }
            (Ask::Read(_), _) | (_, Answered::Good(_)) if !matches!(pending.what, Ask::Unregister) => {}
            // Whatever it had, it registers again.
            (_, Answered::Refused | Answered::Lost | Answered::Path(_)) | (Ask::Unregister, _) => {
                self.keys.remove(&(who, volume));
            }
            (_, Answered::Good(_)) => {}
        }
        self.checks.answered(self.now, &pending, answer);
        let delay = self.rng.between(2, 40) * MS;
        self.after(delay, Event::Host(who));
    }
}

fn requester(who: u8) -> Requester {
    Requester { identity: host(who), port: PortId(1), read_only: false }
}
