//! An endpoint for tests. On a socket it speaks frames: 4 bytes operation, 4 bytes argument (little endian),
//! then, for an echo, as many bytes as the argument says.
//!
//! It records everything that it hands out, and asserts that each comes back exactly once.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use buf::{Buf, BufMut, Cx, Errno, MemoryClass, Sg, SgMut, Time};
use endpoint::{Dial, DialId, DialSource, Dialled, Endpoint, LinkArrival, LinkDeparture, LinkId, ShardId};
use smallvec::SmallVec;
use stream::{DirectBuffer, Received, RecvOp, SendOp, SendPiece, Slab};
use volume::{DiskId, DiskKind, DiskOp, DiskTicket};

/// Send the payload back.
pub const ECHO: u32 = 0;
/// Close the link.
pub const CLOSE: u32 = 1;
/// Move the link to the shard that the argument names, and answer with that shard's number (4 bytes).
pub const MOVE: u32 = 2;
/// Reset the link.
pub const ABORT: u32 = 3;
/// Send as many patterned bytes as the argument says, then close.
pub const SOURCE: u32 = 4;
/// Answer with the shard's number (4 bytes).
pub const WHERE: u32 = 5;

/// The byte that [`SOURCE`] sends at `at`.
pub fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

pub enum Msg {
    /// Answer with the time of arrival.
    Ping(Sender<Instant>),
    /// Hand on to that shard, which answers.
    Relay(ShardId, Sender<Instant>),
    /// Answer after so long.
    Alarm(Duration, Sender<Instant>),
    /// Say so many things to the control plane.
    Report(u32),
    /// What is said.
    Reported(u32),
    Disk(DiskId, Step, Sender<Result<Vec<u8>, i32>>),
    /// A link's state: bytes that were received and not used.
    Moved(Vec<u8>),
    /// Connect to there, giving up after so long; the link speaks frames as those that are accepted do.
    Dial(SocketAddr, Duration, Sender<Result<Dialled, i32>>),
    /// Abort every link, whatever is out.
    AbortAll,
    /// Close every link, whatever is out.
    CloseAll,
    /// Take all memory of the pool and what every receive brings, so that no receive finds any; or give it back.
    Hoard(bool),
}

pub enum Step {
    Write(u64, Vec<u8>, bool),
    Read(u64, usize),
    Sync,
    Punch(u64, u64),
    Zero(u64, u64),
    NextData(u64),
    Prefetch(u64, u64),
}

#[derive(Default)]
struct Conn {
    /// Received and not used.
    staged: Vec<u8>,
    /// A payload that is being received, and how much of it there is.
    payload: Option<(SgMut, usize)>,
    out: VecDeque<Sg>,
    recv_out: bool,
    send_out: bool,
    sends_held: usize,
    ended: bool,
    then: Option<LinkDeparture<Msg>>,
    gone: bool,
}

pub struct TestEnd {
    me: ShardId,
    links: HashMap<LinkId, Conn>,
    ready: VecDeque<LinkId>,
    departures: VecDeque<(LinkId, LinkDeparture<Msg>)>,
    mail: VecDeque<(ShardId, Msg)>,
    disks: VecDeque<DiskOp>,
    waiting: Slab<Sender<Result<Vec<u8>, i32>>>,
    alarms: Vec<(Time, Sender<Instant>)>,
    dials: VecDeque<Dial>,
    dialling: HashMap<DialId, Sender<Result<Dialled, i32>>>,
    dialled: u64,
    tags: Slab<()>,
    /// Memory that is held back from the world; none unless told so.
    hoard: Option<Vec<BufMut>>,
}

impl TestEnd {
    pub fn new(me: ShardId) -> Self {
        TestEnd {
            me,
            links: HashMap::new(),
            ready: VecDeque::new(),
            departures: VecDeque::new(),
            mail: VecDeque::new(),
            disks: VecDeque::new(),
            waiting: Slab::new(10_000),
            alarms: Vec::new(),
            dials: VecDeque::new(),
            dialling: HashMap::new(),
            dialled: 0,
            tags: Slab::new(1),
            hoard: None,
        }
    }

