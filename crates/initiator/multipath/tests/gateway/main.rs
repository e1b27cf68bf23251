//! A gateway in the simulated world: a daemon with the volume, a second daemon that exports it again, and a
//! host of the second; over either protocol on either side.

// As the target's own tests name it.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use blockwire_multipath::{
    AnyPath, Client, HostIdentity, RemoteVolume, Url, UrlSecrets, VolumeEvent, VolumeHandle, VolumeSettings,
};
use buf::{Cx, Errno, MemoryClass, Payload, Time};
use endpoint::{Endpoint, LinkArrival, LinkDeparture, LinkId, ListenerId, ShardId};
use nvme::{HostId, Nqn};
use shard::{BackendFactory, ControlRequest, Message, Shard};
use sim::{Config, ConnectionFaults, Reachability, World};
use testkit::target;
use volume::{
    Backend, DiskOp, Durability, Epoch, Failure, Fault, Io, IoCompletion, IoId, Op, RamBackend, RamDisk, Span,
};

const BLOCKS: u64 = 1 << 14;
const FAR: [u8; 4] = [10, 0, 0, 1];
const NEAR: [u8; 4] = [10, 0, 0, 2];

/// One of the three machines. A daemon counts its shards from 0, the world all of them.
enum Node {
    Daemon(u16, Box<Shard>),
    Host(Box<Client<AnyPath>>),
}

macro_rules! each {
    ($node:expr, $end:ident => $what:expr) => {
        match $node {
            Node::Daemon(_, $end) => $what,
            Node::Host($end) => $what,
        }
    };
}

impl Node {
    fn world(&self, shard: ShardId) -> ShardId {
        match self {
            Node::Daemon(base, _) if shard != ShardId::CONTROL_PLANE => ShardId(base + shard.0),
            Node::Daemon(..) | Node::Host(_) => shard,
        }
    }

    fn client(&mut self) -> &mut Client<AnyPath> {
        match self {
            Node::Host(client) => client,
            Node::Daemon(..) => panic!("a daemon is no host"),
        }
    }
}

impl Endpoint for Node {
    type Message = Message;
    testkit::forward_links!(each);

    fn handle_arrival(&mut self, cx: &mut Cx<'_>, link: LinkId, how: LinkArrival<Message>) {
        match self {
            Node::Daemon(_, shard) => shard.handle_arrival(cx, link, how),
            Node::Host(_) => panic!("a host is not called"),
        }
    }
    fn handle_message(&mut self, cx: &mut Cx<'_>, message: Message) {
        // To a host any message is a nudge.
        if let Node::Daemon(_, shard) = self {
            shard.handle_message(cx, message);
        }
    }
    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        each!(self, end => end.handle_disk(cx, op, came));
    }
    fn poll_disk(&mut self) -> Option<DiskOp> {
        each!(self, end => end.poll_disk())
    }
    fn poll_departure(&mut self) -> Option<(LinkId, LinkDeparture<Message>)> {
        let (link, how) = match self {
            Node::Daemon(_, shard) => shard.poll_departure()?,
            Node::Host(client) => {
                let (link, how) = client.poll_departure()?;
                let how = match how {
                    LinkDeparture::Close => LinkDeparture::Close,
                    LinkDeparture::Abort | LinkDeparture::Move { .. } => LinkDeparture::Abort,
                };
                (link, how)
            }
        };
        Some(match how {
            LinkDeparture::Move { to, message } => {
                (link, LinkDeparture::Move { to: self.world(to), message })
            }
            how => (link, how),
        })
    }
    fn poll_message(&mut self) -> Option<(ShardId, Message)> {
        match self {
            Node::Daemon(_, shard) => {
                let (to, message) = shard.poll_message()?;
                Some((self.world(to), message))
            }
            Node::Host(_) => None,
        }
    }
    fn poll_timeout(&self) -> Option<Time> {
        each!(self, end => end.poll_timeout())
    }
}

