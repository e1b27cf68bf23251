//! Where a command runs: on this machine, in one of its network namespaces, or on another machine over ssh.
//!
//! Invariant: arguments of a command reach the program unchanged, wherever it runs; no shell expands them.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::Failure;
use crate::end_request::wait_until;

/// Where a command runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CommandLocation {
    /// Here.
    Here,
    /// Here, in the network namespace of this name (ip-netns(8)).
    Namespace(String),
    /// On another machine.
    Ssh(SshMachine),
}

/// A machine that is reached by ssh.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SshMachine {
    /// ssh and its options: `ssh`, or `ssh -F FILE`.
    pub ssh: Vec<String>,
    /// Its name, as ssh understands it.
    pub name: String,
    /// A socket here through which all commands share one connection, so that each takes milliseconds.
    pub control: String,
    /// A directory of ours on it, for this program, sockets and state; empty until [`CommandLocation::install_binary`].
    pub dir: String,
    /// Its clock ticks per second and bytes per page; this machine's until [`CommandLocation::install_binary`].
    pub units: (u64, u64),
}

/// Ends a program with who started it: with a thread here, on another machine with the connection.
pub(crate) const KILL_WITH_PARENT: [&str; 3] = ["setpriv", "--pdeathsig", "KILL"];
/// How long a command may take: making a file system or a database on a slow volume is the longest.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);
/// How long what a command has said may take to come after its end.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);

/// Options of ssh under which nothing is asked of a person, and a dead machine is given up.
const SSH_OPTIONS: [&str; 6] =
    ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5"];

impl SshMachine {
    /// A machine that nothing was said to yet. `control`: where the socket is made, in a directory that nobody else
    /// may enter and that stays for as long as the machine is used.
    pub fn new(ssh: Vec<String>, name: &str, control: &Path) -> SshMachine {
        SshMachine {
            ssh,
            name: name.to_owned(),
            control: control.display().to_string(),
            dir: String::new(),
            units: local_ticks_and_page_size(),
        }
    }

    /// ssh with all its options, over the connection that commands share; over one of its own if there is none.
    fn ssh_words(&self) -> Vec<String> {
        [self.ssh_options("ControlMaster=no"), vec![self.name.clone()]].concat()
    }

    fn ssh_options(&self, master: &str) -> Vec<String> {
        let mut words = self.ssh.clone();
        words.extend(SSH_OPTIONS.map(str::to_owned));
        words.extend(["-o", master, "-S"].map(str::to_owned));
        words.push(self.control.clone());
        words
    }

    /// Opens the connection that commands share: a look at a busy machine must not wait for keys to be exchanged.
    /// It stays for a while after the last command, with nothing of ours open.
    fn open_shared_connection(&self) {
        let mut words = self.ssh_options("ControlMaster=yes");
        words.extend(["-o", "ControlPersist=300", &self.name, "true"].map(str::to_owned));
        // Without it every command has its own.
        let _ = command_from_words(&words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .status();
    }
}

/// All that comes, when it has.
fn spawn_read_all(from: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (to, all) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut bytes);
        }
        let _ = to.send(bytes);
    });
    all
}

/// A command line for a shell, whose process first says its id.
fn shell_command(words: &[String]) -> String {
    let line: Vec<String> = words.iter().map(|word| shell_quoted(word)).collect();
    format!("echo pid $$; exec {}", line.join(" "))
}

/// The same for what runs on: it ends when the connection does, wherever setpriv(1) can see to that.
fn shell_command_ending_with_connection(words: &[String]) -> String {
    let line: Vec<String> = words.iter().map(|word| shell_quoted(word)).collect();
    let (line, held) = (line.join(" "), KILL_WITH_PARENT.join(" "));
    format!("echo pid $$; {held} true 2>/dev/null && exec {held} {line}; exec {line}")
}

/// The program that the first word names, with the others for arguments; of no words one that cannot be run.
pub(crate) fn command_from_words(words: &[String]) -> Command {
    let mut words = words.iter();
    let mut command = Command::new(words.next().map_or("", String::as_str));
    command.args(words);
    command
}

impl CommandLocation {
    /// Whether its processes are processes of this machine.
    pub fn is_local(&self) -> bool {
        !matches!(self, CommandLocation::Ssh(_))
    }

