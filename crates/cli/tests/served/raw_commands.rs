//! `scsi` and `nvme admin-passthru`, `io-passthru`, as users type them, against the daemon.

use std::fs;

use crate::json_schema::Schema;
use crate::verbs::{fails, good, json, served, urls};

#[test]
fn a_scsi_command_is_answered_with_status_sense_and_data() {
    let (place, daemon) = served();
    let [iscsi, nvme] = urls(&daemon, "a");
    let inquiry = ["12", "00", "00", "00", "ff", "00"];
    let words = [&["scsi", &iscsi, "--request", "255"][..], &inquiry].concat();
    let said = String::from_utf8(good(&words)).unwrap();
    assert!(said.starts_with("GOOD\n") && said.contains("BLKWIRE "), "{said}");
    let told = json(&[&words[..], &["--json"]].concat());
    let (came, left) =
        (told["transferred_bytes"].as_u64().unwrap(), told["underflow_bytes"].as_u64().unwrap());
    assert_eq!((came + left, told["data"].as_str().unwrap().len() as u64), (255, 2 * came));
    Schema::read().check("scsi", &told);
    // To a file, which is there only if it was answered well.
    let file = place.path("inquiry");
    let name = file.to_str().unwrap();
    good(&[&words[..4], &["--outfile", name], &inquiry[..]].concat());
    assert_eq!(fs::read(&file).unwrap().len() as u64, came);
    let beside = json(&[&words[..4], &["--outfile", name, "--json"], &inquiry[..]].concat());
    assert_eq!(
        (&beside["status"], beside["transferred_bytes"].as_u64(), beside.get("data")),
        (&0.into(), Some(came), None)
    );
    Schema::read().check("scsi", &beside);
    assert_eq!(&good(&[&words[..], &["--binary"]].concat())[8..16], b"BLKWIRE ");
    let other = place.path("refused");
    let mode_sense = ["1a", "00", "3b", "00", "ff", "00"];
    let refused = [&words[..4], &["--outfile", other.to_str().unwrap()], &mode_sense[..]].concat();
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_blockwire")).args(&refused).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("CHECK CONDITION: ILLEGAL REQUEST, additional sense 24h/00h"), "{said}");
    assert!(!other.exists());
    // Written raw, read as ever.
    let data = place.path("data");
    fs::write(&data, [0x42; 512]).unwrap();
    let write = ["2a", "0", "0", "0", "0", "8", "0", "0", "1", "0"];
    good(&[&["scsi", &iscsi, "--send", "512", "--infile", data.to_str().unwrap()][..], &write].concat());
    assert_eq!(good(&["read", &nvme, "--offset", "4096", "--length", "512"]), [0x42; 512]);
    // What makes no sense is said to.
    fails(&["scsi", &iscsi, "12", "00"], 2, "CDB");
    fails(&[&["scsi", &iscsi, "--request", "512"][..], &write].concat(), 2, "takes data from the host");
    fails(&["scsi", &iscsi, "12", "00", "00", "00", "60", "zz"], 2, "hexadecimal");
    fails(&[&["scsi", &nvme, "--request", "255"][..], &inquiry].concat(), 2, "no path of this protocol");
    let read_only = format!("{iscsi}?ro=yes");
    let input = data.to_str().unwrap();
    let words = [&["scsi", &read_only, "--send", "512", "--infile", input][..], &write].concat();
    fails(&words, 2, "read-only");
    fails(&[&["scsi", &iscsi, "--send", "513", "--infile", input][..], &write].concat(), 2, "has 512 bytes");
}

#[test]
fn nvme_commands_go_by_the_admin_queue_and_by_an_io_queue() {
    let (place, daemon) = served();
    let [iscsi, nvme] = urls(&daemon, "a");
    let identify =
        ["nvme", "admin-passthru", &nvme, "--opcode=0x06", "--cdw10=1", "--data-len=4096", "--read"];
    let page = good(&[&identify[..], &["--raw-binary"]].concat());
    assert_eq!(page.len(), 4096);
    assert!(page[768..].starts_with(b"nqn."));
    let said = String::from_utf8(good(&identify)).unwrap();
    assert!(said.starts_with("success"), "{said}");
    let features = ["nvme", "admin-passthru", &nvme, "-o", "0x0a", "--cdw10=0x0f", "--json"];
    let told = json(&features);
    assert_eq!((&told["status"], told["dword0"].as_u64().unwrap() > 0), (&0.into(), true));
    Schema::read().check("nvme admin-passthru", &told);
    // Set Features of Number of Queues is the path's own.
    fails(&["nvme", "admin-passthru", &nvme, "-o", "9", "--cdw10=7"], 2, "Number of Queues");
    fails(&["nvme", "admin-passthru", &nvme, "-o", "0x7f"], 2, "Fabrics");
    fails(&["nvme", "io-passthru", &nvme, "-o", "0x7f"], 2, "Fabrics");
    fails(&["nvme", "admin-passthru", &nvme, "-o", "0x18"], 2, "Keep Alive");
    fails(&["nvme", "admin-passthru", &iscsi, "-o", "6", "-l", "4096", "-r"], 2, "no path of this protocol");
    fails(&["nvme", "admin-passthru", &nvme, "-o", "6", "-l", "4096", "-w"], 2, "--read");
    fails(&["nvme", "admin-passthru", &nvme, "-o", "6", "-l", "4096"], 2, "--read or --write");
    // Written raw, read raw and as ever.
    let data = place.path("data");
    fs::write(&data, [0x24; 512]).unwrap();
    let write = ["nvme", "io-passthru", &nvme, "-o", "1", "--cdw10=8", "-l", "512", "-w", "-i"];
    good(&[&write[..], &[data.to_str().unwrap()]].concat());
    assert_eq!(good(&["read", &iscsi, "--offset", "4096", "--length", "512"]), [0x24; 512]);
    let read = ["nvme", "io-passthru", &nvme, "-o", "2", "--cdw10=8", "-l", "512", "-r", "-b"];
    assert_eq!(good(&read), [0x24; 512]);
    Schema::read().check("nvme io-passthru", &json(&[&read[..9], &["--json"]].concat()));
    // A status that is not success is shown, and exits with 1.
    let beyond = ["nvme", "io-passthru", &nvme, "-o", "2", "--cdw11=0x7fffffff", "-l", "512", "-r"];
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_blockwire")).args(beyond).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("status type 0h, code 80h"), "{said}");
}

#[test]
fn formats_of_either_protocol_make_every_block_zero_for_both() {
    let (place, daemon) = served();
    let [iscsi, nvme] = urls(&daemon, "a");
    let data = place.path("data");
    fs::write(&data, [0x42; 512]).unwrap();
    let format: [(&str, &[&str]); 2] = [
        (&iscsi, &["scsi", &iscsi, "04", "00", "00", "00", "00", "00"]),
        (&nvme, &["nvme", "admin-passthru", &nvme, "-o", "0x80", "-n", "1", "--cdw10=0x200"]),
    ];
    for (by, words) in format {
        let other = if by == iscsi { &nvme } else { &iscsi };
        good(&["write", other, "--input", data.to_str().unwrap(), "--offset", "4096"]);
        assert_eq!(good(&["read", by, "--offset", "4096", "--length", "512"]), [0x42; 512]);
        good(words);
        for url in [&iscsi, &nvme] {
            assert_eq!(good(&["read", url, "--offset", "4096", "--length", "512"]), [0; 512]);
        }
    }
}
