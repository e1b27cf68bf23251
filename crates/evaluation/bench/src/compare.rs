//! The comparison: the same loads on each server in turn, several rounds, medians.

use std::collections::BTreeMap;
use std::io;
use std::process::{Command, Stdio};
use std::time::Instant;

use eval::bootstrap::{ROUNDS_MIN, Ratio, RoundPairing};
use serde_json::{Map, Value, json};

use crate::servers::{BenchEnvironment, RunningServer, ServerKind};
use crate::{system, usage};

/// One load.
#[derive(Clone, Copy, Debug)]
pub struct ComparedLoad {
    /// `read` or `write`.
    pub op: &'static str,
    /// Bytes per request.
    pub bs: u32,
    /// Requests in flight.
    pub depth: u32,
    /// Microseconds between an answer and the next request.
    pub gap_us: u64,
}

impl ComparedLoad {
    /// Its name in tables.
    pub fn name(&self) -> String {
        let gap = if self.gap_us > 0 { format!(" gap {} us", self.gap_us) } else { String::new() };
        format!("{}K {} QD{}{gap}", self.bs / 1024, self.op, self.depth)
    }
}

/// The loads that every server is compared under.
pub const LOADS: [ComparedLoad; 8] = [
    ComparedLoad { op: "read", bs: 4096, depth: 1, gap_us: 0 },
    ComparedLoad { op: "read", bs: 4096, depth: 32, gap_us: 0 },
    ComparedLoad { op: "read", bs: 4096, depth: 128, gap_us: 0 },
    ComparedLoad { op: "write", bs: 4096, depth: 1, gap_us: 0 },
    ComparedLoad { op: "write", bs: 4096, depth: 32, gap_us: 0 },
    ComparedLoad { op: "write", bs: 4096, depth: 128, gap_us: 0 },
    ComparedLoad { op: "read", bs: 131_072, depth: 32, gap_us: 0 },
    ComparedLoad { op: "write", bs: 131_072, depth: 32, gap_us: 0 },
];

/// One request at a time, with pauses: what polling costs and gains.
pub const PACED_LOADS: [ComparedLoad; 3] = [
    ComparedLoad { op: "read", bs: 4096, depth: 1, gap_us: 0 },
    ComparedLoad { op: "read", bs: 4096, depth: 1, gap_us: 20 },
    ComparedLoad { op: "read", bs: 4096, depth: 1, gap_us: 200 },
];

/// Bytes of a block of every volume, in which libiscsi's client counts.
const LIBISCSI_BLOCK_BYTES: u32 = 512;

/// The depths of libiscsi's client, which reads.
pub const LIBISCSI_QUEUE_DEPTHS: [u32; 3] = [1, 32, 128];

/// Runs the generator against a server; what it prints.
pub fn run_load(server: &RunningServer, places: &BenchEnvironment, args: &[String]) -> io::Result<Value> {
    let mut command = Command::new(places.programs.join("raw-load"));
    command.args(&server.load_args).args(["--json", "--server-pid", &server.pid().to_string()]);
    command.args(["--core", &places.client_core.to_string()]).args(args);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("the load on {} failed", server.kind.name())));
    }
    serde_json::from_slice(&output.stdout).map_err(io::Error::other)
}

/// One measurement of one load.
pub fn measure_load(
    server: &RunningServer,
    places: &BenchEnvironment,
    load: &ComparedLoad,
    seconds: f64,
) -> io::Result<Value> {
    let args = [
        ("--op", load.op.to_owned()),
        ("--bs", load.bs.to_string()),
        ("--depth", load.depth.to_string()),
        ("--gap-us", load.gap_us.to_string()),
        ("--seconds", seconds.to_string()),
        ("--wait", server.kind.client_wait_mode().to_owned()),
    ];
    let args: Vec<String> = args.into_iter().flat_map(|(key, value)| [key.to_owned(), value]).collect();
    server.resume()?;
    let figures = run_load(server, places, &args);
    server.pause()?;
    figures
}

