//! Negotiation of operational keys by the rules of [`keys`](crate::keys) (RFC 7143 §6.2, §13).
//!
//! One [`Negotiation`] serves either role: it answers the peer's offers, makes proposals, and handles the
//! peer's answers. No outcome lies outside our [`NegotiationLimits`]: where a default would exceed them, we propose a
//! value, and if the peer does not agree, the login fails.

use crate::keys::{KEY_RULES, Key, KeyForm, KeyRule, KeySet, ResultFunction, Role, TextPhase, find_key_rule};
pub use crate::params::{Digest, NegotiationLimits, Params, SessionType, TaskReporting};
use crate::text::{self, KeyValue, TextBuf, TextError};
use crate::wire::SEGMENT_LEN_MAX;

#[cfg(test)]
mod tests;

/// Whether this login creates the session or adds a connection to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginKind {
    /// The first: session-wide keys are negotiated.
    Leading,
    /// Another: session-wide keys are errors.
    Added,
}

/// What the peer did wrong. In a login the answer is 0200h; in full feature phase the exchange ends and the old
/// values stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NegotiationViolation {
    /// The text is malformed, or the answer to it would be too long.
    Text(TextError),
    /// A key that this end of the connection may not send.
    Sender(Key),
    /// A key in a phase that it does not belong to.
    Phase(Key),
    /// A session-wide key on a connection that is not the leading one.
    LeadingOnly(Key),
    /// A key for the second time.
    Redeclared(Key),
    /// A declared value out of range, or an answer outside the offer.
    Value(Key),
    /// No agreement on a key whose default we do not accept.
    NoAgreement(Key),
}

/// In words.
impl core::fmt::Display for NegotiationViolation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            NegotiationViolation::Text(error) => write!(f, "{error}"),
            NegotiationViolation::Sender(key) => {
                write!(f, "the peer sent {}, which is not its to send", key.name())
            }
            NegotiationViolation::Phase(key) => {
                write!(f, "the peer sent {} in a phase where it has no place", key.name())
            }
            NegotiationViolation::LeadingOnly(key) => {
                write!(f, "the peer sent {} on a connection that is not its session's first", key.name())
            }
            NegotiationViolation::Redeclared(key) => write!(f, "the peer sent {} twice", key.name()),
            NegotiationViolation::Value(key) => {
                write!(f, "the peer sent a value of {} that it may not have", key.name())
            }
            NegotiationViolation::NoAgreement(key) => {
                write!(f, "no value of {} suits both sides", key.name())
            }
        }
    }
}

impl From<TextError> for NegotiationViolation {
    fn from(error: TextError) -> Self {
        NegotiationViolation::Text(error)
    }
}

/// The negotiation of one login, from its first key to the end of the login; or of one text exchange.
#[derive(Clone, Debug)]
pub struct Negotiation {
    role: Role,
    login: LoginKind,
    limits: NegotiationLimits,
    params: Params,
    /// Keys that the peer has sent.
    seen: KeySet,
    /// Keys that we proposed and that the peer has not answered.
    proposed: KeySet,
    /// Whether our MaxRecvDataSegmentLength was declared.
    declared: bool,
}

impl Negotiation {
    /// Begins with the default values. `role` is our own.
    #[must_use]
    pub fn new(role: Role, login: LoginKind, session_type: SessionType, limits: NegotiationLimits) -> Self {
        let params = Params::defaults(session_type);
        let (seen, proposed) = (KeySet::default(), KeySet::default());
        Self { role, login, limits, params, seen, proposed, declared: false }
    }

    /// Begins with values in force, for a text exchange of the full feature phase.
    #[must_use]
    pub fn resume(role: Role, params: Params, limits: NegotiationLimits) -> Self {
        let (seen, proposed) = (KeySet::default(), KeySet::default());
        Self { role, login: LoginKind::Leading, limits, params, seen, proposed, declared: true }
    }

