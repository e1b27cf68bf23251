//! `announce` of `[[portal]]`.

use std::net::SocketAddr;

use crate::plan::Protocol;
use crate::reader::TableReader;

/// Whether a portal's discovery service is announced by mDNS.
pub(super) fn read_announce(
    table: &TableReader<'_>,
    protocol: Protocol,
    address: Option<SocketAddr>,
) -> bool {
    let Some(announce) = table.boolean("announce") else { return false };
    let why = if protocol == Protocol::Iscsi {
        Some("applies to NVMe/TCP: initiators of iSCSI find no targets by mDNS")
    } else if address.is_some_and(|address| address.ip().is_loopback()) {
        Some("needs an address that other machines reach")
    } else {
        None
    };
    if let Some(why) = why.filter(|_| announce.value) {
        table.file.sink.note_error(&announce.at, format!("announce in [[portal]] {why}"));
    }
    announce.value
}
