//! Volumes that are created, resized and deleted.

use super::*;

/// A file may be longer than its volume: images have footers, and not every length is a multiple of the block.
#[test]
fn a_resize_that_is_refused_or_changes_nothing_cuts_nothing_off() {
    let Fixture { root, engine, daemon } = fixture();
    let path = root.path().join("odd.img");
    let content: Vec<u8> = (0..(1 << 20) + 100).map(|at| at as u8).collect();
    std::fs::write(&path, &content).unwrap();
    daemon.volumes.create("odd", &format!("file:{}", path.display())).unwrap();
    let shown = || daemon.volumes.lock_served().volume_report("odd").unwrap().size_bytes;
    assert_eq!(shown(), Some(1 << 20));
    daemon.volumes.resize("odd", 1 << 20, false).unwrap();
    assert!(std::fs::read(&path).unwrap() == content, "it was made as large as it was");
    *engine.refuse.lock().unwrap() = true;
    assert_eq!(daemon.volumes.resize("odd", 2 << 20, false).unwrap_err().code, RefusalCode::Conflict);
    assert!(std::fs::read(&path).unwrap() == content, "it was refused");
    assert_eq!(shown(), Some(1 << 20));
    *engine.refuse.lock().unwrap() = false;
    // Somebody has made it longer than what is asked for.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(3 << 20).unwrap();
    daemon.volumes.resize("odd", 2 << 20, false).unwrap();
    assert_eq!((shown(), path.metadata().unwrap().len()), (Some(2 << 20), 3 << 20));
    daemon.volumes.resize("odd", 1 << 20, true).unwrap();
    assert_eq!((shown(), path.metadata().unwrap().len()), (Some(1 << 20), 1 << 20));
}

#[test]
fn a_created_volume_is_served_recorded_and_forgotten_when_deleted() {
    let Fixture { root, engine, daemon } = fixture();
    let path = root.path().join("x.img");
    let spec = format!("file:{},size=1M", path.display());
    let Answer::Volume(report) = create(&daemon, "x", spec.clone()).unwrap() else { panic!() };
    assert_eq!(report.exports[0].target, "iqn.2026-11.io.blockwire:x");
    assert!(report.created && report.size_bytes == Some(1 << 20));
    assert_eq!(engine.take(), ["add x as iqn.2026-11.io.blockwire:x and nqn.2026-11.io.blockwire:x"]);
    let recorded = volumes::load_volumes(&daemon.volumes.state).unwrap();
    assert_eq!(recorded.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>(), ["x"]);

    assert_eq!(code(create(&daemon, "x", "ram:1M".into())), RefusalCode::Conflict);
    assert_eq!(code(create(&daemon, "y", spec)), RefusalCode::Failed, "an alias of x");
    assert_eq!(code(create(&daemon, "y", "file:relative,size=1M".into())), RefusalCode::Invalid);
    assert_eq!(code(create(&daemon, "Y", "ram:1M".into())), RefusalCode::Invalid);

    let deleted = daemon.handle_request(Request::VolumeDelete { name: "x".into(), force: false }).unwrap();
    assert!(matches!(deleted, Answer::Deleted(_)));
    assert_eq!(volumes::load_volumes(&daemon.volumes.state).unwrap(), []);
    assert!(path.exists(), "the data is never deleted");
    let why = daemon.handle_request(Request::VolumeShow { name: "x".into(), latency: false }).unwrap_err();
    assert_eq!(why.code, RefusalCode::NotFound);
    assert_eq!(code(daemon.handle_request(Request::TargetShow { name: "x".into() })), RefusalCode::NotFound);
    // The lock went with the volume.
    create(&daemon, "z", format!("file:{}", path.display())).unwrap();
}

