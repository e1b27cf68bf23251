//! Snapshots that lack something, to see that their lack is noticed.

use super::body::{PurposeBody, QueueBody, ReceiveBody, StateBody, StretchBody};
use super::{FORMAT, QueueSnapshot};

/// What is forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Omission {
    Nothing,
    Sqhd,
    /// R2Ts are forgotten with what was asked for: it is asked for again.
    R2ts,
    HalfPdu,
    UnsentBytes,
    ReceivedData,
    RunningDigest,
    WithdrawnCommand,
    Arrival,
}

impl Omission {
    pub(in super::super) const ALL: [Omission; 8] = [
        Omission::Sqhd,
        Omission::R2ts,
        Omission::HalfPdu,
        Omission::UnsentBytes,
        Omission::ReceivedData,
        Omission::RunningDigest,
        Omission::WithdrawnCommand,
        Omission::Arrival,
    ];
}

/// The snapshot without it.
pub(in super::super) fn omit(snapshot: &QueueSnapshot, omission: Omission) -> QueueSnapshot {
    let mut body: QueueBody = stream::snapshot::read(FORMAT, snapshot.as_bytes()).unwrap();
    match omission {
        Omission::Nothing => {}
        Omission::Sqhd => body.sqhd = 0,
        Omission::HalfPdu => body.unparsed.clear(),
        Omission::UnsentBytes => body.unsent.clear(),
        Omission::R2ts => {
            let named = stretch_task(&body);
            for (place, task) in body.tasks.iter_mut().enumerate() {
                if named != Some(place as u32) && matches!(task.state, StateBody::Withdrawn(_)) {
                    (task.asked, task.r2ts, task.carried) = (0, Vec::new(), Vec::new());
                }
            }
        }
        Omission::ReceivedData => {
            body.tasks.iter_mut().flat_map(|task| &mut task.carried).for_each(|(_, bytes)| bytes.fill(0));
        }
        Omission::RunningDigest => {
            if let ReceiveBody::Data(stretch) | ReceiveBody::Digest(stretch) = &mut body.receive {
                stretch.crc = 0;
            }
        }
        Omission::WithdrawnCommand => {
            let last = body.tasks.len().checked_sub(1).map(|last| last as u32);
            if last != stretch_task(&body) && body.half.is_none() {
                body.tasks.pop();
            }
        }
        Omission::Arrival => {
            if stretch_task(&body).is_none() && body.half.is_none() {
                body.tasks.reverse();
            }
        }
    }
    QueueSnapshot(stream::snapshot::write(FORMAT, &body).into())
}

/// The task that the stream stands in.
fn stretch_task(body: &QueueBody) -> Option<u32> {
    match &body.receive {
        ReceiveBody::Data(StretchBody { purpose, .. }) | ReceiveBody::Digest(StretchBody { purpose, .. }) => {
            match purpose {
                PurposeBody::Capsule(task) | PurposeBody::Solicited(task, _) => Some(*task),
                PurposeBody::Refuse(..) | PurposeBody::Skip => None,
            }
        }
        ReceiveBody::Header => None,
    }
}
