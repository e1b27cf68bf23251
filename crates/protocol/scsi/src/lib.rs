//! SAM, SPC and SBC words: CDBs, sense data, parameter data, in both directions.
//!
//! Plain types and pure functions on byte slices. Nothing here knows time, tasks, transports or volumes, and
//! nothing allocates: encoders write into a [`Writer`], decoders borrow.
//!
//! # Commands
//!
//! [`Command::parse`] turns a CDB into a typed command or a [`CdbError`] whose [`CdbError::sense`] is the sense
//! data to answer with. A logical unit that lacks some commands uses [`CommandSet::parse`] instead, and gives the
//! same set to [`report::encode_opcodes`]. [`Command::data_transfer`] says how many bytes a command moves, and in which
//! direction; [`Command::conflict_class`] which reservations stop it. [`Command::encode`] is the way back.
//!
//! ```
//! use blockwire_scsi::{Command, DataTransfer, Sense};
//! let read = Command::parse(&[0x28, 0, 0, 0, 0, 8, 0, 0, 4, 0]).unwrap();
//! assert_eq!(read.data_transfer(512), DataTransfer::In(2048));
//! let refused = Command::parse(&[0x28, 0x20, 0, 0, 0, 8, 0, 0, 4, 0]).unwrap_err();
//! assert_eq!(refused.sense(), Sense::invalid_cdb_field(1, Some(5)));
//! ```
//!
//! What a CDB does not settle is judged where the facts are: LBA ranges and limits by the device server, pages by
//! [`mode::encode_mode_sense`], [`log::encode_log_sense`] and the caller of [`vpd`], SELECT REPORT by [`report::LunSelect`], reservation
//! types by [`persistent_reservation::ReservationType::parse`], buffers by [`echo_buffer::EchoBufferAccess`], an overwrite's length by
//! [`sanitize::OverwriteParameters::check_len`].
//!
//! # Answers
//!
//! [`Writer::with_allocation_length`] takes the allocation length; [`Writer::written_len`] is what to transfer. Lengths inside the
//! data are always those of the whole. Sense data is a [`Sense`], `Copy`, with named constants
//! ([`Sense::LBA_OUT_OF_RANGE`] and so on) and additions ([`Sense::with_information`],
//! [`Sense::with_progress`], [`Sense::invalid_cdb_field`], [`Sense::invalid_list_field`]).
//!
//! | Command | Answer |
//! |---|---|
//! | INQUIRY | [`inquiry::StandardInquiry`], [`vpd`] |
//! | READ CAPACITY(10), (16) | [`capacity::Capacity`] |
//! | MODE SENSE, LOG SENSE | [`mode::encode_mode_sense`], [`log::encode_log_sense`] |
//! | REPORT LUNS, opcodes, task management | [`report`] |
//! | PERSISTENT RESERVE IN | [`persistent_reservation::encode_keys`], [`persistent_reservation::encode_reservation`], [`persistent_reservation::Capabilities`], [`persistent_reservation::FullStatusWriter`] |
//! | REPORT TARGET PORT GROUPS | [`alua::PortGroupsWriter`] |
//! | GET LBA STATUS | [`provisioning::encode_lba_status`] |
//! | RECEIVE COPY RESULTS | [`extended_copy::CopyStatus`], [`extended_copy::CopyLimits::encode`], [`extended_copy::encode_failed_segment_details`] |
//! | READ DEFECT DATA, READ BUFFER | [`defects`], [`echo_buffer`] |
//!
//! # Parameter lists
//!
//! Each list is checked as a whole by one `parse`, before anything is done: [`mode::parse_mode_select`], [`persistent_reservation::ReserveOutParameters`] and
//! [`persistent_reservation::RegisterAndMoveParameters`], [`alua::SetPortGroupsList`], [`provisioning::UnmapList`], [`extended_copy::CopyParameterList`],
//! [`sanitize::OverwriteParameters`]. The refusal is the [`Sense`] to answer with.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

pub mod alua;
pub mod capacity;
pub mod cdb;
pub mod defects;
pub mod echo_buffer;
pub mod extended_copy;
pub mod format;
pub mod inquiry;
pub mod log;
pub mod lun;
pub mod mode;
pub mod persistent_reservation;
pub mod provisioning;
pub mod report;
pub mod sanitize;
pub mod sense;
pub mod status;
pub mod transport_id;
pub mod vpd;
pub mod wire;

pub use cdb::{CdbError, Command, CommandSet, DataTransfer};
pub use sense::Sense;
pub use status::Status;
pub use wire::Writer;
