//! SPDK: what `rpc.py save_config` prints, a list of calls for each of its subsystems.

use std::collections::HashMap;

use config::{
    name,
    spec::{Spec, VolumeSource},
};

use crate::{
    json::Document,
    model::{
        self, ChapUser, Export, Grant, Host, ImportModel, LunOrNamespace, Protocol, Secret, set_spec_key,
    },
    note::{Note, NoteOutcome},
    render::quoted_string,
    section::{
        IgnoredMeaning::{Emulated, NotApplicable, Only},
        ObjectSection,
    },
};

mod iscsi;

/// What calls have said that later ones need.
#[derive(Default)]
struct ParseState {
    iscsi: iscsi::IscsiState,
    /// Secrets that hosts name.
    keys: HashMap<String, Secret>,
    /// `nvmf_create_transport` for TCP: in-capsule data, queues, queue depth, transfers.
    transport: Vec<(&'static str, String)>,
}

/// Calls that set up SPDK itself.
const SPDK_ONLY_CALLS: [&str; 24] = [
    "accel_set_options",
    "bdev_examine",
    "bdev_iscsi_set_options",
    "bdev_nvme_set_hotplug",
    "bdev_nvme_set_options",
    "bdev_raid_set_options",
    "bdev_set_options",
    "bdev_wait_for_examine",
    "framework_set_scheduler",
    "iobuf_set_options",
    "keyring_linux_set_options",
    "log_set_flag",
    "log_set_level",
    "nvmf_set_config",
    "nvmf_set_crdt",
    "nvmf_set_max_subsystems",
    "scheduler_set_options",
    "sock_impl_set_options",
    "sock_set_default_impl",
    "trace_set_tpoint_mask",
    "vmd_enable",
    "env_set_options",
    "fsdev_set_opts",
    "bdev_enable_histogram",
];

/// Reads the whole document.
pub fn read_spdk(document: &Document) -> ImportModel {
    let root = ObjectSection::open(&document.file, &document.root, "the configuration");
    let mut model = ImportModel::default();
    let mut state = ParseState::default();
    for subsystem in root.sections("subsystems") {
        subsystem.note_key("subsystem", NoteOutcome::NotApplicable, "only the calls in it are read");
        for call in subsystem.sections("config") {
            read_call(call, &mut state, &mut model);
        }
        model.notes.extend(subsystem.finish());
    }
    state.iscsi.finish_targets(&mut model);
    model.exports.retain(|export| !export.portals.is_empty());
    let names: Vec<String> = model.exports.iter().map(|export| export.name.clone()).collect();
    for host in &mut model.hosts {
        host.grants.retain(|grant| names.contains(&grant.export));
    }
    model.hosts.retain(|host| !host.grants.is_empty());
    model.notes.extend(root.finish());
    model
}

fn read_call(call: ObjectSection<'_>, state: &mut ParseState, model: &mut ImportModel) {
    let method = call.text("method").unwrap_or_default();
    if SPDK_ONLY_CALLS.contains(&method) {
        let what = crate::note::printable_value(method);
        model.notes.extend(call.into_omitted_notes(
            &what,
            NoteOutcome::NotApplicable,
            "it is about SPDK itself",
        ));
        return;
    }
    let Some(params) = call.section("params") else {
        let why = "a call without parameters that is not known here";
        model.notes.extend(call.into_omitted_notes(
            &crate::note::printable_value(method),
            NoteOutcome::Error,
            why,
        ));
        return;
    };
    match method {
        "bdev_aio_create" | "bdev_uring_create" | "bdev_malloc_create" | "bdev_null_create" => {
            read_block_device(method, params, model);
        }
        "bdev_raid_create" => read_raid(params, model),
        "bdev_nvme_attach_controller" => read_remote_controller(params, model),
        "keyring_file_add_key" => read_key(params, state, model),
        "nvmf_create_transport" => read_transport(params, state, model),
        "nvmf_create_subsystem" => create_subsystem(params, state, model),
        "nvmf_subsystem_add_ns" => add_namespace(params, model),
        "nvmf_subsystem_add_listener" | "nvmf_discovery_add_listener" => add_listener(params, model),
        "nvmf_subsystem_add_host" => add_host(params, state, model),
        "nvmf_discovery_add_referral" => add_referral(params, model),
        _ if state.iscsi.read_call(method, &params) => model.notes.extend(params.finish()),
        _ => {
            let why = "there is no counterpart of this call";
            model.notes.extend(params.into_omitted_notes(
                &crate::note::printable_value(method),
                NoteOutcome::Error,
                why,
            ));
        }
    }
}

/// A block device over a file, memory or nothing.
fn read_block_device(method: &str, params: ObjectSection<'_>, model: &mut ImportModel) {
    let key = params.text("name").unwrap_or_default().to_owned();
    let path = params.text("filename").unwrap_or_default();
    let mut spec = Spec::new(match method {
        "bdev_malloc_create" => VolumeSource::Ram,
        "bdev_null_create" => VolumeSource::Null,
        _ if path.starts_with("/dev/") => VolumeSource::Device(path.into()),
        _ => VolumeSource::File(path.into()),
    });
    let block = params.number("block_size").filter(|block| *block != 0);
    if let Some(block) = block
        && let Err(why) = set_spec_key(&mut spec, "block", &block.to_string())
    {
        params.note_key("block_size", NoteOutcome::Error, &why);
    }
    if let Some(blocks) = params.number("num_blocks") {
        let bytes = blocks.checked_mul(block.unwrap_or(512)).filter(|bytes| *bytes <= i64::MAX as u64);
        if bytes.is_none() {
            params.note_error("num_blocks", "num_blocks x block_size is out of range");
        }
        spec.size = bytes;
    }
    if spec.source.path().is_some() {
        if !path.starts_with('/') {
            params.note_error("filename", "must be an absolute path");
        }
        // As SPDK opens files and devices.
        spec.direct = true;
        params.note_key("filename", NoteOutcome::Applied, "opened with O_DIRECT, as it was");
    }
    if let Some(physical) = params.number("physical_block_size").filter(|physical| *physical != 0)
        && let Err(why) = set_spec_key(&mut spec, "physical", &physical.to_string())
    {
        params.note_key("physical_block_size", NoteOutcome::Error, &why);
    }
    if let Some(uuid) = params.text("uuid").filter(|uuid| *uuid != "00000000-0000-0000-0000-000000000000")
        && let Err(why) = set_spec_key(&mut spec, "uuid", uuid)
    {
        params.note_key("uuid", NoteOutcome::Error, &why);
    }
    spec.read_only = params.flag("readonly").unwrap_or(false);
    params.note_known_keys(&[
        ("dif_is_head_of_md", NotApplicable("there is no protection information")),
        ("dif_pi_format", NotApplicable("there is no protection information")),
        ("dif_type", Only("0", "there is no protection information")),
        ("fallocate", Emulated("`thin` of the volume")),
        ("md_interleave", Only("false", "there is no metadata")),
        ("md_size", Only("0", "there is no metadata")),
        ("optimal_io_boundary", NotApplicable("it is about SPDK's splitting of I/O")),
        ("numa_id", NotApplicable("memory is that of the core that serves it")),
    ]);
    model.add_volume(&key, &key, spec, params.finish());
}

/// RAID 0 over what was made before.
fn read_raid(params: ObjectSection<'_>, model: &mut ImportModel) {
    let key = params.text("name").unwrap_or_default().to_owned();
    let level = params.text("raid_level").unwrap_or_default();
    if level != "raid0" && level != "0" {
        let why = "only RAID 0 (a stripe) is there; put the others below, by md or LVM, and serve the device";
        model.notes.extend(params.into_omitted_notes(
            &format!("bdev_raid_create {key}"),
            NoteOutcome::Error,
            why,
        ));
        return;
    }
    let mut legs = Vec::new();
    for leg in params.list("base_bdevs") {
        let crate::json::JsonKind::Text(leg) = &leg.kind else { continue };
        match model.volume(leg) {
            Some(volume) => {
                let mut spec = volume.spec.clone();
                spec.uuid = None;
                legs.push(spec.to_string().replace('\\', "\\\\").replace(',', "\\,").replace('+', "\\+"));
            }
            None => params.note_error(
                "base_bdevs",
                &format!("there is no volume \"{}\"", crate::note::printable_value(leg)),
            ),
        }
    }
    let chunk = params.number("strip_size_kb").unwrap_or(64);
    let uuid = params.text("uuid").map(|uuid| format!(",uuid={uuid}")).unwrap_or_default();
    let spec = config::spec::parse(&format!("stripe:{},chunk={chunk}K{uuid}", legs.join("+")));
    params.note_known_keys(&[(
        "superblock",
        Only("false", "there is no superblock on the legs, so their data would not be found"),
    )]);
    match spec {
        Ok(spec) => model.add_volume(&key, &key, spec, params.finish()),
        Err(why) => {
            params.note_error("base_bdevs", &why.to_string());
            model.notes.extend(params.finish());
        }
    }
}

/// NVMe namespaces of another machine; those of this one are devices of the kernel here.
fn read_remote_controller(params: ObjectSection<'_>, model: &mut ImportModel) {
    let key = params.text("name").unwrap_or_default().to_owned();
    let kind = params.text("trtype").unwrap_or_default().to_ascii_lowercase();
    if kind != "tcp" {
        let why = "only NVMe/TCP reaches other machines; a local device (pcie) goes back to the kernel's nvme driver \
                   and becomes a volume /dev/nvme...";
        let what = format!("bdev_nvme_attach_controller {}", crate::note::printable_value(&key));
        model.notes.extend(params.into_omitted_notes(&what, NoteOutcome::Error, why));
        return;
    }
    let port = params.number("trsvcid").unwrap_or(config::network::NVME_PORT.into());
    let address = model::parse_portal(params.text("traddr").unwrap_or_default(), port);
    let nqn = params.text("subnqn").unwrap_or_default();
    let spec = address.and_then(|address| {
        config::spec::parse(&format!("nvme+tcp://{address}/{nqn}/1")).map_err(|why| why.to_string())
    });
    match spec {
        Ok(spec) => {
            params.note_key(
                "name",
                NoteOutcome::Emulated,
                "its first namespace is a volume of the other machine",
            );
            for rest in [
                "adrfam",
                "hostnqn",
                "ctrlr_loss_timeout_sec",
                "reconnect_delay_sec",
                "fast_io_fail_timeout_sec",
                "multipath",
                "prchk_reftag",
                "prchk_guard",
                "ddgst",
                "hdgst",
            ] {
                params.note_key(rest, NoteOutcome::Emulated, "options of the volume's URL");
            }
            let volume = format!("{key}n1");
            model.add_volume(&volume, &volume, spec, params.finish());
        }
        Err(why) => {
            params.note_error("traddr", &why);
            model.notes.extend(params.finish());
        }
    }
}

/// A secret, in a file of its own.
fn read_key(params: ObjectSection<'_>, state: &mut ParseState, model: &mut ImportModel) {
    let name = params.text("name").unwrap_or_default().to_owned();
    let path = params.text("path").unwrap_or_default();
    match config::file::read_text(std::path::Path::new(path), 4096) {
        Ok((secret, _)) => {
            params.note_key("path", NoteOutcome::Emulated, "copied to a file of each host that uses it");
            state.keys.insert(name, Secret::new(secret.trim_end()));
        }
        Err(why) => params.note_error("path", &format!("the secret is not here: it {why}")),
    }
    model.notes.extend(params.finish());
}

fn read_transport(params: ObjectSection<'_>, state: &mut ParseState, model: &mut ImportModel) {
    let kind = params.text("trtype").unwrap_or_default();
    if !kind.eq_ignore_ascii_case("tcp") {
        let what = format!("nvmf_create_transport {}", crate::note::printable_value(kind));
        model.notes.extend(params.into_omitted_notes(&what, NoteOutcome::Error, "only TCP can be served"));
        return;
    }
    let fit = |key: &str, least: u64, most: u64| {
        let number = params.number(key)?;
        let used = number.clamp(least, most);
        if used != number {
            params.note_key(
                key,
                NoteOutcome::Emulated,
                &format!("{used} is the nearest that is possible here"),
            );
        }
        Some(used)
    };
    let depth = fit("max_queue_depth", 2, 1024).map(|number| ("queue_depth", number.to_string()));
    let queues = fit("max_io_qpairs_per_ctrlr", 1, 128).map(|number| ("queues", number.to_string()));
    let inline =
        fit("in_capsule_data_size", 0, 16 << 10).map(|number| ("in_capsule", (number & !15).to_string()));
    let size = fit("max_io_size", 8 << 10, 1 << 20).map(|number| {
        let fits = 1_u64 << number.ilog2();
        ("max_transfer", fits.to_string())
    });
    state.transport.extend([depth, queues, inline, size].into_iter().flatten());
    for key in [
        "abort_timeout_sec",
        "ack_timeout",
        "acceptor_poll_rate",
        "buf_cache_size",
        "c2h_success",
        "control_msg_num",
        "data_wr_pool_size",
        "dif_insert_or_strip",
        "disable_command_passthru",
        "disable_mappable_bar0",
        "disable_adaptive_irq",
        "disable_shadow_doorbells",
        "io_unit_size",
        "max_aq_depth",
        "num_shared_buffers",
        "sock_priority",
        "zcopy",
        "kas",
        "msdbd",
        "min_kato",
        "in_capsule_data_size_align",
    ] {
        params.note_key(key, NoteOutcome::NotApplicable, "it is about SPDK's own transport");
    }
    model.notes.extend(params.finish());
}

fn create_subsystem(params: ObjectSection<'_>, state: &ParseState, model: &mut ImportModel) {
    let nqn = params.text("nqn").unwrap_or_default();
    if nqn == name::DISCOVERY_NQN {
        model.notes.extend(params.into_omitted_notes(
            "the discovery subsystem",
            NoteOutcome::Emulated,
            "it is there by itself",
        ));
        return;
    }
    let mut export = Export::new(Protocol::Nvme, nqn);
    if let Err(why) = name::parse_nqn(nqn) {
        params.note_error("nqn", &why.to_string());
    }
    export.open = params.flag("allow_any_host").unwrap_or(false);
    for (key, ours, most) in [("serial_number", "serial", 20), ("model_number", "model", 40)] {
        if let Some(value) = params.text(key) {
            let value: String = value.trim().chars().take(most).collect();
            export.set_key(ours, quoted_string(&value));
        }
    }
    export.keys.extend(state.transport.iter().cloned());
    params.note_known_keys(&[
        ("ana_reporting", Emulated("path states are always reported")),
        ("max_cntlid", Emulated("`controllers` of [[subsystem]] limits their number")),
        ("max_discard_size_kib", NotApplicable("the limits are those of this target")),
        ("max_namespaces", Emulated("at most 1,024 in every subsystem")),
        ("max_write_zeroes_size_kib", NotApplicable("the limits are those of this target")),
        ("min_cntlid", Emulated("controller IDs are given from 1 on")),
        ("passthrough", Only("false", "NVMe devices cannot be passed through")),
    ]);
    export.notes.extend(params.finish());
    model.exports.push(export);
}

/// Does something with the subsystem that a call names.
fn with_subsystem(
    params: &ObjectSection<'_>,
    model: &mut ImportModel,
    act: impl FnOnce(&mut Export) -> Vec<Note>,
) {
    let nqn = params.text("nqn").unwrap_or_default();
    match model.exports.iter_mut().find(|export| export.name == nqn) {
        Some(export) => {
            let notes = act(export);
            export.notes.extend(notes);
        }
        None if nqn == name::DISCOVERY_NQN => {}
        None => params.note_error("nqn", "no earlier call made this subsystem"),
    }
}

fn add_namespace(params: ObjectSection<'_>, model: &mut ImportModel) {
    let Some(namespace) = params.section("namespace") else {
        params.note_error("namespace", "is missing");
        model.notes.extend(params.finish());
        return;
    };
    let key = namespace.text("bdev_name").unwrap_or_default().to_owned();
    let is_there = model.volume(&key).is_some();
    if !is_there {
        namespace.note_error("bdev_name", "there is no such volume, so the namespace is left out");
    }
    // The identity that hosts know is that of the namespace.
    let uuid = namespace.text("uuid");
    if let (Some(uuid), Some(volume)) =
        (uuid, model.volumes.iter_mut().find(|volume| volume.keys.contains(&key)))
    {
        match set_spec_key(&mut volume.spec, "uuid", uuid) {
            Ok(()) => namespace.note_key("uuid", NoteOutcome::Applied, "the UUID of the volume"),
            Err(why) => namespace.note_key("uuid", NoteOutcome::Error, &why),
        }
    }
    let group = namespace.number("anagrpid").filter(|group| (1..=128).contains(group) && *group != 1);
    let number = namespace.number("nsid").unwrap_or(0);
    if namespace.number("anagrpid") == Some(number) && group.is_some() {
        namespace.note_key("anagrpid", NoteOutcome::Applied, "");
    }
    namespace.note_known_keys(&[
        ("eui64", Emulated("the UUID names the namespace")),
        ("hide_metadata", NotApplicable("there is no metadata")),
        ("nguid", Emulated("the UUID names the namespace")),
        ("no_auto_visible", Only("false", "give hosts `namespaces` in their access")),
        ("ptpl_file", Emulated("reservations are kept in the state directory")),
    ]);
    with_subsystem(&params, model, |export| {
        if is_there {
            export.units.push(LunOrNamespace { number, volume: key, read_only: false, ana_group: group });
        }
        namespace.finish()
    });
    model.notes.extend(params.finish());
}

fn add_listener(params: ObjectSection<'_>, model: &mut ImportModel) {
    let Some(listen) = params.section("listen_address") else {
        params.note_error("listen_address", "is missing");
        model.notes.extend(params.finish());
        return;
    };
    let kind = listen.text("trtype").unwrap_or_default().to_ascii_lowercase();
    let number = listen.number("trsvcid").unwrap_or(config::network::NVME_PORT.into());
    let address = model::parse_portal(listen.text("traddr").unwrap_or_default(), number);
    listen.note_known_keys(&[("adrfam", NotApplicable("the address says it"))]);
    params.note_known_keys(&[
        (
            "ana_state",
            Only("optimized", "path states are kept by the daemon: `blockwire path set VOLUME --state ...`"),
        ),
        ("secure_channel", Only("false", "TLS is not carried over")),
        ("sock_impl", NotApplicable("it is about SPDK's sockets")),
        ("tgt_name", NotApplicable("there is one target")),
    ]);
    let is_discovery = params.text("nqn").is_none_or(|nqn| nqn == name::DISCOVERY_NQN);
    match address {
        Ok(address) if kind == "tcp" && is_discovery => model.discovery_portals.push(address),
        Ok(address) if kind == "tcp" => with_subsystem(&params, model, |export| {
            export.portals.push(address);
            Vec::new()
        }),
        Ok(_) => listen.note_error("trtype", "only tcp can be served"),
        Err(why) => listen.note_error("traddr", &why),
    }
    model.notes.extend(listen.finish());
    model.notes.extend(params.finish());
}

fn add_host(params: ObjectSection<'_>, state: &ParseState, model: &mut ImportModel) {
    let nqn = params.text("host").unwrap_or_default().to_owned();
    let export = params.text("nqn").unwrap_or_default().to_owned();
    let mut host = Host::new(&nqn);
    host.nqns.push(nqn);
    if let Some(name) = params.text("dhchap_key") {
        match state.keys.get(name) {
            Some(key) => host.dhchap = Some(key.clone()),
            None => params.note_error("dhchap_key", "the secret is not here: the host gets no access"),
        }
    }
    if let Some(name) = params.text("dhchap_ctrlr_key") {
        match state.keys.get(name) {
            // Without a key of the host, nothing is proved in either direction.
            Some(key) => host.dhchap_controller = host.dhchap.is_some().then(|| key.clone()),
            None => params.note_error(
                "dhchap_ctrlr_key",
                "the secret is not here: set dhchap_controller_key_file in the [[host]], or the host cannot \
                 authenticate the subsystem",
            ),
        }
    }
    params.note_known_keys(&[(
        "psk",
        Only(
            "",
            "the key of TLS is not carried over, and the host gets no access: set tls = \"require\" in the \
                 [[portal]], and tls_key_file and the grant in a [[host]]",
        ),
    )]);
    if params.has_key("dhchap_key") == host.dhchap.is_some() && !params.has_key("psk") {
        host.grants.push(Grant {
            protocol: Protocol::Nvme,
            export,
            units: None,
            through: Vec::new(),
            read_only: false,
        });
        host.notes = params.finish();
        model.add_host(host);
    } else {
        model.notes.extend(params.finish());
    }
}

fn add_referral(params: ObjectSection<'_>, model: &mut ImportModel) {
    if let Some(address) = params.section("address") {
        let number = address.number("trsvcid").unwrap_or(config::network::NVME_DISCOVERY_PORT.into());
        match model::parse_portal(address.text("traddr").unwrap_or_default(), number) {
            Ok(portal) => model.referrals.push(portal),
            Err(why) => address.note_error("traddr", &why),
        }
        address.note_known_keys(&[
            ("adrfam", NotApplicable("the address says it")),
            ("trtype", Only("TCP", "only TCP can be served")),
        ]);
        model.notes.extend(address.finish());
    }
    params.note_known_keys(&[("secure_channel", Only("false", "TLS is not carried over"))]);
    model.notes.extend(params.finish());
}

/// Users of a group, each with its secrets.
fn read_group_users(section: &ObjectSection<'_>) -> Vec<(ChapUser, Vec<Note>)> {
    let mut users = Vec::new();
    for secret in section.sections("secrets") {
        let pair =
            |user: &str, own: &str| Some((secret.text(user)?.to_owned(), Secret::new(secret.text(own)?)));
        let (user, mutual) = (pair("user", "secret"), pair("muser", "msecret"));
        if user.is_none() {
            secret.note_error("user", "a user and a secret belong together");
        }
        let notes = secret.finish();
        if let Some(user) = user {
            users.push((ChapUser { user, mutual }, notes));
        }
    }
    users
}
