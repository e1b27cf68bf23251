//! Colours of systems.
//!
//! Invariant: a colour follows from a system's names alone, so that it is the same in every report.

use crate::record::Point;

/// Hues of the style sheet.
const HUES: usize = 10;

/// The hue of each target that is known; others have one by their name.
const TARGET_HUES: [(&str, usize); 8] = [
    ("blockwire", 0),
    ("tgt", 1),
    ("istgt", 2),
    ("spdk-iscsi", 3),
    ("spdk-nvmf", 4),
    ("lio", 5),
    ("nvmet", 6),
    ("bare", 7),
];
/// What is local, without a network.
const LOCAL_HUE: usize = 8;

/// The shade of each initiator.
const INITIATOR_SHADES: [(&str, usize); 7] = [
    ("blockwire", 0),
    ("blockwire-polling", 1),
    ("libiscsi", 2),
    ("spdk", 2),
    ("kernel", 3),
    ("bare", 0),
    ("bare-polling", 1),
];
const OTHER_SHADES: usize = 4;

/// A system's colour: hue by its target, shade by its initiator, the shape of its marks by its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SystemColour {
    hue: usize,
    shade: usize,
    /// Whether its marks are square.
    pub(super) is_square: bool,
}

impl SystemColour {
    /// Of a point's system.
    pub(super) fn of(point: &Point) -> SystemColour {
        if point.protocol == "local" {
            return SystemColour { hue: LOCAL_HUE, shade: 0, is_square: false };
        }
        let known = |list: &[(&str, usize)], name: &str| {
            list.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
        };
        SystemColour {
            hue: known(&TARGET_HUES, &point.target).unwrap_or_else(|| name_hash(&point.target)),
            shade: known(&INITIATOR_SHADES, &point.initiator).unwrap_or(OTHER_SHADES),
            is_square: point.protocol == "nvme-tcp",
        }
    }

    /// Classes of a line.
    pub(super) fn stroke_classes(&self) -> String {
        format!("c{} v{}", self.hue, self.shade)
    }

    /// Classes of a shape that is filled.
    pub(super) fn fill_classes(&self) -> String {
        format!("f{} v{}", self.hue, self.shade)
    }

    /// Classes of a shape whose border is drawn and whose inside is pale.
    pub(super) fn outline_classes(&self) -> String {
        format!("c{0} shape s{0} v{1}", self.hue, self.shade)
    }
}

/// FNV-1a.
fn name_hash(name: &str) -> usize {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash as usize % HUES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::point;

    #[test]
    fn known_systems_have_colours_of_their_own() {
        let of = |target: &str, initiator: &str, protocol: &str| {
            let mut one = point(target, "randread", 4096, 1000);
            (one.initiator, one.protocol) = (initiator.into(), protocol.into());
            SystemColour::of(&one)
        };
        let mut all: Vec<SystemColour> =
            TARGET_HUES.iter().map(|(name, _)| of(name, "blockwire", "iscsi")).collect();
        all.push(of("", "blockwire", "local"));
        all.push(of("blockwire", "blockwire", "nvme-tcp"));
        all.extend(
            ["blockwire-polling", "libiscsi", "kernel", "fio"].map(|one| of("blockwire", one, "iscsi")),
        );
        for (at, one) in all.iter().enumerate() {
            assert!(all.iter().skip(at + 1).all(|other| other != one), "{one:?} twice");
        }
        assert_eq!(of("mine", "blockwire", "iscsi"), of("mine", "blockwire", "iscsi"));
    }
}
