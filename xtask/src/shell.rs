//! Running commands, and folders that go away.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

/// A folder that is removed with this value.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // What is left behind lies in the system's temporary folder; nothing depends on it being gone.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes an empty folder whose name starts with `label`.
pub(crate) fn temp_dir(label: &str) -> Result<TempDir> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("antdt-{label}-{}-{number}", std::process::id()));
    fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(TempDir(path))
}

/// What a command wrote.
pub(crate) struct Said {
    /// To its standard output.
    pub(crate) out: String,
    /// To its standard error.
    pub(crate) err: String,
}

/// Runs a command without showing what it says, unless it fails. Returns what it said.
pub(crate) fn run_quietly(command: &mut Command) -> Result<Said> {
    run_quietly_unless(command, &[]).map(|(said, _)| said)
}

/// The same for a command of which these exit codes are no failure either. Returns what it said, and its exit code.
pub(crate) fn run_quietly_unless(command: &mut Command, also: &[u8]) -> Result<(Said, u8)> {
    let output = command.output().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let code = output.status.code().and_then(|code| u8::try_from(code).ok());
    let Some(code) = code.filter(|code| *code == 0 || also.contains(code)) else {
        io::stderr().write_all(&output.stdout)?;
        io::stderr().write_all(&output.stderr)?;
        bail!("{}", output.status);
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((Said { out: text(&output.stdout), err: text(&output.stderr) }, code))
}

/// What cargo says of the workspace, without its dependencies: that would download all of them.
pub(crate) fn metadata(root: &Path) -> Result<serde_json::Value> {
    let mut command = Command::new("cargo");
    command.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root);
    serde_json::from_str(&read(&mut command)?).context("cargo metadata is no JSON")
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir(root: &Path) -> Result<PathBuf> {
    let metadata = metadata(root)?;
    let target = metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
    Ok(PathBuf::from(target))
}

/// What a command writes to its standard output.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    if !output.status.success() {
        bail!("{:?}: {}", command.get_program(), String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).context("the output is not UTF-8")
}
