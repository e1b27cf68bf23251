//! The name of a volume: the URLs of its paths, or a stripe of such volumes.
//!
//! Invariant: no displayed form of a name contains a password.

use backends::stripe::{self, CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX};
use multipath::Url;
use sha2::{Digest, Sha256};

use crate::error::Error;

/// A volume, as it is to be opened.
#[derive(Clone, Debug)]
pub(crate) struct VolumeLocator {
    /// Its paths; of a stripe, those of each leg.
    pub(crate) legs: Vec<Vec<Url>>,
    /// Bytes of a chunk, if it is a stripe.
    pub(crate) chunk: Option<u32>,
}

impl VolumeLocator {
    pub(crate) fn parse(text: &str) -> Result<VolumeLocator, Error> {
        if !stripe::is_meant(text) {
            return Ok(VolumeLocator { legs: vec![parse_paths(text)?], chunk: None });
        }
        let cut = stripe::parse_stripe(text).map_err(Error::usage)?;
        let mut chunk = CHUNK_BYTES_DEFAULT;
        for field in &cut.fields {
            chunk = match field.split_once('=') {
                Some(("chunk", size)) => parse_chunk(size)?,
                _ => {
                    // It may be a URL, or a piece of one, whose comma is not escaped: with a password.
                    let is_url = field.contains("://") || field.contains('@');
                    let field = if is_url { "..." } else { field };
                    return Err(Error::usage(format!(
                        "\"{field}\" means nothing for a stripe; it takes chunk=, and a comma inside of a leg is \
                         written \\,"
                    )));
                }
            };
        }
        let leg = |(at, text): (usize, &String)| {
            parse_paths(text).map_err(|why| Error::usage(format!("leg {} of the stripe: {why}", at + 1)))
        };
        let legs = cut.legs.iter().enumerate().map(leg).collect::<Result<_, _>>()?;
        Ok(VolumeLocator { legs, chunk: Some(chunk) })
    }

    /// As it may be shown.
    pub(crate) fn redacted(&self) -> String {
        let leg = |urls: &Vec<Url>| urls.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let legs: Vec<String> = self.legs.iter().map(leg).collect();
        match self.chunk {
            None => legs.concat(),
            Some(CHUNK_BYTES_DEFAULT) => stripe::format_legs(legs.iter().map(String::as_str)),
            Some(chunk) => format!("{},chunk={chunk}", stripe::format_legs(legs.iter().map(String::as_str))),
        }
    }
}

fn parse_paths(text: &str) -> Result<Vec<Url>, Error> {
    let urls = Url::parse_joined(text).map_err(Error::usage)?;
    match urls.iter().find(|url| !url.has_volume()) {
        Some(url) => Err(Error::usage(url.missing_volume_error())),
        None => Ok(urls),
    }
}

fn parse_chunk(text: &str) -> Result<u32, Error> {
    let (digits, shift) = match (text.strip_suffix(['k', 'K']), text.strip_suffix(['m', 'M'])) {
        (Some(digits), _) => (digits, 10),
        (None, Some(digits)) => (digits, 20),
        (None, None) => (text, 0),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| bytes.is_power_of_two() && (512..=u64::from(CHUNK_BYTES_MAX)).contains(bytes))
        .map(|bytes| bytes as u32)
        .ok_or_else(|| Error::usage(format!("chunk is a power of two from 512 to 64M, not \"{text}\"")))
}

/// Whether a name is that of a volume of another machine, or of a stripe of such.
/// ```
/// assert!(blockwire_client::is_remote_volume_name("nvme+tcp://127.0.0.1/nqn.2026-11.io.blockwire:demo/1"));
/// assert!(!blockwire_client::is_remote_volume_name("disk.img"));
/// ```
pub fn is_remote_volume_name(name: &str) -> bool {
    Url::has_known_scheme(name) || stripe::is_meant(name)
}

