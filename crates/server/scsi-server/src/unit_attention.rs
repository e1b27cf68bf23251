//! Unit attentions that wait to be reported (SAM-5 §5.14), per nexus and logical unit.

use scsi::sense::AdditionalSenseCode;

/// How many different conditions wait at most; what comes beyond is the oldest reported twice over
/// by REQUEST SENSE anyway, so it is left out.
const PENDING_MAX: usize = 8;

/// The conditions that wait, oldest first, each once.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnitAttentions {
    pending: [Option<AdditionalSenseCode>; PENDING_MAX],
}

impl UnitAttentions {
    /// Adds a condition, unless it waits already. POWER ON, and resets, replace all that waits.
    pub fn raise(&mut self, code: AdditionalSenseCode) {
        // SPC-4 table "unit attention condition precedence": 29h clears what came before it.
        if code.code() == 0x29 {
            self.pending = Default::default();
        }
        if self.pending.contains(&Some(code)) {
            return;
        }
        if let Some(slot) = self.pending.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(code);
        }
    }

    /// Reports the oldest.
    pub fn take_oldest(&mut self) -> Option<AdditionalSenseCode> {
        let first = self.pending[0].take()?;
        self.pending.rotate_left(1);
        Some(first)
    }

    /// Takes one condition back, wherever it stands: what it tells was told otherwise.
    pub fn withdraw(&mut self, code: AdditionalSenseCode) {
        if let Some(at) = self.pending.iter().position(|pending| *pending == Some(code)) {
            let behind = self.pending.get_mut(at..).unwrap_or_default();
            behind.rotate_left(1);
            behind.last_mut().into_iter().for_each(|last| *last = None);
        }
    }

    /// All that wait, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = AdditionalSenseCode> + '_ {
        self.pending.iter().copied().flatten()
    }

    /// These, oldest first; `None`: more than can wait, or one twice.
    pub(crate) fn from_codes(codes: &[u16]) -> Option<Self> {
        let mut pending = [None; PENDING_MAX];
        for (at, code) in codes.iter().enumerate() {
            let code = Some(AdditionalSenseCode(*code));
            let twice = pending.contains(&code);
            *pending.get_mut(at).filter(|_| !twice)? = code;
        }
        Some(UnitAttentions { pending })
    }

    /// The oldest, left where it is.
    pub fn peek_oldest(&self) -> Option<AdditionalSenseCode> {
        self.pending[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_once_oldest_first_and_a_reset_replaces_all() {
        let mut attentions = UnitAttentions::default();
        let (a, b, reset) =
            (AdditionalSenseCode(0x2a09), AdditionalSenseCode(0x2a01), AdditionalSenseCode(0x2900));
        attentions.raise(a);
        attentions.raise(b);
        attentions.raise(a);
        assert_eq!(
            [attentions.take_oldest(), attentions.take_oldest(), attentions.take_oldest()],
            [Some(a), Some(b), None]
        );
        attentions.raise(a);
        attentions.raise(b);
        attentions.withdraw(a);
        assert_eq!([attentions.take_oldest(), attentions.take_oldest()], [Some(b), None]);
        attentions.raise(a);
        attentions.raise(reset);
        assert_eq!([attentions.take_oldest(), attentions.take_oldest()], [Some(reset), None]);
    }
}
