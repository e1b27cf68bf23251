//! Parameter lists of commands: small, bounded, contiguous while they are parsed.

use buf::Sg;
use nvme::{Sqe, Status};

use crate::after_wait::AfterWait;
use crate::context::ExecContext;
use crate::spec::NamespaceEntry;
use crate::step::CommandKey;

/// The longest list in bytes: 256 ranges of 32.
pub(super) const LIST_MAX: usize = 8192;

/// Asks for the list of a command: all of the `len` bytes that its SGL has.
pub(super) fn request_list(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    entry: &NamespaceEntry,
    len: u32,
) -> Result<(), Status> {
    if len == 0 || len as usize > LIST_MAX {
        return Err(Status::SGL_LENGTH_INVALID.with_do_not_retry());
    }
    let slot = ctx.insert_task(key, sqe, entry, len, AfterWait::List(Box::new(*sqe)))?;
    ctx.request_payload(slot, len);
    Ok(())
}

/// The bytes of a list; at most `N` of them, zeroes where it has fewer.
pub(super) fn copy_list_bytes<const N: usize>(list: &Sg) -> [u8; N] {
    let mut bytes = [0; N];
    if let Some(into) = bytes.get_mut(..list.len().min(N)) {
        list.copy_to(0, into);
    }
    bytes
}
