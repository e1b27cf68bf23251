//! Hosts that must authenticate: on every queue, on any shard, with the powers computed outside of the
//! shards.

use std::sync::Arc;
use std::time::Duration;

use blockwire_shard::{Exports, HostAuth, LogLine, NvmeLogLine, Shard, TlsMode};
use endpoint::ShardId;
use nvme::auth::{
    self, Concatenation, Credentials, DhchapPolicy, DhchapSecret, HostFault, HostProgress, MESSAGE_LEN_MAX,
};
use nvme::fabrics::{ConnectData, ConnectResult};
use nvme::tls::{GeneratedPsk, PskIdentity};
use nvme::{FabricsType, Nqn, Status};
use nvme_server::ControllerEnd;
use sim::{Peer, World};

use crate::host::{HOST, Host, PSKS, Wanted, heed, is_dead, run, transfer, wait};
use crate::queues::listings;
use crate::{pattern, world_with};
use testkit::nvme_host::TestQueue;
use testkit::target::{self, SUBSYSTEM_NQN, TargetLimits};

const SECRET: &str = "DHHC-1:01:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
const CONTROLLER: &str = "DHHC-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const OTHER: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

fn exports() -> Arc<Exports> {
    let mut exports = Exports::clone(&target::build_exports(&TargetLimits::default()));
    let secret = DhchapSecret::parse(SECRET).unwrap();
    for rule in exports.nvme.subsystems.iter_mut().flat_map(|subsystem| &mut subsystem.rules) {
        rule.auth = HostAuth::Required(Arc::new(secret.clone()));
    }
    Arc::new(exports)
}

/// The same, with a key by which controllers prove themselves.
fn mutual() -> Arc<Exports> {
    let mut exports = Exports::clone(&exports());
    let secrets = [SECRET, CONTROLLER].map(|text| Arc::new(DhchapSecret::parse(text).unwrap()));
    for rule in exports.nvme.subsystems.iter_mut().flat_map(|subsystem| &mut subsystem.rules) {
        let [host, controller] = secrets.clone();
        rule.auth = HostAuth::Mutual { host, controller };
    }
    Arc::new(exports)
}

fn credentials(secret: &str, controller: Option<&str>) -> Credentials {
    Credentials {
        host_nqn: HOST.to_owned(),
        subsystem_nqn: SUBSYSTEM_NQN.to_owned(),
        host: Some(DhchapSecret::parse(secret).unwrap().derive_key(HOST)),
        controller: controller.map(|secret| DhchapSecret::parse(secret).unwrap().derive_key(SUBSYSTEM_NQN)),
    }
}

/// Authenticates on a queue that has just connected.
fn enter(world: &mut World<Shard>, pipe: &mut TestQueue, secret: &str) -> Result<(), HostFault> {
    enter_with(world, pipe, credentials(secret, None))
}

fn enter_with(
    world: &mut World<Shard>,
    pipe: &mut TestQueue,
    credentials: Credentials,
) -> Result<(), HostFault> {
    enter_for(world, pipe, credentials, Concatenation::None).map(|_| ())
}

/// The same, and the PSK that it generates.
fn enter_for(
    world: &mut World<Shard>,
    pipe: &mut TestQueue,
    credentials: Credentials,
    concatenation: Concatenation,
) -> Result<Option<GeneratedPsk>, HostFault> {
    let mut drawn = 0_u8;
    let mut fill = |bytes: &mut [u8]| {
        bytes.fill_with(|| {
            drawn = drawn.wrapping_add(41);
            drawn
        });
    };
    let terms = (9, concatenation);
    let (mut side, first) =
        auth::HostAuthenticator::start_concatenation(credentials, DhchapPolicy::default(), terms, &mut fill);
    let mut progress = HostProgress::Send(first);
    loop {
        progress = match progress {
            HostProgress::Send(message) => {
                let sqe = auth::auth_sqe(FabricsType::AUTHENTICATION_SEND, message.len() as u32);
                let cid = pipe.send_command(world, sqe, &message, true, 0);
                assert_eq!(wait(world, pipe, cid).status, Status::SUCCESS);
                side.handle_sent()
            }
            HostProgress::Receive => {
                let sqe = auth::auth_sqe(FabricsType::AUTHENTICATION_RECEIVE, MESSAGE_LEN_MAX as u32);
                let cid = pipe.send_command(world, sqe, &[], false, MESSAGE_LEN_MAX);
                let ended = wait(world, pipe, cid);
                assert_eq!(ended.status, Status::SUCCESS);
                side.handle_message(&ended.data)
            }
            HostProgress::Compute(work) => side.handle_computed(work.run()),
            HostProgress::Authenticated => return Ok(side.take_psk()),
            HostProgress::Failed(fault) => return Err(fault),
        };
    }
}

