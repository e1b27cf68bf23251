//! Table tests of the SPEC parser.

use super::*;

fn spec(source: VolumeSource, change: impl FnOnce(&mut Spec)) -> Spec {
    let mut spec = Spec::new(source);
    change(&mut spec);
    spec
}

#[test]
fn accepted_specs() {
    let file = |path: &str| VolumeSource::File(path.into());
    let uuid: Uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8".parse().unwrap();
    for (text, want) in [
        ("ram:64M", spec(VolumeSource::Ram, |s| s.size = Some(64 << 20))),
        ("null:1T", spec(VolumeSource::Null, |s| s.size = Some(1 << 40))),
        ("file:/srv/a.img", spec(file("/srv/a.img"), |_| {})),
        ("file:relative.img,size=1G", spec(file("relative.img"), |s| s.size = Some(1 << 30))),
        ("file:/a\\,b\\+c\\\\d", spec(file("/a,b+c\\d"), |_| {})),
        ("file:/with=equals:colon", spec(file("/with=equals:colon"), |_| {})),
        ("/dev/sdb,ro", spec(VolumeSource::Device("/dev/sdb".into()), |s| s.read_only = true)),
        ("/dev/disk/by-id/x,ro=off", spec(VolumeSource::Device("/dev/disk/by-id/x".into()), |_| {})),
        (
            "null:1G,tas=off,sanitize_rate=4M",
            spec(VolumeSource::Null, |s| {
                s.size = Some(1 << 30);
                s.task_aborted_status = false;
                s.sanitize_rate = Some(4 << 20);
            }),
        ),
        (
            "ram:64M,thin_threshold=80%",
            spec(VolumeSource::Ram, |s| {
                s.size = Some(64 << 20);
                s.thin_threshold = Some(80);
            }),
        ),
        (
            "ram:64M,block=4096,physical=8192,removable",
            spec(VolumeSource::Ram, |s| {
                s.size = Some(64 << 20);
                s.block = 4096;
                s.physical = Some(8192);
                s.removable = true;
            }),
        ),
        (
            "file:/x,direct,cache=off,block=4K,uuid=6ba7b810-9dad-11d1-80b4-00c04fd430c8",
            spec(file("/x"), |s| {
                s.direct = true;
                s.cache = false;
                s.block = 4096;
                s.uuid = Some(uuid);
            }),
        ),
    ] {
        assert_eq!(parse(text), Ok(want.clone()), "{text}");
        assert_eq!(parse(&want.to_string()), Ok(want), "written form of {text}");
    }
}

