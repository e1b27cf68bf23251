//! The database experiment: servers on striped remote volumes, users who do a fixed number of transactions.
//!
//! Every database has its own volumes, file system, server and users, as each initiator machine of the paper
//! had. File system caches are dropped every second while users work. Invariant: systems that are compared do
//! the same number of transactions, from the same seed in a round, on newly made tables; a run that was ended early is a
//! separate point, and says so.

mod cache_dropper;
mod database;
mod environment;
mod load;
mod repeat;
mod scale;
mod timing;
mod users;

use std::time::{Duration, Instant};

use eval::Histogram;
use eval::preset::{HostCapacity, Preset, Protocol, RepeatableExperiment, Scale, Wire};
use eval::record::{EndUsage, Point, Record, Run};

pub use self::repeat::repeat_oltp;
use crate::Failure;
use crate::allowance::TimeBudget;
use crate::block_devices::{self, DeviceIoCounts};
use crate::end_request;
use crate::environment::machine_facts;
use crate::place::CommandLocation;
use crate::process::Process;
use crate::process_watch::ProcessWatch;
use crate::progress::StepProgress;
use crate::recording;
use crate::runner::Runner;
use crate::turn_order::turn_order;
use cache_dropper::CacheDropper;
use database::DatabaseEngine;
use environment::{DatabaseStack, OltpEnvironment};
use load::{RunLimit, UsersResult};
use scale::OltpSize;
use users::UserProgram;

/// What repeats a run, and what it tells of its size.
pub type RepeatableRun = (RepeatableExperiment, Vec<String>);

/// The initiator that makes block devices of volumes.
const OWN_INITIATOR: &str = "blockwire";
/// What users' choices follow from in the first round; in each further one it is one more.
const SEED_BASE: u32 = 7;

/// What is missing for the experiment as a whole, and how it is installed.
pub fn missing_prerequisite() -> Option<String> {
    if let Some(why) = block_devices::missing_prerequisite() {
        return Some(why);
    }
    if let Some(why) = UserProgram::chosen().missing() {
        return Some(why);
    }
    let lacking: Vec<String> = DatabaseEngine::ALL.into_iter().filter_map(DatabaseEngine::missing).collect();
    (lacking.len() == DatabaseEngine::ALL.len()).then(|| lacking.join("; or "))
}

/// Runs the experiment: every target with every database server that is here. Gives what it takes to repeat it, too.
///
/// # Errors
/// If nothing could be measured: why, and what to install.
pub fn run_oltp(
    runner: &mut Runner<'_>,
    preset: &'static Preset,
    room: &HostCapacity,
    scale: Scale,
    targets: &[String],
    initiators: &[String],
) -> Result<(Record, RepeatableRun), Failure> {
    let program = UserProgram::chosen();
    check_prerequisites(preset)?;
    let mut notes = comparability_notes(&program);
    let engines = available_engines(&program, &mut notes);
    let pairs = system_pairs(runner, room, preset, targets, initiators, &engines, &mut notes)?;
    let mut size_notes = Vec::new();
    let size = scale::scale_to_host(preset, room, scale, (program, pairs.len()), &mut size_notes)?;
    let wire = choose_wire(preset, room, &mut size_notes);
    measure_all(runner, preset, DatabaseRun { pairs, size, wire, jobs: Vec::new() }, notes, size_notes)
}

fn check_prerequisites(preset: &Preset) -> Result<(), Failure> {
    missing_prerequisite()
        .map_or(Ok(()), |why| Err(Failure::new(format!("{} cannot be run here: {why}", preset.id))))
}

/// What is run.
struct DatabaseRun {
    pairs: Vec<SystemPair>,
    size: OltpSize,
    wire: Wire,
    /// Transactions of each user, by database server, as far as they are known before.
    jobs: Vec<(DatabaseEngine, u64)>,
}

/// All rounds of a run; `size_notes` tell what is smaller than in the paper.
fn measure_all(
    runner: &mut Runner<'_>,
    preset: &'static Preset,
    run: DatabaseRun,
    mut notes: Vec<String>,
    size_notes: Vec<String>,
) -> Result<(Record, RepeatableRun), Failure> {
    let DatabaseRun { pairs, size, wire, jobs } = run;
    notes.extend(size_notes.iter().cloned());
    let mut record = recording::begin_record(preset, &notes);
    record.environment = vec![run_machine_facts(runner, &pairs, &size)];
    let mut progress = OltpProgress {
        allowance: TimeBudget::start(size.time),
        wire,
        rounds: size.rounds,
        jobs,
        pairs: pairs.len(),
        at: 0,
    };
    run_rounds(runner, &pairs, &size, &mut progress, &mut record);
    runner.live.finish();
    recording::finish_record(&mut record, progress.allowance.started_at());
    if record.points.is_empty() {
        return Err(Failure::new(format!("nothing could be measured:\n  {}", record.notes.join("\n  "))));
    }
    Ok((record, (progress.to_plan(&pairs, &size), size_notes)))
}

