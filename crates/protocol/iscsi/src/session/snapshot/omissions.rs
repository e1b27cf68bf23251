//! Snapshots that lack something, to see that their lack is noticed.

use super::body::{KindBody, LinkBody, PurposeBody, ReceiveBody, SessionBody, StateBody, TransferBody};
use super::{FORMAT, SessionSnapshot};

/// What is forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Omission {
    Nothing,
    /// The number of the next response: as if none was sent since the last that was acknowledged.
    StatSn,
    R2ts,
    /// What was asked for: it is asked for again.
    Asked,
    HalfPdu,
    UnsentBytes,
    ReceivedData,
    RunningDigest,
    WithdrawnCommand,
    CommandNumber,
    Pings,
}

impl Omission {
    pub(in super::super) const ALL: [Omission; 10] = [
        Omission::StatSn,
        Omission::R2ts,
        Omission::Asked,
        Omission::HalfPdu,
        Omission::UnsentBytes,
        Omission::ReceivedData,
        Omission::RunningDigest,
        Omission::WithdrawnCommand,
        Omission::CommandNumber,
        Omission::Pings,
    ];
}

/// The snapshot without it.
pub(in super::super) fn omit(snapshot: &SessionSnapshot, omission: Omission) -> SessionSnapshot {
    let mut body: SessionBody = stream::snapshot::read(FORMAT, snapshot.as_bytes()).unwrap();
    let links = body.links.iter_mut().flatten();
    match omission {
        Omission::Nothing => {}
        Omission::StatSn => links.for_each(|link| link.stat_sn = link.acked.wrapping_add(1)),
        Omission::HalfPdu => links.for_each(|link| link.unparsed.clear()),
        Omission::UnsentBytes => links.for_each(|link| link.unsent.clear()),
        Omission::Pings => links.for_each(|link| link.pings.clear()),
        Omission::RunningDigest => links.for_each(|link| {
            if let ReceiveBody::Data { crc, .. } = &mut link.receive {
                *crc = 0;
            }
        }),
        Omission::CommandNumber => body.window.exp = body.window.exp.wrapping_sub(1),
        Omission::R2ts => transfers(&mut body).for_each(|transfer| transfer.r2ts.clear()),
        Omission::Asked => transfers(&mut body).for_each(|transfer| {
            if transfer.asked > transfer.unsolicited {
                transfer.asked = transfer.got.max(transfer.unsolicited);
                transfer.r2ts.clear();
            }
        }),
        Omission::ReceivedData => transfers(&mut body).for_each(|transfer| {
            if let Some((_, bytes)) = &mut transfer.carried {
                bytes.fill(0);
            }
        }),
        Omission::WithdrawnCommand => forget_last_task(&mut body),
    }
    SessionSnapshot(stream::snapshot::write(FORMAT, &body).into())
}

fn transfers(body: &mut SessionBody) -> impl Iterator<Item = &mut TransferBody> {
    body.tasks.iter_mut().filter_map(|task| match &mut task.kind {
        KindBody::Scsi(transfer) => Some(transfer),
        KindBody::Function(_) => None,
    })
}

/// The last task, if nothing else names it.
fn forget_last_task(body: &mut SessionBody) {
    let Some(last) = body.tasks.last() else { return };
    let place = body.tasks.len() as u32 - 1;
    let names = |link: &LinkBody| matches!(&link.receive, ReceiveBody::Data { purpose: PurposeBody::Write { task, .. }, .. } if *task == Some(place));
    if matches!(last.state, StateBody::Withdrawn(_)) && !body.links.iter().flatten().any(names) {
        body.tasks.pop();
    }
}
