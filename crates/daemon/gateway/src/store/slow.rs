//! What waits for the cluster, on threads of its own: the blocklist, maps, locks.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use buf::Errno;
use group::{InstanceId, MapEpoch, StoreReply};
use rbd::{Client, Contents, Image, Library, OpenError, Options, Pool};
use volume::Uuid;

use super::cluster_map::{ClusterMap, DUMP};
use super::open::{self, NoAnswer};
use super::placement;
use super::{SLOW_ANSWER, Shared, StoreEvent, VolumeImage, lock, names};

/// How long a handover waits for calls that are out on an image; it is asked for again.
const CLOSE: Duration = Duration::from_secs(5);
/// Reads of placement groups that are out at a time.
const SPREAD_WINDOW: usize = 64;

/// Why something was not done, for the log.
enum Failure {
    /// This instance is barred.
    Fenced,
    Said(String),
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        let errno = match &error {
            OpenError::Failed(_, why) | OpenError::Monitors(_, why) => why.raw_os_error(),
            _ => None,
        };
        if errno == Some(libc::ESHUTDOWN) { Failure::Fenced } else { Failure::Said(error.to_string()) }
    }
}

impl Shared {
    fn finish(&self, what: &str, result: Result<StoreReply, Failure>) -> StoreReply {
        match result {
            Ok(reply) => reply,
            Err(Failure::Fenced) => StoreReply::Fenced,
            Err(Failure::Said(why)) => {
                (self.mailbox)(StoreEvent::Refused(format!("cannot {what}: {why}")));
                StoreReply::Unknown
            }
        }
    }

    pub(super) fn blocklist(&self, instance: InstanceId, expiry: Duration) -> StoreReply {
        self.finish(&format!("blocklist client.{instance}"), self.try_blocklist(instance, expiry))
    }

    fn try_blocklist(&self, instance: InstanceId, expiry: Duration) -> Result<StoreReply, Failure> {
        let Some(addresses) = self.addresses_of(instance)? else {
            // No gateway of the group: it has left none, so it was never let in.
            return Err(Failure::Said("it is no gateway of the group, so it is not barred".to_owned()));
        };
        for address in &addresses {
            // Nothing in it needs quoting: see `addresses_of`.
            let command = format!(
                r#"{{"prefix": "osd blocklist", "blocklistop": "add", "addr": "{address}", "expire": {}.0}}"#,
                expiry.as_secs()
            );
            self.client.ask_monitors(&self.library, &command)?;
        }
        let map = cluster_map(&self.client, &self.library)?;
        if self.own_addresses.iter().any(|own| map.is_barred(own)) {
            return Err(Failure::Fenced);
        }
        match addresses.iter().find(|address| !map.is_barred(address)) {
            Some(address) => {
                Err(Failure::Said(format!("{address} is not on the blocklist after it was added")))
            }
            None => Ok(StoreReply::Blocklisted(MapEpoch(map.epoch))),
        }
    }

    pub(super) fn remove_from_blocklist(&self, instance: InstanceId) -> StoreReply {
        self.finish(&format!("take client.{instance} off the blocklist"), self.try_remove(instance))
    }

