//! The names of this machine for targets.
//!
//! If the system's own initiators have names, they are used, so that access lists match. Otherwise names are
//! derived from the machine's identity, the same at each start. Invariant: two machines do not get the same
//! name, and one machine gets the same each time. A machine without an identity gets a random one, which is
//! stored. A host name is not enough, because many machines are called `localhost`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use multipath::HostIdentity;
use nvme::{HostId, Nqn};
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind};

/// Where systems keep a machine's identity.
const MACHINE_ID_FILES: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];

/// Which ISID (RFC 7143 §11.12.5) the sessions have, which with the initiator's name makes the I_T nexus that iSCSI
/// targets see. NVMe controllers know a host by its NQN and identifier instead, in any case the same.
/// ```
/// use blockwire_client::{Initiator, IsidChoice, Settings};
///
/// let first = Initiator::new(Settings::default())?;
/// let isid = IsidChoice::Inherited(first.host_identity().isid);
/// let next = Initiator::new(Settings { isid, ..Settings::default() })?;
/// assert_eq!(first.host_identity().isid, next.host_identity().isid);
/// # Ok::<(), blockwire_client::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IsidChoice {
    /// One of this process alone, drawn at random: several may use one target side by side.
    #[default]
    Passing,
    /// The same each time, derived from the machine's identity, as reservations over iSCSI need it. Two processes that have it at once end
    /// each other's sessions.
    Lasting,
    /// The ISID of a process that has ended, by the qualifier that [`Initiator::host_identity`](crate::Initiator::host_identity)
    /// gave there (`isid`): an iSCSI target ends the old session, with all that it still had in work, before
    /// the new one begins (RFC 7143 §6.3.5).
    Inherited([u8; 3]),
}

/// A path, as another process must know it to be the same nexus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathIdentity {
    /// Where it leads, and as whom.
    pub place: String,
    /// What tells its nexus apart from those of this process's other paths.
    pub number: u16,
}

/// Who we are. `entropy` is new for each process.
///
/// # Errors
/// If the machine has no identity, and none can be kept.
pub(crate) fn host_identity(isid: IsidChoice, entropy: [u8; 3]) -> Result<HostIdentity, Error> {
    let machine = || machine_identity(&MACHINE_ID_FILES.map(Path::new), &own_machine_id_path());
    host_identity_from(Path::new("/etc"), machine, isid, entropy)
}

/// By the names that stand in files of `etc`. What the machine is known by otherwise is asked only for those that do
/// not: where all are given it need not be known.
fn host_identity_from(
    etc: &Path,
    machine: impl Fn() -> Result<Vec<u8>, Error>,
    isid: IsidChoice,
    entropy: [u8; 3],
) -> Result<HostIdentity, Error> {
    let uuid = || machine().map(|machine| uuid_of_machine(&machine));
    let initiator =
        parse_initiator_name(&read_optional(&etc.join("iscsi/initiatorname.iscsi"))?.unwrap_or_default());
    let initiator = match initiator {
        Some(initiator) => initiator,
        None => format!("iqn.2026-11.io.blockwire:host.{}", hex_string(&uuid()?[..6])),
    };
    let host = match read_first_line(&etc.join("nvme/hostnqn"))?.and_then(|text| Nqn::parse(&text).ok()) {
        Some(host) => host,
        None => {
            let nqn = format!("nqn.2014-08.org.nvmexpress:uuid:{}", format_uuid(&uuid()?));
            #[expect(
                clippy::expect_used,
                reason = "36 digits and hyphens behind a prefix of fixed length are a name"
            )]
            Nqn::parse(&nqn).expect("a name of a UUID is a name")
        }
    };
    let host_id = match read_first_line(&etc.join("nvme/hostid"))?.and_then(|text| parse_uuid(&text)) {
        Some(host_id) => host_id,
        None => uuid()?,
    };
    #[expect(clippy::expect_used, reason = "uuid_of sets version bits, and parse_uuid refuses zero")]
    let host_id = HostId::new(host_id).expect("its version makes it differ from zero");
    let isid = match isid {
        IsidChoice::Passing => entropy,
        IsidChoice::Lasting => {
            let lasting: [u8; 32] = Sha256::digest([b"isid".as_slice(), &uuid()?].concat()).into();
            [lasting[0], lasting[1], lasting[2]]
        }
        IsidChoice::Inherited(isid) => isid,
    };
    Ok(HostIdentity { initiator, host, host_id, isid })
}

