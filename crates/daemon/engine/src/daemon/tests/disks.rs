//! Failed syncs, retries, and disks that hang.

use super::*;

#[test]
fn a_failed_sync_is_shown_and_acknowledged_by_a_retry() {
    let Fixture { engine, daemon, .. } = fixture();
    let retry = || daemon.handle_request(Request::VolumeRetry { name: "demo".into() });
    assert!(retry().unwrap_err().message.contains("has not failed"));
    *engine.in_doubt.lock().unwrap() = Some("demo".into());
    let failed = || match daemon.handle_request(Request::Status) {
        Ok(Answer::Status(status)) => status.failed.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(failed(), 1);
    let Ok(Answer::Volume(shown)) =
        daemon.handle_request(Request::VolumeShow { name: "demo".into(), latency: false })
    else {
        panic!()
    };
    assert!(shown.failed.unwrap().contains("acknowledge with `volume retry`"));
    let Ok(Answer::Volume(shown)) = retry() else { panic!() };
    assert_eq!((shown.failed, failed(), engine.take()), (None, 0, vec!["acknowledge demo".to_owned()]));
}

/// Its file could not be synced when it was opened; the operator has said that hosts may write again.
#[test]
fn a_failed_sync_that_was_acknowledged_is_not_told_again_by_a_resize() {
    for acknowledged in [true, false] {
        let Fixture { root, engine, daemon } = fixture();
        let path = root.path().join("x.img");
        create(&daemon, "x", format!("file:{},size=1M", path.display())).unwrap();
        let in_doubt = |value: Option<bool>| {
            let mut served = daemon.volumes.lock_served();
            let store = served.stores.iter_mut().find(|store| store.volume.name.as_str() == "x").unwrap();
            store.in_doubt = value.unwrap_or(store.in_doubt);
            store.in_doubt
        };
        in_doubt(Some(true));
        *engine.in_doubt.lock().unwrap() = Some("x".into());
        if acknowledged {
            daemon.handle_request(Request::VolumeRetry { name: "x".into() }).unwrap();
        }
        engine.take();
        for (mib, shrink) in [(4, false), (2, true)] {
            let size_bytes = mib << 20;
            daemon.handle_request(Request::VolumeResize { name: "x".into(), size_bytes, shrink }).unwrap();
            assert_eq!(engine.take(), [format!("resize x {size_bytes}")]);
        }
        assert_eq!(in_doubt(None), !acknowledged);
    }
}

/// What must go on while a disk does not answer that `volume_report` lies on.
fn goes_on_without(daemon: &Daemon, volume: &str) {
    let Answer::Status(_) = daemon.handle_request(Request::Status).unwrap() else { panic!() };
    let Answer::Volumes(_) = daemon.handle_request(Request::VolumeList).unwrap() else { panic!() };
    let Answer::Stopping { .. } = daemon.handle_request(Request::Stop { now: true }).unwrap() else {
        panic!()
    };
    create(daemon, "well", "ram:1M".into()).unwrap();
    daemon
        .handle_request(Request::VolumeResize { name: "well".into(), size_bytes: 2 << 20, shrink: false })
        .unwrap();
    daemon.handle_request(Request::VolumeDelete { name: "well".into(), force: true }).unwrap();
    assert!(!switched(daemon.handle_request(Request::TargetStart { names: None }).unwrap()).is_empty());
    // Only this one nobody else changes.
    let delete = Request::VolumeDelete { name: volume.into(), force: true };
    let retry = Request::VolumeRetry { name: volume.into() };
    for request in [delete, retry] {
        let why = daemon.handle_request(request).unwrap_err();
        assert!(why.code == RefusalCode::Conflict && why.message.contains("already"), "{why:?}");
    }
    assert_eq!(code(create(daemon, volume, "ram:1M".into())), RefusalCode::Conflict);
}

/// Waits until another thread has come to the disk.
fn wait_until(what: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !what() {
        assert!(Instant::now() < until, "it does not come to it");
        std::thread::yield_now();
    }
}

#[test]
fn a_retry_whose_disk_does_not_answer_keeps_nobody_from_anything_else() {
    let Fixture { root: _root, engine, daemon } = fixture();
    *engine.in_doubt.lock().unwrap() = Some("demo".into());
    std::thread::scope(|scope| {
        let silent = engine.silent.lock().unwrap();
        let retry = scope.spawn(|| daemon.handle_request(Request::VolumeRetry { name: "demo".into() }));
        wait_until(|| !daemon.volumes.held.lock().unwrap().names.is_empty());
        goes_on_without(&daemon, "demo");
        drop(silent);
        retry.join().unwrap().unwrap();
    });
    assert!(daemon.volumes.held.lock().unwrap().names.is_empty());
}

#[test]
fn a_disk_that_does_not_answer_keeps_nobody_from_anything_else() {
    let Fixture { root, engine: _engine, daemon } = fixture();
    let disk = Arc::new(Mutex::new(()));
    crate::store::tests::SILENT.lock().unwrap().push(("silent".into(), disk.clone()));
    let path = root.path().join("x.img");
    let spec = format!("file:{},size=1M", path.display());
    std::thread::scope(|scope| {
        let silent = disk.lock().unwrap();
        let made = scope.spawn(|| create(&daemon, "silent", spec.clone()));
        wait_until(|| path.exists());
        goes_on_without(&daemon, "silent");
        drop(silent);
        made.join().unwrap().unwrap();
        let silent = disk.lock().unwrap();
        let delete = Request::VolumeDelete { name: "silent".into(), force: false };
        let deleted = scope.spawn(|| daemon.handle_request(delete));
        let shown = || daemon.volumes.lock_served().volume_report("silent").unwrap().failed;
        wait_until(|| shown().is_some());
        goes_on_without(&daemon, "silent");
        // Its file is nobody else's, and it does not come back.
        assert_eq!(code(create(&daemon, "other", spec.clone())), RefusalCode::Failed);
        assert!(volumes::load_volumes(&daemon.volumes.state).unwrap().is_empty());
        drop(silent);
        deleted.join().unwrap().unwrap();
    });
    assert_eq!(
        code(daemon.handle_request(Request::VolumeShow { name: "silent".into(), latency: false })),
        RefusalCode::NotFound
    );
    create(&daemon, "other", spec).unwrap();
}

/// 20 to 30 s go by before the engine says that operations of a volume are still out.
#[test]
fn a_volume_whose_operations_do_not_end_keeps_nobody_from_anything_else() {
    let Fixture { root, engine, daemon } = fixture();
    let path = root.path().join("x.img");
    let spec = format!("file:{},size=1M", path.display());
    create(&daemon, "x", spec.clone()).unwrap();
    let shown = || daemon.volumes.lock_served().volume_report("x").unwrap().failed;
    std::thread::scope(|scope| {
        let busy = engine.busy.lock().unwrap();
        let delete = Request::VolumeDelete { name: "x".into(), force: true };
        let deleted = scope.spawn(|| daemon.handle_request(delete));
        wait_until(|| shown().is_some());
        drop_while_held(&daemon, "x", busy);
        deleted.join().unwrap().unwrap();
    });
    // Likewise one that is let go before it is tried again.
    let volume = Volume {
        name: VolumeName::parse("x").unwrap(),
        spec: spec::parse(&spec).unwrap(),
        origin: VolumeOrigin::Configured,
    };
    daemon.volumes.lock_served().unserved.push(FailedVolume::open_failed(&volume, "it was not there"));
    let retry = || daemon.handle_request(Request::VolumeRetry { name: "x".into() });
    *engine.comes.lock().unwrap() = Some(EngineError::TimedOut);
    assert_eq!(code(retry()), RefusalCode::TimedOut);
    std::thread::scope(|scope| {
        engine.take();
        let busy = engine.busy.lock().unwrap();
        let retried = scope.spawn(retry);
        wait_until(|| engine.told.lock().unwrap().iter().any(|told| told.starts_with("ways")));
        drop_while_held(&daemon, "x", busy);
        retried.join().unwrap().unwrap();
    });
}

/// The daemon does other work while operations of a volume are out, and then they end. Other volumes are not deleted
/// meanwhile: their operations would be out, too.
fn drop_while_held(daemon: &Daemon, volume: &str, busy: std::sync::MutexGuard<'_, ()>) {
    create(daemon, "beside", "ram:1M".into()).unwrap();
    let resize = Request::VolumeResize { name: "beside".into(), size_bytes: 2 << 20, shrink: false };
    daemon.handle_request(resize).unwrap();
    let retry = Request::VolumeRetry { name: volume.into() };
    assert_eq!(code(daemon.handle_request(retry)), RefusalCode::Conflict);
    drop(busy);
    daemon.handle_request(Request::VolumeDelete { name: "beside".into(), force: true }).unwrap();
}

/// What the engine refuses is undone by whatever program asked: its file is read, cut and closed.
#[test]
fn a_refused_volume_whose_disk_does_not_answer_keeps_nobody_from_anything_else() {
    let Fixture { root, engine, daemon } = fixture();
    let disk = Arc::new(Mutex::new(()));
    crate::store::tests::SILENT.lock().unwrap().push(("refused undone".into(), disk.clone()));
    let path = root.path().join("x.img");
    let spec = format!("file:{},size=1M", path.display());
    let volume = Volume {
        name: VolumeName::parse("refused").unwrap(),
        spec: spec::parse(&spec).unwrap(),
        origin: VolumeOrigin::Configured,
    };
    std::thread::scope(|scope| {
        let silent = disk.lock().unwrap();
        *engine.comes.lock().unwrap() = Some(EngineError::InUse { sessions: 1 });
        let made = scope.spawn(|| create(&daemon, "refused", spec.clone()));
        wait_until(|| engine.told.lock().unwrap().iter().any(|told| told.starts_with("add refused")));
        goes_on_without(&daemon, "refused");
        drop(silent);
        assert_eq!(code(made.join().unwrap()), RefusalCode::Conflict);
        assert!(!path.exists(), "it is undone all the same");
        engine.take();
        // Likewise one that could not be served before.
        daemon.volumes.lock_served().unserved.push(FailedVolume::open_failed(&volume, "it was not there"));
        let silent = disk.lock().unwrap();
        *engine.comes.lock().unwrap() = Some(EngineError::InUse { sessions: 1 });
        let retry = Request::VolumeRetry { name: "refused".into() };
        let retried = scope.spawn(|| daemon.handle_request(retry));
        wait_until(|| engine.told.lock().unwrap().iter().any(|told| told.starts_with("add refused")));
        goes_on_without(&daemon, "refused");
        drop(silent);
        assert_eq!(code(retried.join().unwrap()), RefusalCode::Conflict);
        assert!(!path.exists());
        // And one that turns out to be another that came meanwhile.
        daemon.volumes.lock_served().unserved.clear();
        let silent = disk.lock().unwrap();
        let uuid = "11111111-2222-4333-8444-555555555555";
        create(&daemon, "taken", format!("ram:1M,uuid={uuid}")).unwrap();
        let (daemon, of) = (&daemon, format!("{spec},uuid={uuid}"));
        let made = scope.spawn(move || create(daemon, "refused", of));
        wait_until(|| path.exists());
        goes_on_without(daemon, "refused");
        drop(silent);
        assert_eq!(code(made.join().unwrap()), RefusalCode::Failed);
        assert!(!path.exists());
    });
}

/// A stripe has legs on this machine, too.
#[test]
fn a_volume_that_has_come_and_whose_disk_does_not_answer_keeps_no_other_away() {
    let Fixture { root, engine: _engine, daemon } = fixture();
    let disk = Arc::new(Mutex::new(()));
    crate::store::tests::SILENT.lock().unwrap().push(("hangs".into(), disk.clone()));
    let names = ["hangs", "comes"].map(|name| VolumeName::parse(name).unwrap());
    for name in &names {
        let path = root.path().join(format!("{name}.img"));
        std::fs::write(&path, [0; 4096]).unwrap();
        let spec = spec::parse(&format!("file:{}", path.display())).unwrap();
        let volume = Volume { name: name.clone(), spec, origin: VolumeOrigin::Configured };
        daemon
            .volumes
            .lock_served()
            .unserved
            .push(FailedVolume::remote_absent(&volume, "its machine did not answer"));
    }
    let daemon = Arc::new(daemon);
    let is_served = |name: &VolumeName| daemon.volumes.lock_served().store_mut(name.as_str()).is_some();
    let silent = disk.lock().unwrap();
    let probes = absent_volumes::RemoteProbes::start(names.len()).unwrap();
    absent_volumes::RepeatedProbe::of(probes, 0, names.to_vec()).spawn(&daemon).unwrap();
    wait_until(|| is_served(&names[1]));
    assert!(!is_served(&names[0]));
    drop(silent);
    wait_until(|| is_served(&names[0]));
}
