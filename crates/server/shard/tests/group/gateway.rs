//! One gateway: shards in a world of their own, a member of the group, and what carries messages between the two as the
//! daemon does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use blockwire_shard::{
    BackendFactory, ControlReport, ControlRequest, FromGateway, GroupExports, Message, NvmeMessage,
    OtherGateway, Shard, ToGateway, VolumeSpec, home_of,
};
use buf::Time;
use endpoint::ShardId;
use group::{
    GroupId, InstanceId, LinkPayload, Member, MemberConfig, Output, PathState, RequestId, StoreRequest, Term,
    Timing,
};
use sim::{Config, World};
use testkit::target::{self, TargetLimits};
use volume::{DiskId, PathAccess, PortId, SharedGateState, Uuid, VolumeFacts, VolumeId};

use crate::cluster::{Omission, Plan, group_of, uuid_of};
use crate::image::{Image, ImageBackend};

/// The iSCSI port of a gateway; its NVMe ports follow.
pub fn port_of(gateway: usize) -> PortId {
    PortId(1 + 10 * gateway as u16)
}

fn other_gateway(gateway: usize) -> OtherGateway {
    let at = |port: u16| SocketAddr::from(([10, 0, 0, gateway as u8 + 1], port));
    OtherGateway {
        portals: vec![(at(3260), port_of(gateway).0)],
        nvme_portals: vec![(at(4420), PortId(port_of(gateway).0 + 1))],
    }
}

/// What a gateway wants of the rest.
pub enum Want {
    Store(group::StoreTicket, StoreRequest),
    Connect(InstanceId),
    CloseLink(group::LinkId),
    Send(group::LinkId, group::LinkMessage<LinkPayload>),
    Ended,
}

pub struct Gateway {
    pub number: usize,
    pub instance: InstanceId,
    pub world: World<Shard>,
    pub member: Member<LinkPayload>,
    /// Its process does not run.
    pub stopped: bool,
    /// It has dropped all sessions.
    pub ended: bool,
    joins: bool,
    plan: Plan,
    images: BTreeMap<VolumeId, Arc<Image>>,
    terms: BTreeMap<VolumeId, Term>,
    paths: BTreeMap<GroupId, PathState>,
    owners: BTreeMap<GroupId, Option<InstanceId>>,
    quiescing: BTreeMap<GroupId, (u64, BTreeSet<VolumeId>)>,
    pub wants: Vec<Want>,
    /// What hosts were to be told.
    pub notices: u64,
    /// Commands that went to the group, and those that hosts did not want any more.
    pub submitted: u64,
    pub cancelled: u64,
}

