//! Paths that a test controls.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, Entropy, Errno, MemoryClass, Payload, Pool, Sg};
use endpoint::{CloseMode, Dial, DialId, Dialled, LinkId, OutboundSockets};
use stream::{Received, RecvOp, SendOp};
use volume::{
    Backend, Durability, Epoch, Geometry, Io, IoCompletion, IoId, Op, Outcome, PathAccess, Span, Time, Uuid,
};

use super::super::{RemoteVolume, VolumeSettings};
use crate::RawCommand;
use crate::path::{
    DownReason, IoError, LostController, Path, PathEvent, Protocol, ReservationOp, Reservations, VolumeInfo,
};

/// What a path was given, and what it will say.
#[derive(Default)]
pub struct Script {
    pub protocol: Option<Protocol>,
    /// How many operations it takes at once.
    pub window: usize,
    pub given: VecDeque<(IoId, Op, Payload)>,
    /// It has no room for questions about reservations.
    pub claims_refused: bool,
    pub requests: VecDeque<(IoId, ReservationOp)>,
    pub raw: VecDeque<(IoId, RawCommand)>,
    /// It takes no raw commands now.
    pub raw_refused: bool,
    pub says: VecDeque<PathEvent>,
    pub connects: u32,
    pub fences: u32,
    pub disconnects: u32,
    pub cancels: Vec<IoId>,
    pub wake: Option<Time>,
    /// How much longer than a minute it lands.
    pub lands_longer: Duration,
    /// Flushes are given back.
    pub no_flushes: bool,
    /// Controllers that it has lost.
    pub lost: Vec<LostController>,
    /// Whether it can have controllers reset, which it was asked to reset, and of which it was told.
    pub can_reset: bool,
    pub resets: Vec<LostController>,
    pub told_reset: Vec<LostController>,
}

/// A path in the hands of a test.
#[derive(Clone, Default)]
pub struct Scripted(pub Rc<RefCell<Script>>);

