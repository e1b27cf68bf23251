//! How printed figures depend on each other, and which of them contradict each other.

use std::fmt;

use serde::Deserialize;

use super::{Published, PublishedFigure};
use crate::figure_range::FigureRange;

/// How far averages of one run may miss each other: they are not taken at the same instants.
const RUN_TOLERANCE: FigureRange = FigureRange::around_one(0.02);
/// How far rows of a table may differ in I/Os in flight.
const LOAD_TOLERANCE: FigureRange = FigureRange::around_one(0.005);

/// A dependency. Fields name figures.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum FigureRelation {
    /// Processor effectiveness: the change of IOPS over the change of processor use.
    Effectiveness {
        /// The effectiveness's change.
        stated: String,
        /// The change of IOPS.
        iops: String,
        /// The change of processor use.
        cpu: String,
    },
    /// Remote less local latency.
    Difference {
        /// The difference.
        stated: String,
        /// What is greater.
        of: String,
        /// What is taken from it.
        less: String,
    },
    /// A change: the new over the old.
    Change {
        /// The change.
        stated: String,
        /// The old.
        from: String,
        /// The new.
        to: String,
    },
    /// Bandwidth: IOPS times size.
    Bandwidth {
        /// In MB/s of 2^20 bytes.
        stated: String,
        /// IOPS.
        iops: String,
        /// Bytes of each.
        bytes: f64,
    },
    /// Load of one depth: by Little's law the change of latency is one over the change of IOPS.
    SameDepth {
        /// The change of latency.
        stated: String,
        /// The change of IOPS.
        iops: String,
    },
    /// A fixed job: the change of its time is one over the change of IOPS.
    FixedJob {
        /// The change of time.
        stated: String,
        /// The change of IOPS.
        iops: String,
    },
    /// IOPS times latency is as many for each pair of a table: one load for all.
    OneLoad {
        /// IOPS, row for row.
        iops: Vec<String>,
        /// Response times in ms, row for row.
        latency: Vec<String>,
    },
    /// Two rows of a table that names one load: IOPS times response time is as many I/Os in flight in both.
    OneDepth {
        /// The response time in ms.
        stated: String,
        /// Its IOPS.
        iops: String,
        /// The other row's IOPS.
        other_iops: String,
        /// The other row's response time in ms.
        other_latency: String,
    },
    /// Payload on an Ethernet link: no more than its frames leave for it.
    LineRate {
        /// In Gb/s.
        stated: String,
        /// The link's, in Gb/s.
        link: f64,
        /// Bytes of a frame's payload.
        mtu: f64,
    },
    /// The same thing, said twice.
    Same {
        /// Here.
        stated: String,
        /// And there.
        again: String,
    },
    /// A product of counts.
    Product {
        /// The product.
        stated: String,
        /// Its factors.
        factors: Vec<String>,
    },
}

/// Figures that cannot all be right.
#[derive(Clone, Debug, PartialEq)]
pub struct InconsistentFigures {
    /// The derived figure.
    pub figure: String,
    /// What is printed.
    pub stated: FigureRange,
    /// What follows from the others.
    pub follows: FigureRange,
    /// From what, in words.
    pub because: String,
}

impl fmt::Display for InconsistentFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InconsistentFigures { figure, stated, follows, because } = self;
        write!(f, "{figure}: printed {stated}, but {because} gives {follows}")
    }
}

impl FigureRelation {
    /// The figures that it names.
    pub fn figure_ids(&self) -> Vec<&str> {
        match self {
            FigureRelation::Effectiveness { stated, iops, cpu } => vec![stated, iops, cpu],
            FigureRelation::Difference { stated, of, less } => vec![stated, of, less],
            FigureRelation::Change { stated, from, to } => vec![stated, from, to],
            FigureRelation::Bandwidth { stated, iops, .. }
            | FigureRelation::SameDepth { stated, iops }
            | FigureRelation::FixedJob { stated, iops } => vec![stated, iops],
            FigureRelation::OneDepth { stated, iops, other_iops, other_latency } => {
                vec![stated, iops, other_iops, other_latency]
            }
            FigureRelation::LineRate { stated, .. } => vec![stated],
            FigureRelation::OneLoad { iops, latency } => {
                iops.iter().chain(latency).map(String::as_str).collect()
            }
            FigureRelation::Same { stated, again } => vec![stated, again],
            FigureRelation::Product { stated, factors } => {
                std::iter::once(stated).chain(factors).map(String::as_str).collect()
            }
        }
    }

