//! `eval run` that is ended early.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::said;

/// One at a time: every run removes what killed ones left.
static TURN: Mutex<()> = Mutex::new(());

/// A run that would take half a minute, in the middle of its first loads: a target serves, over a link where
/// those can be made.
fn in_the_middle(dir: &Path, (preset, scale): (&str, &str)) -> Child {
    std::fs::create_dir_all(dir.join("tmp")).unwrap();
    // A shell that starts the tests in its background lets them ignore SIGINT, and then the run does, too.
    let mut run = Command::new("env")
        .args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_blockwire")])
        .args(["eval", "run", preset, "--scale", scale, "--out", "run"])
        .current_dir(dir)
        .env("TMPDIR", dir.join("tmp"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines();
    // The first load is over: the second is being done.
    let found = lines.by_ref().map_while(Result::ok).any(|line| line.starts_with('['));
    assert!(found, "it ended by itself");
    // Who reads no more must not stop it.
    std::thread::spawn(move || lines.for_each(drop));
    run
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// What tells all that a run made from what others made: the end of its directory's name.
fn token(dir: &Path) -> Option<String> {
    let own = names(&dir.join("tmp")).pop()?;
    own.strip_prefix("blockwire-").map(str::to_owned)
}

/// Names with a run's token in them, in a directory.
fn named_after(dir: &str, token: &str) -> Vec<String> {
    names(Path::new(dir)).into_iter().filter(|name| name.contains(token)).collect()
}

/// Command lines of processes that name a directory.
fn processes_in(dir: &Path) -> Vec<String> {
    let dir = dir.display().to_string();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).filter(|l| l.contains(&dir)).collect()
}

/// Ended by a signal, it takes down what it started, writes what it measured, and says how it ended.
#[test]
fn a_signal_leaves_nothing_behind() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_over_links = lab::check_namespaces().is_ok();
    let loads = if is_over_links { ("nvme-tcp-jitter", "0.02") } else { ("quick", "0.5") };
    // Both have a runner of their own.
    for (signal, code, of) in [(Signal::TERM, 143, loads), (Signal::INT, 130, ("unified-wire", "0.02"))] {
        let dir = tempfile::tempdir().unwrap();
        let dir_path = dir.path().canonicalize().unwrap();
        let run = in_the_middle(&dir_path, of);
        let token = token(&dir_path);
        let links = token.as_deref().map(|token| named_after("/run/netns", token));
        assert!(!is_over_links || links.is_some_and(|links| !links.is_empty()), "a link is there");
        let told = Instant::now();
        kill_process(Pid::from_child(&run), signal).unwrap();
        let (_, _, exit) = said(&run.wait_with_output().unwrap());
        assert_eq!(exit, Some(code));
        assert!(told.elapsed() < Duration::from_secs(20), "{:?}", told.elapsed());
        for dir in ["/run/netns", "/dev/shm"] {
            assert_eq!(
                token.as_deref().map_or(Vec::new(), |token| named_after(dir, token)),
                Vec::<String>::new()
            );
        }
        assert_eq!(names(&dir_path.join("tmp")), Vec::<String>::new());
        assert_eq!(processes_in(&dir_path), Vec::<String>::new());
        let record = std::fs::read_to_string(dir_path.join("run/record.json")).unwrap();
        let record = eval::record::Record::parse(&record).unwrap();
        assert!(!record.points.is_empty());
        assert!(record.notes.iter().any(|note| note.starts_with("interrupted after")), "{:?}", record.notes);
    }
}

/// What a killed run could not take down, the next one does.
#[test]
fn the_next_run_removes_what_a_killed_one_left() {
    if lab::check_namespaces().is_err() {
        eprintln!("not tried: network namespaces cannot be made here");
        return;
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let mut run = in_the_middle(dir.path(), ("nvme-tcp-jitter", "0.02"));
    let token = token(dir.path()).unwrap();
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(!named_after("/run/netns", &token).is_empty());
    // Of the same kind by its name, and of nobody who ran an experiment.
    let theirs = dir.path().join("tmp/blockwire-2026-11-22");
    std::fs::create_dir(&theirs).unwrap();
    std::fs::write(theirs.join("report.html"), b"1").unwrap();
    // Its target ends with it, wherever it is by then.
    let until = Instant::now() + Duration::from_secs(10);
    while !processes_in(&dir.path().canonicalize().unwrap()).is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    let out = Command::new(env!("CARGO_BIN_EXE_blockwire"))
        .args(["eval", "run", "quick", "--scale", "smallest", "--out", "next"])
        .current_dir(dir.path())
        .env("TMPDIR", dir.path().join("tmp"))
        .output()
        .unwrap();
    let (_, err, code) = said(&out);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        err.contains(&format!("removed what a killed evaluation left: network namespace bw-{token}-")),
        "{err}"
    );
    assert_eq!(named_after("/run/netns", &token), Vec::<String>::new());
    assert_eq!(names(&dir.path().join("tmp")), ["blockwire-2026-11-22"], "and only that");
    assert!(theirs.join("report.html").exists());
}
