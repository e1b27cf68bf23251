//! Every section and key of the configuration file, once: the reader refuses what is not here, and
//! the reference in `docs/configuration.md` is generated from it.

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
    about: "Keys that stand before the first table, and the tables that there are.",
    keys: keys! {
        "node": "name", "none", "This machine's name inside default target and subsystem names, so that two machines' `demo` differ.";
        "oui": "six hexadecimal digits", "none", "Your IEEE OUI, for the EUI-64 and NGUID of namespaces. Without it they are zero, and the UUID names a namespace.";
        "volume": "[[volume]]", "none", "Volumes to serve.";
        "portal": "[[portal]]", "127.0.0.1:3260 for iSCSI, 127.0.0.1:4420 and :8009 for NVMe/TCP", "Addresses to listen on. As soon as there is one, here or on the command line, only those count.";
        "target": "[[target]]", "one per volume", "iSCSI targets.";
        "subsystem": "[[subsystem]]", "one per volume", "NVMe/TCP subsystems.";
        "referral": "[[referral]]", "none", "Other NVMe discovery services that ours names to hosts.";
        "host": "[[host]]", "none", "Machines that connect, and what they may reach.";
        "placement": "[[placement]]", "see there", "Which cores serve whom.";
        "auth": "[auth]", "none", "Authentication that is not of one host.";
        "limits": "[limits]", "see there", "Limits of the whole daemon.";
    },
};

/// `[[volume]]`
pub const VOLUME: Section = Section {
    title: "[[volume]]",
    about: "A volume. The keys below `source` may also stand in the SPEC itself (`source = \"ram:1G,block=4096\"`), but not in both places.",
    keys: keys! {
        "name": "name", "needed", "Lowercase letters, digits, `-` and `.`; unique.";
        "source": "SPEC", "needed", "`ram:SIZE`, `file:PATH`, `/dev/NAME`, `null:SIZE`, a volume's URL, or `stripe:SPEC+SPEC...` of these. In a stripe a comma or a plus sign inside of a leg is written `\\,` or `\\+` (in TOML best between single quotes); see [initiator.md](initiator.md#stripes).";
        "size": "size", "of the file", "Size of a file volume. The file is created or grown to it; a larger file keeps its size. Of a stripe: its size, if that is to be less than what its legs have together.";
        "chunk": "size", "64K", "Of a stripe: what lies on one leg in a row, a power of two from 512 to 64M. Another value makes another volume of the same legs.";
        "block": "512 or 4096", "512", "Logical block size, bytes.";
        "physical": "size", "of the backing", "Physical block size, bytes: a power of two from `block` to 64K.";
        "ro": "true or false", "false", "Write-protected.";
        "uuid": "UUID", "kept in the state directory", "Identity shown to initiators. Without it a file keeps the one that it was given, and so does a device whose serial number the system tells; a device without one gets a fresh identity, and loses its reservations, when it is set up again or the machine starts again, and a RAM volume at each start. The log names such RAM volumes. What hosts registered with one, to be kept over power cuts, stays in the state directory under the old identity and does no harm; `uuid=` lets it be found again.";
        "cache": "true or false", "true for files and devices", "Report and use a volatile write cache. Without it every write reaches stable storage before it is answered.";
        "direct": "true or false", "false", "Pass by the page cache (O_DIRECT).";
        "thin": "true or false", "true but for devices", "Give unmapped blocks back, and report it. Memory always does: false is ignored there, with a warning.";
        "removable": "true or false", "false", "Report a removable medium.";
        "tas": "true or false", "true", "Answer a SCSI command that another initiator ends, by a reset, CLEAR TASK SET or PREEMPT AND ABORT, with TASK ABORTED; without it such a command gets no answer. Initiators can change it until the next reset (TAS of the Control mode page).";
        "sanitize_rate": "size", "no limit", "Bytes per second that a sanitize writes at most, so that it leaves the disk time for others.";
        "persist": "\"force\" or \"host\"", "\"host\"", "Whether reservations survive a restart always, or as the hosts that make them ask for (APTPL, PTPL).";
    },
};

