//! SPDK's programs, in `$SPDK_DIR`.
//!
//! SPDK is not part of this project; `tests/bench/spdk.sh` fetches and builds it.

use crate::Failure;
use crate::place::CommandLocation;

/// Where it was built; `None`: nobody says.
fn spdk_dir() -> Option<String> {
    std::env::var("SPDK_DIR").ok().filter(|dir| !dir.is_empty())
}

/// What is missing of a program.
pub(crate) fn missing_program(place: &CommandLocation, program: &str) -> Option<String> {
    let how = "SPDK_DIR=DIR tests/bench/spdk.sh builds it there; then set SPDK_DIR";
    let Some(dir) = spdk_dir() else {
        return Some(format!("SPDK_DIR, the directory where SPDK was built, is not set: {how}"));
    };
    let path = format!("{dir}/build/bin/{program}");
    let is_there = place.run(&["test", "-x", &path]).is_ok();
    (!is_there).then(|| format!("{path} is not on {}: {how}", place.display_name()))
}

/// The words that run one of its programs, with the libraries that it was linked with.
pub(crate) fn program_command_prefix(program: &str) -> Result<Vec<String>, Failure> {
    let dir =
        spdk_dir().ok_or_else(|| Failure::new("SPDK_DIR, the directory where SPDK was built, is not set"))?;
    Ok(vec![
        "env".to_owned(),
        format!("LD_LIBRARY_PATH={dir}/build/lib"),
        format!("{dir}/build/bin/{program}"),
    ])
}

/// What a target of its says that it is.
pub(crate) fn target_version(place: &CommandLocation, program: &str) -> Option<String> {
    let mut words = self::program_command_prefix(program).ok()?;
    words.push("-v".to_owned());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = place.run(&words).ok()?;
    said.lines().find_map(|line| line.strip_prefix("SPDK ")).map(|version| version.trim().to_owned())
}

/// Processors as DPDK takes them: a list, `[0,2]`; the first one if none were named.
pub(crate) fn core_mask(cores: &[usize]) -> String {
    if cores.is_empty() {
        return "[0]".to_owned();
    }
    let list: Vec<String> = cores.iter().map(ToString::to_string).collect();
    format!("[{}]", list.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_a_list() {
        assert_eq!((core_mask(&[]).as_str(), core_mask(&[1, 3]).as_str()), ("[0]", "[1,3]"));
    }
}