#[test]
fn refused_specs_say_which_key_and_what_was_meant() {
    for (text, want) in [
        ("", "unknown kind of volume \"\"; known: ram, file, null, stripe, rbd (or a device as /dev/NAME)"),
        ("rma:64M", "unknown kind of volume \"rma\"; did you mean \"ram\"? (or a device as /dev/NAME)"),
        ("ram", "ram: needs a size, as in ram:64M"),
        ("ram:", "ram: needs a size, as in ram:64M"),
        ("file:", "file: needs a path, as in file:/srv/disk.img"),
        ("/srv/x", "\"/srv/x\" is not under /dev; write file:/srv/x for a file"),
        ("ram:64M,sise=1", "unknown key \"sise\"; did you mean \"size\"?"),
        ("ram:64M,size=1G", "key \"size\" is given twice"),
        ("file:/x,ro,ro", "key \"ro\" is given twice"),
        ("ram:64M,block=520", "block is 512 or 4096, not \"520\""),
        ("ram:64M,block", "block needs a value"),
        ("ram:64M,physical=3000", "physical is a power of two from 512 to 64K"),
        ("ram:64M,block=4096,physical=512", "physical must not be smaller than the logical block"),
        ("ram:64M,sanitize_rate=0", "sanitize_rate must not be zero"),
        ("ram:64M,thin_threshold=80", "thin_threshold is 1% to 99%, not \"80\""),
        ("null:64M,thin_threshold=80%", "thin_threshold applies only to RAM volumes and thin files"),
        ("file:/x,thin=off,thin_threshold=80%", "thin_threshold applies only to RAM volumes and thin files"),
        ("ram:64M,thin_threshold=100%", "thin_threshold is 1% to 99%, not \"100%\""),
        ("ram:64M,ro=maybe", "ro is on or off, not \"maybe\""),
        ("ram:1000", "size is not a multiple of the block size"),
        ("ram:0", "size must not be zero"),
        (
            "ram:5X",
            "size \"5X\" is not a size; write bytes or a number with K, M, G, T or P (binary), for example 64M",
        ),
        ("ram:1M,direct", "direct applies only to files and devices"),
        ("ram:1M,cache=on", "cache applies only to files and devices"),
        ("/dev/sdb,size=1G", "size cannot be chosen for a device: it has its own"),
        ("file:/x,uuid=00000000-0000-0000-0000-000000000000", "uuid must not be all zero"),
        ("file:/x\\", "a backslash must be followed by \",\", \"+\" or \"\\\""),
        ("file:/x\\y", "a backslash must be followed by \",\", \"+\" or \"\\\""),
        (
            "stripe:ram:1M",
            "stripe: needs two legs at least, as in stripe:/dev/sdb+/dev/sdc (a comma inside of a leg is written \\,)",
        ),
        ("stripe:ram:1M+", "stripe: leg 2 is empty; a stripe is written stripe:VOLUME+VOLUME"),
        (
            "ram:1M,thin=off",
            "thin cannot be off: RAM volumes allocate memory when it is written and free it when it is unmapped",
        ),
        (
            "stripe:ram:1M+rma:1M",
            "leg 2 of the stripe: unknown kind of volume \"rma\"; did you mean \"ram\"? (or a device as /dev/NAME)",
        ),
        (
            "stripe:ram:1M\\,ro+ram:1M",
            "leg 1 of the stripe: ro does not belong to a leg; append it to the whole stripe",
        ),
        ("stripe:ram:1M+stripe:ram:1M\\+ram:1M", "leg 2 of the stripe: a stripe cannot be a leg of another"),
        (
            "stripe:ram:1M+ram:1M,block=4096",
            "block belongs to the legs; append it to a leg, with \"\\,\" before it",
        ),
        ("stripe:ram:1M+ram:1M,chunk=3K", "chunk is a power of two from 512 to 64M"),
        ("stripe:ram:1M+ram:1M,size=100K", "size is not a multiple of the chunk, 64K"),
        ("ram:1M,chunk=64K", "chunk applies only to stripes"),
        ("rbd:", "rbd: needs an image, as in rbd:POOL/IMAGE"),
        ("rbd:pool", "\"pool\" does not name an image: write rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE"),
        (
            "rbd:pool/image@snap",
            "\"pool/image@snap\" does not name an image: write rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE",
        ),
        ("rbd:pool/image,size=1G", "size does not apply to volumes of kind rbd"),
        ("rbd:pool/image,cache=on", "cache does not apply to volumes of kind rbd"),
        ("rbd:pool/image,conf=", "conf needs a value"),
        ("rbd:pool/image,queue_timeout=0s", "queue_timeout is a time from 1ms to 24h, as 500ms or 20s"),
        ("rbd:pool/image,break_lock=maybe", "break_lock is on or off, not \"maybe\""),
        ("file:/x,user=a", "user applies only to volumes of kind rbd"),
        (
            "file:/x,queue_timeout=1s",
            "queue_timeout applies only to images of Ceph and exports of NBD servers",
        ),
        ("nbd://h/e,size=1G", "size does not apply to exports of NBD servers"),
        ("nbd://", "nbd://: write nbd://HOST[:PORT]/EXPORT, and an IPv6 address in brackets"),
        ("nbd://h:0/e", "nbd://h:0/e: write nbd://HOST[:PORT]/EXPORT, and an IPv6 address in brackets"),
        ("nbd://u@h/e", "nbd://u@h/e: write nbd://HOST[:PORT]/EXPORT, and an IPv6 address in brackets"),
        (
            "nbd+unix:///e?socket=run/s",
            "nbd+unix:///e?socket=run/s: write nbd+unix:///EXPORT?socket=PATH, with an absolute path of at most 107 bytes",
        ),
        ("nbd://h/%zz", "nbd://h/%zz: % must be followed by two hexadecimal digits, and names are UTF-8"),
        (
            "nbds://h/e",
            "nbds://h/e: TLS is not supported for NBD: use nbd+unix://, or a tunnel to the server",
        ),
    ] {
        assert_eq!(parse(text).map_err(|e| e.to_string()), Err(want.to_owned()), "{text}");
    }
}

#[test]
fn an_image_of_ceph_is_written_as_it_was_read() {
    for text in [
        "rbd:pool/image",
        r"rbd:pool/space/image,conf=/etc/ceph/a\,b.conf,user=disks,queue_timeout=1500ms,break_lock=on",
        "rbd:pool/image,block=4096,ro=on,thin=off",
        r"stripe:rbd:pool/a\,user=u+rbd:pool/b\,user=u",
    ] {
        assert_eq!(parse(text).unwrap().to_string(), text);
    }
    let VolumeSource::Rbd(image) = parse("rbd:p/n/i,user=client.x,queue_timeout=2m").unwrap().source else {
        panic!("an image")
    };
    assert_eq!((image.namespace.as_deref(), image.user.as_deref()), (Some("n"), Some("x")));
    assert_eq!((image.queue_timeout.as_secs(), image.break_lock), (120, false));
    let mut relative = parse("rbd:p/i,conf=ceph.conf").unwrap();
    assert!(relative.source.has_relative_file());
    relative.source.for_each_file(&mut |path| *path = std::path::Path::new("/srv").join(&*path));
    assert_eq!(relative.to_string(), "rbd:p/i,conf=/srv/ceph.conf");
}

