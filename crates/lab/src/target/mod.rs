//! Targets that the harness starts and stops, each with the same volumes on the same cores.
//!
//! A [`Target`] says what it lacks here, or starts and gives a [`Serving`]. Invariant: what a target
//! started or changed is undone when its [`Serving`] is dropped.

mod blockwire;
mod stream;
mod url;

use std::path::Path;

use eval::preset::{Medium, Protocol};

use crate::Failure;
use crate::place::Place;
use crate::process::Process;

/// A system that serves volumes.
pub trait Target: Sync {
    /// Its name on the command line.
    fn name(&self) -> &str;

    /// The protocols that it speaks.
    fn protocols(&self) -> &[Protocol];

    /// What is missing in this place and how it is installed; `None`: it can be started.
    fn missing(&self, place: &Place) -> Option<String>;

    /// Whether its volumes can be made of this.
    fn has(&self, medium: Medium) -> bool {
        medium == Medium::Ram
    }

    /// Its version, as it says it.
    fn version(&self, place: &Place) -> Option<String>;

    /// Starts it, with all volumes ready to be used.
    ///
    /// # Errors
    /// If it does not come up: what it said.
    fn start(&self, setup: &Setup<'_>) -> Result<Serving, Failure>;
}

/// What a target is to serve.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// Where it runs.
    pub place: &'a Place,
    /// The address that it listens on.
    pub listen: &'a str,
    /// What it speaks.
    pub protocol: Protocol,
    /// How many volumes, of so many bytes each.
    pub volumes: (u32, u64),
    /// What they are made of.
    pub medium: Medium,
    /// Processors that it may use.
    pub cores: &'a [usize],
    /// For its files and logs.
    pub dir: &'a Path,
}

/// A target that serves.
#[derive(Debug)]
pub struct Serving {
    /// Its processes; none: it lives in the kernel, or elsewhere.
    pub processes: Vec<Process>,
    /// What it speaks.
    pub protocol: Protocol,
    /// Its port.
    pub port: u16,
    /// Each volume, as it stands in a URL behind the address: `iqn…/0`.
    pub volumes: Vec<String>,
    /// What a person would type to have the same.
    pub commands: Vec<String>,
    /// Where it is if not at the link's own address.
    pub fixed: Option<Vec<String>>,
    /// Commands that undo what was changed, in order.
    pub undo: Vec<(Place, Vec<String>)>,
    /// Whether its processes do not end when asked.
    pub is_stubborn: bool,
}

impl Serving {
    /// A target with these processes.
    pub fn new(protocol: Protocol, port: u16, volumes: Vec<String>) -> Serving {
        Serving {
            processes: Vec::new(),
            protocol,
            port,
            volumes,
            commands: Vec::new(),
            fixed: None,
            undo: Vec::new(),
            is_stubborn: false,
        }
    }

    /// URLs of its volumes, as they are reached at this address.
    pub fn urls(&self, address: &str) -> Vec<String> {
        if let Some(urls) = &self.fixed {
            return urls.clone();
        }
        let scheme = match self.protocol {
            Protocol::NvmeTcp => "nvme+tcp",
            Protocol::Stream => return vec![format!("tcp://{address}:{}", self.port)],
            _ => "iscsi",
        };
        self.volumes.iter().map(|volume| format!("{scheme}://{address}:{}/{volume}", self.port)).collect()
    }

    /// Ids of its processes.
    pub fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::pid).collect()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        for process in &mut self.processes {
            if self.is_stubborn {
                process.kill();
            } else {
                process.stop();
            }
        }
        for (place, words) in self.undo.drain(..) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let _ = place.run(&words);
        }
    }
}

/// All targets that are known. `binary`: this program; `urls`: volumes that something else serves.
pub fn all(binary: &Path, urls: &[String]) -> Vec<Box<dyn Target>> {
    let mut all: Vec<Box<dyn Target>> =
        vec![Box::new(blockwire::Ours::new(binary)), Box::new(stream::Receiver::new(binary))];
    if !urls.is_empty() {
        all.push(Box::new(url::Elsewhere::new(urls)));
    }
    all
}

/// A port that is free in a place, found by asking its kernel.
///
/// # Errors
/// If none can be had.
pub fn free_port(place: &Place) -> Result<u16, Failure> {
    match place {
        Place::Here => {
            let listener = std::net::TcpListener::bind("127.0.0.1:0");
            let port = listener.and_then(|listener| listener.local_addr()).map(|address| address.port());
            port.map_err(|why| Failure::new(format!("no port is free: {why}")))
        }
        // Only other targets of the same experiment live there, one after the other.
        _ => Ok(3260),
    }
}
