use testkit::seeds::seed_range;
use volume::RamDisk;

use super::*;
use crate::event_waiter::ServerStop;
use crate::fuse::{InheritedMount, MountHandover, MountId, Settings};
use crate::test_disk::{Behaviour, Mutator, RamVolume};

/// A server whose kernel is a socket that we have the other end of.
fn server(dir: &std::path::Path, write_max: u32) -> (Server, OwnedFd) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let facts = MountHandover { write_max, name: MountId(1), made: None, by_program: false };
    let kept = InheritedMount { fuse: theirs, device: None, facts };
    (
        Server::recover(Settings { loop_devices: LoopDevicePolicy::Never, ..Settings::new(dir) }, kept)
            .unwrap(),
        ours,
    )
}

fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to write; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The connection ends after 100 ms, the server 400 ms later: it sleeps meanwhile.
fn assert_sleeps_without_peer(server: &mut Server, peer: OwnedFd, disk: &mut RamVolume) {
    let stop = ServerStop::new().unwrap();
    let its_stop = stop.clone();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(peer);
        std::thread::sleep(Duration::from_millis(400));
        its_stop.request_stop();
        its_stop.request_stop();
    });
    let before = processor_time();
    // A socket whose peer is gone refuses answers, which the kernel's end does not.
    let _ = server.run(disk, &stop, &mut |_| Ok(()));
    let used = processor_time() - before;
    stopper.join().unwrap();
    assert!(used < Duration::from_millis(80), "{used:?} of processor time in 400 ms");
}

#[test]
fn without_memory_for_a_request_nobody_is_kept_awake() {
    let dir = std::env::temp_dir().join("attach-fuse-no-such-directory");
    let (mut server, peer) = server(&dir, 1 << 20);
    let mood = Behaviour { memory: Some(64 << 10), ..Behaviour::default() };
    let mut disk = RamVolume::new(Arc::new(RamDisk::new(2048, 2048, 512, 4096)), mood);
    let stop = ServerStop::new().unwrap();
    // A request that cannot be read.
    let header = wire::InHeader { len: 40, opcode: opcode::STATFS, unique: 7, ..wire::InHeader::default() };
    rustix::io::write(&peer, header.as_bytes()).unwrap();
    let its_stop = stop.clone();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(400));
        its_stop.request_stop();
        its_stop.request_stop();
    });
    let before = processor_time();
    server.run(&mut disk, &stop, &mut |_| Ok(())).unwrap();
    let used = processor_time() - before;
    stopper.join().unwrap();
    assert!(used < Duration::from_millis(40), "{used:?} of processor time in 400 ms");
}

/// Writes that the disk holds leave no buffer for the next request, and then the connection ends.
#[test]
fn a_connection_that_ends_while_there_is_no_memory_keeps_nobody_awake() {
    let dir = std::env::temp_dir().join("attach-fuse-no-such-directory");
    let (mut server, peer) = server(&dir, 1 << 20);
    let mood = Behaviour { memory: Some(64 << 10), ..Behaviour::default() };
    let mut disk = RamVolume::new(Arc::new(RamDisk::new(2048, 2048, 512, 4096)), mood);
    assert_sleeps_without_peer(&mut server, peer, &mut disk);
}

/// That the kernel has ended the connection is told again and again.
#[test]
fn a_connection_that_has_ended_keeps_nobody_awake_while_the_disk_is_silent() {
    let dir = std::env::temp_dir().join("attach-fuse-no-such-directory");
    let (mut server, peer) = server(&dir, 4096);
    server.settings.depth = 4;
    let mood = Behaviour { silent: true, ..Behaviour::default() };
    let mut disk = RamVolume::new(Arc::new(RamDisk::new(64, 64, 512, 4096)), mood);
    let request = wire::TransferIn { size: 4096, ..wire::TransferIn::default() };
    // The last one waits for room.
    for unique in 1..=5 {
        let header = wire::InHeader {
            len: 80,
            opcode: opcode::READ,
            unique,
            node: VOLUME_INODE,
            ..wire::InHeader::default()
        };
        rustix::io::write(&peer, &[header.as_bytes(), request.as_bytes()].concat()).unwrap();
    }
    assert_sleeps_without_peer(&mut server, peer, &mut disk);
}

