//! Refused raw commands, and refused changes of nodes.

use super::Stage;

#[test]
fn a_raw_command_that_is_refused_leaves_its_volume_alone() {
    Stage::new().refuses(&[
        ("scsi gone:a -s 512 -i source.img 2a 0 0 0 0 8 0 0 1 0", 8, "is the target running"),
        ("scsi nvme:a -s 512 -i source.img 2a 0 0 0 0 8 0 0 1 0", 2, "no path of this protocol"),
        ("scsi iscsi:a -s 512 -i absent.img 2a 0 0 0 0 8 0 0 1 0", 1, "absent.img"),
        ("scsi iscsi:a -s 512 -i empty.img 2a 0 0 0 0 8 0 0 1 0", 2, "has 0 bytes"),
        ("scsi iscsi:a -r 512 -o source.img 2a 0 0 0 0 8 0 0 1 0", 2, "takes data from the host"),
        ("nvme io-passthru gone:a -o 1 --cdw10=8 -l 512 -w -i source.img", 8, "is the target running"),
        ("nvme io-passthru iscsi:a -o 1 --cdw10=8 -l 512 -w -i source.img", 2, "no path of this protocol"),
        ("nvme io-passthru nvme:a -o 1 --cdw10=8 -l 512 -w -i absent.img", 1, "absent.img"),
        ("nvme io-passthru nvme:a -o 1 --cdw10=8 -l 512 -w -i empty.img", 2, "has 0 bytes"),
        ("nvme io-passthru nvme:a -o 1 --cdw10=8 -l 512 -r", 2, "--write"),
        ("nvme admin-passthru nvme:a -o 9 --cdw10=7", 2, "Number of Queues"),
    ]);
}

#[test]
fn a_node_that_is_refused_stays_as_it_was() {
    let mut stage = Stage::new();
    let kept = stage.run("node add db iscsi:a --nodes work-nodes");
    assert!(kept.status.success(), "{}", String::from_utf8_lossy(&kept.stderr));
    stage.refuses(&[
        ("node add db iscsi:b --nodes work-nodes", 15, "node set"),
        ("node add ../x iscsi:b --nodes work-nodes", 2, "no name of a node"),
        ("node add x source.img --nodes work-nodes", 2, "URL"),
        ("node set db --url source.img --nodes work-nodes", 2, "URL"),
        ("node set none --autostart --nodes work-nodes", 21, "none"),
        ("node remove none --nodes work-nodes", 21, "no node"),
        ("node discover nvme+tcp://me%open5esame@127.0.0.1:1 --nodes work-nodes", 2, "secret_file"),
        ("node discover nvme+tcp://127.0.0.1:1?connect_timeout=1s --nodes work-nodes", 8, "127.0.0.1:1"),
        ("connect-all none --nodes work-nodes", 21, "no node"),
        ("connect-all --nodes work-nodes", 21, "no node has autostart"),
    ]);
}
