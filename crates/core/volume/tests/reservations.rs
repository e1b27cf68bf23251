//! Every case of the reservation rules: who may do what under which reservation, and what each
//! action makes of each state. The cases are printed and compared with `golden/reservations.txt`
//! (write it again with BLESS=1, and read the difference); admission is compared with the standards'
//! table as well, which is spelled out here.

extern crate blockwire_volume as volume;

use std::fmt::Write;
use std::sync::Arc;

use volume::reservation::{
    Action, ActionEffect, Key, RegisterMode, RegistrationRequest, ReservationType, Reservations,
};
use volume::{
    Durability, Geometry, Identity, Op, PortId, Refusal, Requester, SanitizeKind, Span, View, VolumeState,
};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/reservations.txt");

/// Who takes part: initiator ports A, C and E; hosts B, D and F. A and B hold in turn; C has B's key,
/// D has A's; E and F are not registered.
const ALL: [char; 6] = ['A', 'B', 'C', 'D', 'E', 'F'];

fn requester(name: char) -> Requester {
    let port = PortId(1);
    let identity = match name {
        'A' | 'C' | 'E' => Identity::Initiator {
            name: "iqn.2026-11.example:x".into(),
            isid: [0x40, 0, 0, 0, 0, name as u8],
            port,
        },
        _ => Identity::Host([name as u8; 16]),
    };
    Requester { identity: Arc::new(identity), port, read_only: false }
}

fn name(identity: &Identity) -> char {
    ALL.into_iter().find(|name| *requester(*name).identity == *identity).expect("one of them")
}

fn is_scsi(name: char) -> bool {
    matches!(*requester(name).identity, Identity::Initiator { .. })
}

/// SCSI registers in its one way, NVMe in three.
fn register(name: char, mode: RegisterMode, current: Option<u64>, new: u64) -> Action {
    let nqn = (!is_scsi(name)).then(|| format!("nqn.2026-11.example:{name}").into());
    Action::Register(RegistrationRequest {
        mode,
        nqn,
        ..RegistrationRequest::new(current.map(Key), Key(new))
    })
}

fn after(state: &Reservations, who: char, action: &Action) -> Reservations {
    state.apply(&requester(who), action).expect("allowed").state
}

/// A, D with key 1 and B, C with key 2; `held`: by whom, and how.
fn state(held: Option<(char, ReservationType)>) -> Reservations {
    let mut state = Reservations::default();
    for (name, key) in [('A', 1), ('B', 2), ('C', 2), ('D', 1)] {
        let mode = if is_scsi(name) { RegisterMode::Set } else { RegisterMode::Add };
        state = after(&state, name, &register(name, mode, Some(0), key));
    }
    if let Some((holder, kind)) = held {
        let key = state.key_of(&requester(holder).identity);
        state = after(&state, holder, &Action::Reserve { key, kind });
    }
    state
}

fn ops() -> Vec<Op> {
    let span = Span { lba: 0, blocks: 1 };
    vec![
        Op::Read(span),
        Op::Write(span, Durability::Cached),
        Op::Write(span, Durability::Stable),
        Op::WriteAtomic(span),
        Op::Flush,
        Op::Compare(span),
        Op::CompareAndWrite(span),
        Op::WriteZeroes { span, unmap: false },
        Op::WriteZeroes { span, unmap: true },
        Op::WriteSame(span),
        Op::Or(span),
        Op::Unmap(vec![span]),
        Op::Verify(span),
        Op::MarkBad(span),
        Op::Prefetch(span),
        Op::Extents(span),
    ]
}

/// What only looks at blocks.
fn looks(op: &Op) -> bool {
    matches!(op, Op::Read(_) | Op::Compare(_) | Op::Verify(_) | Op::Prefetch(_) | Op::Extents(_))
}

fn view(reservations: Reservations) -> View {
    let geometry = Geometry {
        blocks: 8,
        logical: 512,
        physical: 4096,
        dio_align: 512,
        max_io: 1 << 20,
        thin: true,
        write_cache: false,
        atomic: 8,
        atomic_powerfail: 1,
        caw_max: 8,
        dealloc_reads_zero: true,
        lends: false,
    };
    let standing = (*View::without_reservations(geometry)).clone();
    View::from(VolumeState { reservations: Arc::new(reservations), ..standing })
}