/// Connects an admin queue, whose answer wants authentication.
fn admin(world: &mut World<Shard>) -> Host {
    let wanted = Wanted::default();
    let mut pipe = TestQueue::open_connection(world, wanted.listener, wanted.digests);
    let cid = pipe.send_connect(world, &wanted.connect(0), &wanted.names(ConnectData::DYNAMIC));
    let connected = ConnectResult::parse(wait(world, &mut pipe, cid).result);
    assert!(connected.authenticate);
    Host { wanted, pipes: vec![pipe], cntlid: connected.cntlid }
}

#[test]
fn every_queue_authenticates_wherever_it_lives() {
    for seed in 0..4 {
        let mut world = world_with(seed, 3, &exports());
        let mut host = admin(&mut world);
        enter(&mut world, &mut host.pipes[0], SECRET).unwrap();
        host.enable(&mut world);
        for qid in 1..=3 {
            let ended = host.join(&mut world, qid);
            assert!(ConnectResult::parse(ended.result).authenticate, "queue {qid}");
            let at = usize::from(qid);
            let refused = host.ask(&mut world, at, transfer(2, 0, 1), &[], 512);
            assert_eq!(refused.status, Status::AUTHENTICATION_REQUIRED.with_do_not_retry());
            enter(&mut world, &mut host.pipes[at], SECRET).unwrap();
        }
        assert_eq!(host.write(&mut world, 1, 5, &pattern(5, 8, 1)), Status::SUCCESS);
        assert!(host.read(&mut world, 3, 5, 8) == pattern(5, 8, 1));
    }
}

#[test]
fn a_wrong_secret_is_refused_and_the_link_closed() {
    for seed in 0..4 {
        let mut world = world_with(seed, 2, &exports());
        let mut host = admin(&mut world);
        let fault = enter(&mut world, &mut host.pipes[0], OTHER).unwrap_err();
        assert_eq!(fault, HostFault::Refused(auth::FailureExplanation::FAILED));
        run(&mut world, &mut [&mut host.pipes[0]], |world, pipes| is_dead(world, pipes[0]));
        world.run_for(Duration::from_secs(1));
        assert!(listings(&mut world).iter().all(|listing| listing.queues.is_empty()));
    }
}

/// How a controller whose host asked it for a proof ended, as the log is told.
fn ended(world: &mut World<Shard>) -> Vec<ControllerEnd> {
    (0..2)
        .flat_map(|shard| {
            std::iter::from_fn(|| world.endpoint_mut(ShardId(shard)).poll_log()).collect::<Vec<_>>()
        })
        .filter_map(|line| match line {
            LogLine::Nvme(NvmeLogLine::Disconnected { why, host, subsystem, .. }) => {
                assert_eq!((host.as_str(), subsystem.as_str()), (HOST, SUBSYSTEM_NQN));
                Some(why)
            }
            _ => None,
        })
        .collect()
}

#[test]
fn a_controller_proves_itself_on_every_queue_where_it_has_a_key() {
    let mut world = world_with(1, 2, &mutual());
    let mut host = admin(&mut world);
    let both = || credentials(SECRET, Some(CONTROLLER));
    enter_with(&mut world, &mut host.pipes[0], both()).unwrap();
    host.enable(&mut world);
    for qid in 1..=2 {
        host.join(&mut world, qid);
        enter_with(&mut world, &mut host.pipes[usize::from(qid)], both()).unwrap();
    }
    assert_eq!(host.write(&mut world, 1, 5, &pattern(5, 8, 1)), Status::SUCCESS);
    // Who does not ask gets in as before.
    let mut other = admin(&mut world);
    enter(&mut world, &mut other.pipes[0], SECRET).unwrap();
}

