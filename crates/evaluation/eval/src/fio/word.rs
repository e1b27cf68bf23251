//! The meaning of each fio option for a job.

use std::time::Duration;

use super::value::{amount, bytes, cores, files, pair, time};
use super::{Direction, Job, Rate, Reason};

/// What became of a word.
pub(super) enum Taken {
    /// It is done.
    Done,
    /// It changes nothing here, for this reason.
    Noted(&'static str),
}

/// Words that are known, for those that are not.
pub(super) const WORDS: &[&str] = &[
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

fn flag(value: Option<&str>) -> Result<bool, Reason> {
    match value.map(str::trim) {
        None | Some("" | "1" | "true") => Ok(true),
        Some("0" | "false") => Ok(false),
        Some(other) => Err(Reason::BadValue(other.to_owned(), "is neither 0 nor 1")),
    }
}

fn number<T>(text: &str, least: T, most: T) -> Result<T, Reason>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let number = text.trim().parse().ok().filter(|number| *number >= least && *number <= most);
    number.ok_or_else(|| Reason::OutOfRange {
        text: text.to_owned(),
        least: least.to_string(),
        most: most.to_string(),
    })
}

fn block(text: &str) -> Result<u32, Reason> {
    let size = bytes(text)?;
    let fits = u32::try_from(size).ok().filter(|size| *size >= 512 && size.is_multiple_of(512));
    fits.filter(|size| *size <= 64 << 20).ok_or_else(|| {
        Reason::BadValue(text.to_owned(), "is no block size here: a multiple of 512 bytes, 64m at most")
    })
}

fn direction(text: &str, mix: u8) -> Result<(Direction, bool), Reason> {
    // "randread:8" repeats offsets, "rw:4k" skips: neither is in the papers.
    Ok(match text.trim() {
        "read" => (Direction::Read, false),
        "write" => (Direction::Write, false),
        "randread" => (Direction::Read, true),
        "randwrite" => (Direction::Write, true),
        "rw" | "readwrite" => (Direction::Mixed(mix), false),
        "randrw" => (Direction::Mixed(mix), true),
        "trim" => (Direction::Trim, false),
        "randtrim" => (Direction::Trim, true),
        other => {
            return Err(Reason::BadValue(
                other.to_owned(),
                "is not supported; known: read, write, randread, randwrite, rw, randrw, trim, randtrim",
            ));
        }
    })
}

/// `500`: of both; `500,`: of reads alone; `,500`: of writes alone. What is not named keeps the limit that it has.
fn limit(of: &mut (Option<Rate>, Option<Rate>), text: &str, make: fn(u64) -> Rate) -> Result<(), Reason> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let (read, write) = match parts[..] {
        [both] => (both, both),
        [read, write] | [read, write, ""] => (read, write),
        _ => return Err(Reason::ThirdValue),
    };
    for (limit, text) in [(&mut of.0, read), (&mut of.1, write)] {
        if !text.is_empty() {
            *limit = Some(bytes(text)?).filter(|limit| *limit > 0).map(make);
        }
    }
    Ok(())
}

/// Does what a word says to a job, or says why not.
pub(super) fn apply(job: &mut Job, word: &str, value: Option<&str>) -> Result<Taken, Reason> {
    let needed = || value.filter(|v| !v.trim().is_empty()).ok_or_else(|| Reason::NoValue(word.to_owned()));
    let second = Duration::from_secs(1);
    match word {
        "name" => job.name = needed()?.trim().to_owned(),
        "rw" | "readwrite" => {
            let mix = if let Direction::Mixed(mix) = job.direction { mix } else { 50 };
            (job.direction, job.is_random) = direction(needed()?, mix)?;
        }
        "rwmixread" | "rwmixwrite" => {
            let part: u8 = number(needed()?, 0, 100)?;
            let reads = if word == "rwmixread" { part } else { 100 - part };
            if let Direction::Mixed(mix) = &mut job.direction {
                *mix = reads;
            } else {
                return Ok(Taken::Noted("the job does not mix reads and writes (or says so further down)"));
            }
        }
        "bs" | "blocksize" => job.block = pair(needed()?, block)?,
        "iodepth" => job.depth = number(needed()?, 1, 65_536)?,
        "numjobs" => job.threads = number(needed()?, 1, 65_536)?,
        "filename" => job.files = files(needed()?.trim())?,
        "size" => job.size = Some(amount(needed()?)?),
        "filesize" => job.file_size = Some(amount(needed()?)?),
        "io_size" => job.io_size = Some(bytes(needed()?)?),
        "offset" => job.offset = bytes(needed()?)?,
        "runtime" | "timeout" => job.runtime = Some(time(needed()?, second)?),
        "time_based" => job.is_time_based = flag(value)?,
        "ramp_time" => job.ramp = time(needed()?, second)?,
        "startdelay" => job.delay = time(needed()?, second)?,
        "thinktime" => job.think = time(needed()?, Duration::from_micros(1))?,
        "rate" => limit(&mut job.rate, needed()?, Rate::Bytes)?,
        "rate_iops" => limit(&mut job.rate, needed()?, Rate::Iops)?,
        "norandommap" => job.covers = !flag(value)?,
        "verify" => match needed()?.trim() {
            "crc32c" | "crc32c-intel" | "crc32" | "crc64" | "md5" | "sha1" | "sha256" | "sha512"
            | "xxhash" | "meta" | "pattern" => job.verifies = true,
            "null" => return Ok(Taken::Noted("nothing is verified by it")),
            other => return Err(Reason::UnknownVerify(other.to_owned())),
        },
        "stonewall" | "wait_for_previous" => job.is_walled = flag(value)?,
        "exitall" => job.exits_all = flag(value)?,
        "fsync_on_close" | "end_fsync" => job.flushes_at_end = flag(value)?,
        "fsync" | "fdatasync" => job.flush_every = number(needed()?, 0, u32::MAX)?,
        "cpus_allowed" => job.cores = cores(needed()?)?,
        "randseed" => job.seed = number(needed()?, 0, u64::MAX)?,
        "group_reporting" => job.is_grouped = flag(value)?,
        "randrepeat" | "allrandrepeat" if !flag(value)? => {
            return Err(Reason::Unsupported(
                "runs are to be repeated with the same offsets here; give a randseed instead",
            ));
        }
        _ => return noted(word, value),
    }
    Ok(Taken::Done)
}

/// Words that are understood and change nothing here.
fn noted(word: &str, value: Option<&str>) -> Result<Taken, Reason> {
    Ok(Taken::Noted(match word {
        "ioengine" => "the initiator is chosen by --initiator",
        "direct" if flag(value)? => "no page cache is in the way here",
        "buffered" if !flag(value)? => "no page cache is in the way here",
        "direct" | "buffered" => {
            return Err(Reason::Unsupported(
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
        _ => return Err(unknown(word)),
    }))
}

fn unknown(word: &str) -> Reason {
    let near = WORDS
        .iter()
        .map(|known| (strsim::jaro_winkler(word, known), *known))
        .filter(|(score, _)| *score >= 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    Reason::UnknownOption(word.to_owned(), near.map(|(_, known)| known))
}
