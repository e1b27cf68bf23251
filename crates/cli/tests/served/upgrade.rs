//! The process of the daemon is replaced under verifying load over both protocols: no command fails, no host logs in
//! again, no byte is wrong. Whatever goes wrong before the new process serves, the old one serves on and says why.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::daemon::{Daemon, Place, wait_until, worlds};
use crate::killed::{Connection, Load};

const CONFIG: &str = "[[volume]]\nname = \"disk\"\nsource = \"file:disk.img,size=8M\"\n";
/// The longest that hosts may wait for an answer while the process is replaced.
const PAUSE_MAX_MS: u64 = 500;

/// How many times it is replaced: `UPGRADES`, or 20.
fn upgrades() -> usize {
    std::env::var("UPGRADES").ok().and_then(|value| value.parse().ok()).unwrap_or(20)
}

/// Half of these connections speak either protocol: `UPGRADE_CONNECTIONS`, or 8.
fn connections() -> u8 {
    std::env::var("UPGRADE_CONNECTIONS").ok().and_then(|value| value.parse().ok()).unwrap_or(8)
}

/// The process that serves now, which is no child of the test any more.
struct NewProcess(u32);

/// Who answers.
fn pid_of(daemon: &Daemon) -> u32 {
    daemon.ask_json("status")["pid"].as_u64().expect("a process number") as u32
}

impl Drop for NewProcess {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.0 as i32) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn serve(place: &Place, arguments: &[&str]) -> Daemon {
    place.serve(CONFIG, &[&["--nvme", "127.0.0.1:0", "--no-sandbox"], arguments].concat())
}

/// Loads end, whatever ends the test.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs loads while `act` does something, and gives how often they were answered.
fn under_load(daemon: &Daemon, loads: &mut [Load], act: impl FnOnce()) -> u64 {
    let stop = AtomicBool::new(false);
    let connections: Vec<Connection> =
        loads.iter().map(|load| Connection::open(daemon, load.scsi, load.number)).collect();
    thread::scope(|scope| {
        let running: Vec<_> = loads
            .iter_mut()
            .zip(connections)
            .map(|(load, mut over)| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut longest = Duration::ZERO;
                    while !stop.load(Ordering::Relaxed) {
                        let begun = Instant::now();
                        load.step(&mut over).expect("no command fails, and no connection is lost");
                        longest = longest.max(begun.elapsed());
                    }
                    longest
                })
            })
            .collect();
        let end = StopAtEnd(&stop);
        act();
        drop(end);
        let longest = running.into_iter().map(|load| load.join().expect("no byte is wrong")).max();
        println!("the longest that a host has waited: {longest:?}");
    });
    loads.iter().map(|load| load.answered).sum()
}

#[test]
fn hosts_of_both_protocols_notice_nothing_of_upgrades_under_load() {
    for world in worlds() {
        let place = Place::new();
        let daemon = serve(&place, &["--io", world]);
        let mut loads: Vec<Load> = (0..connections()).map(Load::new).collect();
        let mut new_process = NewProcess(daemon.pid());
        let mut pauses = Vec::new();
        let answered = under_load(&daemon, &mut loads, || {
            for _ in 0..upgrades() {
                let report = daemon.ask_json("upgrade");
                assert_eq!(report["left"].as_array().map(Vec::len), Some(0), "{report}");
                assert_eq!(report["sessions"].as_u64(), Some(u64::from(connections()) / 2), "{report}");
                // Each host has an admin queue and one for I/O.
                assert_eq!(report["queues"].as_u64(), Some(u64::from(connections())), "{report}");
                pauses.push(report["pause_ms"].as_u64().expect("milliseconds"));
                let now = pid_of(&daemon);
                assert_eq!(report["pid"].as_u64(), Some(u64::from(now)));
                assert_ne!(now, new_process.0, "another process serves");
                new_process.0 = now;
                thread::sleep(Duration::from_millis(20));
            }
        });
        pauses.sort_unstable();
        let most = pauses.last().copied().unwrap_or_default();
        println!("{world}: {} upgrades, {answered} writes, pauses in ms: {pauses:?}", pauses.len());
        assert!(most <= PAUSE_MAX_MS, "hosts waited for {most} ms");
        assert!(answered > 10 * upgrades() as u64, "there was hardly any load");
        for load in &mut loads {
            let mut over = Connection::open(&daemon, !load.scsi, load.number + 64);
            load.verify(&mut over);
        }
        let recorded =
            |run: u8| daemon.ask_json(&format!("flight-recorder --run={run}"))["shards"][0].clone();
        assert_eq!(
            (recorded(0)["ending"].as_str(), recorded(0)["pid"].as_u64()),
            (Some("none"), Some(new_process.0.into()))
        );
        for run in 1..=3 {
            assert_eq!(recorded(run)["ending"], "in-order", "run {run}");
        }
        daemon.ask("stop");
    }
}

