//! Reads a remote volume over two paths, one over iSCSI and one over NVMe/TCP, and loses one of them.
//!
//! It shows that several URLs of one volume, joined by commas, are its paths. The initiator knows by the UUID
//! that both lead to the same volume. An operation whose path is lost is retried on the other, without help
//! of the caller.
//!
//! The two targets of this program share one RAM disk, so that one of them can be stopped. Targets that share
//! a disk without sharing its reservations are for an example only.
//!
//! `cargo run -p blockwire-examples --example two_paths`

#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use client::{Initiator, PathState, Settings};
use volume::RamDisk;

#[expect(dead_code, reason = "a program of its own; only `serve` is used here")]
mod serve;

fn main() -> Result<(), Box<dyn Error>> {
    let disk = Arc::new(RamDisk::new(256, 256, 4096, 4096));
    let any = "127.0.0.1:0".parse()?;
    let (one, other) = (serve::serve(disk.clone(), any, any)?, serve::serve(disk, any, any)?);
    let iscsi = format!("iscsi://{}/{}/0", one.addresses()[0], serve::TARGET);
    let nvme = format!("nvme+tcp://{}/{}/1", other.addresses()[1], serve::SUBSYSTEM);

    let mut initiator = Initiator::new(Settings::default())?;
    // This waits for one path; the other comes up while the caller works.
    let volume = initiator.open(&format!("{iscsi},{nvme}"))?;
    while initiator.paths(volume).iter().any(|path| path.state != PathState::Up) {
        initiator.turn(Some(Duration::from_millis(100)));
    }
    initiator.write_at(volume, 0, b"kept by both".repeat(4096).get(..4096).ok_or("a block")?)?;

    drop(one);
    let mut block = [0; 4096];
    initiator.read_at(volume, 0, &mut block)?;
    assert!(block.starts_with(b"kept by both"));
    for path in initiator.paths(volume) {
        let state = if path.state == PathState::Up { "up" } else { "lost" };
        println!("{:?}: {state}, {} operations", path.protocol, path.counts.done);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_read_goes_by_the_path_that_is_left() -> Result<(), Box<dyn std::error::Error>> {
        super::main()
    }
}
