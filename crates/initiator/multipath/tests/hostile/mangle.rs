//! Corrupts the messages of a correct target, PDU by PDU: bits, lengths, opcodes, tags, cuts, repetitions,
//! reordering, insertions and bursts.

use std::collections::VecDeque;

use sim::SimRng;

/// PDUs that were said before: what is said again, and where tags and numbers are taken from.
const SEEN_MAX: usize = 24;
/// Most bytes of one insertion.
const NOISE_MAX: u64 = 300;
/// Values at the edges of fields.
const EDGES: [u32; 9] = [0, 1, 4, 0xffff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, u32::MAX];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Iscsi,
    Nvme,
}

/// How what is said is cut into segments.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// All that is there is one segment.
    Whole,
    /// A segment per PDU.
    Pdus,
    /// As it comes.
    Anyhow,
    /// Nothing leaves before nothing else happens; then all at once.
    Late,
}

/// One direction of a connection.
pub struct Mangler {
    protocol: Protocol,
    cut: Cut,
    /// Of a thousand PDUs, so many are changed.
    pub permille: u32,
    buffer: Vec<u8>,
    seen: VecDeque<Vec<u8>>,
    held: Option<Vec<u8>>,
    late: Vec<u8>,
    pub changed: u64,
}

impl Mangler {
    pub fn new(protocol: Protocol, permille: u32, chance: &mut SimRng) -> Self {
        let cut = *chance.pick(&[Cut::Whole, Cut::Pdus, Cut::Anyhow, Cut::Late]);
        let (buffer, seen, late) = (Vec::new(), VecDeque::new(), Vec::new());
        Mangler { protocol, cut, permille, buffer, seen, held: None, late, changed: 0 }
    }

    /// Takes what the target says; gives the segments that arrive.
    pub fn say(&mut self, bytes: &[u8], chance: &mut SimRng) -> Vec<Vec<u8>> {
        self.buffer.extend(bytes);
        let mut said = Vec::new();
        while let Some(len) = self.whole() {
            let pdu: Vec<u8> = self.buffer.drain(..len).collect();
            self.seen.push_back(pdu.clone());
            if self.seen.len() > SEEN_MAX {
                self.seen.pop_front();
            }
            if chance.chance_permille(self.permille) {
                self.changed += 1;
                self.change(pdu, &mut said, chance);
            } else {
                said.push(pdu);
            }
            if let (Some(held), true) = (self.held.take_if(|_| !said.is_empty()), true) {
                said.push(held);
            }
        }
        self.segments(said, chance)
    }

    /// Nothing else happens: what is late comes now.
    pub fn flush(&mut self) -> Option<Vec<u8>> {
        self.late.extend(self.held.take().unwrap_or_default());
        (!self.late.is_empty()).then(|| std::mem::take(&mut self.late))
    }

    fn segments(&mut self, said: Vec<Vec<u8>>, chance: &mut SimRng) -> Vec<Vec<u8>> {
        match self.cut {
            _ if said.is_empty() => Vec::new(),
            Cut::Pdus => said,
            Cut::Whole => vec![said.concat()],
            Cut::Late => {
                self.late.extend(said.concat());
                Vec::new()
            }
            Cut::Anyhow => {
                let (all, mut at, mut segments) = (said.concat(), 0, Vec::new());
                while at < all.len() {
                    let end = all.len().min(at + chance.between(1, 600) as usize);
                    segments.push(all[at..end].to_vec());
                    at = end;
                }
                segments
            }
        }
    }

    /// The length of the first PDU, if it is whole. What the target says is right.
    fn whole(&self) -> Option<usize> {
        let head = self.buffer.get(..8)?;
        let len = match self.protocol {
            Protocol::Iscsi => {
                let data = u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize;
                48 + usize::from(head[4]) * 4 + data.next_multiple_of(4)
            }
            Protocol::Nvme => u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize,
        };
        assert!(len > 0);
        (self.buffer.len() >= len).then_some(len)
    }

