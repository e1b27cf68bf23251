//! Images as disks of the reactor, behind a volume's gate, on a library that keeps them in files and has faults
//! (`fake.c`).

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use backends::{FileBackend, FileDisk, FileFacts};
use blockwire_rbd::{Image, Library, OpenError, Options};
use buf::{Cx, Errno, MemoryClass, Payload, Time};
use endpoint::{Endpoint, LinkArrival, LinkDeparture, LinkId, ShardId};
use reactor::{Config, DiskSource, InlineReactor, IoChoice};
use stream::{Received, RecvOp, SendOp};
use volume::{
    DiskId, DiskOp, Durability, Epoch, Failure, Fault, Gate, Identity, Io, IoCompletion, IoId, Op, Outcome,
    PortId, Requester, SharedGateState, Span, View,
};

const BYTES: u64 = 4 << 20;
const OK: Result<Outcome, Failure> = Ok(Outcome::Complete);
const LOST: Result<Outcome, Failure> = Err(Failure::Failed(Fault::PathLost));

/// The library, compiled once.
fn library() -> Library {
    static BUILT: OnceLock<CString> = OnceLock::new();
    let file = BUILT.get_or_init(|| {
        let to = format!("{}/librbd-fake-{}.so", env!("CARGO_TARGET_TMPDIR"), std::process::id());
        let from = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake.c");
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o", &to, from, "-lpthread"]).status();
        assert!(built.unwrap().success(), "fake.c compiles");
        CString::new(to).unwrap()
    });
    Library::open_files([file, file]).unwrap()
}

/// A cluster: a directory with a pool and an image.
struct Cluster(tempfile::TempDir);