/// The configuration is sound as long as there is no other volume: its only target has users of its own.
#[test]
fn a_created_volume_is_not_open_to_strangers_beyond_this_machine() {
    let public = |plan: &mut Plan| {
        plan.portals.iter_mut().for_each(|portal| portal.address = "0.0.0.0:0".parse().unwrap());
    };
    let Fixture { root, engine, daemon } = fixture_of(public);
    let path = root.path().join("x.img");
    let spec = format!("file:{},size=1M", path.display());
    let why = create(&daemon, "x", spec.clone()).unwrap_err();
    assert_eq!(why.code, RefusalCode::Invalid);
    assert!(
        why.message.contains("requires no authentication") && why.message.contains("--allow-anonymous"),
        "{why:?}"
    );
    assert!(
        !path.exists()
            && engine.take().is_empty()
            && volumes::load_volumes(&daemon.volumes.state).unwrap().is_empty()
    );
    assert_eq!(
        code(daemon.handle_request(Request::VolumeShow { name: "x".into(), latency: false })),
        RefusalCode::NotFound
    );
    let Fixture { root: _root, daemon, .. } = fixture_of(|plan| {
        public(plan);
        plan.allow_anonymous = true;
    });
    create(&daemon, "x", spec).unwrap();
}

/// A volume that the next start would refuse, with all others, because one machine sees it twice.
#[test]
fn a_created_volume_is_not_reached_by_one_host_over_both_protocols() {
    let both_names = |both: bool| {
        move |plan: &mut Plan| {
            let mut host = crate::example::example_plan().hosts.swap_remove(0);
            (host.iqns, host.nqns) =
                (vec!["iqn.2026-11.com.example:h".into()], vec!["nqn.2026-11.com.example:h".into()]);
            host.grants = vec![config::plan::TargetGrant {
                target: None,
                luns: None,
                read_only: false,
                locals: Vec::new(),
            }];
            host.subsystem_grants =
                vec![config::plan::SubsystemGrant { subsystem: None, namespaces: None, read_only: false }];
            host.both = both;
            plan.hosts = vec![host];
        }
    };
    let Fixture { root: _root, engine, daemon } = fixture_of(both_names(false));
    let why = create(&daemon, "x", "ram:1M".into()).unwrap_err();
    assert!(
        why.code == RefusalCode::Invalid && why.message.contains("multipath combines the two"),
        "{why:?}"
    );
    assert!(engine.take().is_empty());
    let Fixture { root: _root, daemon, .. } = fixture_of(both_names(true));
    create(&daemon, "x", "ram:1M".into()).unwrap();
}

#[test]
fn what_the_engine_refuses_leaves_no_trace() {
    let Fixture { root, engine, daemon } = fixture();
    *engine.refuse.lock().unwrap() = true;
    let path = root.path().join("x.img");
    assert_eq!(code(create(&daemon, "x", format!("file:{},size=1M", path.display()))), RefusalCode::Conflict);
    assert!(!path.exists());
    assert_eq!(volumes::load_volumes(&daemon.volumes.state).unwrap(), []);
    assert_eq!(
        code(daemon.handle_request(Request::VolumeDelete { name: "demo".into(), force: false })),
        RefusalCode::Conflict
    );
    daemon.handle_request(Request::VolumeShow { name: "demo".into(), latency: false }).unwrap();
}

#[test]
fn what_cannot_be_recorded_is_not_served() {
    let Fixture { root: _root, engine, daemon } = fixture();
    std::fs::create_dir(daemon.volumes.state.path().join("volumes.new")).unwrap();
    assert_eq!(code(create(&daemon, "x", "ram:1M".into())), RefusalCode::Failed);
    assert_eq!(engine.take(), [] as [&str; 0], "no host has seen it");
    assert_eq!(
        code(daemon.handle_request(Request::VolumeShow { name: "x".into(), latency: false })),
        RefusalCode::NotFound
    );
}

