//! Framing: the bytes that a link has received and not yet parsed.
//!
//! Complete headers are parsed in the receive buffer (the stage). A header that the stage cuts off is kept in
//! a small array until its rest arrives. Payload bytes behind a header are copied once, to their destination;
//! the stage is kept only while some payload has no destination yet.
//!
//! A short command that the stage cuts off behind its header may be kept whole: its first part moves to
//! memory that the next receive fills. It is then contiguous, like those before it. This is tried for one
//! receive; a command that is still incomplete after it is parsed in pieces.
//!
//! Invariant: while a partial header is kept, all bytes before it have been consumed.

use crate::io_ops::{DirectBuffer, Received};
use crate::tag::Tag;
use buf::crc32c::Crc32c;
use buf::{BufMut, MemoryClass, Pool, Sg, SgMut};
use smallvec::SmallVec;
use std::ops::Range;

/// Shortest stage that is asked for, in bytes: some eighty command headers.
const STAGING_BUFFER_MIN: usize = 4 << 10;
/// Longest: some sixty commands with 4 KiB of immediate data each.
const STAGING_BUFFER_MAX: usize = 256 << 10;
/// The longest command, in bytes with all its data, that is kept whole.
const WHOLE_COMMAND_MAX: usize = 16 << 10;

/// Received bytes between the socket and the parser of one link.
/// A header may be cut off anywhere:
///
/// ```
/// use blockwire_stream::ReceiveBuffer;
/// use buf::{MemoryClass, Pool};
///
/// let pool = Pool::new(1 << 20);
/// let mut receive = |receive_buffer: &mut ReceiveBuffer, bytes: &[u8]| {
///     let mut stage = pool.take(MemoryClass::Wire, bytes.len()).unwrap();
///     stage.copy_from_slice(bytes);
///     receive_buffer.put_staging_buffer(stage, bytes.len());
/// };
/// let mut receive_buffer = ReceiveBuffer::new();
/// receive(&mut receive_buffer, b"HEA");
/// assert_eq!(receive_buffer.peek_header(6), None);
/// receive(&mut receive_buffer, b"DERpayload");
/// assert_eq!(receive_buffer.peek_header(6), Some(&b"HEADER"[..]));
/// receive_buffer.consume_header(6);
/// let mut payload = [0; 7];
/// assert_eq!(receive_buffer.copy_out(&mut payload), 7);
/// assert_eq!(&payload, b"payload");
/// ```
#[derive(Debug)]
pub struct ReceiveBuffer {
    /// The beginning of a header whose rest has not come.
    carry: SmallVec<[u8; 64]>,
    source: Option<ReceivedBytes>,
    /// How much of `source` is consumed.
    at: usize,
    /// What was received behind `source`.
    behind: Option<ReceivedBytes>,
    /// The command that is being filled up.
    cut: Option<PartialCommand>,
    stage_len: usize,
}

/// A command whose end has not come.
#[derive(Debug)]
struct PartialCommand {
    /// Room for all of it; `None` while it is out with a receive.
    memory: Option<SgMut>,
    /// How much of it is here.
    have: usize,
    len: usize,
}

#[derive(Debug)]
enum ReceivedBytes {
    /// What the world received into a stage.
    Stage(BufMut),
    /// A command that was filled up, as far as its bytes have come: so many.
    Filled(SgMut, usize),
    /// Pages that the world chose.
    Loaned(Sg),
    /// What an earlier phase of the link left over.
    Left(Box<[u8]>),
}

impl ReceivedBytes {
    fn len(&self) -> usize {
        match self {
            ReceivedBytes::Stage(bytes) => bytes.len(),
            ReceivedBytes::Filled(_, len) => *len,
            ReceivedBytes::Loaned(pages) => pages.len(),
            ReceivedBytes::Left(bytes) => bytes.len(),
        }
    }