impl Gateway {
    pub fn new(
        plan: &Plan,
        number: usize,
        instance: InstanceId,
        now: Time,
        images: &BTreeMap<VolumeId, Arc<Image>>,
    ) -> Gateway {
        let shards = plan.shards;
        let mut exports = (*target::build_exports(&TargetLimits::default())).clone();
        exports.portals[0].port = port_of(number);
        for (at, portal) in (1..).zip(&mut exports.nvme.portals) {
            portal.port = PortId(port_of(number).0 + at);
        }
        for volume in 1..plan.volumes {
            let id = VolumeId(volume as u64);
            let lun =
                blockwire_shard::LunExport { lun: volume as u16, volume: id, ..exports.targets[0].luns[0] };
            exports.targets[0].luns.push(lun);
            let subsystem = &mut exports.nvme.subsystems[0];
            let first = subsystem.namespaces[0];
            let (nsid, ana_group) = (volume as u32 + 1, volume as u32 + 1);
            let namespace = blockwire_shard::NamespaceExport { nsid, volume: id, ana_group, ..first };
            subsystem.namespaces.push(namespace);
        }
        exports.group = Some(GroupExports {
            volumes: images.keys().copied().collect(),
            gateways: (0..plan.gateways).filter(|other| *other != number).map(other_gateway).collect(),
        });
        let exports = Arc::new(exports);
        let mut config = Config::new(plan.seed ^ instance.0 << 8);
        config.shards = shards;
        config.disk_delay_max = plan.disk_delay_max;
        let mut world = World::new(config, |id, _| Shard::new(id, shards, exports.clone()));
        world.run_for(Duration::from_nanos(now.0));
        for (&id, image) in images {
            let facts = Arc::new(VolumeFacts::new(id, &format!("disk{}", id.0), uuid_of(id)));
            let (shared, disk) = (SharedGateState::new(shards), DiskId(id.0 as u32));
            for shard in 0..shards {
                let image = image.clone();
                let spec = VolumeSpec {
                    facts: facts.clone(),
                    shared: shared.clone(),
                    view: volume::View::without_reservations(image.geometry()),
                    make: BackendFactory::Local(Box::new(move || {
                        Box::new(ImageBackend::new(image, instance, disk))
                    })),
                    disks: vec![disk],
                    home: None,
                    in_group: true,
                };
                let add = ControlRequest::AddVolume(Box::new(spec));
                world.send_message(ShardId(shard), Message::Control(0, add));
            }
        }
        let groups: BTreeMap<GroupId, Vec<Uuid>> =
            images.keys().map(|id| (group_of(*id), vec![uuid_of(*id)])).collect();
        let member = Member::new(MemberConfig {
            instance,
            gateway: format!("gateway{number}").into(),
            state: Uuid([number as u8 + 1; 16]),
            address: format!("10.0.0.{number}").into(),
            portals: "".into(),
            groups,
            timing: Timing { balance: plan.balance, ..Timing::default() },
        });
        Gateway {
            number,
            instance,
            world,
            member,
            stopped: false,
            ended: false,
            joins: false,
            plan: plan.clone(),
            images: images.clone(),
            terms: BTreeMap::new(),
            paths: BTreeMap::new(),
            owners: BTreeMap::new(),
            quiescing: BTreeMap::new(),
            wants: Vec::new(),
            notices: 0,
            submitted: 0,
            cancelled: 0,
        }
    }

    pub fn now(&self) -> Time {
        self.world.now()
    }

    fn volume(uuid: Uuid) -> VolumeId {
        VolumeId(u64::from(uuid.0[15]))
    }

    fn tell(&mut self, volume: VolumeId, message: FromGateway) {
        let home = home_of(volume, self.plan.shards);
        self.world.send_message(home, Message::FromGateway(Box::new(message)));
    }

    fn volumes_of(&self, group: GroupId) -> Vec<VolumeId> {
        self.images.keys().copied().filter(|id| group_of(*id) == group).collect()
    }

    /// Asks shard 0 to come to rest, as for another process, and gives its report.
    pub fn ask_to_rest(&mut self) -> Option<ControlReport> {
        self.world.send_message(ShardId(0), Message::Control(7, ControlRequest::Quiesce));
        self.world.run_for(Duration::from_millis(1));
        self.world.take_control_messages().into_iter().find_map(|(_, message)| match message {
            Message::Report(7, report) => Some(report),
            _ => None,
        })
    }

    /// Lets the shards and the member work for so long.
    pub fn run(&mut self, time: Duration) {
        if self.stopped || self.ended {
            return;
        }
        self.world.run_for(time);
        let now = self.now();
        for (_, message) in self.world.take_control_messages() {
            match message {
                Message::ToGateway(message) => self.take_shard_message(now, *message),
                Message::Report(..) => {}
                Message::Nvme(NvmeMessage::Forget(..)) => {}
                other => panic!("unexpected: {other:?}"),
            }
        }
        if !std::mem::replace(&mut self.joins, true) || self.member.poll_timeout().is_some_and(|at| at <= now)
        {
            self.member.handle_timeout(now);
        }
        self.run_outputs();
    }

