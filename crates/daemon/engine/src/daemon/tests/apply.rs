//! Configurations that are applied, and what is undone of one that fails at each step.

use config::{ConfigFiles, diagnostic::Sink};

use super::*;
use crate::state::configuration::AppliedConfiguration;

/// What the fixture serves.
const BASE: &str = r#"
[[portal]]
protocol = "iscsi"
address = "127.0.0.1:0"
[[portal]]
protocol = "nvme"
address = "127.0.0.1:0"
[[volume]]
name = "demo"
source = "ram:1M"
"#;

struct Applying {
    fixture: Fixture,
    new: PathBuf,
}

fn applying() -> Applying {
    applying_with(None)
}

/// With a file of `serve`, which somebody edits whenever it is made a plan of.
fn applying_with(served: Option<&str>) -> Applying {
    let Fixture { root, engine, daemon } = fixture();
    let said = |errors: Vec<config::diagnostic::Diagnostic>| format!("{errors:?}");
    let file = served.map(|name| root.path().join(name));
    let edited = file.clone();
    let build = move |files: &ConfigFiles, created: Vec<Volume>| {
        edited.iter().for_each(|path| std::fs::write(path, "node = 'later'\n").unwrap());
        let sink = Sink::default();
        let mut draft = files.draft(&sink);
        let at = config::diagnostic::Place::outside_file("created");
        draft
            .volumes
            .extend(created.into_iter().map(|one| config::diagnostic::Located::new(one, at.clone())));
        let plan = check::resolve_draft(draft, &check::CommandLineOptions::default(), &sink);
        sink.into_result(plan).map_err(said)
    };
    std::fs::write(root.path().join("base.toml"), BASE).unwrap();
    let new = root.path().join("new.img");
    let more = format!("{BASE}[[volume]]\nname = \"new\"\nsource = \"file:{},size=1M\"\n", new.display());
    std::fs::write(root.path().join("next.toml"), more).unwrap();
    let current = ConfigFiles::read(&root.path().join("base.toml"), &Sink::default());
    let daemon = daemon.configured(Configuration { file, current, build: Box::new(build) });
    Applying { fixture: Fixture { root, engine, daemon }, new }
}

impl Applying {
    fn apply(&self, name: &str) -> Result<Answer, RequestRefusal> {
        self.fixture.daemon.handle_request(Request::Apply { file: Some(self.fixture.root.path().join(name)) })
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.fixture.root.path().join(name), text).unwrap();
    }

    fn told(&self) -> Vec<String> {
        self.fixture.engine.take()
    }

    fn recorded(&self) -> Option<AppliedConfiguration> {
        AppliedConfiguration::load(&self.fixture.daemon.volumes.state).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let Answer::Volumes(list) = self.fixture.daemon.handle_request(Request::VolumeList).unwrap() else {
            panic!()
        };
        list.into_iter().map(|one| one.name).collect()
    }
}

#[test]
fn an_apply_that_fails_at_any_step_leaves_all_as_it_was() {
    let applying = applying();
    let listen = || {
        let address = "192.0.2.1:3260".parse().unwrap();
        EngineError::Listen { address, why: std::io::ErrorKind::AddrInUse.into() }
    };
    let undone = ["remove new true", "drain new", "ways iqn.2026-11.io.blockwire:demo"];
    for (step, why, done, undone) in [
        ("prepare", listen(), 1, &[][..]),
        ("add new", EngineError::Start("no descriptor".into()), 2, &undone[2..]),
        ("switch", EngineError::TimedOut, 3, &undone[..]),
    ] {
        *applying.fixture.engine.fails.lock().unwrap() = Some((step, why));
        let refused = applying.apply("next.toml").unwrap_err();
        assert!(refused.message.starts_with("nothing was changed: "), "{step}: {}", refused.message);
        assert_eq!(applying.told()[done..], *undone, "{step}");
        assert_eq!((applying.names(), applying.recorded()), (vec!["demo".to_owned()], None), "{step}");
        assert!(!applying.new.exists(), "{step}: its file was made and stays");
    }
    // The record cannot be replaced: a directory has the name of its next version.
    let state = applying.fixture.root.path().join("state").join("configuration.new");
    std::fs::create_dir(&state).unwrap();
    assert!(applying.apply("next.toml").unwrap_err().message.contains("configuration"));
    assert_eq!(applying.told().len(), 1, "no shard has heard of it");
    assert!(applying.names() == ["demo"] && !applying.new.exists());
    std::fs::remove_dir(&state).unwrap();
    // And then it succeeds.
    let Answer::Plan(report) = applying.apply("next.toml").unwrap() else { panic!() };
    assert!(report.applied && report.changes.len() == 3, "{report:?}");
    assert_eq!(applying.told(), ["prepare 2 portals, 1 volumes", "add new as ", "switch to 2 targets"]);
    assert_eq!(applying.names(), ["demo", "new"]);
    assert!(applying.recorded().is_some() && applying.new.exists());
}

/// Shards may know it after all: it is shown until they have let it go, and its file stays open.
#[test]
fn a_new_volume_that_shards_may_know_is_kept_until_they_do_not() {
    let applying = applying();
    *applying.fixture.engine.fails.lock().unwrap() = Some(("switch", EngineError::TimedOut));
    *applying.fixture.engine.lingers.lock().unwrap() = Some(EngineError::Lingers);
    assert!(applying.apply("next.toml").is_err());
    assert!(applying.new.exists() && applying.recorded().is_none());
    assert_eq!(applying.names(), ["demo", "new"], "it is leaving");
    assert!(applying.fixture.daemon.volumes.lock_served().stores.len() == 1);
    let delete = Request::VolumeDelete { name: "new".into(), force: true };
    applying.fixture.daemon.handle_request(delete).unwrap();
    assert_eq!(applying.names(), ["demo"]);
    applying.apply("next.toml").unwrap();
}

