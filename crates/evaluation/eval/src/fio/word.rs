//! The meaning of each fio option for a job.

use std::time::Duration;

use super::value::{parse_bytes, parse_cores, parse_files, parse_job_size, parse_pair, parse_time};
use super::{IoDirection, Job, Rate, ScriptErrorReason};

/// What became of a word.
pub(super) enum WordOutcome {
    /// It is done.
    Done,
    /// It changes nothing here, for this reason.
    Noted(&'static str),
}

/// Words that are known, for those that are not.
pub(super) const KNOWN_WORDS: &[&str] = &[
    "blocksize",
    "bs",
    "buffered",
    "cpus_allowed",
    "cpus_allowed_policy",
    "description",
    "direct",
    "disable_clat",
    "disable_lat",
    "disable_slat",
    "eta",
    "exitall",
    "exitall_on_error",
    "filename",
    "filesize",
    "fsync",
    "fdatasync",
    "fsync_on_close",
    "end_fsync",
    "group_reporting",
    "invalidate",
    "io_size",
    "ioengine",
    "iodepth",
    "iodepth_batch",
    "iodepth_batch_complete_max",
    "iodepth_batch_complete_min",
    "iodepth_batch_submit",
    "iodepth_low",
    "ioscheduler",
    "lat_percentiles",
    "log_avg_msec",
    "name",
    "norandommap",
    "numjobs",
    "offset",
    "per_job_logs",
    "percentile_list",
    "clat_percentiles",
    "ramp_time",
    "randrepeat",
    "randseed",
    "random_generator",
    "rate",
    "rate_iops",
    "readwrite",
    "refill_buffers",
    "runtime",
    "rw",
    "rwmixread",
    "rwmixwrite",
    "size",
    "startdelay",
    "stonewall",
    "thinktime",
    "thread",
    "time_based",
    "timeout",
    "unified_rw_reporting",
    "verify",
    "wait_for_previous",
    "write_bw_log",
    "write_iops_log",
    "write_lat_log",
    "zero_buffers",
    "output",
    "output-format",
    "minimal",
];

fn parse_flag(value: Option<&str>) -> Result<bool, ScriptErrorReason> {
    match value.map(str::trim) {
        None | Some("" | "1" | "true") => Ok(true),
        Some("0" | "false") => Ok(false),
        Some(other) => Err(ScriptErrorReason::BadValue(other.to_owned(), "is neither 0 nor 1")),
    }
}

fn parse_number<T>(text: &str, least: T, most: T) -> Result<T, ScriptErrorReason>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let number = text.trim().parse().ok().filter(|number| *number >= least && *number <= most);
    number.ok_or_else(|| ScriptErrorReason::OutOfRange {
        text: text.to_owned(),
        least: least.to_string(),
        most: most.to_string(),
    })
}

fn parse_block_size(text: &str) -> Result<u32, ScriptErrorReason> {
    let size = parse_bytes(text)?;
    let fits = u32::try_from(size).ok().filter(|size| *size >= 512 && size.is_multiple_of(512));
    fits.filter(|size| *size <= 64 << 20).ok_or_else(|| {
        ScriptErrorReason::BadValue(
            text.to_owned(),
            "is no block size here: a multiple of 512 bytes, 64m at most",
        )
    })
}

fn parse_direction(text: &str, mix: u8) -> Result<(IoDirection, bool), ScriptErrorReason> {
    // "randread:8" repeats offsets, "rw:4k" skips: neither is in the papers.
    Ok(match text.trim() {
        "read" => (IoDirection::Read, false),
        "write" => (IoDirection::Write, false),
        "randread" => (IoDirection::Read, true),
        "randwrite" => (IoDirection::Write, true),
        "rw" | "readwrite" => (IoDirection::Mixed(mix), false),
        "randrw" => (IoDirection::Mixed(mix), true),
        "trim" => (IoDirection::Trim, false),
        "randtrim" => (IoDirection::Trim, true),
        other => {
            return Err(ScriptErrorReason::BadValue(
                other.to_owned(),
                "is not supported; known: read, write, randread, randwrite, rw, randrw, trim, randtrim",
            ));
        }
    })
}

/// `500`: of both; `500,`: of reads alone; `,500`: of writes alone. What is not named keeps the limit that it has.
fn set_rate_limit(
    of: &mut (Option<Rate>, Option<Rate>),
    text: &str,
    make: fn(u64) -> Rate,
) -> Result<(), ScriptErrorReason> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let (read, write) = match parts[..] {
        [both] => (both, both),
        [read, write] | [read, write, ""] => (read, write),
        _ => return Err(ScriptErrorReason::ThirdValue),
    };
    for (limit, text) in [(&mut of.0, read), (&mut of.1, write)] {
        if !text.is_empty() {
            *limit = Some(parse_bytes(text)?).filter(|limit| *limit > 0).map(make);
        }
    }
    Ok(())
}

