//! Errors, with the place of the value.

use std::{cell::RefCell, fmt, ops::Range, sync::Arc};

/// Where a value was written: a place in a file, or the command line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    source: Arc<str>,
    /// 1-based line and column (in characters); `None`: the source has no lines.
    position: Option<(usize, usize)>,
}

impl Place {
    /// A place that is no file, such as `command line`.
    pub fn outside_file(source: &str) -> Self {
        Place { source: source.into(), position: None }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some((line, column)) => write!(f, "{}:{line}:{column}", self.source),
            None => f.write_str(&self.source),
        }
    }
}

/// A value and where it was written.
#[derive(Clone, Debug)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Its place.
    pub at: Place,
}

impl<T> Located<T> {
    /// A value at a place.
    pub fn new(value: T, at: Place) -> Self {
        Located { value, at }
    }
}

/// One thing that is wrong, printed as `FILE:LINE:COLUMN: message`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Diagnostic {
    /// Where.
    pub at: Place,
    /// What; never a secret.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.message)
    }
}

/// Collects what is wrong, so that one run shows all of it.
#[derive(Debug, Default)]
pub struct Sink {
    errors: RefCell<Vec<Diagnostic>>,
    warnings: RefCell<Vec<Diagnostic>>,
}

impl Sink {
    /// Records an error: the configuration will not be used.
    pub fn note_error(&self, at: &Place, message: impl fmt::Display) {
        self.errors.borrow_mut().push(Diagnostic { at: at.clone(), message: message.to_string() });
    }

    /// Records a warning.
    pub fn note_warning(&self, at: &Place, message: impl fmt::Display) {
        self.warnings.borrow_mut().push(Diagnostic { at: at.clone(), message: message.to_string() });
    }

    /// Whether nothing was wrong so far.
    pub fn is_clean(&self) -> bool {
        self.errors.borrow().is_empty()
    }

    /// `value` and the warnings if nothing was wrong, else every error in the order of the text.
    pub fn into_result<T>(self, value: T) -> Result<(T, Vec<Diagnostic>), Vec<Diagnostic>> {
        let mut errors = self.errors.into_inner();
        if errors.is_empty() {
            return Ok((value, self.warnings.into_inner()));
        }
        errors.sort();
        errors.dedup();
        Err(errors)
    }
}

/// The text of a file, to turn byte ranges into places.
#[derive(Debug)]
pub struct SourceText {
    name: Arc<str>,
    /// The whole text.
    pub text: String,
    /// At which byte each line begins.
    starts: Vec<usize>,
}

impl SourceText {
    /// A text under the name that messages show.
    pub fn new(name: &str, text: String) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect();
        SourceText { name: name.into(), text, starts }
    }

    /// The name that messages show.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where a byte range begins.
    pub fn place_of_span(&self, span: Range<usize>) -> Place {
        let before = self.text.get(..span.start).unwrap_or(&self.text);
        let line = self.starts.partition_point(|start| *start <= before.len());
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let column = before.get(start..).unwrap_or_default().chars().count() + 1;
        Place { source: self.name.clone(), position: Some((line, column)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters() {
        let text = SourceText::new("f", "a = 1\nä = ö # x\n".to_owned());
        assert_eq!(text.place_of_span(0..1).to_string(), "f:1:1");
        let at = text.text.find('ö').unwrap();
        assert_eq!(text.place_of_span(at..at + 2).to_string(), "f:2:5");
        assert_eq!(text.place_of_span(9999..10000).to_string(), "f:3:1");
    }
}
