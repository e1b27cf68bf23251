//! Hosts that count one block up together, by compare and write, each by URLs of its own.
//!
//! A host reads the block, adds one to its first number, and compares and writes. If the block was another by then, it
//! reads again. At the end the number is what the hosts have counted, or the program fails.
//!
//! `cargo run -p blockwire-client --example increments -- COUNT LBA URL URL...`

#![forbid(unsafe_code)]

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use blockwire_client::{Failure, Fault, Initiator, Io, IoCompletion, Op, Settings, Span, VolumeHandle};
use buf::Payload;
use volume::Epoch;

type Failed = Box<dyn Error + Send + Sync>;

/// What hosts have counted, or lost against each other, and the longest time that one step took.
#[derive(Clone, Copy, Default)]
struct Tally {
    counted: u64,
    lost_races: u64,
    longest: Duration,
}

fn main() -> Result<(), Failed> {
    let mut words = std::env::args().skip(1);
    let usage = "increments COUNT LBA URL URL...";
    let count: u64 = words.next().ok_or(usage)?.parse()?;
    let lba: u64 = words.next().ok_or(usage)?.parse()?;
    let urls: Vec<String> = words.collect();
    let begun = Instant::now();
    let mut initiator = Initiator::new(Settings::default())?;
    let volume = initiator.open(urls.first().ok_or(usage)?)?;
    let before = read(&mut initiator, volume, lba)?;
    let hosts: Vec<_> = urls
        .iter()
        .cloned()
        .enumerate()
        .map(|(host, url)| thread::spawn(move || count_up(&url, lba, host, count)))
        .collect();
    let mut all = Tally::default();
    for (host, thread) in hosts.into_iter().enumerate() {
        let tally = thread.join().map_err(|_| "a host has failed")??;
        println!(
            "host {host}: {} increments, {} lost races, longest step {:.2} s",
            tally.counted,
            tally.lost_races,
            tally.longest.as_secs_f64()
        );
        all.counted += tally.counted;
    }
    let after = read(&mut initiator, volume, lba)?;
    let total = number(&after)?.wrapping_sub(number(&before)?);
    println!(
        "{total} increments in the block, {} counted, in {:.1} s",
        all.counted,
        begun.elapsed().as_secs_f64()
    );
    if total == all.counted { Ok(()) } else { Err("increments are lost, or were carried out twice".into()) }
}

fn count_up(url: &str, lba: u64, host: usize, count: u64) -> Result<Tally, Failed> {
    let mut initiator = Initiator::new(Settings::default())?;
    let volume = initiator.open(url)?;
    let mut tally = Tally::default();
    while tally.counted < count {
        let begun = Instant::now();
        let old = read(&mut initiator, volume, lba)?;
        let mut new = old.clone();
        let next = number(&old)?.wrapping_add(1).to_le_bytes();
        // What is behind the number differs between hosts, so that none finds the block of another as its own.
        new.get_mut(..8).ok_or("a short block")?.copy_from_slice(&next);
        new.get_mut(8..16).ok_or("a short block")?.copy_from_slice(&(host as u64).to_le_bytes());
        match swap(&mut initiator, volume, lba, &[old, new].concat()) {
            Ok(()) => tally.counted += 1,
            Err(Failure::Failed(Fault::Miscompare(_))) => tally.lost_races += 1,
            Err(why) => return Err(format!("host {host}: {why:?}").into()),
        }
        tally.longest = tally.longest.max(begun.elapsed());
    }
    Ok(tally)
}

fn number(block: &[u8]) -> Result<u64, Failed> {
    Ok(u64::from_le_bytes(block.get(..8).ok_or("a short block")?.try_into()?))
}

fn read(initiator: &mut Initiator, volume: VolumeHandle, lba: u64) -> Result<Vec<u8>, Failed> {
    let len = initiator.geometry(volume).ok_or("the volume is gone")?.logical;
    let mut block = vec![0; len as usize];
    initiator.read_at(volume, lba * u64::from(len), &mut block)?;
    Ok(block)
}

/// Compares and writes: the first half of `pair` against what is there, the second in its place.
fn swap(initiator: &mut Initiator, volume: VolumeHandle, lba: u64, pair: &[u8]) -> Result<(), Failure> {
    let Some(mut memory) = initiator.alloc_payload(pair.len()) else { return Err(Fault::Internal.into()) };
    memory.copy_from(0, pair);
    let (id, op) = (initiator.next_io_id(), Op::CompareAndWrite(Span { lba, blocks: 1 }));
    let io = Io { id, epoch: Epoch(0), op, payload: Payload::Out(memory.freeze()) };
    if initiator.submit(volume, io).is_err() {
        return Err(Fault::Internal.into());
    }
    loop {
        initiator.turn(Some(Duration::from_secs(1)));
        if let Some(IoCompletion { result, .. }) = initiator.poll_done(volume) {
            return result.map(drop);
        }
    }
}
