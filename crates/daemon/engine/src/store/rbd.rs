//! Opens an image of Ceph.

use rbd::{Image, ImageSlot, Library, OpenError, Options};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{FindHolder, Store, open_error::OpenErrorReason, ram_store};
use crate::state::file_identity::FileIdentity;
use config::{plan::Volume, spec::RbdImage};
use process::log::area;

/// Physical block of an image: what OSDs allocate by at the least (`bluestore_min_alloc_size`).
const PHYSICAL: u32 = 4096;

pub(super) fn image(
    volume: &Volume,
    of: &RbdImage,
    holder: FindHolder<'_>,
) -> Result<Store, OpenErrorReason> {
    let spec = &volume.spec;
    let place = || format!("rbd:{}", of.name());
    let options = Options {
        pool: of.pool.clone(),
        namespace: of.namespace.clone(),
        image: of.image.clone(),
        conf: of.conf.clone(),
        user: of.user.clone(),
        // Its owner opens it for writing, when there is one.
        read_only: spec.read_only || of.in_group,
        break_lock: of.break_lock,
        answer: rbd::ANSWER,
        lock_wait: rbd::LOCK_WAIT,
    };
    if !sandbox::may_run_ceph() {
        return Err(OpenErrorReason::Remote(format!("{}: {}", place(), sandbox::CEPH_HINT)));
    }
    let failed = |why: OpenError| OpenErrorReason::Rbd(place(), Box::new(why));
    let library = Library::open().map_err(|why| failed(OpenError::Library(why)))?;
    let image = Image::open(&library, &options).map_err(failed)?;
    tracing::info!(
        target: area::VOLUME,
        volume = %volume.name, image = image.name(), client = image.client(), librbd = library.version(),
        "image of Ceph open"
    );
    let key = FileIdentity::Image {
        cluster: image.identity().fsid.clone(),
        pool: image.identity().pool,
        namespace: image.identity().namespace.clone(),
        id: image.identity().id.clone(),
    };
    if let Some(other) = holder(&key) {
        return Err(OpenErrorReason::Alias(place().into(), other));
    }
    let bytes = image.bytes() - image.bytes() % u64::from(spec.block);
    if bytes == 0 {
        return Err(OpenErrorReason::Empty(place().into()));
    }
    Ok(Store {
        bytes,
        physical: spec.physical.unwrap_or(PHYSICAL.max(spec.block)),
        punch: !spec.read_only,
        key: Some(key),
        slot: of.in_group.then(ImageSlot::default),
        image: (!of.in_group).then_some(image),
        ..ram_store(volume)
    })
}

/// The UUID of an image: the same on every machine that serves it (RFC 9562 §5.8). `None`: it is no image's identity.
pub(super) fn uuid_of(key: &FileIdentity) -> Option<Uuid> {
    let FileIdentity::Image { cluster, pool, namespace, id } = key else { return None };
    let mut digest = Sha256::new();
    let pool = pool.to_string();
    for part in ["blockwire rbd image", cluster, &pool, namespace, id] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(digest.finalize()).for_each(|(byte, of)| *byte = of);
    Some(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}
