//! The answer to SendTargets (RFC 7143 Appendix C), parsed as it is received.
//!
//! A text is read pair by pair, however it is cut, and never kept whole. Its contents are bounded:
//! [`TARGETS_MAX`] records of [`ADDRESSES_MAX`] addresses.

use crate::name::{IscsiName, TargetAddress};
use crate::text::{KEY_LEN_MAX, VALUE_LEN_MAX};

/// Most targets of one answer.
pub const TARGETS_MAX: usize = 4096;
/// Most addresses of one target.
pub const ADDRESSES_MAX: usize = 32;
/// Most bytes of one answer: as long as so many records can be.
const TEXT_LEN_MAX: usize = 4 << 20;
/// Longest pair.
const PAIR_LEN_MAX: usize = KEY_LEN_MAX + 1 + VALUE_LEN_MAX;

/// One target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRecord {
    /// Its name.
    pub name: IscsiName,
    /// Where it is; empty: at the address that was asked.
    pub addresses: Vec<TargetAddress>,
}

/// What a target answered to SendTargets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveredTargets {
    /// The targets, in the order of the answer.
    pub records: Vec<TargetRecord>,
    /// Pairs that were left out: names and addresses that are none, or keys that do not belong here.
    pub ignored: u32,
    /// The answer was longer than what is taken; the rest was not asked for.
    pub is_cut: bool,
}

/// A list being read.
#[derive(Debug, Default)]
pub(super) struct DiscoveredTargetsReader {
    targets: DiscoveredTargets,
    /// A pair whose end has not come: at most [`PAIR_LEN_MAX`] bytes.
    pair: Vec<u8>,
    /// The pair is too long, and is skipped.
    overlong: bool,
    /// Addresses belong to a record that was left out.
    orphan: bool,
    len: usize,
}

impl DiscoveredTargetsReader {
    /// Takes the next bytes of the text.
    pub(super) fn add_bytes(&mut self, mut bytes: &[u8]) {
        self.len = self.len.saturating_add(bytes.len());
        if self.len > TEXT_LEN_MAX {
            self.targets.is_cut = true;
        }
        while !self.targets.is_cut && !bytes.is_empty() {
            let mut parts = bytes.splitn(2, |byte| *byte == 0);
            let (part, rest) = (parts.next().unwrap_or_default(), parts.next());
            if self.pair.len() + part.len() > PAIR_LEN_MAX {
                self.overlong = true;
            } else {
                self.pair.extend_from_slice(part);
            }
            let Some(rest) = rest else { return };
            self.take_pair();
            bytes = rest;
        }
    }

    /// Whether nothing more is taken.
    pub(super) fn is_truncated(&self) -> bool {
        self.targets.is_cut
    }

    /// Ends the list.
    pub(super) fn finish(&mut self) -> DiscoveredTargets {
        if !self.pair.is_empty() || self.overlong {
            self.take_pair();
        }
        core::mem::take(&mut self.targets)
    }

    fn take_pair(&mut self) {
        let pair = core::mem::take(&mut self.pair);
        if core::mem::take(&mut self.overlong) || !self.take_text(&pair) {
            self.targets.ignored = self.targets.ignored.saturating_add(1);
        }
        self.pair = pair;
        self.pair.clear();
    }

    /// False: not a pair that belongs here.
    fn take_text(&mut self, pair: &[u8]) -> bool {
        if pair.is_empty() {
            // Padding that was counted.
            return true;
        }
        let Some((key, value)) = core::str::from_utf8(pair).ok().and_then(|pair| pair.split_once('=')) else {
            return false;
        };
        match key {
            "TargetName" => self.take_name(value),
            "TargetAddress" => self.take_address(value),
            _other => false,
        }
    }

    fn take_name(&mut self, value: &str) -> bool {
        let Ok(name) = IscsiName::parse(value) else {
            self.orphan = true;
            return false;
        };
        self.orphan = false;
        if self.targets.records.len() == TARGETS_MAX {
            self.targets.is_cut = true;
        } else {
            self.targets.records.push(TargetRecord { name, addresses: Vec::new() });
        }
        true
    }

    fn take_address(&mut self, value: &str) -> bool {
        let Ok(address) = TargetAddress::parse(value) else { return false };
        match self.targets.records.last_mut() {
            Some(record) if !self.orphan && record.addresses.len() < ADDRESSES_MAX => {
                record.addresses.push(address);
                true
            }
            Some(_) | None => false,
        }
    }
}
