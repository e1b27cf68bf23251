//! How the daemon stops, and what is still there after a restart.

use std::{
    io::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rustix::process::Signal;

use crate::{
    daemon::{Place, volume, worlds},
    initiator::{Data, HOST, Initiator, wanted},
};

const DISK: &str = "iqn.2026-11.io.blockwire:disk";
/// Event 1: the target asks for a logout (RFC 7143 §11.9).
const LOGOUT_REQUESTED: u8 = 1;

#[test]
fn sigterm_asks_for_logouts_and_keeps_what_was_written() {
    for world in worlds() {
        let place = Place::new();
        let file = place.path("disk.img");
        let mut daemon = place.serve(&volume("disk", "file:disk.img,size=8M"), &["--io", world]);
        let at = daemon.at;
        let mut idle = Initiator::connect(at, wanted("iqn.2026-11.test:idle", Some(DISK), None)).unwrap();
        let busy = thread::spawn(move || {
            let mut session = Initiator::ready(at, DISK);
            let mut written = 0u64;
            // Asked to go, it ends what it does and leaves.
            while session.told.is_empty() {
                session.write(0, written % 16384, &[written as u8; 512]).unwrap().good();
                written += 1;
            }
            assert_eq!(session.told, [LOGOUT_REQUESTED]);
            session.log_out().unwrap();
            written
        });
        thread::sleep(Duration::from_millis(300));
        daemon.signal(Signal::TERM);
        assert_eq!(idle.wait_told().unwrap(), LOGOUT_REQUESTED);
        idle.log_out().unwrap();
        let written = busy.join().unwrap();
        assert!(written > 0);
        assert_eq!(daemon.ended(Duration::from_secs(10)), Some(0), "{}", daemon.log());
        let last = written - 1;
        let content = std::fs::read(&file).unwrap();
        let at = (last % 16384 * 512) as usize;
        assert!(content[at..at + 512].iter().all(|byte| *byte == last as u8), "{world}");
    }
}

#[test]
fn a_hangup_ends_nothing_and_two_sigterms_at_once_end_it_cleanly() {
    let place = Place::new();
    let mut daemon = place.serve(&volume("disk", "ram:8M"), &[]);
    daemon.signal(Signal::HUP);
    thread::sleep(Duration::from_millis(100));
    let mut session = Initiator::ready(daemon.at, DISK);
    session.write(0, 0, &[7; 512]).unwrap().good();
    daemon.signal(Signal::TERM);
    daemon.signal(Signal::TERM);
    assert_eq!(session.wait_told().unwrap(), LOGOUT_REQUESTED);
    daemon.signal(Signal::TERM);
    session.log_out().unwrap();
    assert_eq!(daemon.ended(Duration::from_secs(20)), Some(0), "{}", daemon.log());
}

/// The end of a pipe into which not a byte more goes, and the one that nobody reads.
fn full_pipe() -> (io::PipeReader, io::PipeWriter) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let (reader, mut writer) = io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'.'; 4096]).is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[test]
fn a_stderr_that_nobody_reads_keeps_nothing_from_going_on_or_ending() {
    for world in worlds() {
        let (place, (reader, full)) = (Place::new(), full_pipe());
        let arguments = ["--volume", "disk=ram:8M", "--iscsi", "127.0.0.1:0", "--io", world];
        let mut daemon = place.serve_heard(&arguments, &[], full);
        let mut session = Initiator::ready(daemon.at, DISK);
        session.write(0, 0, &[7; 512]).unwrap().good();
        for round in 0..5 {
            daemon.signal(Signal::HUP);
            daemon.ask(&format!("volume create extra{round}=ram:4M"));
        }
        daemon.signal(Signal::TERM);
        assert_eq!(session.wait_told().unwrap(), LOGOUT_REQUESTED);
        session.log_out().unwrap();
        assert_eq!(daemon.ended(Duration::from_secs(20)), Some(0), "{world}");
        drop(reader);
    }
}

/// The limit of a process (RLIMIT_FSIZE) is met by one volume's file.
#[test]
fn a_write_beyond_the_limit_of_a_files_size_is_an_error_and_ends_nothing() {
    for world in worlds() {
        for direct in ["", ",direct"] {
            let place = Place::new();
            let volume = format!("disk=file:{},size=8M{direct}", place.path("disk.img").display());
            let arguments = ["--volume", &volume, "--iscsi", "127.0.0.1:0", "--io", world];
            let daemon = place.serve_as(&arguments, &[]);
            daemon.limit_files(1 << 20);
            let mut session = Initiator::ready(daemon.at, DISK);
            session.write(0, 0, &[7; 4096]).unwrap().good();
            let refused = session.write(0, 8192, &[7; 4096]).unwrap();
            assert_ne!(refused.status, 0, "{world}{direct}: it lies beyond the limit");
            session.write(0, 8, &[7; 4096]).unwrap().good();
            assert_eq!(session.read(0, 8, 8).unwrap().good(), [7; 4096], "{world}{direct}");
        }
    }
}

