//! Sections that only NVMe/TCP has.

use super::Section;

/// `[[subsystem]]`
pub const SUBSYSTEM: Section = Section {
    title: "[[subsystem]]",
    about: "An NVMe subsystem and its namespaces. A volume that is in no target and no subsystem becomes namespace 1 of its own subsystem, `nqn.2026-11.io.blockwire:NAME` (with `node`: `nqn.2026-11.io.blockwire:NODE:NAME`).",
    keys: keys! {
        "nqn": "NVMe qualified name", "needed", "`nqn.YYYY-MM.reversed.domain:anything`; unique.";
        "portals": "list of tags", "all", "Portal groups through which the subsystem is reached.";
        "namespaces": "list of {volume, nsid, ro, ana_group}", "needed", "Its namespaces.";
        "ana_group": "1 to 128", "1", "ANA group of namespaces without their own.";
        "hosts": "list of names of [[host]]", "none", "Hosts that may reach all namespaces, in addition to those with a grant.";
        "open": "true or false", "true if there is no [[host]]", "Any host may connect, not only hosts with a grant.";
        "serial": "text", "derived from the UUID of its first volume", "Serial number, at most 20 ASCII characters. Hosts treat subsystems with the same serial number as one.";
        "model": "text", "\"Blockwire\"", "Model number, at most 40 ASCII characters.";
        "tls": "\"off\", \"allow\" or \"require\"", "\"allow\"", "Whether its hosts use TLS, where a portal offers it. `require` refuses hosts that came without; at a portal with `allow`, those with a `dhchap_key_file` may come without to generate a key for TLS. `off` refuses those that came by TLS.";
        "controllers": "1 to 65519", "1024", "Controllers (associations of hosts) at one time.";
        "queues": "1 to 128", "128", "I/O queues per controller.";
        "queue_depth": "2 to 1024", "1024", "Entries per I/O queue; fewer when memory is low.";
        "in_capsule": "size, 0 to 16K, a multiple of 16", "8K", "In-capsule data of a command; larger writes use R2T.";
        "max_transfer": "size, 8K to 1M, a power of two", "1M", "Largest transfer of one command (MDTS). With 8K a subsystem has at most 1,020 namespaces, so that hosts can read all their ANA states at once.";
    },
};

/// An element of `namespaces`.
pub const NAMESPACE: Section = Section {
    title: "namespaces of [[subsystem]]",
    about: "One namespace.",
    keys: keys! {
        "volume": "name", "needed", "Its volume.";
        "nsid": "1 to 1024", "the next number", "Its number, unique in the subsystem.";
        "ro": "true or false", "false", "This namespace is write-protected.";
        "ana_group": "1 to 128", "that of the subsystem", "Its ANA group. A volume has the same group in every subsystem.";
    },
};

/// `[[referral]]`
pub const REFERRAL: Section = Section {
    title: "[[referral]]",
    about: "Another NVMe discovery service that ours reports to hosts.",
    keys: keys! {
        "address": "address", "needed", "`IP` or `IP:PORT`; the port is 8009 unless given.";
        "nqn": "NVMe qualified name", "the well-known name", "Its name, if it has one of its own.";
    },
};
