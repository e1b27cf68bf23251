//! `eval plan`.

use super::sample::{OURS, record};
use super::{blockwire, said, write};

const SIZES: [u64; 4] = [4096, 16_384, 65_536, 131_072];

#[test]
fn a_load_is_computed_from_what_ios_cost() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "run/record.json", &record("t6-100g-sweep", &[OURS], &SIZES, 5, 7));
    let line =
        ["eval", "plan", "--link", "100G", "--io", "4K", "--iops", "2.9M", "--from", "run", "--fill", "100%"];
    let (out, err, code) = said(&blockwire(root.path(), &line));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("2,900,000 IOPS of 4K are 95.0 Gb/s of payload"), "{out}");
    assert!(out.contains("400 GbE") && out.contains("Assumed:"), "{out}");
    let json: Vec<&str> = line.into_iter().chain(["--json", "--rw", "randread"]).collect();
    let (out, _, _) = said(&blockwire(root.path(), &json));
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    let target = &value["needs"][0];
    let cores = target["need"]["cores"].as_f64().unwrap();
    let right = 2.9e6 * (OURS.per_io + OURS.per_byte * 4096.0);
    assert!((cores / right - 1.0).abs() < 0.02, "{cores} against {right}");
    assert_eq!(target["need"]["links"], 1);
    assert_eq!(value["line_rates"].as_array().unwrap().len(), 6);
}

/// A size that was left out is predicted well, or not at all.
#[test]
fn a_size_that_was_left_out_is_predicted() {
    let root = tempfile::tempdir().unwrap();
    // Two whose data rides with a write, and three whose data is asked for.
    let sizes = [SIZES.as_slice(), &[262_144]].concat();
    write(root.path(), "run/record.json", &record("t6-100g-sweep", &[OURS], &sizes, 5, 7));
    let (out, err, code) =
        said(&blockwire(root.path(), &["eval", "plan", "--check", "--from", "run", "--json"]));
    assert_eq!(code, Some(0), "{err}");
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    let all = value["sizes"].as_array().unwrap();
    assert_eq!(all.len(), 2 * 2 * sizes.len(), "two loads, two ends");
    let mut predicted = 0;
    for one in all {
        match one["miss"].as_f64() {
            Some(miss) => {
                predicted += 1;
                assert!(miss.abs() < 0.05 && one["within"] == true, "{one}");
            }
            None => assert!(one["refused"].is_string(), "{one}"),
        }
    }
    assert!(predicted >= 2 * 3, "{out}");
    assert_eq!((value["predicted"].as_u64(), value["within"].as_u64()), (Some(predicted), Some(predicted)));
    let (out, _, _) = said(&blockwire(root.path(), &["eval", "plan", "--check", "--from", "run"]));
    assert!(
        out.contains("of 20 sizes are predicted, the others refused")
            && out.contains("(100 %) are within 15 %"),
        "{out}"
    );
}

#[test]
fn what_cannot_be_planned_says_why() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "one.json", &record("quick", &[OURS], &[8192], 3, 1));
    let plan = |more: &[&str]| {
        let line: Vec<&str> =
            ["eval", "plan", "--io", "4K", "--iops", "1M"].iter().chain(more).copied().collect();
        said(&blockwire(root.path(), &line))
    };
    let (_, err, code) = plan(&["--from", "one.json"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("nothing is predicted.") && err.contains("no measured size below it"), "{err}");
    let (_, err, code) = plan(&["--from", "one.json", "--rw", "trim"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("it has: blockwire / blockwire (iscsi) randread"), "{err}");
    let mut blind = record("quick", &[OURS], &[4096, 8192], 3, 1);
    blind
        .points
        .iter_mut()
        .flat_map(|point| &mut point.runs)
        .for_each(|run| (run.target, run.initiator) = (None, None));
    write(root.path(), "blind.json", &blind);
    assert!(plan(&["--from", "blind.json"]).1.contains("no processor time was measured"));
}
