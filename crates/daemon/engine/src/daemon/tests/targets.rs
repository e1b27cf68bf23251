//! Targets, paths and reports on volumes.

use super::*;

#[test]
fn targets_are_found_by_the_end_of_their_name() {
    let Fixture { root: _root, daemon, .. } = fixture();
    let Answer::Target(target) = daemon.handle_request(Request::TargetShow { name: "demo".into() }).unwrap()
    else {
        panic!()
    };
    assert_eq!(target.name, "iqn.2026-11.io.blockwire:demo");
    assert_eq!(target.portals[0].address.port(), 43121);
    let why = daemon.handle_request(Request::TargetShow { name: "dem".into() }).unwrap_err();
    assert_eq!(why.code, RefusalCode::NotFound);
    let why = daemon.handle_request(Request::VolumeShow { name: "demi".into(), latency: false }).unwrap_err();
    assert_eq!(why.message, "there is no volume \"demi\"; did you mean \"demo\"?");
}

#[test]
fn paths_are_set_by_port_by_group_over_both_protocols_or_all() {
    let Fixture { engine, daemon, .. } = fixture();
    let set = |port, group, state: &str| {
        let (name, state) = ("demo".into(), Some(state.into()));
        daemon.handle_request(Request::PathSet { name, port, group, state, preferred: None })
    };
    let Answer::Paths(_) = set(None, Some(1), "inaccessible").unwrap() else { panic!() };
    set(Some(2), None, "non-optimized").unwrap();
    set(None, None, "optimized").unwrap();
    let told =
        ["paths demo [1, 3] Inaccessible", "paths demo [2] NonOptimized", "paths demo [1, 2, 3] Optimized"];
    assert_eq!(engine.take(), told);
    let why = set(None, Some(9), "optimized").unwrap_err();
    assert!(why.code == RefusalCode::NotFound && why.message.contains("port 3 (group 1)"), "{why:?}");
    let why = set(None, None, "optimised").unwrap_err();
    assert!(
        why.code == RefusalCode::Invalid && why.message.contains("did you mean \"optimized\""),
        "{why:?}"
    );
    let prefer = |state: Option<&str>, preferred| {
        let (name, state) = ("demo".into(), state.map(str::to_owned));
        daemon.handle_request(Request::PathSet { name, port: Some(1), group: None, state, preferred })
    };
    prefer(None, Some(true)).unwrap();
    prefer(Some("standby"), Some(false)).unwrap();
    let told = ["preferred demo [1] true", "paths demo [1] Standby", "preferred demo [1] false"];
    assert_eq!(engine.take(), told);
    assert_eq!(code(prefer(None, None)), RefusalCode::Invalid);
    assert_eq!(
        code(daemon.handle_request(Request::PathList { name: Some("demp".into()) })),
        RefusalCode::NotFound
    );
}

#[test]
fn a_volume_is_shown_with_both_protocols_and_its_truth() {
    let Fixture { engine, daemon, .. } = fixture();
    let Answer::Volume(shown) =
        daemon.handle_request(Request::VolumeShow { name: "demo".into(), latency: false }).unwrap()
    else {
        panic!()
    };
    assert_eq!(shown.exports[0].target, "iqn.2026-11.io.blockwire:demo");
    assert_eq!(
        (shown.namespaces[0].subsystem.as_str(), shown.namespaces[0].nsid),
        ("nqn.2026-11.io.blockwire:demo", 1)
    );
    assert_eq!(shown.exports[0].lun, 0);
    let standing = shown.standing.unwrap();
    assert_eq!(standing.reservation.holder.as_deref(), Some("nqn.2026-11.io:h"));
    assert_eq!((standing.paths[2].protocol.as_str(), standing.paths[2].group), ("nvme", 1));
    let Answer::Subsystem(one) =
        daemon.handle_request(Request::SubsystemShow { name: "demo".into() }).unwrap()
    else {
        panic!()
    };
    assert_eq!(
        (one.nqn.as_str(), one.namespaces[0].volume.as_str()),
        ("nqn.2026-11.io.blockwire:demo", "demo")
    );
    let Answer::Reservation(held) =
        daemon.handle_request(Request::ReservationShow { name: "demo".into() }).unwrap()
    else {
        panic!()
    };
    assert_eq!(held.generation, 3);
    let Answer::Volume(_) =
        daemon.handle_request(Request::VolumeProtect { name: "demo".into(), on: true }).unwrap()
    else {
        panic!()
    };
    assert_eq!(engine.take(), ["protect demo true"]);
    assert_eq!(code(daemon.handle_request(Request::HostShow { name: "h".into() })), RefusalCode::NotFound);
}

