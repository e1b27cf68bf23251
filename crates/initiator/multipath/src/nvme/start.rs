//! How an association comes up: the addresses in turn, the admin queue, enabling and identifying the
//! controller, identifying the namespace, then the I/O queues.
//!
//! Invariant: a step begins when the previous one has been answered and checked; a refused optional step is
//! skipped.

use std::sync::Arc;

use buf::{Cx, Errno, Payload};
use endpoint::{CloseMode, Dialled};
use nvme::fabrics::Connected;
use nvme::tls::GeneratedPsk;
use nvme::{Cqe, Status};
use stream::{Slab, Tag};
use volume::Access;

use super::bringup::{Bringup, Step};
use super::facts::{self, Limits, Refused};
use super::io_queues::IoQueue;
use super::links::QueueId;
use super::operation::PathFacts;
use super::queue_setup::{Progress, QueueSetup, SetupContext};
use super::settings::Settings;
use super::{AdminPurpose, NvmePath, RETRY, State, context, reasons};
use crate::trace::{Side, Stage};
use crate::{DownReason, Event, VolumeInfo};

const TCP: Stage = "TCP";

impl NvmePath {
    /// A new association.
    pub(super) fn begin(&mut self, cx: &mut Cx<'_>) {
        self.address = 0;
        self.known = None;
        self.info = None;
        self.state = State::Starting;
        // A generated key is of one association.
        self.links.generated = None;
        self.dial_admin(cx);
    }

    fn dial_admin(&mut self, cx: &mut Cx<'_>) {
        self.association = self.association.wrapping_add(1);
        self.bringup = Bringup::default();
        self.io_queues.list.clear();
        let Some(&to) = self.settings.addresses.get(self.address) else {
            return self.end(cx, DownReason::Refused("no address is set; name one".to_owned()));
        };
        self.trace.begins(cx.now, 0, TCP);
        self.trace.field(cx.now, (0, TCP), Side::Us, "address", || to.to_string());
        let until = cx.now + self.settings.times.dial;
        self.links.dial(self.admin(), to, until);
    }

    pub(super) fn dialled(&mut self, cx: &mut Cx<'_>, who: QueueId, dialled: Dialled) {
        if who.association != self.association || !matches!(self.state, State::Starting) {
            return;
        }
        self.trace.field(cx.now, (who.qid, TCP), Side::Us, "local", || dialled.local.to_string());
        self.trace.ends(cx.now, who.qid, TCP);
        let until = cx.now + self.settings.times.join;
        let (connect, cntlid, in_capsule_max) = self.bringup.connect_terms(&self.settings, who);
        if who.is_admin() {
            self.bringup.peer = Some(dialled.peer);
        }
        let setup = QueueSetup::new(who, connect, cntlid, in_capsule_max, until);
        setup.dialled(cx, context(&self.settings, &mut self.links, &mut self.trace));
        self.setups.push(setup);
    }

    pub(super) fn not_dialled(&mut self, cx: &mut Cx<'_>, who: QueueId, errno: Errno) {
        if who.association != self.association || !matches!(self.state, State::Starting) {
            return;
        }
        let what = format!("no connection (errno {})", errno.0);
        let advice = "see whether something listens there, and whether a firewall is in between";
        self.trace.fails(cx.now, (who.qid, TCP), what, advice);
        if who.is_admin() && self.address + 1 < self.settings.addresses.len() {
            self.address += 1;
            self.links.generated = None;
            return self.dial_admin(cx);
        }
        self.end(cx, DownReason::Unreachable(errno));
    }

    /// Lets a joining queue do something, and takes what comes of it.
    pub(super) fn join(
        &mut self,
        cx: &mut Cx<'_>,
        who: QueueId,
        act: impl FnOnce(&mut QueueSetup, &mut Cx<'_>, SetupContext<'_>) -> Progress,
    ) {
        let Some(setup) = self.setups.iter_mut().find(|setup| setup.who == who) else { return };
        let context = context(&self.settings, &mut self.links, &mut self.trace);
        let progress = act(setup, cx, context);
        match progress {
            Progress::Going if setup.is_short() => self.retry_at(cx.now + RETRY),
            Progress::Going => {}
            Progress::Up(connected) => {
                self.setups.retain(|setup| setup.who != who);
                self.joined(cx, who, connected);
            }
            Progress::Generated(psk) => {
                self.setups.retain(|setup| setup.who != who);
                self.secure(cx, who, &psk);
            }
            Progress::Failed(why) => self.end(cx, why),
        }
    }

