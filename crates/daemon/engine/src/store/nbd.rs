//! Opens an export of an NBD server.

use nbd_disk::{NbdDisk, Options, ServerAddress};

use super::{FindHolder, ProbeResult, Store, open_error::OpenErrorReason, ram_store};
use crate::state::file_identity::FileIdentity;
use config::{
    plan::Volume,
    spec::{NbdExport, NbdServer, Spec},
};

/// Physical block of an export: a page, which servers read and write as a whole.
const PHYSICAL: u32 = 4096;

/// How the export of a volume, or of a leg of one, is opened.
pub(super) fn options(volume: &Volume, spec: &Spec, of: &NbdExport) -> Options {
    let server = match &of.server {
        NbdServer::Tcp(host, port) => ServerAddress::Tcp(host.clone(), *port),
        NbdServer::Unix(path) => ServerAddress::Unix(path.clone()),
    };
    Options {
        server,
        export: of.export.clone(),
        read_only: volume.spec.read_only || spec.read_only,
        block: spec.block,
        queue_timeout: of.queue_timeout,
        volume: volume.name.to_string(),
    }
}

/// Connects to the server.
pub(super) fn probe(place: &str, options: Options) -> Result<NbdDisk, OpenErrorReason> {
    if let ServerAddress::Tcp(_, port) = &options.server
        && !sandbox::may_connect(*port)
    {
        return Err(OpenErrorReason::Remote(format!("{place}: {}", sandbox::CONNECT_HINT)));
    }
    NbdDisk::open(options).map_err(|why| OpenErrorReason::Nbd(place.to_owned(), Box::new(why)))
}

pub(super) fn export(
    volume: &Volume,
    (leg, of): (usize, &NbdExport),
    holder: FindHolder<'_>,
    probed: &mut ProbeResult,
) -> Result<Store, OpenErrorReason> {
    let spec = &volume.spec;
    let options = options(volume, spec, of);
    let key = FileIdentity::Export { server: options.server.to_string(), export: options.export.clone() };
    if let Some(other) = holder(&key) {
        return Err(OpenErrorReason::Alias(of.url().into(), other));
    }
    let disk = probed.take_export(leg, &options)?;
    let info = disk.info();
    let bytes = info.bytes - info.bytes % u64::from(spec.block);
    if bytes == 0 {
        return Err(OpenErrorReason::Empty(of.url().into()));
    }
    Ok(Store {
        bytes,
        physical: spec.physical.unwrap_or(PHYSICAL.max(spec.block)),
        punch: !spec.read_only && info.can_write_zeroes(),
        key: Some(key),
        export: Some(disk),
        ..ram_store(volume)
    })
}