/// Over which protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Over {
    Iscsi,
    Nvme,
}

fn portal(machine: [u8; 4], over: Over) -> SocketAddr {
    SocketAddr::from((machine, if over == Over::Iscsi { 3260 } else { 4420 }))
}

fn path(machine: [u8; 4], over: Over, number: u8) -> AnyPath {
    let url = match over {
        Over::Iscsi => format!("iscsi://{}/{}/0", portal(machine, over), target::TARGET_NAME),
        Over::Nvme => format!("nvme+tcp://{}/{}/1", portal(machine, over), target::SUBSYSTEM_NQN),
    };
    let who = HostIdentity {
        initiator: format!("iqn.2026-11.test:host{number}"),
        host: Nqn::parse(&format!("nqn.2026-11.test:host{number}")).unwrap(),
        host_id: HostId::new([number; 16]).unwrap(),
        isid: [number; 3],
    };
    let addresses = vec![portal(machine, over)];
    AnyPath::from_url(&Url::parse(&url).unwrap(), addresses, &who, &UrlSecrets::default(), 0).unwrap()
}

/// What the volumes' users wait for at most.
fn terms(seconds: u64) -> VolumeSettings {
    VolumeSettings { queue_timeout: Duration::from_secs(seconds), ..VolumeSettings::default() }
}

struct Scene {
    world: World<Node>,
    disk: Arc<RamDisk>,
    volume: VolumeHandle,
    next: u64,
}

fn far(disk: &Arc<RamDisk>) -> Vec<shard::VolumeSpec> {
    let geometry = RamBackend::new(disk.clone()).geometry();
    let disk = disk.clone();
    target::volume_specs(1, geometry, &[], None, move |_| RamBackend::new(disk.clone()))
}

impl Scene {
    /// A host that speaks `front` to a gateway that speaks `back` to the volume's daemon.
    fn new(seed: u64, front: Over, back: Over, lines: ConnectionFaults) -> Scene {
        let config = Config { shards: 3, pool_bytes: 64 << 20, lines, ..Config::new(seed) };
        let exports = || target::build_exports(&target::TargetLimits::default());
        let mut world = World::new(config, |id, _| match id.0 {
            2 => Node::Host(Box::default()),
            base => Node::Daemon(base, Box::new(Shard::new(ShardId(0), 1, exports()))),
        });
        for (machine, shard) in [(FAR, 0), (NEAR, 1)] {
            world.add_listener(portal(machine, Over::Iscsi), ListenerId(0), shard..shard + 1);
            world.add_listener(portal(machine, Over::Nvme), ListenerId(1), shard..shard + 1);
        }
        let disk = Arc::new(RamDisk::new(BLOCKS, 2 * BLOCKS, 512, 4096));
        for spec in far(&disk) {
            world.send_message(ShardId(0), Message::Control(1, ControlRequest::AddVolume(Box::new(spec))));
        }
        let make = move |cx: &mut Cx<'_>| {
            // As a daemon's: the far one may be away when this one starts.
            let terms = VolumeSettings { open_timeout: Duration::MAX, ..terms(5) };
            let remote = RemoteVolume::open(cx, vec![path(FAR, back, 7)], terms);
            Box::new(remote) as Box<dyn endpoint::NetworkBackend>
        };
        for mut spec in far(&disk) {
            spec.make = BackendFactory::Network(Box::new(make));
            world.send_message(ShardId(1), Message::Control(1, ControlRequest::AddVolume(Box::new(spec))));
        }
        let volume = world.with_endpoint(ShardId(2), |node, cx| {
            node.client().open(cx, vec![path(NEAR, front, 9)], terms(60)).unwrap()
        });
        let mut scene = Scene { world, disk, volume, next: 0 };
        scene.until("open volume", |scene| {
            let volume = scene.volume;
            let news = scene.world.with_endpoint(ShardId(2), |node, _| node.client().poll_event(volume));
            assert_ne!(news, Some(VolumeEvent::Failed));
            (news == Some(VolumeEvent::Open)).then_some(())
        });
        scene
    }

    fn until<R>(&mut self, what: &str, mut done: impl FnMut(&mut Scene) -> Option<R>) -> R {
        for _ in 0..200_000 {
            if let Some(found) = done(self) {
                return found;
            }
            self.world.run_for(Duration::from_millis(1));
        }
        panic!("{:?}: no {what}", self.world);
    }

    fn start(&mut self, op: Op, bytes: Option<&[u8]>) -> IoId {
        let (id, volume) = (IoId(self.next), self.volume);
        self.next += 1;
        self.world.with_endpoint(ShardId(2), |node, cx| {
            let payload = match (&op, bytes) {
                (Op::Read(span), _) => {
                    Payload::In(cx.pool.take_sg(MemoryClass::Solicited, span.blocks as usize * 512).unwrap())
                }
                (_, Some(bytes)) => {
                    let mut sg = cx.pool.take_sg(MemoryClass::Solicited, bytes.len()).unwrap();
                    sg.copy_from(0, bytes);
                    Payload::Out(sg.freeze())
                }
                (_, None) => Payload::None,
            };
            node.client().submit(cx, volume, Io { id, epoch: Epoch(0), op, payload }).unwrap();
        });
        id
    }

    fn end(&mut self, id: IoId) -> IoCompletion {
        let done = self.until("end of an operation", |scene| {
            let volume = scene.volume;
            scene.world.with_endpoint(ShardId(2), |node, _| node.client().poll_done(volume))
        });
        assert_eq!(done.id, id);
        done
    }

    fn run(&mut self, op: Op, bytes: Option<&[u8]>) -> IoCompletion {
        let id = self.start(op, bytes);
        self.end(id)
    }
}

