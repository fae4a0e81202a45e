//! `cargo xtask mutants`: plants defects in a crate and demands that its tests catch every one.
//!
//! A crate that wants it has a `mutants.toml`: suites of tests, and defects. Sources are copied below the target
//! folder, and every defect is planted in the one copy beside what it replaces, behind a number:
//! `(if crate::planted::is(7) { defect } else { original })`. So one build serves all, and a mutant is a run of the
//! tests with a number in the environment. A suite catches a mutant if a test fails, it crashes, or it takes far
//! longer than without one. A defect may lie in another crate that this one is built from: the simulator's tests must
//! catch what is wrong with the machines that it drives.
//!
//! Source: mutant schemata (Untch, Offutt, Harrold 1993), from memory; the rest is our design.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::list::{List, Mutant};
use self::run::{Outcome, Suite};

mod copy;
mod list;
mod plant;
mod run;
#[cfg(test)]
mod tests;

/// The file in a crate's folder that lists its mutants.
pub(crate) const LIST: &str = "mutants.toml";

/// Mutants that are run at a time, unless the machine has more processors. Each is one thread of tests.
const AT_A_TIME: usize = 2;

/// How many mutants there were, all of them caught.
#[derive(Debug, Default)]
pub(crate) struct Caught(usize);

impl fmt::Display for Caught {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{0} of {0} caught", self.0)
    }
}

/// Carries out the command: `[--crate NAME] [MUTANT]…`. With neither, all mutants of all crates.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<()> {
    let (krate, names) = match arguments {
        ["--crate", krate, names @ ..] => (Some(*krate), names),
        names => (None, names),
    };
    if let Some(flag) = names.iter().find(|name| name.starts_with('-')) {
        bail!("`{flag}` is not a flag of mutants; use `cargo xtask mutants [--crate NAME] [MUTANT]...`");
    }
    let caught = check(root, krate, names, |line| println!("{line}"))?;
    println!("{:<24} ok {caught}", "mutants");
    Ok(())
}

/// All mutants of all crates; what is said meanwhile is shown only if one survives.
pub(crate) fn quietly(root: &Path) -> Result<Caught> {
    let said = Mutex::new(String::new());
    let say = |line: &str| {
        let mut said = said.lock().expect("nothing panics while it has the lock");
        said.push_str(line);
        said.push('\n');
    };
    check(root, None, &[], say).inspect_err(|_| {
        eprint!("{}", said.lock().expect("nothing panics while it has the lock"));
    })
}

/// What is wrong with the list of the crate in `folder`, as far as can be said without building it. `text_of` is given
/// a path from the root.
pub(crate) fn misplaced<'a>(
    folder: &str,
    list: &str,
    text_of: impl Fn(&str) -> Option<&'a str>,
) -> Vec<String> {
    match List::parse(list) {
        Ok(list) => list.plant(folder, text_of).1,
        Err(error) => vec![format!("{error:#}")],
    }
}

fn check(root: &Path, krate: Option<&str>, names: &[&str], say: impl Fn(&str) + Sync) -> Result<Caught> {
    let mut caught = Caught::default();
    let mut known = Vec::new();
    for folder in folders(root, krate)? {
        let text = std::fs::read_to_string(root.join(&folder).join(LIST))
            .with_context(|| format!("cannot read {folder}/{LIST}"))?;
        let list = List::parse(&text).with_context(|| format!("{folder}/{LIST}"))?;
        known.extend(list.mutants.iter().map(|mutant| mutant.name.clone()));
        let chosen: Vec<usize> = (0..list.mutants.len())
            .filter(|at| names.is_empty() || names.contains(&list.mutants[*at].name.as_str()))
            .collect();
        if !chosen.is_empty() {
            caught.0 += check_crate(root, &folder, &list, &chosen, &say)?;
        }
    }
    if let Some(name) = names.iter().find(|name| !known.iter().any(|known| known == *name)) {
        bail!("there is no mutant {name:?}; there are: {}", known.join(", "));
    }
    Ok(caught)
}

/// Folders of the crates with a list, from the root.
fn folders(root: &Path, krate: Option<&str>) -> Result<Vec<String>> {
    if let Some(krate) = krate {
        if !root.join(krate).join(LIST).is_file() {
            bail!("{krate} has no {LIST}");
        }
        return Ok(vec![krate.to_owned()]);
    }
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(root).with_context(|| format!("cannot list {}", root.display()))? {
        let entry = entry?;
        if entry.path().join(LIST).is_file() {
            folders.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    folders.sort();
    Ok(folders)
}

/// Number of mutants, all of them caught.
fn check_crate(
    root: &Path,
    folder: &str,
    list: &List,
    chosen: &[usize],
    say: &(impl Fn(&str) + Sync),
) -> Result<usize> {
    let copy = copy::copy(root, folder, list)?;
    let began = Instant::now();
    let suites = run::build(&copy, list)?;
    say(&format!("{folder}: built in {:.1} s", began.elapsed().as_secs_f64()));
    let mut sound = BTreeMap::new();
    for (name, suite) in &suites {
        match suite.run(None, run::SOUND_MAX)? {
            Outcome::Passed(time) => {
                say(&format!(
                    "{folder}: suite {name} passes in {:.1} s without a mutant",
                    time.as_secs_f64()
                ));
                sound.insert(name.as_str(), time);
            }
            other => bail!("the suite {name} of {folder} fails without a mutant: {other}"),
        }
    }
    let survivors = all(list, chosen, &suites, &sound, say)?;
    if !survivors.is_empty() {
        bail!("{folder}: {} of {} mutants survive: {}", survivors.len(), chosen.len(), survivors.join("; "));
    }
    Ok(chosen.len())
}

/// Runs the chosen mutants, several at a time. The survivors, each with what it survived.
fn all(
    list: &List,
    chosen: &[usize],
    suites: &BTreeMap<String, Suite>,
    sound: &BTreeMap<&str, Duration>,
    say: &(impl Fn(&str) + Sync),
) -> Result<Vec<String>> {
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<String>> {
        let mut survivors = Vec::new();
        while let Some(at) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mutant = &list.mutants[*at];
            for name in &mutant.suites {
                let (suite, sound) = (&suites[name], sound[name.as_str()]);
                let outcome = suite.run(Some(plant::number(*at)), run::limit(sound))?;
                say(&row(mutant, &outcome));
                if let Outcome::Passed(_) = outcome {
                    survivors.push(format!("{} (suite {name}): {}", mutant.name, mutant.why));
                }
            }
        }
        Ok(survivors)
    };
    let threads = thread::available_parallelism().map_or(AT_A_TIME, |n| n.get().max(AT_A_TIME));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut survivors = Vec::new();
        for worker in workers {
            survivors.extend(worker.join().expect("a worker returns its errors")?);
        }
        Ok(survivors)
    })
}

fn row(mutant: &Mutant, outcome: &Outcome) -> String {
    let name = &mutant.name;
    match outcome {
        Outcome::Passed(time) => format!("SURVIVED {name:<44} {:>5.1} s", time.as_secs_f64()),
        Outcome::Caught { by, time } => format!("caught   {name:<44} {:>5.1} s  {by}", time.as_secs_f64()),
    }
}
