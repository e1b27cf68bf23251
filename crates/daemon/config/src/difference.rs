//! What differs between two plans: by volume, portal, target, subsystem, host and section, each with what it means for
//! a daemon that runs.
//!
//! Invariants: the difference of a plan and itself is empty; `old.difference(new)` applied to `old` is `new`. No text
//! here holds a secret: of one that has changed only its key is named.

mod keys;

pub use keys::KeyChange;

use std::collections::{HashMap, HashSet};

use crate::{
    name::VolumeName,
    plan::{
        Auth, ConnectionPlacement, DaemonLimits, ExportPlan, GroupSettings, Host, IoEngine, Plan, Portal,
        Referral, SandboxSettings, Subsystem, Target, Volume,
    },
};

/// What has a name in a list of the plan, and is compared with what has the same name in the other.
pub trait Keyed: Clone + PartialEq {
    /// The name; what comes second by it is another.
    fn key(&self) -> String;
}

impl Keyed for Volume {
    fn key(&self) -> String {
        self.name.to_string()
    }
}

impl Keyed for Portal {
    fn key(&self) -> String {
        format!("{} {}", self.protocol.as_str(), self.address)
    }
}

impl Keyed for Target {
    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Keyed for Subsystem {
    fn key(&self) -> String {
        self.nqn.clone()
    }
}

impl Keyed for Host {
    fn key(&self) -> String {
        self.name.clone()
    }
}

/// The keys of a list, each once: a second `iscsi 127.0.0.1:0` is `iscsi 127.0.0.1:0 (2)`.
pub fn keys_of<T: Keyed>(list: &[T]) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut number = |key: String| {
        let count = seen.entry(key.clone()).and_modify(|count| *count += 1).or_insert(1);
        if *count == 1 { key } else { format!("{key} ({count})") }
    };
    list.iter().map(|one| number(one.key())).collect()
}

/// What differs between two lists.
#[derive(Clone, Debug, PartialEq)]
pub struct ListDifference<T> {
    /// What only the new one has.
    pub added: Vec<(String, T)>,
    /// What only the old one has.
    pub removed: Vec<(String, T)>,
    /// What both have, and not alike: as it was, and as it is.
    pub changed: Vec<(String, T, T)>,
    /// The keys of the new one in its order, where that does not follow from the above.
    pub order: Option<Vec<String>>,
}

impl<T> Default for ListDifference<T> {
    fn default() -> Self {
        ListDifference { added: Vec::new(), removed: Vec::new(), changed: Vec::new(), order: None }
    }
}

impl<T: Keyed> ListDifference<T> {
    fn of(old: &[T], new: &[T]) -> Self {
        let (old_keys, new_keys) = (keys_of(old), keys_of(new));
        let before: HashMap<&String, &T> = old_keys.iter().zip(old).collect();
        let after: HashSet<&String> = new_keys.iter().collect();
        let mut difference = ListDifference::default();
        for (key, one) in new_keys.iter().zip(new) {
            match before.get(key) {
                None => difference.added.push((key.clone(), one.clone())),
                Some(was) if *was != one => {
                    difference.changed.push((key.clone(), (*was).clone(), one.clone()));
                }
                Some(_) => {}
            }
        }
        let gone = old_keys.iter().zip(old).filter(|(key, _)| !after.contains(key));
        difference.removed = gone.map(|(key, one)| (key.clone(), one.clone())).collect();
        let kept = old_keys.iter().filter(|key| after.contains(key));
        let follows = kept.chain(difference.added.iter().map(|(key, _)| key)).eq(new_keys.iter());
        difference.order = (!follows).then_some(new_keys);
        difference
    }

    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty() && self.order.is_none()
    }

    /// The new list, from the old one.
    fn apply(&self, old: &[T]) -> Vec<T> {
        let gone: HashSet<&String> = self.removed.iter().map(|(key, _)| key).collect();
        let changed: HashMap<&String, &T> = self.changed.iter().map(|(key, _, new)| (key, new)).collect();
        let keys = keys_of(old);
        let kept = keys.iter().zip(old).filter(|(key, _)| !gone.contains(key));
        let kept = kept.map(|(key, one)| (key, *changed.get(key).unwrap_or(&one)));
        let all: Vec<(&String, &T)> = kept.chain(self.added.iter().map(|(key, one)| (key, one))).collect();
        let Some(order) = &self.order else { return all.into_iter().map(|(_, one)| one.clone()).collect() };
        let by_key: HashMap<&String, &T> = all.into_iter().collect();
        order.iter().filter_map(|key| by_key.get(key).map(|one| (*one).clone())).collect()
    }

    /// Whether what both lists have stands in another order.
    fn is_reordered(&self, old: &[T]) -> bool {
        let Some(order) = &self.order else { return false };
        let gone: HashSet<&String> = self.removed.iter().map(|(key, _)| key).collect();
        let new: HashSet<&String> = self.added.iter().map(|(key, _)| key).collect();
        let before = keys_of(old);
        !before.iter().filter(|key| !gone.contains(key)).eq(order.iter().filter(|key| !new.contains(key)))
    }
}

