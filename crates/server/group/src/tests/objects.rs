//! Objects as bytes, and how they change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use buf::Time;
use volume::Uuid;

use crate::codec::{Damage, Decoder, Encoder};
use crate::failpoint::Failpoints;
use crate::ids::{InstanceId, MapEpoch, Term, Version};
use crate::object::{
    Allocations, AllocationsEdit, Configuration, ConfigurationEdit, INSTANCES_MAX, MemberEntry, Members,
    MembersEdit, Membership, Object, OwnerEdit, Ownership, Record, RecordEdit,
};
use crate::register::{Register, RegisterEvent};
use crate::store::{ObjectName, StoreQueue, StoreReply, StoreRequest};

fn entry(instance: u64, gateway: &str) -> MemberEntry {
    MemberEntry {
        instance: InstanceId(instance),
        gateway: gateway.into(),
        state: Uuid([gateway.as_bytes()[0]; 16]),
        address: "192.0.2.1:3262".into(),
        portals: "192.0.2.1:3260".into(),
        membership: Membership::Joined,
        draining: false,
    }
}

fn bytes<T: Object>(value: &T) -> Vec<u8> {
    let mut to = Encoder::new(T::KIND);
    value.encode(&mut to);
    to.finish()
}

fn read<T: Object>(bytes: &[u8]) -> Result<T, Damage> {
    let mut from = Decoder::open(bytes, T::KIND)?;
    let value = T::decode(&mut from)?;
    from.close()?;
    Ok(value)
}

/// The bytes come back as they are, and no change of them is taken for another object.
fn survives<T: Object>(value: &T) {
    let whole = bytes(value);
    assert_eq!(bytes(&read::<T>(&whole).expect("what was written is read")), whole);
    for at in 0..whole.len() {
        let mut wrong = whole.clone();
        wrong[at] ^= 1;
        assert!(read::<T>(&wrong).is_err(), "byte {at}");
        assert!(read::<T>(&whole[..at]).is_err(), "{at} bytes");
        // With a checksum that is right: refused, or an object that can be written.
        for bit in 0..8 {
            let mut other = whole[..whole.len() - 4].to_vec();
            if let Some(byte) = other.get_mut(at) {
                *byte ^= 1 << bit;
            }
            other.extend_from_slice(&buf::crc32c::crc32c(&other).to_le_bytes());
            if let Ok(value) = read::<T>(&other) {
                bytes(&value);
            }
        }
    }
}

/// A range that is free twice would be given to two.
#[test]
fn an_object_that_names_something_twice_is_refused() {
    let twice = Members(vec![entry(1, "a"), entry(1, "b")]);
    assert_eq!(read::<Members>(&bytes(&twice)).err(), Some(Damage::Contents));
    let mut to = Encoder::new(Allocations::KIND);
    to.count(0);
    to.count(1);
    to.u64(0);
    to.count(1);
    to.u16(0);
    to.count(0);
    let once = to.finish();
    assert!(read::<Allocations>(&once).is_ok());
    let mut to = Encoder::new(Allocations::KIND);
    to.count(0);
    to.count(2);
    to.u64(0);
    to.u64(0);
    to.count(2);
    to.u16(0);
    to.u16(0);
    to.count(0);
    assert_eq!(read::<Allocations>(&to.finish()).err(), Some(Damage::Contents));
}

#[test]
fn objects_survive_and_damage_is_noticed() {
    let members = Members(vec![entry(1, "a"), MemberEntry { draining: true, ..entry(2, "b") }]);
    survives(&members.edited(&MembersEdit::Expel { by: InstanceId(1), lost: InstanceId(2) }, 0).unwrap());
    survives(&Ownership { term: Term(7), owner: Some(InstanceId(3)), fence: MapEpoch(99) });
    survives(&Ownership::default());
    let user = InstanceId(5);
    let bind = AllocationsEdit::Bind { host: [9; 16], nqn: "nqn.a".into(), user, expelled: Vec::new() };
    let range = AllocationsEdit::Range { instance: user, has: 0 };
    let edits = [AllocationsEdit::Port("iqn.x".into()), range, bind];
    survives(&edits.iter().fold(Allocations::default(), |all, edit| all.edited(edit, 0).unwrap()));
    survives(&Configuration(Arc::from(*b"[group]")));
    let edit = RecordEdit { term: Term(2), ticket: 1, bytes: Arc::from(*b"BWPR") };
    survives(&Record::default().edited(&edit, 0).unwrap());
    assert_eq!(read::<Members>(&bytes(&Ownership::default())).err(), Some(Damage::Kind(2)));
}

