//! NAA names of logical units, which are folded from UUIDs: UUIDs that differ, as those made by hand of one digit, may
//! give two volumes one name. Hosts take what has one name for one disk.

use std::collections::HashMap;

use scsi_server::{naa_locally_assigned, naa_registered_extended};
use uuid::Uuid;

/// Of those of these volumes that have a name in common, each with the first one that has it.
pub fn volumes_of_one_name<'a, N: Copy>(
    volumes: impl IntoIterator<Item = (N, &'a Uuid)>,
    oui: Option<[u8; 3]>,
) -> Vec<(N, N)> {
    let mut known: HashMap<Vec<u8>, N> = HashMap::new();
    let mut pairs = Vec::new();
    for (volume, uuid) in volumes {
        let name = match oui {
            Some(oui) => naa_registered_extended(oui, uuid.as_bytes()).to_vec(),
            None => naa_locally_assigned(uuid.as_bytes()).to_vec(),
        };
        match known.get(&name) {
            Some(first) => pairs.push((*first, volume)),
            None => drop(known.insert(name, volume)),
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_of_one_digit_give_one_name() {
        let ones = Uuid::from_bytes([0x11; 16]);
        let twos = Uuid::from_bytes([0x22; 16]);
        let other = Uuid::from_bytes(*b"\x5f\x3a\x1c\x99\x02\x7d\x4e\x01\x8b\x66\xf0\x0d\x12\x34\x56\x78");
        for oui in [None, Some([0, 0x50, 0xc2])] {
            let volumes = [("a", &ones), ("b", &other)];
            assert!(volumes_of_one_name(volumes, oui).is_empty());
        }
        let volumes = || [("a", &ones), ("b", &other), ("c", &twos)];
        assert_eq!(volumes_of_one_name(volumes(), None), [("a", "c")]);
        assert!(volumes_of_one_name(volumes(), Some([0, 0x50, 0xc2])).is_empty(), "other middles");
    }
}
