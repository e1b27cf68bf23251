//! How an association comes up: the addresses in turn, the admin queue, enabling and identifying the
//! controller, identifying the namespace, then the I/O queues.
//!
//! Invariant: a step begins when the previous one has been answered and checked; a refused optional step is
//! skipped.

use std::sync::Arc;

use buf::{Cx, Errno, Payload};
use endpoint::{CloseMode, Dialled};
use nvme::fabrics::ConnectResult;
use nvme::tls::GeneratedPsk;
use nvme::{Cqe, Status};
use stream::{Slab, Tag};
use volume::PathAccess;

use super::bringup::{BringupState, BringupStep};
use super::facts::{self, CommandLimits, UnusableFacts};
use super::io_queues::IoQueue;
use super::operation::PathFacts;
use super::queue_links::QueueId;
use super::queue_setup::{QueueSetup, SetupContext, SetupProgress};
use super::settings::Settings;
use super::{AdminPurpose, NvmePath, PathPhase, RETRY_DELAY, down_reasons, setup_context};
use crate::trace::{Speaker, StageName};
use crate::{DownReason, PathEvent, VolumeInfo};

const TCP_STAGE: StageName = "TCP";

impl NvmePath {
    /// A new association.
    pub(super) fn start_association(&mut self, cx: &mut Cx<'_>) {
        self.address = 0;
        self.known = None;
        self.info = None;
        self.state = PathPhase::Starting;
        // A generated key is of one association.
        self.links.generated = None;
        self.dial_admin(cx);
    }

    fn dial_admin(&mut self, cx: &mut Cx<'_>) {
        self.association = self.association.wrapping_add(1);
        self.bringup = BringupState::default();
        self.io_queues.list.clear();
        let Some(&to) = self.settings.addresses.get(self.address) else {
            return self.end_association(cx, DownReason::Refused("no address is set; name one".to_owned()));
        };
        self.trace.stage_started(cx.now, 0, TCP_STAGE);
        self.trace.trace_field(cx.now, (0, TCP_STAGE), Speaker::Us, "address", || to.to_string());
        let until = cx.now + self.settings.times.dial;
        self.links.request_dial(self.admin_queue(), to, until);
    }

    pub(super) fn handle_dialled_queue(&mut self, cx: &mut Cx<'_>, who: QueueId, dialled: Dialled) {
        if who.association != self.association || !matches!(self.state, PathPhase::Starting) {
            return;
        }
        self.trace
            .trace_field(cx.now, (who.qid, TCP_STAGE), Speaker::Us, "local", || dialled.local.to_string());
        self.trace.stage_succeeded(cx.now, who.qid, TCP_STAGE);
        let until = cx.now + self.settings.times.join;
        let (connect, cntlid, in_capsule_max) = self.bringup.connect_command(&self.settings, who);
        if who.is_admin() {
            self.bringup.peer = Some(dialled.peer);
        }
        let setup = QueueSetup::new(who, connect, cntlid, in_capsule_max, until);
        setup.handle_dialled(cx, setup_context(&self.settings, &mut self.links, &mut self.trace));
        self.setups.push(setup);
    }

    pub(super) fn handle_dial_failed(&mut self, cx: &mut Cx<'_>, who: QueueId, errno: Errno) {
        if who.association != self.association || !matches!(self.state, PathPhase::Starting) {
            return;
        }
        let what = format!("no connection (errno {})", errno.0);
        let advice = "see whether something listens there, and whether a firewall is in between";
        self.trace.stage_failed(cx.now, (who.qid, TCP_STAGE), what, advice);
        if who.is_admin() && self.address + 1 < self.settings.addresses.len() {
            self.address += 1;
            self.links.generated = None;
            return self.dial_admin(cx);
        }
        self.end_association(cx, DownReason::Unreachable(errno));
    }

    /// Lets a joining queue do something, and takes what comes of it.
    pub(super) fn advance_setup(
        &mut self,
        cx: &mut Cx<'_>,
        who: QueueId,
        act: impl FnOnce(&mut QueueSetup, &mut Cx<'_>, SetupContext<'_>) -> SetupProgress,
    ) {
        let Some(setup) = self.setups.iter_mut().find(|setup| setup.who == who) else { return };
        let context = setup_context(&self.settings, &mut self.links, &mut self.trace);
        let progress = act(setup, cx, context);
        match progress {
            SetupProgress::Going if setup.waits_for_memory() => self.schedule_retry(cx.now + RETRY_DELAY),
            SetupProgress::Going => {}
            SetupProgress::Up(connected) => {
                self.setups.retain(|setup| setup.who != who);
                self.handle_queue_connected(cx, who, connected);
            }
            SetupProgress::Generated(psk) => {
                self.setups.retain(|setup| setup.who != who);
                self.secure(cx, who, &psk);
            }
            SetupProgress::Failed(why) => self.end_association(cx, why),
        }
    }

