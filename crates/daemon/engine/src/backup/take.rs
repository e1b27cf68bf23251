//! Taking a backup: of a daemon that runs, by its control socket, or of a state directory that none holds.

use std::path::Path;

use config::{
    ConfigFiles,
    diagnostic::{Diagnostic, Sink},
};
use control::{Answer, Request, client};
use process::{exit::Failure, paths::DefaultPaths};

use super::{BackedVolume, Backup, BackupContent};
use crate::state::{StateDir, StateError, configuration::AppliedConfiguration, volumes};

/// Of what a backup is taken; what is `None` is at its default path.
#[derive(Clone, Copy, Debug)]
pub struct BackupSource<'a> {
    /// State directory.
    pub state: Option<&'a Path>,
    /// The configuration file, where no daemon runs.
    pub configuration: Option<&'a Path>,
    /// Control socket of the daemon, which is asked then.
    pub control: Option<&'a Path>,
}

impl BackupSource<'_> {
    /// Takes it: its bytes, and what they hold.
    ///
    /// # Errors
    /// Neither the daemon nor the directory gives one, or it is of another directory than the one that is named.
    pub fn take_backup(&self, paths: &DefaultPaths) -> Result<(Vec<u8>, Backup), Failure> {
        let state = self.state.unwrap_or(&paths.state);
        let bytes = match self.control {
            Some(socket) => ask_daemon(socket)?,
            None => read_directory_or_ask(self, state, paths)?,
        };
        let backup = Backup::parse(&bytes).map_err(Failure::failed)?;
        let is_meant = |found: &Path| match (found.canonicalize(), state.canonicalize()) {
            (Ok(found), Ok(meant)) => found == meant,
            _ => found == state,
        };
        if self.state.is_some() && !is_meant(&backup.manifest.directory) {
            return Err(Failure::failed(format!(
                "{} is in use by a daemon that does not answer at {}: name its socket with --control instead",
                state.display(),
                paths.control.display()
            )));
        }
        Ok((bytes, backup))
    }
}

fn ask_daemon(socket: &Path) -> Result<Vec<u8>, Failure> {
    match client::send_request(socket, Request::Backup)? {
        Answer::Backup(bytes) => Ok(bytes.0),
        _ => Err(Failure::failed("the daemon gave an answer that was not asked for")),
    }
}

/// A directory that no daemon holds is read; else its daemon is asked.
fn read_directory_or_ask(
    source: &BackupSource<'_>,
    place: &Path,
    paths: &DefaultPaths,
) -> Result<Vec<u8>, Failure> {
    if !place.exists() {
        return ask_daemon(&paths.control).map_err(|why| {
            let place = place.display();
            Failure::new(
                why.exit,
                format!("there is no state directory {place} (--state), and {}", why.message),
            )
        });
    }
    match StateDir::open(place) {
        Ok(state) => read_directory(&state, source, paths),
        Err(StateError::InUse { .. }) => ask_daemon(&paths.control).map_err(|why| {
            let place = place.display();
            Failure::new(
                why.exit,
                format!("{place} is in use, so its daemon has to be asked, but {}", why.message),
            )
        }),
        // Root asks the daemon of another user, whose directory it does not take.
        Err(why @ StateError::Unsafe(_)) => ask_daemon(&paths.control).map_err(|_| Failure::failed(why)),
        Err(why) => Err(Failure::failed(why)),
    }
}

fn read_directory(
    state: &StateDir,
    source: &BackupSource<'_>,
    paths: &DefaultPaths,
) -> Result<Vec<u8>, Failure> {
    let sink = Sink::default();
    let file = source.configuration.or_else(|| paths.config.exists().then_some(paths.config.as_path()));
    let mut files = file.map(|path| ConfigFiles::read(path, &sink)).unwrap_or_default();
    let said = |errors: Vec<Diagnostic>| {
        Failure::usage(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    };
    sink.into_result(()).map_err(said)?;
    // As a start would choose.
    if let Some(applied) = AppliedConfiguration::load(state).map_err(Failure::failed)?
        && (files.0.is_empty() || applied.served == files.clone().absolute())
    {
        files = applied.current;
    }
    let mut lacks = Vec::new();
    if files.0.is_empty() {
        lacks.push("a configuration: there is none at the default place, and --config names none".to_owned());
    }
    let created = volumes::load_volumes(state).map_err(Failure::failed)?;
    let created = created.into_iter().map(|one| BackedVolume { name: one.name, spec: one.spec, uuid: None });
    let mut named: Vec<BackedVolume> = created.collect();
    // What is wrong in the text is for `serve` to say.
    let draft = files.draft(&Sink::default());
    let configured = draft.volumes.iter().map(|one| BackedVolume {
        name: one.value.name.to_string(),
        spec: one.value.spec.to_string(),
        uuid: None,
    });
    named.extend(configured);
    let content = BackupContent {
        directory: state.path(),
        state: state.copy_records().map_err(Failure::failed)?,
        configuration: &files,
        volumes: named,
        lacks,
    };
    content.into_bytes().map_err(Failure::failed)
}
