//! [`Tree`]: the workspace's packages and files, as text.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::shell;

/// What a registry shows of a package.
const SHOWN: [&str; 6] = ["description", "documentation", "license", "readme", "keywords", "categories"];

/// What the rules look at.
#[derive(Default)]
pub(super) struct Tree {
    pub(super) packages: Vec<Package>,
    /// Path from the root, text; sources, manifests, schemas, scripts and documents, without generated ones.
    pub(super) files: Vec<(String, String)>,
}

pub(super) struct Package {
    pub(super) name: String,
    /// Folder from the root.
    pub(super) folder: String,
    pub(super) dependencies: Vec<Dependency>,
    /// Crate roots of libraries and programs, from the root.
    pub(super) roots: Vec<String>,
    /// Of what a registry shows, what the manifest does not say; nothing for a package that no registry may have.
    pub(super) unsaid: Vec<String>,
    /// Whether a registry may have it.
    pub(super) published: bool,
}

pub(super) struct Dependency {
    pub(super) name: String,
    pub(super) dev: bool,
    pub(super) optional: bool,
}

impl Tree {
    pub(super) fn read(root: &Path) -> Result<Self> {
        let metadata = shell::metadata(root)?;
        let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
        let packages = packages.iter().map(|package| Package::read(root, package)).collect::<Result<_>>()?;
        let mut files = Vec::new();
        collect(root, root, &mut files)?;
        files.sort();
        Ok(Self { packages, files })
    }

    pub(super) fn sources(&self) -> impl Iterator<Item = &(String, String)> {
        self.files.iter().filter(|(path, _)| path.ends_with(".rs"))
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.files.iter().any(|(known, _)| known == path)
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|(known, _)| known == path).map(|(_, text)| text.as_str())
    }
}

impl Package {
    fn read(root: &Path, package: &Value) -> Result<Self> {
        let text =
            |value: &Value| value.as_str().map(str::to_owned).context("cargo metadata: a text is missing");
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let manifest = text(&package["manifest_path"])?;
        let folder = Path::new(&manifest).parent().context("a manifest lies in no folder")?;
        let mut dependencies = Vec::new();
        for dependency in list(&package["dependencies"]) {
            dependencies.push(Dependency {
                name: text(&dependency["name"])?,
                dev: dependency["kind"] == "dev",
                optional: dependency["optional"] == true,
            });
        }
        let mut roots = Vec::new();
        for target in list(&package["targets"]) {
            let kinds = list(&target["kind"]);
            if kinds.iter().any(|kind| kind == "lib" || kind == "bin" || kind == "cdylib") {
                roots.push(relative(root, Path::new(&text(&target["src_path"])?)));
            }
        }
        // One that may be published names no registries; one that may not has an empty list of them.
        let published = package["publish"].is_null();
        let empty = |key: &&str| match &package[*key] {
            Value::Array(words) => words.is_empty(),
            said => said.is_null(),
        };
        let unsaid =
            SHOWN.iter().filter(|key| published && empty(key)).map(|key| (*key).to_owned()).collect();
        Ok(Self {
            name: text(&package["name"])?,
            folder: relative(root, folder),
            dependencies,
            roots,
            unsaid,
            published,
        })
    }
}

fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// Reads the text files below `folder`, but not what is built, generated or hidden (other than `.ci`).
fn collect(root: &Path, folder: &Path, files: &mut Vec<(String, String)>) -> Result<()> {
    const KINDS: [&str; 8] = ["rs", "toml", "md", "proto", "css", "js", "sh", "py"];
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path: PathBuf = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() {
            let skipped =
                name.starts_with("target") || name == "generated" || (name.starts_with('.') && name != ".ci");
            if !skipped {
                collect(root, &path, files)?;
            }
        } else if path.extension().is_some_and(|kind| KINDS.iter().any(|known| kind == *known))
            || folder.file_name().is_some_and(|name| name == ".ci")
        {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            files.push((relative(root, &path), text));
        }
    }
    Ok(())
}
