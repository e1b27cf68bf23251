//! A remote volume as the servers see it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use block_device::Disk;
use buf::{SgMut, Time};
use client::{Geometry, Initiator, Io, IoCompletion, VolumeHandle};

use super::record::SharedRecord;
use super::write_landing;
use process::log::area;

/// A volume that the calling thread drives.
pub(super) struct RemoteDisk {
    pub(super) initiator: Initiator,
    pub(super) volume: VolumeHandle,
    /// Operations that found no room.
    waiting: VecDeque<Io>,
    /// When [`Disk::drive`] has something to do, as of its last call; at once after a submission.
    due: Option<Time>,
    /// The last known geometry: a stripe whose legs no longer fit reports none, and fails its operations.
    told: Cell<Geometry>,
    /// The record, which says how long writes of this process may land.
    record: SharedRecord,
}

impl RemoteDisk {
    /// `None` if the volume has not reported its geometry yet.
    pub(super) fn new(initiator: Initiator, volume: VolumeHandle, record: SharedRecord) -> Option<Self> {
        let told = Cell::new(initiator.geometry(volume)?);
        Some(RemoteDisk { initiator, volume, waiting: VecDeque::new(), due: None, told, record })
    }

    /// Updates the record: a path that has reconnected may have longer times, or be new.
    fn update_record(&mut self) {
        let mut record = self.record.lock();
        // Before it is written, changes go into it anyway.
        let Some(record) = record.as_mut() else { return };
        if !self.initiator.has_lost_command_lifetime_changed(self.volume) {
            return;
        }
        let paths = write_landing::recorded_paths(&self.initiator, self.volume)
            .into_iter()
            .map(|(path, _)| path)
            .collect();
        if let Err(why) = record.set_paths(paths) {
            tracing::warn!(
                target: area::ATTACH,
                %why,
                "the attachment's record cannot be updated: if this process is killed, wait longer before you \
                 recover the attachment"
            );
        }
    }

    fn submit_queued(&mut self) {
        while let Some(io) = self.waiting.pop_front() {
            if let Err(back) = self.initiator.submit(self.volume, io) {
                self.waiting.push_front(back);
                return;
            }
        }
    }
}

impl Disk for RemoteDisk {
    fn geometry(&self) -> Geometry {
        if let Some(now) = self.initiator.geometry(self.volume) {
            self.told.set(now);
        }
        self.told.get()
    }
    fn is_read_only(&self) -> bool {
        self.initiator.is_read_only(self.volume)
    }
    fn alloc_payload(&mut self, len: usize) -> Option<SgMut> {
        self.initiator.alloc_payload(len)
    }
    fn submit(&mut self, io: Io) {
        self.waiting.push_back(io);
        self.submit_queued();
        self.due = Some(Initiator::now());
    }
    fn poll_done(&mut self) -> Option<IoCompletion> {
        let done = self.initiator.poll_done(self.volume)?;
        self.submit_queued();
        Some(done)
    }
    fn has_geometry_changed(&mut self) -> bool {
        self.initiator.has_geometry_changed(self.volume)
    }
    fn drive(&mut self, wait: Option<Duration>) -> io::Result<()> {
        self.initiator.turn(wait);
        self.update_record();
        self.due = self.initiator.poll_timeout();
        Ok(())
    }
    fn wake_source(&self) -> (BorrowedFd<'_>, Option<Time>) {
        (self.initiator.as_fd(), self.due)
    }
}