/// Who asks without end does not keep it from ending.
#[test]
fn asked_twice_it_ends_under_load() {
    let dir = std::env::temp_dir().join("attach-fuse-no-such-directory");
    let (mut server, peer) = server(&dir, 4096);
    let mood = Behaviour { shuffle: Some(3), never_lends: true, ..Behaviour::default() };
    mood.stuck.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut disk = RamVolume::new(Arc::new(RamDisk::new(64, 64, 512, 4096)), mood);
    let stop = ServerStop::new().unwrap();
    let its_stop = stop.clone();
    let stopper = std::thread::spawn(move || {
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(50));
            its_stop.request_stop();
        }
    });
    let asker = std::thread::spawn(move || {
        let begun = std::time::Instant::now();
        let request = wire::TransferIn { size: 4096, ..wire::TransferIn::default() };
        for unique in 1.. {
            let header = wire::InHeader {
                len: 80,
                opcode: opcode::READ,
                unique,
                node: VOLUME_INODE,
                ..wire::InHeader::default()
            };
            let sent = rustix::io::write(&peer, &[header.as_bytes(), request.as_bytes()].concat());
            if sent.is_err() || begun.elapsed() > Duration::from_secs(5) {
                break;
            }
            // As many at a time; another for each that is answered.
            if unique > 8 && rustix::io::read(&peer, &mut [0; 8192]).unwrap_or(0) == 0 {
                break;
            }
        }
    });
    let begun = std::time::Instant::now();
    server.run(&mut disk, &stop, &mut |_| Ok(())).unwrap();
    drop(server);
    stopper.join().unwrap();
    asker.join().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "it went on for {:?}", begun.elapsed());
}

#[test]
fn a_polite_stop_does_not_cut_users_when_something_is_mounted_over_it() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let dir = std::env::temp_dir().join(format!("attach-fuse-{}-over", std::process::id()));
    let Ok(mut server) = Server::new(Settings::new(&dir)) else { return };
    if mount("none", &dir, "tmpfs", MountFlags::empty(), None).is_err() {
        return;
    }
    let disk = RamVolume::new(Arc::new(RamDisk::new(64, 64, 512, 4096)), Behaviour::default());
    let waiter = EpollWaiter::new(&disk, &ServerStop::new().unwrap()).unwrap();
    let mut ready = |_: MountedFile<'_>| Ok(());
    for (opened, is_over) in [(1, false), (0, true)] {
        let mut handler = FuseHandler::new(&mut server, &disk, &mut ready).unwrap();
        handler.opened = opened;
        assert!(handler.start_stop(&waiter, StopMode::WhenDone), "they are given a time");
        assert_eq!((handler.is_finished(), handler.poll_timeout().is_some()), (is_over, !is_over));
    }
    unmount(&dir, UnmountFlags::DETACH).unwrap();
    drop(server);
    assert!(!dir.exists());
}

