//! Traffic that fills a link while something else is measured on it.

use eval::preset::{Medium, Protocol};

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
        let target = runner.target("stream")?;
        for (host, there) in link.initiators().iter().enumerate() {
            let ways =
                [(link.target(), there, link.address(host)), (there, link.target(), link.far_address(host))];
            for (receiver, sender, address) in ways {
                let setup = TargetSetup {
                    place: receiver,
                    listen: link.listen(),
                    addresses: link.addresses(),
                    protocol: Protocol::Stream,
                    volumes: (0, 0),
                    targets: None,
                    medium: Medium::Null,
                    connections: 1,
                    cores: &[],
                    dir: &runner.dir,
                };
                let mut serving = target.start(&setup)?;
                let to = format!("{address}:{}", serving.port);
                let binary = std::env::current_exe().map_err(Failure::new)?;
                let mut words = vec![sender.binary(&binary)];
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
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        match self.processes.iter_mut().find_map(|process| (!process.is_alive()).then_some(process)) {
            None => Ok(()),
            Some(gone) => Err(gone.failure("it ended before the load that it was to fill the link for")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::place::Place;

    #[test]
    fn a_link_whose_noise_has_ended_is_never_taken_for_a_full_one() {
        let dir = tempfile::tempdir().unwrap();
        let start = |script: &str| {
            let words = ["sh", "-c", script].map(str::to_owned).to_vec();
            Process::start(ProcessSpec {
                name: "noise",
                place: &Place::Here,
                cores: &[],
                words,
                dir: dir.path(),
            })
            .unwrap()
        };
        let mut noise = BackgroundTraffic { processes: vec![start("exec sleep 600")] };
        noise.check().unwrap();
        let mut ended = start("echo refused");
        ended.finish(Duration::from_secs(10)).unwrap();
        noise.processes.push(ended);
        assert!(noise.check().unwrap_err().to_string().contains("fill the link"));
    }
}
