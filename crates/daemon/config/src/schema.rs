//! Every section and key of the configuration file, once: the reader refuses all others, and the reference in
//! `docs/configuration.md` is generated from it.

/// Keys, a line each: name, what it takes, default, what it does.
macro_rules! keys {
    ($($name:literal: $takes:literal, $default:literal, $about:literal;)*) => {
        &[$($crate::schema::Key { name: $name, takes: $takes, default: $default, about: $about }),*]
    };
}

mod nvme;

pub use nvme::{NAMESPACE, REFERRAL, SUBSYSTEM};

/// A table of the file.
#[derive(Debug, PartialEq, Eq)]
pub struct Section {
    /// As messages and headings name it, for example `[[target]]`.
    pub title: &'static str,
    /// What it is for, one or two sentences.
    pub about: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

/// A key of a table.
#[derive(Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What may be written.
    pub takes: &'static str,
    /// What holds when it is absent.
    pub default: &'static str,
    /// What it does.
    pub about: &'static str,
}

impl Section {
    /// The names of its keys.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        self.keys.iter().map(|key| key.name)
    }
}

/// The file itself.
pub const ROOT: Section = Section {
    title: "the top level",
    about: "Keys before the first table, and the tables.",
    keys: keys! {
        "node": "name", "none", "This machine's name, part of default target and subsystem names, so that the `demo` of two machines differ.";
        "oui": "six hexadecimal digits", "none", "Your IEEE OUI, for the EUI-64 and NGUID of namespaces, and for the NAA 6h name of logical units. Without it the former are zero, the UUID names a namespace, and the NAA is 3h (locally assigned). Setting it gives logical units another NAA: hosts may show them as new disks.";
        "http": "address", "none", "Serve a live page at `http://ADDRESS/`, and metrics at `http://ADDRESS/metrics` for Prometheus and OpenMetrics; see [watching.md](watching.md#the-live-page). `IP` or `IP:PORT`; the port is 9810 unless given. There is no authentication: use an address that only monitoring can reach.";
        "control_group": "group", "none", "The name (in /etc/group) or number of a group whose members may look at the daemon by its control socket (`list`, `show`, `status`, `top`), and change nothing. The daemon's user must be in it.";
        "volume": "[[volume]]", "none", "Volumes to serve.";
        "portal": "[[portal]]", "127.0.0.1:3260 for iSCSI, 127.0.0.1:4420 and :8009 for NVMe/TCP", "Addresses to listen on. If any is given, here or on the command line, the defaults do not apply.";
        "target": "[[target]]", "one per volume", "iSCSI targets.";
        "subsystem": "[[subsystem]]", "one per volume", "NVMe/TCP subsystems.";
        "referral": "[[referral]]", "none", "Other NVMe discovery services that ours reports to hosts.";
        "host": "[[host]]", "none", "Machines that connect, and what they may reach.";
        "placement": "[[placement]]", "see there", "Which cores serve which hosts.";
        "auth": "[auth]", "none", "Authentication for hosts without their own.";
        "limits": "[limits]", "see there", "Limits of the whole daemon.";
        "sandbox": "[sandbox]", "see there", "What the daemon may use at most.";
        "group": "[group]", "none", "Other daemons that serve the same images of Ceph.";
    },
};

