//! The Identify Namespace structures (NVM command set §4.1.5.1; NVMe Base §5.17.2.3, §5.17.2.8).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_LEN;

/// A format of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LbaFormat {
    /// MS: bytes of metadata per block.
    pub metadata: U16,
    /// LBADS: a block has 2^this bytes.
    pub shift: u8,
    /// RP: relative performance; 0 is best.
    pub performance: u8,
}

/// Identify Namespace as it is on the wire: 4096 bytes. The names are the standard's, in lower case.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct IdentifyNamespace {
    pub nsze: U64,
    pub ncap: U64,
    pub nuse: U64,
    pub nsfeat: u8,
    pub nlbaf: u8,
    pub flbas: u8,
    pub mc: u8,
    pub dpc: u8,
    pub dps: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub dlfeat: u8,
    pub nawun: U16,
    pub nawupf: U16,
    pub nacwu: U16,
    pub nabsn: U16,
    pub nabo: U16,
    pub nabspf: U16,
    pub noiob: U16,
    pub nvmcap: [U64; 2],
    pub npwg: U16,
    pub npwa: U16,
    pub npdg: U16,
    pub npda: U16,
    pub nows: U16,
    pub mssrl: U16,
    pub mcl: U32,
    pub msrc: u8,
    pub reserved_81: [u8; 11],
    pub anagrpid: U32,
    pub reserved_96: [u8; 3],
    pub nsattr: u8,
    pub nvmsetid: U16,
    pub endgid: U16,
    pub nguid: [u8; 16],
    pub eui64: [u8; 8],
    pub lbaf: [LbaFormat; 64],
    pub reserved_384: [u8; 3712],
}

const _: () = assert!(size_of::<IdentifyNamespace>() == IDENTIFY_LEN);

#[allow(missing_docs)] // The names are the standard's.
impl IdentifyNamespace {
    pub const NSFEAT_THIN: u8 = 1;
    /// NAWUN, NAWUPF and NACWU are the namespace's own.
    pub const NSFEAT_ATOMICS: u8 = 1 << 1;
    /// NPWG, NPWA, NPDG, NPDA and NOWS say something.
    pub const NSFEAT_PERFORMANCE: u8 = 1 << 4;
    pub const NMIC_SHARED: u8 = 1;
    /// Persist through power loss, all six types, IEKEY as 1.3 and later define it.
    pub const RESCAP_ALL: u8 = 0xff;
    /// Deallocated blocks read as zeroes.
    pub const DLFEAT_ZEROES: u8 = 1;
    /// Write Zeroes can deallocate.
    pub const DLFEAT_WRITE_ZEROES: u8 = 1 << 3;
    pub const NSATTR_WRITE_PROTECTED: u8 = 1;
}

/// The structure that does not depend on the command set (CNS 08h).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct IdentifyIndependentNamespace {
    pub nsfeat: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub anagrpid: U32,
    pub nsattr: u8,
    pub reserved_9: u8,
    pub nvmsetid: U16,
    pub endgid: U16,
    pub nstat: u8,
    pub reserved_15: [u8; 4081],
}

const _: () = assert!(size_of::<IdentifyIndependentNamespace>() == IDENTIFY_LEN);

impl IdentifyIndependentNamespace {
    /// VWCNP: the namespace has no volatile write cache, whatever the controller's VWC says.
    pub const NSFEAT_NO_CACHE: u8 = 1 << 5;
    /// The namespace is ready.
    pub const NSTAT_READY: u8 = 1;
}

/// Namespace identification descriptors (CNS 03h), one after another.
#[derive(Clone, Debug)]
pub struct IdentificationDescriptors {
    bytes: [u8; IDENTIFY_LEN],
    at: usize,
}

impl Default for IdentificationDescriptors {
    fn default() -> Self {
        IdentificationDescriptors { bytes: [0; IDENTIFY_LEN], at: 0 }
    }
}

impl IdentificationDescriptors {
    /// An EUI-64.
    pub fn push_eui64(&mut self, id: [u8; 8]) {
        self.push_descriptor(1, &id);
    }

