//! Servers under comparison: how each is started and reached.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::{spdk, system};

/// How long a server may take to start, and to stop.
const START_STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Size of each volume in MiB.
pub const VOLUME_MIB: usize = 256;
/// The NVMe subsystem of Blockwire's and of SPDK's volume.
const SUBSYSTEM_NQN: &str = "nqn.2026-11.io.blockwire:bench";
/// The subsystem and the target of the volume that is not measured, on Blockwire.
pub const BESIDE_SUBSYSTEM_NQN: &str = "nqn.2026-11.io.blockwire:beside";
/// See [`BESIDE_SUBSYSTEM_NQN`].
pub const BESIDE_TARGET_IQN: &str = "iqn.2026-11.io.blockwire:beside";
/// tgt's target.
const TGT_TARGET_IQN: &str = "iqn.2026-11.io.blockwire.bench:tgt";

/// What can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ServerKind {
    /// The bare responder from a few slots: the limit.
    Bare,
    /// The bare responder over memory of the volume's size.
    BareMemory,
    /// The bare responder, polling for ever.
    BarePolling,
    /// The bare responder, sleeping at once.
    BareSleeping,
    /// Blockwire over iSCSI.
    Blockwire,
    /// Blockwire over NVMe/TCP.
    BlockwireNvme,
    /// Linux's user-space target tgt, over iSCSI.
    Tgt,
    /// SPDK's target nvmf_tgt, over NVMe/TCP.
    Spdk,
}

impl ServerKind {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            ServerKind::Bare => "bare",
            ServerKind::BareMemory => "bare-memory",
            ServerKind::BarePolling => "bare-polling",
            ServerKind::BareSleeping => "bare-sleeping",
            ServerKind::Blockwire => "blockwire",
            ServerKind::BlockwireNvme => "blockwire-nvme",
            ServerKind::Tgt => "tgt",
            ServerKind::Spdk => "spdk",
        }
    }

    /// Whether it speaks iSCSI.
    pub fn is_iscsi(self) -> bool {
        match self {
            ServerKind::Bare
            | ServerKind::BareMemory
            | ServerKind::BarePolling
            | ServerKind::BareSleeping => false,
            ServerKind::BlockwireNvme | ServerKind::Spdk => false,
            ServerKind::Blockwire | ServerKind::Tgt => true,
        }
    }

    /// How a generator that drives it waits.
    pub fn client_wait_mode(self) -> &'static str {
        match self {
            ServerKind::BarePolling => "poll",
            ServerKind::BareSleeping => "sleep",
            ServerKind::Bare | ServerKind::BareMemory => "adaptive",
            ServerKind::Blockwire | ServerKind::BlockwireNvme | ServerKind::Tgt | ServerKind::Spdk => {
                "adaptive"
            }
        }
    }

    /// Whether it never sleeps.
    pub fn polls(self) -> bool {
        matches!(self, ServerKind::BarePolling | ServerKind::Spdk)
    }
}

/// Where things are.
#[derive(Clone, Debug)]
pub struct BenchEnvironment {
    /// Directory of this project's programs.
    pub programs: PathBuf,
    /// The daemon.
    pub blockwire: PathBuf,
    /// Directory for what servers leave behind.
    pub scratch: PathBuf,
    /// Directory in which SPDK was built, if there is one.
    pub spdk: Option<PathBuf>,
    /// Core of the servers.
    pub server_core: usize,
    /// Core of the clients.
    pub client_core: usize,
}

/// A server that runs; dropped, it ends.
#[derive(Debug)]
pub struct RunningServer {
    /// What it is.
    pub kind: ServerKind,
    child: Child,
    /// How the generator reaches it.
    pub load_args: Vec<String>,
    /// Its volume as a URL: for this project's client, and over iSCSI for libiscsi's tools.
    pub url: Option<String>,
    /// How SPDK's tools reach it.
    pub transport: Option<String>,
    lines: Receiver<String>,
}

impl RunningServer {
    /// Starts a server on its core and waits until it serves.
    pub fn start(kind: ServerKind, places: &BenchEnvironment) -> io::Result<RunningServer> {
        RunningServer::start_with(kind, places, &[])
    }

    /// Starts a server that takes some 16,000 connections.
    pub fn start_for_many(kind: ServerKind, places: &BenchEnvironment) -> io::Result<RunningServer> {
        // What it promises to so many sessions or queues is at most half of its memory; it takes what is used of it.
        let config = places.scratch.join("many.toml");
        fs::write(&config, "[limits]\nmemory = \"2G\"\n")?;
        RunningServer::start_with(kind, places, &["--config".to_owned(), config.display().to_string()])
    }