/// The format is that of this test: a release reads what earlier ones wrote.
#[test]
fn an_owner_object_has_these_bytes() {
    let owner = Ownership { term: Term(2), owner: Some(InstanceId(0x0102)), fence: MapEpoch(3) };
    let body = [2, 0, 0, 0, 0, 0, 0, 0, 1, 2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
    let mut wanted = [b"BWGO\x01\x02".as_slice(), &body].concat();
    wanted.extend_from_slice(&buf::crc32c::crc32c(&wanted).to_le_bytes());
    assert_eq!(bytes(&owner), wanted);
}

#[test]
fn an_expelled_instance_expels_nobody_and_never_joins_again() {
    let members = Members(vec![entry(1, "a"), entry(2, "b")]);
    let (a, b) = (InstanceId(1), InstanceId(2));
    let after = members.edited(&MembersEdit::Expel { by: a, lost: b }, 0).unwrap();
    assert!(after.edited(&MembersEdit::Expel { by: b, lost: a }, 0).is_none());
    assert!(after.edited(&MembersEdit::Join(entry(2, "b")), 0).is_none());
    let again = after.edited(&MembersEdit::Join(entry(3, "a")), 0).unwrap();
    assert_eq!(again.membership(a), Some(Membership::Expelled), "a gateway runs once");
    assert!(again.edited(&MembersEdit::Remove(InstanceId(3)), 0).is_none(), "it runs");
    let other = MemberEntry { state: Uuid([1; 16]), ..entry(4, "a") };
    assert!(again.edited(&MembersEdit::Join(other.clone()), 0).is_none() && again.names_another(&other));
    let full = Members((1..=INSTANCES_MAX as u64).map(|one| entry(one, &one.to_string())).collect());
    assert!(full.edited(&MembersEdit::Join(entry(9999, "new")), 0).is_none());
}

/// Ranges of dead instances are given again only when there is none that was never given, longest ago first.
#[test]
fn controller_identifiers_are_used_again_only_when_all_were_given() {
    let mut all = Allocations::default();
    let (mut seen, mut instance) = (BTreeSet::new(), 0);
    let range = |instance| AllocationsEdit::Range { instance: InstanceId(instance), has: 0 };
    loop {
        instance += 1;
        let Some(next) = all.edited(&range(instance), 0) else { break };
        all = next;
        let first: Vec<u16> = all.ranges_of(InstanceId(instance)).collect();
        assert_eq!(first.len(), 1);
        assert!(first[0] >= 1 && first[0] + 63 <= 0xffef, "{first:?}");
        let again = !seen.insert(first[0]);
        assert_eq!(again, instance > 1023, "{first:?} of {instance}");
        if instance == 5 || instance == 3 {
            all = all.edited(&AllocationsEdit::Forget(InstanceId(instance)), 0).unwrap();
        }
    }
    // Those of instances 3 and 5 came last, in this order.
    let last = |instance| all.ranges_of(InstanceId(instance)).collect::<Vec<_>>();
    assert_eq!((instance, last(1024), last(1025)), (1026, vec![1 + 2 * 64], vec![1 + 4 * 64]));
    survives_short(&all);
}

fn survives_short(all: &Allocations) {
    assert_eq!(bytes(&read::<Allocations>(&bytes(all)).unwrap()), bytes(all));
}

#[test]
fn a_later_owners_record_is_not_written_over() {
    let edit = |term| RecordEdit { term: Term(term), ticket: 0, bytes: Arc::from(*b"x") };
    let record = Record::default().edited(&edit(5), 0).unwrap();
    assert!(record.edited(&edit(4), 0).is_none());
    assert!(record.edited(&edit(5), 0).is_some());
    let take = OwnerEdit::Take { from: Ownership::default(), by: InstanceId(1), fence: MapEpoch(4) };
    let first = Ownership::default().edited(&take, 0).unwrap();
    assert_eq!((first.term, first.fence), (Term(1), MapEpoch(4)));
    assert!(first.edited(&take, 0).is_none(), "it was taken meanwhile");
}

/// A register and the store that it sees, by hand.
struct Hand {
    register: Register<Configuration>,
    store: StoreQueue,
}

impl Hand {
    fn new() -> Hand {
        let store = StoreQueue::new(InstanceId(1), Failpoints::default());
        let mut hand = Hand { register: Register::new(ObjectName::Configuration), store };
        hand.register.refresh(&mut hand.store);
        hand
    }

    /// Replies to the next request, which must be such a one; its bytes if it is a swap.
    fn reply(&mut self, reply: StoreReply) -> Vec<u8> {
        loop {
            let (ticket, request) = self.store.poll().expect("a request");
            let value = match request {
                StoreRequest::Swap { value, .. } => value,
                StoreRequest::Notify(_) => continue,
                _ => Vec::new(),
            };
            let retry = Duration::from_millis(200);
            self.register.handle_reply(Time(0), retry, &mut self.store, ticket, reply);
            return value;
        }
    }

    fn settled(&mut self) -> Option<Option<u64>> {
        while let Some(event) = self.register.poll_event() {
            if let RegisterEvent::Settled(_, wrote) = event {
                return Some(wrote);
            }
        }
        None
    }
}

/// A swap of unknown outcome is neither done nor failed: it is asked for again, and the object tells.
#[test]
fn a_swap_of_unknown_outcome_is_settled_by_the_object() {
    for landed in [true, false] {
        let mut hand = Hand::new();
        hand.reply(StoreReply::Contents { version: Version(0), value: Vec::new() });
        let edit = ConfigurationEdit { base: Some(0), bytes: Arc::from(*b"mine") };
        hand.register.change(&mut hand.store, edit);
        let mine = hand.reply(StoreReply::Unknown);
        assert_eq!(hand.settled(), None);
        hand.register.handle_timeout(Time(200_000_000), &mut hand.store);
        assert_eq!(hand.reply(StoreReply::Mismatch), mine, "the same again");
        assert_eq!(hand.settled(), None);
        let (stands, wrote) = if landed {
            (mine, Some(1))
        } else {
            // Another instance's.
            let mut other = Hand::new();
            other.store = StoreQueue::new(InstanceId(2), Failpoints::default());
            other.register.refresh(&mut other.store);
            other.reply(StoreReply::Contents { version: Version(0), value: Vec::new() });
            let edit = ConfigurationEdit { base: None, bytes: Arc::from(*b"other") };
            other.register.change(&mut other.store, edit);
            (other.reply(StoreReply::Unknown), None)
        };
        hand.reply(StoreReply::Contents { version: Version(1), value: stands });
        assert_eq!(hand.settled(), Some(wrote));
    }
}
