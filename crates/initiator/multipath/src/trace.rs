//! A trace of what a connection sends and receives while it comes up, step by step, for `doctor` and logs,
//! with the same form for both protocols. It is off by default, and then costs one check.
//!
//! Invariants:
//! - No secret, challenge, response or key is ever recorded.
//! - At most [`LINES_MAX`] lines wait; further ones are counted, not kept.

use std::borrow::Cow;
use std::collections::VecDeque;

use buf::Time;

/// Lines that wait to be taken, at most: some hundred per connection, and a few connections.
pub const LINES_MAX: usize = 4096;

/// A step of coming up, in the words of the protocol's standard: `ICReq`, `Connect`,
/// `SecurityNegotiation`.
pub type StageName = &'static str;

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Speaker {
    /// We do.
    Us,
    /// The target does.
    Target,
}

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceLine {
    /// When.
    pub at: Time,
    /// Which connection: the NVMe queue's number, or the iSCSI CID. 0 is the first.
    pub connection: u16,
    /// Within which step.
    pub stage: StageName,
    /// What happened.
    pub event: TraceEvent,
}

/// What a line tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// The step begins.
    Begins,
    /// A key or field, and its value: an offer of ours, or an answer.
    Field {
        /// Whose.
        by: Speaker,
        /// Its name in the standard.
        name: Cow<'static, str>,
        /// Its value, as people write it.
        value: String,
    },
    /// The step has ended well.
    Ends,
    /// The step has failed, and with it the connection.
    Fails {
        /// Why, and whose fault it is.
        why: String,
        /// What to change; may be empty.
        advice: String,
    },
}

/// A trace, on or off.
#[derive(Debug, Default)]
pub struct Trace {
    on: bool,
    lines: VecDeque<TraceLine>,
    lost: u64,
}

impl Trace {
    /// A trace that is off.
    pub fn disabled() -> Self {
        Self::default()
    }

    /// Turns it on or off. What was kept stays.
    pub fn set_enabled(&mut self, on: bool) {
        self.on = on;
    }

    /// Whether it is on.
    pub fn is_enabled(&self) -> bool {
        self.on
    }

    /// The oldest line that nobody has taken.
    #[must_use]
    pub fn poll_line(&mut self) -> Option<TraceLine> {
        self.lines.pop_front()
    }

    /// How many lines there was no room for.
    pub fn dropped_lines(&self) -> u64 {
        self.lost
    }

    /// A step of a connection begins.
    pub fn stage_started(&mut self, at: Time, connection: u16, stage: StageName) {
        self.push_line(at, connection, stage, || TraceEvent::Begins);
    }

    /// A key or field is said. `value` is only made if somebody listens.
    pub fn trace_field(
        &mut self,
        at: Time,
        (connection, stage): (u16, StageName),
        by: Speaker,
        name: impl Into<Cow<'static, str>>,
        value: impl FnOnce() -> String,
    ) {
        self.push_line(at, connection, stage, || TraceEvent::Field { by, name: name.into(), value: value() });
    }

    /// A step has ended well.
    pub fn stage_succeeded(&mut self, at: Time, connection: u16, stage: StageName) {
        self.push_line(at, connection, stage, || TraceEvent::Ends);
    }

    /// A step has failed.
    pub fn stage_failed(
        &mut self,
        at: Time,
        (connection, stage): (u16, StageName),
        why: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.push_line(at, connection, stage, || TraceEvent::Fails {
            why: why.into(),
            advice: advice.into(),
        });
    }

    fn push_line(&mut self, at: Time, connection: u16, stage: StageName, event: impl FnOnce() -> TraceEvent) {
        if !self.on {
            return;
        }
        if self.lines.len() >= LINES_MAX {
            self.lost += 1;
            return;
        }
        self.lines.push_back(TraceLine { at, connection, stage, event: event() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_that_is_off_makes_no_value_and_one_that_is_on_is_bounded() {
        let mut trace = Trace::disabled();
        trace.trace_field(Time(1), (0, "Connect"), Speaker::Us, "SUBNQN", || {
            unreachable!("nothing listens there")
        });
        assert_eq!(trace.poll_line(), None);
        trace.set_enabled(true);
        trace.stage_started(Time(2), 3, "Connect");
        trace.trace_field(Time(3), (3, "Connect"), Speaker::Target, "CNTLID", || "7".into());
        trace.stage_failed(Time(4), (3, "Connect"), "refused", "");
        let line = trace.poll_line().unwrap();
        assert_eq!(
            (line.at, line.connection, line.stage, line.event),
            (Time(2), 3, "Connect", TraceEvent::Begins)
        );
        let field = TraceEvent::Field { by: Speaker::Target, name: "CNTLID".into(), value: "7".into() };
        assert_eq!(trace.poll_line().unwrap().event, field);
        assert_eq!(
            trace.poll_line().unwrap().event,
            TraceEvent::Fails { why: "refused".into(), advice: String::new() }
        );
        for _ in 0..=LINES_MAX {
            trace.stage_succeeded(Time(5), 0, "Connect");
        }
        assert_eq!(trace.dropped_lines(), 1);
        assert_eq!(std::iter::from_fn(|| trace.poll_line()).count(), LINES_MAX);
    }
}
