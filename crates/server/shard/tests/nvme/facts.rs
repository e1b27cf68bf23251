//! Both protocols report the same properties of a volume, and no host changes them.

use std::sync::Arc;

use blockwire_shard::Shard;
use nvme::Status;
use nvme::io::{DatasetManagement, DatasetRange};
use sim::{Config, World};
use volume::{Backend, Geometry, RamBackend, RamDisk};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::both::{ask, both, scsi_read};
use crate::host::{Host, sqe};
use crate::{BLOCKS, pattern, world, world_on};
use testkit::iscsi_initiator::TestInitiator;
use testkit::target::{self, TargetLimits};

/// A volume with this geometry.
fn bent(block: u32, bend: impl Fn(&mut Geometry)) -> World<Shard> {
    let disk = Arc::new(RamDisk::new(BLOCKS, BLOCKS, block, 4096));
    let mut geometry = RamBackend::new(disk.clone()).geometry();
    bend(&mut geometry);
    let mut config = Config::new(u64::from(block));
    config.shards = 2;
    world_on(config, &target::build_exports(&TargetLimits::default()), disk, geometry)
}

fn identify(world: &mut World<Shard>, nvme: &mut Host, cns: u32, nsid: u32) -> Vec<u8> {
    let mut command = sqe(6);
    (command.nsid, command.cdw10[0]) = (U32::new(nsid), U32::new(cns));
    let ended = nvme.ask(world, 0, command, &[], 4096);
    assert!(ended.status.is_success(), "{ended:?}");
    ended.data
}

fn u16_at(bytes: &[u8], at: usize) -> u32 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]]).into()
}

/// What one volume says over both.
struct Said {
    capacity: Vec<u8>,
    limits: Vec<u8>,
    provisioning: Vec<u8>,
    caching: Vec<u8>,
    designators: Vec<u8>,
    namespace: Vec<u8>,
    controller: Vec<u8>,
    descriptors: Vec<u8>,
}

