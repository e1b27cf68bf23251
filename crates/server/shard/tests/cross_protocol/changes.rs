//! Changes under load: the volume is resized, write protected, removed and added again, and its path states
//! change. Hosts of both protocols are notified. Events, their logs, and aborts of their requests race with
//! the changes, and hosts fall silent.

use std::sync::Arc;
use std::time::Duration;

use blockwire_shard::{ControlReport, ControlRequest, Exports, Message};
use endpoint::ShardId;
use nvme::{Opcode, Status};
use testkit::seeds;
use volume::{Geometry, PathAccess, PortId, VolumeId, VolumeRequest};
use zerocopy::little_endian::U32;

use crate::command::sqe;
use crate::history::History;
use crate::host::Side;
use crate::plan::{MOST, Plan, SPAN};
use crate::queue::{Ended, Queue};

/// Requests for events that a host keeps under way.
const REQUESTS: usize = 3;
/// Logs: changed namespaces, path states.
const CHANGED_NAMESPACES: u8 = 0x04;
pub const ANA: u8 = 0x0c;

impl History {
    /// Wants to hear of namespaces and of paths.
    pub fn ask_for_events(&mut self, host: usize) {
        if self.plan.change_permille == 0 {
            return;
        }
        let mut features = sqe(Opcode(0x09));
        (features.cdw10[0], features.cdw10[1]) = (U32::new(0x0b), U32::new(1 << 8 | 1 << 11));
        assert!(self.errand(host, 0, features, vec![], 0).status.is_success());
        let controller = self.hosts[host].controller();
        controller.enabled = true;
        // Nothing that a reset forgot is waited for.
        controller.requests.clear();
    }

    /// A host that is enabled has requests for events under way, and says that it is there.
    pub fn listen(&mut self, host: usize) {
        let now = self.world.now();
        let keeps = Duration::from_millis(u64::from(self.plan.kato_ms) / 4);
        let mut wanted = vec![];
        let controller = self.hosts[host].controller();
        if !controller.enabled {
            return;
        }
        wanted.extend((controller.requests.len()..REQUESTS).map(|_| Opcode(0x0c)));
        if !keeps.is_zero() && controller.kept + keeps < now {
            controller.kept = now;
            wanted.push(Opcode(0x18));
        }
        for opcode in wanted {
            let id = self.take_id();
            let controller = self.hosts[host].controller();
            if opcode.0 == 0x0c {
                controller.requests.insert(id);
            } else {
                controller.chores.insert(id, None);
            }
            controller.queues[0].send(id, sqe(opcode), vec![], 0);
        }
    }

    /// A request for an event has ended.
    pub fn take_event(&mut self, host: usize, ended: &Ended) {
        let id = self.take_id();
        let seed = self.plan.seed;
        let controller = self.hosts[host].controller();
        match Status(ended.status.0 & 0x7ff) {
            Status::SUCCESS => {
                let (kind, log) = (ended.result & 7, (ended.result >> 16) as u8);
                assert!(kind == 2 && [CHANGED_NAMESPACES, ANA].contains(&log), "seed {seed}: {ended:?}");
                // Which namespaces it is about, the log says.
                controller.told.extend((log == ANA).then_some((log, 0)));
                // Reading the log lets the next event of its kind come.
                let mut read = sqe(Opcode(0x02));
                read.nsid = U32::new(u32::MAX);
                read.cdw10[0] = U32::new(u32::from(log) | 1023 << 16);
                controller.chores.insert(id, Some(log));
                controller.queues[0].send(id, read, vec![], 4096);
            }
            Status::ABORT_REQUESTED => {}
            Status::ABORTED_SQ_DELETION | Status::HOST_PATH_ERROR => controller.enabled = false,
            _ => panic!("seed {seed}: a request for events ended with {ended:?}"),
        }
    }

