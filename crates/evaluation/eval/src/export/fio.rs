//! fio's job file. Every load is a section (or one for each volume) behind a stonewall.

use std::fmt::Write;

use super::{ExportError, HostShare, VolumeNames, example_device, heading_lines};
use crate::fio::IoDirection;
use crate::preset::{ExperimentKind, Preset, fio_rw_word};

/// A name as fio takes it: its own colons marked.
fn fio_filename(volume: &str) -> String {
    volume.replace(':', "\\:")
}

pub(super) fn fio_job_file(preset: &Preset, map: &VolumeNames) -> Result<String, ExportError> {
    let share = HostShare::of(preset, map, example_device)?;
    let is_url = |volume: &String| volume.contains("://");
    let engine = match (share.volumes.iter().all(is_url), share.volumes.iter().any(is_url)) {
        (_, false) => "libaio",
        (true, _) if share.volumes.iter().all(|volume| volume.starts_with("iscsi://")) => "libiscsi",
        (true, _) => {
            return Err(ExportError::UnusableMap(
                "fio reaches NVMe/TCP by an attached device only: attach the volume (blockwire attach, or nvme \
                connect) and map it to that, or run the file with `blockwire bench --job FILE --map`",
            ));
        }
        (false, true) => {
            return Err(ExportError::UnusableMap(
                "map all volumes to URLs, or all to devices: fio has one engine for all",
            ));
        }
    };
    let mut text = String::new();
    for line in heading_lines(preset, "A job file of fio") {
        let _ = writeln!(text, "# {line}");
    }
    let _ = write!(
        text,
        "\n[global]\nioengine={engine}\ndirect=1\niodepth={}\ntime_based\nruntime={}\ngroup_reporting=1\nnorandommap\n",
        preset.depth,
        preset.runtime.as_secs()
    );
    match preset.kind {
        // As the paper's file has it.
        ExperimentKind::Machine => {
            let size = share.bytes >> 20;
            let _ = write!(
                text,
                "filesize={size}m\nsize={}m\ncpus_allowed=0,1\n",
                size * u64::from(preset.threads)
            );
        }
        _ => {
            let _ = writeln!(text, "filesize={}m", share.bytes >> 20);
        }
    }
    if preset.id == "t6-100g-sweep" {
        text.push_str("invalidate=1\nfsync_on_close=1\nexitall\n");
    }
    if share.has_own_workers {
        text.push_str("numjobs=1\n");
    } else {
        let all: Vec<String> = share.volumes.iter().map(|volume| fio_filename(volume)).collect();
        let _ = write!(text, "numjobs={}\nfilename={}\n", preset.threads, all.join(":"));
    }
    for load in preset.loads_for_export() {
        let rw = fio_rw_word(load.direction, load.is_random);
        let mix = if let IoDirection::Mixed(reads) = load.direction {
            format!("rwmixread={reads}\n")
        } else {
            String::new()
        };
        let section = format!("{rw}_{}", load.bytes);
        if share.has_own_workers {
            for (at, volume) in share.volumes.iter().enumerate() {
                // The first waits for the load before; the others run beside it and are reported with it.
                let wall = if at == 0 { "stonewall\n" } else { "" };
                let _ = write!(
                    text,
                    "\n[{section}_v{at}]\n{wall}rw={rw}\n{mix}bs={}\nfilename={}\n",
                    load.bytes,
                    fio_filename(volume)
                );
            }
        } else {
            let _ = write!(text, "\n[{section}]\nstonewall\nrw={rw}\n{mix}bs={}\n", load.bytes);
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::{JobSize, parse_file};
    use crate::preset::PRESETS;

    /// Our own reader of job files reads back what each preset is.
    #[test]
    fn what_is_written_reads_back_as_the_preset() {
        for preset in PRESETS.iter().filter(|preset| !matches!(preset.kind, ExperimentKind::Oltp { .. })) {
            let text = fio_job_file(preset, &super::super::tests::all(preset)).unwrap();
            let script =
                parse_file("x.fio", &text).unwrap_or_else(|why| panic!("{}: {why:?}\n{text}", preset.id));
            let volumes = (preset.volumes.0 / preset.hosts) as usize;
            let is_own = volumes > 1 && preset.threads as usize == volumes;
            assert_eq!(
                script.jobs.len(),
                preset.loads_for_export().len() * if is_own { volumes } else { 1 },
                "{}",
                preset.id
            );
            let walls = script.jobs.iter().filter(|job| job.is_walled).count();
            assert_eq!(walls, preset.loads_for_export().len(), "{}", preset.id);
            for job in &script.jobs {
                assert_eq!((job.depth, job.runtime), (preset.depth, Some(preset.runtime)), "{}", preset.id);
                assert_eq!(
                    job.threads * job.files.len() as u32,
                    if is_own { 1 } else { preset.threads * volumes as u32 }
                );
                assert_eq!(job.file_size, Some(JobSize::Bytes(preset.volumes.1)));
            }
        }
    }

    #[test]
    fn urls_are_for_fios_own_engine() {
        let quick = Preset::find("quick").unwrap();
        let map = |to: &str| [("v0".to_owned(), to.to_owned())];
        let text = fio_job_file(quick, &map("iscsi://127.0.0.1:3260/iqn.x:y/0")).unwrap();
        assert!(
            text.contains("ioengine=libiscsi") && text.contains(r"iscsi\://127.0.0.1\:3260/iqn.x\:y/0"),
            "{text}"
        );
        assert!(
            fio_job_file(quick, &map("nvme+tcp://h/n/1"))
                .unwrap_err()
                .to_string()
                .contains("attached device")
        );
    }
}