    fn take_shard_message(&mut self, now: Time, message: ToGateway) {
        match message {
            ToGateway::Submit { from, number, volume, mut who, command } => {
                if self.plan.omission == Some(Omission::Requester) {
                    who.identity = Arc::new(volume::Identity::Host([0xee; 16]));
                }
                self.submitted += 1;
                let id = RequestId(u64::from(from.0) << 48 | number);
                self.member.submit(now, id, uuid_of(volume), who, command);
            }
            ToGateway::Cancel { from, number } => {
                self.cancelled += 1;
                self.member.cancel(now, RequestId(u64::from(from.0) << 48 | number));
            }
            ToGateway::Executed { execution, answer } => self.member.handle_executed(now, execution, answer),
            ToGateway::Quiesced { volume, round } => {
                let group = group_of(volume);
                let Some((known, left)) = self.quiescing.get_mut(&group) else { return };
                if *known == round {
                    left.remove(&volume);
                    if left.is_empty() {
                        self.member.handle_quiesced(now, group, round);
                    }
                }
            }
            ToGateway::Store { volume, term, ticket, bytes } => {
                self.member.store_record(now, uuid_of(volume), term, ticket, &bytes);
                if self.plan.omission == Some(Omission::RecordNotAwaited) {
                    self.tell(volume, FromGateway::Stored { volume, ticket });
                }
            }
            ToGateway::ControllerIdsWanted => self.member.allocate_controller_ids(now),
            ToGateway::BindHost { number, host, nqn } => {
                self.member.bind_host(now, RequestId(number), host, &nqn);
            }
            ToGateway::ReleaseHost { host } => self.member.release_host(now, host),
            ToGateway::ResetController { from, number, controller } => {
                let id = RequestId(u64::from(from.0) << 48 | number);
                self.member.reset_controller(now, id, controller);
            }
            ToGateway::ControllerReset { number, answer } => {
                self.member.handle_controller_reset(now, number, answer);
            }
            ToGateway::Publish { volume, term, snapshot, notices } => {
                self.member.publish(now, uuid_of(volume), term, snapshot, notices);
            }
        }
    }

    pub fn run_outputs(&mut self) {
        while let Some(output) = self.member.poll_output() {
            self.carry_out(output);
        }
        // Who owns a group may change while this gateway's way to it is of the same kind.
        for group in self.paths.keys().copied().collect::<Vec<_>>() {
            let owner = self.member.ownership(group).and_then(|ownership| ownership.owner);
            if self.owners.insert(group, owner) != Some(owner) {
                self.tell_paths(group);
            }
        }
    }

