//! The objects of a group and how they may change. A change is a function of the contents, so one that lost against
//! another's swap is worked out again on what stands then.
//!
//! Invariants: terms only grow; an instance that was expelled never joins again; a port number is given to one name,
//! a range of controller identifiers to one instance, a host identifier to one name at a time.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use volume::{PortId, Uuid};

use crate::codec::{Damage, Decoder, Encoder};
use crate::ids::{InstanceId, MapEpoch, Term};

/// How many instances the members object keeps, those included that are gone and may still be on the blocklist.
pub const INSTANCES_MAX: usize = 256;
/// How many of those one gateway may have, so that one that starts again and again leaves room for the others. At the
/// limit it joins when its earliest dead instance can be forgotten ([`Timing::orphan`](crate::Timing)).
pub const INSTANCES_PER_GATEWAY: usize = 16;
/// The longest name of a gateway, its address, or what a port number is given to, in bytes.
pub const NAME_MAX: usize = 512;
/// The longest description of where hosts reach a gateway, in bytes.
pub const PORTALS_MAX: usize = 4096;
/// How many host identifiers are bound at a time.
pub const HOSTS_MAX: usize = 4096;
/// Controller identifiers are given to instances in ranges of so many.
pub const CONTROLLER_RANGE: u16 = 64;
/// The last controller identifier (NVMe Base §5.1.13.2.1, CNTLID: FFF0h and above are reserved).
const CONTROLLER_LAST: u16 = 0xffef;
/// The longest configuration, in bytes.
pub const CONFIGURATION_MAX: usize = 8 << 20;

/// What an object of the store holds.
pub(crate) trait Object: Clone + Debug + Default {
    /// Tells the kinds of objects apart.
    const KIND: u8;
    /// A change that is asked for.
    type Edit: Clone + Debug;

    fn encode(&self, to: &mut Encoder);
    fn decode(from: &mut Decoder<'_>) -> Result<Self, Damage>;
    /// The contents after the change; `None` if there is nothing to change, or it is no longer allowed. `count` is
    /// how often the object has been changed so far.
    fn edited(&self, edit: &Self::Edit, count: u64) -> Option<Self>;
}

/// A list that names something twice contradicts itself.
fn unique<T: Ord>(mut names: impl Iterator<Item = T>) -> Result<(), Damage> {
    let mut seen = BTreeSet::new();
    if names.all(|name| seen.insert(name)) { Ok(()) } else { Err(Damage::Contents) }
}

/// Where an instance stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// It takes part.
    Joined,
    /// Others have found it lost, or its gateway has started again. It must not serve, and never joins again.
    Expelled,
}

/// An instance that is or was a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberEntry {
    /// Which.
    pub instance: InstanceId,
    /// The gateway whose run it is.
    pub gateway: Arc<str>,
    /// The gateway's state directory.
    pub state: Uuid,
    /// Where other members reach it.
    pub address: Arc<str>,
    /// Where hosts reach it, for discovery, as the world writes it; at most [`PORTALS_MAX`] bytes. Empty when it is gone.
    pub portals: Arc<str>,
    /// Where it stands.
    pub membership: Membership,
    /// Whether its groups are moved to others, and none to it.
    pub draining: bool,
}

impl MemberEntry {
    /// It takes part no longer, and hosts do not find it any more.
    fn expel(&mut self) {
        self.membership = Membership::Expelled;
        self.portals = "".into();
    }
}

/// [`ObjectName::Members`](crate::ObjectName).
#[derive(Clone, Debug, Default)]
pub(crate) struct Members(pub(crate) Vec<MemberEntry>);

#[derive(Clone, Debug)]
pub(crate) enum MembersEdit {
    /// An instance joins; earlier ones of its state directory are dead. One of the same name and another directory is
    /// not.
    Join(MemberEntry),
    /// A member has found another one lost.
    Expel { by: InstanceId, lost: InstanceId },
    /// A dead instance's entry has left the blocklist.
    Remove(InstanceId),
    /// A member is drained, or no longer.
    Drain { instance: InstanceId, on: bool },
}

impl Members {
    pub(crate) fn find(&self, instance: InstanceId) -> Option<&MemberEntry> {
        self.0.iter().find(|entry| entry.instance == instance)
    }

    pub(crate) fn membership(&self, instance: InstanceId) -> Option<Membership> {
        self.find(instance).map(|entry| entry.membership)
    }

    /// Whether another gateway takes part under the same name.
    pub(crate) fn names_another(&self, entry: &MemberEntry) -> bool {
        self.joined().any(|known| known.gateway == entry.gateway && known.state != entry.state)
    }

    /// Whether the gateway of this state directory must forget an instance before it may join again.
    pub(crate) fn has_all_of(&self, state: Uuid) -> bool {
        self.0.iter().filter(|entry| entry.state == state).count() >= INSTANCES_PER_GATEWAY
    }

