//! docs/eval.md matches the code: its table of presets is generated.

use std::fmt::Write;
use std::path::Path;

use eval::preset::{PRESETS, fio_rw_word};
use eval::published::published_data;

fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 30 && bytes.is_multiple_of(1 << 30) => format!("{}G", bytes >> 30),
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

fn table() -> String {
    let mut text = String::from(
        "| preset | experiment | volumes | load | paper, place | figures |\n|---|---|---|---|---|---|\n",
    );
    for preset in PRESETS {
        let paper = preset.paper.and_then(|id| published_data().papers.iter().find(|paper| paper.id == id));
        let paper =
            paper.map_or("ours".to_owned(), |paper| format!("{} ({}); {}", paper.title, paper.by, preset.at));
        let of_order =
            |is_random: bool| preset.directions.iter().map(move |one| fio_rw_word(*one, is_random));
        let words: Vec<&str> = preset.orders.iter().flat_map(|is_random| of_order(*is_random)).collect();
        let sizes: Vec<u64> = preset.sizes.iter().map(|bytes| u64::from(*bytes)).collect();
        let sizes = match (sizes.iter().min(), sizes.iter().max()) {
            (Some(least), Some(most)) if least == most => format!(" {}", size(*least)),
            (Some(least), Some(most)) => format!(" {} to {}", size(*least), size(*most)),
            _ => String::new(),
        };
        let load = if words.is_empty() {
            "a database's".to_owned()
        } else {
            let own = (preset.depth, preset.threads);
            let ends = preset.shapes.first().zip(preset.shapes.last()).unwrap_or((&own, &own));
            let shape = |(depth, threads): &(u32, u32)| format!("{depth} x {}", threads * preset.hosts);
            let to = if preset.shapes.len() > 1 { format!(" to {}", shape(ends.1)) } else { String::new() };
            format!("{}{sizes}, depth {}{to}", words.join(", "), shape(ends.0))
        };
        let _ = writeln!(
            text,
            "| `{}` | {} | {} x {} | {load} | {paper} | {} |",
            preset.id,
            preset.title,
            preset.volumes.0,
            size(preset.volumes.1),
            preset.published_figures().count()
        );
    }
    text
}

#[test]
fn the_table_of_presets_is_the_codes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/eval.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once("<!-- presets: generated -->\n").expect("opening mark");
    let (_, after) = rest.split_once("<!-- end of presets -->\n").expect("closing mark");
    let want = format!("{before}<!-- presets: generated -->\n{}<!-- end of presets -->\n{after}", table());
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &want).unwrap();
    }
    assert!(
        page == want || std::env::var_os("BLESS").is_some(),
        "docs/eval.md is stale: run the tests of blockwire with BLESS=1"
    );
}

/// Every member of a record's form is explained.
#[test]
fn the_records_form_is_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/eval.md");
    let page = std::fs::read_to_string(path).unwrap();
    let mut record = super::sample::record("quick", &[super::sample::OURS], &[4096], 1, 1);
    record.points[0].work = Some(1);
    record.points[0].runs[0].latency_summary = Some(eval::record::LatencySummary::default());
    let value = serde_json::to_value(record).unwrap();
    let mut left = vec![&value];
    while let Some(value) = left.pop() {
        match value {
            serde_json::Value::Object(members) => {
                for (name, member) in members {
                    assert!(page.contains(&format!("`{name}`")), "docs/eval.md does not explain {name}");
                    left.push(member);
                }
            }
            serde_json::Value::Array(members) => left.extend(members),
            _ => {}
        }
    }
}
