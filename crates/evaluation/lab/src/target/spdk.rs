//! SPDK's targets: `iscsi_tgt` and `nvmf_tgt`, configured by JSON as they start.
//!
//! They poll: each of their cores is used whole for as long as they run, and they say how much of that was
//! idle ([`IdlePolling`]). Memory is taken without huge pages, which need no set-up of the machine.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eval::preset::{Protocol, VolumeMedium};
use serde_json::{Value, json};

use super::{IdlePolling, ServingTarget, Target, TargetSetup, free_port, wait_for_port};
use crate::Failure;
use crate::end_request;
use crate::place::CommandLocation;
use crate::spdk;

/// One of its targets.
#[derive(Debug)]
pub(super) struct SpdkTarget {
    name: &'static str,
    program: &'static str,
    protocol: [Protocol; 1],
}

/// Bytes of a block of its volumes: those of the other targets'.
const BLOCK_BYTES: u64 = 512;
/// MiB that it needs beside its volumes, for each core and for buffers.
const MEMORY_MIB: u64 = 1024;

impl SpdkTarget {
    pub(super) fn iscsi() -> SpdkTarget {
        SpdkTarget { name: "spdk-iscsi", program: "iscsi_tgt", protocol: [Protocol::Iscsi] }
    }

    pub(super) fn nvmf() -> SpdkTarget {
        SpdkTarget { name: "spdk-nvmf", program: "nvmf_tgt", protocol: [Protocol::NvmeTcp] }
    }
}

fn export_name(protocol: Protocol, number: u32) -> String {
    match protocol {
        Protocol::NvmeTcp => format!("nqn.2026-11.io.blockwire:spdk{number}"),
        _ => format!("iqn.2026-11.io.blockwire.eval:v{number}"),
    }
}

impl Target for SpdkTarget {
    fn name(&self) -> &'static str {
        self.name
    }

    fn protocols(&self) -> &[Protocol] {
        &self.protocol
    }

    fn supports_multi_lun(&self) -> bool {
        self.protocol == [Protocol::Iscsi]
    }

    fn missing(&self, place: &CommandLocation) -> Option<String> {
        spdk::missing_program(place, self.program)
    }

    fn version(&self, place: &CommandLocation) -> Option<String> {
        spdk::target_version(place, self.program)
    }

    fn start_duration(&self) -> Duration {
        Duration::from_secs(3)
    }

    fn start(&self, setup: &TargetSetup<'_>) -> Result<ServingTarget, Failure> {
        let port = free_port(setup.place)?;
        let dir = PathBuf::from(setup.place.scratch_path(setup.dir));
        let (socket, file) =
            (dir.join(format!("{}.sock", self.name)), dir.join(format!("{}.json", self.name)));
        let memory = match setup.medium {
            VolumeMedium::Ram => (u64::from(setup.volumes.0) * setup.volumes.1) >> 20,
            VolumeMedium::Null => 0,
            VolumeMedium::File => return Err(setup.unsupported_medium(self.name)),
        };
        let text = startup_configuration(setup, port);
        let configuration = format!("{text:#}");
        let text = text.to_string();
        let path = file.display().to_string();
        setup.place.run_with_input(&["sh", "-c", "cat >\"$1\"", "sh", &path], text.as_bytes())?;
        let mut words = spdk::program_command_prefix(self.program)?;
        let memory = (memory + MEMORY_MIB).to_string();
        words.extend(["--no-huge", "--no-pci", "--iova-mode", "va", "-s", &memory].map(str::to_owned));
        words.extend(["-m".to_owned(), spdk::core_mask(setup.cores)]);
        words.extend(["-r".to_owned(), socket.display().to_string(), "-c".to_owned(), path]);
        let mut process = setup.start_process(self.name, words)?;
        let listening = wait_for_port(setup.place, port, &mut process, Duration::from_secs(60));
        let volumes = (0..setup.volumes.0).map(|number| match setup.protocol {
            Protocol::NvmeTcp => format!("{}/1", export_name(setup.protocol, number)),
            _ => {
                let (target, lun) = setup.target_and_lun(number);
                format!("{}/{lun}", export_name(setup.protocol, target))
            }
        });
        let mut serving = ServingTarget::new(setup.protocol, port, volumes.collect());
        serving.is_polling = true;
        serving.commands.push(process.command_line().to_owned());
        serving.files.push((format!("{}.json", self.name), configuration));
        // What it traced stays in memory when it ends.
        let trace = |kind: &str| format!("/dev/shm/{kind}_trace.pid{}", process.pid());
        let removal = ["rm".to_owned(), "-f".to_owned(), trace("iscsi"), trace("nvmf")];
        serving.undo.push((setup.place.clone(), removal.to_vec()));
        serving.processes.push(process);
        listening?;
        if setup.place.is_local() {
            wait_for_volumes(setup, &socket)?;
            serving.polls = Some(Arc::new(ReactorPolling { socket }));
        } else {
            // Its socket is out of reach; what comes behind the first listener takes a moment.
            end_request::sleep_unless_ending(Duration::from_secs(2))?;
        }
        Ok(serving)
    }
}