/// `[[volume]]`
pub const VOLUME: Section = Section {
    title: "[[volume]]",
    about: "A volume. The keys below `source` may also be part of the SPEC (`source = \"ram:1G,block=4096\"`), but not both.",
    keys: keys! {
        "name": "name", "needed", "Lowercase letters, digits, `-` and `.`; unique.";
        "source": "SPEC", "needed", "`ram:SIZE`, `file:PATH`, `/dev/NAME`, `null:SIZE`, `rbd:POOL/IMAGE` or `rbd:POOL/NAMESPACE/IMAGE` (see [scale-out.md](scale-out.md)), an export of an NBD server (`nbd://HOST/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`, see [nbd.md](nbd.md)), a volume's URL, or `stripe:SPEC+SPEC...` of these. In a stripe, escape a comma or plus sign inside a leg as `\\,` or `\\+` (in TOML best in single quotes); see [initiator.md](initiator.md#stripes).";
        "size": "size", "of the file", "Size of a file volume. The file is created or grown to it; a larger file keeps its size. For a stripe: its size, if smaller than the sum of its legs.";
        "chunk": "size", "64K", "For a stripe: contiguous bytes per leg, a power of two from 512 to 64M. Another value makes a different volume of the same legs.";
        "block": "512 or 4096", "512", "Logical block size, bytes.";
        "physical": "size", "of the backing", "Physical block size, bytes: a power of two from `block` to 64K.";
        "ro": "true or false", "false", "Write-protected.";
        "uuid": "UUID", "kept in the state directory", "Identity shown to initiators. Without it, a file keeps the UUID that it was given first, and so does a device with a serial number. A device without one gets a new UUID, and loses its reservations, when it is set up again or the machine reboots. A RAM volume gets a new one at each start; the log names such volumes. Persistent registrations of the old UUID stay in the state directory and do no harm; set `uuid=` to use them again.";
        "cache": "true or false", "true for files and devices", "Report and use a volatile write cache. Without it, every write is on stable storage before it completes.";
        "direct": "true or false", "false", "Bypass the page cache (O_DIRECT).";
        "thin": "true or false", "true, except for devices", "Free unmapped blocks, and report thin provisioning. RAM volumes always do; false is ignored with a warning.";
        "thin_threshold": "percent", "none", "For a thin RAM or file volume: from how much of its capacity on, such as `\"80%\"`, initiators get THIN PROVISIONING SOFT THRESHOLD REACHED (38h/07h, which ESXi shows) and the log a warning; 1% to 99%. They are told once, and again if less was allocated in between.";
        "removable": "true or false", "false", "Report a removable medium.";
        "movable": "true or false", "false", "For a RAM volume: memory that `blockwire upgrade` hands to the new process (a memfd). It costs 4 KiB pages instead of large ones, unless `/sys/kernel/mm/transparent_hugepage/shmem_enabled` is `advise` ([replacing a running daemon](internals/upgrade.md#ram-volumes)).";
        "tas": "true or false", "true", "Complete SCSI commands aborted by another initiator (reset, CLEAR TASK SET, PREEMPT AND ABORT) with status TASK ABORTED; without it they get no response. Initiators can change it until the next reset (TAS bit of the Control mode page).";
        "sanitize_rate": "size", "no limit", "Most bytes per second that a sanitize writes, so that other I/O gets through.";
        "iops_limit": "number", "no limit", "Most operations per second of all hosts together; further ones wait. See [limits](watching.md#limits-of-iops-and-bandwidth).";
        "iops_burst": "number", "a tenth of iops_limit", "Operations that may begin at once after a pause.";
        "bandwidth_limit": "size", "no limit", "Most bytes per second, read and written together.";
        "bandwidth_burst": "size", "a tenth of bandwidth_limit", "Bytes that may be moved at once after a pause.";
        "conf": "path", "/etc/ceph/ceph.conf", "For an image of Ceph: the cluster's configuration file.";
        "user": "name", "\"admin\"", "For an image of Ceph: the user, with or without `client.`; its key is in a keyring that the configuration names.";
        "queue_timeout": "time", "20s", "For an image of Ceph: how long I/O waits for the cluster before it fails with a path error, from 1ms to 24h.";
        "break_lock": "true or false", "false", "For an image of Ceph: take the exclusive lock of a client that is not connected any more, and blocklist that client for a year. The lock of a client that is connected is never taken.";
        "persist": "\"force\" or \"host\"", "\"host\"", "Whether reservations always survive a restart, or only if the host asks for it (APTPL, PTPL).";
    },
};

