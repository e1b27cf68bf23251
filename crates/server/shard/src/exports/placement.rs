//! Where connections are served: the operator's rules that limit the shards on which a session or controller
//! may live, and the shard on whose processor the network card delivers a connection's data. Serving it there
//! avoids moving the data from cache to cache. A crowded core costs more than that, so balance comes first.

use std::sync::Arc;

use endpoint::{AcceptedSocket, ListenerId, ShardId};

use super::{Condition, Exports, Network};

/// How one of the shards is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementPolicy {
    /// The one on whose processor the connection's bytes come in (the network card's queue interrupts it),
    /// as long as that carries at most half as much again as the least loaded; else, and over loopback, the
    /// least loaded.
    #[default]
    Balanced,
    /// The one on whose processor the connection's bytes come in, whatever it carries; the least loaded if
    /// that is none of them.
    Queue,
    /// The one with the fewest sessions or controllers; queues of a controller go round them.
    LeastLoaded,
    /// Any of them, drawn for each session, controller and queue.
    Random,
}

/// A rule: who fits all of it is served where it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRule {
    /// The listeners that it is about; `None`: all.
    pub listeners: Option<Vec<ListenerId>>,
    /// Networks that peers come from; empty: any.
    pub sources: Vec<Network>,
    /// Names of initiators and NVMe hosts; `None`: any.
    pub peers: Option<Vec<Arc<str>>>,
    /// Names of targets and subsystems; `None`: any.
    pub destinations: Option<Vec<Arc<str>>>,
    /// What else must hold.
    pub when: Condition,
    /// Where: at least one, and each exists.
    pub shards: Arc<[ShardId]>,
    /// Which of them.
    pub bind: PlacementPolicy,
}

/// Who comes, and what for.
#[derive(Clone, Copy, Debug)]
pub struct PlacementQuery<'a> {
    /// By which connection.
    pub by: &'a AcceptedSocket,
    /// The initiator's or host's name.
    pub peer: &'a str,
    /// The target's or subsystem's name; empty for iSCSI discovery.
    pub destination: &'a str,
}

impl PlacementRule {
    fn matches(&self, query: &PlacementQuery<'_>) -> bool {
        let named = |names: &Option<Vec<Arc<str>>>, name: &str| {
            names.as_ref().is_none_or(|names| names.iter().any(|known| &**known == name))
        };
        self.listeners.as_ref().is_none_or(|listeners| listeners.contains(&query.by.listener))
            && (self.sources.is_empty() || self.sources.iter().any(|one| one.contains(query.by.peer.ip())))
            && named(&self.peers, query.peer)
            && named(&self.destinations, query.destination)
            && self.when.matches(query.by)
    }
}

/// Where somebody may be served, and where best.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardPreference {
    /// The shards that may; `None`: all.
    pub among: Option<Arc<[ShardId]>>,
    /// One of them: that on whose processor the bytes come in.
    pub queue: Option<ShardId>,
    /// It is to be that one, whatever it carries.
    pub strict: bool,
}

impl ShardPreference {
    fn allows(&self, shard: ShardId) -> bool {
        self.among.as_ref().is_none_or(|among| among.contains(&shard))
    }

    /// The shards that may, the best first, where each carries as much as `load` says. Of those that carry the
    /// same the one with the least `rank` comes first.
    pub(crate) fn ordered_shards(&self, load: &[u32], rank: impl Fn(ShardId) -> u32) -> Vec<ShardId> {
        let carries = |shard: ShardId| load.get(usize::from(shard.0)).copied().unwrap_or(0);
        let all = (0..load.len() as u16).map(ShardId);
        let mut order: Vec<ShardId> = all.filter(|shard| self.allows(*shard)).collect();
        order.sort_by_key(|shard| (carries(*shard), rank(*shard)));
        let Some(queue) = self.queue.filter(|queue| order.contains(queue)) else { return order };
        let (most, least) = (u64::from(carries(queue)), order.first().map_or(0, |shard| carries(*shard)));
        if self.strict || 2 * most <= 3 * u64::from(least) {
            order.retain(|shard| *shard != queue);
            order.insert(0, queue);
        }
        order
    }

    /// On how many shards, at least, so many things lie evenly if `shards` may carry them: what goes where its
    /// queue is may burden one more than others.
    pub(crate) fn effective_shard_count(&self, shards: u16) -> u16 {
        match (self.queue, self.strict) {
            (None, _) => shards,
            (Some(_), true) => 1,
            // The one that carries most has 3 parts where the others have 2 each.
            (Some(_), false) => ((2 * u32::from(shards) + 1) / 3).max(1) as u16,
        }
    }
}

/// How a shard was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementReason {
    /// It carried least; or it was a queue's turn, which go round.
    LeastLoaded,
    /// Drawn.
    Random,
    /// The bytes come in on its processor.
    Queue,
    /// It carried least, and that on whose processor the bytes come in far more.
    NotQueue,
}

