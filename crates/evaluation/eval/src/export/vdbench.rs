//! vdbench's parameter file: storage definitions, then workloads, then runs, as its users' guide requires.
//! Threads of a storage definition are the I/Os in flight on it.

use std::fmt::Write;

use super::{ExportError, HostShare, VolumeNames, example_device, heading_lines};
use crate::fio::IoDirection;
use crate::preset::{Preset, fio_rw_word};

pub(super) fn vdbench_parameters(preset: &Preset, map: &VolumeNames) -> Result<String, ExportError> {
    let share = HostShare::of(preset, map, example_device)?;
    let mut text = String::new();
    for line in heading_lines(preset, "A parameter file of vdbench") {
        let _ = writeln!(text, "* {line}");
    }
    let in_flight = preset.depth * preset.threads;
    let count = share.volumes.len() as u32;
    let threads = in_flight.div_ceil(count).max(1);
    if threads * count != in_flight {
        let _ = writeln!(
            text,
            "* {in_flight} I/Os in flight over {count} volumes: {threads} each, {} in all.",
            threads * count
        );
    }
    text.push_str("\nsd=default,openflags=o_direct\n");
    for (at, volume) in share.volumes.iter().enumerate() {
        if volume.contains("://") {
            return Err(ExportError::UnusableVolume(format!(
                "vdbench knows devices and files, not {volume}: attach it and map it to its device"
            )));
        }
        if volume.contains([',', '=', '(', ')', ' ']) {
            return Err(ExportError::UnusableVolume(format!(
                "vdbench cannot take \"{volume}\" as a name: it has a comma, \"=\", a bracket or a blank"
            )));
        }
        let _ = writeln!(text, "sd=sd{},lun={volume},size={}m,threads={threads}", at + 1, share.bytes >> 20);
    }
    text.push('\n');
    for load in preset.loads_for_export() {
        let reads = match load.direction {
            IoDirection::Read => 100,
            IoDirection::Mixed(reads) => reads,
            IoDirection::Write | IoDirection::Trim => 0,
        };
        let seek = if load.is_random { 100 } else { 0 };
        let name = load_name(&load);
        let _ = writeln!(text, "wd=wd_{name},sd=sd*,xfersize={},rdpct={reads},seekpct={seek}", load.bytes);
    }
    let seconds = preset.runtime.as_secs().max(2);
    let _ = write!(text, "\nrd=default,iorate=max,elapsed={seconds},interval=1,warmup=1\n");
    for load in preset.loads_for_export() {
        let name = load_name(&load);
        let _ = writeln!(text, "rd={name},wd=wd_{name}");
    }
    Ok(text)
}

fn load_name(load: &crate::preset::PresetLoad) -> String {
    format!("{}_{}", fio_rw_word(load.direction, load.is_random), load.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::{ExperimentKind, PRESETS};

    /// Parameters of each kind of line that the users' guide has for raw I/O.
    const KNOWN: [(&str, &[&str]); 3] = [
        ("sd", &["sd", "lun", "size", "threads", "openflags", "host", "hitarea", "offset", "align", "range"]),
        (
            "wd",
            &[
                "wd", "sd", "xfersize", "rdpct", "seekpct", "rhpct", "whpct", "skew", "threads", "iorate",
                "host",
            ],
        ),
        (
            "rd",
            &[
                "rd", "wd", "sd", "iorate", "elapsed", "interval", "warmup", "pause", "threads", "curve",
                "maxdata",
            ],
        ),
    ];

    /// The grammar: lines of comma-separated `name=value`, whose first says what is defined; storage
    /// before workloads before runs; names before they are used; `*` begins a comment.
    fn check(text: &str) -> Result<usize, String> {
        let mut stage = 0;
        let mut defined: Vec<(&str, &str)> = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('*')) {
            let pairs: Option<Vec<(&str, &str)>> = line.split(',').map(|pair| pair.split_once('=')).collect();
            let pairs = pairs.ok_or_else(|| format!("{line}: not name=value"))?;
            let (kind, name) = pairs[0];
            let at =
                KNOWN.iter().position(|(known, _)| *known == kind).ok_or_else(|| format!("{line}: what?"))?;
            if at < stage {
                return Err(format!("{line}: stands too late"));
            }
            stage = at;
            for (key, value) in &pairs {
                if !KNOWN[at].1.contains(key) || value.is_empty() || value.contains(char::is_whitespace) {
                    return Err(format!("{line}: {key}={value}"));
                }
            }
            for (key, value) in &pairs[1..] {
                if KNOWN.iter().any(|(kind, _)| kind == key) {
                    let start = value.trim_end_matches('*');
                    let is_known = |(kind, name): &(&str, &str)| {
                        kind == key && (*name == *value || (value.ends_with('*') && name.starts_with(start)))
                    };
                    if !defined.iter().any(is_known) {
                        return Err(format!("{line}: {value} is not defined"));
                    }
                }
            }
            if name != "default" {
                if defined.contains(&(kind, name)) {
                    return Err(format!("{line}: defined twice"));
                }
                defined.push((kind, name));
            }
        }
        Ok(defined.iter().filter(|(kind, _)| *kind == "rd").count())
    }

    #[test]
    fn files_keep_the_grammar_of_the_guide() {
        for preset in PRESETS.iter().filter(|preset| !matches!(preset.kind, ExperimentKind::Oltp { .. })) {
            let text = vdbench_parameters(preset, &super::super::tests::all(preset)).unwrap();
            assert_eq!(check(&text), Ok(preset.loads_for_export().len()), "{text}");
        }
        // The check itself finds what is wrong.
        assert!(check("wd=a,sd=sd1\n").is_err() && check("rd=a,wd=b\nsd=c,lun=d\n").is_err());
        assert!(check("sd=sd1,lun=/dev/x y\n").is_err() && check("sd=sd1,lum=/dev/x\n").is_err());
    }

    #[test]
    fn demarteks_file_is_what_the_paper_describes() {
        let preset = Preset::find("demartek-vdbench").unwrap();
        let text = vdbench_parameters(preset, &super::super::tests::all(preset)).unwrap();
        assert_eq!(text.matches("lun=/dev/test").count(), 6, "six LUNs on each initiator");
        assert!(text.contains("xfersize=4096,rdpct=100") && text.contains("xfersize=4096,rdpct=0"), "{text}");
        assert!(text.contains("iorate=max") && text.contains("4 initiator machines"), "{text}");
    }

    #[test]
    fn names_that_vdbench_cannot_read_are_refused() {
        let quick = Preset::find("quick").unwrap();
        for name in ["iscsi://h/t/0", "/dev/a,b"] {
            assert!(
                vdbench_parameters(quick, &[("v0".into(), name.into())])
                    .unwrap_err()
                    .to_string()
                    .contains(name)
            );
        }
    }
}