/// `[[portal]]`
pub const PORTAL: Section = Section {
    title: "[[portal]]",
    about: "An address to listen on. Portals with the same tag form a portal group: an iSCSI session may spread its connections over them, and path states are set per group for both protocols.",
    keys: keys! {
        "protocol": "\"iscsi\", \"nvme\" or \"nvme-discovery\"", "needed", "The protocol. `nvme` includes discovery; `nvme-discovery` is discovery only.";
        "address": "address", "needed", "`IP`, `IP:PORT`, `[IPv6]:PORT`; the port is 3260 (iSCSI), 4420 (NVMe) or 8009 (discovery) unless given, 0 lets the system choose. For `0.0.0.0` and `[::]`, discovery reports the address that the host connected to, if it is of that family. Loopback addresses are reported to this machine only.";
        "tag": "0 to 65535", "1", "Portal group tag.";
        "header_digest": "\"off\" or \"allow\"", "\"allow\"", "NVMe/TCP: whether hosts may use CRC32C over headers. (iSCSI: see `[[target]]`.)";
        "data_digest": "\"off\" or \"allow\"", "\"allow\"", "NVMe/TCP: whether hosts may use CRC32C over data.";
        "tls": "\"off\", \"allow\" or \"require\"", "\"off\"", "NVMe/TCP: whether hosts use TLS 1.3 with a pre-shared key (`tls_key_file`, or one that `dhchap_key_file` generates; see [tls.md](tls.md)). `allow`: the first byte of a connection decides.";
        "announce": "true or false", "false", "NVMe/TCP: announce the portal's discovery service by mDNS (`_nvme-disc._tcp`, NVMe TP8009), so that hosts of the same network find it without its address ([initiator.md](initiator.md#discovery-by-mdns)). Anyone on that network sees it; who may use what is not changed.";
        "congestion": "text", "the system's", "TCP congestion control algorithm.";
        "send_buffer": "size", "the system's", "Socket send buffer. Without it, links with near peers have a smaller one while many links send much at once.";
        "receive_buffer": "size", "the system's", "Socket receive buffer.";
        "dscp": "0 to 63, or a name such as \"af41\"", "the system's", "Differentiated services code point of sent packets.";
        "keepalive": "seconds, 0 to 32767", "off", "Idle time before TCP keep-alive probes; 0: off.";
    },
};

/// `[[target]]`
pub const TARGET: Section = Section {
    title: "[[target]]",
    about: "An iSCSI target and its logical units. A volume that is in no target and no subsystem becomes LUN 0 of its own target, `iqn.2026-11.io.blockwire:NAME` (with `node`: `iqn.2026-11.io.blockwire:NODE:NAME`).",
    keys: keys! {
        "name": "iSCSI name", "needed", "`iqn.`, `eui.` or `naa.` name; unique.";
        "alias": "text", "none", "TargetAlias, at most 255 bytes.";
        "portals": "list of tags", "all", "Portal groups through which the target is reached.";
        "luns": "list of {lun, volume, ro}", "none", "Its logical units.";
        "open": "true or false", "true if there is no [[host]]", "Any initiator may connect, not only hosts with a grant.";
        "header_digest": "\"off\", \"allow\" or \"require\"", "\"allow\"", "CRC32C over headers.";
        "data_digest": "\"off\", \"allow\" or \"require\"", "\"allow\"", "CRC32C over data.";
        "max_connections": "1 to 65535", "4", "Connections per session.";
        "initial_r2t": "true or false", "false", "Require initiators to wait for R2T before they send data beyond immediate data.";
        "immediate_data": "true or false", "true", "Accept immediate data.";
        "first_burst": "size, 512 to 16777215", "16K", "Most unsolicited data per command.";
        "max_burst": "size, 512 to 16777215", "1M", "Most data per R2T or Data-In sequence.";
        "max_receive": "size, 512 to 16777215", "256K", "Largest data segment that the target takes (MaxRecvDataSegmentLength).";
        "max_outstanding_r2t": "1 to 65535", "4", "R2Ts per command at one time.";
        "commands": "1 to 4096", "128", "Commands that a session may have outstanding. It starts with 8 and gets more as it uses them, if memory allows.";
        "chap": "{user, secret, ...} or a list of them", "those of [auth]", "Credentials for initiators whose host has none of its own.";
        "methods": "list of \"chap\", \"none\"", "those of [auth]", "Allowed authentication methods in order of preference, together with `chap`.";
        "mutual": "\"allow\" or \"require\"", "\"allow\"", "Whether initiators must use mutual authentication, together with `chap`.";
        "vendor": "text", "\"BLKWIRE\"", "INQUIRY vendor, at most 8 ASCII characters.";
        "product": "text", "\"Virtual Disk\"", "INQUIRY product, at most 16 ASCII characters.";
        "explicit_alua": "true or false", "false", "Let initiators set path states (SET TARGET PORT GROUPS).";
        "redirect": "{to, permanent}", "none", "Redirect initiators to another portal at login; such a target needs no luns.";
    },
};

