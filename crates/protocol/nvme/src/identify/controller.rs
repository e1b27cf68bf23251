//! The Identify Controller structures (NVMe Base §5.17.2.1; NVM command set §4.1.5.2, §4.1.5.4).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_LEN;

/// Identify Controller as it is on the wire: 4096 bytes. The names are the standard's, in lower case;
/// what fabrics controllers never use stands in `reserved_…`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct IdentifyController {
    pub vid: U16,
    pub ssvid: U16,
    pub sn: [u8; 20],
    pub mn: [u8; 40],
    pub fr: [u8; 8],
    pub rab: u8,
    pub ieee: [u8; 3],
    pub cmic: u8,
    pub mdts: u8,
    pub cntlid: U16,
    pub ver: U32,
    pub rtd3r: U32,
    pub rtd3e: U32,
    pub oaes: U32,
    pub ctratt: U32,
    pub rrls: U16,
    pub reserved_102: [u8; 9],
    pub cntrltype: u8,
    pub fguid: [u8; 16],
    pub crdt: [U16; 3],
    pub crcap: u8,
    pub ciu: u8,
    pub cirn: U64,
    pub reserved_144: [u8; 109],
    pub nvmsr: u8,
    pub vwci: u8,
    pub mec: u8,
    pub oacs: U16,
    pub acl: u8,
    pub aerl: u8,
    pub frmw: u8,
    pub lpa: u8,
    pub elpe: u8,
    pub npss: u8,
    pub reserved_264: [u8; 56],
    pub kas: U16,
    pub reserved_322: [u8; 20],
    pub anatt: u8,
    pub anacap: u8,
    pub anagrpmax: U32,
    pub nanagrpid: U32,
    pub reserved_352: [u8; 34],
    pub cqt: U16,
    pub reserved_388: [u8; 124],
    pub sqes: u8,
    pub cqes: u8,
    pub maxcmd: U16,
    pub nn: U32,
    pub oncs: U16,
    pub fuses: U16,
    pub fna: u8,
    pub vwc: u8,
    pub awun: U16,
    pub awupf: U16,
    pub icsvscc: u8,
    pub nwpc: u8,
    pub acwu: U16,
    pub cdfs: U16,
    pub sgls: U32,
    pub mnan: U32,
    pub reserved_544: [u8; 224],
    pub subnqn: [u8; 256],
    pub reserved_1024: [u8; 768],
    pub ioccsz: U32,
    pub iorcsz: U32,
    pub icdoff: U16,
    pub fcatt: u8,
    pub msdbd: u8,
    pub ofcs: U16,
    pub dctype: u8,
    pub ccrl: u8,
    pub reserved_1808: [u8; 2288],
}

const _: () = assert!(size_of::<IdentifyController>() == IDENTIFY_LEN);

impl IdentifyController {
    /// Reads the structure, for a host.
    pub fn parse(bytes: &[u8; IDENTIFY_LEN]) -> IdentifyController {
        zerocopy::transmute!(*bytes)
    }
}

#[allow(missing_docs)] // The names are the standard's.
impl IdentifyController {
    pub const CMIC_PORTS: u8 = 1;
    pub const CMIC_CONTROLLERS: u8 = 1 << 1;
    pub const CMIC_ANA: u8 = 1 << 3;
    pub const OAES_NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
    pub const OAES_ANA_CHANGE: u32 = 1 << 11;
    pub const OAES_DISCOVERY_CHANGE: u32 = 1 << 31;
    pub const CTRATT_HOST_ID_128: u32 = 1;
    pub const CTRATT_TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
    pub const TYPE_IO: u8 = 1;
    pub const TYPE_DISCOVERY: u8 = 2;
    /// Format NVM.
    pub const OACS_FORMAT: u16 = 1 << 1;
    /// A format is for one namespace, not for all (FNA).
    pub const FNA_NO_BROADCAST: u8 = 1 << 3;
    pub const LPA_COMMAND_EFFECTS: u8 = 1 << 1;
    pub const LPA_OFFSET: u8 = 1 << 2;
    /// Supported Log Pages (00h), Feature Identifiers (12h) and Management Interface commands (13h).
    pub const LPA_SUPPORTED_PAGES: u8 = 1 << 5;
    /// Every ANA state can be reported.
    pub const ANACAP_ALL_STATES: u8 = 0x1f;
    pub const ONCS_COMPARE: u16 = 1;
    pub const ONCS_WRITE_UNCORRECTABLE: u16 = 1 << 1;
    pub const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
    pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;
    /// Get Features has Select, Set Features has Save.
    pub const ONCS_SELECT: u16 = 1 << 4;
    pub const ONCS_RESERVATIONS: u16 = 1 << 5;
    pub const ONCS_TIMESTAMP: u16 = 1 << 6;
    pub const ONCS_VERIFY: u16 = 1 << 7;
    pub const ONCS_COPY: u16 = 1 << 8;
    pub const FUSES_COMPARE_AND_WRITE: u16 = 1;
    pub const VWC_PRESENT: u8 = 1;
    /// Flush may name every namespace.
    pub const VWC_FLUSH_ALL: u8 = 3 << 1;
    /// Namespace write protection can be set and cleared.
    pub const NWPC_WRITE_PROTECT: u8 = 1;
    /// SGLs of any alignment; data in capsules by offset; transport descriptors.
    pub const SGLS_TCP: u32 = 1 | 1 << 20 | 1 << 21;
    pub const OFCS_DISCONNECT: u16 = 1;
}

/// What the NVM command set adds (CNS 06h, CSI 0): limits of commands without data, in units of the
/// least page size as a power of two, 0 for none.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNvmController {
    /// VSL: Verify.
    pub verify: u8,
    /// WZSL: Write Zeroes.
    pub write_zeroes: u8,
    /// WUSL: Write Uncorrectable.
    pub write_uncorrectable: u8,
    /// DMRL: ranges of Dataset Management; 0 for no limit.
    pub ranges: u8,
    /// DMRSL: blocks of one range; 0 for no limit.
    pub range_blocks: U32,
    /// DMSL: blocks of all ranges; 0 for no limit.
    pub blocks: [U32; 2],
    /// Reserved.
    pub reserved: [u8; IDENTIFY_LEN - 16],
}

const _: () = assert!(size_of::<IdentifyNvmController>() == IDENTIFY_LEN);

impl IdentifyNvmController {
    /// Reads the structure, for a host.
    pub fn parse(bytes: &[u8; IDENTIFY_LEN]) -> IdentifyNvmController {
        zerocopy::transmute!(*bytes)
    }
}
