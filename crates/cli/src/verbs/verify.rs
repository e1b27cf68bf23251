//! `blockwire verify`: whether two volumes, or a volume and a file, have the same contents.

use clap::Args;
use client::{Initiator, Settings};

use super::{create_initiator, json_text, print};
use crate::reports::ComparisonReport;
use config::size::format_human;
use control::secret_url::SecretUrl;
use process::exit::{Exit, Failure};
use transfer::copy_ends::CopyEnd;
use transfer::progress::ProgressBar;

/// Bytes that are compared at a time.
const COMPARE_BYTES: usize = 4 << 20;

/// `verify`
#[derive(Debug, Args)]
pub struct CompareVolumesArgs {
    /// A URL, or a file or device
    pub one: SecretUrl,
    /// What to compare it with: a URL, or a file or device
    pub other: SecretUrl,
    /// Show no progress bar
    #[arg(long, short)]
    pub quiet: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Compares.
pub fn verify(args: &CompareVolumesArgs) -> Result<Exit, Failure> {
    let mut initiator = create_initiator(Settings::default())?;
    let one = CopyEnd::open_source(&mut initiator, &args.one)?;
    let other = CopyEnd::open_source(&mut initiator, &args.other)?;
    let (a, b) = (one.len_bytes()?, other.len_bytes()?);
    if a != b {
        let why =
            format!("{} has {a} bytes, {} has {b}", redacted_name(&args.one), redacted_name(&args.other));
        return Err(Failure::failed(why));
    }
    compare_ends(&mut initiator, (&one, &other), a, args.quiet)?;
    one.close_end(&mut initiator)?;
    other.close_end(&mut initiator)?;
    let told = if args.json {
        json_text(&ComparisonReport { size_bytes: a, alike: true })
    } else {
        format!("{} compared: alike\n", format_human(a))
    };
    print(&told)?;
    Ok(Exit::Success)
}

/// An end as it may be shown: a volume without its passwords.
fn redacted_name(name: &str) -> String {
    match client::urls_of_name(name) {
        Ok((_, shown)) => shown,
        // It was opened, so it is a path.
        Err(_) => name.to_owned(),
    }
}

/// Compares so many bytes of both.
///
/// # Errors
/// At the first byte that differs.
pub(super) fn compare_ends(
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
pub(super) fn first_difference(
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
    let differs = a.iter().zip(&b).position(|(a, b)| a != b);
    Ok(differs.map(|differs| {
        let (left, right) = (a[differs], b[differs]);
        format!("byte {} differs: {left:02x} and {right:02x}", at + differs as u64)
    }))
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
            into.copy_from_slice(&bytes[..into.len()]);
            Ok(())
        }
        CopyEnd::File { file, path, .. } => {
            use std::os::unix::fs::FileExt;
            file.read_exact_at(into, at).map_err(|why| Failure::failed(format!("{}: {why}", path.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::redacted_name;

    #[test]
    fn ends_are_shown_without_passwords() {
        let path = "iscsi://u%hush@127.0.0.1/iqn.2026-11.x:y/0";
        for name in [path.to_owned(), format!("{path},{path}"), format!("stripe:{path}+{path}")] {
            let said = redacted_name(&name);
            assert!(said.contains("iqn.2026-11.x:y") && !said.contains("hush"), "{said}");
        }
        assert_eq!(redacted_name("/srv/a,b"), "/srv/a,b");
    }
}
