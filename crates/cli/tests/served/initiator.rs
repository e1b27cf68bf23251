//! A blocking initiator with one command at a time.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use buf::Entropy;
use iscsi::{
    chap::{Algorithm, ChapAccount, Secret},
    initiator::{Credentials, InitiatorLogin, LoggedInConnection, LoginConfig, LoginFailure, LoginProgress},
    login::LoginPdu,
    negotiate::{Digest, NegotiationLimits},
    wire::{
        AsyncMessage, BHS_LEN, Bhs, Cid, CommandFlags, DataIn, DataInFlags, DataOut, DataOutFlags, Isid, Itt,
        LogoutRequest, Lun, NopIn, NopOut, OpByte, Opcode, Pdu, R2t, ScsiCommand, ScsiResponse, Sn,
        TextFlags, TextRequest, Tsih, pad_len,
    },
};

/// The name of hosts in these tests.
pub const HOST: &str = "iqn.2026-11.test:host";

/// What a command carries.
pub enum Data<'a> {
    None,
    In(u32),
    Out(&'a [u8]),
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub status: u8,
    /// Sense key, additional sense code and qualifier.
    pub sense: Option<(u8, u8, u8)>,
    pub data: Vec<u8>,
}

impl Ended {
    /// The data of a command that must have gone well.
    pub fn good(self) -> Vec<u8> {
        assert_eq!((self.status, self.sense), (0, None));
        self.data
    }
}

/// A session with one connection.
pub struct Initiator {
    socket: TcpStream,
    pub logged: LoggedInConnection,
    itt: u32,
    /// Events of Async Messages.
    pub told: Vec<u8>,
}

/// A login of `name` to `target`; `None`: discovery.
pub fn wanted(name: &str, target: Option<&str>, credentials: Option<Credentials>) -> LoginConfig {
    let limits = NegotiationLimits {
        header_digest: vec![Digest::None],
        data_digest: vec![Digest::None],
        initial_r2t: true,
        ..NegotiationLimits::default()
    };
    LoginConfig {
        initiator_name: name.to_owned(),
        alias: None,
        target_name: target.map(str::to_owned),
        isid: Isid::random([1, 2, 3], 1),
        tsih: Tsih::NONE,
        cid: Cid::new(0),
        cmd_sn: Sn::new(1),
        limits,
        credentials,
    }
}

/// Credentials of CHAP: our name and secret, and perhaps those of the target.
pub fn proof(name: &str, secret: &str, target: Option<(&str, &str)>) -> Option<Credentials> {
    let account =
        |name: &str, secret: &str| ChapAccount { name: name.to_owned(), secret: Secret::new(secret.into()) };
    Some(Credentials {
        ours: account(name, secret),
        target: target.map(|(name, secret)| account(name, secret)),
        algorithms: Algorithm::ALL.to_vec(),
    })
}

fn entropy() -> Entropy {
    let mut seed = [0; 32];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut seed).unwrap();
    Entropy::new(seed)
}

impl Initiator {
    /// Logs in to a target, and takes the unit attention of a new nexus from LUN 0.
    pub fn ready(at: SocketAddr, target: &str) -> Self {
        let mut initiator = Self::connect(at, wanted(HOST, Some(target), None)).expect("the login goes well");
        initiator.settle(0);
        initiator
    }

    /// Logs in.
    pub fn connect(at: SocketAddr, wanted: LoginConfig) -> Result<Self, LoginFailure> {
        let mut socket = TcpStream::connect(at).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket.set_nodelay(true).unwrap();
        let mut entropy = entropy();
        let (mut login, LoginPdu { mut bhs, mut text }) = InitiatorLogin::start(wanted)?;
        loop {
            send(&mut socket, &bhs, &text).unwrap();
            let (answer, data) = receive(&mut socket).expect("an answer to a login");
            match login.handle_response(&answer, &data, &mut entropy)? {
                LoginProgress::Send(pdu) => (bhs, text) = (pdu.bhs, pdu.text),
                LoginProgress::Established(logged) => {
                    return Ok(Initiator { socket, logged: *logged, itt: 0, told: Vec::new() });
                }
            }
        }
    }