#[test]
fn a_binary_that_does_not_take_over_leaves_the_old_one_serving() {
    let place = Place::new();
    let daemon = serve(&place, &[]);
    let mut loads: Vec<Load> = (0..2).map(Load::new).collect();
    let script = |name: &str, text: &str| {
        let path = place.write(name, text);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    };
    let wrong = [
        ("/nonexistent/blockwire".to_owned(), "cannot be started"),
        (script("ends", "#!/bin/sh\nexit 0\n"), "has ended"),
        (
            script("babbles", "#!/bin/sh\nprintf 'nonsense nonsense nonsense' >&0\nsleep 5\n"),
            "does not take over",
        ),
        (script("sleeps", "#!/bin/sh\nexec sleep 20\n"), "in time"),
        (
            script(
                "cores",
                &format!("#!/bin/sh\nexec {} \"$@\" --cores 9999\n", env!("CARGO_BIN_EXE_blockwire")),
            ),
            "",
        ),
    ];
    under_load(&daemon, &mut loads, || {
        for (binary, said) in &wrong {
            let begun = Instant::now();
            let out = daemon.run(&format!("upgrade {binary}"));
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(!out.status.success() && text.contains(said), "{binary}: {text}");
            assert!(text.contains("serves on"), "{binary}: {text}");
            assert!(begun.elapsed() < Duration::from_secs(7), "{binary}: {:?}", begun.elapsed());
            assert_eq!(pid_of(&daemon), daemon.pid());
        }
    });
}

/// What lies in the memory of the process, or is bound to it, does not move: nothing is begun.
#[test]
fn what_cannot_move_is_refused_by_name() {
    let place = Place::new();
    let config = "[[volume]]\nname = \"fast\"\nsource = \"ram:4M\"\n";
    let daemon = place.serve(config, &["--no-sandbox"]);
    let text = String::from_utf8_lossy(&daemon.run("upgrade").stderr).into_owned();
    assert!(text.contains("volume fast cannot move"), "{text}");
    let place = Place::new();
    let daemon = serve(&place, &[]);
    let joins = format!("{CONFIG}\n[group]\nname = \"west\"\npool = \"rbd\"\nlisten = \"127.0.0.1:3262\"\n");
    place.write("blockwire.toml", &joins);
    let text = String::from_utf8_lossy(&daemon.run("upgrade").stderr).into_owned();
    assert!(text.contains("joins a gateway group when it starts") && text.contains("serves on"), "{text}");
    assert_eq!(pid_of(&daemon), daemon.pid());
    let place = Place::new();
    let sandboxed = place.serve(CONFIG, &[]);
    let text = String::from_utf8_lossy(&sandboxed.run("upgrade").stderr).into_owned();
    assert!(text.contains("sandbox"), "{text}");
}

/// Loads that may break: `act` hears how many have. After that they are not run any more.
fn until_broken(daemon: &Daemon, loads: &mut [Load], act: impl FnOnce(&AtomicUsize)) {
    let (stop, broken) = (AtomicBool::new(false), AtomicUsize::new(0));
    let connections: Vec<Connection> =
        loads.iter().map(|load| Connection::open(daemon, load.scsi, load.number)).collect();
    thread::scope(|scope| {
        for (load, mut over) in loads.iter_mut().zip(connections) {
            let (stop, broken) = (&stop, &broken);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if load.step(&mut over).is_err() {
                        broken.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                }
            });
        }
        let _end = StopAtEnd(&stop);
        act(&broken);
    });
}

/// Over the other protocol than the one that has written it.
fn verify(daemon: &Daemon, loads: &mut [Load]) {
    for load in loads {
        let mut over = Connection::open(daemon, !load.scsi, load.number + 64);
        load.verify(&mut over);
    }
}

/// Nobody holds the state directory any more.
fn wait_until_free(place: &Place) {
    let free = || {
        let lock = fs::File::open(place.path("state/lock")).expect("the state directory has a lock");
        lock.try_lock().is_ok()
    };
    wait_until(10, || "a process still holds the state directory".to_owned(), free);
}

