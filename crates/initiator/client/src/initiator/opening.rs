//! Opening volumes: names become paths, each with a number that tells its nexus apart from the others.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Instant;

use multipath::url::{Url, UrlHost};
use multipath::{AnyPath, HostIdentity, UrlSecrets, VolumeEvent, VolumeHandle, VolumeSettings};

use super::Initiator;
use crate::error::{Error, ErrorKind};
use crate::identity::PathIdentity;
use crate::secret;
use crate::volume_name::VolumeLocator;

/// Where a path leads, and over iSCSI as whom: over NVMe no nexus is known by that.
fn path_place(url: &Url, who: &HostIdentity) -> String {
    match url.protocol {
        multipath::Protocol::Iscsi => {
            let name = url.options.initiator.as_ref().map_or(&*who.initiator, |name| name.as_str());
            format!("{url} as {name}")
        }
        multipath::Protocol::Nvme => url.to_string(),
    }
}

impl Initiator {
    /// Opens a volume by all the paths that the URLs name (joined by commas), and waits until one serves; or a
    /// stripe of such volumes, `stripe:URL+URL[,chunk=SIZE]`, and waits until all do.
    ///
    /// # Errors
    /// A URL that makes no sense or names no volume; a host that has no address; a secret that is not
    /// there; no path that comes up in time, with what each said last.
    pub fn open(&mut self, urls: &str) -> Result<VolumeHandle, Error> {
        let volume = self.start_open(urls)?;
        self.finish_open(volume, urls)
    }

    /// Begins to open a volume, without waiting for more than the resolving of names. [`VolumeEvent::Open`] or
    /// [`VolumeEvent::Failed`] follows; operations that are submitted before wait.
    ///
    /// # Errors
    /// As [`Initiator::open`], but for the paths.
    pub fn start_open(&mut self, urls: &str) -> Result<VolumeHandle, Error> {
        let name = VolumeLocator::parse(urls)?;
        let (mut legs, mut identities) = (Vec::new(), Vec::new());
        for urls in &name.legs {
            let (paths, its_identities) = self.make_paths(urls)?;
            for (url, warning) in urls.iter().filter_map(|url| Some((url, url.warning()?))) {
                (self.settings.warn)(&format!("{url}: {warning}"));
            }
            identities.extend(its_identities);
            let first = urls.first().ok_or_else(|| Error::usage("a leg of the stripe names no volume"))?;
            legs.push((paths, VolumeSettings::from_options(&first.options)));
        }
        let opened = self.inline.with_endpoint(|client, cx| match (name.chunk, legs.pop()) {
            (None, Some((paths, terms))) => client.open(cx, paths, terms),
            (Some(chunk), Some(last)) => {
                legs.push(last);
                client.open_stripe(cx, legs, chunk)
            }
            (_, None) => None,
        });
        let volume = opened.ok_or_else(|| Error::new(ErrorKind::Failed, "too many volumes are open"))?;
        self.identities.retain(|(of, _)| *of != volume);
        self.identities.push((volume, identities));
        if let Some(chunk) = name.chunk {
            self.chunks.push((volume, chunk));
        }
        Ok(volume)
    }

    pub(super) fn make_paths(&mut self, urls: &[Url]) -> Result<(Vec<AnyPath>, Vec<PathIdentity>), Error> {
        let (mut paths, mut identities) = (Vec::new(), Vec::new());
        for url in urls {
            let (addresses, secrets) = (resolve_addresses(url)?, fetch_secrets(url)?);
            let place = path_place(url, &self.who);
            let taken =
                |number: u16| identities.iter().any(|identity: &PathIdentity| identity.number == number);
            let number = self.assign_path_number(&place, taken).ok_or_else(|| {
                Error::new(ErrorKind::Failed, "65,536 paths are open: close volumes that are not needed")
            })?;
            let path = AnyPath::from_url(url, addresses, &self.who, &secrets, number);
            identities.push(PathIdentity { place, number });
            paths.push(path.map_err(Error::usage)?);
        }
        Ok((paths, identities))
    }

    /// The number of a path to this place: that of the path there before, or the one that no path has and that was
    /// given last the longest time ago. With the number of a path that is open it would end that one's sessions.
    /// `None`: none is left.
    fn assign_path_number(&mut self, place: &str, taken: impl Fn(u16) -> bool) -> Option<u16> {
        if let Some(at) = self.inherited.iter().position(|identity| identity.place == place) {
            return Some(self.inherited.swap_remove(at).number);
        }
        let open = |number| {
            let mut identities = self.identities.iter().flat_map(|(_, identities)| identities);
            identities.any(|identity| identity.number == number)
        };
        let next = (0..=u16::MAX).map(|step| self.paths_made.wrapping_add(step));
        let number = next
            .into_iter()
            .find(|number| !self.inherited_numbers.contains(number) && !open(*number) && !taken(*number))?;
        self.paths_made = number.wrapping_add(1);
        Some(number)
    }

    /// The paths of a volume, in the order of [`Initiator::paths`], as another process must know them that goes on
    /// after this one.
    pub fn path_identities(&self, volume: VolumeHandle) -> &[PathIdentity] {
        self.identities.iter().find(|(of, _)| *of == volume).map_or(&[], |(_, identities)| identities)
    }

    /// Why a volume that was begun by these URLs is not open: what its paths said last.
    pub fn open_error(&self, volume: VolumeHandle, urls: &str) -> Error {
        Error::volume_not_opened(&redacted_name(urls), &self.paths(volume))
    }

