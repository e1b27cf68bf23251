//! Users who may look at a daemon and change nothing: the members of one group.
//!
//! Invariant: the kernel lets nobody connect but the daemon's user, root and that group, by the mode of the socket; what
//! a member of the group asks is answered only if it changes nothing.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use process::{exit::Failure, owned_dir::current_uid};

/// The mode of a socket that a group may use.
const SOCKET_MODE: u32 = 0o660;
/// Others than the owner and the group.
const OTHERS: u32 = 0o007;
/// Group and others may pass through a directory to what they know in it.
const MAY_PASS: u32 = 0o011;
/// The group may.
const GROUP_MAY_PASS: u32 = 0o010;

/// A group whose members may look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderGroup {
    name: String,
    gid: u32,
}

impl ReaderGroup {
    /// The group of this name in /etc/group, or of this number.
    ///
    /// # Errors
    /// There is none.
    pub fn find(name: &str) -> Result<ReaderGroup, Failure> {
        let groups = fs::read_to_string("/etc/group").unwrap_or_default();
        let gid = name.parse().ok().or_else(|| gid_of(&groups, name)).ok_or_else(|| {
            Failure::usage(format!(
                "control_group \"{name}\" is not in /etc/group; make it (groupadd --system {name}), or give the \
                 number of a group"
            ))
        })?;
        Ok(ReaderGroup { name: name.to_owned(), gid })
    }

    /// Lets the group use a socket, and pass through its directory if that is this user's.
    ///
    /// # Errors
    /// This user is not in the group, most likely: says what to do.
    pub(crate) fn admit(&self, socket: &Path, directory: &Path) -> Result<(), Failure> {
        let give = || -> io::Result<()> {
            std::os::unix::fs::chown(socket, None, Some(self.gid))?;
            // The mask of the process has taken the group's part away.
            fs::set_permissions(socket, fs::Permissions::from_mode(SOCKET_MODE))?;
            let facts = fs::metadata(directory)?;
            if facts.uid() == current_uid() && facts.mode() & MAY_PASS == 0 {
                std::os::unix::fs::chown(directory, None, Some(self.gid))?;
                fs::set_permissions(directory, fs::Permissions::from_mode(facts.mode() | GROUP_MAY_PASS))?;
            }
            Ok(())
        };
        give().map_err(|why| {
            Failure::failed(format!(
                "cannot give the control socket to the group {} (control_group): {why}; the daemon's user must be a \
                 member of it (systemd: SupplementaryGroups={})",
                self.name, self.name
            ))
        })
    }

    /// Whether only the owner and this group can have connected to the socket at this path.
    pub(crate) fn guards(&self, socket: &Path) -> bool {
        fs::symlink_metadata(socket).is_ok_and(|facts| facts.gid() == self.gid && facts.mode() & OTHERS == 0)
    }
}

/// `NAME:PASSWORD:GID:MEMBERS`, a line each (group(5)).
fn gid_of(groups: &str, name: &str) -> Option<u32> {
    let of_line = |line: &str| {
        let mut parts = line.split(':');
        (parts.next()? == name).then(|| parts.nth(1)?.parse().ok()).flatten()
    };
    groups.lines().find_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name_or_number() {
        let groups = "root:x:0:\nbad:x\nwatchers:x:1234:ann,ben\n";
        assert_eq!(
            (gid_of(groups, "watchers"), gid_of(groups, "bad"), gid_of(groups, "x")),
            (Some(1234), None, None)
        );
        assert_eq!(ReaderGroup::find("77").unwrap().gid, 77);
        assert!(ReaderGroup::find("no-such-group").unwrap_err().message.contains("groupadd"));
    }

    #[test]
    fn a_socket_that_others_can_reach_is_guarded_no_more() {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let socket = root.path().join("socket");
        let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let own = ReaderGroup { name: "own".to_owned(), gid: rustix::process::getegid().as_raw() };
        own.admit(&socket, root.path()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&socket), mode(root.path())), (0o660, 0o710));
        assert!(own.guards(&socket));
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(!own.guards(&socket));
        assert!(!ReaderGroup { gid: own.gid + 1, ..own }.guards(&socket));
    }
}