    /// An NGUID.
    pub fn push_nguid(&mut self, id: [u8; 16]) {
        self.push_descriptor(2, &id);
    }

    /// A UUID.
    pub fn push_uuid(&mut self, id: [u8; 16]) {
        self.push_descriptor(3, &id);
    }

    /// The command set.
    pub fn push_command_set(&mut self, csi: u8) {
        self.push_descriptor(4, &[csi]);
    }

    /// One of each kind takes 57 bytes: more than once each is our own mistake.
    fn push_descriptor(&mut self, kind: u8, id: &[u8]) {
        let header = [kind, id.len() as u8, 0, 0];
        let places = self.bytes.iter_mut().skip(self.at);
        places.zip(header.iter().chain(id)).for_each(|(place, byte)| *place = *byte);
        self.at += header.len() + id.len();
    }

    /// The structure; what follows the last descriptor is zero.
    pub fn bytes(&self) -> &[u8; IDENTIFY_LEN] {
        &self.bytes
    }
}

/// What a list of descriptors says, for a host. What does not fit what its type needs is left out; the
/// list ends with the first length of zero, or where the bytes end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceIdentifiers {
    /// EUI-64.
    pub eui64: Option<[u8; 8]>,
    /// NGUID.
    pub nguid: Option<[u8; 16]>,
    /// UUID.
    pub uuid: Option<[u8; 16]>,
    /// The I/O command set (CSI).
    pub command_set: Option<u8>,
}

impl NamespaceIdentifiers {
    /// Reads a list.
    pub fn parse(bytes: &[u8; IDENTIFY_LEN]) -> NamespaceIdentifiers {
        let mut found = NamespaceIdentifiers::default();
        let mut rest = &bytes[..];
        while let Some((&[kind, len, _, _], behind)) = rest.split_first_chunk::<4>() {
            let Some((id, behind)) = behind.split_at_checked(len.into()) else { break };
            if len == 0 {
                break;
            }
            match kind {
                1 => found.eui64 = id.try_into().ok(),
                2 => found.nguid = id.try_into().ok(),
                3 => found.uuid = id.try_into().ok(),
                4 => found.command_set = id.first().copied(),
                _ => {}
            }
            rest = behind;
        }
        found
    }
}

impl IdentifyNamespace {
    /// Reads the structure, for a host.
    pub fn parse(bytes: &[u8; IDENTIFY_LEN]) -> IdentifyNamespace {
        zerocopy::transmute!(*bytes)
    }

    /// The format in use, if FLBAS names one that there is.
    pub fn current_lba_format(&self) -> Option<LbaFormat> {
        // Bits 6:5 are the number's upper half where there may be more than 16 formats.
        let high = if self.nlbaf > 15 { self.flbas >> 1 & 0x30 } else { 0 };
        let number = self.flbas & 15 | high;
        if number > self.nlbaf {
            return None;
        }
        self.lbaf.get(usize::from(number)).copied()
    }
}

impl IdentifyIndependentNamespace {
    /// Reads the structure, for a host.
    pub fn parse(bytes: &[u8; IDENTIFY_LEN]) -> IdentifyIndependentNamespace {
        zerocopy::transmute!(*bytes)
    }
}

/// The EUI-64 and the NGUID of a volume, from its OUI and the digits of its UUID (NVMe Base §4.5.1.1):
/// 40 and 64 bits of the UUID behind an OUI, and a vendor's extension in the NGUID before it.
pub fn identifiers_from_oui(oui: [u8; 3], uuid: [u8; 16]) -> ([u8; 8], [u8; 16]) {
    let mut eui64 = [0; 8];
    eui64[..3].copy_from_slice(&oui);
    eui64[3..].copy_from_slice(&uuid[11..]);
    let mut nguid = [0; 16];
    nguid[..8].copy_from_slice(&uuid[..8]);
    nguid[8..11].copy_from_slice(&oui);
    nguid[11..].copy_from_slice(&uuid[11..]);
    (eui64, nguid)
}