    fn carry_out(&mut self, output: Output<LinkPayload>) {
        match output {
            Output::Store { ticket, request } => self.wants.push(Want::Store(ticket, request)),
            Output::Connect { instance, .. } => self.wants.push(Want::Connect(instance)),
            Output::CloseLink(link) => self.wants.push(Want::CloseLink(link)),
            Output::Send { link, message } => self.wants.push(Want::Send(link, message)),
            Output::Open { group, term, records } => self.open(group, term, records),
            Output::Quiesce { group, round } => {
                let volumes = self.volumes_of(group);
                if self.plan.omission == Some(Omission::NotQuiesced) {
                    let now = self.now();
                    return self.member.handle_quiesced(now, group, round);
                }
                self.quiescing.insert(group, (round, volumes.iter().copied().collect()));
                for volume in volumes {
                    self.tell(volume, FromGateway::Quiesce { volume, round });
                }
            }
            Output::Close(group) => {
                for volume in self.volumes_of(group) {
                    self.terms.remove(&volume);
                    if self.plan.omission != Some(Omission::NotClosed) {
                        self.tell(volume, FromGateway::Close { volume });
                    }
                }
            }
            Output::Execute { execution, volume, who, command } => {
                let volume = Self::volume(volume);
                self.tell(volume, FromGateway::Execute { volume, execution, who, command });
            }
            Output::Cancel { execution, volume } => {
                let volume = Self::volume(volume);
                self.tell(volume, FromGateway::Cancel { volume, execution });
            }
            Output::Answer { id, result } => {
                let (shard, number) = (ShardId((id.0 >> 48) as u16), id.0 & ((1 << 48) - 1));
                let message = FromGateway::Answer { number, result };
                self.world.send_message(shard, Message::FromGateway(Box::new(message)));
            }
            Output::Path { group, state } => {
                self.paths.insert(group, state);
                self.tell_paths(group);
            }
            Output::Snapshot { volume, snapshot, .. } => {
                let volume = Self::volume(volume);
                if self.plan.omission != Some(Omission::Snapshots) {
                    self.tell(volume, FromGateway::Snapshot { volume, snapshot });
                }
            }
            Output::Notices { volume, notices } => {
                self.notices += notices.len() as u64;
                let volume = Self::volume(volume);
                if self.plan.omission != Some(Omission::Notices) {
                    self.tell(volume, FromGateway::Notices { volume, notices });
                }
            }
            Output::NoticesLost(group) => {
                for volume in self.volumes_of(group) {
                    self.tell(volume, FromGateway::NoticesLost { volume });
                }
            }
            Output::RecordStored { volume, ticket } => {
                let volume = Self::volume(volume);
                self.tell(volume, FromGateway::Stored { volume, ticket });
            }
            Output::Restart(_) => {
                self.ended = true;
                self.wants.push(Want::Ended);
            }
            Output::Damaged { object, damage } => panic!("{object:?}: {damage}"),
            Output::ControllerIds { first, count } => {
                let message = FromGateway::ControllerIds { first, count };
                self.world.send_message(ShardId(0), Message::FromGateway(Box::new(message)));
            }
            Output::NoControllerIds | Output::Configuration { .. } => {}
            Output::HostBound { id, result } => {
                let message = FromGateway::HostBound { number: id.0, result };
                self.world.send_message(ShardId(0), Message::FromGateway(Box::new(message)));
            }
            Output::ResetController { number, controller } => {
                let message = FromGateway::ResetController { number, controller };
                self.world.send_message(ShardId(0), Message::FromGateway(Box::new(message)));
            }
            Output::ControllerReset { id, answer } => {
                let (shard, number) = (ShardId((id.0 >> 48) as u16), id.0 & ((1 << 48) - 1));
                let message = FromGateway::ControllerReset { number, answer };
                self.world.send_message(shard, Message::FromGateway(Box::new(message)));
            }
            Output::Port { .. } | Output::Applied { .. } => {}
            Output::Drained | Output::NotDrained(_) => {}
        }
    }

    fn open(&mut self, group: GroupId, term: Term, records: Vec<(Uuid, group::SavedRecord)>) {
        for (uuid, record) in records {
            let volume = Self::volume(uuid);
            let image = &self.images[&volume];
            let geometry = image.geometry();
            {
                let mut state = image.state();
                state.served = state.served.max(term);
                state.terms.insert(self.instance, term);
            }
            self.terms.insert(volume, term);
            let record = record.expect("records are whole");
            let record = record.filter(|_| self.plan.omission != Some(Omission::RecordNotRead));
            self.tell(volume, FromGateway::Open { volume, term, record, geometry });
        }
        if self.paths.contains_key(&group) {
            self.tell_paths(group);
        }
    }

    /// What is shown of a group's paths: this gateway's, and those of the others by who owns it.
    fn tell_paths(&mut self, group: GroupId) {
        let Some(&state) = self.paths.get(&group) else { return };
        let owner = self.member.ownership(group).and_then(|ownership| ownership.owner);
        let owner =
            owner.and_then(|owner| self.member.members().iter().find(|entry| entry.instance == owner));
        let owner = owner.map(|entry| entry.gateway.clone());
        let others: Vec<(PortId, PathAccess)> = (0..self.plan.gateways)
            .filter(|other| *other != self.number)
            .map(|other| {
                let access = match &owner {
                    Some(name) if **name == *format!("gateway{other}") => PathAccess::Optimized,
                    Some(_) => PathAccess::NonOptimized,
                    None => PathAccess::Transition,
                };
                (port_of(other), access)
            })
            .collect();
        let others: Arc<[(PortId, PathAccess)]> = others.into();
        for volume in self.volumes_of(group) {
            self.tell(volume, FromGateway::Path { volume, state, others: others.clone() });
        }
    }

    pub fn path(&self, volume: VolumeId) -> Option<PathState> {
        self.paths.get(&group_of(volume)).copied()
    }
}
