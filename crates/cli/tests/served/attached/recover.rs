//! An attachment of a killed holder that another holder recovers.

use super::*;

#[test]
fn io_waits_for_a_killed_process_and_goes_on() {
    if !has_resend() {
        return;
    }
    let (place, daemon) = served();
    let [iscsi, nvme] = urls(&daemon, "a");
    for url in [iscsi.clone(), nvme + "?keep_alive=1s"] {
        let at = place.path("mnt");
        let mut attached = Attached::new(&place, &[&url, "--via", "fuse", "--at", text(&at)]);
        let _given_up = GivenUp(attached.home.clone(), at.clone());
        let device = attached.way("device").map(str::to_owned);
        let mut writer = Writer::new(&place, attached.way("file").unwrap());
        writer.goes_on(50);
        attached.kill();
        thread::sleep(Duration::from_millis(100));
        let before = writer.count();
        thread::sleep(Duration::from_millis(700));
        assert_eq!(writer.count(), before, "somebody answered for a dead process");
        let waiting = listed(&attached.home);
        assert_eq!((&waiting[0]["state"], waiting[1].is_null()), (&"waiting".into(), true), "{waiting}");
        assert!(waiting[0]["left_ms"].as_u64().unwrap() > 100_000, "{waiting}");
        let said = refusal(&attached.verb(&["attach", &url, "--via", "fuse", "--at", text(&at)]));
        assert!(said.contains("--recover"), "{said}");
        let other = urls(&daemon, "b")[0].clone();
        let said = refusal(&attached.verb(&["attach", &other, "--recover", "--at", text(&at)]));
        assert!(said.contains("another volume"), "{said}");
        // By the volume alone the first time, by the place the second.
        let words: &[&str] = if url == iscsi { &["--recover"] } else { &["--recover", "--at", text(&at)] };
        let mut again = Attached::new(&place, &[&[url.as_str()], words].concat());
        assert_eq!(again.way("device"), device.as_deref(), "the loop device is another one");
        writer.goes_on(50);
        writer.verify(&iscsi);
        again.detach(&at);
        assert_eq!(listed(&again.home), serde_json::json!([]));
        assert!(!at.exists());
    }
}

/// Over either protocol in turn; `HOLDER_KILLS` times, or four.
#[test]
fn no_write_is_lost_however_often_the_holder_is_killed() {
    if !has_resend() {
        return;
    }
    let kills = std::env::var("HOLDER_KILLS").ok().and_then(|value| value.parse().ok()).unwrap_or(4_u32);
    let (place, daemon) = served();
    let [iscsi, nvme] = urls(&daemon, "a");
    for url in [iscsi.clone(), nvme + "?keep_alive=1s"] {
        let at = place.path("mnt");
        let mut attached = Attached::new(&place, &[&url, "--via", "fuse", "--at", text(&at)]);
        let _given_up = GivenUp(attached.home.clone(), at.clone());
        let mut writer = Writer::new(&place, attached.way("file").unwrap());
        for _ in 0..kills / 2 {
            writer.goes_on(20);
            attached.kill();
            attached = Attached::new(&place, &[&url, "--recover"]);
        }
        writer.goes_on(20);
        writer.verify(&iscsi);
        attached.detach(&at);
    }
}

#[test]
fn io_waits_for_a_killed_daemon_and_another_goes_on() {
    if !has_resend() {
        return;
    }
    let (_place, target) = served();
    let url = urls(&target, "a")[0].clone();
    let here = Place::new();
    let at = here.path("mnt");
    let holder = here.serve(CONFIG, &["--no-sandbox"]);
    let said = holder.ask(&format!("attach {url} --daemon --via fuse --at {}", text(&at)));
    assert!(said.ends_with("ready\n"), "{said}");
    let file = said.lines().find_map(|line| line.strip_prefix("file ")).unwrap();
    let watch = Watchdog::with_limit(LIMIT);
    watch.watch_mount(&at);
    let mut writer = Writer::new(&here, file);
    writer.goes_on(50);
    holder.kill();
    thread::sleep(Duration::from_millis(300));
    let before = writer.count();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(writer.count(), before, "somebody answered for a dead daemon");
    // Nobody asks it to: it knows what the one before held, and how the volume is reached.
    let holder = here.serve(CONFIG, &[]);
    writer.goes_on(50);
    // Who asks is told that it is done, and by any of its names.
    for place in ["", &format!(" --at {}", text(&at))] {
        let said = holder.ask(&format!("attach {url} --daemon --recover{place}"));
        assert!(said.contains(file) && said.ends_with("ready\n"), "{said}");
    }
    writer.verify(&url);
    assert_eq!(holder.ask_json("status")["attachments"], 1);
    assert!(holder.run(&format!("detach {}", text(&at))).status.success());
    assert_eq!(holder.ask_json("status")["attachments"], 0);
}

