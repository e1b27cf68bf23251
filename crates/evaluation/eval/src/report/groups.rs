//! What is shown in one chart: the systems that carried one kind of load under one setting.
//!
//! Invariant: a system has the same name and the same colour wherever it is shown.

use super::colour::SystemColour;
use crate::record::{Point, Record};

/// Systems under one kind of load and one setting, over sizes.
pub(super) struct LoadGroup<'a> {
    /// fio's word.
    pub(super) rw: &'a str,
    /// What sets it apart from other groups of the same kind; empty if nothing does.
    pub(super) setting: String,
    /// Sizes, ascending.
    pub(super) sizes: Vec<u64>,
    /// Its points.
    pub(super) points: Vec<&'a Point>,
}

impl LoadGroup<'_> {
    /// What it is called.
    pub(super) fn name(&self) -> String {
        let kind = load_kind_name(self.rw);
        if self.setting.is_empty() { kind } else { format!("{kind}, {}", self.setting) }
    }

    /// Its points of one size.
    pub(super) fn points_of_size(&self, bytes: u64) -> impl Iterator<Item = &Point> {
        self.points.iter().copied().filter(move |point| point.bytes == bytes)
    }

    /// The smallest and the largest size: where systems differ most.
    pub(super) fn smallest_and_largest(&self) -> Vec<u64> {
        let mut ends: Vec<u64> = self.sizes.first().into_iter().chain(self.sizes.last()).copied().collect();
        ends.dedup();
        ends
    }
}

/// `Random reads` for fio's `randread`.
pub(super) fn load_kind_name(rw: &str) -> String {
    match rw {
        "randread" => "Random reads".to_owned(),
        "randwrite" => "Random writes".to_owned(),
        "randrw" => "Random reads and writes".to_owned(),
        "read" => "Reads in order".to_owned(),
        "write" => "Writes in order".to_owned(),
        "rw" => "Reads and writes in order".to_owned(),
        other => other.to_owned(),
    }
}

type SettingKey<'a> = (&'a str, u32, u32, u32, &'a [(String, String)]);

fn setting_key(point: &Point) -> SettingKey<'_> {
    (&point.rw, point.mtu, point.connections, point.depth, &point.labels)
}

/// All groups of a record, in its order.
pub(super) fn load_groups(record: &Record) -> Vec<LoadGroup<'_>> {
    let varies = |differs: fn(&Point, &Point) -> bool| {
        record.points.first().is_some_and(|first| record.points.iter().any(|point| differs(first, point)))
    };
    let shows_mtu = varies(|a, b| a.mtu != b.mtu);
    let shows_connections = varies(|a, b| a.connections != b.connections);
    let shows_depth = varies(|a, b| a.depth != b.depth);
    let mut groups: Vec<LoadGroup<'_>> = Vec::new();
    for point in &record.points {
        let known = groups
            .iter_mut()
            .find(|group| group.points.first().is_some_and(|first| setting_key(first) == setting_key(point)));
        if let Some(group) = known {
            group.points.push(point);
            continue;
        }
        let mut words = Vec::new();
        if shows_mtu {
            words.push(point.link_name());
        }
        if shows_connections {
            words.push(format!("{} connections", point.connections));
        }
        if shows_depth {
            words.push(format!("{} in flight", point.depth));
        }
        words.extend(point.labels.iter().map(|(name, value)| format!("{name} {value}")));
        groups.push(LoadGroup {
            rw: &point.rw,
            setting: words.join(", "),
            sizes: Vec::new(),
            points: vec![point],
        });
    }
    for group in &mut groups {
        group.sizes = group.points.iter().map(|point| point.bytes).collect();
        group.sizes.sort_unstable();
        group.sizes.dedup();
    }
    groups
}

/// How systems are called: by what tells them apart.
pub(super) struct SystemNames {
    shows_initiator: bool,
    shows_protocol: bool,
    all: Vec<(String, SystemColour)>,
}

impl SystemNames {
    /// Of a record's systems.
    pub(super) fn of(record: &Record) -> SystemNames {
        let remote: Vec<&Point> = record.points.iter().filter(|point| point.is_networked_system()).collect();
        let differ = |of: fn(&Point) -> &str| {
            remote.first().is_some_and(|first| remote.iter().any(|point| of(point) != of(first)))
        };
        let mut names = SystemNames {
            shows_initiator: differ(|point| &point.initiator),
            shows_protocol: differ(|point| &point.protocol),
            all: Vec::new(),
        };
        for point in &record.points {
            let name = names.name_of(point);
            if !names.all.iter().any(|(known, _)| *known == name) {
                names.all.push((name, SystemColour::of(point)));
            }
        }
        names
    }

    /// A point's system.
    pub(super) fn name_of(&self, point: &Point) -> String {
        if point.protocol == "local" {
            return "local, no network".to_owned();
        }
        if point.is_ceiling() {
            // Its requester is always the bare one.
            return point.initiator.clone();
        }
        let mut name = point.target.clone();
        if self.shows_initiator {
            name = format!("{name} ← {}", point.initiator);
        }
        if self.shows_protocol {
            name = format!("{name}, {}", protocol_label(&point.protocol));
        }
        name
    }

    /// The colour of the system of this name.
    pub(super) fn colour(&self, name: &str) -> SystemColour {
        let known = self.all.iter().find(|(known, _)| known == name);
        known.map_or_else(|| SystemColour::of(&Point::default()), |(_, colour)| *colour)
    }

    /// All of them.
    pub(super) fn list(&self) -> Vec<&str> {
        self.all.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// How names are to be read.
    pub(super) fn legend(&self) -> &'static str {
        if self.shows_initiator { ", each as target ← initiator," } else { "" }
    }

    /// What is the same for all and therefore not in their names.
    pub(super) fn common_parts(&self, record: &Record) -> Vec<String> {
        let Some(point) = record.points.iter().find(|point| point.is_networked_system()) else {
            return Vec::new();
        };
        let mut words = Vec::new();
        if !self.shows_protocol {
            words.push(format!("over {}", protocol_label(&point.protocol)));
        }
        if !self.shows_initiator {
            words.push(format!("by the initiator {}", point.initiator));
        }
        words
    }
}

/// A protocol as people write it.
pub(super) fn protocol_label(name: &str) -> &str {
    match name {
        "iscsi" => "iSCSI",
        "nvme-tcp" => "NVMe/TCP",
        "tcp" => "plain TCP",
        "bare" => "TCP without a protocol",
        other => other,
    }
}
