//! Serves a RAM volume of 64 MiB over iSCSI and NVMe/TCP.
//!
//! It shows that a target is a [`Shard`] per core, a volume, and [`Exports`], which say what is offered to
//! which hosts. The reactor provides threads and sockets. Here there is one shard.
//!
//! `cargo run -p blockwire-examples --example serve`, then in another shell `blockwire info
//! iscsi://127.0.0.1:3260/iqn.2026-11.io.blockwire:example/0`. Ctrl-C ends it.

#![forbid(unsafe_code)]

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use endpoint::{ListenerId, ShardId};
use reactor::{Config, Reactor, ReactorHandle};
use shard::{
    ControlRequest, Exports, Message, NvmeExports, NvmePortal, Portal, Shard, SubsystemExport, TargetExport,
    VolumeSpec,
};
use volume::{Backend, PortId, RamBackend, RamDisk, Uuid, VolumeFacts, VolumeId, VolumeOwner};

/// The name of the iSCSI target; the volume is its LUN 0.
pub const TARGET: &str = "iqn.2026-11.io.blockwire:example";
/// The name of the NVMe subsystem; the volume is its namespace 1.
pub const SUBSYSTEM: &str = "nqn.2026-11.io.blockwire:example";

/// Serves `disk` at two addresses. The target ends when the value is dropped.
///
/// # Errors
/// If an address cannot be listened on, or the system does not give what a thread needs.
pub fn serve(
    disk: Arc<RamDisk>,
    iscsi: SocketAddr,
    nvme: SocketAddr,
) -> Result<ReactorHandle<Message>, Box<dyn Error>> {
    let config = Config { listeners: vec![iscsi.into(), nvme.into()], ..Config::default() };
    let target = Reactor::spawn(config, |id, _| Shard::new(id, 1, Arc::default()))?;
    let tell = |what| target.post(ShardId(0), Message::Control(0, what));

    // Who has a volume for good draws its UUID once and keeps it: hosts know the disk by it.
    let volume = VolumeId::new(0, 0);
    let facts = VolumeFacts::new(volume, "example", Uuid([7; 16]));
    let home = VolumeOwner::restore(facts, RamBackend::new(disk.clone()).geometry(), 1, false, None)?;
    for spec in VolumeSpec::for_shards(home, 1, move |_| RamBackend::new(disk.clone())) {
        tell(ControlRequest::AddVolume(Box::new(spec)));
    }

    // Listeners are numbered as in `config`. With port 0 the system has chosen a port by now.
    let (listener, port) = (ListenerId(0), PortId(1));
    let portal = Portal { listener, address: target.addresses()[0], group: 1, port };
    let nvme = NvmeExports {
        portals: vec![NvmePortal::new(ListenerId(1), target.addresses()[1], PortId(2))],
        subsystems: vec![SubsystemExport::open_to_all(SUBSYSTEM, "0001", &[volume])],
        ..NvmeExports::default()
    };
    let targets = vec![TargetExport::open_to_all(TARGET, &[volume])];
    tell(ControlRequest::Exports(Arc::new(Exports {
        portals: vec![portal],
        targets,
        nvme,
        ..Exports::default()
    })));
    Ok(target)
}

fn main() -> Result<(), Box<dyn Error>> {
    let disk = Arc::new(RamDisk::new(16_384, 16_384, 4096, 4096));
    let target = serve(disk, "127.0.0.1:3260".parse()?, "127.0.0.1:4420".parse()?)?;
    println!("iscsi://127.0.0.1:3260/{TARGET}/0\nnvme+tcp://127.0.0.1:4420/{SUBSYSTEM}/1");
    target.join().map_err(|_| "a shard has panicked".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::{Initiator, Settings};

    #[test]
    fn what_is_written_over_one_protocol_is_read_over_the_other() -> Result<(), Box<dyn Error>> {
        let disk = Arc::new(RamDisk::new(256, 256, 4096, 4096));
        let target = serve(disk, "127.0.0.1:0".parse()?, "127.0.0.1:0".parse()?)?;
        let [iscsi, nvme] = [target.addresses()[0], target.addresses()[1]];
        let mut initiator = Initiator::new(Settings::default())?;
        let by_iscsi = initiator.open(&format!("iscsi://{iscsi}/{TARGET}/0"))?;
        let by_nvme = initiator.open(&format!("nvme+tcp://{nvme}/{SUBSYSTEM}/1"))?;
        initiator.write_at(by_iscsi, 8192, &[0x5a; 4096])?;
        let mut block = [0; 4096];
        initiator.read_at(by_nvme, 8192, &mut block)?;
        assert_eq!(block, [0x5a; 4096]);
        Ok(())
    }
}
