//! A process that the harness started: its output as lines, its id, its end.
//!
//! Invariant: a process does not outlive its [`Process`]; no other process is ever ended.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::end_request::{self, wait_until};
use crate::output_lines::OutputLines;
use crate::place::{CommandLocation, KILL_WITH_PARENT, shell_quoted};

pub use crate::output_lines::OutputStream;

/// How long a process has to end by itself.
const EXIT_GRACE_TIME: Duration = Duration::from_secs(5);
/// How long a signal may take, over ssh to a machine that does not answer, too.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the last that it says is listened to.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_millis(500);
/// Lines that are remembered for a message when it fails.
const TAIL_LINES: usize = 12;

/// A process.
#[derive(Debug)]
pub struct Process {
    name: String,
    place: CommandLocation,
    child: Child,
    pid: u32,
    output: OutputLines,
    heard: Instant,
    tail: VecDeque<String>,
    command: String,
}

/// A process to be started.
#[derive(Clone, Debug)]
pub struct ProcessSpec<'a> {
    /// What it is called in messages, and its log file.
    pub name: &'a str,
    /// Where.
    pub place: &'a CommandLocation,
    /// Processors it may use; empty: all.
    pub cores: &'a [usize],
    /// Program and arguments.
    pub words: Vec<String>,
    /// Where its output is kept.
    pub dir: &'a Path,
}

