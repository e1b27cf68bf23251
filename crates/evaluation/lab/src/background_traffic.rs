//! Traffic that fills a link while something else is measured on it.

use eval::preset::{Protocol, VolumeMedium};

use crate::Failure;
use crate::link::Link;
use crate::process::{Process, ProcessSpec};
use crate::runner::Runner;
use crate::target::TargetSetup;

/// Streams in both directions that fill a link while something else is measured on it.
pub(crate) struct BackgroundTraffic {
    processes: Vec<Process>,
}

impl BackgroundTraffic {
    /// Fills the link between the target and each initiator machine, both ways.
    pub(crate) fn start(runner: &Runner<'_>, link: &Link) -> Result<BackgroundTraffic, Failure> {
        let mut processes = Vec::new();
        let target = runner.find_target("stream")?;
        for (host, there) in link.initiator_places().iter().enumerate() {
            let ways = [
                (link.target_place(), there, link.address(host)),
                (there, link.target_place(), link.initiator_address(host)),
            ];
            for (receiver, sender, address) in ways {
                let setup = TargetSetup {
                    place: receiver,
                    listen: link.listen_address(),
                    addresses: link.addresses(),
                    protocol: Protocol::Stream,
                    volumes: (0, 0),
                    targets: None,
                    medium: VolumeMedium::Null,
                    connections: 1,
                    cores: &[],
                    dir: &runner.dir,
                };
                let mut serving = target.start(&setup)?;
                let to = format!("{address}:{}", serving.port);
                let binary = std::env::current_exe().map_err(Failure::new)?;
                let mut words = vec![sender.binary_path(&binary)];
                words.extend(["eval", "stream", "--to", &to, "--ramp-ms", "0"].map(str::to_owned));
                // Longer than any load; it ends with its owner.
                words.extend(["--runtime-ms".to_owned(), "86400000".to_owned()]);
                let start = ProcessSpec { name: "noise", place: sender, cores: &[], words, dir: &runner.dir };
                processes.push(Process::start(start)?);
                processes.append(&mut serving.processes);
            }
        }
        Ok(BackgroundTraffic { processes })
    }

    /// After the load: all of it was there until the end.
    ///
    /// # Errors
    /// If a stream ended before: the link was not filled, and the figures are of another load.
    pub(crate) fn check_still_running(&mut self) -> Result<(), Failure> {
        match self.processes.iter_mut().find_map(|process| (!process.is_alive()).then_some(process)) {
            None => Ok(()),
            Some(gone) => {
                Err(gone.failure_with_output("it ended before the load that it was to fill the link for"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::place::CommandLocation;

    #[test]
    fn a_link_whose_noise_has_ended_is_never_taken_for_a_full_one() {
        let dir = tempfile::tempdir().unwrap();
        let start = |script: &str| {
            let words = ["sh", "-c", script].map(str::to_owned).to_vec();
            Process::start(ProcessSpec {
                name: "noise",
                place: &CommandLocation::Here,
                cores: &[],
                words,
                dir: dir.path(),
            })
            .unwrap()
        };
        let mut noise = BackgroundTraffic { processes: vec![start("exec sleep 600")] };
        noise.check_still_running().unwrap();
        let mut ended = start("echo refused");
        ended.wait_for_output(Duration::from_secs(10)).unwrap();
        noise.processes.push(ended);
        assert!(noise.check_still_running().unwrap_err().to_string().contains("fill the link"));
    }
}
