//! What others have mounted or made at the place is left alone.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::support::{Behaviour, RamVolume};
use blockwire_block_device::{ServerStop, fuse};
use testkit::watchdog::Watchdog;
use volume::RamDisk;

use crate::{MIB, Mounted, Server, run, rustix_is_root, text};

/// A file system of somebody else's, with something in it.
pub fn mount_tmpfs(dir: &Path) -> Mounted {
    run("mount", &["-t", "tmpfs", "tmpfs", text(dir)]);
    std::fs::write(dir.join("precious"), "data").unwrap();
    Mounted(dir.to_owned())
}

fn keeps_its_data(dir: &Path) {
    assert_eq!(std::fs::read_to_string(dir.join("precious")).unwrap(), "data");
}

fn start() -> Option<Server> {
    let is_root = rustix_is_root();
    is_root.then(|| Server::start(1, 512, Behaviour::default(), fuse::LoopDevicePolicy::Never)).flatten()
}

#[test]
fn the_end_does_not_unmount_what_others_mounted_over_it() {
    let Some(mut server) = start() else { return };
    let dir = server.dir.clone();
    let theirs = mount_tmpfs(&dir);
    server.stop.request_stop();
    server.stop.request_stop();
    let _ = server.thread.take().unwrap().join().unwrap();
    keeps_its_data(&dir);
    drop(theirs);
    assert!(fuse::unmount_dead(&dir).unwrap(), "what is left under it is dead, and ours");
    std::fs::remove_dir(&dir).unwrap();
}

#[test]
fn the_end_does_not_unmount_what_others_mounted_in_its_place() {
    let Some(mut server) = start() else { return };
    let dir = server.dir.clone();
    // As long as a user is there, the server goes on.
    let open = File::open(&server.file).unwrap();
    run("umount", &["-l", text(&dir)]);
    let theirs = mount_tmpfs(&dir);
    drop(open);
    let _ = server.end();
    keeps_its_data(&dir);
    drop(theirs);
    let _ = std::fs::remove_dir(&dir);
    // The kernel gives the second mount the numbers of the first.
    let Some(mut server) = start() else { return };
    let dir = server.dir.clone();
    let open = File::open(&server.file).unwrap();
    run("umount", &["-l", text(&dir)]);
    let second = fuse::Server::new(fuse::Settings::new(&dir)).unwrap();
    let is_mounted = || std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(text(&dir));
    assert!(is_mounted());
    drop(open);
    let _ = server.end();
    assert!(is_mounted(), "another attachment's file system was taken away");
    drop(second);
    assert!(!is_mounted());
    let _ = std::fs::remove_dir(&dir);
}

#[test]
fn the_end_does_not_remove_a_directory_that_others_made() {
    let Some(mut server) = start() else { return };
    let dir = server.dir.clone();
    let open = File::open(&server.file).unwrap();
    run("umount", &["-l", text(&dir)]);
    let between = dir.with_extension("between");
    std::fs::rename(&dir, &between).unwrap();
    std::fs::create_dir(&dir).unwrap();
    drop(open);
    let _ = server.end();
    assert!(dir.exists(), "it was not ours to remove");
    std::fs::remove_dir(&dir).unwrap();
    std::fs::remove_dir(&between).unwrap();
}

#[test]
fn nothing_is_mounted_through_a_link() {
    if !rustix_is_root() {
        return;
    }
    let dir = std::env::temp_dir().join(format!("attach-fuse-{}-target", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let link = dir.with_extension("link");
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    assert!(fuse::Server::new(fuse::Settings::new(&link)).is_err());
    std::fs::remove_file(&link).unwrap();
    std::fs::remove_dir(&dir).unwrap();
}

/// What stands at the place by the time the loop device is made is somebody else's.
#[test]
fn the_loop_device_is_never_one_over_a_file_of_others() {
    if !rustix_is_root() {
        return;
    }
    let dir = std::env::temp_dir().join(format!("attach-fuse-{}-over", std::process::id()));
    let Ok(mut server) = fuse::Server::new(fuse::Settings::new(&dir)) else { return };
    let watch = Watchdog::new();
    watch.watch_mount(&dir);
    let theirs = mount_tmpfs(&dir);
    std::fs::write(dir.join("volume"), vec![7; MIB as usize]).unwrap();
    let mut volume = RamVolume::new(Arc::new(RamDisk::new(2048, 2048, 512, 4096)), Behaviour::default());
    let stop = ServerStop::new().unwrap();
    let mut said = None;
    let mut ready = |place: fuse::MountedFile<'_>| {
        said = Some((place.device.map(Path::to_owned), place.why.map(|why| why.to_string())));
        stop.request_stop();
        Ok(())
    };
    server.run(&mut volume, &stop, &mut ready).unwrap();
    let (device, why) = said.expect("it serves");
    assert_eq!(device, None, "a loop device over a file of somebody else's");
    let why = why.expect("there is a reason");
    assert!(why.contains("something else is mounted"), "{why}");
    assert!(std::fs::read(dir.join("volume")).unwrap().iter().all(|byte| *byte == 7));
    drop(theirs);
    drop(server);
    assert!(fuse::unmount_dead(&dir).is_ok());
    let _ = std::fs::remove_dir(&dir);
}