/// One round: each load on each server in turn.
pub fn measure_round<'a>(
    loads: &[ComparedLoad],
    servers: impl IntoIterator<Item = &'a RunningServer> + Clone,
    places: &BenchEnvironment,
    seconds: u32,
    table: &mut ComparisonTable,
) -> io::Result<()> {
    for load in loads {
        for server in servers.clone() {
            let figures = measure_load(server, places, load, f64::from(seconds))?;
            table.add_round(load.name(), server.kind, figures);
        }
    }
    Ok(())
}

/// Writes every block of a server's volume, so that reads meet memory and not the page of zeroes.
pub fn fill_volume(server: &RunningServer, places: &BenchEnvironment) -> io::Result<()> {
    let args = ["--once", "--op", "write", "--bs", "131072", "--depth", "8"].map(str::to_owned);
    run_load(server, places, &args)?;
    server.pause()
}

/// One run of libiscsi's own client: random reads, for it does nothing else.
pub fn measure_libiscsi(server: &RunningServer, bs: u32, depth: u32, seconds: u32) -> io::Result<Value> {
    let Some(url) = &server.url else { return Err(io::ErrorKind::InvalidInput.into()) };
    let (before, own_before, start) =
        (usage::cpu_ns(server.pid())?, system::children_cpu_ns()?, Instant::now());
    let blocks = (bs / LIBISCSI_BLOCK_BYTES).to_string();
    let output = Command::new("iscsi-perf")
        .args(["-m", &depth.to_string(), "-b", &blocks, "-t", &seconds.to_string(), "-r", url])
        .stdin(Stdio::null())
        .output()?;
    let elapsed = start.elapsed().as_secs_f64();
    let cpu_ns = usage::cpu_ns_since(server.pid(), before)?;
    let own_ns = system::children_cpu_ns()? - own_before;
    let text = String::from_utf8_lossy(&output.stdout);
    // One that broke off has told averages until then.
    let iops = last_average(&text)
        .filter(|_| output.status.success())
        .ok_or_else(|| io::Error::other(format!("iscsi-perf on {} gives no figure", server.kind.name())))?;
    let ios = iops * f64::from(seconds);
    Ok(json!({
        "iops": iops, "mb_s": iops * f64::from(bs) / 1e6, "elapsed": elapsed,
        "server_cpu_us": cpu_ns as f64 / 1e3 / ios, "client_cpu_us": own_ns as f64 / 1e3 / ios,
        "p50_us": Value::Null, "p99_us": Value::Null,
    }))
}

/// The figure behind the last `iops average`, where it is the final one.
fn last_average(text: &str) -> Option<f64> {
    let (_, behind) = text.rsplit_once("iops average ")?;
    behind.split(' ').next()?.parse().ok()
}

/// Medians over the rounds of one load on one server.
pub fn medians(rounds: &[Value]) -> Value {
    let mut figures: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (key, value) in rounds.iter().filter_map(Value::as_object).flatten() {
        if let Some(number) = value.as_f64() {
            figures.entry(key).or_default().push(number);
        }
    }
    let median = |mut numbers: Vec<f64>| {
        numbers.sort_by(f64::total_cmp);
        let at = |place: usize| numbers.get(place).copied();
        // One of both where the number is odd.
        let (low, high) = (at(numbers.len().checked_sub(1)? / 2)?, at(numbers.len() / 2)?);
        Some((low + high) / 2.0)
    };
    Value::Object(
        figures.into_iter().map(|(key, numbers)| (key.to_owned(), json!(median(numbers)))).collect(),
    )
}

/// What is compared: something with a name.
pub trait ComparedKind: Copy + Eq {
    /// Its name in tables.
    fn name(self) -> &'static str;
}

impl ComparedKind for ServerKind {
    fn name(self) -> &'static str {
        ServerKind::name(self)
    }
}

/// Whose figures a table shows.
#[derive(Clone, Copy, Debug)]
pub struct TableSubject {
    head: &'static str,
    /// Microseconds of processor time per request.
    cpu: &'static str,
}

/// Servers under one client.
pub const SERVER_SUBJECT: TableSubject = TableSubject { head: "server", cpu: "server_cpu_us" };
/// Clients of one server.
pub const CLIENT_SUBJECT: TableSubject = TableSubject { head: "client", cpu: "client_cpu_us" };

