//! What gates and homes of volumes have to give goes to the servers and to other shards, and changes and answers that
//! come from homes go to them.

use buf::Cx;
use volume::{
    Ack, IdSpace, IoCompletion, OperationTimes, UnservableReason, ViewUpdate, VolumeAnswer, VolumeId,
};

use super::Shard;
use super::local_volumes::STOP_FLUSH_ID;
use super::protocol_front::ProtocolFront;
use crate::log::Log;
use crate::message::Message;

impl Shard {
    /// Takes from gates and homes what they have to give.
    pub(super) fn run_pending_volumes(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut worked = false;
        while let Some(done) = self.parts.volumes.orphans.pop_front() {
            worked = true;
            let times = OperationTimes { submitted: cx.now, begun: cx.now };
            self.finish_io(cx, done, times);
        }
        while let Some(volume) = self.parts.volumes.scheduled.pop_front() {
            worked = true;
            let mut in_group = false;
            if let Some(local) = self.parts.volumes.get_mut(volume) {
                local.scheduled = false;
                in_group = local.group.is_some();
            }
            self.run_gate_completions(cx, volume);
            if let Some(tag) = self.parts.volumes.get(volume).and_then(|local| local.remote) {
                self.remotes.mark_pending(tag);
            }
            self.parts.volumes.forward_owner_outputs(volume, &mut self.parts.outbox, &mut self.parts.log);
            if in_group {
                self.parts.volumes.check_quiesced(volume, &mut self.parts.outbox);
            }
            self.parts.volumes.update_timer(volume);
        }
        worked
    }

    /// An operation has ended: its server hears of it, and may want another one.
    fn finish_io(&mut self, cx: &mut Cx<'_>, done: IoCompletion, times: OperationTimes) {
        self.parts.deferred.follows = true;
        match done.id.id_space() {
            IdSpace::Scsi => {
                self.iscsi.note_done(cx.now, &mut self.parts.conns, &done, times);
                self.iscsi.server.handle_io_done(cx, done);
                self.iscsi.run_steps(cx, &mut self.parts);
            }
            IdSpace::Nvme => {
                self.nvme.note_done(cx.now, &mut self.parts.conns, &done, times);
                self.nvme.server.handle_io_done(cx, done);
                self.nvme.run_steps(cx, &mut self.parts);
            }
            // The flush of a stop is told apart before.
            IdSpace::Shard if self.parts.volumes.is_execution(done.id) => {
                self.parts.volumes.handle_execution_done(done);
            }
            IdSpace::Shard => self.nvme.formats.handle_io_done(&mut self.parts, &done),
            // Those of gates end below them.
            IdSpace::Gate => {}
        }
        self.parts.deferred.follows = false;
    }

    fn run_gate_completions(&mut self, cx: &mut Cx<'_>, volume: VolumeId) {
        loop {
            let Some(local) = self.parts.volumes.get_mut(volume) else { return };
            let more = local.gate.resume(cx);
            let mut ended = false;
            while let Some((done, times)) = self.parts.volumes.poll_done(volume) {
                ended = true;
                if Log::is_remarkable(cx.now, &done, times)
                    && let Some(local) = self.parts.volumes.get(volume)
                {
                    self.parts.log.record_completion(local.name(), &done, times);
                }
                if done.id == STOP_FLUSH_ID {
                    self.handle_stop_flush_done(volume, done.result.is_ok());
                } else {
                    self.finish_io(cx, done, times);
                }
            }
            // In memory each part of an operation has ended at once: the world and other volumes have their
            // turn before the next part.
            if more && !self.parts.volumes.long_running.contains(&volume) {
                self.parts.volumes.long_running.push_back(volume);
            }
            if more || !ended {
                break;
            }
        }
        self.parts.volumes.forward_gate_outputs(volume, &mut self.parts.outbox, &mut self.parts.log);
        while let Some(ack) = self.parts.volumes.get_mut(volume).and_then(|local| local.gate.poll_ack()) {
            self.acknowledge_view_change(cx, volume, ack);
        }
    }

    /// Takes a change over: tasks that it ends first, then its notices, then the gate.
    pub(super) fn update_view(&mut self, cx: &mut Cx<'_>, volume: VolumeId, update: &ViewUpdate) {
        match self.shown_change(volume, update) {
            Some(shown) => self.update_servers(cx, volume, &shown),
            None => self.update_servers(cx, volume, update),
        }
        match self.parts.volumes.get_mut(volume) {
            Some(local) => local.gate.update_view(update),
            None => {
                // Nothing of it is in flight here.
                self.parts.volumes.keep_early_view(volume, &update.view);
                let ack = Ack { from: self.parts.id, change: update.change };
                self.parts.outbox.post(self.parts.volumes.home_of(volume), Message::Ack(volume, ack));
            }
        }
        self.parts.volumes.mark_pending(volume);
        if update.view.not_ready == Some(UnservableReason::Removed) {
            // What waits for its limits is refused now: nothing of it comes any more.
            self.release_throttled(cx, Some(volume));
        }
    }

    /// A volume's home has answered.
    pub(super) fn handle_volume_answer(&mut self, cx: &mut Cx<'_>, volume: VolumeId, answer: VolumeAnswer) {
        debug_assert_eq!(answer.to, self.parts.id);
        let (id, result) = (answer.id, answer.result);
        match id.id_space() {
            IdSpace::Scsi => self.iscsi.server.handle_volume_answer(cx, id, result),
            IdSpace::Nvme => self.nvme.server.handle_volume_answer(cx, id, result),
            IdSpace::Gate => self.parts.volumes.handle_gate_answer(cx, volume, &answer),
            IdSpace::Shard => {
                if self.parts.volumes.handle_execution_answer(&answer) {
                    return;
                }
                if self.nvme.handle_format_answer(cx, &mut self.parts, id, result) {
                    self.nvme.run_steps(cx, &mut self.parts);
                } else if !self.iscsi.handle_nexus_end_answer(cx, &mut self.parts, id) {
                    self.requests.handle_answer(&mut self.parts.outbox, &answer);
                }
            }
        }
    }
}
