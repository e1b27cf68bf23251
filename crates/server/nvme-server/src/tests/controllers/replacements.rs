//! Controllers and their queues that go on in another process.

use nvme::Opcode;
use volume::{PathAccess, VolumeId, VolumeRequest};

use super::super::{block, transfer};
use super::*;
use crate::{AssociationRestoreError, AssociationSaveRefusal, Server};

const ALL: u32 = 1 << 8 | 1 << 11;

impl World {
    /// Another process' server of the first shard, for the same volumes.
    fn successor(&self) -> Server {
        let mut server = Server::new(ShardId(0));
        for (at, home) in self.homes.iter().enumerate() {
            let info = self.cores[0].server.volume_info(VolumeId(at as u64)).expect("it knows its volumes");
            server.add_volume(info.clone(), home.view().clone());
        }
        server
    }

    /// Goes on in another process with a controller that was opened by `spec`, its I/O queue, and its requests for
    /// events.
    fn replace(&mut self, spec: ControllerSpec, admin: &mut Host, io: &mut Host, requests: &mut [Started]) {
        let cntlid = spec.cntlid;
        let withdrawn = self.cores[0].server.withdraw_event_requests(cntlid);
        assert_eq!(withdrawn.len(), requests.len());
        assert_eq!(self.cores[0].server.work_count(), 0);
        let controller = self.cores[0].server.save_controller(self.now, cntlid).unwrap();
        let queue = self.cores[0].server.save_queue(io.key).unwrap();
        let (host, nexus) = (spec.host.clone(), spec.nexus.clone());
        let mut next = self.successor();
        let (_, mut cx) = self.parts.core(0);
        let elsewhere = Requester { port: PortId(2), ..nexus.clone() };
        let refused = next.restore_io_queue(&mut cx, &queue, (host.clone(), elsewhere), None);
        assert_eq!(refused.err(), Some(AssociationRestoreError::OtherPort));
        admin.key = next.restore_controller(&mut cx, spec, &controller).unwrap();
        io.key = next.restore_io_queue(&mut cx, &queue, (host, nexus), None).unwrap();
        self.cores[0].server = next;
        assert_eq!(self.cores[0].server.save_controller(self.now, cntlid).unwrap(), controller);
        assert_eq!(self.cores[0].server.save_queue(io.key).unwrap(), queue);
        for (request, (_, sqe)) in requests.iter_mut().zip(withdrawn) {
            *request = self.start(*admin, &sqe, &[]);
        }
        self.run();
    }
}

/// What a host sees of its controller after this.
fn seen(replaced: bool) -> (Vec<u64>, Vec<Vec<u8>>) {
    let mut world = World::new(1);
    for _ in 0..3 {
        world.add(4096, |_| {});
    }
    let spec = spec(1, 1, vec![entry(0), entry(1), entry(2)]);
    let mut admin = world.controller(spec.clone());
    let mut io = world.connect(1, &join(1, 1, 0)).unwrap();
    let values = [(0x01, 0x0403_0207), (0x05, 0x0102), (0x0a, 1), (0x0b, ALL), (0x04, 0x0010_0150)];
    for (fid, value) in values {
        let set = set_feature(fid, u32::from(fid == 0x05), value);
        assert_eq!(world.ends(admin, &set, &[]).status, Status::SUCCESS, "{fid:#x}");
    }
    world.write(io, 8, &block(7));
    // An error for the log.
    assert_ne!(world.command(io, &transfer(Opcode::READ, 1 << 40, 1), &[]), Status::SUCCESS);
    let mut requests = [1, 2].map(|cid| world.start(admin, &event_request(cid), &[]));
    // The first is answered, and its log not read: another of its kind waits.
    world.request(0, VolumeRequest::WriteProtect(true)).unwrap();
    assert!(world.event(requests[0]).is_some() && world.end(requests[1]).is_none());
    world.request(2, VolumeRequest::WriteProtect(true)).unwrap();
    if replaced {
        world.replace(spec, &mut admin, &mut io, &mut requests[1..]);
    }
    assert_eq!(world.end(requests[1]), None);
    let mut values_seen: Vec<u64> = values
        .map(|(fid, _)| world.ends(admin, &get_feature(fid, u32::from(fid == 0x05), 0, 0), &[]).result)
        .to_vec();
    let mut logs = vec![world.good(admin, &get_log(1, 64), &[]), world.good(admin, &get_log(4, 4096), &[])];
    logs.push(world.read(io, 8, 1));
    let access = VolumeRequest::SetAccess { ports: vec![PortId(1)], to: PathAccess::NonOptimized, by: None };
    world.request(1, access).unwrap();
    values_seen.push(world.event(requests[1]).expect("the request goes on").into());
    values_seen.push(world.property(admin, Property::CSTS, 4));
    logs.push(world.good(admin, &get_log(0x0c, 256), &[]));
    (values_seen, logs)
}

#[test]
fn a_host_sees_the_same_controller_in_another_process() {
    assert_eq!(seen(true), seen(false));
}

#[test]
fn what_is_not_at_rest_is_not_saved() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    let admin = world.controller(spec(1, 1, vec![entry(0)]));
    world.start(admin, &event_request(1), &[]);
    let now = world.now;
    let server = &mut world.cores[0].server;
    assert_eq!(server.work_count(), 0, "a request for events is no work");
    assert_eq!(server.save_controller(now, 1).err(), Some(AssociationSaveRefusal::Busy));
    assert_eq!(server.withdraw_event_requests(1).len(), 1);
    assert!(server.save_controller(now, 1).is_ok());
    assert_eq!(server.save_controller(now, 2).err(), Some(AssociationSaveRefusal::Ending));
}
