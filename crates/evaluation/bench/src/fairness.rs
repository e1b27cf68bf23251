//! What small reads wait for when another connection of the same server writes much.
//!
//! One thread of the generator has both connections and sends little of the writes at a time, so that reads wait for
//! the server. The bare responder under the same two loads shows what of it is the kernel's and the machine's.

use std::io;

use eval::bootstrap::{Ratio, RoundPairing};
use serde_json::{Map, Value, json};

use crate::compare::{goal_text, medians, run_load};
use crate::servers::{BESIDE_SUBSYSTEM_NQN, BESIDE_TARGET_IQN, BenchEnvironment, RunningServer, ServerKind};

/// Times the 99.9th percentile of reads alone that reads beside a writer may have.
pub const GOAL: f64 = 3.0;
/// Reads in flight.
const READ_DEPTHS: [u32; 2] = [1, 32];
/// The writer: so many writes of so many bytes in flight.
const WRITE_BYTES: u32 = 1 << 20;
const WRITE_DEPTH: u32 = 8;

/// Where the writer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// There is none.
    None,
    /// On another volume of the server.
    OtherVolume,
    /// On the volume that is read.
    SameVolume,
}

impl Writer {
    const ALL: [Writer; 3] = [Writer::None, Writer::OtherVolume, Writer::SameVolume];

    fn name(self) -> &'static str {
        match self {
            Writer::None => "alone",
            Writer::OtherVolume => "beside a writer of another volume",
            Writer::SameVolume => "beside a writer of its volume",
        }
    }

    /// Options of the generator; `None` if the server has no such volume.
    fn args(self, kind: ServerKind) -> Option<Vec<String>> {
        let other = match (self, kind) {
            (Writer::None, _) => return Some(Vec::new()),
            (Writer::SameVolume, _) => &[][..],
            (Writer::OtherVolume, ServerKind::Blockwire) => &["--beside-target", BESIDE_TARGET_IQN],
            (Writer::OtherVolume, ServerKind::BlockwireNvme) => &["--beside-subsystem", BESIDE_SUBSYSTEM_NQN],
            (Writer::OtherVolume, _) => return None,
        };
        let (bytes, depth) = (WRITE_BYTES.to_string(), WRITE_DEPTH.to_string());
        let args = ["--beside", "write", "--beside-bs", &bytes, "--beside-depth", &depth];
        Some(args.iter().chain(other).map(|word| (*word).to_owned()).collect())
    }
}

/// The rounds for one place of the writer.
type WriterRounds = (Writer, Vec<Value>);

/// What was measured: server, reads in flight, and for each place of a writer the rounds.
#[derive(Debug, Default)]
pub struct FairnessTable {
    rows: Vec<(ServerKind, u32, Vec<WriterRounds>)>,
}

