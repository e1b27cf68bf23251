//! A stripe of remote volumes in a client: one volume, with the paths of all its legs.
//!
//! Invariant: it is open when every leg is open, failed when one has failed, closed when all are closed.

use std::collections::VecDeque;
use std::sync::Arc;

use backends::Stripe;
use volume::{Backend, Failure, IoId, PathAccess, Refusal};

use crate::path::{Path, VolumeInfo};
use crate::remote::{PathInfo, RemoteVolume, ReservationReply, VolumeEvent};

/// See the module.
pub(crate) struct StripedVolume<P> {
    pub(crate) stripe: Stripe<RemoteVolume<P>>,
    /// Legs that are open, and that are closed: a bit each.
    open: u64,
    closed: u64,
    replies: VecDeque<ReservationReply>,
}

impl<P: Path> StripedVolume<P> {
    pub(crate) fn new(stripe: Stripe<RemoteVolume<P>>) -> Self {
        StripedVolume { stripe, open: 0, closed: 0, replies: VecDeque::new() }
    }

    fn legs(&self) -> impl Iterator<Item = &RemoteVolume<P>> {
        (0..self.stripe.leg_count()).filter_map(|at| self.stripe.leg(at))
    }

    pub(crate) fn has_room(&self) -> bool {
        self.stripe.has_room() && self.legs().all(RemoteVolume::has_room)
    }

    /// What has changed; paths are counted over all legs.
    pub(crate) fn poll_event(&mut self) -> Option<VolumeEvent> {
        let all = u64::MAX >> (64 - self.stripe.leg_count());
        let mut before = 0;
        for at in 0..self.stripe.leg_count() {
            let leg = self.stripe.leg_mut_for_poll(at)?;
            let paths = leg.path_count();
            while let Some(event) = leg.poll_event() {
                match event {
                    VolumeEvent::Open => self.open |= 1 << at,
                    VolumeEvent::Closed => self.closed |= 1 << at,
                    VolumeEvent::Path(path) => return Some(VolumeEvent::Path(before + path)),
                    VolumeEvent::Failed | VolumeEvent::Changed => return Some(event),
                }
                if event == VolumeEvent::Open && self.open == all
                    || event == VolumeEvent::Closed && self.closed == all
                {
                    return Some(event);
                }
            }
            before += paths;
        }
        None
    }

    pub(crate) fn paths(&self) -> Vec<PathInfo> {
        self.legs().flat_map(|leg| (0..leg.path_count()).filter_map(|path| leg.path_info(path))).collect()
    }

    /// Whether any leg says so; each is asked.
    pub(crate) fn any_leg_reports(&mut self, asked: fn(&mut RemoteVolume<P>) -> bool) -> bool {
        let legs = 0..self.stripe.leg_count();
        legs.filter(|leg| self.stripe.leg_mut_for_poll(*leg).is_some_and(asked)).count() > 0
    }

    /// The UUIDs of the legs, if all have one.
    pub(crate) fn leg_uuids(&self) -> Option<Vec<[u8; 16]>> {
        self.legs().map(|leg| leg.info()?.uuid.map(|uuid| uuid.0)).collect()
    }

    /// What the legs say together; `None` before all are open. It has no UUID of its own.
    pub(crate) fn info(&self) -> Option<VolumeInfo> {
        let legs: Vec<&Arc<VolumeInfo>> = self.legs().map(RemoteVolume::info).collect::<Option<_>>()?;
        let worst =
            |one: PathAccess, other: PathAccess| if one == PathAccess::Optimized { other } else { one };
        let name = |leg: &VolumeInfo| leg.uuid.map_or_else(|| leg.serial.clone(), |uuid| uuid.to_string());
        let term = |(at, leg): (usize, &&Arc<VolumeInfo>)| {
            (format!("leg {}", at + 1), format!("{} ({})", name(leg), leg.product))
        };
        Some(VolumeInfo {
            uuid: None,
            geometry: Some(self.stripe.geometry()).filter(|geometry| geometry.blocks > 0),
            read_only: self.stripe.is_read_only(),
            access: legs.iter().fold(PathAccess::Optimized, |access, leg| worst(access, leg.access)),
            product: format!("stripe of {}", legs.len()),
            serial: legs.iter().map(|leg| name(leg)).collect::<Vec<_>>().join("+"),
            depth: legs.iter().map(|leg| leg.depth).min()?,
            terms: legs.iter().enumerate().map(term).collect(),
        })
    }

    /// Reservations are of the legs, each for itself: of the whole there are none. True: the reply follows.
    pub(crate) fn refuse_reservation(&mut self, id: IoId) -> bool {
        self.replies.push_back((id, Err(Failure::Refused(Refusal::Unsupported))));
        true
    }

    pub(crate) fn poll_reservation_reply(&mut self) -> Option<ReservationReply> {
        self.replies.pop_front()
    }
}
