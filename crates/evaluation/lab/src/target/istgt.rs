//! The user-space target istgt, with a configuration of its own.
//!
//! Volumes are files in memory. What may be negotiated is what its sample configuration allows.

use std::fmt::Write;
use std::time::Duration;

use eval::preset::{Protocol, VolumeMedium};

use super::{ServingTarget, Target, TargetSetup, VolumeImages, free_port, missing_programs, wait_for_port};
use crate::Failure;
use crate::place::CommandLocation;

/// `istgt`.
#[derive(Debug)]
pub(super) struct IstgtTarget;

/// What goes before its names of targets.
const IQN_PREFIX: &str = "iqn.2026-11.io.blockwire.eval";

impl Target for IstgtTarget {
    fn name(&self) -> &'static str {
        "istgt"
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Iscsi]
    }

    fn supports_multi_lun(&self) -> bool {
        true
    }

    fn missing(&self, place: &CommandLocation) -> Option<String> {
        missing_programs(place, &[("istgt", "istgt")])
    }

    fn supports_medium(&self, medium: VolumeMedium) -> bool {
        medium == VolumeMedium::Ram
    }

    fn version(&self, place: &CommandLocation) -> Option<String> {
        let said = place.run(&["istgt", "-V"]).ok()?;
        said.lines().find_map(|line| line.strip_prefix("istgt extra version ")).map(str::to_owned)
    }

    fn start(&self, setup: &TargetSetup<'_>) -> Result<ServingTarget, Failure> {
        let (port, control) = (free_port(setup.place)?, free_port(setup.place)?);
        // In a place of its own both would be the same.
        let control = if control == port { port + 1 } else { control };
        let images = VolumeImages::make(setup, "istgt")?;
        let places: Vec<(u32, u32)> =
            (0..setup.volumes.0).map(|number| setup.target_and_lun(number)).collect();
        let volumes = places.iter().map(|(target, lun)| format!("{IQN_PREFIX}:v{target}/{lun}")).collect();
        let mut serving = ServingTarget::new(Protocol::Iscsi, port, volumes);
        serving.is_stubborn = true;
        serving.undo.push((setup.place.clone(), images.removal_command()));
        serving.scratch.clone_from(&images.scratch);
        let file = format!("{}/istgt.conf", setup.place.scratch_path(setup.dir));
        let mut text = general_configuration(setup, port, control);
        for ((target, lun), image) in places.iter().zip(&images.paths) {
            if *lun > 0 {
                let _ = writeln!(text, "  LUN{lun} Storage {} Auto", image.display());
                continue;
            }
            let _ = write!(
                text,
                "[LogicalUnit{}]\n  TargetName v{target}\n  Mapping PortalGroup1 InitiatorGroup1\n  \
                 AuthMethod None\n  AuthGroup AuthGroup1\n  UseDigest Auto\n  UnitType Disk\n  \
                 LUN0 Storage {} Auto\n",
                target + 1,
                image.display()
            );
        }
        // No words of these files are secret, but the daemon asks that others cannot write them.
        for (path, text) in [(file.as_str(), text.as_str()), (&auth_section(setup), "[AuthGroup1]\n")] {
            let words = ["sh", "-c", "umask 077; mkdir -p \"$(dirname \"$1\")\"; cat >\"$1\"", "sh", path];
            setup.place.run_with_input(&words, text.as_bytes())?;
        }
        serving.files.push(("istgt.conf".to_owned(), text));
        serving.remarks.push(images.medium_note("istgt"));
        let words = ["istgt", "-D", "-c", &file].map(str::to_owned).to_vec();
        let mut process = setup.start_process("istgt", words)?;
        let listening = wait_for_port(setup.place, port, &mut process, Duration::from_secs(20));
        serving.commands.push(process.command_line().to_owned());
        serving.processes.push(process);
        listening.map(|()| serving)
    }
}

fn auth_section(setup: &TargetSetup<'_>) -> String {
    format!("{}/istgt-auth.conf", setup.place.scratch_path(setup.dir))
}

fn general_configuration(setup: &TargetSetup<'_>, port: u16, control: u16) -> String {
    let (dir, listen) = (setup.place.scratch_path(setup.dir), setup.listen);
    format!(
        "[Global]\n  NodeBase \"{IQN_PREFIX}\"\n  PidFile {dir}/istgt.pid\n  AuthFile {}\n  MediaDirectory {dir}\n  \
         LogFacility \"local7\"\n  Timeout 30\n  NopInInterval 20\n  DiscoveryAuthMethod Auto\n  \
         MaxSessions 64\n  MaxConnections 4\n  MaxR2T 32\n  FirstBurstLength 65536\n  \
         MaxBurstLength 262144\n  MaxRecvDataSegmentLength 262144\n  InitialR2T Yes\n  ImmediateData Yes\n  \
         DataPDUInOrder Yes\n  DataSequenceInOrder Yes\n  ErrorRecoveryLevel 0\n\
         [UnitControl]\n  AuthMethod None\n  Portal UC1 127.0.0.1:{control}\n  Netmask 127.0.0.1\n\
         [PortalGroup1]\n  Portal DA1 {listen}:{port}\n\
         [InitiatorGroup1]\n  InitiatorName \"ALL\"\n  Netmask ALL\n",
        auth_section(setup)
    )
}
