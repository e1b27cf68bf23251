//! Golden bytes: offsets from Linux `include/linux/nvme.h` (nvmf_connect_command, nvmf_connect_data,
//! nvmf_property_get_command, nvmf_property_set_command) and SPDK `spdk/nvmf_spec.h`; refusals as a
//! Linux 6.1 target answers them.

use super::*;

fn sqe(bytes: &[(usize, u8)]) -> Sqe {
    let mut raw = [0; 64];
    (raw[0], raw[1]) = (0x7f, 0x40);
    for &(at, byte) in bytes {
        raw[at] = byte;
    }
    Sqe::read_from_bytes(&raw).unwrap()
}

#[test]
fn connect_is_cut_at_its_offsets() {
    let io = sqe(&[(4, 1), (42, 3), (43, 1), (44, 0x7f), (46, 0x0c), (48, 0x88), (49, 0x13)]);
    let connect = Connect::parse(&io).unwrap();
    let expected =
        Connect { qid: 0x103, entries: 128, flow_control: false, individual_deletion: true, kato_ms: 5000 };
    assert_eq!(connect, expected);
    assert_eq!(connect.to_sqe().as_bytes(), io.as_bytes());
    assert_eq!(io.fabrics_type(), FabricsType::CONNECT);
}

#[test]
fn the_largest_queue_has_65536_entries() {
    let connect = Connect::parse(&sqe(&[(4, 1), (42, 1), (44, 0xff), (45, 0xff)])).unwrap();
    assert_eq!(connect.entries, 65_536);
    assert_eq!(Connect::parse(&connect.to_sqe()), Ok(connect));
}

#[test]
fn attack_68_record_formats_and_queue_sizes_that_do_not_exist() {
    assert_eq!(Connect::parse(&sqe(&[(4, 1), (40, 1), (44, 31)])), Err(ConnectRefusal::Format));
    assert_eq!(Connect::parse(&sqe(&[(4, 1), (41, 1), (44, 31)])), Err(ConnectRefusal::Format));
    // SQSIZE 0 would be a queue of one entry, which is always full.
    assert_eq!(Connect::parse(&sqe(&[(4, 1), (42, 1)])), Err(ConnectRefusal::SQSIZE));
    assert_eq!(Connect::parse(&sqe(&[(4, 1), (44, 30)])), Err(ConnectRefusal::SQSIZE));
    assert!(Connect::parse(&sqe(&[(4, 1), (44, 31)])).is_ok());
    let refused = Completion::from(ConnectRefusal::SQSIZE);
    assert_eq!((refused.result, refused.status.0), (44, 0x4182));
    assert_eq!(Completion::from(ConnectRefusal::Format).status.0, 0x4180);
}

fn data() -> ConnectData {
    let names = ConnectNames {
        host_id: HostId::new([0x11; 16]).unwrap(),
        cntlid: ConnectData::DYNAMIC,
        subsystem: Nqn::parse("nqn.2026-11.io.blockwire:demo").unwrap(),
        host: Nqn::parse("nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111").unwrap(),
    };
    let data = ConnectData::new(&names);
    assert_eq!(data.names(), Ok(names));
    data
}

#[test]
fn connect_data_stands_at_its_offsets() {
    let data = data();
    let bytes = data.as_bytes();
    assert_eq!(bytes.len(), 1024);
    assert_eq!(bytes[..16], [0x11; 16]);
    assert_eq!(bytes[16..18], [0xff, 0xff]);
    assert_eq!(&bytes[256..286], b"nqn.2026-11.io.blockwire:demo\0");
    assert_eq!(&bytes[512..544], b"nqn.2014-08.org.nvmexpress:uuid:");
    assert!(bytes[768..].iter().all(|&byte| byte == 0));
}