#[test]
fn a_daemon_is_started_anew_under_the_users_of_what_it_holds() {
    if !has_resend() {
        return;
    }
    let (_place, target) = served();
    let url = urls(&target, "a")[0].clone();
    let here = Place::new();
    let at = here.path("mnt");
    let _given_up = GivenUp(here.path(""), at.clone());
    let mut holder = here.serve(CONFIG, &["--no-sandbox"]);
    let said = holder.ask(&format!("attach {url} --daemon --via fuse --at {}", text(&at)));
    let file = said.lines().find_map(|line| line.strip_prefix("file ")).unwrap();
    let watch = Watchdog::with_limit(LIMIT);
    watch.watch_mount(&at);
    let mut writer = Writer::new(&here, file);
    writer.goes_on(50);
    holder.ask("stop");
    assert_eq!(holder.ended(Duration::from_secs(20)), Some(0));
    assert!(holder.log().contains("waits 120 s for the next daemon"), "{}", holder.log());
    let holder = here.serve(CONFIG, &[]);
    writer.goes_on(50);
    writer.verify(&url);
    // It was asked to end when its users go.
    let gone = || holder.ask_json("status")["attachments"] == 0 && !at.exists();
    wait_until(20, || holder.ask("attach --list"), gone);
}

/// A host that must prove itself, with a password that stands in the URL and in no file of ours; and the target
/// is away when the daemon comes back.
#[test]
fn a_daemon_goes_on_by_itself_with_a_password_and_when_the_target_is_back() {
    const GUARDED: &str = r#"
[[volume]]
name = "disk"
source = "file:DISK,size=1M"
[[target]]
name = "iqn.2026-11.io.blockwire:disk"
luns = [{ lun = 0, volume = "disk" }]
[[host]]
name = "host"
iqn = ["iqn.2026-11.test:attached"]
access = [{ target = "iqn.2026-11.io.blockwire:disk" }]
chap = { user = "alice", secret = "not-for-the-eyes" }
"#;
    let there = Place::new();
    let guarded = GUARDED.replace("DISK", text(&there.path("disk.img")));
    let mut target = there.serve(&guarded, &[]);
    let at = target.at;
    let url = format!(
        "iscsi://alice%not-for-the-eyes@{at}/iqn.2026-11.io.blockwire:disk/0\
         ?initiator=iqn.2026-11.test:attached"
    );
    let here = Place::new();
    let socket = here.path("sock");
    let holder = here.serve(CONFIG, &["--no-sandbox"]);
    let wrong = url.replace("eyes@", "ears@");
    assert_eq!(holder.run(&format!("attach {wrong} --daemon --via nbd")).status.code(), Some(24));
    holder.ask(&format!("attach {url} --daemon --via nbd --at {}", text(&socket)));
    let notes: Vec<_> =
        fs::read_dir(here.path("attached")).unwrap().map(|file| file.unwrap().path()).collect();
    let notes = notes.iter().filter(|file| file.extension().is_some_and(|extension| extension == "json"));
    let notes: String = notes.map(|file| fs::read_to_string(file).unwrap()).collect();
    assert!(notes.contains("alice") && !notes.contains("eyes"), "{notes}");
    holder.kill();
    target.signal(rustix::process::Signal::TERM);
    assert_eq!(target.ended(Duration::from_secs(20)), Some(0));
    let holder = here.serve(CONFIG, &[]);
    wait_until(20, || holder.log(), || holder.log().contains("--recover --at"));
    assert!(!holder.log().contains("eyes"), "{}", holder.log());
    let _target = there.serve_on(&guarded, &["--iscsi", &at.to_string()], &[]);
    wait_until(20, || holder.log(), || holder.ask_json("status")["attachments"] == 1);
    assert_eq!(holder.ask_json("attach --list")[0]["state"], "serving");
    assert!(holder.run(&format!("detach {}", text(&socket))).status.success());
}

