//! Several volumes as one: chunk after chunk goes to the next leg (RAID 0).
//!
//! A [`Stripe`] is a backend over backends. An operation is cut into at most one operation per leg, each of
//! one contiguous range there, without moving a byte; it ends when all of them have ended. A stripe has no
//! redundancy: a lost leg loses a part of every file.
//!
//! Invariants:
//! - Every accepted operation ends exactly once, with its memory in its original form, however its legs end.
//! - Blocks and bytes in a [`Fault`](volume::Fault) are the stripe's, not the leg's.
//! - An operation that must be atomic lies in one chunk, or is refused.
//! - The geometry promises only what every leg supports; before all legs are known there are no blocks.
//!
//! Bounds: [`LEGS_MAX`] legs; [`OPS_MAX`] operations in flight, and as many results not yet taken. An
//! operation on no more chunks than there are legs allocates nothing once the stripe is warm.

mod layout;
mod ops;
mod sockets;
mod spec;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;

use buf::{Cx, Errno, SgMut};
use endpoint::{DialId, LinkId, OutboundSockets};
use stream::Slab;
use volume::{Backend, DiskId, DiskOp, Geometry, Io, IoCompletion, IoId, ShardId};

use layout::StripeLayout;
use ops::StripeOp;

pub use spec::{ParsedStripe, StripeSyntaxError, format_legs, is_meant, parse_stripe};

/// Most legs: a bit of a `u64` each.
pub const LEGS_MAX: usize = 64;
/// Most operations in work on one shard.
pub const OPS_MAX: usize = 16_384;
/// Bytes per chunk where nothing is said.
pub const CHUNK_BYTES_DEFAULT: u32 = 64 << 10;
/// The longest chunk, in bytes: what a leg is sure to take at once.
pub const CHUNK_BYTES_MAX: u32 = 64 << 20;

/// See the module.
#[derive(Debug)]
pub struct Stripe<L> {
    legs: Vec<Leg<L>>,
    /// Bytes of a chunk, a power of two.
    chunk: u32,
    /// Bytes of the whole at most.
    limit: Option<u64>,
    /// How blocks lie, as soon as it is known how long they are, and from then on.
    layout: Option<StripeLayout>,
    /// Nothing that is known of the legs speaks against it.
    fits: bool,
    geometry: Geometry,
    /// The end of what may be submitted: that of the geometry, or while legs are unknown that of the others.
    end: u64,
    ops: Slab<StripeOp>,
    /// Lists that tasks had.
    spare: Vec<Vec<SgMut>>,
    done: VecDeque<IoCompletion>,
    /// Legs that may have something: ends, disk operations; and that are to be turned, may have links that are
    /// ready, dials, and links that leave.
    ended: u64,
    disk: u64,
    waking: u64,
    touched: u64,
    ready: u64,
    dialling: u64,
    working: u64,
    leaving: u64,
    /// By the low half of a link's name: its name and its leg.
    links: Vec<Option<(LinkId, u8)>>,
    dials: Vec<(DialId, u8, DialId)>,
    next_dial: u64,
}

/// One of the volumes that it is made of.
#[derive(Debug)]
struct Leg<L> {
    volume: L,
    /// The disk that its operations name, if it has one.
    disk: Option<DiskId>,
    /// What it was like when it was last looked at.
    known: Geometry,
}

/// Why these legs make no stripe. Legs are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StripeMismatch {
    /// The blocks of a leg are not as long as those of the first.
    Blocks {
        /// Which leg.
        leg: usize,
        /// Bytes of its blocks.
        has: u32,
        /// Bytes of the first leg's.
        first: u32,
    },
    /// A chunk is shorter than what this leg takes at a time.
    Chunk {
        /// Which leg.
        leg: usize,
        /// What it takes, in bytes.
        needs: u32,
    },
    /// A leg has not room for one chunk.
    Small {
        /// Which leg.
        leg: usize,
    },
}

impl fmt::Display for StripeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StripeMismatch::Blocks { leg, has, first } => write!(
                f,
                "leg {leg} of the stripe has blocks of {has} bytes, leg 1 of {first}: all must be the same"
            ),
            StripeMismatch::Chunk { leg, needs } => write!(
                f,
                "leg {leg} of the stripe takes {needs} bytes at a time: choose a chunk= of at least so many"
            ),
            StripeMismatch::Small { leg } => {
                write!(
                    f,
                    "leg {leg} of the stripe has not room for one chunk: make it larger, or chunk= smaller"
                )
            }
        }
    }
}

