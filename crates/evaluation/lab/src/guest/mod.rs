//! The experiment with a virtual machine: its disk is a volume of a target on the same host, over TCP or
//! shared memory.
//!
//! Over TCP the disk is QEMU's own (its iSCSI initiator, libiscsi). This corresponds to the paper, where the
//! hypervisor had the initiator and the machine a para-virtual disk. Over shared memory `blockwire attach
//! --via vhost-user` serves the machine's queues. fio runs in the machine. Invariant: figures from a machine
//! with an emulated processor are marked as such in every point.

mod image;
mod repeat;
mod scale;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eval::preset::{
    HostCapacity, Preset, PresetLoad, Protocol, RepeatableExperiment, Scale, VolumeMedium, Wire, fio_rw_word,
    round_seed,
};
use eval::record::{EndUsage, Point, Record, Run as LoadResult};

pub use self::repeat::repeat_guests;
use crate::Failure;
use crate::allowance::TimeBudget;
use crate::attach::{self, AttachSpec, AttachedVolume};
use crate::block_load;
use crate::end_request;
use crate::environment::machine_facts;
use crate::initiator::fio_reports;
use crate::link::Link;
use crate::place::CommandLocation;
use crate::process::{LineTimeout, Process, ProcessSpec};
use crate::process_watch::ProcessWatch;
use crate::progress::StepProgress;
use crate::recording;
use crate::run_directory::RunDirectory;
use crate::runner::{Runner, Testbed};
use crate::target::{ServingTarget, TargetSetup};
use crate::turn_order::turn_order;
use image::GuestKernel;
use scale::GuestSize;

/// How long a machine may take to boot, and a load to say something beyond its own time.
const BOOT_TIMEOUT: Duration = Duration::from_secs(240);

/// How the machine reaches its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GuestDisk {
    /// QEMU's own iSCSI initiator.
    Tcp,
    /// Our initiator, and memory that it shares with the machine.
    SharedMemory,
}

impl GuestDisk {
    const ALL: [GuestDisk; 2] = [GuestDisk::Tcp, GuestDisk::SharedMemory];

    fn name(self) -> &'static str {
        match self {
            GuestDisk::Tcp => "tcp",
            GuestDisk::SharedMemory => attach::AttachMethod::VhostUser.name(),
        }
    }

    fn initiator_name(self) -> &'static str {
        match self {
            GuestDisk::Tcp => "qemu",
            GuestDisk::SharedMemory => "blockwire",
        }
    }

    fn missing(self) -> Option<String> {
        let module =
            Path::new("/usr/lib").join(format!("{}-linux-gnu/qemu/block-iscsi.so", std::env::consts::ARCH));
        (self == GuestDisk::Tcp && !module.exists())
            .then(|| "QEMU has no iSCSI here: apt install qemu-block-extra".to_owned())
    }
}

/// What is missing for the experiment as a whole, and how it is installed.
pub fn missing_prerequisite() -> Option<String> {
    if std::env::consts::ARCH != "x86_64" {
        return Some("guests are supported on x86_64 only".to_owned());
    }
    if !CommandLocation::Here.has_program(QEMU_PROGRAM) {
        return Some(format!(
            "{QEMU_PROGRAM} is missing: apt install --no-install-recommends qemu-system-x86"
        ));
    }
    image::missing_prerequisite().or_else(|| GuestKernel::find().err().map(|why| why.to_string()))
}

const QEMU_PROGRAM: &str = "qemu-system-x86_64";

/// Whether the processor runs guests itself; else why it is emulated.
fn emulation_reason() -> Option<String> {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpu.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    if !flags.split(' ').any(|flag| flag == "vmx" || flag == "svm") {
        return Some("the processor shows no virtualization of its own (vmx, svm)".to_owned());
    }
    let opened = std::fs::File::options().read(true).write(true).open("/dev/kvm");
    opened.err().map(|why| format!("/dev/kvm: {why}"))
}

