//! Each format by samples: what it becomes stands beside it (`BLESS=1` writes it again). Samples called `-dump` or
//! `-saved` were written by the other target's own tool on a real system.

use std::{fs, path::PathBuf};

use super::*;

const SAMPLES: [(&str, SourceFormat, usize); 7] = [
    ("lio-saved.json", SourceFormat::Lio, 0),
    ("tgt.conf", SourceFormat::Tgt, 0),
    ("tgt-dump.conf", SourceFormat::Tgt, 3),
    ("scst.conf", SourceFormat::Scst, 1),
    ("ctl.conf", SourceFormat::Ctl, 1),
    ("nvmet-saved.json", SourceFormat::Nvmet, 0),
    ("spdk.json", SourceFormat::Spdk, 1),
];

fn samples() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/samples")
}

/// A text of a format, without files.
fn take(format: SourceFormat, text: &str) -> Result<ImportResult, SourceError> {
    import_text(format, "f", text, &mut IncludedFiles::none())
}

fn toml(format: SourceFormat, text: &str) -> String {
    take(format, text).unwrap().to_toml(SecretFormat::Yes)
}

#[test]
fn samples_become_what_stands_beside_them() {
    for (name, format, errors) in SAMPLES {
        let text = fs::read_to_string(samples().join(name)).unwrap();
        let imported = import_text(format, name, &text, &mut IncludedFiles::none()).unwrap();
        let made = imported.to_toml(SecretFormat::Yes);
        let beside = samples().join(format!("{name}.toml"));
        if std::env::var_os("BLESS").is_some() {
            fs::write(&beside, &made).unwrap();
        }
        assert_eq!(made, fs::read_to_string(&beside).unwrap(), "{name}");
        assert_eq!(imported.errors().len(), errors, "{name}: {:#?}", imported.errors());
        assert_eq!(imported.refused, [], "{name}: serve would refuse it");
    }
}

#[test]
fn a_terminal_shows_no_secret() {
    let chap = ["websecret-0001", "racksecret-0002", "firstsecret12", "secondsecret2", "discoversecret"];
    for (name, format, _) in SAMPLES {
        let text = fs::read_to_string(samples().join(name)).unwrap();
        let imported = import_text(format, name, &text, &mut IncludedFiles::none()).unwrap();
        let shown =
            imported.to_toml(SecretFormat::No) + &imported.errors().join("\n") + &format!("{imported:?}");
        for secret in chap {
            assert!(!shown.contains(secret), "{name}: {secret}");
        }
        assert_eq!(imported.has_secrets(), chap.iter().any(|secret| text.contains(secret)), "{name}");
    }
}

#[test]
fn a_secret_is_in_no_note() {
    for (name, format, _) in SAMPLES {
        let text = fs::read_to_string(samples().join(name)).unwrap();
        let imported = import_text(format, name, &text, &mut IncludedFiles::none()).unwrap();
        for note in imported.notes() {
            assert!(!note.to_string().contains("secret1") && !note.to_string().contains("secret-"), "{note}");
            assert!(note.line > 0 && !note.file.is_empty(), "{note:?}");
        }
    }
}

#[test]
fn what_is_no_json_is_told_with_its_line() {
    let refused = |text: &str| take(SourceFormat::Lio, text).unwrap_err().to_string();
    assert!(refused("{\n\"a\": 1,\n}").starts_with("f:2: is not JSON"), "{}", refused("{\n\"a\": 1,\n}"));
    assert!(refused("").starts_with("f:1: is not JSON"), "{}", refused(""));
    assert!(refused("{\"a\":1,\n\"a\":2}").starts_with("f:2: the key \"a\" stands twice"));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(refused(&deep).starts_with("f:1: is not JSON"), "{}", refused(&deep));
}

