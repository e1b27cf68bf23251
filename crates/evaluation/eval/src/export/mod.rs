//! Experiments as files of other tools: fio's job file, vdbench's parameter file, Iometer's configuration,
//! HammerDB's script.
//!
//! Settings that a tool does not support are comments in its file. Invariant: a file is complete: the tool
//! runs it unchanged once the volumes' names are right.

mod fio;
mod hammerdb;
mod iometer;
mod vdbench;

use std::fmt;

use crate::preset::{ExperimentKind, Preset};

pub use hammerdb::Database;

/// Tools that files are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportTool {
    /// A job file.
    Fio,
    /// A parameter file.
    Vdbench,
    /// A configuration (`.icf`).
    Iometer,
    /// A Tcl script.
    HammerDb,
}

/// How volumes are called where the tool runs: a name of the preset's (`v0`, `v1` …) and what stands for it.
pub type VolumeNames = [(String, String)];

/// Why a tool gets no file of a preset. Its text says what to do instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// A name of the map is none of the preset's volumes.
    UnknownVolume {
        /// The name.
        name: String,
        /// The preset.
        preset: &'static str,
        /// Number of its last volume.
        last: usize,
    },
    /// Volumes stand for nothing: the preset, and arguments that would name them.
    UnnamedVolumes(&'static str, String),
    /// The preset is the load of a database, which this tool does not do.
    Database(&'static str),
    /// The preset is no load of a database, and the tool does nothing else.
    NoDatabase(&'static str),
    /// The tool cannot use a volume by this name.
    UnusableVolume(String),
    /// The tool cannot use volumes that are named so: why.
    UnusableMap(&'static str),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportError::UnknownVolume { name, preset, last } => {
                write!(f, "{name} is no volume of {preset}: an initiator has v0 to v{last}")
            }
            ExportError::UnnamedVolumes(preset, arguments) => write!(
                f,
                "{preset} writes to its volumes, so each is named as it is called there, for example {arguments}"
            ),
            ExportError::Database(preset) => write!(
                f,
                "{preset} is the load of a database: write it for hammerdb, or run it with `blockwire eval run`"
            ),
            ExportError::NoDatabase(preset) => {
                write!(f, "{preset} is no load of a database: write it for fio, vdbench or iometer")
            }
            ExportError::UnusableVolume(why) => f.write_str(why),
            ExportError::UnusableMap(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ExportError {}

/// What one initiator machine does of a preset.
struct HostShare {
    /// Its volumes, as they are called there.
    volumes: Vec<String>,
    /// Whether each volume has a worker of its own, rather than all workers all volumes.
    has_own_workers: bool,
    /// How much of each volume is used, in bytes.
    bytes: u64,
}

impl HostShare {
    /// A name that was guessed would be a disk that somebody uses: each volume is named.
    fn of(
        preset: &Preset,
        map: &VolumeNames,
        example: impl Fn(usize) -> String,
    ) -> Result<HostShare, ExportError> {
        let count = (preset.volumes.0 / preset.hosts).max(1) as usize;
        let known = |name: &str| {
            name.strip_prefix('v').and_then(|n| n.parse::<usize>().ok()).is_some_and(|n| n < count)
        };
        if let Some((name, _)) = map.iter().find(|(name, _)| !known(name)) {
            return Err(ExportError::UnknownVolume {
                name: name.clone(),
                preset: preset.id,
                last: count - 1,
            });
        }
        let named = |at: usize| {
            let name = format!("v{at}");
            map.iter().find(|(known, _)| *known == name).map(|(_, to)| to.clone())
        };
        let lacking = (0..count).filter(|at| named(*at).is_none());
        let lacking: Vec<String> = lacking.map(|at| format!("--map 'v{at}={}'", example(at))).collect();
        if !lacking.is_empty() {
            return Err(ExportError::UnnamedVolumes(preset.id, lacking.join(" ")));
        }
        Ok(HostShare {
            volumes: (0..count).filter_map(named).collect(),
            has_own_workers: count > 1 && preset.threads as usize == count,
            bytes: preset.volumes.1,
        })
    }
}

/// What every file says at its top: what it is, where it is from, and what it leaves out.
fn heading_lines(preset: &Preset, what: &str) -> Vec<String> {
    let mut lines = vec![format!("{}: {}", preset.id, preset.title)];
    if let Some(paper) = preset.paper {
        let paper = crate::published::published_data().papers.iter().find(|known| known.id == paper);
        lines.extend(paper.map(|paper| format!("after {}, {}; {}", paper.title, paper.by, preset.at)));
    }
    lines.push(format!("{what}, written by blockwire eval export"));
    if preset.hosts > 1 {
        lines.push(format!(
            "The experiment has {} initiator machines: run this on each, with its own volumes.",
            preset.hosts
        ));
    }
    if preset.connections.len() > 1 {
        let counts: Vec<String> = preset.connections.iter().map(ToString::to_string).collect();
        lines.push(format!(
            "The number of connections ({}) is set where volumes are attached, not here.",
            counts.join(", ")
        ));
    }
    if !preset.rates.is_empty() || !preset.shapes.is_empty() || preset.scales_cores {
        lines.push(format!(
            "The experiment varies its rate, depth and threads, or the target's processors: these are its loads at most, \
             with depth x threads of {} x {}.",
            preset.depth, preset.threads
        ));
    }
    if preset.kind == ExperimentKind::MixedTraffic {
        lines.push(
            "The experiment runs this beside a plain TCP stream (iperf3, for example) over the same link."
                .to_owned(),
        );
    }
    lines.push("It writes to the volumes.".to_owned());
    lines
}

/// What a volume may be called on Linux.
fn example_device(at: usize) -> String {
    format!("/dev/nvme{}n1", at + 1)
}

/// The preset as a file of this tool.
///
/// # Errors
/// If the tool cannot do what the preset is about, or a name of `map` is no volume of it.
pub fn export_preset(
    preset: &Preset,
    tool: ExportTool,
    map: &VolumeNames,
    database: Database,
) -> Result<String, ExportError> {
    let is_database = matches!(preset.kind, ExperimentKind::Oltp { .. });
    match tool {
        ExportTool::HammerDb => hammerdb::hammerdb_script(preset, database),
        _ if is_database => Err(ExportError::Database(preset.id)),
        ExportTool::Fio => fio::fio_job_file(preset, map),
        ExportTool::Vdbench => vdbench::vdbench_parameters(preset, map),
        ExportTool::Iometer => iometer::iometer_configuration(preset, map),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::PRESETS;

    /// Names for all volumes of a preset.
    pub(super) fn all(preset: &Preset) -> Vec<(String, String)> {
        let count = (preset.volumes.0 / preset.hosts).max(1);
        (0..count).map(|at| (format!("v{at}"), format!("/dev/test{at}"))).collect()
    }

    /// The file would write to whatever disk has that name.
    #[test]
    fn a_volume_without_a_name_is_never_taken_for_a_disk() {
        for preset in PRESETS.iter().filter(|preset| !matches!(preset.kind, ExperimentKind::Oltp { .. })) {
            for tool in [ExportTool::Fio, ExportTool::Vdbench, ExportTool::Iometer] {
                let mut map = all(preset);
                map.pop();
                let why = export_preset(preset, tool, &map, Database::Mysql).unwrap_err().to_string();
                assert!(why.contains("--map") && why.contains(&format!("v{}", map.len())), "{why}");
            }
        }
    }

    /// What is written for a tool, or a word why not, for every preset.
    #[test]
    fn every_preset_is_written_or_refused_with_a_reason() {
        for preset in PRESETS {
            for tool in [ExportTool::Fio, ExportTool::Vdbench, ExportTool::Iometer, ExportTool::HammerDb] {
                let is_database = matches!(preset.kind, ExperimentKind::Oltp { .. });
                let written = export_preset(preset, tool, &all(preset), Database::Mysql);
                assert_eq!(
                    written.is_ok(),
                    is_database == (tool == ExportTool::HammerDb),
                    "{} {tool:?}",
                    preset.id
                );
                match written {
                    Ok(text) => assert!(text.contains(preset.id) && text.ends_with('\n'), "{text}"),
                    Err(why) => assert!(why.to_string().contains(preset.id), "{why}"),
                }
            }
        }
    }

    #[test]
    fn a_wrong_name_is_refused() {
        let quick = Preset::find("quick").unwrap();
        let wrong = [("v1".to_owned(), "/dev/x".to_owned())];
        assert!(
            export_preset(quick, ExportTool::Fio, &wrong, Database::Mysql)
                .unwrap_err()
                .to_string()
                .contains("v0 to v0")
        );
        let right = [("v0".to_owned(), "/dev/x".to_owned())];
        for tool in [ExportTool::Fio, ExportTool::Vdbench, ExportTool::Iometer] {
            assert!(export_preset(quick, tool, &right, Database::Mysql).unwrap().contains("/dev/x"));
        }
    }
}
