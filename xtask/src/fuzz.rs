//! `cargo xtask fuzz`: gives the readers of files and messages bytes that a fuzzer chooses by the branches that they reach.
//!
//! The targets lie in `fuzz`, a workspace of its own. The compiler counts the branches of what is built for the target; build scripts
//! and macros, which are built for the host, do without.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::sanitize::host;
use crate::shell;
use crate::verify::Done;

/// Time for each target, in seconds, unless told otherwise.
const SECONDS: u64 = 60;

/// What has the compiler count branches, for the library that reads the counts: the flags of libFuzzer.
const COUNTED: [&str; 7] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    // The counts of all pieces must lie in one.
    "-Ccodegen-units=1",
];

/// Carries out the command: `[--seconds N] [TARGET]…`.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<()> {
    let (seconds, names) = match arguments {
        ["--seconds", seconds, names @ ..] => {
            (seconds.parse().with_context(|| format!("--seconds {seconds}: must be a whole number"))?, names)
        }
        names => (SECONDS, names),
    };
    if let Some(flag) = names.iter().find(|name| name.starts_with('-')) {
        bail!("`{flag}` is not a flag of fuzz; use `cargo xtask fuzz [--seconds N] [TARGET]...`");
    }
    println!("fuzz: {}", check(root, seconds, names)?);
    Ok(())
}

/// All targets, for a minute each.
pub(crate) fn quietly(root: &Path) -> Result<Done> {
    check(root, SECONDS, &[])
}

/// Builds the targets and runs those of these names, all if there is none.
fn check(root: &Path, seconds: u64, names: &[&str]) -> Result<Done> {
    let manifest = root.join("fuzz/Cargo.toml");
    let text =
        fs::read_to_string(&manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
    let known = targets(&text)?;
    if let Some(name) = names.iter().find(|name| !known.iter().any(|known| known == *name)) {
        bail!("`{name}` is not a target; there are {}", known.join(", "));
    }
    let (folder, host) = (shell::target_dir(root)?.join("fuzz"), host()?);
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--bins", "--target", &host, "--manifest-path"]);
    build.arg(&manifest).arg("--target-dir").arg(&folder).env("RUSTFLAGS", COUNTED.join(" "));
    shell::run_quietly(build.current_dir(root))?;
    let mut inputs = Vec::new();
    for target in known.iter().filter(|target| names.is_empty() || names.contains(&target.as_str())) {
        let tried = fuzz(&folder, &host, target, seconds)
            .with_context(|| format!("repeat with: cargo xtask fuzz --seconds {seconds} {target}"))?;
        inputs.push(format!("{target}: {tried}"));
    }
    Ok(Done::Ran(format!("inputs in {seconds} s each: {}", inputs.join(", "))))
}

/// Runs one target for so long; what it found before is tried first. Returns how many inputs it tried.
fn fuzz(folder: &Path, host: &str, target: &str, seconds: u64) -> Result<u64> {
    let [corpus, found] = ["corpus", "artifacts"].map(|kind| folder.join(kind).join(target));
    for folder in [&corpus, &found] {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let mut command = Command::new(folder.join(host).join("release").join(target));
    command.arg(format!("-max_total_time={seconds}")).arg("-print_final_stats=1");
    command.arg(format!("-artifact_prefix={}/", found.display())).arg(&corpus);
    tried(&shell::run_quietly(&mut command)?.err)
}

/// How many inputs a target says that it tried. That it tried none must not pass for success.
fn tried(said: &str) -> Result<u64> {
    let line = said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let tried = line.and_then(|count| count.trim().parse().ok()).filter(|count| *count > 0);
    let grows = said.lines().any(|line| line.contains(" cov: ") && !line.contains(" cov: 0 "));
    match tried {
        Some(tried) if grows => Ok(tried),
        Some(_) => bail!("the target was built without counts of branches:\n{said}"),
        None => bail!("the target does not say how many inputs it tried:\n{said}"),
    }
}

/// The names of the targets, as the manifest lists them.
fn targets(manifest: &str) -> Result<Vec<String>> {
    let manifest: toml::Table = toml::from_str(manifest).context("fuzz/Cargo.toml")?;
    let bins =
        manifest.get("bin").and_then(toml::Value::as_array).context("fuzz/Cargo.toml has no [[bin]]")?;
    bins.iter()
        .map(|bin| {
            let name = bin.get("name").and_then(toml::Value::as_str);
            name.map(str::to_owned).context("a [[bin]] of fuzz/Cargo.toml has no name")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_that_tried_nothing_or_counted_nothing_is_no_success() {
        let counted = "#2\tINITED cov: 20 ft: 21 corp: 1/1b\n";
        let done = "stat::number_of_executed_units: 31";
        assert_eq!(tried(&format!("{counted}{done}")).unwrap(), 31);
        assert!(tried(counted).is_err());
        assert!(tried(&format!("{counted}stat::number_of_executed_units: 0")).is_err());
        assert!(tried(done).is_err());
    }

    #[test]
    fn targets_are_those_of_the_manifest() {
        let names = targets("[[bin]]\nname = \"a\"\n[[bin]]\nname = \"b\"\n").unwrap();
        assert_eq!(names, ["a", "b"]);
        assert!(targets("[package]\n").is_err());
        assert_eq!(targets(include_str!("../../fuzz/Cargo.toml")).unwrap(), ["journal", "snapshot", "wire"]);
    }
}
