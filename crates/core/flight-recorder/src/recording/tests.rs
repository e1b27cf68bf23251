use std::sync::Arc;

use buf::{Region, Time};

use super::*;
use crate::event::Event;
use crate::recorder::{EVENTS_PER_SECOND_MAX, FlightRecorder, Origin, note_end, note_panic};

const START: Time = Time(5_000_000_000);
const UNIX: u64 = 1_790_000_000_000_000_000;

fn recorder() -> (FlightRecorder, Arc<Region>) {
    let region = Arc::new(Region::new(FILE_BYTES));
    let origin = Origin {
        shard: 3,
        pid: 4711,
        started_unix_ns: UNIX,
        started: START,
        version: "0.1.0 (0123456789ab)".to_owned(),
    };
    (FlightRecorder::new(region.clone(), &origin), region)
}

fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; FILE_BYTES];
    region.read(0, &mut bytes);
    bytes
}

fn parsed(region: &Region) -> Recording {
    let bytes = bytes(region);
    Recording::parse(&bytes, &bytes).unwrap()
}

fn after(ns: u64) -> Time {
    Time(START.0 + ns)
}

#[test]
fn what_was_recorded_is_read_back() {
    let (mut recorder, region) = recorder();
    let (peer, host) = ("[2001:db8::7]:40000".parse().unwrap(), "n".repeat(223));
    let login = Event::new(EventKind::Login).with_peer(peer).with_text(TextField::Host, &host);
    recorder.record(after(1), &login.with_text(TextField::Target, "iqn.2026-11.io.blockwire:data"));
    let refused = Event::new(EventKind::ConnectRefused).with_peer("192.0.2.7:9".parse().unwrap());
    recorder.record(after(3), &refused.with_text(TextField::Cause, "blocked"));
    let slow =
        Event::new(EventKind::SlowOperation).with_number(u64::MAX).with_text(TextField::Volume, "däta");
    recorder.record(after(2), &slow);
    let connect =
        Event::new(EventKind::Connect).with_peer("192.0.2.7:65535".parse().unwrap()).with_number(65_519);
    recorder.record(after(4), &connect);
    let recording = parsed(&region);
    assert_eq!(
        (recording.shard, recording.pid, recording.version.as_str()),
        (3, 4711, "0.1.0 (0123456789ab)")
    );
    assert_eq!((recording.ending.clone(), recording.damaged), (Ending::None, 0));
    let events = &recording.events;
    // Both rings, in the order of time.
    let names: Vec<_> = events.iter().map(|event| (event.unix_ns - UNIX, event.name())).collect();
    assert_eq!(names, [(1, "login"), (2, "slow-operation"), (3, "connect-refused"), (4, "connect")]);
    assert_eq!((events[0].peer, events[0].text(TextField::Host)), (Some(peer), Some(host.as_str())));
    assert_eq!(events[0].text(TextField::Target), Some("iqn.2026-11.io.blockwire:data"));
    assert_eq!((events[1].number, events[1].text(TextField::Volume)), (u64::MAX, Some("däta")));
    assert_eq!(events[2].peer.unwrap().to_string(), "192.0.2.7:9");
    assert_eq!((events[3].peer.unwrap().port(), events[3].number), (65_535, 65_519));
    note_end(&region);
    assert_eq!(parsed(&region).ending, Ending::InOrder);
    note_panic(&region, &"x".repeat(5000));
    assert_eq!(parsed(&region).ending, Ending::Panic("x".repeat(1024)));
}

#[test]
fn the_latest_events_stay_and_strangers_push_nothing_out() {
    let (mut recorder, region) = recorder();
    let mut second = 0;
    for number in 0..20_000 {
        second += u64::from(number % 50 == 0);
        let failed = Event::new(EventKind::OperationFailed).with_number(number);
        recorder.record(after(second * 1_000_000_000 + number), &failed.with_text(TextField::Volume, "data"));
    }
    for number in 0..100_000 {
        let refused = Event::new(EventKind::LoginRefused).with_peer("192.0.2.7:9".parse().unwrap());
        recorder.record(after((second + 1) * 1_000_000_000 + number * 100_000_000), &refused);
    }
    let recording = parsed(&region);
    let failed: Vec<u64> = recording
        .events
        .iter()
        .filter(|event| event.kind == Ok(EventKind::OperationFailed))
        .map(|event| event.number)
        .collect();
    assert_eq!(recording.damaged, 0);
    assert!(failed.len() > 4000, "{}", failed.len());
    assert_eq!(failed, (20_000 - failed.len() as u64..20_000).collect::<Vec<_>>());
}

