//! A small initiator for the simulated world: it logs in, keeps the rules, and checks those that a
//! target must keep.

use std::collections::{BTreeMap, VecDeque};

use blockwire_target::Shard;
use buf::Entropy;
use buf::crc32c::crc32c;
use iscsi::initiator::{Failure, InitiatorLogin, LoggedIn, Progress, Wanted};
use iscsi::negotiate::Digest;
use iscsi::wire::{
    BHS_LEN, Bhs, CommandFlags, DataIn, DataInFlags, DataOut, DataOutFlags, Itt, LogoutRequest, Lun, NopIn,
    NopOut, Opcode, Pdu, R2t, ScsiCommand, ScsiResponse, Sn, TmfFunction, TmfRequest, TmfResponse, pad_len,
    padded_len,
};
use sim::{Peer, PeerEnd, World};

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub itt: u32,
    pub status: u8,
    pub sense: Vec<u8>,
    pub data: Vec<u8>,
    /// Positive: underflow; negative: overflow.
    pub residual: i64,
}

/// A command in flight.
struct Task {
    lun: Lun,
    out: Vec<u8>,
    data: Vec<u8>,
    edtl: usize,
    next_data_sn: u32,
    next_r2t_sn: u32,
}

/// One session over one connection.
pub struct Initiator {
    pub peer: Peer,
    login: Option<InitiatorLogin>,
    pub logged: Option<LoggedIn>,
    pub failure: Option<Failure>,
    inbox: Vec<u8>,
    next_itt: u32,
    cmd_sn: Sn,
    max_cmd_sn: Sn,
    exp_stat_sn: Sn,
    tasks: BTreeMap<u32, Task>,
    waiting: VecDeque<(u32, Vec<u8>)>,
    pub ended: Vec<Ended>,
    pub managed: Vec<(u32, u8)>,
    pub logged_out: bool,
    pub asked_to_log_out: bool,
    pub rejects: u32,
}

impl Initiator {
    /// Connects and begins a login.
    pub fn connect(world: &mut World<Shard>, wanted: Wanted) -> Self {
        let peer = world.connect(endpoint::ListenerId(0));
        let (login, first) = InitiatorLogin::start(wanted).expect("a login can begin");
        let initiator = Initiator {
            peer,
            login: Some(login),
            logged: None,
            failure: None,
            inbox: Vec::new(),
            next_itt: 1,
            cmd_sn: Sn::new(0),
            max_cmd_sn: Sn::new(0),
            exp_stat_sn: Sn::new(0),
            tasks: BTreeMap::new(),
            waiting: VecDeque::new(),
            ended: Vec::new(),
            managed: Vec::new(),
            logged_out: false,
            asked_to_log_out: false,
            rejects: 0,
        };
        initiator.put(world, &first.bhs, &first.text);
        initiator
    }

