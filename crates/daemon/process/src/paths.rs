//! Default paths: for root the system's directories, for an ordinary user those of XDG.

use std::{env, path::PathBuf};

/// Default places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultPaths {
    /// The configuration file, read if it exists.
    pub config: PathBuf,
    /// The control socket.
    pub control: PathBuf,
    /// The state directory.
    pub state: PathBuf,
}

impl DefaultPaths {
    /// The places of the user who runs this process.
    pub fn of_process() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        DefaultPaths::of(uid, |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
    }

    /// The places of `uid` with the environment `var`. Relative paths in XDG variables are ignored,
    /// as that specification asks.
    fn of(uid: u32, var: impl Fn(&str) -> Option<PathBuf>) -> Self {
        let state_given = var("STATE_DIRECTORY").filter(|path| path.is_absolute());
        let runtime_given = var("RUNTIME_DIRECTORY").filter(|path| path.is_absolute());
        if uid == 0 || runtime_given.is_some() || state_given.is_some() {
            // systemd names these directories for a unit, who it runs as.
            return DefaultPaths {
                config: "/etc/blockwire/blockwire.toml".into(),
                control: runtime_given.unwrap_or_else(|| "/run/blockwire".into()).join("control.sock"),
                state: state_given.unwrap_or_else(|| "/var/lib/blockwire".into()),
            };
        }
        let home = var("HOME").unwrap_or_else(|| "/".into());
        let xdg = |name: &str, usual: PathBuf| {
            var(name).filter(|path| path.is_absolute()).unwrap_or(usual).join("blockwire")
        };
        DefaultPaths {
            config: xdg("XDG_CONFIG_HOME", home.join(".config")).join("blockwire.toml"),
            control: match var("XDG_RUNTIME_DIR").filter(|path| path.is_absolute()) {
                Some(directory) => directory.join("blockwire/control.sock"),
                None => xdg("XDG_STATE_HOME", home.join(".local/state")).join("control.sock"),
            },
            state: xdg("XDG_STATE_HOME", home.join(".local/state")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uid: u32, vars: &[(&str, &str)]) -> [String; 3] {
        let paths = DefaultPaths::of(uid, |name| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
        });
        [paths.config, paths.control, paths.state].map(|path| path.to_string_lossy().into_owned())
    }

    #[test]
    fn root_user_and_unit() {
        let system = ["/etc/blockwire/blockwire.toml", "/run/blockwire/control.sock", "/var/lib/blockwire"];
        assert_eq!(of(0, &[("HOME", "/root"), ("XDG_RUNTIME_DIR", "/run/user/0")]), system);
        assert_eq!(
            of(1000, &[("HOME", "/home/a"), ("XDG_RUNTIME_DIR", "/run/user/1000")]),
            [
                "/home/a/.config/blockwire/blockwire.toml",
                "/run/user/1000/blockwire/control.sock",
                "/home/a/.local/state/blockwire"
            ]
        );
        assert_eq!(of(1000, &[("HOME", "/home/a")])[1], "/home/a/.local/state/blockwire/control.sock");
        assert_eq!(
            of(990, &[("STATE_DIRECTORY", "/var/lib/blockwire"), ("RUNTIME_DIRECTORY", "/run/blockwire")]),
            system
        );
    }
}
