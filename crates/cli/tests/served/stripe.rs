//! A daemon that serves several volumes as one: volumes of other daemons, over either protocol, and its own.

use std::process::Command;
use std::time::{Duration, Instant};

use ::client::Initiator;

use crate::daemon::{Place, volume, worlds};
use crate::gateway::{bytes, far, ours};
use crate::verbs::{good, json, urls};

const CHUNK: usize = 64 << 10;

/// What of a stretch of a stripe of two lies on a leg, and where there.
fn part(whole: &[u8], at: usize, leg: usize) -> (usize, Vec<u8>) {
    let mine = |place: &usize| place / CHUNK % 2 == leg;
    let places: Vec<usize> = (at..at + whole.len()).filter(mine).collect();
    let on_leg = |place: usize| place / CHUNK / 2 * CHUNK + place % CHUNK;
    (on_leg(places[0]), places.iter().map(|place| whole[place - at]).collect())
}

#[test]
fn two_far_volumes_are_one_over_both_protocols() {
    for world in worlds() {
        let ((_one, first), (_other, second)) = (far(world, "24M"), far(world, "32M"));
        let legs = [urls(&first, "far")[0].clone(), urls(&second, "far")[1].clone()];
        let config = volume("wide", &format!("stripe:{}+{}", legs[0], legs[1]));
        let place = Place::new();
        let near = place.serve(&config, &["--nvme", "127.0.0.1:0", "--io", world]);
        let shown = near.ask_json("volume show wide");
        assert_eq!((&shown["kind"], &shown["size_bytes"]), (&"stripe".into(), &(48 << 20).into()));
        assert_eq!(shown["path"], legs.join("+"));
        let mut initiator = ours(world);
        let direct = legs.each_ref().map(|leg| initiator.open(leg).unwrap());
        for front in 0..2 {
            let through = initiator.open(&urls(&near, "wide")[front]).unwrap();
            let back = initiator.open(&urls(&near, "wide")[1 - front]).unwrap();
            assert_eq!(initiator.geometry(through).unwrap().capacity_bytes(), 48 << 20);
            let (at, data) = ((1 << 20) + 4096 * (1 + 3 * front), bytes((5 << 20) + 512, 7 + front));
            initiator.write_at(through, at as u64, &data).unwrap();
            initiator.flush(through).unwrap();
            let mut read = vec![0; data.len()];
            initiator.read_at(back, at as u64, &mut read).unwrap();
            assert!(read == data, "{world}: written by {front}, read by the other");
            for (leg, volume) in direct.iter().enumerate() {
                let (on_leg, wanted) = part(&data, at, leg);
                let mut read = vec![0; wanted.len()];
                initiator.read_at(*volume, on_leg as u64, &mut read).unwrap();
                assert!(read == wanted, "{world}: leg {leg} holds other bytes");
            }
            initiator.close(through).unwrap();
            initiator.close(back).unwrap();
        }
        let both = urls(&near, "wide");
        good(&["verify", &both[0], &both[1]]);
        for url in &both {
            let load = ["--rw=randwrite", "--bs=96k", "--size=16m", "--iodepth=8", "--verify=crc32c"];
            good(&[&["bench", url][..], &load].concat());
        }
    }
}

