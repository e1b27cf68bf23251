//! Logging in to an iSCSI target, without authentication, on a blocking socket.

use std::io::{self, Read, Write};

use iscsi::wire::{
    BHS_LEN, Bhs, Cid, CommandFlags, DataIn, Isid, Itt, LoginFlags, LoginRequest, LoginResponse, Lun, Opcode,
    Pdu, ScsiCommand, ScsiResponse, Stage, Tsih, padded_len,
};
use zerocopy::FromZeros;

use super::protocol_error;
use super::session::IscsiSession;

/// The largest segment that is taken.
const SEGMENT_BYTES_MAX: u32 = 256 << 10;

/// Logs in to a normal session with `target`, its unit `lun`, and learns what there is to know.
/// `number` tells sessions apart.
pub fn log_in(
    socket: &mut (impl Read + Write),
    target: &str,
    lun: u8,
    number: u32,
) -> io::Result<IscsiSession> {
    let mut session = IscsiSession::new(lun, SEGMENT_BYTES_MAX);
    let [a, b, c, d] = number.to_be_bytes();
    let mut isid = Isid::new_zeroed();
    // A random-type identifier (RFC 7143 §11.12.5), so that sessions of one name stay apart.
    zerocopy::IntoBytes::as_mut_bytes(&mut isid).copy_from_slice(&[0x80, 0, a, b, c, d]);

    let security = format!(
        "InitiatorName=iqn.2026-11.io.blockwire:raw-load\0TargetName={target}\0SessionType=Normal\0AuthMethod=None\0"
    );
    let mut stage =
        exchange_login(socket, &mut session, isid, Stage::SECURITY, Stage::OPERATIONAL, &security)?;
    if stage == Stage::OPERATIONAL {
        let operational = format!(
            "HeaderDigest=None\0DataDigest=None\0MaxRecvDataSegmentLength={SEGMENT_BYTES_MAX}\0InitialR2T=Yes\0\
             ImmediateData=Yes\0MaxBurstLength={}\0FirstBurstLength={SEGMENT_BYTES_MAX}\0MaxConnections=1\0\
             MaxOutstandingR2T=1\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0DefaultTime2Wait=2\0\
             DefaultTime2Retain=0\0ErrorRecoveryLevel=0\0",
            1 << 20
        );
        stage = exchange_login(
            socket,
            &mut session,
            isid,
            Stage::OPERATIONAL,
            Stage::FULL_FEATURE,
            &operational,
        )?;
    }
    if stage != Stage::FULL_FEATURE {
        return Err(protocol_error("the target does not go on to the full feature phase"));
    }
    probe_unit(socket, &mut session)?;
    Ok(session)
}

/// One stage: the request, and the answer with the keys that matter here taken in. Gives the stage that follows.
fn exchange_login(
    socket: &mut (impl Read + Write),
    session: &mut IscsiSession,
    isid: Isid,
    from: Stage,
    to: Stage,
    text: &str,
) -> io::Result<Stage> {
    let mut text = text.as_bytes();
    let mut came = Vec::new();
    // A target may answer a stage in several steps; eight are more than any needs.
    for _ in 0..8 {
        let mut request = LoginRequest::new();
        request.flags = (LoginFlags(LoginFlags::TRANSIT.0)).with_stages(from, to);
        request.isid = isid;
        request.tsih = Tsih::NONE;
        request.itt = Itt::new(0);
        request.cid = Cid::new(1);
        request.cmd_sn = session.cmd_sn;
        request.exp_stat_sn = session.exp_stat_sn;
        request.set_data_len(text.len());
        write_pdu(socket, request.as_bhs(), text)?;
        text = &[];
        let (header, data) = read_pdu(socket)?;
        if header.opcode() != Opcode::LOGIN_RESPONSE {
            return Err(protocol_error(format!("{:?} in place of a login response", header.opcode())));
        }
        let response = LoginResponse::from_bhs(&header);
        let [class, detail] = *zerocopy::IntoBytes::as_bytes(&response.status) else {
            return Err(protocol_error("a status of two bytes"));
        };
        if class != 0 {
            return Err(protocol_error(format!("the login is refused: status {class:02x}{detail:02x}h")));
        }
        session.exp_stat_sn = response.stat_sn.next();
        session.max_cmd_sn = response.max_cmd_sn;
        came.extend_from_slice(&data);
        if response.flags.0 & LoginFlags::TRANSIT.0 != 0 {
            apply_login_keys(session, &came)?;
            return Ok(response.flags.next());
        }
    }
    Err(protocol_error("the login does not come to an end"))
}

