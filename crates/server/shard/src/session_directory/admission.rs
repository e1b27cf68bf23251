//! What a login asks of the directory, and which logins a session takes: to replace it, or to join it.
//!
//! Invariant: a name is only a claim; who may replace or join is decided by rule and user.

use std::sync::Arc;

use endpoint::{AcceptedSocket, ShardId};
use iscsi::wire::{Cid, Isid, Tsih};

use crate::exports::ShardPreference;

/// What names a session (RFC 7143 §6.3.1): judged per initiator, target and portal group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionName {
    /// The initiator's name, normalised.
    pub initiator: Arc<str>,
    /// Its ISID.
    pub isid: Isid,
    /// The target's name; empty for a discovery session.
    pub target: Arc<str>,
    /// The portal group that it came by.
    pub portal_group: u16,
}

/// By what connections of a session's initiator are let in, by the rules of now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchedRule {
    /// Which of the target's rules it is; `None`: the one for discovery.
    pub rule: Option<usize>,
    /// Whether it knows users.
    pub proves: bool,
}

/// The [`MatchedRule`] of a connection that came like this; `None`: it would not be let in.
pub type RuleLookup<'a> = &'a dyn Fn(&SessionName, &AcceptedSocket) -> Option<MatchedRule>;

/// What a login asks before its last response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionRequest {
    /// Who asks, to be answered: the shard and its own number for the login.
    pub from: (ShardId, u64),
    /// The session's name.
    pub name: SessionName,
    /// The TSIH that the initiator sent: 0 for a new session.
    pub tsih: Tsih,
    /// The connection's id.
    pub cid: Cid,
    /// What was negotiated as MaxConnections, for a new session.
    pub connections_max: u16,
    /// The CHAP name that it proved.
    pub user: Option<String>,
    /// How its connection came.
    pub accepted: AcceptedSocket,
    /// Where a new session may live, and where best.
    pub preference: ShardPreference,
}

/// The directory's answer to an [`AdmissionRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionReply {
    /// The login may end; its connection belongs to this session.
    Granted {
        /// The session's TSIH.
        tsih: Tsih,
        /// Where it lives, or shall live.
        shard: ShardId,
        /// Whether it is a new session.
        new: bool,
    },
    /// 020Ah.
    NoSuchSession,
    /// 0206h.
    TooManyConnections,
    /// 0202h: a session of this name is somebody else's.
    NotTheirs,
    /// 0302h.
    Full,
}

/// A session that exists, or is about to.
#[derive(Debug)]
pub(crate) struct SessionRecord {
    pub(crate) name: SessionName,
    pub(crate) shard: ShardId,
    /// Its connections, and how each came.
    pub(crate) connections: Vec<(Cid, AcceptedSocket)>,
    /// How the latest one came: what it is judged by while it has none.
    pub(crate) latest: AcceptedSocket,
    pub(crate) connections_max: u16,
    pub(crate) user: Option<String>,
    pub(crate) preference: ShardPreference,
    /// Shards that had no memory for it.
    pub(crate) refused: Vec<ShardId>,
    /// A login of the same name waits for this session's end.
    pub(crate) successor: Option<AdmissionRequest>,
}

impl SessionRecord {
    /// What lets its connections in.
    fn matched_rules(&self, rules: RuleLookup<'_>) -> Vec<Option<MatchedRule>> {
        let latest = self.connections.is_empty().then_some(&self.latest);
        let all = self.connections.iter().map(|(_, accepted)| accepted).chain(latest);
        all.map(|accepted| rules(&self.name, accepted)).collect()
    }

    /// Whether who claims its name may replace it: its like; or who came by the same rule and proved more, or all that
    /// the rule asks for now. What no rule lets in any more is nobody's.
    pub(super) fn may_be_replaced_by(&self, request: &AdmissionRequest, rules: RuleLookup<'_>) -> bool {
        let Some(new) = rules(&request.name, &request.accepted) else { return false };
        let matched_rules = self.matched_rules(rules);
        if matched_rules.iter().all(Option::is_none) {
            return true;
        }
        let of_one_rule = matched_rules.iter().flatten().any(|old| old.rule == new.rule);
        of_one_rule && (self.user == request.user || self.user.is_none() || !new.proves)
    }

    /// Whether a connection that claims its name may join it: its like only.
    pub(super) fn may_be_joined_by(&self, request: &AdmissionRequest, rules: RuleLookup<'_>) -> bool {
        let Some(new) = rules(&request.name, &request.accepted) else { return false };
        let of_one_rule = |old: &Option<MatchedRule>| old.is_some_and(|old| old.rule == new.rule);
        self.user == request.user && self.matched_rules(rules).iter().all(of_one_rule)
    }
}