#[test]
fn legs_may_be_of_any_kind_and_keep_their_identity() {
    let (_there, far) = far("epoll", "8M");
    let place = Place::new();
    let near = place.serve(&place.sandbox(&[far.at, far.nvme.unwrap()]), &["--nvme", "127.0.0.1:0"]);
    let file = place.path("a,b+c.img");
    let escaped = file.display().to_string().replace(',', r"\\\,").replace('+', r"\\\+");
    let spec = format!(r"wide=stripe:file:{escaped}\,size=8M+{}+ram:16M,chunk=16K", urls(&far, "far")[1]);
    near.ask(&format!("volume create {spec}"));
    let shown = near.ask_json("volume show wide");
    assert_eq!(shown["size_bytes"], 24 << 20);
    let mut initiator = ours("epoll");
    let [iscsi, nvme] = urls(&near, "wide").map(|url| initiator.open(&url).unwrap());
    let data = bytes(24 << 20, 5);
    initiator.write_at(iscsi, 0, &data).unwrap();
    initiator.flush(iscsi).unwrap();
    let mut read = vec![0; data.len()];
    initiator.read_at(nvme, 0, &mut read).unwrap();
    assert!(read == data);
    let on_file = std::fs::read(&file).unwrap();
    assert!(
        on_file[..16 << 10] == data[..16 << 10] && on_file[16 << 10..32 << 10] == data[48 << 10..64 << 10]
    );
    initiator.write_zeroes(nvme, 8192, 1 << 20).unwrap();
    initiator.discard(nvme, 4 << 20, 1 << 20).unwrap();
    initiator.read_at(iscsi, 0, &mut read).unwrap();
    assert!(read[..8192] == data[..8192] && read[8192..8192 + (1 << 20)].iter().all(|byte| *byte == 0));
    assert!(read[8192 + (1 << 20)..4 << 20] == data[8192 + (1 << 20)..4 << 20]);
    assert!(read[5 << 20..] == data[5 << 20..], "no more was discarded than was asked for");
    let refuses = |line: &str, said: &str| {
        let out = near.run(line);
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && text.contains(said), "{line}: {text}");
    };
    refuses("volume resize wide 1G", "a stripe has the size of its legs");
    refuses(&format!("volume create again=file:{}", escaped.replace(r"\\\", r"\")), "already open as volume");
    let url = &urls(&far, "far")[0];
    refuses(&format!("volume create again={url}"), "already used by volume \"wide\"");
    refuses(&format!("volume create more=stripe:ram:1M+{url}"), "is already used by volume \"wide\"");
    refuses(
        &format!("volume create more=stripe:{url}+{url}"),
        "leg 2 of the stripe: it is the same volume as leg 1",
    );
    refuses("volume create more=stripe:ram:1M+ram:1M,size=4M", "size=4M is more than the legs");
    refuses(r"volume create more=stripe:ram:1M+ram:1M\,block=4096", "leg 2 of the stripe has blocks of 4096");
    near.ask("volume delete wide --force");
    near.ask(&format!("volume create again=file:{}", escaped.replace(r"\\\", r"\")));
    near.ask("volume delete again");
    // Without memory the identity is that of what it stands on, at each start.
    let pair = format!(r"pair=stripe:file:{escaped}+{url}");
    near.ask(&format!("volume create {pair}"));
    let uuid = near.ask_json("volume show pair")["uuid"].clone();
    drop(near);
    let near = place.serve("", &["--nvme", "127.0.0.1:0"]);
    assert_eq!(near.ask_json("volume show pair")["uuid"], uuid);
    near.ask("volume delete pair");
    near.ask(&format!("volume create pair=stripe:{url}+file:{escaped}"));
    assert_ne!(near.ask_json("volume show pair")["uuid"], uuid, "legs in another order are another volume");
}

#[test]
fn a_stripe_lives_and_dies_with_its_legs() {
    let ((_one, first), (other, second)) = (far("epoll", "8M"), far("epoll", "8M"));
    let legs = [urls(&first, "far")[1].clone(), urls(&second, "far")[0].clone()];
    let place = Place::new();
    let config = volume("wide", &format!("stripe:{}+{}?queue_timeout=1s", legs[0], legs[1]));
    let near = place.serve(&config, &["--nvme", "127.0.0.1:0"]);
    let mut initiator = ours("epoll");
    let volumes = urls(&near, "wide").map(|url| initiator.open(&format!("{url}?queue_timeout=2s")).unwrap());
    let grows = |initiator: &mut Initiator, size: u64| {
        let begun = Instant::now();
        while volumes.iter().any(|volume| initiator.geometry(*volume).unwrap().capacity_bytes() != size) {
            assert!(begun.elapsed() < Duration::from_secs(20), "not {size}");
            // Any I/O lets a target tell what has changed: each leg's must come by something.
            volumes.iter().for_each(|volume| initiator.read_at(*volume, 0, &mut [0; 2 * CHUNK]).unwrap());
            initiator.turn(Some(Duration::from_millis(50)));
        }
    };
    first.ask("volume resize far 16M");
    grows(&mut initiator, 16 << 20);
    second.ask("volume resize far 12M");
    grows(&mut initiator, 24 << 20);
    assert_eq!(near.ask_json("volume show wide")["size_bytes"], 24 << 20);
    initiator.write_at(volumes[0], (24 << 20) - 4096, &[7; 4096]).unwrap();
    let (at, control) = (second.at, second.nvme.unwrap());
    second.kill();
    // What lies on the other leg is there still.
    initiator.read_at(volumes[1], 0, &mut [0; 4096]).unwrap();
    let begun = Instant::now();
    let why = initiator.read_at(volumes[1], CHUNK as u64, &mut [0; 4096]).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}: {why}", begun.elapsed());
    let (iscsi, nvme) = (at.to_string(), control.to_string());
    let _second = other.serve_on(&volume("far", "file:far.img"), &["--iscsi", &iscsi, "--nvme", &nvme], &[]);
    let begun = Instant::now();
    let mut read = [0; 4096];
    while let Err(why) = initiator.read_at(volumes[1], (24 << 20) - 4096, &mut read) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{why}");
    }
    assert_eq!(read, [7; 4096]);
}

/// No daemon stands between: the initiator itself stripes.
#[test]
fn the_initiators_verbs_take_stripes() {
    let ((_one, first), (_other, second)) = (far("epoll", "8M"), far("epoll", "8M"));
    let legs = [urls(&first, "far")[0].clone(), urls(&second, "far")[1].clone()];
    let stripe = format!("stripe:{}+{}", legs[0], legs[1]);
    let place = Place::new();
    let near = place.serve(&volume("wide", &stripe), &["--nvme", "127.0.0.1:0"]);
    let mut initiator = ours("epoll");
    let [striped, served] = [&stripe, &urls(&near, "wide")[1]].map(|url| initiator.open(url).unwrap());
    assert_eq!(initiator.geometry(striped).unwrap().capacity_bytes(), 16 << 20);
    let uuids = [striped, served].map(|volume| initiator.info(volume).unwrap().uuid.unwrap());
    assert_eq!(uuids[0], uuids[1], "it is the volume that the daemon serves");
    let (at, data) = (4096, bytes(3 << 20, 13));
    initiator.write_at(striped, at as u64, &data).unwrap();
    initiator.flush(striped).unwrap();
    let mut read = vec![0; data.len()];
    initiator.read_at(served, at as u64, &mut read).unwrap();
    assert!(read == data);
    initiator.write_zeroes(striped, 64 << 10, 1 << 20).unwrap();
    initiator.read_at(served, at as u64, &mut read).unwrap();
    let (zero, end) = ((64 << 10) - at, (64 << 10) - at + (1 << 20));
    assert!(read[zero..end].iter().all(|byte| *byte == 0) && read[end..] == data[end..]);
    initiator.close(striped).unwrap();
    drop(near);
    let image = place.path("image");
    std::fs::write(&image, bytes(16 << 20, 17)).unwrap();
    let image = image.to_str().unwrap();
    good(&["copy", image, &stripe, "--verify"]);
    good(&["verify", &stripe, image]);
    let load = ["--rw=randrw", "--bs=96k", "--size=8m", "--iodepth=8", "--verify=crc32c"];
    good(&[&["bench", &stripe][..], &load].concat());
    let info = json(&["info", &stripe, "--json"]);
    assert_eq!((&info["size_bytes"], info["paths"].as_array().unwrap().len()), (&(16 << 20).into(), 2));
    let fails = |name: &str, said: &str| {
        let out = Command::new(env!("CARGO_BIN_EXE_blockwire")).args(["info", name]).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && text.contains(said), "{name}: {text}");
    };
    fails(&format!("{stripe},chunk=3K"), "power of two");
    fails(&format!("{stripe},chunk=16M"), "has not room for one chunk");
    fails(&format!("stripe:{}+{}", legs[0], legs[1].replace(":far/1", ":far/9")), "Identify");
    second.kill();
    fails(&stripe, "is the target running");
}
