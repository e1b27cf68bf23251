//! `blockwire eval run`: an experiment on this machine, and its report.
//!
//! Invariant: however it ends, results are written once the first step is done, and everything that was
//! started is stopped ([`signals`](super::signals)).

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use eval::preset::{
    BARE_POLLING_SYSTEM, BARE_SYSTEM, ExperimentKind, HostCapacity, NetworkNamespaceError, Preset,
    RepeatableExperiment, Scale, StepTiming, SystemPairing, Wire, fit_plan,
};
use eval::record::Record;
use lab::place::SshMachine;
use lab::{CommandLocation, CoreAssignment, ProgressDisplay, RemoteMachines, RunDirectory, Runner};

use super::list::find_preset;
use super::plan_file::{FrozenPlans, PLAN_FILE};
use super::{provenance, records, signals};
use process::exit::{Exit, Failure};
use process::stdout::print;

/// `eval run`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  blockwire eval run quick
  blockwire eval run t6-100g-sweep --target blockwire,tgt \\
      --initiator blockwire,libiscsi
  blockwire eval run nvme-tcp-latency --scale 0.1 --wire loopback,1500,9000 \\
      --out /tmp/latency
  blockwire eval run demartek-oltp --target blockwire,tgt
      (as root; apt install mariadb-server-core mariadb-client-core sysbench;
      optionally postgresql)
  blockwire eval run t5-vm --scale 0.01
      (apt install qemu-system-x86 qemu-block-extra busybox-static fio kmod
      linux-image-cloud-amd64)
  blockwire eval run quick --url iscsi://10.0.0.1/iqn.2026-11.io.example:v/0
      (writes to it!)")]
pub struct RunArgs {
    /// The experiment (see `eval list`)
    pub preset: String,
    /// How much of the paper's own size: auto (what fits the machine and --time), smallest (whether it works at
    /// all), or a part of 1
    #[arg(long, value_name = "auto|smallest|PART", default_value = "auto", value_parser = parse_scale)]
    pub scale: Scale,
    /// Targets, separated by commas; those of the preset if none is named
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub target: Vec<String>,
    /// Initiators, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub initiator: Vec<String>,
    /// Volumes of an existing target, for target `url`; they are overwritten
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub url: Vec<String>,
    /// Directory for the report, the record and logs
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Total time with --scale auto, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(5..=604_800))]
    pub time: u64,
    /// Repeat a run exactly: the plan.json that it wrote. Loads, their order, seeds and processors are that run's
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scale", "time", "target", "initiator", "wire",
        "target_cores", "initiator_cores"])]
    pub plan: Option<PathBuf>,
    /// Links between the ends, instead of the preset's: loopback, 1500, 9000 (virtual links of that MTU)
    #[arg(long, value_name = "LINK", value_delimiter = ',', value_parser = parse_wire)]
    pub wire: Vec<Wire>,
    /// Processors of the target, as 0,1; default: half of the machine's
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub target_cores: Vec<usize>,
    /// Processors of the initiators
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub initiator_cores: Vec<usize>,
    /// The target's machine, as an ssh destination; this program is copied there for the run
    #[arg(long, value_name = "HOST", requires = "target_address")]
    pub target_host: Option<String>,
    /// The target's address for initiator machines
    #[arg(long, value_name = "ADDRESS")]
    pub target_address: Option<String>,
    /// Machines of initiators, as ssh destinations
    #[arg(long, value_name = "HOST", value_delimiter = ',', requires = "target_address")]
    pub initiator_host: Vec<String>,
    /// Replace the record and reports in the directory
    #[arg(long, requires = "out")]
    pub force: bool,
    /// ssh and its options. Do not put a password here: use a key, or sshpass -f FILE
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub ssh: String,
    /// Print the record as JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

fn parse_wire(text: &str) -> Result<Wire, Failure> {
    match (text, text.parse()) {
        ("loopback", _) => Ok(Wire::Loopback),
        (_, Ok(mtu)) if (576..=65_535).contains(&mtu) => Ok(Wire::Veth { mtu }),
        _ => Err(Failure::usage("loopback, or an MTU from 576 to 65535 is expected")),
    }
}

fn parse_scale(text: &str) -> Result<Scale, Failure> {
    if text == "auto" {
        return Ok(Scale::Auto);
    }
    if text == "smallest" {
        return Ok(Scale::Smallest);
    }
    match text.parse::<f64>() {
        Ok(part) if part > 0.0 && part <= 1.0 => Ok(Scale::Part(part)),
        _ => Err(Failure::usage("auto, smallest, or a number above 0 and at most 1 is expected")),
    }
}

