//! Paths with a planted defect, which the simulation must notice.

use std::time::Duration;

use blockwire_multipath::{AnyPath, LostController, Path, PathEvent, Protocol, RawCommand, ReservationOp};
use buf::{Cx, Payload, Time};
use endpoint::{CloseMode, LinkId, OutboundSockets};
use volume::{IoId, Op};

/// The defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// One operation in forty never ends.
    Lost,
    /// One read in forty ends well without its data.
    Hollow,
    /// A fence is said to be over before it is.
    FencedEarly,
}

pub const DEFECTS: [Defect; 2] = [Defect::Lost, Defect::Hollow];

/// A path that is good but for one thing.
pub struct FaultyPath {
    inner: AnyPath,
    defect: Option<Defect>,
    count: u32,
    /// A fence that is under way was said to be over; so it is to be told now.
    early: bool,
    /// Ends of fences that were told already.
    told: u32,
}

impl FaultyPath {
    pub fn new(inner: AnyPath, defect: Option<Defect>) -> Self {
        FaultyPath { inner, defect, count: 0, early: false, told: 0 }
    }

    fn strikes(&mut self) -> bool {
        self.count += 1;
        self.count.is_multiple_of(40)
    }
}

macro_rules! inner {
    ($path:expr, $inner:ident => $call:expr) => {{
        let $inner = &mut $path.inner;
        $call
    }};
}

impl OutboundSockets for FaultyPath {
    testkit::forward_links!(inner);
    fn poll_link_close(&mut self) -> Option<(LinkId, CloseMode)> {
        self.inner.poll_link_close()
    }
    fn poll_timeout(&self) -> Option<Time> {
        self.inner.poll_timeout()
    }
}

impl Path for FaultyPath {
    fn protocol(&self) -> Protocol {
        self.inner.protocol()
    }
    fn connect(&mut self, cx: &mut Cx<'_>) {
        self.inner.connect(cx);
    }
    fn submit(&mut self, cx: &mut Cx<'_>, id: IoId, op: Op, payload: Payload) -> Result<(), (Op, Payload)> {
        self.inner.submit(cx, id, op, payload)
    }
    fn submit_reservation_op(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        request: ReservationOp,
    ) -> Result<(), ReservationOp> {
        self.inner.submit_reservation_op(cx, id, request)
    }
    fn submit_raw(&mut self, cx: &mut Cx<'_>, id: IoId, command: RawCommand) -> Result<(), RawCommand> {
        self.inner.submit_raw(cx, id, command)
    }
    fn cancel(&mut self, cx: &mut Cx<'_>, id: IoId) {
        self.inner.cancel(cx, id);
    }
    fn fence(&mut self, cx: &mut Cx<'_>) {
        self.inner.fence(cx);
        self.early |= self.defect == Some(Defect::FencedEarly);
    }
    fn target_portals(&self) -> Option<(&str, &[std::net::SocketAddr])> {
        self.inner.target_portals()
    }
    fn set_fence_portals(&mut self, portals: Vec<std::net::SocketAddr>) {
        self.inner.set_fence_portals(portals);
    }
    fn lost_controllers(&self) -> Vec<LostController> {
        self.inner.lost_controllers()
    }
    fn reset_controller(&mut self, cx: &mut Cx<'_>, controller: &LostController) -> bool {
        self.inner.reset_controller(cx, controller)
    }
    fn handle_controller_reset(&mut self, cx: &mut Cx<'_>, controller: &LostController) {
        self.inner.handle_controller_reset(cx, controller);
    }
    fn recheck_access(&mut self) {
        self.inner.recheck_access();
    }
    fn lost_command_lifetime(&self) -> Duration {
        self.inner.lost_command_lifetime()
    }
    fn disconnect(&mut self, cx: &mut Cx<'_>, grace: Duration) {
        self.inner.disconnect(cx, grace);
    }
    fn poll_event(&mut self) -> Option<PathEvent> {
        if std::mem::take(&mut self.early) {
            self.told += 1;
            return Some(PathEvent::Fenced);
        }
        Some(match (self.defect, self.inner.poll_event()?) {
            (Some(Defect::FencedEarly), PathEvent::Fenced) if self.told > 0 => {
                self.told -= 1;
                return self.poll_event();
            }
            (Some(Defect::Lost), PathEvent::Done { .. }) if self.strikes() => return self.poll_event(),
            (Some(Defect::Hollow), PathEvent::Done { id, how: Ok(how), payload: Payload::In(mut sg) })
                if self.strikes() =>
            {
                let len = sg.len();
                sg.slices_mut(0..len).for_each(|slice| slice.fill(0xee));
                PathEvent::Done { id, how: Ok(how), payload: Payload::In(sg) }
            }
            (_, event) => event,
        })
    }
}