/// What repeats a run, and what it tells of its size.
pub type RepeatableRun = (RepeatableExperiment, Vec<String>);

/// Runs the experiment: every target, each way. Gives what it takes to repeat it, too.
///
/// # Errors
/// If nothing could be measured: why, and what to install.
pub fn run_guests(
    runner: &mut Runner<'_>,
    preset: &'static Preset,
    room: &HostCapacity,
    scale: Scale,
    targets: &[String],
) -> Result<(Record, RepeatableRun), Failure> {
    check_prerequisites(preset)?;
    let emulated = emulation_reason();
    let mut notes = comparability_notes(emulated.as_deref());
    let mut pairs = Vec::new();
    for name in targets {
        if name == "url" || !room.targets.contains(name) || !speaks_iscsi(runner, name)? {
            notes.push(format!(
                "target {name} was left out: it is not here, or serves no volume made for it by iSCSI"
            ));
            continue;
        }
        pairs.extend(GuestDisk::ALL.map(|way| (name.clone(), way)));
    }
    let mut size_notes = Vec::new();
    let size = scale::scale_to_host(preset, room, scale, (pairs.len(), emulated.is_some()), &mut size_notes);
    let time = (scale == Scale::Auto).then_some(room.time);
    measure_all(
        runner,
        preset,
        GuestExperiment { pairs, size, emulated: emulated.is_some(), time },
        notes,
        size_notes,
    )
}

fn check_prerequisites(preset: &Preset) -> Result<(), Failure> {
    missing_prerequisite()
        .map_or(Ok(()), |why| Err(Failure::new(format!("{} cannot be run here: {why}", preset.id))))
}

/// What is run.
struct GuestExperiment {
    pairs: Vec<(String, GuestDisk)>,
    size: GuestSize,
    emulated: bool,
    time: Option<Duration>,
}

/// All rounds of a run; `size_notes` tell what is smaller than in the paper.
fn measure_all(
    runner: &mut Runner<'_>,
    preset: &'static Preset,
    run: GuestExperiment,
    mut notes: Vec<String>,
    size_notes: Vec<String>,
) -> Result<(Record, RepeatableRun), Failure> {
    let kernel =
        GuestKernel::find().map_err(|why| why.during(format!("{} cannot be run here", preset.id)))?;
    let allowance = TimeBudget::start(run.time);
    notes.extend(size_notes.iter().cloned());
    let mut record = recording::begin_record(preset, &notes);
    let mut targets: Vec<String> = run.pairs.iter().map(|(target, _)| target.clone()).collect();
    targets.dedup();
    record.environment = vec![run_machine_facts(runner, &targets, &kernel)];
    run_rounds(runner, &run, &kernel, allowance, &mut record);
    runner.live.finish();
    recording::finish_record(&mut record, allowance.started_at());
    if record.points.is_empty() {
        return Err(Failure::new(format!("nothing could be measured:\n  {}", record.notes.join("\n  "))));
    }
    Ok((record, (run.to_plan(), size_notes)))
}