    /// What the derived figure must be, and why, in the figures' own words.
    fn derived_value(
        &self,
        of: &impl Fn(&str) -> FigureRange,
        words: &impl Fn(&str) -> String,
    ) -> Option<(FigureRange, String)> {
        let one = FigureRange::new(1.0, 1.0);
        Some(match self {
            FigureRelation::Effectiveness { iops, cpu, .. } => {
                (of(iops).divided_by(&of(cpu))?, format!("{} over {}", words(iops), words(cpu)))
            }
            FigureRelation::Difference { of: greater, less, .. } => {
                (of(greater).minus(&of(less)), format!("{} less {}", words(greater), words(less)))
            }
            FigureRelation::Change { from, to, .. } => {
                (of(to).divided_by(&of(from))?, format!("{} over {}", words(to), words(from)))
            }
            FigureRelation::Bandwidth { iops, bytes, .. } => {
                let each = bytes / f64::from(1 << 20);
                (
                    of(iops).times(&FigureRange::new(each, each)),
                    format!("{} times {bytes} bytes", words(iops)),
                )
            }
            FigureRelation::SameDepth { iops, .. } => (
                one.divided_by(&of(iops))?.times(&RUN_TOLERANCE),
                format!("one over {} (Little's law at one depth)", words(iops)),
            ),
            FigureRelation::FixedJob { iops, .. } => (
                one.divided_by(&of(iops))?.times(&RUN_TOLERANCE),
                format!("one over {}, for a fixed job,", words(iops)),
            ),
            FigureRelation::OneDepth { iops, other_iops, other_latency, .. } => {
                let depth = of(other_iops).times(&of(other_latency));
                let count = depth.middle() / 1e3;
                (
                    depth.divided_by(&of(iops))?.times(&LOAD_TOLERANCE),
                    format!(
                        "{} and {} are {count:.0} I/Os in flight, which",
                        words(other_iops),
                        words(other_latency)
                    ),
                )
            }
            FigureRelation::LineRate { link, mtu, .. } => (
                FigureRange::new(f64::NEG_INFINITY, link * payload_share_of_link(*mtu)),
                format!(
                    "what frames of {mtu} bytes leave of {link} Gb/s for payload (without headers of iSCSI or NVMe)"
                ),
            ),
            FigureRelation::Same { again, .. } => (of(again), words(again)),
            FigureRelation::Product { factors, .. } => (
                factors.iter().fold(one, |product, factor| product.times(&of(factor))),
                factors.iter().map(|factor| words(factor)).collect::<Vec<_>>().join(" times "),
            ),
            FigureRelation::OneLoad { .. } => return None,
        })
    }

    fn derived_figure_id(&self) -> Option<&str> {
        match self {
            FigureRelation::OneLoad { .. } => None,
            _ => self.figure_ids().first().copied(),
        }
    }
}

/// The part of a link that frames of an MTU leave for TCP's payload: IPv4 and TCP without options take 40 bytes of it,
/// Ethernet 38 beside it.
fn payload_share_of_link(mtu: f64) -> f64 {
    (mtu - 40.0) / (mtu + 38.0)
}

/// Rows of a table under one load have IOPS times latency alike; the row whose depth none of the others
/// shares is the slip.
fn inconsistent_load_rows(
    iops: &[String],
    latency: &[String],
    of: &impl Fn(&str) -> FigureRange,
    words: &impl Fn(&str) -> String,
) -> Vec<InconsistentFigures> {
    let milli = FigureRange::new(1e-3, 1e-3);
    let rows: Vec<FigureRange> = iops
        .iter()
        .zip(latency)
        .map(|(iops, ms)| of(iops).times(&of(ms)).times(&milli).times(&LOAD_TOLERANCE))
        .collect();
    let lonely = |at: usize, one: &FigureRange| {
        rows.iter().enumerate().all(|(other, row)| other == at || !row.overlaps(one))
    };
    let each = iops.iter().zip(latency).zip(&rows).enumerate();
    let slips = each.filter(|(at, (_, row))| rows.len() > 2 && lonely(*at, row)).map(
        |(at, ((iops, latency), row))| {
            let stated = *row;
            let others = rows.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, row)| row);
            let (low, high) = others.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), row| {
                (l.min(row.low()), h.max(row.high()))
            });
            InconsistentFigures {
                figure: latency.clone(),
                stated,
                follows: FigureRange::new(low, high),
                because: format!("{} times it are I/Os in flight, and the table's other rows", words(iops)),
            }
        },
    );
    slips.collect()
}

