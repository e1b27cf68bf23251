//! Processes of gateways: started, killed, stopped and woken.

use super::*;
use crate::ids::Term;
use crate::link::LostController;
use crate::tests::target::{restore, snapshot_of};

/// A controller by its number; the rest is for targets.
pub(super) fn controller(cntlid: u16) -> LostController {
    let [subsystem, host] = ["", ""].map(Arc::from);
    LostController { cntlid, uniquifier: 1, random_number: 1, subsystem, host, host_id: [1; 16] }
}

impl World {
    pub(super) fn start(&mut self, gateway: usize) {
        if self.gateways[gateway].process.is_some() {
            return;
        }
        self.instances += 1;
        let instance = InstanceId(self.instances);
        self.cluster.connect(instance);
        let orphan = Duration::from_nanos(ORPHAN * 3 / 2);
        let timing = Timing { orphan, queue: Duration::from_secs(10), ..Timing::default() };
        let config = MemberConfig {
            instance,
            gateway: format!("gateway{gateway}").into(),
            state: Uuid([gateway as u8; 16]),
            address: format!("10.0.0.{gateway}").into(),
            portals: format!("10.0.1.{gateway}").into(),
            groups: self.layout.clone(),
            timing,
        };
        let process = Process {
            instance,
            member: Member::with_failpoint(config, self.plan.bug),
            target: Target::default(),
            inbox: Vec::new(),
            unsent: Vec::new(),
            replied: BTreeSet::new(),
            wake: None,
            applying: BTreeMap::new(),
            naming: BTreeMap::new(),
            version: 0,
            paths: BTreeMap::new(),
            direct: direct::Direct::default(),
            shown: BTreeMap::new(),
            resetting: BTreeMap::new(),
        };
        let place = &mut self.gateways[gateway];
        (place.process, place.silent) = (Some(process), false);
        self.input(instance, Input::Timeout);
    }

    /// The process ends: its connections are reset, unless its machine has stopped.
    pub(super) fn end_process(&mut self, gateway: usize, silent: bool) {
        self.gateways[gateway].paused = None;
        let Some(process) = self.gateways[gateway].process.take() else { return };
        self.gateways[gateway].silent = silent;
        let lost: Vec<u64> =
            self.pending.iter().filter(|(_, (at, _))| *at == process.instance).map(|(id, _)| *id).collect();
        self.reset_controllers_of(process.instance);
        for id in lost {
            if let Some((at, ask)) = self.pending.get(&id) {
                self.checks.lost(*at, ask);
            }
            self.host_answer(id, Answered::Lost);
        }
        for (id, link) in &mut self.links {
            let Some(end) = link.ends.iter().position(|(_, instance)| *instance == process.instance) else {
                continue;
            };
            if !link.up {
                continue;
            }
            link.up = false;
            link.until = [self.now + self.rng.below(2 * MS), self.now + self.rng.below(2 * MS)];
            if !silent {
                let other = link.ends[1 - end];
                let at = link.until[1 - end].max(self.gateways[other.0].links) + 1;
                self.gateways[other.0].links = at;
                self.number += 1;
                self.queue.push(Reverse((at, self.number)));
                self.events.insert(self.number, Event::Input(other.1, Input::LinkDown(*id)));
            }
        }
        self.draining.remove(&process.instance);
    }

    /// Hosts have lost a gateway, and have others reset their controllers there.
    pub(super) fn reset_controllers_of(&mut self, lost: InstanceId) {
        let Some(cntlid) = self.checks.controller_of(lost).filter(|_| self.plan.resets) else { return };
        for gateway in 0..self.gateways.len() {
            let Some(instance) = self.instance_of(gateway).filter(|instance| *instance != lost) else {
                continue;
            };
            self.number += 1;
            let (input, delay) = (Input::Reset(self.number, cntlid, lost), self.rng.below(3000) * MS);
            self.after(delay, Event::Input(instance, input));
        }
    }

    /// A gateway says of a controller of a lost one that it is gone.
    pub(super) fn controller_reset(&mut self, gateway: usize, id: u64, answer: ResetAnswer) {
        let Some(process) = &mut self.gateways[gateway].process else { return };
        let lost = process.resetting.remove(&id).expect("a reset was asked for");
        if answer == ResetAnswer::Gone {
            let pending = self.pending.values().filter(|(at, _)| *at == lost).map(|(_, ask)| ask.what);
            self.checks.controllers_gone(lost, pending);
        }
    }

