//! What Chelsio's tool does with a running daemon, by its control socket.
//!
//! The options are those of iscsictl(8) of July 2013.

use std::path::Path;

use control::{Answer, Request, client};
use multipath::suggest;
use process::exit::{Exit, Failure};

/// A session's handle, as `-r` shows it.
///
/// # Errors
/// It is not a hexadecimal number.
pub fn parse_session_handle(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    u64::from_str_radix(digits, 16)
        .map_err(|_| "a session's handle is a hexadecimal number, as -r shows it".to_owned())
}

/// The targets that are meant.
#[derive(Debug, PartialEq, Eq)]
pub enum SelectedTargets {
    /// None was named.
    Nothing,
    /// `target=ALL`
    All,
    /// These.
    Named(Vec<String>),
}

/// The targets of words like `target=NAME,NAME` and `target=ALL`.
///
/// # Errors
/// What a word must be.
pub fn select_targets(words: &[String]) -> Result<SelectedTargets, Failure> {
    let mut names = Vec::new();
    let mut before: Option<&String> = None;
    for word in words {
        let list = match word.strip_prefix("target=") {
            Some(list) => list,
            // `target=A, B`: the shell has cut it.
            None if before.is_some_and(|before| before.ends_with(',')) => word,
            None => {
                return Err(Failure::usage(format!("expected target=NAME or target=ALL, not \"{word}\"")));
            }
        };
        before = Some(word);
        names.extend(list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned));
    }
    if names.iter().any(|name| name == "ALL") {
        return match names.len() {
            1 => Ok(SelectedTargets::All),
            _ => Err(Failure::usage("target=ALL means all targets; no other name may be given")),
        };
    }
    if names.is_empty() && !words.is_empty() {
        return Err(Failure::usage("target= needs a name, or ALL"));
    }
    Ok(if names.is_empty() { SelectedTargets::Nothing } else { SelectedTargets::Named(names) })
}

/// A daemon, by its control socket.
#[derive(Clone, Copy, Debug)]
pub struct ControlledDaemon<'a>(pub &'a Path);

