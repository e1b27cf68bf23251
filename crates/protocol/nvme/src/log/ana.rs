//! Asymmetric Namespace Access (LID 0Ch; NVMe Base §5.16.1.13).

/// The state of a group's paths by one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AnaState {
    /// Best.
    Optimized = 1,
    /// Works, at a price.
    NonOptimized = 2,
    /// Not now.
    Inaccessible = 3,
    /// Never again.
    PersistentLoss = 4,
    /// About to change.
    Change = 15,
}

impl AnaState {
    /// Reads the low four bits of a descriptor's byte 16.
    pub const fn from_code(code: u8) -> Option<AnaState> {
        match code & 15 {
            1 => Some(AnaState::Optimized),
            2 => Some(AnaState::NonOptimized),
            3 => Some(AnaState::Inaccessible),
            4 => Some(AnaState::PersistentLoss),
            15 => Some(AnaState::Change),
            _ => None,
        }
    }
}

/// Bytes of a page's header.
pub const HEADER_LEN: usize = 16;
/// Bytes of a group's descriptor without its namespaces.
pub const DESCRIPTOR_LEN: usize = 32;

/// What a page says of a group, for a host: its state, if the group is in what `page` holds of it and
/// the state is one that there is. Lengths in the page are believed no further than its end.
pub fn find_group_state(page: &[u8], group: u32) -> Option<AnaState> {
    let word = |bytes: &[u8], at: usize| {
        let field: &[u8; 4] = bytes.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*field))
    };
    let count = word(page, 8)? as u16;
    let mut rest = page.get(HEADER_LEN..)?;
    for _ in 0..count {
        let (descriptor, behind) = rest.split_at_checked(DESCRIPTOR_LEN)?;
        if word(descriptor, 0)? == group {
            return AnaState::from_code(*descriptor.get(16)?);
        }
        let namespaces = usize::try_from(word(descriptor, 4)?).ok()?.checked_mul(4)?;
        rest = behind.get(namespaces..)?;
    }
    None
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// Its number: 1 up.
    pub id: u32,
    /// Counts the changes of its descriptor.
    pub changes: u64,
    /// Its state.
    pub state: AnaState,
    /// Its namespaces, ascending.
    pub nsids: Vec<u32>,
}

/// The page, of groups that ascend. `groups_only` (LSP bit 0) leaves the namespaces out.
pub fn encode_page(changes: u64, groups: &[AnaGroup], groups_only: bool) -> Vec<u8> {
    let mut page = Vec::with_capacity(16 + groups.len() * 64);
    page.extend_from_slice(&changes.to_le_bytes());
    page.extend_from_slice(&(groups.len() as u16).to_le_bytes());
    page.extend_from_slice(&[0; 6]);
    for group in groups {
        let nsids: &[u32] = if groups_only { &[] } else { &group.nsids };
        page.extend_from_slice(&group.id.to_le_bytes());
        page.extend_from_slice(&(nsids.len() as u32).to_le_bytes());
        page.extend_from_slice(&group.changes.to_le_bytes());
        page.push(group.state as u8);
        page.extend_from_slice(&[0; 15]);
        page.extend(nsids.iter().flat_map(|nsid| nsid.to_le_bytes()));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_behind_others_and_lengths_that_lie_end_the_search() {
        let group = |id, state| AnaGroup { id, changes: 1, state, nsids: vec![id, id + 1] };
        let groups = [group(1, AnaState::Optimized), group(5, AnaState::Inaccessible)];
        for groups_only in [false, true] {
            let page = encode_page(9, &groups, groups_only);
            assert_eq!(find_group_state(&page, 5), Some(AnaState::Inaccessible));
            assert_eq!(find_group_state(&page, 1), Some(AnaState::Optimized));
            assert_eq!(find_group_state(&page, 2), None);
            for len in 0..page.len() {
                let _ = find_group_state(&page[..len], 2);
            }
        }
        let mut lies = encode_page(9, &groups, true);
        lies[HEADER_LEN + 4..HEADER_LEN + 8].fill(0xff);
        assert_eq!(find_group_state(&lies, 5), None);
        lies[HEADER_LEN + 16] = 7;
        assert_eq!(find_group_state(&lies, 1), None);
    }
}
