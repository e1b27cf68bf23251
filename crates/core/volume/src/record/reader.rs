//! Parses the bytes of a record: in order, and never beyond their end.

/// Takes a record apart; `None` where it ends too soon.
pub(crate) struct RecordReader<'a>(pub(crate) &'a [u8]);

impl<'a> RecordReader<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (now, later) = self.0.split_first_chunk()?;
        self.0 = later;
        Some(*now)
    }

    /// Text behind its length in one byte.
    pub(crate) fn string(&mut self) -> Option<&'a str> {
        let [len] = self.array()?;
        let (now, later) = self.0.split_at_checked(usize::from(len))?;
        self.0 = later;
        std::str::from_utf8(now).ok()
    }
}