/// By which rule, counted from 0, if one fits, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementOutcome {
    /// The rule.
    pub rule: Option<usize>,
    /// How.
    pub choice: PlacementReason,
}

impl PlacementQuery<'_> {
    /// Whether it is on this very machine.
    fn is_local(&self) -> bool {
        let peer = self.by.peer.ip().to_canonical();
        peer.is_loopback() || peer == self.by.local.ip().to_canonical()
    }
}

impl Exports {
    /// Which rule decides where this one is served: the first that fits.
    pub fn matching_rule_index(&self, query: &PlacementQuery<'_>) -> Option<usize> {
        self.placement.iter().position(|rule| rule.matches(query))
    }

    fn policy_of_rule(&self, rule: Option<usize>) -> PlacementPolicy {
        rule.and_then(|at| self.placement.get(at)).map_or(PlacementPolicy::default(), |rule| rule.bind)
    }

    /// Where somebody may be served, and where best, given a random number.
    pub(crate) fn shard_preference(&self, query: &PlacementQuery<'_>, draw: u64) -> ShardPreference {
        let rule = self.matching_rule_index(query);
        let among = rule.and_then(|at| self.placement.get(at)).map(|rule| rule.shards.clone());
        let mut preference = ShardPreference { among, ..ShardPreference::default() };
        let queue = || {
            let at = self.cores.iter().position(|core| Some(*core) == query.by.cpu)?;
            Some(ShardId(at as u16)).filter(|shard| preference.allows(*shard))
        };
        match self.policy_of_rule(rule) {
            PlacementPolicy::LeastLoaded => {}
            PlacementPolicy::Queue => (preference.queue, preference.strict) = (queue(), true),
            PlacementPolicy::Balanced if query.is_local() => {}
            PlacementPolicy::Balanced => preference.queue = queue(),
            PlacementPolicy::Random => {
                if let Some(shards) = &preference.among
                    && let Some(at) = draw.checked_rem(shards.len() as u64)
                    && let Some(shard) = shards.get(at as usize)
                {
                    preference.among = Some(Arc::from([*shard]));
                }
            }
        }
        preference
    }

