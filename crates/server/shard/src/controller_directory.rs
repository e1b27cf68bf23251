//! The directory of NVMe controllers: which exist, on which shard each lives, and which host uses which
//! identifier.
//!
//! One shard keeps this directory, together with that of the iSCSI sessions. A Connect of an admin queue asks
//! it by message. Invariants: a controller's number is unique in the daemon, and modulo the number of shards
//! it is the controller's shard, so an I/O queue's Connect finds it without asking here. A number is not used
//! again before all others were. A gateway of a group gives only numbers that the group has given it, in ranges
//! ([`ControllerDirectory::add_range`]): they are unique among all gateways. While a host is connected to a subsystem, or registered with one of its
//! volumes, no other Host NQN is accepted with its identifier: cloned machines share identifiers, and a
//! preempt could not tell them apart.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use endpoint::ShardId;
use nvme::fabrics::ConnectNames;

use crate::exports::ShardPreference;
use crate::login_backoff;

/// The largest controller number: FFF0h and above are reserved (NVMe Base §5.17.2.1).
pub const CNTLID_MAX: u16 = 0xffef;

/// A gateway that has fewer numbers left than this asks its group for more.
const RANGE_LEFT_MIN: usize = 16;

/// What a Connect of an admin queue asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerRequest {
    /// Who asks, to be answered: the shard and its own number for the connection.
    pub from: (ShardId, u64),
    /// The subsystem's name.
    pub subsystem: Arc<str>,
    /// The host's name.
    pub host: Arc<str>,
    /// Its identifier; `None` for the discovery service, which binds none.
    pub host_id: Option<[u8; 16]>,
    /// How many controllers the subsystem may have.
    pub limit: u16,
    /// Where the connection comes from, and how many controllers of the subsystem that source may have.
    pub source: Option<(IpAddr, u16)>,
    /// Whether the host needs no proof of who it is, so that its identifier is bound at once. If not,
    /// `ControllerDirectory::count_and_bind_host` does it once the host has given that proof.
    pub binds: bool,
    /// Where it may live, and where best.
    pub preference: ShardPreference,
}

/// The directory's answer to a [`ControllerRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerReply {
    /// A new controller.
    Granted {
        /// Its number: 1 to [`CNTLID_MAX`].
        cntlid: u16,
        /// Where it shall live.
        shard: ShardId,
        /// The least that a shard has left to promise, in bytes, as far as is known: a controller's
        /// queues go round the shards, and each must have room for its part.
        left: u64,
    },
    /// The subsystem, or the daemon, has as many as it may.
    Full,
    /// The source has as many as it may.
    SourceFull,
    /// The identifier is that of the host of this name.
    Taken(Arc<str>),
}

#[derive(Debug)]
struct ControllerRecord {
    subsystem: Arc<str>,
    host: Arc<str>,
    host_id: Option<[u8; 16]>,
    /// How many controllers its subsystem may have.
    limit: u16,
    /// The source that it counts for.
    source: Option<IpAddr>,
    /// It counts among those, and its host's identifier is bound.
    bound: bool,
}

#[derive(Debug)]
struct HostIdBinding {
    host: Arc<str>,
    controllers: u32,
}

/// See the module.
#[derive(Debug)]
pub struct ControllerDirectory {
    entries: HashMap<u16, ControllerRecord>,
    bindings: HashMap<(Arc<str>, [u8; 16]), HostIdBinding>,
    counts: HashMap<Arc<str>, u32>,
    /// Controllers by subsystem and source, where that is bounded: also those that prove nothing.
    sources: HashMap<(Arc<str>, IpAddr), u32>,
    load: Vec<u32>,
    /// What each shard said last that it has left to promise.
    left: Vec<u64>,
    /// The number given last, by shard.
    last: Vec<u16>,
    /// The numbers that a group has given.
    ranges: Vec<RangeInclusive<u16>>,
    /// Only those are given.
    in_group: bool,
    /// More were asked for, and have not come.
    awaits_range: bool,
}

impl ControllerDirectory {
    /// An empty directory for a daemon of so many shards, at least 1.
    pub fn new(shards: u16) -> Self {
        assert!(shards > 0, "a daemon has a shard");
        ControllerDirectory {
            entries: HashMap::new(),
            bindings: HashMap::new(),
            counts: HashMap::new(),
            sources: HashMap::new(),
            load: vec![0; usize::from(shards)],
            left: vec![u64::MAX; usize::from(shards)],
            last: (0..shards).collect(),
            ranges: Vec::new(),
            in_group: false,
            awaits_range: true,
        }
    }