#[test]
fn refusals_name_the_field_that_is_wrong() {
    let bad = |alter: fn(&mut ConnectData)| {
        let mut data = data();
        alter(&mut data);
        Completion::from(data.names().unwrap_err())
    };
    let at = |at: u64| Completion { result: at | 1 << 16, status: Status(0x4182) };
    assert_eq!(bad(|data| data.host_id = [0; 16]), at(0));
    assert_eq!(bad(|data| data.subsystem = [b'a'; 256]), at(256));
    assert_eq!(bad(|data| data.host = [b'a'; 256]), at(512));
    // A controller that is gone is no reason to give up for ever.
    let gone = Completion { result: 16 | 1 << 16, status: Status(0x0182) };
    assert_eq!(Completion::from(ConnectRefusal::CNTLID), gone);
    assert_eq!(Completion::from(ConnectRefusal::Busy).status.0, 0x0181);
    assert_eq!(Completion::from(ConnectRefusal::Host).status.0, 0x4184);
    assert_eq!(Completion::from(ConnectRefusal::Sequence).status.0, 0x000c);
    assert_eq!(Completion::from(ConnectRefusal::KeepAlive).status.0, 0x401a);
}

/// SPDK's programs send no Host NQN unless they are told one; their identifier tells them apart.
#[test]
fn a_host_is_not_refused_for_an_empty_name() {
    let mut data = data();
    data.host = [0; 256];
    let names = data.names().unwrap();
    assert_eq!(names.host.as_str(), format!("nqn.2014-08.org.nvmexpress:uuid:{}", names.host_id));
    data.host[255] = 1;
    assert_eq!(data.names(), Err(ConnectRefusal::HOSTNQN), "what is not empty must be a name");
    (data.host, data.host_id) = ([0; 256], [0; 16]);
    assert_eq!(data.names(), Err(ConnectRefusal::HOSTID));
}

/// What is logged of a refusal is words, not names of the program's.
#[test]
fn refusals_are_told_in_words() {
    let refusals = [
        ConnectRefusal::Format,
        ConnectRefusal::Busy,
        ConnectRefusal::SQSIZE,
        ConnectRefusal::QID,
        ConnectRefusal::HOSTID,
        ConnectRefusal::SUBNQN,
        ConnectRefusal::HOSTNQN,
        ConnectRefusal::Host,
        ConnectRefusal::Sequence,
        ConnectRefusal::KeepAlive,
    ];
    let said: std::collections::BTreeSet<String> = refusals.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), refusals.len());
    assert!(said.iter().all(|text| text.contains(' ') && !text.contains("Parameter") && !text.contains('{')));
}

#[test]
fn success_names_the_controller_and_asks_for_authentication() {
    for (authenticate, secure_channel, result) in [(true, false, 0x0002_1234), (false, true, 0x0004_1234)] {
        let connected = ConnectResult { cntlid: 0x1234, authenticate, secure_channel };
        let completion = Completion::from(connected);
        assert_eq!((completion.result, completion.status), (result, Status::SUCCESS));
        assert_eq!(ConnectResult::parse(completion.result), connected);
    }
    assert!(!ConnectResult::parse(5).authenticate);
}

#[test]
fn properties_are_named_by_offset_and_size() {
    let get = sqe(&[(4, 4), (40, 1)]);
    let cap = PropertyAccess { property: Property::CAP, len: 8, value: 0 };
    assert_eq!(PropertyAccess::parse(&get), Some(cap));
    assert_eq!(PropertyAccess::property_get_sqe(Property::CAP, 8).as_bytes(), get.as_bytes());
    let set = sqe(&[(4, 0), (44, 0x14), (48, 0x01), (50, 0x46)]);
    let cc = PropertyAccess { property: Property::CC, len: 4, value: 0x0046_0001 };
    assert_eq!(PropertyAccess::parse(&set), Some(cc));
    assert_eq!(PropertyAccess::property_set_sqe(Property::CC, 0x0046_0001).as_bytes(), set.as_bytes());
    assert_eq!(PropertyAccess::parse(&sqe(&[(4, 4), (40, 2)])), None);
}

#[test]
fn a_disconnect_of_an_unknown_format_is_seen() {
    assert!(disconnect_is_valid(&sqe(&[(4, 8)])));
    assert!(!disconnect_is_valid(&sqe(&[(4, 8), (40, 1)])));
}
