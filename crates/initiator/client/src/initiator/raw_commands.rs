//! Raw commands: a CDB or a submission queue entry of the caller's own, sent once.

use buf::{MemoryClass, Payload};
use multipath::{
    NvmeCommand, RAW_DATA_MAX, RawAnswer, RawCommand, RawCompletion, RawError, RawRefusal, VolumeHandle,
};
use volume::{Fault, IoId, Refusal};

use super::Initiator;
use crate::error::{Error, ErrorKind};

/// The data of a raw command that is waited for.
#[derive(Debug)]
pub enum RawData<'a> {
    /// None.
    None,
    /// To be filled. Only as much as came is written.
    In(&'a mut [u8]),
    /// To be sent.
    Out(&'a [u8]),
}

impl Initiator {
    /// Sends a SCSI command to the logical unit of a volume, by one of its paths over iSCSI, and waits for the answer.
    ///
    /// It is sent once, whatever comes of it. A unit attention is an answer too: the command has not been done, and the
    /// caller sends it again. It is not ordered against operations of this initiator: who writes raw where operations
    /// write too waits for them first. It takes at most `command_timeout` of the URL, then it is aborted.
    /// ```no_run
    /// use blockwire_client::{Initiator, RawAnswer, RawData, VolumeHandle};
    ///
    /// fn vendor(initiator: &mut Initiator, volume: VolumeHandle) -> Result<Option<[u8; 8]>, blockwire_client::Error> {
    ///     let (inquiry, mut data) = ([0x12, 0, 0, 0, 96, 0], [0; 96]);
    ///     let answer = initiator.scsi(volume, &inquiry, RawData::In(&mut data))?;
    ///     let RawAnswer::Scsi { status: 0, transferred: 16.., .. } = answer else { return Ok(None) };
    ///     Ok(data[8..16].first_chunk().copied())
    /// }
    /// ```
    ///
    /// # Errors
    /// If it makes no sense, or there is no answer: whether it was done is part of the message. A status that is not
    /// GOOD is an answer.
    pub fn scsi(&mut self, volume: VolumeHandle, cdb: &[u8], data: RawData<'_>) -> Result<RawAnswer, Error> {
        self.run_raw(volume, data, |payload| RawCommand::scsi(cdb, payload))
    }

    /// Sends an NVMe admin command to the controller of one of a volume's paths over NVMe/TCP, and waits for its
    /// completion; otherwise as [`Initiator::scsi`]. Commands that the path itself needs are refused.
    ///
    /// # Errors
    /// As [`Initiator::scsi`].
    pub fn nvme_admin(
        &mut self,
        volume: VolumeHandle,
        command: NvmeCommand,
        data: RawData<'_>,
    ) -> Result<RawAnswer, Error> {
        self.run_raw(volume, data, |payload| RawCommand::nvme_admin(command, payload))
    }

    /// As [`Initiator::nvme_admin`], by an I/O queue.
    ///
    /// # Errors
    /// As [`Initiator::scsi`].
    pub fn nvme_io(
        &mut self,
        volume: VolumeHandle,
        command: NvmeCommand,
        data: RawData<'_>,
    ) -> Result<RawAnswer, Error> {
        self.run_raw(volume, data, |payload| RawCommand::nvme_io(command, payload))
    }

    /// Starts a raw command. It ends by [`Initiator::poll_raw_done`] with this name.
    ///
    /// # Errors
    /// The command comes back if [`RAW_COMMANDS_MAX`](multipath::RAW_COMMANDS_MAX) of the volume are in work, or it has
    /// no target of its own.
    pub fn submit_raw(
        &mut self,
        volume: VolumeHandle,
        id: IoId,
        command: RawCommand,
    ) -> Result<(), RawCommand> {
        self.inline.with_endpoint(|client, cx| client.submit_raw(cx, volume, id, command))
    }

    /// A raw command of this volume that has ended.
    pub fn poll_raw_done(&mut self, volume: VolumeHandle) -> Option<RawCompletion> {
        if let Some(at) = self.raw_ended.iter().position(|(of, _)| *of == volume) {
            return Some(self.raw_ended.remove(at).1);
        }
        self.inline.take_from_endpoint(|client| client.poll_raw_done(volume))
    }

    /// Asks that a raw command end early. It still ends by [`Initiator::poll_raw_done`].
    pub fn cancel_raw(&mut self, volume: VolumeHandle, id: IoId) {
        self.inline.with_endpoint(|client, cx| client.cancel_raw(cx, volume, id));
    }

    fn run_raw(
        &mut self,
        volume: VolumeHandle,
        mut data: RawData<'_>,
        make: impl FnOnce(Payload) -> Result<RawCommand, (RawRefusal, Payload)>,
    ) -> Result<RawAnswer, Error> {
        if !self.inline.endpoint().takes_raw_commands(volume) {
            return Err(raw_error(RawError::NoTarget));
        }
        let payload = self.raw_payload(&data)?;
        let command = make(payload).map_err(|(why, _)| Error::usage(why))?;
        let id = self.next_io_id();
        if self.submit_raw(volume, id, command).is_err() {
            return Err(Error::new(ErrorKind::Failed, "too many raw commands are in flight"));
        }
        let done = loop {
            match self.inline.take_from_endpoint(|client| client.poll_raw_done(volume)) {
                Some(done) if done.id == id => break done,
                Some(other) => self.raw_ended.push((volume, other)),
                None => self.turn(None),
            }
        };
        if let (Payload::In(memory), RawData::In(into)) = (done.payload, &mut data) {
            // It was cut to what came, which is no more than there was room for.
            let memory = memory.freeze();
            let came = memory.len().min(into.len());
            if let Some(filled) = into.get_mut(..came) {
                memory.copy_to(0, filled);
            }
        }
        done.how.map_err(raw_error)
    }

    fn raw_payload(&mut self, data: &RawData<'_>) -> Result<Payload, Error> {
        let len = match data {
            RawData::None => return Ok(Payload::None),
            RawData::In(into) => into.len(),
            RawData::Out(from) => from.len(),
        };
        if len == 0 {
            return Ok(Payload::None);
        }
        if len > RAW_DATA_MAX {
            return Err(Error::usage(RawRefusal::DataLength(len)));
        }
        let memory = self.inline.with_endpoint(|_, cx| cx.pool.take_sg(MemoryClass::Wire, len));
        let mut memory = memory.ok_or_else(|| {
            Error::new(ErrorKind::Failed, "no memory is left for the data: give the initiator more")
        })?;
        Ok(match data {
            RawData::Out(from) => {
                memory.copy_from(0, from);
                Payload::Out(memory.freeze())
            }
            RawData::None | RawData::In(_) => Payload::In(memory),
        })
    }
}

/// Why there is no answer, by its kind.
fn raw_error(why: RawError) -> Error {
    let kind = match why {
        RawError::NotSent | RawError::InDoubt | RawError::TimedOut => ErrorKind::TimedOut,
        RawError::WrongProtocol | RawError::NoTarget | RawError::ReadOnly | RawError::ReservationsKept => {
            ErrorKind::Usage
        }
        RawError::Rejected | RawError::Aborted | RawError::Damaged | RawError::NoStatus => ErrorKind::Failed,
    };
    let failure = match why {
        RawError::WrongProtocol | RawError::NoTarget => Some(Refusal::Unsupported.into()),
        RawError::ReadOnly => Some(Refusal::ReadOnly.into()),
        RawError::Aborted => Some(Fault::Aborted.into()),
        RawError::NotSent
        | RawError::InDoubt
        | RawError::TimedOut
        | RawError::ReservationsKept
        | RawError::Rejected
        | RawError::Damaged
        | RawError::NoStatus => None,
    };
    Error { failure, ..Error::new(kind, format!("raw command: {why}")) }
}