fn span(lba: u64, blocks: u64) -> Span {
    Span { lba, blocks }
}

fn bytes(done: IoCompletion) -> Vec<u8> {
    done.result.unwrap();
    let sg = done.payload.into_sg();
    let mut bytes = vec![0; sg.len()];
    sg.copy_to(0, &mut bytes);
    bytes
}

const WAYS: [(Over, Over); 4] = [
    (Over::Iscsi, Over::Nvme),
    (Over::Nvme, Over::Iscsi),
    (Over::Iscsi, Over::Iscsi),
    (Over::Nvme, Over::Nvme),
];

/// A far controller whose host must prove itself, in a group of the controller's choosing: the gateway's shard gives
/// the powers away, serves meanwhile, and goes on with the answer.
#[test]
fn a_gateways_shard_serves_while_powers_for_a_far_controller_are_computed() {
    const SECRET: &str = "DHHC-1:01:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    let config = Config { shards: 2, pool_bytes: 64 << 20, ..Config::new(1) };
    let mut world = World::new(config, |id, _| {
        let mut exports = shard::Exports::clone(&target::build_exports(&target::TargetLimits::default()));
        if id.0 == 0 {
            for rule in exports.nvme.subsystems.iter_mut().flat_map(|subsystem| &mut subsystem.rules) {
                let secret = nvme::auth::DhchapSecret::parse(SECRET).unwrap();
                rule.auth = shard::HostAuth::Required(Arc::new(secret));
            }
        }
        Node::Daemon(id.0, Box::new(Shard::new(ShardId(0), 1, Arc::new(exports))))
    });
    world.add_listener(portal(FAR, Over::Nvme), ListenerId(1), 0..1);
    let disk = Arc::new(RamDisk::new(BLOCKS, 2 * BLOCKS, 512, 4096));
    for spec in far(&disk) {
        world.send_message(ShardId(0), Message::Control(1, ControlRequest::AddVolume(Box::new(spec))));
    }
    for mut spec in far(&disk) {
        spec.make = BackendFactory::Network(Box::new(|cx: &mut Cx<'_>| {
            let url = format!("nvme+tcp://{}/{}/1", portal(FAR, Over::Nvme), target::SUBSYSTEM_NQN);
            let who = HostIdentity {
                initiator: "iqn.2026-11.test:host7".into(),
                host: Nqn::parse("nqn.2026-11.test:host7").unwrap(),
                host_id: HostId::new([7; 16]).unwrap(),
                isid: [7; 3],
            };
            let secrets = UrlSecrets {
                ours: Some(blockwire_multipath::Secret::new(SECRET.into())),
                ..UrlSecrets::default()
            };
            let addresses = vec![portal(FAR, Over::Nvme)];
            let path = AnyPath::from_url(&Url::parse(&url).unwrap(), addresses, &who, &secrets, 0).unwrap();
            let remote = RemoteVolume::open(
                cx,
                vec![path],
                VolumeSettings { open_timeout: Duration::MAX, ..terms(5) },
            );
            Box::new(remote) as Box<dyn endpoint::NetworkBackend>
        }));
        world.send_message(ShardId(1), Message::Control(1, ControlRequest::AddVolume(Box::new(spec))));
    }
    let (mut asked, mut up) = (0, false);
    for round in 0..20_000 {
        world.run_for(Duration::from_millis(1));
        for (_, message) in world.take_control_messages() {
            match message {
                Message::Nvme(shard::NvmeMessage::Compute(_, id, _, work)) => {
                    let computed = shard::NvmeMessage::Computed(id, Box::new(work.run()));
                    world.send_message(ShardId(0), Message::Nvme(computed));
                }
                Message::Compute(_, remote, work) => {
                    asked += 1;
                    assert_eq!(work.peer(), portal(FAR, Over::Nvme).ip());
                    if asked == 1 {
                        // Nothing has been computed on the shard, and it answers others.
                        world.send_message(ShardId(1), Message::Barrier(ShardId::CONTROL_PLANE, 7));
                        world.run_for(Duration::from_millis(100));
                        let settled =
                            |(_, message): &(_, Message)| matches!(message, Message::BarrierReached(7));
                        assert!(world.take_control_messages().iter().any(settled) && work.is_wanted());
                    }
                    work.run();
                    world.send_message(ShardId(1), Message::Computed(remote));
                }
                _ => {}
            }
        }
        up = up || world.connections_via(portal(FAR, Over::Nvme)).len() > 1 && asked > 1;
        if up && round > 1000 {
            break;
        }
    }
    assert!(up, "the admin queue has proved itself, and so does an I/O queue: {asked}");
}

