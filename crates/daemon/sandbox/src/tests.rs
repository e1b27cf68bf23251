use std::{
    fs,
    io::ErrorKind,
    net::{TcpListener, TcpStream},
    process::Command,
    thread,
};

use super::*;

/// Set for a process of its own, in which a test may restrict everything.
const ALONE: &str = "BLOCKWIRE_SANDBOX_ALONE";

/// Runs a test again in a process of its own, which a sandbox does not outlive. True: this is that process.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let ended =
        Command::new(program).args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    false
}

fn status_line(name: &str) -> String {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches([':', '\t', ' ']).to_owned()
}

#[test]
fn what_the_policy_does_not_name_is_denied_for_good() {
    if !is_alone("tests::what_the_policy_does_not_name_is_denied_for_good") {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    for name in ["in", "out"] {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(name).join("old"), "x").unwrap();
    }
    let (known, other) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = |listener: &TcpListener| listener.local_addr().unwrap();
    let old_thread = thread::Builder::new();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let old_thread = old_thread.spawn(move || gone.recv().map(|()| status_line("Seccomp"))).unwrap();
    let policy = Policy {
        readable: ["/proc".into()].into(),
        writable: [at("in")].into(),
        connect: Some([ports(&known).port()].into()),
        ..Policy::default()
    };
    let report = enforce(&policy);
    assert_eq!(report.seccomp, Ok(()), "this processor has a filter");
    go.send(()).unwrap();
    assert_eq!(old_thread.join().unwrap().unwrap(), "2", "threads that ran already are filtered too");
    assert_eq!((status_line("Seccomp"), status_line("NoNewPrivs")), ("2".to_owned(), "1".to_owned()));
    let program = Command::new("/bin/true").spawn().unwrap_err();
    assert_eq!(program.raw_os_error(), Some(libc::ENOSYS));
    let LandlockState::Enforced { abi, ports: has_ports } = report.landlock else {
        eprintln!("no landlock here: {:?}", report.landlock);
        assert!(fs::read(at("out").join("old")).is_ok() && may_open(&at("out"), Access::Write));
        return;
    };
    assert!(abi >= 1);
    thread::scope(|scope| {
        scope
            .spawn(|| {
                fs::write(at("in").join("new"), "y").unwrap();
                fs::rename(at("in").join("new"), at("in").join("newer")).unwrap();
                fs::remove_file(at("in").join("newer")).unwrap();
                for (path, error) in [
                    (at("out").join("old"), fs::read(at("out").join("old")).map(drop)),
                    (at("out").join("new"), fs::write(at("out").join("new"), "y")),
                ] {
                    let why = error.unwrap_err();
                    assert_eq!(why.kind(), ErrorKind::PermissionDenied, "{}", path.display());
                    assert!(
                        !may_open(&path, Access::Read)
                            && file_hint(&path, Access::Write, &why).unwrap().contains("[sandbox]")
                    );
                }
                assert!(may_open(Path::new("/proc/self/status"), Access::Read));
                assert!(!may_open(Path::new("/proc/self/status"), Access::Write));
                assert!(may_open(&at("in").join("any/thing"), Access::Write));
                assert_eq!(
                    file_hint(&at("in"), Access::Write, &ErrorKind::PermissionDenied.into()),
                    None,
                    "not the sandbox's doing"
                );
                assert_eq!(file_hint(&at("out"), Access::Read, &ErrorKind::NotFound.into()), None);
            })
            .join()
            .unwrap()
    });
    assert_eq!(may_listen(0), !has_ports);
    if has_ports {
        let why = TcpListener::bind("127.0.0.1:0").unwrap_err();
        assert_eq!(why.kind(), ErrorKind::PermissionDenied);
        assert!(listen_hint("127.0.0.1:0".parse().unwrap(), &why).is_some());
        let why = TcpStream::connect(ports(&other)).unwrap_err();
        assert_eq!(why.kind(), ErrorKind::PermissionDenied);
        assert!(!may_connect(ports(&other).port()));
    }
    assert!(TcpStream::connect(ports(&known)).is_ok() && may_connect(ports(&known).port()));
}

#[test]
fn without_a_sandbox_nothing_is_said_to_be_denied() {
    assert!(may_open(Path::new("/nowhere"), Access::Write) && may_listen(1) && may_connect(1));
    assert_eq!(file_hint(Path::new("/nowhere"), Access::Read, &ErrorKind::PermissionDenied.into()), None);
}

#[test]
fn a_thread_that_is_denied_files_opens_none_and_the_others_do() {
    let denied = thread::spawn(|| (deny_files_to_this_thread(), fs::read("/proc/self/status").is_ok()));
    let (has_landlock, opened) = denied.join().unwrap();
    assert_eq!(opened, !has_landlock);
    assert!(fs::read("/proc/self/status").is_ok());
}
