//! `eval export` and `eval import`, with the real fio.

use std::process::Command;

use super::{blockwire, said};

/// fio's own reading of every job file that is written for it.
#[test]
fn fio_reads_what_is_written_for_it() {
    let root = tempfile::tempdir().unwrap();
    let list = said(&blockwire(root.path(), &["eval", "list", "--json"])).0;
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    for preset in list.as_array().unwrap() {
        let id = preset["id"].as_str().unwrap();
        // What it asks for is what it takes: the names of all volumes.
        let line = ["eval", "export", id, "--as", "fio", "--out", "x.fio"];
        let (_, err, code) = said(&blockwire(root.path(), &line));
        assert_eq!((code, root.path().join("x.fio").exists()), (Some(2), false), "{id}: {err}");
        let named = err.split_ascii_whitespace().filter(|word| word.starts_with("'v"));
        let names: Vec<String> = named.map(|word| word.trim_matches('\'').to_owned()).collect();
        let mut line = line.to_vec();
        line.extend(names.iter().flat_map(|name| ["--map", name.as_str()]));
        let (_, err, code) = said(&blockwire(root.path(), &line));
        if id == "demartek-oltp" {
            assert_eq!(code, Some(2));
            assert!(err.contains("hammerdb"), "{err}");
            continue;
        }
        assert_eq!(code, Some(0), "{id}: {err}");
        let fio = Command::new("fio").args(["--parse-only", "x.fio"]).current_dir(root.path()).output();
        let fio = fio.expect("fio is installed by tests/setup.sh attach");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(fio.status.success(), "{id}: {}{}", text(&fio.stdout), text(&fio.stderr));
        std::fs::remove_file(root.path().join("x.fio")).unwrap();
    }
}

/// An experiment is written for fio, run by it, and its results are taken back.
#[test]
fn what_fio_measured_becomes_a_record() {
    let root = tempfile::tempdir().unwrap();
    let run = |line: &[&str]| said(&blockwire(root.path(), line));
    let file = root.path().join("volume");
    std::fs::File::create(&file).unwrap().set_len(256 << 20).unwrap();
    let (_, err, code) =
        run(&["eval", "export", "quick", "--as", "fio", "--map", "v0=volume", "--out", "x.fio"]);
    assert_eq!(code, Some(0), "{err}");
    // For half a second, and through the page cache: not every file system has another way.
    let text = std::fs::read_to_string(root.path().join("x.fio")).unwrap();
    let text = text.replace("runtime=2", "runtime=500ms").replace("direct=1", "direct=0");
    std::fs::write(root.path().join("x.fio"), text).unwrap();
    for name in ["one.json", "two.json"] {
        let fio = Command::new("fio")
            .args(["x.fio", "--output-format=json+", "--output", name])
            .current_dir(root.path())
            .output()
            .expect("fio is installed by tests/setup.sh attach");
        assert!(fio.status.success(), "{}", String::from_utf8_lossy(&fio.stderr));
    }
    let mut line = vec!["eval", "import", "one.json", "two.json", "--target", "file", "--protocol", "local"];
    line.extend(["--preset", "quick", "--out", "r"]);
    let (out, err, code) = run(&line);
    assert_eq!((code, out.as_str()), (Some(0), "r/record.json: 2 loads, 4 runs\n"), "{err}");
    let record = std::fs::read_to_string(root.path().join("r/record.json")).unwrap();
    let record = eval::record::Record::parse(&record).unwrap();
    let fio: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(root.path().join("one.json")).unwrap()).unwrap();
    for (at, (rw, side)) in [("randread", "read"), ("randwrite", "write")].into_iter().enumerate() {
        let (point, job) = (&record.points[at], &fio["jobs"][at][side]);
        assert_eq!((point.rw.as_str(), point.depth, point.bytes), (rw, 32, 4096));
        let (mine, iops) = (point.runs[0].iops(), job["iops"].as_f64().unwrap());
        assert!((mine / iops - 1.0).abs() < 0.02, "{rw}: {mine} against {iops}");
        let mean = job["clat_ns"]["mean"].as_f64().unwrap();
        assert!((point.runs[0].latency.mean() / mean - 1.0).abs() < 0.001, "{rw}");
    }
    // What was taken can be shown and compared.
    assert_eq!(run(&["eval", "report", "r", "--format", "markdown"]).2, Some(0));
    assert_eq!(run(&["eval", "compare", "r", "r"]).2, Some(0));
}

#[test]
fn what_cannot_be_exchanged_says_why() {
    let root = tempfile::tempdir().unwrap();
    let run = |line: &[&str]| said(&blockwire(root.path(), line));
    let (_, err, code) = run(&["eval", "export", "quick", "--as", "vdbench", "--map", "v0=iscsi://h/t/0"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("attach it"), "{err}");
    let (_, err, code) = run(&["eval", "export", "quick", "--as", "hammerdb"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("no load of a database"), "{err}");
    std::fs::write(root.path().join("x"), "nothing").unwrap();
    let (_, err, code) = run(&["eval", "import", "x"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("x: neither fio's JSON"), "{err}");
}
