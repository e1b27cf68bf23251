//! The sender of a plain stream: `blockwire eval stream --to`.

use std::path::{Path, PathBuf};

use eval::fio::Job;
use eval::preset::Protocol;

use super::blockwire::events;
use super::{Event, Initiator, LoadResult, Task};
use crate::Failure;
use crate::place::Place;
use crate::process::{Process, Run};

#[derive(Debug)]
pub(super) struct Sender {
    binary: PathBuf,
}

impl Sender {
    pub(super) fn new(binary: &Path) -> Sender {
        Sender { binary: binary.to_owned() }
    }
}

impl Initiator for Sender {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Stream]
    }

    fn missing(&self, place: &Place) -> Option<String> {
        place.lacks_binary(&self.binary)
    }

    fn lacks(&self, job: &Job) -> Option<String> {
        job.runtime.is_none().then(|| "a stream runs for a time, and none is given".to_owned())
    }

    fn version(&self, _place: &Place) -> Option<String> {
        None
    }

    fn run(&self, task: &Task<'_>, tell: &dyn Fn(Event)) -> Result<LoadResult, Failure> {
        let url = task.urls.first().ok_or_else(|| Failure::new("nobody receives the stream"))?;
        let address = url.trim_start_matches("tcp://").to_owned();
        let ms = |time: std::time::Duration| time.as_millis().to_string();
        let mut words = vec![task.place.binary(&self.binary)];
        words.extend(["eval", "stream", "--to", &address].map(str::to_owned));
        words.extend(["--ramp-ms".to_owned(), ms(task.job.ramp)]);
        words.extend(["--runtime-ms".to_owned(), ms(task.job.runtime.unwrap_or_default())]);
        let run = Run { name: &task.name, place: task.place, cores: task.cores, words, dir: task.dir };
        let mut process = Process::start(run)?;
        let text = events(&mut process, task.job, tell)?;
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|why| process.failure(format!("its figures: {why}")))?;
        let bytes = value.get("bytes").and_then(serde_json::Value::as_u64).unwrap_or(0);
        Ok(LoadResult {
            seconds: value.get("seconds").and_then(serde_json::Value::as_f64).unwrap_or(0.0),
            ios: bytes / crate::stream::CHUNK as u64,
            moved: bytes,
            command: process.command().to_owned(),
            ..LoadResult::default()
        })
    }
}