/// Does what a word says to a job, or says why not.
pub(super) fn apply_word(
    job: &mut Job,
    word: &str,
    value: Option<&str>,
) -> Result<WordOutcome, ScriptErrorReason> {
    let needed =
        || value.filter(|v| !v.trim().is_empty()).ok_or_else(|| ScriptErrorReason::NoValue(word.to_owned()));
    let second = Duration::from_secs(1);
    match word {
        "name" => job.name = needed()?.trim().to_owned(),
        "rw" | "readwrite" => {
            let mix = if let IoDirection::Mixed(mix) = job.direction { mix } else { 50 };
            (job.direction, job.is_random) = parse_direction(needed()?, mix)?;
        }
        "rwmixread" | "rwmixwrite" => {
            let part: u8 = parse_number(needed()?, 0, 100)?;
            let reads = if word == "rwmixread" { part } else { 100 - part };
            if let IoDirection::Mixed(mix) = &mut job.direction {
                *mix = reads;
            } else {
                return Ok(WordOutcome::Noted(
                    "the job does not mix reads and writes (or says so further down)",
                ));
            }
        }
        "bs" | "blocksize" => job.block = parse_pair(needed()?, parse_block_size)?,
        "iodepth" => job.depth = parse_number(needed()?, 1, 65_536)?,
        "numjobs" => job.threads = parse_number(needed()?, 1, 65_536)?,
        "filename" => job.files = parse_files(needed()?.trim())?,
        "size" => job.size = Some(parse_job_size(needed()?)?),
        "filesize" => job.file_size = Some(parse_job_size(needed()?)?),
        "io_size" => job.io_size = Some(parse_bytes(needed()?)?),
        "offset" => job.offset = parse_bytes(needed()?)?,
        "runtime" | "timeout" => job.runtime = Some(parse_time(needed()?, second)?),
        "time_based" => job.is_time_based = parse_flag(value)?,
        "ramp_time" => job.ramp = parse_time(needed()?, second)?,
        "startdelay" => job.delay = parse_time(needed()?, second)?,
        "thinktime" => job.think = parse_time(needed()?, Duration::from_micros(1))?,
        "rate" => set_rate_limit(&mut job.rate, needed()?, Rate::Bytes)?,
        "rate_iops" => set_rate_limit(&mut job.rate, needed()?, Rate::Iops)?,
        "norandommap" => job.covers = !parse_flag(value)?,
        "verify" => match needed()?.trim() {
            "crc32c" | "crc32c-intel" | "crc32" | "crc64" | "md5" | "sha1" | "sha256" | "sha512"
            | "xxhash" | "meta" | "pattern" => job.verifies = true,
            "null" => return Ok(WordOutcome::Noted("nothing is verified by it")),
            other => return Err(ScriptErrorReason::UnknownVerify(other.to_owned())),
        },
        "stonewall" | "wait_for_previous" => job.is_walled = parse_flag(value)?,
        "exitall" => job.exits_all = parse_flag(value)?,
        "fsync_on_close" | "end_fsync" => job.flushes_at_end = parse_flag(value)?,
        "fsync" | "fdatasync" => job.flush_every = parse_number(needed()?, 0, u32::MAX)?,
        "cpus_allowed" => job.cores = parse_cores(needed()?)?,
        "randseed" => job.seed = parse_number(needed()?, 0, u64::MAX)?,
        "group_reporting" => job.is_grouped = parse_flag(value)?,
        "randrepeat" | "allrandrepeat" if !parse_flag(value)? => {
            return Err(ScriptErrorReason::Unsupported(
                "runs are to be repeated with the same offsets here; give a randseed instead",
            ));
        }
        _ => return ignored_word(word, value),
    }
    Ok(WordOutcome::Done)
}

/// Words that are understood and change nothing here.
fn ignored_word(word: &str, value: Option<&str>) -> Result<WordOutcome, ScriptErrorReason> {
    Ok(WordOutcome::Noted(match word {
        "ioengine" => "the initiator is chosen by --initiator",
        "direct" if parse_flag(value)? => "no page cache is in the way here",
        "buffered" if !parse_flag(value)? => "no page cache is in the way here",
        "direct" | "buffered" => {
            return Err(ScriptErrorReason::Unsupported(
                "I/O through a page cache is not supported: attach the volume and use fio itself",
            ));
        }
        "invalidate" => "no page cache is in the way here",
        "ioscheduler" => "no I/O scheduler is in the way here",
        "randrepeat" | "allrandrepeat" => "offsets are always the same for the same seed",
        "random_generator" => "offsets come from one generator here",
        "thread" => "every job is a thread here",
        "exitall_on_error" => "I/Os that fail are counted, and the command fails at its end",
        "cpus_allowed_policy" => "processors are given to threads in turn",
        "refill_buffers" | "zero_buffers" => "no payload is compressed on its way here",
        "iodepth_batch"
        | "iodepth_batch_submit"
        | "iodepth_batch_complete_min"
        | "iodepth_batch_complete_max"
        | "iodepth_low" => "completions are taken and I/Os sent as they come",
        "description"
        | "eta"
        | "minimal"
        | "output"
        | "output-format"
        | "unified_rw_reporting"
        | "lat_percentiles"
        | "clat_percentiles"
        | "percentile_list"
        | "disable_lat"
        | "disable_clat"
        | "disable_slat"
        | "log_avg_msec"
        | "write_bw_log"
        | "write_iops_log"
        | "write_lat_log"
        | "per_job_logs" => "reports have their own form here",
        _ => return Err(unknown_word(word)),
    }))
}

fn unknown_word(word: &str) -> ScriptErrorReason {
    let near = KNOWN_WORDS
        .iter()
        .map(|known| (strsim::jaro_winkler(word, known), *known))
        .filter(|(score, _)| *score >= 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    ScriptErrorReason::UnknownOption(word.to_owned(), near.map(|(_, known)| known))
}
