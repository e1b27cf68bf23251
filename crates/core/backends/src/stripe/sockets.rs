//! The sockets of the legs, under the stripe's own identifiers.

use std::time::Duration;

use buf::{Cx, Errno, Time};
use endpoint::{CloseMode, Computation, Dial, DialId, Dialled, LinkId, OutboundSockets};
use stream::{Received, RecvOp, SendOp, earliest};
use volume::{Backend, OperatorNotice};

use super::Stripe;

impl<L: Backend + OutboundSockets> Stripe<L> {
    /// The leg whose socket it is. A link that was left stays known: names are never used again.
    #[inline]
    fn leg_of_link(&self, link: LinkId) -> Option<usize> {
        let (known, leg) = (*self.links.get(link.0 as u32 as usize)?)?;
        (known == link).then_some(usize::from(leg))
    }
}

impl<L: Backend + OutboundSockets> OutboundSockets for Stripe<L> {
    fn poll_dial(&mut self) -> Option<Dial> {
        let (leg, dial) = Self::poll_legs(&mut self.legs, &mut self.dialling, OutboundSockets::poll_dial)?;
        let id = DialId(self.next_dial);
        self.next_dial += 1;
        self.dials.push((id, leg as u8, dial.id));
        Some(Dial { id, ..dial })
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "a leg that a link, a dial or a bit of ours names is one of those that the stripe was made of; the table of links was made long enough"
    )]
    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        let Some(at) = self.dials.iter().position(|(known, ..)| *known == id) else { return };
        let (_, leg, inner) = self.dials.swap_remove(at);
        if let Ok(dialled) = &how {
            let at = dialled.link.0 as u32 as usize;
            if self.links.len() <= at {
                self.links.resize(at + 1, None);
            }
            self.links[at] = Some((dialled.link, leg));
        }
        self.legs[usize::from(leg)].volume.handle_dialled(cx, inner, how);
        self.mark_leg_ready(usize::from(leg));
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "a leg that a link, a dial or a bit of ours names is one of those that the stripe was made of"
    )]
    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        let Some(leg) = self.leg_of_link(link) else { return };
        self.legs[leg].volume.handle_recv(cx, link, op, came);
        self.mark_leg_ready(leg);
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "a leg that a link, a dial or a bit of ours names is one of those that the stripe was made of"
    )]
    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>) {
        let Some(leg) = self.leg_of_link(link) else { return };
        self.legs[leg].volume.handle_written(cx, link, how);
        self.mark_leg_ready(leg);
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "a leg that a link, a dial or a bit of ours names is one of those that the stripe was made of"
    )]
    fn handle_send_released(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp) {
        let Some(leg) = self.leg_of_link(link) else { return };
        self.legs[leg].volume.handle_send_released(cx, link, op);
        self.mark_leg_ready(leg);
    }

    #[inline]
    fn poll_ready(&mut self) -> Option<LinkId> {
        Self::poll_legs(&mut self.legs, &mut self.ready, OutboundSockets::poll_ready).map(|(_, link)| link)
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "a leg that a link, a dial or a bit of ours names is one of those that the stripe was made of"
    )]
    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<RecvOp> {
        let leg = self.leg_of_link(link)?;
        self.legs[leg].volume.poll_recv(cx, link)
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "a leg that a link, a dial or a bit of ours names is one of those that the stripe was made of"
    )]
    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        let leg = self.leg_of_link(link)?;
        self.legs[leg].volume.poll_send(cx, link)
    }

    fn poll_operator_notice(&mut self) -> Option<OperatorNotice> {
        let legs = self.legs.iter_mut().enumerate();
        let (leg, remark) = legs
            .filter_map(|(at, leg)| leg.volume.poll_operator_notice().map(|remark| (at, remark)))
            .next()?;
        Some(match remark {
            OperatorNotice::PathDown { path: (_, path), why } => {
                OperatorNotice::PathDown { path: (Some(leg), path), why }
            }
            OperatorNotice::PathUp { path: (_, path) } => OperatorNotice::PathUp { path: (Some(leg), path) },
            other => other,
        })
    }

    fn poll_link_close(&mut self) -> Option<(LinkId, CloseMode)> {
        Self::poll_legs(&mut self.legs, &mut self.leaving, OutboundSockets::poll_link_close)
            .map(|(_, leave)| leave)
    }

    fn poll_computation(&mut self) -> Option<Computation> {
        Self::poll_legs(&mut self.legs, &mut self.working, OutboundSockets::poll_computation)
            .map(|(_, work)| work)
    }

    /// Whose it was is not told: it happens when a connection comes up, and a look costs little.
    #[expect(
        clippy::indexing_slicing,
        reason = "a leg that a link, a dial or a bit of ours names is one of those that the stripe was made of"
    )]
    fn handle_computed(&mut self) {
        for at in 0..self.legs.len() {
            self.legs[at].volume.handle_computed();
            self.mark_leg_ready(at);
        }
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "a leg that a link, a dial or a bit of ours names is one of those that the stripe was made of"
    )]
    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut touched = std::mem::take(&mut self.touched);
        let mut more = false;
        while touched != 0 {
            let at = touched.trailing_zeros() as usize;
            touched &= touched - 1;
            let again = self.legs[at].volume.turn(cx);
            self.mark_leg_ready(at);
            if again {
                more = true;
            } else {
                self.touched &= !(1 << at);
            }
            self.refresh_leg_geometry(at);
        }
        more
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.legs.iter().fold(None, |wake, leg| earliest(wake, leg.volume.poll_timeout()))
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "a leg that a link, a dial or a bit of ours names is one of those that the stripe was made of"
    )]
    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        for at in 0..self.legs.len() {
            if self.legs[at].volume.poll_timeout().is_some_and(|time| time <= cx.now) {
                self.legs[at].volume.handle_timeout(cx);
                self.mark_leg_ready(at);
            }
        }
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "a leg that a link, a dial or a bit of ours names is one of those that the stripe was made of"
    )]
    fn close(&mut self, cx: &mut Cx<'_>, grace: Duration) {
        for at in 0..self.legs.len() {
            self.legs[at].volume.close(cx, grace);
            self.mark_leg_ready(at);
        }
    }

    fn is_closed(&self) -> bool {
        self.legs.iter().all(|leg| leg.volume.is_closed())
    }
}
