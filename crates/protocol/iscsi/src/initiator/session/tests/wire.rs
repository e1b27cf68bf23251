//! Both sides with a wire between them, a server of a small disk, and how a wire delivers.

use super::super::*;
use crate::chap::{Algorithm, ChapAccount, Secret};
use crate::initiator::Credentials;
use crate::login::{
    AuthPolicy, Authorization, ChapAccounts, Login, LoginAction, LoginCompletion, LoginPdu, LoginPolicy,
};
use crate::negotiate::{Digest, NegotiationLimits};
use crate::session::{self, Cdb, LinkParams, ScsiResult, SessionLimits, SessionParams, TargetSession};
use crate::wire::{BHS_LEN, Bhs, Isid, Sn, TaskAttribute, TmfResponseCode};
use buf::{Entropy, MemoryClass, Pool, Sg, SgMut};
use stream::{TargetConnection, TargetEvent};
pub use testkit::delivery::RecvDelivery;

pub const DISK_LEN: usize = 1 << 20;

/// One side of one link.
pub struct End {
    pub op: Option<RecvOp>,
    pub inbox: VecDeque<u8>,
    pub delivery: RecvDelivery,
    pub shut: bool,
}

impl End {
    pub fn new() -> Self {
        End { op: None, inbox: VecDeque::new(), delivery: RecvDelivery::unlimited(), shut: false }
    }

