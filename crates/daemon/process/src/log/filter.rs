//! Which events are logged: by level, for each area.
//!
//! `warn` is for all areas, `iscsi=debug` for one; the last word about an area counts. A filter with an unknown word
//! is refused as a whole: a line that is missing because of a slip would never be missed.

use std::{fmt, str::FromStr};

use tracing::{Level, level_filters::LevelFilter};

use super::area;

const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// The most detailed level of each area that is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter {
    levels: [LevelFilter; area::ALL.len()],
}

/// A part of a filter that says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    part: String,
    wrong: &'static str,
}

impl Default for LogFilter {
    fn default() -> Self {
        LogFilter { levels: [LevelFilter::INFO; area::ALL.len()] }
    }
}

impl LogFilter {
    /// Whether an event of this area and level is logged.
    pub fn admits(&self, area: &str, level: Level) -> bool {
        let mut both = area::ALL.iter().zip(self.levels);
        both.find(|(known, _)| **known == area).is_none_or(|(_, most)| level <= most)
    }
}

impl FromStr for LogFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let mut filter = LogFilter::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = |wrong| FilterError { part: part.to_owned(), wrong };
            let (area, level) =
                part.split_once('=').map_or((None, part), |(area, level)| (Some(area), level));
            let known = LEVELS.iter().find(|(word, _)| word.eq_ignore_ascii_case(level));
            let Some((_, level)) = known else { return Err(wrong("level")) };
            match area {
                None => filter.levels = [*level; area::ALL.len()],
                Some(area) => {
                    let at = area::ALL.iter().position(|known| *known == area).ok_or(wrong("area"))?;
                    filter.levels.get_mut(at).into_iter().for_each(|of_area| *of_area = *level);
                }
            }
        }
        Ok(filter)
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (levels, areas) = (LEVELS.map(|(word, _)| word).join(", "), area::ALL.join(", "));
        let FilterError { part, wrong } = self;
        write!(
            f,
            "\"{part}\" names no {wrong}: write LEVEL or AREA=LEVEL, joined by commas, for example \
             warn,iscsi=debug. Levels: {levels}. Areas: {areas}"
        )
    }
}

impl std::error::Error for FilterError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_for_all_areas_or_for_one() {
        let filter: LogFilter = "warn, iscsi=debug,audit=off".parse().unwrap();
        assert!(filter.admits(area::ISCSI, Level::DEBUG) && !filter.admits(area::ISCSI, Level::TRACE));
        assert!(filter.admits(area::NVME, Level::WARN) && !filter.admits(area::NVME, Level::INFO));
        assert!(!filter.admits(area::AUDIT, Level::ERROR));
        assert_eq!("".parse(), Ok(LogFilter::default()));
        assert!(LogFilter::default().admits(area::VOLUME, Level::INFO));
        assert_eq!("nvme=debug,error".parse::<LogFilter>(), "error".parse(), "the last word counts");
    }

    #[test]
    fn a_slip_is_refused_and_says_what_there_is() {
        for (text, word) in
            [("iscs=debug", "names no area"), ("loud", "names no level"), ("iscsi=", "names no level")]
        {
            let said = text.parse::<LogFilter>().unwrap_err().to_string();
            assert!(said.contains(word) && said.contains("Areas: iscsi, nvme"), "{said}");
        }
    }
}
