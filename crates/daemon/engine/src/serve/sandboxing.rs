//! What the sandbox of a daemon lets it use: what its plan names, and what every process needs of the system.
//!
//! Invariant: a plan that could be served without a sandbox can be served in it. What is named later has to be in a
//! directory, or at a port, that was named at start or that `[sandbox]` names.

use std::path::{Path, PathBuf};

use config::{
    ConfigFiles, network,
    plan::Plan,
    spec::{Spec, VolumeSource},
};
use control::report::SandboxReport;
use multipath::{Url, url::SecretSource};
use process::log::area;
use sandbox::{LandlockState, Policy, Report};

/// Where volumes' files usually are; the systemd unit names it too.
const USUAL_VOLUMES: &str = "/srv/blockwire";
/// Read by every process: by its loader, the resolver of names, and libraries that are opened late.
const SYSTEM_READABLE: [&str; 6] =
    ["/etc", "/usr/share/zoneinfo", "/proc", "/sys", "/dev/urandom", "/dev/random"];
/// Code that is opened late: name services, providers of OpenSSL, the client of Ceph.
const SYSTEM_EXECUTABLE: [&str; 4] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64"];
/// Never given as a whole because a volume's file lies directly in it.
const SYSTEM_DIRECTORIES: [&str; 14] = [
    "/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/proc", "/root", "/run", "/sbin",
    "/sys", "/usr",
];
/// What the client of Ceph writes, where it is there.
const CEPH_WRITABLE: [&str; 2] = ["/run/ceph", "/var/log/ceph"];
/// Ports that portals, and volumes on other machines, usually have.
const USUAL_PORTS: [u16; 3] = [network::ISCSI_PORT, network::NVME_PORT, network::NVME_DISCOVERY_PORT];

/// What a daemon has beside its plan.
pub(super) struct OwnPlaces<'a> {
    pub(super) state: &'a Path,
    /// The state directory without `--state`: a machine without an identity keeps ours there.
    pub(super) usual_state: &'a Path,
    pub(super) control: &'a Path,
    /// Files that are read again: the configuration, or foreign ones.
    pub(super) read_again: Vec<PathBuf>,
    pub(super) files: &'a ConfigFiles,
}

/// What a daemon with this plan needs.
pub(super) fn policy_for(plan: &Plan, places: &OwnPlaces<'_>) -> Policy {
    let mut policy = Policy::default();
    policy.readable.extend(SYSTEM_READABLE.map(PathBuf::from));
    policy.executable.extend(SYSTEM_EXECUTABLE.map(PathBuf::from));
    policy.writable.extend([
        "/dev/null".into(),
        USUAL_VOLUMES.into(),
        places.state.to_owned(),
        places.usual_state.to_owned(),
    ]);
    policy.writable.extend(plan.sandbox.paths.iter().cloned());
    policy.sockets.insert(directory_of(places.control));
    // A file that is replaced is another one: its directory decides.
    let secrets = places.files.secret_files();
    let named = places.files.0.iter().map(|file| &file.path).chain(&places.read_again).chain(&secrets);
    policy.readable.extend(named.flat_map(|path| [directory_unless_systems(path), real(path)]));
    // The resolver's file is often a link to one that another daemon replaces.
    policy.readable.insert(directory_unless_systems(&real(Path::new("/etc/resolv.conf"))));
    let specs = || plan.volumes.iter().map(|volume| &volume.spec);
    let sources: Vec<&VolumeSource> = specs().flat_map(legs_or_self).map(|spec| &spec.source).collect();
    sources.iter().for_each(|source| add_source(&mut policy, source));
    policy.has_ceph = sources.iter().any(|source| matches!(source, VolumeSource::Rbd(_)));
    let usual = || USUAL_PORTS.into_iter().chain(plan.sandbox.ports.iter().copied());
    policy.listen = plan.portals.iter().map(|portal| portal.address.port()).chain(usual()).collect();
    // A path by an address of its own (host_traddr) binds it with a port that the system chooses. Any process can listen
    // at such a port without binding it, which landlock does not see: to forbid this would keep nobody from it.
    policy.listen.insert(0);
    // A target may send its initiators to any port, and a cluster's daemons have many.
    let is_elsewhere =
        |source: &&VolumeSource| matches!(source, VolumeSource::Remote(_) | VolumeSource::Rbd(_));
    if let Some(group) = &plan.group {
        policy.has_ceph = true;
        policy.listen.insert(group.listen.port());
        policy.readable.extend(group.conf.iter().map(|conf| directory_unless_systems(conf)));
        policy.writable.extend(CEPH_WRITABLE.map(PathBuf::from));
    }
    let is_reached = plan.group.is_some() || sources.iter().any(is_elsewhere);
    // An NBD server has one.
    let servers = sources.iter().filter_map(|source| source.nbd_port());
    policy.connect = (!is_reached).then(|| usual().chain(servers).collect());
    policy
}

