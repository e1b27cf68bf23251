//! Values as fio writes them: sizes, times, lists.

use std::time::Duration;

use super::{JobSize, ScriptErrorReason};

/// `4k`, `400m`, `1g`, `512`: K is 1024, as fio's default has it.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, ScriptErrorReason> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let bad = |expected| ScriptErrorReason::BadValue(text.to_owned(), expected);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        _ => return Err(bad("is no size; write for example 4k or 512m")),
    };
    let number: u64 = number.parse().map_err(|_| bad("is no size; write for example 4k"))?;
    let fits = number.checked_mul(1 << shift).filter(|bytes| *bytes <= i64::MAX as u64);
    fits.ok_or_else(|| bad("is more than 2^63 - 1 bytes"))
}

/// A size, or `20%`.
pub(super) fn parse_job_size(text: &str) -> Result<JobSize, ScriptErrorReason> {
    let Some(percent) = text.trim().strip_suffix('%') else { return parse_bytes(text).map(JobSize::Bytes) };
    let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent));
    percent
        .map(JobSize::Percent)
        .ok_or_else(|| ScriptErrorReason::BadValue(text.to_owned(), "is no part; write 1% to 100%"))
}

/// `60`, `60s`, `2m`, `1h`, `1d`, `500ms`, `20us`. Without a unit, multiples of `unit`.
pub(super) fn parse_time(text: &str, unit: Duration) -> Result<Duration, ScriptErrorReason> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let wrong =
        || ScriptErrorReason::BadValue(text.to_owned(), "is no time; write for example 60, 60s, 500ms or 2m");
    let number: u32 = number.parse().map_err(|_| wrong())?;
    let each = match suffix.to_ascii_lowercase().as_str() {
        "" => unit,
        "us" | "usec" => Duration::from_micros(1),
        "ms" | "msec" => Duration::from_millis(1),
        "s" | "sec" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        "h" => Duration::from_secs(3600),
        "d" => Duration::from_secs(24 * 3600),
        _ => return Err(wrong()),
    };
    each.checked_mul(number).ok_or_else(wrong)
}

/// One value for reads and writes, or two with a comma between.
pub(super) fn parse_pair<T: Copy>(
    text: &str,
    one: impl Fn(&str) -> Result<T, ScriptErrorReason>,
) -> Result<(T, T), ScriptErrorReason> {
    let mut parts = text.split(',');
    let first = one(parts.next().unwrap_or_default())?;
    let second = match parts.next() {
        None | Some("") => first,
        Some(text) => one(text)?,
    };
    match parts.next() {
        None | Some("") => Ok((first, second)),
        Some(_) => Err(ScriptErrorReason::ThirdValue),
    }
}

/// `0,1`, `0-3`, `0,4-7`.
pub(super) fn parse_cores(text: &str) -> Result<Vec<usize>, ScriptErrorReason> {
    let wrong =
        || ScriptErrorReason::BadValue(text.to_owned(), "is no list of processors; write for example 0,2-3");
    let mut all = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (usize, usize) =
            from.trim().parse().ok().zip(to.trim().parse().ok()).ok_or_else(wrong)?;
        if from > to || to >= 4096 {
            return Err(wrong());
        }
        all.extend(from..=to);
    }
    Ok(all)
}

/// `a:b:c`; a colon of a name is written `\:`. A URL's own colons need no mark. `...` between two names
/// stands for those between them: `/dev/sdx:...:/dev/sdz` as papers print it.
pub(super) fn parse_files(text: &str) -> Result<Vec<String>, ScriptErrorReason> {
    let mut names: Vec<String> = vec![String::new()];
    let mut chars = text.chars();
    while let (Some(char), Some(name)) = (chars.next(), names.last_mut()) {
        let rest = chars.as_str();
        match char {
            '\\' if rest.starts_with(':') => {
                name.push(':');
                chars.next();
            }
            ':' if rest.starts_with("//") || (name.contains("://") && is_port(rest)) => name.push(':'),
            ':' => names.push(String::new()),
            _ => name.push(char),
        }
    }
    if names.iter().any(String::is_empty) {
        return Err(ScriptErrorReason::BadValue(text.to_owned(), "has an empty name in it"));
    }
    while let Some(at) = names.iter().position(|name| name == "...") {
        let between =
            at.checked_sub(1).and_then(|before| expand_range(names.get(before)?, names.get(at + 1)?));
        let between = between.ok_or_else(|| ScriptErrorReason::BadRange(text.to_owned()))?;
        names.splice(at..=at, between);
    }
    Ok(names)
}

fn is_port(rest: &str) -> bool {
    let behind = rest.trim_start_matches(|char: char| char.is_ascii_digit());
    behind.len() < rest.len() && behind.starts_with('/')
}

fn expand_range(first: &str, last: &str) -> Option<Vec<String>> {
    let (from, to) = (first.chars().last()?, last.chars().last()?);
    let stem = first.strip_suffix(from)?;
    let is_run = from.is_ascii_alphanumeric() && to.is_ascii_alphanumeric() && from < to;
    if !is_run || last.strip_suffix(to) != Some(stem) {
        return None;
    }
    let inner = (from as u8 + 1..to as u8).map(char::from).filter(char::is_ascii_alphanumeric);
    Some(inner.map(|letter| format!("{stem}{letter}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_fios() {
        assert_eq!(
            (parse_bytes("4k"), parse_bytes("400m"), parse_bytes("1G")),
            (Ok(4096), Ok(400 << 20), Ok(1 << 30))
        );
        assert!(
            parse_bytes("4q").is_err() && parse_bytes("k").is_err() && parse_bytes("99999999999g").is_err()
        );
        assert_eq!(parse_job_size("20%"), Ok(JobSize::Percent(20)));
        assert!(parse_job_size("0%").is_err() && parse_job_size("101%").is_err());
        let second = Duration::from_secs(1);
        assert_eq!(parse_time("60", second), Ok(Duration::from_secs(60)));
        assert_eq!(parse_time("500ms", second), Ok(Duration::from_millis(500)));
        assert_eq!(parse_pair("4k,8k", parse_bytes), Ok((4096, 8192)));
        assert_eq!(parse_cores("0,2-3"), Ok(vec![0, 2, 3]));
        assert!(parse_cores("3-1").is_err());
    }

    #[test]
    fn lists_of_files_keep_urls_whole() {
        assert_eq!(parse_files("/dev/sdb:/dev/sdc"), Ok(vec!["/dev/sdb".into(), "/dev/sdc".into()]));
        assert_eq!(parse_files(r"/a\:b"), Ok(vec!["/a:b".into()]));
        let url = "iscsi://127.0.0.1:3260/iqn.2026-11.io.blockwire\\:demo/0";
        let whole = "iscsi://127.0.0.1:3260/iqn.2026-11.io.blockwire:demo/0";
        assert_eq!(parse_files(&format!("{url}:/dev/sdb")), Ok(vec![whole.into(), "/dev/sdb".into()]));
    }

    #[test]
    fn three_dots_stand_for_what_is_between() {
        let all: Vec<String> = ["x", "y", "z"].map(|letter| format!("/dev/sd{letter}")).into();
        assert_eq!(parse_files("/dev/sdx:...:/dev/sdz"), Ok(all));
        assert!(parse_files("...:/dev/sdz").is_err() && parse_files("/dev/sdb:...:/dev/nvme0").is_err());
        assert!(parse_files("a::b").is_err());
    }
}