#[test]
fn resizing() {
    let Fixture { root, engine, daemon } = fixture();
    let path = root.path().join("x.img");
    create(&daemon, "x", format!("file:{},size=1M", path.display())).unwrap();
    engine.take();
    let resize = |size_bytes, shrink| {
        daemon.handle_request(Request::VolumeResize { name: "x".into(), size_bytes, shrink })
    };
    let length = || std::fs::metadata(&path).unwrap().len();
    resize(2 << 20, false).unwrap();
    assert_eq!(length(), 2 << 20);
    assert_eq!(code(resize(1 << 20, false)), RefusalCode::Conflict, "smaller only when said");
    resize(1 << 20, true).unwrap();
    assert_eq!(length(), 1 << 20);
    assert_eq!(engine.take(), ["resize x 2097152", "resize x 1048576"]);
    assert_eq!(code(resize(1000, true)), RefusalCode::Invalid);
    assert_eq!(code(resize(0, true)), RefusalCode::Invalid);
    *engine.refuse.lock().unwrap() = true;
    assert_eq!(code(resize(4 << 20, false)), RefusalCode::Conflict);
    assert_eq!(length(), 1 << 20, "undone");
    let recorded = volumes::load_volumes(&daemon.volumes.state).unwrap();
    assert_eq!(recorded[0].to_volume().unwrap().spec.size, Some(1 << 20));
}

/// Growth that some hosts may have been told of stays: what they write beyond the old end must have a place.
#[test]
fn a_growth_that_was_not_fenced_in_time_is_not_taken_back() {
    for why in [EngineError::Unsettled("a shard is late".into()), EngineError::TimedOut, EngineError::Stopped]
    {
        let Fixture { root, engine, daemon } = fixture();
        let path = root.path().join("x.img");
        create(&daemon, "x", format!("file:{},size=1M", path.display())).unwrap();
        *engine.comes.lock().unwrap() = Some(why);
        let request = Request::VolumeResize { name: "x".into(), size_bytes: 4 << 20, shrink: false };
        let why = daemon.handle_request(request).unwrap_err();
        assert!(why.message.contains("4 MiB now, but some hosts"), "{why:?}");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 << 20);
        assert_eq!(
            volumes::load_volumes(&daemon.volumes.state).unwrap()[0].to_volume().unwrap().spec.size,
            Some(4 << 20)
        );
    }
}

/// A volume that hosts may have seen is not taken back with its file.
#[test]
fn a_create_that_may_have_been_told_leaves_the_file() {
    let Fixture { root, engine, daemon } = fixture();
    *engine.comes.lock().unwrap() = Some(EngineError::TimedOut);
    let path = root.path().join("x.img");
    assert_eq!(code(create(&daemon, "x", format!("file:{},size=1M", path.display()))), RefusalCode::TimedOut);
    assert!(path.exists());
    assert_eq!(volumes::load_volumes(&daemon.volumes.state).unwrap(), []);
}

