//! A copy of a volume to another, or to a file, or of a file to a volume.
//!
//! Reads and writes are both in flight. Holes are not read; zeroes are created at the destination instead of
//! written. Invariants:
//! - Progress in the resume file was flushed at the destination before it was recorded.
//! - A refused copy has changed nothing: all checks come before [`UnopenedDestination::open_for_writing`].

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use client::Initiator;
use process::exit::Failure;

use crate::compare::{compare_ends, first_difference};
use crate::copy_ends::{CopyEnd, DataRun, UnopenedDestination};
use crate::copy_job::CopyJob;
use crate::journal::CopyJournal;
use crate::local_path::FileKey;
use crate::progress::ProgressBar;

/// Memory that the initiator of a copy needs for what is in flight, in bytes.
pub const INITIATOR_MEMORY: usize = 128 << 20;

/// How often a copy that can be resumed makes what it did stable.
const SYNC_INTERVAL: Duration = Duration::from_secs(2);

/// What is copied, and how.
#[derive(Clone, Copy)]
pub struct CopyOptions<'a> {
    /// The source: a URL, or a file or device.
    pub from: &'a str,
    /// The destination: a URL, or a file or device.
    pub to: &'a str,
    /// Write even if the destination seems to be in use.
    pub force: bool,
    /// Where progress is recorded, to resume from there.
    pub resume: Option<&'a Path>,
    /// Holes are not read, and zeroes not written.
    pub sparse: bool,
    /// Compare both ends afterwards.
    pub verify: bool,
    /// Without a progress bar.
    pub is_quiet: bool,
}

/// What was done.
#[derive(Clone, Copy, Debug)]
pub struct CopyOutcome {
    /// Bytes of the source.
    pub bytes: u64,
    /// Bytes that were written.
    pub written: u64,
    /// Bytes that were left or made zero.
    pub zeroed: u64,
    /// The destination is a new file.
    pub is_new: bool,
    /// How long it took, with the comparison.
    pub time: Duration,
    /// Bytes of the source per second, without the comparison.
    pub bytes_per_second: f64,
}

/// A copy that nothing refuses any more, and that has changed nothing yet.
struct CopyPlan {
    initiator: Initiator,
    from: CopyEnd,
    to: UnopenedDestination,
    from_id: String,
    bytes: u64,
    block: u64,
    /// How far an earlier copy came; `None`: there was none.
    done: Option<u64>,
    /// The destination is a new file.
    is_new: bool,
}

/// Refuses a new file whose name looks like a volume's.
fn refuse_bare_word(name: &str, to: &UnopenedDestination) -> Result<(), Failure> {
    let is_bare = !name.contains(['/', '.']);
    match to {
        UnopenedDestination::Local(place) if place.is_absent() && is_bare => Err(Failure::usage(format!(
            "\"{name}\" is not a volume's URL (iscsi://... or nvme+tcp://...), and no such file exists; write \
             ./{name} to create one"
        ))),
        UnopenedDestination::Local(_) | UnopenedDestination::Remote { .. } => Ok(()),
    }
}

/// Looks at everything that could refuse the copy.
fn plan_copy(mut initiator: Initiator, options: &CopyOptions<'_>) -> Result<CopyPlan, Failure> {
    let from = CopyEnd::open_source(&mut initiator, options.from)?;
    let bytes = from.len_bytes()?;
    if bytes == 0 {
        return Err(Failure::usage("the source holds nothing"));
    }
    let journal = options.resume.map(CopyJournal::read).transpose()?.flatten();
    refuse_same(options, &from)?;
    let to = UnopenedDestination::inspect(&mut initiator, options.to, options.force)?;
    refuse_bare_word(options.to, &to)?;
    let (from_id, to_id) = (from.identity(&initiator)?, to.identity(&initiator)?);
    if to_id.as_ref() == Some(&from_id) && !from_id.is_empty() {
        return Err(same_volume_failure());
    }
    let is_new = matches!(&to, UnopenedDestination::Local(place) if place.is_absent());
    if let Some(path) = options.resume {
        let ends = [(from.file_key()?, Path::new(options.from)), (to.file_key()?, Path::new(options.to))];
        CopyJournal::refuse_source_or_destination(path, &ends)?;
    }
    if !options.force {
        from.lock_shared()?;
    }
    let block = from.block_size().max(to.block_size());
    let total = bytes.next_multiple_of(block);
    if let Some(room) = to.capacity()?.filter(|room| *room < total) {
        let why = format!("the destination has {room} bytes, the source {bytes}: make it larger first");
        return Err(Failure::usage(why));
    }
    let done = match &journal {
        None => None,
        Some(old) => {
            let is_this = old.from == from_id && Some(&old.to) == to_id.as_ref() && old.bytes == bytes;
            let fits = old.done <= total && (old.done == total || old.done.is_multiple_of(block));
            if !(is_this && fits) {
                let why = "the resume file belongs to another copy (other volumes, recreated files, or another \
                           size): name another, or remove it to start over";
                return Err(Failure::usage(why));
            }
            refuse_changed(&mut initiator, (&from, &to), (bytes, old.done), block)?;
            // One that had not come to do anything may not have come to empty the destination either.
            Some(old.done).filter(|done| *done > 0)
        }
    };
    Ok(CopyPlan { initiator, from, to, from_id, bytes, block, done, is_new })
}

fn same_volume_failure() -> Failure {
    Failure::usage(
        "source and destination are the same volume, or one is stored on the other: nothing was changed",
    )
}

