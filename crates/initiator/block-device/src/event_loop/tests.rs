use std::sync::Arc;
use std::time::Instant;

use volume::RamDisk;

use super::*;
use crate::requests::{Request, RequestKind};
use crate::test_disk::{Behaviour, RamVolume};

/// A server of one request, which is refused at once, and that ends when it was told so; or one that waits for memory.
struct FakeDriver {
    requests: RequestTable<()>,
    settled: u32,
    short: bool,
    until: Time,
    told: bool,
}

impl EventHandler for FakeDriver {
    type Token = ();

    fn requests(&mut self) -> &mut RequestTable<()> {
        &mut self.requests
    }

    fn handle_ready(&mut self, _: &mut dyn Disk, _: &EpollWaiter, _: ReadyEvent) -> io::Result<()> {
        Ok(())
    }

    fn handle_request_ended(&mut self, _: EndedRequest<()>) -> io::Result<()> {
        self.told = true;
        Ok(())
    }

    fn handle_geometry_change(&mut self, _: &mut dyn Disk) -> io::Result<()> {
        Ok(())
    }

    fn advance(&mut self, disk: &mut dyn Disk, _: &EpollWaiter) -> io::Result<bool> {
        self.settled += 1;
        if self.settled == 1 && !self.short {
            self.requests.submit_request(disk, Request::new((), RequestKind::Read, u64::MAX, 1)).unwrap();
        }
        Ok(false)
    }

    fn poll_timeout(&self) -> Option<Time> {
        Some(self.until)
    }

    fn waits_for_memory(&self) -> bool {
        self.short
    }

    fn start_stop(&mut self, _: &EpollWaiter, _: StopMode) -> bool {
        true
    }

    fn is_finished(&self) -> bool {
        self.told || monotonic_now() >= self.until
    }
}

fn played(short: bool, limit: Duration) -> (FakeDriver, RamVolume) {
    let disk = RamVolume::new(Arc::new(RamDisk::new(8, 8, 512, 4096)), Behaviour::default());
    let requests = RequestTable::new(&disk, 4, Arc::default());
    (FakeDriver { requests, settled: 0, short, until: monotonic_now() + limit, told: false }, disk)
}

#[test]
fn what_ends_at_once_when_it_had_waited_is_told_before_anything_else_happens() {
    let (mut handler, mut disk) = played(false, Duration::from_secs(5));
    let begun = Instant::now();
    run_event_loop(&mut handler, &mut disk, &ServerStop::new().unwrap()).unwrap();
    assert!(handler.told && begun.elapsed() < Duration::from_secs(4));
}

/// Memory of others comes back without a word.
#[test]
fn who_waits_for_memory_asks_again_and_does_not_spin() {
    let (mut handler, mut disk) = played(true, Duration::from_millis(300));
    run_event_loop(&mut handler, &mut disk, &ServerStop::new().unwrap()).unwrap();
    assert!((3..=40).contains(&handler.settled), "asked {} times", handler.settled);
}
