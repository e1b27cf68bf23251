//! SAM, SPC and SBC words: CDBs, sense data, parameter data.
#![forbid(unsafe_code)]

pub mod alua;
pub mod capacity;
pub mod cdb;
pub mod copy;
pub mod inquiry;
pub mod log;
pub mod lun;
pub mod mode;
pub mod pr;
pub mod provisioning;
pub mod report;
pub mod sanitize;
pub mod sense;
pub mod status;
pub mod transport_id;
pub mod vpd;
pub mod wire;

pub use cdb::{CdbError, Command, CommandSet, Data};
pub use sense::Sense;
pub use status::Status;
pub use wire::Writer;