    /// Takes unit attentions until there is none.
    pub fn settle(&mut self, lun: u16) {
        for _ in 0..10 {
            if self.command(lun, &[0; 6], Data::None).unwrap().status == 0 {
                return;
            }
        }
        panic!("the unit does not become ready");
    }

    /// Does one command.
    pub fn command(&mut self, lun: u16, cdb: &[u8], data: Data<'_>) -> io::Result<Ended> {
        let itt = self.start(lun, cdb, &data)?;
        let out = if let Data::Out(out) = data { out } else { &[] };
        let mut back = Vec::new();
        loop {
            let (bhs, piece) = self.next()?;
            match bhs.opcode() {
                Opcode::DATA_IN => {
                    let pdu = DataIn::from_bhs(&bhs);
                    assert_eq!((bhs.itt, pdu.buffer_offset.get() as usize), (itt, back.len()));
                    back.extend_from_slice(&piece);
                    if pdu.flags.contains(DataInFlags::STATUS) {
                        return Ok(Ended { status: pdu.status.0, sense: None, data: back });
                    }
                }
                Opcode::R2T => self.solicited(&bhs, out)?,
                Opcode::SCSI_RESPONSE => {
                    let pdu = ScsiResponse::from_bhs(&bhs);
                    assert_eq!((bhs.itt, pdu.response.0), (itt, 0));
                    return Ok(Ended { status: pdu.status.0, sense: sense(&piece), data: back });
                }
                other => panic!("{other:?} in answer to a command"),
            }
        }
    }