    /// A key was generated on an admin queue without TLS: that ends, and the next comes by TLS.
    fn secure(&mut self, cx: &mut Cx<'_>, who: QueueId, psk: &GeneratedPsk) {
        match generated_context(psk, &self.settings) {
            Ok(context) => {
                self.links.close(cx, who, CloseMode::Close);
                self.links.generated = Some(context);
                self.dial_admin(cx);
            }
            Err(why) => self.end(cx, why),
        }
    }

    fn joined(&mut self, cx: &mut Cx<'_>, who: QueueId, connected: Connected) {
        if who.is_admin() {
            self.bringup.cntlid = connected.cntlid;
            self.watch.begin(cx.now, self.settings.times.keep_alive);
            return self.step(cx, Step::Capabilities);
        }
        self.io_queues.list.push(IoQueue::new(who, self.bringup.entries(&self.settings) as usize - 1));
        if self.io_queues.list.len() == usize::from(self.bringup.queues) {
            self.up(cx);
        }
    }

    /// Begins a step.
    fn step(&mut self, cx: &mut Cx<'_>, step: Step) {
        let Some((sqe, len)) = self.bringup.command(&self.settings, step) else {
            return self.after(cx, step);
        };
        self.trace.begins(cx.now, 0, step.name());
        let until = Some(cx.now + self.settings.times.command);
        let admin = self.admin();
        if !self.admin_commands.send(
            cx,
            &mut self.links,
            admin,
            (sqe, len),
            (AdminPurpose::Step(step), until),
        ) {
            self.bringup.waiting = Some(step);
            self.retry_at(cx.now + RETRY);
        }
    }

    pub(super) fn step_again(&mut self, cx: &mut Cx<'_>) {
        if let (Some(step), State::Starting) = (self.bringup.waiting.take(), &self.state) {
            self.step(cx, step);
        }
    }

    pub(super) fn start_clock(&mut self, cx: &mut Cx<'_>) {
        let Some((next, until)) = self.bringup.ready else { return };
        if !matches!(self.state, State::Starting) {
            self.bringup.ready = None;
        } else if until <= cx.now {
            let advice = "look at the controller";
            self.trace.fails(cx.now, (0, Step::Ready.name()), "CSTS.RDY stays 0", advice);
            self.end(cx, DownReason::Lost(format!("the controller does not become ready; {advice}")));
        } else if next <= cx.now {
            self.bringup.ready = Some((until, until));
            self.step(cx, Step::Ready);
        }
    }

    /// A step was answered.
    pub(super) fn step_ended(&mut self, cx: &mut Cx<'_>, step: Step, cqe: Cqe, payload: Payload) {
        if !matches!(self.state, State::Starting) {
            return;
        }
        let end = cqe.completion();
        // A namespace that is not ready has names all the same.
        let is_unready = end.status.plain() == Status::NAMESPACE_NOT_READY;
        if !end.status.is_success() && (!step.is_optional() || is_unready) {
            let why = format!("{} failed: {}", step.name(), reasons::status(end.status));
            self.trace.fails(cx.now, (0, step.name()), why.clone(), "");
            return self.end(
                cx,
                match end.status.plain() {
                    Status::INVALID_NAMESPACE => DownReason::Absent(why),
                    _ if end.status.is_final() => DownReason::Refused(why),
                    _ => DownReason::Lost(why),
                },
            );
        }
        if end.status.is_success()
            && let Err(refused) = self.bringup.judge(cx, &self.settings, &mut self.trace, step, end, &payload)
        {
            let why = match refused {
                Refused::Lie(what) => reasons::lie(what.to_owned()),
                Refused::Foreign(what) => DownReason::Refused(format!("{}: {what}", step.name())),
                Refused::Absent(what) => DownReason::Absent(format!("{}: {what}", step.name())),
            };
            let (what, advice) = reasons::split(&why);
            self.trace.fails(cx.now, (0, step.name()), what, advice);
            return self.end(cx, why);
        }
        // Not ready yet: it is asked again by the clock.
        if step == Step::Ready && self.bringup.ready.is_some() {
            return;
        }
        self.trace.ends(cx.now, 0, step.name());
        if step == Step::Ana && self.bringup.is_contradictory() {
            return self.end(cx, reasons::unsized_path());
        }
        self.after(cx, step);
    }

