//! Identify (NVMe Base §5.17): the command, and the structures of its answers.

pub mod controller;
pub mod namespace;

use crate::sqe::Sqe;

pub use controller::IdentifyController;
pub use namespace::{
    IdentificationDescriptors, IdentifyIndependentNamespace, IdentifyNamespace, LbaFormat,
    NamespaceIdentifiers,
};

/// Bytes of every Identify structure.
pub const IDENTIFY_LEN: usize = 4096;

/// Every namespace, where a command allows it.
pub const NSID_ALL: u32 = 0xffff_ffff;

/// What to identify (CNS).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cns(pub u8);

#[allow(missing_docs)] // The names are the standard's.
impl Cns {
    pub const NAMESPACE: Cns = Cns(0x00);
    pub const CONTROLLER: Cns = Cns(0x01);
    pub const ACTIVE_NAMESPACES: Cns = Cns(0x02);
    pub const NAMESPACE_DESCRIPTORS: Cns = Cns(0x03);
    pub const COMMAND_SET_NAMESPACE: Cns = Cns(0x05);
    pub const COMMAND_SET_CONTROLLER: Cns = Cns(0x06);
    pub const COMMAND_SET_ACTIVE_NAMESPACES: Cns = Cns(0x07);
    pub const INDEPENDENT_NAMESPACE: Cns = Cns(0x08);
    pub const ALLOCATED_NAMESPACES: Cns = Cns(0x10);
    pub const ALLOCATED_NAMESPACE: Cns = Cns(0x11);
    pub const ATTACHED_CONTROLLERS: Cns = Cns(0x12);
    pub const CONTROLLERS: Cns = Cns(0x13);
    pub const COMMAND_SET_ALLOCATED_NAMESPACES: Cns = Cns(0x1a);
    pub const COMMAND_SET_ALLOCATED_NAMESPACE: Cns = Cns(0x1b);
    pub const COMMAND_SETS: Cns = Cns(0x1c);
}

/// An Identify command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// What.
    pub cns: Cns,
    /// CNTID: a controller, or where a list of them starts.
    pub controller: u16,
    /// NSID: a namespace, or after which one a list starts.
    pub nsid: u32,
    /// CSI: the I/O command set; 0 is NVM.
    pub command_set: u8,
}

impl Identify {
    /// Reads the command.
    pub fn parse(sqe: &Sqe) -> Identify {
        Identify {
            cns: Cns(sqe.cdw(10) as u8),
            controller: (sqe.cdw(10) >> 16) as u16,
            nsid: sqe.nsid.get(),
            command_set: (sqe.cdw(11) >> 24) as u8,
        }
    }
}

/// The places of a list of namespaces.
pub const NAMESPACES_MAX: usize = IDENTIFY_LEN / 4;

/// A list of namespaces (CNS 02h, 07h, 10h): those above `after`, ascending as they come, at most
/// 1,024; the rest is zero.
pub fn encode_namespace_list(nsids: impl Iterator<Item = u32>, after: u32) -> [u8; IDENTIFY_LEN] {
    let mut list = [0; IDENTIFY_LEN];
    for (place, nsid) in list.chunks_exact_mut(4).zip(nsids.filter(|&nsid| nsid > after)) {
        place.copy_from_slice(&nsid.to_le_bytes());
    }
    list
}

/// A list of controllers (CNS 12h, 13h; NVMe Base §4.4.1): those from `from` on, ascending as they
/// come, at most 2,047.
pub fn encode_controller_list(controllers: impl Iterator<Item = u16>, from: u16) -> [u8; IDENTIFY_LEN] {
    let mut list = [0; IDENTIFY_LEN];
    let (count, places) = list.split_at_mut(2);
    let mut listed = 0_u16;
    for (place, cntlid) in places.chunks_exact_mut(2).zip(controllers.filter(|&cntlid| cntlid >= from)) {
        place.copy_from_slice(&cntlid.to_le_bytes());
        listed += 1;
    }
    count.copy_from_slice(&listed.to_le_bytes());
    list
}

/// The I/O command set combinations (CNS 1Ch) of a controller that has the NVM command set only.
pub fn encode_command_sets() -> [u8; IDENTIFY_LEN] {
    let mut sets = [0; IDENTIFY_LEN];
    sets[0] = 1;
    sets
}

#[cfg(test)]
mod tests;