/// Runs it.
pub fn run_preset(args: &RunArgs) -> Result<Exit, Failure> {
    let preset = find_preset(&args.preset)?;
    refuse_passwords(&args.url)?;
    refuse_ssh_password(&args.ssh)?;
    let plans = FrozenPlans::read_given(args.plan.as_deref(), preset)?;
    if let Some(dir) = &args.out
        && !args.force
    {
        records::refuse_existing_record(dir)?;
    }
    let ended = signals::install_handlers()?;
    for what in lab::leftovers::remove_leftovers() {
        let _ = writeln!(io::stderr(), "removed what a killed evaluation left: {what}");
    }
    let binary = std::env::current_exe()
        .map_err(|why| Failure::failed(format!("cannot find this program's executable: {why}")))?;
    let targets = lab::target::all_targets(&binary, &args.url);
    let initiators = lab::initiator::all_initiators(&binary);
    let mut room = lab::probe_host_capacity(&targets, &initiators, Duration::from_secs(args.time));
    room.wires.clone_from(&args.wire);
    let (dir, made) = match &args.out {
        Some(dir) => (dir.clone(), fs::create_dir_all(dir)),
        // Under a name that can be foretold: what is there already is another run's, or another user's.
        None => {
            let dir = lab::result_directory(Path::new("."), preset.id);
            (dir.clone(), fs::create_dir(dir))
        }
    };
    made.map_err(|why| {
        Failure::failed(format!("{}: {why}: give --out a directory that can be written", dir.display()))
    })?;
    let logs = dir.join("logs");
    fs::create_dir_all(&logs).map_err(|why| Failure::failed(format!("{}: {why}", logs.display())))?;
    let machines = prepare_machines(args, &binary)?;
    let mut live: Box<dyn ProgressDisplay> = match io::stderr().is_terminal() {
        true => Box::new(lab::TerminalProgress::default()),
        false => Box::new(lab::LineProgress),
    };
    let mut runner = Runner {
        targets: &targets,
        initiators: &initiators,
        cores: plans.cores().unwrap_or_else(|| choose_cores(args, room.cores, machines.machines.is_some())),
        machines: machines.machines.clone(),
        dir: logs,
        live: live.as_mut(),
    };
    let record = run_experiment(args, preset, &room, &plans, &mut runner);
    let plan = plans.plan_text(&runner.cores);
    // Machines are left before anybody is told.
    drop(machines);
    let exit = ended.exit_status();
    let mut record = record.map_err(|why| Failure::new(exit.unwrap_or(Exit::Failure), why))?;
    record.commands.insert(0, command_line(std::env::args_os()));
    record.notes.extend(possible_additions(&targets, &initiators));
    if let Some(machine) = record.environment.first_mut() {
        machine.facts.extend(provenance::build_facts());
    }
    // What cannot be written is shown all the same: it took its time.
    let kept = plan.map_or(Ok(()), |text| text.and_then(|text| write_text_file(&dir, PLAN_FILE, text)));
    let written = write_results(&dir, &record).and(kept);
    if args.json {
        let text = serde_json::to_string_pretty(&record).unwrap_or_default();
        print(&format!("{text}\n"))?;
    } else {
        print(&eval::report::render_markdown(&record))?;
        if written.is_ok() {
            print(&format!("\nReport: {}\n", dir.join("report.html").display()))?;
        }
    }
    written?;
    Ok(exit.unwrap_or(Exit::Success))
}

/// What was typed, as a shell takes it. It holds no secret: URLs with one are refused, and of what stands for ssh
/// only the program is told.
fn command_line(words: impl Iterator<Item = OsString>) -> String {
    let program = |text: &str| {
        let mut words = text.split_ascii_whitespace();
        let program = words.next().unwrap_or_default().to_owned();
        if words.next().is_some() { format!("{program} ...") } else { program }
    };
    let mut is_ssh = false;
    let told = words.map(|word| {
        let word = word.to_string_lossy().into_owned();
        let told = match word.strip_prefix("--ssh=") {
            _ if is_ssh => program(&word),
            Some(value) => format!("--ssh={}", program(value)),
            None => word.clone(),
        };
        is_ssh = !is_ssh && word == "--ssh";
        lab::place::shell_quoted(&told)
    });
    told.collect::<Vec<_>>().join(" ")
}

