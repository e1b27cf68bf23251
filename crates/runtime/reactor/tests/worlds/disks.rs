//! Files as disks.

use std::fs::File;
use std::io::Write;
use std::sync::mpsc::channel;
use std::time::Duration;

use ::endpoint::ShardId;
use blockwire_reactor::IoChoice;
use buf::Entropy;

use crate::endpoint::*;
use crate::*;

pub fn disk(world: &World, disk: volume::DiskId, step: Step) -> Result<Vec<u8>, i32> {
    let (to, from) = channel();
    world.post(ShardId(0), Msg::Disk(disk, step, to));
    from.recv_timeout(Duration::from_secs(10)).expect("a disk operation comes back")
}

pub fn disks_work(io: IoChoice) {
    let world = spawn(two(io));
    let file = temp_file();
    file.set_len(4 << 20).unwrap();
    let id = world.add_disk(file.try_clone().unwrap().into()).unwrap();
    let mut entropy = Entropy::new([3; 32]);
    // Longer than the pool's largest block, so in pieces.
    let data = random_bytes(&mut entropy, (2 << 20) + 512);
    let n = disk(&world, id, Step::Write(4096, data.clone(), false)).unwrap();
    assert_eq!(n, (data.len() as u64).to_le_bytes());
    disk(&world, id, Step::Write(0, vec![5; 512], true)).unwrap();
    disk(&world, id, Step::Sync).unwrap();
    disk(&world, id, Step::Prefetch(0, 1 << 20)).unwrap();
    assert_eq!(disk(&world, id, Step::Read(4096, data.len())).unwrap(), data);
    assert_eq!(disk(&world, id, Step::Read(0, 512)).unwrap(), vec![5; 512]);
    assert_eq!(
        disk(&world, id, Step::Read((4 << 20) - 100, 512)).unwrap(),
        vec![0; 100],
        "a short read at the end"
    );
    // tmpfs has no FALLOC_FL_ZERO_RANGE; then that is what is said.
    match disk(&world, id, Step::Zero(8192, 4096)) {
        Ok(_) => assert_eq!(disk(&world, id, Step::Read(8192, 4096)).unwrap(), vec![0; 4096]),
        Err(e) => assert_eq!(e, libc::EOPNOTSUPP),
    }
    disk(&world, id, Step::Punch(1 << 20, 1 << 20)).unwrap();
    assert_eq!(disk(&world, id, Step::Read(1 << 20, 1 << 20)).unwrap(), vec![0; 1 << 20]);
    let next = disk(&world, id, Step::NextData(1 << 20)).unwrap();
    assert_eq!(next[..8], (2u64 << 20).to_le_bytes(), "data starts behind the hole");
    assert_eq!(disk(&world, id, Step::NextData(3 << 20)).unwrap(), Vec::<u8>::new());
    // Many at once.
    let (to, from) = channel();
    for i in 0..500u64 {
        world.post(ShardId(0), Msg::Disk(id, Step::Read(i * 512, 4096), to.clone()));
    }
    for _ in 0..500 {
        assert_eq!(from.recv_timeout(Duration::from_secs(10)).unwrap().unwrap().len(), 4096);
    }
    // A disk that goes.
    world.remove_disk(id);
    assert_eq!(disk(&world, id, Step::Sync), Err(libc::ENODEV));
    assert_eq!(disk(&world, volume::DiskId(77), Step::Sync), Err(libc::ENODEV));
    // Errors of the system are handed on.
    let read_only = world.add_disk(File::open("/proc/self/exe").unwrap().into()).unwrap();
    assert_eq!(disk(&world, read_only, Step::Write(0, vec![0; 512], false)), Err(libc::EBADF));
    end(world);
}

pub fn operations_out_come_back_at_the_end(io: IoChoice) {
    let world = spawn(two(io));
    let file = temp_file();
    file.set_len(64 << 20).unwrap();
    let id = world.add_disk(file.into()).unwrap();
    let idle: Vec<_> = (0..50).map(|_| connect(&world)).collect();
    let mut busy: Vec<_> = (0..10).map(|_| connect(&world)).collect();
    for stream in &mut busy {
        stream.write_all(&frame(SOURCE, 3 << 20)).unwrap();
    }
    for stream in &mut busy {
        stream.write_all(&frame(ECHO, 1 << 20)).unwrap();
    }
    let (to, from) = channel();
    for i in 0..64 {
        world.post(ShardId(0), Msg::Disk(id, Step::Write(i << 18, vec![1; 1 << 18], true), to.clone()));
    }
    std::thread::sleep(Duration::from_millis(20));
    world.stop(Duration::ZERO);
    world.join().unwrap();
    drop(to);
    assert_eq!(from.iter().count(), 64);
    drop((idle, busy));
}