    /// All bytes, where they lie in one piece that nobody else may write.
    #[expect(
        clippy::indexing_slicing,
        reason = "a command is filled up to its length at most, and its memory has that length"
    )]
    fn as_contiguous(&self) -> Option<&[u8]> {
        match self {
            ReceivedBytes::Stage(bytes) => Some(bytes),
            ReceivedBytes::Filled(memory, len) => memory.pieces().first().map(|piece| &piece[..*len]),
            ReceivedBytes::Loaned(_) => None,
            ReceivedBytes::Left(bytes) => Some(bytes),
        }
    }

    #[expect(
        clippy::indexing_slicing,
        clippy::unreachable,
        reason = "the caller takes no more than `rest` says; all sources but pages lie in one piece"
    )]
    fn copy_to(&self, at: usize, into: &mut [u8]) {
        match (self, self.as_contiguous()) {
            (ReceivedBytes::Loaned(pages), _) => pages.copy_to(at, into),
            (_, Some(bytes)) => into.copy_from_slice(&bytes[at..at + into.len()]),
            (ReceivedBytes::Stage(_) | ReceivedBytes::Filled(..) | ReceivedBytes::Left(_), None) => {
                unreachable!("all but pages lie in one piece")
            }
        }
    }
}

impl Default for ReceiveBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl ReceiveBuffer {
    /// Nothing received yet.
    pub fn new() -> Self {
        let carry = SmallVec::new();
        ReceiveBuffer { carry, source: None, at: 0, behind: None, cut: None, stage_len: STAGING_BUFFER_MIN }
    }

    /// Starts with bytes that an earlier phase of the link received but did not parse.
    pub fn with_bytes(left: &[u8]) -> Self {
        let mut receive_buffer = Self::new();
        if !left.is_empty() {
            receive_buffer.source = Some(ReceivedBytes::Left(left.into()));
        }
        receive_buffer
    }

    /// How long a stage the next receive should bring, in bytes: it follows the load.
    pub fn staging_len(&self) -> usize {
        self.stage_len
    }

    /// Whether no received byte waits to be consumed, but for a partial header or command.
    pub fn is_empty(&self) -> bool {
        self.source.is_none()
    }

    /// Whether the link stands within a header, or a command that is being filled up.
    pub fn is_within_header(&self) -> bool {
        !self.carry.is_empty() || self.cut.is_some()
    }

    /// Takes in what a receive brought behind the `placed` bytes of payload that went to their own buffer. False:
    /// the peer sends no more, or the socket failed.
    ///
    /// # Panics
    /// As for [`ReceiveBuffer::put_staging_buffer`].
    #[must_use]
    #[inline]
    pub fn take_received(&mut self, received: Received, stage: Option<BufMut>, placed: usize) -> bool {
        match received {
            Received::Bytes(n) => {
                if let (Some(stage), true) = (stage, n > placed) {
                    self.put_staging_buffer(stage, n - placed);
                }
            }
            Received::Loaned(pages) => self.put_loaned_pages(pages),
            Received::Cancelled => {}
            Received::End | Received::Failed(_) => return false,
        }
        true
    }

    /// Takes the first `len` bytes of a stage in.
    ///
    /// # Panics
    /// If earlier bytes still wait, but for a command that this receive filled up, or the stage is shorter.
    pub fn put_staging_buffer(&mut self, mut stage: BufMut, len: usize) {
        stage.set_len(len);
        if len >= self.stage_len {
            self.stage_len = (self.stage_len * 2).min(STAGING_BUFFER_MAX);
        } else if len < self.stage_len / 8 {
            self.stage_len = (self.stage_len / 2).max(STAGING_BUFFER_MIN);
        }
        if len > 0 {
            self.push_source(ReceivedBytes::Stage(stage));
        }
    }

    /// Takes pages that the world chose.
    ///
    /// # Panics
    /// As for [`ReceiveBuffer::put_staging_buffer`].
    pub fn put_loaned_pages(&mut self, pages: Sg) {
        if !pages.is_empty() {
            self.push_source(ReceivedBytes::Loaned(pages));
        }
    }

    #[expect(clippy::panic, reason = "documented: the caller looks at `is_empty` first")]
    fn push_source(&mut self, source: ReceivedBytes) {
        match &self.source {
            None => (self.source, self.at) = (Some(source), 0),
            Some(ReceivedBytes::Filled(..)) if self.behind.is_none() => self.behind = Some(source),
            Some(_) => panic!("bytes over bytes that wait"),
        }
    }