/// What was measured: load, then server or client, then rounds.
#[derive(Debug)]
pub struct ComparisonTable<K = ServerKind> {
    side: TableSubject,
    rows: Vec<(String, Vec<KindRounds<K>>)>,
}

/// The figures of all rounds of one load on one server, or by one client.
type KindRounds<K> = (K, Vec<Value>);

impl Default for ComparisonTable {
    fn default() -> Self {
        ComparisonTable::new(SERVER_SUBJECT)
    }
}

impl<K: ComparedKind> ComparisonTable<K> {
    /// An empty table.
    pub fn new(side: TableSubject) -> Self {
        ComparisonTable { side, rows: Vec::new() }
    }

    /// Adds one round's figures.
    pub fn add_round(&mut self, load: String, kind: K, figures: Value) {
        let Some((_, row)) = self.rows.iter_mut().find(|(name, _)| *name == load) else {
            self.rows.push((load, vec![(kind, vec![figures])]));
            return;
        };
        match row.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, rounds)) => rounds.push(figures),
            None => row.push((kind, vec![figures])),
        }
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A median of a load on a server.
    pub fn median_figure(&self, load: &str, kind: K, key: &str) -> Option<f64> {
        let (_, servers) = self.rows.iter().find(|(name, _)| name == load)?;
        let (_, rounds) = servers.iter().find(|(other, _)| *other == kind)?;
        medians(rounds).get(key)?.as_f64()
    }

    /// Prints medians; ratios of processor time are to `yardstick`.
    pub fn print(&self, title: &str, yardstick: K) {
        let TableSubject { head, cpu } = self.side;
        println!("\n{title}");
        println!(
            "{:24} {:14} {:>10} {:>8} {:>9} {:>9} {:>12} {:>8} {:>9}",
            "load", head, "IOPS", "MB/s", "p50 us", "p99 us", "CPU s/M I/O", "x ratio", "server %"
        );
        for (load, servers) in &self.rows {
            let limit = self.median_figure(load, yardstick, cpu);
            for (kind, rounds) in servers {
                let figures = medians(rounds);
                let show = |key: &str, digits: usize| match figures.get(key).and_then(Value::as_f64) {
                    Some(number) => format!("{number:.digits$}"),
                    None => "-".to_owned(),
                };
                let ratio = limit.zip(figures.get(cpu).and_then(Value::as_f64)).map(|(l, f)| f / l);
                let share = figures.get("server_cpu_share").and_then(Value::as_f64);
                println!(
                    "{load:24} {:14} {:>10} {:>8} {:>9} {:>9} {:>12} {:>8} {:>9}",
                    kind.name(),
                    show("iops", 0),
                    show("mb_s", 0),
                    show("p50_us", 1),
                    show("p99_us", 1),
                    show(cpu, 3),
                    ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
                    share.map_or("-".to_owned(), |share| format!("{:.1}", share * 100.0)),
                );
            }
        }
    }

    /// A figure of a load on a server, of each round that tells it.
    fn round_values(&self, load: &str, kind: K, key: &str) -> Vec<f64> {
        let row = self.rows.iter().find(|(name, _)| name == load);
        let rounds = row.and_then(|(_, servers)| servers.iter().find(|(other, _)| *other == kind));
        let rounds = rounds.map_or(&[][..], |(_, rounds)| rounds);
        rounds.iter().filter_map(|figures| figures.get(key)?.as_f64()).collect()
    }

    /// Says whether the time per request is at most `goal` times the yardstick's, with 95 % certainty.
    pub fn print_goal(&self, load: &str, kind: K, yardstick: K, goal: f64) {
        let each = |kind| self.round_values(load, kind, self.side.cpu);
        if let Some(ratio) = Ratio::of(&each(yardstick), &each(kind), RoundPairing::Paired) {
            let (own, limit, ratio) = (kind.name(), yardstick.name(), goal_text(ratio, goal));
            println!("{load}: {own} at {ratio} times {limit}, goal {goal}");
        }
    }

    /// Says whether there are at least `least` times as many I/Os per second as by the yardstick, with 95 % certainty.
    pub fn print_iops_part(&self, load: &str, kind: K, yardstick: K, least: f64) {
        let each = |kind| self.round_values(load, kind, "iops");
        if let Some(ratio) = Ratio::of(&each(yardstick), &each(kind), RoundPairing::Paired) {
            let how = match ratio.interval {
                None => format!("NOT shown: fewer than {ROUNDS_MIN} rounds"),
                Some((low, high)) => {
                    format!("{}; 95 % interval {low:.2} to {high:.2}", reached_word(low >= least))
                }
            };
            let (own, other) = (kind.name(), yardstick.name());
            println!("{load}: {own} has {:.2} times the IOPS of {other}, goal {least} ({how})", ratio.ratio);
        }
    }

    /// All rounds and their medians.
    pub fn to_json(&self) -> Value {
        let loads = self.rows.iter().map(|(load, servers)| {
            let servers = servers.iter().map(|(kind, rounds)| {
                (kind.name().to_owned(), json!({ "median": medians(rounds), "rounds": rounds }))
            });
            (load.clone(), Value::Object(servers.collect::<Map<_, _>>()))
        });
        Value::Object(loads.collect::<Map<_, _>>())
    }
}

