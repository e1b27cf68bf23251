//! Linux's own targets: LIO (iSCSI) and nvmet (NVMe/TCP), configured by their file system.
//!
//! They work in the kernel, so processor time is that of the target's cores, who used it, and the
//! harness cannot hold them to those cores. Volumes are LIO's ramdisks and null_blk's devices. They listen at the
//! addresses of the experiment. What the scripts made they take away again, by names that nobody else has, and
//! nothing else; what a killed run could not take away the next one does ([`remains`](crate::remains)).

use eval::preset::{Protocol, VolumeMedium};

use super::{ServingTarget, Target, TargetSetup, free_port};
use crate::Failure;
use crate::created_resources::CreatedResource;
use crate::exports::{self, shell_words};
use crate::place::CommandLocation;
use crate::run_directory::RunDirectory;

/// One of the two.
#[derive(Debug)]
pub(super) struct KernelTarget {
    name: &'static str,
    protocol: [Protocol; 1],
    modules: &'static [&'static str],
    script: &'static str,
}

impl KernelTarget {
    pub(super) fn lio() -> KernelTarget {
        KernelTarget {
            name: "lio",
            protocol: [Protocol::Iscsi],
            modules: &["target_core_mod", "iscsi_target_mod"],
            script: exports::LIO_SCRIPT,
        }
    }

    pub(super) fn nvmet() -> KernelTarget {
        KernelTarget {
            name: "nvmet",
            protocol: [Protocol::NvmeTcp],
            modules: &["nvmet", "nvmet_tcp", "null_blk"],
            script: exports::NVMET_SCRIPT,
        }
    }

    fn is_nvme(&self) -> bool {
        self.protocol[0] == Protocol::NvmeTcp
    }

    /// What its script is told: to start, and to stop.
    fn script_arguments(
        &self,
        setup: &TargetSetup<'_>,
        own: &str,
        port: u16,
    ) -> Result<(Vec<String>, Vec<String>), Failure> {
        let (count, bytes) = (setup.volumes.0.to_string(), setup.volumes.1);
        let (size, kind) = match (self.is_nvme(), setup.medium) {
            (true, VolumeMedium::Ram) => (bytes >> 20, "1"),
            (true, VolumeMedium::Null) => (bytes >> 20, "0"),
            (false, VolumeMedium::Ram) => (bytes, ""),
            (false, VolumeMedium::Null) => (bytes, ",rd_nullio=1"),
            (_, VolumeMedium::File) => return Err(setup.unsupported_medium(self.name())),
        };
        let (size, port) = (size.to_string(), port.to_string());
        let addresses = match setup.addresses {
            [] => vec![setup.listen.to_owned()],
            addresses => addresses.to_vec(),
        };
        let start = if self.is_nvme() {
            // Without the brackets that a URL has around an address of IPv6.
            let bare = addresses.iter().map(|one| one.trim_matches(['[', ']']));
            let addresses = bare.collect::<Vec<_>>().join(",");
            ["start", own, &addresses, &port, &count, &size, kind].map(str::to_owned)
        } else {
            let portals: Vec<String> = addresses.iter().map(|one| format!("{one}:{port}")).collect();
            ["start", own, &ramdisk_adapter(own), &portals.join(","), &count, &size, kind].map(str::to_owned)
        };
        Ok((start.to_vec(), vec!["stop".to_owned(), own.to_owned()]))
    }
}

/// LIO's number of the adapter that holds ramdisks with these names: it numbers them, and names nothing else.
fn ramdisk_adapter(own: &str) -> String {
    let digits: String = own.chars().filter(char::is_ascii_hexdigit).take(8).collect();
    u32::from_str_radix(&digits, 16).unwrap_or(4242).to_string()
}