/// All guests in turn, round by round.
fn run_rounds(
    runner: &mut Runner<'_>,
    run: &GuestExperiment,
    kernel: &GuestKernel,
    allowance: TimeBudget,
    record: &mut Record,
) {
    let GuestExperiment { pairs, size, .. } = run;
    let all = pairs.len() * size.rounds as usize;
    let mut broken: Vec<usize> = Vec::new();
    let mut round_began = allowance.elapsed();
    for at in 0..all {
        let (round, place) = (at / pairs.len(), at % pairs.len());
        let order = turn_order(pairs.len(), pairs.len(), round);
        if end_request::is_ending() {
            record.notes.push(format!("interrupted after {at} of {all} machines"));
            break;
        }
        if place == 0 && round > 0 {
            if !allowance.has_time_for_round(round_began) {
                record.notes.push(format!(
                    "{round} of {} rounds were measured: the time limit was reached",
                    size.rounds
                ));
                break;
            }
            round_began = allowance.elapsed();
        }
        if !allowance.has_time_for_one_more(at) {
            let left = order.iter().skip(place).filter_map(|pair| pairs.get(*pair));
            let left: Vec<String> = left.map(|(target, way)| format!("{target} by {}", way.name())).collect();
            let left = left.join(", ");
            record
                .notes
                .push(format!("left out of round {} because the time limit was reached: {left}", round + 1));
            break;
        }
        let Some(pair) = order.get(place).copied() else { break };
        if broken.contains(&pair) {
            continue;
        }
        let Some((target, way)) = pairs.get(pair) else { break };
        let mut guest = GuestRun {
            runner: &mut *runner,
            kernel,
            size,
            emulated: run.emulated,
            way: *way,
            round: u32::try_from(round).unwrap_or(u32::MAX),
            allowance,
        };
        let outcome = match way.missing() {
            Some(why) => Err(Failure::new(why)),
            None => guest.measure_loads(target, (at, all), record),
        };
        if let Err(why) = outcome {
            record.notes.push(format!("{target} by {} ended early: {why}", way.name()));
            broken.push(pair);
        }
    }
}

fn speaks_iscsi(runner: &Runner<'_>, target: &str) -> Result<bool, Failure> {
    Ok(runner.find_target(target)?.protocols().contains(&Protocol::Iscsi))
}

fn comparability_notes(emulated: Option<&str>) -> Vec<String> {
    let mut notes = vec![
        "The paper had both ends in machines of ESXi, an adapter whose switch carries their traffic, and an SSD. \
         Here the target runs on the host, its volume is memory, and no adapter is in the way: what compares is \
         one way to the volume with another here."
            .to_owned(),
        "Over TCP the initiator is QEMU's own (libiscsi); by shared memory it is ours, which reaches the target \
         over loopback."
            .to_owned(),
        "Processor use of the initiator's end is QEMU's with the machine in it, fio's start included."
            .to_owned(),
    ];
    if let Some(why) = emulated {
        notes.push(format!(
            "The machine's processor is emulated (QEMU's TCG), since {why}. Its figures show that the ways work \
             and are no measure of performance."
        ));
    }
    notes
}

fn run_machine_facts(runner: &Runner<'_>, targets: &[String], kernel: &GuestKernel) -> eval::record::Machine {
    let mut here = machine_facts(&CommandLocation::Here, "target and initiator");
    for name in targets {
        let version = runner.find_target(name).ok().and_then(|target| target.version(&CommandLocation::Here));
        here.facts.extend(version.map(|version| (format!("target {name}"), version)));
    }
    let first = |words: &[&str]| {
        let said = CommandLocation::Here.run(words).ok()?;
        said.lines().next().map(str::to_owned)
    };
    here.facts.extend(first(&[QEMU_PROGRAM, "--version"]).map(|said| ("QEMU".to_owned(), said)));
    here.facts.extend(first(&["fio", "--version"]).map(|said| ("fio in the guest".to_owned(), said)));
    here.facts.push(("kernel of the guest".to_owned(), kernel.version.clone()));
    here
}

/// One machine: a target, a way to it, all loads.
struct GuestRun<'r, 'a> {
    runner: &'r mut Runner<'a>,
    kernel: &'r GuestKernel,
    size: &'r GuestSize,
    emulated: bool,
    way: GuestDisk,
    /// From 0.
    round: u32,
    allowance: TimeBudget,
}

