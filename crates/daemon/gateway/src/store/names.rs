//! The names of a group's objects in its pool, and how a change of one is told.

use group::{GroupId, GroupName, InstanceId, ObjectName};
use volume::Uuid;

/// The object of a part of the group's state.
pub(crate) fn object(group: &GroupName, name: ObjectName) -> String {
    let part = match name {
        ObjectName::Members => "members".to_owned(),
        ObjectName::Configuration => "configuration".to_owned(),
        ObjectName::Allocations => "allocations".to_owned(),
        ObjectName::Owner(GroupId(number)) => format!("owner.{number}"),
        ObjectName::Record(Uuid(bytes)) => format!("record.{:032x}", u128::from_be_bytes(bytes)),
    };
    format!("blockwire.{group}.{part}")
}

/// Where an instance has left the addresses by which it can be barred.
pub(crate) fn addresses(group: &GroupName, instance: InstanceId) -> String {
    format!("blockwire.{group}.instance.{instance}")
}

/// What all members watch.
pub(crate) fn notices(group: &GroupName) -> String {
    format!("blockwire.{group}.notices")
}

/// The key of the links between gateways.
pub(crate) fn key(group: &GroupName) -> String {
    format!("blockwire.{group}.key")
}

/// An object's name as a notification has it.
pub(crate) fn encode(name: ObjectName) -> Vec<u8> {
    match name {
        ObjectName::Members => vec![1],
        ObjectName::Configuration => vec![2],
        ObjectName::Allocations => vec![3],
        ObjectName::Owner(GroupId(number)) => [&[4], number.to_le_bytes().as_slice()].concat(),
        ObjectName::Record(Uuid(bytes)) => [&[5], bytes.as_slice()].concat(),
    }
}

/// `None`: another release, or another program, has notified.
pub(crate) fn decode(message: &[u8]) -> Option<ObjectName> {
    match message.split_first()? {
        (1, []) => Some(ObjectName::Members),
        (2, []) => Some(ObjectName::Configuration),
        (3, []) => Some(ObjectName::Allocations),
        (4, number) => Some(ObjectName::Owner(GroupId(u32::from_le_bytes(number.try_into().ok()?)))),
        (5, bytes) => Some(ObjectName::Record(Uuid(bytes.try_into().ok()?))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_has_a_name_of_its_own_and_is_told_by_it() {
        let group: GroupName = "g".parse().unwrap();
        let names = [
            ObjectName::Members,
            ObjectName::Configuration,
            ObjectName::Allocations,
            ObjectName::Owner(GroupId(0)),
            ObjectName::Owner(GroupId(70_000)),
            ObjectName::Record(Uuid([0; 16])),
            ObjectName::Record(Uuid([0xf1; 16])),
        ];
        let mut objects: Vec<String> = names.iter().map(|name| object(&group, *name)).collect();
        objects.extend([notices(&group), key(&group), addresses(&group, InstanceId(7))]);
        objects.sort();
        objects.dedup();
        assert_eq!(objects.len(), names.len() + 3);
        for name in names {
            assert_eq!(decode(&encode(name)), Some(name));
        }
        for wrong in [&b""[..], b"\0", b"\x06", b"\x01\0", b"\x04\0\0\0", b"\x05123456789abcdefgh"] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
