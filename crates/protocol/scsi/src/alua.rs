//! Asymmetric logical unit access (SPC-4 §5.15): REPORT TARGET PORT GROUPS data and SET TARGET PORT GROUPS lists.

use crate::sense::Sense;
use crate::wire::{Writer, be16, be32, bit, bits, flag_bit, place_bits};

/// ASYMMETRIC ACCESS STATE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct AccessState(pub u8);

impl AccessState {
    /// Active/optimized.
    pub const OPTIMIZED: AccessState = AccessState(0x0);
    /// Active/non-optimized.
    pub const NON_OPTIMIZED: AccessState = AccessState(0x1);
    /// Standby.
    pub const STANDBY: AccessState = AccessState(0x2);
    /// Unavailable.
    pub const UNAVAILABLE: AccessState = AccessState(0x3);
    /// Offline.
    pub const OFFLINE: AccessState = AccessState(0xe);
    /// Transitioning.
    pub const TRANSITIONING: AccessState = AccessState(0xf);
}

/// STATUS CODE: why a group is in its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessStateCause {
    /// 00h: no change yet.
    None,
    /// 01h: SET TARGET PORT GROUPS.
    Explicit,
    /// 02h: the target itself.
    Implicit,
}

/// One target port group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TargetPortGroup {
    /// TARGET PORT GROUP.
    pub id: u16,
    /// Its state.
    pub state: AccessState,
    /// PREF: the preferred group.
    pub preferred: bool,
    /// Which states can occur.
    pub supported: SupportedStates,
    /// Why it is in its state.
    pub cause: AccessStateCause,
}

/// The states that a group can be in: T_SUP, O_SUP, U_SUP, S_SUP, AN_SUP, AO_SUP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SupportedStates(u8);

impl SupportedStates {
    /// Optimized, non-optimized, standby, unavailable and transitioning: the states that the volume has.
    pub const VOLUME: SupportedStates = SupportedStates(0x8f);

    /// Whether a state can occur.
    pub const fn contains(self, state: AccessState) -> bool {
        match state {
            AccessState::OPTIMIZED => bit(self.0, 0),
            AccessState::NON_OPTIMIZED => bit(self.0, 1),
            AccessState::STANDBY => bit(self.0, 2),
            AccessState::UNAVAILABLE => bit(self.0, 3),
            AccessState::OFFLINE => bit(self.0, 6),
            AccessState::TRANSITIONING => bit(self.0, 7),
            _ => false,
        }
    }
}

/// FORMAT TYPE of the extended header.
const EXTENDED_FORMAT: u8 = 1;

/// Writes REPORT TARGET PORT GROUPS data.
#[derive(Debug)]
pub struct PortGroupsWriter<'w, 'o> {
    w: &'w mut Writer<'o>,
    start: usize,
}

impl<'w, 'o> PortGroupsWriter<'w, 'o> {
    /// Begins the data; `extended`: with the header that says how long an implicit transition takes, in seconds.
    pub fn start(extended: bool, transition_s: u8, w: &'w mut Writer<'o>) -> Self {
        let start = w.len();
        w.u32(0);
        if extended {
            w.put(&[place_bits(EXTENDED_FORMAT, 6, 4), transition_s, 0, 0]);
        }
        PortGroupsWriter { w, start }
    }

    /// Appends a group with the relative identifiers of its ports, at most 255.
    pub fn push_group(&mut self, group: &TargetPortGroup, ports: impl Iterator<Item = u16>) {
        let w = &mut *self.w;
        w.u8(flag_bit(group.preferred, 7) | place_bits(group.state.0, 3, 0));
        w.u8(group.supported.0);
        w.u16(group.id);
        w.u8(0);
        w.u8(match group.cause {
            AccessStateCause::None => 0,
            AccessStateCause::Explicit => 1,
            AccessStateCause::Implicit => 2,
        });
        w.u8(0);
        let count_at = w.len();
        w.u8(0);
        let mut count = 0;
        for port in ports.take(usize::from(u8::MAX)) {
            w.u16(0);
            w.u16(port);
            count += 1;
        }
        w.patch(count_at, &[count]);
    }

    /// Ends the data.
    pub fn finish(self) {
        self.w.patch_length_u32(self.start);
    }
}

/// A group in received REPORT TARGET PORT GROUPS data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodedPortGroup<'a> {
    /// TARGET PORT GROUP.
    pub id: u16,
    /// Its state.
    pub state: AccessState,
    /// PREF.
    pub preferred: bool,
    /// Which states can occur.
    pub supported: SupportedStates,
    ports: &'a [[u8; 4]],
}

impl<'a> DecodedPortGroup<'a> {
    /// Relative identifiers of its ports.
    pub fn ports(&self) -> impl Iterator<Item = u16> + use<'a> {
        self.ports.iter().map(|port| be16(port, 2))
    }
}

/// The whole groups in REPORT TARGET PORT GROUPS data (with either header).
pub fn decode_port_groups(data: &[u8]) -> impl Iterator<Item = DecodedPortGroup<'_>> {
    let listed = data.first_chunk::<4>().map_or(0, |head| be32(head, 0) as usize);
    let body = data.get(4..).unwrap_or(&[]);
    let mut rest = body.get(..listed).unwrap_or(body);
    // In a group's first byte these bits are zero, so the formats can be told apart.
    if rest.first().is_some_and(|byte| bits(*byte, 6, 4) == EXTENDED_FORMAT) {
        rest = rest.get(4..).unwrap_or(&[]);
    }
    std::iter::from_fn(move || {
        let (head, tail) = rest.split_first_chunk::<8>()?;
        let (ports, next) = tail.split_at_checked(usize::from(head[7]) * 4)?;
        rest = next;
        Some(DecodedPortGroup {
            id: be16(head, 2),
            state: AccessState(bits(head[0], 3, 0)),
            preferred: bit(head[0], 7),
            supported: SupportedStates(head[1]),
            ports: ports.as_chunks().0,
        })
    })
}

