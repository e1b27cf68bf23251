//! The plan that files, the command line and what was created at run time come to. A start, its check and an apply follow
//! the same rules.

use std::path::Path;

use super::args::ServeArgs;
use config::{
    ConfigFile, ConfigFiles,
    check::{self, CommandLineOptions},
    diagnostic::{Located, Place, Sink},
    draft::Draft,
    name::VolumeName,
    network,
    plan::{Plan, Portal, Protocol, TcpOptions, Volume, VolumeOrigin},
    spec,
};
use control::report::line::LineReport;
use process::paths::DefaultPaths;

/// What is served when nothing is named.
const DEMO_VOLUME: (&str, &str) = ("demo", "ram:256M");

/// Whether somebody has named the configuration file, and has so said what is to be served even if it names nothing. The
/// file of the default place is not named. One rule for a start, its check, and what is applied later.
pub(super) fn names_file(args: &ServeArgs, paths: &DefaultPaths, files: &ConfigFiles) -> bool {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let is_other = |file: &ConfigFile| absolute(&file.path) != absolute(&paths.config);
    args.config.is_some() || files.0.first().is_some_and(is_other)
}

/// The configuration file, or a foreign one, then the command line; and what became of foreign lines.
pub(super) fn read_configuration(
    args: &ServeArgs,
    files: &ConfigFiles,
    sink: &Sink,
) -> (Draft, Vec<LineReport>) {
    let mut lines = Vec::new();
    let mut draft = files.draft(sink);
    if let Some(path) = &args.chiscsi {
        lines = chiscsi_config::read_file(path, sink, &mut draft);
    }
    if let Some(path) = &args.policy {
        lines.extend(chiscsi_config::read_policy(path, sink, &mut draft));
    }
    let said = |option: &str| Place::outside_file(&format!("command line: {option}"));
    for volume in &args.volumes {
        let at = said(&format!("--volume {}", volume.name));
        if volume.left_out_thin {
            sink.note_warning(&at, spec::THIN_IGNORED_WARNING);
        }
        let mut spec = volume.spec.clone();
        // Other directories may be current when a file is opened again.
        spec.source.for_each_file(&mut |path| {
            *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
        });
        draft.volumes.push(Located::new(
            Volume { name: volume.name.clone(), spec, origin: VolumeOrigin::Configured },
            at,
        ));
    }
    for (option, addresses, protocol) in [
        ("--iscsi", &args.iscsi, Protocol::Iscsi),
        ("--nvme", &args.nvme, Protocol::Nvme),
        ("--nvme-discovery", &args.nvme_discovery, Protocol::NvmeDiscovery),
    ] {
        for address in addresses {
            let at = said(&format!("{option} {address}"));
            draft.portals.push(Located::new(default_portal(protocol, *address), at));
        }
    }
    if let Some(node) = &args.node {
        // The command line is nearer to the person than the file.
        draft.node = Some(Located::new(node.clone(), said("--node")));
    }
    if let Some(http) = args.http {
        draft.http = Some(Located::new(http, said("--http")));
    }
    (draft, lines)
}

/// The plan that a draft comes to beside volumes that were created at run time.
pub(super) fn resolve_plan(
    mut draft: Draft,
    args: &ServeArgs,
    is_file_named: bool,
    created: Vec<Volume>,
    sink: &Sink,
) -> Plan {
    complete_draft(&mut draft, is_file_named, created);
    let options = CommandLineOptions {
        allow_anonymous: args.allow_anonymous,
        cores: args.cores.clone().unwrap_or_default().0,
        io: args.io,
        sandbox: (args.sandbox || args.no_sandbox).then_some(args.sandbox),
    };
    check::resolve_draft(draft, &options, sink)
}

/// Adds the volumes that were created at run time, and what is served when nothing was named.
fn complete_draft(draft: &mut Draft, is_file_named: bool, created: Vec<Volume>) {
    let nothing_named = draft.volumes.is_empty() && draft.targets.is_empty() && !is_file_named;
    for volume in created {
        let at = Place::outside_file(&format!("created at run time: volume {}", volume.name));
        draft.volumes.push(Located::new(volume, at));
    }
    let (name, text) = DEMO_VOLUME;
    let taken = draft.volumes.iter().any(|volume| volume.value.name.as_str() == name);
    if nothing_named
        && !taken
        && let (Ok(name), Ok(spec)) = (VolumeName::parse(name), spec::parse(text))
    {
        let volume = Volume { name, spec, origin: VolumeOrigin::Configured };
        draft.volumes.push(Located::new(volume, Place::outside_file("default")));
    }
    if draft.portals.is_empty() {
        for (protocol, port) in [
            (Protocol::Iscsi, network::ISCSI_PORT),
            (Protocol::Nvme, network::NVME_PORT),
            (Protocol::NvmeDiscovery, network::NVME_DISCOVERY_PORT),
        ] {
            let address = (std::net::Ipv4Addr::LOCALHOST, port).into();
            draft
                .portals
                .push(Located::new(default_portal(protocol, address), Place::outside_file("default")));
        }
    }
}

/// A portal that was given as an address and nothing more.
fn default_portal(protocol: Protocol, address: std::net::SocketAddr) -> Portal {
    let (digests, tls, tcp) = ((true, true), shard::TlsMode::Off, TcpOptions::default());
    Portal { protocol, address, tag: 1, digests, tls, announce: false, tcp }
}