/// A ratio with its interval, and whether a goal is met: by the upper bound, not by the ratio itself.
pub(crate) fn goal_text(ratio: Ratio, goal: f64) -> String {
    let Ratio { ratio: value, interval } = ratio;
    match interval {
        None => format!("{value:.2} (NOT shown: fewer than {ROUNDS_MIN} rounds)"),
        Some((low, high)) => {
            let how = if high <= goal { "reached" } else { "NOT reached" };
            format!("{value:.2} ({how}; 95 % interval {low:.2} to {high:.2})")
        }
    }
}

/// How a goal is spoken of.
pub fn reached_word(is_reached: bool) -> &'static str {
    if is_reached { "reached" } else { "NOT reached" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        let rounds = [json!({"a": 1.0, "b": "x"}), json!({"a": 9}), json!({"a": 2})];
        assert_eq!(medians(&rounds), json!({"a": 2.0}));
        assert_eq!(medians(&rounds[..2]), json!({"a": 5.0}));
    }

    #[test]
    fn the_final_average_counts() {
        let text = "00:00:01 - lba 4265, iops current 33511 (130 MB/s), iops average 33511 (130 MB/s), busy 0  \riops average 30337 (118 MB/s)   \n";
        assert_eq!(last_average(text), Some(30337.0));
        assert_eq!(last_average("capacity is 0"), None);
    }

    /// A ratio below the goal whose rounds leave it open is no goal that was reached.
    #[test]
    fn a_goal_is_met_by_the_bound_of_the_interval() {
        let of = |own: &[f64]| {
            goal_text(Ratio::of(&vec![1.0; own.len()], own, RoundPairing::Paired).unwrap(), 1.5)
        };
        assert!(of(&[1.4; 5]).contains("(reached;"));
        let open = of(&[1.2, 1.2, 1.2, 1.2, 1.9]);
        assert!(open.starts_with("1.34 (NOT reached;"), "{open}");
        assert!(of(&[1.0; 4]).contains("NOT shown"));
    }

    #[test]
    fn a_table_keeps_loads_and_servers_apart() {
        let mut table = ComparisonTable::default();
        table.add_round("x".into(), ServerKind::Bare, json!({"iops": 1}));
        table.add_round("x".into(), ServerKind::Tgt, json!({"iops": 2}));
        table.add_round("x".into(), ServerKind::Tgt, json!({"iops": 4}));
        table.add_round("y".into(), ServerKind::Tgt, json!({"iops": 5}));
        assert_eq!(table.median_figure("x", ServerKind::Tgt, "iops"), Some(3.0));
        assert_eq!(table.median_figure("x", ServerKind::Bare, "iops"), Some(1.0));
        assert_eq!(table.median_figure("y", ServerKind::Bare, "iops"), None);
        assert_eq!(table.to_json()["y"]["tgt"]["rounds"], json!([{"iops": 5}]));
    }
}
