//! The servers of `attach`: for each method what users open, what the guardian holds, and how it is recovered.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use block_device::{DeviceInterface, Disk, fuse, nbd, ublk, vhost};

use super::guardian_protocol::{ClientGeometry, RecoveryState};
use super::{AccessPoints, Attachment, DetachHandle};
use process::exit::Failure;

/// Called when the device can be used.
type ReadyCallback<'a> = &'a mut dyn FnMut(&AccessPoints);

/// Serves with the chosen method.
pub(super) fn serve_attachment(
    attachment: &mut Attachment,
    end: &DetachHandle,
    ready: ReadyCallback<'_>,
) -> Result<(), Failure> {
    match attachment.records.via {
        DeviceInterface::Ublk => serve_ublk(attachment, end, ready),
        DeviceInterface::Fuse => serve_fuse(attachment, end, ready),
        DeviceInterface::Nbd => serve_nbd(attachment, end, ready),
        DeviceInterface::VhostUser => serve_vhost(attachment, end, ready),
    }
}

fn failure_at(place: &Path) -> impl Fn(io::Error) -> Failure + use<> {
    let place = place.to_owned();
    move |why| Failure::failed(format!("{}: {why}", place.display()))
}

/// What became of the callback that reports a device as ready. It runs inside the server, which a failure ends.
struct ReadyOutcome {
    noted: bool,
    failed: Option<Failure>,
}

impl ReadyOutcome {
    fn new() -> ReadyOutcome {
        ReadyOutcome { noted: false, failed: None }
    }

    fn record_result(&mut self, settled: Result<(), Failure>) -> io::Result<()> {
        match settled {
            Ok(()) => self.noted = true,
            Err(why) => {
                let said = io::Error::other(why.message.clone());
                self.failed = Some(why);
                return Err(said);
            }
        }
        Ok(())
    }

    /// Whether the device was reported.
    fn was_reported(&self) -> bool {
        self.noted
    }

    /// How the attachment ended.
    fn into_result(
        self,
        ran: io::Result<()>,
        failed: impl FnOnce(io::Error) -> Failure,
    ) -> Result<(), Failure> {
        match (self.failed, self.noted, ran) {
            (Some(why), ..) => Err(why),
            (None, _, Err(why)) => Err(failed(why)),
            (None, false, Ok(())) => Err(Failure::failed("it was stopped before it was ready")),
            (None, true, Ok(())) => Ok(()),
        }
    }
}

fn serve_ublk(
    attachment: &mut Attachment,
    end: &DetachHandle,
    ready: ReadyCallback<'_>,
) -> Result<(), Failure> {
    let Attachment { disk, records, .. } = attachment;
    let failed = failure_at(Path::new("ublk"));
    let was = match records.take_kept_state() {
        Some((RecoveryState::Ublk { number, .. }, _)) => Some(number),
        _ => None,
    };
    let number = match (was, &records.options.at) {
        (Some(number), _) => Some(number),
        (None, Some(place)) => Some(ublk_number(place)?),
        (None, None) => records.stranded_path().map(ublk_number).transpose()?,
    };
    let server = match (records.options.recover, number) {
        (true, Some(number)) => ublk::Server::recover(number, disk),
        (true, None) => {
            return Err(Failure::usage("--recover needs --at /dev/ublkbN, the device to recover"));
        }
        (false, number) => ublk::Server::new(ublk::Settings { number, ..ublk::Settings::default() }, disk),
    };
    let server = server.map_err(|why| match why.kind() {
        io::ErrorKind::NotFound => Failure::failed(
            "this kernel offers no ublk (there is no /dev/ublk-control): `modprobe ublk_drv` as root, on Linux 6.0 or \
             later, or use --via fuse or --via nbd",
        ),
        io::ErrorKind::PermissionDenied => {
            Failure::failed(format!("ublk: {why}: only root may use /dev/ublk-control, unless its owner was changed"))
        }
        _ => failed(why),
    })?;
    let number = server.device_number();
    let state = RecoveryState::Ublk { number, process: std::process::id() };
    let mut told = ReadyOutcome::new();
    let mut ran = server.run(disk, &end.stop, &mut |device: &Path| {
        let opened =
            AccessPoints { ways: vec![("device", device.display().to_string())], remarks: Vec::new() };
        told.record_result(records.record_and_hold(end, &opened, Some((state.clone(), Vec::new()))))?;
        ready(&opened);
        Ok(())
    });
    // The system or the driver failed, not the volume: users wait, and are served again.
    for _ in 0..RECOVERIES_MAX {
        if ran.is_ok() || !told.was_reported() || end.stop.request_count() > 0 {
            break;
        }
        let Ok(server) = ublk::Server::recover(number, disk) else { break };
        ran = server.run(disk, &end.stop, &mut |_: &Path| Ok(()));
    }
    // If it was not asked to stop, it is left to its guardian, which deletes the device after the time-out.
    if ran.is_err() && told.was_reported() && end.stop.request_count() > 0 {
        // Otherwise its users would wait forever. The driver notices the end of its server a moment later.
        for _ in 0..100 {
            match ublk::delete_abandoned(number, std::process::id()) {
                Err(why) if why.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
                _ => break,
            }
        }
    }
    told.into_result(ran, failed)
}

/// How often a device is served again after its server failed.
const RECOVERIES_MAX: u32 = 3;

/// The N of `/dev/ublkbN`.
pub(super) fn ublk_number(at: &Path) -> Result<u32, Failure> {
    let name = at.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let number = name.strip_prefix("ublkb").and_then(|number| number.parse().ok());
    number.ok_or_else(|| Failure::usage(format!("{} is not a ublk device: write /dev/ublkbN", at.display())))
}