    /// Keeps a command of `len` bytes whole whose header is the next to be looked at: if the stage cuts it
    /// off, it is short enough and there is memory, the next receive fills it up. True: parsing stops
    /// until then.
    #[inline]
    pub fn keep_command_whole(&mut self, len: usize, pool: &Pool) -> bool {
        self.source_remaining() < len && self.start_partial_command(len, pool)
    }

    #[cold]
    #[expect(
        clippy::indexing_slicing,
        reason = "`at` never passes the end of the source; what is here is shorter than the command, for which the memory was taken"
    )]
    fn start_partial_command(&mut self, len: usize, pool: &Pool) -> bool {
        let (Some(ReceivedBytes::Stage(bytes)), true) = (&self.source, self.carry.is_empty()) else {
            return false;
        };
        let here = &bytes[self.at..];
        if len > WHOLE_COMMAND_MAX {
            return false;
        }
        // Of what nobody was promised: without it the command goes the longer way, which has its own.
        let Some(mut memory) = pool.take(MemoryClass::Solicited, len) else { return false };
        let have = here.len();
        memory[..have].copy_from_slice(here);
        self.cut = Some(PartialCommand { memory: Some(memory.into()), have, len });
        self.advance_source(have);
        true
    }

    /// Where the next bytes go, if a command is to be filled up with them. The tag names nothing.
    pub fn lend_partial_command(&mut self) -> Option<DirectBuffer> {
        let cut = self.cut.as_mut()?;
        let data = cut.memory.take()?;
        Some(DirectBuffer { tag: Tag::from_bits(u64::MAX), data, want: cut.have..cut.len })
    }

    /// Whether what a receive brings back is a command that was to be filled up.
    pub fn is_partial_command_lent(&self) -> bool {
        self.cut.is_some()
    }

    /// Takes what [`ReceiveBuffer::lend_partial_command`] gave back, with `bytes` received in all; gives how many were for it.
    pub fn return_partial_command(&mut self, direct: DirectBuffer, bytes: usize) -> usize {
        let n = bytes.min(direct.want.len());
        self.cut = None;
        self.push_source(ReceivedBytes::Filled(direct.data, direct.want.start + n));
        n
    }

    /// The next `len` bytes in one piece, if so many are here; they stay unconsumed. If `None`, what
    /// there was is kept, and asking again later for `len` or more goes on from there.
    #[inline]
    pub fn peek_header(&mut self, len: usize) -> Option<&[u8]> {
        // Twice, since what is returned is borrowed.
        if self.peek_contiguous(len).is_some() {
            return self.peek_contiguous(len);
        }
        self.carry_header(len)
    }

    /// Puts a header together that came in pieces.
    #[cold]
    #[expect(clippy::indexing_slicing, reason = "what is carried was made as long just before")]
    fn carry_header(&mut self, len: usize) -> Option<&[u8]> {
        while self.carry.len() < len {
            let Some(source) = &self.source else { break };
            let have = self.carry.len();
            let now = (len - have).min(self.source_remaining());
            self.carry.resize(have + now, 0);
            source.copy_to(self.at, &mut self.carry[have..]);
            self.advance_source(now);
        }
        self.carry.get(..len)
    }

    /// The next `len` bytes, if all of them are here in one piece and no header is carried.
    #[inline]
    pub fn peek_contiguous(&self, len: usize) -> Option<&[u8]> {
        let bytes = self.source.as_ref().and_then(ReceivedBytes::as_contiguous)?;
        if self.carry.is_empty() { bytes.get(self.at..self.at.checked_add(len)?) } else { None }
    }

    /// Drops the header that was looked at: `len` is the longest that [`ReceiveBuffer::peek_header`] gave.
    pub fn consume_header(&mut self, len: usize) {
        if self.carry.is_empty() {
            self.advance_source(len);
        } else {
            assert!(len == self.carry.len(), "a header is consumed as a whole");
            self.carry.clear();
        }
    }

    /// Moves payload bytes into `range` of `into`, as many as are here; gives their number.
    pub fn copy_into(&mut self, into: &mut SgMut, range: Range<usize>) -> usize {
        let n = self.source_remaining().min(range.len());
        if let Some(source) = &self.source {
            let mut from = self.at;
            for slice in into.slices_mut(range.start..range.start + n) {
                source.copy_to(from, slice);
                from += slice.len();
            }
        }
        self.advance_source(n);
        n
    }

    /// Moves payload bytes into `into`, as many as are here; gives their number.
    #[expect(clippy::indexing_slicing, reason = "bounded by the length of `into`")]
    pub fn copy_out(&mut self, into: &mut [u8]) -> usize {
        let n = self.source_remaining().min(into.len());
        if let Some(source) = &self.source {
            source.copy_to(self.at, &mut into[..n]);
        }
        self.advance_source(n);
        n
    }

    /// Drops up to `len` payload bytes; gives how many were here.
    pub fn skip(&mut self, len: usize) -> usize {
        let n = self.source_remaining().min(len);
        self.advance_source(n);
        n
    }

    /// Drops up to `len` payload bytes, but feeds them to `crc`; gives how many were here.
    #[expect(clippy::indexing_slicing, reason = "bounded by the length of the chunk")]
    pub fn skip_with_crc(&mut self, len: usize, crc: &mut Crc32c) -> usize {
        let n = self.source_remaining().min(len);
        let mut chunk = [0; 512];
        let mut done = 0;
        while let (Some(source), true) = (&self.source, done < n) {
            let now = (n - done).min(chunk.len());
            source.copy_to(self.at + done, &mut chunk[..now]);
            crc.update(&chunk[..now]);
            done += now;
        }
        self.advance_source(n);
        n
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.carry.clear();
        (self.source, self.at, self.behind) = (None, 0, None);
        // What is out with a receive comes back, and is dropped then.
        self.cut = self.cut.take().filter(|cut| cut.memory.is_none());
    }

    /// Unconsumed bytes behind the carried header, as a copy: to move the link elsewhere.
    #[expect(clippy::indexing_slicing, reason = "the vector was made longer from there on just before")]
    pub fn unconsumed_bytes(&self) -> Vec<u8> {
        let mut bytes = self.carry.to_vec();
        if let Some(source) = &self.source {
            let carried = bytes.len();
            bytes.resize(carried + self.source_remaining(), 0);
            source.copy_to(self.at, &mut bytes[carried..]);
        }
        let cut = self.cut.as_ref().and_then(|cut| cut.memory.as_ref()?.pieces().first()?.get(..cut.have));
        bytes.extend_from_slice(cut.unwrap_or_default());
        if let Some(source) = &self.behind {
            let before = bytes.len();
            bytes.resize(before + source.len(), 0);
            source.copy_to(0, &mut bytes[before..]);
        }
        bytes
    }

    fn source_remaining(&self) -> usize {
        self.source.as_ref().map_or(0, ReceivedBytes::len) - self.at
    }

    fn advance_source(&mut self, len: usize) {
        self.at += len;
        if self.source_remaining() == 0 {
            self.next_source();
        }
    }

    #[cold]
    fn next_source(&mut self) {
        (self.source, self.at) = (self.behind.take(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buf::{MemoryClass, Pool};

    fn stage(pool: &Pool, bytes: &[u8]) -> BufMut {
        let mut stage = pool.take(MemoryClass::Wire, bytes.len()).unwrap();
        stage.copy_from_slice(bytes);
        stage
    }

    #[test]
    fn a_header_cut_off_is_carried_and_payload_is_copied_once() {
        let pool = Pool::new(1 << 20);
        let mut receive_buffer = ReceiveBuffer::new();
        receive_buffer.put_staging_buffer(stage(&pool, b"head1body1he"), 12);
        assert_eq!(receive_buffer.peek_header(5), Some(&b"head1"[..]));
        receive_buffer.consume_header(5);
        let mut body = SgMut::from(pool.take(MemoryClass::Wire, 8).unwrap());
        assert_eq!(receive_buffer.copy_into(&mut body, 2..7), 5);
        assert_eq!(&body.pieces()[0][2..7], b"body1");
        assert_eq!(receive_buffer.peek_header(5), None);
        assert!(receive_buffer.is_empty() && receive_buffer.is_within_header());
        receive_buffer.put_staging_buffer(stage(&pool, b"ad2bo"), 5);
        assert_eq!(receive_buffer.peek_header(5), Some(&b"head2"[..]));
        receive_buffer.consume_header(5);
        assert_eq!(receive_buffer.unconsumed_bytes(), b"bo");
        assert_eq!(receive_buffer.skip(5), 2);
        assert!(receive_buffer.is_empty() && !receive_buffer.is_within_header());
    }

    #[test]
    fn a_header_may_grow_while_it_is_looked_at() {
        let pool = Pool::new(1 << 20);
        let mut receive_buffer = ReceiveBuffer::new();
        receive_buffer.put_staging_buffer(stage(&pool, b"abcd"), 4);
        assert_eq!(receive_buffer.peek_header(3), Some(&b"abc"[..]));
        assert_eq!(receive_buffer.peek_header(6), None);
        receive_buffer.put_staging_buffer(stage(&pool, b"efgh"), 4);
        assert_eq!(receive_buffer.peek_header(3), Some(&b"abc"[..]));
        assert_eq!(receive_buffer.peek_header(6), Some(&b"abcdef"[..]));
        receive_buffer.consume_header(6);
        assert_eq!(receive_buffer.peek_header(2), Some(&b"gh"[..]));
    }

    #[test]
    fn loaned_pages_and_left_over_bytes_read_alike() {
        let pool = Pool::new(1 << 20);
        let mut pages = Sg::new();
        for part in [&b"hea"[..], b"derpay", b"load"] {
            pages.push(stage(&pool, part).freeze());
        }
        let mut loaned = ReceiveBuffer::new();
        loaned.put_loaned_pages(pages);
        for mut receive_buffer in [loaned, ReceiveBuffer::with_bytes(b"headerpayload")] {
            assert_eq!(receive_buffer.peek_header(6), Some(&b"header"[..]));
            receive_buffer.consume_header(6);
            let mut into = SgMut::from(pool.take(MemoryClass::Wire, 7).unwrap());
            assert_eq!(receive_buffer.copy_into(&mut into, 0..7), 7);
            assert_eq!(&into.pieces()[0][..], b"payload");
        }
    }

    /// What a receive does with a command that is to be filled up, and a stage behind it.
    fn receive(receive_buffer: &mut ReceiveBuffer, pool: &Pool, stream: &[u8]) {
        let mut direct = receive_buffer.lend_partial_command().unwrap();
        let (into, behind) = stream.split_at(stream.len().min(direct.want.len()));
        direct.data.copy_from(direct.want.start, into);
        assert_eq!(receive_buffer.return_partial_command(direct, stream.len()), into.len());
        if !behind.is_empty() {
            receive_buffer.put_staging_buffer(stage(pool, behind), behind.len());
        }
    }

    #[test]
    fn a_command_that_the_stage_cuts_off_is_filled_up_by_the_next() {
        let pool = Pool::new(1 << 20);
        let mut receive_buffer = ReceiveBuffer::new();
        receive_buffer.put_staging_buffer(stage(&pool, b"head1body1head2bo"), 17);
        assert!(!receive_buffer.keep_command_whole(10, &pool), "it is whole");
        assert_eq!(receive_buffer.peek_header(5), Some(&b"head1"[..]));
        assert_eq!(receive_buffer.skip(10), 10);
        assert!(!receive_buffer.keep_command_whole(WHOLE_COMMAND_MAX + 1, &pool), "too long");
        assert!(
            receive_buffer.keep_command_whole(10, &pool)
                && receive_buffer.is_empty()
                && receive_buffer.is_within_header()
        );
        assert_eq!(receive_buffer.unconsumed_bytes(), b"head2bo");
        receive(&mut receive_buffer, &pool, b"dy2head3");
        assert_eq!(receive_buffer.peek_contiguous(10), Some(&b"head2body2"[..]));
        assert_eq!(receive_buffer.unconsumed_bytes(), b"head2body2head3");
        assert!(!receive_buffer.keep_command_whole(11, &pool), "once is enough");
        assert_eq!(receive_buffer.peek_header(5), Some(&b"head2"[..]));
        assert_eq!(receive_buffer.skip(10), 10);
        assert_eq!(receive_buffer.peek_header(5), Some(&b"head3"[..]));
        receive_buffer.consume_header(5);
        assert!(receive_buffer.is_empty() && !receive_buffer.is_within_header() && pool.usage().lent == 0);
    }

    #[test]
    fn what_comes_too_late_is_parsed_piecemeal() {
        let pool = Pool::new(1 << 20);
        let mut receive_buffer = ReceiveBuffer::new();
        receive_buffer.put_staging_buffer(stage(&pool, b"he"), 2);
        assert!(receive_buffer.keep_command_whole(10, &pool));
        receive(&mut receive_buffer, &pool, b"a");
        assert!(!receive_buffer.keep_command_whole(10, &pool));
        assert_eq!(receive_buffer.peek_header(5), None);
        receive_buffer.put_staging_buffer(stage(&pool, b"d1body1"), 7);
        assert_eq!(receive_buffer.peek_header(5), Some(&b"head1"[..]));
        receive_buffer.consume_header(5);
        assert_eq!(receive_buffer.unconsumed_bytes(), b"body1");
        // Pages behind it, and a header over both.
        receive_buffer.skip(5);
        receive_buffer.put_staging_buffer(stage(&pool, b"he"), 2);
        assert!(receive_buffer.keep_command_whole(10, &pool));
        let direct = receive_buffer.lend_partial_command().unwrap();
        assert!(receive_buffer.lend_partial_command().is_none() && receive_buffer.is_partial_command_lent());
        assert_eq!(receive_buffer.return_partial_command(direct, 0), 0);
        receive_buffer.put_loaned_pages(Sg::from(stage(&pool, b"ad2body2").freeze()));
        assert_eq!(receive_buffer.peek_header(5), Some(&b"head2"[..]));
        receive_buffer.consume_header(5);
        assert_eq!(receive_buffer.skip(5), 5);
        assert!(receive_buffer.is_empty() && pool.usage().lent == 0);
        // Dropped while it is out, it comes back and goes.
        receive_buffer.put_staging_buffer(stage(&pool, b"he"), 2);
        assert!(receive_buffer.keep_command_whole(10, &pool));
        let direct = receive_buffer.lend_partial_command().unwrap();
        receive_buffer.clear();
        assert!(receive_buffer.is_partial_command_lent());
        receive_buffer.return_partial_command(direct, 3);
        receive_buffer.clear();
        assert!(receive_buffer.is_empty() && !receive_buffer.is_within_header() && pool.usage().lent == 0);
    }

    #[test]
    fn a_command_is_not_kept_whole_where_memory_is_short() {
        let pool = Pool::new(1 << 20);
        let mut receive_buffer = ReceiveBuffer::new();
        receive_buffer.put_staging_buffer(stage(&pool, b"he"), 2);
        let all: Vec<BufMut> = std::iter::from_fn(|| pool.take(MemoryClass::Solicited, 512)).collect();
        assert!(!receive_buffer.keep_command_whole(10, &pool), "{} are out", all.len());
    }

    #[test]
    fn the_stage_follows_the_load() {
        let pool = Pool::new(4 << 20);
        let mut receive_buffer = ReceiveBuffer::new();
        for _ in 0..10 {
            let len = receive_buffer.staging_len();
            receive_buffer.put_staging_buffer(pool.take(MemoryClass::Wire, len).unwrap(), len);
            receive_buffer.clear();
        }
        assert_eq!(receive_buffer.staging_len(), STAGING_BUFFER_MAX);
        for _ in 0..10 {
            receive_buffer.put_staging_buffer(pool.take(MemoryClass::Wire, 48).unwrap(), 48);
            receive_buffer.clear();
        }
        assert_eq!(receive_buffer.staging_len(), STAGING_BUFFER_MIN);
    }
}