    /// The values as they stand.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Takes a text of the peer, appends our answers. Authentication and declared keys pass through the same
    /// checks of sender, phase and repetition; their values are the caller's affair.
    pub fn handle_text(
        &mut self,
        pairs: &[KeyValue<'_>],
        phase: TextPhase,
        out: &mut TextBuf,
    ) -> Result<(), NegotiationViolation> {
        // FirstBurstLength is bounded by MaxBurstLength, in whatever order they come.
        let is_first_burst = |pair: &&KeyValue<'_>| pair.key == "FirstBurstLength";
        let (last, first): (Vec<_>, Vec<_>) = pairs.iter().partition(is_first_burst);
        first.into_iter().chain(last).try_for_each(|pair| self.handle_pair(pair, phase, out))
    }

    fn handle_pair(
        &mut self,
        pair: &KeyValue<'_>,
        phase: TextPhase,
        out: &mut TextBuf,
    ) -> Result<(), NegotiationViolation> {
        let Some(rule) = find_key_rule(pair.key) else {
            // An answer is not answered, or two ends would never stop.
            if pair.value != text::NOT_UNDERSTOOD {
                out.push(pair.key, text::NOT_UNDERSTOOD)?;
            }
            return Ok(());
        };
        if rule.sender == Some(self.role) {
            return Err(NegotiationViolation::Sender(rule.key));
        }
        if !rule.when.contains(phase) {
            return Err(NegotiationViolation::Phase(rule.key));
        }
        if rule.leading_only && self.login == LoginKind::Added {
            return Err(NegotiationViolation::LeadingOnly(rule.key));
        }
        // TargetAddress may stand several times in one text (RFC 7143 §13.8).
        if self.seen.insert(rule.key) && rule.key != Key::TargetAddress {
            return Err(NegotiationViolation::Redeclared(rule.key));
        }
        if self.proposed.remove(rule.key) {
            return self.accept_answer(rule, pair.value);
        }
        self.answer_offer(rule, pair.value, out)
    }

    /// Answers an offer. The value in force changes only with an answer that agrees.
    fn answer_offer(
        &mut self,
        rule: &KeyRule,
        value: &str,
        out: &mut TextBuf,
    ) -> Result<(), NegotiationViolation> {
        if rule.normal_only && self.params.session_type == SessionType::Discovery {
            return Ok(out.push(rule.name, text::IRRELEVANT)?);
        }
        let agreed = match rule.kind {
            KeyForm::Auth | KeyForm::Declared => return Ok(()),
            KeyForm::SegmentLength => return self.set_peer_segment_len(value),
            KeyForm::Number { low, high, combine, param, .. } => {
                number_within(value, low, high).map(|offer| {
                    let ours = self.number_limit(rule);
                    let agreed =
                        if combine == ResultFunction::Min { offer.min(ours) } else { offer.max(ours) };
                    *param(&mut self.params) = agreed;
                    agreed.to_string()
                })
            }
            KeyForm::Boolean { combine, param, limit } => text::parse_boolean(value).ok().map(|offer| {
                let ours = limit(&self.limits);
                let agreed = if combine == ResultFunction::Min { offer && ours } else { offer || ours };
                *param(&mut self.params) = agreed;
                text::yes_no(agreed).to_owned()
            }),
            KeyForm::Digest { param, limit } => {
                first_common(value, limit(&self.limits), Digest::name).map(|digest| {
                    *param(&mut self.params) = digest;
                    digest.name().to_owned()
                })
            }
            KeyForm::Reporting { param, limit } => {
                first_common(value, limit(&self.limits), TaskReporting::name).map(|reporting| {
                    *param(&mut self.params) = reporting;
                    reporting.name().to_owned()
                })
            }
            KeyForm::Obsolete(word) => Some(word.to_owned()),
        };
        Ok(out.push(rule.name, agreed.as_deref().unwrap_or(text::REJECT))?)
    }

    fn set_peer_segment_len(&mut self, value: &str) -> Result<(), NegotiationViolation> {
        let len = number_within(value, 512, SEGMENT_LEN_MAX);
        let len = len.ok_or(NegotiationViolation::Value(Key::MaxRecvDataSegmentLength))?;
        match self.role {
            Role::Initiator => self.params.target_mrdsl = len,
            Role::Target => self.params.initiator_mrdsl = len,
        }
        Ok(())
    }

    /// Our bound of a number, which for FirstBurstLength is also MaxBurstLength.
    fn number_limit(&self, rule: &KeyRule) -> u32 {
        match rule.kind {
            KeyForm::Number { limit, .. } if rule.key == Key::FirstBurstLength => {
                limit(&self.limits).min(self.params.max_burst)
            }
            KeyForm::Number { limit, .. } => limit(&self.limits),
            KeyForm::Auth
            | KeyForm::Declared
            | KeyForm::SegmentLength
            | KeyForm::Boolean { .. }
            | KeyForm::Digest { .. }
            | KeyForm::Reporting { .. }
            | KeyForm::Obsolete(_) => 0,
        }
    }

    /// Takes the peer's answer to our proposal; it must lie within the proposal. A refusal leaves the default,
    /// and so does a peer that does not know the key: TaskReporting and iSCSIProtocolLevel are younger than
    /// many a peer.
    fn accept_answer(&mut self, rule: &KeyRule, value: &str) -> Result<(), NegotiationViolation> {
        if [text::REJECT, text::IRRELEVANT, text::NOT_UNDERSTOOD].contains(&value) {
            // Who does not know of levels has none: that is no reason against the one that we offered.
            if rule.key == Key::ProtocolLevel {
                let level = &mut self.params.protocol_level;
                *level = self.limits.protocol_level.min(*level);
            }
            return Ok(());
        }
        let wrong = NegotiationViolation::Value(rule.key);
        match rule.kind {
            // We never propose these: a declaration of the peer is no answer.
            KeyForm::Auth | KeyForm::Declared | KeyForm::Obsolete(_) | KeyForm::SegmentLength => {
                return Err(wrong);
            }
            KeyForm::Number { low, high, combine, param, .. } => {
                let ours = self.number_limit(rule);
                let (low, high) = if combine == ResultFunction::Min { (low, ours) } else { (ours, high) };
                *param(&mut self.params) = number_within(value, low, high).ok_or(wrong)?;
            }
            KeyForm::Boolean { combine, param, limit } => {
                let answer = text::parse_boolean(value).map_err(|_| wrong)?;
                let ours = limit(&self.limits);
                // The result function already decides when we said the word that wins.
                if ours == (combine == ResultFunction::Max) && answer != ours {
                    return Err(wrong);
                }
                *param(&mut self.params) = answer;
            }
            KeyForm::Digest { param, limit } => {
                let allowed = limit(&self.limits).iter().find(|d| d.name() == value);
                *param(&mut self.params) = *allowed.ok_or(wrong)?;
            }
            KeyForm::Reporting { param, limit } => {
                let allowed = limit(&self.limits).iter().find(|r| r.name() == value);
                *param(&mut self.params) = *allowed.ok_or(wrong)?;
            }
        }
        Ok(())
    }

    /// Declares our MaxRecvDataSegmentLength, once per connection.
    pub fn declare_recv_segment_len(&mut self, out: &mut TextBuf) -> Result<(), NegotiationViolation> {
        if !self.declared {
            self.declared = true;
            out.push_number("MaxRecvDataSegmentLength", self.limits.mrdsl.into())?;
            match self.role {
                Role::Initiator => self.params.initiator_mrdsl = self.limits.mrdsl,
                Role::Target => self.params.target_mrdsl = self.limits.mrdsl,
            }
        }
        Ok(())
    }

    /// Proposes every operational key, as an initiator does in its first operational text.
    pub fn propose_all(&mut self, out: &mut TextBuf) -> Result<(), NegotiationViolation> {
        self.declare_recv_segment_len(out)?;
        self.proposable_keys().try_for_each(|rule| self.propose(rule, out))
    }

    /// Proposes what the peer did not, where the default lies outside our limits; tells whether anything was. What was
    /// proposed and not answered is not proposed again.
    pub fn propose_needed(&mut self, out: &mut TextBuf) -> Result<bool, NegotiationViolation> {
        if !self.proposed.is_empty() {
            return Ok(false);
        }
        let mut any = false;
        for rule in self.proposable_keys() {
            if !self.seen.contains(rule.key) && !self.is_within_limits(rule) {
                self.propose(rule, out)?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Whether the values in force keep our limits without a proposal.
    #[must_use]
    pub fn values_within_limits(&self) -> bool {
        self.proposable_keys().all(|rule| self.is_within_limits(rule))
    }

    /// Ends the negotiation: every proposal that has more than one result must be answered, every value within
    /// our limits, and the keys consistent with each other.
    pub fn finish(&mut self) -> Result<(), NegotiationViolation> {
        for rule in self.proposable_keys() {
            let unanswered = self.proposed.contains(rule.key) && !self.is_settled_by_offer(rule);
            if unanswered || !self.is_within_limits(rule) {
                return Err(NegotiationViolation::NoAgreement(rule.key));
            }
        }
        let p = &self.params;
        // RFC 7143 §13.19: with recovery, sequences in order allow one R2T only.
        if p.erl > 0 && p.data_sequence_in_order && p.max_outstanding_r2t > 1 {
            return Err(NegotiationViolation::NoAgreement(Key::MaxOutstandingR2T));
        }
        // The rule above excepts sessions without unsolicited data; there the number must still be sane.
        self.params.first_burst = self.params.first_burst.min(self.params.max_burst);
        Ok(())
    }

    /// Whether our offer left only one result, so that its answer is optional: No to an AND, Yes to an OR
    /// (RFC 7143 §6.2.2). That result is put in force.
    fn is_settled_by_offer(&mut self, rule: &KeyRule) -> bool {
        let KeyForm::Boolean { combine, param, limit } = rule.kind else { return false };
        let offer = limit(&self.limits);
        let settled = offer == (combine == ResultFunction::Max);
        if settled {
            *param(&mut self.params) = offer;
        }
        settled
    }

    /// The negotiated keys that mean something in this session and on this connection.
    fn proposable_keys(&self) -> impl Iterator<Item = &'static KeyRule> + use<> {
        let (session_type, login) = (self.params.session_type, self.login);
        KEY_RULES.iter().filter(move |rule| {
            let relevant = !rule.normal_only || session_type == SessionType::Normal;
            let allowed = !rule.leading_only || login == LoginKind::Leading;
            let negotiated = match rule.kind {
                KeyForm::Number { .. }
                | KeyForm::Boolean { .. }
                | KeyForm::Digest { .. }
                | KeyForm::Reporting { .. } => true,
                KeyForm::Auth | KeyForm::Declared | KeyForm::SegmentLength | KeyForm::Obsolete(_) => false,
            };
            relevant && allowed && negotiated
        })
    }

    fn propose(&mut self, rule: &KeyRule, out: &mut TextBuf) -> Result<(), NegotiationViolation> {
        let value = match rule.kind {
            KeyForm::Number { .. } => self.number_limit(rule).to_string(),
            KeyForm::Boolean { limit, .. } => text::yes_no(limit(&self.limits)).to_owned(),
            KeyForm::Digest { limit, .. } => join_names(limit(&self.limits), Digest::name),
            KeyForm::Reporting { limit, .. } => join_names(limit(&self.limits), TaskReporting::name),
            KeyForm::Auth | KeyForm::Declared | KeyForm::SegmentLength | KeyForm::Obsolete(_) => {
                return Ok(());
            }
        };
        self.proposed.insert(rule.key);
        Ok(out.push(rule.name, &value)?)
    }

    /// Whether the value in force is one that our limits allow.
    fn is_within_limits(&self, rule: &KeyRule) -> bool {
        let mut params = self.params.clone();
        match rule.kind {
            // The default in force is never above MaxBurstLength: only our own limit needs a proposal.
            KeyForm::Number { limit, .. } if rule.key == Key::FirstBurstLength => {
                let burst = params.first_burst.min(params.max_burst);
                !self.allows_unsolicited_data() || burst <= limit(&self.limits)
            }
            // Advice on reconnecting binds no memory of ours: not worth a round trip, or a refusal.
            KeyForm::Number { .. } if matches!(rule.key, Key::DefaultTime2Wait | Key::DefaultTime2Retain) => {
                true
            }
            KeyForm::Number { combine, param, .. } => match combine {
                ResultFunction::Min => *param(&mut params) <= self.number_limit(rule),
                ResultFunction::Max => *param(&mut params) >= self.number_limit(rule),
            },
            KeyForm::Boolean { combine, param, limit } => {
                let ours = limit(&self.limits);
                ours != (combine == ResultFunction::Max) || *param(&mut params) == ours
            }
            KeyForm::Digest { param, limit } => limit(&self.limits).contains(param(&mut params)),
            KeyForm::Reporting { param, limit } => limit(&self.limits).contains(param(&mut params)),
            KeyForm::Auth | KeyForm::Declared | KeyForm::SegmentLength | KeyForm::Obsolete(_) => true,
        }
    }

    fn allows_unsolicited_data(&self) -> bool {
        self.params.immediate_data || !self.params.initial_r2t
    }
}

fn number_within(value: &str, low: u32, high: u32) -> Option<u32> {
    let number = u32::try_from(text::parse_number(value).ok()?).ok()?;
    (low..=high).contains(&number).then_some(number)
}

fn first_common<T: Copy>(offer: &str, ours: &[T], name: fn(T) -> &'static str) -> Option<T> {
    text::split_list(offer).find_map(|word| ours.iter().copied().find(|value| name(*value) == word))
}

fn join_names<T: Copy>(values: &[T], name: fn(T) -> &'static str) -> String {
    values.iter().map(|value| name(*value)).collect::<Vec<_>>().join(",")
}
