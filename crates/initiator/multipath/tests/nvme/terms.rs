//! Each option of a URL reaches the Connect, and data is the same under all of them.

use blockwire_multipath::{AnyPath, HostIdentity, Url, UrlSecrets};
use nvme::{HostId, Nqn};
use volume::{Durability, Op, Span};

use crate::world::World;
use crate::{HOST, NvmePath, exports, settings};
use testkit::delivery::payload_bytes;
use testkit::target;

fn path(query: &str) -> NvmePath {
    let url = Url::parse(&format!("nvme+tcp://127.0.0.1/{}/1?{query}", target::SUBSYSTEM_NQN)).unwrap();
    let who = HostIdentity {
        initiator: "iqn.2026-11.test:host".to_owned(),
        host: Nqn::parse(HOST).unwrap(),
        host_id: HostId::new([1; 16]).unwrap(),
        isid: [1, 2, 3],
    };
    match AnyPath::from_url(&url, settings().addresses, &who, &UrlSecrets::default(), 0).unwrap() {
        AnyPath::Nvme(path) => *path,
        AnyPath::Iscsi(_) => unreachable!("the URL says nvme+tcp"),
    }
}

#[test]
fn each_option_reaches_the_connect() {
    for (query, key, want) in [
        ("digest=header", "DGST", "header"),
        ("digest=both", "DGST", "header and data"),
        ("queues=3", "I/O queues", "3"),
        ("commands=1", "SQSIZE", "1"),
        ("commands=7", "SQSIZE", "7"),
        ("max_r2t=1", "MAXR2T", "0"),
        ("max_r2t=16", "MAXR2T", "15"),
        ("hpda=0", "HPDA", "0"),
        ("hpda=1&digest=both", "HPDA", "1"),
        ("hpda=31", "HPDA", "31"),
        ("flow_control=yes", "SQ flow control", "enabled"),
        ("", "SQ flow control", "disabled"),
        ("keep_alive=2s", "KATO", "2000 ms"),
        ("keep_alive=off", "KATO", "3600000 ms"),
    ] {
        let mut world = World::new(path(query), exports());
        let info = world.connect().unwrap();
        let said = info.terms.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        assert_eq!(said, Some(want), "{query}: {:?}", info.terms);
        // In a capsule, and asked for.
        for blocks in [1, 5, 300] {
            let span = Span { lba: 9, blocks };
            let content: Vec<u8> = (0..blocks * 512).map(|at| (at * 13 + blocks) as u8).collect();
            let out = world.out(&content);
            world.run(Op::Write(span, Durability::Cached), out).0.unwrap();
            let room = world.room(content.len());
            let (how, payload) = world.run(Op::Read(span), room);
            how.unwrap();
            assert!(payload_bytes(payload) == content, "{query}: {blocks} blocks");
        }
    }
}