/// A value as it was, and as it is, if it is another.
type Replaced<T> = Option<(T, T)>;

fn replaced<T: Clone + PartialEq>(old: &T, new: &T) -> Replaced<T> {
    (old != new).then(|| (old.clone(), new.clone()))
}

fn applied<T: Clone>(replaced: &Replaced<T>, old: &T) -> T {
    replaced.as_ref().map_or(old, |(_, new)| new).clone()
}

/// What differs between two plans.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanDifference {
    /// Volumes.
    pub volumes: ListDifference<Volume>,
    /// Portals.
    pub portals: ListDifference<Portal>,
    /// iSCSI targets.
    pub targets: ListDifference<Target>,
    /// NVMe subsystems.
    pub subsystems: ListDifference<Subsystem>,
    /// Hosts. Their order counts: the first that matches decides.
    pub hosts: ListDifference<Host>,
    /// Whether hosts that both plans have stand in another order.
    pub hosts_reordered: bool,
    /// Other discovery services.
    pub referrals: Replaced<Vec<Referral>>,
    /// Rules of placement.
    pub placement: Replaced<Vec<ConnectionPlacement>>,
    /// Authentication that is not of one host.
    pub auth: Replaced<Auth>,
    /// Limits.
    pub limits: Replaced<DaemonLimits>,
    /// The name of this machine.
    pub node: Replaced<Option<VolumeName>>,
    /// Where metrics are served.
    pub http: Replaced<Option<std::net::SocketAddr>>,
    /// Who may look.
    pub control_group: Replaced<Option<String>>,
    /// The IEEE OUI.
    pub oui: Replaced<Option<[u8; 3]>>,
    /// What the daemon may use at most.
    pub sandbox: Replaced<SandboxSettings>,
    /// The gateways with which it serves images.
    pub group: Replaced<Option<GroupSettings>>,
    /// What only the command line says.
    pub command_line: Replaced<(bool, Vec<usize>, IoEngine)>,
}

impl Plan {
    /// What makes `new` of this plan.
    pub fn difference(&self, new: &Plan) -> PlanDifference {
        let hosts = ListDifference::of(&self.hosts, &new.hosts);
        PlanDifference {
            volumes: ListDifference::of(&self.volumes, &new.volumes),
            portals: ListDifference::of(&self.portals, &new.portals),
            targets: ListDifference::of(&self.ways.targets, &new.ways.targets),
            subsystems: ListDifference::of(&self.ways.subsystems, &new.ways.subsystems),
            hosts_reordered: hosts.is_reordered(&self.hosts),
            hosts,
            referrals: replaced(&self.referrals, &new.referrals),
            placement: replaced(&self.placement, &new.placement),
            auth: replaced(&self.auth, &new.auth),
            limits: replaced(&self.limits, &new.limits),
            node: replaced(&self.node, &new.node),
            http: replaced(&self.http, &new.http),
            control_group: replaced(&self.control_group, &new.control_group),
            oui: replaced(&self.oui, &new.oui),
            sandbox: replaced(&self.sandbox, &new.sandbox),
            group: replaced(&self.group, &new.group),
            command_line: replaced(&command_line(self), &command_line(new)),
        }
    }
}