#[test]
fn an_export_of_an_nbd_server_is_written_as_it_was_read() {
    let tcp = |host: &str, port| NbdServer::Tcp(host.to_owned(), port);
    for (text, server, export) in [
        ("nbd://h", tcp("h", 10_809), ""),
        ("nbd://h:10/a/b%2cro,ro=on", tcp("h", 10), "a/b,ro"),
        ("nbd://[::1]:7/e,queue_timeout=1500ms,block=4096", tcp("::1", 7), "e"),
        ("nbd+unix:///?socket=/run/a%20b", NbdServer::Unix("/run/a b".into()), ""),
        ("nbd+unix:///e,f?socket=/s,thin=off", NbdServer::Unix("/s".into()), "e,f"),
    ] {
        let spec = parse(text).unwrap();
        assert_eq!(spec.to_string(), text);
        let VolumeSource::Nbd(found) = spec.source else { panic!("{text}") };
        assert_eq!((found.server, found.export.as_str()), (server, export), "{text}");
    }
    let striped = r"stripe:nbd+unix:///a?socket=/s\,queue_timeout=1000ms+nbd://h/b";
    assert_eq!(parse(striped).unwrap().to_string(), striped);
}

#[test]
fn a_stripe_is_made_of_volumes() {
    let leg = |text: &str| parse(text).unwrap();
    let url = "nvme+tcp://h/nqn.2026-11.io.blockwire:d/1";
    for (text, legs, chunk) in [
        ("stripe:ram:1M+ram:2M".to_owned(), vec!["ram:1M", "ram:2M"], 64 << 10),
        (
            r"stripe:file:/a\\\+b\,size=1G+/dev/sdb,chunk=1M,ro".to_owned(),
            vec![r"file:/a+b,size=1G", "/dev/sdb"],
            1 << 20,
        ),
        (
            format!("stripe:{url}+iscsi://h/iqn.2026-11.io.blockwire:d/0,size=64K"),
            vec![url, "iscsi://h/iqn.2026-11.io.blockwire:d/0"],
            64 << 10,
        ),
        (
            format!("stripe:{url}\\,iscsi://i/iqn.2026-11.io.blockwire:d/0+{url}"),
            vec![&*format!("{url},iscsi://i/iqn.2026-11.io.blockwire:d/0"), url],
            64 << 10,
        ),
    ] {
        let spec = parse(&text).unwrap();
        let legs: Vec<Spec> = legs.into_iter().map(|text| leg(&text.replace("a+b", r"a\+b"))).collect();
        assert_eq!(spec.source, VolumeSource::Stripe(StripeSpec { legs, chunk }), "{text}");
        assert_eq!(parse(&spec.to_string()), Ok(spec.clone()), "written form of {text}");
        assert_eq!(spec.read_only, text.ends_with("ro"));
    }
    let secret = parse("stripe:iscsi://u%secret@h/iqn.2026-11.io.blockwire:d/0+ram:1M").unwrap_err();
    assert!(secret.to_string().contains("leg 1") && !format!("{secret:?} {secret}").contains("u%secret"));
    let mut relative = parse("stripe:file:a.img+file:/b.img").unwrap();
    assert!(relative.source.has_relative_file());
    relative.source.for_each_file(&mut |path| *path = std::path::Path::new("/srv").join(&*path));
    assert_eq!(relative.source.display_location().unwrap(), "/srv/a.img+/b.img");
}

const NVME: &str = "nvme+tcp://[::1]:4420/nqn.2026-11.io.blockwire:d/1?secret_file=/etc/a,b";

#[test]
fn a_url_keeps_what_is_its_own() {
    for (text, urls) in [
        (NVME.to_owned(), NVME.to_owned()),
        (format!("{NVME},ro"), NVME.to_owned()),
        (format!("{NVME},ro=on,persist=force"), NVME.to_owned()),
    ] {
        let spec = parse(&text).unwrap();
        assert_eq!(spec.source, VolumeSource::Remote(urls));
        assert_eq!(spec.read_only, text != NVME);
        assert_eq!(parse(&spec.to_string()).unwrap(), spec);
        assert_eq!(
            spec.source.display_location().unwrap(),
            "nvme+tcp://[::1]:4420/nqn.2026-11.io.blockwire:d/1"
        );
    }
    let both = "iscsi://h/iqn.2026-11.io.blockwire:d/0,nvme+tcp://h/nqn.2026-11.io.blockwire:d/1";
    let spec = parse(&format!("{both},uuid=6ba7b810-9dad-11d1-80b4-00c04fd430c8")).unwrap();
    assert_eq!(spec.source, VolumeSource::Remote(both.to_owned()));
    assert!(spec.uuid.is_some());
}

#[test]
fn a_url_that_cannot_be_served_is_refused() {
    let plain = "iscsi://h/iqn.2026-11.io.blockwire:d/0";
    for (text, said) in [
        (format!("{plain},size=1G"), "size is set by the other machine"),
        (format!("{plain},block=4096"), "block is set by the other machine"),
        ("iscsi://u%secret,ro@h/iqn.2026-11.io.blockwire:d/0".to_owned(), "must not hold a password"),
        ("iscsi://h/iqn.2026-11.io.blockwire:d".to_owned(), ""),
        ("iscsi:h".to_owned(), ""),
    ] {
        let why = parse(&text).unwrap_err();
        assert!(why.to_string().contains(said), "{text}: {why}");
        assert!(!format!("{why:?} {why}").contains("secret,ro"), "{why:?}");
    }
}
