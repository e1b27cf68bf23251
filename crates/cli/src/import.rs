//! `blockwire import`: a configuration of another target, as one for `serve`.
//!
//! Invariant: a secret goes into files that only their owner can read, or to a pipe; never to a terminal
//! or to a file that other users can read.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use clap::Args;

use ::import::{
    ImportResult, SecretFormat, SourceFormat,
    output::{is_private_output, serve_errors, write_files},
};
use process::{
    exit::{Exit, Failure},
    log, printable,
};

/// What follows the options in its help.
pub const HELP: &str = "\
FORMAT is what wrote the file:

  lio    LIO: /etc/target/saveconfig.json of targetcli
  tgt    tgt: /etc/tgt/targets.conf (tgt-admin --dump leaves out secrets)
  scst   SCST: /etc/scst.conf
  ctl    FreeBSD: /etc/ctl.conf, in its classic form
  nvmet  the kernel's NVMe target: /etc/nvmet/config.json of nvmetcli
  spdk   SPDK: what `rpc.py save_config` prints

The result is a configuration for `blockwire serve`. Each setting of the file becomes a comment beside what it became: \
its line, the setting, and \"applied\", \"emulated\" (something else has the same effect), \"not applicable\", or \
\"ERROR\": it could not be carried over. Errors are printed, too, and the exit code is 1; the rest is written all the \
same. Volumes keep their files and devices: stop the other target before this one serves them.

Secrets are written with -o, to a file of mode 0600; those of NVMe hosts to files beside it. On a terminal they are \
left out.

Examples:
  blockwire import lio /etc/target/saveconfig.json
  blockwire import lio /etc/target/saveconfig.json -o lio.toml";

/// Options of `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// What wrote the file: lio, tgt, scst, ctl, nvmet or spdk
    #[arg(value_name = "FORMAT", value_parser = parse_format)]
    pub format: SourceFormat,
    /// The file
    pub file: PathBuf,
    /// Write to this file, which must not exist, instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

fn parse_format(text: &str) -> Result<SourceFormat, String> {
    let found = SourceFormat::WORDS.iter().find(|(word, _)| *word == text);
    let hint = || multipath::suggest::unknown_word_hint(text, SourceFormat::WORDS.map(|(word, _)| word));
    found.map(|(_, format)| *format).ok_or_else(|| format!("unknown format{}", hint()))
}

/// Does it.
pub fn run(args: &ImportArgs) -> Result<Exit, Failure> {
    let imported = ::import::import_file(args.format, &args.file).map_err(Failure::usage)?;
    let mut errors = imported.errors();
    match &args.output {
        Some(path) => {
            write_files(&imported, path)?;
            errors.extend(serve_errors(path, imported.needs_anonymous()).iter().map(ToString::to_string));
        }
        None => print_configuration(&imported, &mut errors)?,
    }
    errors.dedup();
    if imported.needs_anonymous() {
        log::write_stderr(
            "blockwire: hosts of other machines need no secret for some of this: serve needs --allow-anonymous\n",
        );
    }
    if errors.is_empty() {
        return Ok(Exit::Success);
    }
    for error in &errors {
        log::write_stderr(&format!("{}\n", printable::escape_lines(error)));
    }
    Err(Failure::failed(format!("{} settings could not be carried over; see above", errors.len())))
}

fn print_configuration(imported: &ImportResult, errors: &mut Vec<String>) -> Result<(), Failure> {
    let mut out = io::stdout();
    let secrets = if is_private_output(&out) { SecretFormat::Yes } else { SecretFormat::No };
    let text = imported.to_toml(secrets);
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(why) if why.kind() != io::ErrorKind::BrokenPipe => {
            return Err(Failure::failed(format!("cannot write: {why}")));
        }
        _ => {}
    }
    let keys = imported.key_files();
    errors.extend(keys.iter().map(|(name, _)| format!("{name}: this file is written with -o FILE only")));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, path::Path};

    use super::*;

    /// The secret was generated for this test.
    const NVMET: &str = r#"{"hosts": [{"nqn": "nqn.2026-11.x:h",
        "dhchap_key": "DHHC-1:01:5KyPh7vWz5dSGcwkg/yVkqWB9vNE3kRF0KLq4e9CZkmMqlcx:"}],
        "ports": [{"addr": {"trtype": "tcp", "traddr": "127.0.0.1", "trsvcid": "4420"}, "portid": 1,
        "subsystems": ["nqn.2026-11.x:s"]}],
        "subsystems": [{"nqn": "nqn.2026-11.x:s", "attr": {"allow_any_host": "0"}, "allowed_hosts": ["nqn.2026-11.x:h"],
        "namespaces": [{"nsid": 1, "enable": 1, "device": {"path": "/dev/sdb"}}]}]}"#;

    #[test]
    fn secrets_go_to_files_of_their_owner_and_nothing_is_written_over() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("config.json");
        fs::write(&file, NVMET).unwrap();
        let output = root.path().join("blockwire.toml");
        let args = ImportArgs { format: SourceFormat::Nvmet, file, output: Some(output.clone()) };
        let done = run(&args);
        assert_eq!(done, Ok(Exit::Success), "{}", fs::read_to_string(&output).unwrap());
        let mut made: Vec<_> =
            fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        made.retain(|path| path.extension().is_some_and(|ending| ending != "json"));
        assert_eq!(made.len(), 2, "the configuration and a key");
        for path in made {
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", path.display());
        }
        let before = fs::read(&output).unwrap();
        let again = run(&args).unwrap_err();
        assert!(again.exit == Exit::Failure && again.message.contains("exists"), "{again:?}");
        assert_eq!(fs::read(&output).unwrap(), before);
    }

    /// The configuration was there already, with the name of a file that holds another secret.
    #[test]
    fn an_import_that_fails_half_way_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("config.json");
        fs::write(&file, NVMET).unwrap();
        let output = root.path().join("out/blockwire.toml");
        fs::create_dir(root.path().join("out")).unwrap();
        let args = ImportArgs { format: SourceFormat::Nvmet, file, output: Some(output.clone()) };
        assert_eq!(run(&args), Ok(Exit::Success));
        fs::remove_file(&output).unwrap();
        let keys = |directory: &Path| fs::read_dir(directory).unwrap().count();
        assert_eq!(keys(&root.path().join("out")), 1);
        assert!(run(&args).unwrap_err().message.contains("exists"));
        assert!(!output.exists() && keys(&root.path().join("out")) == 1);
        // The key can be written, the configuration cannot.
        fs::remove_dir_all(root.path().join("out")).unwrap();
        fs::create_dir_all(&output).unwrap();
        run(&args).unwrap_err();
        assert_eq!(keys(&root.path().join("out")), 1, "the directory that is in the way, and no key");
    }

    #[test]
    fn what_is_no_such_file_is_wrong_usage_and_writes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("config.json");
        fs::write(&file, "{\n\"hosts\": [").unwrap();
        let output = root.path().join("blockwire.toml");
        let args = ImportArgs { format: SourceFormat::Nvmet, file, output: Some(output.clone()) };
        let why = run(&args).unwrap_err();
        assert!(why.exit == Exit::Usage && why.message.contains("config.json:2: is not JSON"), "{why:?}");
        assert!(!output.exists());
    }
}