/// An element of `luns`.
pub const LUN: Section = Section {
    title: "luns of [[target]]",
    about: "One logical unit.",
    keys: keys! {
        "lun": "0 to 16383", "needed", "Its number, unique in the target.";
        "volume": "name", "needed", "Its volume.";
        "ro": "true or false", "false", "This logical unit is write-protected.";
    },
};

/// `redirect` of a target.
pub const REDIRECT: Section = Section {
    title: "redirect of [[target]]",
    about: "Where initiators are redirected to.",
    keys: keys! {
        "to": "address", "needed", "The other portal, `IP` or `IP:PORT`.";
        "permanent": "true or false", "false", "Answer \"target moved permanently\" instead of \"temporarily\".";
    },
};

/// `[[placement]]`
pub const PLACEMENT: Section = Section {
    title: "[[placement]]",
    about: "Which cores serve a session or controller. When a session logs in or a queue connects, the first rule whose conditions all match decides; without a matching rule, any core may serve it. By default it is served by the core that the connection's network card queue interrupts (SO_INCOMING_CPU), so that its data stays in that core's caches. This core must be in the rule's list and have at most 1.5 times the load of the least loaded core, so that one queue of the card does not overload one core. The load is the number of iSCSI sessions and NVMe controllers; for NVMe I/O queues, those of the same controller. Otherwise, and for connections from this machine itself, the least loaded core is taken. All connections of an iSCSI session are served by the core of the first one. NVMe queues that follow no queue of the card are distributed round robin over the cores of the rule. `connection show` shows which rule applied and what decided.",
    keys: keys! {
        "protocol": "\"iscsi\" or \"nvme\"", "both", "Condition: the protocol.";
        "portal": "`IP:PORT`", "any", "Condition: the portal of the connection, as configured.";
        "sources": "list of networks", "any", "Condition: the source address of the connection.";
        "host": "name of a [[host]]", "any", "Condition: one of the host's names, and its sources unless `sources` is given.";
        "volume": "name of a [[volume]]", "any", "Condition: the target or subsystem exports this volume.";
        "cores": "list of numbers", "all", "Cores that may serve it; each must be one of the daemon's (`--cores`).";
        "bind": "\"queue\", \"cpu\" or \"random\"", "the card's queue, if balanced", "\"queue\": always the core that the network card's queue interrupts, whatever its load, over loopback too (there it is the peer's core); the least loaded if it is not in `cores`. \"cpu\": the least loaded core; for NVMe queues the next in turn. \"random\": any of them.";
        "polling": "refused", "", "A core polls for all its connections.";
        "digest": "refused", "", "Digests are set per target and per portal (`header_digest`, `data_digest`): NVMe/TCP negotiates them before the host has identified itself.";
        "tx": "refused", "", "All data is sent by copying.";
        "rx": "refused", "", "All data is received by copying.";
    },
};

