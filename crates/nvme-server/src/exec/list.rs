//! Lists that commands bring, and structures that they take: small, bounded, in one piece while they
//! are looked at.

use buf::{Class, Sg};
use nvme::{Completion, Sqe, Status};

use crate::server::Server;
use crate::spec::NamespaceEntry;
use crate::step::{CommandKey, Step};
use crate::task::Job;

/// The longest list in bytes: 256 ranges of 32.
pub(super) const LIST_MAX: usize = 8192;

/// Asks for the list of a command: all of the `len` bytes that its SGL has.
pub(super) fn receive(
    server: &mut Server,
    key: CommandKey,
    sqe: &Sqe,
    entry: &NamespaceEntry,
    len: u32,
) -> Result<(), Status> {
    if len == 0 || len as usize > LIST_MAX {
        return Err(Status::SGL_LENGTH_INVALID.final_());
    }
    let slot = server.open(key, sqe, entry, len, Job::List(Box::new(*sqe)))?;
    server.receive(slot, len);
    Ok(())
}

/// The bytes of a list; at most `N` of them, zeroes where it has fewer.
pub(super) fn bytes<const N: usize>(list: &Sg) -> [u8; N] {
    let mut bytes = [0; N];
    let len = N.min(list.len());
    list.copy_to(0, &mut bytes[..len]);
    bytes
}

/// Ends a command with `data`, filled with zeroes or cut to the length that it takes.
pub(super) fn send(server: &mut Server, slot: u32, data: &[u8]) {
    let task = server.tasks.get(slot);
    let (command, len) = (task.key, task.bytes as usize);
    let Some(mut memory) = server.pool().take_sg(Class::Wire, len) else {
        return server.complete(slot, Status::COMMAND_INTERRUPTED.into());
    };
    let filled = data.len().min(len);
    memory.copy_from(0, &data[..filled]);
    memory.zero(filled..len);
    server.steps.push_back(Step::Send { command, at: 0, data: memory.freeze() });
    server.complete(slot, Completion::SUCCESS);
}
