//! The keys of a `chiscsi.conf`.

use super::{error::KeyError, value};

/// Which kind of block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// `global:`
    Global,
    /// `target:`
    Target,
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    OffloadMode,
    HaMode,
    AuthOrder,
    AclOrder,
    VendorId,
    InitiatorIdentity,
    LoginTime,
    DiscoveryMethod,
    DiscoveryPolicy,
    DiscoveryInitiator,
    DiscoveryTarget,
    ChallengeLength,
    TargetName,
    TargetAlias,
    MaxConnections,
    InitialR2t,
    ImmediateData,
    FirstBurstLength,
    MaxBurstLength,
    Time2Wait,
    Time2Retain,
    MaxOutstandingR2t,
    DataPduInOrder,
    DataSequenceInOrder,
    ErrorRecoveryLevel,
    HeaderDigest,
    DataDigest,
    MaxReceive,
    OfMarker,
    IfMarker,
    OfMarkInt,
    IfMarkInt,
    AuthMethod,
    Policy,
    Initiator,
    Target,
    PortalGroup,
    ShadowMode,
    Commands,
    Device,
    AclEnable,
    Acl,
    RegisterIsns,
}

use Key::*;

/// The keys of `global:`.
const GLOBAL_KEYS: [(&str, Key); 12] = [
    ("iscsi_offload_mode", OffloadMode),
    ("iscsi_HA_mode", HaMode),
    ("iscsi_auth_order", AuthOrder),
    ("iscsi_acl_order", AclOrder),
    ("iscsi_target_vendor_id", VendorId),
    ("iscsi_chelsio_ini_idstr", InitiatorIdentity),
    ("iscsi_login_complete_time", LoginTime),
    ("DISC_AuthMethod", DiscoveryMethod),
    ("DISC_Auth_CHAP_Policy", DiscoveryPolicy),
    ("DISC_Auth_CHAP_Initiator", DiscoveryInitiator),
    ("DISC_Auth_CHAP_Target", DiscoveryTarget),
    ("Auth_CHAP_ChallengeLength", ChallengeLength),
];

/// The keys of `target:`.
const TARGET_KEYS: [(&str, Key); 32] = [
    ("TargetName", TargetName),
    ("TargetAlias", TargetAlias),
    ("MaxConnections", MaxConnections),
    ("InitialR2T", InitialR2t),
    ("ImmediateData", ImmediateData),
    ("FirstBurstLength", FirstBurstLength),
    ("MaxBurstLength", MaxBurstLength),
    ("DefaultTime2Wait", Time2Wait),
    ("DefaultTime2Retain", Time2Retain),
    ("MaxOutstandingR2T", MaxOutstandingR2t),
    ("DataPDUInOrder", DataPduInOrder),
    ("DataSequenceInOrder", DataSequenceInOrder),
    ("ErrorRecoveryLevel", ErrorRecoveryLevel),
    ("HeaderDigest", HeaderDigest),
    ("DataDigest", DataDigest),
    ("MaxRecvDataSegmentLength", MaxReceive),
    ("OFMarker", OfMarker),
    ("IFMarker", IfMarker),
    ("OFMarkInt", OfMarkInt),
    ("IFMarkInt", IfMarkInt),
    ("AuthMethod", AuthMethod),
    ("Auth_CHAP_Policy", Policy),
    ("Auth_CHAP_Initiator", Initiator),
    ("Auth_CHAP_Target", Target),
    ("Auth_CHAP_ChallengeLength", ChallengeLength),
    ("PortalGroup", PortalGroup),
    ("ShadowMode", ShadowMode),
    ("TargetSessionMaxCmd", Commands),
    ("TargetDevice", Device),
    ("ACL_Enable", AclEnable),
    ("ACL", Acl),
    ("RegisteriSNS", RegisterIsns),
];

fn keys_of(kind: BlockKind) -> &'static [(&'static str, Key)] {
    match kind {
        BlockKind::Global => &GLOBAL_KEYS,
        BlockKind::Target => &TARGET_KEYS,
    }
}

impl Key {
    /// Its name in the file.
    pub fn name(self) -> &'static str {
        let found = GLOBAL_KEYS.iter().chain(&TARGET_KEYS).find(|(_, key)| *key == self);
        found.map_or("", |(name, _)| name)
    }

    /// Whether it may stand several times in one block.
    pub fn is_list(self) -> bool {
        matches!(
            self,
            DiscoveryInitiator
                | HeaderDigest
                | DataDigest
                | AuthMethod
                | Initiator
                | PortalGroup
                | Device
                | Acl
        )
    }

    /// Whether its value holds a secret.
    pub fn is_secret(self) -> bool {
        matches!(self, DiscoveryInitiator | DiscoveryTarget | Initiator | Target)
    }
}

/// The key of that name in a block of that kind, or what is wrong with it.
pub fn find_key(name: &str, kind: BlockKind) -> Result<Key, KeyError> {
    let found = |kind| keys_of(kind).iter().find(|(known, _)| *known == name).map(|(_, key)| *key);
    if let Some(key) = found(kind) {
        return Ok(key);
    }
    let (block, other, elsewhere) = match kind {
        BlockKind::Global => ("global:", BlockKind::Target, "target:"),
        BlockKind::Target => ("target:", BlockKind::Global, "global:"),
    };
    if found(other).is_some() {
        return Err(KeyError::OtherBlock { name: name.to_owned(), block, other: elsewhere });
    }
    let known: Vec<&'static str> = keys_of(kind).iter().map(|(known, _)| *known).collect();
    Err(KeyError::Unknown { name: name.to_owned(), block, near: value::nearest_word(name, &known) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_known_by_their_block_and_slips_have_a_neighbour() {
        for kind in [BlockKind::Global, BlockKind::Target] {
            for (name, key) in keys_of(kind) {
                assert_eq!(find_key(name, kind), Ok(*key));
                assert_eq!(key.name(), *name);
            }
        }
        for (name, kind, why) in [
            ("targetname", BlockKind::Target, "did you mean \"TargetName\"?"),
            ("InitalR2T", BlockKind::Target, "did you mean \"InitialR2T\"?"),
            ("TargetName", BlockKind::Global, "belongs in \"target:\", not in \"global:\""),
            ("iscsi_auth_order", BlockKind::Target, "belongs in \"global:\", not in \"target:\""),
            ("iscsi_auth_oder", BlockKind::Global, "did you mean \"iscsi_auth_order\"?"),
            ("qqqqqqqq", BlockKind::Target, "unknown key \"qqqqqqqq\" in \"target:\""),
        ] {
            let said = find_key(name, kind).unwrap_err().to_string();
            assert!(said.contains(why), "{name}: {said}");
        }
    }
}
