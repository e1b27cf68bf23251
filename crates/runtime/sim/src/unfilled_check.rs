//! Searches for unfilled memory where bytes leave a shard: before any of them is cut, because a short piece
//! could not be told from data.

use stream::SendOp;
use volume::{DiskKind, DiskOp};

/// What the panic says that ends a run.
pub const UNFILLED_PANIC: &str = "memory that nobody has filled reaches";

/// A batch is about to leave.
///
/// # Panics
/// If memory of a pool is in it that was not filled since it was taken.
pub(crate) fn assert_send_filled(op: &SendOp) {
    let mut bytes = vec![0; op.len];
    let len = op.copy_to(0, &mut bytes);
    bytes.truncate(len);
    assert_filled(&bytes, "a wire");
}

/// A disk is about to be given something to do.
///
/// # Panics
/// As [`assert_send_filled`].
pub(crate) fn assert_disk_op_filled(op: &DiskOp) {
    if let DiskKind::Write { from, skip, .. } = &op.kind {
        let mut bytes = vec![0; from.len() - *skip];
        from.copy_to(*skip, &mut bytes);
        assert_filled(&bytes, "a disk");
    }
}

#[expect(clippy::panic, reason = "documented: this ends the run")]
fn assert_filled(bytes: &[u8], place: &str) {
    if let Some(at) = buf::poison::find(bytes) {
        panic!("{UNFILLED_PANIC} {place}: {} bytes, from byte {at} on", bytes.len());
    }
}
