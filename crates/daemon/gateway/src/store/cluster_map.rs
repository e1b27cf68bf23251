//! What the monitors say of the cluster (`osd dump`): one answer is one map.

use std::collections::BTreeSet;

use serde_json::Value;

/// As far as it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterMap {
    /// Its number.
    pub(crate) epoch: u64,
    /// The addresses that may neither read nor write.
    blocklist: BTreeSet<String>,
    pools: Vec<PoolEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolEntry {
    number: i64,
    /// How many placement groups it has.
    pub(crate) groups: u32,
    pub(crate) object_hash: u64,
}

/// The command that asks for it.
pub(crate) const DUMP: &str = r#"{"prefix": "osd dump", "format": "json"}"#;

impl ClusterMap {
    /// `None`: not what the command answers; nothing of it is used.
    pub(crate) fn parse(json: &[u8]) -> Option<ClusterMap> {
        let dump: Value = serde_json::from_slice(json).ok()?;
        let epoch = dump.get("epoch")?.as_u64()?;
        let blocklist = dump.get("blocklist")?.as_object()?.keys().cloned().collect();
        let pools = dump.get("pools")?.as_array()?.iter().map(|pool| {
            Some(PoolEntry {
                number: pool.get("pool")?.as_i64()?,
                groups: pool.get("pg_num")?.as_u64()?.try_into().ok().filter(|groups| *groups > 0)?,
                object_hash: pool.get("object_hash")?.as_u64()?,
            })
        });
        Some(ClusterMap { epoch, blocklist, pools: pools.collect::<Option<_>>()? })
    }

    /// Whether an address, `ADDRESS:PORT/NONCE`, is on the blocklist.
    pub(crate) fn is_barred(&self, address: &str) -> bool {
        self.blocklist.contains(address)
    }

    pub(crate) fn pool(&self, number: i64) -> Option<PoolEntry> {
        self.pools.iter().find(|pool| pool.number == number).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_monitor_says_is_read_whole_or_not_at_all() {
        let json = br#"{"epoch": 12, "pools": [{"pool": 1, "pg_num": 16, "object_hash": 2, "size": 3}],
            "blocklist": {"127.0.0.1:0/77": "2027-11-29T01:45:34.446181+0000"}}"#;
        let map = ClusterMap::parse(json).unwrap();
        assert_eq!(
            (map.epoch, map.is_barred("127.0.0.1:0/77"), map.is_barred("127.0.0.1:0/7")),
            (12, true, false)
        );
        assert_eq!(map.pool(1), Some(PoolEntry { number: 1, groups: 16, object_hash: 2 }));
        assert_eq!(map.pool(2), None);
        // No missing part is taken for an empty one.
        let text = std::str::from_utf8(json).unwrap();
        for part in ["epoch", "pools", "blocklist", "pg_num", "object_hash", "\"pool\""] {
            assert_eq!(ClusterMap::parse(text.replace(part, "\"x\"").as_bytes()), None, "{part}");
            let renamed = text.replace(part, if part.starts_with('"') { "\"x\"" } else { "x" });
            assert_eq!(ClusterMap::parse(renamed.as_bytes()), None, "{part}");
        }
        assert_eq!(ClusterMap::parse(&json[..json.len() - 1]), None);
        assert_eq!(ClusterMap::parse(text.replace("16", "0").as_bytes()), None);
    }
}
