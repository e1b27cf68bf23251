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
use engine::dataplane;

fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os(), dataplane::start_shards) as u8)
}