/// Refuses a destination that is the source by another name, before it is locked.
fn refuse_same(options: &CopyOptions<'_>, from: &CopyEnd) -> Result<(), Failure> {
    let to = (!client::is_remote_volume_name(options.to)).then(|| fs::metadata(options.to).ok()).flatten();
    match (from.file_key()?, to.map(|meta| FileKey::of_metadata(&meta))) {
        (Some(from), Some(to)) if from.overlaps(to) => Err(same_volume_failure()),
        _ if options.from == options.to => Err(same_volume_failure()),
        _ => Ok(()),
    }
}

/// Places at which a copy that is gone on with is compared.
const COMPARED_SAMPLES: u64 = 64;
/// Bytes that are compared there.
const COMPARED_SAMPLE_BYTES: u64 = 64 << 10;

/// Refuses to go on with a copy whose destination does not hold what was copied: names and identities may be
/// those of another file or volume.
fn refuse_changed(
    initiator: &mut Initiator,
    (from, to): (&CopyEnd, &UnopenedDestination),
    (bytes, done): (u64, u64),
    block: u64,
) -> Result<(), Failure> {
    let changed = |why: &str| {
        let why = format!("the destination does not contain what the resume file says was copied ({why})");
        Failure::usage(format!("{why}: remove the resume file to start over"))
    };
    let is_file = to.capacity()?.is_none();
    let Some(to) = to.open_for_comparing()? else { return Err(changed("it is gone")) };
    let done = done.min(bytes);
    let held = to.len_bytes()?;
    if done > 0 && (held < bytes || is_file && held > bytes) {
        return Err(changed(&format!("it has {held} bytes")));
    }
    let compare = |initiator: &mut Initiator, at: u64| {
        let end = (at + COMPARED_SAMPLE_BYTES.next_multiple_of(block)).min(done);
        let same = first_difference(initiator, (from, &to), at, end - at)?;
        same.map_or(Ok(()), |differs| Err(changed(&differs)))
    };
    let floor = |at: u64| at - at % block;
    for look in 0..=COMPARED_SAMPLES {
        let at = floor(
            u64::try_from(u128::from(done) * u128::from(look) / u128::from(COMPARED_SAMPLES)).unwrap_or(done),
        );
        let at = at.min(floor(done.saturating_sub(COMPARED_SAMPLE_BYTES)));
        if at >= done {
            continue;
        }
        compare(initiator, at)?;
        // A hole proves little: what comes behind it is looked at too.
        let run = from.data_run_at(initiator, at, done, bytes)?;
        if !run.is_data && floor(run.end) < done {
            compare(initiator, floor(run.end))?;
        }
    }
    Ok(())
}

/// Copies.
///
/// # Errors
/// What refuses it, before anything of the destination is changed; or what failed, with where.
pub fn copy(initiator: Initiator, options: &CopyOptions<'_>) -> Result<CopyOutcome, Failure> {
    let CopyPlan { initiator, from, mut to, from_id, bytes, block, done, is_new } =
        plan_copy(initiator, options)?;
    let total = bytes.next_multiple_of(block);
    to.create_file()?;
    let journal = |done: u64, to: String| CopyJournal { from: from_id.clone(), to, bytes, done };
    let to_id = to.identity(&initiator)?.unwrap_or_default();
    // Before anything of the destination is changed: who cannot keep a record need not begin.
    if let Some(path) = options.resume
        && let Err(why) = journal(done.unwrap_or(0), to_id.clone()).write(path)
    {
        to.remove_created();
        return Err(why);
    }
    let to = to.open_for_writing(bytes, done.is_some())?;
    let stretch = from.chunk_bytes().min(to.chunk_bytes());
    let stretch = (stretch - stretch % block).max(block);
    let done = done.unwrap_or(0);
    let mut progress = ProgressBar::new(total, done, options.is_quiet);
    let run = DataRun { end: done, is_data: false };
    let (sparse, begun) = (options.sparse, Instant::now());
    let mut copy = CopyJob {
        initiator,
        from: &from,
        to: &to,
        bytes,
        total,
        block,
        stretch,
        next: done,
        run,
        sparse,
        flights: Vec::new(),
        written: 0,
        zeroed: 0,
    };
    let mut settled = Instant::now();
    while copy.step()? {
        progress.update(copy.written_up_to());
        if let Some(path) = options.resume.filter(|_| settled.elapsed() >= SYNC_INTERVAL) {
            let done = copy.written_up_to();
            copy.to.sync(&mut copy.initiator)?;
            journal(done, to_id.clone()).write(path)?;
            settled = Instant::now();
        }
    }
    from.refuse_truncated(bytes)?;
    to.sync(&mut copy.initiator)?;
    progress.clear();
    let bytes_per_second = progress.bytes_per_second(total);
    if options.verify {
        // What was just written is in this system's memory: what lies on the medium is what is to be compared.
        to.drop_page_cache()?;
        compare_ends(&mut copy.initiator, (&from, &to), bytes, options.is_quiet)?;
    }
    if let Some(path) = options.resume {
        let _ = fs::remove_file(path);
    }
    let CopyJob { mut initiator, written, zeroed, .. } = copy;
    from.close_end(&mut initiator)?;
    to.close_end(&mut initiator)?;
    let time = begun.elapsed();
    Ok(CopyOutcome { bytes, written, zeroed, is_new, time, bytes_per_second })
}
