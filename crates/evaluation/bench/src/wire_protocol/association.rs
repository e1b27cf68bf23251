//! An association with an NVMe/TCP controller, without authentication, on blocking sockets: the admin queue
//! that is set up and kept, and the I/O queues that join it.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use nvme::fabrics::{Connect, ConnectData, ConnectNames, ConnectResult, Property, PropertyAccess};
use nvme::feature::FeatureId;
use nvme::identify::{Cns, IDENTIFY_LEN, IdentifyController, IdentifyNamespace};
use nvme::property::ControllerConfiguration;
use nvme::{Completion, HostId, Nqn, Opcode, SglDescriptor, Sqe};
use nvme_tcp::LinkFault;
use nvme_tcp::wire::{
    C2hData, COMMON_LEN, CapsuleCmd, CapsuleResp, CommonHeader, ConnectionParameters, Flags, IcReq, IcResp,
    PduType,
};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::protocol_error;

/// Entries of the admin queue: the fewest that there may be.
const ADMIN_ENTRIES: u32 = Connect::ADMIN_ENTRIES_MIN;
/// Much longer than a load takes: the generator sends no Keep Alive.
const KATO_MS: u32 = 120_000;
/// How long a controller may take to get ready, in units of 500 ms.
const READY_UNITS_MAX: u64 = 60;

/// An association: ended when the socket of its admin queue closes.
#[derive(Debug)]
pub struct NvmeAssociation<S> {
    socket: S,
    names: ConnectNames,
    nsid: u32,
    /// Shift of the block size.
    shift: u8,
    blocks: u64,
    /// Bytes of data that a capsule of an I/O queue takes.
    in_capsule: u32,
    /// Bytes of the longest transfer; 0 is any.
    transfer_max: u64,
    queues: u16,
}

/// What a queue agreed on.
#[derive(Clone, Copy, Debug)]
pub struct NvmeQueue {
    pub(super) nsid: u32,
    /// Shift of the block size.
    pub(super) shift: u8,
    /// Bytes of data that a capsule takes.
    pub(super) in_capsule: u32,
    /// Where the data of a capsule begins: 72 to 128, as the controller wants it aligned.
    pub(super) data_at: u32,
    /// Bytes of data that an H2CData takes.
    pub(super) max_h2c_data: u32,
}

impl<S: Read + Write> NvmeAssociation<S> {
    /// Connects, enables the controller and learns what there is to know of a namespace; `queues` I/O
    /// queues may join. `number` tells associations apart.
    pub fn open(mut socket: S, subsystem: &str, nsid: u32, queues: u16, number: u32) -> io::Result<Self> {
        initialize_connection(&mut socket)?;
        let mut id = *b"raw-load\0\0\0\0\0\0\0\x01";
        id[8..12].copy_from_slice(&number.to_be_bytes());
        let name = |text: &str| Nqn::parse(text).map_err(|_| protocol_error(format!("{text:?} is no NQN")));
        let names = ConnectNames {
            host_id: HostId::new(id).ok_or_else(|| protocol_error("a host identifier of zero"))?,
            cntlid: ConnectData::DYNAMIC,
            subsystem: name(subsystem)?,
            host: name("nqn.2026-11.io.blockwire:raw-load")?,
        };
        let mut association = NvmeAssociation {
            socket,
            names,
            nsid,
            shift: 9,
            blocks: 0,
            in_capsule: 0,
            transfer_max: 0,
            queues: 0,
        };
        let cntlid = send_connect(&mut association.socket, &association.names, 0, ADMIN_ENTRIES, KATO_MS)?;
        association.names.cntlid = cntlid;
        association.enable_controller()?;
        association.identify_controller()?;
        association.identify_namespace()?;
        association.request_queues(queues)?;
        Ok(association)
    }

    /// Makes an I/O queue of a fresh connection: `qid` from 1, so many commands at a time.
    pub fn connect_queue(
        &self,
        socket: &mut (impl Read + Write),
        qid: u16,
        depth: u32,
    ) -> io::Result<NvmeQueue> {
        if qid == 0 || qid > self.queues {
            return Err(protocol_error(format!("the controller grants {} queues", self.queues)));
        }
        let terms = initialize_connection(socket)?;
        // One entry of a queue stays free (NVMe Base §3.3.1.4).
        send_connect(socket, &self.names, qid, depth.max(1) + 1, 0)?;
        Ok(NvmeQueue {
            nsid: self.nsid,
            shift: self.shift,
            in_capsule: self.in_capsule,
            data_at: u32::from(terms.controller_alignment)
                * 72_u32.div_ceil(terms.controller_alignment.into()),
            max_h2c_data: terms.max_h2c_data,
        })
    }

