//! Effects of commands (LID 05h; NVMe Base §5.16.1.6) and features (12h, §5.16.1.19).

/// The effects of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandEffects(pub u32);

impl CommandEffects {
    /// The command is there, and changes nothing but what it says.
    pub const SUPPORTED: CommandEffects = CommandEffects(1);
    /// It may change contents of blocks (LBCC).
    pub const WRITES: CommandEffects = CommandEffects(1 | 1 << 1);
    /// It changes contents of blocks, and no other command goes to its namespace meanwhile (LBCC, CSE).
    pub const FORMATS: CommandEffects = CommandEffects(1 | 1 << 1 | 1 << 16);
    /// It may change what a namespace can do (NCC).
    pub const NAMESPACE: CommandEffects = CommandEffects(1 | 1 << 2);
}

/// The page: 4096 bytes, admin commands at 0, I/O commands at 1024.
pub fn encode_command_effects(admin: &[(u8, CommandEffects)], io: &[(u8, CommandEffects)]) -> [u8; 4096] {
    let mut page = [0; 4096];
    let (entries, _) = page.as_chunks_mut::<4>();
    let (admins, ios) = entries.split_at_mut(256);
    for (entries, set) in [(admins, admin), (ios, io)] {
        for &(opcode, effects) in set {
            if let Some(entry) = entries.get_mut(usize::from(opcode)) {
                *entry = effects.0.to_le_bytes();
            }
        }
    }
    page
}

/// Whose a feature is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FeatureScope {
    /// Each namespace's.
    Namespace = 1,
    /// Each controller's.
    Controller = 1 << 1,
}

/// The page of features: 1024 bytes. `changes`: setting it may change what a namespace can do.
pub fn encode_feature_effects(
    features: impl Iterator<Item = (crate::feature::FeatureId, FeatureScope, bool)>,
) -> [u8; 1024] {
    let mut page = [0; 1024];
    for (fid, scope, changes) in features {
        let entry = 1 | u32::from(changes) << 2 | (scope as u32) << 20;
        if let Some(place) = page.as_chunks_mut().0.get_mut(usize::from(fid.0)) {
            *place = entry.to_le_bytes();
        }
    }
    page
}