/// `[[portal]]`
pub const PORTAL: Section = Section {
    title: "[[portal]]",
    about: "An address to listen on. Portals with the same tag form a portal group: one iSCSI session may spread its connections over them, and path states are set by it over both protocols.",
    keys: keys! {
        "protocol": "\"iscsi\", \"nvme\" or \"nvme-discovery\"", "needed", "What is spoken there. `nvme` answers discovery too; `nvme-discovery` answers nothing else.";
        "address": "address", "needed", "`IP`, `IP:PORT`, `[IPv6]:PORT`; the port is 3260 (iSCSI), 4420 (NVMe) or 8009 (discovery) unless given, 0 lets the system choose. Discovery names `0.0.0.0` and `[::]` as the address of ours that was asked, if it is of that family, and loopback to this machine only.";
        "tag": "0 to 65535", "1", "Portal group tag.";
        "header_digest": "\"off\" or \"allow\"", "\"allow\"", "NVMe/TCP: whether hosts that ask get CRC32C over headers. (iSCSI: see `[[target]]`.)";
        "data_digest": "\"off\" or \"allow\"", "\"allow\"", "NVMe/TCP: whether hosts that ask get CRC32C over data.";
        "congestion": "text", "the system's", "TCP congestion control algorithm.";
        "send_buffer": "size", "the system's", "Socket send buffer.";
        "receive_buffer": "size", "the system's", "Socket receive buffer.";
        "dscp": "0 to 63, or a name such as \"af41\"", "the system's", "Differentiated services code point of what is sent.";
        "keepalive": "seconds, 0 to 32767", "off", "Idle time before TCP keep-alive probes; 0: off.";
    },
};

/// `[[target]]`
pub const TARGET: Section = Section {
    title: "[[target]]",
    about: "An iSCSI target and its logical units. A volume that no target and no subsystem names is LUN 0 of a target of its own, `iqn.2026-11.io.blockwire:NAME` (with `node`: `iqn.2026-11.io.blockwire:NODE:NAME`).",
    keys: keys! {
        "name": "iSCSI name", "needed", "`iqn.`, `eui.` or `naa.` name; unique.";
        "alias": "text", "none", "TargetAlias, at most 255 bytes.";
        "portals": "list of tags", "all", "Portal groups through which the target is reached.";
        "luns": "list of {lun, volume, ro}", "none", "Its logical units.";
        "open": "true or false", "true if there is no [[host]]", "Every initiator may reach it, not only hosts with a grant.";
        "header_digest": "\"off\", \"allow\" or \"require\"", "\"allow\"", "CRC32C over headers.";
        "data_digest": "\"off\", \"allow\" or \"require\"", "\"allow\"", "CRC32C over data.";
        "max_connections": "1 to 65535", "4", "Connections per session.";
        "initial_r2t": "true or false", "false", "Insist that initiators wait for R2T before they send data that does not ride on the command.";
        "immediate_data": "true or false", "true", "Accept data that rides on the command.";
        "first_burst": "size, 512 to 16777215", "16K", "Most unsolicited data per command.";
        "max_burst": "size, 512 to 16777215", "1M", "Most data per R2T or Data-In sequence.";
        "max_receive": "size, 512 to 16777215", "256K", "Largest data segment that the target takes (MaxRecvDataSegmentLength).";
        "max_outstanding_r2t": "1 to 65535", "4", "R2Ts per command at one time.";
        "commands": "1 to 4096", "128", "Commands that one session may have outstanding. It begins with 8 and gets more as it uses them, while memory lasts.";
        "chap": "{user, secret, ...} or a list of them", "those of [auth]", "Credentials of its initiators whose host has none of its own.";
        "methods": "list of \"chap\", \"none\"", "those of [auth]", "Authentication methods that are allowed, most wanted first, beside `chap`.";
        "mutual": "\"allow\" or \"require\"", "\"allow\"", "Whether an initiator must ask the target to prove itself too, beside `chap`.";
        "vendor": "text", "\"BLKWIRE\"", "INQUIRY vendor, at most 8 ASCII characters.";
        "product": "text", "\"Virtual Disk\"", "INQUIRY product, at most 16 ASCII characters.";
        "explicit_alua": "true or false", "false", "Let initiators set path states (SET TARGET PORT GROUPS).";
        "redirect": "{to, permanent}", "none", "Send initiators to another portal at login; such a target needs no luns.";
    },
};

/// An element of `luns`.
pub const LUN: Section = Section {
    title: "luns of [[target]]",
    about: "One logical unit.",
    keys: keys! {
        "lun": "0 to 16383", "needed", "Its number, unique in the target.";
        "volume": "name", "needed", "The volume behind it.";
        "ro": "true or false", "false", "Nobody writes through this logical unit.";
    },
};

/// `redirect` of a target.
pub const REDIRECT: Section = Section {
    title: "redirect of [[target]]",
    about: "Where initiators are sent.",
    keys: keys! {
        "to": "address", "needed", "The other portal, `IP` or `IP:PORT`.";
        "permanent": "true or false", "false", "Say \"moved permanently\" instead of \"moved temporarily\".";
    },
};

