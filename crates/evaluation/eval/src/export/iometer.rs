//! Iometer's configuration (`.icf`, version 1.1.0): keys begin with an apostrophe, values with a tab. There
//! is a worker for each volume and an access specification for each load; Iometer runs them in turn.

use std::fmt::Write;

use super::{ExportError, HostShare, VolumeNames, heading_lines};
use crate::fio::IoDirection;
use crate::preset::{Preset, fio_rw_word};

pub(super) fn iometer_configuration(preset: &Preset, map: &VolumeNames) -> Result<String, ExportError> {
    // Drives without a partition, as Iometer lists them: their number and what they say they are.
    let share = HostShare::of(preset, map, |at| format!("{}: \"BLKWIRE VIRTUAL DISK\"", at + 1))?;
    if let Some(volume) = share.volumes.iter().find(|volume| volume.contains("://")) {
        return Err(ExportError::UnusableVolume(format!(
            "Iometer knows the drives of its machine, not {volume}: attach it and map it to its name there"
        )));
    }
    let per_volume = (preset.depth * preset.threads).div_ceil(share.volumes.len() as u32).max(1);
    let mut text = "Version 1.1.0 \n".to_owned();
    push_test_setup(&mut text, preset);
    text.push_str(RESULTS_DISPLAY);
    text.push_str("'ACCESS SPECIFICATIONS =========================================================\n");
    let mut names = Vec::new();
    for load in preset.loads_for_export() {
        let name = format!("{} {} bytes", fio_rw_word(load.direction, load.is_random), load.bytes);
        let reads = match load.direction {
            IoDirection::Read => 100,
            IoDirection::Mixed(reads) => reads,
            IoDirection::Write | IoDirection::Trim => 0,
        };
        let random = if load.is_random { 100 } else { 0 };
        let _ = write!(
            text,
            "'Access specification name,default assignment\n\t{name},NONE\n\
             'size,% of size,% reads,% random,delay,burst,align,reply\n\t{0},100,{reads},{random},0,1,{0},0\n",
            load.bytes
        );
        names.push(name);
    }
    text.push_str("'END access specifications\n");
    text.push_str("'MANAGER LIST ==================================================================\n");
    text.push_str("'Manager ID, manager name\n\t1,INITIATOR\n'Manager network address\n\t\n");
    for (at, volume) in share.volumes.iter().enumerate() {
        let sectors = share.bytes / 512;
        let _ = write!(
            text,
            "'Worker\n\tWorker {}\n'Worker type\n\tDISK\n'Default target settings for worker\n\
             'Number of outstanding IOs,test connection rate,transactions per connection,use fixed seed,fixed seed value\n\
             \t{per_volume},DISABLED,1,ENABLED,{}\n'Disk maximum size,starting sector,Data pattern\n\t{sectors},0,0\n\
             'End default target settings for worker\n'Assigned access specs\n",
            at + 1,
            at + 1
        );
        names.iter().for_each(|name| {
            let _ = writeln!(text, "\t{name}");
        });
        let _ = write!(
            text,
            "'End assigned access specs\n'Target assignments\n'Target\n\t{volume}\n'Target type\n\tDISK\n'End target\n\
             'End target assignments\n'End worker\n"
        );
    }
    text.push_str("'End manager\n'END manager list\nVersion 1.1.0 \n");
    Ok(text)
}

/// How long each access specification runs, and that nothing is cycled.
fn push_test_setup(text: &mut String, preset: &Preset) {
    let seconds = preset.runtime.as_secs();
    // The description is one line.
    let about = heading_lines(preset, "A configuration of Iometer").join(" | ");
    let _ = write!(
        text,
        "'TEST SETUP ====================================================================\n'Test Description\n\t{about}\n\
         'Run Time\n'\thours      minutes    seconds\n\t{}          {}          {}\n'Ramp Up Time (s)\n\t1\n\
         'Default Disk Workers to Spawn\n\t0\n'Default Network Workers to Spawn\n\t0\n'Record Results\n\tALL\n\
         'Worker Cycling\n'\tstart      step       step type\n\t1          1          LINEAR\n\
         'Disk Cycling\n'\tstart      step       step type\n\t1          1          LINEAR\n\
         'Queue Depth Cycling\n'\tstart      end        step       step type\n\
         \t1          32         2          EXPONENTIAL\n'Test Type\n\tNORMAL\n'END test setup\n",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    );
}

const RESULTS_DISPLAY: &str = "\
'RESULTS DISPLAY ===============================================================
'Record Last Update Results,Update Frequency,Update Type
\tDISABLED,1,WHOLE_TEST
'Bar chart 1 statistic
\tTotal I/Os per Second
'Bar chart 2 statistic
\tTotal MBs per Second (Decimal)
'Bar chart 3 statistic
\tAverage I/O Response Time (ms)
'Bar chart 4 statistic
\tMaximum I/O Response Time (ms)
'Bar chart 5 statistic
\t% CPU Utilization (total)
'Bar chart 6 statistic
\tTotal Error Count
'END results display
";

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that stand behind a key, each on a line of its own.
    fn behind<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
        let lines: Vec<&str> = text.lines().collect();
        let keys = lines.iter().enumerate().filter(|(_, line)| **line == key);
        keys.map(|(at, _)| lines[at + 1].strip_prefix('\t').expect("a value begins with a tab")).collect()
    }

    #[test]
    fn the_windows_papers_load_is_written_as_it_was_run() {
        let preset = Preset::find("windows-100g").unwrap();
        let text = iometer_configuration(preset, &super::super::tests::all(preset)).unwrap();
        assert!(text.starts_with("Version 1.1.0 \n") && text.ends_with("Version 1.1.0 \n"));
        assert_eq!(behind(&text, "'Worker type"), ["DISK"; 16], "one worker for each of 16 LUNs");
        let key = "'Number of outstanding IOs,test connection rate,transactions per connection,use fixed seed,fixed seed value";
        assert!(
            behind(&text, key).iter().all(|value| value.starts_with("8,DISABLED,1,")),
            "8 outstanding each"
        );
        let specs = behind(&text, "'size,% of size,% reads,% random,delay,burst,align,reply");
        assert_eq!(specs.len(), 22, "11 sizes, reads and writes");
        assert_eq!((specs[0], specs[21]), ("512,100,100,100,0,1,512,0", "524288,100,0,100,0,1,524288,0"));
        assert_eq!(
            behind(&text, "'Disk maximum size,starting sector,Data pattern")[0],
            "1228800,0,0",
            "600 MB in sectors"
        );
    }

    /// Every section that is opened is closed, in order, and every value stands behind a key.
    #[test]
    fn sections_are_closed() {
        let preset = Preset::find("quick").unwrap();
        let text = iometer_configuration(preset, &super::super::tests::all(preset)).unwrap();
        for (open, close) in [
            ("'TEST SETUP ", "'END test setup"),
            ("'RESULTS DISPLAY ", "'END results display"),
            ("'ACCESS SPECIFICATIONS ", "'END access specifications"),
            ("'MANAGER LIST ", "'END manager list"),
        ] {
            let (open, close) = (text.find(open).expect(open), text.find(close).expect(close));
            assert!(open < close);
        }
        let is_fit = |line: &str| line.starts_with(['\'', '\t']) || line.starts_with("Version");
        assert!(text.lines().all(is_fit));
    }
}
