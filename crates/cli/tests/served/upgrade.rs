//! The process of the daemon is replaced under verifying load over both protocols: no command fails, no host logs in
//! again, no byte is wrong. Whatever goes wrong before the new process serves, the old one serves on and says why.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use crate::daemon::{Daemon, Place, a_core, cores, wait_until, worlds};
use crate::killed::{Connection, LOAD_BYTES, Load};

const CONFIG: &str = "[[volume]]\nname = \"disk\"\nsource = \"file:disk.img,size=8M\"\n";
/// The longest pause, whatever else the machine does: hosts give an operation up after 30 s, and ask after 5 s whether a
/// controller is there. `PAUSE_MAX_MS` sets another for a machine that does nothing else.
const PAUSE_MAX_MS: usize = 5000;

/// A binary that does not take over is refused within 5 s; a busy machine has so much to start two processes.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);

fn number_from(variable: &str, or: usize) -> usize {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(or)
}

/// How many times it is replaced: `UPGRADES`, or 20.
fn upgrades() -> usize {
    number_from("UPGRADES", 20)
}

/// Loads by `SESSIONS` (or 4) of iSCSI and `QUEUES` (or 8) of NVMe: each host of NVMe has an admin queue and one for I/O.
fn loads() -> Vec<Load> {
    let (sessions, hosts) = (number_from("SESSIONS", 4), number_from("QUEUES", 8) / 2);
    (0..sessions + hosts).map(|number| Load::over(number < sessions, number as u16)).collect()
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

/// How many files a process has open.
fn descriptors_of(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("the process is there").count()
}

/// Replaces the process again and again while hosts write and read. `SIZE` in the volume's source stands for its size.
fn replace_under_load(source: &str, world: &str, times: usize) {
    // Each connection has a socket here, and a load one more at its end.
    let limit = Rlimit { current: getrlimit(Resource::Nofile).maximum, ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).expect("more files");
    let mut loads = loads();
    let (sessions, hosts) = (loads.iter().filter(|load| load.scsi).count(), loads.len());
    let queues = 2 * (hosts - sessions);
    let size = (hosts as u64 * LOAD_BYTES).max(8 << 20);
    let spec = source.replace("SIZE", &size.to_string());
    let config = format!("[[volume]]\nname = \"disk\"\nsource = \"{spec}\"\n");
    let place = Place::new();
    let daemon = place.serve(&config, &["--nvme", "127.0.0.1:0", "--no-sandbox", "--io", world]);
    let shown = || daemon.ask_json("volume show disk")["uuid"].clone();
    let uuid = shown();
    let mut new_process = NewProcess(daemon.pid());
    let (mut pauses, mut descriptors) = (Vec::new(), Vec::new());
    let answered = under_load(&daemon, &mut loads, || {
        descriptors.push(descriptors_of(daemon.pid()));
        for _ in 0..times {
            let report = daemon.ask_json("upgrade");
            assert_eq!(report["left"].as_array().map(Vec::len), Some(0), "{report}");
            assert_eq!(report["sessions"].as_u64(), Some(sessions as u64), "{report}");
            assert_eq!(report["queues"].as_u64(), Some(queues as u64), "{report}");
            pauses.push(report["pause_ms"].as_u64().expect("milliseconds"));
            let now = pid_of(&daemon);
            assert_eq!(report["pid"].as_u64(), Some(u64::from(now)));
            assert_ne!(now, new_process.0, "another process serves");
            new_process.0 = now;
            thread::sleep(Duration::from_millis(20));
            descriptors.push(descriptors_of(now));
        }
    });
    pauses.sort_unstable();
    let (median, p99) = (pauses[pauses.len() / 2], pauses[pauses.len() * 99 / 100]);
    let most = pauses.last().copied().unwrap_or_default();
    println!(
        "{source} in {world}, {sessions} sessions and {queues} queues: {} upgrades, {answered} writes, pauses of \
         {}..{most} ms, median {median}, p99 {p99}; descriptors: {descriptors:?}",
        pauses.len(),
        pauses[0]
    );
    let longest = number_from("PAUSE_MAX_MS", PAUSE_MAX_MS) as u64;
    assert!(p99 <= longest, "hosts waited for {p99} ms: {pauses:?}");
    assert!(answered > 10 * times as u64, "there was hardly any load");
    // The socket to the process before, and what the control socket has open just now.
    let few = descriptors[0] + 4;
    assert!(descriptors.iter().all(|many| *many <= few), "descriptors pile up: {descriptors:?}");
    assert_eq!(shown(), uuid, "hosts know it again");
    for load in &mut loads {
        let mut over = Connection::open(&daemon, !load.scsi, load.number + 1000);
        load.verify(&mut over);
    }
    let recorded = |run: usize| daemon.ask_json(&format!("flight-recorder --run={run}"))["shards"][0].clone();
    assert_eq!(
        (recorded(0)["ending"].as_str(), recorded(0)["pid"].as_u64()),
        (Some("none"), Some(new_process.0.into()))
    );
    for run in 1..=times.min(3) {
        assert_eq!(recorded(run)["ending"], "in-order", "run {run}");
    }
    daemon.ask("stop");
}

#[test]
fn hosts_of_both_protocols_notice_nothing_of_upgrades_under_load() {
    for world in worlds() {
        replace_under_load("file:disk.img,size=SIZE", world, upgrades());
    }
}

/// The memory of the volume goes along by its descriptor.
#[test]
fn ram_volumes_that_are_to_move_do() {
    for world in worlds() {
        replace_under_load("ram:SIZE,movable", world, upgrades().div_ceil(2));
    }
}

/// What a process does not let go of would keep a deleted volume's file locked, and a removed portal's socket open.
#[test]
fn a_process_that_has_taken_over_holds_nothing_besides_what_it_serves() {
    let place = Place::new();
    let daemon = serve(&place, &[]);
    daemon.ask(&format!("volume create extra=file:{},size=1M", place.path("extra.img").display()));
    let report = daemon.ask_json("upgrade");
    let new_process = NewProcess(report["pid"].as_u64().expect("a process number") as u32);
    let open = |of: u32| {
        let listed = fs::read_dir(format!("/proc/{of}/fd")).expect("the process is there");
        let mut names: Vec<_> = listed.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).collect();
        names.sort();
        names
    };
    let listening = fs::read_to_string("/proc/net/tcp").expect("sockets are listed");
    let inodes: Vec<String> = listening
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.get(3) == Some(&"0A"))
        .map(|words| format!("socket:[{}]", words[9]))
        .collect();
    let names = open(new_process.0);
    let count = |wanted: &str| names.iter().filter(|name| name.to_string_lossy().ends_with(wanted)).count();
    for inode in inodes.iter().filter(|inode| count(inode) > 0) {
        assert_eq!(count(inode), 1, "a listener is held more than once: {names:?}");
    }
    assert_eq!(count("/state/lock"), 1, "{names:?}");
    assert!(count("/extra.img") > 0, "it is served: {names:?}");
    daemon.ask("volume delete extra");
    // Shards close it when they have heard of it.
    let held = || open(new_process.0).into_iter().filter(|name| name.to_string_lossy().contains("extra.img"));
    wait_until(10, || format!("it is still open: {:?}", held().collect::<Vec<_>>()), || held().count() == 0);
    let file = fs::File::options().write(true).open(place.path("extra.img")).expect("the file stays");
    assert!(file.try_lock().is_ok(), "nobody has it locked");
    daemon.ask("stop");
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
                &format!("#!/bin/sh\nexec {} \"$@\" --cores {}\n", env!("CARGO_BIN_EXE_blockwire"), a_core()),
            ),
            "give both the same cores",
        ),
    ];
    // On one core both have one shard.
    let wrong = if cores().len() > 1 { &wrong[..] } else { &wrong[..4] };
    under_load(&daemon, &mut loads, || {
        for (binary, said) in wrong {
            let begun = Instant::now();
            let out = daemon.run(&format!("upgrade {binary}"));
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(!out.status.success() && text.contains(said), "{binary}: {text}");
            assert!(text.contains("serves on"), "{binary}: {text}");
            println!("{said}: refused after {:?}", begun.elapsed());
            assert!(begun.elapsed() < REFUSED_WITHIN, "{binary}: {:?}", begun.elapsed());
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
        let mut over = Connection::open(daemon, !load.scsi, load.number + 1000);
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

/// A stop that comes at any moment of an upgrade stops the process that serves then: never does the old one go on with
/// sockets that are the new one's.
#[test]
fn a_stop_during_an_upgrade_stops_the_process_that_serves() {
    const ROUNDS: u32 = 12;
    /// Rounds in which the old process may end just before it has passed the stop on.
    const LOST_MAX: u32 = 2;
    let place = Place::new();
    let mut loads: Vec<Load> = (0..2).map(Load::new).collect();
    let (mut whole, mut lost) = (Duration::ZERO, 0);
    let is_free = || fs::File::open(place.path("state/lock")).is_ok_and(|lock| lock.try_lock().is_ok());
    for round in 0..=ROUNDS {
        let daemon = serve(&place, &[]);
        verify(&daemon, &mut loads);
        until_broken(&daemon, &mut loads, |_| {
            let begun = Instant::now();
            let was_there = thread::scope(|scope| {
                let upgrade = scope.spawn(|| daemon.run("upgrade"));
                if round == 0 {
                    assert!(upgrade.join().unwrap().status.success());
                    whole = begun.elapsed();
                    return false;
                }
                thread::sleep(whole * round / ROUNDS);
                let has_passed_on = daemon.log().contains("another process serves");
                daemon.signal(Signal::TERM);
                !has_passed_on
            });
            let until = Instant::now() + Duration::from_secs(10);
            while was_there && !is_free() && Instant::now() < until {
                thread::sleep(Duration::from_millis(20));
            }
            if !is_free() {
                lost += u32::from(was_there);
                daemon.ask("stop");
            }
            wait_until_free(&place);
        });
        drop(daemon);
    }
    println!("stops that were lost: {lost}");
    assert!(lost <= LOST_MAX, "{lost} stops were lost");
    verify(&serve(&place, &[]), &mut loads);
}

/// The kernel drops descriptors for which a process has no room. One that cannot have all sockets takes over none.
#[test]
fn a_process_with_too_few_descriptors_does_not_take_over() {
    let place = Place::new();
    let daemon = serve(&place, &[]);
    let mut loads: Vec<Load> = (0..8).map(Load::new).collect();
    let mut new_process = None;
    under_load(&daemon, &mut loads, || {
        for limit in (12..120).step_by(2) {
            let script =
                format!("#!/bin/sh\nulimit -n {limit}\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_blockwire"));
            let binary = place.write("limited", &script);
            fs::set_permissions(&binary, fs::Permissions::from_mode(0o700)).unwrap();
            let out = daemon.run(&format!("upgrade {binary} --json"));
            if out.status.success() {
                let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("a report");
                println!("it takes over with {limit} descriptors: {report}");
                new_process = report["pid"].as_u64().map(|pid| NewProcess(pid as u32));
                // Hosts work on, though there may be no descriptor for anybody else.
                return thread::sleep(Duration::from_millis(200));
            }
            assert_eq!(pid_of(&daemon), daemon.pid(), "{}", String::from_utf8_lossy(&out.stderr));
        }
    });
    assert!(new_process.is_some(), "it never takes over");
}