    /// The words that run `words` there. Over ssh the process first says its id, as `pid N`.
    pub fn words_to_run(&self, words: &[String]) -> Vec<String> {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        match self {
            CommandLocation::Here => words.to_vec(),
            CommandLocation::Namespace(name) => {
                [texts(&["ip", "netns", "exec", name]), words.to_vec()].concat()
            }
            CommandLocation::Ssh(machine) => {
                // A connection of its own, whose end is the end of what runs by it.
                let last =
                    vec![machine.name.clone(), "--".to_owned(), shell_command_ending_with_connection(words)];
                [machine.ssh.clone(), texts(&SSH_OPTIONS), texts(&["-S", "none"]), last].concat()
            }
        }
    }

    /// Runs a command to its end and gives what it printed.
    ///
    /// # Errors
    /// If it cannot be run, or fails: what it said.
    pub fn run(&self, words: &[&str]) -> Result<String, Failure> {
        self.run_with_input(words, b"")
    }

    /// Runs a command that is given `input`.
    ///
    /// # Errors
    /// If it cannot be run, or fails: what it said.
    pub fn run_with_input(&self, words: &[&str], input: &[u8]) -> Result<String, Failure> {
        self.run_with_timeout(COMMAND_TIMEOUT, words, input)
    }

    /// The same with a time of its own. What does not end within it is killed.
    pub(crate) fn run_with_timeout(
        &self,
        time: Duration,
        words: &[&str],
        input: &[u8],
    ) -> Result<String, Failure> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let whole = match self {
            CommandLocation::Ssh(machine) => {
                [machine.ssh_words(), vec!["--".to_owned(), shell_command(&words)]].concat()
            }
            _ => self.words_to_run(&words),
        };
        let failed = |why: &dyn std::fmt::Display| Failure::new(format!("{}: {why}", words.join(" ")));
        let mut child = command_from_words(&whole)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // An interrupt from the terminal must not cut it short: it may be one that undoes.
            .process_group(0)
            .spawn()
            .map_err(|why| failed(&why))?;
        if let (Some(mut stdin), false) = (child.stdin.take(), input.is_empty()) {
            let input = input.to_vec();
            // A command that does not read what it is given is judged by how it ends.
            std::thread::spawn(move || stdin.write_all(&input));
        }
        let (out, err) = (spawn_read_all(child.stdout.take()), spawn_read_all(child.stderr.take()));
        let mut status = Ok(None);
        if !wait_until(time, || {
            status = child.try_wait();
            !matches!(status, Ok(None))
        }) {
            if let Ok(group) = i32::try_from(child.id())
                && let Some(group) = Pid::from_raw(group)
            {
                let _ = kill_process_group(group, Signal::KILL);
            }
            wait_until(LAST_OUTPUT_TIMEOUT, || !matches!(child.try_wait(), Ok(None)));
            return Err(failed(&format!("it did not end within {} s", time.as_secs())));
        }
        let Some(status) = status.map_err(|why| failed(&why))? else {
            return Err(failed(&"it has no end"));
        };
        // What it has started may hold its output open.
        let text = |from: Receiver<Vec<u8>>| {
            String::from_utf8_lossy(&from.recv_timeout(LAST_OUTPUT_TIMEOUT).unwrap_or_default()).into_owned()
        };
        if !status.success() {
            let said = text(err);
            let said = if said.trim().is_empty() { status.to_string() } else { said.trim().to_owned() };
            return Err(failed(&said));
        }
        let text = out
            .recv_timeout(LAST_OUTPUT_TIMEOUT)
            .map_err(|_| failed(&"its output stays open after its end"))?;
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(match self {
            CommandLocation::Ssh(_) => {
                text.split_once('\n').map_or(String::new(), |(_, rest)| rest.to_owned())
            }
            _ => text,
        })
    }

    /// Whether a program is there, by its name or path.
    pub fn has_program(&self, program: &str) -> bool {
        match self {
            CommandLocation::Ssh(_) => self.run(&["sh", "-c", "command -v \"$1\"", "sh", program]).is_ok(),
            _ => is_program_installed(program),
        }
    }

    /// Why a module of the kernel cannot be had there; `None`: it is loaded, or can be.
    pub(crate) fn missing_kernel_module(&self, name: &str) -> Option<String> {
        let is_loaded = self.run(&["test", "-e", &format!("/sys/module/{name}")]).is_ok();
        if is_loaded || self.run(&["modprobe", "-n", name]).is_ok() {
            return None;
        }
        let kernel = self.read_file("/proc/sys/kernel/osrelease").unwrap_or_default();
        Some(format!("modprobe {name}: not in the kernel of {} ({})", self.display_name(), kernel.trim()))
    }

    /// Reads a file there.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_file(&self, path: &str) -> Result<String, Failure> {
        match self {
            CommandLocation::Ssh(_) => self.run(&["cat", path]),
            _ => std::fs::read_to_string(path).map_err(|why| Failure::new(format!("{path}: {why}"))),
        }
    }

    /// How it is called in commands and records.
    pub fn display_name(&self) -> String {
        match self {
            CommandLocation::Here => "here".to_owned(),
            CommandLocation::Namespace(name) => format!("namespace {name}"),
            CommandLocation::Ssh(machine) => machine.name.clone(),
        }
    }

    /// Makes a directory of ours on another machine and copies this program into it. Nothing to do here.
    ///
    /// # Errors
    /// If the machine cannot be reached, or nothing can be written there.
    pub fn install_binary(&mut self, binary: &Path) -> Result<(), Failure> {
        let settled = self.try_install_binary(binary);
        if settled.is_err() {
            self.remove_installed();
        }
        settled
    }

    fn try_install_binary(&mut self, binary: &Path) -> Result<(), Failure> {
        if self.is_local() {
            return Ok(());
        }
        if let CommandLocation::Ssh(machine) = &*self {
            machine.open_shared_connection();
        }
        let bytes =
            std::fs::read(binary).map_err(|why| Failure::new(format!("{}: {why}", binary.display())))?;
        let dir = self.run(&["mktemp", "-d", "/tmp/blockwire-eval-XXXXXX"])?.trim().to_owned();
        let there = format!("{dir}/blockwire");
        if let CommandLocation::Ssh(machine) = self {
            machine.dir = dir;
        }
        // The first line that ssh's script prints is its id; what is given goes to the program.
        self.run_with_input(&["sh", "-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh", &there], &bytes)?;
        let units = self.run(&["getconf", "CLK_TCK"]).and_then(|ticks| {
            let page = self.run(&["getconf", "PAGESIZE"])?;
            Ok((ticks.trim().parse().ok(), page.trim().parse().ok()))
        });
        if let CommandLocation::Ssh(machine) = self
            && let Ok((Some(ticks), Some(page))) = units
        {
            machine.units = (ticks, page);
        }
        Ok(())
    }

    /// Clock ticks per second and bytes per page of its machine.
    pub(crate) fn ticks_and_page_size(&self) -> (u64, u64) {
        match self {
            CommandLocation::Ssh(machine) => machine.units,
            _ => local_ticks_and_page_size(),
        }
    }

    /// Removes what [`install_binary`](Self::install_binary) made.
    pub fn remove_installed(&self) {
        if let CommandLocation::Ssh(SshMachine { dir, .. }) = self
            && dir.starts_with("/tmp/blockwire-eval-")
        {
            let _ = self.run(&["rm", "-rf", dir]);
        }
        if let CommandLocation::Ssh(machine) = self {
            let mut words = machine.ssh_words();
            words.splice(1..1, ["-O".to_owned(), "exit".to_owned()]);
            let _ = command_from_words(&words).stdin(Stdio::null()).stderr(Stdio::null()).status();
        }
    }

    /// This program there, by its path here.
    pub fn binary_path(&self, here: &Path) -> String {
        match self {
            CommandLocation::Ssh(machine) if !machine.dir.is_empty() => format!("{}/blockwire", machine.dir),
            _ => here.display().to_string(),
        }
    }

    /// A directory there for a program's files: `here` unless it is another machine.
    pub fn scratch_path(&self, here: &Path) -> String {
        match self {
            CommandLocation::Ssh(machine) => machine.dir.clone(),
            _ => here.display().to_string(),
        }
    }

    /// What to do if this program is not there.
    pub(crate) fn missing_binary(&self, here: &Path) -> Option<String> {
        let binary = self.binary_path(here);
        (!self.has_program(&binary))
            .then(|| format!("{binary} is not on {}: copy it there", self.display_name()))
    }
}

