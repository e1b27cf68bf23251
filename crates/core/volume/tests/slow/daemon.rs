//! A home, its shards, and what is under way between them: messages arrive when the test says.

use std::collections::VecDeque;
use std::sync::Arc;

use volume::reservation::{Action, Key, RegistrationRequest, ReservationType};
use volume::{
    Ack, Durability, Identity, IoCompletion, IoId, Op, OperatorNotice, Refusal, RequestId, Requester,
    ShardId, Span, Uuid, ViewUpdate, VolumeAnswer, VolumeFacts, VolumeId, VolumeOwner, VolumeRequest,
};

use super::{World, geometry};

pub const BLOCKS: u64 = 64;

pub fn facts() -> VolumeFacts {
    VolumeFacts { removable: true, ..VolumeFacts::new(VolumeId(1), "test", Uuid([3; 16])) }
}

pub fn home(shards: u16) -> VolumeOwner {
    VolumeOwner::restore(facts(), geometry(BLOCKS, 512), shards, false, None).unwrap()
}

pub fn register(who: &Requester, key: u64, persist: bool) -> VolumeRequest {
    let register = RegistrationRequest { persist: Some(persist), ..RegistrationRequest::new(None, Key(key)) };
    VolumeRequest::Reserve { who: who.clone(), action: Action::Register(register) }
}

pub fn reserve(who: &Requester, key: u64, kind: ReservationType) -> VolumeRequest {
    VolumeRequest::Reserve { who: who.clone(), action: Action::Reserve { key: Some(Key(key)), kind } }
}

enum ToHome {
    Ack(Ack),
    VolumeRequest(RequestId, VolumeRequest),
}

enum ToShard {
    ViewUpdate(ViewUpdate),
    Answer(VolumeAnswer),
}

pub struct Daemon {
    pub world: World,
    pub home: VolumeOwner,
    to_shards: Vec<VecDeque<ToShard>>,
    to_home: Vec<VecDeque<ToHome>>,
    /// To the test's own asks.
    pub answers: Vec<VolumeAnswer>,
    pub remarks: Vec<OperatorNotice>,
    /// The record as it was last stored.
    pub record: Option<Vec<u8>>,
    pub requests: u64,
    ios: u64,
    /// Who submitted what is not done: shard, name, identity.
    live: Vec<(usize, u64, Arc<Identity>)>,
    pub done: Vec<IoCompletion>,
}

impl Daemon {
    pub fn new(shards: u16) -> Daemon {
        Daemon::of(home(shards), shards)
    }

    pub fn of(home: VolumeOwner, shards: u16) -> Daemon {
        let world = World::new(shards, BLOCKS, 512, Some(home.view().clone()));
        Daemon {
            world,
            home,
            to_shards: (0..shards).map(|_| VecDeque::new()).collect(),
            to_home: (0..shards).map(|_| VecDeque::new()).collect(),
            answers: Vec::new(),
            remarks: Vec::new(),
            record: None,
            requests: 0,
            ios: 0,
            live: Vec::new(),
            done: Vec::new(),
        }
    }

    pub fn shards(&self) -> usize {
        self.world.gates.len()
    }

    pub fn request(&mut self, request: VolumeRequest) -> u64 {
        self.requests += 1;
        self.home.handle_request(self.world.now, ShardId(0), RequestId(self.requests), request);
        self.drain_home();
        self.requests
    }

    pub fn drain_home(&mut self) {
        while let Some(store) = self.home.poll_store_op() {
            self.record = Some(store.bytes);
            self.home.handle_stored(self.world.now, store.ticket, true);
        }
        while let Some(update) = self.home.poll_view_update() {
            for queue in &mut self.to_shards {
                queue.push_back(ToShard::ViewUpdate(update.clone()));
            }
        }
        while let Some(answer) = self.home.poll_answer() {
            if answer.id.id_space() == volume::IdSpace::Gate {
                self.to_shards[usize::from(answer.to.0)].push_back(ToShard::Answer(answer));
            } else {
                self.answers.push(answer);
            }
        }
        self.remarks.extend(std::iter::from_fn(|| self.home.poll_operator_notice()));
    }

