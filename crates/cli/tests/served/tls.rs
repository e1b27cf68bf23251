//! NVMe/TCP over TLS: our initiator and `openssl s_client` against the daemon, and peers that misuse it.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    daemon::{Daemon, Place, wait_until, worlds},
    host::{INVALID_HOST, Names, Queue},
    verbs::{fails, good, json, run},
};

pub const NQN: &str = "nqn.2026-11.test:host";
pub const SUBSYSTEM: &str = "nqn.2026-11.io.blockwire:a";

/// A volume at an address where TLS is used like this, for a host with these keys; `more` are more tables.
pub fn config_with_keys(tls: &str, keys: &str, more: &str) -> String {
    format!(
        r#"
[[volume]]
name = "a"
source = "ram:24M"
[[portal]]
protocol = "nvme"
address = "127.0.0.1:0"
tls = "{tls}"
[[host]]
name = "host"
nqn = ["{NQN}"]
{keys}
access = [{{ subsystem = "*" }}]
{more}
"#
    )
}

fn config(tls: &str, more: &str) -> String {
    config_with_keys(tls, r#"tls_key_file = "host.key""#, more)
}

/// Writes keys of these hashes: `host.key` is the host's, `other.key` is not.
fn keys(place: &Place, hash: &str) {
    for name in ["host.key", "other.key"] {
        let path = place.path(name);
        let _ = fs::remove_file(&path);
        good(&["key", "generate", "--kind", "tls", "--hash", hash, path.to_str().unwrap()]);
    }
}

fn url(place: &Place, at: SocketAddr, key: &str, more: &str) -> String {
    let key = place.path(key);
    format!("nvme+tcp://{at}/{SUBSYSTEM}/1?host_nqn={NQN}&tls_key_file={}{more}", key.display())
}

fn serve(place: &Place, config: &str, world: &str) -> (Daemon, SocketAddr) {
    let daemon = place.serve(config, &["--io", world]);
    let at = daemon.nvme.unwrap();
    (daemon, at)
}

/// Bytes written over one URL are read over it, and over another.
fn carries(place: &Place, urls: [&str; 2]) {
    let (from, to) = (place.path("from"), place.path("to"));
    let bytes: Vec<u8> = (0..9_000_000u32).map(|at| (at ^ (at >> 9)) as u8).collect();
    fs::write(&from, &bytes).unwrap();
    good(&["copy", "--force", from.to_str().unwrap(), urls[0]]);
    for url in urls {
        good(&["read", url, "--length", "9000000", "--output", to.to_str().unwrap(), "--force"]);
        assert!(fs::read(&to).unwrap() == bytes, "{url}");
    }
}

#[test]
fn bytes_go_over_tls_with_each_suite_identity_and_derivation() {
    for world in worlds() {
        for hash in ["none", "sha256", "sha384"] {
            let place = Place::new();
            keys(&place, hash);
            let auth = "[auth]\ntls_derivations = [\"compat\", \"standard\"]";
            let (daemon, at) = serve(&place, &config("require", auth), world);
            // Both derivations are told apart by the digest, where the key has a hash; else the first counts.
            let second = if hash == "none" { "compat" } else { "standard" };
            carries(
                &place,
                [
                    &url(&place, at, "host.key", "&tls_identity=0&tls_derivation=compat&digest=both"),
                    &url(&place, at, "host.key", &format!("&tls_derivation={second}&queues=4")),
                ],
            );
            assert!(!daemon.log().contains("TLS"), "{}", daemon.log());
        }
    }
}

#[test]
fn several_cores_hand_channels_over() {
    for world in worlds() {
        let place = Place::new();
        keys(&place, "sha256");
        let cores = match crate::daemon::cores().as_slice() {
            [] | [_] => continue,
            [one, two, ..] => format!("{one},{two}"),
        };
        let daemon = place.serve(&config("require", ""), &["--io", world, "--cores", &cores]);
        let url = url(&place, daemon.nvme.unwrap(), "host.key", "&queues=4");
        carries(&place, [&url, &url]);
    }
}

#[test]
fn where_tls_may_be_used_both_kinds_of_hosts_come_and_discovery_says_so() {
    let place = Place::new();
    keys(&place, "sha256");
    let (daemon, at) = serve(&place, &config("allow", ""), worlds()[0]);
    let plain = format!("nvme+tcp://{at}/{SUBSYSTEM}/1?host_nqn={NQN}");
    carries(&place, [&url(&place, at, "host.key", ""), &plain]);
    let found = json(&["discover", "--json", &format!("nvme+tcp://{at}?host_nqn={NQN}")]);
    assert!(found.to_string().contains(r#""tls":false"#), "{found}");
    drop(daemon);
    let (_daemon, at) = serve(&place, &config("require", ""), worlds()[0]);
    let key = place.path("host.key");
    let asked = format!("nvme+tcp://{at}?host_nqn={NQN}&tls_key_file={}", key.display());
    let found = json(&["discover", "--json", &asked]);
    assert!(found.to_string().contains(r#""tls":true"#), "{found}");
}

#[test]
fn who_has_no_key_or_another_is_not_let_in() {
    let place = Place::new();
    keys(&place, "sha256");
    let (daemon, at) = serve(&place, &config("require", ""), worlds()[0]);
    let plain = format!("nvme+tcp://{at}/{SUBSYSTEM}/1?host_nqn={NQN}&open_timeout=2s");
    fails(&["info", &plain], 1, "");
    fails(&["info", &url(&place, at, "other.key", "")], 24, "TLS failed");
    fails(&["info", &url(&place, at, "other.key", "&tls_identity=0")], 24, "TLS failed");
    daemon.log_with("came without TLS");
    daemon.log_with("no key is known for the TLS identity NVMe1R01 nqn.2026-11.test:host");
    daemon.log_with("it has another key than ours");
    good(&["info", &url(&place, at, "host.key", "")]);
}

#[test]
fn a_subsystem_demands_tls_where_its_address_allows_both() {
    let place = Place::new();
    keys(&place, "sha256");
    let subsystem = format!(
        "[[subsystem]]\nnqn = \"{SUBSYSTEM}\"\nnamespaces = [{{ volume = \"a\" }}]\ntls = \"require\""
    );
    let (daemon, at) = serve(&place, &config("allow", &subsystem), worlds()[0]);
    let mut names = Names::of("a");
    names.nqn = NQN.to_owned();
    assert_eq!(Queue::connect(at, &names, 0, 0xffff).err(), Some(INVALID_HOST));
    daemon.log_with("demands TLS");
    good(&["info", &url(&place, at, "host.key", "")]);
}

/// The key that TLS uses, derived by `blockwire key derive`: identity and hexadecimal digits.
fn derived(place: &Place, identity: &str) -> (String, String) {
    let out = place.path("derived");
    let _ = fs::remove_file(&out);
    let (key, out) = (place.path("host.key"), out.to_str().unwrap().to_owned());
    let said = good(&[
        "key",
        "derive",
        key.to_str().unwrap(),
        "--host",
        NQN,
        "--subsystem",
        SUBSYSTEM,
        "--identity",
        identity,
        "--output",
        &out,
    ]);
    let psk = fs::read_to_string(Path::new(&out)).unwrap().trim().to_owned();
    (String::from_utf8(said).unwrap().trim().to_owned(), psk)
}

#[test]
fn the_client_of_openssl_shakes_hands() {
    let place = Place::new();
    keys(&place, "sha256");
    let (_daemon, at) = serve(&place, &config("require", ""), worlds()[0]);
    for identity in ["0", "1"] {
        let (identity, psk) = derived(&place, identity);
        let out = Command::new("openssl")
            .args(["s_client", "-connect", &at.to_string(), "-tls1_3", "-psk", &psk])
            .args(["-psk_identity", &identity])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(said.contains("Reused, TLSv1.3, Cipher is TLS_AES_128_GCM_SHA256"), "{said}");
    }
}

/// A socket that was sent something.
fn sent(at: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(at).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.write_all(bytes).unwrap();
    socket
}

/// Reads until the daemon closes; how long that took.
fn closed(mut socket: TcpStream) -> Duration {
    let since = Instant::now();
    let mut room = [0; 4096];
    while matches!(socket.read(&mut room), Ok(bytes) if bytes > 0) {}
    since.elapsed()
}

/// The first 64 bytes of a ClientHello that goes on.
fn half_a_hello() -> Vec<u8> {
    let mut bytes = vec![0x16, 3, 1, 1, 0, 1, 0, 0, 252, 3, 3];
    bytes.resize(64, 7);
    bytes
}

#[test]
fn attack_111_tls_that_is_none_is_closed_and_others_are_served() {
    for world in worlds() {
        let place = Place::new();
        keys(&place, "sha256");
        let (daemon, at) = serve(&place, &config("require", "[limits]\nlogin_timeout = 2"), world);
        let mut long = vec![0x16, 3, 1, 0x41, 0x01];
        long.resize(5 + 0x4101, 0);
        let mut garbage = half_a_hello();
        garbage.resize(5000, 0xff);
        for bytes in [&[0x16, 3, 1, 0, 1, 0][..], &garbage, &long, b"GET / HTTP/1.1\r\n\r\n", &[0x16; 3000]] {
            let took = closed(sent(at, bytes));
            assert!(took < Duration::from_secs(10), "{took:?}");
        }
        // A stream that is cut off within a handshake leaves nothing.
        drop(sent(at, &half_a_hello()));
        good(&["info", &url(&place, at, "host.key", "")]);
        wait_until(
            10,
            || daemon.ask("connection list"),
            || daemon.ask_json("connection list").as_array().is_some_and(Vec::is_empty),
        );
    }
}

#[test]
fn attack_112_a_slow_handshake_ends_at_the_deadline_of_the_login() {
    let place = Place::new();
    keys(&place, "sha256");
    let (_daemon, at) = serve(&place, &config("allow", "[limits]\nlogin_timeout = 1"), worlds()[0]);
    let mut socket = sent(at, &half_a_hello());
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(15) {
        std::thread::sleep(Duration::from_millis(100));
        if socket.write_all(&[7]).is_err() {
            break;
        }
    }
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
}

#[test]
fn attack_113_a_thousand_half_open_handshakes_keep_nobody_out() {
    let place = Place::new();
    keys(&place, "sha256");
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    for world in worlds() {
        let (daemon, at) = serve(&place, &config("require", ""), world);
        let open: Vec<TcpStream> = (0..1000).map(|_| sent(at, &half_a_hello())).collect();
        let since = Instant::now();
        // Some of the thousand may be accepted after the host and take its place: a host tries again.
        let gets_in = || run(&["info", &url(&place, at, "host.key", "")]).status.success();
        while !gets_in() {
            assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
        }
        drop(open);
        drop(daemon);
    }
}
