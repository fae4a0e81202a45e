//! The packages of a release: each crate that a registry may have is packaged as `cargo publish` would.
//!
//! They are not built again: their sources are those that the other steps check. What only shows in a package is a missing
//! version, a dependency that no registry has, or a file that is left out.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// What the manifest of a crate for a registry says of it.
const SAID: [&str; 4] = ["description", "documentation", "license", "readme"];

/// Lists of words by which a crate is found.
const WORDS: [&str; 2] = ["keywords", "categories"];

/// Packages all crates that may be published; returns how many there are.
///
/// # Errors
/// If the manifest of one lacks something, or one cannot be packaged.
pub(crate) fn check(root: &Path) -> Result<usize> {
    let metadata = shell::metadata(root)?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let mut package = Command::new("cargo");
    package.args(["package", "--no-verify", "--allow-dirty", "--quiet"]).current_dir(root);
    let mut count = 0;
    // One that may be published names no registries; one that may not has an empty list of them.
    for manifest in packages.iter().filter(|package| package["publish"].is_null()) {
        let name = manifest["name"].as_str().context("a package has no name")?;
        let empty = |key: &&str| manifest[key].as_array().is_none_or(Vec::is_empty);
        let lacks =
            SAID.iter().filter(|key| manifest[**key].is_null()).chain(WORDS.iter().filter(|key| empty(key)));
        if let [first, ..] = lacks.collect::<Vec<_>>()[..] {
            bail!("the manifest of {name} has no {first}, which a registry shows");
        }
        package.args(["-p", name]);
        count += 1;
    }
    shell::run_quietly(&mut package)?;
    Ok(count)
}
