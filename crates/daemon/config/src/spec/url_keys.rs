//! URLs in a SPEC, and the keys behind them.

use super::KEYS;

/// URLs, and the keys behind the last of them. Keys can only stand behind the host of the last URL: a password
/// in front of it may hold any comma.
pub(super) fn split_keys_behind_host(text: &str) -> (&str, Vec<&str>) {
    let last = text.rfind("://").map_or(0, |at| at + 3);
    let first = text.get(last..).and_then(|rest| rest.find('/')).map_or(text.len(), |at| last + at);
    split_keys(text, first)
}

/// What stands in front of the keys, and the keys: all that follow a comma behind the first `first` bytes.
pub(super) fn split_keys(text: &str, first: usize) -> (&str, Vec<&str>) {
    let (mut urls, mut keys) = (text, Vec::new());
    while let Some((before, field)) = urls.rsplit_once(',').filter(|(before, _)| before.len() > first) {
        let key = field.split_once('=').map_or(field, |(key, _)| key).trim();
        if !KEYS.contains(&key) {
            break;
        }
        keys.insert(0, field);
        urls = before;
    }
    (urls, keys)
}
