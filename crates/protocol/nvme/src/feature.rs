//! Features (NVMe Base §5.15, §5.27).

use crate::sqe::Sqe;

/// Names a feature (FID).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FeatureId(pub u8);

#[allow(missing_docs)] // The names are the standard's.
impl FeatureId {
    pub const ARBITRATION: FeatureId = FeatureId(0x01);
    pub const POWER_MANAGEMENT: FeatureId = FeatureId(0x02);
    pub const TEMPERATURE_THRESHOLD: FeatureId = FeatureId(0x04);
    pub const ERROR_RECOVERY: FeatureId = FeatureId(0x05);
    pub const VOLATILE_WRITE_CACHE: FeatureId = FeatureId(0x06);
    pub const NUMBER_OF_QUEUES: FeatureId = FeatureId(0x07);
    pub const WRITE_ATOMICITY: FeatureId = FeatureId(0x0a);
    pub const ASYNC_EVENT_CONFIGURATION: FeatureId = FeatureId(0x0b);
    pub const TIMESTAMP: FeatureId = FeatureId(0x0e);
    pub const KEEP_ALIVE_TIMER: FeatureId = FeatureId(0x0f);
    pub const HOST_BEHAVIOR: FeatureId = FeatureId(0x16);
    pub const COMMAND_SET_PROFILE: FeatureId = FeatureId(0x19);
    pub const HOST_IDENTIFIER: FeatureId = FeatureId(0x81);
    pub const RESERVATION_NOTIFICATION_MASK: FeatureId = FeatureId(0x82);
    pub const RESERVATION_PERSISTENCE: FeatureId = FeatureId(0x83);
    pub const NAMESPACE_WRITE_PROTECTION: FeatureId = FeatureId(0x84);
}

/// Which value Get Features wants (SEL).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeatureSelect {
    /// The current one.
    Current,
    /// The default.
    Default,
    /// The saved one.
    Saved,
    /// What can be done with it.
    Supported,
}

/// A Get Features command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetFeatures {
    /// Which.
    pub fid: FeatureId,
    /// Which value.
    pub select: FeatureSelect,
    /// Dword 11.
    pub argument: u32,
    /// NSID.
    pub nsid: u32,
}

impl GetFeatures {
    /// Reads the command; `None` if SEL is reserved.
    pub fn parse(sqe: &Sqe) -> Option<GetFeatures> {
        let select = match sqe.cdw(10) >> 8 & 7 {
            0 => FeatureSelect::Current,
            1 => FeatureSelect::Default,
            2 => FeatureSelect::Saved,
            3 => FeatureSelect::Supported,
            _ => return None,
        };
        let fid = FeatureId(sqe.cdw(10) as u8);
        Some(GetFeatures { fid, select, argument: sqe.cdw(11), nsid: sqe.nsid.get() })
    }
}

/// A Set Features command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetFeatures {
    /// Which.
    pub fid: FeatureId,
    /// Whether to keep it over resets (SV).
    pub save: bool,
    /// Dword 11.
    pub value: u32,
    /// NSID.
    pub nsid: u32,
}

impl SetFeatures {
    /// Reads the command.
    pub fn parse(sqe: &Sqe) -> SetFeatures {
        SetFeatures {
            fid: FeatureId(sqe.cdw(10) as u8),
            save: sqe.cdw(10) & 1 << 31 != 0,
            value: sqe.cdw(11),
            nsid: sqe.nsid.get(),
        }
    }
}

/// What can be done with a feature, as Get Features tells it with [`FeatureSelect::Supported`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureCapabilities {
    /// It can be saved.
    pub saveable: bool,
    /// It is each namespace's own.
    pub per_namespace: bool,
    /// It can be changed.
    pub changeable: bool,
}

impl FeatureCapabilities {
    /// Dword 0.
    pub fn to_dword(&self) -> u32 {
        u32::from(self.saveable) | u32::from(self.per_namespace) << 1 | u32::from(self.changeable) << 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    // Linux struct nvme_features; SPDK spdk_nvme_cmd_cdw10 (get_features, set_features).
    #[test]
    fn commands_are_cut_at_their_offsets() {
        let mut raw = [0; 64];
        (raw[4], raw[40], raw[41], raw[43], raw[44], raw[47]) = (9, 0x0b, 3, 0x80, 0x34, 0x12);
        let sqe = Sqe::read_from_bytes(&raw).unwrap();
        let get = GetFeatures::parse(&sqe).unwrap();
        let fid = FeatureId::ASYNC_EVENT_CONFIGURATION;
        assert_eq!(
            get,
            GetFeatures { fid, select: FeatureSelect::Supported, argument: 0x1200_0034, nsid: 9 }
        );
        let set = SetFeatures::parse(&sqe);
        assert_eq!(set, SetFeatures { fid, save: true, value: 0x1200_0034, nsid: 9 });
        raw[41] = 4;
        assert_eq!(GetFeatures::parse(&Sqe::read_from_bytes(&raw).unwrap()), None);
        let all = FeatureCapabilities { saveable: true, per_namespace: true, changeable: true };
        assert_eq!(all.to_dword(), 7);
        assert_eq!(FeatureCapabilities { changeable: true, ..FeatureCapabilities::default() }.to_dword(), 4);
    }
}
