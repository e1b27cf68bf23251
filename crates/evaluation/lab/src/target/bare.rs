//! The bare responder: memory behind TCP without a storage protocol, as a ceiling for other systems.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use eval::preset::{Medium, Protocol};

use super::{Polls, Serving, Target, TargetSetup};
use crate::Failure;
use crate::place::Place;

/// `blockwire eval bare --listen`.
#[derive(Debug)]
pub(super) struct Bare {
    binary: PathBuf,
}

impl Bare {
    pub(super) fn new(binary: &Path) -> Bare {
        Bare { binary: binary.to_owned() }
    }
}

impl Target for Bare {
    fn name(&self) -> &'static str {
        eval::preset::BARE
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Bare]
    }

    fn missing(&self, place: &Place) -> Option<String> {
        place.lacks_binary(&self.binary)
    }

    fn version(&self, place: &Place) -> Option<String> {
        let said = place.run(&[&place.binary(&self.binary), "--version"]).ok()?;
        said.split_ascii_whitespace().nth(1).map(str::to_owned)
    }

    fn start(&self, setup: &TargetSetup<'_>) -> Result<Serving, Failure> {
        let (count, bytes) = setup.volumes;
        let polled = format!("{}/bare-polled", setup.place.scratch(setup.dir));
        let mut words = vec![setup.place.binary(&self.binary)];
        words.extend(["eval", "bare", "--listen", setup.listen].map(str::to_owned));
        words.extend(["--volumes".to_owned(), count.to_string(), "--bytes".to_owned(), bytes.to_string()]);
        words.extend(["--threads".to_owned(), setup.cores.len().max(1).to_string()]);
        words.extend(["--polled".to_owned(), polled.clone()]);
        if setup.medium == Medium::Null {
            words.push("--null".to_owned());
        }
        let mut process = setup.start("bare", words)?;
        let volumes = RefCell::new(Vec::new());
        // Its memory is written before it is ready.
        process.wait_for(Duration::from_secs(120), |line| {
            if let Some(volume) = line.strip_prefix("volume ") {
                volumes.borrow_mut().push(volume.to_owned());
            }
            (line == "ready").then_some(())
        })?;
        let mut serving = Serving::new(Protocol::Bare, 0, volumes.into_inner());
        serving.commands.push(process.command().to_owned());
        serving.processes.push(process);
        serving.polls = Some(Arc::new(Polled { place: setup.place.clone(), path: polled }));
        Ok(serving)
    }
}

/// The file in which it writes for how long it has polled.
#[derive(Debug)]
struct Polled {
    place: Place,
    path: String,
}

impl Polls for Polled {
    fn idle_seconds(&self) -> Option<f64> {
        self.place.read(&self.path).ok()?.trim().parse().ok()
    }
}