    /// A key was generated on an admin queue without TLS: that ends, and the next comes by TLS.
    fn secure(&mut self, cx: &mut Cx<'_>, who: QueueId, psk: &GeneratedPsk) {
        match generated_context(psk, &self.settings) {
            Ok(context) => {
                self.links.close_link(cx, who, CloseMode::Close);
                self.links.generated = Some(context);
                self.dial_admin(cx);
            }
            Err(why) => self.end_association(cx, why),
        }
    }

    fn handle_queue_connected(&mut self, cx: &mut Cx<'_>, who: QueueId, connected: ConnectResult) {
        if who.is_admin() {
            self.bringup.cntlid = connected.cntlid;
            self.watch.start_keep_alive(cx.now, self.settings.times.keep_alive);
            return self.start_step(cx, BringupStep::Capabilities);
        }
        self.io_queues
            .list
            .push(IoQueue::new(who, self.bringup.io_queue_entries(&self.settings) as usize - 1));
        if self.io_queues.list.len() == usize::from(self.bringup.queues) {
            self.finish_bringup(cx);
        }
    }

    /// Begins a step.
    fn start_step(&mut self, cx: &mut Cx<'_>, step: BringupStep) {
        let Some((sqe, len)) = self.bringup.step_command(&self.settings, step) else {
            return self.start_step_after(cx, step);
        };
        self.trace.stage_started(cx.now, 0, step.step_name());
        let until = Some(cx.now + self.settings.times.command);
        let admin = self.admin_queue();
        if !self.admin_commands.send_command(
            cx,
            &mut self.links,
            admin,
            (sqe, len),
            (AdminPurpose::Step(step), until),
        ) {
            self.bringup.waiting = Some(step);
            self.schedule_retry(cx.now + RETRY_DELAY);
        }
    }

    pub(super) fn retry_step(&mut self, cx: &mut Cx<'_>) {
        if let (Some(step), PathPhase::Starting) = (self.bringup.waiting.take(), &self.state) {
            self.start_step(cx, step);
        }
    }

    pub(super) fn run_bringup_timers(&mut self, cx: &mut Cx<'_>) {
        let Some((next, until)) = self.bringup.ready else { return };
        if !matches!(self.state, PathPhase::Starting) {
            self.bringup.ready = None;
        } else if until <= cx.now {
            let advice = "look at the controller";
            self.trace.stage_failed(cx.now, (0, BringupStep::Ready.step_name()), "CSTS.RDY stays 0", advice);
            self.end_association(
                cx,
                DownReason::Lost(format!("the controller does not become ready; {advice}")),
            );
        } else if next <= cx.now {
            self.bringup.ready = Some((until, until));
            self.start_step(cx, BringupStep::Ready);
        }
    }

    /// A step was answered.
    pub(super) fn handle_step_ended(
        &mut self,
        cx: &mut Cx<'_>,
        step: BringupStep,
        cqe: Cqe,
        payload: Payload,
    ) {
        if !matches!(self.state, PathPhase::Starting) {
            return;
        }
        let end = cqe.completion();
        // A namespace that is not ready has names all the same.
        let is_unready = end.status.without_retry_hints() == Status::NAMESPACE_NOT_READY;
        if !end.status.is_success() && (!step.is_optional() || is_unready) {
            let why = format!("{} failed: {}", step.step_name(), down_reasons::status_text(end.status));
            self.trace.stage_failed(cx.now, (0, step.step_name()), why.clone(), "");
            return self.end_association(
                cx,
                match end.status.without_retry_hints() {
                    Status::INVALID_NAMESPACE => DownReason::Absent(why),
                    _ if end.status.is_do_not_retry() => DownReason::Refused(why),
                    _ => DownReason::Lost(why),
                },
            );
        }
        if end.status.is_success()
            && let Err(refused) =
                self.bringup.handle_step_result(cx, &self.settings, &mut self.trace, step, end, &payload)
        {
            let why = match refused {
                UnusableFacts::Lie(what) => down_reasons::standard_violated(what.to_owned()),
                UnusableFacts::Foreign(what) => DownReason::Refused(format!("{}: {what}", step.step_name())),
                UnusableFacts::Absent(what) => DownReason::Absent(format!("{}: {what}", step.step_name())),
            };
            let (what, advice) = down_reasons::text_and_advice(&why);
            self.trace.stage_failed(cx.now, (0, step.step_name()), what, advice);
            return self.end_association(cx, why);
        }
        // Not ready yet: it is asked again by the clock.
        if step == BringupStep::Ready && self.bringup.ready.is_some() {
            return;
        }
        self.trace.stage_succeeded(cx.now, 0, step.step_name());
        if step == BringupStep::Ana && self.bringup.is_namespace_unread() {
            return self.end_association(cx, down_reasons::namespace_size_unknown());
        }
        self.start_step_after(cx, step);
    }