    fn try_remove(&self, instance: InstanceId) -> Result<StoreReply, Failure> {
        // The object goes last, so without it all was done before.
        let Some(addresses) = self.addresses_of(instance)? else { return Ok(StoreReply::Done) };
        for address in &addresses {
            let command =
                format!(r#"{{"prefix": "osd blocklist", "blocklistop": "rm", "addr": "{address}"}}"#);
            match self.client.ask_monitors(&self.library, &command) {
                // It is not there.
                Err(OpenError::Monitors(_, why)) if why.raw_os_error() == Some(libc::ENOENT) => {}
                answer => drop(answer?),
            }
        }
        let map = cluster_map(&self.client, &self.library)?;
        if let Some(address) = addresses.iter().find(|address| map.is_barred(address)) {
            return Err(Failure::Said(format!("{address} is on the blocklist after it was removed")));
        }
        open::remove(&self.pool, &names::addresses(&self.options.group, instance)).map_err(not_answered)?;
        Ok(StoreReply::Done)
    }

    /// The addresses that an instance has left; `None`: there is none of this number.
    fn addresses_of(&self, instance: InstanceId) -> Result<Option<Vec<String>>, Failure> {
        let name = names::addresses(&self.options.group, instance);
        let Some(contents) = open::read(&self.pool, &name).map_err(not_answered)? else { return Ok(None) };
        match addresses_in(&contents) {
            Some(addresses) => Ok(Some(addresses)),
            None => Err(Failure::Said(format!("the object {name} is damaged"))),
        }
    }

    /// The monitors answer with what all of them have agreed on, so what they say now is not before what they said.
    pub(super) fn await_map(&self) -> StoreReply {
        let waited = self.client.wait_for_latest_map(&self.library);
        self.finish("wait for the cluster's map", waited.map(|()| StoreReply::Done).map_err(Failure::from))
    }

    pub(super) fn lock_volume(&self, volume: Uuid) -> StoreReply {
        let (spec, is_open, closing) = match lock(&self.volumes).get(&volume) {
            Some(entry) => (entry.image.clone(), entry.open.clone(), entry.closing),
            None => {
                (self.mailbox)(StoreEvent::Refused(format!("volume {volume:?} has no image")));
                return StoreReply::Unknown;
            }
        };
        if closing && self.unlock_volume(volume) != StoreReply::Done {
            return StoreReply::Unknown;
        }
        if let Some(image) = is_open.filter(|_| !closing) {
            return if image.is_fenced() { StoreReply::Fenced } else { StoreReply::Done };
        }
        let options = self.image_options(&spec);
        let (client, library) = (self.client.clone(), self.library.clone());
        let is_barred = move |address: &str| match cluster_map(&client, &library) {
            Ok(map) => Ok(map.is_barred(address)),
            Err(Failure::Fenced) => Err(errno("read the blocklist", libc::ESHUTDOWN)),
            Err(Failure::Said(why)) => {
                Err(OpenError::Failed("read the blocklist", std::io::Error::other(why)))
            }
        };
        let result = match Image::open_in_group(&self.library, &self.client, &options, is_barred) {
            Ok(image) => self.keep_image(volume, image),
            Err(OpenError::HeldBy(client)) => Ok(StoreReply::Locked(InstanceId(client))),
            Err(error) => Err(error.into()),
        };
        self.finish(&format!("lock the image {}", options.name()), result)
    }

    /// An image is locked as long as it is kept.
    fn keep_image(&self, volume: Uuid, image: Image) -> Result<StoreReply, Failure> {
        if let Some(entry) = lock(&self.volumes).get_mut(&volume) {
            entry.open = Some(image);
            return Ok(StoreReply::Done);
        }
        image.close(CLOSE);
        Err(Failure::Said("the group has no such volume any more".to_owned()))
    }

    fn image_options(&self, spec: &VolumeImage) -> Options {
        Options {
            pool: spec.pool.clone(),
            namespace: spec.namespace.clone(),
            image: spec.image.clone(),
            conf: self.options.cluster.conf.clone(),
            user: self.options.cluster.user.clone(),
            read_only: false,
            break_lock: false,
            answer: SLOW_ANSWER,
            lock_wait: Duration::ZERO,
        }
    }

    pub(super) fn unlock_volume(&self, volume: Uuid) -> StoreReply {
        let open = lock(&self.volumes).get_mut(&volume).and_then(|entry| {
            entry.closing = entry.open.is_some();
            entry.open.clone()
        });
        let Some(image) = open else { return StoreReply::Done };
        if !image.close(CLOSE) {
            return StoreReply::Unknown;
        }
        if let Some(entry) = lock(&self.volumes).get_mut(&volume) {
            (entry.open, entry.closing) = (None, false);
        }
        StoreReply::Done
    }

    pub(super) fn spread_map(&self, volume: Uuid) -> StoreReply {
        let open = lock(&self.volumes).get(&volume).and_then(|entry| entry.open.clone());
        // It is asked for behind the lock.
        let Some(image) = open else { return StoreReply::Unknown };
        self.finish(&format!("reach all placement groups of {}", image.name()), self.try_spread(&image))
    }

    fn try_spread(&self, image: &Image) -> Result<StoreReply, Failure> {
        let until = Instant::now() + SLOW_ANSWER;
        let pools = image.pools(&self.library)?;
        // Read after the request has come: groups that are made later are made in a later map.
        let map = cluster_map(&self.client, &self.library)?;
        let namespace = image.identity().namespace.as_str();
        for number in pools {
            let entry = map.pool(number).filter(|pool| pool.object_hash == placement::OBJECT_HASH);
            let names = entry.and_then(|pool| placement::names(pool.groups, namespace));
            let Some(names) = names else {
                let why = format!("pool {number} is gone, names objects by another hash, or is too large");
                return Err(Failure::Said(why));
            };
            let within = (!namespace.is_empty()).then_some(namespace);
            let pool = Pool::enter_by_number(&self.library, &self.client, number, within)?;
            reach_all(&pool, names, until)?;
        }
        Ok(StoreReply::Done)
    }
}

/// Reads all of these objects; whether they are there does not matter.
fn reach_all(pool: &Pool, names: Vec<String>, until: Instant) -> Result<(), Failure> {
    let (tell, told) = sync_channel(SPREAD_WINDOW);
    let mut names = names.into_iter();
    let mut out = 0;
    loop {
        while out < SPREAD_WINDOW
            && let Some(name) = names.next()
        {
            let tell = tell.clone();
            pool.read(&name, 1, move |result| {
                let _ = tell.try_send(result.map(drop));
            });
            out += 1;
        }
        if out == 0 {
            return Ok(());
        }
        match told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Ok(())) => out -= 1,
            Ok(Err(Errno(libc::ESHUTDOWN))) => return Err(Failure::Fenced),
            Ok(Err(Errno(errno))) => {
                return Err(Failure::Said(std::io::Error::from_raw_os_error(errno).to_string()));
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return Err(Failure::Said(format!("{out} of them do not answer")));
            }
        }
    }
}