/// "Command Behavior in the Presence of a Reservation" (NVMe Base §8.19.1) and the tables of commands
/// that are allowed under reservations (SPC-4 §5.9.1, SBC-3 §4.17): r and w for the holder, another
/// registrant, anyone else.
const RIGHTS: [(ReservationType, &str, &str, &str); 6] = [
    (ReservationType::WriteExclusive, "rw", "r-", "r-"),
    (ReservationType::ExclusiveAccess, "rw", "--", "--"),
    (ReservationType::WriteExclusiveRegistrants, "rw", "rw", "r-"),
    (ReservationType::ExclusiveAccessRegistrants, "rw", "rw", "--"),
    (ReservationType::WriteExclusiveAll, "rw", "rw", "r-"),
    (ReservationType::ExclusiveAccessAll, "rw", "rw", "--"),
];

#[test]
fn every_operation_of_everyone_under_every_reservation() {
    for (kind, holder_may, registrant_may, stranger_may) in RIGHTS {
        for holder in ['A', 'B'] {
            let view = view(state(Some((holder, kind))));
            for who in ALL {
                let may = match who {
                    'E' | 'F' => stranger_may,
                    _ if who == holder || kind.is_all_registrants() => holder_may,
                    _ => registrant_may,
                };
                for op in ops() {
                    let allowed = may.contains(if looks(&op) { 'r' } else { 'w' });
                    let expected = if allowed { Ok(()) } else { Err(Refusal::Conflict) };
                    let case = format!("{kind:?} held by {holder}: {op:?} of {who}");
                    assert_eq!(view.admit(&requester(who), &op), expected, "{case}");
                    assert_eq!(view.admit_class(&requester(who), op.command_class()), expected, "{case}");
                }
                assert_eq!(view.admit_class(&requester(who), volume::CommandClass::Status), Ok(()));
            }
        }
    }
    // A SCSI-2 RESERVE shuts out everyone else, hosts too.
    let view = view(after(&Reservations::default(), 'A', &Action::LegacyReserve));
    for who in ALL {
        let expected = if who == 'A' { Ok(()) } else { Err(Refusal::Conflict) };
        assert!(ops().iter().all(|op| view.admit(&requester(who), op) == expected));
        assert_eq!(view.admit_class(&requester(who), volume::CommandClass::Status), expected);
    }
    let sanitize = Op::Sanitize(SanitizeKind::BlockErase);
    assert_eq!(view.admit(&requester('B'), &sanitize), Err(Refusal::Conflict));
}

/// Every registration that `who` can ask for.
fn registrations(who: char) -> Vec<(String, Action)> {
    let mut all = Vec::new();
    let current = [Some(1), Some(2), Some(0), None];
    let modes: &[RegisterMode] = if is_scsi(who) {
        &[RegisterMode::Set]
    } else {
        &[RegisterMode::Add, RegisterMode::Replace, RegisterMode::Remove]
    };
    for &mode in modes {
        for current in current {
            for new in [0, 1, 3] {
                if mode == RegisterMode::Remove && new != 0 || mode == RegisterMode::Add && current.is_some()
                {
                    continue;
                }
                let shown = current.map_or("ignored".to_owned(), |key| key.to_string());
                let what = format!("register {mode:?} current {shown} new {new}");
                all.push((what, register(who, mode, current, new)));
            }
        }
    }
    all
}

/// Every other action, with the asker's own key and with a wrong one.
fn actions(key: Option<Key>, kind: ReservationType, other: ReservationType) -> Vec<(String, Action)> {
    let mut all = vec![
        ("reserve".to_owned(), Action::Reserve { key, kind }),
        ("reserve another kind".to_owned(), Action::Reserve { key, kind: other }),
        ("release".to_owned(), Action::Release { key, kind }),
        ("release another kind".to_owned(), Action::Release { key, kind: other }),
        ("clear".to_owned(), Action::Clear { key }),
        ("clear with a wrong key".to_owned(), Action::Clear { key: Some(Key(99)) }),
    ];
    for victim in [0, 1, 2, 3] {
        for (to, then) in [("", kind), (" to another kind", other)] {
            let action = Action::Preempt { key, victim: Key(victim), kind: then, abort: true };
            all.push((format!("preempt {victim}{to}"), action));
        }
    }
    all
}