#[test]
fn targets_are_stopped_and_started_and_keep_their_name_meanwhile() {
    let Fixture { root: _root, engine, daemon } = fixture();
    let demo = "iqn.2026-11.io.blockwire:demo".to_owned();
    let stop = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        daemon.handle_request(Request::TargetStop { names })
    };
    let start = |names: Option<Vec<String>>| daemon.handle_request(Request::TargetStart { names });
    assert_eq!(switched(stop(&[]).unwrap()), [(demo.clone(), "stopped".to_owned())]);
    assert_eq!(engine.take(), ["ways "]);
    let Answer::Target(shown) = daemon.handle_request(Request::TargetShow { name: "demo".into() }).unwrap()
    else {
        panic!()
    };
    assert!(shown.stopped);
    assert_eq!(switched(stop(&[demo.as_str()]).unwrap()), [(demo.clone(), "stopped before".to_owned())]);
    engine.take();
    // Its name and its volume are still taken.
    assert_eq!(code(create(&daemon, "demo", "ram:1M".into())), RefusalCode::Conflict);
    assert_eq!(switched(start(None).unwrap()), [], "without a name only those that run are meant");
    assert_eq!(switched(start(Some(vec![])).unwrap()), [(demo.clone(), "started".to_owned())]);
    assert_eq!(engine.take(), ["ways ".to_owned(), format!("ways {demo}")]);
    assert_eq!(switched(start(Some(vec![demo.clone()])).unwrap()), [(demo.clone(), "running".to_owned())]);
    let why = stop(&["iqn.2026-11.io.blockwire:demp"]).unwrap_err();
    assert!(why.code == RefusalCode::NotFound && why.message.contains("did you mean"), "{why:?}");
    // What the engine refuses has not happened.
    *engine.refuse.lock().unwrap() = true;
    assert_eq!(code(stop(&[])), RefusalCode::Conflict);
    let Answer::Target(shown) = daemon.handle_request(Request::TargetShow { name: "demo".into() }).unwrap()
    else {
        panic!()
    };
    assert!(!shown.stopped);
}

#[test]
fn a_stopped_target_goes_with_its_volume() {
    let Fixture { root: _root, daemon, .. } = fixture();
    daemon.handle_request(Request::TargetStop { names: Vec::new() }).unwrap();
    daemon.handle_request(Request::VolumeDelete { name: "demo".into(), force: false }).unwrap();
    assert_eq!(
        code(daemon.handle_request(Request::TargetShow { name: "demo".into() })),
        RefusalCode::NotFound
    );
    assert_eq!(switched(daemon.handle_request(Request::TargetStart { names: Some(vec![]) }).unwrap()), []);
}

#[test]
fn files_that_are_read_again_change_targets_and_nothing_else() {
    let Fixture { root: _root, engine, daemon } = fixture();
    let plan = Arc::new(Mutex::new(Plan::clone(&daemon.volumes.plan())));
    let seen = plan.clone();
    let again: PlanReader = Box::new(move |created| {
        assert!(created.is_empty());
        Ok((seen.lock().unwrap().clone(), Vec::new()))
    });
    let daemon = daemon.with_files(Vec::new(), Some(again));
    let start = |names: Option<Vec<String>>| daemon.handle_request(Request::TargetStart { names });
    let demo = "iqn.2026-11.io.blockwire:demo".to_owned();
    assert_eq!(switched(start(None).unwrap()), [(demo.clone(), "running".to_owned())]);
    plan.lock().unwrap().ways.targets[0].negotiation.max_connections = 7;
    assert_eq!(switched(start(None).unwrap()), [(demo.clone(), "reloaded".to_owned())]);
    let Answer::Settings(shown) = daemon.handle_request(Request::TargetSettings { names: vec![] }).unwrap()
    else {
        panic!()
    };
    let value = |key: &str| shown[0].settings.iter().find(|one| one.key == key).map(|one| one.value.clone());
    assert_eq!(value("MaxConnections").as_deref(), Some("7"));
    assert_eq!(value("PortalGroup").as_deref(), Some("1@127.0.0.1:43121"));
    assert_eq!((value("ACL_Enable").as_deref(), value("AuthMethod").as_deref()), (Some("No"), Some("None")));
    // A target that is new in the file is started by its name or with all.
    let mut other = plan.lock().unwrap().ways.targets[0].clone();
    other.name = "iqn.2026-11.io.blockwire:other".into();
    plan.lock().unwrap().ways.targets.push(other.clone());
    assert_eq!(switched(start(None).unwrap()).len(), 1);
    assert_eq!(
        switched(start(Some(vec![other.name.clone()])).unwrap()),
        [(other.name.clone(), "started".to_owned())]
    );
    engine.take();
    plan.lock().unwrap().limits.memory += 1;
    assert_eq!(switched(start(Some(vec![])).unwrap()).len(), 2, "memory stays as it is");
    engine.take();
    plan.lock().unwrap().limits.login_timeout += Duration::from_secs(1);
    let why = start(Some(vec![])).unwrap_err();
    assert!(why.code == RefusalCode::Conflict && why.message.starts_with("a limit"), "{why:?}");
    assert_eq!(engine.take(), Vec::<String>::new(), "nothing of it is done");
}

#[test]
fn a_deleted_volume_takes_its_own_targets_along_and_no_empty_one() {
    let Fixture { root: _root, daemon, .. } = fixture_of(|plan| {
        let own = &plan.ways.targets[0];
        let empty = config::plan::Target {
            name: "iqn.2026-11.io.blockwire:empty".into(),
            is_default: false,
            luns: Vec::new(),
            ..own.clone()
        };
        plan.ways.targets.push(empty);
        let subsystem = plan.ways.subsystems[0].clone();
        let nqn = "nqn.2026-11.io.blockwire:empty".into();
        plan.ways.subsystems.push(config::plan::Subsystem { nqn, namespaces: Vec::new(), ..subsystem });
    });
    daemon.handle_request(Request::VolumeDelete { name: "demo".into(), force: true }).unwrap();
    let ways = daemon.volumes.lock_served().ways.clone();
    let targets: Vec<&str> = ways.targets.iter().map(|one| one.name.as_str()).collect();
    let subsystems: Vec<&str> = ways.subsystems.iter().map(|one| one.nqn.as_str()).collect();
    assert_eq!(targets, ["iqn.2026-11.io.blockwire:empty"]);
    assert_eq!(subsystems, ["nqn.2026-11.io.blockwire:empty"]);
}