#[test]
fn huge_numbers_are_errors_and_not_others() {
    let text = "{\"storage_objects\": [{\"plugin\": \"ramdisk\", \"name\": \"m\",\n\"size\": 99999999999999999999}], \
                \"targets\": [], \"fabric_modules\": []}";
    let errors = take(SourceFormat::Lio, text).unwrap().errors();
    assert!(
        errors.iter().any(|error| error.starts_with("f:2: size") && error.contains("whole number")),
        "{errors:?}"
    );
    for text in [
        "<target iqn.2026-11.x:y>\n<backing-store /a>\nlun 99999999999999999999999\n</backing-store>\n</target>",
        "<target iqn.2026-11.x:y>\n<backing-store /a>\nlun 18446744073709551615\n</backing-store>\n</target>",
    ] {
        assert!(!take(SourceFormat::Tgt, text).unwrap().errors().is_empty(), "{text}");
    }
}

#[test]
fn blocks_that_are_not_closed_or_too_deep_are_told_with_their_line() {
    let refused = |format, text: &str| take(format, text).unwrap_err().to_string();
    assert_eq!(refused(SourceFormat::Scst, "HANDLER a {\n"), "f:1: this { is not closed");
    assert_eq!(refused(SourceFormat::Scst, "a\n}\n"), "f:2: a } without its {");
    assert_eq!(refused(SourceFormat::Ctl, "\n{\n"), "f:2: a block without a name before its {");
    assert_eq!(refused(SourceFormat::Ctl, "lun \"a\n"), "f:1: a quote is not closed");
    assert_eq!(refused(SourceFormat::Tgt, "<target a>\n"), "f:1: <target> is not closed");
    assert_eq!(
        refused(SourceFormat::Tgt, "<target a>\n</backing-store>\n"),
        "f:2: </backing-store> closes nothing"
    );
    assert!(refused(SourceFormat::Ctl, &"a {\n".repeat(1000)).starts_with("f:17: blocks are nested"));
    assert!(refused(SourceFormat::Tgt, &"<a b>\n".repeat(1000)).starts_with("f:17: blocks are nested"));
}

#[test]
fn includes_that_loop_end() {
    let mut asked = 0;
    let find = |_: &str| {
        asked += 1;
        Ok(vec![("f".to_owned(), "\ninclude f\n".to_owned())])
    };
    let why = import_text(SourceFormat::Tgt, "f", "\ninclude f\n", &mut IncludedFiles::from_fn(find))
        .unwrap_err()
        .to_string();
    assert!(why.starts_with("f:2: ") && why.contains("include itself"), "{why}");
    assert!(asked < 20, "{asked}");
    // Each includes two: they would be 65,536 files.
    let find = |_: &str| Ok(vec![("f".to_owned(), "include f\ninclude f\n".to_owned())]);
    let why = import_text(SourceFormat::Tgt, "f", "include f\n", &mut IncludedFiles::from_fn(find))
        .unwrap_err()
        .to_string();
    assert!(why.contains("include itself"), "{why}");
}

#[test]
fn files_are_included_from_beside_the_first_and_told_by_name() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("conf.d")).unwrap();
    fs::write(root.path().join("targets.conf"), "include conf.d/*.conf\n").unwrap();
    fs::write(root.path().join("conf.d/b.conf"), "<target iqn.2026-11.x:b>\nwrong 1\n</target>\n").unwrap();
    fs::write(root.path().join("conf.d/a.conf"), "<target iqn.2026-11.x:a>\nbacking-store /a\n</target>\n")
        .unwrap();
    let imported = import_file(SourceFormat::Tgt, &root.path().join("targets.conf")).unwrap();
    let errors = imported.errors();
    assert!(errors.len() == 1 && errors[0].contains("conf.d/b.conf:2: wrong 1: ERROR"), "{errors:?}");
    let made = imported.to_toml(SecretFormat::Yes);
    assert!(made.find("x:a").unwrap() < made.find("x:b").unwrap(), "in the order of their names");
    assert!(made.contains("b.conf wrong 1"), "{made}");
}

#[test]
fn what_is_no_text_is_told_with_its_line() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("f");
    fs::write(&path, b"a\nb\n\xff\n").unwrap();
    assert!(
        import_file(SourceFormat::Scst, &path)
            .unwrap_err()
            .to_string()
            .ends_with("f:3: this line is not UTF-8 text")
    );
    assert!(
        import_file(SourceFormat::Scst, root.path())
            .unwrap_err()
            .to_string()
            .ends_with("is not a regular file")
    );
}

