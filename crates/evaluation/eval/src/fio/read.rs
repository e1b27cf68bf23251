//! Job files and command lines, word by word.

use super::word::{WordOutcome, apply_word};
use super::{IgnoredWord, IoDirection, Job, Script, ScriptError, ScriptErrorReason};

/// What is read so far.
struct ScriptReader {
    file: Option<String>,
    /// What `[global]` sections, or options before the first `--name`, have set.
    global: Vec<(usize, String, Option<String>)>,
    script: Script,
    errors: Vec<ScriptError>,
}

impl ScriptReader {
    fn note_error(&mut self, position: usize, reason: ScriptErrorReason) {
        let error = ScriptError { file: self.file.clone(), position, reason };
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// A job of the words of the globals and its own. `rwmixread` counts wherever it stands.
    fn add_job(&mut self, name: String, at: usize, own: Vec<(usize, String, Option<String>)>) {
        let mut job = Job { name, ..Job::default() };
        let mut words: Vec<_> = self.global.iter().cloned().chain(own).collect();
        words.sort_by_key(|(_, word, _)| word.starts_with("rwmix"));
        for (at, word, value) in words {
            match apply_word(&mut job, &word, value.as_deref()) {
                Ok(WordOutcome::Done) => {}
                Ok(WordOutcome::Noted(why)) => {
                    let note = IgnoredWord { at, word, why };
                    if !self.script.notes.contains(&note) {
                        self.script.notes.push(note);
                    }
                }
                Err(reason) => self.note_error(at, reason),
            }
        }
        let name = job.name.clone();
        if job.files.is_empty() {
            self.note_error(at, ScriptErrorReason::BadJob(name.clone(), "names no volume: write filename="));
        }
        if job.is_time_based && job.runtime.is_none() {
            self.note_error(at, ScriptErrorReason::BadJob(name.clone(), "is time_based without a runtime"));
        }
        if job.verifies && job.direction == IoDirection::Trim {
            self.note_error(at, ScriptErrorReason::BadJob(name.clone(), "trims: there is nothing to verify"));
        }
        self.script.jobs.push(job);
    }

    fn into_script(mut self) -> Result<Script, Vec<ScriptError>> {
        if self.script.jobs.is_empty() && self.errors.is_empty() {
            self.note_error(0, ScriptErrorReason::NoJob("there is no job in it"));
        }
        if self.errors.is_empty() { Ok(self.script) } else { Err(self.errors) }
    }
}

/// Reads a job file. `name` is for messages.
pub fn parse_file(name: &str, text: &str) -> Result<Script, Vec<ScriptError>> {
    let file = Some(name.to_owned());
    let mut reader = ScriptReader { file, global: Vec::new(), script: Script::default(), errors: Vec::new() };
    let mut section: Option<(String, usize, Vec<_>)> = None;
    for (at, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line.trim())) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            let Some((name, _)) = name.split_once(']') else {
                reader.note_error(at, ScriptErrorReason::BadLine("a section's name ends with \"]\""));
                continue;
            };
            if let Some((name, at, words)) = section.replace((name.trim().to_owned(), at, Vec::new())) {
                finish_job(&mut reader, name, at, words);
            }
            continue;
        }
        if line.starts_with("include ") {
            reader.note_error(
                at,
                ScriptErrorReason::BadLine("include is not supported: put the files together"),
            );
            continue;
        }
        let (word, value) = match line.split_once('=') {
            Some((word, value)) => (word.trim(), Some(value.trim().to_owned())),
            None => (line, None),
        };
        match &mut section {
            Some((_, _, words)) => words.push((at, word.to_owned(), value)),
            None => reader.note_error(at, ScriptErrorReason::BadLine("a word before the first [section]")),
        }
    }
    if let Some((name, at, words)) = section {
        finish_job(&mut reader, name, at, words);
    }
    reader.into_script()
}

fn finish_job(
    reader: &mut ScriptReader,
    name: String,
    at: usize,
    words: Vec<(usize, String, Option<String>)>,
) {
    if name == "global" {
        reader.global.extend(words);
    } else {
        reader.add_job(name, at, words);
    }
}

/// Reads a command line, without the program's name: options before the first `--name` are for all jobs,
/// each `--name` begins a job. `--section=` and job files beside options are refused.
pub fn parse_args<'a>(args: impl IntoIterator<Item = &'a str>) -> Result<Script, Vec<ScriptError>> {
    let mut reader =
        ScriptReader { file: None, global: Vec::new(), script: Script::default(), errors: Vec::new() };
    let mut job: Option<(String, usize, Vec<_>)> = None;
    let mut args = args.into_iter().enumerate().map(|(at, arg)| (at + 1, arg)).peekable();
    let mut before: Vec<(usize, String, Option<String>)> = Vec::new();
    while let Some((at, arg)) = args.next() {
        let Some(option) = arg.strip_prefix("--") else {
            reader.note_error(at, ScriptErrorReason::NotAnOption(arg.to_owned()));
            continue;
        };
        let (word, value) = match option.split_once('=') {
            Some((word, value)) => (word, Some(value.to_owned())),
            None => {
                let next = args.next_if(|(_, next)| !next.starts_with("--"));
                (option, next.map(|(_, value)| value.to_owned()))
            }
        };
        if word == "name" {
            let name = value.unwrap_or_default();
            if let Some((name, at, words)) = job.replace((name, at, Vec::new())) {
                reader.add_job(name, at, words);
            }
            continue;
        }
        match &mut job {
            Some((_, _, words)) => words.push((at, word.to_owned(), value)),
            None => before.push((at, word.to_owned(), value)),
        }
        if job.is_none() {
            reader.global = before.clone();
        }
    }
    match job {
        Some((name, at, words)) => reader.add_job(name, at, words),
        None if !before.is_empty() => {
            reader.note_error(0, ScriptErrorReason::NoJob("there is no --name, so there is no job"))
        }
        None => {}
    }
    reader.into_script()
}