/// It would stand in the arguments of a process for as long as the run takes.
fn refuse_ssh_password(ssh: &str) -> Result<(), Failure> {
    let mut words = ssh.split_ascii_whitespace();
    let is_sshpass = words.any(|word| word.rsplit('/').next() == Some("sshpass"));
    // Its own options end at the program that it starts.
    let mut options = words.take_while(|word| word.starts_with('-'));
    if is_sshpass && options.any(|word| word.starts_with("-p")) {
        return Err(Failure::usage(
            "--ssh: every user of this machine would see the password; put it into a file that only you can read, \
             and write sshpass -f FILE",
        ));
    }
    Ok(())
}

/// A password would stand in the report's commands and in the load generator's arguments.
fn refuse_passwords(urls: &[String]) -> Result<(), Failure> {
    for text in urls {
        let url = client::Url::parse(text).map_err(Failure::usage)?;
        if url.user.as_ref().is_some_and(|user| user.secret.is_some()) {
            return Err(Failure::usage(format!(
                "--url {url}: its password would appear in the report; put it into a file and name the file: \
                 ?secret_file=PATH"
            )));
        }
    }
    Ok(())
}

/// Whichever runner the preset needs.
fn run_experiment(
    args: &RunArgs,
    preset: &'static Preset,
    room: &HostCapacity,
    plans: &FrozenPlans,
    runner: &mut Runner<'_>,
) -> Result<Record, lab::Failure> {
    let (targets, initiators) = chosen_systems(args, preset, room);
    let is_elsewhere = runner.machines.is_some();
    if !args.wire.is_empty() && (is_elsewhere || preset.kind != ExperimentKind::Block) {
        return Err(lab::Failure::new("--wire is for loads on volumes between ends on this machine"));
    }
    if is_elsewhere && preset.kind != ExperimentKind::Block {
        let why = format!("{} runs on this machine alone: omit --target-address", preset.id);
        return Err(lab::Failure::new(why));
    }
    // Other machines have the network that is there, and no other is made for them.
    let theirs = HostCapacity { namespaces: Err(NetworkNamespaceError::OtherMachines), ..room.clone() };
    let mut room = if is_elsewhere { theirs } else { room.clone() };
    // Of volumes that something else serves nobody knows where a responder would be beside them.
    if targets.iter().any(|name| name == "url") && args.target_host.is_none() {
        room.targets.retain(|name| name != BARE_SYSTEM);
    }
    let room = &room;
    match preset.kind {
        ExperimentKind::Block => {
            let plan_of = |timing: &StepTiming| {
                let room = HostCapacity { timing: timing.clone(), ..room.clone() };
                plans.given_or_make(|| fit_plan(preset, &room, args.scale, &targets, &initiators))
            };
            runner.run_plan(&plan_of)
        }
        ExperimentKind::MixedTraffic | ExperimentKind::Oltp { .. } | ExperimentKind::Machine => {
            let (record, (experiment, notes)) = match plans.given_experiment() {
                Some((experiment, notes)) => repeat_experiment(preset, room, (experiment, notes), runner)?,
                None => run_new_experiment(args, preset, room, (&targets, &initiators), runner)?,
            };
            plans.keep(preset, experiment, notes);
            Ok(record)
        }
    }
}

/// What an experiment measured, and what repeats it.
type Repeatable = (Record, (RepeatableExperiment, Vec<String>));

fn run_new_experiment(
    args: &RunArgs,
    preset: &'static Preset,
    room: &HostCapacity,
    (targets, initiators): (&[String], &[String]),
    runner: &mut Runner<'_>,
) -> Result<Repeatable, lab::Failure> {
    match preset.kind {
        ExperimentKind::Oltp { .. } => {
            lab::oltp::run_oltp(runner, preset, room, args.scale, targets, initiators)
        }
        ExperimentKind::Machine => lab::guest::run_guests(runner, preset, room, args.scale, targets),
        ExperimentKind::MixedTraffic | ExperimentKind::Block => {
            let mixed =
                eval::preset::mixed_traffic_plan(preset, room, args.scale).map_err(lab::Failure::new)?;
            let time = (args.scale == Scale::Auto).then_some(room.time);
            let record = runner.run_mixed_traffic(preset, &mixed, time)?;
            Ok((record, (RepeatableExperiment::MixedTraffic(mixed), Vec::new())))
        }
    }
}