/// What it takes it issues to the volume, and the next who recovers must know of it.
#[test]
fn nothing_that_waits_at_a_recovered_place_is_taken_before_it_is_known_who_serves_it() {
    let dir = std::env::temp_dir().join("attach-fuse-no-such-directory");
    let (mut server, peer) = server(&dir, 4096);
    let header = wire::InHeader { len: 40, opcode: opcode::STATFS, unique: 7, ..wire::InHeader::default() };
    rustix::io::write(&peer, header.as_bytes()).unwrap();
    rustix::io::ioctl_fionbio(&peer, true).unwrap();
    let mut disk = RamVolume::new(Arc::new(RamDisk::new(64, 64, 512, 4096)), Behaviour::default());
    let stop = ServerStop::new().unwrap();
    let why = server.run(&mut disk, &stop, &mut |place| {
        assert!(place.kept.is_some(), "who recovers it next needs the kernel's end");
        assert!(rustix::io::read(&peer, &mut [0; 64]).is_err(), "the kernel was told to ask again");
        Err(io::ErrorKind::StorageFull.into())
    });
    assert_eq!(why.unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert!(rustix::io::read(&peer, &mut [0; 64]).is_err(), "somebody was asked, or answered");
    assert!(!server.mount.settled, "it stays as it was found");
}

#[test]
fn a_front_that_fails_by_itself_does_not_take_the_place_from_under_its_users() {
    let dir = std::env::temp_dir().join("attach-fuse-no-such-directory");
    let (mut server, peer) = server(&dir, 4096);
    let mut disk = RamVolume::new(Arc::new(RamDisk::new(64, 64, 512, 4096)), Behaviour::default());
    let mut was_told = false;
    rustix::io::write(&peer, &[0xff; 50]).unwrap();
    let ran = server.run(&mut disk, &ServerStop::new().unwrap(), &mut |_| {
        was_told = true;
        Ok(())
    });
    assert!(ran.is_err() && was_told);
    assert!(!server.mount.settled, "it is taken away, and what waits fails");
}

/// Nobody has what its users would wait for.
#[test]
fn a_new_place_of_which_nobody_could_be_told_does_not_stay_as_a_dead_mount() {
    let dir = std::env::temp_dir().join("attach-fuse-no-such-directory");
    let (mut server, _peer) = server(&dir, 4096);
    (server.inherited, server.mount.settled) = (None, true);
    let disk = RamVolume::new(Arc::new(RamDisk::new(64, 64, 512, 4096)), Behaviour::default());
    for (is_told, leaves_users) in [(false, false), (true, true)] {
        let mut ready =
            |_: MountedFile<'_>| if is_told { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) };
        let mut handler = FuseHandler::new(&mut server, &disk, &mut ready).unwrap();
        handler.resends = true;
        assert_eq!(handler.report_ready(Err(None)).is_ok(), is_told);
        assert_eq!(handler.may_be_recovered(), leaves_users);
    }
}

/// As fusermount3 does for who may not unmount: it looks at what it takes away, which waits for an answer.
#[test]
fn a_program_that_takes_the_place_away_is_not_waited_for_by_who_must_answer_it() {
    use std::os::unix::fs::PermissionsExt;
    for times in [1, 2] {
        let dir = std::env::temp_dir().join(format!("attach-fuse-{}-program-{times}", std::process::id()));
        let settings = Settings { loop_devices: LoopDevicePolicy::Never, ..Settings::new(&dir) };
        let Ok(mut server) = Server::new(settings) else { return };
        if server.mount.uses_fusermount() {
            return;
        }
        let script = dir.with_extension("sh");
        // What it asks for is known by nobody beforehand.
        std::fs::write(&script, "#!/bin/sh\nstat -f \"$5\" >/dev/null 2>&1\numount -l \"$5\"\n").unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700)).unwrap();
        server.mount.set_fusermount(script.to_str().unwrap().to_owned().leak());
        let stop = ServerStop::new().unwrap();
        let (its_stop, (say, said)) = (stop.clone(), mpsc::channel());
        std::thread::spawn(move || {
            let mut disk = RamVolume::new(Arc::new(RamDisk::new(64, 64, 512, 4096)), Behaviour::default());
            let ran = server.run(&mut disk, &its_stop, &mut |_| {
                (0..times).for_each(|_| its_stop.request_stop());
                Ok(())
            });
            drop(server);
            let _ = say.send(ran);
        });
        // If it hangs, the end of this process ends it.
        said.recv_timeout(Duration::from_secs(20)).expect("they wait for each other").unwrap();
        assert!(!dir.exists(), "asked {times} times");
        std::fs::remove_file(&script).unwrap();
    }
}

/// The bytes of the volume, as they must be.
struct Model(Vec<u8>);

const SIZE: u64 = 64 << 10;

impl Model {
    fn slice(&mut self, at: u64, len: u64) -> &mut [u8] {
        let start = at.min(SIZE) as usize;
        let end = at.saturating_add(len).min(SIZE) as usize;
        &mut self.0[start..end]
    }
}