fn cluster_map(client: &Client, library: &Library) -> Result<ClusterMap, Failure> {
    let json = client.ask_monitors(library, DUMP)?;
    ClusterMap::parse(&json).ok_or_else(|| Failure::Said("the monitors' osd dump cannot be read".to_owned()))
}

fn not_answered(why: NoAnswer) -> Failure {
    match why {
        NoAnswer::Refused(Errno(libc::ESHUTDOWN)) => Failure::Fenced,
        NoAnswer::Refused(Errno(errno)) => {
            Failure::Said(std::io::Error::from_raw_os_error(errno).to_string())
        }
        NoAnswer::Silent => Failure::Said("the cluster does not answer".to_owned()),
    }
}

fn errno(what: &'static str, errno: i32) -> OpenError {
    OpenError::Failed(what, std::io::Error::from_raw_os_error(errno))
}

/// The addresses that an instance has left. Half a list would bar half an instance, or another one.
fn addresses_in(contents: &Contents) -> Option<Vec<String>> {
    parse_addresses(&contents.bytes).filter(|_| contents.is_whole())
}

/// One `ADDRESS:PORT/NONCE` per line, of characters that need no quoting; `None`: it is something else.
fn parse_addresses(bytes: &[u8]) -> Option<Vec<String>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let is_address = |line: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '/' | '[' | ']');
        line.len() <= 80
            && line.chars().all(allowed)
            && line.split_once('/').is_some_and(|(_, nonce)| nonce.parse::<u64>().is_ok())
    };
    (!text.is_empty() && text.lines().all(is_address)).then(|| text.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::{Contents, addresses_in, parse_addresses};

    #[test]
    fn half_a_list_of_addresses_is_none() {
        let contents = |bytes_total| Contents { version: 1, bytes_total, bytes: b"10.0.0.1:0/77".to_vec() };
        assert_eq!(addresses_in(&contents(13)).unwrap(), ["10.0.0.1:0/77"]);
        assert_eq!(addresses_in(&contents(14)), None, "the number goes on");
    }

    #[test]
    fn addresses_hold_nothing_that_a_command_could_be_made_of() {
        let two = parse_addresses(b"127.0.0.1:0/77\n[fd00::1]:0/78").unwrap();
        assert_eq!(two, ["127.0.0.1:0/77", "[fd00::1]:0/78"]);
        for wrong in [&b""[..], b"127.0.0.1:0", b"127.0.0.1:0/x", b"a\", \"expire\": 1/7", b"\n", b"\xff:0/7"]
        {
            assert_eq!(parse_addresses(wrong), None, "{wrong:?}");
        }
    }
}
