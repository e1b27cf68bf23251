//! Checks volumes against the group of gateways that is to serve them.

use std::path::{Path, PathBuf};

use crate::{
    diagnostic::{Located, Sink},
    plan::{GroupSettings, Volume},
    spec::{RbdImage, VolumeSource},
};

/// The cluster's configuration file where none is named.
const CONF_DEFAULT: &str = "/etc/ceph/ceph.conf";
/// The user where none is named.
const USER_DEFAULT: &str = "admin";

/// What an image of Ceph may not have when a group serves it.
pub fn check_group(group: &GroupSettings, volumes: &[Located<Volume>], sink: &Sink) {
    for volume in volumes {
        if let Some(why) = conflict(group, &volume.value) {
            sink.note_error(&volume.at, format!("volume \"{}\": {why}", volume.value.name));
        }
    }
}

/// Why a volume cannot be served by this group.
pub fn conflict(group: &GroupSettings, volume: &Volume) -> Option<String> {
    let image = match &volume.spec.source {
        VolumeSource::Rbd(image) => image,
        VolumeSource::Stripe(striped)
            if striped.legs.iter().any(|leg| matches!(leg.source, VolumeSource::Rbd(_))) =>
        {
            return Some(
                "a stripe on images cannot be served by a [group]: serve each image as a volume".to_owned(),
            );
        }
        VolumeSource::Stripe(_) | VolumeSource::Ram | VolumeSource::Null | VolumeSource::File(_) => {
            return None;
        }
        VolumeSource::Device(_) | VolumeSource::Remote(_) | VolumeSource::Nbd(_) => return None,
    };
    if image.break_lock {
        return Some("break_lock has no place in a [group]: its gateways replace each other".to_owned());
    }
    if volume.spec.read_only {
        return Some(
            "a [group] cannot serve an image with ro: let hosts in with ro, or protect the volume".to_owned(),
        );
    }
    is_of_other_cluster(group, image).then(|| {
        "the images of a [group] have the conf and user of [group]: leave them out at the volume".to_owned()
    })
}

/// An image is served by the group, and reached as the group's state is.
pub fn join_group(group: &GroupSettings, volume: &mut Volume) {
    if let VolumeSource::Rbd(image) = &mut volume.spec.source {
        image.in_group = true;
        image.conf.clone_from(&group.conf);
        image.user.clone_from(&group.user);
    }
}

fn is_of_other_cluster(group: &GroupSettings, image: &RbdImage) -> bool {
    let conf = |named: &Option<PathBuf>| named.clone().unwrap_or_else(|| Path::new(CONF_DEFAULT).to_owned());
    let user = |named: &Option<String>| named.clone().unwrap_or_else(|| USER_DEFAULT.to_owned());
    let other_conf = image.conf.is_some() && conf(&image.conf) != conf(&group.conf);
    other_conf || image.user.is_some() && user(&image.user) != user(&group.user)
}
