//! Reservations over NVMe (NVMe Base §7.2 to §7.5, NVM Command Set §8.19): the volume's actions as commands,
//! and the report in the volume's terms.

use buf::{Cx, MemoryClass, Payload, SgMut};
use nvme::reservation::{
    Acquire, AcquireAction, Register, RegisterAction, Release, ReleaseAction, Report, decode_status,
};
use nvme::{Opcode, Sqe};
use volume::Identity;
use volume::reservation::{Action, Key, RegisterMode, ReservationType};

use crate::{Registration, ReservationOp, Reservations};

/// Room of the first report: its head and 63 registrants.
const FIRST_REPORT_LEN: usize = 4096;
/// Room of the longest: more registrants than any volume here has.
const REPORT_LEN_MAX: usize = 64 + 64 * (volume::reservation::REGISTRANTS_MAX + 1);

/// What was asked, and how it is said.
#[derive(Debug)]
pub(super) struct ReservationCommand {
    pub(super) request: ReservationOp,
    /// Bytes of room for a report.
    room: usize,
    /// The command was sent.
    pub(super) sent: bool,
    /// The report that came.
    pub(super) report: Option<Reservations>,
}

/// An action as a command: its opcode, how to put its fields, and its keys.
enum CommandFields {
    Register(Register),
    Acquire(Acquire),
    Release(Release),
}

impl ReservationCommand {
    /// `None`: NVMe has no words for it.
    pub(super) fn new(request: &ReservationOp) -> Option<ReservationCommand> {
        if let ReservationOp::Change(action) = request {
            command_fields(action)?;
        }
        Some(ReservationCommand {
            request: request.clone(),
            room: FIRST_REPORT_LEN,
            sent: false,
            report: None,
        })
    }

    /// Whether the command changes anything.
    pub(super) fn is_change(&self) -> bool {
        matches!(self.request, ReservationOp::Change(_))
    }

    /// The command, made of an empty one of the namespace; `None` while memory is short.
    pub(super) fn next_command(&self, cx: &mut Cx<'_>, mut sqe: Sqe) -> Option<(Sqe, Payload)> {
        let (fields, keys) = match &self.request {
            ReservationOp::Report => {
                sqe.opcode = Opcode::RESERVATION_REPORT;
                Report { len: self.room as u64, extended: true }.write_to_sqe(&mut sqe);
                return Some((sqe, Payload::In(cx.pool.take_sg(MemoryClass::Wire, self.room)?)));
            }
            ReservationOp::Change(action) => command_fields(action)?,
        };
        match fields {
            CommandFields::Register(register) => {
                sqe.opcode = Opcode::RESERVATION_REGISTER;
                register.write_to_sqe(&mut sqe);
            }
            CommandFields::Acquire(acquire) => {
                sqe.opcode = Opcode::RESERVATION_ACQUIRE;
                acquire.write_to_sqe(&mut sqe);
            }
            CommandFields::Release(release) => {
                sqe.opcode = Opcode::RESERVATION_RELEASE;
                release.write_to_sqe(&mut sqe);
            }
        }
        let has_both = !matches!(sqe.opcode, Opcode::RESERVATION_RELEASE);
        let mut memory = cx.pool.take_sg(MemoryClass::Wire, if has_both { 16 } else { 8 })?;
        let [first, second] = keys;
        memory.copy_from(0, &first.to_le_bytes());
        if has_both {
            memory.copy_from(8, &second.to_le_bytes());
        }
        Some((sqe, Payload::Out(memory.freeze())))
    }

    /// Takes a report in. False: it was longer than the room for it, and is asked for again.
    pub(super) fn parse_report(&mut self, bytes: SgMut, us: [u8; 16]) -> bool {
        let bytes = bytes.freeze();
        let mut flat = vec![0; bytes.len()];
        bytes.copy_to(0, &mut flat);
        let Some((summary, count, registrants)) = decode_status(&flat, true) else { return true };
        let held = ReservationType::from_nvme(summary.kind);
        if held.is_none() && summary.kind != 0 {
            // Something is held that we have no word for: that is not nothing.
            return true;
        }
        if registrants.len() < count && self.room < REPORT_LEN_MAX {
            self.room = REPORT_LEN_MAX;
            self.sent = false;
            return false;
        }
        let registrations = registrants.iter().map(|one| Registration {
            identity: Identity::Host(one.host),
            key: Key(one.key),
            holds: one.holds,
            ours: one.host == us,
            // Another identifier may stand for an initiator port, in the target's way.
            kin: (one.host == us).then_some(true),
        });
        self.report = Some(Reservations {
            generation: summary.generation,
            persists: Some(summary.persists),
            held,
            registrations: registrations.collect(),
            named: true,
            whole: registrants.len() >= count,
        });
        true
    }
}

fn command_fields(action: &Action) -> Option<(CommandFields, [u64; 2])> {
    let key = |key: &Option<Key>| key.map_or(0, |key| key.0);
    Some(match action {
        Action::Register(register) => {
            if !register.also.is_empty() || !register.ports.is_empty() {
                return None;
            }
            let fresh = register.current == Some(Key::NONE);
            let action = match register.mode {
                RegisterMode::Add => RegisterAction::Register,
                RegisterMode::Remove => RegisterAction::Unregister,
                RegisterMode::Replace => RegisterAction::Replace,
                RegisterMode::Set if register.new == Key::NONE => RegisterAction::Unregister,
                RegisterMode::Set if fresh => RegisterAction::Register,
                RegisterMode::Set => RegisterAction::Replace,
            };
            let ignore_key = register.current.is_none();
            let fields = Register { action, ignore_key, persist: register.persist };
            (CommandFields::Register(fields), [key(&register.current), register.new.0])
        }
        Action::Reserve { key: current, kind } => {
            let ignore_key = current.is_none();
            let fields = Acquire { action: AcquireAction::Acquire, ignore_key, kind: kind.to_nvme() };
            (CommandFields::Acquire(fields), [key(current), 0])
        }
        Action::Preempt { key: current, victim, kind, abort } => {
            let action = if *abort { AcquireAction::PreemptAndAbort } else { AcquireAction::Preempt };
            let fields = Acquire { action, ignore_key: current.is_none(), kind: kind.to_nvme() };
            (CommandFields::Acquire(fields), [key(current), victim.0])
        }
        Action::Release { key: current, kind } => {
            let ignore_key = current.is_none();
            let fields = Release { action: ReleaseAction::Release, ignore_key, kind: kind.to_nvme() };
            (CommandFields::Release(fields), [key(current), 0])
        }
        Action::Clear { key: current } => {
            let fields = Release { action: ReleaseAction::Clear, ignore_key: current.is_none(), kind: 0 };
            (CommandFields::Release(fields), [key(current), 0])
        }
        Action::Move { .. } | Action::Persist { .. } | Action::LegacyReserve | Action::LegacyRelease => {
            return None;
        }
    })
}
