//! A blocking NVMe/TCP host with one command at a time, in plain bytes (NVMe-TCP §3, NVMe Base §3.3).

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// What a command carries.
pub enum Data<'a> {
    None,
    In(u32),
    Out(&'a [u8]),
}

/// Status codes with their type, without the Do Not Retry bit.
pub const WRITE_PROTECTED: u16 = 0x20;
pub const RESERVATION_CONFLICT: u16 = 0x83;
pub const INVALID_HOST: u16 = 0x184;
pub const ANA_INACCESSIBLE: u16 = 0x302;

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub status: u16,
    pub result: u32,
    pub data: Vec<u8>,
}

impl Ended {
    /// The data of a command that must have gone well.
    pub fn good(self) -> Vec<u8> {
        assert_eq!(self.status, 0);
        self.data
    }
}

/// Who connects, and to what.
#[derive(Clone, Debug)]
pub struct Names {
    pub subsystem: String,
    pub nqn: String,
    pub id: [u8; 16],
}

impl Names {
    pub fn of(volume: &str) -> Self {
        Names {
            subsystem: format!("nqn.2026-11.io.blockwire:{volume}"),
            nqn: "nqn.2026-11.test:host".to_owned(),
            id: [7; 16],
        }
    }
}

/// A submission queue entry.
#[derive(Clone, Copy)]
pub struct Sqe(pub [u8; 64]);

impl Sqe {
    pub fn new(opcode: u8, nsid: u32) -> Self {
        let mut sqe = Sqe([0; 64]);
        (sqe.0[0], sqe.0[1]) = (opcode, 0x40);
        sqe.0[4..8].copy_from_slice(&nsid.to_le_bytes());
        sqe
    }

    /// Sets a double word.
    pub fn cdw(mut self, number: usize, value: u32) -> Self {
        self.0[number * 4..][..4].copy_from_slice(&value.to_le_bytes());
        self
    }
}

/// A queue: one connection.
pub struct Queue {
    socket: TcpStream,
    next: u16,
    /// What Connect was answered with: the controller, and whether authentication is due.
    pub connected: u32,
}

impl Queue {
    /// Connects a queue; the status of a Connect that is refused.
    pub fn connect(at: SocketAddr, names: &Names, qid: u16, cntlid: u16) -> Result<Self, u16> {
        let mut socket = TcpStream::connect(at).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket.set_nodelay(true).unwrap();
        let mut icreq = [0; 128];
        (icreq[2], icreq[4]) = (128, 128);
        socket.write_all(&icreq).unwrap();
        let mut icresp = [0; 128];
        socket.read_exact(&mut icresp).unwrap();
        assert_eq!(icresp[0], 1, "ICResp");
        let mut queue = Queue { socket, next: 0, connected: 0 };
        let mut data = [0; 1024];
        data[..16].copy_from_slice(&names.id);
        data[16..18].copy_from_slice(&cntlid.to_le_bytes());
        data[256..][..names.subsystem.len()].copy_from_slice(names.subsystem.as_bytes());
        data[512..][..names.nqn.len()].copy_from_slice(names.nqn.as_bytes());
        // Fabrics, Connect; 32 entries; a keep alive timeout of a minute.
        let sqe = Sqe::new(0x7f, 1).cdw(10, u32::from(qid) << 16).cdw(11, 31);
        let sqe = sqe.cdw(12, if qid == 0 { 60_000 } else { 0 });
        let ended = queue.command(sqe, Data::Out(&data)).unwrap();
        queue.connected = ended.result;
        if ended.status == 0 { Ok(queue) } else { Err(ended.status) }
    }

    /// The admin queue of a controller, connected and enabled.
    pub fn enabled(at: SocketAddr, names: &Names) -> Self {
        let mut admin = Queue::connect(at, names, 0, 0xffff).expect("the host is let in");
        // Property Set of CC: enabled, entries of 64 and 16 bytes.
        let set = Sqe::new(0x7f, 0).cdw(11, 0x14).cdw(12, 0x0046_0001);
        admin.command(set, Data::None).unwrap().good();
        let ready = |admin: &mut Queue| {
            let ended = admin.command(Sqe::new(0x7f, 4).cdw(11, 0x1c), Data::None).unwrap();
            ended.result & 1 == 1
        };
        while !ready(&mut admin) {
            std::thread::sleep(Duration::from_millis(10));
        }
        admin
    }