    fn advance(&mut self, cx: &mut Cx<'_>, link: LinkId) {
        let me = self.me;
        let conn = self.links.get_mut(&link).unwrap();
        loop {
            if let Some((sg, have)) = &mut conn.payload {
                let n = (sg.len() - *have).min(conn.staged.len());
                let rest = conn.staged.split_off(n);
                sg.copy_from(*have, &conn.staged);
                conn.staged = rest;
                *have += n;
                if *have < sg.len() {
                    break;
                }
                let (sg, _) = conn.payload.take().unwrap();
                conn.out.push_back(sg.freeze());
            }
            if conn.staged.len() < 8 || conn.then.is_some() {
                break;
            }
            let word = |at: usize| u32::from_le_bytes(conn.staged[at..at + 4].try_into().unwrap());
            let (op, arg) = (word(0), word(4) as usize);
            conn.staged.drain(..8);
            match op {
                ECHO => {
                    let sg = cx.pool.take_sg(MemoryClass::Solicited, arg).expect("memory for a payload");
                    conn.payload = Some((sg, 0));
                }
                CLOSE => conn.then = Some(LinkDeparture::Close),
                ABORT => conn.then = Some(LinkDeparture::Abort),
                MOVE => {
                    let message = Msg::Moved(std::mem::take(&mut conn.staged));
                    conn.then = Some(LinkDeparture::Move { to: ShardId(arg as u16), message });
                }
                WHERE => conn.out.push_back(small(cx, &u32::from(me.0).to_le_bytes()).into()),
                SOURCE => {
                    let mut sg = cx.pool.take_sg(MemoryClass::Solicited, arg).expect("memory for a source");
                    let mut at = 0;
                    for slice in sg.slices_mut(0..arg) {
                        slice.iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(at + i));
                        at += slice.len();
                    }
                    // Many small pieces, so that lists are long.
                    let sg = sg.freeze();
                    let mut cut = Sg::new();
                    sg.for_each_piece(0..arg, |piece, _| {
                        for start in (0..piece.len()).step_by(700) {
                            cut.push(piece.slice(start..(start + 700).min(piece.len())));
                        }
                    });
                    conn.out.push_back(cut);
                    conn.then = Some(LinkDeparture::Close);
                }
                other => panic!("unknown operation {other}"),
            }
        }
        self.settle(link);
    }

    /// Lets the link depart when nothing is left to be sent.
    fn settle(&mut self, link: LinkId) {
        let conn = self.links.get_mut(&link).unwrap();
        if conn.ended && conn.then.is_none() {
            conn.then = Some(LinkDeparture::Close);
        }
        let at_rest = conn.out.is_empty() && !conn.send_out && !conn.gone;
        let moves = matches!(conn.then, Some(LinkDeparture::Move { .. }));
        if at_rest
            && (!moves || !conn.recv_out)
            && let Some(how) = conn.then.take()
        {
            conn.gone = true;
            self.departures.push_back((link, how));
        } else if !conn.gone {
            self.ready.push_back(link);
        }
        self.forget(link);
    }

    fn depart_all(&mut self, how: impl Fn() -> LinkDeparture<Msg>) {
        for (link, conn) in &mut self.links {
            if !conn.gone {
                conn.gone = true;
                self.departures.push_back((*link, how()));
            }
        }
    }

    fn forget(&mut self, link: LinkId) {
        let conn = &self.links[&link];
        let is_asked_for = self.departures.iter().any(|(l, _)| *l == link);
        if conn.gone && !conn.recv_out && !conn.send_out && conn.sends_held == 0 && !is_asked_for {
            self.links.remove(&link);
        }
    }
}

fn small(cx: &mut Cx<'_>, bytes: &[u8]) -> Buf {
    let mut buf = cx.pool.take(MemoryClass::Wire, bytes.len()).unwrap();
    buf.copy_from_slice(bytes);
    buf.freeze()
}

impl Drop for TestEnd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for (link, conn) in &self.links {
            assert!(!conn.recv_out, "{link:?}: a receive never came back");
            assert!(!conn.send_out && conn.sends_held == 0, "{link:?}: a send never came back");
        }
        assert!(self.waiting.is_empty(), "a disk operation never came back");
        assert!(
            self.dialling.len() == self.dials.len(),
            "a connection that was asked for was never answered"
        );
    }
}

impl Endpoint for TestEnd {
    type Message = Msg;

    fn handle_arrival(&mut self, cx: &mut Cx<'_>, link: LinkId, how: LinkArrival<Msg>) {
        let mut conn = Conn::default();
        match how {
            LinkArrival::Accepted(_) => {}
            LinkArrival::Moved(Msg::Moved(staged)) => {
                conn.staged = staged;
                conn.out.push_back(small(cx, &u32::from(self.me.0).to_le_bytes()).into());
            }
            LinkArrival::Moved(_) => panic!("a link comes with its state"),
        }
        assert!(self.links.insert(link, conn).is_none(), "a link's name is never used again");
        self.advance(cx, link);
    }

