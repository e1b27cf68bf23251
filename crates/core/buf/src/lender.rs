//! Memory lent to a shard for an operation by another owner: a program's buffers, a guest's pages.
//!
//! A socket fills or empties it like pool memory, without a copy. The lender learns when neither the shard
//! nor the kernel on its behalf can touch it any more. That may be later than the end of the operation, for
//! example if its connection was lost during a send.
//!
//! Invariant: a loan is over when its last buffer is dropped, and then [`Lender::poll_returned`] gives its
//! token exactly once.

use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::buffer::{Buf, BufMut};
use crate::loan::{Loan, LoanTable};

/// Lends memory that is not of the pool, on one shard. What it keeps per loan is used again, so that
/// lending allocates nothing once as much was lent as is lent at a time.
#[derive(Default)]
pub struct Lender {
    loans: Rc<LoanTable>,
}

impl Lender {
    /// Nothing is lent.
    pub fn new() -> Self {
        Lender::default()
    }

    /// Lends memory to be filled.
    ///
    /// # Safety
    /// Until `token` has come back by [`Lender::poll_returned`], the `len` bytes from `at` on must be
    /// initialised, readable and writable, and nobody else may read or write them.
    ///
    /// # Panics
    /// If `len` is 4 GiB or more.
    pub unsafe fn lend_mut(&self, at: NonNull<u8>, len: usize, token: u64) -> BufMut {
        BufMut::from_loan(Loan::begin(&self.loans, token, true), at, checked_len(len))
    }

    /// Lends memory to be read. `stable` promises that nobody writes it meanwhile; without that promise it
    /// is treated as a [`Region`](crate::Region) is: a mixture of bytes may be sent, and nothing worse.
    ///
    /// # Safety
    /// Until `token` has come back by [`Lender::poll_returned`], the `len` bytes from `at` on must be
    /// initialised and readable; if `stable`, nobody may write them; else no Rust reference that could
    /// be written through may exist to them.
    ///
    /// # Panics
    /// If `len` is 4 GiB or more.
    pub unsafe fn lend_read_only(&self, at: NonNull<u8>, len: usize, stable: bool, token: u64) -> Buf {
        Buf::from_loan(Loan::begin(&self.loans, token, stable), at, checked_len(len))
    }

    /// The token of a loan that is over, in the order of their ends.
    pub fn poll_returned(&self) -> Option<u64> {
        self.loans.poll_returned()
    }

    /// How many loans are not over.
    pub fn outstanding_loans(&self) -> usize {
        self.loans.outstanding_loans()
    }
}

#[expect(clippy::expect_used, reason = "documented: what is lent is shorter than 4 GiB")]
fn checked_len(len: usize) -> u32 {
    u32::try_from(len).expect("a loan is smaller than 4 GiB")
}

impl fmt::Debug for Lender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lender({} out)", self.outstanding_loans())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryClass, Pool, Sg, SgMut};

    fn lend(lender: &Lender, memory: &mut [u8], token: u64) -> BufMut {
        let len = memory.len();
        // SAFETY: the tests touch the memory only when the token is back. The pointer is to all of it.
        unsafe { lender.lend_mut(NonNull::from(memory).cast(), len, token) }
    }

    #[test]
    fn bytes_land_in_the_lenders_memory() {
        let lender = Lender::new();
        let mut memory = vec![0u8; 100];
        let mut buffer = lend(&lender, &mut memory, 7);
        assert_eq!((buffer.len(), buffer.capacity()), (100, 100));
        buffer.copy_from_slice(&[9; 100]);
        assert_eq!((lender.outstanding_loans(), lender.poll_returned()), (1, None));
        drop(buffer);
        assert_eq!(
            (lender.outstanding_loans(), lender.poll_returned(), lender.poll_returned()),
            (0, Some(7), None)
        );
        assert_eq!(memory, [9; 100]);
    }

    #[test]
    fn a_loan_ends_with_its_last_share() {
        let lender = Lender::new();
        let mut memory = vec![3u8; 50];
        let whole = lend(&lender, &mut memory, 1).freeze();
        let part = whole.slice(10..20);
        drop(whole);
        assert_eq!(part.stable_bytes(), Some(&[3; 10][..]));
        assert_eq!(lender.poll_returned(), None);
        drop(part);
        assert_eq!(lender.poll_returned(), Some(1));
        // The slot is used again.
        drop(lend(&lender, &mut memory, 2));
        assert_eq!(lender.poll_returned(), Some(2));
    }

    #[test]
    fn unstable_memory_is_only_copied() {
        let lender = Lender::new();
        let memory = [5u8; 64];
        for stable in [true, false] {
            let at = NonNull::from(&memory).cast();
            // SAFETY: nobody writes the memory.
            let buffer = unsafe { lender.lend_read_only(at, memory.len(), stable, 3) };
            assert_eq!((buffer.is_stable(), buffer.stable_bytes().is_some()), (stable, stable));
            let mut copy = [0; 64];
            buffer.copy_to(0, &mut copy);
            assert_eq!(copy, memory);
            let sg = Sg::from(buffer);
            assert_eq!(sg.is_stable(), stable);
        }
        assert_eq!((lender.poll_returned(), lender.poll_returned()), (Some(3), Some(3)));
    }

    #[test]
    fn cut_memory_is_joined_again() {
        let lender = Lender::new();
        let pool = Pool::new(1 << 20);
        let mut memory = vec![0u8; 3000];
        let whole = [pool.take(MemoryClass::Solicited, 3000).unwrap(), lend(&lender, &mut memory, 4)];
        for (at, mut buffer) in whole.into_iter().enumerate() {
            let mut rest = buffer.split_off(1000);
            let last = rest.split_off(1500);
            assert_eq!([buffer.len(), rest.len(), last.len()], [1000, 1500, 500]);
            assert_eq!((buffer.capacity(), rest.capacity()), (1000, 1500));
            // Not in this order.
            let last = buffer.unsplit(last).unwrap_err();
            buffer.unsplit(rest).unwrap();
            assert_eq!(buffer.len(), 2500);
            let back = buffer.as_mut_ptr();
            let rest = buffer.split_off(2000);
            drop(buffer);
            assert_eq!(pool.usage().lent > 0, at == 0, "the last part keeps the block");
            assert_eq!(rest.as_ptr(), back.wrapping_add(2000).cast_const());
            drop((rest.freeze(), last));
        }
        assert_eq!(pool.usage().lent, 0);
        assert_eq!(lender.poll_returned(), Some(4));
    }

    #[test]
    fn lists_are_cut_and_joined_without_moving_a_byte() {
        let pool = Pool::new(1 << 20);
        for cut in 0..=6000 {
            if cut % 97 != 0 && cut % 2000 != 0 {
                continue;
            }
            let mut sg = SgMut::new();
            (0..3).for_each(|_| sg.push(pool.take(MemoryClass::Solicited, 2000).unwrap()));
            let bytes: Vec<u8> = (0..6000).map(|at| (at % 251) as u8).collect();
            sg.copy_from(0, &bytes);
            let before: Vec<_> = sg.pieces().iter().map(|piece| piece.as_ptr()).collect();
            let rest = sg.split_off(cut);
            assert_eq!((sg.len(), rest.len()), (cut, 6000 - cut));
            sg.append(rest);
            assert_eq!(sg.pieces().iter().map(|piece| piece.as_ptr()).collect::<Vec<_>>(), before);
            let mut copy = vec![0; 6000];
            sg.freeze().copy_to(0, &mut copy);
            assert_eq!(copy, bytes);
        }
        assert_eq!(pool.usage().lent, 0);
    }
}
