//! Events for a program's loop, and single use of each piece of its memory, with test targets and disks.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::ptr::NonNull;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use buf::{Cx, Payload};
use client::{Initiator, Io, Settings};
use volume::{Backend, Geometry, IoCompletion, IoId, Op, Outcome};

use super::{CompletionWaiter, InitiatorContext, OpenState, OperationKind};
use testkit::scripted_iscsi_target::{ScriptedAnswer, ScriptedTarget, honest_answer};

fn state(open_timeout: Duration) -> InitiatorContext {
    let settings = Settings { open_timeout, ..Settings::default() };
    InitiatorContext::new(Initiator::new(settings).unwrap(), 0)
}

/// A target on a thread, which ends with its one connection: a disk with blocks of so many bytes that never answers
/// a read.
fn target(block: u16) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut script = ScriptedTarget::new(move |cdb| match (cdb[0], honest_answer(cdb)) {
            (0x28 | 0x88, _) => ScriptedAnswer::Silence,
            (0x9e, ScriptedAnswer::Good(mut data)) => {
                data[10..12].copy_from_slice(&block.to_be_bytes());
                ScriptedAnswer::Good(data)
            }
            (_, answer) => answer,
        });
        let mut bytes = [0; 4096];
        while let Ok(len @ 1..) = stream.read(&mut bytes) {
            if stream.write_all(&script.handle_bytes(0, &bytes[..len])).is_err() {
                return;
            }
        }
    });
    address
}

fn url(of: SocketAddr) -> String {
    format!("iscsi://{of}/iqn.2026-11.test:one/0")
}

fn begin(state: &mut InitiatorContext, urls: &str) {
    let handle = state.initiator.start_open(urls).unwrap();
    state.insert_volume(handle, OpenState::Opening, urls);
}

/// As the header prescribes, but that the descriptor is waited for by the turn itself.
fn runs(
    state: &mut InitiatorContext,
    most: Duration,
    mut is_done: impl FnMut(&mut InitiatorContext) -> bool,
) -> u32 {
    let (begun, mut turns) = (Instant::now(), 0);
    while !is_done(state) && begun.elapsed() < most {
        let left = most.saturating_sub(begun.elapsed());
        let wait = state.descriptor_wait_max().unwrap_or(left).min(left);
        if !wait.is_zero() {
            state.turn(Some(wait));
        }
        state.wait_for_completion(Some(Duration::ZERO));
        turns += 1;
    }
    turns
}

#[test]
fn a_loop_does_not_run_without_rest_while_a_read_hangs() {
    let mut state = state(Duration::from_secs(30));
    begin(&mut state, &url(target(512)));
    runs(&mut state, Duration::from_secs(20), |state| state.volumes[0].open_state != OpenState::Opening);
    assert!(state.volumes[0].open_state == OpenState::Open);
    let volume = state.volumes[0].handle;
    let mut memory = vec![0_u8; 512];
    let at = NonNull::from(&mut memory[..]).cast();
    state
        .start_operation(
            volume,
            OperationKind::Read(at),
            None,
            0,
            512,
            CompletionWaiter::Poll(std::ptr::null_mut()),
        )
        .unwrap_or_else(|_| panic!());
    assert_eq!(state.descriptor_wait_max(), Some(Duration::ZERO), "it leaves with the next turn");
    let turns = runs(&mut state, Duration::from_millis(300), |_| false);
    assert!(turns < 30, "{turns} turns in 300 ms");
    assert_eq!(state.in_flight(), 1);
}

#[test]
fn a_volume_that_does_not_open_in_time_fails_without_being_waited_for() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut state = state(Duration::from_millis(60));
    begin(&mut state, &url(silent.local_addr().unwrap()));
    let turns =
        runs(&mut state, Duration::from_secs(5), |state| state.volumes[0].open_state != OpenState::Opening);
    assert!(state.volumes[0].open_state == OpenState::Failed && turns < 30, "{turns}");
    let why = state.volumes[0].why.as_ref().unwrap();
    assert_eq!(why.kind, client::ErrorKind::TimedOut);
}

