//! `blockwire info`: the properties of a remote volume.

use std::fmt::Write;
use std::time::Duration;

use clap::Args;
use client::{PathState, ReservationOp, Settings};
use serde_json::Value;

use super::{create_initiator, json_value, print};
use config::size::format_human;
use control::secret_url::SecretUrl;
use process::exit::{Exit, Failure};
use reports::{PathReport, RemoteReservation, RemoteReservationReport, RemoteVolumeReport};

/// How long paths may take to say what the volume is like.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// `info`
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// The volume; several URLs joined by commas are its paths
    pub url: SecretUrl,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Shows it.
pub fn info(args: &InfoArgs) -> Result<Exit, Failure> {
    let mut initiator = create_initiator(Settings { open_timeout: OPEN_TIMEOUT, ..Settings::default() })?;
    let volume = initiator.open(&args.url)?;
    // The other paths come up in their own time; a second shows what they come to.
    let until = std::time::Instant::now() + Duration::from_secs(1);
    while initiator.paths(volume).iter().any(|path| path.state == PathState::Connecting) {
        let Some(left) = until.checked_duration_since(std::time::Instant::now()) else { break };
        initiator.turn(Some(left));
    }
    // What no path serves would be asked for in silence until the time-out of operations.
    let served = initiator.check_served(volume);
    let claims = match &served {
        Ok(()) => initiator.run_reservation_op(volume, ReservationOp::Report),
        Err(why) => Err(why.clone()),
    };
    let (geometry, info) = (initiator.geometry(volume), initiator.info(volume));
    let (Some(geometry), Some(info)) = (geometry, info) else {
        return Err(Failure::failed("the volume is closed"));
    };
    let paths = initiator.paths(volume);
    let reservation = match &claims {
        Ok(Some(claims)) => Some(RemoteReservation::Known(RemoteReservationReport::of(claims))),
        Ok(None) => None,
        Err(why) => Some(RemoteReservation::Unknown { why: why.message.clone() }),
    };
    let facts = json_value(&RemoteVolumeReport {
        uuid: info.uuid.map(|uuid| uuid.to_string()),
        product: info.product.clone(),
        serial: info.serial.clone(),
        size_bytes: geometry.capacity_bytes(),
        block_bytes: geometry.logical,
        physical_bytes: geometry.physical,
        max_io_bytes: geometry.max_io,
        thin: geometry.thin,
        write_cache: geometry.write_cache,
        deallocated_reads_zero: geometry.dealloc_reads_zero,
        compare_and_write_blocks: geometry.caw_max,
        atomic_blocks: geometry.atomic,
        read_only: initiator.is_read_only(volume),
        reservation,
        paths: paths.iter().map(PathReport::of).collect(),
    });
    let ended = initiator.close(volume);
    print(&if args.json { format!("{facts:#}\n") } else { info_card(&facts) })?;
    served?;
    ended?;
    Ok(Exit::Success)
}

/// The same for people.
fn info_card(facts: &Value) -> String {
    let mut text = String::new();
    let word = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let bytes = facts["size_bytes"].as_u64().unwrap_or_default();
    let mut lines: Vec<(String, String)> = Vec::new();
    let mut line = |name: &str, value: String| lines.push((name.to_owned(), value));
    line("size", format!("{} ({bytes} bytes)", format_human(bytes)));
    for (name, key) in [
        ("uuid", "uuid"),
        ("product", "product"),
        ("serial", "serial"),
        ("block, bytes", "block_bytes"),
        ("physical block, bytes", "physical_bytes"),
        ("longest command, bytes", "max_io_bytes"),
        ("thin", "thin"),
        ("write cache", "write_cache"),
        ("deallocated reads zero", "deallocated_reads_zero"),
        ("compare and write, blocks", "compare_and_write_blocks"),
        ("read-only", "read_only"),
    ] {
        line(name, word(&facts[key]));
    }
    let reservation = &facts["reservation"];
    line(
        "reservation",
        match (&reservation["why"], &reservation["kind"]) {
            (Value::String(why), _) => why.clone(),
            (_, Value::String(kind)) => kind.clone(),
            _ => "none".to_owned(),
        },
    );
    for registration in reservation["registrants"].as_array().into_iter().flatten() {
        let holds = if registration["holder"] == true { ", holds it" } else { "" };
        line(
            "  registered",
            format!("{} {}{holds}", word(&registration["key"]), word(&registration["name"])),
        );
    }
    for path in facts["paths"].as_array().into_iter().flatten() {
        line(
            "path",
            format!("{}, {}, {}", word(&path["protocol"]), word(&path["state"]), word(&path["access"])),
        );
        if let Value::String(problem) = &path["problem"] {
            line("  problem", problem.clone());
        }
        for (name, value) in path["negotiated"].as_object().into_iter().flatten() {
            line(&format!("  {name}"), word(value));
        }
    }
    let width = lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, value) in lines {
        let _ = writeln!(text, "{name:<width$}  {value}");
    }
    text
}
