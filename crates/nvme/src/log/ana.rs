//! Asymmetric Namespace Access (LID 0Ch; NVMe Base §5.16.1.13).

/// The state of a group's paths by one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
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

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number: 1 up.
    pub id: u32,
    /// Counts the changes of its descriptor.
    pub changes: u64,
    /// Its state.
    pub state: State,
    /// Its namespaces, ascending.
    pub nsids: Vec<u32>,
}

/// The page, of groups that ascend. `groups_only` (LSP bit 0) leaves the namespaces out.
pub fn page(changes: u64, groups: &[Group], groups_only: bool) -> Vec<u8> {
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