    /// Whether this is a gateway of a group. Its first range comes unasked.
    pub fn set_in_group(&mut self, in_group: bool) {
        self.in_group = in_group;
    }

    /// The group has given `count` numbers, from `first` on.
    pub fn add_range(&mut self, first: u16, count: u16) {
        let last = first.saturating_add(count.saturating_sub(1)).min(CNTLID_MAX);
        if count > 0 && first <= last {
            self.ranges.push(first..=last);
        }
        self.awaits_range = false;
    }

    /// Whether the group is to be asked for more numbers; told once, until some have come.
    pub fn wants_range(&mut self) -> bool {
        if !self.in_group || self.awaits_range {
            return false;
        }
        let is_free = |number: &u16| *number != 0 && !self.entries.contains_key(number);
        let free = self.ranges.iter().flat_map(|range| range.clone()).filter(is_free).count();
        self.awaits_range = free < RANGE_LEFT_MIN;
        self.awaits_range
    }

    /// Judges a claim. `registered` is the name that registrants of the subsystem's volumes with the same
    /// identifier bear, if there are any.
    pub fn admit(&mut self, request: &ControllerRequest, registered: Option<Arc<str>>) -> ControllerReply {
        if let Some(host) = self.bound_host_nqn(request).or(registered)
            && host != request.host
        {
            return ControllerReply::Taken(host);
        }
        if self.counts.get(&request.subsystem).is_some_and(|&count| count >= u32::from(request.limit)) {
            return ControllerReply::Full;
        }
        let source = request.source.map(|(from, limit)| (login_backoff::source_network(from), limit));
        if let Some((source, limit)) = source {
            let count = self.sources.get(&(request.subsystem.clone(), source)).copied().unwrap_or_default();
            if count >= u32::from(limit) {
                return ControllerReply::SourceFull;
            }
        }
        let Some((cntlid, shard)) = self.choose_shard_and_number(request.from.0, &request.preference) else {
            return ControllerReply::Full;
        };
        let source = source.map(|(source, _)| source);
        if let Some(source) = source {
            *self.sources.entry((request.subsystem.clone(), source)).or_default() += 1;
        }
        if let Some(load) = self.load.get_mut(usize::from(shard.0)) {
            *load += 1;
        }
        let (subsystem, host) = (request.subsystem.clone(), request.host.clone());
        let (host_id, limit) = (request.host_id, request.limit);
        self.entries
            .insert(cntlid, ControllerRecord { subsystem, host, host_id, limit, source, bound: false });
        if request.binds {
            self.count_and_bind_host(cntlid);
        }
        let left = self.left.iter().copied().min().unwrap_or(u64::MAX);
        ControllerReply::Granted { cntlid, shard, left }
    }

    /// Enters a controller of another process, whose host has proved who it is, if it must. It counts whatever the
    /// limit is.
    pub(crate) fn restore_controller(&mut self, cntlid: u16, names: &ConnectNames, limit: u16) {
        let shard = usize::from(cntlid) % self.load.len();
        if let Some(load) = self.load.get_mut(shard) {
            *load += 1;
        }
        if let Some(last) = self.last.get_mut(shard) {
            *last = cntlid.max(*last);
        }
        let record = ControllerRecord {
            subsystem: names.subsystem.as_str().into(),
            host: names.host.as_str().into(),
            host_id: Some(names.host_id.bytes()),
            limit,
            source: None,
            bound: true,
        };
        *self.counts.entry(record.subsystem.clone()).or_default() += 1;
        Self::bind_host_id(&mut self.bindings, &record);
        self.entries.insert(cntlid, record);
    }

    /// A shard says how much it has left to promise.
    pub fn note_memory_left(&mut self, shard: ShardId, left: u64) {
        if let Some(known) = self.left.get_mut(usize::from(shard.0)) {
            *known = left;
        }
    }