    /// A log was read: what has changed between its event and the reading needs no event of its own.
    pub fn take_log(&mut self, host: usize, log: Option<u8>, ended: &Ended) {
        let seed = self.plan.seed;
        let status = Status(ended.status.0 & 0x7ff);
        let gone = [Status::HOST_PATH_ERROR, Status::ABORTED_SQ_DELETION].contains(&status);
        assert!(gone || status == Status::SUCCESS, "seed {seed}: log {log:?}: {ended:?}");
        let controller = self.hosts[host].controller();
        match log {
            Some(log @ CHANGED_NAMESPACES) if !gone => {
                let numbers =
                    ended.data.chunks_exact(4).map(|bytes| u32::from_le_bytes(*bytes.first_chunk().unwrap()));
                controller.told.extend(numbers.take_while(|nsid| *nsid > 0).map(|nsid| (log, nsid)));
            }
            Some(log @ ANA) if !gone => controller.told.push((log, 0)),
            _ => {}
        }
    }

    fn controllers(&self) -> Vec<usize> {
        (0..self.hosts.len()).filter(|host| matches!(self.hosts[*host].side, Side::Nvme(_))).collect()
    }

    /// Asks a volume's home for a change, and waits for it under load.
    pub fn ask(&mut self, volume: usize, ask: VolumeRequest) {
        self.reports.clear();
        let id = VolumeId(volume as u64);
        let home = ShardId(volume as u16 % self.plan.shards);
        self.world.send_message(home, Message::Control(5, ControlRequest::VolumeRequest(id, ask.clone())));
        self.wait("a change", |history| !history.reports.is_empty());
        assert!(
            matches!(self.reports[..], [ControlReport::Done]),
            "seed {}: {ask:?}: {:?}",
            self.plan.seed,
            self.reports
        );
    }

    fn offer(&mut self, exports: Exports) {
        self.reports.clear();
        let exports = Arc::new(exports);
        self.exports = exports.clone();
        for shard in 0..self.plan.shards {
            self.world
                .send_message(ShardId(shard), Message::Control(6, ControlRequest::Exports(exports.clone())));
        }
        let shards = usize::from(self.plan.shards);
        self.wait("other exports", |history| history.reports.len() == shards);
    }

    fn forget_told(&mut self) {
        for host in &mut self.hosts {
            match &mut host.side {
                Side::Scsi(session) => session.told.clear(),
                Side::Nvme(controller) => controller.told.clear(),
            }
        }
    }

    /// Every host hears of a change of a volume: NVMe hosts by an event that names this log, SCSI hosts by
    /// this unit attention.
    fn all_are_told(&mut self, volume: usize, log: u8, code: Option<[u8; 2]>) {
        let told = (log, if log == ANA { 0 } else { volume as u32 + 1 });
        self.wait("events", |history| {
            let all = history.controllers();
            all.into_iter().all(|host| history.hosts[host].controller().told.contains(&told))
        });
        let Some(code) = code else { return };
        for host in 0..self.hosts.len() {
            if matches!(self.hosts[host].side, Side::Nvme(_)) {
                continue;
            }
            for _ in 0..20 {
                if self.hosts[host].session().told.contains(&code) {
                    break;
                }
                let ended = self.scsi_once((host, volume), &[0; 6], &[], 0);
                if ended.status == 2 && ended.sense[2] & 0x0f == 6 {
                    let code = [ended.sense[12], ended.sense[13]];
                    self.hosts[host].session().told.push(code);
                }
            }
            let told = &self.hosts[host].session().told;
            assert!(told.contains(&code), "seed {}: told {told:02x?}, not {code:02x?}", self.plan.seed);
        }
    }

    /// Changes something of a volume, and after a while changes it back.
    pub fn change(&mut self) {
        self.tally.changes += 1;
        let volumes = self.plan.volumes as u64;
        let volume = if volumes > 1 { self.chance.below(volumes) as usize } else { 0 };
        match self.chance.below(6) {
            0 => self.change_size(volume),
            1 => self.protect(volume),
            2 => self.change_paths(volume, PathAccess::NonOptimized),
            3 => self.change_paths(volume, PathAccess::Inaccessible),
            4 => self.take_away(volume),
            _ => self.fall_silent(),
        }
    }

