//! What the connections of each pair of systems have negotiated, over all runs of a record.
//!
//! Invariant: a value that differs between runs is shown with all its values, in the order of the runs.

use super::{Point, Record};

/// What a pair of systems has negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated<'a> {
    /// The target's name.
    pub target: &'a str,
    /// The initiator's.
    pub initiator: &'a str,
    /// What carried it.
    pub protocol: &'a str,
    /// Name and values, each once: more than one if runs differ.
    pub terms: Vec<(&'a str, Vec<&'a str>)>,
}

impl Negotiated<'_> {
    /// `tgt / blockwire, iscsi`.
    pub fn name(&self) -> String {
        format!("{} / {}, {}", self.target, self.initiator, self.protocol)
    }

    /// `FirstBurstLength: 16384` for each name.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.terms.iter().map(|(name, values)| format!("{name}: {}", values.join(", ")))
    }
}

impl Point {
    /// What its first run that tells has negotiated under a name.
    pub fn negotiated(&self, name: &str) -> Option<&str> {
        let terms = self.runs.iter().flat_map(|run| &run.negotiated);
        terms.filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).next()
    }
}

impl Record {
    /// What was negotiated, for each pair of systems that tells, in the record's order.
    pub fn negotiated(&self) -> Vec<Negotiated<'_>> {
        let mut all: Vec<Negotiated<'_>> = Vec::new();
        for point in &self.points {
            for (name, value) in point.runs.iter().flat_map(|run| &run.negotiated) {
                let key = (point.target.as_str(), point.initiator.as_str(), point.protocol.as_str());
                let known = all.iter().position(|one| (one.target, one.initiator, one.protocol) == key);
                let at = known.unwrap_or_else(|| {
                    let (target, initiator, protocol) = key;
                    all.push(Negotiated { target, initiator, protocol, terms: Vec::new() });
                    all.len() - 1
                });
                let Some(pair) = all.get_mut(at) else { continue };
                match pair.terms.iter_mut().find(|(known, _)| known == name) {
                    Some((_, values)) if values.contains(&value.as_str()) => {}
                    Some((_, values)) => values.push(value),
                    None => pair.terms.push((name, vec![value])),
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use crate::record::Record;
    use crate::record::tests::five;

    #[test]
    fn a_value_that_differs_is_shown_with_all_its_values() {
        let point = |target: &str, depth: &str| {
            let mut point = five(target, "randread", 4096, 10_000);
            let terms = [("queue depth", depth), ("ImmediateData", "Yes")];
            for run in &mut point.runs {
                run.negotiated = terms.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
            }
            point
        };
        let silent = five("istgt", "randread", 4096, 10_000);
        let points = vec![point("blockwire", "128"), point("tgt", "64"), silent, point("blockwire", "1023")];
        let record = Record { points, ..Record::default() };
        let all = record.negotiated();
        let lines: Vec<String> = all.iter().flat_map(|one| one.lines()).collect();
        assert_eq!(
            lines,
            ["queue depth: 128, 1023", "ImmediateData: Yes", "queue depth: 64", "ImmediateData: Yes"]
        );
        assert_eq!(all[0].name(), "blockwire / blockwire, iscsi");
        assert_eq!(record.points[1].negotiated("queue depth"), Some("64"));
    }
}
