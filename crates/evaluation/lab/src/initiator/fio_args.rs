//! A load as fio options, which fio and `blockwire bench` both accept.

use eval::fio::{IoDirection, Job, JobSize, Rate};
use eval::preset::fio_rw_word;

/// A load in fio's words.
pub(super) fn fio_option_words(job: &Job) -> Vec<String> {
    let mut words = vec![
        format!("--rw={}", fio_rw_word(job.direction, job.is_random)),
        if job.block.0 == job.block.1 {
            format!("--bs={}", job.block.0)
        } else {
            format!("--bs={},{}", job.block.0, job.block.1)
        },
        format!("--iodepth={}", job.depth),
        format!("--numjobs={}", job.threads),
        format!("--randseed={}", job.seed),
        "--group_reporting".to_owned(),
    ];
    if let IoDirection::Mixed(read) = job.direction {
        words.push(format!("--rwmixread={read}"));
    }
    match job.size {
        Some(JobSize::Bytes(bytes)) => words.push(format!("--size={bytes}")),
        Some(JobSize::Percent(part)) => words.push(format!("--size={part}%")),
        None => {}
    }
    if let Some(runtime) = job.runtime {
        words.push(format!("--runtime={}ms", runtime.as_millis()));
    }
    if !job.ramp.is_zero() {
        words.push(format!("--ramp_time={}ms", job.ramp.as_millis()));
    }
    let flags = [
        (job.is_time_based, "--time_based"),
        (job.is_random && !job.covers, "--norandommap"),
        (job.flushes_at_end, "--fsync_on_close=1"),
        (job.verifies, "--verify=crc32c"),
    ];
    words.extend(flags.iter().filter(|(is_on, _)| *is_on).map(|(_, word)| (*word).to_owned()));
    let parts = [job.rate.0, job.rate.1];
    for (name, of) in [("rate_iops", iops_rate as fn(Rate) -> Option<u64>), ("rate", byte_rate)] {
        let [read, write] = parts.map(|rate| rate.and_then(of).map(|rate| rate.to_string()));
        if read.is_some() || write.is_some() {
            words.push(format!("--{name}={},{}", read.unwrap_or_default(), write.unwrap_or_default()));
        }
    }
    words
}

fn iops_rate(rate: Rate) -> Option<u64> {
    if let Rate::Iops(rate) = rate { Some(rate) } else { None }
}

fn byte_rate(rate: Rate) -> Option<u64> {
    if let Rate::Bytes(rate) = rate { Some(rate) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eval::fio::parse_args;
    use std::time::Duration;

    /// What is written as words is read back as the same load.
    #[test]
    fn a_load_survives_its_words() {
        let job = Job {
            name: "bench".into(),
            files: vec!["-".into()],
            direction: IoDirection::Mixed(70),
            is_random: true,
            block: (4096, 8192),
            depth: 8,
            threads: 3,
            size: Some(JobSize::Percent(50)),
            runtime: Some(Duration::from_millis(1500)),
            is_time_based: true,
            ramp: Duration::from_millis(150),
            rate: (Some(Rate::Iops(1000)), Some(Rate::Iops(2000))),
            covers: false,
            flushes_at_end: true,
            is_grouped: true,
            seed: 7,
            ..Job::default()
        };
        let mut words = vec!["--name=bench".to_owned(), "--filename=-".to_owned()];
        words.extend(fio_option_words(&job));
        let script = parse_args(words.iter().map(String::as_str)).unwrap();
        assert_eq!(script.jobs[0], job);
    }

    /// A limit of one direction was read back as one of both, and the second word took the first one's away.
    #[test]
    fn a_limit_of_one_direction_is_never_that_of_the_other() {
        let limits = [
            (Some(Rate::Iops(1000)), None),
            (None, Some(Rate::Iops(1000))),
            (Some(Rate::Iops(1000)), Some(Rate::Bytes(5 << 20))),
            (Some(Rate::Bytes(5 << 20)), Some(Rate::Iops(1000))),
        ];
        for rate in limits {
            let words = fio_option_words(&Job { rate, ..Job::default() });
            let line = ["--name=x", "--filename=-"].into_iter().chain(words.iter().map(String::as_str));
            assert_eq!(parse_args(line).unwrap().jobs[0].rate, rate, "{words:?}");
        }
    }
}