    /// Counts a controller, and binds the identifier of its host to its name, now that nobody else can be
    /// meant: strangers fill no subsystem, and keep no identifier from its owner. False: the identifier
    /// is another's by now, or there are enough, and the controller must end. Done twice, it is done once.
    pub fn count_and_bind_host(&mut self, cntlid: u16) -> bool {
        let Some(entry) = self.entries.get_mut(&cntlid) else { return true };
        if entry.bound {
            return true;
        }
        let count = self.counts.get(&entry.subsystem).copied().unwrap_or_default();
        if count >= u32::from(entry.limit) {
            return false;
        }
        if !Self::bind_host_id(&mut self.bindings, entry) {
            return false;
        }
        entry.bound = true;
        self.counts.insert(entry.subsystem.clone(), count + 1);
        true
    }

    fn bind_host_id(
        bindings: &mut HashMap<(Arc<str>, [u8; 16]), HostIdBinding>,
        entry: &ControllerRecord,
    ) -> bool {
        let Some(id) = entry.host_id else { return true };
        let fresh = || HostIdBinding { host: entry.host.clone(), controllers: 0 };
        let binding = bindings.entry((entry.subsystem.clone(), id)).or_insert_with(fresh);
        if binding.host != entry.host {
            return false;
        }
        binding.controllers += 1;
        true
    }

    fn bound_host_nqn(&self, request: &ControllerRequest) -> Option<Arc<str>> {
        let key = (request.subsystem.clone(), request.host_id?);
        self.bindings.get(&key).map(|binding| binding.host.clone())
    }

    /// A free number of the best shard, the asking one first of those that carry the same; of another if that
    /// has none.
    fn choose_shard_and_number(
        &mut self,
        near: ShardId,
        preference: &ShardPreference,
    ) -> Option<(u16, ShardId)> {
        let order = preference
            .ordered_shards(&self.load, |shard| if shard == near { 0 } else { 1 + u32::from(shard.0) });
        order.into_iter().find_map(|shard| Some((self.free_cntlid(shard.0)?, shard)))
    }

    /// Whether a controller of this number is this daemon's, and no other gateway's of its group.
    pub fn is_own_number(&self, cntlid: u16) -> bool {
        !self.in_group || self.ranges.iter().any(|range| range.contains(&cntlid))
    }

    fn free_cntlid(&mut self, shard: u16) -> Option<u16> {
        let shards = self.load.len() as u16;
        let mut number = *self.last.get(usize::from(shard))?;
        for _ in 0..=CNTLID_MAX / shards {
            number = match number.checked_add(shards) {
                Some(next) if next <= CNTLID_MAX => next,
                Some(_) | None => shard,
            };
            if number != 0 && self.is_own_number(number) && !self.entries.contains_key(&number) {
                *self.last.get_mut(usize::from(shard))? = number;
                return Some(number);
            }
        }
        None
    }

    /// The identifier that is bound to the name of a controller's host; `None`: none is, or none yet.
    pub fn bound_host_id(&self, cntlid: u16) -> Option<[u8; 16]> {
        self.entries.get(&cntlid).filter(|entry| entry.bound)?.host_id
    }

    /// The host of a controller, by identifier and name.
    pub fn host_of(&self, cntlid: u16) -> Option<([u8; 16], Arc<str>)> {
        let entry = self.entries.get(&cntlid)?;
        Some((entry.host_id?, entry.host.clone()))
    }

