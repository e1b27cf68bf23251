//! This project's target.

use std::path::{Path, PathBuf};
use std::time::Duration;

use eval::preset::{Medium, Protocol};

use super::{Serving, Setup, Target};
use crate::Failure;
use crate::place::Place;
use crate::process::{Process, Run};

/// `blockwire serve`.
#[derive(Debug)]
pub(super) struct Ours {
    binary: PathBuf,
}

impl Ours {
    pub(super) fn new(binary: &Path) -> Ours {
        Ours { binary: binary.to_owned() }
    }
}

impl Target for Ours {
    fn name(&self) -> &'static str {
        "blockwire"
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Iscsi, Protocol::NvmeTcp]
    }

    fn missing(&self, place: &Place) -> Option<String> {
        place.lacks_binary(&self.binary)
    }

    fn has(&self, _medium: Medium) -> bool {
        true
    }

    fn version(&self, place: &Place) -> Option<String> {
        let said = place.run(&[&place.binary(&self.binary), "--version"]).ok()?;
        said.split_ascii_whitespace().nth(1).map(str::to_owned)
    }

    fn start(&self, setup: &Setup<'_>) -> Result<Serving, Failure> {
        let (count, bytes) = setup.volumes;
        let kind = match setup.medium {
            Medium::Ram => "ram",
            Medium::Null => "null",
        };
        let scratch = setup.place.scratch(setup.dir);
        let name = setup.protocol.name();
        let mut words = vec![setup.place.binary(&self.binary), "serve".to_owned()];
        let (flag, word) = match setup.protocol {
            Protocol::NvmeTcp => ("--nvme", "nvme"),
            _ => ("--iscsi", "iscsi"),
        };
        words.extend([flag.to_owned(), format!("{}:0", setup.listen)]);
        for number in 0..count {
            words.extend(["--volume".to_owned(), format!("v{number}={kind}:{bytes}")]);
        }
        words.extend(["--state".to_owned(), format!("{scratch}/{name}-state")]);
        words.extend(["--control".to_owned(), format!("{scratch}/{name}.sock")]);
        if !setup.cores.is_empty() {
            let list: Vec<String> = setup.cores.iter().map(ToString::to_string).collect();
            words.extend(["--cores".to_owned(), list.join(",")]);
        }
        if setup.listen != "127.0.0.1" {
            words.push("--allow-anonymous".to_owned());
        }
        let run =
            Run { name: "blockwire-target", place: setup.place, cores: setup.cores, words, dir: setup.dir };
        let mut process = Process::start(run)?;
        let start = format!("listening {word} ");
        let port = process.wait_for(Duration::from_secs(30), |line| {
            line.strip_prefix(&start)?.rsplit(':').next()?.parse().ok()
        })?;
        process.wait_for(Duration::from_secs(60), |line| (line == "ready").then_some(()))?;
        let name = |number| match setup.protocol {
            Protocol::NvmeTcp => format!("nqn.2026-11.io.blockwire:v{number}/1"),
            _ => format!("iqn.2026-11.io.blockwire:v{number}/0"),
        };
        let mut serving = Serving::new(setup.protocol, port, (0..count).map(name).collect());
        serving.commands.push(process.command().to_owned());
        serving.processes.push(process);
        Ok(serving)
    }
}
