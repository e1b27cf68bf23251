//! A small initiator for the simulated world: it logs in over one or more connections, follows the protocol,
//! and checks that the target does.

mod receive;

use std::collections::{BTreeMap, VecDeque};

use buf::crc32c::crc32c;
use iscsi::initiator::{InitiatorLogin, LoggedInConnection, LoginConfig, LoginFailure};
use iscsi::negotiate::Digest;
use iscsi::wire::{
    Bhs, Cid, CommandFlags, DataOut, DataOutFlags, Itt, LogoutRequest, Lun, NopOut, OpByte, Opcode, Pdu,
    ScsiCommand, Sn, TmfFunction, TmfRequest, Ttt, pad_len,
};
use shard::Shard;
use sim::{Peer, PeerEnd, World};

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandResult {
    pub itt: u32,
    pub status: u8,
    pub sense: Vec<u8>,
    pub data: Vec<u8>,
    /// Positive: underflow; negative: overflow.
    pub residual: i64,
}

/// A command in flight.
struct Task {
    conn: usize,
    /// Its place in the order of commands, once it was sent.
    sn: Option<Sn>,
    lun: Lun,
    out: Vec<u8>,
    data: Vec<u8>,
    edtl: usize,
    next_data_sn: u32,
    next_r2t_sn: u32,
}

impl Task {
    fn new(conn: usize, lun: Lun, out: &[u8], edtl: usize) -> Self {
        let (sn, out, data) = (None, out.to_vec(), vec![]);
        Task { conn, sn, lun, out, data, edtl, next_data_sn: 0, next_r2t_sn: 0 }
    }
}

/// One connection.
struct Conn {
    peer: Peer,
    cid: u16,
    login: Option<InitiatorLogin>,
    logged: Option<LoggedInConnection>,
    failure: Option<LoginFailure>,
    inbox: Vec<u8>,
    exp_stat_sn: Sn,
    dead: bool,
}

/// One session.
pub struct TestInitiator {
    wanted: LoginConfig,
    conns: Vec<Conn>,
    next_itt: u32,
    cmd_sn: Sn,
    exp_cmd_sn: Sn,
    max_cmd_sn: Sn,
    tasks: BTreeMap<u32, Task>,
    waiting: VecDeque<(u32, ScsiCommand)>,
    /// Pings that fill holes in the order of commands: over which connection, with which number.
    pings: BTreeMap<u32, (usize, Sn)>,
    /// Numbers of commands that died with their connection, and may never have come.
    holes: Vec<Sn>,
    pub ended: Vec<CommandResult>,
    pub managed: Vec<(u32, u8)>,
    pub logged_out: bool,
    pub asked_to_log_out: bool,
    /// R2Ts that were not the first of their tasks.
    pub later_r2ts: u64,
    /// The connection that the next command goes over.
    pub next_conn: usize,
}

impl TestInitiator {
    /// Connects and begins a login.
    pub fn connect(world: &mut World<Shard>, wanted: LoginConfig) -> Self {
        let mut initiator = TestInitiator {
            wanted: wanted.clone(),
            conns: Vec::new(),
            next_itt: 1,
            cmd_sn: Sn::new(0),
            exp_cmd_sn: Sn::new(0),
            max_cmd_sn: Sn::new(0),
            tasks: BTreeMap::new(),
            waiting: VecDeque::new(),
            pings: BTreeMap::new(),
            holes: Vec::new(),
            ended: Vec::new(),
            managed: Vec::new(),
            logged_out: false,
            asked_to_log_out: false,
            later_r2ts: 0,
            next_conn: 0,
        };
        initiator.start_login(world, wanted);
        initiator
    }

    /// Adds a connection to the session, or reinstates one.
    pub fn add_connection(&mut self, world: &mut World<Shard>, cid: u16) {
        let tsih = self.conns[0].logged.as_ref().expect("the leading connection is in").tsih;
        let wanted = LoginConfig { tsih, cid: Cid::new(cid), cmd_sn: self.cmd_sn, ..self.wanted.clone() };
        self.start_login(world, wanted);
    }

    fn start_login(&mut self, world: &mut World<Shard>, wanted: LoginConfig) {
        let peer = world.connect(endpoint::ListenerId(0));
        let cid = wanted.cid.value();
        let (login, first) = InitiatorLogin::start(wanted).expect("a login can begin");
        self.conns.push(Conn {
            peer,
            cid,
            login: Some(login),
            logged: None,
            failure: None,
            inbox: Vec::new(),
            exp_stat_sn: Sn::new(0),
            dead: false,
        });
        self.send_pdu(world, self.conns.len() - 1, &first.bhs, &first.text);
    }

