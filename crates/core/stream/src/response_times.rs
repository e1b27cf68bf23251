//! How long answers wait on a link until the socket has them: counted in runs, one per turn of the shard.
//!
//! Answers leave a link in the order in which they were queued, so each is named by the place of its entry in
//! the queue. Invariant: no run is longer than the queue, so memory is bounded as the queue is.

use std::collections::VecDeque;

use buf::Time;

/// Answers that were queued in one turn, under one label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelledResponses {
    /// The turn.
    pub since: Time,
    /// What [`Target::label_answer`](crate::TargetConnection::label_next_response) was told.
    pub label: u64,
    /// How many.
    pub count: u32,
}

/// The labelled answers of one link that the socket has not taken yet.
#[derive(Debug, Default)]
pub struct ResponseTimes {
    runs: VecDeque<QueuedRun>,
    /// How many entries of the queue have entered batches; wraps around.
    taken: u32,
}

#[derive(Clone, Copy, Debug)]
struct QueuedRun {
    answers: LabelledResponses,
    /// Place of the entry of the first of them.
    first: u32,
}

impl ResponseTimes {
    /// Notes an answer in the last of `waiting` entries of the queue. Label 0: it is not counted.
    #[inline]
    pub fn note_response(&mut self, now: Time, label: u64, waiting: usize) {
        if label == 0 || waiting == 0 {
            return;
        }
        let place = self.taken.wrapping_add(waiting as u32).wrapping_sub(1);
        if let Some(QueuedRun { answers, first }) = self.runs.back_mut()
            && (answers.since, answers.label) == (now, label)
            && first.wrapping_add(answers.count) == place
        {
            answers.count += 1;
            return;
        }
        let answers = LabelledResponses { since: now, label, count: 1 };
        self.runs.push_back(QueuedRun { answers, first: place });
    }

    /// The first entry of the queue is in a batch, to its end.
    #[inline]
    pub fn begin_batch(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Answers of the batch that was written, oldest first.
    #[inline]
    pub fn poll_written_responses(&mut self) -> Option<LabelledResponses> {
        let run = self.runs.front_mut()?;
        // As a signed difference: both wrap around.
        let written = self.taken.wrapping_sub(run.first) as i32;
        if written <= 0 {
            return None;
        }
        let written = written as u32;
        if written < run.answers.count {
            let part = LabelledResponses { count: written, ..run.answers };
            run.answers.count -= written;
            run.first = run.first.wrapping_add(written);
            return Some(part);
        }
        self.runs.pop_front().map(|run| run.answers)
    }

    /// The queue was emptied without being sent.
    pub fn clear(&mut self) {
        self.runs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_when_their_entry_was_taken_whole() {
        let mut times = ResponseTimes::default();
        // Entries: answer, answer, something else, answer.
        times.note_response(Time(5), 1, 1);
        times.note_response(Time(5), 1, 2);
        times.note_response(Time(5), 1, 4);
        assert_eq!(times.poll_written_responses(), None);
        times.begin_batch();
        let run = |since, label, count| Some(LabelledResponses { since: Time(since), label, count });
        assert_eq!(times.poll_written_responses(), run(5, 1, 1), "half of a run");
        assert_eq!(times.poll_written_responses(), None);
        times.begin_batch();
        times.begin_batch();
        assert_eq!((times.poll_written_responses(), times.poll_written_responses()), (run(5, 1, 1), None));
        times.note_response(Time(6), 2, 2);
        times.note_response(Time(6), 0, 3);
        times.begin_batch();
        times.begin_batch();
        assert_eq!(
            (times.poll_written_responses(), times.poll_written_responses()),
            (run(5, 1, 1), run(6, 2, 1))
        );
        assert_eq!(times.poll_written_responses(), None);
    }

    #[test]
    fn places_wrap_around_and_an_emptied_queue_leaves_none() {
        let mut times = ResponseTimes { taken: u32::MAX, ..ResponseTimes::default() };
        times.note_response(Time(1), 3, 1);
        times.note_response(Time(1), 3, 2);
        times.begin_batch();
        times.begin_batch();
        assert_eq!(times.poll_written_responses().map(|run| run.count), Some(2));
        times.note_response(Time(1), 3, 1);
        times.clear();
        times.begin_batch();
        assert_eq!(times.poll_written_responses(), None);
    }
}
