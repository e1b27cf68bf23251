//! This project's target.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use eval::preset::{Protocol, VolumeMedium};
use serde_json::Value;

use super::{IdlePolling, ServingTarget, Target, TargetSetup, VolumeImages};
use crate::Failure;
use crate::place::{CommandLocation, shell_quoted};

/// `blockwire serve`.
#[derive(Debug)]
pub(super) struct BlockwireTarget {
    binary: PathBuf,
}

impl BlockwireTarget {
    pub(super) fn new(binary: &Path) -> BlockwireTarget {
        BlockwireTarget { binary: binary.to_owned() }
    }
}

impl Target for BlockwireTarget {
    fn name(&self) -> &'static str {
        "blockwire"
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Iscsi, Protocol::NvmeTcp]
    }

    fn supports_multi_lun(&self) -> bool {
        true
    }

    fn supports_medium(&self, _medium: VolumeMedium) -> bool {
        true
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
        let files = match setup.medium {
            VolumeMedium::File => Some(VolumeImages::make(setup, "blockwire")?),
            VolumeMedium::Ram | VolumeMedium::Null => None,
        };
        let scratch = setup.place.scratch_path(setup.dir);
        let name = setup.protocol.name();
        let mut words = vec![setup.place.binary_path(&self.binary), "serve".to_owned()];
        let (flag, word) = match setup.protocol {
            Protocol::NvmeTcp => ("--nvme", "nvme"),
            _ => ("--iscsi", "iscsi"),
        };
        words.extend([flag.to_owned(), format!("{}:0", setup.listen)]);
        for number in 0..count {
            let file = files.as_ref().and_then(|files| files.paths.get(number as usize));
            let spec = match file {
                Some(path) => format!("file:{},direct", path.display()),
                None => format!("{}:{bytes}", setup.medium.name()),
            };
            words.extend(["--volume".to_owned(), format!("v{number}={spec}")]);
        }
        let config = configuration_lines(setup);
        let path = format!("{scratch}/{name}.toml");
        if let Some(lines) = &config {
            let text = format!("{}\n", lines.join("\n"));
            setup.place.run_with_input(&["sh", "-c", "cat > \"$1\"", "sh", &path], text.as_bytes())?;
            words.extend(["--config".to_owned(), path.clone()]);
        }
        words.extend(["--state".to_owned(), format!("{scratch}/{name}-state")]);
        let control = format!("{scratch}/{name}.sock");
        words.extend(["--control".to_owned(), control.clone()]);
        if !setup.cores.is_empty() {
            let list: Vec<String> = setup.cores.iter().map(ToString::to_string).collect();
            words.extend(["--cores".to_owned(), list.join(",")]);
        }
        if setup.listen != "127.0.0.1" {
            words.push("--allow-anonymous".to_owned());
        }
        let mut process = setup.start_process("blockwire-shard", words)?;
        let start = format!("listening {word} ");
        let port = process.wait_for_line(Duration::from_secs(30), |line| {
            line.strip_prefix(&start)?.rsplit(':').next()?.parse().ok()
        })?;
        process.wait_for_line(Duration::from_secs(60), |line| (line == "ready").then_some(()))?;
        let name = |number| match setup.protocol {
            Protocol::NvmeTcp => format!("nqn.2026-11.io.blockwire:v{number}/1"),
            _ if setup.targets.is_some() => {
                let (target, lun) = setup.target_and_lun(number);
                format!("iqn.2026-11.io.blockwire:t{target}/{lun}")
            }
            _ => format!("iqn.2026-11.io.blockwire:v{number}/0"),
        };
        let mut serving = ServingTarget::new(setup.protocol, port, (0..count).map(name).collect());
        let said =
            config.map(|lines| lines.iter().map(|line| shell_quoted(line)).collect::<Vec<_>>().join(" "));
        serving
            .commands
            .extend(said.map(|lines| format!("printf '%s\\n' {lines} > {}", shell_quoted(&path))));
        serving.commands.push(process.command_line().to_owned());
        serving.processes.push(process);
        if let Some(files) = files {
            serving.undo.push((setup.place.clone(), files.removal_command()));
            serving.scratch.clone_from(&files.scratch);
            serving.remarks.push("blockwire serves files past the page cache (direct)".to_owned());
        }
        serving.polls = Some(Arc::new(ShardPolling {
            place: setup.place.clone(),
            binary: setup.place.binary_path(&self.binary),
            control,
        }));
        Ok(serving)
    }
}

/// Connections for which the daemon's usual limits do: it has 1,024 controllers for each volume.
const DEFAULT_LIMIT_CONNECTIONS: u32 = 1000;
/// What an admin queue and an I/O queue with capsules of 8 KiB reserve: two capsules each.
const QUEUE_PAIR_RESERVED_BYTES: u64 = 4 * (8 << 10);
/// The memory of a core unless it is told otherwise.
const CORE_MEMORY_DEFAULT: u64 = 128 << 20;