fn legs_or_self(spec: &Spec) -> Vec<&Spec> {
    match &spec.source {
        VolumeSource::Stripe(striped) => striped.legs.iter().collect(),
        _ => vec![spec],
    }
}

fn add_source(policy: &mut Policy, source: &VolumeSource) {
    match source {
        VolumeSource::File(path) => policy.writable.extend(places_of_file(path)),
        VolumeSource::Device(path) => match path.exists() {
            true => drop(policy.writable.insert(real(path))),
            // When it comes, it is a new file of the directory.
            false => drop(policy.writable.insert("/dev".into())),
        },
        VolumeSource::Remote(urls) => {
            let urls = Url::parse_joined(urls).unwrap_or_default();
            let secrets = urls
                .iter()
                .flat_map(|url| [&url.options.secret, &url.options.mutual_secret, &url.options.tls_key])
                .flatten();
            policy.readable.extend(secrets.filter_map(|secret| match secret {
                SecretSource::File(path) => Some(directory_unless_systems(path)),
                SecretSource::Environment(_) => None,
            }));
        }
        VolumeSource::Rbd(image) => {
            policy.readable.extend(image.conf.iter().map(|conf| directory_unless_systems(conf)));
            policy.writable.extend(CEPH_WRITABLE.map(PathBuf::from));
        }
        VolumeSource::Ram | VolumeSource::Null | VolumeSource::Stripe(_) | VolumeSource::Nbd(_) => {}
    }
}

/// Where a volume's file is, or will be: its directory; of one that is missing the nearest that is there. If that is
/// empty, a file system may be mounted over it later, and the directory above decides.
fn places_of_file(path: &Path) -> Vec<PathBuf> {
    if path.exists() {
        return vec![directory_unless_systems(&real(path)), directory_unless_systems(path)];
    }
    let mut above = path.ancestors().skip(1).filter(|above| above.is_dir());
    let nearest = above.next().map(Path::to_owned);
    let is_empty =
        |directory: &PathBuf| std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none());
    let mounted_at = nearest.as_ref().filter(|directory| is_empty(directory)).and(above.next()).map(real);
    let found = nearest.map(|nearest| real(&nearest)).into_iter().chain(mounted_at);
    found.filter(|directory| !is_systems(directory)).collect()
}

fn is_systems(directory: &Path) -> bool {
    SYSTEM_DIRECTORIES.iter().any(|systems| directory == Path::new(systems))
}

/// The directory of a file; the file alone, if that directory is the system's.
fn directory_unless_systems(path: &Path) -> PathBuf {
    let directory = directory_of(path);
    if is_systems(&real(&directory)) { path.to_owned() } else { directory }
}

fn directory_of(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.parent().unwrap_or(Path::new("/")).to_owned()
}