#[cfg(test)]
mod tests {
    use super::super::{JobSize, Rate};
    use super::*;
    use std::time::Duration;

    const T5: &str = "[global]\nioengine=libaio\niodepth=64\ndirect=1\nnumjobs=32\nfilesize=1g\nsize=32g\n\
        time_based\nruntime=60\ngroup_reporting=1\ncpus_allowed=0,1\nioscheduler=noop\n#####\n\
        [random_read_4k]\nrw=randread\nblocksize=4k\nfilename=/dev/sdb\nstonewall\n";

    #[test]
    fn the_virtual_machine_papers_file_is_read_as_printed() {
        let mut script = parse_file("vm.fio", T5).unwrap();
        let job = &script.jobs[0];
        assert_eq!(
            (job.name.as_str(), job.direction, job.is_random),
            ("random_read_4k", IoDirection::Read, true)
        );
        assert_eq!((job.depth, job.threads, job.block), (64, 32, (4096, 4096)));
        assert_eq!(job.size, Some(JobSize::Bytes(32 << 30)));
        assert_eq!(job.file_size, Some(JobSize::Bytes(1 << 30)));
        assert_eq!((job.runtime, job.is_time_based), (Some(Duration::from_secs(60)), true));
        assert_eq!((job.cores.as_slice(), job.is_walled, job.is_grouped), ([0, 1].as_slice(), true, true));
        let noted: Vec<&str> = script.notes.iter().map(|note| note.word.as_str()).collect();
        assert_eq!(noted, ["ioengine", "direct", "ioscheduler"]);
        assert!(script.map_files(&[]).unwrap_err().to_string().contains("--map /dev/sdb=URL"));
        script.map_files(&[("/dev/sdb".into(), "iscsi://h/t/0".into())]).unwrap();
        assert_eq!(script.jobs[0].files, ["iscsi://h/t/0"]);
    }

    #[test]
    fn the_100g_papers_command_line_is_read_as_printed() {
        let line = "--rw=randwrite --ioengine=libaio --name=random --size=400m --direct=1 --invalidate=1 \
            --fsync_on_close=1 --norandommap --group_reporting --exitall --runtime=60 --time_based \
            --filename=/dev/sdx:...:/dev/sdz --iodepth=32 --numjobs=20 --bs=512k";
        let script = parse_args(line.split_ascii_whitespace()).unwrap();
        let job = &script.jobs[0];
        assert_eq!(
            (job.direction, job.block.1, job.depth, job.threads),
            (IoDirection::Write, 512 << 10, 32, 20)
        );
        assert_eq!(job.files, ["/dev/sdx", "/dev/sdy", "/dev/sdz"]);
        assert!(!job.covers && job.exits_all && job.flushes_at_end && job.is_time_based && job.is_random);
    }

    #[test]
    fn later_sections_see_all_globals_before_them() {
        let text = "[global]\nfilename=a\nbs=8k\n[one]\nrw=write\n[global]\nbs=16k\n[two]\nrw=randrw\nrwmixread=70\n\
            rate_iops=100,200\n";
        let script = parse_file("x", text).unwrap();
        assert_eq!(script.jobs[0].block, (8192, 8192));
        assert_eq!(script.jobs[1].block, (16_384, 16_384));
        assert_eq!(script.jobs[1].direction, IoDirection::Mixed(70));
        assert_eq!(script.jobs[1].rate, (Some(Rate::Iops(100)), Some(Rate::Iops(200))));
        let early = parse_args(["--rwmixread=70", "--rw=randrw", "--name=j", "--filename=a"]).unwrap();
        assert_eq!(early.jobs[0].direction, IoDirection::Mixed(70));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let text = "[a]\nrw=sideways\nblock_size=4k\nfilename=x\niodepth=0\nbuffered=1\n";
        let wrong = parse_file("f.fio", text).unwrap_err();
        let said: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 4, "{said:?}");
        assert!(said[0].starts_with("f.fio:2: \"sideways\" is not supported"));
        assert!(said[1].contains("did you mean \"blocksize\""), "{}", said[1]);
        assert!(said[2].contains("from 1 to 65536"));
        assert!(said[3].contains("page cache"));
        assert!(parse_file("f", "").unwrap_err()[0].to_string().contains("no job"));
        assert!(parse_file("f", "[a]\nrw=read").unwrap_err()[0].to_string().contains("names no volume"));
        assert!(
            parse_file("f", "[a]\nfilename=x\ntime_based").unwrap_err()[0]
                .to_string()
                .contains("without a runtime")
        );
        assert!(parse_args(["job.fio"]).unwrap_err()[0].to_string().contains("begin with --"));
        assert!(parse_args(["--rw=read"]).unwrap_err()[0].to_string().contains("no --name"));
    }
}