#[test]
fn a_flood_is_counted() {
    let (mut recorder, region) = recorder();
    for _ in 0..1000 {
        recorder.record(after(0), &Event::new(EventKind::OperationFailed));
    }
    recorder.record(after(0), &Event::new(EventKind::MemoryWait));
    recorder.record(after(1_000_000_000), &Event::new(EventKind::OperationFailed));
    let recording = parsed(&region);
    let most = EVENTS_PER_SECOND_MAX as usize;
    assert_eq!(recording.events.len(), most + 3);
    let suppressed = recording.events.iter().find(|event| event.kind == Ok(EventKind::Suppressed)).unwrap();
    assert_eq!(
        (suppressed.number, suppressed.text(TextField::Cause)),
        (1000 - most as u64, Some("operation-failed"))
    );
}

/// What a process overwrites while it is read is not taken for events.
#[test]
fn a_recording_that_is_read_while_it_is_written() {
    let (mut recorder, region) = recorder();
    let mut number = 0;
    let mut write = |count: u64| {
        for _ in 0..count {
            let event = Event::new(EventKind::Fence).with_number(number).with_text(TextField::Volume, "data");
            recorder.record(after(number * 1_000_000_000), &event);
            number += 1;
        }
    };
    write(10_000);
    let mut read = bytes(&region);
    write(1000);
    let later = bytes(&region);
    // The first half was read before, the second after it.
    let half = FILE_BYTES / 2;
    read[half..].copy_from_slice(&later[half..]);
    let recording = Recording::parse(&read, &later).unwrap();
    let numbers: Vec<u64> = recording.events.iter().map(|event| event.number).collect();
    assert!(numbers.len() > 2000 && numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    assert!(recording.events.iter().all(|event| event.text(TextField::Volume) == Some("data")));
}

#[test]
fn other_files_are_refused_by_name() {
    let (_, region) = recorder();
    let bytes = bytes(&region);
    let refusal = |bytes: &[u8]| Recording::parse(bytes, bytes).unwrap_err();
    assert_eq!(refusal(b""), RecordingError::Foreign);
    assert_eq!(refusal(b"\x7fELF"), RecordingError::Foreign);
    assert_eq!(refusal(&bytes[..FILE_BYTES - 1]), RecordingError::Length(FILE_BYTES - 1));
    assert_eq!(refusal(&bytes[..12]), RecordingError::Length(12));
    let mut later = bytes.clone();
    later[8] = 9;
    assert_eq!(refusal(&later), RecordingError::Version(9));
    let mut damaged = bytes.clone();
    damaged[33] ^= 1;
    assert_eq!(refusal(&damaged), RecordingError::Header);
}

/// Bytes are changed, one and many, anywhere: it is refused, or the events that are not damaged are read.
#[test]
fn changed_bytes_never_end_the_reader() {
    let (mut recorder, region) = recorder();
    for number in 0..3000_u64 {
        let event = Event::new(EventKind::Login).with_peer("192.0.2.7:9".parse().unwrap());
        recorder.record(
            after(number * 1_000_000_000),
            &event.with_text(TextField::Host, "iqn.1993-08.org.debian:01:db1"),
        );
    }
    note_panic(&region, "why");
    let whole = bytes(&region);
    let events = Recording::parse(&whole, &whole).unwrap().events.len();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut damaged = 0;
    for round in 0..400 {
        let mut bytes = whole.clone();
        for _ in 0..1 + round % 40 {
            // Mostly the header, whose numbers lead to everything else.
            let room = if random() % 4 == 0 { FILE_BYTES } else { 1200 };
            let at = random() as usize % room;
            bytes[at] = random() as u8;
        }
        if let Ok(recording) = Recording::parse(&bytes, &bytes) {
            assert!(recording.events.len() <= RING_SLOTS.iter().sum(), "{}", recording.events.len());
            damaged += recording.damaged;
        }
    }
    assert!(damaged > 0);
    // One damaged slot costs one event, or a piece of its text.
    let mut bytes = whole.clone();
    bytes[HEADER_LEN + 100 * SLOT_BYTES + 5] ^= 0x40;
    let recording = Recording::parse(&bytes, &bytes).unwrap();
    assert_eq!((recording.damaged, events - recording.events.len() <= 1), (1, true));
}
