//! The plan of the documented example, for tests.

use std::path::Path;

use config::{
    EXAMPLE,
    check::{self, Options},
    diagnostic::{Sink, Text},
    draft::Draft,
    plan::Plan,
    read_text,
};

/// It.
pub fn example() -> Plan {
    let (sink, mut draft) = (Sink::default(), Draft::default());
    read_text(&Text::new("example.toml", EXAMPLE.to_owned()), Path::new("/"), false, &sink, &mut draft);
    let plan = check::check(draft, &Options::default(), &sink);
    sink.finish(plan).expect("the example is sound").0
}