/// `[[host]]`
pub const HOST: Section = Section {
    title: "[[host]]",
    about: "A machine that connects, with its names in both protocols. It is identified by name (`iqn` over iSCSI, `nqn` over NVMe/TCP), by source network, or, if both are given, by both. A host with names for one protocol only cannot connect over the other. If there is any [[host]], a target or subsystem is accessible only to hosts with a grant for it, unless it is `open`. The first host that matches and has a grant decides.",
    keys: keys! {
        "name": "text", "needed", "Its name in reports; unique.";
        "iqn": "list of iSCSI names", "any, if there is no nqn", "Its initiator names.";
        "nqn": "list of NVMe qualified names", "any, if there is no iqn", "Its NVMe names.";
        "hostid": "UUID", "any", "Its NVMe Host Identifier, as in `/etc/nvme/hostid`; any other is refused. Reservations are tied to it.";
        "both": "true or false", "false", "It may reach one volume over both protocols. No current multipath combines an iSCSI and an NVMe path to one disk: set this only for software that does.";
        "sources": "list of networks", "any", "Networks it connects from, for example `192.0.2.0/24`. All connections of an iSCSI session, and all queues of an NVMe controller, must match the same [[host]]; a connection that matches another one is refused.";
        "blocked": "true or false", "false", "The host may not connect: its sessions end at once, its logins are refused with 0202h and its Connects with Connect Invalid Host, for discovery too. It is recognized by its names, from any address; without names, by its `sources`. Its reservations stay. See also `blockwire host block`.";
        "iops_limit": "number", "no limit", "Most operations per second of all its sessions together, over both protocols; further ones wait. See [limits](watching.md#limits-of-iops-and-bandwidth).";
        "iops_burst": "number", "a tenth of iops_limit", "Operations that may begin at once after a pause.";
        "bandwidth_limit": "size", "no limit", "Most bytes per second, read and written together.";
        "bandwidth_burst": "size", "a tenth of bandwidth_limit", "Bytes that may be moved at once after a pause.";
        "access": "list of {target, luns, mode} or {subsystem, namespaces, mode}", "needed, unless a subsystem names it", "What it may reach.";
        "chap": "{user, secret, ...} or a list of them", "those of [auth]", "Its credentials for iSCSI.";
        "dhchap_key_file": "path", "that of [auth]", "A file that holds its secret for NVMe in-band authentication (DH-HMAC-CHAP) as `DHHC-1:..:...:`, readable by its owner only (mode 0600); `blockwire key generate FILE` creates one. A relative path starts at this file's directory.";
        "dhchap_controller_key_file": "path", "that of [auth]", "A file that holds the secret by which controllers prove themselves to this host, if it requests that (mutual DH-HMAC-CHAP; `nvme connect --dhchap-ctrl-secret`); it must differ from the host's own. Same form and mode as `dhchap_key_file`.";
        "tls_key_file": "path", "that of [auth]", "A file that holds its pre-shared key for TLS as `NVMeTLSkey-1:..:...:`, readable by its owner only (mode 0600); `blockwire key generate --kind tls FILE` creates one. The host needs an `nqn`, which its TLS identity names.";
    },
};

/// An element of `access`.
pub const ACCESS: Section = Section {
    title: "access of [[host]]",
    about: "One grant.",
    keys: keys! {
        "target": "iSCSI name or \"*\"", "needed, or subsystem", "The target; `\"*\"` is every target, also those created later.";
        "luns": "list of numbers", "all", "The logical units of the target.";
        "through": "list of addresses", "all", "Addresses of this machine through which it must connect to the target.";
        "subsystem": "NVMe qualified name or \"*\"", "needed, or target", "The subsystem; `\"*\"` is every subsystem, also those created later.";
        "namespaces": "list of numbers", "all", "The namespaces of the subsystem.";
        "mode": "\"rw\" or \"ro\"", "\"rw\"", "Whether it may write.";
    },
};