impl GuestRun<'_, '_> {
    fn measure_loads(
        &mut self,
        target: &str,
        (machine, machines): (usize, usize),
        record: &mut Record,
    ) -> Result<(), Failure> {
        let link = Link::create(Wire::Loopback, 1)?;
        let setup = TargetSetup {
            place: link.target_place(),
            listen: link.listen_address(),
            addresses: link.addresses(),
            protocol: Protocol::Iscsi,
            volumes: (1, self.size.volume),
            targets: None,
            medium: VolumeMedium::Ram,
            connections: 1,
            cores: &self.runner.cores.target,
            dir: &self.runner.dir,
        };
        let serving = self.runner.find_target(target)?.start(&setup)?;
        let testbed = Testbed { serving, link };
        block_load::fill_volumes(self.runner, &testbed)?;
        let url = testbed.serving.urls(&testbed.link.address(0)).swap_remove(0);
        let front = match self.way {
            GuestDisk::Tcp => None,
            GuestDisk::SharedMemory => Some(VhostUserDisk::start(self.runner, &url)?),
        };
        let (mut qemu, _initramfs) = self.boot(&url, front.as_ref())?;
        let commands = [
            testbed.serving.commands.clone(),
            front.iter().map(|front| front.attached.command_line().to_owned()).collect(),
        ];
        for command in commands.concat().into_iter().chain([qemu.command_line().to_owned()]) {
            recording::note_command(record, &command);
        }
        let ready = |line: &str| match line.split_once("@@") {
            Some((_, said)) if said.starts_with("ready") => Some(Ok(())),
            Some((_, said)) => said.strip_prefix("failed ").map(|why| Err(why.to_owned())),
            None => None,
        };
        qemu.wait_for_line(BOOT_TIMEOUT, ready)?
            .map_err(|why| qemu.failure_with_output(format!("the guest: {why}")))?;
        let loads = self.size.loads.len();
        for at in 0..loads {
            if at > 0 && self.allowance.is_exhausted() {
                let way = self.way.name();
                record.notes.push(format!(
                    "machine {} of {machines} ({target} by {way}) was ended after {at} of {loads} loads: the time limit was reached",
                    machine + 1
                ));
                break;
            }
            let moment = self.step_progress(target, (machine * loads + at, machines * loads));
            self.runner.live.step_started(&moment);
            let outcome = self.run_load(at, &mut qemu, &testbed.serving, front.as_ref());
            let told = outcome.as_ref().map(LoadResult::iops).map_err(ToString::to_string);
            self.runner.live.step_finished(&moment, told.as_ref().copied().map_err(String::as_str));
            let Some(load) = self.size.loads.get(at) else { break };
            recording::add_runs(record, self.empty_point(target, load, outcome?));
        }
        Ok(())
    }

    /// Starts the machine; it runs all loads by itself and says when each begins and ends.
    fn boot(&self, url: &str, front: Option<&VhostUserDisk>) -> Result<(Process, RemovedOnDrop), Failure> {
        let initramfs = self.runner.dir.join(format!("guest-{}.cpio", self.way.name()));
        let loads: Vec<(String, Vec<String>)> = self
            .size
            .loads
            .iter()
            .enumerate()
            .map(|(at, load)| (format!("load{at}"), self.fio_command_words(load)))
            .collect();
        image::write_initramfs(self.kernel, &loads, &initramfs)?;
        let gone = RemovedOnDrop(initramfs.clone());
        let memory = format!("{}M", self.size.memory >> 20);
        let mut words: Vec<String> =
            [QEMU_PROGRAM, "-M", "pc,usb=off,memory-backend=memory", "-smp", "2", "-m", &memory]
                .map(str::to_owned)
                .to_vec();
        words.push("-object".to_owned());
        words.push(format!("memory-backend-memfd,id=memory,size={memory},share=on"));
        // What QEMU's emulation of a processor gets wrong (cmpxchg16b) or does slowly is left out.
        let processor: &[&str] = if self.emulated {
            &["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max,la57=off,cx16=off"]
        } else {
            &["-accel", "kvm", "-cpu", "host"]
        };
        words.extend(processor.iter().map(|word| (*word).to_owned()));
        let fixed = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"];
        words.extend(fixed.map(str::to_owned));
        words.extend(["-kernel".to_owned(), self.kernel.file.display().to_string()]);
        words.extend(["-initrd".to_owned(), initramfs.display().to_string()]);
        words.extend(disk_words(url, front));
        let line = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on no_timer_check \
                    tsc=reliable";
        words.extend(["-append".to_owned(), line.to_owned()]);
        let name = format!("guest-{}", self.way.name());
        let process = Process::start(ProcessSpec {
            name: &name,
            place: &CommandLocation::Here,
            cores: &self.runner.cores.initiator,
            words,
            dir: &self.runner.dir,
        })?;
        Ok((process, gone))
    }

