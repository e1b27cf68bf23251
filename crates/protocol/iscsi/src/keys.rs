//! The table of all text keys (RFC 7143 §13 and §12, RFC 7144): who may send each, when, and how it is
//! negotiated. [`negotiate`](crate::negotiate) applies this table and names no key itself.

use crate::params::{Digest, NegotiationLimits, Params, TaskReporting};

/// Every key that RFC 7143 names, those of CHAP included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are the keys, letter for letter")]
#[repr(u8)]
pub enum Key {
    AuthMethod,
    ChapA,
    ChapI,
    ChapC,
    ChapN,
    ChapR,
    InitiatorName,
    TargetName,
    SessionType,
    InitiatorAlias,
    TargetAlias,
    TargetAddress,
    TargetPortalGroupTag,
    NodeArchitecture,
    SendTargets,
    HeaderDigest,
    DataDigest,
    TaskReporting,
    MaxRecvDataSegmentLength,
    MaxConnections,
    MaxBurstLength,
    FirstBurstLength,
    DefaultTime2Wait,
    DefaultTime2Retain,
    MaxOutstandingR2T,
    ErrorRecoveryLevel,
    ProtocolLevel,
    InitialR2T,
    ImmediateData,
    DataPduInOrder,
    DataSequenceInOrder,
    IfMarker,
    OfMarker,
    IfMarkInt,
    OfMarkInt,
}

/// A set of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeySet(u64);

impl KeySet {
    /// Adds a key; tells whether it was there already.
    pub fn insert(&mut self, key: Key) -> bool {
        let was = self.contains(key);
        self.0 |= 1 << key as u8;
        was
    }

    /// Takes a key out; tells whether it was there.
    pub fn remove(&mut self, key: Key) -> bool {
        let was = self.contains(key);
        self.0 &= !(1 << key as u8);
        was
    }

    /// Whether the key is in the set.
    #[must_use]
    pub fn contains(self, key: Key) -> bool {
        self.0 & 1 << key as u8 != 0
    }

    /// Whether no key is in the set.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Where a text is exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextPhase {
    /// SecurityNegotiation of the login.
    Security,
    /// LoginOperationalNegotiation.
    Operational,
    /// Text Requests of the full feature phase.
    FullFeature,
}

/// Which of two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The initiator.
    Initiator,
    /// The target.
    Target,
}

/// In which phases a key may appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPhases {
    /// SecurityNegotiation only.
    Security,
    /// Either stage of the login.
    AnyStage,
    /// LoginOperationalNegotiation only.
    Operational,
    /// Full feature phase only.
    FullFeature,
    /// LoginOperationalNegotiation and full feature phase.
    OperationalOrFullFeature,
    /// Everywhere.
    Always,
}

impl KeyPhases {
    /// Whether the phase is one of them.
    #[must_use]
    pub const fn contains(self, phase: TextPhase) -> bool {
        match self {
            KeyPhases::Security => matches!(phase, TextPhase::Security),
            KeyPhases::AnyStage => matches!(phase, TextPhase::Security | TextPhase::Operational),
            KeyPhases::Operational => matches!(phase, TextPhase::Operational),
            KeyPhases::FullFeature => matches!(phase, TextPhase::FullFeature),
            KeyPhases::OperationalOrFullFeature => {
                matches!(phase, TextPhase::Operational | TextPhase::FullFeature)
            }
            KeyPhases::Always => true,
        }
    }
}

/// How the two ends' values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultFunction {
    /// The smaller number; for booleans: Yes if both say Yes.
    Min,
    /// The larger number; for booleans: Yes if either says Yes.
    Max,
}