#[test]
fn a_stripe_whose_legs_do_not_fit_is_not_open() {
    let mut state = state(Duration::from_secs(30));
    begin(&mut state, &format!("stripe:{}+{}", url(target(512)), url(target(4096))));
    runs(&mut state, Duration::from_secs(20), |state| state.volumes[0].open_state != OpenState::Opening);
    assert!(state.volumes[0].open_state == OpenState::Failed);
    let why = state.volumes[0].why.as_ref().unwrap();
    assert_eq!(why.kind, client::ErrorKind::Usage, "{why}");
}

/// A disk that keeps what it is given until the test says.
#[derive(Clone, Default)]
struct Keeping(Rc<RefCell<Kept>>);

#[derive(Default)]
struct Kept {
    given: Vec<Io>,
    done: Vec<IoCompletion>,
    /// Every block that it was given to write.
    blocks: Vec<u64>,
}

impl Backend for Keeping {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: 1 << 20,
            logical: 512,
            physical: 512,
            dio_align: 1,
            max_io: 512,
            thin: false,
            write_cache: false,
            atomic: 1,
            atomic_powerfail: 1,
            caw_max: 0,
            dealloc_reads_zero: false,
            lends: false,
        }
    }
    fn submit(&mut self, _: &mut Cx<'_>, io: Io) {
        let mut kept = self.0.borrow_mut();
        if let Op::Write(span, _) = &io.op {
            kept.blocks.push(span.lba);
        }
        kept.given.push(io);
    }
    fn cancel(&mut self, _: IoId) {}
    fn poll_done(&mut self) -> Option<IoCompletion> {
        self.0.borrow_mut().done.pop()
    }
}

/// Loans that are over while a command finds no room are heard of when that one has taken its step back.
#[test]
fn an_operation_that_finds_no_room_is_not_advanced_again_meanwhile_and_goes_once() {
    const EACH: u64 = 32;
    let (mut state, disk) = (state(Duration::from_secs(30)), Keeping::default());
    let own = disk.clone();
    let volume =
        state.initiator.with_client(|client, _| client.add_backend(Box::new(own), vec![], false)).unwrap();
    state.insert_volume(volume, OpenState::Open, "a disk of the test's");
    let memory = vec![1_u8; EACH as usize * 512];
    let at: NonNull<u8> = NonNull::from(&memory[..]).cast();
    let write = |state: &mut InitiatorContext, number: u64| {
        let kind = OperationKind::Write(at, client::Durability::Cached);
        let waiter = CompletionWaiter::Poll(std::ptr::null_mut());
        state.start_operation(volume, kind, None, number * EACH * 512, EACH * 512, waiter).is_ok()
    };
    let ends = |io: Io, with: bool| {
        let Io { id, payload, .. } = io;
        let (told, held) = if with { (payload, Payload::None) } else { (Payload::None, payload) };
        disk.0.borrow_mut().done.push(IoCompletion { id, result: Ok(Outcome::Complete), payload: told });
        held
    };
    let mut begun = 0;
    while write(&mut state, begun) {
        begun += 1;
    }
    // The first commands end, and their memory is not back yet: the kernel has it.
    let first: Vec<Io> = disk.0.borrow_mut().given.drain(..8).collect();
    let held: Vec<Payload> = first.into_iter().map(|io| ends(io, false)).collect();
    state.drain_completions();
    assert!(write(&mut state, begun), "there is room for a part of it");
    begun += 1;
    // Now it is back, and the next to find no room is the first to hear of it.
    drop(held);
    assert!(!write(&mut state, begun), "there is none");
    assert_eq!(state.loans_over.len(), 8, "what was heard is for the next poll");
    let mut completed = 0;
    for _ in 0..10_000 {
        let given: Vec<Io> = disk.0.borrow_mut().given.drain(..).collect();
        given.into_iter().for_each(|io| drop(ends(io, true)));
        state.drain_completions();
        while let Some(completion) = state.poll_completed() {
            assert_eq!(completion.status, 0);
            completed += 1;
        }
        if state.in_flight() == 0 {
            break;
        }
    }
    assert_eq!(completed, begun);
    let mut blocks = std::mem::take(&mut disk.0.borrow_mut().blocks);
    blocks.sort_unstable();
    assert_eq!(blocks, (0..begun * EACH).collect::<Vec<_>>(), "each once");
}
