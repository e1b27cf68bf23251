//! Serves a file by one of the servers until SIGTERM; the tests with guests use it:
//!   local nbd|vhost|fuse PLACE FILE [BLOCK]
//!   local ublk new|NUMBER FILE [BLOCK]      NUMBER: takes over the device of a server that was killed

#[path = "../tests/support/file.rs"]
mod file;

use std::sync::OnceLock;

use blockwire_block_device::{ServerStop, fuse, nbd, ublk, vhost};
use file::FileVolume;

static STOP: OnceLock<ServerStop> = OnceLock::new();

extern "C" fn on_signal(_: libc::c_int) {
    if let Some(stop) = STOP.get() {
        stop.request_stop();
    }
}

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = || std::io::Error::other("usage: local nbd|vhost|fuse|ublk PLACE FILE [BLOCK]");
    let [server, place, path, rest @ ..] = &args[..] else { return Err(usage()) };
    let block = rest.first().map_or(Ok(512), |text| text.parse()).map_err(|_| usage())?;
    let mut volume = FileVolume::open(path, block)?;
    let stop = ServerStop::new()?;
    STOP.get_or_init(|| stop.clone());
    // SAFETY: the handler only does what a signal's may: it counts, and writes to a descriptor.
    unsafe { libc::signal(libc::SIGTERM, on_signal as *const () as libc::sighandler_t) };
    match server.as_str() {
        "nbd" => {
            let mut server = nbd::Server::new(nbd::Settings::new(place))?;
            println!("{}", server.url());
            server.run(&mut volume, &stop)
        }
        "vhost" => {
            let settings = vhost::Settings { id: "local".into(), ..vhost::Settings::new(place) };
            vhost::Backend::new(settings)?.run(&mut volume, &stop)
        }
        "fuse" => fuse::Server::new(fuse::Settings::new(place))?.run(&mut volume, &stop, &mut |place| {
            println!("{} {:?}", place.file.display(), place.device);
            Ok(())
        }),
        "ublk" => {
            let server = match place.as_str() {
                "new" => ublk::Server::new(ublk::Settings::default(), &volume)?,
                number => ublk::Server::recover(number.parse().map_err(|_| usage())?, &volume)?,
            };
            server.run(&mut volume, &stop, &mut |device| {
                println!("{}", device.display());
                Ok(())
            })
        }
        _ => Err(usage()),
    }
}
