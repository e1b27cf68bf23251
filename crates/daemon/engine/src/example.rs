//! The plan of the documented example, for tests.

use std::path::Path;

use config::{
    EXAMPLE_TOML,
    check::{self, CommandLineOptions},
    diagnostic::{Sink, SourceText},
    draft::Draft,
    plan::Plan,
    read_text,
};

/// It.
pub fn example_plan() -> Plan {
    let (sink, mut draft) = (Sink::default(), Draft::default());
    read_text(
        &SourceText::new("example.toml", EXAMPLE_TOML.to_owned()),
        Path::new("/"),
        false,
        &sink,
        &mut draft,
    );
    let plan = check::resolve_draft(draft, &CommandLineOptions::default(), &sink);
    sink.into_result(plan).expect("the example is sound").0
}
