//! Exports of NBD servers as volumes: qemu-nbd with raw files and qcow2, and nbdkit, each where it is installed.

use std::{
    fs::File,
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    daemon::{Daemon, Place, volume, wait_until, worlds},
    host::{Host, Names},
    initiator::Initiator,
};

const DISK: &str = "iqn.2026-11.io.blockwire:disk";
const BYTES: u64 = 16 << 20;
/// Blocks that each of two hosts writes: the lower ones by iSCSI, those behind by NVMe/TCP.
const PER_HOST: u32 = 500;

/// A server, killed when dropped.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    /// Starts a program that serves at this UNIX socket; `None`: it is not installed.
    fn start(socket: PathBuf, program: &str, arguments: &[&str]) -> Option<Server> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(child) = command.spawn() else {
            eprintln!("skipped: {program} is not installed");
            return None;
        };
        let server = Server { child, socket };
        wait_until(
            20,
            || format!("{program} does not listen"),
            || UnixStream::connect(&server.socket).is_ok(),
        );
        Some(server)
    }

    fn qemu(place: &Place, format: &str, more: &[&str]) -> Option<Server> {
        let socket = place.path("nbd.sock");
        let at = format!("--socket={}", socket.display());
        let format = format!("--format={format}");
        let image = image(place);
        let usual = [at.as_str(), "--persistent", "--shared=8", "--export-name=disk", &format];
        Server::start(socket, "qemu-nbd", &[&usual, more, &[image.to_str().unwrap()]].concat())
    }

    fn url(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.socket.display())
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn image(place: &Place) -> PathBuf {
    place.path("image")
}

fn make_image(place: &Place, format: &str) -> bool {
    let path = image(place);
    if format == "raw" {
        File::create(path).unwrap().set_len(BYTES).unwrap();
        return true;
    }
    let made = Command::new("qemu-img")
        .args(["create", "-q", "-f", format])
        .arg(path)
        .arg(BYTES.to_string())
        .status();
    made.is_ok_and(|status| status.success())
}

fn serve(place: &Place, url: &str, world: &str) -> Daemon {
    place.serve(&volume("disk", url), &["--nvme", "127.0.0.1:0", "--io", world])
}

/// What block `lba` has in round `round`.
fn block(lba: u32, round: u32) -> [u8; 512] {
    let mut block = [0; 512];
    for (at, bytes) in block.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&(u64::from(lba) << 32 | u64::from(round) << 8 | at as u64).to_le_bytes());
    }
    block
}

/// A host over one protocol.
enum Writer {
    Iscsi(Box<Initiator>),
    Nvme(Box<Host>),
}

impl Writer {
    fn both(daemon: &Daemon) -> [Writer; 2] {
        [
            Writer::Iscsi(Box::new(Initiator::ready(daemon.at, DISK))),
            Writer::Nvme(Box::new(Host::ready(daemon.nvme.unwrap(), &Names::of("disk")))),
        ]
    }

    fn write(&mut self, lba: u32, bytes: &[u8; 512]) {
        match self {
            Writer::Iscsi(host) => drop(host.write(0, lba.into(), bytes).unwrap().good()),
            Writer::Nvme(host) => drop(host.write(lba, bytes).good()),
        }
    }

    fn read(&mut self, lba: u32) -> Vec<u8> {
        match self {
            Writer::Iscsi(host) => host.read(0, lba.into(), 1).unwrap().good(),
            Writer::Nvme(host) => host.read(lba).good(),
        }
    }

    /// Whether a read is answered well, and how long it took.
    fn tries_read(&mut self) -> (bool, Duration) {
        let begun = Instant::now();
        let is_good = match self {
            Writer::Iscsi(host) => host.read(0, 0, 1).unwrap().status == 0,
            Writer::Nvme(host) => host.read(0).status == 0,
        };
        (is_good, begun.elapsed())
    }
}

/// Writes rounds until told to stop, reads what was written, and gives the number of the last whole round.
fn write_and_verify(writer: &mut Writer, first: u32, stop: &AtomicBool, written: &AtomicU32) -> u32 {
    for round in 1.. {
        for lba in first..first + PER_HOST {
            writer.write(lba, &block(lba, round));
            // A block of this round, and one of the round before.
            let behind = first + (lba - first + PER_HOST / 2) % PER_HOST;
            let expected = if behind <= lba { round } else { round - 1 };
            if expected > 0 {
                assert!(writer.read(behind) == block(behind, expected), "block {behind} in round {round}");
            }
            written.fetch_add(1, Ordering::Relaxed);
        }
        if stop.load(Ordering::Relaxed) {
            return round;
        }
    }
    0
}