#[test]
fn bytes_pass_from_either_protocol_to_either() {
    for (seed, (front, back)) in WAYS.into_iter().enumerate() {
        let mut scene = Scene::new(seed as u64, front, back, ConnectionFaults::default());
        for (at, blocks) in [(0, 1), (100, 8), (1000, 512), (BLOCKS - 3, 3)] {
            let wrote: Vec<u8> = (0..blocks * 512).map(|i| (i % 251 + at) as u8).collect();
            scene.run(Op::Write(span(at, blocks), Durability::Cached), Some(&wrote)).result.unwrap();
            assert!(bytes(scene.run(Op::Read(span(at, blocks)), None)) == wrote, "{front:?} {back:?}");
            // It is the far daemon's disk that has them.
            let far = RamBackend::new(scene.disk.clone()).lend_memory(span(at, blocks)).unwrap();
            let mut there = vec![0; wrote.len()];
            far.copy_to(0, &mut there);
            assert!(there == wrote, "{front:?} {back:?}");
        }
        scene.run(Op::Flush, None).result.unwrap();
        let geometry =
            { scene.world.with_endpoint(ShardId(2), |node, _| node.client().geometry(scene.volume)) }
                .unwrap();
        assert_eq!((geometry.blocks, geometry.logical), (BLOCKS, 512));
    }
}

