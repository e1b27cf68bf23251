use super::*;
use proptest::prelude::*;

fn written(f: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut out = [0xee; 1024];
    let mut w = Writer::new(&mut out);
    f(&mut w);
    let len = w.written_len();
    out[..len].to_vec()
}

const A: TransportId<'static> = TransportId { name: "iqn.a:one", isid: Some([0x80, 0, 0, 0, 0, 1]) };
const B: TransportId<'static> = TransportId { name: "iqn.a:two", isid: None };

fn head(flags: u8) -> Vec<u8> {
    let mut list = vec![0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 4, 0, 0, 0, 0];
    list.extend([flags, 0, 0, 0]);
    list
}

fn with_ports(flags: u8, ids: &[u8]) -> Vec<u8> {
    let mut list = head(flags);
    list.extend((ids.len() as u32).to_be_bytes());
    list.extend(ids);
    list
}

#[test]
fn plain_lists() {
    let list = head(0x05);
    let register = ReserveOutParameters::parse(PrOutAction::Register, &list).unwrap();
    let expected = ReserveOutParameters {
        key: 0x102,
        action_key: 0x304,
        all_target_ports: true,
        persist: true,
        initiator_ports: None,
    };
    assert_eq!(register, expected);
    assert_eq!(written(|w| register.encode(w)), head(0x05));
    let ignored = ReserveOutParameters { all_target_ports: false, persist: false, ..expected };
    assert_eq!(ReserveOutParameters::parse(PrOutAction::Preempt, &head(0x05)), Ok(ignored));
    assert_eq!(ReserveOutParameters::parse(PrOutAction::RegisterAndIgnore, &head(0x05)), Ok(expected));
}

#[test]
fn specified_initiator_ports() {
    let ids = written(|w| {
        A.encode(w);
        B.encode(w);
    });
    let list = with_ports(0x08, &ids);
    let parsed = ReserveOutParameters::parse(PrOutAction::Register, &list).unwrap();
    assert_eq!(parsed.initiator_ports.unwrap().iter().collect::<Vec<_>>(), [A, B]);
    assert_eq!(written(|w| parsed.encode(w)), list);
}

#[test]
fn refused_lists() {
    let parse = |action, list: &[u8]| ReserveOutParameters::parse(action, list).map(|_| ());
    let too_short = Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
    assert_eq!(parse(PrOutAction::Register, &head(0)[..23]), too_short);
    assert_eq!(parse(PrOutAction::Register, &[head(0), vec![0]].concat()), too_short);
    assert_eq!(parse(PrOutAction::Register, &head(0x08)), too_short);
    let not_here = Err(Sense::invalid_list_field(20, Some(3)));
    assert_eq!(parse(PrOutAction::RegisterAndIgnore, &with_ports(0x08, &[])), not_here);
    assert_eq!(parse(PrOutAction::Reserve, &with_ports(0x08, &[])), not_here);
    let ids = written(|w| A.encode(w));
    let mut lying = with_ports(0x08, &ids);
    lying[27] += 4;
    assert_eq!(parse(PrOutAction::Register, &lying), too_short);
    lying[24..28].fill(0xff);
    assert_eq!(parse(PrOutAction::Register, &lying), too_short);
    let mut inner = with_ports(0x08, &[&ids[..], &ids[..]].concat());
    let second = 28 + ids.len();
    inner[second + 3] += 4;
    assert_eq!(parse(PrOutAction::Register, &inner), Err(Sense::invalid_list_field(second, None)));
}