    /// Size of the namespace in bytes.
    pub fn namespace_bytes(&self) -> u64 {
        self.blocks << self.shift
    }

    /// Bytes of the longest transfer.
    pub fn transfer_max(&self) -> u64 {
        if self.transfer_max == 0 { u64::MAX } else { self.transfer_max }
    }

    fn enable_controller(&mut self) -> io::Result<()> {
        let get = |property, len| PropertyAccess::property_get_sqe(property, len);
        let (capabilities, _) = run_command(&mut self.socket, get(Property::CAP, 8), &[], 0)?;
        let patience = (capabilities.result >> 24 & 0xff).clamp(1, READY_UNITS_MAX) * 500;
        let enable = PropertyAccess::property_set_sqe(Property::CC, ControllerConfiguration::ENABLE.0);
        run_command(&mut self.socket, enable, &[], 0)?;
        let end = Instant::now() + Duration::from_millis(patience);
        loop {
            let (status, _) = run_command(&mut self.socket, get(Property::CSTS, 4), &[], 0)?;
            if status.result & 1 != 0 {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the controller does not get ready"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn identify_controller(&mut self) -> io::Result<()> {
        let bytes = self.identify(Cns::CONTROLLER, 0)?;
        let controller = IdentifyController::ref_from_bytes(&bytes)
            .map_err(|_| protocol_error("a controller of 4096 bytes"))?;
        self.in_capsule = controller.ioccsz.get().saturating_mul(16).saturating_sub(64);
        if controller.mdts > 0 {
            self.transfer_max = 4096_u64.checked_shl(controller.mdts.into()).unwrap_or(0);
        }
        Ok(())
    }

    fn identify_namespace(&mut self) -> io::Result<()> {
        let bytes = self.identify(Cns::NAMESPACE, self.nsid)?;
        let namespace = IdentifyNamespace::ref_from_bytes(&bytes)
            .map_err(|_| protocol_error("a namespace of 4096 bytes"))?;
        let formats = &namespace.lbaf;
        let format =
            formats.get(usize::from(namespace.flbas & 15)).ok_or_else(|| protocol_error("no such format"))?;
        if namespace.nsze.get() == 0 || !(9..=16).contains(&format.shift) || format.metadata.get() != 0 {
            return Err(protocol_error(format!(
                "namespace {} is not there, or not one of plain blocks",
                self.nsid
            )));
        }
        (self.blocks, self.shift) = (namespace.nsze.get(), format.shift);
        Ok(())
    }

    fn identify(&mut self, cns: Cns, nsid: u32) -> io::Result<Vec<u8>> {
        let mut sqe = Sqe::new_zeroed();
        sqe.opcode = Opcode(0x06);
        sqe.nsid = U32::new(nsid);
        sqe.cdw10[0] = U32::new(cns.0.into());
        Ok(run_command(&mut self.socket, sqe, &[], IDENTIFY_LEN)?.1)
    }

    fn request_queues(&mut self, queues: u16) -> io::Result<()> {
        let mut sqe = Sqe::new_zeroed();
        sqe.opcode = Opcode(0x09);
        sqe.cdw10[0] = U32::new(FeatureId::NUMBER_OF_QUEUES.0.into());
        let count = u32::from(queues.max(1) - 1);
        sqe.cdw10[1] = U32::new(count << 16 | count);
        let (granted, _) = run_command(&mut self.socket, sqe, &[], 0)?;
        let (submission, completion) = (granted.result as u16, (granted.result >> 16) as u16);
        self.queues = submission.min(completion).saturating_add(1);
        Ok(())
    }
}

/// ICReq and ICResp: no digests.
fn initialize_connection(socket: &mut (impl Read + Write)) -> io::Result<ConnectionParameters> {
    let offer = IcReq::new(0, false, false, 1);
    socket.write_all(offer.as_bytes())?;
    let answer = read_pdu(socket)?;
    let answer = IcResp::from_prefix(&answer).filter(|answer| answer.common.pdu_type == PduType::IC_RESP);
    let answer = answer.ok_or_else(|| protocol_error("something else in place of an ICResp"))?;
    answer.parameters(&offer).map_err(|fatal| protocol_error(format!("ICResp: {}", LinkFault::Fatal(fatal))))
}

/// Connect; the controller's number.
fn send_connect(
    socket: &mut (impl Read + Write),
    names: &ConnectNames,
    qid: u16,
    entries: u32,
    kato_ms: u32,
) -> io::Result<u16> {
    // Without flow control a read's end rides on its data.
    let connect = Connect { qid, entries, flow_control: false, individual_deletion: false, kato_ms };
    let (answer, _) = run_command(socket, connect.to_sqe(), ConnectData::new(names).as_bytes(), 0)?;
    let connected = ConnectResult::parse(answer.result);
    if connected.authenticate {
        return Err(protocol_error("the controller wants authentication"));
    }
    Ok(connected.cntlid)
}

/// One command and its end: `data` goes in the capsule, `len` bytes come back.
fn run_command(
    socket: &mut (impl Read + Write),
    mut sqe: Sqe,
    data: &[u8],
    len: usize,
) -> io::Result<(Completion, Vec<u8>)> {
    let code = sqe.opcode;
    sqe.flags = 0x40;
    sqe.cid = U16::new(1);
    sqe.dptr = SglDescriptor::new_zeroed();
    sqe.dptr.length = U32::new(data.len().max(len) as u32);
    sqe.dptr.identifier = if data.is_empty() { SglDescriptor::TRANSPORT } else { SglDescriptor::IN_CAPSULE };
    socket.write_all(command_capsule(sqe, 72, data.len() as u32).as_bytes())?;
    socket.write_all(data)?;
    let mut came = Vec::new();
    loop {
        let pdu = read_pdu(socket)?;
        if let Some(part) = C2hData::from_prefix(&pdu).filter(|p| p.common.pdu_type == PduType::C2H_DATA) {
            let at = usize::from(part.common.pdo);
            let part_data = pdu.get(at..at + part.datal.get() as usize);
            came.extend_from_slice(part_data.ok_or_else(|| protocol_error("data that is cut off"))?);
            if !part.common.flags.contains(Flags::SUCCESS) {
                continue;
            }
        } else {
            let response =
                CapsuleResp::from_prefix(&pdu).filter(|r| r.common.pdu_type == PduType::CAPSULE_RESP);
            let response = response.ok_or_else(|| protocol_error("something else in place of a response"))?;
            let completion = response.cqe.completion();
            if !completion.status.is_success() {
                let status = completion.status;
                return Err(protocol_error(format!(
                    "command {:02x}h is refused: status {:x}.{:02x}h, {:#x}",
                    code.0,
                    status.status_code_type(),
                    status.code(),
                    completion.result
                )));
            }
            came.resize(len, 0);
            return Ok((completion, came));
        }
        came.resize(len, 0);
        return Ok((Completion::SUCCESS, came));
    }
}

/// The head of a capsule whose data, if it has some, begins at `data_at`.
pub(super) fn command_capsule(sqe: Sqe, data_at: u32, len: u32) -> CapsuleCmd {
    let mut capsule = CapsuleCmd::new(sqe);
    if len > 0 {
        capsule.common.pdo = data_at as u8;
        capsule.common.plen = U32::new(data_at + len);
    }
    capsule
}

fn read_pdu(socket: &mut impl Read) -> io::Result<Vec<u8>> {
    /// An answer of the admin queue is no longer than this.
    const PDU_MAX: usize = 64 << 10;
    let mut pdu = vec![0; COMMON_LEN];
    socket.read_exact(&mut pdu)?;
    let common = CommonHeader::ref_from_bytes(&pdu).map_err(|_| protocol_error("a header of 8 bytes"))?;
    let len = common.plen.get() as usize;
    if !(COMMON_LEN..=PDU_MAX).contains(&len) {
        return Err(protocol_error(format!("a PDU of {len} bytes")));
    }
    if common.pdu_type == PduType::C2H_TERM_REQ {
        return Err(protocol_error("the controller ends the connection"));
    }
    socket.take((len - COMMON_LEN) as u64).read_to_end(&mut pdu)?;
    if pdu.len() < len { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(pdu) }
}