    fn handle_message(&mut self, cx: &mut Cx<'_>, message: Msg) {
        match message {
            // A test that has given up listens no more.
            Msg::Ping(to) => {
                let _ = to.send(Instant::now());
            }
            Msg::Relay(shard, to) => self.mail.push_back((shard, Msg::Ping(to))),
            Msg::Alarm(after, to) => self.alarms.push((cx.now + after, to)),
            Msg::Report(count) => {
                self.mail.extend((0..count).map(|i| (ShardId::CONTROL_PLANE, Msg::Reported(i))))
            }
            // Its link could not become one of this shard's.
            Msg::Moved(staged) => {
                self.mail.push_back((ShardId::CONTROL_PLANE, Msg::Reported(staged.len() as u32)))
            }
            Msg::Reported(_) => panic!("not for a shard"),
            Msg::Dial(to, within, tell) => {
                let id = DialId(self.dialled);
                self.dialled += 1;
                self.dials.push_back(Dial { id, to, source: DialSource::default(), until: cx.now + within });
                self.dialling.insert(id, tell);
            }
            Msg::AbortAll => self.depart_all(|| LinkDeparture::Abort),
            Msg::CloseAll => self.depart_all(|| LinkDeparture::Close),
            Msg::Hoard(false) => self.hoard = None,
            Msg::Hoard(true) => {
                let hoard = self.hoard.insert(Vec::new());
                for len in [1 << 20, 64 << 10, 4096, 512] {
                    hoard.extend(std::iter::from_fn(|| cx.pool.take(MemoryClass::Wire, len)));
                }
            }
            Msg::Disk(disk, step, to) => {
                let kind = match step {
                    Step::Write(offset, bytes, durable) => {
                        let mut into = cx.pool.take_sg(MemoryClass::Solicited, bytes.len()).unwrap();
                        into.copy_from(0, &bytes);
                        DiskKind::Write { offset, from: into.freeze(), skip: 0, durable }
                    }
                    Step::Read(offset, len) => {
                        let into = cx.pool.take_sg(MemoryClass::Solicited, len).unwrap();
                        DiskKind::Read { offset, into, skip: 0 }
                    }
                    Step::Sync => DiskKind::Sync,
                    Step::Punch(offset, len) => DiskKind::Punch { offset, len },
                    Step::Zero(offset, len) => DiskKind::Zero { offset, len },
                    Step::NextData(offset) => DiskKind::NextData { offset, data: None },
                    Step::Prefetch(offset, len) => DiskKind::Prefetch { offset, len },
                };
                let Ok(tag) = self.waiting.insert(to) else { panic!("too many disk operations") };
                self.disks.push_back(DiskOp { disk, ticket: DiskTicket(tag.to_bits()), kind });
            }
        }
    }

    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        let conn = self.links.get_mut(&link).expect("a link that is known");
        assert!(std::mem::take(&mut conn.recv_out), "a receive came back twice");
        let mut direct_len = 0;
        if let Some(direct) = op.direct {
            direct_len = direct.want.len();
            conn.payload = Some((direct.data, direct.want.start));
        }
        match came {
            Received::Bytes(n) => {
                assert!(n > 0);
                let direct = n.min(direct_len);
                if let Some((_, have)) = &mut conn.payload {
                    *have += direct;
                }
                match op.stage {
                    Some(stage) => {
                        assert_eq!(stage.len(), n - direct, "the stage's length is what arrived in it");
                        conn.staged.extend_from_slice(&stage);
                        if let Some(hoard) = &mut self.hoard {
                            hoard.push(stage);
                        }
                    }
                    None => assert_eq!(n, direct),
                }
            }
            Received::Loaned(_) => panic!("no world of ours lends"),
            Received::End => conn.ended = true,
            Received::Cancelled => {
                assert!(op.stage.is_none());
            }
            Received::Failed(_) => {
                conn.ended = true;
                conn.out.clear();
                conn.then = Some(LinkDeparture::Abort);
            }
        }
        if conn.gone {
            return self.forget(link);
        }
        self.advance(cx, link);
    }

    fn handle_written(&mut self, _: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>) {
        let conn = self.links.get_mut(&link).expect("a link that is known");
        assert!(std::mem::take(&mut conn.send_out), "a send was written twice");
        if how.is_err() {
            conn.ended = true;
            conn.out.clear();
            conn.then = Some(LinkDeparture::Abort);
        }
    }

    fn handle_send_released(&mut self, _: &mut Cx<'_>, link: LinkId, _: SendOp) {
        let conn = self.links.get_mut(&link).expect("a link that is known");
        assert!(!conn.send_out, "memory comes back after it was written");
        conn.sends_held = conn.sends_held.checked_sub(1).expect("a send came back twice");
        match conn.gone {
            true => self.forget(link),
            false => self.settle(link),
        }
    }

    fn handle_disk(&mut self, _: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        let to = self.waiting.remove(stream::Tag::from_bits(op.ticket.0)).expect("came back twice");
        let answer = came.map_err(|e| e.0).map(|n| match op.kind {
            DiskKind::Read { into, .. } => {
                let mut bytes = vec![0; n];
                into.freeze().copy_to(0, &mut bytes);
                bytes
            }
            DiskKind::NextData { data, .. } => {
                data.map_or(Vec::new(), |(a, b)| [a.to_le_bytes(), b.to_le_bytes()].concat())
            }
            DiskKind::Write { .. } => (n as u64).to_le_bytes().to_vec(),
            DiskKind::Sync | DiskKind::Punch { .. } | DiskKind::Zero { .. } | DiskKind::Prefetch { .. } => {
                Vec::new()
            }
        });
        drop(to.send(answer));
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        for (_, to) in self.alarms.extract_if(.., |(due, _)| *due <= now) {
            let _ = to.send(Instant::now());
        }
    }

    fn poll_ready(&mut self) -> Option<LinkId> {
        self.ready.pop_front()
    }

    fn poll_recv(&mut self, _: &mut Cx<'_>, link: LinkId) -> Option<RecvOp> {
        let conn = self.links.get_mut(&link)?;
        // Two answers may wait, then the peer does.
        if conn.recv_out || conn.ended || conn.gone || conn.then.is_some() || conn.out.len() > 2 {
            return None;
        }
        conn.recv_out = true;
        let direct = conn.payload.take().map(|(data, have)| {
            let tag = self.tags.insert(()).unwrap();
            self.tags.remove(tag);
            let want = have..data.len();
            DirectBuffer { tag, data, want }
        });
        Some(RecvOp { direct, stage_len: 16 << 10, stage: None })
    }

    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        let conn = self.links.get_mut(&link)?;
        if conn.send_out || conn.gone || conn.out.is_empty() {
            return None;
        }
        let mut pieces = SmallVec::new();
        let mut len = 0;
        // A head of no use to the peer would break the echo: so the first byte is sent from it.
        let mut head = None;
        for sg in conn.out.drain(..) {
            let mut from = 0;
            if head.is_none() && sg.len() > 1 {
                let mut first = cx.pool.take(MemoryClass::Wire, 1).unwrap();
                sg.copy_to(0, &mut first);
                head = Some(first);
                pieces.push(SendPiece::Head(0..1));
                from = 1;
            }
            sg.slice(from..sg.len())
                .pieces()
                .iter()
                .for_each(|piece| pieces.push(SendPiece::Shared(piece.clone())));
            len += sg.len();
        }
        if len == 0 {
            return None;
        }
        conn.send_out = true;
        conn.sends_held += 1;
        Some(SendOp { head, pieces, len })
    }

    fn poll_disk(&mut self) -> Option<DiskOp> {
        self.disks.pop_front()
    }

    fn poll_departure(&mut self) -> Option<(LinkId, LinkDeparture<Msg>)> {
        let (link, how) = self.departures.pop_front()?;
        self.forget(link);
        Some((link, how))
    }

    fn poll_message(&mut self) -> Option<(ShardId, Msg)> {
        self.mail.pop_front()
    }

    fn poll_dial(&mut self) -> Option<Dial> {
        self.dials.pop_front()
    }

    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        let tell = self.dialling.remove(&id).expect("a connection is answered once");
        if let Ok(Dialled { link, .. }) = how {
            assert!(self.links.insert(link, Conn::default()).is_none(), "a link's name is never used again");
            self.advance(cx, link);
        }
        let _ = tell.send(how.map_err(|e| e.0));
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.alarms.iter().map(|(due, _)| *due).min()
    }
}