/// It listens before it has all its volumes, and refuses hosts of those that are still to come.
fn wait_for_volumes(setup: &TargetSetup<'_>, socket: &Path) -> Result<(), Failure> {
    let until = Instant::now() + Duration::from_secs(60);
    let method = match setup.protocol {
        Protocol::NvmeTcp => "nvmf_get_subsystems",
        _ => "iscsi_get_target_nodes",
    };
    while call_rpc(socket, method).is_none_or(|said| connectable_volumes(setup, &said) < setup.volumes.0) {
        if Instant::now() > until {
            return Err(Failure::new(format!("{method}: not all volumes appeared within 60 s")));
        }
        end_request::sleep_unless_ending(Duration::from_millis(50))?;
    }
    Ok(())
}

/// How many volumes of ours hosts can connect to.
fn connectable_volumes(setup: &TargetSetup<'_>, said: &Value) -> u32 {
    let all = said.as_array().map(Vec::as_slice).unwrap_or_default();
    let has = |one: &&Value| match setup.protocol {
        Protocol::NvmeTcp => {
            let listens = one["listen_addresses"].as_array().map_or(0, Vec::len);
            let is_ours = one["nqn"].as_str().is_some_and(|nqn| nqn.contains(":spdk"));
            is_ours && listens >= setup.addresses.len()
        }
        _ => one["luns"].as_array().is_some_and(|luns| !luns.is_empty()),
    };
    u32::try_from(all.iter().filter(has).count()).unwrap_or(u32::MAX)
}

/// All that the target is told as it starts.
fn startup_configuration(setup: &TargetSetup<'_>, port: u16) -> Value {
    let (count, bytes) = setup.volumes;
    let call = |method: &str, params: Value| json!({ "method": method, "params": params });
    let create = if setup.medium == VolumeMedium::Null { "bdev_null_create" } else { "bdev_malloc_create" };
    let volume = |number: u32| json!({ "name": format!("v{number}"), "num_blocks": bytes / BLOCK_BYTES, "block_size": BLOCK_BYTES });
    let volumes: Vec<Value> = (0..count).map(|number| call(create, volume(number))).collect();
    let (subsystem, calls) = match setup.protocol {
        Protocol::NvmeTcp => ("nvmf", nvmf_calls(setup, port, call)),
        _ => ("iscsi", iscsi_calls(setup, port, call)),
    };
    json!({ "subsystems": [
        { "subsystem": "bdev", "config": volumes },
        { "subsystem": subsystem, "config": calls },
    ] })
}

fn nvmf_calls(setup: &TargetSetup<'_>, port: u16, call: impl Fn(&str, Value) -> Value) -> Vec<Value> {
    // Commands of up to 1 MiB, as the other targets take them; its default is 128 KiB.
    let transport = json!({
        "trtype": "TCP", "in_capsule_data_size": 8192, "max_queue_depth": 256, "max_io_size": 1 << 20,
    });
    let mut calls = vec![call("nvmf_create_transport", transport)];
    for number in 0..setup.volumes.0 {
        let nqn = export_name(Protocol::NvmeTcp, number);
        let subsystem =
            json!({ "nqn": nqn, "allow_any_host": true, "serial_number": format!("SPDK{number}") });
        let namespace = json!({ "nsid": 1, "bdev_name": format!("v{number}") });
        calls.push(call("nvmf_create_subsystem", subsystem));
        calls.push(call("nvmf_subsystem_add_ns", json!({ "nqn": nqn, "namespace": namespace })));
        // A host is let in at an address that the subsystem names, and at no other: not by all zeros.
        for address in setup.addresses {
            let listen = json!({
                "trtype": "TCP", "adrfam": "IPv4", "traddr": address, "trsvcid": port.to_string(),
            });
            calls.push(call("nvmf_subsystem_add_listener", json!({ "nqn": nqn, "listen_address": listen })));
        }
    }
    calls
}

fn iscsi_calls(setup: &TargetSetup<'_>, port: u16, call: impl Fn(&str, Value) -> Value) -> Vec<Value> {
    let portal = json!({ "host": setup.listen, "port": port.to_string() });
    let mut calls = vec![
        call("iscsi_create_portal_group", json!({ "tag": 1, "portals": [portal] })),
        call("iscsi_create_initiator_group", json!({ "tag": 1, "initiators": ["ANY"], "netmasks": ["ANY"] })),
    ];
    let places: Vec<(u32, u32)> = (0..setup.volumes.0).map(|number| setup.target_and_lun(number)).collect();
    for target in 0..=places.last().map_or(0, |place| place.0) {
        let luns = (0u32..).zip(&places).filter(|(_, place)| place.0 == target);
        let luns = luns.map(|(number, (_, lun))| json!({ "bdev_name": format!("v{number}"), "lun_id": lun }));
        let node = json!({
            "name": export_name(Protocol::Iscsi, target), "alias_name": format!("v{target}"),
            "pg_ig_maps": [{ "pg_tag": 1, "ig_tag": 1 }],
            "luns": luns.collect::<Vec<_>>(),
            "queue_depth": 64, "disable_chap": true,
        });
        calls.push(call("iscsi_create_target_node", node));
    }
    calls
}

