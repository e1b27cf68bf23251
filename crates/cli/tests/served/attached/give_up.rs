//! An attachment of a killed holder that is not recovered.

use super::*;

#[test]
fn io_fails_when_nobody_recovers_in_time_and_not_before() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    if !has_resend() {
        return;
    }
    let (place, daemon) = served();
    let at = place.path("mnt");
    let words = [&urls(&daemon, "a")[0], "--via", "fuse", "--at", text(&at), "--timeout", "3s"];
    let mut attached = Attached::new(&place, &words);
    let file = attached.way("file").unwrap().to_owned();
    let killed = Instant::now();
    attached.kill();
    let mut reader = reader(&file);
    let read = loop {
        if let Some(status) = reader.try_wait().unwrap() {
            break status;
        }
        assert!(killed.elapsed() < TIMEOUT + Duration::from_secs(20), "it hangs for ever");
        thread::sleep(Duration::from_millis(10));
    };
    assert!(!read.success() && killed.elapsed() >= TIMEOUT, "{read} after {:?}", killed.elapsed());
    let records = || fs::read_dir(attached.home.join("attached")).unwrap().count();
    // The record is the last to go.
    let gone = || !at.exists() && listed(&attached.home) == serde_json::json!([]) && records() == 0;
    wait_until(10, || "the dead mount or its record is left".to_owned(), gone);
}

#[test]
fn what_waits_can_be_given_up() {
    if !has_resend() {
        return;
    }
    let (place, daemon) = served();
    let at = place.path("mnt");
    let mut attached = Attached::new(&place, &[&urls(&daemon, "a")[0], "--via", "fuse", "--at", text(&at)]);
    attached.kill();
    let mut reader = reader(attached.way("file").unwrap());
    thread::sleep(Duration::from_millis(500));
    assert!(reader.try_wait().unwrap().is_none(), "it does not wait");
    let ended = attached.verb(&["detach", text(&at), "--now", "--json"]);
    let ended: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert!(ended["ways"].as_array().is_some_and(|ways| !ways.is_empty()), "{ended}");
    assert!(!reader.wait().unwrap().success());
    assert!(!at.exists());
}

#[test]
fn a_socket_that_nobody_recovers_answers_with_errors() {
    let (place, daemon) = served();
    let socket = place.path("sock");
    let url = &urls(&daemon, "a")[0];
    let words = [url, "--via", "nbd", "--at", text(&socket), "--timeout", "1s"];
    let mut attached = Attached::new(&place, &words);
    let export = attached.way("url").unwrap().to_owned();
    let reads = || {
        let words = ["-f", "raw", "-r", "-c", "read 0 4k", &export];
        let out =
            Command::new("qemu-io").args(words).output().expect("qemu-io is installed by tests/setup.sh");
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
    };
    assert!(reads().contains("read 4096/4096"));
    attached.kill();
    // Who comes now is turned away, and comes again if it was told to.
    assert!(reads().contains("refused"));
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let said = reads();
        if said.contains("read failed") {
            break;
        }
        assert!(said.contains("refused") && Instant::now() < until, "{said}");
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(listed(&attached.home)[0]["state"], "failing");
    let again = Attached::new(&place, &[url, "--recover", "--at", text(&socket)]);
    assert!(reads().contains("read 4096/4096"));
    assert!(again.verb(&["detach", text(&socket)]).status.success());
    assert!(!socket.exists());
}
