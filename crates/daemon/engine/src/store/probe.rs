//! Requests to other machines before a volume can be opened.
//!
//! Invariant: a request may take long, so it uses nothing of the daemon, and no lock is held meanwhile. The
//! result is used only if the volume's recorded properties are unchanged.

use std::collections::BTreeSet;

use multipath::{ExpectedVolume, Url, url::UrlHost};
use nbd_disk::{NbdDisk, Options};

use super::{WHOLE_VOLUME, nbd, open_error::OpenErrorReason};
use crate::{
    remote::{self, ProbedRemote},
    state::identity::Identities,
};
use config::{
    plan::Volume,
    spec::{Spec, VolumeSource},
};

/// Why what was found is not used.
const CHANGED: &str = "it has changed in the meantime; try again";

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
    place: ProbePlace,
}

/// Where it is.
#[derive(Debug, PartialEq)]
enum ProbePlace {
    /// At targets, by these URLs; and what was found there before.
    Target(String, Option<ExpectedVolume>),
    /// At an NBD server, by this URL.
    Nbd(String, Options),
}

/// What was found there.
#[derive(Debug)]
enum ProbeFinding {
    Target(Box<Result<ProbedRemote, remote::RemoteError>>),
    Nbd(Result<NbdDisk, OpenErrorReason>),
}

impl ProbeFinding {
    fn is_failure(&self) -> bool {
        match self {
            ProbeFinding::Target(found) => found.is_err(),
            ProbeFinding::Nbd(found) => found.is_err(),
        }
    }
}

impl ProbePlace {
    /// Asks; takes as long as that takes.
    fn probe(&self) -> ProbeFinding {
        match self {
            ProbePlace::Target(urls, known) => {
                ProbeFinding::Target(Box::new(remote::probe_remote(urls, known.as_ref())))
            }
            ProbePlace::Nbd(url, options) => ProbeFinding::Nbd(nbd::probe(url, options.clone())),
        }
    }

    /// The machines that are asked.
    fn machines(&self) -> Vec<String> {
        let machine = |url: Url| match url.machine {
            UrlHost::Address(address) => address.to_string(),
            UrlHost::Name(name) => name,
        };
        match self {
            ProbePlace::Target(urls, _) => {
                Url::parse_joined(urls).unwrap_or_default().into_iter().map(machine).collect()
            }
            ProbePlace::Nbd(_, options) => vec![options.server.to_string()],
        }
    }
}

/// What was found.
#[derive(Debug)]
pub struct ProbeResult {
    found: Vec<(ProbeTarget, ProbeFinding)>,
}

impl ProbeNeeds {
    /// For a volume that `identities` may know something about.
    pub fn for_known(volume: &Volume, identities: &Identities) -> Self {
        let sought = |leg: usize, spec: &Spec| {
            let place = match &spec.source {
                VolumeSource::Remote(urls) => {
                    ProbePlace::Target(urls.clone(), identities.remote_identity(&volume.name, leg))
                }
                VolumeSource::Nbd(of) => ProbePlace::Nbd(of.url().to_owned(), nbd::options(volume, spec, of)),
                VolumeSource::Ram | VolumeSource::Null | VolumeSource::File(_) => return None,
                VolumeSource::Device(_) | VolumeSource::Stripe(_) | VolumeSource::Rbd(_) => return None,
            };
            Some(ProbeTarget { leg, place })
        };
        let sought = match &volume.spec.source {
            VolumeSource::Stripe(striped) => {
                let legs = striped.legs.iter().enumerate();
                legs.filter_map(|(at, leg)| sought(at + 1, leg)).collect()
            }
            _ => sought(WHOLE_VOLUME, &volume.spec).into_iter().collect(),
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
        let machines: BTreeSet<String> =
            self.sought.iter().flat_map(|sought| sought.place.machines()).collect();
        machines.into_iter().collect::<Vec<_>>().join(" ")
    }

    /// Asks, one after the other up to the first that fails; takes as long as that takes.
    pub fn run(self) -> ProbeResult {
        let mut found = Vec::new();
        for sought in self.sought {
            let seen = sought.place.probe();
            let failed = seen.is_failure();
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
        let wanted = ProbePlace::Target(urls.to_owned(), known.cloned());
        match self.take(leg, |place| *place == wanted) {
            Some(ProbeFinding::Target(found)) => *found,
            _ => Err(remote::RemoteError::Absent(CHANGED.to_owned())),
        }
    }

    /// What was found of a leg, or of the whole, at an NBD server, if it is to be opened as it was.
    pub(super) fn take_export(&mut self, leg: usize, options: &Options) -> Result<NbdDisk, OpenErrorReason> {
        let is_it = |place: &ProbePlace| matches!(place, ProbePlace::Nbd(_, asked) if asked == options);
        match self.take(leg, is_it) {
            Some(ProbeFinding::Nbd(found)) => found,
            _ => Err(OpenErrorReason::Absent(CHANGED.to_owned())),
        }
    }

    fn take(&mut self, leg: usize, is_it: impl Fn(&ProbePlace) -> bool) -> Option<ProbeFinding> {
        let at = self.found.iter().position(|(sought, _)| sought.leg == leg && is_it(&sought.place))?;
        Some(self.found.swap_remove(at).1)
    }
}