#[test]
fn a_far_daemon_that_is_away_for_a_while_is_waited_for() {
    for (seed, (front, back)) in WAYS.into_iter().enumerate() {
        let mut scene = Scene::new(seed as u64, front, back, ConnectionFaults::default());
        scene.world.set_reachability(portal(FAR, back), Reachability::Refused);
        for peer in scene.world.connections_via(portal(FAR, back)) {
            scene.world.reset(peer);
        }
        // What is on its way when they break is in doubt, and waits for its fence; this is about what comes later.
        scene.world.run_for(Duration::from_millis(50));
        let id = scene.start(Op::Write(span(5, 1), Durability::Cached), Some(&[9; 512]));
        scene.world.run_for(Duration::from_secs(1));
        scene.world.set_reachability(portal(FAR, back), Reachability::Open);
        scene.end(id).result.unwrap();
        assert_eq!(bytes(scene.run(Op::Read(span(5, 1)), None)), [9; 512]);
    }
}

#[test]
fn a_far_daemon_that_stays_away_is_an_error_in_time_and_no_hang() {
    for (seed, (front, back)) in WAYS.into_iter().enumerate() {
        let mut scene = Scene::new(seed as u64, front, back, ConnectionFaults::default());
        scene.world.set_reachability(portal(FAR, back), Reachability::Silent);
        let before = scene.world.now();
        let done = scene.run(Op::Read(span(5, 1)), None);
        let took = scene.world.now().since(before);
        assert!(done.result.is_err(), "{front:?} {back:?}: {done:?}");
        assert!(took < Duration::from_secs(120), "{front:?} {back:?}: {took:?}");
        assert!(
            !matches!(done.result, Err(Failure::Failed(Fault::Internal))),
            "{front:?} {back:?}: {done:?}"
        );
        // It serves again as soon as there is somebody to serve.
        scene.world.set_reachability(portal(FAR, back), Reachability::Open);
        scene.until("service", |scene| scene.run(Op::Read(span(5, 1)), None).result.ok());
    }
}

#[test]
fn a_size_passes_through() {
    for (seed, (front, back)) in WAYS.into_iter().enumerate() {
        let mut scene = Scene::new(seed as u64, front, back, ConnectionFaults::default());
        assert!(scene.disk.resize(BLOCKS + 1024));
        let ask = volume::VolumeRequest::Resize(scene.disk.geometry());
        scene.world.send_message(
            ShardId(0),
            Message::Control(2, ControlRequest::VolumeRequest(volume::VolumeId(0), ask)),
        );
        scene.until("new size", |scene| {
            // A host may hear of it with its next command only.
            let _ = scene.run(Op::Read(span(0, 1)), None);
            let geometry = scene
                .world
                .with_endpoint(ShardId(2), |node, _| node.client().geometry(scene.volume))
                .unwrap();
            (geometry.blocks == BLOCKS + 1024).then_some(())
        });
        scene
            .run(Op::Write(span(BLOCKS, 1024), Durability::Cached), Some(&vec![1; 1024 * 512]))
            .result
            .unwrap();
    }
}

#[test]
fn a_volume_that_is_dropped_parts_from_its_peer() {
    for (seed, (front, back)) in WAYS.into_iter().enumerate() {
        let mut scene = Scene::new(seed as u64, front, back, ConnectionFaults::default());
        assert!(!scene.world.connections_via(portal(FAR, back)).is_empty());
        scene.world.send_message(
            ShardId(1),
            Message::Control(3, ControlRequest::Stop { grace: Duration::from_secs(1) }),
        );
        scene.until("report of the stop", |scene| {
            let heard = scene.world.take_control_messages();
            heard.iter().any(|(_, message)| matches!(message, Message::Report(3, _))).then_some(())
        });
        scene.world.run_for(Duration::from_secs(1));
        assert_eq!(scene.world.connections_via(portal(FAR, back)), [], "{front:?} {back:?}");
        assert_eq!(scene.world.link_count(ShardId(1)), 0, "{front:?} {back:?}");
    }
}