/// The form of a key's value and what becomes of it.
#[derive(Clone, Copy, Debug)]
pub enum KeyForm {
    /// Authentication: handled by the login itself.
    Auth,
    /// Says a fact, expects no answer; handled by the login or the text exchange.
    Declared,
    /// MaxRecvDataSegmentLength: each end declares its own.
    SegmentLength,
    /// A negotiated number within `low..=high`.
    #[expect(missing_docs, reason = "range, rule, place in Params, place in Limits")]
    Number {
        low: u32,
        high: u32,
        combine: ResultFunction,
        param: fn(&mut Params) -> &mut u32,
        limit: fn(&NegotiationLimits) -> u32,
    },
    /// A negotiated boolean.
    #[expect(missing_docs, reason = "rule, place in Params, place in Limits")]
    Boolean {
        combine: ResultFunction,
        param: fn(&mut Params) -> &mut bool,
        limit: fn(&NegotiationLimits) -> bool,
    },
    /// A digest: the first of the offer that the responder allows.
    #[expect(missing_docs, reason = "place in Params, place in Limits")]
    Digest { param: fn(&mut Params) -> &mut Digest, limit: fn(&NegotiationLimits) -> &[Digest] },
    /// TaskReporting: the first of the offer that the responder allows.
    #[expect(missing_docs, reason = "place in Params, place in Limits")]
    Reporting {
        param: fn(&mut Params) -> &mut TaskReporting,
        limit: fn(&NegotiationLimits) -> &[TaskReporting],
    },
    /// Markers, which RFC 7143 took away: always this answer, never NotUnderstood (§13.25). The booleans get
    /// No, since initiators that still offer No take nothing else.
    Obsolete(&'static str),
}

/// One row of the table.
#[derive(Debug)]
pub struct KeyRule {
    /// The key.
    pub key: Key,
    /// Its name on the wire.
    pub name: &'static str,
    /// The phases that it may appear in.
    pub when: KeyPhases,
    /// The only end that may send it, or `None` for both.
    pub sender: Option<Role>,
    /// Whether only the leading connection's login may carry it (use "LO").
    pub leading_only: bool,
    /// Whether it is irrelevant in discovery sessions.
    pub normal_only: bool,
    /// Form and outcome.
    pub kind: KeyForm,
}

const LEN_MAX: u32 = crate::wire::SEGMENT_LEN_MAX;

const fn key_rule(
    key: Key,
    name: &'static str,
    when: KeyPhases,
    sender: Option<Role>,
    kind: KeyForm,
) -> KeyRule {
    KeyRule { key, name, when, sender, leading_only: false, normal_only: false, kind }
}

/// A session-wide operational key: leading login only.
const fn session_wide_rule(key: Key, name: &'static str, kind: KeyForm) -> KeyRule {
    KeyRule { leading_only: true, ..key_rule(key, name, KeyPhases::Operational, None, kind) }
}

/// The same, irrelevant in discovery sessions.
const fn normal_session_rule(key: Key, name: &'static str, kind: KeyForm) -> KeyRule {
    KeyRule { normal_only: true, ..session_wide_rule(key, name, kind) }
}

macro_rules! number {
    ($low:literal..=$high:expr, $combine:ident, $field:ident) => {
        KeyForm::Number {
            low: $low,
            high: $high,
            combine: ResultFunction::$combine,
            param: |p| &mut p.$field,
            limit: |l| l.$field,
        }
    };
}

macro_rules! boolean {
    ($combine:ident, $field:ident) => {
        KeyForm::Boolean { combine: ResultFunction::$combine, param: |p| &mut p.$field, limit: |l| l.$field }
    };
}

use KeyForm::{Auth, Declared, Obsolete};
use Role::{Initiator, Target};

/// All keys. The order is that in which we propose; FirstBurstLength stands behind what it depends on.
pub static KEY_RULES: [KeyRule; 35] = [
    key_rule(Key::AuthMethod, "AuthMethod", KeyPhases::Security, None, Auth),
    key_rule(Key::ChapA, "CHAP_A", KeyPhases::Security, None, Auth),
    key_rule(Key::ChapI, "CHAP_I", KeyPhases::Security, None, Auth),
    key_rule(Key::ChapC, "CHAP_C", KeyPhases::Security, None, Auth),
    key_rule(Key::ChapN, "CHAP_N", KeyPhases::Security, None, Auth),
    key_rule(Key::ChapR, "CHAP_R", KeyPhases::Security, None, Auth),
    key_rule(Key::InitiatorName, "InitiatorName", KeyPhases::AnyStage, Some(Initiator), Declared),
    key_rule(Key::TargetName, "TargetName", KeyPhases::AnyStage, Some(Initiator), Declared),
    key_rule(Key::SessionType, "SessionType", KeyPhases::AnyStage, Some(Initiator), Declared),
    key_rule(Key::InitiatorAlias, "InitiatorAlias", KeyPhases::Always, Some(Initiator), Declared),
    key_rule(Key::TargetAlias, "TargetAlias", KeyPhases::Always, Some(Target), Declared),
    key_rule(Key::TargetAddress, "TargetAddress", KeyPhases::Always, Some(Target), Declared),
    key_rule(Key::TargetPortalGroupTag, "TargetPortalGroupTag", KeyPhases::AnyStage, Some(Target), Declared),
    key_rule(Key::NodeArchitecture, "X#NodeArchitecture", KeyPhases::Always, None, Declared),
    key_rule(Key::SendTargets, "SendTargets", KeyPhases::FullFeature, Some(Initiator), Declared),
    key_rule(
        Key::HeaderDigest,
        "HeaderDigest",
        KeyPhases::Operational,
        None,
        KeyForm::Digest { param: |p| &mut p.header_digest, limit: |l| &l.header_digest },
    ),
    key_rule(
        Key::DataDigest,
        "DataDigest",
        KeyPhases::Operational,
        None,
        KeyForm::Digest { param: |p| &mut p.data_digest, limit: |l| &l.data_digest },
    ),
    normal_session_rule(
        Key::TaskReporting,
        "TaskReporting",
        KeyForm::Reporting { param: |p| &mut p.task_reporting, limit: |l| &l.task_reporting },
    ),
    key_rule(
        Key::MaxRecvDataSegmentLength,
        "MaxRecvDataSegmentLength",
        KeyPhases::OperationalOrFullFeature,
        None,
        KeyForm::SegmentLength,
    ),
    normal_session_rule(Key::MaxConnections, "MaxConnections", number!(1..=65535, Min, max_connections)),
    normal_session_rule(Key::InitialR2T, "InitialR2T", boolean!(Max, initial_r2t)),
    normal_session_rule(Key::ImmediateData, "ImmediateData", boolean!(Min, immediate_data)),
    normal_session_rule(Key::MaxBurstLength, "MaxBurstLength", number!(512..=LEN_MAX, Min, max_burst)),
    normal_session_rule(Key::FirstBurstLength, "FirstBurstLength", number!(512..=LEN_MAX, Min, first_burst)),
    session_wide_rule(Key::DefaultTime2Wait, "DefaultTime2Wait", number!(0..=3600, Max, time2wait)),
    session_wide_rule(Key::DefaultTime2Retain, "DefaultTime2Retain", number!(0..=3600, Min, time2retain)),
    normal_session_rule(
        Key::MaxOutstandingR2T,
        "MaxOutstandingR2T",
        number!(1..=65535, Min, max_outstanding_r2t),
    ),
    normal_session_rule(Key::DataPduInOrder, "DataPDUInOrder", boolean!(Max, data_pdu_in_order)),
    normal_session_rule(
        Key::DataSequenceInOrder,
        "DataSequenceInOrder",
        boolean!(Max, data_sequence_in_order),
    ),
    session_wide_rule(Key::ErrorRecoveryLevel, "ErrorRecoveryLevel", number!(0..=2, Min, erl)),
    normal_session_rule(Key::ProtocolLevel, "iSCSIProtocolLevel", number!(0..=31, Min, protocol_level)),
    key_rule(Key::IfMarker, "IFMarker", KeyPhases::Operational, None, Obsolete("No")),
    key_rule(Key::OfMarker, "OFMarker", KeyPhases::Operational, None, Obsolete("No")),
    key_rule(Key::IfMarkInt, "IFMarkInt", KeyPhases::Operational, None, Obsolete("Reject")),
    key_rule(Key::OfMarkInt, "OFMarkInt", KeyPhases::Operational, None, Obsolete("Reject")),
];

impl Key {
    /// Its name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        KEY_RULES.iter().find(|rule| rule.key == self).map_or("a key", |rule| rule.name)
    }
}

/// The row of a key's name, which is case sensitive.
#[must_use]
pub fn find_key_rule(name: &str) -> Option<&'static KeyRule> {
    KEY_RULES.iter().find(|rule| rule.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_one_row_and_one_bit() {
        let mut seen = KeySet::default();
        for rule in &KEY_RULES {
            assert!(!seen.insert(rule.key), "{} twice", rule.name);
            assert!(core::ptr::eq(find_key_rule(rule.name).unwrap(), rule));
        }
        assert!(find_key_rule("initiatorname").is_none());
        assert!(seen.remove(Key::OfMarkInt) && !seen.remove(Key::OfMarkInt) && !seen.is_empty());
    }
}