/// What a file says; `None` if it is not there, or not for this user. Any other error is one: who could not read
/// it this once would be somebody else this once, with somebody else's reservations.
fn read_optional(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(why) => match why.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory => {
                Ok(None)
            }
            _ => Err(Error::new(
                ErrorKind::Failed,
                format!("{}, which says who this machine is, cannot be read: {why}", path.display()),
            )),
        },
    }
}

fn read_first_line(path: &Path) -> Result<Option<String>, Error> {
    let text = read_optional(path)?.unwrap_or_default();
    Ok(text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()))
}

/// The name in open-iscsi's file.
fn parse_initiator_name(text: &str) -> Option<String> {
    let named = text.lines().find_map(|line| line.trim().strip_prefix("InitiatorName="))?;
    iscsi::name::IscsiName::parse(named.trim()).ok().map(|name| name.as_str().to_owned())
}

/// What is this machine's alone. Containers share a kernel, but not this.
fn machine_identity(system: &[&Path], kept: &Path) -> Result<Vec<u8>, Error> {
    let mut told = None;
    for path in system {
        told = told.or(read_optional(path)?.as_deref().and_then(parse_machine_id));
    }
    let id = match told {
        Some(id) => id,
        None => read_or_create_machine_id(kept).map_err(|why| {
            let text = format!(
                "this machine has no identity ({}), and none can be kept in {}: {why}; make one with \
                 systemd-machine-id-setup, or let that file be written, since without one two machines could be \
                 taken for the same host",
                MACHINE_ID_FILES[0],
                kept.display()
            );
            Error::new(ErrorKind::Failed, text)
        })?,
    };
    let node = rustix::system::uname().nodename().to_bytes().to_vec();
    Ok([id.into_bytes(), node].concat())
}

/// An identity as machine-id(5) has it: 32 hexadecimal digits. Images say `uninitialized`, or nothing.
fn parse_machine_id(text: &str) -> Option<String> {
    let id = text.lines().next()?.trim();
    let digits = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    (digits && id.bytes().any(|byte| byte != b'0')).then(|| id.to_owned())
}

/// Where an identity of our own is kept: beside the daemon's state, or among the user's.
fn own_machine_id_path() -> PathBuf {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = match rustix::process::geteuid().is_root() {
        true => PathBuf::from("/var/lib"),
        false => absolute("XDG_STATE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
            .unwrap_or_else(|| PathBuf::from("/var/lib")),
    };
    state.join("blockwire").join("machine-id")
}

/// The identity that is kept there. If there is none, one is drawn: it is on the disk before anybody uses it, and
/// of several processes that draw one the first has it.
fn read_or_create_machine_id(path: &Path) -> io::Result<String> {
    let damaged =
        || io::Error::other("it holds no identity of 32 hexadecimal digits; delete it to have one drawn");
    let read = || fs::read_to_string(path).map(|text| parse_machine_id(&text).ok_or_else(damaged));
    match read() {
        Ok(id) => return id,
        Err(why) if why.kind() == io::ErrorKind::NotFound => {}
        Err(why) => return Err(why),
    }
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir)?;
    let mut random = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let drawn = dir.join(format!(".machine-id.{}", hex_string(&random)));
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&drawn)?;
        let mut id = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut id)?;
        writeln!(file, "{}", hex_string(&id))?;
        file.sync_all()?;
        // It is not there before it is whole, and takes nobody's place.
        match fs::hard_link(&drawn, path) {
            Err(why) if why.kind() != io::ErrorKind::AlreadyExists => Err(why),
            Ok(()) | Err(_) => File::open(dir)?.sync_all(),
        }
    };
    let written = write();
    let _gone_or_never_there = fs::remove_file(&drawn);
    written?;
    read()?
}

/// A UUID of version 8 (RFC 9562 §5.8), so that the machine's own id is not shown to everybody.
fn uuid_of_machine(machine: &[u8]) -> [u8; 16] {
    let digest: [u8; 32] = Sha256::digest([b"io.blockwire.host".as_slice(), machine].concat()).into();
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&digest[..16]);
    uuid[6] = uuid[6] & 0x0F | 0x80;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}

