//! Requests to other machines before a volume can be opened.
//!
//! Invariant: a request may take long, so it uses nothing of the daemon, and no lock is held meanwhile. The
//! result is used only if the volume's recorded properties are unchanged.

use std::collections::BTreeSet;

use multipath::{ExpectedVolume, Url, url::UrlHost};

use super::WHOLE_VOLUME;
use crate::{
    remote::{self, ProbedRemote},
    state::identity::Identities,
};
use config::{plan::Volume, spec::VolumeSource};

/// What a volume needs of other machines.
#[derive(Debug)]
pub struct ProbeNeeds {
    sought: Vec<ProbeTarget>,
}

/// A volume of another machine.
#[derive(Debug)]
struct ProbeTarget {
    /// Which leg it is, from 1, or the whole.
    leg: usize,
    urls: String,
    /// What was found there before.
    known: Option<ExpectedVolume>,
}

/// What was found.
#[derive(Debug)]
pub struct ProbeResult {
    found: Vec<(ProbeTarget, Result<ProbedRemote, remote::RemoteError>)>,
}

impl ProbeNeeds {
    /// For a volume that `identities` may know something about.
    pub fn for_known(volume: &Volume, identities: &Identities) -> Self {
        let sought = |leg: usize, source: &VolumeSource| match source {
            VolumeSource::Remote(urls) => Some(ProbeTarget {
                leg,
                urls: urls.clone(),
                known: identities.remote_identity(&volume.name, leg),
            }),
            VolumeSource::Ram | VolumeSource::Null | VolumeSource::File(_) | VolumeSource::Device(_) => None,
            VolumeSource::Stripe(_) | VolumeSource::Rbd(_) => None,
        };
        let sought = match &volume.spec.source {
            VolumeSource::Stripe(striped) => {
                let legs = striped.legs.iter().enumerate();
                legs.filter_map(|(at, leg)| sought(at + 1, &leg.source)).collect()
            }
            source => sought(WHOLE_VOLUME, source).into_iter().collect(),
        };
        ProbeNeeds { sought }
    }

    /// For a volume that is new, whatever had its name.
    pub fn for_new(volume: &Volume) -> Self {
        ProbeNeeds::for_known(volume, &Identities::default())
    }

    /// Whether any other machine is asked.
    pub fn needs_probe(&self) -> bool {
        !self.sought.is_empty()
    }

    /// The machines that are asked, to tell those that are asked for several volumes.
    pub fn machine_key(&self) -> String {
        let urls = self.sought.iter().flat_map(|sought| Url::parse_joined(&sought.urls).unwrap_or_default());
        let machines: BTreeSet<String> = urls
            .map(|url| match url.machine {
                UrlHost::Address(address) => address.to_string(),
                UrlHost::Name(name) => name,
            })
            .collect();
        machines.into_iter().collect::<Vec<_>>().join(" ")
    }

    /// Asks, one after the other up to the first that fails; takes as long as that takes.
    pub fn run(self) -> ProbeResult {
        let mut found = Vec::new();
        for sought in self.sought {
            let seen = remote::probe_remote(&sought.urls, sought.known.as_ref());
            let failed = seen.is_err();
            found.push((sought, seen));
            if failed {
                break;
            }
        }
        ProbeResult { found }
    }
}

impl ProbeResult {
    /// What was found of a leg, or of the whole, at these URLs, and what is known of it now.
    pub(super) fn take_remote(
        &mut self,
        leg: usize,
        urls: &str,
        known: Option<&ExpectedVolume>,
    ) -> Result<ProbedRemote, remote::RemoteError> {
        let is_it = |one: &ProbeTarget| one.leg == leg && one.urls == urls && one.known.as_ref() == known;
        match self.found.iter().position(|(sought, _)| is_it(sought)) {
            Some(at) => self.found.swap_remove(at).1,
            None => Err(remote::RemoteError::Absent("it has changed in the meantime; try again".to_owned())),
        }
    }
}
