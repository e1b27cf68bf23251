//! The receiver of plain streams: `blockwire eval stream --listen`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use eval::preset::Protocol;

use super::{Serving, Target, TargetSetup};
use crate::Failure;
use crate::place::Place;

#[derive(Debug)]
pub(super) struct Receiver {
    binary: PathBuf,
}

impl Receiver {
    pub(super) fn new(binary: &Path) -> Receiver {
        Receiver { binary: binary.to_owned() }
    }
}

impl Target for Receiver {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Stream]
    }

    fn missing(&self, place: &Place) -> Option<String> {
        place.lacks_binary(&self.binary)
    }

    fn start(&self, setup: &TargetSetup<'_>) -> Result<Serving, Failure> {
        let mut words = vec![setup.place.binary(&self.binary)];
        words.extend(["eval", "stream", "--listen", &format!("{}:0", setup.listen)].map(str::to_owned));
        let mut process = setup.start("stream-target", words)?;
        let port = process
            .wait_for(Duration::from_secs(10), |line| line.strip_prefix("listening ")?.parse().ok())?;
        let mut serving = Serving::new(Protocol::Stream, port, vec![String::new()]);
        serving.commands.push(process.command().to_owned());
        serving.processes.push(process);
        Ok(serving)
    }
}