    /// How it came to be served on this shard.
    pub(crate) fn placement_outcome(&self, query: &PlacementQuery<'_>, here: ShardId) -> PlacementOutcome {
        let rule = self.matching_rule_index(query);
        let choice = match (self.policy_of_rule(rule), self.shard_preference(query, 0).queue) {
            (PlacementPolicy::Random, _) => PlacementReason::Random,
            (_, Some(queue)) if queue == here => PlacementReason::Queue,
            (_, Some(_)) => PlacementReason::NotQueue,
            (_, None) => PlacementReason::LeastLoaded,
        };
        PlacementOutcome { rule, choice }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> PlacementRule {
        PlacementRule {
            listeners: None,
            sources: Vec::new(),
            peers: None,
            destinations: None,
            when: Condition::Always,
            shards: Arc::from([ShardId(1), ShardId(3)]),
            bind: PlacementPolicy::LeastLoaded,
        }
    }

    #[test]
    fn a_rule_fits_when_all_of_it_does() {
        let by = AcceptedSocket {
            listener: ListenerId(2),
            peer: "10.1.2.3:40000".parse().unwrap(),
            local: "10.1.2.4:3260".parse().unwrap(),
            cpu: None,
        };
        let query =
            PlacementQuery { by: &by, peer: "iqn.2026-11.test:a", destination: "iqn.2026-11.test:disk" };
        assert!(rule().matches(&query));
        let network = |address: &str| Network { address: address.parse().unwrap(), prefix: 8 };
        let all = PlacementRule {
            listeners: Some(vec![ListenerId(2)]),
            sources: vec![network("10.0.0.0")],
            peers: Some(vec!["iqn.2026-11.test:b".into(), "iqn.2026-11.test:a".into()]),
            destinations: Some(vec!["iqn.2026-11.test:disk".into()]),
            ..rule()
        };
        assert!(all.matches(&query));
        assert!(!PlacementRule { listeners: Some(vec![ListenerId(0)]), ..all.clone() }.matches(&query));
        assert!(!PlacementRule { sources: vec![network("11.0.0.0")], ..all.clone() }.matches(&query));
        let never = Condition::Any(Vec::new());
        assert!(!PlacementRule { when: never, ..all.clone() }.matches(&query));
        assert!(!PlacementRule { peers: Some(vec![]), ..all.clone() }.matches(&query));
        assert!(!all.matches(&PlacementQuery { destination: "", ..query }));
    }

    fn exports(rules: Vec<PlacementRule>) -> Exports {
        Exports {
            portals: Vec::new(),
            targets: Vec::new(),
            discovery_auth: iscsi::login::AuthPolicy::None,
            blocked: Default::default(),
            volume_limits: Default::default(),
            nvme: Default::default(),
            admission: Default::default(),
            placement: rules,
            cores: Arc::from([4, 5, 6, 7]),
            group: None,
        }
    }

    fn by(peer: &str, cpu: Option<u32>) -> AcceptedSocket {
        let end = |ip: &str| std::net::SocketAddr::new(ip.parse().unwrap(), 3260);
        AcceptedSocket { listener: ListenerId(0), peer: end(peer), local: end("10.1.2.4"), cpu }
    }

    fn preference(exports: &Exports, by: &AcceptedSocket, draw: u64) -> ShardPreference {
        exports.shard_preference(&PlacementQuery { by, peer: "", destination: "" }, draw)
    }

    fn placed(exports: &Exports, by: &AcceptedSocket, here: u16) -> PlacementOutcome {
        exports.placement_outcome(&PlacementQuery { by, peer: "", destination: "" }, ShardId(here))
    }

    #[test]
    fn random_takes_each_of_its_shards() {
        let random = exports(vec![PlacementRule { bind: PlacementPolicy::Random, ..rule() }]);
        let among = |draw| preference(&random, &by("10.1.2.3", Some(5)), draw).among.unwrap();
        assert_eq!((&*among(4), &*among(9)), (&[ShardId(1)][..], &[ShardId(3)][..]));
        let found = placed(&random, &by("10.1.2.3", Some(5)), 1);
        assert_eq!(found, PlacementOutcome { rule: Some(0), choice: PlacementReason::Random });
    }

    #[test]
    fn the_queue_is_looked_at_unless_a_rule_says_otherwise_or_it_is_of_this_machine() {
        let free = exports(Vec::new());
        let queue = |exports: &Exports, peer, cpu| preference(exports, &by(peer, cpu), 0).queue;
        assert_eq!(queue(&free, "10.1.2.3", Some(6)), Some(ShardId(2)));
        assert_eq!(queue(&free, "10.1.2.3", Some(0)), None, "none of the daemon's");
        assert_eq!(queue(&free, "10.1.2.3", None), None);
        for own in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.1.2.4"] {
            assert_eq!(queue(&free, own, Some(6)), None, "{own}");
        }
        let bound = |bind| exports(vec![PlacementRule { bind, ..rule() }]);
        assert_eq!(queue(&bound(PlacementPolicy::Balanced), "10.1.2.3", Some(5)), Some(ShardId(1)));
        assert_eq!(
            queue(&bound(PlacementPolicy::Balanced), "10.1.2.3", Some(6)),
            None,
            "not one of the rule's"
        );
        assert_eq!(queue(&bound(PlacementPolicy::LeastLoaded), "10.1.2.3", Some(5)), None);
        let strict = preference(&bound(PlacementPolicy::Queue), &by("127.0.0.1", Some(5)), 0);
        assert_eq!((strict.queue, strict.strict), (Some(ShardId(1)), true), "said so, over loopback too");
    }

    #[test]
    fn the_queue_s_shard_is_taken_while_balance_is_kept() {
        let mut preference = ShardPreference { queue: Some(ShardId(1)), ..ShardPreference::default() };
        let first = |preference: &ShardPreference, load: &[u32]| {
            preference.ordered_shards(load, |shard| u32::from(shard.0))[0].0
        };
        assert_eq!(first(&preference, &[0, 0, 0]), 1);
        assert_eq!(first(&preference, &[1, 1, 0]), 2, "an idle one goes before");
        assert_eq!(first(&preference, &[2, 3, 2]), 1, "half as much again");
        assert_eq!(first(&preference, &[2, 4, 2]), 0);
        assert_eq!(preference.ordered_shards(&[2, 3, 1], |_| 0), [2, 0, 1].map(ShardId));
        assert_eq!(
            (
                preference.effective_shard_count(1),
                preference.effective_shard_count(2),
                preference.effective_shard_count(4)
            ),
            (1, 1, 3)
        );
        preference.strict = true;
        assert_eq!(preference.ordered_shards(&[2, 9, 1], |_| 0), [1, 2, 0].map(ShardId));
        assert_eq!(preference.effective_shard_count(4), 1);
        preference = ShardPreference {
            among: Some(Arc::from([ShardId(0), ShardId(2)])),
            ..ShardPreference::default()
        };
        assert_eq!(preference.ordered_shards(&[5, 0, 7], |_| 0), [0, 2].map(ShardId));
        // All of one queue, and nothing else: the others are filled before it has twice as much.
        let (mut load, preference) =
            ([0; 4], ShardPreference { queue: Some(ShardId(3)), ..ShardPreference::default() });
        for _ in 0..100 {
            load[usize::from(first(&preference, &load))] += 1;
        }
        assert_eq!(load, [22, 22, 22, 34]);
    }
}