/// Credentials.
pub const CHAP: Section = Section {
    title: "chap",
    about: "A CHAP user. Secrets have 12 to 255 bytes; Windows takes 12 to 16.",
    keys: keys! {
        "user": "text", "needed", "The initiator's CHAP name.";
        "secret": "text", "needed, or secret_file", "Its secret. The file that holds it must not be readable by others.";
        "secret_file": "path", "needed, or secret", "A file with the secret, readable by its owner only (mode 0600); a relative path starts at this file's directory.";
        "mutual_user": "text", "none", "The target's own CHAP name, for mutual authentication; one for all users of a list.";
        "mutual_secret": "text", "none", "The target's own secret; it must differ from the initiator's.";
        "mutual_secret_file": "path", "none", "A file that holds it.";
    },
};

/// `[auth]`
pub const AUTH: Section = Section {
    title: "[auth]",
    about: "Authentication for hosts without their own.",
    keys: keys! {
        "chap": "{user, secret, ...} or a list of them", "none", "Credentials for initiators whose host has none.";
        "discovery": "{user, secret, ...} or a list of them", "none", "Credentials for discovery sessions.";
        "methods": "list of \"chap\", \"none\"", "[\"chap\"]", "Allowed authentication methods, where credentials exist, in order of preference: the first one that the initiator offers too is used, whatever the initiator prefers. With `[\"chap\", \"none\"]`, a host that offers CHAP must authenticate; one that does not offer it need not.";
        "mutual": "\"allow\" or \"require\"", "\"allow\"", "Whether initiators must use mutual authentication, for targets and discovery. A target with `chap` has its own setting.";
        "hashes": "list of \"sha3-256\", \"sha256\", \"sha1\", \"md5\"", "all, in this order; where mutual authentication is required, all but md5", "Allowed CHAP algorithms in order of preference: the first one that the initiator offers too is used.";
        "allow_short_secrets": "true or false", "false", "Accept secrets of fewer than 12 bytes; RFC 7143 allows them only over an encrypted network.";
        "dhchap_key_file": "path", "none", "A file with the DH-HMAC-CHAP secret for NVMe hosts without their own, as in `[[host]]`.";
        "dhchap_controller_key_file": "path", "none", "A file with the DH-HMAC-CHAP secret by which controllers prove themselves to hosts that have none of their own for that, as in `[[host]]`. Without one, hosts that request authentication of the controller are refused.";
        "dhchap_hashes": "list of \"sha512\", \"sha384\", \"sha256\"", "all, in this order", "Allowed DH-HMAC-CHAP hashes in order of preference: the first one that the host offers too is used.";
        "dhchap_groups": "list of \"ffdhe3072\", \"ffdhe4096\", \"ffdhe6144\", \"ffdhe8192\", \"ffdhe2048\", \"null\"", "all, in this order", "Allowed Diffie-Hellman groups of DH-HMAC-CHAP in order of preference. `null` means no group: the exchange depends on the secret alone, and an eavesdropper can try to guess it offline.";
        "dhchap_discovery": "true or false", "false", "NVMe hosts must also authenticate to the discovery service: with their own secret, or else that of `dhchap_discovery_key_file`, or else that of `dhchap_key_file`. Hosts without a secret are refused.";
        "dhchap_discovery_key_file": "path", "that of dhchap_key_file", "A file with the DH-HMAC-CHAP secret for the discovery service, for hosts without their own.";
        "tls_key_file": "path", "none", "A file with the pre-shared key of TLS for NVMe hosts without their own, as in `[[host]]`. From it each host derives another key, by its NQN.";
        "tls_derivations": "list of \"standard\", \"compat\"", "[\"standard\"]", "How hosts derive keys of TLS. libnvme before 1.16 does it in its own way, `compat`. With both, the digest in a host's identity (version 1) tells which; identities of version 0, and keys without a hash, go by the first.";
    },
};