/// How the experiment goes.
struct OltpProgress {
    allowance: TimeBudget,
    wire: Wire,
    /// How many rounds are made.
    rounds: u32,
    /// Transactions of each user, by database server, as they were found out.
    jobs: Vec<(DatabaseEngine, u64)>,
    /// Pairs of systems in a round.
    pairs: usize,
    /// How many of all rounds were visited.
    at: usize,
}

/// All pairs in turn, round by round.
fn run_rounds(
    runner: &mut Runner<'_>,
    pairs: &[SystemPair],
    size: &OltpSize,
    progress: &mut OltpProgress,
    record: &mut Record,
) {
    let mut broken: Vec<usize> = Vec::new();
    let mut round_began = progress.allowance.elapsed();
    let named = |pair: &SystemPair| format!("{} on {}", pair.engine.name(), pair.target);
    // Pairs are in groups of one database server.
    let group =
        pairs.iter().filter(|pair| pairs.first().is_some_and(|first| first.engine == pair.engine)).count();
    while progress.at < pairs.len() * progress.rounds as usize {
        let (round, place) = (progress.at / pairs.len(), progress.at % pairs.len());
        let order = turn_order(pairs.len(), group, round);
        if place == 0 && round > 0 {
            if !progress.allowance.has_time_for_round(round_began) {
                let rounds = progress.rounds;
                record
                    .notes
                    .push(format!("{round} of {rounds} rounds were measured: the time limit was reached"));
                return;
            }
            round_began = progress.allowance.elapsed();
        }
        if !progress.allowance.has_time_for_one_more(progress.at) {
            let left = order.iter().skip(place).filter_map(|number| pairs.get(*number));
            let left: Vec<String> = left.map(named).collect();
            let left = left.join(", ");
            record
                .notes
                .push(format!("left out of round {} because the time limit was reached: {left}", round + 1));
            return;
        }
        let Some((number, pair)) = order.get(place).and_then(|at| Some((*at, pairs.get(*at)?))) else {
            return;
        };
        if !broken.contains(&number) {
            let moment = step_progress(pair, progress, size);
            runner.live.step_started(&moment);
            match measure_pair(runner, pair, size, progress, record) {
                Ok(point) => {
                    runner
                        .live
                        .step_finished(&moment, Ok(point.runs.first().map_or(0.0, eval::record::Run::iops)));
                    recording::add_runs(record, point);
                }
                Err(_) if end_request::is_ending() => {
                    let all = pairs.len() * progress.rounds as usize;
                    record.notes.push(format!("interrupted after {} of {all} runs", progress.at));
                    return;
                }
                Err(why) => {
                    runner.live.step_finished(&moment, Err(&why.to_string()));
                    record.notes.push(format!("{} was left out: {why}", moment.what));
                    broken.push(number);
                }
            }
        }
        progress.at += 1;
    }
}

/// A target and a database server.
#[derive(Clone, Debug)]
struct SystemPair {
    target: String,
    engine: DatabaseEngine,
}

/// What readers must know before they compare.
fn comparability_notes(program: &UserProgram) -> Vec<String> {
    let rest = [
        "The paper had separate machines and a 25 GbE adapter in each initiator. Here both ends, the databases \
         and their users share one machine, so the initiator's processor use is mostly that of the database.",
        "The paper's databases did not fit the memory of their servers. Here a server's own cache is a sixteenth of its \
         data, but 16 MiB at least and 1 GiB at most, and file system caches are dropped every second.",
        "I/Os, their bytes and their mean latency are those that the kernel counted on the initiator's block \
         devices, file system and journal included.",
    ];
    std::iter::once(program.note()).chain(rest.map(str::to_owned)).collect()
}

fn available_engines(program: &UserProgram, notes: &mut Vec<String>) -> Vec<DatabaseEngine> {
    let why_not =
        |engine: DatabaseEngine| engine.missing().or_else(|| program.refusal(engine).map(str::to_owned));
    let is_here = |engine: &DatabaseEngine| match why_not(*engine) {
        None => true,
        Some(why) => {
            notes.push(format!("{} was left out: {why}", engine.name()));
            false
        }
    };
    DatabaseEngine::ALL.into_iter().filter(is_here).collect()
}

