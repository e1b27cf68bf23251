//! The sender of a plain stream: `blockwire eval stream --to`.

use std::path::{Path, PathBuf};

use eval::fio::Job;
use eval::preset::Protocol;
use eval::record::CountingWindow;
use serde_json::Value;

use super::blockwire::run_with_events;
use super::{Initiator, LoadEvent, LoadResult, LoadTask};
use crate::Failure;
use crate::place::CommandLocation;

#[derive(Debug)]
pub(super) struct StreamSender {
    binary: PathBuf,
}

impl StreamSender {
    pub(super) fn new(binary: &Path) -> StreamSender {
        StreamSender { binary: binary.to_owned() }
    }
}

impl Initiator for StreamSender {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Stream]
    }

    fn missing(&self, place: &CommandLocation) -> Option<String> {
        place.missing_binary(&self.binary)
    }

    fn unsupported_reason(&self, job: &Job) -> Option<String> {
        job.runtime.is_none().then(|| "a stream runs for a time, and none is given".to_owned())
    }

    fn counting_window(&self) -> CountingWindow {
        CountingWindow::Same
    }

    fn run(&self, task: &LoadTask<'_>, tell: &dyn Fn(LoadEvent)) -> Result<LoadResult, Failure> {
        let url =
            task.urls.first().ok_or_else(|| Failure::new("the stream has no receiver: no URL was given"))?;
        let address = url.trim_start_matches("tcp://").to_owned();
        let ms = |time: std::time::Duration| time.as_millis().to_string();
        let mut words = vec![task.place.binary_path(&self.binary)];
        words.extend(["eval", "stream", "--to", &address].map(str::to_owned));
        words.extend(["--ramp-ms".to_owned(), ms(task.job.ramp)]);
        words.extend(["--runtime-ms".to_owned(), ms(task.job.runtime.unwrap_or_default())]);
        run_with_events(task, words, tell, parse_figures)
    }
}

/// What it printed at its end.
fn parse_figures(text: &str) -> Result<LoadResult, Failure> {
    let value: Value =
        serde_json::from_str(text).map_err(|why| Failure::new(format!("its figures: {why}")))?;
    let lacks = |what: &str| Failure::new(format!("its figures hold no {what}"));
    let bytes = value.get("bytes").and_then(Value::as_u64).ok_or_else(|| lacks("bytes"))?;
    let seconds = value.get("seconds").and_then(Value::as_f64).ok_or_else(|| lacks("time"))?;
    Ok(LoadResult {
        seconds,
        ios: bytes / crate::stream::CHUNK_BYTES as u64,
        moved: bytes,
        ..LoadResult::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_is_not_told_is_never_zero() {
        let all = parse_figures("{\"bytes\":131072,\"seconds\":2.0}").unwrap();
        assert_eq!((all.ios, all.moved, all.seconds), (2, 131_072, 2.0));
        for text in ["{\"bytes\":131072}", "{\"seconds\":2.0}", "{}", ""] {
            assert!(parse_figures(text).is_err(), "{text}");
        }
    }
}
