//! Several kinds of traffic over one link at once: iSCSI, NVMe/TCP and a plain stream.
//!
//! Each kind is measured alone and with the others, over the same link and for the same time. Invariant: all
//! kinds begin within the ramp of the first, so that figures cover the time in which all run.

use std::time::Duration;

use eval::fio::Job;
use eval::preset::{MixedTrafficPlan, Preset, Protocol, VolumeMedium, Wire, fio_rw_word, round_seed};
use eval::record::{Point, Record, Run};

use crate::Failure;
use crate::allowance::TimeBudget;
use crate::block_load;
use crate::end_request;
use crate::environment::machine_facts;
use crate::link::Link;
use crate::measure::{HostLoad, MeasuredLoad, measure_load};
use crate::place::CommandLocation;
use crate::process_watch::ProcessWatch;
use crate::progress::StepProgress;
use crate::recording::{begin_record, finish_record, note_command};
use crate::runner::{Runner, Testbed};
use crate::target::{ServingTarget, TargetSetup};
use crate::turn_order::turn_order;

/// What is measured of one kind of traffic.
struct TrafficKind {
    protocol: Protocol,
    serving: ServingTarget,
    job: Job,
}

impl TrafficKind {
    /// Who sends this kind.
    fn initiator_name(&self) -> &'static str {
        if self.protocol == Protocol::Stream { "stream" } else { "blockwire" }
    }
}