fn show_state(state: &Reservations) -> String {
    let keys: Vec<String> =
        state.registrants().iter().map(|one| format!("{}{}", name(&one.identity), one.key.0)).collect();
    let held = match state.held_reservation() {
        None => "free".to_owned(),
        Some(held) => {
            let holder = held.holder.as_ref().map_or("all".to_owned(), |one| name(one).to_string());
            format!("{} by {holder}", short(held.kind))
        }
    };
    format!("{}; {held}", if keys.is_empty() { "nobody".to_owned() } else { keys.join(" ") })
}

fn short(kind: ReservationType) -> &'static str {
    match kind {
        ReservationType::WriteExclusive => "WE",
        ReservationType::ExclusiveAccess => "EA",
        ReservationType::WriteExclusiveRegistrants => "WERO",
        ReservationType::ExclusiveAccessRegistrants => "EARO",
        ReservationType::WriteExclusiveAll => "WEAR",
        ReservationType::ExclusiveAccessAll => "EAAR",
    }
}

fn show(before: &Reservations, effect: &ActionEffect) -> String {
    let mut line = show_state(&effect.state);
    if effect.state.generation() != before.generation() {
        line += "; counted";
    }
    if effect.drain {
        line += "; fenced";
    }
    for notice in &effect.notices {
        let told: String = ALL.into_iter().filter(|who| notice.is_for(&requester(*who).identity)).collect();
        write!(line, "; tells {told} {:?}", notice.cause).unwrap();
    }
    if !effect.abort.is_empty() {
        let aborted: String = effect.abort.iter().map(|one| name(one)).collect();
        write!(line, "; aborts {aborted}").unwrap();
    }
    line
}

fn print(out: &mut String, before: &Reservations, who: char, what: &str, action: &Action) {
    let side = if is_scsi(who) { "SCSI" } else { "NVMe" };
    let end = match before.apply(&requester(who), action) {
        Ok(effect) => show(before, &effect),
        Err(refusal) => format!("refused: {refusal:?}"),
    };
    writeln!(out, "  {who} ({side}) {what} -> {end}").unwrap();
}

#[test]
fn every_transition_is_as_it_was_agreed() {
    let mut out = String::from(
        "What each action makes of each state. Initiator ports A C E and hosts B D F; a letter and a\n\
         number are a registrant and its key; \"counted\": the generation grows; \"fenced\": answered only\n\
         when what was admitted before has ended. Written by crates/core/volume/tests/reservations.rs.\n",
    );
    let mut starts = vec![None];
    for kind in ReservationType::ALL {
        let holders = if kind.is_all_registrants() { &['A'][..] } else { &['A', 'B'] };
        starts.extend(holders.iter().map(|holder| Some((*holder, kind))));
    }
    for held in starts {
        let before = state(held);
        writeln!(out, "\n{}", show_state(&before)).unwrap();
        let kind = held.map_or(ReservationType::WriteExclusive, |(_, kind)| kind);
        let other = if kind == ReservationType::ExclusiveAccess {
            ReservationType::WriteExclusiveRegistrants
        } else {
            ReservationType::ExclusiveAccess
        };
        for who in ALL {
            let key = before.key_of(&requester(who).identity).or(Some(Key(1)));
            for (what, action) in registrations(who).into_iter().chain(actions(key, kind, other)) {
                print(&mut out, &before, who, &what, &action);
            }
            if is_scsi(who) {
                let to = requester('E').identity;
                let action =
                    Action::Move { key: key.unwrap(), new: Key(3), to, unregister: true, persist: None };
                print(&mut out, &before, who, "move to E with key 3, unregister", &action);
                print(&mut out, &before, who, "RESERVE(6)", &Action::LegacyReserve);
                print(&mut out, &before, who, "RELEASE(6)", &Action::LegacyRelease);
            }
        }
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(GOLDEN, &out).expect("the golden file is written");
    }
    let golden = std::fs::read_to_string(GOLDEN).expect("the golden file is there");
    let differs = golden.lines().zip(out.lines()).find(|(then, now)| then != now);
    assert_eq!(differs, None, "what was agreed, and what is so now");
    assert_eq!(golden, out, "one has lines that the other has not");
}