impl Cluster {
    fn new() -> Self {
        let cluster = Cluster(tempfile::tempdir().unwrap());
        fs::create_dir(cluster.path("pool")).unwrap();
        fs::File::create(cluster.path("pool/image")).unwrap().set_len(BYTES).unwrap();
        fs::write(cluster.path("conf"), format!("dir = {}\n", cluster.0.path().display())).unwrap();
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// What goes wrong from now on.
    fn control(&self, words: &str) {
        // Renamed, so that no call reads half of it.
        fs::write(self.path("next"), words.replace(' ', "\n")).unwrap();
        fs::rename(self.path("next"), self.path("control")).unwrap();
    }

    fn options(&self) -> Options {
        Options {
            pool: "pool".to_owned(),
            namespace: None,
            image: "image".to_owned(),
            conf: Some(self.path("conf")),
            user: None,
            read_only: false,
            break_lock: false,
            answer: blockwire_rbd::ANSWER,
            lock_wait: blockwire_rbd::LOCK_WAIT,
        }
    }

    fn open(&self) -> Image {
        Image::open(&library(), &self.options()).unwrap()
    }

    fn refusal(&self, change: impl FnOnce(&mut Options)) -> String {
        let mut options = self.options();
        change(&mut options);
        Image::open(&library(), &options).unwrap_err().to_string()
    }

    /// The calls that the image was given.
    fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("pool/image.log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    fn has_closed(&self) -> bool {
        self.log().iter().any(|line| line.starts_with("close"))
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A volume on the image, on one shard.
struct Volume {
    gate: Gate,
    done: Vec<IoCompletion>,
}

impl Endpoint for Volume {
    type Message = ();

    fn handle_arrival(&mut self, _: &mut Cx<'_>, _: LinkId, _: LinkArrival<()>) {}
    fn handle_message(&mut self, _: &mut Cx<'_>, (): ()) {}
    fn handle_recv(&mut self, _: &mut Cx<'_>, _: LinkId, _: RecvOp, _: Received) {}
    fn handle_written(&mut self, _: &mut Cx<'_>, _: LinkId, _: Result<(), Errno>) {}
    fn handle_send_released(&mut self, _: &mut Cx<'_>, _: LinkId, _: SendOp) {}
    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        self.gate.handle_disk(cx, op, came);
    }
    fn handle_timeout(&mut self, _: &mut Cx<'_>) {}
    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        let more = self.gate.resume(cx);
        self.done.extend(std::iter::from_fn(|| self.gate.poll_done()));
        more
    }
    fn poll_ready(&mut self) -> Option<LinkId> {
        None
    }
    fn poll_recv(&mut self, _: &mut Cx<'_>, _: LinkId) -> Option<RecvOp> {
        None
    }
    fn poll_send(&mut self, _: &mut Cx<'_>, _: LinkId) -> Option<SendOp> {
        None
    }
    fn poll_disk(&mut self) -> Option<DiskOp> {
        self.gate.poll_disk()
    }
    fn poll_departure(&mut self) -> Option<(LinkId, LinkDeparture<()>)> {
        None
    }
    fn poll_message(&mut self) -> Option<(ShardId, ())> {
        None
    }
    fn poll_timeout(&self) -> Option<Time> {
        self.gate.poll_timeout()
    }
}

struct World {
    inline: InlineReactor<Volume>,
    next: u64,
}

impl World {
    fn new(image: &Image, queue_timeout: Duration) -> Self {
        World::on(image, queue_timeout, IoChoice::Epoll)
    }

    fn on(image: &Image, queue_timeout: Duration, io: IoChoice) -> Self {
        let facts = FileFacts {
            direct: false,
            memory_align: 1,
            offset_align: 512,
            write_cache: false,
            write_through: true,
            ..FileFacts::new(image.bytes())
        };
        let disk = Arc::new(FileDisk::new(DiskId(0), &facts, 1).unwrap());
        let disks = vec![DiskSource::Library(Arc::new(image.clone()))];
        let config = Config { io, disks, pool_bytes: 16 << 20, ..Config::default() };
        let inline = InlineReactor::new(config, |_| {
            let shared = SharedGateState::new(1);
            shared.set_queue_timeout(queue_timeout);
            let view = View::without_reservations(disk.geometry());
            let gate = Gate::new(volume::ShardId(0), shared, view, Box::new(FileBackend::new(disk, 0)));
            Volume { gate, done: Vec::new() }
        });
        World { inline: inline.unwrap(), next: 1 }
    }

    fn start(&mut self, op: Op, bytes: &[u8]) -> IoId {
        let who =
            Requester { identity: Arc::new(Identity::Host([1; 16])), port: PortId(1), read_only: false };
        let id = IoId(self.next);
        self.next += 1;
        self.inline.with_endpoint(|volume, cx| {
            let payload = match &op {
                Op::Read(span) => {
                    Payload::In(cx.pool.take_sg(MemoryClass::Wire, span.blocks as usize * 512).unwrap())
                }
                _ if bytes.is_empty() => Payload::None,
                _ => {
                    let mut memory = cx.pool.take_sg(MemoryClass::Wire, bytes.len()).unwrap();
                    memory.copy_from(0, bytes);
                    Payload::Out(memory.freeze())
                }
            };
            volume.gate.submit(cx, &who, Io { id, epoch: Epoch::default(), op, payload });
        });
        id
    }

    fn end(&mut self, id: IoId) -> (Result<Outcome, Failure>, Vec<u8>) {
        let begun = Instant::now();
        loop {
            let done = &mut self.inline.take_from_endpoint(|volume| std::mem::take(&mut volume.done));
            if let Some(at) = done.iter().position(|done| done.id == id) {
                let IoCompletion { result, payload, .. } = done.swap_remove(at);
                self.inline.take_from_endpoint(|volume| volume.done.append(done));
                let memory = payload.into_sg();
                let mut bytes = vec![0; memory.len()];
                memory.copy_to(0, &mut bytes);
                return (result, bytes);
            }
            self.inline.take_from_endpoint(|volume| volume.done.append(done));
            assert!(begun.elapsed() < Duration::from_secs(20), "an operation does not end");
            self.inline.turn(Some(Duration::from_millis(100)));
        }
    }

    fn run(&mut self, op: Op, bytes: &[u8]) -> (Result<Outcome, Failure>, Vec<u8>) {
        let id = self.start(op, bytes);
        self.end(id)
    }

    fn write(&mut self, lba: u64, bytes: &[u8]) -> Result<Outcome, Failure> {
        self.run(Op::Write(span(lba, bytes.len() as u64 / 512), Durability::Stable), bytes).0
    }

    fn read(&mut self, lba: u64, blocks: u64) -> (Result<Outcome, Failure>, Vec<u8>) {
        self.run(Op::Read(span(lba, blocks)), &[])
    }

    fn lent(&self) -> u64 {
        self.inline.stats().pool_lent
    }
}

fn span(lba: u64, blocks: u64) -> Span {
    Span { lba, blocks }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 9) as u8 ^ seed).collect()
}

#[test]
fn an_image_is_a_disk_without_a_cache() {
    for io in [IoChoice::Epoll, IoChoice::Auto] {
        let cluster = Cluster::new();
        let image = cluster.open();
        assert_eq!(image.bytes(), BYTES);
        assert_eq!(image.name(), "pool/image");
        assert_eq!(image.identity().fsid, "0dd1f2c4-0000-4000-8000-000000000001");
        let mut world = World::on(&image, Duration::ZERO, io);
        // In many pieces: longer than the pool's largest block.
        let bytes = pattern(1 << 20, 1);
        assert_eq!(world.write(9, &bytes), OK);
        assert_eq!(world.read(9, 2048), (OK, bytes.clone()));
        assert_eq!(world.run(Op::Unmap(vec![span(9, 128)]), &[]).0, OK);
        assert_eq!(world.read(9, 128), (OK, vec![0; 65536]));
        assert_eq!(world.run(Op::WriteZeroes { span: span(200, 8), unmap: false }, &[]).0, OK);
        assert_eq!(world.read(200, 9).1[..4096], [0; 4096]);
        let both = [world.read(300, 1).1, pattern(512, 9)].concat();
        assert_eq!(world.run(Op::CompareAndWrite(span(300, 1)), &both).0, OK);
        assert_eq!(world.read(300, 1).1, pattern(512, 9));
        assert_eq!(world.run(Op::Flush, &[]).0, OK);
        let (extents, _) = world.run(Op::Extents(span(0, 8192)), &[]);
        let Ok(Outcome::Extents(extents)) = extents else { panic!("{extents:?}") };
        assert!(extents[0].mapped && extents.last().is_some_and(|last| !last.mapped), "{extents:?}");
        let log = cluster.log();
        let count = |what: &str| log.iter().filter(|line| line.starts_with(what)).count();
        assert_eq!(
            (count("flush"), count("thin"), count("thick")),
            (1, 1, 1),
            "only the flush flushes: {log:?}"
        );
        drop(world);
        drop(image);
        until("an image that nobody has is closed", || cluster.has_closed());
    }
}

#[test]
fn errors_are_path_errors_unless_they_are_of_blocks() {
    let cluster = Cluster::new();
    let image = cluster.open();
    let mut world = World::new(&image, Duration::ZERO);
    for lost in
        [libc::ETIMEDOUT, libc::EROFS, libc::ENOENT, libc::EPERM, libc::EINVAL, libc::EAGAIN, libc::EINTR]
    {
        cluster.control(&format!("fail={lost}"));
        assert_eq!(world.read(0, 1).0, LOST, "{lost}");
        assert_eq!(world.write(0, &[1; 512]), LOST, "{lost}");
        assert_eq!(world.run(Op::Flush, &[]).0, LOST, "{lost}");
        assert_eq!(world.run(Op::Unmap(vec![span(0, 8)]), &[]).0, LOST, "{lost}");
    }
    cluster.control("fail=5");
    assert_eq!(world.read(7, 1).0, Err(Fault::Medium(7).into()));
    cluster.control("fail=28");
    assert_eq!(world.write(0, &[1; 512]), Err(Fault::NoSpace.into()));
    // Refused at once instead of in the callback.
    cluster.control("refuse=108");
    assert_eq!(world.read(0, 1).0, LOST);
    // A short read goes on.
    let image = Cluster::new();
    drop(image);
    cluster.control("");
    assert!(world.lent() < 1 << 20, "memory comes back: {}", world.lent());
}

#[test]
fn a_short_read_goes_on_and_one_that_brings_nothing_is_an_error() {
    let cluster = Cluster::new();
    let image = cluster.open();
    let mut world = World::new(&image, Duration::ZERO);
    let bytes = pattern(8192, 3);
    assert_eq!(world.write(0, &bytes), OK);
    cluster.control("short=512");
    assert_eq!(world.read(0, 16), (OK, bytes));
}

#[test]
fn a_client_that_is_blocklisted_succeeds_in_nothing_and_asks_nothing_more() {
    let cluster = Cluster::new();
    let image = cluster.open();
    let mut world = World::new(&image, Duration::ZERO);
    assert_eq!(world.write(0, &[1; 512]), OK);
    let seen = blockwire_rbd::changes();
    cluster.control("fail=108");
    assert_eq!(world.write(0, &[2; 512]), LOST);
    assert!(image.is_fenced());
    assert!(blockwire_rbd::wait_for_change(seen, Some(Duration::from_secs(10))) > seen);
    cluster.control("");
    let before = cluster.log().len();
    assert_eq!(world.write(0, &[3; 512]), LOST);
    assert_eq!(world.read(0, 1).0, LOST);
    assert_eq!(world.run(Op::Flush, &[]).0, LOST);
    assert_eq!(cluster.log().len(), before, "nothing was asked");
}

/// The cluster is away: hosts hear of it in time; what was queued still counts until the library has ended it.
#[test]
fn an_operation_that_is_not_answered_in_time_is_a_path_error_and_keeps_its_blocks() {
    let cluster = Cluster::new();
    let image = cluster.open();
    let mut world = World::new(&image, Duration::from_millis(200));
    assert_eq!(world.write(0, &[1; 512]), OK);
    cluster.control("hold");
    let begun = Instant::now();
    let write = world.start(Op::Write(span(0, 1), Durability::Stable), &[2; 512]);
    let swap = world.start(Op::CompareAndWrite(span(0, 1)), &[[2; 512], [3; 512]].concat());
    let read = world.start(Op::Read(span(8, 1)), &[]);
    assert_eq!(
        (world.end(write).0, world.end(swap).0),
        (LOST, LOST),
        "the second waits for the first's blocks"
    );
    assert_eq!(world.end(read), (LOST, Vec::new()));
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(190) && waited < Duration::from_secs(5), "{waited:?}");
    // What is out is bounded: then others fail at once.
    let many: Vec<IoId> = (0..40).map(|at| world.start(Op::Read(span(at, 1)), &[])).collect();
    for read in many {
        assert_eq!(world.end(read).0, LOST);
    }
    let begun = Instant::now();
    assert_eq!(world.read(0, 1).0, LOST);
    assert!(begun.elapsed() < Duration::from_millis(150), "it fails at once");
    cluster.control("");
    // The first write has been carried out in the end, and only that.
    until("the volume works again", || world.read(0, 1) == (OK, vec![2; 512]));
    assert_eq!(world.inline.endpoint().gate.in_flight_count(), 0);
    assert_eq!(world.write(0, &[4; 512]), OK);
    assert_eq!(world.read(0, 1), (OK, vec![4; 512]));
}

#[test]
fn a_completion_that_never_comes_keeps_its_memory_and_the_image_open() {
    let cluster = Cluster::new();
    let image = cluster.open();
    let mut world = World::new(&image, Duration::from_millis(100));
    cluster.control("lose");
    let lost = world.start(Op::Write(span(0, 8), Durability::Stable), &[7; 4096]);
    assert_eq!(world.end(lost).0, LOST);
    cluster.control("");
    assert_eq!(world.write(64, &[8; 512]), OK, "others go on");
    assert_eq!(world.inline.endpoint().gate.in_flight_count(), 1);
    // It is out for ever, and nothing may be closed or freed under it: the reactor would wait for it.
    std::mem::forget(world);
    drop(image);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!cluster.has_closed());
}

#[test]
fn an_image_is_closed_behind_its_last_call() {
    let cluster = Cluster::new();
    let image = cluster.open();
    let mut world = World::new(&image, Duration::ZERO);
    cluster.control("delay=300");
    for at in 0..8 {
        world.start(Op::Write(span(at * 8, 8), Durability::Stable), &[7; 4096]);
    }
    world.inline.turn(Some(Duration::ZERO));
    drop(image);
    drop(world);
    until("it is closed", || cluster.has_closed());
    let log = cluster.log();
    assert_eq!(log.iter().filter(|line| line.starts_with("write")).count(), 8);
    assert!(log.last().is_some_and(|last| last.starts_with("close")), "{log:?}");
    assert_eq!(fs::read(cluster.path("pool/image")).unwrap()[..32768], [7; 32768]);
}

#[test]
fn an_image_that_is_being_closed_can_be_opened_again() {
    let cluster = Cluster::new();
    let image = cluster.open();
    let mut world = World::new(&image, Duration::ZERO);
    cluster.control("delay=500");
    world.start(Op::Write(span(0, 8), Durability::Stable), &[7; 4096]);
    world.inline.turn(Some(Duration::ZERO));
    // The call keeps the image open, and its lock.
    drop(image);
    let closes = std::thread::spawn({
        let options = cluster.options();
        move || Image::open(&library(), &options).map(|image| image.bytes())
    });
    drop(world);
    assert_eq!(closes.join().unwrap().unwrap(), BYTES);
    let log = cluster.log();
    let locks: Vec<_> =
        log.iter().filter(|line| line.starts_with("lock") || line.starts_with("close")).collect();
    let here = Image::open(&library(), &cluster.options()).unwrap();
    let twice = Image::open(&library(), &cluster.options()).unwrap_err();
    assert_eq!(twice.to_string(), "it is already open as another volume of this daemon");
    drop(here);
    assert_eq!(locks[..3], ["lock 0 0", "close 0 0", "lock 0 0"], "one at a time");
}

#[test]
fn a_resize_is_told() {
    let cluster = Cluster::new();
    let image = cluster.open();
    let file = OpenOptions::new().write(true).open(cluster.path("pool/image")).unwrap();
    for bytes in [2 * BYTES, BYTES / 2] {
        let mut seen = blockwire_rbd::changes();
        file.set_len(bytes).unwrap();
        until("the size is told", || {
            seen = blockwire_rbd::wait_for_change(seen, Some(Duration::from_millis(100)));
            image.bytes() == bytes
        });
    }
    // Behind the end nothing is read as zeroes, nor as bad blocks.
    let mut world = World::new(&image, Duration::ZERO);
    file.set_len(BYTES / 4).unwrap();
    until("the size is told", || image.bytes() == BYTES / 4);
    // librbd writes what is before the end, and says that all is well.
    assert_eq!(world.write(BYTES / 512 / 4 - 1, &[1; 1024]), LOST);
    assert_eq!(world.write(BYTES / 512 / 4 - 2, &[1; 1024]), OK);
    cluster.control("fail=22");
    assert_eq!(world.write(BYTES / 512 / 4, &[1; 512]), LOST);
}

#[test]
fn what_is_wrong_is_named() {
    let cluster = Cluster::new();
    assert_eq!(cluster.refusal(|options| options.pool = "pol".to_owned()), "there is no pool \"pol\"");
    assert_eq!(
        cluster.refusal(|options| options.image = "imgae".to_owned()),
        "there is no image \"imgae\" in \"pool\""
    );
    let space = |options: &mut Options| options.namespace = Some("space".to_owned());
    assert_eq!(cluster.refusal(space), "there is no image \"image\" in \"pool/space\"");
    let conf = cluster.refusal(|options| options.conf = Some("/nowhere/ceph.conf".into()));
    assert!(
        conf.starts_with("cannot read the configuration of Ceph, /nowhere/ceph.conf: No such file"),
        "{conf}"
    );
    for (errno, want) in [
        (libc::EACCES, "refuses client.admin"),
        (libc::ENOENT, "no readable keyring has a key of client.admin"),
        (libc::ETIMEDOUT, "answers within 15 s"),
        (libc::ECONNRESET, "cannot connect to the cluster: Connection reset"),
    ] {
        cluster.control(&format!("connect={errno}"));
        let why = cluster.refusal(|_| ());
        assert!(why.contains(want), "{why}");
    }
    cluster.control("cache=on");
    let why = cluster.refusal(|_| ());
    assert!(why.starts_with("rbd_cache is \"true\" for this image"), "{why}");
    cluster.control("features=1");
    let why = cluster.refusal(|_| ());
    assert!(why.contains("`rbd feature enable pool/image exclusive-lock`"), "{why}");
    until("what was opened is closed", || {
        cluster.log().iter().filter(|line| *line == "close 0 0").count() == 2
    });
    let absent = Library::open_files([c"/nowhere/librados.so.2", c"/nowhere/librbd.so.1"]).unwrap_err();
    assert!(absent.to_string().contains("/nowhere/librados.so.2"), "{absent}");
    let old = Library::open_files([c"libc.so.6", c"libc.so.6"]).unwrap_err();
    assert_eq!(old.to_string(), "librados.so.2 has no function rados_create: Ceph 16 or later is needed");
}

#[test]
fn the_lock_of_another_client_is_taken_only_if_that_is_gone_and_it_was_said() {
    let cluster = Cluster::new();
    cluster.control("owner=192.0.2.1:0/77 connected");
    let refused = Image::open(&library(), &cluster.options()).unwrap_err();
    assert!(
        refused.is_locked()
            && matches!(&refused, OpenError::Locked(owner, true) if owner == "192.0.2.1:0/77")
    );
    cluster.control("owner=192.0.2.1:0/77");
    let why = cluster.refusal(|_| ());
    assert!(why.contains("is not connected, 192.0.2.1:0/77") && why.contains("break_lock=on"), "{why}");
    assert!(!cluster.path("blocklist").exists());
    // One that only reads needs no lock.
    Image::open(&library(), &Options { read_only: true, ..cluster.options() }).unwrap();
    let image = Image::open(&library(), &Options { break_lock: true, ..cluster.options() }).unwrap();
    let listed = fs::read_to_string(cluster.path("blocklist")).unwrap();
    assert_eq!(listed, "192.0.2.1:0/77 31536000\n".repeat(2), "before the lock is broken, and behind it");
    drop(image);
}

#[test]
fn a_cluster_that_is_silent_is_not_waited_for_for_ever() {
    let cluster = Cluster::new();
    cluster.control("silent");
    let begun = Instant::now();
    let why = cluster.refusal(|options| options.answer = Duration::from_secs(1));
    assert_eq!(why, "the cluster does not answer within 1s (opening the image)");
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(blockwire_rbd::is_opening());
    let again = Image::open(&library(), &cluster.options()).unwrap_err();
    assert!(matches!(again, OpenError::StillOpening) && again.may_pass(), "{again}");
    // By now a client that is gone has the lock: nobody wants it any more.
    cluster.control("owner=192.0.2.1:0/77");
    until("what was opened later is closed", || cluster.has_closed());
    assert!(!cluster.log().iter().any(|line| line.starts_with("lock")), "{:?}", cluster.log());
    cluster.control("");
    until("it can be opened again", || Image::open(&library(), &cluster.options()).is_ok());
}

#[test]
fn an_opener_that_was_given_up_breaks_no_lock() {
    let cluster = Cluster::new();
    cluster.control("silent owner=192.0.2.1:0/77");
    let options = Options { break_lock: true, answer: Duration::from_millis(100), ..cluster.options() };
    let options = Options { lock_wait: Duration::ZERO, ..options };
    let why = Image::open(&library(), &options).unwrap_err();
    assert!(matches!(why, OpenError::Silent(..)), "{why}");
    cluster.control("owner=192.0.2.1:0/77");
    until("what was opened later is closed", || cluster.has_closed());
    assert!(!cluster.path("blocklist").exists());
    assert!(!cluster.log().iter().any(|line| line.starts_with("lock")), "{:?}", cluster.log());
}
