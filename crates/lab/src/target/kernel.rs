//! Linux's own targets: LIO (iSCSI) and nvmet (NVMe/TCP), configured by their file system.
//!
//! They work in the kernel, so processor time is that of the target's cores, whoever used it, and the
//! harness cannot hold them to those cores. Volumes are LIO's ramdisks and null_blk's devices. What the
//! scripts made they take away again, by its names, and nothing else.

use eval::preset::{Medium, Protocol};

use super::{Serving, Setup, Target, free_port};
use crate::Failure;
use crate::place::Place;

/// One of the two.
#[derive(Debug)]
pub(super) struct Kernel {
    name: &'static str,
    protocol: [Protocol; 1],
    modules: &'static [&'static str],
    script: &'static str,
}

impl Kernel {
    pub(super) fn lio() -> Kernel {
        Kernel {
            name: "lio",
            protocol: [Protocol::Iscsi],
            modules: &["target_core_mod", "iscsi_target_mod"],
            script: include_str!("lio.sh"),
        }
    }

    pub(super) fn nvmet() -> Kernel {
        Kernel {
            name: "nvmet",
            protocol: [Protocol::NvmeTcp],
            modules: &["nvmet", "nvmet_tcp", "null_blk"],
            script: include_str!("nvmet.sh"),
        }
    }

    fn is_nvme(&self) -> bool {
        self.protocol[0] == Protocol::NvmeTcp
    }

    /// What its script is told: to start, and to stop.
    fn arguments(&self, setup: &Setup<'_>, own: &str, port: u16) -> (Vec<String>, Vec<String>) {
        let (count, bytes) = (setup.volumes.0.to_string(), setup.volumes.1);
        let (size, kind) = match (self.is_nvme(), setup.medium) {
            (true, Medium::Ram) => (bytes >> 20, "1"),
            (true, Medium::Null) => (bytes >> 20, "0"),
            (false, Medium::Ram) => (bytes, ""),
            (false, Medium::Null) => (bytes, ",rd_nullio=1"),
        };
        let (size, port) = (size.to_string(), port.to_string());
        let start = ["start", own, setup.listen, &port, &count, &size, kind].map(str::to_owned);
        let stop = ["stop", own, &count, &port].map(str::to_owned);
        (start.to_vec(), stop.to_vec())
    }

    fn words(&self, arguments: Vec<String>) -> Vec<String> {
        [["sh", "-c", self.script, "sh"].map(str::to_owned).to_vec(), arguments].concat()
    }
}

impl Target for Kernel {
    fn name(&self) -> &'static str {
        self.name
    }

    fn protocols(&self) -> &[Protocol] {
        &self.protocol
    }

    fn missing(&self, place: &Place) -> Option<String> {
        if let Some(why) = self.modules.iter().find_map(|module| place.module(module)) {
            return Some(why);
        }
        let is_root = place.run(&["id", "-u"]).is_ok_and(|said| said.trim() == "0");
        (!is_root).then(|| format!("the kernel's targets: configuring them takes root on {}", place.name()))
    }

    fn has(&self, _medium: Medium) -> bool {
        true
    }

    fn version(&self, place: &Place) -> Option<String> {
        let kernel = place.read("/proc/sys/kernel/osrelease").ok()?;
        Some(format!("Linux {}", kernel.trim()))
    }

    fn start(&self, setup: &Setup<'_>) -> Result<Serving, Failure> {
        let port = free_port(setup.place)?;
        let own = format!("bw{}", std::process::id());
        let (start, stop) = self.arguments(setup, &own, port);
        let name = |number: u32| match self.protocol[0] {
            Protocol::NvmeTcp => format!("nqn.2026-11.io.blockwire:{own}-{number}/1"),
            _ => format!("iqn.2026-11.io.blockwire.eval:{own}-{number}/0"),
        };
        let mut serving = Serving::new(self.protocol[0], port, (0..setup.volumes.0).map(name).collect());
        serving.commands.push(format!("sh crates/lab/src/target/{}.sh {}", self.name, start.join(" ")));
        // Whatever was made until it fails is taken away, too.
        serving.undo.push((setup.place.clone(), self.words(stop)));
        let words = self.words(start);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // The script is long; what it said is what matters.
        let short = |why: Failure| match why.to_string().rsplit_once(": ") {
            Some((_, said)) => Failure::new(format!("{}: {said}", self.name)),
            None => why,
        };
        setup.place.run(&words).map_err(short)?;
        Ok(serving)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn setup(protocol: Protocol, medium: Medium) -> Setup<'static> {
        Setup {
            place: &Place::Here,
            listen: "127.0.0.1",
            addresses: &[],
            protocol,
            volumes: (2, 64 << 20),
            medium,
            connections: 1,
            cores: &[],
            dir: Path::new("/"),
        }
    }

    #[test]
    fn scripts_are_told_sizes_in_their_units() {
        let (start, stop) = Kernel::nvmet().arguments(&setup(Protocol::NvmeTcp, Medium::Ram), "bw7", 4421);
        assert_eq!(start.join(" "), "start bw7 127.0.0.1 4421 2 64 1");
        assert_eq!(stop.join(" "), "stop bw7 2 4421");
        let (start, _) = Kernel::lio().arguments(&setup(Protocol::Iscsi, Medium::Null), "bw7", 3261);
        assert_eq!(start.join(" "), "start bw7 127.0.0.1 3261 2 67108864 ,rd_nullio=1");
    }

    /// A shell takes both scripts. Where the kernel has what they need, a volume is served, and gone after.
    #[test]
    fn scripts_make_and_unmake() {
        for target in [Kernel::lio(), Kernel::nvmet()] {
            Place::Here.run(&["sh", "-n", "-c", target.script]).unwrap();
            if target.missing(&Place::Here).is_some() {
                continue;
            }
            let serving = target.start(&setup(target.protocol[0], Medium::Ram)).unwrap();
            let address = format!("127.0.0.1:{}", serving.port);
            std::net::TcpStream::connect(&address).unwrap();
            drop(serving);
            assert!(std::net::TcpStream::connect(&address).is_err(), "{} is gone", target.name);
        }
    }
}
