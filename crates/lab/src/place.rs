//! Where a command runs: on this machine, in a network namespace of it, or on another machine over ssh.
//!
//! Invariant: a word of a command reaches the program as it stands, wherever it runs; nothing is
//! expanded by a shell on the way.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Failure;

/// Where a command runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Here.
    Here,
    /// Here, in the network namespace of this name (ip-netns(8)).
    Namespace(String),
    /// On the machine of this name, as ssh(1) understands it.
    Ssh(String),
}

/// Options of ssh under which nothing is asked of a person, and a dead machine is given up.
const SSH: [&str; 6] = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5"];

impl Place {
    /// Whether its processes are processes of this machine.
    pub fn is_local(&self) -> bool {
        !matches!(self, Place::Ssh(_))
    }

    /// The words that run `words` there. Over ssh the process first says its id, as `pid N`.
    pub fn words(&self, words: &[String]) -> Vec<String> {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        match self {
            Place::Here => words.to_vec(),
            Place::Namespace(name) => [texts(&["ip", "netns", "exec", name]), words.to_vec()].concat(),
            Place::Ssh(machine) => {
                let line: Vec<String> = words.iter().map(|word| quoted(word)).collect();
                let script = format!("echo pid $$; exec {}", line.join(" "));
                [texts(&["ssh"]), texts(&SSH), vec![machine.clone(), "--".to_owned(), script]].concat()
            }
        }
    }

    /// Runs a command to its end and gives what it printed.
    ///
    /// # Errors
    /// If it cannot be run, or fails: what it said.
    pub fn run(&self, words: &[&str]) -> Result<String, Failure> {
        self.run_with(words, b"")
    }

    /// Runs a command that is given `input`.
    ///
    /// # Errors
    /// If it cannot be run, or fails: what it said.
    pub fn run_with(&self, words: &[&str], input: &[u8]) -> Result<String, Failure> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let whole = self.words(&words);
        let failed = |why: &dyn std::fmt::Display| Failure::new(format!("{}: {why}", words.join(" ")));
        let mut child = Command::new(&whole[0])
            .args(&whole[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|why| failed(&why))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A command that does not read what it is given is judged by how it ends.
            let _ = stdin.write_all(input);
        }
        let output = child.wait_with_output().map_err(|why| failed(&why))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said =
                if said.trim().is_empty() { output.status.to_string() } else { said.trim().to_owned() };
            return Err(failed(&said));
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(match self {
            Place::Ssh(_) => text.split_once('\n').map_or(String::new(), |(_, rest)| rest.to_owned()),
            _ => text,
        })
    }

    /// Whether a program is there, by its name or path.
    pub fn has(&self, program: &str) -> bool {
        match self {
            Place::Ssh(_) => self.run(&["sh", "-c", "command -v \"$1\"", "sh", program]).is_ok(),
            _ => found(program),
        }
    }

    /// Reads a file there.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(&self, path: &str) -> Result<String, Failure> {
        match self {
            Place::Ssh(_) => self.run(&["cat", path]),
            _ => std::fs::read_to_string(path).map_err(|why| Failure::new(format!("{path}: {why}"))),
        }
    }

    /// How it is called in commands and records.
    pub fn name(&self) -> String {
        match self {
            Place::Here => "here".to_owned(),
            Place::Namespace(name) => format!("namespace {name}"),
            Place::Ssh(machine) => machine.clone(),
        }
    }
}

/// Whether a program is here. Those of system administration may be outside of an ordinary user's path.
fn found(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).exists();
    }
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').chain(["/usr/sbin", "/sbin"]).any(|dir| Path::new(dir).join(program).exists())
}

/// A word as a shell reads it back unchanged.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%^".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_through_a_shell_unchanged() {
        for word in ["plain", "", "two words", "it's", "$HOME `id` \\", "nvme+tcp://h/n/1?a=b&c=d", "*"] {
            let said = Place::Here.run(&["sh", "-c", &format!("printf %s {}", quoted(word))]).unwrap();
            assert_eq!(said, word);
        }
    }

    #[test]
    fn a_command_that_fails_says_why() {
        let why = Place::Here.run(&["sh", "-c", "echo no such luck >&2; exit 3"]).unwrap_err();
        assert!(why.to_string().contains("no such luck"), "{why}");
        let why = Place::Here.run(&["/does/not/exist"]).unwrap_err();
        assert!(why.to_string().contains("/does/not/exist"), "{why}");
    }

    #[test]
    fn a_namespace_or_another_machine_is_put_in_front() {
        let words = ["blockwire".to_owned(), "a b".to_owned()];
        let there = Place::Namespace("bw-t".into()).words(&words);
        assert_eq!(there.join(" "), "ip netns exec bw-t blockwire a b");
        let there = Place::Ssh("root@storage".into()).words(&words);
        assert_eq!(there[0], "ssh");
        assert_eq!(there.last().unwrap(), "echo pid $$; exec blockwire 'a b'");
    }
}