fn command_line(plan: &Plan) -> (bool, Vec<usize>, IoEngine) {
    (plan.allow_anonymous, plan.cores.clone(), plan.io)
}

impl PlanDifference {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty()
            && self.portals.is_empty()
            && self.targets.is_empty()
            && self.subsystems.is_empty()
            && self.hosts.is_empty()
            && self.referrals.is_none()
            && self.placement.is_none()
            && self.auth.is_none()
            && self.limits.is_none()
            && self.node.is_none()
            && self.http.is_none()
            && self.control_group.is_none()
            && self.oui.is_none()
            && self.sandbox.is_none()
            && self.group.is_none()
            && self.command_line.is_none()
    }

    /// The new plan, from the old one.
    #[must_use]
    pub fn apply(&self, old: &Plan) -> Plan {
        let (allow_anonymous, cores, io) = applied(&self.command_line, &command_line(old));
        Plan {
            node: applied(&self.node, &old.node),
            http: applied(&self.http, &old.http),
            control_group: applied(&self.control_group, &old.control_group),
            volumes: self.volumes.apply(&old.volumes),
            portals: self.portals.apply(&old.portals),
            ways: ExportPlan {
                targets: self.targets.apply(&old.ways.targets),
                subsystems: self.subsystems.apply(&old.ways.subsystems),
            },
            referrals: applied(&self.referrals, &old.referrals),
            oui: applied(&self.oui, &old.oui),
            hosts: self.hosts.apply(&old.hosts),
            auth: applied(&self.auth, &old.auth),
            allow_anonymous,
            limits: applied(&self.limits, &old.limits),
            placement: applied(&self.placement, &old.placement),
            cores,
            io,
            sandbox: applied(&self.sandbox, &old.sandbox),
            group: applied(&self.group, &old.group),
        }
    }

    /// Each change, with what it means for a daemon that runs.
    pub fn changes(&self) -> Vec<Change> {
        let mut all = Vec::new();
        list(&mut all, Item::Volume, &self.volumes, &keys::Rules { added: Effect::None, of: keys::volume });
        list(&mut all, Item::Portal, &self.portals, &keys::Rules { added: Effect::None, of: keys::portal });
        list(&mut all, Item::Target, &self.targets, &keys::Rules { added: Effect::None, of: keys::target });
        let of = keys::subsystem;
        list(&mut all, Item::Subsystem, &self.subsystems, &keys::Rules { added: Effect::None, of });
        list(&mut all, Item::Host, &self.hosts, &keys::Rules { added: Effect::MayEnd, of: keys::host });
        if self.hosts_reordered {
            all.push(Change::section(Item::Host, "order", Effect::MayEnd, Vec::new()));
        }
        let mut section = |item, name: &str, keys: Vec<KeyChange>| {
            if !keys.is_empty() {
                all.push(Change::section(item, name, Effect::None, keys));
            }
        };
        section(Item::Section, "[auth]", self.auth.as_ref().map(keys::auth).unwrap_or_default());
        section(Item::Section, "[limits]", self.limits.as_ref().map(keys::limits).unwrap_or_default());
        section(Item::Section, "[[placement]]", whole(&self.placement, "rules", Effect::None));
        section(Item::Section, "[[referral]]", whole(&self.referrals, "list", Effect::None));
        section(Item::Section, "node", whole(&self.node, "node", Effect::None));
        let why = "the address of metrics is bound at start";
        section(Item::Section, "http", whole(&self.http, "http", Effect::Restart(why)));
        let why = "the control socket is bound at start";
        section(
            Item::Section,
            "control_group",
            whole(&self.control_group, "control_group", Effect::Restart(why)),
        );
        let why = "it is part of the identity of namespaces";
        section(Item::Section, "oui", whole(&self.oui, "oui", Effect::Restart(why)));
        let why = "a sandbox cannot be changed from within";
        section(Item::Section, "[sandbox]", whole(&self.sandbox, "sandbox", Effect::Restart(why)));
        let why = "a gateway joins its group at start";
        section(Item::Section, "[group]", whole(&self.group, "group", Effect::Restart(why)));
        let why = "it is an option of the command line";
        section(Item::Section, "command line", whole(&self.command_line, "options", Effect::Restart(why)));
        all
    }
}