fn system_pairs(
    runner: &Runner<'_>,
    room: &HostCapacity,
    preset: &Preset,
    targets: &[String],
    initiators: &[String],
    engines: &[DatabaseEngine],
    notes: &mut Vec<String>,
) -> Result<Vec<SystemPair>, Failure> {
    let speaks = |protocols: &[Protocol]| preset.protocols.iter().any(|wanted| protocols.contains(wanted));
    let others: Vec<&str> = runner
        .initiators
        .iter()
        .filter(|it| {
            it.name() != OWN_INITIATOR
                && initiators.iter().any(|name| name == it.name())
                && speaks(it.protocols())
        })
        .map(|it| it.name())
        .collect();
    if !others.is_empty() {
        notes.push(format!(
            "left out as initiators: {}: a database needs block devices, and only {OWN_INITIATOR} makes them here, so the \
             set-up with our target and a software initiator is not among these",
            others.join(", ")
        ));
    }
    let mut usable = Vec::new();
    for name in targets {
        let target = runner.find_target(name)?;
        if name == "url" {
            notes.push("target url was left out: the volumes of a database are made for it".to_owned());
        } else if !room.targets.contains(name) {
            notes.push(format!("target {name} is not installed here and was left out"));
        } else if !speaks(target.protocols()) {
            // A plain stream is no volume at all; who names another is told.
            let note = format!(
                "target {name} does not speak {}: left out",
                preset.protocols.first().map_or("what it is for", |protocol| protocol.name())
            );
            notes.extend((target.protocols() != [Protocol::Stream]).then_some(note));
        } else {
            usable.push(name);
        }
    }
    // Those that are compared come together: what there is no time for is another database.
    let all = engines.iter().flat_map(|engine| usable.iter().map(move |name| (*name, *engine)));
    let pairs: Vec<SystemPair> =
        all.map(|(name, engine)| SystemPair { target: name.clone(), engine }).collect();
    if pairs.is_empty() {
        return Err(Failure::new(format!(
            "none of the targets that were named can be used (here: {})",
            room.targets.join(", ")
        )));
    }
    Ok(pairs)
}

/// Virtual links as the preset wants them, or loopback.
fn choose_wire(preset: &Preset, room: &HostCapacity, notes: &mut Vec<String>) -> Wire {
    match &room.namespaces {
        Ok(()) => preset.wires.first().copied().unwrap_or(Wire::Loopback),
        Err(why) => {
            notes.push(format!("runs over loopback: network namespaces cannot be created here ({why})"));
            Wire::Loopback
        }
    }
}

fn run_machine_facts(runner: &Runner<'_>, pairs: &[SystemPair], size: &OltpSize) -> eval::record::Machine {
    let mut here = machine_facts(&CommandLocation::Here, "target and initiator");
    let mut fact = |name: String, value: Option<String>| {
        if let Some(value) = value
            && !here.facts.iter().any(|(known, _)| *known == name)
        {
            here.facts.push((name, value));
        }
    };
    for pair in pairs {
        let version =
            runner.find_target(&pair.target).ok().and_then(|target| target.version(&CommandLocation::Here));
        fact(format!("target {}", pair.target), version);
        fact(format!("database {}", pair.engine.name()), pair.engine.version());
    }
    let program = &size.program;
    fact(program.name().to_owned(), program.version());
    here
}

fn step_progress(pair: &SystemPair, progress: &OltpProgress, size: &OltpSize) -> StepProgress {
    let (at, all) = (progress.at, progress.pairs * progress.rounds as usize);
    let left = match (at, size.time) {
        (0, Some(time)) => time,
        (0, None) => Duration::ZERO,
        _ => progress.allowance.elapsed().div_f64(at as f64) * u32::try_from(all - at).unwrap_or(1),
    };
    StepProgress {
        step: (at + 1, all),
        what: format!("{} / {OWN_INITIATOR} (iscsi) {}", pair.target, pair.engine.name()),
        left,
        ..StepProgress::default()
    }
}