fn said(world: &mut World<Shard>, scsi: &mut TestInitiator, nvme: &mut Host) -> Said {
    let mut scsi_in = |cdb: &[u8], len| {
        let ended = ask(world, scsi, nvme, cdb, &[], len);
        assert_eq!(ended.status, 0, "{cdb:02x?}: {ended:?}");
        ended.data
    };
    let read_capacity = [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
    let capacity = scsi_in(&read_capacity, 32);
    let limits = scsi_in(&[0x12, 1, 0xb0, 0, 64, 0], 64);
    let provisioning = scsi_in(&[0x12, 1, 0xb2, 0, 8, 0], 8);
    let caching = scsi_in(&[0x1a, 8, 8, 0, 24, 0], 24);
    let designators = scsi_in(&[0x12, 1, 0x83, 0, 255, 0], 255);
    Said {
        capacity,
        limits,
        provisioning,
        caching,
        designators,
        namespace: identify(world, nvme, 0, 1),
        controller: identify(world, nvme, 1, 0),
        descriptors: identify(world, nvme, 3, 1),
    }
}

/// The UUID among SCSI's designators (type Ah), and among NVMe's identifiers (type 3).
fn uuids(said: &Said) -> [Vec<u8>; 2] {
    let mut scsi = &said.designators[4..];
    while scsi[1] & 15 != 10 {
        scsi = &scsi[4 + usize::from(scsi[3])..];
    }
    let mut nvme = &said.descriptors[..];
    while nvme[0] != 3 {
        nvme = &nvme[4 + usize::from(nvme[1])..];
    }
    [scsi[6..22].to_vec(), nvme[4..20].to_vec()]
}

#[test]
fn both_say_the_same_of_every_volume() {
    let bends: [fn(&mut Geometry); 5] = [
        |_| {},
        |geometry| geometry.write_cache = true,
        |geometry| geometry.dealloc_reads_zero = false,
        |geometry| geometry.thin = false,
        |geometry| (geometry.caw_max, geometry.atomic, geometry.atomic_powerfail) = (1, 8, 1),
    ];
    for (block, bend) in [512, 4096].into_iter().flat_map(|block| bends.map(|bend| (block, bend))) {
        let mut geometry = RamDisk::new(BLOCKS, BLOCKS, block, 4096).geometry();
        bend(&mut geometry);
        let mut world = bent(block, bend);
        let (mut scsi, mut nvme) = both(&mut world);
        let said = said(&mut world, &mut scsi, &mut nvme);
        let (namespace, controller) = (&said.namespace, &said.controller);
        // Size, format, physical blocks.
        let last = u64::from_be_bytes(*said.capacity.first_chunk().unwrap());
        assert_eq!(namespace[..8], (last + 1).to_le_bytes(), "READ CAPACITY and NSZE");
        assert_eq!(said.capacity[8..12], (1u32 << namespace[130]).to_be_bytes(), "block length and LBADS");
        assert_eq!(1 << (said.capacity[13] & 15), u16_at(namespace, 64) + 1, "LBPPBE and NPWG");
        // Deallocated blocks read zero on both sides or on none.
        let reads_zero = geometry.thin && geometry.dealloc_reads_zero;
        assert_eq!(namespace[33] & 7 == 1, reads_zero, "DLFEAT: {geometry:?}");
        assert_eq!(said.capacity[14] & 0x40 != 0, reads_zero, "LBPRZ: {geometry:?}");
        assert_eq!(said.provisioning[5] & 0x1c == 4, reads_zero, "LBPRZ of page B2h: {geometry:?}");
        assert_eq!(said.capacity[14] & 0x80 != 0, geometry.thin, "LBPME");
        // A namespace calls itself thin only where it is known how much of it is used, as it is not here.
        assert_eq!(namespace[24] & 1, 0, "THINP");
        // What is compared and written in one step; what is whole after the power has failed.
        assert_eq!(u16_at(namespace, 38) + 1, u32::from(said.limits[5]), "NACWU and page B0h");
        assert_eq!(u16_at(controller, 532), u16_at(namespace, 38), "ACWU of the only namespace");
        let atomic = u32::from_be_bytes(*said.limits[44..].first_chunk().unwrap());
        assert_eq!(atomic, geometry.atomic, "WRITE ATOMIC");
        assert_eq!([34, 36].map(|at| u16_at(namespace, at)), [0, 0], "plain writes promise one block");
        // The cache is the volume's to SCSI; NVMe hosts flush whatever it is.
        assert_eq!(said.caching[6] & 4 != 0, geometry.write_cache, "WCE");
        assert_eq!(controller[525] & 1, 1, "VWC");
        let [scsi_uuid, nvme_uuid] = uuids(&said);
        assert_eq!(scsi_uuid, nvme_uuid);
        assert_eq!(scsi_uuid, [7; 16]);
        // Nothing embeds an OUI that nobody has configured.
        assert_eq!(namespace[104..128], [0; 24], "NGUID and EUI64");
    }
}

#[test]
fn no_host_of_either_protocol_changes_the_write_cache() {
    for cached in [false, true] {
        let mut world = bent(512, |geometry| geometry.write_cache = cached);
        let (mut scsi, mut nvme) = both(&mut world);
        let before = said(&mut world, &mut scsi, &mut nvme);
        // MODE SELECT(6) of the page as it is, but for WCE.
        let mut list = vec![0; 4];
        list.extend(&before.caching[4..24]);
        (list[4], list[6]) = (list[4] & 0x3f, list[6] ^ 4);
        let select = [0x15, 0x10, 0, 0, list.len() as u8, 0];
        let ended = ask(&mut world, &mut scsi, &mut nvme, &select, &list, 0);
        assert_eq!((ended.status, ended.sense[2] & 15), (2, 5), "{ended:?}");
        for (on, status) in [(0, Status::FEATURE_NOT_CHANGEABLE.with_do_not_retry()), (1, Status::SUCCESS)] {
            let mut set = sqe(9);
            (set.cdw10[0], set.cdw10[1]) = (U32::new(6), U32::new(on));
            assert_eq!(nvme.ask(&mut world, 0, set, &[], 0).status, status);
        }
        let after = said(&mut world, &mut scsi, &mut nvme);
        assert_eq!((after.caching, after.controller[525]), (before.caching, before.controller[525]));
        // Whatever it is, both flush.
        let mut flush = sqe(0);
        flush.nsid = U32::new(1);
        assert_eq!(nvme.ask(&mut world, 1, flush, &[], 0).status, Status::SUCCESS);
        assert_eq!(
            ask(&mut world, &mut scsi, &mut nvme, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0).status,
            0
        );
    }
}

/// Where deallocated blocks read zero, every block named does, the ragged ends too, to who reads.
#[test]
fn what_one_deallocates_reads_zero_to_the_other() {
    let mut world = world(5, 2);
    let (mut scsi, mut nvme) = both(&mut world);
    let whole = pattern(0, 40, 0x77);
    assert_eq!(nvme.write(&mut world, 1, 0, &whole), Status::SUCCESS);
    let mut expected = whole;
    // Dataset Management over NVMe: from amid one physical block to amid another.
    let mut command = sqe(9);
    command.nsid = U32::new(1);
    DatasetManagement { ranges: 1, deallocate: true }.write_to_sqe(&mut command);
    let range = DatasetRange { attributes: U32::ZERO, blocks: U32::new(14), lba: U64::new(3) };
    assert_eq!(nvme.ask(&mut world, 1, command, range.as_bytes(), 0).status, Status::SUCCESS);
    expected[3 * 512..17 * 512].fill(0);
    assert!(scsi_read(&mut world, &mut scsi, &mut nvme, 0, 40) == expected);
    // UNMAP over iSCSI.
    let mut list = vec![0; 24];
    (list[1], list[3], list[15], list[19]) = (22, 16, 21, 12);
    let unmap = [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    assert_eq!(ask(&mut world, &mut scsi, &mut nvme, &unmap, &list, 0).status, 0);
    expected[21 * 512..33 * 512].fill(0);
    assert!(nvme.read(&mut world, 2, 0, 40) == expected);
}