#[test]
fn a_file_behind_two_stores_is_one_volume() {
    let text = "<target iqn.2026-11.x:a>\nbacking-store /srv/a.img\n</target>\n\
                <target iqn.2026-11.x:b>\n<backing-store /srv/a.img>\nreadonly 1\n</backing-store>\n</target>\n";
    let imported = take(SourceFormat::Tgt, text).unwrap();
    assert_eq!(imported.to_toml(SecretFormat::Yes).matches("[[volume]]").count(), 1);
    let errors = imported.errors();
    assert!(errors.iter().any(|error| error.contains("is volume a, whose options are used")), "{errors:?}");
}

#[test]
fn lio_with_a_missing_secret_lets_nobody_in() {
    let text = r#"{"fabric_modules": [], "storage_objects": [
        {"plugin": "ramdisk", "name": "m", "size": 1048576, "wwn": "x"}],
        "targets": [{"fabric": "iscsi", "wwn": "iqn.2026-11.x:y", "tpgs": [{"enable": true, "tag": 1,
        "attributes": {"authentication": 1, "generate_node_acls": 0}, "parameters": {},
        "luns": [{"index": 0, "storage_object": "/backstores/ramdisk/m"}],
        "portals": [{"ip_address": "127.0.0.1", "port": 3260}],
        "node_acls": [{"node_wwn": "iqn.2026-11.x:host", "mapped_luns": [{"index": 0, "tpg_lun": 0}]}]}]}]}"#;
    let imported = take(SourceFormat::Lio, text).unwrap();
    assert!(
        imported.errors().iter().any(|error| error.contains("it gets no access")),
        "{:?}",
        imported.errors()
    );
    let made = imported.to_toml(SecretFormat::Yes);
    assert!(made.contains("open = false") && !made.contains("[[host]]"), "{made}");
}

#[test]
fn nvmet_secrets_become_files_beside_the_configuration() {
    let text = r#"{"hosts": [{"nqn": "nqn.2026-11.x:h", "dhchap_key": "DHHC-1:00:AAAA:",
        "dhchap_ctrl_key": "DHHC-1:00:BBBB:"}],
        "ports": [{"addr": {"trtype": "tcp", "traddr": "192.0.2.1", "trsvcid": "4420"}, "portid": 1,
        "subsystems": ["nqn.2026-11.x:s"]}],
        "subsystems": [{"nqn": "nqn.2026-11.x:s", "attr": {"allow_any_host": "0"}, "allowed_hosts": ["nqn.2026-11.x:h"],
        "namespaces": [{"nsid": 1, "enable": 1, "device": {"path": "/dev/sdb"}}]}]}"#;
    let imported = take(SourceFormat::Nvmet, text).unwrap();
    assert_eq!(imported.errors(), [] as [String; 0]);
    let files = imported.key_files();
    let secrets: Vec<&str> = files.iter().map(|(_, secret)| secret.expose()).collect();
    assert_eq!(secrets, ["DHHC-1:00:AAAA:", "DHHC-1:00:BBBB:"]);
    let made = imported.to_toml(SecretFormat::Yes);
    assert!(
        made.contains(&format!("dhchap_key_file = \"{}\"", files[0].0)) && !made.contains("AAAA"),
        "{made}"
    );
    assert!(
        made.contains(&format!("dhchap_controller_key_file = \"{}\"", files[1].0)) && !made.contains("BBBB"),
        "{made}"
    );
    assert!(!imported.needs_anonymous());
}

#[test]
fn an_unexported_volume_stays_a_comment() {
    let made = toml(SourceFormat::Scst, "HANDLER vdisk_fileio {\nDEVICE a {\nfilename /srv/a\n}\n}\n");
    assert!(made.contains("# [[volume]]") && !made.contains("\n[[volume]]"), "{made}");
}

#[test]
fn lun_numbers_of_tgt_follow_the_paths() {
    let made =
        toml(SourceFormat::Tgt, "<target iqn.2026-11.x:a>\nbacking-store /b\nbacking-store /a\n</target>\n");
    assert!(
        made.contains("{ lun = 1, volume = \"a\" }") && made.contains("{ lun = 2, volume = \"b\" }"),
        "{made}"
    );
}