/// One pair of systems, from its start to its end.
fn measure_pair(
    runner: &mut Runner<'_>,
    pair: &SystemPair,
    size: &OltpSize,
    progress: &mut OltpProgress,
    record: &mut Record,
) -> Result<Point, Failure> {
    let entered = progress.allowance.elapsed();
    let stands = OltpEnvironment::start(
        runner,
        &pair.target,
        pair.engine,
        progress.wire,
        size,
        progress.allowance.remaining(),
    )?;
    stands.commands().iter().for_each(|command| recording::note_command(record, command));
    let note = stands.memory_note(size);
    record.notes.extend((!record.notes.contains(&note)).then_some(note));
    let round = u32::try_from(progress.at / progress.pairs).unwrap_or(u32::MAX);
    let seed = SEED_BASE.saturating_add(round);
    let warm = run_users(runner, &stands, size, (seed, size.program.warm_up(size)))?;
    let done: u64 = warm.told.iter().map(|told| told.transactions).sum();
    let (each, limit) =
        progress.job_limits(pair.engine, size, entered, done as f64 / warm.seconds.max(1e-3), record);
    let until = RunLimit::Transactions(each * u64::from(size.users), limit);
    let watches = (
        ProcessWatch::new(
            stands.testbed.link.target_place().clone(),
            stands.testbed.serving.pids(),
            &runner.cores.target,
        )
        .with_poll_source(stands.testbed.serving.polls.clone()),
        ProcessWatch::new(CommandLocation::Here, stands.initiator_pids(), &runner.cores.initiator),
    );
    let looks = (watches.0.sample_with_polling()?, watches.1.sample()?);
    let before = stands.io_counts()?;
    let mut dropper = CacheDropper::start();
    let worked = run_users(runner, &stands, size, (seed, until))?;
    if let Some(why) = dropper.stop() {
        let note = format!("file system caches were not dropped every second: {why}");
        record.notes.extend((!record.notes.contains(&note)).then_some(note));
    }
    let seen = (
        watches.0.usage_since(&looks.0, &watches.0.sample_with_polling()?).require_complete()?,
        watches.1.usage_since(&looks.1, &watches.1.sample()?).require_complete()?,
    );
    let counted = stands.io_counts()?.since(before);
    stands.check_healthy()?;
    let sides = (
        worked.scale_to_window(seen.0.seconds, seen.0.side),
        worked.scale_to_window(seen.1.seconds, seen.1.side),
    );
    let run = to_run_figures(&worked, counted, sides, (seen.0.retransmits, seen.0.packets));
    let seed = size.program.is_steered().then_some(u64::from(seed));
    let run = Run { round: Some(round), seed, ..run };
    run.check_figures().map_err(|why| Failure::new(format!("impossible figures: {why}")))?;
    let mut point = empty_point(pair, &stands, size, &worked, run);
    let wanted = each * u64::from(size.users * size.databases);
    match limit.filter(|limit| size.program.is_steered() && worked.is_cut_by_limit(*limit)) {
        Some(limit) => {
            let done = point.work.unwrap_or(0);
            record.notes.push(format!(
                "{} on {}, round {}, was ended at the time limit of {limit} s, with {done} of {wanted} transactions: \
                 it is a point of its own",
                pair.engine.name(),
                pair.target,
                round + 1
            ));
            point.labels.push(("ended early".to_owned(), format!("{done} of {wanted}")));
        }
        None => point.work = Some(wanted),
    }
    Ok(point)
}

impl OltpProgress {
    /// Transactions of each user on a database server, and after how many seconds the run is ended if they are
    /// not done by then. `entered`: what had passed when this run began to be started; `rate`: transactions
    /// that its users did in a second.
    fn job_limits(
        &mut self,
        engine: DatabaseEngine,
        size: &OltpSize,
        entered: Duration,
        rate: f64,
        record: &mut Record,
    ) -> (u64, Option<u64>) {
        let passed = self.allowance.elapsed();
        let starting = passed - entered;
        let left = self.allowance.granted().unwrap_or_default().saturating_sub(passed);
        let runs = |progress: &OltpProgress| progress.pairs * progress.rounds as usize - progress.at;
        let mut seconds = timing::work_seconds(left, starting, runs(self));
        let known = self.jobs.iter().find(|(known, _)| *known == engine).map(|(_, each)| *each);
        let each = size.transactions.or(known).unwrap_or_else(|| {
            let wanted = self.rounds;
            // Once the first round is over the others have been counted on.
            while seconds < timing::WORTHWHILE_SECONDS && self.rounds > 1 && self.at < self.pairs {
                self.rounds -= 1;
                seconds = timing::work_seconds(left, starting, runs(self));
            }
            if self.rounds < wanted {
                record.notes.push(format!("of {wanted} rounds there is time for {}", self.rounds));
            }
            let each = timing::transactions_per_user(size, rate, seconds);
            record.notes.push(format!(
                "the paper's users did 20,000 transactions each; those of {} do {each} each, for which there is time",
                engine.name()
            ));
            self.jobs.push((engine, each));
            each
        });
        let others = self.pairs - 1 - self.at % self.pairs;
        let one = match u32::try_from(self.at) {
            Ok(0) | Err(_) => starting + Duration::from_secs_f64(seconds),
            Ok(done) => entered / done,
        };
        (each, self.allowance.remaining().map(|left| timing::run_limit_seconds(left, others, one)))
    }
}

