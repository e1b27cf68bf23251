//! The target of one gateway, reduced to one shard: the volumes' owner objects as they ship (`volume::VolumeOwner`),
//! admission by their views, and fences that wait for what was admitted before.

use std::collections::{BTreeMap, BTreeSet};

use buf::Time;
use volume::reservation::Reservations;
use volume::{
    Ack, ChangeId, Failure, IdSpace, Notice, Op, RamDisk, Refusal, RequestId, ShardId, UnservableReason,
    Uuid, View, VolumeFacts, VolumeId, VolumeOwner, VolumeRequest,
};

use crate::ids::{ExecutionId, Term};
use crate::link::{Answer, Command, Snapshot};

pub(super) const BLOCKS: u64 = 6;

/// An operation on a block that was admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockIo {
    pub(super) execution: ExecutionId,
    pub(super) volume: Uuid,
    pub(super) lba: u64,
    /// What is written; `None`: it is read.
    pub(super) value: Option<u64>,
    pub(super) term: Term,
    pub(super) host: u8,
}

/// What a volume wants done.
#[derive(Debug)]
pub(super) enum Want {
    Executed(ExecutionId, Answer<u64>),
    Io(BlockIo),
    Store(Uuid, Term, u64, Vec<u8>),
    Publish(Uuid, Term, Snapshot, Vec<Notice>),
}

#[derive(Debug)]
struct Volume {
    owner: VolumeOwner,
    view: View,
    term: Term,
    in_flight: BTreeSet<ExecutionId>,
    /// Changes that wait for these.
    fences: Vec<(ChangeId, BTreeSet<ExecutionId>)>,
    asked: BTreeMap<u64, ExecutionId>,
    number: u64,
}

/// The state of reservations as text, in place of a record.
pub(super) fn snapshot_of(reservations: &Reservations) -> Vec<u8> {
    format!("{:?} {:?}", reservations.registrants(), reservations.held_reservation()).into_bytes()
}

#[derive(Debug, Default)]
pub(super) struct Target(BTreeMap<Uuid, Volume>);

pub(super) fn restore(volume: Uuid, record: Option<&[u8]>) -> VolumeOwner {
    let geometry = RamDisk::new(BLOCKS, BLOCKS, 4096, 4096).geometry();
    let facts = VolumeFacts::new(VolumeId::new(0, 0), "volume", volume);
    VolumeOwner::restore(facts, geometry, 1, true, record).expect("records are whole")
}

impl Target {
    pub(super) fn open(&mut self, volume: Uuid, term: Term, record: Option<&[u8]>) -> Vec<Want> {
        let owner = restore(volume, record);
        let view = owner.view().clone();
        let (in_flight, fences, asked) = (BTreeSet::new(), Vec::new(), BTreeMap::new());
        let opened = Volume { owner, view, term, in_flight, fences, asked, number: 0 };
        let told = vec![Want::Publish(volume, term, opened.snapshot(), Vec::new())];
        self.0.insert(volume, opened);
        told
    }

    pub(super) fn has(&self, volume: Uuid) -> bool {
        self.0.contains_key(&volume)
    }

    /// The reservations of a volume that is open.
    pub(super) fn reservations(&self, volume: Uuid) -> Option<&Reservations> {
        self.0.get(&volume).map(|volume| &*volume.owner.view().reservations)
    }

    pub(super) fn close(&mut self, volume: Uuid) {
        let gone = self.0.remove(&volume);
        assert!(
            gone.is_none_or(|gone| gone.in_flight.is_empty()),
            "a group is closed with commands in flight"
        );
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.0.values().filter_map(|volume| volume.owner.poll_timeout()).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Time) -> Vec<Want> {
        let mut wants = Vec::new();
        for (uuid, volume) in &mut self.0 {
            if volume.owner.poll_timeout().is_some_and(|at| at <= now) {
                volume.owner.handle_timeout(now);
                volume.run(*uuid, now, &mut wants);
            }
        }
        wants
    }