impl Process {
    /// Starts it.
    ///
    /// # Errors
    /// If it cannot be started, or all was told to end.
    pub fn start(run: ProcessSpec<'_>) -> Result<Process, Failure> {
        end_request::check_not_ending()?;
        let mut words = run.words;
        let command = words.iter().map(|word| shell_quoted(word)).collect::<Vec<_>>().join(" ");
        if !run.cores.is_empty() {
            let list: Vec<String> = run.cores.iter().map(ToString::to_string).collect();
            words = [vec!["taskset".to_owned(), "-c".to_owned(), list.join(",")], words].concat();
        }
        // Ended with the harness, even if that is killed; the thread that starts it must live on. What runs on
        // another machine ends with the ssh that is ended here.
        let held = KILL_WITH_PARENT.map(str::to_owned).to_vec();
        let words = match run.place.is_local() {
            true => run.place.words_to_run(&[held, words].concat()),
            false => [held, run.place.words_to_run(&words)].concat(),
        };
        let failed = |why: std::io::Error| {
            Failure::new(format!("{}: {}: {why}", run.name, words.first().map_or("", String::as_str)))
        };
        // Before it is started: nobody would own it if this failed.
        let log = File::options().create(true).append(true).open(run.dir.join(format!("{}.log", run.name)));
        let log = log.map_err(|why| {
            Failure::new(format!("{}: {why}: give --out a directory that can be written", run.dir.display()))
        })?;
        let mut child = crate::place::command_from_words(&words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // An interrupt from the terminal is the harness's, which ends all in its order.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let (output, feed) = OutputLines::new(log);
        if let Some(out) = child.stdout.take() {
            feed.spawn_reader(out, OutputStream::Out);
        }
        if let Some(err) = child.stderr.take() {
            feed.spawn_reader(err, OutputStream::Err);
        }
        drop(feed);
        let pid = child.id();
        let (name, place) = (run.name.to_owned(), run.place.clone());
        let (tail, heard) = (VecDeque::new(), Instant::now());
        let mut process = Process { name, place, child, pid, output, heard, tail, command };
        if !process.place.is_local() {
            let said = process.wait_for_line(Duration::from_secs(20), |line| {
                line.strip_prefix("pid ").and_then(|number| number.parse().ok())
            });
            match said {
                Ok(pid) => process.pid = pid,
                Err(why) => {
                    // By the number that ssh has here somebody else's process would be ended there.
                    let _ = process.child.kill();
                    let _ = process.child.wait();
                    return Err(why);
                }
            }
        }
        Ok(process)
    }

    /// Its id, where it runs.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Where it runs.
    pub fn place(&self) -> &CommandLocation {
        &self.place
    }

    /// What was run, as a person would type it.
    pub fn command_line(&self) -> &str {
        &self.command
    }

    /// The next line that it prints, within a time. `Ok(None)`: it has closed its output.
    ///
    /// # Errors
    /// [`LineTimeout`] if none comes in time, or all was told to end.
    pub fn next_line(&mut self, within: Duration) -> Result<Option<(OutputStream, String)>, LineTimeout> {
        let until = Instant::now() + within;
        while !end_request::is_ending() {
            let left = until.saturating_duration_since(Instant::now());
            // Who never ceases to talk does not put the end off.
            if left.is_zero() {
                break;
            }
            match self.output.next_line(left.min(end_request::CHECK_INTERVAL)) {
                Ok((stream, line, heard)) => {
                    self.heard = heard;
                    if self.tail.len() == TAIL_LINES {
                        self.tail.pop_front();
                    }
                    self.tail.push_back(line.clone());
                    return Ok(Some((stream, line)));
                }
                Err(RecvTimeoutError::Timeout) if left > end_request::CHECK_INTERVAL => {}
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
        Err(LineTimeout)
    }

    /// When the last line that was taken came, which may be earlier than when it was taken.
    pub fn last_line_time(&self) -> Instant {
        self.heard
    }

    /// Waits for a line in which `found` finds something.
    ///
    /// # Errors
    /// If it ends first, or takes longer than `within`.
    pub fn wait_for_line<T>(
        &mut self,
        within: Duration,
        found: impl Fn(&str) -> Option<T>,
    ) -> Result<T, Failure> {
        let until = Instant::now() + within;
        loop {
            match self.next_line(until.saturating_duration_since(Instant::now())) {
                Ok(Some((_, line))) => {
                    if let Some(found) = found(&line) {
                        return Ok(found);
                    }
                }
                Ok(None) => return Err(self.failure_with_output("it ended before it was ready")),
                Err(LineTimeout) => {
                    return Err(
                        self.failure_with_output(format!("it was not ready within {} s", within.as_secs()))
                    );
                }
            }
        }
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end, and gives all that it printed to standard output from now on.
    ///
    /// # Errors
    /// If it fails, or takes longer than `within`: then it is ended.
    pub fn wait_for_output(&mut self, within: Duration) -> Result<String, Failure> {
        let until = Instant::now() + within;
        let mut text = String::new();
        loop {
            match self.next_line(until.saturating_duration_since(Instant::now())) {
                Ok(Some((OutputStream::Out, line))) => {
                    text.push_str(&line);
                    text.push('\n');
                }
                Ok(Some((OutputStream::Err, _))) => {}
                Ok(None) => break,
                Err(LineTimeout) => {
                    self.stop();
                    return Err(
                        self.failure_with_output(format!("it did not end within {} s", within.as_secs()))
                    );
                }
            }
        }
        // Its output may be closed long before its end.
        match self.wait_for_exit(until.saturating_duration_since(Instant::now()).max(EXIT_GRACE_TIME)) {
            // Figures that are not whole are none.
            Some(status) if status.success() && self.output.is_truncated() => {
                Err(self.failure_with_output("it printed more than could be kept"))
            }
            Some(status) if status.success() => Ok(text),
            Some(status) => Err(self.failure_with_output(status)),
            None => {
                self.stop();
                Err(self.failure_with_output(format!(
                    "it closed its output and did not end within {} s",
                    within.as_secs()
                )))
            }
        }
    }

    /// How it ended, if it does within a time.
    fn wait_for_exit(&mut self, within: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + within;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until && !end_request::is_ending() => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => return None,
            }
        }
    }

    /// A failure of this process, with the last that it said; if all was told to end, this.
    pub fn failure_with_output(&mut self, why: impl fmt::Display) -> Failure {
        if let Err(told) = end_request::check_not_ending() {
            return told.during(&self.name);
        }
        // What it printed before it ended may still be on its way; one that goes on is not heard to its end.
        let until = Instant::now() + LAST_OUTPUT_TIMEOUT;
        while Instant::now() < until && matches!(self.next_line(Duration::from_millis(50)), Ok(Some(_))) {}
        let said: Vec<String> = self.tail.iter().map(|line| format!("\n    {line}")).collect();
        Failure::new(format!("{}: {why}\n  {}{}", self.name, self.command, said.concat()))
    }

    /// Ends it: asked first, killed when it takes too long.
    pub fn stop(&mut self) {
        if !self.is_alive() {
            return;
        }
        self.signal("TERM");
        wait_until(EXIT_GRACE_TIME, || !self.is_alive());
        if self.is_alive() {
            self.signal("KILL");
            let _ = self.child.kill();
        }
        self.reap();
    }

    /// Ends it at once: for programs that do not end when asked.
    pub fn kill(&mut self) {
        if self.is_alive() {
            self.signal("KILL");
        }
        let _ = self.child.kill();
        self.reap();
    }

    /// Waits for the end of what was killed, but not for ever: one that waits for a disk without an answer ends
    /// when it has one.
    fn reap(&mut self) {
        wait_until(EXIT_GRACE_TIME, || !matches!(self.child.try_wait(), Ok(None)));
    }

    fn signal(&self, signal: &str) {
        let _ =
            self.place.run_with_timeout(SIGNAL_TIMEOUT, &["kill", "-s", signal, &self.pid.to_string()], b"");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// No line came in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineTimeout;

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(dir: &Path, script: &str) -> Process {
        let words = ["sh", "-c", script].map(str::to_owned).to_vec();
        Process::start(ProcessSpec { name: "shell", place: &CommandLocation::Here, cores: &[], words, dir })
            .unwrap()
    }

    #[test]
    fn output_is_read_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = shell(dir.path(), "echo ready; echo aside >&2; echo figures");
        process.wait_for_line(Duration::from_secs(5), |line| (line == "ready").then_some(())).unwrap();
        assert_eq!(process.wait_for_output(Duration::from_secs(5)).unwrap(), "figures\n");
        let log = std::fs::read_to_string(dir.path().join("shell.log")).unwrap();
        assert!(log.contains("ready") && log.contains("aside"), "{log}");
    }

    #[test]
    fn lines_that_are_drawn_over_come_one_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = shell(dir.path(), "printf 'one\\rtwo\\rlast'");
        let mut lines = Vec::new();
        while let Ok(Some((_, line))) = process.next_line(Duration::from_secs(5)) {
            lines.push(line);
        }
        assert_eq!(lines, ["one", "two", "last"]);
    }

    #[test]
    fn who_fails_is_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = shell(dir.path(), "echo address in use >&2; exit 7");
        let why = process.wait_for_line(Duration::from_secs(5), |_| None::<()>).unwrap_err().to_string();
        assert!(why.contains("address in use") && why.contains("sh -c"), "{why}");
    }