impl FairnessTable {
    /// One round: reads alone and beside writers, on each server in turn.
    ///
    /// # Errors
    /// If a load fails.
    pub fn measure_round(
        &mut self,
        servers: &[RunningServer],
        places: &BenchEnvironment,
        seconds: u32,
    ) -> io::Result<()> {
        for depth in READ_DEPTHS {
            for server in servers {
                for writer in Writer::ALL {
                    let Some(beside) = writer.args(server.kind) else { continue };
                    let args = [
                        ("--op", "read".to_owned()),
                        ("--bs", "4096".to_owned()),
                        ("--depth", depth.to_string()),
                        ("--seconds", seconds.to_string()),
                        ("--wait", server.kind.client_wait_mode().to_owned()),
                    ];
                    let args = args.into_iter().flat_map(|(key, value)| [key.to_owned(), value]);
                    server.resume()?;
                    let figures = run_load(server, places, &args.chain(beside).collect::<Vec<_>>());
                    server.pause()?;
                    self.add(server.kind, depth, writer, figures?);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, kind: ServerKind, depth: u32, writer: Writer, figures: Value) {
        let known = self.rows.iter().position(|row| (row.0, row.1) == (kind, depth));
        let at = known.unwrap_or_else(|| {
            self.rows.push((kind, depth, Vec::new()));
            self.rows.len() - 1
        });
        let Some((_, _, rounds)) = self.rows.get_mut(at) else { return };
        match rounds.iter_mut().find(|(other, _)| *other == writer) {
            Some((_, all)) => all.push(figures),
            None => rounds.push((writer, vec![figures])),
        }
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Prints medians, and whether reads beside a writer meet the goal.
    pub fn print(&self) {
        println!("\n4 KiB reads alone, and beside {WRITE_DEPTH} writes of 1 MiB in flight on one connection");
        println!(
            "{:14} {:5} {:34} {:>9} {:>9} {:>9} {:>9} {:>12}  p99.9, times that alone",
            "server", "depth", "", "IOPS", "p50 us", "p99 us", "p99.9 us", "written MB/s"
        );
        for (kind, depth, rounds) in &self.rows {
            let alone = p999(rounds.iter().find(|(writer, _)| *writer == Writer::None));
            for row in rounds {
                let figures = medians(&row.1);
                let show = |key: &str, digits: usize| {
                    let number = figures.get(key).and_then(Value::as_f64);
                    number.map_or("-".to_owned(), |number| format!("{number:.digits$}"))
                };
                let ratio = Ratio::of(&alone, &p999(Some(row)), RoundPairing::Paired);
                let ratio = ratio.filter(|_| row.0 != Writer::None);
                println!(
                    "{:14} {depth:<5} {:34} {:>9} {:>9} {:>9} {:>9} {:>12}  {}",
                    kind.name(),
                    row.0.name(),
                    show("iops", 0),
                    show("p50_us", 1),
                    show("p99_us", 1),
                    show("p999_us", 1),
                    show("beside_mb_s", 0),
                    ratio.map_or(String::new(), |ratio| goal_text(ratio, GOAL)),
                );
            }
        }
    }

    /// All rounds.
    pub fn to_json(&self) -> Value {
        let rows = self.rows.iter().map(|(kind, depth, rounds)| {
            let each = rounds.iter().map(|(writer, all)| {
                (writer.name().to_owned(), json!({ "median": medians(all), "rounds": all }))
            });
            (format!("{} QD{depth}", kind.name()), Value::Object(each.collect::<Map<_, _>>()))
        });
        Value::Object(rows.collect::<Map<_, _>>())
    }
}

/// The 99.9th percentile of each round, in microseconds.
fn p999(row: Option<&WriterRounds>) -> Vec<f64> {
    row.into_iter().flat_map(|(_, rounds)| rounds).filter_map(|figures| figures["p999_us"].as_f64()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_where_its_row_says() {
        let of = |writer: Writer, kind| writer.args(kind).map(|args| args.join(" "));
        assert_eq!(of(Writer::None, ServerKind::Bare).as_deref(), Some(""));
        assert_eq!(of(Writer::OtherVolume, ServerKind::Bare), None, "it has one memory");
        let same = of(Writer::SameVolume, ServerKind::Blockwire).unwrap();
        assert_eq!(same, "--beside write --beside-bs 1048576 --beside-depth 8");
        let other = of(Writer::OtherVolume, ServerKind::BlockwireNvme).unwrap();
        assert_eq!(other, format!("{same} --beside-subsystem {BESIDE_SUBSYSTEM_NQN}"));
    }

    #[test]
    fn rounds_are_kept_by_server_depth_and_writer() {
        let mut table = FairnessTable::default();
        for (writer, us) in [(Writer::None, 10.0), (Writer::SameVolume, 20.0), (Writer::None, 12.0)] {
            table.add(ServerKind::Bare, 1, writer, json!({ "p999_us": us }));
        }
        assert_eq!(table.to_json()["bare QD1"]["alone"]["median"], json!({ "p999_us": 11.0 }));
        assert_eq!(p999(table.rows[0].2.first()), [10.0, 12.0]);
    }
}