    pub(super) fn execute(
        &mut self,
        now: Time,
        execution: ExecutionId,
        uuid: Uuid,
        who: &volume::Requester,
        command: Command<u64>,
    ) -> Vec<Want> {
        let mut wants = Vec::new();
        let Some(volume) = self.0.get_mut(&uuid) else {
            // Its record is damaged.
            let refusal = Refusal::NotReady(UnservableReason::Stopped);
            let answer = Answer::Io { result: Err(Failure::Refused(refusal)), payload: None };
            return vec![Want::Executed(execution, answer)];
        };
        match command {
            Command::Io { op, payload } => {
                if let Err(refusal) = volume.view.admit(who, &op) {
                    let answer = Answer::Io { result: Err(Failure::Refused(refusal)), payload: None };
                    return vec![Want::Executed(execution, answer)];
                }
                let (Op::Read(span) | Op::Write(span, _)) = op else { panic!("hosts read and write") };
                let value = op.is_write().then(|| payload.expect("a write has a payload"));
                let volume::Identity::Host([host, ..]) = *who.identity else { panic!("all are hosts") };
                volume.in_flight.insert(execution);
                let (term, lba) = (volume.term, span.lba);
                wants.push(Want::Io(BlockIo { execution, volume: uuid, lba, value, term, host }));
            }
            Command::Change(request) => {
                volume.number += 1;
                volume.asked.insert(volume.number, execution);
                volume.request(now, request);
                volume.run(uuid, now, &mut wants);
            }
        }
        wants
    }

    pub(super) fn stored(&mut self, now: Time, uuid: Uuid, ticket: u64) -> Vec<Want> {
        let mut wants = Vec::new();
        if let Some(volume) = self.0.get_mut(&uuid) {
            volume.owner.handle_stored(now, ticket, true);
            volume.run(uuid, now, &mut wants);
        }
        wants
    }

    pub(super) fn io_done(&mut self, now: Time, io: &BlockIo, read: u64) -> Vec<Want> {
        let payload = io.value.is_none().then_some(read);
        let answer = Answer::Io { result: Ok(volume::Outcome::Complete), payload };
        let mut wants = vec![Want::Executed(io.execution, answer)];
        if let Some(volume) = self.0.get_mut(&io.volume) {
            volume.in_flight.remove(&io.execution);
            volume.fences.iter_mut().for_each(|(_, waits)| {
                waits.remove(&io.execution);
            });
            volume.run(io.volume, now, &mut wants);
        }
        wants
    }
}

impl Volume {
    /// What others are shown; of the record only what `snapshot_of` reads.
    fn snapshot(&self) -> Snapshot {
        let reservations = &self.view.reservations;
        Snapshot { geometry: self.view.geometry, record: snapshot_of(reservations).into() }
    }

    fn request(&mut self, now: Time, request: VolumeRequest) {
        self.owner.handle_request(now, ShardId(0), RequestId::in_space(IdSpace::Scsi, self.number), request);
    }

    fn run(&mut self, uuid: Uuid, now: Time, wants: &mut Vec<Want>) {
        loop {
            let mut idle = true;
            while let Some(store) = self.owner.poll_store_op() {
                wants.push(Want::Store(uuid, self.term, store.ticket, store.bytes));
            }
            while let Some(update) = self.owner.poll_view_update() {
                self.view = update.view;
                wants.push(Want::Publish(uuid, self.term, self.snapshot(), update.notices));
                let waits = if update.drain { self.in_flight.clone() } else { BTreeSet::new() };
                self.fences.push((update.change, waits));
                idle = false;
            }
            while self.fences.first().is_some_and(|(_, waits)| waits.is_empty()) {
                let (change, _) = self.fences.remove(0);
                self.owner.handle_ack(now, Ack { from: ShardId(0), change });
                idle = false;
            }
            while let Some(answer) = self.owner.poll_answer() {
                let execution = self.asked.remove(&answer.id.0).expect("an answer to a request");
                wants.push(Want::Executed(execution, Answer::Change(answer.result)));
                idle = false;
            }
            while self.owner.poll_operator_notice().is_some() {}
            if idle {
                return;
            }
        }
    }
}