/// What all users did.
struct WorkResult {
    told: Vec<UsersResult>,
    /// From the first start to the last end.
    seconds: f64,
}

impl WorkResult {
    /// Whether the users of a database were ended by their limit.
    fn is_cut_by_limit(&self, limit: u64) -> bool {
        self.told.iter().any(|told| told.seconds >= limit as f64)
    }

    /// A side over the time of the figures.
    fn scale_to_window(&self, seconds: f64, side: EndUsage) -> EndUsage {
        let scale = if seconds > 0.0 { self.seconds / seconds } else { 1.0 };
        EndUsage { process: (side.process.0 * scale, side.process.1 * scale), ..side }
    }
}

/// Lets the users of all databases work at once.
fn run_users(
    runner: &Runner<'_>,
    stands: &OltpEnvironment,
    size: &OltpSize,
    (seed, until): (u32, RunLimit),
) -> Result<WorkResult, Failure> {
    let begun = Instant::now();
    let mut all: Vec<Process> = Vec::new();
    for (at, stand) in stands.all.iter().enumerate() {
        let words = size.program.run_command(&stands.script, &stand.database, size, (seed, until));
        all.push(environment::start_database_client(runner, &format!("users-{at}"), words)?);
    }
    // A target that stands still for long is to be seen as that, not waited for without end.
    let patience = Duration::from_secs(match until {
        RunLimit::Seconds(seconds) | RunLimit::Transactions(_, Some(seconds)) => {
            // Those that do not end when their time is over may take longer than was thought.
            seconds * if size.program.is_steered() { 1 } else { 2 } + 120
        }
        RunLimit::Transactions(_, None) => 24 * 3600,
    });
    let mut told = Vec::new();
    for process in &mut all {
        let said = process.wait_for_output(patience)?;
        let done = size.program.parse_output(&said, size, until);
        told.push(done.map_err(|why| process.failure_with_output(why))?);
    }
    // Starting users and reading what they say takes time that is not theirs.
    let longest = told.iter().map(|told| told.seconds).fold(0.0, f64::max);
    let seconds =
        if stands.all.len() == 1 { longest } else { begun.elapsed().as_secs_f64().min(longest * 1.1) };
    Ok(WorkResult { told, seconds })
}

fn to_run_figures(
    worked: &WorkResult,
    counted: DeviceIoCounts,
    sides: (EndUsage, EndUsage),
    net: (Option<u64>, Option<u64>),
) -> Run {
    let mut latency = Histogram::default();
    worked.told.iter().for_each(|told| latency.merge(&told.latency));
    Run {
        round: None,
        seed: None,
        began: None,
        window: None,
        negotiated: Vec::new(),
        series: Vec::new(),
        seconds: worked.seconds,
        ios: counted.ios,
        moved: counted.bytes,
        errors: worked.told.iter().map(|told| told.errors).sum(),
        latency,
        latency_summary: None,
        refilled: None,
        unfinished: None,
        io_latency_us: (counted.ios > 0).then(|| counted.wait_ms as f64 * 1e3 / counted.ios as f64),
        target: Some(sides.0),
        initiator: Some(sides.1),
        retransmits: net.0,
        packets: net.1,
    }
}

fn empty_point(
    pair: &SystemPair,
    stands: &OltpEnvironment,
    size: &OltpSize,
    worked: &WorkResult,
    run: Run,
) -> Point {
    let label = |name: &str, value: &dyn std::fmt::Display| (name.to_owned(), value.to_string());
    let mut labels = vec![
        label("database", &pair.engine.name()),
        label("databases", &size.databases),
        label("users", &size.users),
    ];
    if size.program != UserProgram::Sysbench {
        labels.push(label("users of", &size.program.name()));
    }
    Point {
        target: pair.target.clone(),
        initiator: OWN_INITIATOR.to_owned(),
        protocol: Protocol::Iscsi.name().to_owned(),
        rw: "oltp".to_owned(),
        bytes: 0,
        depth: size.users * size.databases,
        connections: size.luns * size.databases,
        mtu: stands.testbed.link.mtu(),
        labels,
        is_closed: true,
        work: Some(worked.told.iter().map(|told| told.transactions).sum()),
        steady_after: None,
        runs: vec![run],
    }
}

impl DatabaseStack {
    fn io_counts(&self) -> Result<DeviceIoCounts, Failure> {
        self.disk.io_counts()
    }
}
