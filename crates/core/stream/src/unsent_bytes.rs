//! Bytes that a link owes its peer and that no socket has taken: they go out before anything else.
//!
//! They come to be where sending is cut short: the rest of a batch that a socket took only in part, and what
//! waited behind it, made into bytes for a process that goes on with the link. Numbers that PDUs carry are
//! stamped in them, so nothing may overtake them.

use crate::io_ops::SendOp;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct UnsentBytes {
    bytes: Vec<u8>,
    /// How many of them are in batches.
    taken: usize,
}

impl UnsentBytes {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        UnsentBytes { bytes, taken: 0 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.bytes.get(self.taken..).unwrap_or_default().to_vec()
    }

    /// The next of at most `len` bytes, which are out with a batch from now on.
    pub(crate) fn take_next(&mut self, len: usize, put: impl FnOnce(&[u8])) {
        let end = self.taken.saturating_add(len).min(self.bytes.len());
        put(self.bytes.get(self.taken..end).unwrap_or_default());
        self.taken = end;
        if self.taken == self.bytes.len() {
            *self = UnsentBytes::default();
        }
    }

    /// Puts the end of a batch back before all others: what follows its first `written` bytes.
    pub(crate) fn put_back(&mut self, op: &SendOp, written: usize) {
        let mut bytes = vec![0; op.len.saturating_sub(written)];
        op.copy_to(written, &mut bytes);
        bytes.extend_from_slice(&self.to_vec());
        *self = UnsentBytes::new(bytes);
    }

    /// Takes all of them.
    pub(crate) fn take_all(&mut self) -> Vec<u8> {
        let bytes = self.to_vec();
        *self = UnsentBytes::default();
        bytes
    }
}
