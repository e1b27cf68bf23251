//! `eval compare`.

use super::sample::{OURS, System, record};
use super::{blockwire, said, write};

#[test]
fn a_slower_run_fails_the_gate_and_is_named() {
    let root = tempfile::tempdir().unwrap();
    let slow = System { per_io: OURS.per_io * 1.3, ..OURS };
    write(root.path(), "before/record.json", &record("quick", &[OURS], &[4096], 5, 1));
    write(root.path(), "after/record.json", &record("quick", &[slow], &[4096], 5, 2));
    write(root.path(), "same.json", &record("quick", &[OURS], &[4096], 5, 3));
    let (out, err, code) = said(&blockwire(root.path(), &["eval", "compare", "before", "after"]));
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(
        out.contains("WORSE") && out.contains("blockwire / blockwire: iscsi randread, 4096 bytes"),
        "{out}"
    );
    assert!(err.contains("got worse by more than 5 %"), "{err}");
    let (out, err, code) = said(&blockwire(root.path(), &["eval", "compare", "before", "same.json"]));
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains(" 0 worse"), "{out}");
    // The other way round it is better in runs that are too short to win, and a wide gate lets it pass.
    assert_eq!(said(&blockwire(root.path(), &["eval", "compare", "after", "before"])).2, Some(0));
    let wide = ["eval", "compare", "before", "after", "--gate", "60%"];
    assert_eq!(said(&blockwire(root.path(), &wide)).2, Some(0));
}

#[test]
fn json_holds_what_the_table_says() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "a.json", &record("quick", &[OURS], &[4096, 65_536], 4, 1));
    write(root.path(), "b.json", &record("quick", &[OURS], &[4096], 4, 2));
    let (out, _, code) = said(&blockwire(root.path(), &["eval", "compare", "a.json", "b.json", "--json"]));
    assert_eq!(code, Some(0));
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value["pairs"].as_array().unwrap().len(), 2);
    assert_eq!(value["pairs"][0]["lines"][0]["what"], "iops");
    assert_eq!(value["only_a"].as_array().unwrap().len(), 2);
    assert_eq!(value["worse"], 0);
}

#[test]
fn what_cannot_be_compared_says_why() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "a.json", &record("quick", &[OURS], &[4096], 3, 1));
    write(root.path(), "b.json", &record("quick", &[OURS], &[8192], 3, 2));
    write(root.path(), "c.json", &record("quick", &[OURS], &[4096], 3, 3));
    let (_, err, code) = said(&blockwire(root.path(), &["eval", "compare", "a.json", "b.json"]));
    assert_eq!(code, Some(2));
    assert!(err.contains("no load in common") && err.contains("8192 bytes"), "{err}");
    let (out, _, _) = said(&blockwire(root.path(), &["eval", "compare", "a.json", "c.json"]));
    assert!(out.contains("caution: too few runs: 3 and 3"), "{out}");
    // A loss that three runs cannot prove is no pass.
    let slow = System { per_io: OURS.per_io * 1.3, ..OURS };
    write(root.path(), "e.json", &record("quick", &[slow], &[4096], 3, 4));
    let (out, err, code) = said(&blockwire(root.path(), &["eval", "compare", "a.json", "e.json"]));
    assert_eq!(code, Some(2), "{out}{err}");
    assert!(out.contains(" 0 worse") && err.contains("too few runs to tell it from chance"), "{out}{err}");
    let (_, err, code) = said(&blockwire(root.path(), &["eval", "compare", "a.json", "none"]));
    assert_eq!(code, Some(1));
    assert!(err.contains("none: No such file"), "{err}");
    std::fs::write(root.path().join("d.json"), "{}").unwrap();
    let (_, err, _) = said(&blockwire(root.path(), &["eval", "compare", "a.json", "d.json"]));
    assert!(err.contains("d.json: not a record of an evaluation"), "{err}");
}
