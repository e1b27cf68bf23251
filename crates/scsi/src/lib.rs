//! SAM, SPC and SBC words: CDBs, sense data, parameter data.
#![forbid(unsafe_code)]

pub mod capacity;
pub mod cdb;
pub mod copy;
pub mod inquiry;
pub mod lun;
pub mod mode;
pub mod report;
pub mod sense;
pub mod status;
pub mod vpd;
pub mod wire;

pub use cdb::{CdbError, Command, CommandSet, Data};
pub use sense::Sense;
pub use status::Status;
pub use wire::Writer;