#[test]
fn register_and_move() {
    let list = RegisterAndMoveParameters {
        key: 1,
        action_key: 2,
        unregister: true,
        persist: true,
        relative_port: 0x304,
        initiator: A,
    };
    let bytes = written(|w| list.encode(w));
    assert_eq!(bytes[16..24], [0, 3, 3, 4, 0, 0, 0, 32]);
    assert_eq!(RegisterAndMoveParameters::parse(&bytes), Ok(list));
    for len in 0..bytes.len() {
        assert_eq!(RegisterAndMoveParameters::parse(&bytes[..len]), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
    }
    let mut other = bytes.clone();
    other[24] = 0x46;
    assert_eq!(RegisterAndMoveParameters::parse(&other), Err(Sense::invalid_list_field(24, None)));
    // A second TransportID.
    let mut two = bytes.clone();
    two.extend_from_within(24..);
    two[23] = 64;
    assert_eq!(RegisterAndMoveParameters::parse(&two), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
}

#[test]
fn scope_and_type() {
    assert_eq!(ReservationType::parse(0, 7), Ok(ReservationType::WRITE_EXCLUSIVE_ALL));
    assert_eq!(ReservationType::parse(1, 7), Err(Sense::invalid_cdb_field(2, Some(7))));
    for kind in [0, 2, 4, 9, 15] {
        assert_eq!(ReservationType::parse(0, kind), Err(Sense::invalid_cdb_field(2, Some(3))));
    }
}

#[test]
fn keys_and_reservation() {
    let keys = written(|w| encode_keys(7, [1, 2].into_iter(), w));
    assert_eq!(keys, [0, 0, 0, 7, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
    let (generation, decoded) = decode_keys(&keys[..20]).unwrap();
    assert_eq!((generation, decoded.collect::<Vec<_>>()), (7, vec![1]));
    let none = written(|w| encode_reservation(7, None, w));
    assert_eq!(none, [0, 0, 0, 7, 0, 0, 0, 0]);
    assert_eq!(decode_reservation(&none), Some((7, None)));
    let held = Reservation { key: 9, kind: ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS };
    let data = written(|w| encode_reservation(8, Some(held), w));
    assert_eq!(data[8..], [0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 6, 0, 0]);
    assert_eq!(data[4..8], [0, 0, 0, 16]);
    assert_eq!(decode_reservation(&data), Some((8, Some(held))));
    assert_eq!(decode_reservation(&data[..23]), None);
    // A key list cut by the allocation length keeps its length.
    let mut out = [0xee; 8];
    encode_keys(7, [1, 2].into_iter(), &mut Writer::new(&mut out));
    assert_eq!(out, [0, 0, 0, 7, 0, 0, 0, 16]);
}

#[test]
fn capabilities() {
    let all = Capabilities {
        compatible_reserve: true,
        specify_ports: true,
        all_target_ports: true,
        persist_capable: true,
        persist_active: true,
        allow_commands: 5,
    };
    let data = written(|w| all.encode(w));
    assert_eq!(data, [0, 8, 0x1d, 0xd1, 0xea, 1, 0, 0]);
    assert_eq!(Capabilities::decode(&data), Some(all));
}

#[test]
fn full_status() {
    let holder = FullStatusEntry {
        key: 0x11,
        holds: Some(ReservationType::WRITE_EXCLUSIVE),
        relative_port: Some(2),
        initiator: A,
    };
    let other = FullStatusEntry { key: 0x22, holds: None, relative_port: None, initiator: B };
    let data = written(|w| {
        let mut status = FullStatusWriter::start(5, w);
        status.push_entry(&holder);
        status.push_entry(&other);
        status.finish();
    });
    assert_eq!(data[..8], [0, 0, 0, 5, 0, 0, 0, 104]);
    assert_eq!(data[8..32], [0, 0, 0, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 32]);
    assert_eq!(TransportId::parse(&data[32..]).unwrap().0, A);
    assert_eq!(data[64..84], [0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(TransportId::parse(&data[88..]).unwrap().0, B);
    let entry = |e: FullStatusEntry<'static>| DecodedRegistration {
        key: e.key,
        holds: e.holds,
        relative_port: e.relative_port,
        initiator: Some(e.initiator),
    };
    let (generation, entries) = decode_full_status(&data).unwrap();
    assert_eq!((generation, entries.collect::<Vec<_>>()), (5, vec![entry(holder), entry(other)]));
    // Lengths that lie: what is whole is read, and no more.
    for len in 0..data.len() {
        let count = decode_full_status(&data[..len]).map_or(0, |(_, entries)| entries.count());
        assert_eq!(count, usize::from(len >= 64), "cut at {len}");
    }
    let mut lying = data.clone();
    lying[28..32].copy_from_slice(&[0xff; 4]);
    assert_eq!(decode_full_status(&lying).unwrap().1.count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_list_has_an_answer(list in proptest::collection::vec(any::<u8>(), 0..120)) {
        for action in [PrOutAction::Register, PrOutAction::Reserve, PrOutAction::RegisterAndIgnore] {
            let _ = ReserveOutParameters::parse(action, &list);
        }
        let _ = RegisterAndMoveParameters::parse(&list);
        let _ = decode_reservation(&list);
        let _ = decode_full_status(&list).map(|(_, entries)| entries.count());
    }
}
