//! Command-line arguments of a start.

use std::path::PathBuf;

use clap::Args;

use config::{
    name::VolumeName,
    network,
    plan::IoEngine,
    spec::{self, Spec, SpecError},
};
use process::log::LogFormat;

/// Options of `serve`.
#[derive(Clone, Debug, Default, Args)]
pub struct ServeArgs {
    /// Configuration file [default: /etc/blockwire/blockwire.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check this configuration file and say what it comes to; nothing is opened or served
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "chiscsi"])]
    pub check: Option<PathBuf>,
    /// Read a chiscsi.conf of Chelsio's iSCSI target instead of a configuration file
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub chiscsi: Option<PathBuf>,
    /// Place connections by a Chelsio offload policy
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// A volume to serve; may be repeated
    #[arg(long = "volume", value_name = "NAME=SPEC", value_parser = parse_served_spec)]
    pub volumes: Vec<NamedSpec>,
    /// Address to serve iSCSI on, IP or IP:PORT; may be repeated [default, if no address is named: 127.0.0.1:3260]
    #[arg(long, value_name = "ADDR", value_parser = network::listen_address)]
    pub iscsi: Vec<std::net::SocketAddr>,
    /// Address to serve NVMe/TCP on, discovery included; may be repeated [likewise: 127.0.0.1:4420]
    #[arg(long, value_name = "ADDR", value_parser = network::parse_nvme_address)]
    pub nvme: Vec<std::net::SocketAddr>,
    /// Address to serve only NVMe/TCP discovery on; may be repeated [likewise: 127.0.0.1:8009]
    #[arg(long, value_name = "ADDR", value_parser = network::parse_discovery_address)]
    pub nvme_discovery: Vec<std::net::SocketAddr>,
    /// Serve a live page at http://ADDR/ and metrics for Prometheus at http://ADDR/metrics, IP or IP:PORT [port 9810 unless given]
    #[arg(long, value_name = "ADDR", value_parser = network::parse_http_address)]
    pub http: Option<std::net::SocketAddr>,
    /// Control socket [default: /run/blockwire/control.sock]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// State directory: identities, volumes made at run time, reservations [default: /var/lib/blockwire]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// This machine's name inside default target and subsystem names
    #[arg(long, value_name = "ID", value_parser = VolumeName::parse)]
    pub node: Option<VolumeName>,
    /// Cores to run on, for example 0-3,6 [default: all]
    #[arg(long, value_name = "LIST", value_parser = parse_cores)]
    pub cores: Option<CoreSet>,
    /// I/O interface; auto uses io_uring if the kernel allows it
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pub io: IoEngine,
    /// Form of log lines: text or json on stderr, or journald, with fields for journalctl [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Allow listeners that other machines can reach without authentication
    #[arg(long)]
    pub allow_anonymous: bool,
    /// Restrict this process by landlock and seccomp to what the configuration names, as [sandbox] does
    #[arg(long, conflicts_with = "no_sandbox")]
    pub sandbox: bool,
    /// Have no sandbox, even if the configuration has [sandbox]
    #[arg(long)]
    pub no_sandbox: bool,
}

/// `NAME=SPEC`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSpec {
    /// The name.
    pub name: VolumeName,
    /// The volume.
    pub spec: Spec,
    /// `thin=off` of memory was left out.
    pub left_out_thin: bool,
}

/// Reads one.
///
/// # Errors
/// What is wrong with it.
pub fn parse_named_spec(text: &str) -> Result<NamedSpec, String> {
    parse_named_with(text, |spec| Ok((spec::parse(spec)?, false)))
}

/// One that may stand in a start script for long.
fn parse_served_spec(text: &str) -> Result<NamedSpec, String> {
    parse_named_with(text, spec::parse_legacy)
}

fn parse_named_with(
    text: &str,
    parse: fn(&str) -> Result<(Spec, bool), SpecError>,
) -> Result<NamedSpec, String> {
    let (name, spec) = text.split_once('=').ok_or("write NAME=SPEC, for example demo=ram:64M")?;
    let name = VolumeName::parse(name).map_err(|why| format!("the name {why}"))?;
    let (spec, left_out_thin) = parse(spec).map_err(|why| why.to_string())?;
    Ok(NamedSpec { name, spec, left_out_thin })
}

/// A set of cores, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreSet(pub Vec<usize>);

/// Highest core number; CPU sets of the system are this long.
const CORE_MAX: usize = 1023;

fn parse_cores(text: &str) -> Result<CoreSet, String> {
    let malformed = || format!("\"{text}\" is not a list of cores such as 0-3,6");
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.parse::<usize>().ok().filter(|n| *n <= CORE_MAX);
        let (first, last) = number(first).zip(number(last)).ok_or_else(malformed)?;
        if first > last {
            return Err(malformed());
        }
        list.extend(first..=last);
    }
    list.sort_unstable();
    list.dedup();
    Ok(CoreSet(list))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_lists() {
        assert_eq!(parse_cores("0-3,6,2"), Ok(CoreSet(vec![0, 1, 2, 3, 6])));
        for text in ["", "3-1", "a", "1,", "-1", "0-99999", "1024"] {
            assert!(parse_cores(text).is_err(), "{text}");
        }
    }
}
