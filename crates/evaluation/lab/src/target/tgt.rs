//! Linux's user-space target tgt: `tgtd`, told by `tgtadm`.
//!
//! Volumes are files in memory, which `tgtd` reads and writes by a pool of threads; null volumes are its
//! own (of 1 TiB, whatever was asked for). Its default refuses digests, and so does this.

use std::time::{Duration, Instant};

use eval::preset::{Protocol, VolumeMedium};

use super::{ServingTarget, Target, TargetSetup, VolumeImages, free_port, missing_programs};
use crate::Failure;
use crate::end_request;
use crate::place::CommandLocation;
use crate::process::Process;

/// `tgtd`.
#[derive(Debug)]
pub(super) struct TgtTarget;

/// Where `tgtd` keeps the socket that `tgtadm` connects to.
const TGTD_SOCKET_DIRECTORY: &str = "/var/run/tgtd";

fn target_name(number: u32) -> String {
    format!("iqn.2026-11.io.blockwire.eval:tgt{number}")
}

impl Target for TgtTarget {
    fn name(&self) -> &'static str {
        "tgt"
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Iscsi]
    }

    fn supports_multi_lun(&self) -> bool {
        true
    }

    fn missing(&self, place: &CommandLocation) -> Option<String> {
        missing_programs(place, &[("tgtd", "tgt"), ("tgtadm", "tgt")]).or_else(|| {
            place
                .run(&["mkdir", "-p", TGTD_SOCKET_DIRECTORY])
                .err()
                .map(|why| format!("{why}; it takes root"))
        })
    }

    fn version(&self, place: &CommandLocation) -> Option<String> {
        place.run(&["tgtd", "-V"]).ok().map(|said| said.trim().to_owned()).filter(|said| !said.is_empty())
    }

    fn start(&self, setup: &TargetSetup<'_>) -> Result<ServingTarget, Failure> {
        setup.place.run(&["mkdir", "-p", TGTD_SOCKET_DIRECTORY])?;
        let port = free_port(setup.place)?;
        // Each daemon has a number for its socket, up to 32,767: the port tells them apart here.
        let control = (u32::from(port) % 32_000 + 1).to_string();
        // One that answers there already is not ours, and would be changed in place of ours.
        if run_tgtadm(setup.place, &control, &["--op", "show", "--mode", "sys"]).is_ok() {
            return Err(Failure::new(format!(
                "a tgtd that is not the experiment's has the control number {control}: end it, or try again"
            )));
        }
        let portal = format!("portal={}:{port}", setup.listen);
        let words = ["tgtd", "-f", "-C", &control, "--iscsi", &portal].map(str::to_owned).to_vec();
        let process = setup.start_process("tgt", words)?;
        let volume = |number| {
            let (target, unit) = setup.target_and_lun(number);
            format!("{}/{}", target_name(target), unit + 1)
        };
        let volumes = (0..setup.volumes.0).map(volume).collect();
        let mut serving = ServingTarget::new(Protocol::Iscsi, port, volumes);
        serving.is_stubborn = true;
        serving.commands.push(process.command_line().to_owned());
        serving.processes.push(process);
        wait_until_ready(setup.place, &control, &mut serving)?;
        let made = match setup.medium {
            VolumeMedium::Ram => Some(VolumeImages::make(setup, "tgt")?),
            VolumeMedium::Null => None,
            VolumeMedium::File => return Err(setup.unsupported_medium("tgt")),
        };
        serving.remarks.extend(made.as_ref().map(|made| made.medium_note("tgt")));
        serving.remarks.extend(memory_store_note(setup.place, &control));
        let configured = (0..setup.volumes.0).try_for_each(|number| {
            let path = made.as_ref().and_then(|made| made.paths.get(number as usize));
            let backing = path.map(|path| path.display().to_string());
            add_volume(setup.place, &control, setup.target_and_lun(number), backing.as_deref(), &mut serving)
        });
        // The daemon has them open; their names are not needed any more.
        if let Some(made) = made {
            let words = made.removal_command();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            setup.place.run(&words)?;
        }
        // What it offers initiators, as it says it: its defaults are written down nowhere else.
        if let Ok(text) =
            run_tgtadm(setup.place, &control, &["--op", "show", "--mode", "target", "--tid", "1"])
        {
            serving.files.push(("tgtadm --op show --mode target --tid 1".to_owned(), text));
        }
        configured.map(|()| serving)
    }
}