    /// Waits until a volume that was begun by these URLs serves. Who opens many begins several before
    /// it waits for the first.
    ///
    /// # Errors
    /// As [`Initiator::open`]; the volume is forgotten then.
    pub fn finish_open(&mut self, volume: VolumeHandle, urls: &str) -> Result<VolumeHandle, Error> {
        // What a URL's own times allow is more important than ours, which only stops what never ends.
        let begun = Instant::now();
        let mut is_open = false;
        loop {
            while let Some(event) = self.poll_event(volume) {
                match event {
                    VolumeEvent::Open => is_open = true,
                    VolumeEvent::Failed => {
                        let why = self.open_error(volume, urls);
                        self.drop_volume(volume);
                        return Err(why);
                    }
                    VolumeEvent::Changed | VolumeEvent::Path(_) | VolumeEvent::Closed => {}
                }
            }
            // A path that does not serve need not tell how large the volume is: another may.
            if is_open && let Some(usable) = self.check_usable(volume) {
                if usable.is_err() {
                    self.drop_volume(volume);
                }
                return usable.map(|()| volume);
            }
            let Some(left) = self.settings.open_timeout.checked_sub(begun.elapsed()) else {
                let why = self.open_timeout_error(volume, urls);
                self.drop_volume(volume);
                return Err(why);
            };
            self.turn(Some(left));
        }
    }

    /// Whether a volume that has said [`VolumeEvent::Open`] can be used; `None` while nothing is known of its blocks.
    ///
    /// # Errors
    /// If the legs of a stripe make none.
    pub fn check_usable(&self, volume: VolumeHandle) -> Option<Result<(), Error>> {
        match self.inline.endpoint().stripe_mismatch(volume) {
            Some(misfit) => Some(Err(Error::usage(misfit))),
            None => self.known_geometry(volume).is_ok().then_some(Ok(())),
        }
    }

    /// Why a volume that was begun by these URLs was not open in time.
    pub fn open_timeout_error(&self, volume: VolumeHandle, urls: &str) -> Error {
        let mut why = self.open_error(volume, urls);
        let is_up = self.paths(volume).iter().any(|path| path.state == multipath::PathState::Up);
        if why.kind == ErrorKind::Failed && !is_up {
            why.kind = ErrorKind::TimedOut;
        }
        why
    }
}

/// A volume's name as it may be shown: without passwords.
fn redacted_name(urls: &str) -> String {
    VolumeLocator::parse(urls).map_or_else(|_| "the URL".to_owned(), |name| name.redacted())
}

/// The addresses of a URL's machine.
///
/// # Errors
/// If it has none.
pub fn resolve_addresses(url: &Url) -> Result<Vec<SocketAddr>, Error> {
    match &url.machine {
        UrlHost::Address(address) => Ok(vec![SocketAddr::new(*address, url.port)]),
        UrlHost::Name(name) => {
            let failed = |why: &dyn std::fmt::Display| {
                Error::new(
                    ErrorKind::Unreachable,
                    format!("host \"{name}\" has no address: {why}; check the name"),
                )
            };
            let found: Vec<SocketAddr> =
                (name.as_str(), url.port).to_socket_addrs().map_err(|why| failed(&why))?.collect();
            if found.is_empty() { Err(failed(&"the resolver found none")) } else { Ok(found) }
        }
    }
}

/// The secrets of a URL, fetched from where it says.
///
/// # Errors
/// If one is not there, or others can read it.
pub fn fetch_secrets(url: &Url) -> Result<UrlSecrets, Error> {
    let fetch = |at: &Option<multipath::url::SecretSource>| at.as_ref().map(secret::fetch_secret).transpose();
    Ok(UrlSecrets {
        ours: fetch(&url.options.secret)?,
        target: fetch(&url.options.mutual_secret)?,
        tls: fetch(&url.options.tls_key)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IsidChoice, Settings};

    fn numbers(initiator: &mut Initiator, ports: &[u16]) -> Vec<u16> {
        let url = |port: &u16| format!("iscsi://127.0.0.1:{port}/iqn.2026-11.io.blockwire:a/0");
        let urls: Vec<String> = ports.iter().map(url).collect();
        let volume = initiator.start_open(&urls.join(",")).unwrap();
        initiator.path_identities(volume).iter().map(|identity| identity.number).collect()
    }

    #[test]
    fn the_number_of_an_open_path_is_given_to_no_other_and_closed_volumes_leave_nothing() {
        let mut initiator = Initiator::new(Settings::default()).unwrap();
        assert_eq!(numbers(&mut initiator, &[1]), [0]);
        // As after 65,535 paths that were opened and closed.
        initiator.paths_made = u16::MAX;
        assert_eq!(numbers(&mut initiator, &[2, 3, 4]), [u16::MAX, 1, 2], "0 is the first volume's");
        let open: Vec<VolumeHandle> = initiator.identities.iter().map(|(volume, _)| *volume).collect();
        open.into_iter().for_each(|volume| initiator.drop_volume(volume));
        assert!(initiator.identities.is_empty());
    }

    #[test]
    fn whose_paths_are_inherited_in_another_order_is_the_same_nexus_on_each() {
        let mut first = Initiator::new(Settings::default()).unwrap();
        assert_eq!(numbers(&mut first, &[1, 2]), [0, 1]);
        let inherited = first.identities.iter().flat_map(|(_, identities)| identities.clone()).collect();
        let isid = IsidChoice::Inherited(first.host_identity().isid);
        let mut second = Initiator::new(Settings { isid, inherited, ..Settings::default() }).unwrap();
        // Not that of another path's session, which it would end.
        assert_eq!(numbers(&mut second, &[3, 2, 1]), [2, 1, 0]);
    }
}
