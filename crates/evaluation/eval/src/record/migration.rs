//! What records of older programs do not say and is known of them.
//!
//! Invariant: nothing is added to a record that says it, and nothing that is not so of every record that does not.

use super::{EndUsage, Record};

impl Record {
    /// Before an end could be recorded as one that polls and does not report for how long, SPDK's were without that word:
    /// their processors passed for busy with work.
    pub(super) fn migrated(mut self) -> Record {
        for point in &mut self.points {
            let initiator_polls = point.initiator == "spdk";
            let target_polls = point.target.starts_with("spdk-");
            for run in &mut point.runs {
                let ends = [(initiator_polls, &mut run.initiator), (target_polls, &mut run.target)];
                let polling =
                    ends.into_iter().filter(|(polls, _)| *polls).filter_map(|(_, end)| end.as_mut());
                polling.for_each(EndUsage::mark_polling);
            }
        }
        self
    }
}

impl EndUsage {
    fn mark_polling(&mut self) {
        self.polls_untold |= self.idle_polls.is_none();
    }
}

#[cfg(test)]
mod tests {
    use crate::cpu::CpuTimes;
    use crate::record::tests::five;
    use crate::record::{LoadLimit, Point, RECORD_SCHEMA_VERSION, Record};

    /// As an older program wrote it: without `polls_untold`.
    fn read(target: &str, initiator: &str, idle_polls: Option<f64>) -> Point {
        let mut point = five(target, "randread", 4096, 10_000);
        point.initiator = initiator.to_owned();
        for run in &mut point.runs {
            for (end, busy) in [(&mut run.target, 10.0), (&mut run.initiator, 20.0)] {
                let end = end.as_mut().unwrap();
                end.idle_polls = idle_polls;
                let kinds = CpuTimes { user: busy, idle: 20.0 - busy, ..CpuTimes::default() };
                end.cores.cores.iter_mut().for_each(|(_, core)| *core = kinds);
            }
        }
        let record = Record { schema: RECORD_SCHEMA_VERSION, points: vec![point], ..Record::default() };
        let text = record.to_text().unwrap();
        assert!(!text.contains("polls_untold"), "{text}");
        Record::parse(&text).unwrap().points.remove(0)
    }

    #[test]
    fn spdk_polls_where_an_older_record_does_not_say_so() {
        let ends = |point: &Point| {
            let end = |end: &Option<crate::record::EndUsage>| end.as_ref().unwrap().polls_untold;
            (end(&point.runs[0].target), end(&point.runs[0].initiator))
        };
        let client = read("blockwire", "spdk", None);
        assert_eq!((ends(&client), client.limit()), ((false, true), None));
        assert_eq!(ends(&read("spdk-nvmf", "blockwire", None)), (true, false));
        // Who says for how long is believed.
        assert_eq!(ends(&read("spdk-nvmf", "spdk", Some(1.0))), (false, false));
        let other = read("tgt", "blockwire", None);
        assert_eq!((ends(&other), other.limit()), ((false, false), Some(LoadLimit::Initiator)));
    }
}
