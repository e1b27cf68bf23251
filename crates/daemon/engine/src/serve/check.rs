//! What a configuration comes to, without a start: for `serve --check` and `doctor`.

use std::{net::SocketAddr, path::PathBuf};

use super::{
    args::ServeArgs,
    config_file, fail_on_errors,
    resolve::{names_file, read_configuration, resolve_plan},
    usage_failure,
};
use crate::memory;
use config::{ConfigFiles, diagnostic::Sink, plan::Plan, spec::VolumeSource};
use process::{exit::Failure, paths::DefaultPaths};

/// A configuration without errors.
#[derive(Clone, Debug)]
pub struct CheckedConfiguration {
    /// What it comes to, in a line.
    pub summary: String,
    /// What there is to warn of.
    pub warnings: Vec<String>,
    /// Where it listens, metrics included.
    pub addresses: Vec<SocketAddr>,
    /// The files of its volumes.
    pub volume_files: Vec<PathBuf>,
}

/// Checks the file of `--check` as a start would. Volumes that were created at run time are not looked at, and nothing
/// is opened.
///
/// # Errors
/// All that is wrong with it, as usage errors.
pub fn check_configuration(args: &ServeArgs, paths: &DefaultPaths) -> Result<CheckedConfiguration, Failure> {
    let args = ServeArgs { config: args.check.clone().or_else(|| args.config.clone()), ..args.clone() };
    let sink = Sink::default();
    let files = config_file(&args, paths).map(|path| ConfigFiles::read(&path, &sink)).unwrap_or_default();
    let (draft, _) = read_configuration(&args, &files, &sink);
    let (sink, mut warnings) = fail_on_errors(sink)?;
    let plan = resolve_plan(draft, &args, names_file(&args, paths, &files), Vec::new(), &sink);
    let (plan, more) = sink.into_result(plan).map_err(|errors| usage_failure(&errors))?;
    warnings.extend(more);
    let mut warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    warnings.extend(memory::memory_warning(&plan));
    let file = args.config.as_deref().unwrap_or(&paths.config);
    Ok(CheckedConfiguration {
        summary: format!("{}: no errors: {}", file.display(), plan_summary(&plan)),
        warnings,
        addresses: plan.portals.iter().map(|portal| portal.address).chain(plan.http).collect(),
        volume_files: volume_files(&plan),
    })
}

fn volume_files(plan: &Plan) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for volume in &plan.volumes {
        match &volume.spec.source {
            VolumeSource::File(path) => files.push(path.clone()),
            VolumeSource::Stripe(striped) => {
                files.extend(striped.legs.iter().filter_map(|leg| match &leg.source {
                    VolumeSource::File(path) => Some(path.clone()),
                    _ => None,
                }))
            }
            _ => {}
        }
    }
    files
}

/// What a plan has, in numbers.
fn plan_summary(plan: &Plan) -> String {
    let count = |number: usize, one: &str| format!("{number} {one}{}", if number == 1 { "" } else { "s" });
    [
        count(plan.volumes.len(), "volume"),
        count(plan.ways.targets.len(), "target"),
        count(plan.ways.subsystems.len(), "subsystem"),
        count(plan.portals.len(), "portal"),
        count(plan.hosts.len(), "host"),
    ]
    .join(", ")
}
