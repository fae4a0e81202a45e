//! The packages of a release: each crate that a registry may have is packaged as `cargo publish` would.
//!
//! They are not built again: their sources are those that the other steps check. What only shows in a package is a missing
//! version, a dependency that no registry has, or a file that is left out.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// Packages all crates that may be published; returns how many there are.
///
/// # Errors
/// If one cannot be packaged.
pub(crate) fn check(root: &Path) -> Result<usize> {
    let metadata = shell::metadata(root)?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let mut package = Command::new("cargo");
    package.args(["package", "--no-verify", "--allow-dirty", "--quiet"]).current_dir(root);
    let mut count = 0;
    // One that may be published names no registries; one that may not has an empty list of them.
    for manifest in packages.iter().filter(|package| package["publish"].is_null()) {
        let name = manifest["name"].as_str().context("a package has no name")?;
        package.args(["-p", name]);
        count += 1;
    }
    shell::run_quietly(&mut package)?;
    Ok(count)
}