/// Before it serves no host notices that the new process was killed; killed after that, hosts connect again and find
/// every byte.
#[test]
fn a_new_process_that_is_killed_costs_no_byte() {
    let place = Place::new();
    let mut loads: Vec<Load> = (0..2).map(Load::new).collect();
    let pid_file = place.path("pid");
    let script = format!(
        "#!/bin/sh\nexec 3<&0\n{} \"$@\" <&3 3<&- &\necho $! > {}\nexec 3<&-\nwait\n",
        env!("CARGO_BIN_EXE_blockwire"),
        pid_file.display()
    );
    let path = place.write("wrapped", &script);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    let (mut killed_before, mut killed_after) = (0, 0);
    for round in 0..4 {
        let daemon = serve(&place, &[]);
        verify(&daemon, &mut loads);
        until_broken(&daemon, &mut loads, |broken| {
            for step in 0..48_u64 {
                let _ = fs::remove_file(&pid_file);
                let pid = || fs::read_to_string(&pid_file).ok()?.trim().parse::<i32>().ok();
                let out = thread::scope(|scope| {
                    scope.spawn(|| {
                        wait_until(10, || "no process".to_owned(), || pid().is_some());
                        // The longest is longer than an upgrade takes on a busy machine.
                        thread::sleep(Duration::from_millis(step * step / 4 + round));
                        let _ = pid().and_then(Pid::from_raw).map(|pid| kill_process(pid, Signal::KILL));
                    });
                    daemon.run(&format!("upgrade {path}"))
                });
                if out.status.success() {
                    killed_after += 1;
                    return;
                }
                thread::sleep(Duration::from_millis(30));
                assert_eq!(broken.load(Ordering::Relaxed), 0, "{}", String::from_utf8_lossy(&out.stderr));
                killed_before += 1;
            }
        });
        drop(daemon);
        wait_until_free(&place);
    }
    println!("killed before it served: {killed_before}, after: {killed_after}");
    assert!(killed_before > 0 && killed_after > 0);
    verify(&serve(&place, &[]), &mut loads);
}

/// The new process ends if the old one is killed before it has given everything away, and serves on after that.
#[test]
fn an_old_process_that_is_killed_costs_no_byte() {
    let place = Place::new();
    let mut loads: Vec<Load> = (0..2).map(Load::new).collect();
    let (mut ended, mut served) = (0, 0);
    let mut whole = Duration::ZERO;
    for round in 0..=16 {
        let daemon = serve(&place, &[]);
        verify(&daemon, &mut loads);
        if round == 0 {
            // How long one takes.
            let begun = Instant::now();
            let new_process =
                NewProcess(daemon.ask_json("upgrade")["pid"].as_u64().expect("a process number") as u32);
            whole = begun.elapsed();
            drop((new_process, daemon));
            wait_until_free(&place);
            continue;
        }
        let old = daemon.pid();
        let mut next = None;
        until_broken(&daemon, &mut loads, |broken| {
            thread::scope(|scope| {
                scope.spawn(|| daemon.run("upgrade"));
                // The last ones are later than an upgrade ends that takes longer than the first did.
                thread::sleep(if round <= 12 { whole * round / 12 } else { whole * (round - 10) });
                daemon.signal(Signal::KILL);
            });
            let status = |daemon: &Daemon| {
                let out = daemon.run("status --json");
                let status: serde_json::Value = serde_json::from_slice(&out.stdout).ok()?;
                status["pid"].as_u64().filter(|pid| *pid != u64::from(old))
            };
            let lock = || fs::File::open(place.path("state/lock")).expect("the state directory has a lock");
            wait_until(
                10,
                || "neither serves nor ends".to_owned(),
                || {
                    next = status(&daemon);
                    next.is_some() || lock().try_lock().is_ok()
                },
            );
            if next.is_some() {
                thread::sleep(Duration::from_millis(30));
                assert_eq!(broken.load(Ordering::Relaxed), 0, "the new process has what hosts had");
            }
        });
        match next {
            Some(pid) => {
                verify(&daemon, &mut loads);
                drop(NewProcess(pid as u32));
                served += 1;
            }
            None => ended += 1,
        }
        drop(daemon);
        wait_until_free(&place);
    }
    println!("the new process has ended {ended} times, and served {served} times");
    assert!(ended > 0 && served > 0);
    verify(&serve(&place, &[]), &mut loads);
}
