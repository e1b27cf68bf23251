//! The group's store on a real cluster, and the group's state machine on that store. `CEPH_DIR` names the directory of a
//! cluster that `tests/ceph.sh` has started; without it these tests are skipped with a word. `tests/interop/ceph-group.sh`
//! starts one and runs them.

mod disk;
mod members;
mod store;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blockwire_gateway::{GroupKey, GroupStore, StoreError, StoreEvent, StoreOptions, VolumeImage};
use buf::Time;
use group::{GroupName, StoreReply, StoreRequest, StoreTicket};
use rbd::{Client, ClusterOptions, Library};
use volume::Uuid;

/// A cluster. Tests that silence it are alone with it.
struct Cluster {
    dir: PathBuf,
    library: Library,
    _alone: MutexGuard<'static, ()>,
}

/// `None`: there is no cluster, which is said.
fn cluster() -> Option<Cluster> {
    static ALONE: Mutex<()> = Mutex::new(());
    let Some(dir) = std::env::var_os("CEPH_DIR") else {
        eprintln!("skipped: CEPH_DIR names no cluster (tests/interop/ceph-group.sh starts one)");
        return None;
    };
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    Some(Cluster { dir: dir.into(), library: Library::open().unwrap(), _alone: alone })
}

impl Cluster {
    fn options(&self) -> ClusterOptions {
        ClusterOptions { conf: Some(self.dir.join("ceph.conf")), user: None }
    }

    fn client(&self) -> Client {
        Client::connect(&self.library, &self.options()).unwrap()
    }

    /// A command of Ceph that must succeed.
    fn run(&self, program: &str, arguments: &[&str]) {
        let conf = self.dir.join("ceph.conf");
        let output = Command::new(program).arg("-c").arg(conf).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {said}");
    }

    /// The cluster is away, or there again.
    fn script(&self, verb: &str) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/ceph.sh");
        assert!(Command::new(script).arg(verb).arg(&self.dir).status().unwrap().success(), "{verb}");
    }

    fn image(&self, name: &str) -> VolumeImage {
        self.run("rbd", &["create", "--size", "16M", &format!("rbd/{name}")]);
        VolumeImage { pool: "rbd".to_owned(), namespace: None, image: name.to_owned() }
    }
}

/// A user of a cluster other than `admin`.
struct User(ClusterOptions);

impl Cluster {
    /// A user with these rights and no others.
    fn user(&self, rights: &[&str]) -> User {
        let name = fresh("user");
        let keyring = self.dir.join(&name);
        let create = ["auth", "get-or-create", &format!("client.{name}")];
        self.run("ceph", &[&create, rights, &["-o", keyring.to_str().unwrap()]].concat());
        let conf = std::fs::read_to_string(self.dir.join("ceph.conf")).unwrap();
        let lines = conf.lines().map(|line| match line.starts_with("keyring =") {
            true => format!("keyring = {}\n", keyring.display()),
            false => format!("{line}\n"),
        });
        let own = keyring.with_extension("conf");
        std::fs::write(&own, lines.collect::<String>()).unwrap();
        User(ClusterOptions { conf: Some(own), user: Some(name) })
    }
}

impl User {
    fn open(&self, cluster: &Cluster, group: &str) -> Opened {
        open_as(cluster, self.0.clone(), group, "rbd", 1).unwrap()
    }
}

/// A name that no other test and no earlier run has used.
fn fresh(what: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{what}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn now() -> Time {
    static BEGUN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    Time(1_000_000_000 + BEGUN.get_or_init(Instant::now).elapsed().as_nanos() as u64)
}

/// A store and what it has told.
struct Opened {
    store: GroupStore,
    events: Receiver<StoreEvent>,
    tickets: u64,
    /// What came while something else was waited for.
    others: Vec<StoreEvent>,
}

fn open_in(cluster: &Cluster, group: &str, pool: &str, key: u8) -> Result<Opened, StoreError> {
    open_as(cluster, cluster.options(), group, pool, key)
}

fn open_as(
    cluster: &Cluster,
    user: ClusterOptions,
    group: &str,
    pool: &str,
    key: u8,
) -> Result<Opened, StoreError> {
    let (tell, events) = channel();
    let options = StoreOptions {
        cluster: user,
        pool: pool.to_owned(),
        namespace: None,
        group: group.parse::<GroupName>().unwrap(),
        new_key: GroupKey::new([key; 32]),
    };
    let mailbox = Arc::new(move |event| drop(tell.send(event)));
    let store = GroupStore::open(&cluster.library, options, mailbox)?;
    Ok(Opened { store, events, tickets: 0, others: Vec::new() })
}

fn open(cluster: &Cluster, group: &str) -> Opened {
    open_in(cluster, group, "rbd", 1).unwrap()
}

impl Opened {
    fn start(&mut self, request: StoreRequest) -> StoreTicket {
        self.tickets += 1;
        let ticket = StoreTicket(self.tickets);
        self.store.ask(now(), ticket, request);
        ticket
    }

    fn wait(&mut self, ticket: StoreTicket) -> StoreReply {
        let begun = Instant::now();
        loop {
            match self.events.recv_timeout(Duration::from_millis(100)) {
                Ok(StoreEvent::Reply { ticket: of, reply }) if of == ticket => return reply,
                Ok(other) => self.others.push(other),
                Err(RecvTimeoutError::Timeout) => self.store.handle_timeout(now()),
                Err(RecvTimeoutError::Disconnected) => panic!("the store is gone"),
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "no reply; {:?}", self.others);
        }
    }

    fn ask(&mut self, request: StoreRequest) -> StoreReply {
        let ticket = self.start(request);
        self.wait(ticket)
    }

    /// Waits for an event other than a reply.
    fn event(&mut self, wanted: impl Fn(&StoreEvent) -> bool) -> StoreEvent {
        let begun = Instant::now();
        loop {
            if let Some(at) = self.others.iter().position(&wanted) {
                return self.others.remove(at);
            }
            self.others.extend(self.events.recv_timeout(Duration::from_millis(100)).ok());
            assert!(begun.elapsed() < Duration::from_secs(60), "not told; {:?}", self.others);
        }
    }

    fn set_volume(&self, volume: Uuid, image: &VolumeImage) {
        self.store.set_volumes(&BTreeMap::from([(volume, image.clone())]));
    }
}
