//! A separate `blockwire serve` for a test, with its own state, on a port that the system chose.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use tempfile::TempDir;

/// A volume of a configuration.
pub fn volume(name: &str, source: &str) -> String {
    format!("[[volume]]\nname = \"{name}\"\nsource = \"{source}\"\n")
}

/// Waits until `done`, for a while at most; `seen` is what there is instead.
pub fn wait_until(seconds: u64, seen: impl Fn() -> String, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(seconds);
    while !done() {
        assert!(Instant::now() < until, "{}", seen());
        thread::sleep(Duration::from_millis(20));
    }
}

/// The directory of a daemon: it outlives a daemon that is started again.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// What lets a running daemon have files here that it did not know at its start, and ports.
    pub fn sandbox(&self, ports: &[SocketAddr]) -> String {
        let ports: Vec<u16> = ports.iter().map(SocketAddr::port).collect();
        format!("[sandbox]\npaths = [\"{}\"]\nports = {ports:?}\n", self.0.path().display())
    }

    /// Starts a daemon that serves what `config` says.
    pub fn serve(&self, config: &str, arguments: &[&str]) -> Daemon {
        let loopback = [&["--iscsi", "127.0.0.1:0"], arguments].concat();
        self.serve_on(config, &loopback, &[])
    }

    /// Starts a daemon that listens where `config` and `arguments` say, with more of an environment.
    pub fn serve_on(&self, config: &str, arguments: &[&str], environment: &[(&str, &Path)]) -> Daemon {
        fs::write(self.path("blockwire.toml"), config).unwrap();
        set_private(&self.path("blockwire.toml"));
        let config = self.path("blockwire.toml");
        self.serve_as(&[&["--config", &config.to_string_lossy()], arguments].concat(), environment)
    }

    /// Starts a daemon by these arguments, and its own state directory and control socket.
    pub fn serve_as(&self, arguments: &[&str], environment: &[(&str, &Path)]) -> Daemon {
        self.serve_heard(arguments, environment, fs::File::create(self.path("log")).unwrap())
    }

    /// The same, with another stderr.
    pub fn serve_heard(
        &self,
        arguments: &[&str],
        environment: &[(&str, &Path)],
        stderr: impl Into<Stdio>,
    ) -> Daemon {
        // Tests go by the sandbox, but those that say otherwise.
        let sandbox = ["--sandbox", "--no-sandbox"].iter().any(|flag| arguments.contains(flag));
        let mut child = self
            .command("serve")
            .arg("--state")
            .arg(self.path("state"))
            .args((!sandbox).then_some("--sandbox"))
            .args(arguments)
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let (mut addresses, mut nvme_addresses) = (Vec::new(), Vec::new());
        for line in lines.by_ref() {
            if let Some(at) = line.strip_prefix("listening iscsi ") {
                addresses.push(at.parse().unwrap());
            } else if let Some(at) = line.strip_prefix("listening nvme ") {
                nvme_addresses.push(at.parse().unwrap());
            } else if line == "ready" {
                let (control, log) = (self.path("control"), self.path("log"));
                // Without the one that tests go by, it ends below, and outlives no test.
                let Some(at) = addresses.first().copied() else { break };
                let nvme = nvme_addresses.last().copied();
                return Daemon { child, at, addresses, nvme, nvme_addresses, control, log };
            }
        }
        let _ = child.kill().and_then(|()| child.wait());
        panic!("no daemon:\n{}", fs::read_to_string(self.path("log")).unwrap_or_default());
    }

    /// Writes a file that only its owner reads; gives its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        set_private(&path);
        path.to_string_lossy().into_owned()
    }

    /// Runs `serve`, which must not come to serve, and gives its exit code and what it said.
    pub fn refused(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let out =
            self.command("serve").arg("--state").arg(self.path("state")).args(arguments).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    }

    fn command(&self, verb: &str) -> Command {
        command(verb, &self.path("control"), self.0.path())
    }
}

fn command(verb: &str, control: &Path, home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blockwire"));
    command.args(verb.split(' ')).arg("--control").arg(control);
    command.env("HOME", home).env_remove("NOTIFY_SOCKET").current_dir(home);
    command
}

fn set_private(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// A running daemon; killed when dropped.
pub struct Daemon {
    child: Child,
    pub at: SocketAddr,
    /// All that it listens on.
    pub addresses: Vec<SocketAddr>,
    /// Where NVMe/TCP is spoken.
    pub nvme: Option<SocketAddr>,
    /// All addresses where it is.
    pub nvme_addresses: Vec<SocketAddr>,
    /// Its control socket.
    pub control: PathBuf,
    log: PathBuf,
}

impl Daemon {
    /// How many files it has open.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Runs a verb against it.
    pub fn run(&self, line: &str) -> Output {
        let home = self.control.parent().unwrap();
        let mut words = line.split(' ');
        // The options of `iscsictl` may take a value: nothing may come between.
        let length = if line.starts_with("iscsictl") { 1 } else { 2 };
        let verb: Vec<&str> = words.by_ref().take(length).collect();
        command(&verb.join(" "), &self.control, home).args(words).output().unwrap()
    }

    /// Runs a verb that must go well, and gives its output.
    pub fn ask(&self, line: &str) -> String {
        let out = self.run(line);
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Asks for JSON.
    pub fn ask_json(&self, line: &str) -> serde_json::Value {
        serde_json::from_str(&self.ask(&format!("{line} --json"))).unwrap()
    }

    /// What `connection list` says once it has so many: one that has logged out stands there a moment longer.
    pub fn connections(&self, count: usize) -> Vec<serde_json::Value> {
        for _ in 0..200 {
            let listed = self.ask_json("connection list");
            let listed = listed.as_array().expect("a list");
            if listed.len() == count {
                return listed.clone();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("not {count} connections: {}", self.ask("connection list"));
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Lets it write no file beyond so many bytes from now on.
    pub fn limit_files(&self, bytes: u64) {
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        prlimit(Some(Pid::from_child(&self.child)), Resource::Fsize, limit).unwrap();
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it without warning.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end, and gives its exit code.
    pub fn ended(&mut self, patience: Duration) -> Option<i32> {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("it still runs:\n{}", self.log());
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// What it has logged, when this is in it. A host may be answered before the line is written.
    pub fn log_with(&self, said: &str) -> String {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let log = self.log();
            if log.contains(said) || Instant::now() > until {
                assert!(log.contains(said), "\"{said}\" is not logged: {log}");
                return log;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The worlds to test, unless the environment says that the kernel forbids one.
pub fn worlds() -> Vec<&'static str> {
    if std::env::var_os("BLOCKWIRE_NO_URING").is_some() { vec!["epoll"] } else { vec!["uring", "epoll"] }
}

/// The cores that this process may use, ascending.
pub fn cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// One of them: a daemon on it has one shard.
pub fn a_core() -> String {
    cores()[0].to_string()
}
