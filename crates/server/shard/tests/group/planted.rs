//! What is left out is noticed.

use testkit::seeds;

use crate::cluster::{Omission, Plan};
use crate::history::History;

#[test]
fn omissions_are_noticed() {
    for omission in [
        Omission::NotQuiesced,
        Omission::NotClosed,
        Omission::RecordNotRead,
        Omission::RecordNotAwaited,
        Omission::Requester,
        Omission::Notices,
        Omission::Snapshots,
    ] {
        let plan = |seed| Plan { omission: Some(omission), ..Plan::new(seed) };
        seeds::assert_some_seed_fails(omission, 40, |seed| History::new(plan(seed)).play());
    }
}
