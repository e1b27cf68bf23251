//! What an initiator says was negotiated for its connections.
//!
//! Invariant: what is written down is what matters for a load and is the same for each session with the same
//! configuration: no addresses, identifiers or numbers of sessions.

use serde_json::Value;

/// Keys of iSCSI (RFC 7143 §13), and the fields of NVMe/TCP that are their like. `queue depth`: commands that a
/// session or queue may have in work at once.
const NEGOTIATED_KEYS: [&str; 19] = [
    "queue depth",
    "HeaderDigest",
    "DataDigest",
    "InitialR2T",
    "ImmediateData",
    "FirstBurstLength",
    "MaxBurstLength",
    "MaxOutstandingR2T",
    "MaxConnections",
    "MaxRecvDataSegmentLength (ours)",
    "MaxRecvDataSegmentLength (target)",
    "I/O queues",
    "SQSIZE",
    "SQ flow control",
    "IOCCSZ",
    "MAXH2CDATA",
    "MAXR2T",
    "MDTS",
    "DGST",
];

/// What our initiator says of a path, in the form of `blockwire info --json`.
pub(super) fn negotiated_from_path(path: &Value) -> Vec<(String, String)> {
    let named = |name: &str| match name {
        "queue depth" => path.get("depth")?.as_u64().map(|depth| depth.to_string()),
        _ => path.get("negotiated")?.get(name)?.as_str().map(str::to_owned),
    };
    NEGOTIATED_KEYS.iter().filter_map(|name| Some(((*name).to_owned(), named(name)?))).collect()
}

/// The same of a whole answer of `blockwire info --json`: that of its first path.
pub(super) fn negotiated_from_info(text: &str) -> Vec<(String, String)> {
    let value: Option<Value> = serde_json::from_str(text).ok();
    let path = value.as_ref().and_then(|value| value.get("paths")?.get(0));
    path.map(negotiated_from_path).unwrap_or_default()
}

/// What open-iscsi has negotiated for a target over an interface, in what `iscsiadm -m session -P 3` shows.
pub(super) fn negotiated_from_open_iscsi(
    shown: &str,
    target: &str,
    interface: &str,
) -> Vec<(String, String)> {
    let (mut is_target, mut is_ours) = (false, false);
    let mut terms: Vec<(String, String)> = Vec::new();
    for line in shown.lines().map(str::trim) {
        let Some((name, value)) = line.split_once(": ") else { continue };
        match name {
            "Target" => (is_target, is_ours) = (value.split(' ').next() == Some(target), false),
            "Iface Name" => is_ours = value == interface,
            _ => {}
        }
        // The interface of a session stands before its terms.
        let name = match name {
            "MaxRecvDataSegmentLength" => "MaxRecvDataSegmentLength (ours)",
            "MaxXmitDataSegmentLength" => "MaxRecvDataSegmentLength (target)",
            other => other,
        };
        let is_known = terms.iter().any(|(known, _)| known == name);
        if is_target && is_ours && NEGOTIATED_KEYS.contains(&name) && !is_known {
            terms.push((name.to_owned(), value.to_owned()));
        }
    }
    terms
}

/// What a controller's Identify data (`nvme id-ctrl -o json`) says of data in a command's capsule. IOCCSZ counts units
/// of 16 bytes, of which the entry itself takes 64 bytes (NVM Express Base 2.0 §5.17.2.1).
pub(super) fn negotiated_from_id_ctrl(text: &str) -> Vec<(String, String)> {
    let value: Option<Value> = serde_json::from_str(text).ok();
    let units = value.as_ref().and_then(|value| value.get("ioccsz")?.as_u64());
    let data = units.and_then(|units| units.checked_mul(16)?.checked_sub(64));
    data.map(|bytes| ("IOCCSZ".to_owned(), format!("{bytes} bytes of data"))).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(terms: &[(String, String)]) -> Vec<(&str, &str)> {
        terms.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    #[test]
    fn what_differs_with_each_session_is_not_written_down() {
        let text = "{\"paths\":[{\"depth\":128,\"negotiated\":{\"TSIH\":\"7\",\"FirstBurstLength\":\"16384\",\
                    \"DataDigest\":\"None\"}}]}";
        let expected = [("queue depth", "128"), ("DataDigest", "None"), ("FirstBurstLength", "16384")];
        assert_eq!(pairs(&negotiated_from_info(text)), expected);
        for text in ["", "{}", "{\"paths\":[]}", "{\"paths\":[{\"negotiated\":null}]}"] {
            assert!(negotiated_from_info(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn open_iscsi_is_read_of_the_runs_own_session() {
        let session = |interface: &str, first: u32| {
            format!(
                "\t\t**********\n\t\tInterface:\n\t\t**********\n\t\tIface Name: {interface}\n\t\tIface Transport: tcp\n\
                 \t\tSID: 3\n\t\tNegotiated iSCSI params:\n\t\tHeaderDigest: None\n\t\tMaxRecvDataSegmentLength: 262144\n\
                 \t\tMaxXmitDataSegmentLength: 8192\n\t\tFirstBurstLength: {first}\n\t\tImmediateData: Yes\n"
            )
        };
        let shown = format!(
            "Target: iqn.2026-11.x:other (non-flash)\n{}Target: iqn.2026-11.x:t (non-flash)\n{}{}",
            session("bw-1", 1),
            session("default", 2),
            session("bw-1", 65_536)
        );
        let expected = [
            ("HeaderDigest", "None"),
            ("MaxRecvDataSegmentLength (ours)", "262144"),
            ("MaxRecvDataSegmentLength (target)", "8192"),
            ("FirstBurstLength", "65536"),
            ("ImmediateData", "Yes"),
        ];
        assert_eq!(pairs(&negotiated_from_open_iscsi(&shown, "iqn.2026-11.x:t", "bw-1")), expected);
        assert!(negotiated_from_open_iscsi(&shown, "iqn.2026-11.x:none", "bw-1").is_empty());
    }

    #[test]
    fn a_capsule_holds_what_is_left_behind_its_entry() {
        assert_eq!(pairs(&negotiated_from_id_ctrl("{\"ioccsz\":516}")), [("IOCCSZ", "8192 bytes of data")]);
        for text in ["{\"ioccsz\":3}", "{}", "no JSON"] {
            assert!(negotiated_from_id_ctrl(text).is_empty(), "{text}");
        }
    }
}