fn apply_login_keys(session: &mut IscsiSession, text: &[u8]) -> io::Result<()> {
    for pair in text.split(|byte| *byte == 0).filter(|pair| !pair.is_empty()) {
        let pair = String::from_utf8_lossy(pair);
        let Some((key, value)) = pair.split_once('=') else {
            return Err(protocol_error(format!("{pair:?} is no pair")));
        };
        let number =
            || value.parse::<u32>().map_err(|_| protocol_error(format!("{key}={value} is no number")));
        match key {
            // RFC 7143 §13.12: of nothing, no write would ever be sent.
            "MaxRecvDataSegmentLength" => match number()? {
                0..512 => return Err(protocol_error(format!("{key}={value} is less than 512"))),
                most => session.segment_max = most,
            },
            "FirstBurstLength" => session.first_burst = number()?,
            "ImmediateData" => session.immediate = value == "Yes",
            "HeaderDigest" | "DataDigest" if value != "None" => {
                return Err(protocol_error(format!("{key}={value}")));
            }
            "AuthMethod" if value != "None" => return Err(protocol_error("the target wants authentication")),
            _ => {}
        }
    }
    Ok(())
}

/// TEST UNIT READY until it is, then READ CAPACITY (10).
fn probe_unit(socket: &mut (impl Read + Write), session: &mut IscsiSession) -> io::Result<()> {
    for _ in 0..8 {
        // Unit attentions are reported once each.
        if run_command(socket, session, [0; 16], 0)?.0 == 0 {
            break;
        }
    }
    let mut cdb = [0; 16];
    cdb[0] = 0x25;
    let (status, data) = run_command(socket, session, cdb, 8)?;
    let capacity =
        data.first_chunk::<8>().filter(|_| status == 0).ok_or_else(|| protocol_error("no capacity"))?;
    let [a, b, c, d, block @ ..] = *capacity;
    session.block = u32::from_be_bytes(block);
    session.blocks = u64::from(u32::from_be_bytes([a, b, c, d])) + 1;
    if session.block == 0 {
        return Err(protocol_error("blocks of no bytes"));
    }
    Ok(())
}

/// A command that reads `len` bytes; gives its status and the data.
fn run_command(
    socket: &mut (impl Read + Write),
    session: &mut IscsiSession,
    cdb: [u8; 16],
    len: u32,
) -> io::Result<(u8, Vec<u8>)> {
    let mut request = ScsiCommand::new();
    request.flags = CommandFlags(CommandFlags::FINAL.0 | if len > 0 { CommandFlags::READ.0 } else { 0 });
    request.lun = Lun(session.lun);
    request.itt = Itt::new(0);
    request.expected_data_len = len.into();
    request.cmd_sn = session.cmd_sn.take();
    request.exp_stat_sn = session.exp_stat_sn;
    request.cdb = cdb;
    write_pdu(socket, request.as_bhs(), &[])?;
    let mut came = Vec::new();
    loop {
        let (header, data) = read_pdu(socket)?;
        match header.opcode() {
            Opcode::DATA_IN => {
                let part = DataIn::from_bhs(&header);
                came.extend_from_slice(&data);
                if part.flags.0 & 1 != 0 {
                    session.acknowledge(part.stat_sn, part.max_cmd_sn);
                    return Ok((part.status.0, came));
                }
            }
            Opcode::SCSI_RESPONSE => {
                let response = ScsiResponse::from_bhs(&header);
                session.acknowledge(response.stat_sn, response.max_cmd_sn);
                return Ok((response.status.0, came));
            }
            other => return Err(protocol_error(format!("{other:?} in place of a response"))),
        }
    }
}

fn write_pdu(socket: &mut impl Write, header: &Bhs, data: &[u8]) -> io::Result<()> {
    let mut bytes = header.bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(BHS_LEN + padded_len(data.len()).unwrap_or(data.len()), 0);
    socket.write_all(&bytes)
}

fn read_pdu(socket: &mut impl Read) -> io::Result<(Bhs, Vec<u8>)> {
    let mut header = [0; BHS_LEN];
    socket.read_exact(&mut header)?;
    let header = *Bhs::from_prefix(&header).ok_or_else(|| protocol_error("a header of 48 bytes"))?;
    let mut data = vec![0; header.ahs_len() + header.padded_data_len()];
    socket.read_exact(&mut data)?;
    data.drain(..header.ahs_len());
    data.truncate(header.data_len());
    Ok((header, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data would be cut into pieces of no bytes, without end.
    #[test]
    fn a_target_that_takes_no_data_is_refused() {
        let mut session = IscsiSession::new(0, SEGMENT_BYTES_MAX);
        assert!(apply_login_keys(&mut session, b"MaxRecvDataSegmentLength=0\0").is_err());
        apply_login_keys(&mut session, b"MaxRecvDataSegmentLength=512\0").unwrap();
        assert_eq!(session.segment_max, 512);
    }
}
