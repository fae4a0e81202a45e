//! A copy of a crate with a list, and of what it is built from, with all mutants of the list in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use toml::Table;

use super::list::List;
use super::plant;
use crate::shell;

/// The folder of the copied crates below the root of the copy. Cargo knows a crate by its path in its workspace: with the
/// same one it would take the copy for the original, and one's products for the other's.
const CRATES: &str = "planted";

/// The copied workspace.
#[derive(Debug)]
pub(super) struct Copy {
    /// Its root.
    pub(super) root: PathBuf,
    /// Where it is built: the target folder of the original, so that nothing from a registry is built twice.
    pub(super) target: PathBuf,
    /// All packages of the copy; the one with the list is the first.
    pub(super) packages: Vec<String>,
}

impl Copy {
    /// Where a crate lies in the copy.
    pub(super) fn folder(&self, folder: &str) -> PathBuf {
        self.root.join(CRATES).join(folder)
    }
}

/// Copies the crate with this list. Files that are as they must be are left alone, so that cargo builds only what
/// changed.
pub(super) fn copy(root: &Path, list: &List) -> Result<Copy> {
    let metadata = shell::metadata(root)?;
    let target =
        PathBuf::from(metadata["target_directory"].as_str().context("there is no target directory")?);
    let copy = target.join("mutants").join(&list.folder);

    let (packages, folders): (Vec<String>, BTreeSet<String>) =
        closure(root, &list.folder, &metadata)?.into_iter().unzip();
    let mut wanted = BTreeMap::new();
    for folder in &folders {
        collect(root, &root.join(folder), &mut wanted)?;
    }
    plant_all(&folders, list, &mut wanted)?;
    let mut wanted: BTreeMap<PathBuf, Vec<u8>> =
        wanted.into_iter().map(|(path, bytes)| (Path::new(CRATES).join(path), bytes)).collect();
    wanted.insert(PathBuf::from("Cargo.toml"), manifest(root, &folders)?);
    wanted.insert(PathBuf::from("Cargo.lock"), fs::read(root.join("Cargo.lock")).context("Cargo.lock")?);

    remove_others(&copy, &copy, &wanted)?;
    for (path, bytes) in &wanted {
        write_if_changed(&copy.join(path), bytes)?;
    }
    Ok(Copy { root: copy, target, packages })
}

/// The name and the folder of every package that the one in `folder` is built from, itself first.
fn closure(root: &Path, folder: &str, metadata: &Value) -> Result<Vec<(String, String)>> {
    let mut packages: BTreeMap<PathBuf, &Value> = BTreeMap::new();
    for package in metadata["packages"].as_array().context("there are no packages")? {
        let manifest = Path::new(package["manifest_path"].as_str().context("a package lies nowhere")?);
        packages.insert(manifest.parent().context("a manifest lies in no folder")?.to_path_buf(), package);
    }
    let (mut seen, mut queue) = (BTreeSet::new(), vec![root.join(folder)]);
    let mut closure = Vec::new();
    while let Some(path) = queue.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let package = packages.get(&path).with_context(|| format!("{} is no package", path.display()))?;
        for dependency in package["dependencies"].as_array().context("a package has no dependencies")? {
            queue.extend(dependency["path"].as_str().map(PathBuf::from));
        }
        let name = package["name"].as_str().context("a package has no name")?;
        let relative = path.strip_prefix(root).context("a package lies outside the workspace")?;
        closure.push((name.to_owned(), relative.to_string_lossy().into_owned()));
    }
    Ok(closure)
}

/// The workspace's manifest with only these members, where they are in the copy.
fn manifest(root: &Path, folders: &BTreeSet<String>) -> Result<Vec<u8>> {
    let text = fs::read_to_string(root.join("Cargo.toml")).context("Cargo.toml")?;
    let mut manifest: Table = text.parse().context("Cargo.toml")?;
    let workspace = manifest.get_mut("workspace").and_then(toml::Value::as_table_mut);
    let workspace = workspace.context("Cargo.toml is not that of a workspace")?;
    let moved = |folder: &str| format!("{CRATES}/{folder}");
    let members: Vec<String> = folders.iter().map(|folder| moved(folder)).collect();
    workspace.insert("members".into(), members.into());
    workspace.remove("default-members");
    let dependencies = workspace.get_mut("dependencies").and_then(toml::Value::as_table_mut);
    for (_, dependency) in dependencies.into_iter().flatten() {
        if let Some(toml::Value::String(path)) = dependency.get_mut("path") {
            *path = moved(path);
        }
    }
    Ok(manifest.to_string().into_bytes())
}

fn collect(root: &Path, folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                collect(root, &path, files)?;
            }
        } else {
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            files.insert(path.strip_prefix(root).unwrap_or(&path).to_path_buf(), bytes);
        }
    }
    Ok(())
}

/// Plants the list in the files, and prepares every crate that has a part of it.
pub(super) fn plant_all(
    folders: &BTreeSet<String>,
    list: &List,
    files: &mut BTreeMap<PathBuf, Vec<u8>>,
) -> Result<()> {
    let crates = list.crates();
    if let Some(stranger) = crates.iter().find(|name| !folders.contains(**name)) {
        bail!("{} is not built from {stranger}, so none of its tests can catch a mutant there", list.folder);
    }
    let text_of = |file: &str| files.get(Path::new(file)).and_then(|text| std::str::from_utf8(text).ok());
    let (planted, misplaced) = list.plant(text_of);
    if !misplaced.is_empty() {
        bail!("{}", misplaced.join("\n"));
    }
    files.extend(planted.into_iter().map(|(file, text)| (PathBuf::from(file), text.into_bytes())));
    make_variable(folders, files)?;
    crates.into_iter().try_for_each(|name| prepare(Path::new(name), files))
}

/// The functions that cannot be constant with the mutants in them lose the word, in every crate.
fn make_variable(folders: &BTreeSet<String>, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    let is_source =
        |path: &Path| folders.iter().any(|folder| path.starts_with(Path::new(folder).join("src")));
    let (mut paths, mut texts) = (Vec::new(), Vec::new());
    for (path, bytes) in files.iter().filter(|(path, _)| is_source(path)) {
        let text = std::str::from_utf8(bytes).with_context(|| format!("{} is not text", path.display()))?;
        paths.push(path.clone());
        texts.push(text.to_owned());
    }
    plant::make_variable(&mut texts);
    files.extend(paths.into_iter().zip(texts.into_iter().map(String::into_bytes)));
    Ok(())
}

/// Adds the module that chooses to a crate.
fn prepare(folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    let lib = folder.join("src/lib.rs");
    let text = files.remove(&lib).with_context(|| format!("there is no {}", lib.display()))?;
    // Lints about the choices are of no use.
    files.insert(lib, [b"#![allow(warnings)]\n", &text[..], b"\nmod planted;\n"].concat());
    files.insert(folder.join("src/planted.rs"), plant::MODULE.into());
    Ok(())
}

/// Removes what an earlier copy left. Cargo's own lock file is among the wanted ones.
fn remove_others(copy: &Path, folder: &Path, wanted: &BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(copy, &path, wanted)?;
        } else if path.strip_prefix(copy).is_ok_and(|path| !wanted.contains_key(path)) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

fn write_if_changed(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().context("a file lies in a folder")?)?;
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}
