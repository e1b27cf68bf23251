//! Exports of Linux's own targets, by the names that a run gave them: whether they exist, and how they are
//! removed.

use std::io;
use std::path::Path;

use crate::place::CommandLocation;

/// What makes and takes away LIO's exports.
pub(crate) const LIO_SCRIPT: &str = include_str!("target/lio.sh");
/// What makes and takes away nvmet's.
pub(crate) const NVMET_SCRIPT: &str = include_str!("target/nvmet.sh");

/// Where the kernel's targets are configured.
const CONFIGFS: &str = "/sys/kernel/config";

/// The words that run one of the two with arguments.
pub(crate) fn shell_words(text: &str, arguments: Vec<String>) -> Vec<String> {
    [["sh", "-c", text, "sh"].map(str::to_owned).to_vec(), arguments].concat()
}

fn run_removal(text: &str, own: &str) {
    let _ = CommandLocation::Here.run(&["sh", "-c", text, "sh", "stop", own]);
}

/// The names in a directory; none if it is not there.
fn dir_names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(dir) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Whether a directory holds names that begin so. What cannot be read may hold them.
fn has_name_with_prefix(dir: &Path, start: &str) -> bool {
    dir_names(dir).map_or(true, |names| names.iter().any(|name| name.starts_with(start)))
}

/// Whether LIO has exports with these names here, or cannot be asked.
pub(crate) fn has_lio_exports(own: &str) -> bool {
    has_lio_exports_in(Path::new(CONFIGFS), own)
}

fn has_lio_exports_in(config: &Path, own: &str) -> bool {
    let core = config.join("target/core");
    let adapters = dir_names(&core);
    has_name_with_prefix(&config.join("target/iscsi"), &format!("iqn.2026-11.io.blockwire.eval:{own}-"))
        || adapters.map_or(true, |all| {
            // An adapter's attributes are files beside its devices' directories.
            all.iter()
                .map(|one| core.join(one))
                .any(|one| one.is_dir() && has_name_with_prefix(&one, &format!("{own}-")))
        })
}

/// Takes away LIO's exports with these names here.
pub(crate) fn remove_lio_exports(own: &str) {
    run_removal(LIO_SCRIPT, own);
}

/// Whether nvmet has exports with these names here, or cannot be asked.
pub(crate) fn has_nvmet_exports(own: &str) -> bool {
    has_nvmet_exports_in(Path::new(CONFIGFS), own)
}

fn has_nvmet_exports_in(config: &Path, own: &str) -> bool {
    has_name_with_prefix(&config.join("nvmet/subsystems"), &format!("nqn.2026-11.io.blockwire:{own}-"))
        || has_name_with_prefix(&config.join("nullb"), &format!("{own}-"))
}

/// Takes away nvmet's exports with these names here.
pub(crate) fn remove_nvmet_exports(own: &str) {
    run_removal(NVMET_SCRIPT, own);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of plain files in place of the kernel's: what is not ours stays, whatever it is called.
    #[test]
    fn exports_that_no_run_made_are_never_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path();
        let make = |path: &str| std::fs::create_dir_all(config.join(path)).unwrap();
        let link = |to: &str, path: &str| {
            std::os::unix::fs::symlink(config.join(to), config.join(path)).unwrap();
        };
        let (iqn, nqn) = ("iqn.2026-11.io.blockwire.eval", "nqn.2026-11.io.blockwire");
        let mut theirs = Vec::new();
        for (own, is_ours) in [("bw7", true), ("bw70", false), ("mine", false)] {
            let paths = [
                format!("target/iscsi/{iqn}:{own}-0"),
                format!("target/core/rd_mcp_{}/{own}-0", own.len()),
                format!("nvmet/subsystems/{nqn}:{own}-0"),
                format!("nullb/{own}-0"),
                format!("nvmet/ports/{}/subsystems", own.len()),
            ];
            paths.iter().for_each(|path| make(path));
            let port = format!("{}/{nqn}:{own}-0", paths[4]);
            link(&paths[2], &port);
            if !is_ours {
                theirs.extend(paths.into_iter().chain([port]));
            }
        }
        // A port that somebody is about to use, as a number alone tells.
        make("nvmet/ports/4421");
        theirs.push("nvmet/ports/4421".to_owned());
        for text in [LIO_SCRIPT, NVMET_SCRIPT] {
            let config = format!("CONFIG={}", config.display());
            let words = shell_words(text, vec!["stop".to_owned(), "bw7".to_owned()]);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let _ = CommandLocation::Here.run(&[&["env", &config], &words[..]].concat());
        }
        for path in &theirs {
            assert!(std::fs::symlink_metadata(config.join(path)).is_ok(), "{path} is there");
        }
        assert!(!config.join(format!("nvmet/subsystems/{nqn}:bw7-0")).exists());
        assert!(!config.join(format!("target/iscsi/{iqn}:bw7-0")).exists());
    }

    /// They would be struck off the list, and stay open for ever.
    #[test]
    fn exports_that_cannot_be_looked_for_are_never_taken_for_gone() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path();
        assert!(
            !has_lio_exports_in(config, "bw7") && !has_nvmet_exports_in(config, "bw7"),
            "nothing was configured"
        );
        std::fs::create_dir_all(config.join("target/core/rd_mcp_7/bw7-0")).unwrap();
        assert!(has_lio_exports_in(config, "bw7") && !has_lio_exports_in(config, "bw8"));
        // No directory: reading it fails, for root too.
        for what in ["target/iscsi", "nvmet/subsystems"] {
            std::fs::create_dir_all(config.join(what).parent().unwrap()).unwrap();
            std::fs::write(config.join(what), "").unwrap();
        }
        assert!(has_lio_exports_in(config, "bw8") && has_nvmet_exports_in(config, "bw8"));
    }
}
