//! Serves a file by one of the fronts, until it is killed; the tests with guests use it:
//!   local nbd|vhost|fuse PLACE FILE [BLOCK]

#[path = "../tests/support/file.rs"]
mod file;

use blockwire_attach::{Stop, fuse, nbd, vhost};
use file::FileVolume;

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = || std::io::Error::other("usage: local nbd|vhost|fuse PLACE FILE [BLOCK]");
    let [front, place, path, rest @ ..] = &args[..] else { return Err(usage()) };
    let block = rest.first().map_or(Ok(512), |text| text.parse()).map_err(|_| usage())?;
    let mut volume = FileVolume::open(path, block)?;
    let stop = Stop::new()?;
    match front.as_str() {
        "nbd" => {
            let mut front = nbd::Front::new(nbd::Settings::new(place))?;
            println!("{}", front.url());
            front.run(&mut volume, &stop)
        }
        "vhost" => {
            let settings = vhost::Settings { id: "local".into(), ..vhost::Settings::new(place) };
            vhost::Front::new(settings)?.run(&mut volume, &stop)
        }
        "fuse" => fuse::Front::new(fuse::Settings::new(place))?.run(&mut volume, &stop, &mut |place| {
            println!("{} {:?}", place.file.display(), place.device);
        }),
        _ => Err(usage()),
    }
}