fn serve_fuse(
    attachment: &mut Attachment,
    end: &DetachHandle,
    ready: ReadyCallback<'_>,
) -> Result<(), Failure> {
    let Attachment { disk, records, .. } = attachment;
    let inherited = match records.take_kept_state() {
        Some((RecoveryState::Fuse { dir, write_max, name, made, by_program, .. }, files)) => {
            let made = made.map(|(device, inode)| fuse::CreatedDir { device, inode });
            Some((dir, fuse::MountHandover { write_max, name: fuse::MountId(name), made, by_program }, files))
        }
        _ => None,
    };
    let dir = records.device_path(inherited.as_ref().map(|(dir, ..)| dir.as_path()), "mount");
    let failed = failure_at(&dir);
    let settings = fuse::Settings::new(&dir);
    let server = match inherited {
        Some((_, facts, files)) => resume_server(settings, facts, files),
        None => {
            if records.options.recover {
                fuse::unmount_dead(&dir).map_err(&failed)?;
            }
            fuse::Server::new(settings)
        }
    };
    let mut told = ReadyOutcome::new();
    let ran = server.map_err(&failed)?.run(disk, &end.stop, &mut |place| {
        let mut opened =
            AccessPoints { ways: vec![("file", place.file.display().to_string())], remarks: Vec::new() };
        if let Some(device) = place.device {
            opened.ways.push(("device", device.display().to_string()));
        }
        if let Some(why) = &place.why {
            opened.remarks.push(format!("there is no loop device: {why}"));
        }
        if place.kept.is_none() {
            let remark = "if this process is killed, I/O fails at once: the kernel cannot resend requests in \
                          flight (Linux 6.9 can)";
            opened.remarks.push(remark.to_owned());
        }
        told.record_result(records.record_and_hold(
            end,
            &opened,
            place.kept.map(|keep| fuse_recovery_state(&dir, keep)),
        ))?;
        ready(&opened);
        Ok(())
    });
    told.into_result(ran, failed)
}

/// A server with the descriptors that the guardian held.
fn resume_server(
    settings: fuse::Settings,
    facts: fuse::MountHandover,
    files: Vec<OwnedFd>,
) -> io::Result<fuse::Server> {
    let mut files = files.into_iter();
    let fuse = files.next().ok_or_else(|| io::Error::other("the guardian holds nothing"))?;
    fuse::Server::recover(settings, fuse::InheritedMount { fuse, device: files.next(), facts })
}

fn fuse_recovery_state<'a>(
    dir: &Path,
    keep: fuse::BorrowedMount<'a>,
) -> (RecoveryState, Vec<std::os::fd::BorrowedFd<'a>>) {
    let fuse::MountHandover { write_max, name, made, by_program } = keep.facts;
    let (device, made) = (keep.device.is_some(), made.map(|made| (made.device, made.inode)));
    let state =
        RecoveryState::Fuse { dir: dir.to_owned(), write_max, name: name.0, made, by_program, device };
    (state, std::iter::once(keep.fuse).chain(keep.device).collect())
}

/// The path of the killed holder's socket.
fn inherited_path(attachment: &mut Attachment) -> Option<PathBuf> {
    match attachment.records.take_kept_state() {
        Some((RecoveryState::Nbd { path, .. } | RecoveryState::VhostUser { path, .. }, _)) => Some(path),
        _ => attachment.records.stranded_path().map(Path::to_owned),
    }
}

fn serve_nbd(
    attachment: &mut Attachment,
    end: &DetachHandle,
    ready: ReadyCallback<'_>,
) -> Result<(), Failure> {
    let was = inherited_path(attachment);
    let Attachment { disk, records, .. } = attachment;
    let path = records.device_path(was.as_deref(), "nbd");
    let failed = failure_at(&path);
    let mut server = nbd::Server::new(nbd::Settings::new(&path)).map_err(&failed)?;
    let opened = AccessPoints {
        ways: vec![("socket", path.display().to_string()), ("url", server.url())],
        remarks: Vec::new(),
    };
    let shape = ClientGeometry::of(&disk.geometry(), disk.is_read_only());
    records.record_and_hold(end, &opened, Some((RecoveryState::Nbd { path, shape }, Vec::new())))?;
    ready(&opened);
    server.run(disk, &end.stop).map_err(failed)
}

fn serve_vhost(
    attachment: &mut Attachment,
    end: &DetachHandle,
    ready: ReadyCallback<'_>,
) -> Result<(), Failure> {
    let was = inherited_path(attachment);
    let Attachment { disk, records, .. } = attachment;
    let path = records.device_path(was.as_deref(), "vhost");
    let failed = failure_at(&path);
    let info = disk.initiator.info(disk.volume);
    let id = info.map(|info| info.serial.clone()).unwrap_or_default();
    let settings = vhost::Settings { id: id.clone(), ..vhost::Settings::new(&path) };
    let mut server = vhost::Backend::new(settings).map_err(&failed)?;
    let opened = AccessPoints { ways: vec![("socket", path.display().to_string())], remarks: Vec::new() };
    let shape = ClientGeometry::of(&disk.geometry(), disk.is_read_only());
    records.record_and_hold(
        end,
        &opened,
        Some((RecoveryState::VhostUser { path, id, shape }, Vec::new())),
    )?;
    ready(&opened);
    server.run(disk, &end.stop).map_err(failed)
}