/// Shards may be busy with what they were told of too late: its file is nobody else's until they have let it go.
#[test]
fn a_file_that_shards_may_still_have_is_opened_by_no_other_volume() {
    let Fixture { root, engine, daemon } = fixture();
    let path = root.path().join("x.img");
    let spec = format!("file:{},size=1M", path.display());
    let failed = |name: &str| {
        let Answer::Status(status) = daemon.handle_request(Request::Status).unwrap() else { panic!() };
        status.failed.iter().filter(|one| one.volume == name).count()
    };
    let delete = |name: &str| daemon.handle_request(Request::VolumeDelete { name: name.into(), force: true });
    *engine.comes.lock().unwrap() = Some(EngineError::TimedOut);
    let why = create(&daemon, "x", spec.clone()).unwrap_err();
    assert!(why.message.contains("blockwire volume delete x"), "{why:?}");
    assert_eq!(failed("x"), 1, "it is shown");
    let why = create(&daemon, "y", spec.clone()).unwrap_err();
    assert!(why.message.contains("already open as volume \"x\""), "{why:?}");
    delete("x").unwrap();
    assert_eq!(failed("x"), 0);
    // Likewise one that is tried again.
    let volume = Volume {
        name: VolumeName::parse("x").unwrap(),
        spec: spec::parse(&spec).unwrap(),
        origin: VolumeOrigin::Configured,
    };
    daemon.volumes.lock_served().unserved.push(FailedVolume::open_failed(&volume, "it was not there"));
    let retry = || daemon.handle_request(Request::VolumeRetry { name: "x".into() });
    *engine.comes.lock().unwrap() = Some(EngineError::TimedOut);
    let why = retry().unwrap_err();
    assert_eq!(why.code, RefusalCode::TimedOut);
    assert!(why.message.contains("blockwire volume retry x"), "{why:?}");
    assert!(!why.message.contains("not recorded") && !why.message.contains("delete"), "{why:?}");
    assert_eq!(code(create(&daemon, "y", spec.clone())), RefusalCode::Failed);
    // While they are busy it is not opened a second time either.
    *engine.lingers.lock().unwrap() = Some(EngineError::Lingers);
    assert_eq!(code(retry()), RefusalCode::Conflict);
    engine.take();
    retry().unwrap();
    let told = ["remove x true", "ways iqn.2026-11.io.blockwire:demo", "drain x", "add x as "];
    assert_eq!(engine.take(), told);
    assert_eq!(failed("x"), 0);
    delete("x").unwrap();
    create(&daemon, "y", spec).unwrap();
}

/// A delete that does not come to its end is not forgotten: the volume is shown, keeps its name and its file, does not
/// come back at the next start, and can be deleted again.
#[test]
fn a_volume_whose_operations_are_out_is_shown_until_they_end() {
    let Fixture { root, engine, daemon } = fixture();
    let path = root.path().join("x.img");
    let spec = format!("file:{},size=1M", path.display());
    create(&daemon, "x", spec.clone()).unwrap();
    let delete = || daemon.handle_request(Request::VolumeDelete { name: "x".into(), force: true });
    *engine.lingers.lock().unwrap() = Some(EngineError::Lingers);
    assert_eq!(code(delete()), RefusalCode::Conflict);
    assert_eq!(volumes::load_volumes(&daemon.volumes.state).unwrap(), []);
    let Answer::Status(status) = daemon.handle_request(Request::Status).unwrap() else { panic!() };
    assert_eq!((status.volumes, status.failed[0].volume.as_str()), (1, "x"));
    assert_eq!(code(create(&daemon, "x", "ram:1M".into())), RefusalCode::Conflict);
    let why = create(&daemon, "y", spec.clone()).unwrap_err();
    assert!(why.message.contains("already open as volume \"x\""), "{why:?}");
    delete().unwrap();
    create(&daemon, "y", spec).unwrap();
}

/// The file of a volume can be synced no more: what this system keeps nowhere can be made stable nowhere.
fn lose_file(daemon: &Daemon, name: &str) {
    let mut served = daemon.volumes.lock_served();
    let store = served.stores.iter_mut().find(|store| store.volume.name.as_str() == name).unwrap();
    store.file = Some(std::fs::File::open("/proc/self/status").unwrap());
}

#[test]
fn a_volume_that_cannot_be_synced_is_not_deleted_in_silence() {
    let Fixture { root, engine, daemon } = fixture();
    let path = root.path().join("x.img");
    create(&daemon, "x", format!("file:{},size=1M", path.display())).unwrap();
    lose_file(&daemon, "x");
    engine.take();
    let refused = daemon.handle_request(Request::VolumeDelete { name: "x".into(), force: true }).unwrap_err();
    assert!(refused.message.contains("may be lost"), "{}", refused.message);
    assert_eq!(engine.take(), ["remove x true", "drain x"]);
    assert_eq!(volumes::load_volumes(&daemon.volumes.state).unwrap().len(), 0, "it does not come back");
}