fn repeat_experiment(
    preset: &'static Preset,
    room: &HostCapacity,
    (experiment, notes): (&RepeatableExperiment, &[String]),
    runner: &mut Runner<'_>,
) -> Result<Repeatable, lab::Failure> {
    match experiment {
        RepeatableExperiment::Databases(plan) => lab::oltp::repeat_oltp(runner, preset, room, plan, notes),
        RepeatableExperiment::Guests(plan) => lab::guest::repeat_guests(runner, preset, room, plan, notes),
        RepeatableExperiment::MixedTraffic(mixed) => {
            let record = runner.run_mixed_traffic(preset, mixed, None)?;
            Ok((record, (experiment.clone(), Vec::new())))
        }
    }
}

/// The systems that were named; else ours, and for three set-ups the first software target and initiator
/// that are here.
fn chosen_systems(args: &RunArgs, preset: &Preset, room: &HostCapacity) -> (Vec<String>, Vec<String>) {
    let ours = || vec!["blockwire".to_owned()];
    let chosen = |named: &[String], there: &[String]| match (named.is_empty(), preset.pairing) {
        (false, _) => named.to_vec(),
        // The ceiling is beside all set-ups, and is none.
        (true, SystemPairing::ThreeSetUps) => {
            let is_bare = |name: &&String| [BARE_SYSTEM, BARE_POLLING_SYSTEM].contains(&name.as_str());
            there.iter().filter(|name| !is_bare(name)).cloned().collect()
        }
        (true, SystemPairing::All) => ours(),
    };
    let mut targets = chosen(&args.target, &room.targets);
    if args.target.is_empty() && !args.url.is_empty() {
        targets = vec!["url".to_owned()];
    }
    (targets, chosen(&args.initiator, &room.initiators))
}

/// Other machines, with this program on them until they are left.
#[derive(Default)]
struct PreparedMachines {
    machines: Option<RemoteMachines>,
    /// Where the sockets of their connections lie.
    _scratch: Option<Arc<RunDirectory>>,
}

impl Drop for PreparedMachines {
    fn drop(&mut self) {
        let Some(machines) = &self.machines else { return };
        machines.target.iter().chain(&machines.initiators).for_each(CommandLocation::remove_installed);
    }
}

fn prepare_machines(args: &RunArgs, binary: &Path) -> Result<PreparedMachines, Failure> {
    let Some(address) = &args.target_address else { return Ok(PreparedMachines::default()) };
    let ssh: Vec<String> = args.ssh.split_ascii_whitespace().map(str::to_owned).collect();
    if ssh.is_empty() {
        return Err(Failure::usage("--ssh: a command is expected, for example \"ssh -F FILE\""));
    }
    let scratch = RunDirectory::current().map_err(Failure::failed)?;
    let mut prepared = PreparedMachines { machines: None, _scratch: Some(Arc::clone(&scratch)) };
    let machines =
        prepared.machines.insert(RemoteMachines { address: address.clone(), ..RemoteMachines::default() });
    let settle = |name: &String| -> Result<CommandLocation, Failure> {
        let failed = |why: lab::Failure| Failure::failed(format!("{name}: {why}"));
        let mut place = CommandLocation::Ssh(SshMachine::new(ssh.clone(), name, &scratch.socket_path("ssh")));
        place.install_binary(binary).map_err(failed)?;
        Ok(place)
    };
    if let Some(name) = &args.target_host {
        machines.target = Some(settle(name)?);
    }
    for name in &args.initiator_host {
        let place = settle(name)?;
        machines.initiators.push(place);
    }
    if machines.initiators.is_empty() {
        machines.initiators.push(CommandLocation::Here);
    }
    Ok(prepared)
}

/// Other machines have their processors for themselves.
fn choose_cores(args: &RunArgs, all: usize, is_elsewhere: bool) -> CoreAssignment {
    let mut cores = if is_elsewhere { CoreAssignment::default() } else { CoreAssignment::split_in_half(all) };
    if !args.target_cores.is_empty() {
        cores.target.clone_from(&args.target_cores);
    }
    if !args.initiator_cores.is_empty() {
        cores.initiator.clone_from(&args.initiator_cores);
    }
    cores
}

/// What more could be done if it were installed.
fn possible_additions(
    targets: &[Box<dyn lab::Target>],
    initiators: &[Box<dyn lab::Initiator>],
) -> Vec<String> {
    let line = |role: &str, name: &str, missing: Option<String>| {
        missing.map(|what| format!("not installed: {role} {name}: {what}"))
    };
    let here = CommandLocation::Here;
    let targets = targets.iter().filter_map(|it| line("target", it.name(), it.missing(&here)));
    let initiators = initiators.iter().filter_map(|it| line("initiator", it.name(), it.missing(&here)));
    targets.chain(initiators).collect()
}