    /// `args`: more arguments for Blockwire.
    fn start_with(kind: ServerKind, places: &BenchEnvironment, args: &[String]) -> io::Result<RunningServer> {
        system::pin_thread(places.server_core)?;
        let started = match kind {
            ServerKind::Bare => start_bare(kind, places, &[]),
            ServerKind::BareMemory => start_bare(kind, places, &["--memory-mib", &VOLUME_MIB.to_string()]),
            ServerKind::BarePolling => start_bare(kind, places, &["--wait", "poll"]),
            ServerKind::BareSleeping => start_bare(kind, places, &["--wait", "sleep"]),
            ServerKind::Blockwire => start_blockwire_iscsi(places, args),
            ServerKind::BlockwireNvme => start_blockwire_nvme(places, args),
            ServerKind::Tgt => start_tgt(places),
            ServerKind::Spdk => start_spdk(places),
        };
        system::pin_thread(places.client_core)?;
        started
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Keeps a server that polls for ever off the core that it shares with the others.
    pub fn pause(&self) -> io::Result<()> {
        if self.kind.polls() { system::pause(self.pid()) } else { Ok(()) }
    }

    /// Undoes [`RunningServer::pause`].
    pub fn resume(&self) -> io::Result<()> {
        if self.kind.polls() { system::resume(self.pid()) } else { Ok(()) }
    }

    fn new(kind: ServerKind, mut command: Command) -> io::Result<RunningServer> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().map(BufReader::new);
        let (sender, lines) = mpsc::channel();
        // Read to the end, or a talkative server would stand still.
        std::thread::spawn(move || {
            for line in output.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
                sender.send(line).ok();
            }
        });
        Ok(RunningServer { kind, child, load_args: Vec::new(), url: None, transport: None, lines })
    }

    /// The address of the line that begins so, once the server says that it is ready.
    fn wait_for_listening(&self, prefix: &str) -> io::Result<String> {
        let end = Instant::now() + START_STOP_TIMEOUT;
        let mut address = None;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).map_err(|_| {
                io::Error::new(io::ErrorKind::TimedOut, format!("{} does not get ready", self.kind.name()))
            })?;
            if let Some(rest) = line.strip_prefix(prefix) {
                address = Some(rest.trim().to_owned());
            }
            if line == "ready" {
                return address.ok_or_else(|| io::Error::other("a server is ready and listens nowhere"));
            }
        }
    }
}

