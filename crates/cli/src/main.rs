//! Entry: arguments in, exit code out.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use blockwire::run::run;
use engine::dataplane::shards;

fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os(), shards::start) as u8)
}
