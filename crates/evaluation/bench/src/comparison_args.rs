//! The environment of a comparison: its network, and what is needed to repeat it.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::{Value, json};

use crate::servers::{BenchEnvironment, VOLUME_MIB};
use crate::{system, usage};

/// What every comparison is told.
#[derive(clap::Args, Clone, Debug)]
pub struct ComparisonArgs {
    /// The program: the daemon, and the client where one is compared.
    #[arg(long, default_value = "target/release/blockwire")]
    pub blockwire: PathBuf,
    /// Rounds of each load.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: u32,
    /// Congestion control of all connections, in a network of its own (needs root); without it the
    /// system's default.
    #[arg(long)]
    pub congestion: Option<String>,
    /// Core of the servers.
    #[arg(long, default_value_t = 0)]
    pub server_core: usize,
    /// Core of the clients.
    #[arg(long, default_value_t = 1)]
    pub client_core: usize,
    /// Writes all figures here.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl ComparisonArgs {
    /// Enters the network that was asked for, tells the environment and gives it, and says where things are.
    pub fn prepare_environment(
        &self,
        scratch: &Path,
        spdk: Option<&Path>,
        versions: &[(&str, String)],
    ) -> io::Result<(BenchEnvironment, Value)> {
        if let Some(name) = &self.congestion {
            enter_private_network(name)?;
        }
        let own = std::env::current_exe()?;
        let places = BenchEnvironment {
            programs: own.parent().map(PathBuf::from).unwrap_or_default(),
            blockwire: self.blockwire.clone(),
            scratch: scratch.to_owned(),
            spdk: spdk.map(Path::to_owned),
            server_core: self.server_core,
            client_core: self.client_core,
        };
        let environment = self.describe(versions);
        for (key, value) in environment.as_object().into_iter().flatten() {
            println!("{key:20} {}", value.as_str().unwrap_or_default());
        }
        Ok((places, environment))
    }

    /// The numbers of the rounds, told as each begins.
    pub fn announced_rounds(&self) -> impl Iterator<Item = u32> {
        let rounds = self.rounds;
        (1..=rounds).inspect(move |round| eprintln!("round {round} of {rounds}"))
    }

    /// Tells the load that the machine had at the end, and writes all figures where they are wanted.
    pub fn finish_and_write(&self, all: &Value) -> io::Result<()> {
        println!("\nload average at the end: {}", usage::read_first_line("/proc/loadavg"));
        self.json.as_ref().map_or(Ok(()), |path| fs::write(path, format!("{all:#}\n")))
    }

    /// The machine, the cores of server and client, the number of rounds and their seconds, and the
    /// versions of what is compared.
    fn describe(&self, versions: &[(&str, String)]) -> Value {
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor =
            processor.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
        let mut all = json!({
            "kernel": usage::read_first_line("/proc/sys/kernel/osrelease"),
            "processor": processor.trim_start_matches([' ', '\t', ':']),
            "cores": format!("server {}, client {}", self.server_core, self.client_core),
            "congestion control": usage::read_first_line("/proc/sys/net/ipv4/tcp_congestion_control"),
            "load average": usage::read_first_line("/proc/loadavg"),
            "volumes": format!("{VOLUME_MIB} MiB in memory, written once from end to end"),
            "rounds": format!("{} of {} s, interleaved, medians", self.rounds, self.seconds),
        });
        if let Some(all) = all.as_object_mut() {
            all.extend(versions.iter().map(|(name, version)| ((*name).to_owned(), json!(version))));
        }
        all
    }
}

/// Runs a comparison with a directory of its own, which is gone afterwards.
pub fn run_comparison(name: &str, comparison: impl FnOnce(&Path) -> io::Result<()>) -> ExitCode {
    let result = create_private_dir(&std::env::temp_dir()).and_then(|scratch| {
        let result = comparison(&scratch);
        // Made just now, by us alone: what is in it is ours.
        fs::remove_dir_all(&scratch).ok();
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Makes a directory that nobody else may enter, under a name that nobody can foretell: servers run as root, and
/// the directory that holds it is everybody's.
fn create_private_dir(parent: &Path) -> io::Result<PathBuf> {
    let mut random = [0; 8];
    fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    let path = parent.join(format!("blockwire-bench-{:016x}", u64::from_ne_bytes(random)));
    fs::DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

/// A network with nothing but loopback, where the default congestion control is `name`.
fn enter_private_network(name: &str) -> io::Result<()> {
    system::unshare_network()?;
    if !Command::new("ip").args(["link", "set", "lo", "up"]).status()?.success() {
        return Err(io::Error::other("loopback does not come up"));
    }
    fs::write("/proc/sys/net/ipv4/tcp_congestion_control", name)
}

/// The first line that a program says to an argument.
pub fn first_output_line(program: &Path, arg: &str) -> String {
    let output = Command::new(program).arg(arg).output().ok();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("not to be had").to_owned()
}

/// The version of SPDK that was built there.
pub fn spdk_version(built: &Path) -> String {
    fs::read_to_string(built.join("VERSION")).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn names_that_can_be_foretold_are_never_used() {
        let parent = create_private_dir(&std::env::temp_dir()).unwrap();
        let (one, two) = (create_private_dir(&parent).unwrap(), create_private_dir(&parent).unwrap());
        let mode = fs::metadata(&one).unwrap().permissions().mode() & 0o7777;
        fs::remove_dir_all(&parent).unwrap();
        assert!(one != two && mode == 0o700, "{mode:o}");
        let name = one.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(!name.contains(&format!("-{}", std::process::id())), "{name}");
    }
}