impl Runner<'_> {
    /// Runs an experiment in which all protocols share one link. What fails is noted, and so is what there was
    /// no time for. `time`: how long all of it may take; `None`: as long as it does.
    ///
    /// # Errors
    /// If nothing at all could be measured: why.
    pub fn run_mixed_traffic(
        &mut self,
        preset: &Preset,
        mixed: &MixedTrafficPlan,
        time: Option<Duration>,
    ) -> Result<Record, Failure> {
        let allowance = TimeBudget::start(time);
        let mut record = begin_record(preset, &mixed.notes);
        record.environment = vec![machine_facts(&CommandLocation::Here, "target and initiator")];
        for (at, &wire) in mixed.wires.iter().enumerate() {
            // Each link has its part of the time, so that the last one is not what is left out.
            let links = (at + 1) as f64 / mixed.wires.len() as f64;
            let part = allowance.with_time(time.map(|time| time.mul_f64(links)));
            if at > 0 && allowance.is_exhausted() {
                record.notes.push(format!(
                    "{} was left out: the time limit was reached",
                    block_load::wire_name(wire)
                ));
                continue;
            }
            match self.run_rounds_on_link(preset, mixed, (at, wire), part, &mut record) {
                Ok(()) => {}
                Err(_) if end_request::is_ending() => {
                    let runs: usize = record.points.iter().map(|point| point.runs.len()).sum();
                    let link = block_load::wire_name(wire);
                    record.notes.push(format!("interrupted after {runs} runs, on {link}"));
                    break;
                }
                Err(why) => record.notes.push(format!("{} ended early: {why}", block_load::wire_name(wire))),
            }
        }
        self.live.finish();
        finish_record(&mut record, allowance.started_at());
        if record.points.is_empty() {
            return Err(Failure::new(format!("nothing could be measured:\n  {}", record.notes.join("\n  "))));
        }
        Ok(record)
    }

    /// All rounds on one link.
    fn run_rounds_on_link(
        &mut self,
        preset: &Preset,
        mixed: &MixedTrafficPlan,
        (link_at, wire): (usize, Wire),
        allowance: TimeBudget,
        record: &mut Record,
    ) -> Result<(), Failure> {
        let (link, mut all) = self.start_targets(preset, wire, record)?;
        let kinds = all.len();
        let steps = mixed.jobs.len() * mixed.rounds as usize * (kinds + 1);
        let mut at = 0;
        let mut round_begun = allowance.elapsed();
        for round in 0..mixed.rounds {
            if round > 0 && !allowance.has_time_for_round(round_begun) {
                record.notes.push(format!(
                    "{round} of {} rounds were measured on {}: the time limit was reached",
                    mixed.rounds,
                    block_load::wire_name(wire)
                ));
                return Ok(());
            }
            round_begun = allowance.elapsed();
            for job in &mixed.jobs {
                for kind in &mut all {
                    kind.job = Job { seed: round_seed(round), ..job.clone() };
                }
                // Each alone and all at once, in each round another one first.
                let turn = |place: usize| if place < kinds { place..place + 1 } else { 0..kinds };
                for those in turn_order(kinds + 1, kinds + 1, round as usize).into_iter().map(turn) {
                    if round > 0 && allowance.is_exhausted() {
                        record.notes.push(format!(
                            "round {} on {} was cut short: the time limit was reached",
                            round + 1,
                            block_load::wire_name(wire)
                        ));
                        return Ok(());
                    }
                    at += 1;
                    let kinds = all.get(those).unwrap_or_default();
                    let is_alone = kinds.len() == 1;
                    let moment = StepProgress {
                        step: (link_at * steps + at, steps * mixed.wires.len()),
                        what: format!(
                            "{} {}, round {}, {}",
                            if let [one] = kinds { one.protocol.name() } else { "all at once" },
                            job.name,
                            round + 1,
                            block_load::wire_name(wire)
                        ),
                        ..StepProgress::default()
                    };
                    self.live.step_started(&moment);
                    let runs = self.run_simultaneously(&link, kinds, record)?;
                    let iops = runs.iter().map(Run::iops).sum();
                    self.live.step_finished(&moment, Ok(iops));
                    for (kind, run) in kinds.iter().zip(runs) {
                        let run = Run { round: Some(round), seed: Some(kind.job.seed), ..run };
                        add_run(record, kind, wire, is_alone, run);
                    }
                }
            }
        }
        Ok(())
    }

    fn start_targets(
        &mut self,
        preset: &Preset,
        wire: Wire,
        record: &mut Record,
    ) -> Result<(Link, Vec<TrafficKind>), Failure> {
        let link = Link::create(wire, 1)?;
        let mut all = Vec::new();
        for &protocol in preset.protocols {
            let name = if protocol == Protocol::Stream { "stream" } else { "blockwire" };
            let setup = TargetSetup {
                place: link.target_place(),
                listen: link.listen_address(),
                addresses: link.addresses(),
                protocol,
                volumes: preset.volumes,
                targets: None,
                medium: VolumeMedium::Ram,
                connections: 1,
                cores: &self.cores.target,
                dir: &self.dir,
            };
            let serving = self.find_target(name)?.start(&setup)?;
            serving.commands.iter().for_each(|command| note_command(record, command));
            all.push(TrafficKind { protocol, serving, job: Job::default() });
        }
        let mut link = link;
        for kind in all.iter_mut().filter(|kind| kind.protocol != Protocol::Stream) {
            let serving =
                std::mem::replace(&mut kind.serving, ServingTarget::new(kind.protocol, 0, Vec::new()));
            let testbed = Testbed { serving, link };
            block_load::fill_volumes(self, &testbed)?;
            Testbed { serving: kind.serving, link } = testbed;
        }
        Ok((link, all))
    }

    /// These kinds at the same time.
    fn run_simultaneously(
        &self,
        link: &Link,
        kinds: &[TrafficKind],
        record: &mut Record,
    ) -> Result<Vec<Run>, Failure> {
        let place = link.initiator_place(0)?;
        let outcomes: Vec<Result<(Run, Vec<String>), Failure>> = std::thread::scope(|scope| {
            let threads: Vec<_> = kinds
                .iter()
                .map(|kind| {
                    let watch = ProcessWatch::new(
                        link.target_place().clone(),
                        kind.serving.pids(),
                        &self.cores.target,
                    )
                    .with_poll_source(kind.serving.polls.clone());
                    let parts = [HostLoad {
                        place: place.clone(),
                        urls: kind.serving.urls(&link.address(0)),
                        job: kind.job.clone(),
                        connections: 1,
                    }];
                    let (name, protocol) = (kind.initiator_name(), kind.protocol.name());
                    let (initiators, cores, dir) = (self.initiators, &self.cores.initiator, &self.dir);
                    scope.spawn(move || {
                        let initiator = initiators.iter().find(|known| known.name() == name);
                        let initiator = initiator.ok_or_else(|| Failure::new("no such initiator"))?;
                        let load = MeasuredLoad {
                            initiator: &**initiator,
                            name: protocol,
                            parts: &parts,
                            target: Some(&watch),
                            cores,
                            dir,
                        };
                        measure_load(&load, &mut |_| ())
                    })
                })
                .collect();
            let broken = || Err(Failure::new("a thread of the harness has panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| broken())).collect()
        });
        let mut runs = Vec::new();
        for outcome in outcomes {
            let (run, commands) = outcome?;
            commands.iter().for_each(|command| note_command(record, command));
            runs.push(run);
        }
        Ok(runs)
    }
}

fn add_run(record: &mut Record, kind: &TrafficKind, wire: Wire, is_alone: bool, run: Run) {
    let is_stream = kind.protocol == Protocol::Stream;
    let mut labels = vec![("with".to_owned(), if is_alone { "nothing" } else { "the others" }.to_owned())];
    labels.extend(block_load::rate_limit_text(wire).map(|limit| ("limit".to_owned(), limit)));
    if is_stream {
        // It sends whatever the others do: what they do tells its points apart.
        labels.push(("beside".to_owned(), kind.job.name.clone()));
    }
    let (rw, bytes) = match is_stream {
        true => ("write", crate::stream::CHUNK_BYTES as u64),
        false => (fio_rw_word(kind.job.direction, kind.job.is_random), u64::from(kind.job.block.0)),
    };
    let fresh = Point {
        target: kind.initiator_name().to_owned(),
        initiator: kind.initiator_name().to_owned(),
        protocol: kind.protocol.name().to_owned(),
        rw: rw.to_owned(),
        bytes,
        depth: if is_stream { 1 } else { kind.job.depth * kind.job.threads },
        connections: 1,
        mtu: block_load::mtu(wire),
        labels,
        // A stream has no latencies for Little's law to be held against.
        is_closed: !is_stream,
        ..Point::default()
    };
    let found = record.points.iter_mut().find(|point| {
        (&point.protocol, &point.rw, point.bytes, &point.labels, point.mtu)
            == (&fresh.protocol, &fresh.rw, fresh.bytes, &fresh.labels, fresh.mtu)
    });
    match found {
        Some(point) => point.runs.push(run),
        None => record.points.push(Point { runs: vec![run], ..fresh }),
    }
}