    /// The owner's reservations are those of the record, and those that other gateways show.
    pub(super) fn compare_reservations(&self) {
        let processes = self.gateways.iter().filter_map(|gateway| gateway.process.as_ref());
        for process in processes {
            for volume in self.layout.values().flatten() {
                let Some(has) = process.target.reservations(*volume) else { continue };
                let stands = self.cluster.record(*volume).map(|record| record.bytes);
                let stands = restore(*volume, stands.as_deref());
                let stands = &stands.view().reservations;
                assert_eq!(has.registrants(), stands.registrants(), "registrations of {volume}");
                assert_eq!(has.held_reservation(), stands.held_reservation(), "reservation of {volume}");
                self.compare_shown(process.instance, *volume, stands);
            }
        }
    }

    fn compare_shown(&self, owner: InstanceId, volume: Uuid, stands: &volume::reservation::Reservations) {
        let group = GroupId(u32::from(volume.0[0]));
        let others = self.gateways.iter().filter_map(|gateway| gateway.process.as_ref());
        for other in others.filter(|other| other.instance != owner) {
            if other.paths.get(&group) != Some(&PathState::NonOptimized) {
                continue;
            }
            let (_, shown) = other.shown.get(&volume).expect("a linked gateway was shown the volume");
            assert_eq!(*shown.record, *snapshot_of(stands), "{} shows old state of {volume}", other.instance);
        }
    }

    /// Whether all gateways run and are members, and no others are.
    pub(in crate::tests) fn all_joined(&self) -> bool {
        self.gateways.iter().all(|gateway| gateway.process.is_some()) && self.members_agree()
    }

    /// How many instances of a gateway the members object names.
    pub(in crate::tests) fn instances_of(&self, gateway: usize) -> usize {
        let (_, members) = &self.cluster.objects[&ObjectName::Members];
        let members = peek::<Members>(members).expect("the members object");
        members.0.iter().filter(|entry| entry.state == Uuid([gateway as u8; 16])).count()
    }

    /// A store operation that waited in the target until now, of this term.
    pub(in crate::tests) fn store_late(&mut self, gateway: usize, volume: Uuid, term: Term) {
        let now = self.local(gateway);
        let process = self.gateways[gateway].process.as_mut().expect("a process that runs");
        process.member.store_record(now, volume, term, 1 << 40, b"late");
        self.drain_outputs(gateway);
    }

    /// A client that is no gateway takes the lock of a volume, as an administrator may, or lets go of it.
    pub(in crate::tests) fn lock_by_stranger(&mut self, volume: Uuid, on: bool) {
        match on {
            true => self.cluster.locks.insert(volume, STRANGER),
            false => self.cluster.locks.remove(&volume),
        };
    }

    /// The owner's term, as the owner object has it.
    pub(in crate::tests) fn term_of(&self, group: GroupId) -> Term {
        self.checks.terms[&group]
    }

    /// What the record of a volume holds.
    pub(in crate::tests) fn record(&self, volume: Uuid) -> Option<Arc<[u8]>> {
        self.cluster.record(volume).map(|record| record.bytes)
    }

    pub(super) fn restart(&mut self, gateway: usize, cause: RestartCause) {
        match cause {
            RestartCause::Blocklisted | RestartCause::Expelled | RestartCause::TermLost(_) => {}
            RestartCause::NoMemberSpace
            | RestartCause::NameTaken
            | RestartCause::Undecidable
            | RestartCause::Damaged(..) => {
                panic!("{cause}")
            }
        }
        self.checks.tally.fenced += 1;
        self.end_process(gateway, false);
        let delay = self.rng.between(50, 400) * MS;
        self.after(delay, Event::Start(gateway));
    }

    /// What each process is to each group, for a test that fails.
    pub(super) fn state(&self) -> String {
        let processes = self.gateways.iter().filter_map(|gateway| gateway.process.as_ref());
        let roles: Vec<String> =
            processes.map(|process| format!("{}: {}", process.instance, process.member.roles())).collect();
        format!("{roles:?}, pending {:?}, locks {:?}", self.pending, self.cluster.locks)
    }

    pub(super) fn resume(&mut self, gateway: usize, until: u64) {
        if self.gateways[gateway].paused != Some(until) {
            return;
        }
        self.gateways[gateway].paused = None;
        let Some(process) = &mut self.gateways[gateway].process else { return };
        let (instance, inbox) = (process.instance, std::mem::take(&mut process.inbox));
        // Its client's threads and its own run in any order.
        if self.rng.chance_permille(500) {
            self.send_unsent(gateway);
        }
        for input in inbox {
            self.input(instance, input);
        }
        self.send_unsent(gateway);
        self.input(instance, Input::Timeout);
    }

    pub(super) fn send_unsent(&mut self, gateway: usize) {
        let store_cut = self.gateways[gateway].store_cut;
        let Some(process) = self.gateways[gateway].process.as_mut().filter(|_| !store_cut) else { return };
        let instance = process.instance;
        for sending in std::mem::take(&mut process.unsent) {
            self.after(0, Event::Send(instance, sending));
        }
    }
}
