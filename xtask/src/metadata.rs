//! `cargo metadata`, reduced to what the checks need.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// One package of the dependency graph.
#[derive(Debug, Clone)]
pub struct Package {
    /// Name in its own `Cargo.toml`.
    pub name: String,
    /// Version, as written.
    pub version: String,
    /// What it is, in a sentence.
    pub description: String,
    /// SPDX expression, absent if the package names a licence file only.
    pub license: Option<String>,
    /// Whether it belongs to this workspace.
    pub member: bool,
    /// Package names of the direct dependencies that are built into the product; those of
    /// `cfg(loom)`, the model checker's build, are not.
    pub normal: Vec<String>,
    /// Package names of build dependencies.
    pub build: Vec<String>,
    /// Root source files of libraries and binaries.
    pub roots: Vec<PathBuf>,
    /// Directory of the package.
    pub directory: PathBuf,
}

/// All packages that the workspace is built from.
pub fn load(root: &Path) -> Result<Vec<Package>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--manifest-path"])
        .arg(root.join("Cargo.toml"))
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    parse(&output.stdout)
}

/// Reads the JSON text of `cargo metadata --format-version 1`.
pub fn parse(json: &[u8]) -> Result<Vec<Package>, String> {
    let value: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let members: Vec<&str> = strings(&value["workspace_members"]);
    let packages = value["packages"].as_array().ok_or("no packages in the metadata")?;
    packages.iter().map(|package| read_package(package, &members)).collect()
}

fn read_package(package: &Value, members: &[&str]) -> Result<Package, String> {
    let text = |key: &str| package[key].as_str().map(str::to_owned);
    let id = package["id"].as_str().ok_or("a package without id")?;
    let manifest = PathBuf::from(text("manifest_path").ok_or("a package without manifest")?);
    let mut normal = Vec::new();
    let mut build = Vec::new();
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let Some(name) = dependency["name"].as_str() else { continue };
        if dependency["target"].as_str() == Some("cfg(loom)") {
            continue;
        }
        match dependency["kind"].as_str() {
            None => normal.push(name.to_owned()),
            Some("build") => build.push(name.to_owned()),
            Some(_) => {}
        }
    }
    let is_product =
        |target: &Value| strings(&target["kind"]).iter().any(|kind| ["lib", "bin", "cdylib"].contains(kind));
    let roots = package["targets"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|target| is_product(target))
        .filter_map(|target| target["src_path"].as_str().map(PathBuf::from))
        .collect();
    Ok(Package {
        name: text("name").ok_or("a package without name")?,
        version: text("version").unwrap_or_default(),
        description: text("description").unwrap_or_default(),
        license: text("license"),
        member: members.contains(&id),
        normal,
        build,
        roots,
        directory: manifest.parent().map(PathBuf::from).unwrap_or_default(),
    })
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}
