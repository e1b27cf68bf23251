//! Entry: arguments in, exit code out.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

use std::process::ExitCode;

use blockwire::run::run;
use engine::dataplane::shards;

fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os(), shards::start) as u8)
}