#[test]
fn what_is_removed_is_closed_and_what_was_created_stays() {
    let applying = applying();
    create(&applying.fixture.daemon, "own", "ram:1M".into()).unwrap();
    applying.apply("next.toml").unwrap();
    assert_eq!(applying.names(), ["demo", "own", "new"]);
    applying.told();
    let Answer::Plan(report) = applying.apply("base.toml").unwrap() else { panic!() };
    let words: Vec<String> =
        report.changes.iter().map(|one| format!("{} {}", one.action, one.item)).collect();
    assert_eq!(words, ["remove volume", "remove target", "remove subsystem"]);
    assert_eq!(
        applying.told(),
        ["prepare 2 portals, 0 volumes", "switch to 2 targets", "remove new true", "drain new"]
    );
    assert_eq!(applying.names(), ["demo", "own"]);
    assert!(applying.new.exists(), "the data is never deleted");
    // The same again changes nothing, and asks nothing of the shards.
    let Answer::Plan(report) = applying.apply("base.toml").unwrap() else { panic!() };
    assert!(report.changes.is_empty() && applying.told().is_empty());
    let Answer::Plan(report) = applying.fixture.daemon.handle_request(Request::Rollback).unwrap() else {
        panic!()
    };
    assert_eq!(report.changes.len(), 3);
    assert_eq!(applying.names(), ["demo", "own", "new"]);
}

#[test]
fn what_is_removed_is_closed_although_another_cannot_grow_and_that_is_tried_again() {
    let applying = applying();
    applying.apply("next.toml").unwrap();
    applying.told();
    applying.write("grown.toml", &BASE.replace("ram:1M", "ram:2M"));
    *applying.fixture.engine.fails.lock().unwrap() = Some(("resize", EngineError::Start("no memory".into())));
    let why = applying.apply("grown.toml").unwrap_err().message;
    assert!(why.starts_with("applied, but volume \"demo\" could not grow: "), "{why}");
    assert!(applying.told().ends_with(&["remove new true".into(), "drain new".into()]));
    assert_eq!(applying.names(), ["demo"]);
    let before = applying.recorded();
    let Answer::Plan(report) = applying.apply("grown.toml").unwrap() else { panic!() };
    let note = report.changes[0].note.clone().unwrap();
    assert!(report.changes.len() == 1 && note.contains("as configured"), "{report:?}");
    assert_eq!(applying.told(), ["resize demo 2097152"]);
    assert_eq!(applying.recorded(), before, "a rollback still leads to what was before");
    let Answer::Plan(report) = applying.apply("grown.toml").unwrap() else { panic!() };
    assert!(report.changes.is_empty() && applying.told().is_empty());
}

#[test]
fn a_file_that_is_edited_during_its_apply_is_recorded_as_it_was_applied() {
    let applying = applying_with(Some("served.toml"));
    let text = std::fs::read_to_string(applying.fixture.root.path().join("next.toml")).unwrap();
    applying.write("served.toml", &text);
    applying.fixture.daemon.handle_request(Request::Apply { file: None }).unwrap();
    let recorded = applying.recorded().unwrap();
    assert!(recorded.served == recorded.current && recorded.served.0[0].text == text);
}

#[test]
fn nothing_is_applied_while_the_file_of_serve_cannot_be_read() {
    let applying = applying_with(Some("served.toml"));
    let refused = applying.apply("next.toml").unwrap_err().message;
    assert!(refused.starts_with("nothing was changed: ") && refused.contains("served.toml"), "{refused}");
    assert!(applying.told().is_empty() && applying.recorded().is_none() && !applying.new.exists());
}

#[test]
fn a_volume_that_was_not_closed_is_closed_before_its_name_is_served_again() {
    let applying = applying();
    applying.write("memory.toml", &format!("{BASE}[[volume]]\nname = \"new\"\nsource = \"ram:1M\"\n"));
    applying.apply("memory.toml").unwrap();
    *applying.fixture.engine.lingers.lock().unwrap() = Some(EngineError::Lingers);
    let why = applying.apply("base.toml").unwrap_err().message;
    assert!(why.starts_with("applied, but volume \"new\" is not closed"), "{why}");
    // And it is still in use.
    *applying.fixture.engine.lingers.lock().unwrap() = Some(EngineError::Lingers);
    let refused = applying.fixture.daemon.handle_request(Request::Rollback).unwrap_err().message;
    assert!(refused.starts_with("nothing was changed: "), "{refused}");
    applying.fixture.daemon.handle_request(Request::Rollback).unwrap();
    assert_eq!(applying.names(), ["demo", "new"], "once");
}

#[test]
fn a_volume_that_is_served_since_the_review_is_not_opened_again() {
    let applying = applying();
    let volumes = &applying.fixture.daemon.volumes;
    let demo = volumes.plan().volumes.clone();
    let refused = volumes.free_names(&demo).unwrap_err();
    assert_eq!(refused.code, RefusalCode::Conflict);
    assert!(applying.told().is_empty() && applying.names() == ["demo"]);
}