impl RunningServer {
    /// The subsystem of a volume `bench` is reached here.
    fn with_nvme_address(mut self, address: &str) -> io::Result<RunningServer> {
        let (host, port) = address.rsplit_once(':').ok_or(io::ErrorKind::InvalidData)?;
        self.transport =
            Some(format!("trtype:TCP adrfam:IPv4 traddr:{host} trsvcid:{port} subnqn:{SUBSYSTEM_NQN}"));
        self.url = Some(format!("nvme+tcp://{address}/{SUBSYSTEM_NQN}/1"));
        let args = [address, "--protocol", "nvme", "--subsystem", SUBSYSTEM_NQN, "--nsid", "1"];
        self.load_args = args.map(str::to_owned).to_vec();
        Ok(self)
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.resume().ok();
        let mut asked = system::terminate(self.child.id()).is_ok();
        let end = Instant::now() + Duration::from_secs(5);
        while asked && Instant::now() < end {
            match self.child.try_wait() {
                Ok(Some(_)) => return,
                Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                Err(_) => asked = false,
            }
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn start_bare(kind: ServerKind, places: &BenchEnvironment, args: &[&str]) -> io::Result<RunningServer> {
    let mut command = system::command_ending_with_parent(places.programs.join("bare-responder"));
    command.args(args);
    let mut server = RunningServer::new(kind, command)?;
    server.load_args = vec![server.wait_for_listening("listening bare ")?];
    Ok(server)
}

fn start_blockwire_iscsi(places: &BenchEnvironment, args: &[String]) -> io::Result<RunningServer> {
    let mut server = start_blockwire(places, ServerKind::Blockwire, "--iscsi", args)?;
    let address = server.wait_for_listening("listening iscsi ")?;
    let target = "iqn.2026-11.io.blockwire:bench";
    server.url = Some(format!("iscsi://{address}/{target}/0"));
    server.load_args = iscsi_args(address, target, 0);
    Ok(server)
}

fn start_blockwire_nvme(places: &BenchEnvironment, args: &[String]) -> io::Result<RunningServer> {
    let server = start_blockwire(places, ServerKind::BlockwireNvme, "--nvme", args)?;
    let address = server.wait_for_listening("listening nvme ")?;
    server.with_nvme_address(&address)
}

/// The daemon with a volume that is measured and another, which takes no memory until it is written, on a port of one
/// protocol.
fn start_blockwire(
    places: &BenchEnvironment,
    kind: ServerKind,
    protocol: &str,
    args: &[String],
) -> io::Result<RunningServer> {
    let scratch = places.scratch.join(kind.name());
    fs::create_dir_all(&scratch)?;
    let mut command = system::command_ending_with_parent(&places.blockwire);
    command
        .args(["serve", "--volume", &format!("bench=ram:{VOLUME_MIB}M")])
        .args(["--volume", &format!("beside=ram:{VOLUME_MIB}M"), protocol, "127.0.0.1:0"])
        .args(["--cores", &places.server_core.to_string()])
        .arg("--state")
        .arg(scratch.join("state"))
        .arg("--control")
        .arg(scratch.join("control.sock"))
        .args(args);
    RunningServer::new(kind, command)
}

fn iscsi_args(address: String, target: &str, lun: u8) -> Vec<String> {
    let mut args = vec![address];
    args.extend(["--protocol", "iscsi", "--target", target, "--lun"].map(str::to_owned));
    args.push(lun.to_string());
    args
}

fn start_tgt(places: &BenchEnvironment) -> io::Result<RunningServer> {
    // On a memory file system if there is one: its volume is to be memory as well.
    let memory = Path::new("/dev/shm");
    let directory = if memory.is_dir() { memory } else { places.scratch.as_path() };
    // The name of our own directory is random, and what has this name already is not written to.
    let own = places.scratch.file_name().unwrap_or_default().to_string_lossy();
    let image = directory.join(format!("{own}.img"));
    let made = fs::File::options().write(true).create_new(true).mode(0o600).open(&image)?;
    let sized = made.set_len((VOLUME_MIB as u64) << 20);
    let server = sized.and_then(|()| start_tgt_on(&image));
    // The daemon has it open; its name is not needed any more.
    fs::remove_file(&image)?;
    server
}

/// A tgtd of its own, whose volume is a file.
fn start_tgt_on(image: &Path) -> io::Result<RunningServer> {
    fs::create_dir_all("/var/run/tgtd")?;
    // A port that nobody has at the moment.
    let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let control = (std::process::id() % 30_000 + 1).to_string();
    if run_tgtadm(&control, &["--op", "show", "--mode", "sys"])? {
        return Err(io::Error::other(format!("another tgtd has the control number {control}: end it first")));
    }
    let mut command = system::command_ending_with_parent("tgtd");
    command.args(["-f", "-C", &control, "--iscsi", &format!("portal={address}")]).stderr(Stdio::null());
    let server = RunningServer::new(ServerKind::Tgt, command)?;
    let mut server = configure_tgt(server, &control, image)?;
    server.url = Some(format!("iscsi://{address}/{TGT_TARGET_IQN}/1"));
    server.load_args = iscsi_args(address.to_string(), TGT_TARGET_IQN, 1);
    Ok(server)
}

/// Whether a tgtd takes this.
fn run_tgtadm(control: &str, args: &[&str]) -> io::Result<bool> {
    let mut command = Command::new("tgtadm");
    command.args(["-C", control, "--lld", "iscsi"]).args(args);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().map(|status| status.success())
}

fn configure_tgt(server: RunningServer, control: &str, image: &Path) -> io::Result<RunningServer> {
    let admin = |args: &[&str]| run_tgtadm(control, args);
    let end = Instant::now() + START_STOP_TIMEOUT;
    while !admin(&["--op", "show", "--mode", "sys"])? {
        if Instant::now() > end {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "tgtd does not answer tgtadm"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let image = image.to_string_lossy();
    let steps: [&[&str]; 3] = [
        &["--op", "new", "--mode", "target", "--tid", "1", "-T", TGT_TARGET_IQN],
        &["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", &image],
        &["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"],
    ];
    for step in steps {
        if !admin(step)? {
            return Err(io::Error::other(format!("tgtadm {} failed", step.join(" "))));
        }
    }
    Ok(server)
}

fn start_spdk(places: &BenchEnvironment) -> io::Result<RunningServer> {
    let spdk = places.spdk.as_ref().ok_or_else(|| io::Error::other("SPDK was not built"))?;
    let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let configuration = places.scratch.join("spdk.json");
    fs::write(
        &configuration,
        spdk::target_configuration(address.port(), SUBSYSTEM_NQN, VOLUME_MIB).to_string(),
    )?;
    let mut command = spdk::spdk_command(spdk, "nvmf_tgt", system::command_ending_with_parent);
    command
        .args(["--no-huge", "-s", "1024", "--no-pci", "--iova-mode", "va"])
        .args(["-m", &format!("{:#x}", 1_u64 << places.server_core)])
        .arg("-r")
        .arg(places.scratch.join("spdk.sock"))
        .arg("-c")
        .arg(configuration)
        .stderr(Stdio::null());
    let server = RunningServer::new(ServerKind::Spdk, command)?;
    let end = Instant::now() + START_STOP_TIMEOUT;
    while std::net::TcpStream::connect(address).is_err() {
        if Instant::now() > end {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "nvmf_tgt does not get ready"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    server.with_nvme_address(&address.to_string())
}