impl OutboundSockets for Scripted {
    fn poll_dial(&mut self) -> Option<Dial> {
        None
    }
    fn handle_dialled(&mut self, _: &mut Cx<'_>, _: DialId, _: Result<Dialled, Errno>) {}
    fn handle_recv(&mut self, _: &mut Cx<'_>, _: LinkId, _: RecvOp, _: Received) {}
    fn handle_written(&mut self, _: &mut Cx<'_>, _: LinkId, _: Result<(), Errno>) {}
    fn handle_send_released(&mut self, _: &mut Cx<'_>, _: LinkId, _: SendOp) {}
    fn poll_ready(&mut self) -> Option<LinkId> {
        None
    }
    fn poll_recv(&mut self, _: &mut Cx<'_>, _: LinkId) -> Option<RecvOp> {
        None
    }
    fn poll_send(&mut self, _: &mut Cx<'_>, _: LinkId) -> Option<SendOp> {
        None
    }
    fn poll_link_close(&mut self) -> Option<(LinkId, CloseMode)> {
        None
    }
    fn turn(&mut self, _: &mut Cx<'_>) -> bool {
        false
    }
    fn poll_timeout(&self) -> Option<Time> {
        self.0.borrow().wake
    }
    fn handle_timeout(&mut self, _: &mut Cx<'_>) {
        self.0.borrow_mut().wake = None;
    }
}

impl Path for Scripted {
    fn protocol(&self) -> Protocol {
        self.0.borrow().protocol.unwrap_or(Protocol::Nvme)
    }
    fn connect(&mut self, _: &mut Cx<'_>) {
        self.0.borrow_mut().connects += 1;
    }
    fn submit(&mut self, _: &mut Cx<'_>, id: IoId, op: Op, payload: Payload) -> Result<(), (Op, Payload)> {
        let mut script = self.0.borrow_mut();
        if script.given.len() >= script.window || script.no_flushes && matches!(op, Op::Flush) {
            return Err((op, payload));
        }
        script.given.push_back((id, op, payload));
        Ok(())
    }
    fn submit_reservation_op(
        &mut self,
        _: &mut Cx<'_>,
        id: IoId,
        request: ReservationOp,
    ) -> Result<(), ReservationOp> {
        let mut script = self.0.borrow_mut();
        if script.claims_refused {
            return Err(request);
        }
        script.requests.push_back((id, request));
        Ok(())
    }
    fn submit_raw(&mut self, _: &mut Cx<'_>, id: IoId, command: RawCommand) -> Result<(), RawCommand> {
        let mut script = self.0.borrow_mut();
        if script.raw_refused {
            return Err(command);
        }
        script.raw.push_back((id, command));
        Ok(())
    }
    fn cancel(&mut self, _: &mut Cx<'_>, id: IoId) {
        self.0.borrow_mut().cancels.push(id);
    }
    fn fence(&mut self, _: &mut Cx<'_>) {
        self.0.borrow_mut().fences += 1;
    }
    fn target_portals(&self) -> Option<(&str, &[std::net::SocketAddr])> {
        None
    }
    fn set_fence_portals(&mut self, _: Vec<std::net::SocketAddr>) {}
    fn lost_controllers(&self) -> Vec<LostController> {
        self.0.borrow().lost.clone()
    }
    fn reset_controller(&mut self, _: &mut Cx<'_>, controller: &LostController) -> bool {
        let mut script = self.0.borrow_mut();
        let asks = script.can_reset && !script.resets.contains(controller);
        if asks {
            script.resets.push(controller.clone());
        }
        asks
    }
    fn handle_controller_reset(&mut self, _: &mut Cx<'_>, controller: &LostController) {
        self.0.borrow_mut().told_reset.push(controller.clone());
    }
    fn recheck_access(&mut self) {}
    fn lost_command_lifetime(&self) -> Duration {
        Duration::from_secs(60) + self.0.borrow().lands_longer
    }
    fn disconnect(&mut self, _: &mut Cx<'_>, _: Duration) {
        self.0.borrow_mut().disconnects += 1;
    }
    fn poll_event(&mut self) -> Option<PathEvent> {
        self.0.borrow_mut().says.pop_front()
    }
}

pub const UUID: Uuid = Uuid(*b"0123456789abcdef");

pub fn geometry() -> Geometry {
    Geometry {
        blocks: 1000,
        logical: 512,
        physical: 4096,
        dio_align: 1,
        max_io: 1 << 20,
        thin: true,
        write_cache: true,
        atomic: 1,
        atomic_powerfail: 1,
        caw_max: 1,
        dealloc_reads_zero: true,
        lends: false,
    }
}

pub fn info() -> VolumeInfo {
    VolumeInfo {
        uuid: Some(UUID),
        geometry: Some(geometry()),
        read_only: false,
        access: PathAccess::Optimized,
        product: "scripted".into(),
        serial: "1".into(),
        depth: 4,
        terms: vec![],
    }
}

/// A volume over such paths, and the clock.
pub struct Scene {
    pub volume: RemoteVolume<Scripted>,
    pub paths: Vec<Scripted>,
    pub pool: Pool,
    pub entropy: Entropy,
    pub now: Time,
    pub ended: Vec<IoCompletion>,
    next: u64,
}

impl Scene {
    /// Paths connect.
    pub fn new(paths: usize, settings: VolumeSettings) -> Scene {
        let paths: Vec<Scripted> = (0..paths).map(|_| Scripted::default()).collect();
        paths.iter().for_each(|path| path.0.borrow_mut().window = 64);
        let pool = Pool::new(1 << 20);
        let (mut entropy, now) = (Entropy::new([7; 32]), Time(1_000_000_000));
        let mut cx = Cx { now, pool: &pool, entropy: &mut entropy };
        let volume = RemoteVolume::open(&mut cx, paths.clone(), settings);
        Scene { volume, paths, pool, entropy, now, ended: vec![], next: 1 }
    }

    /// All paths are up.
    pub fn up(paths: usize, settings: VolumeSettings) -> Scene {
        let mut scene = Scene::new(paths, settings);
        for at in 0..paths {
            scene.say(at, PathEvent::Up(Arc::new(info())));
        }
        while scene.volume.poll_event().is_some() {}
        scene
    }

    pub fn with<T>(&mut self, act: impl FnOnce(&mut RemoteVolume<Scripted>, &mut Cx<'_>) -> T) -> T {
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        let result = act(&mut self.volume, &mut cx);
        for at in 0..self.paths.len() {
            self.volume.mark_pending(at);
        }
        while self.volume.turn(&mut cx) {}
        while let Some(done) = self.volume.poll_done() {
            self.ended.push(done);
        }
        result
    }

    /// A path says something.
    pub fn say(&mut self, path: usize, event: PathEvent) {
        self.paths[path].0.borrow_mut().says.push_back(event);
        self.with(|_, _| ());
    }

    /// The clock goes on; timers run exactly when they are due.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(next) = self.volume.poll_timeout()
            && next <= until
        {
            self.now = self.now.max(next);
            self.with(|volume, cx| volume.handle_timeout(cx));
        }
        self.now = until;
    }

    pub fn submit(&mut self, op: Op) -> IoId {
        let id = IoId(self.next);
        self.next += 1;
        let len = match &op {
            Op::Read(span) | Op::Write(span, _) | Op::Compare(span) => span.blocks as usize * 512,
            Op::CompareAndWrite(span) => span.blocks as usize * 1024,
            _ => 0,
        };
        let payload = match &op {
            Op::Read(_) => Payload::In(self.pool.take_sg(MemoryClass::Solicited, len).unwrap()),
            _ if len > 0 => Payload::Out(self.bytes(len, id.0 as u8)),
            _ => Payload::None,
        };
        self.with(|volume, cx| volume.submit(cx, Io { id, epoch: Epoch(0), op, payload }));
        id
    }

    fn bytes(&self, len: usize, byte: u8) -> Sg {
        let mut sg = self.pool.take_sg(MemoryClass::Solicited, len).unwrap();
        sg.slices_mut(0..len).for_each(|slice| slice.fill(byte));
        sg.freeze()
    }

    /// A path ends the operation that it was given first.
    pub fn end(&mut self, path: usize, how: Result<Outcome, IoError>) -> Op {
        let (id, op, payload) =
            self.paths[path].0.borrow_mut().given.pop_front().expect("something is given");
        self.say(path, PathEvent::Done { id, how, payload });
        op
    }

    pub fn end_well(&mut self, path: usize) -> Op {
        self.end(path, Ok(Outcome::Complete))
    }

    /// How many operations a path has.
    pub fn given(&self, path: usize) -> usize {
        self.paths[path].0.borrow().given.len()
    }

    pub fn count(&self, path: usize, of: impl Fn(&Script) -> u32) -> u32 {
        of(&self.paths[path].0.borrow())
    }

    /// A path is lost with all that it has.
    pub fn lose(&mut self, path: usize) {
        while self.given(path) > 0 {
            self.end(path, Err(IoError::InDoubt));
        }
        self.say(path, PathEvent::Down(DownReason::Lost("the wire is cut".into())));
    }

    pub fn raise(&mut self, path: usize) {
        self.say(path, PathEvent::Up(Arc::new(info())));
    }

    /// What has ended since this was last asked: names and whether well.
    pub fn ends(&mut self) -> Vec<(u64, bool)> {
        self.ended.drain(..).map(|done| (done.id.0, done.result.is_ok())).collect()
    }

    pub fn replies(&mut self, path: usize, how: Result<Option<Reservations>, IoError>) -> ReservationOp {
        let (id, request) =
            self.paths[path].0.borrow_mut().requests.pop_front().expect("something is claimed");
        self.say(path, PathEvent::ReservationReply { id, how });
        request
    }
}

pub fn read(lba: u64) -> Op {
    Op::Read(Span { lba, blocks: 8 })
}

pub fn write(lba: u64) -> Op {
    Op::Write(Span { lba, blocks: 8 }, Durability::Cached)
}