    fn header(&self, pdu: &[u8]) -> usize {
        let len = if self.protocol == Protocol::Iscsi { 48 } else { usize::from(pdu[2]).max(8) };
        len.min(pdu.len())
    }

    fn change(&mut self, mut pdu: Vec<u8>, said: &mut Vec<Vec<u8>>, chance: &mut SimRng) {
        let header = self.header(&pdu) as u64;
        let other = chance.pick(self.seen.make_contiguous()).clone();
        match chance.below(14) {
            0 => flip(&mut pdu, header, chance),
            1 => {
                let len = pdu.len() as u64;
                flip(&mut pdu, len, chance);
            }
            2 => pdu[chance.below(header) as usize] = *chance.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            3 => {
                let at = match self.protocol {
                    Protocol::Iscsi => *chance.pick(&[4, 5, 6, 7]),
                    Protocol::Nvme => *chance.pick(&[2, 3, 4, 5, 6]),
                };
                pdu[at] = chance.below(256) as u8;
            }
            4 => pdu[0] = chance.below(256) as u8,
            5 => {
                // A tag, a number, an offset of another PDU.
                let at = chance.below(header) as usize / 4 * 4;
                let end = (at + 4 * chance.between(1, 2) as usize).min(pdu.len()).min(other.len());
                if at < end {
                    pdu[at..end].copy_from_slice(&other[at..end]);
                }
            }
            6 => {
                let (at, edge) = (chance.below(header) as usize / 4 * 4, *chance.pick(&EDGES));
                let edge =
                    if self.protocol == Protocol::Iscsi { edge.to_be_bytes() } else { edge.to_le_bytes() };
                let end = (at + 4).min(pdu.len());
                pdu[at..end].copy_from_slice(&edge[..end - at]);
            }
            7 => pdu.truncate(chance.below(pdu.len() as u64) as usize),
            8 => said.push(pdu.clone()),
            9 => {
                if let Some(held) = self.held.replace(pdu) {
                    said.push(held);
                }
                return;
            }
            10 => said.push(other),
            11 => {
                let mut other = other;
                let len = other.len() as u64;
                flip(&mut other, len, chance);
                said.push(other);
            }
            12 => {
                said.push(burst(self.protocol, &other, chance));
                if chance.chance_permille(500) {
                    said.push(pdu);
                    pdu = (0..48).map(|_| chance.below(256) as u8).collect();
                }
            }
            _ => {
                let len = chance.between(1, NOISE_MAX);
                said.push((0..len).map(|_| chance.below(256) as u8).collect());
            }
        }
        said.push(pdu);
    }
}

fn flip(pdu: &mut [u8], within: u64, chance: &mut SimRng) {
    if within == 0 {
        return;
    }
    for _ in 0..chance.between(1, 3) {
        pdu[chance.below(within) as usize] ^= 1 << chance.below(8);
    }
}

/// Many of the same: pings, asynchronous messages, rejections, or whatever was said.
fn burst(protocol: Protocol, other: &[u8], chance: &mut SimRng) -> Vec<u8> {
    let count = *chance.pick(&[2, 16, 63, 64, 65, 130, 300]);
    let mut pdu = vec![0; 48];
    pdu[1] = 0x80;
    match (protocol, chance.below(4)) {
        (Protocol::Iscsi, 0) => {
            // NOP-In that wants an answer.
            pdu[0] = 0x20;
            pdu[16..20].fill(0xff);
        }
        (Protocol::Iscsi, 1) => {
            (pdu[0], pdu[36]) = (0x32, chance.below(6) as u8);
            pdu[16..20].fill(0xff);
        }
        (Protocol::Iscsi, 2) => {
            (pdu[0], pdu[2]) = (0x3f, 4);
            pdu[16..20].fill(0xff);
        }
        _ => pdu = other.to_vec(),
    }
    pdu.repeat(count)
}