    /// Members that take part, in the order in which they joined.
    pub(crate) fn joined(&self) -> impl Iterator<Item = &MemberEntry> {
        self.0.iter().filter(|entry| entry.membership == Membership::Joined)
    }

    pub(crate) fn expelled(&self) -> impl Iterator<Item = InstanceId> {
        let gone = self.0.iter().filter(|entry| entry.membership == Membership::Expelled);
        gone.map(|entry| entry.instance)
    }

    fn with(&self, instance: InstanceId, change: impl Fn(&mut MemberEntry)) -> Members {
        let mut next = self.clone();
        next.0.iter_mut().filter(|entry| entry.instance == instance).for_each(change);
        next
    }
}

impl Object for Members {
    const KIND: u8 = 1;
    type Edit = MembersEdit;

    fn encode(&self, to: &mut Encoder) {
        to.count(self.0.len());
        for entry in &self.0 {
            to.u64(entry.instance.0);
            to.text(&entry.gateway);
            to.array(&entry.state.0);
            to.text(&entry.address);
            to.text(&entry.portals);
            to.u8(u8::from(entry.membership == Membership::Expelled) | u8::from(entry.draining) << 1);
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, Damage> {
        let entries = from.list(INSTANCES_MAX, |from| {
            let instance = InstanceId(from.u64()?);
            let (gateway, state) = (from.text()?, Uuid(from.array()?));
            let (address, portals, flags) = (from.text()?, from.text()?, from.u8()?);
            if flags > 3 {
                return Err(Damage::Contents);
            }
            let membership = if flags & 1 == 0 { Membership::Joined } else { Membership::Expelled };
            let draining = flags & 2 != 0;
            Ok(MemberEntry { instance, gateway, state, address, portals, membership, draining })
        })?;
        unique(entries.iter().map(|entry| entry.instance))?;
        Ok(Members(entries))
    }

    fn edited(&self, edit: &MembersEdit, _: u64) -> Option<Self> {
        let joined = |instance| self.membership(instance) == Some(Membership::Joined);
        match edit {
            MembersEdit::Join(entry) => {
                let known = self.find(entry.instance).is_some() || self.names_another(entry);
                if known || self.0.len() >= INSTANCES_MAX || self.has_all_of(entry.state) {
                    return None;
                }
                let mut next = self.clone();
                let earlier = next.0.iter_mut().filter(|known| known.state == entry.state);
                earlier.for_each(MemberEntry::expel);
                next.0.push(entry.clone());
                Some(next)
            }
            MembersEdit::Expel { by, lost } => {
                (joined(*by) && joined(*lost)).then(|| self.with(*lost, MemberEntry::expel))
            }
            MembersEdit::Remove(gone) => (self.membership(*gone) == Some(Membership::Expelled))
                .then(|| Members(self.0.iter().filter(|entry| entry.instance != *gone).cloned().collect())),
            MembersEdit::Drain { instance, on } => {
                let changes = self.find(*instance).is_some_and(|entry| entry.draining != *on);
                changes.then(|| self.with(*instance, |entry| entry.draining = *on))
            }
        }
    }
}

/// [`ObjectName::Owner`](crate::ObjectName): who owns a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// Counts owners.
    pub term: Term,
    /// The owner in this term; `None` if the last one gave the group up.
    pub owner: Option<InstanceId>,
    /// The owner must not read or write before its client of the store has this map: all owners that were barred are
    /// barred in it.
    pub fence: MapEpoch,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum OwnerEdit {
    /// Takes the group from what was seen.
    Take { from: Ownership, by: InstanceId, fence: MapEpoch },
    /// The owner of this term gives the group to another, or up.
    HandOver { term: Term, from: InstanceId, to: Option<InstanceId>, fence: MapEpoch },
}

impl Object for Ownership {
    const KIND: u8 = 2;
    type Edit = OwnerEdit;

    fn encode(&self, to: &mut Encoder) {
        to.u64(self.term.0);
        to.u8(u8::from(self.owner.is_some()));
        to.u64(self.owner.unwrap_or_default().0);
        to.u64(self.fence.0);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, Damage> {
        let (term, owned, owner) = (Term(from.u64()?), from.u8()?, InstanceId(from.u64()?));
        let owner = match owned {
            0 => None,
            1 => Some(owner),
            _ => return Err(Damage::Contents),
        };
        Ok(Ownership { term, owner, fence: MapEpoch(from.u64()?) })
    }

    fn edited(&self, edit: &OwnerEdit, _: u64) -> Option<Self> {
        let term = Term(self.term.0 + 1);
        match *edit {
            OwnerEdit::Take { from, by, fence } => (self.term == from.term && self.owner == from.owner)
                .then(|| Ownership { term, owner: Some(by), fence: fence.max(self.fence) }),
            OwnerEdit::HandOver { term: is, from, to, fence } => (self.term == is
                && self.owner == Some(from))
            .then(|| Ownership { term, owner: to, fence: fence.max(self.fence) }),
        }
    }
}

/// A host identifier and whose it is.
#[derive(Clone, Debug)]
struct HostBinding {
    host: [u8; 16],
    nqn: Arc<str>,
    /// The instances at which the host is connected or registered.
    users: Vec<InstanceId>,
}

/// [`ObjectName::Allocations`](crate::ObjectName).
#[derive(Clone, Debug, Default)]
pub(crate) struct Allocations {
    /// Port numbers in the order in which they were given: the first is 1. None is ever taken back.
    ports: Vec<Arc<str>>,
    /// Who has each range that was given; the first begins at 1. `None`: its instance is dead and forgotten.
    ranges: Vec<Option<InstanceId>>,
    /// Ranges of dead instances, longest ago first.
    free: Vec<u16>,
    hosts: Vec<HostBinding>,
}

#[derive(Clone, Debug)]
pub(crate) enum AllocationsEdit {
    /// One more range for an instance that has so many.
    Range { instance: InstanceId, has: usize },
    /// A number for this port.
    Port(Arc<str>),
    /// This host identifier is used under this name at an instance. Uses by expelled instances end.
    Bind { host: [u8; 16], nqn: Arc<str>, user: InstanceId, expelled: Vec<InstanceId> },
    /// It is no longer used there.
    Release { host: [u8; 16], user: InstanceId },
    /// An instance is dead, and nothing of it is left.
    Forget(InstanceId),
}

impl Allocations {
    fn ranges_max() -> usize {
        usize::from(CONTROLLER_LAST / CONTROLLER_RANGE)
    }

    /// The first identifier of each range of an instance, in the order of the numbers.
    pub(crate) fn ranges_of(&self, instance: InstanceId) -> impl Iterator<Item = u16> {
        let its = self.ranges.iter().enumerate().filter(move |(_, who)| **who == Some(instance));
        its.map(|(at, _)| 1 + at as u16 * CONTROLLER_RANGE)
    }

    /// Who has the range of a controller identifier.
    pub(crate) fn instance_of(&self, cntlid: u16) -> Option<InstanceId> {
        let range = cntlid.checked_sub(1)? / CONTROLLER_RANGE;
        self.ranges.get(usize::from(range)).copied().flatten()
    }

    /// The number of a port.
    pub(crate) fn port(&self, name: &str) -> Option<PortId> {
        self.ports.iter().position(|known| **known == *name).map(|at| PortId(at as u16 + 1))
    }

    /// The name that a host identifier is used under, if it is used at `user`, or at others.
    pub(crate) fn nqn(&self, host: &[u8; 16], user: InstanceId) -> Option<(Arc<str>, bool)> {
        let binding = self.hosts.iter().find(|binding| binding.host == *host)?;
        Some((binding.nqn.clone(), binding.users.contains(&user)))
    }

    fn with_range(&self, instance: InstanceId, has: usize) -> Option<Self> {
        if self.ranges_of(instance).count() > has {
            return None;
        }
        let mut next = self.clone();
        if next.ranges.len() < Self::ranges_max() {
            next.ranges.push(Some(instance));
        } else {
            let range = (!next.free.is_empty()).then(|| next.free.remove(0))?;
            *next.ranges.get_mut(usize::from(range))? = Some(instance);
        }
        Some(next)
    }

    fn bound(&self, edit: &AllocationsEdit) -> Option<Self> {
        let AllocationsEdit::Bind { host, nqn, user, expelled } = edit else { return None };
        let mut next = self.clone();
        for binding in &mut next.hosts {
            binding.users.retain(|known| !expelled.contains(known));
        }
        next.hosts.retain(|binding| !binding.users.is_empty());
        let full = next.hosts.len() >= HOSTS_MAX;
        match next.hosts.iter_mut().find(|binding| binding.host == *host) {
            Some(binding) if binding.nqn != *nqn || binding.users.contains(user) => return None,
            Some(binding) => binding.users.push(*user),
            None if full => return None,
            None => next.hosts.push(HostBinding { host: *host, nqn: nqn.clone(), users: vec![*user] }),
        }
        Some(next)
    }

    fn without(&self, user: InstanceId, host: Option<&[u8; 16]>) -> Self {
        let mut next = self.clone();
        for binding in next.hosts.iter_mut().filter(|binding| host.is_none_or(|host| binding.host == *host)) {
            binding.users.retain(|known| *known != user);
        }
        next.hosts.retain(|binding| !binding.users.is_empty());
        next
    }
}

impl Object for Allocations {
    const KIND: u8 = 3;
    type Edit = AllocationsEdit;

    fn encode(&self, to: &mut Encoder) {
        to.count(self.ports.len());
        self.ports.iter().for_each(|name| to.text(name));
        to.count(self.ranges.len());
        self.ranges.iter().for_each(|instance| to.u64(instance.unwrap_or_default().0));
        to.count(self.free.len());
        self.free.iter().for_each(|range| to.u16(*range));
        to.count(self.hosts.len());
        for binding in &self.hosts {
            to.array(&binding.host);
            to.text(&binding.nqn);
            to.count(binding.users.len());
            binding.users.iter().for_each(|user| to.u64(user.0));
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, Damage> {
        let ports = from.list(usize::from(u16::MAX), Decoder::text)?;
        let ranges = from.list(Self::ranges_max(), |from| {
            Ok(Some(InstanceId(from.u64()?)).filter(|instance| *instance != InstanceId::default()))
        })?;
        let free = from.list(ranges.len(), Decoder::u16)?;
        unique(free.iter())?;
        unique(ports.iter())?;
        if free.iter().any(|range| ranges.get(usize::from(*range)) != Some(&None)) {
            return Err(Damage::Contents);
        }
        let hosts = from.list(HOSTS_MAX, |from| {
            let (host, nqn) = (from.array()?, from.text()?);
            let users = from.list(INSTANCES_MAX, |from| from.u64().map(InstanceId))?;
            Ok(HostBinding { host, nqn, users })
        })?;
        unique(hosts.iter().map(|binding| binding.host))?;
        Ok(Allocations { ports, ranges, free, hosts })
    }

    fn edited(&self, edit: &AllocationsEdit, _: u64) -> Option<Self> {
        match edit {
            AllocationsEdit::Range { instance, has } => self.with_range(*instance, *has),
            AllocationsEdit::Port(name) => {
                let room = self.ports.len() < usize::from(u16::MAX) && self.port(name).is_none();
                room.then(|| {
                    let mut next = self.clone();
                    next.ports.push(name.clone());
                    next
                })
            }
            AllocationsEdit::Bind { .. } => self.bound(edit),
            AllocationsEdit::Release { host, user } => {
                self.nqn(host, *user).is_some_and(|(_, used)| used).then(|| self.without(*user, Some(host)))
            }
            AllocationsEdit::Forget(gone) => {
                let mut next = self.without(*gone, None);
                for (range, who) in next.ranges.iter_mut().enumerate().filter(|(_, who)| **who == Some(*gone))
                {
                    *who = None;
                    next.free.push(range as u16);
                }
                (next.free.len() > self.free.len() || next.hosts.len() < self.hosts.len()).then_some(next)
            }
        }
    }
}

/// [`ObjectName::Configuration`](crate::ObjectName): its version is how often it has been changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Configuration(pub(crate) Arc<[u8]>);

#[derive(Clone, Debug)]
pub(crate) struct ConfigurationEdit {
    /// The version that it replaces; `None`: whichever stands.
    pub(crate) base: Option<u64>,
    pub(crate) bytes: Arc<[u8]>,
}

impl Object for Configuration {
    const KIND: u8 = 4;
    type Edit = ConfigurationEdit;

    fn encode(&self, to: &mut Encoder) {
        to.bytes(&self.0);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, Damage> {
        from.bytes().map(|bytes| Configuration(bytes.into()))
    }

    fn edited(&self, edit: &ConfigurationEdit, count: u64) -> Option<Self> {
        edit.base.is_none_or(|base| base == count).then(|| Configuration(edit.bytes.clone()))
    }
}

/// [`ObjectName::Record`](crate::ObjectName): the record of a volume, as `volume::VolumeOwner` writes and reads it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    /// The term that wrote it last.
    term: Term,
    pub(crate) bytes: Arc<[u8]>,
}

#[derive(Clone, Debug)]
pub(crate) struct RecordEdit {
    pub(crate) term: Term,
    /// The volume's number for this store.
    pub(crate) ticket: u64,
    pub(crate) bytes: Arc<[u8]>,
}

impl Object for Record {
    const KIND: u8 = 5;
    type Edit = RecordEdit;

    fn encode(&self, to: &mut Encoder) {
        to.u64(self.term.0);
        to.bytes(&self.bytes);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self, Damage> {
        Ok(Record { term: Term(from.u64()?), bytes: from.bytes()?.into() })
    }

    /// A later owner's record is not written over.
    fn edited(&self, edit: &RecordEdit, _: u64) -> Option<Self> {
        (self.term <= edit.term).then(|| Record { term: edit.term, bytes: edit.bytes.clone() })
    }
}