    /// Identify: what `cns` stands for.
    pub fn identify(&mut self, cns: u32, nsid: u32) -> Ended {
        self.command(Sqe::new(6, nsid).cdw(10, cns), Data::In(4096)).unwrap()
    }

    /// The first bytes of a log page.
    pub fn log_page(&mut self, page: u8, bytes: u32) -> Ended {
        let sqe = Sqe::new(2, u32::MAX).cdw(10, u32::from(page) | (bytes / 4 - 1) << 16);
        self.command(sqe, Data::In(bytes)).unwrap()
    }

    /// Does one command.
    pub fn command(&mut self, mut sqe: Sqe, data: Data<'_>) -> io::Result<Ended> {
        self.next += 1;
        sqe.0[2..4].copy_from_slice(&self.next.to_le_bytes());
        let out = match data {
            Data::None => &[][..],
            Data::In(len) => {
                sqe.0[32..36].copy_from_slice(&len.to_le_bytes());
                sqe.0[39] = 0x5a; // transport SGL data block
                &[]
            }
            Data::Out(out) => {
                sqe.0[32..36].copy_from_slice(&(out.len() as u32).to_le_bytes());
                sqe.0[39] = 0x01; // in the capsule
                out
            }
        };
        let mut capsule = vec![4, 0, 72, if out.is_empty() { 0 } else { 72 }];
        capsule.extend_from_slice(&(72 + out.len() as u32).to_le_bytes());
        capsule.extend_from_slice(&sqe.0);
        capsule.extend_from_slice(out);
        self.socket.write_all(&capsule)?;
        let mut back = Vec::new();
        loop {
            let mut header = [0; 24];
            self.socket.read_exact(&mut header)?;
            let length = u32::from_le_bytes(header[4..8].try_into().unwrap()) as usize;
            match header[0] {
                5 => {
                    assert_eq!(u16::from_le_bytes([header[20], header[21]]), self.next);
                    let status = u16::from_le_bytes([header[22], header[23]]) >> 1 & 0x7ff;
                    let result = u32::from_le_bytes(header[8..12].try_into().unwrap());
                    return Ok(Ended { status, result, data: back });
                }
                7 => {
                    let skipped = usize::from(header[3]).max(24) - 24;
                    let mut piece = vec![0; length - 24];
                    self.socket.read_exact(&mut piece)?;
                    back.extend_from_slice(&piece[skipped..]);
                    if header[1] & 0x08 != 0 {
                        return Ok(Ended { status: 0, result: 0, data: back });
                    }
                }
                other => panic!("PDU of type {other:#x} in answer to a command"),
            }
        }
    }
}

/// A controller with one I/O queue.
pub struct Host {
    /// The association lasts as long as its admin queue.
    pub admin: Queue,
    pub io: Queue,
}

impl Host {
    /// Connects and enables a controller, and connects its I/O queue.
    pub fn ready(at: SocketAddr, names: &Names) -> Self {
        let admin = Queue::enabled(at, names);
        let cntlid = admin.connected as u16;
        let io = Queue::connect(at, names, 1, cntlid).expect("the queue joins");
        Host { admin, io }
    }

    /// Read of a block of 512 bytes.
    pub fn read(&mut self, lba: u32) -> Ended {
        self.io.command(Sqe::new(2, 1).cdw(10, lba), Data::In(512)).unwrap()
    }

    /// Write of a block of 512 bytes.
    pub fn write(&mut self, lba: u32, data: &[u8; 512]) -> Ended {
        self.io.command(Sqe::new(1, 1).cdw(10, lba), Data::Out(data)).unwrap()
    }

    /// A reservation command: an action with two keys.
    pub fn reserve(&mut self, opcode: u8, action: u32, keys: [u64; 2]) -> Ended {
        let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        self.io.command(Sqe::new(opcode, 1).cdw(10, action), Data::Out(&data)).unwrap()
    }
}