    /// A message from home arrives at a shard.
    pub fn deliver(&mut self, shard: usize) {
        match self.to_shards[shard].pop_front() {
            Some(ToShard::ViewUpdate(update)) => {
                // As a server does: first it aborts, then the gate adopts.
                let victims =
                    self.live.iter().filter(|(at, _, who)| *at == shard && update.aborts_tasks_of(who));
                victims.for_each(|(_, io, _)| self.world.gates[shard].cancel(IoId(*io)));
                self.world.gates[shard].update_view(&update);
            }
            Some(ToShard::Answer(answer)) => self.world.answered(shard, &answer),
            None => {}
        }
    }

    pub fn resume(&mut self, shard: usize) {
        let done = self.world.resume(shard);
        self.live.retain(|(at, io, _)| *at != shard || done.iter().all(|done| done.id.0 != *io));
        self.done.extend(done);
        let gate = &mut self.world.gates[shard];
        let requests = std::iter::from_fn(|| gate.poll_request())
            .map(|(id, request)| ToHome::VolumeRequest(id, request));
        self.to_home[shard].extend(requests);
        self.to_home[shard].extend(std::iter::from_fn(|| gate.poll_ack()).map(ToHome::Ack));
    }

    /// A message of a shard arrives at home.
    pub fn acknowledge(&mut self, shard: usize) {
        match self.to_home[shard].pop_front() {
            Some(ToHome::Ack(ack)) => self.home.handle_ack(self.world.now, ack),
            Some(ToHome::VolumeRequest(id, request)) => {
                self.home.handle_request(self.world.now, ShardId(shard as u16), id, request);
            }
            None => return,
        }
        self.drain_home();
    }

    /// Submits a write of one block, whose bytes are `fill`.
    pub fn write(&mut self, shard: usize, who: &Requester, fill: u8, lba: u64, exclusive: bool) -> u64 {
        let span = Span { lba, blocks: 1 };
        let payload = self.world.payload(&[fill; 512]);
        let op = if exclusive { Op::WriteAtomic(span) } else { Op::Write(span, Durability::Cached) };
        self.submit(shard, who, op, payload)
    }

    pub fn submit(&mut self, shard: usize, who: &Requester, op: Op, payload: volume::Payload) -> u64 {
        self.ios += 1;
        self.live.push((shard, self.ios, who.identity.clone()));
        self.world.submit(shard, who, self.ios, op, payload);
        self.ios
    }

    pub fn land(&mut self, pick: usize) {
        self.world.disk.borrow_mut().land(pick);
    }

    /// Everything goes on until nothing is left to do.
    pub fn settle(&mut self) {
        for _ in 0..200 {
            for shard in 0..self.shards() {
                self.deliver(shard);
                self.resume(shard);
                self.acknowledge(shard);
            }
            self.land(0);
        }
    }

    pub fn answer_to(&self, request: u64) -> Option<Result<(), Refusal>> {
        self.answers.iter().find(|answer| answer.id == RequestId(request)).map(|answer| answer.result)
    }

    /// Asks, and waits for the answer.
    pub fn asked(&mut self, request: VolumeRequest) -> Result<(), Refusal> {
        let request = self.request(request);
        self.settle();
        self.answer_to(request).expect("an answer")
    }

    /// Submits, and waits for the end.
    pub fn run(&mut self, shard: usize, who: &Requester, op: Op, payload: volume::Payload) -> IoCompletion {
        let io = self.submit(shard, who, op, payload);
        self.settle();
        let at = self.done.iter().position(|done| done.id.0 == io).expect("an end");
        self.done.remove(at)
    }

    pub fn landed_of(&self, fill: u8) -> usize {
        self.world.disk.borrow().landed.iter().filter(|by| **by == fill).count()
    }
}