    fn start_step_after(&mut self, cx: &mut Cx<'_>, step: BringupStep) {
        match step.next_step() {
            Some(next) => self.start_step(cx, next),
            None => self.dial_io_queues(cx),
        }
    }

    fn dial_io_queues(&mut self, cx: &mut Cx<'_>) {
        let Some(to) = self.bringup.peer else { return };
        let until = cx.now + self.settings.times.dial;
        for qid in 1..=self.bringup.queues {
            self.trace.stage_started(cx.now, qid, TCP_STAGE);
            self.trace.trace_field(cx.now, (qid, TCP_STAGE), Speaker::Us, "address", || to.to_string());
            self.links.request_dial(QueueId { association: self.association, qid }, to, until);
        }
    }

    fn finish_bringup(&mut self, cx: &mut Cx<'_>) {
        let (Some(controller), Some(namespace)) = (self.bringup.controller, self.bringup.namespace) else {
            // Queues are dialled when both are known.
            return self.end_association(
                cx,
                down_reasons::standard_violated("it has not said what it is".to_owned()),
            );
        };
        // Without a shape nothing is sent, and one block is what every command carries.
        let transfer = namespace.format.map_or(1, |format| format.transfer_blocks());
        let limits = self.bringup.limits.unwrap_or(CommandLimits::defaults(transfer));
        self.known = Some(PathFacts { nsid: self.settings.nsid, controller, namespace, limits });
        if self.operations.is_empty() {
            // Twice the commands: an operation may wait for its next command, and pairs are two.
            self.operations = Slab::new(self.io_queues.command_window() * 2);
        }
        self.parked.reserve(self.io_queues.command_window() * 2);
        self.events.reserve(self.io_queues.command_window() * 2);
        self.state = PathPhase::Up;
        self.send_async_event_requests(cx);
        if let Some(info) = self.volume_info().map(Arc::new) {
            self.info = Some(info.clone());
            self.events.push_back(PathEvent::Up(info));
        }
    }

    /// What the volume is like as things stand; `None`: the path has not been up in this association.
    pub(super) fn volume_info(&self) -> Option<VolumeInfo> {
        let (known, bringup) = (self.known?, &self.bringup);
        let namespace = bringup.namespace.unwrap_or(known.namespace);
        let controller = known.controller;
        let io = QueueId { association: self.association, qid: 1 };
        Some(VolumeInfo {
            uuid: facts::volume_uuid(&bringup.identifiers),
            // Compare and write is a pair of commands in one queue.
            geometry: namespace.format.map(|format| volume::Geometry {
                caw_max: if self.io_queues.can_carry(2) { format.geometry.caw_max } else { 0 },
                ..format.geometry
            }),
            read_only: namespace.write_protected,
            access: bringup.access.unwrap_or(PathAccess::Optimized),
            product: format!(
                "{} {}",
                facts::ascii_field_text(&controller.model),
                facts::ascii_field_text(&controller.firmware)
            ),
            serial: facts::volume_serial(&controller, &namespace, &bringup.identifiers),
            depth: self.io_queues.command_window() as u32,
            terms: self.bringup.association_terms(
                &self.settings,
                &self.io_queues,
                &known,
                &namespace,
                self.links.host_queue(io).map(|core| *core.parameters()),
            ),
        })
    }

    /// The command of an operation is lost with its connection, if it is not up.
    pub(super) fn drop_parked_command(&mut self, tag: Tag) {
        if let Some(operation) = self.operations.get_mut(tag) {
            operation.parked = false;
        }
        self.finish_operation_if_idle(tag);
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