/// The configuration for iSCSI targets with several volumes, or for thousands of NVMe/TCP hosts, each with a controller
/// of its own; `None`: none is needed.
fn configuration_lines(setup: &TargetSetup<'_>) -> Option<Vec<String>> {
    if setup.protocol == Protocol::Iscsi && setup.targets.is_some() {
        let places: Vec<(u32, u32)> =
            (0..setup.volumes.0).map(|volume| setup.target_and_lun(volume)).collect();
        let mut lines = Vec::new();
        for target in 0..=places.last()?.0 {
            let luns = (0u32..).zip(&places).filter(|(_, place)| place.0 == target);
            let luns = luns.map(|(volume, (_, lun))| format!("{{ lun = {lun}, volume = \"v{volume}\" }}"));
            lines.push("[[target]]".to_owned());
            lines.push(format!("name = \"iqn.2026-11.io.blockwire:t{target}\""));
            lines.push(format!("luns = [{}]", luns.collect::<Vec<_>>().join(", ")));
        }
        return Some(lines);
    }
    if setup.protocol != Protocol::NvmeTcp || setup.connections <= DEFAULT_LIMIT_CONNECTIONS {
        return None;
    }
    let connections = u64::from(setup.connections);
    let each = connections.div_ceil(setup.cores.len().max(1) as u64);
    // At most half of a core's memory may be promised.
    let memory = (2 * each * QUEUE_PAIR_RESERVED_BYTES + CORE_MEMORY_DEFAULT).next_multiple_of(1 << 20);
    let mut lines = vec!["[limits]".to_owned(), format!("memory = \"{}M\"", memory >> 20)];
    for number in 0..setup.volumes.0 {
        lines.push("[[subsystem]]".to_owned());
        lines.push(format!("nqn = \"nqn.2026-11.io.blockwire:v{number}\""));
        lines.push(format!("namespaces = [{{ volume = \"v{number}\" }}]"));
        // The harness's own hosts, and one that fills the volumes.
        lines.push(format!("controllers = {}", (connections + 16).min(65_519)));
    }
    Some(lines)
}

/// The daemon's shards, asked over its control socket.
#[derive(Debug)]
struct ShardPolling {
    place: CommandLocation,
    binary: String,
    control: String,
}

impl IdlePolling for ShardPolling {
    fn idle_seconds(&self) -> Option<f64> {
        let words = [&self.binary, "shard", "list", "--json", "--control", &self.control];
        idle_poll_seconds(&self.place.run(&words).ok()?)
    }
}

/// Seconds in which all shards together polled, whether work came or not.
fn idle_poll_seconds(text: &str) -> Option<f64> {
    let shards: Value = serde_json::from_str(text).ok()?;
    let polled = |shard: &Value| shard.get("poll_ns")?.as_u64();
    Some(shards.as_array()?.iter().map(polled).sum::<Option<u64>>()? as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_hosts_get_memory_and_controllers() {
        let setup = |protocol, connections| TargetSetup {
            volumes: (1, 1 << 20),
            connections,
            cores: &[0, 1],
            ..TargetSetup::example(protocol, VolumeMedium::Ram)
        };
        assert_eq!(configuration_lines(&setup(Protocol::Iscsi, 16_384)), None);
        assert_eq!(configuration_lines(&setup(Protocol::NvmeTcp, 256)), None);
        let lines = configuration_lines(&setup(Protocol::NvmeTcp, 16_384)).unwrap();
        // 8,192 hosts of a core have 256 MiB, which is half of what it has beside its usual memory.
        assert_eq!(lines[1], "memory = \"640M\"");
        assert_eq!(lines.last().unwrap(), "controllers = 16400");
    }

    #[test]
    fn two_targets_have_all_volumes() {
        let setup = TargetSetup {
            volumes: (3, 1 << 20),
            targets: Some(2),
            ..TargetSetup::example(Protocol::Iscsi, VolumeMedium::Ram)
        };
        let lines = configuration_lines(&setup).unwrap();
        assert_eq!(lines.iter().filter(|line| *line == "[[target]]").count(), 2);
        assert_eq!(lines[2], "luns = [{ lun = 0, volume = \"v0\" }, { lun = 1, volume = \"v1\" }]");
        assert_eq!(lines[5], "luns = [{ lun = 0, volume = \"v2\" }]");
    }

    #[test]
    fn polling_is_that_of_all_shards() {
        assert_eq!(
            idle_poll_seconds("[{\"id\":0,\"poll_ns\":1500000000},{\"id\":1,\"poll_ns\":500000000}]"),
            Some(2.0)
        );
        assert_eq!(idle_poll_seconds("[{\"id\":0}]"), None, "a daemon that does not tell");
    }
}
