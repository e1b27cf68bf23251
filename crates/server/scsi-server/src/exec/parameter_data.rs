//! Parameter data and parameter lists: small, bounded, and contiguous while they are parsed.

use std::borrow::Cow;

use buf::{MemoryClass, Sg};
use scsi::sense::Sense;
use scsi::{Status, Writer};

use crate::context::ExecContext;
use crate::step::{Reply, Step, TaskKey};

/// The longest parameter data that is made in one piece; SCSI's reports are far shorter.
const DATA_MAX: usize = 1 << 20;

impl ExecContext {
    /// Makes parameter data of at most `allocation` bytes. `encode` is called twice, first to learn
    /// the length, so that no more memory is taken than is filled.
    pub(crate) fn encode_parameter_data(
        &self,
        allocation: usize,
        encode: impl Fn(&ExecContext, &mut Writer<'_>) -> Result<(), Sense>,
    ) -> Result<Sg, Reply> {
        let mut length = Writer::new(&mut []);
        encode(self, &mut length).map_err(Reply::check_condition)?;
        let len = length.len().min(allocation).min(DATA_MAX);
        if len == 0 {
            return Ok(Sg::new());
        }
        let Some(mut buffer) = self.pool().take(MemoryClass::Wire, len) else {
            return Err(Reply::with_status(Status::BUSY));
        };
        encode(self, &mut Writer::new(&mut buffer)).map_err(Reply::check_condition)?;
        Ok(buffer.freeze().into())
    }

    /// Ends a task with parameter data; false: with why there is none.
    pub(crate) fn respond_with_parameter_data(
        &mut self,
        slot: u32,
        allocation: usize,
        encode: impl Fn(&ExecContext, &mut Writer<'_>) -> Result<(), Sense>,
    ) -> bool {
        match self.encode_parameter_data(allocation, encode) {
            Err(reply) => {
                self.complete_task(slot, reply);
                false
            }
            Ok(data) => {
                let task = self.tasks.get(slot);
                let (key, data_in) = (task.key, task.data_in);
                let transferred = data.len() as u64;
                self.send_data_in(key, data_in, data);
                self.complete_task(slot, Reply::good(transferred));
                true
            }
        }
    }

    /// Sends what the initiator takes of `data`.
    pub(crate) fn send_data_in(&mut self, task: TaskKey, data_in: u32, data: Sg) {
        let len = data.len().min(data_in as usize);
        let data = if len == data.len() { data } else { data.slice(0..len) };
        if len > 0 {
            self.steps.push_back(Step::Send { command: task, at: 0, data });
        }
    }

    /// Asks for a parameter list of `len` bytes; more than `max`, or more than the initiator sends,
    /// is refused.
    pub(crate) fn request_parameter_list(&mut self, slot: u32, len: u32, max: usize) {
        if len as usize > max || len > self.tasks.get(slot).data_out {
            self.respond_check_condition(slot, Sense::PARAMETER_LIST_LENGTH_ERROR);
        } else {
            self.request_payload(slot, len);
        }
    }
}

/// The bytes of a parameter list: where they are, if they are in one piece.
pub(crate) fn contiguous_bytes(list: &Sg) -> Cow<'_, [u8]> {
    if let [piece] = list.pieces()
        && let Some(bytes) = piece.stable_bytes()
    {
        return Cow::Borrowed(bytes);
    }
    let mut bytes = vec![0; list.len()];
    list.copy_to(0, &mut bytes);
    Cow::Owned(bytes)
}