/// `[limits]`
pub const LIMITS: Section = Section {
    title: "[limits]",
    about: "Limits of the whole daemon.",
    keys: keys! {
        "nop_interval": "seconds, 0 to 3600", "30", "Idle time after which an initiator is pinged; 0: never. Together with `nop_timeout` it limits how long a silent session, and a write in it, stays alive. Initiators wait longer than that before they retry such a write through another portal group (ours: `fence_timeout`, 100 s), so keep the sum below that, and use 0 only for initiators with one path.";
        "nop_timeout": "seconds, 1 to 3600", "30", "A connection that does not answer a ping within this time is closed.";
        "memory": "size, at least 8M", "128M", "Payload memory per core.";
        "sessions": "1 to 65535", "65535", "Sessions of the whole daemon, including discovery sessions. Further ones are refused with \"out of resources\".";
        "login_timeout": "seconds, 1 to 600", "15", "A connection that has not completed its login (NVMe: its Connect) within this time is closed.";
        "keep_alive_min": "seconds, 1 to 86400", "1", "Smallest Keep Alive Timeout (KATO) of NVMe hosts: a smaller request gets this value. A host that requests none gets none.";
        "keep_alive_max": "seconds, 1 to 86400", "no bound", "Largest Keep Alive Timeout of NVMe hosts. A host that requests more, or none, is refused with Keep Alive Timeout Invalid, so that no silent host keeps its controller longer.";
        "discovery_per_source": "1 to 1024", "128", "Controllers of the NVMe discovery service, of 1024 in all, that one source (an IPv4 address, an IPv6 /64) may have at one time. Further ones are refused with Controller Busy.";
    },
};

/// `[sandbox]`
pub const SANDBOX: Section = Section {
    title: "[sandbox]",
    about: "With this section the daemon restricts itself at start (landlock, seccomp) to what the configuration names then: see [The sandbox](#the-sandbox).",
    keys: keys! {
        "enabled": "true or false", "true", "Whether the daemon restricts itself. `serve --no-sandbox` is the same as false; `serve --sandbox` the same as true, also without this section.";
        "paths": "list of directories", "none", "Further directories in which volumes, keys and configuration files may be that are named while the daemon runs.";
        "ports": "list of TCP ports", "none", "Further ports for portals, and for volumes on other machines, that are named while the daemon runs.";
    },
};

/// `[group]`
pub const GROUP: Section = Section {
    title: "[group]",
    about: "With this section the daemon is one gateway of a group on Ceph: all of them serve the volumes whose source is `rbd:`, as one target; see [scale-out.md](scale-out.md). Volumes, targets, subsystems and hosts must be configured alike at all gateways. Changes take effect at a restart.",
    keys: keys! {
        "name": "name", "needed", "The group: letters, digits, `-` and `_`. The same at all gateways.";
        "pool": "POOL or POOL/NAMESPACE", "needed", "The pool that has the group's state; the images may be in others.";
        "listen": "address", "needed", "Where this gateway listens for the others: `IP` or `IP:PORT`; the port is 3262 unless given. Links are encrypted with a key that lies in the pool.";
        "address": "address", "that of `listen`", "Where the others connect to it, if that is another one.";
        "gateway": "name", "the machine's host name", "This gateway's name in the group; unique.";
        "conf": "path", "/etc/ceph/ceph.conf", "The cluster's configuration file.";
        "user": "name", "\"admin\"", "The user, with or without `client.`; for its rights see [scale-out.md](scale-out.md).";
    },
};

/// Every section, in the order of the reference.
pub const SECTIONS: [&Section; 17] = [
    &ROOT, &VOLUME, &PORTAL, &TARGET, &LUN, &REDIRECT, &SUBSYSTEM, &NAMESPACE, &REFERRAL, &HOST, &ACCESS,
    &PLACEMENT, &CHAP, &AUTH, &LIMITS, &SANDBOX, &GROUP,
];

/// The reference as Markdown, one table per section.
pub fn markdown_reference() -> String {
    let mut out = String::new();
    for section in SECTIONS {
        out.push_str(&format!("### {}\n\n{}\n\n", section.title, section.about));
        out.push_str("| key | takes | without it | what it does |\n|---|---|---|---|\n");
        for key in section.keys {
            out.push_str(&format!("| `{}` | {} | {} | {} |\n", key.name, key.takes, key.default, key.about));
        }
        out.push('\n');
    }
    out
}
