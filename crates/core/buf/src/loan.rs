//! Reference counts of lent memory; the end of a loan is reported by its token.
//!
//! Invariant: a loan is over when its last share is dropped, and then [`LoanTable::poll_returned`] gives its
//! token exactly once.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::rc::Rc;

/// The loans of one lender. What is kept per loan is used again.
#[derive(Default)]
pub(crate) struct LoanTable {
    slots: RefCell<Vec<LoanSlot>>,
    free: RefCell<Vec<u32>>,
    returned: RefCell<VecDeque<u64>>,
    out: Cell<usize>,
}

#[derive(Clone, Copy)]
struct LoanSlot {
    token: u64,
    shares: u32,
}

/// One share of a loan. Packed, so that a buffer is as small as without it.
#[repr(C, packed(4))]
pub(crate) struct Loan {
    /// Counted as an `Rc`.
    loans: NonNull<LoanTable>,
    /// The slot, and [`STABLE_FLAG`].
    name: u32,
}

const STABLE_FLAG: u32 = 1 << 31;

impl LoanTable {
    pub(crate) fn poll_returned(&self) -> Option<u64> {
        self.returned.borrow_mut().pop_front()
    }

    /// How many loans are not over.
    pub(crate) fn outstanding_loans(&self) -> usize {
        self.out.get()
    }
}

impl Loan {
    #[expect(clippy::expect_used, reason = "the pointer of an Rc is not null")]
    fn new(loans: Rc<LoanTable>, name: u32) -> Self {
        let at = NonNull::new(Rc::into_raw(loans).cast_mut()).expect("an Rc points somewhere");
        Loan { loans: at, name }
    }

    /// Begins a loan; this is its one share.
    #[expect(clippy::indexing_slicing, reason = "the slot is from the free list, or was pushed just before")]
    pub(crate) fn begin(loans: &Rc<LoanTable>, token: u64, stable: bool) -> Loan {
        let mut slots = loans.slots.borrow_mut();
        let new = LoanSlot { token, shares: 1 };
        let slot = match loans.free.borrow_mut().pop() {
            Some(slot) => {
                slots[slot as usize] = new;
                slot
            }
            None => {
                slots.push(new);
                (slots.len() - 1) as u32
            }
        };
        loans.out.set(loans.out.get() + 1);
        assert!(slot < STABLE_FLAG, "fewer than 2^31 loans are out");
        Loan::new(loans.clone(), slot | if stable { STABLE_FLAG } else { 0 })
    }

    fn loan_table(&self) -> &LoanTable {
        let at = self.loans;
        // SAFETY: this share is counted, so the value is there as long as it is.
        unsafe { &*at.as_ptr() }
    }

    fn slot_index(&self) -> usize {
        (self.name & !STABLE_FLAG) as usize
    }

    pub(crate) fn is_stable(&self) -> bool {
        self.name & STABLE_FLAG != 0
    }

    pub(crate) fn is_same_loan(&self, other: &Loan) -> bool {
        std::ptr::eq(self.loan_table(), other.loan_table()) && self.slot_index() == other.slot_index()
    }
}

impl Clone for Loan {
    #[expect(
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "a lent buffer names its own slot, which is there as long as it lives; 2^32 shares do not fit in memory"
    )]
    fn clone(&self) -> Self {
        let shares = &mut self.loan_table().slots.borrow_mut()[self.slot_index()].shares;
        *shares = shares.checked_add(1).expect("a buffer has fewer than 2^32 shares");
        let at = self.loans;
        // SAFETY: it came from `Rc::into_raw`, and is counted by this share.
        unsafe { Rc::increment_strong_count(at.as_ptr()) };
        Loan { loans: at, name: self.name }
    }
}

impl Drop for Loan {
    #[expect(
        clippy::indexing_slicing,
        reason = "a lent buffer names its own slot, which is there as long as it lives"
    )]
    fn drop(&mut self) {
        let at = self.loans;
        // SAFETY: it came from `Rc::into_raw` (or was counted by `clone`), and this share ends here.
        let loans = unsafe { Rc::from_raw(at.as_ptr()) };
        let mut slots = loans.slots.borrow_mut();
        let slot = &mut slots[self.slot_index()];
        slot.shares -= 1;
        if slot.shares == 0 {
            loans.returned.borrow_mut().push_back(slot.token);
            loans.free.borrow_mut().push(self.slot_index() as u32);
            loans.out.set(loans.out.get() - 1);
        }
    }
}