/// A wish of SET TARGET PORT GROUPS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetStateDescriptor {
    /// TARGET PORT GROUP.
    pub group: u16,
    /// The state it is to have.
    pub state: AccessState,
}

/// A checked SET TARGET PORT GROUPS list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetPortGroupsList<'a>(&'a [[u8; 4]]);

impl<'a> SetPortGroupsList<'a> {
    /// Reads the list (SPC-4 §6.43). An initiator may not ask for transitioning, nor for a state outside
    /// `supported`. An empty list changes nothing.
    pub fn parse(list: &'a [u8], supported: SupportedStates) -> Result<SetPortGroupsList<'a>, Sense> {
        if list.is_empty() {
            return Ok(SetPortGroupsList(&[]));
        }
        let (_, rest) = list.split_first_chunk::<4>().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let (descriptors, odd) = rest.as_chunks::<4>();
        if !odd.is_empty() {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        }
        for (index, descriptor) in descriptors.iter().enumerate() {
            let state = AccessState(bits(descriptor[0], 3, 0));
            if state == AccessState::TRANSITIONING || !supported.contains(state) {
                return Err(Sense::invalid_list_field(4 + 4 * index, Some(3)));
            }
        }
        Ok(SetPortGroupsList(descriptors))
    }

    /// The wishes in their order.
    pub fn iter(&self) -> impl Iterator<Item = SetStateDescriptor> + use<'a> {
        self.0.iter().map(|d| SetStateDescriptor { group: be16(d, 2), state: AccessState(bits(d[0], 3, 0)) })
    }
}

/// Writes a SET TARGET PORT GROUPS list.
pub fn encode_set_port_groups(wishes: impl Iterator<Item = SetStateDescriptor>, w: &mut Writer<'_>) {
    w.u32(0);
    for wish in wishes {
        w.put(&[place_bits(wish.state.0, 3, 0), 0]);
        w.u16(wish.group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GROUP: TargetPortGroup = TargetPortGroup {
        id: 0x102,
        state: AccessState::NON_OPTIMIZED,
        preferred: true,
        supported: SupportedStates::VOLUME,
        cause: AccessStateCause::Implicit,
    };

    fn report(extended: bool, out: &mut [u8]) -> (usize, usize) {
        let mut w = Writer::new(out);
        let mut groups = PortGroupsWriter::start(extended, 9, &mut w);
        groups.push_group(&GROUP, [1, 2].into_iter());
        groups.push_group(&TargetPortGroup { id: 3, preferred: false, ..GROUP }, std::iter::empty());
        groups.finish();
        (w.len(), w.written_len())
    }

    #[test]
    fn vectors() {
        let mut out = [0xee; 64];
        assert_eq!(report(false, &mut out), (28, 28));
        #[rustfmt::skip]
        assert_eq!(out[..28], [
            0, 0, 0, 24, 0x81, 0x8f, 1, 2, 0, 2, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0x01, 0x8f, 0, 3, 0, 2, 0, 0,
        ]);
        for extended in [false, true] {
            let (len, _) = report(extended, &mut out);
            let groups: Vec<_> = decode_port_groups(&out[..len]).collect();
            assert_eq!(groups.len(), 2);
            assert_eq!((groups[0].id, groups[0].state, groups[0].preferred), (0x102, GROUP.state, true));
            assert_eq!(groups[0].ports().collect::<Vec<_>>(), [1, 2]);
        }
        assert_eq!(out[..8], [0, 0, 0, 28, 0x10, 9, 0, 0]);
    }

    #[test]
    fn truncation_keeps_length_and_port_count() {
        let mut whole = [0; 28];
        report(false, &mut whole);
        for allocation in 0..28 {
            let mut out = [0xee; 28];
            assert_eq!(report(false, &mut out[..allocation]), (28, allocation));
            assert_eq!(out[..allocation], whole[..allocation]);
            assert!(out[allocation..].iter().all(|b| *b == 0xee));
            assert!(decode_port_groups(&out[..allocation]).count() <= 1);
        }
    }

    #[test]
    fn set_lists() {
        let wish = SetStateDescriptor { group: 5, state: AccessState::NON_OPTIMIZED };
        let mut out = [0xee; 12];
        encode_set_port_groups([wish, wish].into_iter(), &mut Writer::new(&mut out));
        assert_eq!(out, [0, 0, 0, 0, 1, 0, 0, 5, 1, 0, 0, 5]);
        let list = SetPortGroupsList::parse(&out, SupportedStates::VOLUME).unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), [wish, wish]);
        assert_eq!(SetPortGroupsList::parse(&[], SupportedStates::VOLUME).unwrap().iter().count(), 0);
        for len in [1, 2, 3, 5, 11] {
            assert_eq!(
                SetPortGroupsList::parse(&out[..len], SupportedStates::VOLUME),
                Err(Sense::PARAMETER_LIST_LENGTH_ERROR)
            );
        }
        for state in [0x4, 0xe, 0xf] {
            out[8] = state;
            assert_eq!(
                SetPortGroupsList::parse(&out, SupportedStates::VOLUME),
                Err(Sense::invalid_list_field(8, Some(3)))
            );
        }
    }

    proptest! {
        #[test]
        fn anything_has_an_answer(data in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(decode_port_groups(&data).count() <= 8);
            let _ = SetPortGroupsList::parse(&data, SupportedStates::VOLUME);
        }
    }
}