    pub fn is_in(&self) -> bool {
        self.logged.is_some()
    }

    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty() && self.waiting.is_empty()
    }

    fn digests(&self) -> (bool, bool) {
        self.logged.as_ref().map_or((false, false), |logged| {
            (logged.params.header_digest == Digest::Crc32c, logged.params.data_digest == Digest::Crc32c)
        })
    }

    fn put(&self, world: &mut World<Shard>, bhs: &Bhs, data: &[u8]) {
        let bytes = self.encode(bhs, data);
        world.send(self.peer, &bytes);
    }

    fn encode(&self, bhs: &Bhs, data: &[u8]) -> Vec<u8> {
        let (header_digest, data_digest) = self.digests();
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
        let bytes = world.receive(self.peer);
        self.inbox.extend(bytes);
        while let Some((bhs, data)) = self.next_pdu() {
            self.take(world, &bhs, &data);
        }
        self.send_waiting(world);
    }

    pub fn end(&self, world: &World<Shard>) -> PeerEnd {
        world.peer_end(self.peer)
    }

    fn next_pdu(&mut self) -> Option<(Bhs, Vec<u8>)> {
        let (header_digest, data_digest) = self.digests();
        let bhs = *Bhs::from_prefix(&self.inbox)?;
        let mut at = BHS_LEN;
        let digest_at = at;
        at += if header_digest { 4 } else { 0 };
        let data_at = at;
        at += padded_len(bhs.data_len())?;
        let segment_end = at;
        at += if data_digest && bhs.data_len() > 0 { 4 } else { 0 };
        if self.inbox.len() < at {
            return None;
        }
        assert_eq!(bhs.ahs_len(), 0, "a target sends no AHS");
        if header_digest {
            assert_eq!(self.inbox[digest_at..digest_at + 4], crc32c(&self.inbox[..BHS_LEN]).to_le_bytes());
        }
        if data_digest && bhs.data_len() > 0 {
            let digest = crc32c(&self.inbox[data_at..segment_end]).to_le_bytes();
            assert_eq!(self.inbox[segment_end..at], digest, "the data digest is of the data");
        }
        let data = self.inbox[data_at..data_at + bhs.data_len()].to_vec();
        self.inbox.drain(..at);
        Some((bhs, data))
    }

    fn take(&mut self, world: &mut World<Shard>, bhs: &Bhs, data: &[u8]) {
        if let Some(login) = &mut self.login {
            let mut entropy = Entropy::new([9; 32]);
            match login.handle_response(bhs, data, &mut entropy) {
                Ok(Progress::Send(pdu)) => self.put(world, &pdu.bhs, &pdu.text),
                Ok(Progress::Established(logged)) => {
                    self.login = None;
                    self.cmd_sn = logged.cmd_sn;
                    self.max_cmd_sn = logged.max_cmd_sn;
                    self.exp_stat_sn = logged.exp_stat_sn;
                    self.logged = Some(*logged);
                }
                Err(failure) => {
                    self.login = None;
                    self.failure = Some(failure);
                }
            }
            return;
        }
        match bhs.opcode() {
            Opcode::SCSI_RESPONSE => self.response(ScsiResponse::from_bhs(bhs), data),
            Opcode::DATA_IN => self.data_in(DataIn::from_bhs(bhs), data),
            Opcode::R2T => self.r2t(world, R2t::from_bhs(bhs)),
            Opcode::NOP_IN => self.nop_in(world, NopIn::from_bhs(bhs)),
            Opcode::TMF_RESPONSE => {
                let pdu = TmfResponse::from_bhs(bhs);
                self.acknowledge(pdu.stat_sn, pdu.max_cmd_sn);
                self.managed.push((pdu.itt.value(), pdu.response.0));
            }
            Opcode::LOGOUT_RESPONSE => self.logged_out = true,
            Opcode::ASYNC_MESSAGE => {
                self.asked_to_log_out = true;
                self.exp_stat_sn = self.exp_stat_sn.next();
            }
            Opcode::REJECT => {
                self.rejects += 1;
                self.exp_stat_sn = self.exp_stat_sn.next();
            }
            other => panic!("an unexpected PDU {other:?}"),
        }
    }

    fn acknowledge(&mut self, stat_sn: Sn, max_cmd_sn: Sn) {
        assert_eq!(stat_sn, self.exp_stat_sn, "StatSN goes up by one");
        self.exp_stat_sn = stat_sn.next();
        self.see_window(max_cmd_sn);
    }

    fn see_window(&mut self, max_cmd_sn: Sn) {
        if self.max_cmd_sn.lt(max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }

    fn response(&mut self, pdu: &ScsiResponse, data: &[u8]) {
        self.acknowledge(pdu.stat_sn, pdu.max_cmd_sn);
        let residual = i64::from(pdu.residual.get());
        let residual = match (pdu.flags.0 & 0x02 != 0, pdu.flags.0 & 0x04 != 0) {
            (true, _) => residual,
            (_, true) => -residual,
            (false, false) => 0,
        };
        let sense = data.get(2..).unwrap_or_default().to_vec();
        self.end_task(pdu.itt.value(), pdu.status.0, sense, residual);
    }

    fn end_task(&mut self, itt: u32, status: u8, sense: Vec<u8>, residual: i64) {
        let task = self.tasks.remove(&itt).expect("only what was sent is answered, and once");
        self.ended.push(Ended { itt, status, sense, data: task.data, residual });
    }

    fn data_in(&mut self, pdu: &DataIn, data: &[u8]) {
        let itt = pdu.itt.value();
        let task = self.tasks.get_mut(&itt).expect("data only for a live task");
        assert_eq!(pdu.data_sn.value(), task.next_data_sn, "DataSN goes up by one");
        task.next_data_sn += 1;
        assert_eq!(pdu.buffer_offset.get() as usize, task.data.len(), "data comes in order");
        task.data.extend(data);
        assert!(task.data.len() <= task.edtl, "no byte beyond what was expected");
        if pdu.flags.contains(DataInFlags::STATUS) {
            self.acknowledge(pdu.stat_sn, pdu.max_cmd_sn);
            let residual = i64::from(pdu.residual.get());
            let residual = if pdu.flags.0 & 0x02 != 0 { residual } else { -residual };
            self.end_task(itt, pdu.status.0, Vec::new(), residual);
        } else {
            self.see_window(pdu.max_cmd_sn);
        }
    }

    fn r2t(&mut self, world: &mut World<Shard>, pdu: &R2t) {
        self.see_window(pdu.max_cmd_sn);
        let params = &self.logged.as_ref().expect("logged in").params;
        let (mrdsl, max_burst) = (params.target_mrdsl as usize, params.max_burst);
        let itt = pdu.itt;
        let Some(task) = self.tasks.get_mut(&itt.value()) else { return };
        assert_eq!(pdu.r2t_sn.value(), task.next_r2t_sn, "R2TSN goes up by one");
        task.next_r2t_sn += 1;
        let (at, len) = (pdu.buffer_offset.get() as usize, pdu.desired_len.get() as usize);
        assert!(
            len > 0 && pdu.desired_len.get() <= max_burst && at + len <= task.out.len(),
            "an R2T within bounds"
        );
        let (lun, burst) = (task.lun, task.out[at..at + len].to_vec());
        self.burst(world, lun, itt, pdu.ttt, at, &burst, mrdsl);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one burst")]
    fn burst(
        &self,
        world: &mut World<Shard>,
        lun: Lun,
        itt: Itt,
        ttt: iscsi::wire::Ttt,
        at: usize,
        data: &[u8],
        mrdsl: usize,
    ) {
        for (number, chunk) in data.chunks(mrdsl).enumerate() {
            let mut pdu = DataOut::new();
            pdu.lun = lun;
            pdu.itt = itt;
            pdu.ttt = ttt;
            pdu.exp_stat_sn = self.exp_stat_sn;
            pdu.data_sn = Sn::new(number as u32);
            pdu.buffer_offset = ((at + number * mrdsl) as u32).into();
            pdu.set_data_len(chunk.len());
            if number * mrdsl + chunk.len() == data.len() {
                pdu.flags = pdu.flags.with(DataOutFlags::FINAL);
            } else {
                pdu.flags = pdu.flags.without(DataOutFlags::FINAL);
            }
            self.put(world, pdu.as_bhs(), chunk);
        }
    }

    fn nop_in(&mut self, world: &mut World<Shard>, pdu: &NopIn) {
        if pdu.ttt.value() == u32::MAX {
            self.acknowledge(pdu.stat_sn, pdu.max_cmd_sn);
            return;
        }
        let mut answer = NopOut::new();
        answer.op = iscsi::wire::OpByte::new(Opcode::NOP_OUT).immediate();
        answer.lun = pdu.lun;
        answer.itt = Itt::new(u32::MAX);
        answer.ttt = pdu.ttt;
        answer.cmd_sn = self.cmd_sn;
        answer.exp_stat_sn = self.exp_stat_sn;
        self.put(world, answer.as_bhs(), &[]);
    }

    /// Sends a command, as soon as the window is open for it. Gives its tag.
    pub fn command(
        &mut self,
        world: &mut World<Shard>,
        lun: u16,
        cdb: &[u8],
        out: &[u8],
        read: usize,
    ) -> u32 {
        let itt = self.next_itt;
        self.next_itt += 1;
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
        let params = &self.logged.as_ref().expect("logged in").params;
        let first = (params.first_burst as usize).min(out.len());
        let mrdsl = params.target_mrdsl as usize;
        let immediate = if params.immediate_data { first.min(mrdsl) } else { 0 };
        let unsolicited = if params.initial_r2t { immediate } else { first };
        pdu.set_data_len(immediate);
        if unsolicited > immediate {
            flags = flags.without(CommandFlags::FINAL);
        }
        pdu.flags = flags;
        let task = Task { lun, out: out.to_vec(), data: Vec::new(), edtl, next_data_sn: 0, next_r2t_sn: 0 };
        self.tasks.insert(itt, task);
        pdu.cmd_sn = self.cmd_sn;
        pdu.exp_stat_sn = self.exp_stat_sn;
        // The serial numbers are set when it is sent; they are at the end of the header.
        let bytes = pdu.as_bhs().bytes().to_vec();
        self.waiting.push_back((itt, bytes));
        self.send_waiting(world);
        itt
    }

    fn send_waiting(&mut self, world: &mut World<Shard>) {
        while let Some(logged) = &self.logged
            && !self.max_cmd_sn.lt(self.cmd_sn)
        {
            let mrdsl = logged.params.target_mrdsl as usize;
            let first = logged.params.first_burst as usize;
            let Some((itt, bytes)) = self.waiting.pop_front() else { return };
            let bhs = *Bhs::from_prefix(&bytes).expect("a whole header");
            let mut pdu = *ScsiCommand::from_bhs(&bhs);
            pdu.cmd_sn = self.cmd_sn;
            pdu.exp_stat_sn = self.exp_stat_sn;
            self.cmd_sn = self.cmd_sn.next();
            let task = &self.tasks[&itt];
            let (lun, out) = (task.lun, task.out.clone());
            let immediate = pdu.data_segment_len.value() as usize;
            self.put(world, pdu.as_bhs(), &out[..immediate]);
            if !pdu.flags.contains(CommandFlags::FINAL) {
                let end = first.min(out.len());
                let none = iscsi::wire::Ttt::new(u32::MAX);
                self.burst(world, lun, Itt::new(itt), none, immediate, &out[immediate..end], mrdsl);
            }
        }
    }

    /// Forgets a task that was aborted.
    pub fn forget(&mut self, itt: u32) {
        self.tasks.remove(&itt);
        self.waiting.retain(|(waiting, _)| *waiting != itt);
    }

    /// Asks for a task management function, immediately.
    pub fn manage(
        &mut self,
        world: &mut World<Shard>,
        function: TmfFunction,
        lun: u16,
        referenced: u32,
    ) -> u32 {
        let itt = self.next_itt;
        self.next_itt += 1;
        let mut pdu = TmfRequest::new();
        pdu.op = iscsi::wire::OpByte::new(Opcode::TMF_REQUEST).immediate();
        pdu.function_byte = 0x80 | function.0;
        pdu.lun = Lun::single_level(lun).expect("a small number");
        pdu.itt = Itt::new(itt);
        pdu.referenced_tag = Itt::new(referenced);
        pdu.cmd_sn = self.cmd_sn;
        pdu.exp_stat_sn = self.exp_stat_sn;
        pdu.ref_cmd_sn = self.cmd_sn;
        self.put(world, pdu.as_bhs(), &[]);
        itt
    }

    /// Asks to close the session.
    pub fn log_out(&mut self, world: &mut World<Shard>) {
        let mut pdu = LogoutRequest::new();
        pdu.op = iscsi::wire::OpByte::new(Opcode::LOGOUT_REQUEST).immediate();
        pdu.itt = Itt::new(self.next_itt);
        self.next_itt += 1;
        pdu.cmd_sn = self.cmd_sn;
        pdu.exp_stat_sn = self.exp_stat_sn;
        self.put(world, pdu.as_bhs(), &[]);
    }
}