fn hex_string(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn format_uuid(uuid: &[u8; 16]) -> String {
    [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]].map(hex_string).join("-")
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> =
        text.chars().filter(|c| *c != '-').map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.as_chunks().0.iter().map(|[high, low]| high << 4 | low).collect();
    (digits.len() == 32).then(|| bytes.try_into().ok()).flatten().filter(|uuid| *uuid != [0; 16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_keeps_its_names() {
        let who = |isid, entropy| super::host_identity(isid, entropy).unwrap();
        let (one, two) = (who(IsidChoice::Lasting, [1, 2, 3]), who(IsidChoice::Lasting, [4, 5, 6]));
        assert_eq!((&one.initiator, one.host_id, one.isid), (&two.initiator, two.host_id, two.isid));
        assert_eq!(who(IsidChoice::Passing, [4, 5, 6]).isid, [4, 5, 6]);
        assert_eq!(who(IsidChoice::Inherited([7, 8, 9]), [4, 5, 6]).isid, [7, 8, 9]);
    }

    #[test]
    fn a_machine_whose_names_are_all_given_needs_no_identity_of_its_own() {
        let etc = tempfile::tempdir().unwrap();
        let nameless = || Err(Error::new(ErrorKind::Failed, "it has none, and none can be kept"));
        let who = |isid| host_identity_from(etc.path(), nameless, isid, [1, 2, 3]);
        for (file, text) in [
            ("iscsi/initiatorname.iscsi", "InitiatorName=iqn.1993-08.org.debian:01:abc"),
            ("nvme/hostnqn", "nqn.2014-08.org.nvmexpress:uuid:6b5f4a6e-0001-4000-8000-000000000001"),
            ("nvme/hostid", "6b5f4a6e-0001-4000-8000-000000000001"),
        ] {
            assert!(who(IsidChoice::Passing).is_err(), "{file} does not exist yet");
            let path = etc.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let named = who(IsidChoice::Passing).unwrap();
        assert_eq!((named.initiator.as_str(), named.isid), ("iqn.1993-08.org.debian:01:abc", [1, 2, 3]));
        assert_eq!(who(IsidChoice::Inherited([7, 8, 9])).unwrap().isid, [7, 8, 9]);
        // No file says this, and by chance it would be another one each time.
        assert!(who(IsidChoice::Lasting).is_err());
    }

    #[test]
    fn two_machines_of_one_host_name_without_an_identity_are_not_one_host() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let empty = one.path().join("machine-id.of.an.image");
        for image in ["", "uninitialized\n", "00000000000000000000000000000000\n"] {
            fs::write(&empty, image).unwrap();
            let of = |dir: &Path| machine_identity(&[&empty], &dir.join("blockwire/machine-id")).unwrap();
            let first = of(one.path());
            assert_ne!(first, of(two.path()), "{image:?}");
            assert_eq!(first, of(one.path()), "and each stays who it is");
        }
        let kept: Vec<_> = fs::read_dir(one.path().join("blockwire")).unwrap().collect();
        assert_eq!(kept.len(), 1, "nothing else is left behind: {kept:?}");
    }

    #[test]
    fn of_many_that_draw_an_identity_at_once_all_have_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/machine-id");
        let drawn: Vec<String> = std::thread::scope(|scope| {
            let all: Vec<_> =
                (0..8).map(|_| scope.spawn(|| read_or_create_machine_id(&path).unwrap())).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(drawn.iter().all(|id| *id == drawn[0] && id.len() == 32), "{drawn:?}");
    }

    #[test]
    fn who_can_keep_no_identity_is_told_so_and_a_damaged_one_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("machine-id");
        fs::write(&path, "damaged").unwrap();
        for kept in [path.clone(), path.join("below/a/file")] {
            let error = machine_identity(&[], &kept).unwrap_err().to_string();
            assert!(error.contains("no identity") && error.contains("machine-id-setup"), "{error}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "damaged");
    }

    #[test]
    fn a_file_that_cannot_be_read_now_makes_nobody_else_of_this_machine() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("kept");
        // A directory is read with an error, as anything is when descriptors are short.
        let error = machine_identity(&[dir.path()], &kept).unwrap_err().to_string();
        assert!(error.contains("cannot be read"), "{error}");
        assert!(!kept.exists(), "nothing is drawn for it");
    }

    #[test]
    fn other_machines_have_others() {
        let uuid = uuid_of_machine(b"one");
        assert_ne!(uuid, uuid_of_machine(b"two"));
        assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (8, 2));
        assert_eq!(parse_uuid(&format_uuid(&uuid)), Some(uuid));
        assert_eq!(parse_uuid("00000000-0000-0000-0000-000000000000"), None);
        assert_eq!(parse_uuid("xyz"), None);
    }

    #[test]
    fn the_systems_own_name_is_taken() {
        let text = "## comment\nInitiatorName=iqn.1993-08.org.debian:01:abc\n";
        assert_eq!(parse_initiator_name(text).as_deref(), Some("iqn.1993-08.org.debian:01:abc"));
        assert_eq!(parse_initiator_name("InitiatorName=nonsense"), None);
    }
}