    /// The paper's job in fio's words.
    fn fio_command_words(&self, load: &PresetLoad) -> Vec<String> {
        vec![
            "--name=load".to_owned(),
            "--filename=/dev/vda".to_owned(),
            "--ioengine=libaio".to_owned(),
            "--direct=1".to_owned(),
            "--thread".to_owned(),
            format!("--rw={}", fio_rw_word(load.direction, load.is_random)),
            format!("--bs={}", load.bytes),
            format!("--iodepth={}", load.depth),
            format!("--numjobs={}", load.threads),
            format!("--size={}", self.size.volume),
            format!("--runtime={}ms", self.size.runtime.as_millis()),
            "--time_based".to_owned(),
            "--cpus_allowed=0,1".to_owned(),
            "--norandommap".to_owned(),
            format!("--randseed={}", round_seed(self.round)),
            "--group_reporting".to_owned(),
            "--lat_percentiles=1".to_owned(),
            "--output-format=json+".to_owned(),
        ]
    }

    fn run_load(
        &self,
        at: usize,
        qemu: &mut Process,
        serving: &ServingTarget,
        front: Option<&VhostUserDisk>,
    ) -> Result<LoadResult, Failure> {
        let name = format!("load{at}");
        let mut pids = vec![qemu.pid()];
        pids.extend(front.map(|front| front.attached.pid()));
        let target = ProcessWatch::new(CommandLocation::Here, serving.pids(), &self.runner.cores.target)
            .with_poll_source(serving.polls.clone());
        let initiator = ProcessWatch::new(CommandLocation::Here, pids, &self.runner.cores.initiator);
        self.read_until_mark(qemu, &format!("@@begin {name}"))?;
        let before = (target.sample_with_polling()?, initiator.sample()?);
        let end = self.read_until_mark(qemu, &format!("@@end {name} "))?.0;
        let seen = (
            target.usage_since(&before.0, &target.sample_with_polling()?).require_complete()?,
            initiator.usage_since(&before.1, &initiator.sample()?).require_complete()?,
        );
        let (_, text) = self.read_until_mark(qemu, &format!("@@told {name}"))?;
        if !end.ends_with(" 0") {
            return Err(Failure::new(format!("fio in the guest ended with {end}: {}", text.trim())));
        }
        let told = fio_reports::parse_results(&text).map_err(|why| why.during("fio in the guest"))?;
        let scaled = |seconds: f64, side: EndUsage| {
            let scale = if seconds > 0.0 { told.seconds / seconds } else { 1.0 };
            EndUsage { process: (side.process.0 * scale, side.process.1 * scale), ..side }
        };
        let run = LoadResult {
            seconds: told.seconds,
            ios: told.ios,
            moved: told.moved,
            errors: told.errors,
            retransmits: seen.0.retransmits,
            target: Some(scaled(seen.0.seconds, seen.0.side)),
            initiator: Some(scaled(seen.1.seconds, seen.1.side)),
            latency: told.latency,
            ..LoadResult::default()
        };
        run.check_figures().map_err(|why| Failure::new(format!("impossible figures: {why}")))?;
        Ok(run)
    }