/// `[[placement]]`
pub const PLACEMENT: Section = Section {
    title: "[[placement]]",
    about: "Which cores serve a session or controller. The first rule whose conditions all hold decides, when a session logs in or a queue connects; what no rule fits may be served by all cores. Unless `bind` says otherwise it is served by the core that the network card's queue of the connection interrupts (SO_INCOMING_CPU), so that its bytes stay in that core's caches. That core must be one of them, and carry at most half as much again as the one that carries least, so that one queue of the card does not crowd one core. iSCSI sessions and NVMe controllers are counted, and of NVMe I/O queues those of the same controller. Else, and for connections of this machine itself (over loopback, or from one of its own addresses to the same), it goes to the core that carries least. All connections of one iSCSI session are served by the core of the first, and queues of an NVMe controller that follow no queue of the card go round the cores of the rule. `connection show` says which rule and what decided.",
    keys: keys! {
        "protocol": "\"iscsi\" or \"nvme\"", "both", "Condition: the protocol.";
        "portal": "`IP:PORT`", "any", "Condition: the portal that the connection came by, as it is configured.";
        "sources": "list of networks", "any", "Condition: where the connection comes from.";
        "host": "name of a [[host]]", "any", "Condition: one of that host's names; and its sources, unless `sources` is given.";
        "volume": "name of a [[volume]]", "any", "Condition: the target or subsystem leads to this volume.";
        "cores": "list of numbers", "all", "Cores that may serve it; each must be one of the daemon's (`--cores`).";
        "bind": "\"queue\", \"cpu\" or \"random\"", "that of the card's queue, in balance", "\"queue\": always the core that the network card's queue interrupts, whatever it carries, over loopback too (there it is the peer's own); the least loaded if it is none of `cores`. \"cpu\": the core that carries least; of NVMe queues the next in turn. \"random\": any of them.";
        "polling": "refused", "", "A core polls for all of its connections alike.";
        "digest": "refused", "", "Digests are settled per target (`negotiation`) and per portal (`header_digest`, `data_digest`): NVMe/TCP settles them before the host has identified itself.";
        "tx": "refused", "", "Everything is sent by copying.";
        "rx": "refused", "", "Everything is received by copying.";
    },
};

/// `[[host]]`
pub const HOST: Section = Section {
    title: "[[host]]",
    about: "A machine that connects, by its names in both protocols. It is recognized by name (`iqn` over iSCSI, `nqn` over NVMe/TCP), by source network, or, if both are given, by both; a host that gives names for one protocol only is not let in by the other. As soon as there is one [[host]], a target or subsystem is reached only by hosts with a grant for it, unless it is `open`. The first host that matches and has a grant decides.",
    keys: keys! {
        "name": "text", "needed", "Its name in reports; unique.";
        "iqn": "list of iSCSI names", "any, if there is no nqn", "Its initiator names.";
        "nqn": "list of NVMe qualified names", "any, if there is no iqn", "Its NVMe names.";
        "hostid": "UUID", "any", "Its NVMe Host Identifier, as in `/etc/nvme/hostid`; with any other it is not let in. Reservations are kept by it.";
        "both": "true or false", "false", "It may reach one volume over both protocols. No multipath of today merges an iSCSI and an NVMe path to one disk: only say so for software that does.";
        "sources": "list of networks", "any", "Networks it connects from, for example `192.0.2.0/24`. All connections of an iSCSI session, and all queues of an NVMe controller, have to come under the same [[host]]: one from an address that another holds for is refused.";
        "access": "list of {target, luns, mode} or {subsystem, namespaces, mode}", "needed, unless a subsystem names it", "What it may reach.";
        "chap": "{user, secret, ...} or a list of them", "those of [auth]", "Its credentials for iSCSI.";
        "dhchap_key_file": "path", "that of [auth]", "A file that holds its secret for NVMe in-band authentication (DH-HMAC-CHAP) as `DHHC-1:..:...:`, with no access for group and others (mode 0600); `blockwire host key FILE` makes one. A relative path starts at this file's directory.";
    },
};

/// An element of `access`.
pub const ACCESS: Section = Section {
    title: "access of [[host]]",
    about: "One grant.",
    keys: keys! {
        "target": "iSCSI name or \"*\"", "needed, or subsystem", "The target; `\"*\"` is every target, also those created later.";
        "luns": "list of numbers", "all", "The logical units of the target.";
        "through": "list of addresses", "all", "Addresses of this machine by which it must come to the target.";
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
        "secret_file": "path", "needed, or secret", "A file that holds the secret, with no access for group and others (mode 0600); a relative path starts at this file's directory.";
        "mutual_user": "text", "none", "The target's own CHAP name, for mutual authentication; one for all users of a list.";
        "mutual_secret": "text", "none", "The target's own secret; it must differ from the initiator's.";
        "mutual_secret_file": "path", "none", "A file that holds it.";
    },
};