/// What legs like these make together. Nothing is known of a leg without blocks, so it is not judged.
///
/// # Errors
/// Why they make no stripe.
pub fn combined_geometry(
    legs: &[Geometry],
    chunk: u32,
    limit: Option<u64>,
) -> Result<Geometry, StripeMismatch> {
    let known = || legs.iter().enumerate().filter(|(_, leg)| leg.blocks > 0);
    let Some((_, first)) = known().next() else { return Ok(Geometry::UNKNOWN) };
    let mut all = Geometry { lends: false, ..*first };
    for (at, leg) in known() {
        if leg.logical != first.logical {
            return Err(StripeMismatch::Blocks { leg: at + 1, has: leg.logical, first: first.logical });
        }
        let needs = leg.dio_align.max(leg.logical);
        if !chunk.is_multiple_of(needs) {
            return Err(StripeMismatch::Chunk { leg: at + 1, needs });
        }
        if leg.capacity_bytes() < u64::from(chunk) {
            return Err(StripeMismatch::Small { leg: at + 1 });
        }
        all.blocks = all.blocks.min(leg.blocks);
        all.physical = all.physical.max(leg.physical);
        all.dio_align = all.dio_align.max(leg.dio_align);
        all.max_io = all.max_io.min(leg.max_io);
        all.thin &= leg.thin;
        all.write_cache |= leg.write_cache;
        all.caw_max = all.caw_max.min(leg.caw_max);
        all.dealloc_reads_zero &= leg.dealloc_reads_zero;
    }
    let chunk = u64::from(chunk / all.logical);
    all.blocks = (all.blocks / chunk).saturating_mul(legs.len() as u64).saturating_mul(chunk);
    if let Some(limit) = limit {
        all.blocks = all.blocks.min(limit / u64::from(all.logical) / chunk * chunk);
    }
    // Two blocks may lie on two legs, wherever they are; one cannot.
    (all.atomic, all.atomic_powerfail, all.caw_max) = (1, 1, all.caw_max.min(1));
    Ok(all)
}

impl<L: Backend + OutboundSockets> Stripe<L> {
    /// A stripe of these legs, each with the disk that its operations name. `chunk` is in bytes; `limit` is
    /// the most bytes that the whole shall have; `logical` is how long blocks are, if that is known before
    /// the legs tell: then what is submitted earlier waits in the legs, else it fails.
    ///
    /// # Panics
    /// If there is no leg, more than [`LEGS_MAX`], or the chunk is no power of two or longer than
    /// [`CHUNK_BYTES_MAX`].
    pub fn new(legs: Vec<(L, Option<DiskId>)>, chunk: u32, limit: Option<u64>, logical: Option<u32>) -> Self {
        assert!((1..=LEGS_MAX).contains(&legs.len()), "a stripe has 1 to {LEGS_MAX} legs");
        assert!(chunk.is_power_of_two() && chunk <= CHUNK_BYTES_MAX, "a chunk is a power of two");
        let all = u64::MAX >> (64 - legs.len());
        let legs: Vec<_> =
            legs.into_iter().map(|(volume, disk)| Leg { known: volume.geometry(), volume, disk }).collect();
        let layout =
            logical.map(|logical| StripeLayout::new(legs.len(), u64::from((chunk / logical).max(1))));
        let mut stripe = Stripe {
            legs,
            chunk,
            limit,
            layout,
            fits: true,
            geometry: Geometry::UNKNOWN,
            end: 0,
            ops: Slab::new(OPS_MAX),
            spare: Vec::new(),
            done: VecDeque::new(),
            ended: all,
            disk: all,
            waking: all,
            touched: all,
            ready: all,
            dialling: all,
            working: all,
            leaving: all,
            links: Vec::new(),
            dials: Vec::new(),
            next_dial: 0,
        };
        stripe.update_geometry();
        stripe
    }

    /// How many legs it has.
    pub fn leg_count(&self) -> usize {
        self.legs.len()
    }

    /// Whether one more operation can be taken on; else it is refused as busy.
    pub fn has_room(&self) -> bool {
        !self.ops.is_full()
    }

    /// A leg, to take what it has to tell, which makes it want nothing.
    pub fn leg_mut_for_poll(&mut self, at: usize) -> Option<&mut L> {
        Some(&mut self.legs.get_mut(at)?.volume)
    }

    /// A leg, to look at.
    pub fn leg(&self, at: usize) -> Option<&L> {
        Some(&self.legs.get(at)?.volume)
    }

    /// A leg, to do something with it that is no operation.
    pub fn leg_mut(&mut self, at: usize) -> Option<&mut L> {
        if at < self.legs.len() {
            self.mark_leg_ready(at);
        }
        Some(&mut self.legs.get_mut(at)?.volume)
    }

    /// Why the legs, as far as they are known, make no stripe.
    pub fn mismatch(&self) -> Option<StripeMismatch> {
        combined_geometry(&self.known_geometries(), self.chunk, self.limit).err()
    }

    fn known_geometries(&self) -> Vec<Geometry> {
        self.legs.iter().map(|leg| leg.known).collect()
    }