impl Target for KernelTarget {
    fn name(&self) -> &'static str {
        self.name
    }

    fn protocols(&self) -> &[Protocol] {
        &self.protocol
    }

    fn missing(&self, place: &CommandLocation) -> Option<String> {
        if let Some(why) = self.modules.iter().find_map(|module| place.missing_kernel_module(module)) {
            return Some(why);
        }
        let is_root = place.run(&["id", "-u"]).is_ok_and(|said| said.trim() == "0");
        (!is_root)
            .then(|| format!("the kernel's targets: configuring them takes root on {}", place.display_name()))
    }

    fn version(&self, place: &CommandLocation) -> Option<String> {
        let kernel = place.read_file("/proc/sys/kernel/osrelease").ok()?;
        Some(format!("Linux {}", kernel.trim()))
    }

    fn start(&self, setup: &TargetSetup<'_>) -> Result<ServingTarget, Failure> {
        let port = free_port(setup.place)?;
        let scratch = RunDirectory::current()?;
        let own = format!("{}k{}", scratch.unique_name("bw", ""), scratch.next_number());
        if setup.place.is_local() {
            let made = if self.is_nvme() {
                CreatedResource::Nvmet(own.clone())
            } else {
                CreatedResource::Lio(own.clone())
            };
            scratch.note_resource(&made)?;
        }
        let (start, stop) = self.script_arguments(setup, &own, port)?;
        let name = |number: u32| match self.protocol[0] {
            Protocol::NvmeTcp => format!("nqn.2026-11.io.blockwire:{own}-{number}/1"),
            _ => format!("iqn.2026-11.io.blockwire.eval:{own}-{number}/0"),
        };
        let mut serving =
            ServingTarget::new(self.protocol[0], port, (0..setup.volumes.0).map(name).collect());
        serving.commands.push(format!(
            "sh crates/evaluation/lab/src/target/{}.sh {}",
            self.name,
            start.join(" ")
        ));
        serving.scratch = Some(scratch);
        // Whatever was made until it fails is taken away, too.
        serving.undo.push((setup.place.clone(), shell_words(self.script, stop)));
        let words = shell_words(self.script, start);
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

    #[test]
    fn scripts_are_told_sizes_in_their_units() {
        let (start, stop) = KernelTarget::nvmet()
            .script_arguments(&TargetSetup::example(Protocol::NvmeTcp, VolumeMedium::Ram), "bw7", 4421)
            .unwrap();
        assert_eq!(start.join(" "), "start bw7 127.0.0.1 4421 2 64 1");
        assert_eq!(stop.join(" "), "stop bw7");
        let (start, _) = KernelTarget::lio()
            .script_arguments(&TargetSetup::example(Protocol::Iscsi, VolumeMedium::Null), "bw7", 3261)
            .unwrap();
        assert_eq!(start.join(" "), "start bw7 183 127.0.0.1:3261 2 67108864 ,rd_nullio=1");
    }

    /// Where initiators reach the target by an address, no other address of the machine has its volumes.
    #[test]
    fn exports_are_never_open_on_addresses_that_nobody_asked_for() {
        let addresses = ["10.0.0.7".to_owned(), "[fd00::7]".to_owned()];
        for target in [KernelTarget::lio(), KernelTarget::nvmet()] {
            let setup = TargetSetup {
                listen: "0.0.0.0",
                addresses: &addresses,
                ..TargetSetup::example(target.protocol[0], VolumeMedium::Ram)
            };
            let (start, _) = target.script_arguments(&setup, "bw7", 4421).unwrap();
            let said = start.join(" ");
            assert!(
                !said.contains("0.0.0.0") && said.contains("10.0.0.7") && said.contains("fd00::7"),
                "{said}"
            );
        }
        let machines =
            crate::RemoteMachines { address: "10.0.0.7".to_owned(), ..crate::RemoteMachines::default() };
        assert_eq!(crate::Link::over_network(&machines).listen_address(), "10.0.0.7");
    }

    /// A shell takes both scripts. Where the kernel has what they need, a volume is served, and gone after.
    #[test]
    fn scripts_make_and_unmake() {
        for target in [KernelTarget::lio(), KernelTarget::nvmet()] {
            CommandLocation::Here.run(&["sh", "-n", "-c", target.script]).unwrap();
            if target.missing(&CommandLocation::Here).is_some() {
                continue;
            }
            let serving = target.start(&TargetSetup::example(target.protocol[0], VolumeMedium::Ram)).unwrap();
            let address = format!("127.0.0.1:{}", serving.port);
            std::net::TcpStream::connect(&address).unwrap();
            drop(serving);
            assert!(std::net::TcpStream::connect(&address).is_err(), "{} is gone", target.name);
        }
    }
}
