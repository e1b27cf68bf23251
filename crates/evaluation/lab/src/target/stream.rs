//! The receiver of plain streams: `blockwire eval stream --listen`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use eval::preset::Protocol;

use super::{ServingTarget, Target, TargetSetup};
use crate::Failure;
use crate::place::CommandLocation;

#[derive(Debug)]
pub(super) struct StreamReceiver {
    binary: PathBuf,
}

impl StreamReceiver {
    pub(super) fn new(binary: &Path) -> StreamReceiver {
        StreamReceiver { binary: binary.to_owned() }
    }
}

impl Target for StreamReceiver {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Stream]
    }

    fn missing(&self, place: &CommandLocation) -> Option<String> {
        place.missing_binary(&self.binary)
    }

    fn start(&self, setup: &TargetSetup<'_>) -> Result<ServingTarget, Failure> {
        let mut words = vec![setup.place.binary_path(&self.binary)];
        words.extend(["eval", "stream", "--listen", &format!("{}:0", setup.listen)].map(str::to_owned));
        let mut process = setup.start_process("stream-target", words)?;
        let port = process
            .wait_for_line(Duration::from_secs(10), |line| line.strip_prefix("listening ")?.parse().ok())?;
        let mut serving = ServingTarget::new(Protocol::Stream, port, vec![String::new()]);
        serving.commands.push(process.command_line().to_owned());
        serving.processes.push(process);
        Ok(serving)
    }
}