#[test]
fn who_interrupts_again_does_not_wait() {
    let place = Place::new();
    let mut daemon = place.serve(&volume("disk", "ram:8M"), &[]);
    let mut deaf = Initiator::ready(daemon.at, DISK);
    daemon.signal(Signal::INT);
    assert_eq!(deaf.wait_told().unwrap(), LOGOUT_REQUESTED);
    thread::sleep(Duration::from_millis(1200));
    daemon.signal(Signal::INT);
    assert_eq!(daemon.ended(Duration::from_secs(20)), Some(1), "in haste: {}", daemon.log());
}

#[test]
fn those_who_do_not_go_are_sent() {
    let place = Place::new();
    let mut daemon = place.serve(&volume("disk", "ram:8M"), &[]);
    let mut deaf = Initiator::ready(daemon.at, DISK);
    daemon.signal(Signal::INT);
    assert_eq!(deaf.wait_told().unwrap(), LOGOUT_REQUESTED);
    assert!(deaf.wait_gone(), "the connection is closed");
    assert_eq!(daemon.ended(Duration::from_secs(10)), Some(0));
}

fn identity(session: &mut Initiator) -> Vec<u8> {
    session.command(0, &[0x12, 1, 0x83, 0, 255, 0], Data::In(255)).unwrap().good()
}

/// Registrations by PERSISTENT RESERVE IN, READ KEYS.
fn keys(session: &mut Initiator) -> Vec<u8> {
    let cdb = [0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0];
    session.command(0, &cdb, Data::In(255)).unwrap().good()[8..].to_vec()
}

#[test]
fn a_kill_loses_nothing_that_was_promised() {
    for world in worlds() {
        let place = Place::new();
        let config = volume("disk", "file:disk.img,size=8M");
        let daemon = place.serve(&config, &["--io", world]);
        let mut session = Initiator::ready(daemon.at, DISK);
        let who = identity(&mut session);
        let block: Vec<u8> = (0..4096u32).map(|at| (at * 7) as u8).collect();
        session.write(0, 100, &block).unwrap().good();
        session.flush(0).unwrap().good();
        // PERSISTENT RESERVE OUT, REGISTER, with APTPL.
        let mut parameters = [0; 24];
        parameters[8..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        parameters[20] = 1;
        let cdb = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
        session.command(0, &cdb, Data::Out(&parameters)).unwrap().good();
        // And RESERVE, write exclusive.
        parameters.rotate_left(8);
        parameters[8..].fill(0);
        parameters[20] = 0;
        let cdb = [0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0];
        session.command(0, &cdb, Data::Out(&parameters)).unwrap().good();
        daemon.kill();

        let daemon = place.serve(&config, &["--io", world]);
        let mut session = Initiator::ready(daemon.at, DISK);
        assert_eq!(identity(&mut session), who, "it is the same disk");
        assert_eq!(session.read(0, 100, 8).unwrap().good(), block);
        assert_eq!(keys(&mut session), [1, 2, 3, 4, 5, 6, 7, 8]);
        // The same initiator port holds the reservation still; another may not write.
        session.write(0, 0, &block).unwrap().good();
        let other = wanted("iqn.2026-11.test:other", Some(DISK), None);
        let mut other = Initiator::connect(daemon.at, other).unwrap();
        other.settle(0);
        assert_eq!(other.write(0, 0, &block).unwrap().status, 0x18, "RESERVATION CONFLICT");
    }
}

#[test]
fn io_goes_on_while_volumes_come_and_go() {
    let place = Place::new();
    let daemon = place.serve(&volume("disk", "ram:8M"), &[]);
    let at = daemon.at;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut steady = Initiator::ready(at, DISK);
            while !stop.load(Ordering::Relaxed) {
                steady.read(0, 0, 8).unwrap().good();
            }
        });
        for round in 0..5 {
            daemon.ask("volume create extra=ram:4M");
            let busy = scope.spawn(move || {
                let name = format!("{HOST}{round}");
                let target = "iqn.2026-11.io.blockwire:extra";
                let mut session = Initiator::connect(at, wanted(&name, Some(target), None)).unwrap();
                session.settle(0);
                let mut done = 0;
                // It goes on until its disk has gone; a refusal or a closed connection both say so.
                while session.write(0, 0, &[7; 4096]).is_ok_and(|ended| ended.status == 0) {
                    done += 1;
                }
                done
            });
            thread::sleep(Duration::from_millis(100));
            let refused = daemon.run("volume delete extra");
            assert!(!refused.status.success(), "it is in use");
            daemon.ask("volume delete extra --force");
            assert!(busy.join().unwrap() > 0);
            assert!(!daemon.ask("volume list").contains("extra"));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn systemd_is_told() {
    let place = Place::new();
    let socket = place.path("notify");
    let listener = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let config = volume("disk", "ram:8M");
    let mut daemon = place.serve_on(&config, &["--iscsi", "127.0.0.1:0"], &[("NOTIFY_SOCKET", &socket)]);
    let said = || {
        let mut text = [0; 256];
        let len = listener.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..len]).trim().to_owned()
    };
    assert_eq!(said(), "READY=1");
    daemon.ask("stop --json");
    assert_eq!(said(), "STOPPING=1");
    assert_eq!(daemon.ended(Duration::from_secs(10)), Some(0));
}
