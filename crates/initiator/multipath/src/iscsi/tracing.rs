//! The lines of a path's [`Trace`] while it comes up: dials, the keys of logins, the commands after them.
//! Challenges and responses are left out.

use std::net::SocketAddr;

use buf::{Errno, Time};
use iscsi::initiator::{Failure, LoginStep, ScsiAnswer};
use iscsi::text;
use iscsi::wire::{LoginFlags, Stage as LoginStage};
use scsi::Sense;

use super::probe::{ProbeProgress, Step};
use crate::Trace;
use crate::trace::{Side, Stage};

/// The TCP connection.
pub(super) const DIAL: Stage = "TCP";
/// A login as a whole.
pub(super) const LOGIN: Stage = "Login";
/// The most of a text that is joined from pieces.
const TEXT_MAX: usize = 64 << 10;
/// Keys whose values would help to guess a secret.
const HIDDEN: [&str; 2] = ["CHAP_C", "CHAP_R"];

/// Texts that have come in part: ours and the target's.
#[derive(Debug, Default)]
pub(super) struct Texts([Vec<u8>; 2]);

const fn stage_name(stage: LoginStage) -> Stage {
    match stage {
        LoginStage::SECURITY => "SecurityNegotiation",
        LoginStage::OPERATIONAL => "LoginOperationalNegotiation",
        LoginStage::FULL_FEATURE => "FullFeaturePhase",
        _ => "Login",
    }
}

impl Texts {
    /// Tells a PDU of a login.
    pub(super) fn take(&mut self, trace: &mut Trace, at: Time, step: &LoginStep) {
        let (connection, stage) = (step.cid.value(), stage_name(step.flags.current()));
        let by = if step.is_answer { Side::Target } else { Side::Us };
        let [ours, theirs] = &mut self.0;
        let kept = if step.is_answer { theirs } else { ours };
        if kept.len() + step.text.len() <= TEXT_MAX {
            kept.extend_from_slice(&step.text);
        }
        if step.flags.contains(LoginFlags::CONTINUE) {
            return;
        }
        let whole = std::mem::take(kept);
        match text::parse(&whole) {
            Ok(pairs) => {
                for pair in &pairs {
                    let hidden = HIDDEN.contains(&pair.key);
                    let value = || if hidden { "(not shown)".to_owned() } else { pair.value.to_owned() };
                    trace.field(at, (connection, stage), by, pair.key.to_owned(), value);
                }
            }
            Err(_) => {
                let len = whole.len();
                trace.field(at, (connection, stage), by, "malformed text", || format!("{len} bytes"));
            }
        }
        if step.status.class != 0 {
            let status = || format!("{:02x}{:02x}h", step.status.class, step.status.detail);
            trace.field(at, (connection, stage), by, "Status", status);
        }
        if step.flags.contains(LoginFlags::TRANSIT) {
            let next = stage_name(step.flags.next());
            trace.field(at, (connection, stage), by, "next stage", || next.to_owned());
        }
    }
}

pub(super) fn dialling(trace: &mut Trace, at: Time, connection: u16, to: SocketAddr) {
    trace.begins(at, connection, DIAL);
    trace.field(at, (connection, DIAL), Side::Us, "address", || to.to_string());
}

pub(super) fn unreachable(trace: &mut Trace, at: Time, connection: u16, errno: Errno) {
    let why = format!("no connection (errno {})", errno.0);
    trace.fails(at, (connection, DIAL), why, "check address, port, and whether the target listens there");
}

pub(super) fn login_failed(trace: &mut Trace, at: Time, connection: u16, failure: &Failure) {
    trace.fails(at, (connection, LOGIN), failure.to_string(), failure.advice());
}

/// Tells a question of the probe and its answer.
pub(super) fn answered(trace: &mut Trace, at: Time, step: Step, answer: &ScsiAnswer, next: &ProbeProgress) {
    if !trace.is_on() {
        return;
    }
    let stage = step.name();
    let said = match Sense::decode(&answer.sense).map(|decoded| decoded.sense) {
        Some(sense) => {
            let (code, qualifier) = (sense.code.code(), sense.code.qualifier());
            format!("sense {:x}h/{code:02x}h/{qualifier:02x}h", sense.key.0)
        }
        None if answer.status.0 == 0 => format!("{} bytes", answer.transferred),
        None => format!("status {:02x}h", answer.status.0),
    };
    trace.field(at, (0, stage), Side::Target, "answer", || said);
    match next {
        ProbeProgress::Refused(complaint) => trace.fails(at, (0, stage), complaint.clone(), ""),
        ProbeProgress::Ask(_) | ProbeProgress::Known => trace.ends(at, 0, stage),
    }
}
