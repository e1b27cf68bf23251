//! Comparing two ends byte by byte.

use std::os::unix::fs::FileExt;

use client::Initiator;
use process::exit::Failure;

use crate::copy_ends::CopyEnd;
use crate::progress::ProgressBar;

/// Bytes that are compared at a time.
const COMPARE_BYTES: usize = 4 << 20;

/// Compares so many bytes of both.
///
/// # Errors
/// At the first byte that differs.
pub fn compare_ends(
    initiator: &mut Initiator,
    (one, other): (&CopyEnd, &CopyEnd),
    bytes: u64,
    is_quiet: bool,
) -> Result<(), Failure> {
    let mut progress = ProgressBar::new(bytes, 0, is_quiet);
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(COMPARE_BYTES as u64);
        if let Some(differs) = first_difference(initiator, (one, other), at, len)? {
            return Err(Failure::failed(differs));
        }
        at += len;
        progress.update(at);
    }
    Ok(())
}

/// Compares so many bytes of both from an offset on, at most [`COMPARE_BYTES`]. `Some`: what differs.
pub(crate) fn first_difference(
    initiator: &mut Initiator,
    (one, other): (&CopyEnd, &CopyEnd),
    at: u64,
    len: u64,
) -> Result<Option<String>, Failure> {
    let (mut a, mut b) = (vec![0; len as usize], vec![0; len as usize]);
    read_end(initiator, one, at, &mut a)?;
    read_end(initiator, other, at, &mut b)?;
    if a == b {
        return Ok(None);
    }
    let differing = (at..).zip(a.iter().zip(&b)).find(|(_, (left, right))| left != right);
    Ok(differing.map(|(at, (left, right))| format!("byte {at} differs: {left:02x} and {right:02x}")))
}

fn read_end(initiator: &mut Initiator, end: &CopyEnd, at: u64, into: &mut [u8]) -> Result<(), Failure> {
    match end {
        CopyEnd::Remote { volume, .. } => {
            // The last stretch may end within a block.
            let block = end.block_size() as usize;
            let whole = into.len().next_multiple_of(block);
            if whole == into.len() {
                return Ok(initiator.read_at(*volume, at, into)?);
            }
            let mut bytes = vec![0; whole];
            initiator.read_at(*volume, at, &mut bytes)?;
            bytes.truncate(into.len());
            into.copy_from_slice(&bytes);
            Ok(())
        }
        CopyEnd::File { file, path, .. } => {
            file.read_exact_at(into, at).map_err(|why| Failure::failed(format!("{}: {why}", path.display())))
        }
    }
}
