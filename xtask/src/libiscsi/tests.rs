use super::*;

const LOG: &str = "\
Suite: Read6
  Test: Simple ...passed
  Test: BeyondEol ...    [FAILED] READ6 command failed
FAILED
    1. test_read6_beyond_eol.c:42  - CU_ASSERT_EQUAL(_r,0)
Suite: Unmap
  Test: Simple ...    [SKIPPED] Logical unit is fully provisioned. Skipping test
passed
  Test: ZeroBlocks ...
    Test UNMAP of 0 blocks
passed    [FAILED] PRIN command: failed with sense. (clean-up of the suite)
Suite: Sanitize
  Test: Readonly ...    [SKIPPED] SANITIZE CRYPTO_ERASE is not implemented according to
passed
  Test: Reset ...
    Test SANITIZE with Task/Lun/Target/Session reset
";

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_log_is_read() {
    let outcomes = parse_log(LOG);
    let words: Vec<_> = outcomes.iter().map(|(name, o)| (name.as_str(), o.word())).collect();
    assert_eq!(
        words,
        [
            ("Read6.BeyondEol", "failed"),
            ("Read6.Simple", "ran"),
            ("Sanitize.Readonly", "partial"),
            ("Sanitize.Reset", "failed"),
            ("Unmap.Simple", "never"),
            ("Unmap.ZeroBlocks", "ran"),
        ]
    );
    assert_eq!(outcomes["Unmap.Simple"].reason(), "Logical unit is fully provisioned. Skipping test");
}

#[test]
fn a_missing_sanitize_action_other_than_crypto_erase_skips_the_whole_test() {
    let log = "Suite: Sanitize\n  Test: Readonly ...    [SKIPPED] SANITIZE OVERWRITE is not\npassed\n";
    assert_eq!(parse_log(log)["Sanitize.Readonly"].word(), "never");
}

#[test]
fn a_repeated_test_replaces_its_hang() {
    let log = "Suite: A\n  Test: B ...\nSuite: A\n  Test: B ...passed\n";
    assert_eq!(parse_log(log)["A.B"], Outcome::Ran);
}

#[test]
fn kinds_are_united() {
    let mut united = Outcomes::new();
    unite(&mut united, "thick", parse_log("Suite: A\n  Test: B ...[SKIPPED] thick\npassed\n"));
    assert_eq!(united["A.B"].word(), "never");
    unite(&mut united, "thin", parse_log("Suite: A\n  Test: B ...passed\n"));
    assert_eq!(united["A.B"], Outcome::Ran);
    unite(&mut united, "other", parse_log("Suite: A\n  Test: B ...FAILED\n"));
    assert_eq!(united["A.B"].word(), "failed");
    unite(&mut united, "thin", parse_log("Suite: A\n  Test: B ...passed\n"));
    assert_eq!(united["A.B"].word(), "failed", "a failure on one kind stays");
}

#[test]
fn the_list_holds_tests_of_the_family_all_only() {
    let list = "ALL\nALL.Read6\nALL.Read6.Simple\nSCSI.Read6.Simple\n";
    assert_eq!(parse_list(list), ["Read6.Simple"]);
}

#[test]
fn worse_than_expected_is_a_finding_and_better_a_note() {
    let tests = names(&["A.Worse", "A.Better", "A.Missing", "A.New"]);
    let united = Outcomes::from([
        ("A.Worse".to_owned(), Outcome::Never("why".to_owned())),
        ("A.Better".to_owned(), Outcome::Ran),
        ("A.New".to_owned(), Outcome::Ran),
    ]);
    let expected = parse_expected("A.Worse ran\nA.Better never why\nA.Missing ran\nA.Gone ran\n");
    let report = compare(&tests, &united, &expected.unwrap(), LIMIT);
    assert_eq!(report.findings.len(), 4, "{:?}", report.findings);
    assert_eq!(report.notes, ["A.Better ran  (expected only: never)"]);
}

#[test]
fn too_many_tests_without_a_full_run_are_a_finding() {
    let united: Outcomes = (0..6).map(|n| (format!("A.T{n}"), Outcome::Never("why".to_owned()))).collect();
    let tests: Vec<String> = united.keys().cloned().collect();
    let report = compare(&tests, &united, &united, LIMIT);
    assert_eq!(report.findings, ["6 tests without a full run, 5 at most"]);
}

#[test]
fn an_expected_shortfall_needs_a_reason() {
    assert!(parse_expected("A.B never\n").is_err());
    assert!(parse_expected("A.B sometimes\n").is_err());
    assert!(parse_expected("# comment\nA.B never no key to destroy\n").is_ok());
}

#[test]
fn only_a_test_that_is_never_to_run_may_be_left_out() {
    let expected = parse_expected("A.Never never no key\nA.Ran ran\n").unwrap();
    let report = compare(&names(&["A.Never", "A.Ran"]), &Outcomes::new(), &expected, LIMIT);
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert!(report.findings[0].starts_with("A.Ran failed"));
}