#[test]
fn a_socket_whose_holder_and_guardian_are_killed_is_not_served_before_their_writes_are_over() {
    let (place, daemon) = served();
    let socket = place.path("sock");
    let (url, other) = (&urls(&daemon, "a")[0], &urls(&daemon, "b")[0]);
    let words = |url| [url, "--via", "nbd", "--at", text(&socket)].map(str::to_owned);
    let mut attached = Attached::new(&place, &words(url).each_ref().map(String::as_str));
    let _given_up = GivenUp(attached.home.clone(), socket.clone());
    let notes = attached.home.join("attached");
    let note = || {
        let names = fs::read_dir(&notes).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect::<Vec<_>>()
    };
    let said: Value = serde_json::from_slice(&fs::read(&note()[0]).unwrap()).unwrap();
    let guardian = said["keeper"]["process"]["pid"].as_u64().unwrap().to_string();
    // As a supervisor that ends a whole group does: the guardian first, or it would see the holder's end.
    assert!(Command::new("kill").args(["-STOP", &guardian]).status().unwrap().success());
    attached.kill();
    assert!(Command::new("kill").args(["-KILL", &guardian]).status().unwrap().success());
    let seen = || listed(&attached.home).to_string();
    wait_until(20, seen, || listed(&attached.home)[0]["state"] == "stranded");
    let attach = |url, recover: bool| {
        let mut all = vec!["attach".to_owned()];
        all.extend(words(url));
        all.extend(recover.then(|| "--recover".to_owned()));
        attached.verb(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert!(refusal(&attach(url, false)).contains("use --recover"));
    let why = refusal(&attach(other, true));
    assert!(why.contains("writes would go to another volume"), "{why}");
    assert_eq!(listed(&attached.home)[0]["state"], "stranded", "who was refused has changed it");
    // By the URL alone, at the place that it had; the session of the killed one is ended by the login.
    let begun = Instant::now();
    let again = Attached::new(&place, &[url, "--recover"]);
    assert_eq!(again.way("socket"), Some(text(&socket)));
    assert!(begun.elapsed() < Duration::from_secs(60), "it waited although the login ended the old session");
    let listed = listed(&attached.home);
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["state"]), (1, &"serving".into()));
    assert_eq!(note().len(), 1);
}

/// A target with two portals, and the URLs of its volume by each.
fn two_paths(place: &Place) -> (Daemon, [String; 2]) {
    let daemon = place.serve(CONFIG, &["--iscsi", "127.0.0.1:0"]);
    let url = |at: usize| format!("iscsi://{}/iqn.2026-11.io.blockwire:a/0", daemon.addresses[at]);
    let urls = [url(0), url(1)];
    (daemon, urls)
}

/// The paths that the one note in a home tells of, by place.
fn noted_paths(home: &Path) -> Vec<(String, u64)> {
    let mut notes = fs::read_dir(home.join("attached")).unwrap().map(|file| file.unwrap().path());
    let note = notes.find(|file| file.extension().is_some_and(|extension| extension == "json")).unwrap();
    let note: Value = serde_json::from_slice(&fs::read(note).unwrap()).unwrap();
    let of = |path: &Value| (path["place"].as_str().unwrap().to_owned(), path["number"].as_u64().unwrap());
    let mut paths: Vec<_> = note["paths"].as_array().unwrap().iter().map(of).collect();
    paths.sort();
    paths
}

#[test]
fn a_recovery_by_reordered_urls_takes_every_path_in_its_own_place() {
    let place = Place::new();
    let (_daemon, [one, two]) = two_paths(&place);
    let socket = place.path("sock");
    let mut attached =
        Attached::new(&place, &[&format!("{one},{two}"), "--via", "nbd", "--at", text(&socket)]);
    let before = noted_paths(&attached.home);
    assert_eq!(before.len(), 2);
    attached.kill();
    let again = Attached::new(&place, &[&format!("{two},{one}"), "--recover", "--at", text(&socket)]);
    assert_eq!(again.way("socket"), Some(text(&socket)), "it waits although both paths are up again");
    assert_eq!(noted_paths(&again.home), before);
    assert!(again.verb(&["detach", text(&socket)]).status.success());
}

#[test]
fn a_recovery_does_not_serve_before_a_path_that_it_cannot_reinstate_must_have_ended() {
    use std::io::Read;
    let place = Place::new();
    let (_daemon, [one, two]) = two_paths(&place);
    let socket = place.path("sock");
    let mut attached =
        Attached::new(&place, &[&format!("{one},{two}"), "--via", "nbd", "--at", text(&socket)]);
    attached.kill();
    let mut early = Command::new(BLOCKWIRE)
        .args(["attach", &one, "--recover", "--at", text(&socket)])
        .env("RUNTIME_DIRECTORY", &attached.home)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(3));
    assert!(early.try_wait().unwrap().is_none(), "it does not wait");
    early.kill().unwrap();
    early.wait().unwrap();
    let mut said = String::new();
    early.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "", "it serves while the other path's writes may land");
    // One that ended before it served has changed nothing.
    assert_eq!(listed(&attached.home)[0]["state"], "waiting");
    assert!(attached.verb(&["detach", text(&socket)]).status.success());
}