/// Its reactors, asked over its control socket.
#[derive(Debug)]
struct ReactorPolling {
    socket: PathBuf,
}

impl IdlePolling for ReactorPolling {
    fn idle_seconds(&self) -> Option<f64> {
        idle_poll_seconds(&call_rpc(&self.socket, "framework_get_reactors")?)
    }
}

/// Seconds in which all reactors together found nothing to do.
fn idle_poll_seconds(result: &Value) -> Option<f64> {
    let rate = result.get("tick_rate")?.as_f64().filter(|rate| *rate > 0.0)?;
    let reactors = result.get("reactors")?.as_array()?;
    let idle = |reactor: &Value| reactor.get("idle")?.as_f64();
    Some(reactors.iter().map(idle).sum::<Option<f64>>()? / rate)
}

/// The result of a call without parameters (JSON-RPC 2.0).
fn call_rpc(socket: &Path, method: &str) -> Option<Value> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method });
    stream.write_all(request.to_string().as_bytes()).ok()?;
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    // An answer has no mark at its end: it is whole when it can be read.
    loop {
        let came = stream.read(&mut part).ok().filter(|came| *came > 0)?;
        text.extend(part.iter().take(came));
        if let Ok(answer) = serde_json::from_slice::<Value>(&text) {
            return answer.get("result").cloned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(addresses: &[String], protocol: Protocol, medium: VolumeMedium) -> TargetSetup<'_> {
        TargetSetup { listen: "0.0.0.0", addresses, ..TargetSetup::example(protocol, medium) }
    }

    #[test]
    fn the_configuration_names_all_volumes_and_the_port() {
        let addresses = ["10.77.0.1", "10.77.1.1"].map(str::to_owned);
        let all = startup_configuration(&setup(&addresses, Protocol::NvmeTcp, VolumeMedium::Ram), 4420);
        assert_eq!(all["subsystems"][0]["config"][1]["params"]["num_blocks"], json!(131_072));
        // Each subsystem listens where each initiator machine connects.
        let calls = all["subsystems"][1]["config"].as_array().unwrap();
        let listens: Vec<&Value> =
            calls.iter().map(|call| &call["params"]["listen_address"]).filter(|it| it.is_object()).collect();
        let at: Vec<&str> = listens.iter().filter_map(|it| it["traddr"].as_str()).collect();
        assert_eq!(at, ["10.77.0.1", "10.77.1.1", "10.77.0.1", "10.77.1.1"]);
        assert!(listens.iter().all(|it| it["trsvcid"] == json!("4420")));
        let all = startup_configuration(&setup(&addresses, Protocol::Iscsi, VolumeMedium::Null), 3260);
        assert_eq!(all["subsystems"][0]["config"][0]["method"], json!("bdev_null_create"));
        assert_eq!(all["subsystems"][1]["config"][0]["params"]["portals"][0]["port"], json!("3260"));
        assert_eq!(all["subsystems"][1]["config"][3]["params"]["luns"][0]["bdev_name"], json!("v1"));
    }

    /// Others of the target, as that of discovery, do not count, nor do those without all listeners.
    #[test]
    fn volumes_are_ready_when_hosts_can_connect() {
        let addresses = ["10.77.0.1", "10.77.1.1"].map(str::to_owned);
        let setup = setup(&addresses, Protocol::NvmeTcp, VolumeMedium::Ram);
        let one = |nqn: &str, count: usize| json!({ "nqn": nqn, "listen_addresses": vec![json!({}); count] });
        let nqn = |number| export_name(Protocol::NvmeTcp, number);
        let discovery = one("nqn.2014-08.org.nvmexpress.discovery", 2);
        assert_eq!(connectable_volumes(&setup, &json!([discovery, one(&nqn(0), 2), one(&nqn(1), 1)])), 1);
        assert_eq!(connectable_volumes(&setup, &json!([discovery, one(&nqn(0), 2), one(&nqn(1), 2)])), 2);
        assert_eq!(connectable_volumes(&setup, &Value::Null), 0);
    }

    #[test]
    fn idle_time_is_that_of_all_reactors() {
        let said = json!({ "tick_rate": 2_000_000_000_u64, "reactors": [
            { "lcore": 0, "busy": 9_000_000_000_u64, "idle": 1_000_000_000_u64 },
            { "lcore": 1, "busy": 0, "idle": 4_000_000_000_u64 },
        ] });
        assert_eq!(idle_poll_seconds(&said), Some(2.5));
        assert_eq!(idle_poll_seconds(&json!({ "reactors": [] })), None);
        let one_told = json!({ "tick_rate": 1, "reactors": [{ "lcore": 0, "idle": 1 }, { "lcore": 1 }] });
        assert_eq!(idle_poll_seconds(&one_told), None, "what one does not tell is not none");
    }
}
