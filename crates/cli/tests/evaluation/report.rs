//! `eval report`.

use super::sample::{OURS, System, record};
use super::{blockwire, said, write};

const OTHER: System = System { name: "tgt", per_io: 7e-6, per_byte: 2.5e-10 };

#[test]
fn a_page_is_written_beside_the_record() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "run/record.json", &record("t6-100g-sweep", &[OTHER, OURS], &[4096, 65_536], 5, 1));
    let (out, err, code) = said(&blockwire(root.path(), &["eval", "report", "run"]));
    assert_eq!((code, out.as_str()), (Some(0), "run/report.html\n"), "{err}");
    let page = std::fs::read_to_string(root.path().join("run/report.html")).unwrap();
    for outside in ["http://", "https://", "<script", "<link", "@import", "url("] {
        assert!(!page.contains(outside), "the page needs {outside}");
    }
    for shown in [
        "A smoke test does not tell it from tgt",
        "High Performance iSCSI at 100GbE",
        "<dt>Not comparable</dt>",
        "100 Gb/s for target throughput",
    ] {
        assert!(page.contains(shown), "{shown}");
    }
}

#[test]
fn other_forms_are_printed() {
    let root = tempfile::tempdir().unwrap();
    let made = record("quick", &[OTHER, OURS], &[4096], 3, 1);
    write(root.path(), "record.json", &made);
    let print = |format: &str| said(&blockwire(root.path(), &["eval", "report", ".", "--format", format])).0;
    assert!(print("markdown").contains("| blockwire |"));
    assert_eq!(print("csv").lines().count(), 1 + made.points.len());
    let again = eval::record::Record::parse(&print("json")).unwrap();
    assert_eq!(
        (again.points.len(), again.points[1].latency_histogram()),
        (made.points.len(), made.points[1].latency_histogram())
    );
}
