//! `cargo xtask mutants`: plants defects in a crate and demands that its tests catch every one.
//!
//! A crate that wants it has a `mutants.toml`: suites of tests, and defects. Sources are copied below the target
//! folder, and every defect of every list is planted in the one copy beside what it replaces, behind a number:
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
use self::run::{Suite, SuiteResult};

mod copy;
mod list;
mod pass;
mod plant;
mod run;
#[cfg(test)]
mod tests;

/// The file in a crate's folder that lists its mutants.
pub(crate) const LIST: &str = "mutants.toml";

/// Mutants that are run at a time, unless the machine has more processors. Each is one thread of tests.
const AT_A_TIME: usize = 2;

/// How many mutants were run, all of them caught.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caught {
    run: usize,
    /// Of so many.
    of: usize,
    /// Of those in files that changed since all were caught, so many were not run for want of time.
    changed_left: usize,
}

impl fmt::Display for Caught {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{0} of {0} caught", self.run)?;
        if self.run < self.of {
            write!(f, "; {} not run for want of time", self.of - self.run)?;
        }
        match self.changed_left {
            0 => Ok(()),
            left => write!(f, ", {left} of them in files that changed"),
        }
    }
}

/// Which mutants are run.
#[derive(Debug, Clone, Copy)]
enum Choice<'a> {
    All,
    /// Those of these names; all of the crate if there is none.
    Named(&'a [&'a str]),
    /// As many as this time allows, the build included.
    Within(Duration),
}

/// Carries out the command: `[--crate NAME] [MUTANT]…` or `--within MINUTES`. With none, all mutants of all crates.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<()> {
    let (krate, choice) = match arguments {
        ["--within", minutes] => {
            let time = minutes
                .parse()
                .ok()
                .and_then(|minutes: f64| Duration::try_from_secs_f64(minutes * 60.0).ok());
            let time = time.with_context(|| format!("--within {minutes}: must be minutes, such as 8"))?;
            (None, Choice::Within(time))
        }
        ["--crate", krate, names @ ..] => (Some(*krate), Choice::Named(names)),
        [] => (None, Choice::All),
        names => (None, Choice::Named(names)),
    };
    if let Choice::Named(names) = choice
        && let Some(flag) = names.iter().find(|name| name.starts_with('-'))
    {
        bail!(
            "`{flag}` is not a flag of mutants; use `cargo xtask mutants [--crate NAME] [MUTANT]... | --within MINUTES`"
        );
    }
    let caught = check(root, krate, choice, |line| println!("{line}"))?;
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
    check(root, None, Choice::All, say).inspect_err(|_| {
        eprint!("{}", said.lock().expect("nothing panics while it has the lock"));
    })
}

/// What is wrong with the lists of mutants, as far as can be said without building anything. A list is a folder and a
/// text; `text_of` is given a path from the root.
pub(crate) fn misplaced<'a>(
    lists: &[(&str, &str)],
    text_of: impl Fn(&str) -> Option<&'a str>,
) -> Vec<String> {
    let (mut sound, mut wrong) = (Vec::new(), Vec::new());
    for (folder, text) in lists {
        match List::parse(folder, text) {
            Ok(list) => sound.push(list),
            Err(error) => wrong.push(format!("{error:#}")),
        }
    }
    wrong.extend(list::plant_all(&sound, text_of).1);
    wrong
}