/// Without symbolic links, if it is there.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Tells of what is in force, and gives it for reports.
pub(super) fn log_report(report: &Report) -> SandboxReport {
    let mut lacks = Vec::new();
    let (landlock_abi, ports) = match &report.landlock {
        LandlockState::Enforced { abi, ports } => (Some(*abi), *ports),
        LandlockState::Absent(why) => {
            lacks.push(format!("no landlock: {why}"));
            (None, false)
        }
    };
    if landlock_abi.is_some() && !ports {
        lacks.push("no ports: Linux 6.7 and later restrict them".to_owned());
    }
    if let Err(why) = &report.seccomp {
        lacks.push(format!("no seccomp: {why}"));
    }
    match lacks.is_empty() {
        true => tracing::info!(target: area::SERVE, "sandbox: files, ports and system calls are restricted"),
        false => tracing::warn!(
            target: area::SERVE,
            lacks = lacks.join("; "),
            "sandbox: a part of it is not in force"
        ),
    }
    SandboxReport { landlock_abi, ports, seccomp: report.seccomp.is_ok(), lacks }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::example::example_plan;

    fn policy(plan: &Plan, files: &ConfigFiles) -> Policy {
        let (state, control) = (Path::new("/var/lib/bw"), Path::new("/run/bw/control.sock"));
        let places = OwnPlaces { state, usual_state: state, control, read_again: Vec::new(), files };
        policy_for(plan, &places)
    }

    fn with_source(source: &str) -> Plan {
        let mut plan = example_plan();
        plan.volumes.truncate(1);
        plan.volumes[0].spec = config::spec::parse(source).unwrap();
        plan
    }

    #[test]
    fn a_volume_gives_its_directory_and_never_one_of_the_systems() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        std::fs::create_dir(at("mounted")).unwrap();
        std::fs::create_dir(at("empty")).unwrap();
        std::fs::write(at("mounted").join("a.img"), "x").unwrap();
        std::os::unix::fs::symlink(at("mounted/a.img"), at("link")).unwrap();
        let writable = |name: &str| {
            let found =
                policy(&with_source(&format!("file:{}", at(name).display())), &ConfigFiles::default());
            found.writable.into_iter().filter(|path| path.starts_with(&root)).collect::<Vec<_>>()
        };
        assert_eq!(writable("mounted/a.img"), [at("mounted")]);
        assert_eq!(writable("mounted/new.img"), [at("mounted")]);
        assert_eq!(writable("link"), [root.clone(), at("mounted")], "by both names");
        assert_eq!(writable("empty/a.img"), [root.clone(), at("empty")], "it may be a mount point");
        assert_eq!(writable("none/at/all.img"), std::slice::from_ref(&root));
        for path in ["/etc/passwd", "/none.img", "/dev/none.img"] {
            let found = policy(&with_source(&format!("file:{path}")), &ConfigFiles::default()).writable;
            assert!(!found.iter().any(|one| is_systems(one)), "{path}: {found:?}");
        }
    }

    #[test]
    fn only_volumes_elsewhere_open_all_ports() {
        let none = ConfigFiles::default();
        let mut plan = with_source("ram:1M");
        plan.sandbox.ports = vec![7777];
        let found = policy(&plan, &none);
        assert_eq!(found.connect, Some([3260, 4420, 8009, 7777].into()));
        assert!([3260, 3261, 4420, 8009, 7777].iter().all(|port| found.listen.contains(port)));
        assert!(found.listen.contains(&0), "by an address of this machine's own");
        assert!(!found.has_ceph);
        for source in ["iscsi://192.0.2.1/iqn.2026-11.x:y/0", "rbd:a/b", "stripe:ram:1M+rbd:a/b"] {
            let found = policy(&with_source(source), &none);
            assert_eq!((found.connect, found.has_ceph), (None, source.contains("rbd")), "{source}");
        }
        let found = policy(&with_source("stripe:nbd://192.0.2.1:7000/a+nbd://192.0.2.2/b"), &none);
        assert_eq!(found.connect, Some([3260, 4420, 7000, 8009, 10_809].into()));
        let found = policy(&with_source("nbd+unix:///a?socket=/run/s"), &none);
        assert_eq!(found.connect, Some([3260, 4420, 8009].into()));
        let mut plan = with_source("ram:1M");
        plan.group = Some(config::plan::GroupSettings {
            name: "g".parse().unwrap(),
            pool: "rbd".to_owned(),
            namespace: None,
            conf: Some("/clusters/a/ceph.conf".into()),
            user: None,
            gateway: None,
            listen: "192.0.2.1:3999".parse().unwrap(),
            address: "192.0.2.1:3999".parse().unwrap(),
        });
        let found = policy(&plan, &none);
        assert!(found.has_ceph && found.connect.is_none() && found.listen.contains(&3999));
        assert!(found.readable.contains(Path::new("/clusters/a")));
        let key = "iscsi://u@192.0.2.1/iqn.2026-11.x:y/0?secret_file=/keys/of/it";
        assert!(policy(&with_source(key), &none).readable.contains(Path::new("/keys/of")));
    }
}