    /// A controller has ended, or never came to be.
    pub fn remove_controller(&mut self, cntlid: u16) {
        let Some(entry) = self.entries.remove(&cntlid) else { return };
        let shard = usize::from(cntlid) % self.load.len();
        if let Some(load) = self.load.get_mut(shard) {
            *load = load.saturating_sub(1);
        }
        if let Some(source) = entry.source {
            let key = (entry.subsystem.clone(), source);
            if let Some(count) = self.sources.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.sources.remove(&key);
                }
            }
        }
        if !entry.bound {
            return;
        }
        if let Some(count) = self.counts.get_mut(&entry.subsystem) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&entry.subsystem);
            }
        }
        let Some(id) = entry.host_id else { return };
        let key = (entry.subsystem, id);
        if let Some(binding) = self.bindings.get_mut(&key) {
            binding.controllers -= 1;
            if binding.controllers == 0 {
                self.bindings.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn request(host: &str, id: u8) -> ControllerRequest {
        ControllerRequest {
            from: (ShardId(1), 7),
            subsystem: "nqn.2026-11.test:disk".into(),
            host: host.into(),
            host_id: Some([id; 16]),
            limit: 3,
            source: None,
            binds: true,
            preference: ShardPreference::default(),
        }
    }

    fn granted(reply: ControllerReply) -> (u16, u16) {
        match reply {
            ControllerReply::Granted { cntlid, shard, .. } => (cntlid, shard.0),
            other => panic!("not granted: {other:?}"),
        }
    }

    #[test]
    fn a_number_tells_the_shard_and_comes_back_last() {
        let mut directory = ControllerDirectory::new(3);
        let (first, shard) = granted(directory.admit(&request("a", 1), None));
        assert_eq!((first % 3, shard), (1, 1), "the near shard, while no other is emptier");
        let (second, shard) = granted(directory.admit(&request("a", 1), None));
        assert_eq!((second % 3, shard), (0, 0));
        assert_ne!(second, 0);
        directory.remove_controller(first);
        let (third, shard) = granted(directory.admit(&request("a", 1), None));
        assert_eq!(shard, 1);
        assert_ne!(third, first, "a stale number names nobody for as long as can be");
    }

    #[test]
    fn a_gateway_gives_the_numbers_of_its_group_and_no_others() {
        let mut directory = ControllerDirectory::new(2);
        directory.set_in_group(true);
        let many = ControllerRequest { limit: 999, ..request("a", 1) };
        assert_eq!(directory.admit(&many, None), ControllerReply::Full, "none has been given");
        assert!(!directory.wants_range(), "the first comes unasked");
        directory.add_range(129, 64);
        let mut seen = HashSet::new();
        for given in 1..=64 {
            let (cntlid, shard) = granted(directory.admit(&many, None));
            assert!((129..=192).contains(&cntlid) && cntlid % 2 == shard && seen.insert(cntlid));
            assert_eq!(directory.wants_range(), given == 64 - 15, "{given}: asked for once");
        }
        assert_eq!(directory.admit(&many, None), ControllerReply::Full);
        directory.add_range(65_473, 64);
        for _ in 65_473..=CNTLID_MAX {
            let (cntlid, _) = granted(directory.admit(&many, None));
            assert!(cntlid >= 65_473 && seen.insert(cntlid));
        }
        assert_eq!(directory.admit(&many, None), ControllerReply::Full);
    }

    #[test]
    fn a_source_has_so_many_controllers_whatever_it_is_called() {
        let mut directory = ControllerDirectory::new(2);
        let from = |source: &str| ControllerRequest {
            host_id: None,
            limit: 99,
            binds: false,
            source: Some((source.parse().unwrap(), 2)),
            ..request("a", 1)
        };
        let (first, _) = granted(directory.admit(&from("2001:db8::1"), None));
        granted(directory.admit(&from("2001:db8::2"), None));
        assert_eq!(directory.admit(&from("2001:db8::3"), None), ControllerReply::SourceFull);
        granted(directory.admit(&from("2001:db8:0:1::1"), None));
        granted(directory.admit(&from("192.0.2.1"), None));
        granted(directory.admit(&from("192.0.2.2"), None));
        directory.remove_controller(first);
        directory.remove_controller(first);
        granted(directory.admit(&from("2001:db8::3"), None));
        assert_eq!(directory.admit(&from("2001:db8::4"), None), ControllerReply::SourceFull);
    }

    #[test]
    fn the_shard_with_the_least_memory_bounds_every_offer() {
        let mut directory = ControllerDirectory::new(3);
        let mut left = || match directory.admit(&ControllerRequest { limit: 99, ..request("a", 1) }, None) {
            ControllerReply::Granted { left, .. } => left,
            other => panic!("not granted: {other:?}"),
        };
        assert_eq!(left(), u64::MAX, "nothing is known yet");
        for (shard, said, least) in [(0, 900, 900), (2, 500, 500), (1, 700, 500), (2, 800, 700), (9, 1, 700)]
        {
            directory.note_memory_left(ShardId(shard), said);
            let request = ControllerRequest { limit: 99, ..request("a", 1) };
            let reply = directory.admit(&request, None);
            assert!(matches!(reply, ControllerReply::Granted { left, .. } if left == least));
        }
    }

    #[test]
    fn a_rule_narrows_down_where_controllers_live() {
        let mut directory = ControllerDirectory::new(4);
        let among: Option<Arc<[ShardId]>> = Some(Arc::from([ShardId(2), ShardId(3)]));
        for want in [2, 3, 2] {
            let request = ControllerRequest {
                preference: ShardPreference { among: among.clone(), ..ShardPreference::default() },
                ..request("a", 1)
            };
            let (cntlid, shard) = granted(directory.admit(&request, None));
            assert_eq!((cntlid % 4, shard), (want, want));
        }
    }

    #[test]
    fn a_subsystem_has_so_many_controllers() {
        let mut directory = ControllerDirectory::new(2);
        let ids: Vec<_> = (0..3).map(|_| granted(directory.admit(&request("a", 1), None)).0).collect();
        assert_eq!(directory.admit(&request("a", 1), None), ControllerReply::Full);
        let other = ControllerRequest { subsystem: "nqn.2026-11.test:other".into(), ..request("a", 1) };
        granted(directory.admit(&other, None));
        directory.remove_controller(ids[1]);
        directory.remove_controller(ids[1]);
        granted(directory.admit(&request("a", 1), None));
        assert_eq!(directory.admit(&request("a", 1), None), ControllerReply::Full);
    }

    #[test]
    fn all_numbers_can_be_given_and_no_more() {
        let mut directory = ControllerDirectory::new(2);
        let many = ControllerRequest { limit: u16::MAX, ..request("a", 1) };
        let mut seen = HashSet::new();
        for _ in 0..CNTLID_MAX {
            let (cntlid, _) = granted(directory.admit(&many, None));
            assert!((1..=CNTLID_MAX).contains(&cntlid) && seen.insert(cntlid));
        }
        assert_eq!(directory.admit(&many, None), ControllerReply::Full);
        directory.remove_controller(12_345);
        assert_eq!(granted(directory.admit(&many, None)), (12_345, 1));
    }

    #[test]
    fn an_identifier_is_bound_by_those_who_prove_who_they_are() {
        let mut directory = ControllerDirectory::new(1);
        let unproven = |host| ControllerRequest { binds: false, limit: 9, ..request(host, 1) };
        let (thief, _) = granted(directory.admit(&unproven("a"), None));
        let (owner, _) = granted(directory.admit(&unproven("b"), None));
        let (later, _) = granted(directory.admit(&unproven("c"), None));
        assert!(
            directory.count_and_bind_host(owner) && directory.count_and_bind_host(owner),
            "a stranger's request keeps nobody out"
        );
        assert!(!directory.count_and_bind_host(thief) && !directory.count_and_bind_host(later));
        assert_eq!(directory.admit(&unproven("a"), None), ControllerReply::Taken("b".into()));
        directory.remove_controller(thief);
        directory.remove_controller(owner);
        assert!(directory.count_and_bind_host(later), "nobody bears it any more");
        let one = ControllerRequest { limit: 2, ..unproven("c") };
        let [second, third] = [0; 2].map(|_| granted(directory.admit(&one, None)).0);
        assert!(
            directory.count_and_bind_host(second) && !directory.count_and_bind_host(third),
            "strangers fill no subsystem"
        );
        assert_eq!(directory.admit(&one, None), ControllerReply::Full);
    }

    #[test]
    fn an_identifier_belongs_to_the_first_name_seen_with_it() {
        let mut directory = ControllerDirectory::new(1);
        let (cntlid, _) = granted(directory.admit(&request("a", 1), None));
        assert_eq!(directory.admit(&request("b", 1), None), ControllerReply::Taken("a".into()));
        granted(directory.admit(&request("b", 2), None));
        let elsewhere = ControllerRequest { subsystem: "nqn.2026-11.test:other".into(), ..request("b", 1) };
        granted(directory.admit(&elsewhere, None));
        directory.remove_controller(cntlid);
        // Nobody is connected any more, but a registration stands.
        let reply = directory.admit(&request("b", 1), Some("a".into()));
        assert_eq!(reply, ControllerReply::Taken("a".into()));
        granted(directory.admit(&request("a", 1), Some("a".into())));
        directory.remove_controller(2);
        let discovery = ControllerRequest { host_id: None, ..request("c", 9) };
        granted(directory.admit(&discovery, None));
    }
}