/// What a kernel that is out of its mind asks, and what it must be answered. Its payload is 0xee.
fn draw_request(noise: &mut Mutator, unique: u64) -> (wire::InHeader, Vec<u8>) {
    const KNOWN: [u32; 25] =
        [1, 2, 3, 4, 14, 15, 15, 15, 16, 16, 16, 17, 18, 20, 25, 27, 28, 29, 30, 34, 36, 38, 42, 43, 46];
    let opcode = if noise.draw(12) == 0 { noise.odd() as u32 } else { KNOWN[noise.draw(25) as usize] };
    let near = |noise: &mut Mutator| if noise.draw(4) == 0 { noise.odd() } else { noise.draw(SIZE) };
    let mut bytes = match opcode {
        opcode::READ | opcode::WRITE | opcode::READDIR => {
            let size = if noise.draw(5) == 0 { noise.odd() as u32 } else { noise.draw(9000) as u32 };
            let offset = near(noise);
            wire::TransferIn { offset, size, ..wire::TransferIn::default() }.as_bytes().to_vec()
        }
        opcode::FALLOCATE => {
            let mode = [3, 0x11, 0x10, 2, 0, noise.odd() as u32][noise.draw(6) as usize];
            let (offset, length) = (near(noise), near(noise));
            wire::FallocateIn { fh: 0, offset, length, mode, padding: 0 }.as_bytes().to_vec()
        }
        opcode::LSEEK => {
            let whence = [3, 4, noise.odd() as u32][noise.draw(3) as usize];
            wire::LseekIn { fh: 0, offset: near(noise), whence, padding: 0 }.as_bytes().to_vec()
        }
        opcode::LOOKUP if noise.draw(2) == 0 => b"volume\0".to_vec(),
        opcode::INTERRUPT => (unique - noise.draw(4)).to_ne_bytes().to_vec(),
        _ => (0..noise.draw(60)).map(|_| noise.draw(256) as u8).collect(),
    };
    if opcode == opcode::WRITE {
        bytes.extend(vec![0xee; noise.draw(8192) as usize]);
    }
    if noise.draw(5) == 0 {
        let keep = noise.draw(bytes.len() as u64 + 1) as usize;
        bytes.truncate(keep);
    }
    let node = [VOLUME_INODE, VOLUME_INODE, VOLUME_INODE, wire::ROOT, noise.odd()][noise.draw(5) as usize];
    let len = 40 + bytes.len() as u32;
    (wire::InHeader { len, opcode, unique, node, ..wire::InHeader::default() }, bytes)
}

/// Carries out on the model what was answered with success.
fn follow(model: &mut Model, header: &wire::InHeader, arguments: &[u8], said: &[u8], seed: u64) {
    match header.opcode {
        opcode::READ => {
            let (asked, _) = wire::TransferIn::read_from_prefix(arguments).unwrap();
            assert!(said == model.slice(asked.offset, asked.size.into()), "seed {seed}: {asked:?}");
        }
        opcode::WRITE => {
            let (asked, payload) = wire::TransferIn::read_from_prefix(arguments).unwrap();
            let (told, _) = wire::WriteOut::read_from_prefix(said).unwrap();
            assert!(told.size <= asked.size && payload.len() >= told.size as usize, "seed {seed}: {asked:?}");
            let into = model.slice(asked.offset, told.size.into());
            assert_eq!(into.len(), told.size as usize, "seed {seed}: {asked:?}");
            into.fill(0xee);
        }
        opcode::FALLOCATE => {
            let (asked, _) = wire::FallocateIn::read_from_prefix(arguments).unwrap();
            model.slice(asked.offset, asked.length).fill(0);
        }
        _ => {}
    }
}