fn run_tgtadm(place: &CommandLocation, control: &str, words: &[&str]) -> Result<String, Failure> {
    place.run(&[&["tgtadm", "-C", control, "--lld", "iscsi"], words].concat())
}

/// What tgt says of stores in memory of its own.
fn memory_store_note(place: &CommandLocation, control: &str) -> Option<String> {
    let stores =
        parse_backing_stores(&run_tgtadm(place, control, &["--op", "show", "--mode", "system"]).ok()?);
    (!stores.is_empty() && !stores.iter().any(|name| name.starts_with("ram")))
        .then(|| format!("tgt has no store in memory of its own here; its stores are: {}", stores.join(", ")))
}

/// The names that stand under "Backing stores:".
fn parse_backing_stores(text: &str) -> Vec<String> {
    let lines = text.lines().skip_while(|line| line.trim() != "Backing stores:").skip(1);
    let lines = lines.take_while(|line| line.starts_with(' '));
    lines.filter_map(|line| line.split_ascii_whitespace().next()).map(str::to_owned).collect()
}

fn wait_until_ready(
    place: &CommandLocation,
    control: &str,
    serving: &mut ServingTarget,
) -> Result<(), Failure> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let answers = run_tgtadm(place, control, &["--op", "show", "--mode", "sys"]).is_ok();
        // Of two that begin at once with one number, one ends: the other's answer is not taken for its own.
        if answers && serving.processes.iter_mut().all(Process::is_alive) {
            return Ok(());
        }
        for process in &mut serving.processes {
            if !process.is_alive() || Instant::now() > until {
                return Err(process.failure_with_output("it does not answer tgtadm"));
            }
        }
        end_request::sleep_unless_ending(Duration::from_millis(50))?;
    }
}

/// Adds a volume to a target, which is made with its first, open to all. Unit 0 is tgt's controller.
fn add_volume(
    place: &CommandLocation,
    control: &str,
    (target, unit): (u32, u32),
    backing: Option<&str>,
    serving: &mut ServingTarget,
) -> Result<(), Failure> {
    let (name, tid, lun) = (target_name(target), (target + 1).to_string(), (unit + 1).to_string());
    let mut volume = vec!["--op", "new", "--mode", "logicalunit", "--tid", &tid, "--lun", &lun];
    match backing {
        Some(path) => volume.extend(["-b", path]),
        None => volume.extend(["--bstype", "null", "-b", "null"]),
    }
    let steps = [
        vec!["--op", "new", "--mode", "target", "--tid", &tid, "-T", &name],
        volume,
        vec!["--op", "bind", "--mode", "target", "--tid", &tid, "-I", "ALL"],
    ];
    let is_first = unit == 0;
    for step in steps.into_iter().filter(|step| is_first || step.contains(&"logicalunit")) {
        run_tgtadm(place, control, &step)?;
        serving.commands.push(format!("tgtadm -C {control} --lld iscsi {}", step.join(" ")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::parse_backing_stores;

    #[test]
    fn its_stores_are_read() {
        let text = "System:\n    State: ready\nLLDs:\n    iscsi: ready\nBacking stores:\n    null\n    \
                    rdwr (bsoflags sync:direct)\nDevice types:\n    disk\n";
        assert_eq!(parse_backing_stores(text), ["null", "rdwr"]);
        assert!(parse_backing_stores("").is_empty());
    }
}