    /// Receives once and sends once; gives what was sent, and whether anything moved.
    fn turn<C: Connection>(&mut self, side: &mut C, link: LinkNumber, cx: &mut Cx<'_>) -> (Vec<u8>, bool)
    where
        C::LinkFault: core::fmt::Debug,
    {
        let mut moved = false;
        side.resume_parsing(cx).unwrap();
        if self.op.is_none() && !self.shut {
            self.op = side.poll_recv(cx, link);
        }
        if let (Some(op), false) = (self.op.take_if(|_| !self.inbox.is_empty()), self.shut) {
            let (op, came) = self.delivery.fill_recv(cx.pool, op, &mut self.inbox);
            side.handle_recv(cx, link, op, came).unwrap();
            moved = true;
        }
        side.resume_parsing(cx).unwrap();
        let mut bytes = Vec::new();
        if let Some(op) = side.poll_send(cx, link) {
            bytes = testkit::delivery::send_op_bytes(&op);
            side.handle_written(cx, link, Ok(()));
            side.handle_send_released(cx, link, op);
            moved = true;
        }
        (bytes, moved)
    }

    pub fn shut<C: Connection>(&mut self, side: &mut C, link: LinkNumber, cx: &mut Cx<'_>, came: Received)
    where
        C::LinkFault: core::fmt::Debug,
    {
        self.shut = true;
        self.inbox.clear();
        if let Some(op) = self.op.take() {
            side.handle_recv(cx, link, op, came).unwrap();
        }
    }
}

/// The target's side of one link.
struct TargetEnd {
    end: End,
    /// Until the login is over.
    login: Option<Login>,
    link: Option<LinkNumber>,
}

pub struct Wire {
    pub pool: Pool,
    pub entropy: Entropy,
    pub now: Time,
    pub host: InitiatorSession,
    pub ends: Vec<End>,
    targets: Vec<TargetEnd>,
    pub target: Option<TargetSession>,
    access: LoginPolicy,
    pub disk: Vec<u8>,
    writes: Vec<(Tag, u32)>,
    /// The server keeps SCSI commands.
    pub keeps: bool,
    pub kept: Vec<Tag>,
    pub records: Vec<u8>,
    pub ended: Vec<(Tag, Response, Payload)>,
    pub notices: Vec<Notice>,
    pub ready: bool,
    pub closed: bool,
}

macro_rules! cx {
    ($wire:expr) => {
        &mut Cx { now: $wire.now, pool: &$wire.pool, entropy: &mut $wire.entropy }
    };
}
pub(crate) use cx;

pub fn wanted() -> LoginConfig {
    LoginConfig {
        initiator_name: "iqn.2026-11.io.example:host".to_owned(),
        alias: None,
        target_name: Some("iqn.2026-11.io.example:disk".to_owned()),
        isid: Isid::random([1, 2, 3], 4),
        tsih: Tsih::NONE,
        cid: Cid::new(0),
        cmd_sn: Sn::new(u32::MAX),
        limits: NegotiationLimits::default(),
        credentials: None,
    }
}

pub fn access() -> LoginPolicy {
    LoginPolicy {
        auth: AuthPolicy::None,
        limits: NegotiationLimits::default(),
        portal_group_tag: 1,
        target_alias: None,
    }
}

pub fn account(name: &str, secret: &[u8]) -> ChapAccount {
    ChapAccount { name: name.to_owned(), secret: Secret::new(secret.to_vec()) }
}

pub fn chap(algorithm: Algorithm, mutual: bool) -> (Credentials, AuthPolicy) {
    let ours = account("alice", b"our secret of length");
    let theirs = mutual.then(|| account("disk", b"the target's own one"));
    let algorithms = vec![algorithm];
    let chap = ChapAccounts {
        accounts: vec![ours.clone()],
        mutual: theirs.clone(),
        demands_mutual: false,
        algorithms: algorithms.clone(),
    };
    (Credentials { ours, target: theirs, algorithms }, AuthPolicy::Required(chap))
}

pub fn digests(limits: &mut NegotiationLimits, digest: Digest) {
    limits.header_digest = vec![digest];
    limits.data_digest = vec![digest];
}

/// A command whose CDB names an offset of the disk.
pub fn scsi(offset: u32) -> Request {
    let mut cdb = [0; 16];
    cdb[2..6].copy_from_slice(&offset.to_be_bytes());
    Request::Scsi(ScsiCommand { lun: [0; 8], cdb: Cdb::Short(cdb), attr: TaskAttribute::SIMPLE, priority: 0 })
}

impl Wire {
    pub fn new(wanted: LoginConfig, access: LoginPolicy, limits: InitiatorLimits) -> Self {
        let pool = Pool::new_poisoned(64 << 20);
        let mut entropy = Entropy::new([3; 32]);
        let now = Time(1_000_000_000);
        let cx = &mut Cx { now, pool: &pool, entropy: &mut entropy };
        let host = InitiatorSession::new(cx, wanted, limits).unwrap();
        let mut wire = Wire {
            pool,
            entropy,
            now,
            host,
            ends: Vec::new(),
            targets: Vec::new(),
            target: None,
            access,
            disk: (0..DISK_LEN).map(|i| (i / 512 + i) as u8).collect(),
            writes: Vec::new(),
            keeps: false,
            kept: Vec::new(),
            records: Vec::new(),
            ended: Vec::new(),
            notices: Vec::new(),
            ready: false,
            closed: false,
        };
        wire.connect();
        wire
    }

    /// Logged in, with default limits where nothing else is said.
    pub fn open(wanted: LoginConfig, access: LoginPolicy) -> Self {
        let mut wire = Wire::new(wanted, access, InitiatorLimits::default());
        wire.run();
        assert!(wire.ready, "{:?}", wire.notices);
        wire
    }

    /// A TCP connection for the next link.
    pub fn connect(&mut self) {
        self.ends.push(End::new());
        self.targets.push(TargetEnd { end: End::new(), login: Some(Login::new()), link: None });
    }

    pub fn deliver(&mut self, index: usize, to_host: &RecvDelivery, to_target: &RecvDelivery) {
        self.ends[index].delivery = to_host.clone();
        self.targets[index].end.delivery = to_target.clone();
    }

    pub fn out(&self, bytes: &[u8]) -> Payload {
        let mut data = self.pool.take_sg(MemoryClass::Solicited, bytes.len()).unwrap();
        data.copy_from(0, bytes);
        Payload::Out(data.freeze())
    }

    /// Memory for a read, full of old bytes.
    pub fn room(&self, len: usize) -> Payload {
        let mut data = self.pool.take_sg(MemoryClass::Solicited, len).unwrap();
        data.copy_from(0, &vec![0xee; len]);
        Payload::In(data)
    }

    pub fn submit(&mut self, request: Request, payload: Payload) -> Option<Tag> {
        self.host.submit(cx!(self), request, payload).ok()
    }

    pub fn run(&mut self) {
        loop {
            let mut moved = false;
            for index in 0..self.ends.len() {
                let (bytes, any) = self.ends[index].turn(&mut self.host, LinkNumber(index as u16), cx!(self));
                self.targets[index].end.inbox.extend(bytes);
                moved |= any;
                moved |= self.take_events();
                moved |= self.target_turn(index);
                moved |= self.serve();
            }
            if !moved {
                return;
            }
        }
    }

    /// The target answers so many requests of the first login, and closes when it has the next.
    pub fn closes_after(&mut self, answers: usize) {
        let mut answered = 0;
        while answered < answers || self.targets[0].end.inbox.is_empty() || self.ends[0].op.is_none() {
            let (bytes, _) = self.ends[0].turn(&mut self.host, LinkNumber(0), cx!(self));
            self.targets[0].end.inbox.extend(bytes);
            answered += usize::from(answered < answers && self.log_in(0));
        }
        self.ends[0].shut(&mut self.host, LinkNumber(0), cx!(self), Received::End);
        self.take_events();
    }

    pub fn take_events(&mut self) -> bool {
        let mut any = false;
        while let Some(link) = self.host.poll_link_to_close() {
            let index = usize::from(link.0);
            self.ends[index].shut(&mut self.host, link, cx!(self), Received::Cancelled);
            any = true;
        }
        while let Some(event) = self.host.poll_event() {
            any = true;
            match event {
                HostEvent::Ready => self.ready = true,
                HostEvent::Completed { tag, response, payload } => self.ended.push((tag, response, payload)),
                HostEvent::Closed => {
                    assert!(!self.closed, "closed once");
                    self.closed = true;
                }
            }
        }
        while let Some(notice) = self.host.poll_notice() {
            self.notices.push(notice);
        }
        any
    }

    fn target_turn(&mut self, index: usize) -> bool {
        if self.targets[index].login.is_some() {
            return self.log_in(index);
        }
        let (Some(target), Some(link)) = (&mut self.target, self.targets[index].link) else { return false };
        let (bytes, moved) = self.targets[index].end.turn(target, link, cx!(self));
        if !self.ends[index].shut {
            self.ends[index].inbox.extend(bytes);
        }
        while let Some(link) = target.poll_link_to_close() {
            let of = |end: &TargetEnd| end.link == Some(link);
            let index = self.targets.iter().position(of).unwrap();
            self.targets[index].end.shut(target, link, cx!(self), Received::Cancelled);
        }
        moved
    }

    /// One Login Request of the host.
    fn log_in(&mut self, index: usize) -> bool {
        let inbox = &mut self.targets[index].end.inbox;
        let bytes: &[u8] = inbox.make_contiguous();
        let Some(bhs) = bytes.get(..BHS_LEN).and_then(Bhs::from_prefix).copied() else { return false };
        let Some(data) = bytes.get(BHS_LEN..BHS_LEN + bhs.padded_data_len()) else { return false };
        let data = data[..bhs.data_len()].to_vec();
        inbox.drain(..BHS_LEN + bhs.padded_data_len());
        let mut login = self.targets[index].login.take().unwrap();
        login.handle_header(&bhs).unwrap();
        let mut step = login.handle_request(&bhs, &data, &mut self.entropy);
        let mut over = false;
        let response = loop {
            match step {
                LoginAction::Authorize(_) => {
                    let authorization = Authorization::Granted(Box::new(self.access.clone()));
                    step = login.authorize(authorization, &mut self.entropy);
                }
                LoginAction::Complete(_) => {
                    let completion = match &self.target {
                        None => LoginCompletion::NewSession { tsih: Tsih::new(3), window: 32 },
                        Some(target) => {
                            let (exp_cmd_sn, max_cmd_sn) = target.command_numbers();
                            LoginCompletion::Join { exp_cmd_sn, max_cmd_sn }
                        }
                    };
                    step = login.complete(completion);
                }
                LoginAction::Send(pdu) => break pdu,
                LoginAction::Refuse(pdu, _) => {
                    over = true;
                    break pdu;
                }
                LoginAction::Established(pdu, end) => {
                    over = true;
                    self.attach(index, &end);
                    break pdu;
                }
                LoginAction::Drop(cause) => panic!("{cause:?}"),
            }
        };
        self.targets[index].login = (!over).then_some(login);
        self.ends[index].inbox.extend(login_bytes(&response));
        true
    }

    fn attach(&mut self, index: usize, end: &crate::login::EstablishedConnection) {
        let (isid, cid) = (end.identity.isid, end.identity.cid);
        if self.target.is_none() {
            let params = SessionParams::from_negotiated(&end.params, isid, end.tsih, end.exp_cmd_sn);
            let limits = SessionLimits { commands: 32, ..SessionLimits::default() };
            self.target = Some(TargetSession::new(cx!(self), params, limits).unwrap());
        }
        let link = LinkParams::from_negotiated(&end.params, cid, end.stat_sn);
        let target = self.target.as_mut().unwrap();
        self.targets[index].link = Some(target.attach_link(cx!(self), link, &[]).unwrap());
    }

    fn serve(&mut self) -> bool {
        let mut any = false;
        if self.target.as_mut().is_some_and(TargetSession::poll_nexus_end) {
            any = true;
            self.target.as_mut().unwrap().handle_nexus_ended(cx!(self));
        }
        while let Some(event) = self.target.as_mut().and_then(Connection::poll_event) {
            any = true;
            match event {
                TargetEvent::Command { tag, command, data_out } => self.command(tag, &command, data_out),
                TargetEvent::DataReceived { tag, at, data } => self.written(tag, at, &data),
                TargetEvent::Aborted { tag } => {
                    self.target.as_mut().unwrap().end_without_response(cx!(self), tag)
                }
                TargetEvent::Closed => {}
            }
        }
        any
    }

    fn command(&mut self, tag: Tag, command: &session::Request, data_out: u32) {
        let target = self.target.as_mut().unwrap();
        match command {
            session::Request::Scsi(_) if self.keeps => self.kept.push(tag),
            session::Request::Scsi(scsi) => {
                let offset = u32::from_be_bytes(scsi.cdb.as_slice()[2..6].try_into().unwrap());
                let end = offset as usize + scsi.edtl as usize;
                if end > DISK_LEN {
                    let refusal = ScsiResult::check_condition(&[0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0], 0);
                    target.respond(cx!(self), tag, session::Response::Scsi(refusal));
                } else if scsi.write {
                    self.writes.push((tag, offset));
                    let memory = self.pool.take_sg(MemoryClass::Solicited, data_out as usize).unwrap();
                    target.recv_data(cx!(self), tag, 0, memory);
                } else {
                    let mut data = self.pool.take_sg(MemoryClass::Solicited, scsi.edtl as usize).unwrap();
                    data.copy_from(0, &self.disk[offset as usize..end]);
                    target.send_data(cx!(self), tag, 0, data.freeze());
                    let good = ScsiResult::good(u64::from(scsi.edtl));
                    target.respond(cx!(self), tag, session::Response::Scsi(good));
                }
            }
            session::Request::Task(task) => {
                let ends: Vec<Tag> = match task.referenced {
                    Some(tag) => vec![tag],
                    None => self.kept.drain(..).collect(),
                };
                for tag in ends {
                    target.end_without_response(cx!(self), tag);
                }
                target.respond(cx!(self), tag, session::Response::Task(TmfResponseCode::COMPLETE));
            }
            session::Request::SendTargets(_) => {
                target.respond(cx!(self), tag, session::Response::Targets(self.records.clone().into()));
            }
        }
    }

    fn written(&mut self, tag: Tag, within: u32, data: &Sg) {
        let write = self.writes.iter().position(|(write, _)| *write == tag).unwrap();
        let (_, offset) = self.writes.swap_remove(write);
        let from = (offset + within) as usize;
        data.copy_to(0, &mut self.disk[from..from + data.len()]);
        let good = session::Response::Scsi(ScsiResult::good(data.len() as u64));
        self.target.as_mut().unwrap().respond(cx!(self), tag, good);
    }

    /// The TCP connection of a link is gone.
    pub fn hang_up(&mut self, index: usize) {
        let link = LinkNumber(index as u16);
        let end = &mut self.ends[index];
        if let Some(op) = end.op.take().or_else(|| self.host.poll_recv(cx!(self), link)) {
            self.host.handle_recv(cx!(self), link, op, Received::End).unwrap();
        }
        self.take_events();
    }

    /// Ends both sides; all memory must be back.
    pub fn finish(mut self) {
        self.host.close(cx!(self), ConnectionClose::Now);
        self.take_events();
        assert!(self.closed, "{:?}", self.notices);
        assert_eq!(self.host.commands_in_work(), 0);
        self.ended.clear();
        self.target = None;
        self.targets.clear();
        self.ends.clear();
        assert_eq!(self.pool.usage().lent, 0);
    }
}

pub fn login_bytes(pdu: &LoginPdu) -> Vec<u8> {
    let mut bytes = pdu.bhs.bytes().to_vec();
    bytes.extend(&pdu.text);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

pub fn bytes_of(payload: &Payload) -> Vec<u8> {
    match payload {
        Payload::None => Vec::new(),
        Payload::In(data) => data.pieces().iter().flat_map(|piece| piece.to_vec()).collect(),
        Payload::Out(data) => {
            let mut bytes = vec![0; data.len()];
            data.copy_to(0, &mut bytes);
            bytes
        }
    }
}

pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256 + seed) as u8).collect()
}

pub fn memory(pool: &Pool, len: usize) -> SgMut {
    pool.take_sg(MemoryClass::Solicited, len).unwrap()
}