/// Sends a request, and gives what was answered: error and bytes. `None`: it wants no answer.
fn ask(peer: &OwnedFd, header: &wire::InHeader, arguments: &[u8], seed: u64) -> Option<(i32, Vec<u8>)> {
    rustix::io::write(peer, &[header.as_bytes(), arguments].concat()).expect("somebody serves");
    let is_silent = [opcode::FORGET, opcode::BATCH_FORGET, opcode::DESTROY, opcode::INTERRUPT];
    if is_silent.contains(&header.opcode) {
        return None;
    }
    let mut bytes = vec![0; 2 * SIZE as usize];
    loop {
        let mut ready = [rustix::event::PollFd::new(peer, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_ne!(
            rustix::event::poll(&mut ready, Some(&limit)),
            Ok(0),
            "seed {seed}: no answer to {header:?}"
        );
        let n = rustix::io::read(peer, &mut bytes).unwrap();
        let (out, rest) = wire::OutHeader::read_from_prefix(&bytes[..n]).expect("an answer, and not the end");
        assert_eq!(out.len as usize, n, "seed {seed}");
        // A notice, which answers nothing.
        if out.unique == 0 {
            continue;
        }
        assert_eq!(out.unique, header.unique, "seed {seed}: an answer to what was not asked, or again");
        assert!((-4095..=0).contains(&out.error), "seed {seed}: {out:?}");
        return Some((out.error, rest.to_vec()));
    }
}

/// Requests out of all bounds, from seeds: each that wants an answer has one, what is read is what is on the volume
/// there, and who asks sensibly afterwards is served.
#[test]
fn requests_of_hostile_seeds_are_answered_and_harm_nobody() {
    for seed in seed_range(100) {
        let noise = &mut Mutator::new(seed);
        let dir = std::env::temp_dir().join("attach-fuse-no-such-directory");
        let (mut server, peer) = server(&dir, 8192);
        let logical = if seed % 2 == 0 { 512 } else { 4096 };
        let mood = Behaviour {
            shuffle: Some(seed),
            never_lends: seed % 3 > 0,
            memory: Some(1 << 20),
            max_io: Some(8192),
            ..Behaviour::default()
        };
        let thread = std::thread::spawn(move || {
            let blocks = SIZE / u64::from(logical);
            let mut disk = RamVolume::new(Arc::new(RamDisk::new(blocks, blocks, logical, 4096)), mood);
            let stop = ServerStop::new().unwrap();
            server.run(&mut disk, &stop, &mut |_| Ok(()))
        });
        let mut model = Model(vec![0; SIZE as usize]);
        let mut unique = 10;
        for _ in 0..60 {
            unique += 1;
            let (header, arguments) = draw_request(noise, unique);
            if let Some((0, said)) = ask(&peer, &header, &arguments, seed) {
                follow(&mut model, &header, &arguments, &said, seed);
            }
        }
        let size = 8192;
        for at in (0..SIZE).step_by(size) {
            unique += 1;
            let opcode = opcode::READ;
            let header =
                wire::InHeader { len: 80, opcode, unique, node: VOLUME_INODE, ..wire::InHeader::default() };
            let asked = wire::TransferIn { offset: at, size: size as u32, ..wire::TransferIn::default() };
            let (error, said) = ask(&peer, &header, asked.as_bytes(), seed).unwrap();
            assert_eq!(error, 0, "seed {seed}");
            follow(&mut model, &header, asked.as_bytes(), &said, seed);
        }
        // What is no request at all ends it in good order.
        let _ = rustix::io::write(&peer, &vec![0xff; noise.draw(90) as usize + 1]);
        drop(peer);
        assert!(thread.join().expect("it did not panic").is_err());
    }
}

/// What a close is told is that all of what was written before it is stable.
#[test]
fn a_close_is_not_answered_as_flushed_before_a_flush_covers_what_was_written() {
    use std::sync::atomic::Ordering::Relaxed;
    let dir = std::env::temp_dir().join("attach-fuse-no-such-directory");
    let (mut server, peer) = server(&dir, 8192);
    let mood = Behaviour { shuffle: Some(1), never_lends: true, ..Behaviour::default() };
    let its_mood = mood.clone();
    let thread = std::thread::spawn(move || {
        let mut disk = RamVolume::new(Arc::new(RamDisk::new(64, 64, 512, 4096)), its_mood);
        server.run(&mut disk, &ServerStop::new().unwrap(), &mut |_| Ok(()))
    });
    let mut unique = 0;
    let mut message = |opcode, arguments: &[u8]| {
        unique += 1;
        let len = 40 + arguments.len() as u32;
        let header = wire::InHeader { len, opcode, unique, node: VOLUME_INODE, ..wire::InHeader::default() };
        [header.as_bytes(), arguments].concat()
    };
    let answer = || {
        let mut bytes = [0; 4096];
        loop {
            let n = rustix::io::read(&peer, &mut bytes).unwrap();
            let (out, _) = wire::OutHeader::read_from_prefix(&bytes[..n]).unwrap();
            if out.unique > 0 {
                return out.error;
            }
        }
    };
    let taken = || mood.taken.load(Relaxed);
    let mut close = |error: i32, flushes: u64| {
        let before = taken();
        rustix::io::write(&peer, &message(opcode::FLUSH, &[0; 24])).unwrap();
        assert_eq!((answer(), taken() - before), (error, flushes));
    };
    // Of what was written before this server nobody knows.
    close(0, 1);
    close(0, 0);
    let sent = |bytes: &[u8]| assert_eq!(rustix::io::write(&peer, bytes), Ok(bytes.len()));
    let mut write = wire::TransferIn { size: 512, ..wire::TransferIn::default() }.as_bytes().to_vec();
    write.extend([7; 512]);
    let request = |opcode, unique, arguments: &[u8]| {
        let len = 40 + arguments.len() as u32;
        let header = wire::InHeader { len, opcode, unique, node: VOLUME_INODE, ..wire::InHeader::default() };
        [header.as_bytes(), arguments].concat()
    };
    // A write is at the disk when somebody else closes.
    mood.stuck.store(true, Relaxed);
    let before = taken();
    sent(&request(opcode::WRITE, 1000, &write));
    sent(&request(opcode::FLUSH, 1001, &[0; 24]));
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while taken() < before + 2 {
        assert!(std::time::Instant::now() < until, "they are not taken");
        std::thread::sleep(Duration::from_millis(1));
    }
    mood.stuck.store(false, Relaxed);
    assert_eq!((answer(), answer()), (0, 0));
    close(0, 1);
    close(0, 0);
    // A flush that fails covers nothing.
    sent(&request(opcode::WRITE, 1002, &write));
    assert_eq!(answer(), 0);
    mood.fails.store(true, Relaxed);
    close(-libc::EIO, 1);
    mood.fails.store(false, Relaxed);
    close(0, 1);
    close(0, 0);
    drop(peer);
    assert!(thread.join().unwrap().is_err());
}

/// As when the system is short of it: the device of a mounted file system does not go for that.
#[test]
fn answers_that_the_kernel_had_no_memory_for_are_given_later() {
    const COUNT: u64 = 100;
    let dir = std::env::temp_dir().join("attach-fuse-no-such-directory");
    let (mut server, peer) = server(&dir, 8192);
    let mood = Behaviour { never_lends: true, ..Behaviour::default() };
    let thread = std::thread::spawn(move || {
        let mut disk = RamVolume::new(Arc::new(RamDisk::new(64, 64, 512, 4096)), mood);
        server.run(&mut disk, &ServerStop::new().unwrap(), &mut |_| Ok(()))
    });
    let asked = wire::TransferIn { size: 8192, ..wire::TransferIn::default() };
    for unique in 1..=COUNT {
        let header = wire::InHeader {
            len: 80,
            opcode: opcode::READ,
            unique,
            node: VOLUME_INODE,
            ..wire::InHeader::default()
        };
        rustix::io::write(&peer, &[header.as_bytes(), asked.as_bytes()].concat()).unwrap();
    }
    // More than the socket holds.
    std::thread::sleep(Duration::from_millis(100));
    let mut answered = std::collections::BTreeSet::new();
    let mut bytes = vec![0; 16 << 10];
    while answered.len() < COUNT as usize {
        let n = rustix::io::read(&peer, &mut bytes).unwrap();
        let (out, data) = wire::OutHeader::read_from_prefix(&bytes[..n]).expect("it has not ended");
        if out.unique > 0 {
            assert_eq!((out.error, data.len()), (0, 8192));
            assert!(answered.insert(out.unique), "{} is answered twice", out.unique);
        }
    }
    drop(peer);
    assert!(thread.join().unwrap().is_err());
}
