//! The papers' command lines and job file as printed, on RAM volumes. Only the time is shorter, and the size
//! of an I/O replaces the paper's placeholder.

use std::fs;

use serde_json::Value;

use crate::verbs::{fails, json, served, urls};

/// "High Performance iSCSI at 100GbE", Commands used.
const T6: &str = "fio --rw=RW --ioengine=libaio --name=random --size=400m --direct=1 --invalidate=1 --fsync_on_close=1 \
    --norandommap --group_reporting --exitall --runtime=60 --time_based --filename=/dev/sdx:...:/dev/sdz --iodepth=32 \
    --numjobs=20 --bs=SIZE";

/// "High Performance iSCSI for Virtual Machines", I/O Benchmarking Configuration.
const T5: &str = "[global]\nioengine=libaio\niodepth=64\ndirect=1\nnumjobs=32\nfilesize=1g\nsize=32g\ntime_based\nruntime=60\n\
    group_reporting=1\ncpus_allowed=0,1\nioscheduler=noop\n#####\n[random_read_4k]\nrw=randread\nblocksize=4k\n\
    filename=/dev/sdb\nstonewall\n";

fn noted(told: &Value) -> Vec<String> {
    let notes = told["notes"].as_array().unwrap().iter();
    notes.map(|note| note.as_str().unwrap().split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn the_100g_papers_commands_run_as_printed() {
    let (_place, daemon) = served();
    let (a, b) = (urls(&daemon, "a"), urls(&daemon, "b"));
    let maps = [("x", &a[0]), ("y", &b[0]), ("z", &b[1])]
        .map(|(letter, url)| format!("--map=/dev/sd{letter}={url}"));
    for (rw, side) in [("randwrite", "write"), ("randread", "read")] {
        for size in ["4k", "512k"] {
            let line = T6.replace("RW", rw).replace("SIZE", size).replace("runtime=60", "runtime=1");
            let mut words: Vec<&str> = vec!["bench", "--json"];
            words.extend(maps.iter().map(String::as_str));
            words.extend(line.split_ascii_whitespace());
            let told = json(&words);
            let job = &told["jobs"][0];
            assert_eq!((job["name"].as_str(), job["errors"].as_u64()), (Some("random"), Some(0)), "{told}");
            assert_eq!(job["in_flight"], 640, "twenty jobs, 32 each");
            assert!(job[side]["ios"].as_u64().unwrap() > 100, "{rw} {size}: {told}");
            let flushes = job["flush"]["ios"].as_u64().unwrap_or(0);
            assert_eq!(flushes > 0, rw == "randwrite", "fsync_on_close: {told}");
            assert_eq!(noted(&told), ["ioengine", "direct", "invalidate"]);
        }
    }
    let mut words: Vec<&str> = vec!["bench", "--json", &maps[0]];
    words.extend(T6.split_ascii_whitespace());
    let line =
        words.iter().map(|word| word.replace("RW", "randread").replace("SIZE", "4k")).collect::<Vec<_>>();
    fails(&line.iter().map(String::as_str).collect::<Vec<_>>(), 2, "--map /dev/sdy=URL");
}

#[test]
fn the_virtual_machine_papers_job_file_runs_as_printed() {
    let (place, daemon) = served();
    let cores = std::thread::available_parallelism().unwrap().get();
    for url in &urls(&daemon, "a") {
        // A machine with one core has no second to be allowed.
        let allowed = if cores > 1 { "cpus_allowed=0,1" } else { "cpus_allowed=0" };
        let text = T5.replace("runtime=60", "runtime=1").replace("cpus_allowed=0,1", allowed);
        fs::write(place.path("vm.fio"), text).unwrap();
        let (file, map) = (place.path("vm.fio"), format!("/dev/sdb={url}"));
        let told = json(&["bench", "--json", "--job", file.to_str().unwrap(), "--map", &map]);
        let job = &told["jobs"][0];
        assert_eq!(job["name"], "random_read_4k");
        assert_eq!((job["in_flight"].as_u64(), job["errors"].as_u64()), (Some(2048), Some(0)), "{told}");
        assert!(job["read"]["ios"].as_u64().unwrap() > 100, "{told}");
        assert_eq!(noted(&told), ["ioengine", "direct", "ioscheduler"]);
    }
    let odd = T5.replace("ioscheduler=noop", "zonemode=zbd");
    fs::write(place.path("odd.fio"), odd).unwrap();
    let file = place.path("odd.fio");
    fails(
        &["bench", "--job", file.to_str().unwrap(), "--map", "/dev/sdb=local:4m"],
        2,
        "odd.fio:12: fio's \"zonemode\"",
    );
}