/// All URLs that a volume's name holds, and the name as it may be shown.
///
/// # Errors
/// What is not written as it must be.
///
/// ```
/// let name = "iscsi://web%secret@127.0.0.1/iqn.2026-11.io.blockwire:demo/0";
/// let (urls, shown) = blockwire_client::urls_of_name(name)?;
/// assert_eq!((urls.len(), urls[0].port), (1, 3260));
/// assert!(!shown.contains("secret"));
/// # Ok::<(), blockwire_client::Error>(())
/// ```
pub fn urls_of_name(name: &str) -> Result<(Vec<Url>, String), Error> {
    let name = VolumeLocator::parse(name)?;
    let shown = name.redacted();
    Ok((name.legs.into_iter().flatten().collect(), shown))
}

/// The identity of a stripe: the same for the same legs in the same order with the same chunks, and only for
/// them. A UUID of version 8 (RFC 9562 §5.8).
///
/// ```
/// use blockwire_client::stripe_uuid;
///
/// let uuid = stripe_uuid(&[[1; 16], [2; 16]], 65_536);
/// assert_ne!(uuid, stripe_uuid(&[[2; 16], [1; 16]], 65_536));
/// ```
pub fn stripe_uuid(legs: &[[u8; 16]], chunk: u32) -> [u8; 16] {
    let mut digest = Sha256::new();
    digest.update(b"io.blockwire.stripe");
    legs.iter().for_each(|leg| digest.update(leg));
    digest.update(chunk.to_be_bytes());
    let digest: [u8; 32] = digest.finalize().into();
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&digest[..16]);
    uuid[6] = uuid[6] & 0x0F | 0x80;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISCSI: &str = "iscsi://h/iqn.2026-11.io.blockwire:d/0";
    const NVME: &str = "nvme+tcp://h/nqn.2026-11.io.blockwire:d/1";

    #[test]
    fn a_stripe_is_made_of_volumes() {
        let name = VolumeLocator::parse(&format!("stripe:{ISCSI}\\,{NVME}+{NVME},chunk=128K")).unwrap();
        let paths: Vec<usize> = name.legs.iter().map(Vec::len).collect();
        assert_eq!((paths, name.chunk), (vec![2, 1], Some(128 << 10)));
        let again = VolumeLocator::parse(&name.redacted()).unwrap();
        assert_eq!((again.legs, again.chunk), (name.legs, name.chunk));
        assert_eq!(VolumeLocator::parse(ISCSI).unwrap().chunk, None);
        assert!(
            is_remote_volume_name(NVME)
                && is_remote_volume_name("stripe:a+b")
                && !is_remote_volume_name("/srv/stripe")
        );
    }

    #[test]
    fn what_makes_no_sense_is_named_and_shows_no_password() {
        for (text, said) in [
            (format!("stripe:{ISCSI}"), "two legs"),
            (format!("stripe:{ISCSI}+/dev/sda"), "leg 2"),
            (format!("stripe:{ISCSI}+{NVME},chunk=3K"), "power of two"),
            (format!("stripe:{ISCSI}+{NVME},{NVME}"), "a comma inside of a leg"),
            (format!("stripe:{ISCSI}+{NVME},iscsi://u%hush@h/iqn.2026-11.x/0"), "a comma inside of a leg"),
            (format!("stripe:{NVME}+iscsi://u%a,hush@h/iqn.2026-11.x/0"), "a comma inside of a leg"),
            (format!("stripe:iscsi://u%hush@h/iqn.2026-11.io.blockwire:d+{NVME}"), "leg 1"),
        ] {
            let why = VolumeLocator::parse(&text).unwrap_err();
            assert!(why.message.contains(said) && !why.message.contains("hush"), "{why}");
        }
        let secret = ISCSI.replace("://", "://u%hush@");
        let name = VolumeLocator::parse(&format!("stripe:{secret}+{NVME}")).unwrap();
        assert!(!name.redacted().contains("hush"));
    }
}
