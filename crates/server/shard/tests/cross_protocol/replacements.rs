//! The process is replaced amid histories: all shards come to rest, are saved, and go on in new shards with memory of
//! their own, or as they are if the replacement is taken back, at any of its stages. Hosts notice nothing.

use std::time::Duration;

use blockwire_shard::{
    ControlReport, ControlRequest, Message, Shard, ShardSnapshot, TargetSnapshot, VolumeSpec,
};
use endpoint::{Endpoint, LinkId, ShardId};
use testkit::seeds;

use crate::history::History;
use crate::plan::Plan;

/// How long commands in work are waited for, before connections whose hosts do nothing are left behind.
const WITHIN: Duration = Duration::from_secs(2);

impl History {
    /// Sends a request to every shard, and gives the answers that come in time.
    pub fn ask_shards(
        &mut self,
        within: Duration,
        request: impl Fn() -> ControlRequest,
    ) -> Vec<ControlReport> {
        self.reports.clear();
        for shard in 0..self.plan.shards {
            self.world.send_message(ShardId(shard), Message::Control(9, request()));
        }
        let until = self.world.now() + within;
        while self.reports.len() < usize::from(self.plan.shards) && self.world.now() < until {
            self.poll();
            self.step();
        }
        std::mem::take(&mut self.reports)
    }

    /// All shards answer that it is done.
    pub fn all_do(&mut self, request: impl Fn() -> ControlRequest) {
        let reports = self.ask_shards(crate::history::PATIENCE, request);
        assert_eq!(reports.len(), usize::from(self.plan.shards), "seed {}", self.plan.seed);
        let done = |report: &ControlReport| matches!(report, ControlReport::Done);
        assert!(reports.iter().all(done), "seed {}: {reports:?}", self.plan.seed);
    }

    fn take_back(&mut self) {
        self.tally.taken_back += 1;
        self.all_do(|| ControlRequest::Resume);
    }

    /// The process is replaced, or that is taken back.
    pub fn replace(&mut self) {
        let stage = self.chance.below(8);
        if stage == 0 {
            let within = Duration::from_micros(self.chance.below(2_000));
            self.ask_shards(within, || ControlRequest::Quiesce);
            // What is told of it afterwards is nobody's.
            self.take_back();
            self.reports.clear();
            return;
        }
        let rests = self.ask_shards(WITHIN, || ControlRequest::Quiesce);
        let done = rests.iter().filter(|report| matches!(report, ControlReport::Done)).count();
        if done < usize::from(self.plan.shards) {
            self.tally.not_at_rest += 1;
            return self.take_back();
        }
        self.all_do(|| ControlRequest::Settle);
        self.all_do(|| ControlRequest::Settle);
        if stage < 3 {
            return self.take_back();
        }
        let Some(snapshot) = self.save() else { return self.take_back() };
        // What is left behind is lost to its host, which these histories do not tell apart from a fault.
        if stage < 4 || !snapshot.left_behind().is_empty() {
            self.tally.left += u64::from(!snapshot.left_behind().is_empty());
            return self.take_back();
        }
        self.tally.replaced += 1;
        self.go_on_from(&snapshot);
    }

    pub fn save(&mut self) -> Option<TargetSnapshot> {
        let reports = self.ask_shards(crate::history::PATIENCE, || ControlRequest::Save);
        let mut parts: Vec<ShardSnapshot> = Vec::new();
        for report in reports {
            match report {
                ControlReport::Saved(part) => parts.push(*part),
                ControlReport::NotQuiesced(_) => {
                    self.tally.not_at_rest += 1;
                    return None;
                }
                other => panic!("seed {}: {other:?}", self.plan.seed),
            }
        }
        let snapshot = TargetSnapshot::assemble(parts).expect("all shards of one target");
        let again =
            TargetSnapshot::from_bytes(&snapshot.to_bytes(), self.plan.shards).expect("it is read again");
        assert_eq!(again.to_bytes(), snapshot.to_bytes());
        Some(snapshot)
    }

    pub fn go_on_from(&mut self, snapshot: &TargetSnapshot) {
        let (shards, exports, seed) = (self.plan.shards, self.exports.clone(), self.plan.seed);
        let mut specs: Vec<Vec<VolumeSpec>> = (0..shards).map(|_| Vec::new()).collect();
        for volume in 0..self.plan.volumes {
            let own = self.plan.running_specs(volume, &self.rams[volume], snapshot);
            specs.iter_mut().zip(own).for_each(|(all, spec)| all.push(spec));
        }
        self.world.replace_endpoints(|id, cx| {
            let mut shard = Shard::new(id, shards, exports.clone());
            for spec in std::mem::take(&mut specs[usize::from(id.0)]) {
                let add = ControlRequest::AddVolume(Box::new(spec));
                shard.handle_message(cx, Message::Control(0, add));
            }
            shard.restore(cx, snapshot, &Some).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            let links: Vec<LinkId> = snapshot.links(id);
            let numbered = links.into_iter().zip(0..);
            (shard, numbered.map(|(link, number)| (link, Message::CarriedLink(number))).collect())
        });
        self.step();
        // Of the volumes that were added.
        self.reports.clear();
    }
}

/// Histories with replacements; some with changes of volumes, of which hosts are told.
fn replaced(seed: u64) -> Plan {
    let plan = if seed.is_multiple_of(3) { Plan::changing(seed) } else { Plan::of(seed).in_pieces() };
    Plan { replace_permille: 300, pool_bytes: plan.pool_bytes.max(6 << 20), ..plan }
}

#[test]
fn hosts_notice_nothing_of_a_process_that_is_replaced() {
    let test = "blockwire-shard --test cross_protocol hosts_notice_nothing";
    let (total, runs) = seeds::run_all_seeds(60, test, |seed| History::new(replaced(seed)).play());
    let enough = total.replaced > 5 * runs && total.taken_back > 5 * runs;
    assert!(runs < 20 || enough, "hardly any process is replaced: {total:?}");
}

/// What stands in a snapshot of version 1 is read by this release: a target with a session, a controller with two
/// queues, and a volume with a registration.
#[test]
fn a_snapshot_of_version_1_is_read() {
    let plan =
        Plan { scsi_hosts: 1, nvme_hosts: 1, shards: 1, connections: 1, queues: 1, ..Plan::changing(3) };
    let mut history = History::new(plan);
    history.quiesce();
    assert_eq!(history.ask_shards(WITHIN, || ControlRequest::Quiesce).len(), 1);
    history.all_do(|| ControlRequest::Settle);
    let snapshot = history.save().expect("it is at rest");
    assert_eq!((snapshot.connection_counts(), snapshot.left_behind()), ((1, 2), &[][..]));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cross_protocol/target_v1.snapshot");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, snapshot.to_bytes()).expect("the snapshot is written");
    }
    let bytes = std::fs::read(path).expect("BLESS=1 writes it");
    let stored = TargetSnapshot::from_bytes(&bytes, 1).expect("version 1 is read");
    assert!(stored.to_bytes() == bytes, "a change of the body raises its version");
    assert_eq!(stored.connection_counts(), (1, 2));
    history.go_on_from(&stored);
    history.run();
}