impl ControlledDaemon<'_> {
    fn ask(&self, request: Request) -> Result<Answer, Failure> {
        client::send_request(self.0, request)
    }

    /// `-S`: starts targets, or has their file read again. `file` must be the one that the daemon was started with.
    ///
    /// # Errors
    /// It is another file; the daemon refuses.
    pub fn start_targets(&self, targets: SelectedTargets, file: Option<&Path>) -> Result<Answer, Failure> {
        if let Some(file) = file {
            self.refuse_other_file(file)?;
        }
        let names = match targets {
            SelectedTargets::Nothing => None,
            SelectedTargets::All => Some(Vec::new()),
            SelectedTargets::Named(names) => Some(names),
        };
        self.ask(Request::TargetStart { names })
    }

    fn refuse_other_file(&self, file: &Path) -> Result<(), Failure> {
        let Answer::Lines(lines) = self.ask(Request::FileLines)? else { return Err(unexpected_answer()) };
        let real = |path: &Path| std::fs::canonicalize(path).ok();
        let is_it = lines.iter().any(|line| {
            let known = Path::new(&line.file);
            known == file || (real(known).is_some() && real(known) == real(file))
        });
        match is_it {
            true => Ok(()),
            false => Err(Failure::usage(format!(
                "the daemon was not started with {0}; start another one: blockwire serve --chiscsi {0}",
                file.display()
            ))),
        }
    }

    /// `-s`: stops targets.
    ///
    /// # Errors
    /// None is named; the daemon refuses.
    pub fn stop_targets(&self, targets: SelectedTargets) -> Result<Answer, Failure> {
        let names = match targets {
            SelectedTargets::Nothing => {
                return Err(Failure::usage("-s needs target=NAME or target=ALL"));
            }
            SelectedTargets::All => Vec::new(),
            SelectedTargets::Named(names) => names,
        };
        self.ask(Request::TargetStop { names })
    }

    /// `-c`: settings of targets, or only those of one key ([`Answer::Settings`]).
    ///
    /// # Errors
    /// A target has no such key, or there is none of its name.
    pub fn target_settings(&self, targets: SelectedTargets, key: Option<&str>) -> Result<Answer, Failure> {
        let names = match targets {
            SelectedTargets::Nothing | SelectedTargets::All => Vec::new(),
            SelectedTargets::Named(names) => names,
        };
        let Answer::Settings(mut all) = self.ask(Request::TargetSettings { names })? else {
            return Err(unexpected_answer());
        };
        let Some(key) = key else { return Ok(Answer::Settings(all)) };
        for one in &mut all {
            let known: Vec<String> = one.settings.iter().map(|setting| setting.key.clone()).collect();
            one.settings.retain(|setting| setting.key == *key);
            if one.settings.is_empty() {
                let hint = suggest::unknown_word_hint(key, known.iter().map(String::as_str));
                return Err(Failure::usage(format!("{} is set to no \"{key}\"{hint}", one.target)));
            }
        }
        Ok(Answer::Settings(all))
    }

    /// `-r`: sessions of a target ([`Answer::Sessions`]), with `initiator` only those of one.
    ///
    /// # Errors
    /// There is no such target.
    pub fn target_sessions(&self, target: &str, initiator: Option<&str>) -> Result<Answer, Failure> {
        // Whether there is such a target at all is the daemon's to say.
        self.ask(Request::TargetSettings { names: vec![target.to_owned()] })?;
        let Answer::Sessions(mut all) = self.ask(Request::SessionList)? else {
            return Err(unexpected_answer());
        };
        all.retain(|one| {
            one.target.as_deref() == Some(target)
                && initiator.is_none_or(|initiator| one.initiator == initiator)
        });
        Ok(Answer::Sessions(all))
    }

    /// `-D`: ends a session.
    ///
    /// # Errors
    /// There is none of this handle.
    pub fn end_session(&self, id: u64) -> Result<Answer, Failure> {
        self.ask(Request::SessionEnd { id })
    }

    /// How each line of the daemon's files was treated ([`Answer::Lines`]); `-g`: only the global settings.
    ///
    /// # Errors
    /// The daemon has read no such file.
    pub fn file_lines(&self, only_globals: bool) -> Result<Answer, Failure> {
        let Answer::Lines(mut lines) = self.ask(Request::FileLines)? else { return Err(unexpected_answer()) };
        if lines.is_empty() {
            let why = "the daemon was started with no --chiscsi and no --policy; `blockwire target list` shows its targets";
            return Err(Failure::new(Exit::NothingFound, why));
        }
        if only_globals {
            lines.retain(|line| line.block == "global");
        }
        Ok(Answer::Lines(lines))
    }
}

fn unexpected_answer() -> Failure {
    Failure::failed("unexpected answer from the daemon; is it a different version?")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<SelectedTargets, String> {
        select_targets(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
            .map_err(|why| why.to_string())
    }

    #[test]
    fn targets_are_named_as_the_manual_has_it() {
        let named = |names: &[&str]| {
            Ok(SelectedTargets::Named(names.iter().map(|name| (*name).to_owned()).collect()))
        };
        assert_eq!(of(&[]), Ok(SelectedTargets::Nothing));
        assert_eq!(of(&["target=ALL"]), Ok(SelectedTargets::All));
        assert_eq!(of(&["target=a,b"]), named(&["a", "b"]));
        assert_eq!(of(&["target=a,", "b"]), named(&["a", "b"]));
        assert_eq!(of(&["target=a", "target=b"]), named(&["a", "b"]));
        assert!(of(&["all"]).unwrap_err().contains("target=NAME"));
        assert!(of(&["target="]).unwrap_err().contains("needs a name"));
        assert!(of(&["target=ALL,a"]).unwrap_err().contains("no other name"));
        assert!(of(&["target=a", "b"]).is_err(), "without a comma it is another word");
    }

    #[test]
    fn handles_are_hexadecimal() {
        assert_eq!(
            (parse_session_handle("0x1f"), parse_session_handle("1F"), parse_session_handle("0X2")),
            (Ok(31), Ok(31), Ok(2))
        );
        assert!(
            parse_session_handle("x").is_err()
                && parse_session_handle("").is_err()
                && parse_session_handle("-1").is_err()
        );
    }
}