    /// Makes the geometry of what is known of the legs.
    fn update_geometry(&mut self) {
        let known = self.known_geometries();
        (self.geometry, self.end, self.fits) = (Geometry::UNKNOWN, u64::MAX >> 1, true);
        match combined_geometry(&known, self.chunk, self.limit) {
            Ok(all) if all.blocks > 0 => {
                let layout = StripeLayout::new(known.len(), u64::from(self.chunk / all.logical));
                self.fits = *self.layout.get_or_insert(layout) == layout;
                self.end = all.blocks;
                if self.fits && known.iter().all(|leg| leg.blocks > 0) {
                    self.geometry = all;
                }
            }
            // No leg is known yet.
            Ok(_) => {}
            Err(_) => self.fits = false,
        }
    }

    /// Notes that a leg may have something to say.
    #[inline]
    fn mark_leg_ready(&mut self, at: usize) {
        let leg = 1 << at;
        self.touched |= leg;
        self.ended |= leg;
        self.disk |= leg;
        self.waking |= leg;
        self.ready |= leg;
        self.dialling |= leg;
        self.working |= leg;
        self.leaving |= leg;
    }

    /// Looks whether a leg has changed.
    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "bits are set for legs that there are, and legs neither come nor go"
    )]
    fn refresh_leg_geometry(&mut self, at: usize) {
        let leg = &mut self.legs[at];
        let now = leg.volume.geometry();
        // What has vanished for now comes back: a path was lost, not the blocks.
        if now.blocks > 0 && now != leg.known {
            leg.known = now;
            self.update_geometry();
        }
    }

    /// The next leg of these that answers; who does not is taken out.
    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "bits are set for legs that there are, and legs neither come nor go"
    )]
    fn poll_legs<T>(
        legs: &mut [Leg<L>],
        of: &mut u64,
        mut poll: impl FnMut(&mut L) -> Option<T>,
    ) -> Option<(usize, T)> {
        while *of != 0 {
            let at = of.trailing_zeros() as usize;
            if let Some(answer) = poll(&mut legs[at].volume) {
                return Some((at, answer));
            }
            *of &= *of - 1;
        }
        None
    }
}

impl<L: Backend + OutboundSockets> Backend for Stripe<L> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// A leg's part of a span is no longer than the span.
    fn erase_max(&self) -> u32 {
        let legs = self.legs.iter().map(|leg| leg.volume.erase_max());
        legs.min().unwrap_or(self.geometry.max_io)
    }

    fn is_read_only(&self) -> bool {
        self.legs.iter().any(|leg| leg.volume.is_read_only())
    }

    #[inline]
    fn submit(&mut self, cx: &mut Cx<'_>, io: Io) {
        self.start_op(cx, io);
    }

    #[expect(clippy::indexing_slicing, reason = "it counts up to the number of legs")]
    fn resume(&mut self) {
        for at in 0..self.legs.len() {
            if self.legs[at].volume.wants_resume() {
                self.legs[at].volume.resume();
                self.mark_leg_ready(at);
            }
        }
    }

    fn wants_resume(&self) -> bool {
        self.legs.iter().any(|leg| leg.volume.wants_resume())
    }

    #[expect(clippy::indexing_slicing, reason = "it counts up to the number of legs")]
    fn cancel(&mut self, id: IoId) {
        let found = self
            .ops
            .iter()
            .find(|(_, stripe_op)| stripe_op.has_id(id))
            .map(|(tag, stripe_op)| (tag, stripe_op.outstanding_legs()));
        let Some((tag, out)) = found else { return };
        for at in (0..self.legs.len()).filter(|at| out >> at & 1 == 1) {
            self.legs[at].volume.cancel(IoId(tag.to_bits()));
            self.mark_leg_ready(at);
        }
    }

    #[inline]
    fn poll_done(&mut self) -> Option<IoCompletion> {
        while self.done.is_empty() {
            let (leg, done) = Self::poll_legs(&mut self.legs, &mut self.ended, Backend::poll_done)?;
            self.handle_leg_done(leg, done);
        }
        self.done.pop_front()
    }

    #[inline]
    fn poll_disk(&mut self) -> Option<DiskOp> {
        Self::poll_legs(&mut self.legs, &mut self.disk, Backend::poll_disk).map(|(_, op)| op)
    }

    #[expect(
        clippy::indexing_slicing,
        clippy::unreachable,
        reason = "a world gives back what it was asked for, and only a leg asks, by the number of its own disk"
    )]
    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        let Some(at) = self.legs.iter().position(|leg| leg.disk == Some(op.disk)) else {
            unreachable!("no leg has asked for {op:?}");
        };
        self.legs[at].volume.handle_disk(cx, op, came);
        self.mark_leg_ready(at);
    }

    #[inline]
    fn poll_shard_to_wake(&mut self) -> Option<ShardId> {
        Self::poll_legs(&mut self.legs, &mut self.waking, Backend::poll_shard_to_wake).map(|(_, shard)| shard)
    }

    #[expect(clippy::indexing_slicing, reason = "it counts up to the number of legs")]
    fn handle_wake(&mut self) {
        // Only what is on this machine is shared with other cores.
        for at in 0..self.legs.len() {
            if self.legs[at].disk.is_some() {
                self.legs[at].volume.handle_wake();
                self.mark_leg_ready(at);
            }
        }
    }
}
