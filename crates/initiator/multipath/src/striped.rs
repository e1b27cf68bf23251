//! A stripe of remote volumes, as a client keeps it: one volume, with the paths of all its legs.
//!
//! Invariant: it is open when every leg is, failed when one is, closed when all are.

use std::collections::VecDeque;
use std::sync::Arc;

use backends::Stripe;
use volume::{Access, Backend, Failure, IoId, Refusal};

use crate::path::{Path, Portrait};
use crate::remote::{Claimed, News, PathInfo, RemoteVolume};

/// See the module.
pub(crate) struct Striped<P> {
    pub(crate) stripe: Stripe<RemoteVolume<P>>,
    /// Legs that are open, and that are closed: a bit each.
    open: u64,
    closed: u64,
    claimed: VecDeque<Claimed>,
}

impl<P: Path> Striped<P> {
    pub(crate) fn new(stripe: Stripe<RemoteVolume<P>>) -> Self {
        Striped { stripe, open: 0, closed: 0, claimed: VecDeque::new() }
    }

    fn legs(&self) -> impl Iterator<Item = &RemoteVolume<P>> {
        (0..self.stripe.legs()).filter_map(|at| self.stripe.leg(at))
    }

    pub(crate) fn has_room(&self) -> bool {
        self.stripe.has_room() && self.legs().all(RemoteVolume::has_room)
    }

    /// What has changed; paths are counted over all legs.
    pub(crate) fn poll_news(&mut self) -> Option<News> {
        let all = u64::MAX >> (64 - self.stripe.legs());
        let mut before = 0;
        for at in 0..self.stripe.legs() {
            let leg = self.stripe.leg_to_hear(at)?;
            let paths = leg.paths();
            while let Some(news) = leg.poll_news() {
                match news {
                    News::Open => self.open |= 1 << at,
                    News::Closed => self.closed |= 1 << at,
                    News::Path(path) => return Some(News::Path(before + path)),
                    News::Failed | News::Changed => return Some(news),
                }
                if news == News::Open && self.open == all || news == News::Closed && self.closed == all {
                    return Some(news);
                }
            }
            before += paths;
        }
        None
    }

    pub(crate) fn paths(&self) -> Vec<PathInfo> {
        self.legs().flat_map(|leg| (0..leg.paths()).filter_map(|path| leg.path_info(path))).collect()
    }

    pub(crate) fn has_changed(&mut self) -> bool {
        (0..self.stripe.legs())
            .filter(|at| self.stripe.leg_to_hear(*at).is_some_and(RemoteVolume::has_changed))
            .count()
            > 0
    }

    pub(crate) fn has_landing_changed(&mut self) -> bool {
        (0..self.stripe.legs())
            .filter(|at| self.stripe.leg_to_hear(*at).is_some_and(RemoteVolume::has_landing_changed))
            .count()
            > 0
    }

    /// The UUIDs of the legs, if all have one.
    pub(crate) fn uuids(&self) -> Option<Vec<[u8; 16]>> {
        self.legs().map(|leg| leg.portrait()?.uuid.map(|uuid| uuid.0)).collect()
    }

    /// What the legs say together; `None` before all are open. It has no UUID of its own.
    pub(crate) fn portrait(&self) -> Option<Portrait> {
        let legs: Vec<&Arc<Portrait>> = self.legs().map(RemoteVolume::portrait).collect::<Option<_>>()?;
        let worst = |one: Access, other: Access| if one == Access::Optimized { other } else { one };
        let name = |leg: &Portrait| leg.uuid.map_or_else(|| leg.serial.clone(), |uuid| uuid.to_string());
        let term = |(at, leg): (usize, &&Arc<Portrait>)| {
            (format!("leg {}", at + 1), format!("{} ({})", name(leg), leg.product))
        };
        Some(Portrait {
            uuid: None,
            geometry: Some(self.stripe.geometry()).filter(|geometry| geometry.blocks > 0),
            read_only: self.stripe.is_read_only(),
            access: legs.iter().fold(Access::Optimized, |access, leg| worst(access, leg.access)),
            product: format!("stripe of {}", legs.len()),
            serial: legs.iter().map(|leg| name(leg)).collect::<Vec<_>>().join("+"),
            depth: legs.iter().map(|leg| leg.depth).min()?,
            terms: legs.iter().enumerate().map(term).collect(),
        })
    }

    /// Reservations are of the legs, each for itself: of the whole there are none.
    pub(crate) fn claim(&mut self, id: IoId) {
        self.claimed.push_back((id, Err(Failure::Refused(Refusal::Unsupported))));
    }

    pub(crate) fn poll_claimed(&mut self) -> Option<Claimed> {
        self.claimed.pop_front()
    }
}
