//! Entry: arguments in, exit code out.

#![forbid(unsafe_code)]

use std::{process::ExitCode, sync::Arc};

use blockwire::{
    engine::{Engine, EngineError, Start},
    run::run,
};

fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os(), start) as u8)
}

/// Starts the shards.
fn start(_: Start<'_>) -> Result<Arc<dyn Engine>, EngineError> {
    Err(EngineError::Start("this build has no data path".to_owned()))
}