    /// Sends WRITE(16) of one block without any data as long as the target's window is open, until so many
    /// wait for their data; gives how many do. What the target asks for is not sent.
    pub fn fill_window(&mut self, lun: u16, most: u32) -> io::Result<u32> {
        let mut waiting = 0;
        self.start(lun, &[0; 6], &Data::None)?;
        let mut max = ScsiResponse::from_bhs(&self.next()?.0).max_cmd_sn;
        self.socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        while waiting < most {
            if self.logged.cmd_sn.le(max) {
                let mut pdu = ScsiCommand::new();
                pdu.lun = Lun::single_level(lun).unwrap();
                (pdu.itt, pdu.cmd_sn, pdu.exp_stat_sn) = (self.tag(), self.count(), self.logged.exp_stat_sn);
                pdu.flags = CommandFlags(pdu.flags.0 | CommandFlags::WRITE.0);
                pdu.expected_data_len = 512.into();
                pdu.cdb[..16].copy_from_slice(&rw16(0x8a, waiting.into(), 1));
                send(&mut self.socket, &pdu.to_bhs(), &[])?;
                waiting += 1;
                continue;
            }
            let (bhs, _) = match receive(&mut self.socket) {
                Ok(pdu) => pdu,
                // The target has nothing more to say: its window is what it is.
                Err(why) if matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    break;
                }
                Err(why) => return Err(why),
            };
            // MaxCmdSN stands at the same place in all that a target sends.
            let told = ScsiResponse::from_bhs(&bhs).max_cmd_sn;
            if max.lt(told) {
                max = told;
            }
        }
        Ok(waiting)
    }

    fn start(&mut self, lun: u16, cdb: &[u8], data: &Data<'_>) -> io::Result<Itt> {
        let mut pdu = ScsiCommand::new();
        pdu.lun = Lun::single_level(lun).unwrap();
        pdu.itt = self.tag();
        pdu.cmd_sn = self.count();
        pdu.exp_stat_sn = self.logged.exp_stat_sn;
        pdu.cdb[..cdb.len()].copy_from_slice(cdb);
        let mut immediate: &[u8] = &[];
        match data {
            Data::None => {}
            Data::In(len) => {
                pdu.flags = CommandFlags(pdu.flags.0 | CommandFlags::READ.0);
                pdu.expected_data_len = (*len).into();
            }
            Data::Out(out) => {
                pdu.flags = CommandFlags(pdu.flags.0 | CommandFlags::WRITE.0);
                pdu.expected_data_len = (out.len() as u32).into();
                let params = &self.logged.params;
                let most = params.first_burst.min(params.target_mrdsl) as usize;
                immediate = if params.immediate_data { &out[..out.len().min(most)] } else { &[] };
            }
        }
        pdu.set_data_len(immediate.len());
        send(&mut self.socket, &pdu.to_bhs(), immediate)?;
        Ok(pdu.itt)
    }

    fn solicited(&mut self, bhs: &Bhs, out: &[u8]) -> io::Result<()> {
        let r2t = R2t::from_bhs(bhs);
        let mut at = r2t.buffer_offset.get() as usize;
        let end = at + r2t.desired_len.get() as usize;
        let mut data_sn = Sn::new(0);
        while at < end {
            let piece = (end - at).min(self.logged.params.target_mrdsl as usize);
            let mut pdu = DataOut::new();
            let last = at + piece == end;
            pdu.flags = if last { DataOutFlags::FINAL } else { DataOutFlags(0) };
            (pdu.lun, pdu.itt, pdu.ttt) = (r2t.lun, r2t.itt, r2t.ttt);
            (pdu.data_sn, pdu.buffer_offset) = (data_sn, (at as u32).into());
            pdu.exp_stat_sn = self.logged.exp_stat_sn;
            pdu.set_data_len(piece);
            send(&mut self.socket, &pdu.to_bhs(), &out[at..at + piece])?;
            data_sn = data_sn.next();
            at += piece;
        }
        Ok(())
    }

    /// The next PDU that answers something of ours; pings are answered, messages noted.
    fn next(&mut self) -> io::Result<(Bhs, Vec<u8>)> {
        loop {
            let (bhs, data) = receive(&mut self.socket)?;
            match bhs.opcode() {
                Opcode::NOP_IN if bhs.itt.is_none() => {
                    let ping = NopIn::from_bhs(&bhs);
                    let mut pong = NopOut::new();
                    pong.op = OpByte::new(Opcode::NOP_OUT).with_immediate();
                    (pong.itt, pong.ttt, pong.lun) = (Itt::NONE, ping.ttt, ping.lun);
                    (pong.cmd_sn, pong.exp_stat_sn) = (self.logged.cmd_sn, self.logged.exp_stat_sn);
                    send(&mut self.socket, &pong.to_bhs(), &[])?;
                }
                Opcode::ASYNC_MESSAGE => {
                    self.acknowledge(AsyncMessage::from_bhs(&bhs).stat_sn);
                    self.told.push(AsyncMessage::from_bhs(&bhs).event.0);
                }
                Opcode::R2T => return Ok((bhs, data)),
                Opcode::DATA_IN => {
                    let pdu = DataIn::from_bhs(&bhs);
                    if pdu.flags.contains(DataInFlags::STATUS) {
                        self.acknowledge(pdu.stat_sn);
                    }
                    return Ok((bhs, data));
                }
                // All other answers have StatSN where a SCSI Response has it.
                _ => {
                    self.acknowledge(ScsiResponse::from_bhs(&bhs).stat_sn);
                    return Ok((bhs, data));
                }
            }
        }
    }

    fn acknowledge(&mut self, stat_sn: Sn) {
        assert_eq!(stat_sn, self.logged.exp_stat_sn, "statuses are numbered without a gap");
        self.logged.exp_stat_sn = stat_sn.next();
    }

    fn tag(&mut self) -> Itt {
        self.itt += 1;
        Itt::new(self.itt)
    }

    fn count(&mut self) -> Sn {
        let now = self.logged.cmd_sn;
        self.logged.cmd_sn = now.next();
        now
    }

    /// Asks for targets, and gives the text.
    pub fn send_targets(&mut self, which: &str) -> String {
        let question = format!("SendTargets={which}\0");
        let mut pdu = TextRequest::new();
        pdu.flags = TextFlags::FINAL;
        pdu.itt = self.tag();
        pdu.cmd_sn = self.count();
        pdu.exp_stat_sn = self.logged.exp_stat_sn;
        pdu.set_data_len(question.len());
        send(&mut self.socket, &pdu.to_bhs(), question.as_bytes()).unwrap();
        let (answer, text) = self.next().unwrap();
        assert_eq!((answer.opcode(), answer.flags), (Opcode::TEXT_RESPONSE, TextFlags::FINAL.0));
        String::from_utf8(text).unwrap()
    }

    /// Closes the session.
    pub fn log_out(mut self) -> io::Result<()> {
        let mut pdu = LogoutRequest::new();
        pdu.op = OpByte::new(Opcode::LOGOUT_REQUEST).with_immediate();
        pdu.itt = self.tag();
        (pdu.cmd_sn, pdu.exp_stat_sn) = (self.logged.cmd_sn, self.logged.exp_stat_sn);
        send(&mut self.socket, &pdu.to_bhs(), &[])?;
        let (answer, _) = self.next()?;
        assert_eq!(answer.opcode(), Opcode::LOGOUT_RESPONSE);
        Ok(())
    }

    /// Waits for a message, and gives its event.
    pub fn wait_told(&mut self) -> io::Result<u8> {
        while self.told.is_empty() {
            let (bhs, data) = receive(&mut self.socket)?;
            assert_eq!((bhs.opcode(), data.len()), (Opcode::ASYNC_MESSAGE, 0), "nothing else is due");
            let message = AsyncMessage::from_bhs(&bhs);
            self.acknowledge(message.stat_sn);
            self.told.push(message.event.0);
        }
        Ok(self.told[0])
    }

    /// Waits until the connection is closed by the other end.
    pub fn wait_gone(&mut self) -> bool {
        matches!(self.socket.read(&mut [0]), Ok(0) | Err(_))
    }

    /// READ(16) of blocks of 512 bytes.
    pub fn read(&mut self, lun: u16, lba: u64, blocks: u32) -> io::Result<Ended> {
        self.command(lun, &rw16(0x88, lba, blocks), Data::In(blocks * 512))
    }

    /// WRITE(16) of blocks of 512 bytes.
    pub fn write(&mut self, lun: u16, lba: u64, data: &[u8]) -> io::Result<Ended> {
        self.command(lun, &rw16(0x8a, lba, (data.len() / 512) as u32), Data::Out(data))
    }

    /// SYNCHRONIZE CACHE(10).
    pub fn flush(&mut self, lun: u16) -> io::Result<Ended> {
        self.command(lun, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], Data::None)
    }

    /// Blocks by READ CAPACITY(16).
    pub fn blocks(&mut self, lun: u16) -> u64 {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, 32);
        let data = self.command(lun, &cdb, Data::In(32)).unwrap().good();
        u64::from_be_bytes(data[..8].try_into().unwrap()) + 1
    }
}

fn rw16(opcode: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

fn sense(segment: &[u8]) -> Option<(u8, u8, u8)> {
    let sense = segment.get(2..)?;
    match sense[0] & 0x7f {
        0x70 | 0x71 => Some((sense[2] & 0xf, sense[12], sense[13])),
        0x72 | 0x73 => Some((sense[1] & 0xf, sense[2], sense[3])),
        other => panic!("sense data of form {other:#x}"),
    }
}

fn send(socket: &mut TcpStream, bhs: &Bhs, data: &[u8]) -> io::Result<()> {
    let mut all = bhs.bytes().to_vec();
    all.extend_from_slice(data);
    all.resize(all.len() + pad_len(data.len()), 0);
    socket.write_all(&all)
}

fn receive(socket: &mut TcpStream) -> io::Result<(Bhs, Vec<u8>)> {
    let mut header = [0; BHS_LEN];
    socket.read_exact(&mut header)?;
    let bhs = *Bhs::from_prefix(&header).unwrap();
    let mut data = vec![0; bhs.padded_data_len()];
    socket.read_exact(&mut data)?;
    data.truncate(bhs.data_len());
    Ok((bhs, data))
}