/// Whether a program is here. Those of system administration may be outside of an ordinary user's path.
fn is_program_installed(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).exists();
    }
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').chain(["/usr/sbin", "/sbin"]).any(|dir| Path::new(dir).join(program).exists())
}

/// Clock ticks per second and bytes per page, here.
fn local_ticks_and_page_size() -> (u64, u64) {
    (rustix::param::clock_ticks_per_second(), rustix::param::page_size() as u64)
}

/// A word as a shell reads it back unchanged.
pub fn shell_quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%^".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn words_come_through_a_shell_unchanged() {
        for word in ["plain", "", "two words", "it's", "$HOME `id` \\", "nvme+tcp://h/n/1?a=b&c=d", "*"] {
            let said = CommandLocation::Here
                .run(&["sh", "-c", &format!("printf %s {}", shell_quoted(word))])
                .unwrap();
            assert_eq!(said, word);
        }
    }

    #[test]
    fn a_command_that_fails_says_why() {
        let why = CommandLocation::Here.run(&["sh", "-c", "echo no such luck >&2; exit 3"]).unwrap_err();
        assert!(why.to_string().contains("no such luck"), "{why}");
        let why = CommandLocation::Here.run(&["/does/not/exist"]).unwrap_err();
        assert!(why.to_string().contains("/does/not/exist"), "{why}");
    }

    /// As one that waits for a target that does not answer.
    #[test]
    fn a_command_that_does_not_end_is_never_waited_for_without_end() {
        let begun = Instant::now();
        let time = Duration::from_millis(50);
        let why =
            CommandLocation::Here.run_with_timeout(time, &["sh", "-c", "sleep 600; exit"], b"").unwrap_err();
        assert!(why.to_string().contains("did not end"), "{why}");
        // Nor one that reads nothing.
        let why =
            CommandLocation::Here.run_with_timeout(time, &["sleep", "600"], &vec![0; 1 << 20]).unwrap_err();
        assert!(why.to_string().contains("did not end"), "{why}");
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_namespace_or_another_machine_is_put_in_front() {
        let words = ["blockwire".to_owned(), "a b".to_owned()];
        let there = CommandLocation::Namespace("bw-t".into()).words_to_run(&words);
        assert_eq!(there.join(" "), "ip netns exec bw-t blockwire a b");
        let machine = SshMachine::new(vec!["ssh".into()], "root@storage", Path::new("control"));
        let there = CommandLocation::Ssh(machine).words_to_run(&words);
        assert_eq!(there[0], "ssh");
        let script = there.last().unwrap();
        assert!(
            script.starts_with("echo pid $$; ") && script.ends_with("; exec blockwire 'a b'"),
            "{script}"
        );
    }

    /// Commands that end by themselves go over the connection that they share: each on one of its own would
    /// take seconds on a busy machine.
    #[test]
    fn commands_to_a_machine_share_a_connection() {
        let dir = tempfile::tempdir().unwrap();
        let said = dir.path().join("said");
        let script = format!("echo \"$*\" >> {}; echo pid 1; echo answer", said.display());
        let ssh = ["sh", "-c", &script].map(str::to_owned).to_vec();
        let machine = SshMachine::new(ssh, "storage", &dir.path().join("control"));
        let control = machine.control.clone();
        machine.open_shared_connection();
        assert_eq!(CommandLocation::Ssh(machine).run(&["cat", "file"]).unwrap(), "answer\n");
        let said = std::fs::read_to_string(said).unwrap();
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines[0].contains("ControlMaster=yes") && lines[0].contains(&control), "{said}");
        assert!(lines[1].contains("ControlMaster=no") && lines[1].contains(&control), "{said}");
    }

    /// As when its file system is full.
    #[test]
    fn a_machine_that_cannot_be_settled_keeps_nothing_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let said = dir.path().join("said");
        let script = format!(
            "for last; do :; done; echo \"$last\" >>{}; echo pid 1; case $last in *mktemp*) echo \
             /tmp/blockwire-eval-abcdef ;; *'cat >'*) cat >/dev/null; exit 1 ;; esac",
            said.display()
        );
        let ssh = ["sh", "-c", &script].map(str::to_owned).to_vec();
        let mut place = CommandLocation::Ssh(SshMachine::new(ssh, "storage", &dir.path().join("control")));
        place.install_binary(Path::new("/proc/self/exe")).unwrap_err();
        let said = std::fs::read_to_string(said).unwrap();
        assert!(said.contains("exec rm -rf /tmp/blockwire-eval-abcdef"), "{said}");
    }
}
