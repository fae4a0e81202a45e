//! `cargo xtask rdma-vm`: the transport over RDMA against a driver of the kernel, on a machine that has neither an adapter nor
//! the driver.
//!
//! The driver is Soft-RoCE, in the kernel of a guest that QEMU emulates. What runs there is right or wrong; how fast it is
//! says nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::features::Features;
use crate::shell;

mod boot;
mod cpio;
mod guest;
mod plan;

use guest::Guest;
use plan::{COMMAND, Extent, Mode, Program};

/// Longest that a guest may take, all its steps together.
const LIMIT: Duration = Duration::from_secs(900);

const USAGE: &str = "use `cargo xtask rdma-vm [--mode dummy|veth] [--filter PART] [--quick]`";

/// How a run ended that did not fail.
pub(crate) enum Outcome {
    /// So many tests passed, in so many seconds after the build.
    Passed(u32, f64),
    /// Nothing ran, for this reason.
    Skipped(String),
}

impl Outcome {
    /// One line.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Passed(tests, seconds) => format!("{tests} tests passed in the guest in {seconds:.0} s"),
            Self::Skipped(why) => format!("SKIPPED: {why}"),
        }
    }
}

/// The command with its flags.
pub(crate) fn run(root: &Path, flags: &[&str]) -> Result<()> {
    let (modes, extent) = parse(flags)?;
    println!("rdma-vm: {}", in_guest(root, &modes, &extent, true)?.line());
    Ok(())
}

/// The quick tests of both modes, shown only if they fail.
pub(crate) fn quietly(root: &Path) -> Result<Outcome> {
    in_guest(root, &Mode::ALL, &Extent { quick: true, filter: None }, false)
}

fn parse(flags: &[&str]) -> Result<(Vec<Mode>, Extent)> {
    let (mut modes, mut extent) = (Mode::ALL.to_vec(), Extent::default());
    let mut flags = flags.iter();
    while let Some(flag) = flags.next() {
        match (*flag, flags.clone().next()) {
            ("--quick", _) => {
                extent.quick = true;
                continue;
            }
            ("--mode", Some(name)) => {
                let mode = Mode::ALL.into_iter().find(|mode| mode.name() == *name);
                modes = vec![mode.with_context(|| format!("--mode = {name}: {USAGE}"))?];
            }
            ("--filter", Some(part)) => extent.filter = Some((*part).to_owned()),
            (flag, _) => bail!("`{flag}` is not a flag of rdma-vm, or lacks its value; {USAGE}"),
        }
        flags.next();
    }
    Ok((modes, extent))
}

fn in_guest(root: &Path, modes: &[Mode], extent: &Extent, show: bool) -> Result<Outcome> {
    let cache = shell::target_dir(root)?.join("rdma-vm");
    fs::create_dir_all(&cache)?;
    let guest = match can_build().and_then(|()| Guest::prepare(&cache)) {
        Ok(guest) => guest,
        Err(why) => return Ok(Outcome::Skipped(format!("{why:#}"))),
    };
    let programs = build(root)?;
    let began = Instant::now();
    let files = shell::temp_dir("rdma-vm")?;
    let mut passed = 0;
    for mode in modes {
        if show {
            println!("rdma-vm: mode {}, kernel {}", mode.name(), guest.kernel);
        }
        let initial = files.path().join(mode.name());
        fs::write(&initial, archive(&guest, &programs, &plan::script(*mode, extent), files.path())?)?;
        let said = boot::boot(&guest.kernel_file(), &initial, LIMIT, show)?;
        let judged = plan::judge(&said);
        passed += judged.with_context(|| format!("{}mode {}", boot::unless(show, &said), mode.name()))?;
    }
    ensure!(passed > 0, "no test ran in the guest");
    Ok(Outcome::Passed(passed, began.elapsed().as_secs_f64()))
}

/// Whether this machine has what the build and the guest want; if not, what it lacks.
pub(crate) fn can_build() -> Result<()> {
    let wanted = [
        (boot::EMULATOR, "--version", "qemu-system-x86"),
        ("clang", "--version", "clang libclang-dev"),
        ("pkg-config", "--version", "pkg-config"),
        ("strip", "--version", "binutils"),
    ];
    for (program, flag, package) in wanted {
        let found = Command::new(program).arg(flag).output().is_ok_and(|output| output.status.success());
        ensure!(found, "no `{program}`: install {package}");
    }
    for library in ["libibverbs", "librdmacm"] {
        let found = Command::new("pkg-config").args(["--exists", library]).status();
        ensure!(found.is_ok_and(|status| status.success()), "no {library}: install {library}-dev");
    }
    Ok(())
}

/// What is tested: each with its name in the guest and the file that was built.
fn build(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut cargo = Command::new("cargo");
    // As `verify` builds, so that after it nothing is built for this.
    cargo.args(["test", "--workspace"]).args(Features::here().flags());
    cargo.args(["--lib", "--bin", "antdt", "--test", "rdma", "--no-run", "--message-format", "json"]);
    let said = shell::run_quietly(cargo.current_dir(root))?.out;
    let mut built = Vec::new();
    for line in said.lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let Some(file) = message["executable"].as_str() else { continue };
        let test = message["profile"]["test"].as_bool() == Some(true);
        let kind = message["target"]["kind"][0].as_str();
        let package = message["package_id"].as_str().unwrap_or_default();
        let name = match (package.contains("/antdt-rdma#"), kind, test) {
            (true, Some("lib"), true) => Program::Layers.name(),
            (true, Some("test"), true) => Program::Transport.name(),
            (false, Some("test"), true) => Program::Job.name(),
            (false, Some("bin"), false) => COMMAND.trim_start_matches("/tests/"),
            _ => continue,
        };
        built.push((name.to_owned(), PathBuf::from(file)));
    }
    ensure!(
        built.len() == Program::ALL.len() + 1,
        "cargo built other programs than were asked for: {built:?}"
    );
    Ok(built)
}

/// The first file system of the guest, with what is tested and what it is to do.
fn archive(guest: &Guest, programs: &[(String, PathBuf)], script: &str, work: &Path) -> Result<Vec<u8>> {
    let mut archive = guest.archive()?;
    archive.add("/plan", script.as_bytes());
    for (name, file) in programs {
        let stripped = work.join("stripped");
        shell::read(Command::new("strip").arg("--strip-debug").arg("-o").arg(&stripped).arg(file))?;
        archive.copy(&stripped, &format!("/tests/{name}"))?;
    }
    let files: Vec<PathBuf> = programs.iter().map(|(_, file)| file.clone()).collect();
    guest::add_libraries(&mut archive, &files)?;
    Ok(archive.finish())
}