    /// Reads on to a line that holds `mark`; gives it, and what came before it.
    fn read_until_mark(&self, qemu: &mut Process, mark: &str) -> Result<(String, String), Failure> {
        let until = Instant::now() + BOOT_TIMEOUT + self.size.runtime;
        let mut text = String::new();
        loop {
            match qemu.next_line(until.saturating_duration_since(Instant::now())) {
                Ok(Some((_, line))) if line.contains(mark) => return Ok((line, text)),
                Ok(Some((_, line))) => {
                    text.push_str(&line);
                    text.push('\n');
                }
                Ok(None) => return Err(qemu.failure_with_output("the machine ended")),
                Err(LineTimeout) => {
                    return Err(qemu.failure_with_output(format!("the guest did not reach {mark} in time")));
                }
            }
        }
    }

    fn step_progress(&self, target: &str, (at, all): (usize, usize)) -> StepProgress {
        let load = self.size.loads.get(at % self.size.loads.len().max(1));
        let load = load.map(|load| format!("{} {}", fio_rw_word(load.direction, load.is_random), load.bytes));
        let each = if at == 0 { self.size.runtime * 3 } else { self.allowance.elapsed().div_f64(at as f64) };
        StepProgress {
            step: (at + 1, all),
            what: format!(
                "{target} / {} ({}) {}",
                self.way.initiator_name(),
                self.way.name(),
                load.unwrap_or_default()
            ),
            left: each * u32::try_from(all - at).unwrap_or(1),
            ..StepProgress::default()
        }
    }

    fn empty_point(&self, target: &str, load: &PresetLoad, run: LoadResult) -> Point {
        let processor = if self.emulated { "emulated" } else { "kvm" };
        Point {
            target: target.to_owned(),
            initiator: self.way.initiator_name().to_owned(),
            protocol: Protocol::Iscsi.name().to_owned(),
            rw: fio_rw_word(load.direction, load.is_random).to_owned(),
            bytes: load.bytes.into(),
            depth: load.depth * load.threads,
            connections: 1,
            mtu: 65_536,
            labels: vec![
                ("path".to_owned(), self.way.name().to_owned()),
                ("machine".to_owned(), processor.to_owned()),
            ],
            is_closed: true,
            runs: vec![LoadResult { round: Some(self.round), seed: Some(round_seed(self.round)), ..run }],
            ..Point::default()
        }
    }
}

/// The words for the machine's disk.
fn disk_words(url: &str, front: Option<&VhostUserDisk>) -> Vec<String> {
    let words = match front {
        None => [
            "-drive".to_owned(),
            format!("if=none,id=disk,format=raw,cache=none,file={url}"),
            "-device".to_owned(),
            "virtio-blk-pci,drive=disk,num-queues=2,disable-legacy=on".to_owned(),
        ],
        Some(front) => [
            "-chardev".to_owned(),
            format!("socket,id=disk,path={}", front.socket.display()),
            "-device".to_owned(),
            "vhost-user-blk-pci,chardev=disk,num-queues=2,disable-legacy=on".to_owned(),
        ],
    };
    words.to_vec()
}

/// A file that is removed when it is needed no more.
struct RemovedOnDrop(PathBuf);

impl Drop for RemovedOnDrop {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What serves a machine's queues.
struct VhostUserDisk {
    attached: AttachedVolume,
    socket: PathBuf,
    // Its directory lies in the run's, and goes with it.
    _scratch: Arc<RunDirectory>,
}

impl VhostUserDisk {
    fn start(runner: &Runner<'_>, url: &str) -> Result<VhostUserDisk, Failure> {
        let scratch = RunDirectory::current()?;
        let dir = scratch.create_directory("vm")?;
        let binary = std::env::current_exe().map_err(Failure::new)?;
        let attached = AttachedVolume::start(&AttachSpec {
            binary: &binary,
            place: &CommandLocation::Here,
            cores: &runner.cores.initiator,
            url,
            way: attach::AttachMethod::VhostUser,
            name: "disk",
            at: &dir,
            dir: &runner.dir,
        })?;
        let socket = attached.output_after("socket").map(PathBuf::from);
        let socket = socket.ok_or_else(|| Failure::new(format!("{url}: attach did not print its socket")))?;
        Ok(VhostUserDisk { attached, socket, _scratch: scratch })
    }
}
