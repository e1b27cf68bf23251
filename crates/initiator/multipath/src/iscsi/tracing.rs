//! The lines of a path's [`Trace`] while it comes up: dials, the keys of logins, the commands after them.
//! Challenges and responses are left out.

use std::net::SocketAddr;

use buf::{Errno, Time};
use iscsi::initiator::{LoginFailure, LoginStep, ScsiAnswer};
use iscsi::text;
use iscsi::wire::{LoginFlags, Stage as LoginStage};
use scsi::Sense;

use super::probe::{ProbeProgress, ProbeStep};
use crate::Trace;
use crate::trace::{Speaker, StageName};

/// The TCP connection.
pub(super) const DIAL_STAGE: StageName = "TCP";
/// A login as a whole.
pub(super) const LOGIN_STAGE: StageName = "Login";
/// The most of a text that is joined from pieces.
const LOGIN_TEXT_LEN_MAX: usize = 64 << 10;
/// Keys whose values would help to guess a secret.
const SECRET_KEYS: [&str; 2] = ["CHAP_C", "CHAP_R"];

/// Texts that have come in part: ours and the target's.
#[derive(Debug, Default)]
pub(super) struct PartialLoginTexts([Vec<u8>; 2]);

const fn stage_name(stage: LoginStage) -> StageName {
    match stage {
        LoginStage::SECURITY => "SecurityNegotiation",
        LoginStage::OPERATIONAL => "LoginOperationalNegotiation",
        LoginStage::FULL_FEATURE => "FullFeaturePhase",
        _ => "Login",
    }
}

impl PartialLoginTexts {
    /// Tells a PDU of a login.
    pub(super) fn trace_login_step(&mut self, trace: &mut Trace, at: Time, step: &LoginStep) {
        let (connection, stage) = (step.cid.value(), stage_name(step.flags.current()));
        let by = if step.is_answer { Speaker::Target } else { Speaker::Us };
        let [ours, theirs] = &mut self.0;
        let kept = if step.is_answer { theirs } else { ours };
        if kept.len() + step.text.len() <= LOGIN_TEXT_LEN_MAX {
            kept.extend_from_slice(&step.text);
        }
        if step.flags.contains(LoginFlags::CONTINUE) {
            return;
        }
        let whole = std::mem::take(kept);
        match text::parse(&whole) {
            Ok(pairs) => {
                for pair in &pairs {
                    let hidden = SECRET_KEYS.contains(&pair.key);
                    let value = || if hidden { "(not shown)".to_owned() } else { pair.value.to_owned() };
                    trace.trace_field(at, (connection, stage), by, pair.key.to_owned(), value);
                }
            }
            Err(_) => {
                let len = whole.len();
                trace.trace_field(at, (connection, stage), by, "malformed text", || format!("{len} bytes"));
            }
        }
        if step.status.class != 0 {
            let status = || format!("{:02x}{:02x}h", step.status.class, step.status.detail);
            trace.trace_field(at, (connection, stage), by, "Status", status);
        }
        if step.flags.contains(LoginFlags::TRANSIT) {
            let next = stage_name(step.flags.next());
            trace.trace_field(at, (connection, stage), by, "next stage", || next.to_owned());
        }
    }
}

pub(super) fn trace_dialling(trace: &mut Trace, at: Time, connection: u16, to: SocketAddr) {
    trace.stage_started(at, connection, DIAL_STAGE);
    trace.trace_field(at, (connection, DIAL_STAGE), Speaker::Us, "address", || to.to_string());
}

pub(super) fn trace_unreachable(trace: &mut Trace, at: Time, connection: u16, errno: Errno) {
    let why = format!("no connection (errno {})", errno.0);
    trace.stage_failed(
        at,
        (connection, DIAL_STAGE),
        why,
        "check address, port, and whether the target listens there",
    );
}

pub(super) fn trace_login_failed(trace: &mut Trace, at: Time, connection: u16, failure: &LoginFailure) {
    trace.stage_failed(at, (connection, LOGIN_STAGE), failure.to_string(), failure.advice());
}

/// Tells a question of the probe and its answer.
pub(super) fn trace_probe_answer(
    trace: &mut Trace,
    at: Time,
    step: ProbeStep,
    answer: &ScsiAnswer,
    next: &ProbeProgress,
) {
    if !trace.is_enabled() {
        return;
    }
    let stage = step.command_name();
    let said = match Sense::decode(&answer.sense).map(|decoded| decoded.sense) {
        Some(sense) => {
            let (code, qualifier) = (sense.code.code(), sense.code.qualifier());
            format!("sense {:x}h/{code:02x}h/{qualifier:02x}h", sense.key.0)
        }
        None if answer.status.0 == 0 => format!("{} bytes", answer.transferred),
        None => format!("status {:02x}h", answer.status.0),
    };
    trace.trace_field(at, (0, stage), Speaker::Target, "answer", || said);
    match next {
        ProbeProgress::Refused(complaint) => trace.stage_failed(at, (0, stage), complaint.clone(), ""),
        ProbeProgress::Ask(_) | ProbeProgress::Known => trace.stage_succeeded(at, 0, stage),
    }
}
