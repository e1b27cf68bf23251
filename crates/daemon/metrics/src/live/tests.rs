use serde_json::Value;
use sha2::{Digest, Sha256};

use super::*;
use crate::families::tests::example;

fn live(now: &ObservationReport, before: Option<&ObservationReport>, interval: Duration) -> Value {
    let begin = Instant::now();
    let before = before.map(|seen| Sample { when: begin, processor: Duration::from_secs(5), seen });
    let now = Sample { when: begin + interval, processor: Duration::from_secs(6), seen: now };
    serde_json::from_str(&render_live(&now, before.as_ref()).unwrap()).unwrap()
}

#[test]
fn rates_are_those_between_two_looks() {
    let (before, mut now) = (example(), example());
    let standing = now.volumes[0].standing.as_mut().unwrap();
    (standing.reads, standing.read_bytes) = (1 + 4000, 4096 + 4000 * 4096);
    now.connections[0].sent_bytes += 1000;
    for stage in &mut now.volumes[0].latency.as_mut().unwrap()[0].stages {
        stage.commands += 10;
        stage.sum_ns += 1_000_000;
    }
    let shown = live(&now, Some(&before), Duration::from_secs(2));
    assert_eq!(shown["volumes"]["rows"][0]["reads_per_second"], 2000.0);
    assert_eq!(
        shown["volumes"]["rows"][0]["stages"][3],
        serde_json::json!({"stage": "backend", "mean_us": 100.0})
    );
    assert_eq!(shown["volumes"]["rows"][0]["mean_us"], 500.0);
    assert_eq!(shown["totals"]["mean_us"], 500.0);
    assert_eq!(shown["totals"]["read_bytes_per_second"], 8_192_000.0);
    assert_eq!(shown["totals"]["processor_percent"], 50.0);
    assert_eq!(shown["totals"]["iops_per_percent"], 40.0);
    assert_eq!(shown["connections"]["rows"][0]["sent_bytes_per_second"], 500.0);
    assert_eq!(shown["hosts"]["rows"][0]["initiator"], "nqn.\"evil\\\n");
    assert_eq!(shown["problems"]["rows"][0]["kind"], "no-space");
}

#[test]
fn without_a_look_shortly_before_there_are_no_rates() {
    let now = example();
    for shown in [live(&now, None, Duration::from_secs(2)), live(&now, Some(&now), 2 * INTERVAL_MAX)] {
        assert_eq!(shown["interval_seconds"], Value::Null);
        assert_eq!(shown["volumes"]["rows"][0]["reads_per_second"], Value::Null);
        assert_eq!(shown["totals"]["iops_per_percent"], Value::Null);
        assert_eq!(shown["totals"]["mean_us"], Value::Null);
    }
}

#[test]
fn counters_that_began_again_are_counted_from_their_beginning() {
    let (mut before, now) = (example(), example());
    before.volumes[0].standing.as_mut().unwrap().reads = 1_000_000;
    let shown = live(&now, Some(&before), Duration::from_secs(1));
    assert_eq!(shown["volumes"]["rows"][0]["reads_per_second"], 1.0);
}

#[test]
fn of_many_volumes_the_failed_and_the_busiest_are_shown() {
    let mut many = example();
    let one = many.volumes[0].clone();
    many.volumes = (0..10_000_u64)
        .map(|at| {
            let mut volume = VolumeReport { name: format!("v{at}"), ..one.clone() };
            volume.standing.as_mut().unwrap().reads = at;
            volume.failed = (at == 5).then(|| "gone".to_owned());
            volume
        })
        .collect();
    let mut before = many.clone();
    before.volumes.clear();
    let shown = live(&many, Some(&before), Duration::from_secs(1));
    let names: Vec<&str> = shown["volumes"]["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!((names.len(), &names[..3]), (ROWS_MAX, &["v5", "v9999", "v9998"][..]));
    assert_eq!(shown["volumes"]["omitted"], 10_000 - ROWS_MAX);
    assert_eq!(shown["totals"]["reads_per_second"], (0..10_000).sum::<u64>() as f64);
    assert!(shown.to_string().len() < 200_000);
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// A browser runs no other script and uses no other style than what the policy names.
#[test]
fn the_policy_names_the_script_and_the_style_of_the_page() {
    for (begin, end, directive) in
        [("<script>", "</script>", "script-src"), ("<style>", "</style>", "style-src")]
    {
        let (_, rest) = PAGE.split_once(begin).unwrap();
        let (body, after) = rest.split_once(end).unwrap();
        assert!(!after.contains(begin), "one of each");
        let wanted = format!("{directive} 'sha256-{}'", base64(&Sha256::digest(body)));
        assert!(PAGE_POLICY.contains(&wanted), "write into PAGE_POLICY: {wanted}");
    }
}

/// Nothing comes from elsewhere, and no value is put in as HTML.
#[test]
fn the_page_stands_alone_and_makes_no_html_of_values() {
    for word in [
        "https:",
        "//cdn",
        "src=",
        "@import",
        "url(",
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        " style=",
        "onclick",
    ] {
        assert!(!PAGE.contains(word), "{word}");
    }
    assert_eq!(PAGE.matches("http:").count(), PAGE.matches("http://www.w3.org/2000/svg").count());
}