/// The server is killed again and again, and started again: no host sees an error, and every byte is there, also in the
/// image when nothing has it open.
fn killed_under_load(format: &str, world: &str, kills: usize) {
    let place = Place::new();
    if !make_image(&place, format) {
        return eprintln!("skipped: qemu-img is not installed");
    }
    let Some(mut server) = Server::qemu(&place, format, &[]) else { return };
    let daemon = serve(&place, &server.url(), world);
    let (stop, written) = (AtomicBool::new(false), AtomicU32::new(0));
    let rounds: Vec<u32> = thread::scope(|scope| {
        let hosts = Writer::both(&daemon).into_iter().zip([0, PER_HOST]).map(|(mut writer, first)| {
            let (stop, written) = (&stop, &written);
            scope.spawn(move || write_and_verify(&mut writer, first, stop, written))
        });
        let hosts: Vec<_> = hosts.collect();
        for _ in 0..kills {
            let before = written.load(Ordering::Relaxed);
            let more = || {
                written.load(Ordering::Relaxed) > before + 100 || hosts.iter().any(|host| host.is_finished())
            };
            wait_until(60, || "hosts do not go on".to_owned(), more);
            server.kill();
            thread::sleep(Duration::from_millis(200));
            server = Server::qemu(&place, format, &[]).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        hosts.into_iter().map(|host| host.join().unwrap()).collect()
    });
    let expected: Vec<u8> =
        (0..2 * PER_HOST).flat_map(|lba| block(lba, rounds[(lba / PER_HOST) as usize])).collect();
    for mut reader in Writer::both(&daemon) {
        for lba in (0..2 * PER_HOST).step_by(7) {
            let at = lba as usize * 512;
            assert!(reader.read(lba) == expected[at..at + 512], "block {lba}");
        }
    }
    assert!(daemon.log().matches("connected to the NBD server again").count() >= kills, "{}", daemon.log());
    daemon.ask("stop");
    server.kill();
    assert!(image_bytes(&place, format)[..expected.len()] == expected, "{format}: the image has other bytes");
}

fn image_bytes(place: &Place, format: &str) -> Vec<u8> {
    let (from, to) = (image(place), place.path("raw"));
    let mut convert = Command::new("qemu-img");
    let done = convert.args(["convert", "-f", format, "-O", "raw"]).args([&from, &to]).status().unwrap();
    assert!(done.success());
    std::fs::read(to).unwrap()
}

#[test]
fn a_server_of_a_raw_file_is_killed_under_load() {
    for world in worlds() {
        killed_under_load("raw", world, 4);
    }
}

#[test]
fn a_server_of_qcow2_is_killed_under_load() {
    killed_under_load("qcow2", worlds()[0], 4);
}

/// It is away for longer than `queue_timeout`: hosts hear of an error in time, of no success, and go on when it is back.
#[test]
fn hosts_hear_of_a_server_that_stays_away() {
    let place = Place::new();
    make_image(&place, "raw");
    let Some(mut server) = Server::qemu(&place, "raw", &[]) else { return };
    let daemon = serve(&place, &format!("{},queue_timeout=1s", server.url()), worlds()[0]);
    let mut hosts = Writer::both(&daemon);
    hosts[0].write(0, &block(0, 1));
    server.kill();
    for host in &mut hosts {
        let (is_good, took) = host.tries_read();
        assert!(!is_good && took < Duration::from_secs(10), "{is_good} after {took:?}");
    }
    let status = String::from_utf8_lossy(&daemon.run("status").stdout).into_owned();
    assert!(status.contains("its NBD server is away"), "{status}");
    let _server = Server::qemu(&place, "raw", &[]).unwrap();
    for host in &mut hosts {
        wait_until(30, || daemon.log(), || host.tries_read().0);
        assert!(host.read(0) == block(0, 1));
    }
    hosts[1].write(0, &block(0, 2));
    assert!(hosts[0].read(0) == block(0, 2));
    daemon.ask("status");
}

/// The others are served meanwhile; its identity is the same at each start.
#[test]
fn a_server_that_is_not_there_at_start_is_waited_for() {
    let place = Place::new();
    make_image(&place, "raw");
    let url = format!("nbd+unix:///disk?socket={}", place.path("nbd.sock").display());
    let config = volume("disk", &url) + &volume("other", "ram:1M");
    let daemon = place.serve(&config, &["--nvme", "127.0.0.1:0"]);
    let failed = daemon.ask_json("volume show other");
    assert_eq!(failed["failed"], serde_json::Value::Null);
    let why = String::from_utf8_lossy(&daemon.run("volume show disk").stdout).into_owned();
    assert!(why.contains("nbd.sock") && why.contains("NBD server"), "{why}");
    let Some(_server) = Server::qemu(&place, "raw", &[]) else { return };
    let is_served = || daemon.run("volume show disk").status.success();
    wait_until(30, || daemon.ask("volume list"), is_served);
    let first = daemon.ask_json("volume show disk");
    Writer::both(&daemon)[1].write(5, &block(5, 1));
    daemon.ask("stop");
    let daemon = place.serve(&config, &["--nvme", "127.0.0.1:0"]);
    let again = daemon.ask_json("volume show disk");
    assert_eq!((&first["uuid"], first["size_bytes"].as_u64()), (&again["uuid"], Some(BYTES)));
    assert!(Writer::both(&daemon)[0].read(5) == block(5, 1));
    // One export is in one volume.
    let out = daemon.run(&format!("volume create twin={url}"));
    assert!(String::from_utf8_lossy(&out.stderr).contains("already open"), "{out:?}");
}

#[test]
fn an_export_that_cannot_be_used_is_refused_with_what_to_do() {
    let place = Place::new();
    make_image(&place, "raw");
    let nobody: std::net::SocketAddr = "127.0.0.1:1".parse().unwrap();
    let daemon = place.serve(&(volume("other", "ram:1M") + &place.sandbox(&[nobody])), &[]);
    let refused = |spec: &str| {
        let out = daemon.run(&format!("volume create disk={spec}"));
        assert!(!out.status.success(), "{spec}");
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let Some(server) = Server::qemu(&place, "raw", &["--read-only"]) else { return };
    let why = refused(&server.url());
    assert!(why.contains("\",ro\""), "{why}");
    let why = refused(&server.url().replace("disk", "none"));
    assert!(why.contains("no such export"), "{why}");
    let why = refused(&format!("nbd://{nobody}/disk"));
    assert!(why.contains("is the NBD server running?"), "{why}");
    daemon.ask(&format!("volume create disk={},ro", server.url()));
    let mut host = Initiator::ready(daemon.at, DISK);
    assert_eq!(host.read(0, 0, 1).unwrap().good(), [0; 512]);
    assert_ne!(host.write(0, 0, &[1; 512]).unwrap().status, 0);
}

/// Servers that can do less: without FUA each write is flushed, and without write zeroes zeroes are written.
#[test]
fn servers_of_few_abilities_are_used_by_what_they_can() {
    let place = Place::new();
    for (name, filters) in [
        // A mode of `none`, the default of both filters.
        ("nofua", vec!["--filter=fua", "memory", "16M"]),
        ("nozero", vec!["--filter=nozero", "memory", "16M"]),
        ("large", vec!["--filter=blocksize-policy", "memory", "16M", "blocksize-minimum=4096"]),
    ] {
        let socket = place.path(name);
        let at = socket.to_str().unwrap().to_owned();
        let arguments = [&["--foreground", "--exit-with-parent", "-U", &at], filters.as_slice()].concat();
        let Some(server) = Server::start(socket, "nbdkit", &arguments) else { return };
        let other = Place::new();
        let url = format!("nbd+unix:///?socket={at}");
        if name == "large" {
            let (code, why) = refusal(&other, &url);
            assert!(code != Some(0) && why.contains("block=4096"), "{why}");
        }
        let block = if name == "large" { ",block=4096" } else { "" };
        let daemon = serve(&other, &format!("{url}{block}"), worlds()[0]);
        let mut host = Initiator::ready(daemon.at, DISK);
        if name == "large" {
            assert_eq!(host.blocks(0), BYTES / 4096);
        } else {
            host.write(0, 8, &[7; 8 * 512]).unwrap().good();
            // WRITE SAME(16) of zeroes.
            let mut same = [0; 16];
            (same[0], same[9], same[13]) = (0x93, 10, 2);
            host.command(0, &same, crate::initiator::Data::Out(&[0; 512])).unwrap().good();
            let read = host.read(0, 8, 8).unwrap().good();
            assert!(read[..1024] == [7; 1024] && read[1024..2048] == [0; 1024] && read[2048..] == [7; 2048]);
            host.flush(0).unwrap().good();
        }
        drop(server);
    }
}

/// A start whose only volume is configured wrongly ends.
fn refusal(place: &Place, url: &str) -> (Option<i32>, String) {
    place.refused(&["--iscsi", "127.0.0.1:0", "--sandbox", "--volume", &format!("disk={url}")])
}
