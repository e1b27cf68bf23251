//! Prints what one I/O costs in the session, in nanoseconds: bytes in, command up, answer down, bytes
//! out, without any socket. `cargo run --release -p blockwire-iscsi --example session_cost`

use blockwire_iscsi::session::{
    LinkParams, Request, Response, ScsiResult, SessionLimits, SessionParams, TargetSession,
};
use blockwire_iscsi::wire::{Bhs, Cid, CommandFlags, Isid, Itt, Pdu, ScsiCommand, Sn, Tsih};
use buf::{BufMut, Class, Cx, Entropy, Pool, Region, RegionHandle, Sg, Time};
use std::sync::Arc;
use std::time::Instant;
use stream::{Connection, Link, Received, Target, TargetEvent};

const ROUNDS: u32 = 20_000;

fn main() {
    for depth in [1, 32] {
        for digest in [false, true] {
            for (name, write, len) in [("read", false, 512), ("read", false, 4096), ("write", true, 4096)] {
                let cost = measure(depth, write, len, digest);
                println!("{name} {len} bytes, depth {depth}, digests {digest}: {cost:.0} ns per I/O");
            }
        }
    }
}

fn measure(depth: u32, write: bool, len: u32, digest: bool) -> f64 {
    let pool = Pool::new(64 << 20);
    let mut entropy = Entropy::new([1; 32]);
    let mut cx = Cx { now: Time(1), pool: &pool, entropy: &mut entropy };
    let mut session = session(&mut cx, digest);
    let region = RegionHandle::new(Arc::new(Region::new(1 << 20)));
    let mut sn = Sn::new(0);
    let mut stream = Vec::new();
    let mut spent = Vec::with_capacity(ROUNDS as usize);
    for _ in 0..ROUNDS {
        stream.clear();
        for _ in 0..depth {
            command(&mut stream, sn.take(), write, len, digest);
        }
        let start = Instant::now();
        turn(&mut session, &mut cx, &region, &stream, len);
        spent.push(start.elapsed().as_nanos());
    }
    // A tenth of the way up: what it costs when nothing else runs on the core.
    spent.sort_unstable();
    spent[ROUNDS as usize / 10] as f64 / f64::from(depth)
}

fn session(cx: &mut Cx<'_>, digest: bool) -> TargetSession {
    let params = SessionParams {
        isid: Isid([0; 6]),
        tsih: Tsih::new(1),
        discovery: false,
        max_connections: 1,
        initial_r2t: true,
        immediate_data: true,
        max_burst: 262_144,
        first_burst: 65_536,
        segment_max: 262_144,
        max_outstanding_r2t: 1,
        time2wait: 2,
        time2retain: 0,
        protocol_level: 1,
        cmd_sn: Sn::new(0),
    };
    let link = LinkParams {
        cid: Cid::new(0),
        header_digest: digest,
        data_digest: digest,
        initiator_mrdsl: 262_144,
        target_mrdsl: 262_144,
        stat_sn: Sn::new(0),
    };
    let mut session = TargetSession::new(cx, params, SessionLimits::default()).expect("memory enough");
    session.attach(cx, link, &[]).expect("the first link");
    session
}

fn command(stream: &mut Vec<u8>, sn: Sn, write: bool, len: u32, digest: bool) {
    let mut pdu = ScsiCommand::new();
    pdu.flags = CommandFlags::FINAL.with(if write { CommandFlags::WRITE } else { CommandFlags::READ });
    (pdu.itt, pdu.cmd_sn, pdu.expected_data_len) = (Itt::new(sn.value() & 0xffff), sn, len.into());
    pdu.set_data_len(if write { len as usize } else { 0 });
    let bhs: &Bhs = pdu.as_bhs();
    stream.extend(bhs.bytes());
    let sum = |bytes: &[u8]| buf::crc32c::crc32c(bytes).to_le_bytes();
    if digest {
        stream.extend(sum(bhs.bytes()));
    }
    if write {
        let data = vec![0x5a; len as usize];
        stream.extend(&data);
        if digest {
            stream.extend(sum(&data));
        }
    }
}

/// One turn of a world: everything in, everything out. Its own copy into the stage is not counted as
/// the session's, but it is in the figure.
fn turn(session: &mut TargetSession, cx: &mut Cx<'_>, region: &RegionHandle, stream: &[u8], len: u32) {
    let link = Link(0);
    let mut from = 0;
    while from < stream.len() {
        let mut op = session.poll_recv(cx, link).expect("nothing is out");
        let mut n = 0;
        if let Some(direct) = &mut op.direct {
            for slice in direct.data.slices_mut(direct.want.clone()) {
                let now = slice.len().min(stream.len() - from - n);
                slice[..now].copy_from_slice(&stream[from + n..from + n + now]);
                n += now;
            }
        }
        let rest = (stream.len() - from - n).min(op.stage_len);
        if rest > 0 {
            let mut stage: BufMut = cx.pool.take(Class::Wire, rest).expect("memory enough");
            stage.copy_from_slice(&stream[from + n..from + n + rest]);
            op.stage = Some(stage);
            n += rest;
        }
        from += n;
        session.handle_recv(cx, link, op, Received::Bytes(n)).expect("no violation");
        while serve(session, cx, region, len) {
            session.resume(cx).expect("no violation");
        }
    }
    while let Some(op) = session.poll_send(cx, link) {
        session.handle_written(cx, link, Ok(()));
        session.handle_sent(cx, link, op);
    }
}

fn serve(session: &mut TargetSession, cx: &mut Cx<'_>, region: &RegionHandle, len: u32) -> bool {
    let mut any = false;
    while let Some(event) = session.poll_event() {
        any = true;
        match event {
            TargetEvent::Command { tag, command: Request::Scsi(scsi), data_out } if scsi.write => {
                let place = cx.pool.take_sg(Class::Solicited, data_out as usize).expect("memory enough");
                session.recv_data(cx, tag, 0, place);
            }
            TargetEvent::Command { tag, command: Request::Scsi(_), .. } => {
                session.send_data(cx, tag, 0, Sg::from(region.view(4096, len as usize)));
                session.respond(cx, tag, Response::Scsi(ScsiResult::good(u64::from(len))));
            }
            TargetEvent::DataReceived { tag, data, .. } => {
                data.for_each(0..data.len(), |piece, _| region.region().write_buf(4096, piece));
                session.respond(cx, tag, Response::Scsi(ScsiResult::good(u64::from(len))));
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    any
}