    /// The leading connection.
    pub fn leading_peer(&self) -> Peer {
        self.conns[0].peer
    }

    pub fn peer_of(&self, conn: usize) -> Peer {
        self.conns[conn].peer
    }

    pub fn failure(&self) -> Option<&LoginFailure> {
        self.conns.iter().find_map(|conn| conn.failure.as_ref())
    }

    /// Whether every connection that lives has logged in.
    pub fn is_logged_in(&self) -> bool {
        self.conns.iter().all(|conn| conn.dead || conn.logged.is_some())
    }

    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty() && self.waiting.is_empty()
    }

    pub fn peer_end(&self, world: &World<Shard>) -> PeerEnd {
        world.peer_end(self.leading_peer())
    }

    /// Connections that are in and live.
    pub fn live_connections(&self) -> Vec<usize> {
        (0..self.conns.len()).filter(|&at| !self.conns[at].dead && self.conns[at].logged.is_some()).collect()
    }

    fn digests_enabled(&self, conn: usize) -> (bool, bool) {
        self.conns[conn].logged.as_ref().map_or((false, false), |logged| {
            (logged.params.header_digest == Digest::Crc32c, logged.params.data_digest == Digest::Crc32c)
        })
    }

    pub fn send_pdu(&self, world: &mut World<Shard>, conn: usize, bhs: &Bhs, data: &[u8]) {
        let bytes = self.encode_pdu(conn, bhs, data);
        world.send(self.conns[conn].peer, &bytes);
    }

    fn encode_pdu(&self, conn: usize, bhs: &Bhs, data: &[u8]) -> Vec<u8> {
        let (header_digest, data_digest) = self.digests_enabled(conn);
        let mut bytes = bhs.bytes().to_vec();
        if header_digest {
            bytes.extend(crc32c(&bytes).to_le_bytes());
        }
        if !data.is_empty() {
            let mut segment = data.to_vec();
            segment.resize(data.len() + pad_len(data.len()), 0);
            let digest = crc32c(&segment).to_le_bytes();
            bytes.extend(segment);
            if data_digest {
                bytes.extend(digest);
            }
        }
        bytes
    }

    /// Takes what has come, and answers what the protocol wants answered.
    pub fn poll(&mut self, world: &mut World<Shard>) {
        for conn in 0..self.conns.len() {
            self.poll_conn(world, conn);
        }
        self.send_queued_commands(world);
    }

    /// Reads one connection only: the others' windows fill up.
    pub fn poll_conn(&mut self, world: &mut World<Shard>, conn: usize) {
        if self.conns[conn].dead {
            return;
        }
        let bytes = world.receive(self.conns[conn].peer);
        self.conns[conn].inbox.extend(bytes);
        while let Some((bhs, data)) = self.next_pdu(conn) {
            self.handle_pdu(world, conn, &bhs, &data);
        }
    }

    /// Sends a sequence of Data-Outs for a task, in answer to a tag.
    fn send_data_out_sequence(
        &self,
        world: &mut World<Shard>,
        conn: usize,
        (lun, itt, ttt): (Lun, Itt, Ttt),
        at: usize,
        data: &[u8],
    ) {
        let mrdsl = self.conns[conn].logged.as_ref().expect("logged in").params.target_mrdsl as usize;
        for (number, chunk) in data.chunks(mrdsl).enumerate() {
            let mut pdu = DataOut::new();
            pdu.lun = lun;
            pdu.itt = itt;
            pdu.ttt = ttt;
            pdu.exp_stat_sn = self.conns[conn].exp_stat_sn;
            pdu.data_sn = Sn::new(number as u32);
            pdu.buffer_offset = ((at + number * mrdsl) as u32).into();
            pdu.set_data_len(chunk.len());
            if number * mrdsl + chunk.len() == data.len() {
                pdu.flags = pdu.flags.with(DataOutFlags::FINAL);
            } else {
                pdu.flags = pdu.flags.without(DataOutFlags::FINAL);
            }
            self.send_pdu(world, conn, pdu.as_bhs(), chunk);
        }
    }

    fn next_itt(&mut self) -> u32 {
        let itt = self.next_itt;
        self.next_itt += 1;
        itt
    }

    /// Sends a command, as soon as the window is open for it. Gives its tag.
    pub fn send_command(
        &mut self,
        world: &mut World<Shard>,
        lun: u16,
        cdb: &[u8],
        out: &[u8],
        read: usize,
    ) -> u32 {
        let itt = self.next_itt();
        let living = self.live_connections();
        let conn = living[self.next_conn % living.len()];
        let lun = Lun::single_level(lun).expect("a small number");
        let mut pdu = ScsiCommand::new();
        pdu.lun = lun;
        pdu.itt = Itt::new(itt);
        pdu.cdb[..cdb.len()].copy_from_slice(cdb);
        let edtl = if out.is_empty() { read } else { out.len() };
        pdu.expected_data_len = (edtl as u32).into();
        let mut flags = CommandFlags(1).with(CommandFlags::FINAL);
        if !out.is_empty() {
            flags = flags.with(CommandFlags::WRITE);
        } else if read > 0 {
            flags = flags.with(CommandFlags::READ);
        }
        let params = &self.conns[conn].logged.as_ref().expect("logged in").params;
        let leading = &self.conns[0].logged.as_ref().expect("logged in").params;
        let first = (leading.first_burst as usize).min(out.len());
        let mrdsl = params.target_mrdsl as usize;
        let immediate = if leading.immediate_data { first.min(mrdsl) } else { 0 };
        let unsolicited = if leading.initial_r2t { immediate } else { first };
        pdu.set_data_len(immediate);
        if unsolicited > immediate {
            flags = flags.without(CommandFlags::FINAL);
        }
        pdu.flags = flags;
        self.tasks.insert(itt, Task::new(conn, lun, out, edtl));
        self.waiting.push_back((itt, pdu));
        self.send_queued_commands(world);
        itt
    }

    /// Sends a command that brings `out` and expects to read, over a window that is open. Gives its tag.
    pub fn send_bidirectional_command(
        &mut self,
        world: &mut World<Shard>,
        cdb: &[u8],
        out: &[u8],
        read: u32,
    ) -> u32 {
        let itt = self.next_itt();
        let lun = Lun::single_level(0).expect("a small number");
        let mut pdu = ScsiCommand::new();
        (pdu.lun, pdu.itt, pdu.cmd_sn) = (lun, Itt::new(itt), self.cmd_sn);
        pdu.cdb[..cdb.len()].copy_from_slice(cdb);
        (pdu.exp_stat_sn, pdu.expected_data_len) = (self.conns[0].exp_stat_sn, (out.len() as u32).into());
        pdu.flags = CommandFlags(0xe1); // F, R, W, SIMPLE
        pdu.set_data_len(out.len());
        self.tasks.insert(itt, Task { sn: Some(self.cmd_sn), ..Task::new(0, lun, &[], read as usize) });
        self.cmd_sn = self.cmd_sn.next();
        let mut bytes = pdu.as_bhs().bytes().to_vec();
        // Two words of additional header: the length that is to be read (RFC 7143 §11.2.2.4).
        bytes[4] = 2;
        bytes.extend([0, 5, 2, 0]);
        bytes.extend(read.to_be_bytes());
        bytes.extend(out);
        world.send(self.conns[0].peer, &bytes);
        itt
    }

    fn send_queued_commands(&mut self, world: &mut World<Shard>) {
        while !self.max_cmd_sn.lt(self.cmd_sn) {
            let Some((itt, mut pdu)) = self.waiting.pop_front() else { return };
            let task = self.tasks.get_mut(&itt).expect("what waits was not given up");
            task.sn = Some(self.cmd_sn);
            let (conn, lun, out) = (task.conn, task.lun, task.out.clone());
            pdu.cmd_sn = self.cmd_sn;
            pdu.exp_stat_sn = self.conns[conn].exp_stat_sn;
            self.cmd_sn = self.cmd_sn.next();
            let immediate = pdu.data_segment_len.value() as usize;
            self.send_pdu(world, conn, pdu.as_bhs(), &out[..immediate]);
            if !pdu.flags.contains(CommandFlags::FINAL) {
                let first = self.conns[0].logged.as_ref().expect("logged in").params.first_burst as usize;
                let end = first.min(out.len());
                let names = (lun, Itt::new(itt), Ttt::new(u32::MAX));
                self.send_data_out_sequence(world, conn, names, immediate, &out[immediate..end]);
            }
        }
    }

    /// Breaks a connection, and gives its tasks up. The numbers of commands that the target may not
    /// have seen are filled with pings over another connection. Gives the tasks.
    pub fn break_connection(&mut self, world: &mut World<Shard>, conn: usize, reset: bool) -> Vec<u32> {
        let _ = world.receive(self.conns[conn].peer);
        if reset {
            world.reset(self.conns[conn].peer);
        } else {
            world.shutdown_write(self.conns[conn].peer);
        }
        self.conns[conn].dead = true;
        let lost: Vec<u32> =
            self.tasks.iter().filter(|(_, task)| task.conn == conn).map(|(itt, _)| *itt).collect();
        self.holes.extend(lost.iter().filter_map(|itt| self.tasks[itt].sn));
        self.holes.extend(self.pings.values().filter(|(over, _)| *over == conn).map(|(_, sn)| *sn));
        self.pings.retain(|_, (over, _)| *over != conn);
        lost.iter().for_each(|itt| self.forget_task(*itt));
        lost
    }

    pub fn cid_of(&self, conn: usize) -> u16 {
        self.conns[conn].cid
    }

    /// Fills every number that may be missing with a ping; those that came are ignored.
    pub fn fill_cmd_sn_gaps(&mut self, world: &mut World<Shard>) {
        let Some(&conn) = self.live_connections().first() else { return };
        let expected = self.exp_cmd_sn;
        for sn in std::mem::take(&mut self.holes).into_iter().filter(|sn| !sn.lt(expected)) {
            let mut ping = NopOut::new();
            let itt = self.next_itt();
            self.pings.insert(itt, (conn, sn));
            ping.op = OpByte::new(Opcode::NOP_OUT);
            ping.itt = Itt::new(itt);
            ping.ttt = Ttt::new(u32::MAX);
            ping.cmd_sn = sn;
            ping.exp_stat_sn = self.conns[conn].exp_stat_sn;
            self.send_pdu(world, conn, ping.as_bhs(), &[]);
        }
    }

    /// Forgets a task that was aborted.
    pub fn forget_task(&mut self, itt: u32) {
        self.tasks.remove(&itt);
        self.waiting.retain(|(waiting, _)| *waiting != itt);
    }

    /// Tasks in flight, on the wire or waiting for the window.
    pub fn tasks_in_flight(&self) -> Vec<u32> {
        self.tasks.keys().copied().collect()
    }

    /// Whether a command waits for the window still.
    pub fn is_command_queued(&self, itt: u32) -> bool {
        self.waiting.iter().any(|(waiting, _)| *waiting == itt)
    }

    /// Asks for a task management function, immediately, over the connection of the task it names.
    /// Gives its tag, and that connection.
    pub fn send_task_management(
        &mut self,
        world: &mut World<Shard>,
        function: TmfFunction,
        lun: u16,
        referenced: u32,
    ) -> (u32, usize) {
        let itt = self.next_itt();
        let task = self.tasks.get(&referenced);
        let conn = task.map_or_else(|| self.live_connections()[0], |task| task.conn);
        let ref_cmd_sn = task.and_then(|task| task.sn).unwrap_or(self.cmd_sn);
        let mut pdu = TmfRequest::new();
        pdu.op = OpByte::new(Opcode::TMF_REQUEST).with_immediate();
        pdu.function_byte = 0x80 | function.0;
        pdu.lun = Lun::single_level(lun).expect("a small number");
        pdu.itt = Itt::new(itt);
        pdu.referenced_tag = Itt::new(referenced);
        pdu.cmd_sn = self.cmd_sn;
        pdu.exp_stat_sn = self.conns[conn].exp_stat_sn;
        pdu.ref_cmd_sn = ref_cmd_sn;
        self.send_pdu(world, conn, pdu.as_bhs(), &[]);
        (itt, conn)
    }

    /// Asks to close the session.
    pub fn send_logout(&mut self, world: &mut World<Shard>) {
        let mut pdu = LogoutRequest::new();
        let conn = self.live_connections()[0];
        pdu.op = OpByte::new(Opcode::LOGOUT_REQUEST).with_immediate();
        pdu.itt = Itt::new(self.next_itt());
        pdu.cmd_sn = self.cmd_sn;
        pdu.exp_stat_sn = self.conns[conn].exp_stat_sn;
        self.send_pdu(world, conn, pdu.as_bhs(), &[]);
    }
}

impl std::fmt::Debug for TestInitiator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waiting: Vec<u32> = self.waiting.iter().map(|(itt, _)| *itt).collect();
        write!(f, "next {:?}, window {:?} to {:?}, ", self.cmd_sn, self.exp_cmd_sn, self.max_cmd_sn)?;
        write!(f, "living {:?} of {}, {waiting:?} wait, ", self.live_connections(), self.conns.len())?;
        write!(f, "{:?}", self.conns.iter().map(|conn| conn.peer).collect::<Vec<Peer>>())
    }
}
