//! TLS of NVMe/TCP: who uses it, and pre-shared keys (`NVMeTLSkey-1:hh:BASE64:`) from files that no other user
//! can read. No message shows a part of one.

use std::sync::Arc;

use nvme::tls::{ConfiguredPsk, HkdfLabelFormat};
use shard::TlsMode;

use super::{
    diagnostic::{Located, Sink},
    reader::TableReader,
    secret,
};
use crate::plan::{Auth, Host, Portal, Protocol};

/// Whether TLS is used, by its names.
pub const MODES: [(&str, TlsMode); 3] =
    [("off", TlsMode::Off), ("allow", TlsMode::Allow), ("require", TlsMode::Require)];

/// Derivations, by their names.
const PSK_DERIVATIONS: [(&str, HkdfLabelFormat); 2] =
    [("standard", HkdfLabelFormat::Standard), ("compat", HkdfLabelFormat::Compat)];

/// Reads `tls` of a portal.
pub fn read_portal_mode(table: &TableReader<'_>, spoken: Protocol) -> TlsMode {
    let Some(mode) = table.keyword("tls", &MODES) else { return TlsMode::Off };
    if spoken == Protocol::Iscsi {
        let why = "tls in [[portal]] applies to NVMe/TCP: iSCSI has no TLS of its own";
        table.file.sink.note_error(&mode.at, why);
    }
    mode.value
}

/// Reads `tls_derivations`.
pub fn read_derivations(table: &TableReader<'_>) -> Vec<HkdfLabelFormat> {
    table.keywords("tls_derivations", &PSK_DERIVATIONS).map_or_else(Vec::new, |list| list.value)
}

/// Reads the file that `tls_key_file` names.
pub fn read_psk(table: &TableReader<'_>) -> Option<Arc<ConfiguredPsk>> {
    secret::read_key_file(table, "tls_key_file", |text| {
        ConfiguredPsk::parse(text).map_err(|why| {
            format!(
                "holds no NVMeTLSkey-1:hh:BASE64: ({why}); `blockwire key generate --kind tls FILE` makes one"
            )
        })
    })
}

/// Where TLS is offered, some host has a key for it, or one by which it can generate such a key: that begins without
/// TLS.
pub fn check_keys_exist(portals: &[Located<Portal>], hosts: &[Host], auth: &Auth, sink: &Sink) {
    if auth.tls_key.is_some() || hosts.iter().any(|host| host.tls_key.is_some()) {
        return;
    }
    let generates = auth.dhchap.is_some() || hosts.iter().any(|host| host.dhchap.is_some());
    let lacks = |mode: TlsMode| match mode {
        TlsMode::Off => false,
        TlsMode::Allow => !generates,
        TlsMode::Require => true,
    };
    if let Some(portal) = portals.iter().find(|portal| lacks(portal.value.tls)) {
        let why = if generates {
            "tls = \"require\" in [[portal]] needs a key: set tls_key_file in [[host]] or in [auth]; hosts that \
             generate a key from their dhchap_key_file begin without TLS, so they need \"allow\" here, and \
             \"require\" in their [[subsystem]]"
        } else {
            "tls in [[portal]] needs a key: set tls_key_file in [[host]] or in [auth]"
        };
        sink.note_error(&portal.at, why);
    }
}