fn check(root: &Path, krate: Option<&str>, choice: Choice<'_>, say: impl Fn(&str) + Sync) -> Result<Caught> {
    let began = Instant::now();
    let names = if let Choice::Named(names) = choice { names } else { &[] };
    let mut lists = Vec::new();
    for folder in folders(root, krate)? {
        let text = std::fs::read_to_string(root.join(&folder).join(LIST))
            .with_context(|| format!("cannot read {folder}/{LIST}"))?;
        lists.push(List::parse(&folder, &text)?);
    }
    let is_chosen = |mutant: &Mutant| names.is_empty() || names.contains(&mutant.name.as_str());
    let known: Vec<&str> = list::mutants(&lists).map(|(_, mutant)| mutant.name.as_str()).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(*name)) {
        bail!("there is no mutant {name:?}; there are: {}", known.join(", "));
    }
    lists.retain(|list| list.mutants.iter().any(is_chosen));

    let copy = copy::copy(root, &lists)?;
    let suites = run::build(&copy, &lists)?;
    say(&format!("built in {:.1} s", began.elapsed().as_secs_f64()));
    let sound = sound(&suites, &say)?;
    let mut chosen: Vec<_> =
        list::mutants(&lists).enumerate().filter(|(_, (_, mutant))| is_chosen(mutant)).collect();
    let (mut changed, mut end) = (0, None);
    if let Choice::Within(time) = choice {
        let since = pass::changed(root)?;
        let is_changed = |list: &List, mutant: &Mutant| since.has(&mutant.path(list));
        (chosen, changed) = pass::order(chosen, |(_, (list, mutant))| is_changed(list, mutant), since.turn);
        end = Some(began + time);
    }
    let left = AtomicUsize::new(0);
    let changed_left = AtomicUsize::new(0);
    let survivors = in_parallel(chosen.len(), |i| {
        if end.is_some_and(|end| Instant::now() >= end) {
            left.fetch_add(1, Ordering::Relaxed);
            changed_left.fetch_add(usize::from(i < changed), Ordering::Relaxed);
            return Ok(Vec::new());
        }
        let (at, (list, mutant)) = chosen[i];
        let mut survived = Vec::new();
        for name in &mutant.suites {
            let key = (list.folder.clone(), name.clone());
            let outcome = suites[&key].run(Some(plant::number(at)), run::limit(sound[&key]))?;
            say(&row(mutant, &outcome));
            if let SuiteResult::Passed(_) = outcome {
                survived.push(format!("{} ({} of {}): {}", mutant.name, name, list.folder, mutant.why));
            }
        }
        Ok(survived)
    })?
    .concat();
    if !survivors.is_empty() {
        bail!("{} of {} mutants survive: {}", survivors.len(), chosen.len(), survivors.join("; "));
    }
    let left = left.into_inner();
    if let Choice::All = choice {
        pass::keep(root)?;
    }
    Ok(Caught { run: chosen.len() - left, of: chosen.len(), changed_left: changed_left.into_inner() })
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

/// How long every suite takes when no mutant is switched on. It is an error if one fails.
fn sound(
    suites: &BTreeMap<(String, String), Suite>,
    say: &(impl Fn(&str) + Sync),
) -> Result<BTreeMap<(String, String), Duration>> {
    let all: Vec<_> = suites.iter().collect();
    let sound = in_parallel(all.len(), |i| {
        let (key, suite) = all[i];
        let (folder, name) = key;
        match suite.run(None, run::SOUND_MAX)? {
            SuiteResult::Passed(time) => {
                let seconds = time.as_secs_f64();
                say(&format!("{folder}: suite {name} passes in {seconds:.1} s without a mutant"));
                Ok((key.clone(), time))
            }
            other => bail!("the suite {name} of {folder} fails without a mutant: {other}"),
        }
    })?;
    Ok(sound.into_iter().collect())
}

/// What `work` makes of every number below `count`, several at a time. The first error ends it.
fn in_parallel<T: Send>(count: usize, work: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let some = || -> Result<Vec<T>> {
        let mut made = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                return Ok(made);
            }
            // Nobody begins anything after an error.
            made.push(work(i).inspect_err(|_| next.store(count, Ordering::Relaxed))?);
        }
    };
    let threads = thread::available_parallelism().map_or(AT_A_TIME, |n| n.get().max(AT_A_TIME));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
        let mut made = Vec::new();
        for worker in workers {
            made.extend(worker.join().expect("a worker returns its errors")?);
        }
        Ok(made)
    })
}

fn row(mutant: &Mutant, outcome: &SuiteResult) -> String {
    let name = &mutant.name;
    match outcome {
        SuiteResult::Passed(time) => format!("SURVIVED {name:<44} {:>5.1} s", time.as_secs_f64()),
        SuiteResult::Caught { by, time } => {
            format!("caught   {name:<44} {:>5.1} s  {by}", time.as_secs_f64())
        }
    }
}