#[test]
fn a_controller_that_cannot_prove_itself_is_refused_and_the_log_says_why() {
    // No key; another key, of which only the host can tell.
    let refused = HostFault::Refused(auth::FailureExplanation::FAILED);
    let wrong = HostFault::Wrong(auth::FailureExplanation::FAILED);
    let by_host = ControllerEnd::RefusedByHost(auth::FailureExplanation::FAILED);
    let rows =
        [(exports(), CONTROLLER, refused, ControllerEnd::NoControllerKey), (mutual(), OTHER, wrong, by_host)];
    for (exports, controller, fault, end) in rows {
        let mut world = world_with(2, 2, &exports);
        let mut host = admin(&mut world);
        let wanted = credentials(SECRET, Some(controller));
        assert_eq!(enter_with(&mut world, &mut host.pipes[0], wanted).unwrap_err(), fault);
        run(&mut world, &mut [&mut host.pipes[0]], |world, pipes| is_dead(world, pipes[0]));
        world.run_for(Duration::from_secs(1));
        assert_eq!(ended(&mut world), [end]);
    }
}

struct NoKeys;

impl tls::PskLookup for NoKeys {
    fn find_psk(&self, _: &[u8]) -> Option<tls::Psk> {
        None
    }
}

/// Exports whose addresses allow TLS, and whose subsystem uses it like this.
fn concatenating(mode: TlsMode) -> Arc<Exports> {
    let mut exports = Exports::clone(&mutual());
    exports.nvme.tls = Some(tls::ServerContext::new(Arc::new(NoKeys)).unwrap());
    exports.nvme.portals.iter_mut().for_each(|portal| portal.tls = TlsMode::Allow);
    exports.nvme.subsystems.iter_mut().for_each(|subsystem| subsystem.tls = mode);
    Arc::new(exports)
}

/// What the control plane was told of PSKs: identities, and whether each holds now.
fn told(world: &mut World<Shard>) -> Vec<(PskIdentity, bool)> {
    heed(world, &mut Vec::new());
    PSKS.take()
}

#[test]
fn the_control_plane_hears_of_a_generated_psk_before_its_host_has_its_answer() {
    for (mode, controller) in
        [(TlsMode::Allow, None), (TlsMode::Require, None), (TlsMode::Require, Some(CONTROLLER))]
    {
        let mut world = world_with(3, 2, &concatenating(mode));
        let wanted = Wanted::default();
        let mut pipe = TestQueue::open_connection(&mut world, wanted.listener, wanted.digests);
        let cid = pipe.send_connect(&mut world, &wanted.connect(0), &wanted.names(ConnectData::DYNAMIC));
        let connected = ConnectResult::parse(wait(&mut world, &mut pipe, cid).result);
        let required = mode == TlsMode::Require;
        assert_eq!((connected.authenticate, connected.secure_channel), (!required, required));
        told(&mut world);
        let new = Concatenation::NewPsk;
        let psk = enter_for(&mut world, &mut pipe, credentials(SECRET, controller), new).unwrap().unwrap();
        let (host, subsystem) = (Nqn::parse(HOST).unwrap(), Nqn::parse(SUBSYSTEM_NQN).unwrap());
        let identity = psk.identity(&host, &subsystem).unwrap();
        assert_eq!(told(&mut world), [(identity, true)]);
        // It holds when the host has gone: it comes again with it.
        world.shutdown_write(Peer(pipe.at));
        world.run_for(Duration::from_secs(1));
        assert_eq!(told(&mut world), []);
    }
}

#[test]
fn a_psk_of_a_host_that_refuses_the_controller_is_revoked() {
    let mut world = world_with(4, 2, &concatenating(TlsMode::Allow));
    let mut host = admin(&mut world);
    told(&mut world);
    let (wrong, new) = (credentials(SECRET, Some(OTHER)), Concatenation::NewPsk);
    enter_for(&mut world, &mut host.pipes[0], wrong, new).unwrap_err();
    world.run_for(Duration::from_secs(1));
    let told = told(&mut world);
    assert_eq!(told.iter().map(|(_, holds)| *holds).collect::<Vec<_>>(), [true, false]);
    assert_eq!(told[0].0, told[1].0);
}

#[test]
fn without_tls_at_the_address_no_psk_is_generated() {
    let mut world = world_with(5, 2, &mutual());
    let mut host = admin(&mut world);
    let new = Concatenation::NewPsk;
    let fault =
        enter_for(&mut world, &mut host.pipes[0], credentials(SECRET, None), new).map(|_| ()).unwrap_err();
    assert_eq!(fault, HostFault::Refused(auth::FailureExplanation::CONCATENATION));
}