    #[test]
    fn nothing_outlives_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let process = shell(dir.path(), "echo on; exec sleep 600");
        let pid = process.pid();
        assert!(Path::new(&format!("/proc/{pid}")).exists());
        drop(process);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    /// What stands for ssh: it runs what it is told as its own child.
    fn far(script: &str) -> CommandLocation {
        let ssh = ["sh", "-c", script].map(str::to_owned).to_vec();
        CommandLocation::Ssh(crate::place::SshMachine::new(ssh, "storage", Path::new("none")))
    }

    /// Command lines of the processes that this one has started.
    fn started() -> String {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let children = children.collect::<String>();
        let lines = children
            .split_ascii_whitespace()
            .filter_map(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).ok());
        lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
    }

    /// A target that logs without end was waited for without end.
    #[test]
    fn who_never_ceases_to_talk_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut process =
            shell(dir.path(), "i=0; while [ $i -lt 200000 ]; do echo $i; i=$((i + 1)); done; exec sleep 600");
        let begun = Instant::now();
        let why = process.wait_for_line(Duration::from_millis(50), |_| None::<()>).unwrap_err().to_string();
        assert!(why.contains("not ready") && begun.elapsed() < Duration::from_secs(5), "{why}");
        let why = process.wait_for_output(Duration::from_millis(50)).unwrap_err().to_string();
        assert!(why.contains("did not end"), "{why}");
    }

    #[test]
    fn who_closes_its_output_and_goes_on_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = shell(dir.path(), "exec >&- 2>&-; exec sleep 600");
        assert!(matches!(process.next_line(Duration::from_secs(10)), Ok(None)));
        assert!(process.wait_for_exit(Duration::from_millis(50)).is_none() && process.is_alive());
        process.kill();
        assert!(process.wait_for_exit(Duration::ZERO).is_some());
    }

    #[test]
    fn nothing_is_started_whose_output_cannot_be_kept() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        let words = ["sleep", "600.0625"].map(str::to_owned).to_vec();
        let run = ProcessSpec { name: "sleep", place: &CommandLocation::Here, cores: &[], words, dir: &gone };
        let why = Process::start(run).unwrap_err().to_string();
        assert!(why.contains("--out") && !started().contains("600.0625"), "{why}");
    }

    /// The number that ssh has here is somebody else's there.
    #[test]
    fn a_process_of_another_machine_whose_number_is_not_known_is_never_signalled() {
        let dir = tempfile::tempdir().unwrap();
        let said = dir.path().join("said");
        // A shell there that does not know `$$`.
        let place =
            far(&format!("echo \"$*\" >>{}; echo pid; exec >&- 2>&-; exec sleep 600", said.display()));
        let words = vec!["true".to_owned()];
        Process::start(ProcessSpec { name: "far", place: &place, cores: &[], words, dir: dir.path() })
            .unwrap_err();
        let said = std::fs::read_to_string(said).unwrap();
        assert!(said.lines().count() == 1 && !said.contains("kill"), "{said}");
    }

    /// As after a harness that was killed, or a link that broke.
    #[test]
    fn what_runs_on_another_machine_never_outlives_its_connection() {
        let dir = tempfile::tempdir().unwrap();
        let place = far("for last; do :; done; sh -c \"$last\" & wait");
        let words = ["sleep", "600"].map(str::to_owned).to_vec();
        let run = ProcessSpec { name: "far", place: &place, cores: &[], words, dir: dir.path() };
        let mut process = Process::start(run).unwrap();
        let there = format!("/proc/{}/cmdline", process.pid());
        let is_there = || std::fs::read(&there).is_ok_and(|line| !line.is_empty());
        let until = Instant::now() + Duration::from_secs(10);
        while !std::fs::read(&there).is_ok_and(|line| line.starts_with(b"sleep")) {
            assert!(Instant::now() < until, "it runs");
            std::thread::sleep(Duration::from_millis(5));
        }
        process.child.kill().unwrap();
        process.child.wait().unwrap();
        while is_there() {
            assert!(Instant::now() < until, "it is gone");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_a_kill_does_not_end_is_never_waited_for_without_end() {
        let begun = Instant::now();
        assert!(!wait_until(Duration::from_millis(50), || false));
        assert!(wait_until(Duration::from_secs(600), || true));
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn who_hangs_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = shell(dir.path(), "exec sleep 600");
        let why = process.wait_for_output(Duration::from_millis(50)).unwrap_err().to_string();
        assert!(why.contains("did not end"), "{why}");
    }
}