fn write_text_file(dir: &Path, name: &str, text: String) -> Result<(), Failure> {
    let path = dir.join(name);
    fs::write(&path, text).map_err(|why| Failure::failed(format!("{}: {why}", path.display())))
}

/// The record, and reports made of it: the record first, of which they can be made again, and each whether or not
/// another can be written.
fn write_results(dir: &Path, record: &Record) -> Result<(), Failure> {
    let put = |name: &str, text: String| write_text_file(dir, name, text);
    let all = [
        record.to_text().map_err(Failure::failed).and_then(|text| put(records::RECORD_FILE, text)),
        put("report.html", eval::report::render_html(record)),
        put("report.md", eval::report::render_markdown(record)),
        put("report.csv", eval::report::render_csv(record)),
    ];
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_written_as_a_shell_takes_it() {
        let words = ["blockwire", "eval", "run", "--ssh", "ssh -F file", "--out", "it's"].map(OsString::from);
        assert_eq!(command_line(words.into_iter()), r"blockwire eval run --ssh 'ssh ...' --out 'it'\''s'");
        // It ended the program when all was measured and nothing written.
        let strange = std::os::unix::ffi::OsStringExt::from_vec(vec![b'/', 0xff]);
        assert!(
            command_line([strange].into_iter()).starts_with("'/"),
            "no name of a directory is in the way"
        );
    }

    #[test]
    fn a_password_for_ssh_is_never_written_down() {
        let told = |words: &[&str]| command_line(words.iter().map(OsString::from));
        for words in [
            &["eval", "run", "--ssh", "sshpass -p secret ssh", "--target-host", "a"][..],
            &["eval", "run", "--ssh=env SSHPASS=secret sshpass -e ssh", "--target-host", "a"],
            &["eval", "run", "--ssh", "--ssh=secret", "--target-host", "a"],
        ] {
            let told = told(words);
            assert!(!told.contains(" secret") && !told.contains("SSHPASS"), "{told}");
            assert!(told.ends_with("--target-host a"), "{told}");
        }
        assert_eq!(told(&["--ssh", "ssh"]), "--ssh ssh");
        for wrong in ["sshpass -p secret ssh", "/usr/bin/sshpass -v -psecret ssh", "nice sshpass -p x ssh"] {
            assert!(refuse_ssh_password(wrong).is_err(), "{wrong}");
        }
        for right in ["ssh -p 22", "sshpass -f file ssh -p 22", "sshpass -e ssh", ""] {
            assert!(refuse_ssh_password(right).is_ok(), "{right}");
        }
    }

    #[test]
    fn the_record_of_another_run_is_never_written_over() {
        let dir = tempfile::tempdir().unwrap();
        records::refuse_existing_record(dir.path()).unwrap();
        records::refuse_existing_record(&dir.path().join("not there")).unwrap();
        std::fs::write(dir.path().join("record.json"), "hours").unwrap();
        let why = records::refuse_existing_record(dir.path()).unwrap_err().to_string();
        assert!(why.contains("record.json") && why.contains("--force"), "{why}");
    }

    /// Hours of a run were lost with the first report that could not be written.
    #[test]
    fn a_report_that_cannot_be_written_never_costs_the_record() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("report.html")).unwrap();
        let record = Record { schema: eval::record::RECORD_SCHEMA_VERSION, ..Record::default() };
        let why = write_results(dir.path(), &record).unwrap_err();
        assert!(why.to_string().contains("report.html"), "{why}");
        assert!(
            ["record.json", "report.md", "report.csv"].iter().all(|name| dir.path().join(name).is_file())
        );
    }

    #[test]
    fn a_link_is_loopback_or_an_mtu() {
        assert_eq!(
            (parse_wire("loopback"), parse_wire("9000")),
            (Ok(Wire::Loopback), Ok(Wire::Veth { mtu: 9000 }))
        );
        assert!(parse_wire("0").is_err() && parse_wire("70000").is_err() && parse_wire("eth0").is_err());
    }

    #[test]
    fn a_scale_is_auto_or_a_part() {
        assert_eq!(parse_scale("auto"), Ok(Scale::Auto));
        assert_eq!(parse_scale("0.1"), Ok(Scale::Part(0.1)));
        for wrong in ["0", "1.5", "-1", "much", "NaN"] {
            assert!(parse_scale(wrong).is_err(), "{wrong}");
        }
    }
}