    /// Hosts go on with their work.
    fn work(&mut self) {
        for _ in 0..self.chance.between(1, 8) {
            let host = self.chance.below(self.hosts.len() as u64) as usize;
            (0..3).for_each(|_| self.command(host));
            if self.chance.chance_permille(300) && matches!(self.hosts[host].side, Side::Nvme(_)) {
                self.abort_request(host);
            }
            for _ in 0..self.chance.below(60) {
                self.poll();
                self.step();
            }
            if self.chance.chance_permille(100) && matches!(self.hosts[host].side, Side::Nvme(_)) {
                self.disconnect(host);
            }
        }
    }

    /// Aborts a request for an event, or what has its name by now.
    fn abort_request(&mut self, host: usize) {
        let id = self.take_id();
        let controller = self.hosts[host].controller();
        let cids = controller.queues[0].cids();
        let Some(cid) = cids.first() else { return };
        let mut abort = sqe(Opcode(0x08));
        abort.cdw10[0] = U32::new(u32::from(*cid) << 16);
        controller.aborts.insert(id);
        controller.queues[0].send(id, abort, vec![], 0);
    }

    fn change_size(&mut self, volume: usize) {
        let geometry = self.rams[volume].geometry();
        for blocks in [MOST as u64, SPAN as u64] {
            self.forget_told();
            let grows = blocks == MOST as u64;
            assert!(!grows || self.rams[volume].resize(blocks));
            self.ask(volume, VolumeRequest::Resize(Geometry { blocks, ..geometry }));
            // Nothing is in flight behind the new end any more.
            assert!(grows || self.rams[volume].resize(blocks));
            self.work();
            self.all_are_told(volume, CHANGED_NAMESPACES, Some([0x2a, 0x09]));
        }
    }

    fn protect(&mut self, volume: usize) {
        self.forget_told();
        self.ask(volume, VolumeRequest::WriteProtect(true));
        self.protected = Some((volume, self.tick()));
        self.work();
        self.all_are_told(volume, CHANGED_NAMESPACES, Some([0x2a, 0x01]));
        self.protected = None;
        self.forget_told();
        self.ask(volume, VolumeRequest::WriteProtect(false));
        self.work();
        self.all_are_told(volume, CHANGED_NAMESPACES, Some([0x2a, 0x01]));
    }

    fn change_paths(&mut self, volume: usize, to: PathAccess) {
        let ports = vec![PortId(1), PortId(2)];
        for to in [to, PathAccess::Optimized] {
            self.forget_told();
            self.ask(volume, VolumeRequest::SetAccess { ports: ports.clone(), to, by: None });
            if to == PathAccess::Inaccessible {
                self.protected = Some((volume, self.tick()));
            }
            self.work();
            self.all_are_told(volume, ANA, Some([0x2a, 0x06]));
            self.protected = None;
        }
    }

    /// The logical unit and the namespace are offered no more, and then again.
    fn take_away(&mut self, volume: usize) {
        let whole = self.plan.exports();
        let mut without = whole.clone();
        let id = VolumeId(volume as u64);
        without.targets[0].luns.retain(|lun| lun.volume != id);
        without.nvme.subsystems[0].namespaces.retain(|namespace| namespace.volume != id);
        for (exports, gone) in [(without, true), (whole, false)] {
            self.forget_told();
            self.offer(exports);
            self.protected = gone.then(|| (volume, self.tick()));
            self.work();
            self.all_are_told(volume, CHANGED_NAMESPACES, None);
            self.protected = None;
        }
    }

    /// A host says nothing for longer than its keep alive timeout: its association ends.
    fn fall_silent(&mut self) {
        let host = *self.chance.pick(&self.controllers());
        self.deaf = vec![host];
        let until = self.world.now() + Duration::from_secs(30);
        while self.world.now() < until {
            self.poll();
            self.step();
        }
        self.deaf.clear();
        self.hosts[host].controller().enabled = false;
        self.wait("a silent host's queues to close", |history| {
            history.hosts[host].controller().queues.iter().all(Queue::is_closed)
        });
        self.connect(host);
    }
}

#[test]
fn changes_under_load_are_told_to_both_protocols() {
    let test = "blockwire-shard --test cross_protocol changes";
    let (total, runs) = seeds::run_all_seeds(16, test, |seed| History::new(Plan::changing(seed)).play());
    assert!(runs < 16 || (total.changes > 100 && total.refused > 100), "nothing much happens: {total:?}");
}