/// Computes every derived figure again and names those that cannot be.
pub fn inconsistent_figures(published: &Published) -> Vec<InconsistentFigures> {
    let of = |id: &str| published.figure(id).map_or(FigureRange::new(0.0, 0.0), PublishedFigure::value_range);
    let words = |id: &str| {
        let figure = published.figure(id);
        figure.map_or_else(|| id.to_owned(), |figure| format!("{figure} ({})", figure.what))
    };
    let mut slips = Vec::new();
    for relation in &published.relations {
        if let FigureRelation::OneLoad { iops, latency } = relation {
            slips.extend(inconsistent_load_rows(iops, latency, &of, &words));
        }
        let Some((stated, (follows, because))) =
            relation.derived_figure_id().zip(relation.derived_value(&of, &words))
        else {
            continue;
        };
        let printed = of(stated);
        if !printed.overlaps(&follows) {
            slips.push(InconsistentFigures { figure: stated.to_owned(), stated: printed, follows, because });
        }
    }
    slips
}

#[cfg(test)]
mod tests {
    use super::super::published_data;
    use super::*;

    /// The papers' slips, no fewer and no more: each was looked at by hand.
    #[test]
    fn the_papers_slips_are_found() {
        let found: Vec<String> =
            inconsistent_figures(published_data()).into_iter().map(|slip| slip.figure).collect();
        let expected = [
            // 1.43 over 0.51 is 2.80.
            "demartek.target-write-effectiveness",
            // 1.78 over 0.40 is 4.45.
            "demartek.target-oltp-effectiveness",
            // Thrice the IOPS at one depth is a third of the latency.
            "demartek.target-read-latency",
            // 20 % more IOPS is 17 % less time.
            "demartek.initiator-oltp-time",
            // The summary says utilisation where effectiveness is meant.
            "demartek.summary-initiator-read-cpu",
            // Local 20.08 does not fit; 20.80 does.
            "sdc2021.spdk-nic-write-delta",
            "sdc2021.spdk-toe-write-delta",
            "sdc2021.spdk-iwarp-write-delta",
            // 146 in flight, where the other two rows have 134.
            "sdc2021.aic-8k-response",
            // 256 in flight at 1 MiB, and 134 at 8 KiB, in a table of one load.
            "sdc2021.aic-1m-response",
            "sdc2021.sas-1m-response",
            "sdc2021.sata-1m-response",
            // It is the delta that does not follow: 29.65 less 20.08 is 9.57.
            "sdc2021.headline-delta",
            // 16.41 over 20.22 is 19 % less.
            "sdc2021.kernel-gain-write",
            // Frames of 9000 bytes leave 99.1 of 100 Gb/s.
            "t6-100g.throughput",
        ];
        let (mut found, mut expected) = (found, expected.map(str::to_owned).to_vec());
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_slip_says_what_was_to_be_expected() {
        let slips = inconsistent_figures(published_data());
        let slip = slips.iter().find(|slip| slip.figure.ends_with("oltp-effectiveness")).unwrap();
        assert!(slip.to_string().contains("gives 4.3"), "{slip}");
    }

    /// A reader of a report knows no names of this program.
    #[test]
    fn a_slip_is_told_in_words() {
        for slip in inconsistent_figures(published_data()) {
            assert!(
                published_data().figures.iter().all(|figure| !slip.because.contains(&figure.id)),
                "{slip}"
            );
        }
        let because = |id: &str| {
            inconsistent_figures(published_data()).into_iter().find(|slip| slip.figure == id).unwrap().because
        };
        assert!(because("sdc2021.sas-1m-response").contains("are 134 I/Os in flight"));
        assert!(because("sdc2021.headline-delta").starts_with("29.65 us (remote latency, write"));
        let ceiling = 100.0 * payload_share_of_link(9000.0);
        assert!((99.1..99.2).contains(&ceiling), "{ceiling}");
    }

    #[test]
    fn the_other_baseline_mends_all_three() {
        let mut mended = published_data().clone();
        for figure in &mut mended.figures {
            if figure.id == "sdc2021.spdk-write-local" {
                figure.value = 20.80;
            }
        }
        assert!(inconsistent_figures(&mended).iter().all(|slip| !slip.figure.ends_with("write-delta")));
    }

    #[test]
    fn every_figure_has_its_place() {
        let data = published_data();
        assert!(data.figures.iter().all(|figure| !figure.at.is_empty() && figure.step >= 0.0));
        assert_eq!(data.papers.len(), 5);
        for paper in &data.papers {
            assert!(data.figures_of(&paper.id).next().is_some(), "{} has figures", paper.id);
        }
    }
}
