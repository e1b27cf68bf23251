//! The bare responder: memory behind TCP without a storage protocol, as a ceiling for other systems.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use eval::preset::{Protocol, VolumeMedium};

use super::{IdlePolling, ServingTarget, Target, TargetSetup};
use crate::Failure;
use crate::place::CommandLocation;

/// `blockwire eval bare --listen`.
#[derive(Debug)]
pub(super) struct BareTarget {
    binary: PathBuf,
}

impl BareTarget {
    pub(super) fn new(binary: &Path) -> BareTarget {
        BareTarget { binary: binary.to_owned() }
    }
}

impl Target for BareTarget {
    fn name(&self) -> &'static str {
        eval::preset::BARE_SYSTEM
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Bare]
    }

    fn missing(&self, place: &CommandLocation) -> Option<String> {
        place.missing_binary(&self.binary)
    }

    fn version(&self, place: &CommandLocation) -> Option<String> {
        let said = place.run(&[&place.binary_path(&self.binary), "--version"]).ok()?;
        said.split_ascii_whitespace().nth(1).map(str::to_owned)
    }

    fn start(&self, setup: &TargetSetup<'_>) -> Result<ServingTarget, Failure> {
        let (count, bytes) = setup.volumes;
        let polled = format!("{}/bare-polled", setup.place.scratch_path(setup.dir));
        let mut words = vec![setup.place.binary_path(&self.binary)];
        words.extend(["eval", "bare", "--listen", setup.listen].map(str::to_owned));
        words.extend(["--volumes".to_owned(), count.to_string(), "--bytes".to_owned(), bytes.to_string()]);
        words.extend(["--threads".to_owned(), setup.cores.len().max(1).to_string()]);
        words.extend(["--polled".to_owned(), polled.clone()]);
        if setup.medium == VolumeMedium::Null {
            words.push("--null".to_owned());
        }
        let mut process = setup.start_process("bare", words)?;
        let volumes = RefCell::new(Vec::new());
        // Its memory is written before it is ready.
        process.wait_for_line(Duration::from_secs(120), |line| {
            if let Some(volume) = line.strip_prefix("volume ") {
                volumes.borrow_mut().push(volume.to_owned());
            }
            (line == "ready").then_some(())
        })?;
        let mut serving = ServingTarget::new(Protocol::Bare, 0, volumes.into_inner());
        serving.commands.push(process.command_line().to_owned());
        serving.processes.push(process);
        serving.polls = Some(Arc::new(PolledTimeFile { place: setup.place.clone(), path: polled }));
        Ok(serving)
    }
}

/// The file in which it writes for how long it has polled.
#[derive(Debug)]
struct PolledTimeFile {
    place: CommandLocation,
    path: String,
}

impl IdlePolling for PolledTimeFile {
    fn idle_seconds(&self) -> Option<f64> {
        self.place.read_file(&self.path).ok()?.trim().parse().ok()
    }
}
