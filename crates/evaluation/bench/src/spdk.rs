//! SPDK for comparison: its programs, and its target's configuration.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// Block size of the volume in bytes: that of Blockwire's.
const BLOCK_BYTES: usize = 512;

/// A program of SPDK's, with the libraries that it was linked with. `make`: how it is started.
pub fn spdk_command(spdk: &Path, program: &str, make: impl FnOnce(PathBuf) -> Command) -> Command {
    let mut command = make(spdk.join("build/bin").join(program));
    command.env("LD_LIBRARY_PATH", spdk.join("build/lib"));
    command
}

/// A target with a volume in memory, of so many MiB, on a port of the loopback.
pub fn target_configuration(port: u16, subsystem: &str, volume_mib: usize) -> Value {
    let call = |method: &str, params: Value| json!({ "method": method, "params": params });
    let volume =
        json!({ "name": "bench", "num_blocks": (volume_mib << 20) / BLOCK_BYTES, "block_size": BLOCK_BYTES });
    let listen = json!({
        "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port.to_string(),
    });
    let subsystems = [
        (
            "nvmf_create_transport",
            json!({ "trtype": "TCP", "in_capsule_data_size": 8192, "max_queue_depth": 256 }),
        ),
        (
            "nvmf_create_subsystem",
            json!({ "nqn": subsystem, "allow_any_host": true, "serial_number": "SPDK" }),
        ),
        (
            "nvmf_subsystem_add_ns",
            json!({ "nqn": subsystem, "namespace": { "nsid": 1, "bdev_name": "bench" } }),
        ),
        ("nvmf_subsystem_add_listener", json!({ "nqn": subsystem, "listen_address": listen })),
    ];
    json!({ "subsystems": [
        { "subsystem": "bdev", "config": [call("bdev_malloc_create", volume)] },
        { "subsystem": "nvmf", "config": subsystems.map(|(method, params)| call(method, params)) },
    ] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_the_port_and_the_size() {
        let all = target_configuration(4420, "nqn.x", 256);
        let calls = &all["subsystems"];
        assert_eq!(calls[0]["config"][0]["params"]["num_blocks"], json!(524_288));
        assert_eq!(calls[1]["config"][3]["params"]["listen_address"]["trsvcid"], json!("4420"));
    }
}