/// `[auth]`
pub const AUTH: Section = Section {
    title: "[auth]",
    about: "Authentication that is not of one host.",
    keys: keys! {
        "chap": "{user, secret, ...} or a list of them", "none", "Credentials for initiators whose host has none.";
        "discovery": "{user, secret, ...} or a list of them", "none", "Credentials for discovery sessions.";
        "methods": "list of \"chap\", \"none\"", "[\"chap\"]", "Authentication methods that are allowed where credentials exist, most wanted first: the first that the initiator offers too is taken, whatever it would rather have. With `[\"chap\", \"none\"]` a host that offers CHAP must prove itself; one that does not need not.";
        "mutual": "\"allow\" or \"require\"", "\"allow\"", "Whether an initiator that proves itself, for a target or for discovery, must ask us to prove ourselves too. A target with `chap` says so itself.";
        "hashes": "list of \"sha3-256\", \"sha256\", \"sha1\", \"md5\"", "all, in this order", "CHAP algorithms that are allowed, most wanted first: the first that the initiator offers too is taken.";
        "allow_short_secrets": "true or false", "false", "Accept secrets of fewer than 12 bytes; RFC 7143 allows them only over an encrypted network.";
        "dhchap_key_file": "path", "none", "A file that holds the DH-HMAC-CHAP secret of NVMe hosts that have none of their own, as for `[[host]]`.";
        "dhchap_hashes": "list of \"sha512\", \"sha384\", \"sha256\"", "all, in this order", "Hashes of DH-HMAC-CHAP that are allowed, most wanted first: the first that the host offers too is taken.";
        "dhchap_groups": "list of \"ffdhe3072\", \"ffdhe4096\", \"ffdhe6144\", \"ffdhe8192\", \"ffdhe2048\", \"null\"", "all, in this order", "Diffie-Hellman groups of DH-HMAC-CHAP that are allowed, most wanted first. `null` is none: the proof stands on the secret alone, and who records it can try secrets against it.";
        "dhchap_discovery": "true or false", "false", "NVMe hosts must prove themselves to the discovery service too: with their own secret, else that of `dhchap_discovery_key_file`, else that of `dhchap_key_file`. Hosts that have none are not let in.";
        "dhchap_discovery_key_file": "path", "that of dhchap_key_file", "A file that holds the DH-HMAC-CHAP secret for the discovery service, of hosts that have none of their own.";
    },
};

/// `[limits]`
pub const LIMITS: Section = Section {
    title: "[limits]",
    about: "Limits of the whole daemon.",
    keys: keys! {
        "nop_interval": "seconds, 0 to 3600", "30", "Idle time after which an initiator is asked for a sign of life; 0: never. With `nop_timeout` it is how long a silent session lives, and a write that it holds: initiators wait longer than that before they repeat such a write by another portal group (ours: `fence_timeout`, 100 s), so keep the sum below, and 0 for initiators with one path.";
        "nop_timeout": "seconds, 1 to 3600", "30", "A connection that has not answered by then is closed.";
        "memory": "size, at least 8M", "128M", "Payload memory of each core.";
        "sessions": "1 to 65535", "65535", "Sessions of the whole daemon, discovery sessions among them. One more is refused with \"out of resources\".";
        "login_timeout": "seconds, 1 to 600", "15", "A connection that has not finished its login (NVMe: its Connect) by then is closed.";
        "keep_alive_min": "seconds, 1 to 86400", "1", "Least Keep Alive Timeout (KATO) of an NVMe host: one that asks for less gets this. A host that asks for none gets none.";
        "keep_alive_max": "seconds, 1 to 86400", "no bound", "Longest Keep Alive Timeout of an NVMe host. One that asks for more, or for none, is refused with Keep Alive Timeout Invalid, so that no silent host keeps its controller for longer.";
        "discovery_per_source": "1 to 1024", "128", "Controllers of the NVMe discovery service, of 1024 in all, that one source (an IPv4 address, an IPv6 /64) may have at one time. One more is refused with Controller Busy.";
    },
};

/// Every section, in the order of the reference.
pub const ALL: [&Section; 15] = [
    &ROOT, &VOLUME, &PORTAL, &TARGET, &LUN, &REDIRECT, &SUBSYSTEM, &NAMESPACE, &REFERRAL, &HOST, &ACCESS,
    &PLACEMENT, &CHAP, &AUTH, &LIMITS,
];

/// The reference as Markdown, one table per section.
pub fn markdown() -> String {
    let mut out = String::new();
    for section in ALL {
        out.push_str(&format!("### {}\n\n{}\n\n", section.title, section.about));
        out.push_str("| key | takes | without it | what it does |\n|---|---|---|---|\n");
        for key in section.keys {
            out.push_str(&format!("| `{}` | {} | {} | {} |\n", key.name, key.takes, key.default, key.about));
        }
        out.push('\n');
    }
    out
}