    fn after(&mut self, cx: &mut Cx<'_>, step: Step) {
        match step.next() {
            Some(next) => self.step(cx, next),
            None => self.dial_queues(cx),
        }
    }

    fn dial_queues(&mut self, cx: &mut Cx<'_>) {
        let Some(to) = self.bringup.peer else { return };
        let until = cx.now + self.settings.times.dial;
        for qid in 1..=self.bringup.queues {
            self.trace.begins(cx.now, qid, TCP);
            self.trace.field(cx.now, (qid, TCP), Side::Us, "address", || to.to_string());
            self.links.dial(QueueId { association: self.association, qid }, to, until);
        }
    }

    fn up(&mut self, cx: &mut Cx<'_>) {
        let (Some(controller), Some(namespace)) = (self.bringup.controller, self.bringup.namespace) else {
            // Queues are dialled when both are known.
            return self.end(cx, reasons::lie("it has not said what it is".to_owned()));
        };
        // Without a shape nothing is sent, and one block is what every command carries.
        let transfer = namespace.format.map_or(1, |format| format.transfer_blocks());
        let limits = self.bringup.limits.unwrap_or(Limits::unknown(transfer));
        self.known = Some(PathFacts { nsid: self.settings.nsid, controller, namespace, limits });
        if self.operations.is_empty() {
            // Twice the commands: an operation may wait for its next command, and pairs are two.
            self.operations = Slab::new(self.io_queues.window() * 2);
        }
        self.parked.reserve(self.io_queues.window() * 2);
        self.events.reserve(self.io_queues.window() * 2);
        self.state = State::Up;
        self.request_events(cx);
        if let Some(info) = self.describe().map(Arc::new) {
            self.info = Some(info.clone());
            self.events.push_back(Event::Up(info));
        }
    }

    /// What the volume is like as things stand; `None`: the path has not been up in this association.
    pub(super) fn describe(&self) -> Option<VolumeInfo> {
        let (known, bringup) = (self.known?, &self.bringup);
        let namespace = bringup.namespace.unwrap_or(known.namespace);
        let controller = known.controller;
        let io = QueueId { association: self.association, qid: 1 };
        Some(VolumeInfo {
            uuid: facts::uuid(&bringup.identifiers),
            // Compare and write is a pair of commands in one queue.
            geometry: namespace.format.map(|format| volume::Geometry {
                caw_max: if self.io_queues.carries(2) { format.geometry.caw_max } else { 0 },
                ..format.geometry
            }),
            read_only: namespace.write_protected,
            access: bringup.access.unwrap_or(Access::Optimized),
            product: format!("{} {}", facts::text(&controller.model), facts::text(&controller.firmware)),
            serial: facts::serial(&controller, &namespace, &bringup.identifiers),
            depth: self.io_queues.window() as u32,
            terms: self.bringup.describe_terms(
                &self.settings,
                &self.io_queues,
                &known,
                &namespace,
                self.links.core(io).map(|core| *core.parameters()),
            ),
        })
    }

    /// The command of an operation is lost with its connection, if it is not up.
    pub(super) fn unpark(&mut self, tag: Tag) {
        if let Some(operation) = self.operations.get_mut(tag) {
            operation.parked = false;
        }
        self.finish_if_over(tag);
    }
}

/// What TLS with a generated key goes by.
pub(super) fn generated_context(
    psk: &GeneratedPsk,
    settings: &Settings,
) -> Result<tls::ClientContext, DownReason> {
    let refused = |why: &dyn std::fmt::Display| {
        DownReason::Refused(format!("the generated key of TLS cannot be used: {why}"))
    };
    let identity = psk.identity(&settings.host, &settings.subsystem);
    let key = identity.as_ref().and_then(|identity| psk.tls_psk(identity));
    let (Some(identity), Some(key)) = (identity, key) else {
        return Err(refused(&"a name holds a space"));
    };
    let key = tls::Psk::new(key.suite().number(), key.expose());
    tls::ClientContext::new(identity.to_string().into_bytes(), key).map_err(|why| refused(&why))
}