/// A section that is compared as a whole.
fn whole<T>(replaced: &Replaced<T>, key: &'static str, effect: Effect) -> Vec<KeyChange> {
    let change = KeyChange { key, before: None, after: None, effect };
    replaced.iter().map(|_| change.clone()).collect()
}

fn list<T: Keyed>(all: &mut Vec<Change>, item: Item, difference: &ListDifference<T>, rules: &keys::Rules<T>) {
    let whole =
        |name: &String, action, effect| Change { item, name: name.clone(), action, keys: Vec::new(), effect };
    all.extend(difference.removed.iter().map(|(name, _)| whole(name, Action::Remove, Effect::MayEnd)));
    all.extend(difference.added.iter().map(|(name, _)| whole(name, Action::Add, rules.added)));
    all.extend(difference.changed.iter().map(|(name, old, new)| {
        let keys = (rules.of)(old, new);
        let effect = keys.iter().map(|key| key.effect).max().unwrap_or(Effect::None);
        Change { item, name: name.clone(), action: Action::Change, keys, effect }
    }));
}

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// A volume.
    Volume,
    /// A portal.
    Portal,
    /// An iSCSI target.
    Target,
    /// An NVMe subsystem.
    Subsystem,
    /// A host.
    Host,
    /// A section, or a key before the first table.
    Section,
}

impl Item {
    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Item::Volume => "volume",
            Item::Portal => "portal",
            Item::Target => "target",
            Item::Subsystem => "subsystem",
            Item::Host => "host",
            Item::Section => "section",
        }
    }
}

/// How it has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is new.
    Add,
    /// It is there no longer.
    Remove,
    /// Keys of it have other values.
    Change,
}

impl Action {
    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Add => "add",
            Action::Remove => "remove",
            Action::Change => "change",
        }
    }
}

/// What a change means for a daemon that runs, the mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// It is applied, and no connection notices.
    None,
    /// It is applied to connections that come later; those that stand keep what they have.
    Later,
    /// It is applied, and ends connections of hosts that may not be there any more, or takes volumes from them. Which
    /// these are, who knows the connections says.
    MayEnd,
    /// It cannot be applied while the daemon runs, and why.
    Restart(&'static str),
}

impl Effect {
    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Effect::None => "none",
            Effect::Later => "later-connections",
            Effect::MayEnd => "may-end-connections",
            Effect::Restart(_) => "restart",
        }
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What has changed.
    pub item: Item,
    /// Its name.
    pub name: String,
    /// How.
    pub action: Action,
    /// Which keys, of what was there before.
    pub keys: Vec<KeyChange>,
    /// What it means: the worst of its keys.
    pub effect: Effect,
}

impl Change {
    fn section(item: Item, name: &str, effect: Effect, keys: Vec<KeyChange>) -> Self {
        let worst = keys.iter().map(|key| key.effect).max().unwrap_or(effect).max(effect);
        Change { item, name: name.to_owned(), action: Action::Change, keys, effect: worst }
    }
}

#[cfg(test)]
mod tests;
