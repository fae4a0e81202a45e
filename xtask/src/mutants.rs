//! `cargo xtask mutants`: plants defects in a crate and demands that its tests catch every one.
//!
//! A crate that wants it has a `mutants.toml`: suites of tests, and defects. Its sources and those that it is built
//! from are copied below the target folder, and every defect of its list is planted in the copy beside what it
//! replaces, behind a number: `(if crate::planted::is(7) { defect } else { original })`. So one build serves all of a
//! list, and a mutant is a run of the tests with a number in the environment. A suite catches a mutant if a test
//! fails, it crashes, or it takes far longer than without one. A defect may lie in another crate that this one is built
//! from: the simulator's tests must catch what is wrong with the machines that it drives.
//!
//! Crates come one after the other, each with a build of its own: where time is short, the first mutants run as soon as
//! the first crate is built. [`turn`] says which come first, [`pass`] what is stored when all of a list were caught.
//!
//! Source: mutant schemata (Untch, Offutt, Harrold 1993), from memory; the rest is our design.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::list::{List, Mutant};
use self::pass::Pass;
use self::run::SuiteResult;
use self::turn::Visit;
use crate::shell;
use crate::verify::Done;

mod copy;
mod list;
mod pass;
mod plant;
mod run;
#[cfg(test)]
mod tests;
mod turn;

/// The file in a crate's folder that lists its mutants.
pub(crate) const LIST: &str = "mutants.toml";

/// Mutants that are run at a time, unless the machine has more processors. Each is one thread of tests.
const AT_A_TIME: usize = 2;

/// How many mutants were run, all of them caught.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Caught {
    run: usize,
    /// Not run for want of time.
    left: usize,
    /// Of those, so many that changed since the last full pass of their crate.
    changed_left: usize,
}

impl Caught {
    /// What to say of it.
    fn done(self) -> Done {
        if self.run == 0 { Done::Skipped(self.to_string()) } else { Done::Ran(self.to_string()) }
    }
}

impl fmt::Display for Caught {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{0} of {0} caught", self.run)?;
        if self.left > 0 {
            write!(f, "; {} not run for want of time", self.left)?;
        }
        match self.changed_left {
            0 => Ok(()),
            left => write!(f, ", {left} of them changed since the last full pass"),
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
    println!("mutants: {}", caught.done());
    Ok(())
}

/// All mutants of all crates; what is said meanwhile is shown only if one survives.
pub(crate) fn quietly(root: &Path) -> Result<Done> {
    let said = Mutex::new(String::new());
    let say = |line: &str| {
        let mut said = said.lock().expect("nothing panics while it has the lock");
        said.push_str(line);
        said.push('\n');
    };
    let caught = check(root, None, Choice::All, say).inspect_err(|_| {
        eprint!("{}", said.lock().expect("nothing panics while it has the lock"));
    })?;
    Ok(caught.done())
}

/// What is wrong with the lists of mutants, as far as can be said without building anything. A list is a folder and a
/// text; `text_of` is given a path from the root.
pub(crate) fn misplaced<'a>(
    lists: &[(&str, &str)],
    text_of: impl Fn(&str) -> Option<&'a str>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (folder, text) in lists {
        match List::parse(folder, text) {
            Ok(list) => wrong.extend(list.plant(&text_of).1),
            Err(error) => wrong.push(format!("{error:#}")),
        }
    }
    wrong
}

fn check(root: &Path, krate: Option<&str>, choice: Choice<'_>, say: impl Fn(&str) + Sync) -> Result<Caught> {
    let began = Instant::now();
    let mut lists = Vec::new();
    for folder in folders(root, krate)? {
        let text = std::fs::read_to_string(root.join(&folder).join(LIST))
            .with_context(|| format!("cannot read {folder}/{LIST}"))?;
        lists.push(List::parse(&folder, &text)?);
    }
    // As the files are before they are copied: one that is written meanwhile counts as changed.
    let passes: Vec<Pass> = lists
        .iter()
        .map(|list| Pass::of(list, |path| std::fs::read_to_string(root.join(path)).ok()))
        .collect();
    let (visits, end) = match choice {
        Choice::All | Choice::Named([]) => (turn::in_order(&lists, |_| true), None),
        Choice::Named(names) => {
            let known: Vec<&str> =
                lists.iter().flat_map(|list| &list.mutants).map(|mutant| mutant.name.as_str()).collect();
            if let Some(name) = names.iter().find(|name| !known.contains(*name)) {
                bail!("there is no mutant {name:?}; there are: {}", known.join(", "));
            }
            (turn::in_order(&lists, |mutant| names.contains(&mutant.name.as_str())), None)
        }
        Choice::Within(time) => {
            let changed: BTreeSet<(&str, &str)> = lists
                .iter()
                .zip(&passes)
                .flat_map(|(list, pass)| {
                    let before = Pass::read(root, &list.folder);
                    let changed = list.mutants.iter().filter(move |mutant| pass.differs(&before, mutant));
                    changed.map(|mutant| (list.folder.as_str(), mutant.name.as_str()))
                })
                .collect();
            let is_changed = |list: &List, mutant: &Mutant| {
                changed.contains(&(list.folder.as_str(), mutant.name.as_str()))
            };
            (turn::changed_first(&lists, is_changed, turn_of(root)), Some(began + time))
        }
    };
    let mut caught = Caught::default();
    let (mut survivors, mut chosen) = (Vec::new(), 0);
    for visit in &visits {
        let before = survivors.len();
        let run = self::visit(root, visit, end, &say, &mut survivors)?;
        let left = visit.mutants.len() - run;
        caught.run += run;
        caught.left += left;
        caught.changed_left += if visit.changed { left } else { 0 };
        chosen += visit.mutants.len();
        // A run against the clock is a check; what it leaves behind are build products.
        if end.is_none() && run == visit.list.mutants.len() && survivors.len() == before {
            let pass = lists.iter().zip(&passes).find(|(list, _)| list.folder == visit.list.folder);
            pass.map_or(Ok(()), |(list, pass)| pass.write(root, &list.folder))?;
        }
    }
    if !survivors.is_empty() {
        bail!("{} of {chosen} mutants survive: {}", survivors.len(), survivors.join("; "));
    }
    Ok(caught)
}

/// Builds a crate and runs its mutants until `end`. Returns how many were run; who survives is added to `survivors`.
fn visit(
    root: &Path,
    visit: &Visit<'_>,
    end: Option<Instant>,
    say: &(impl Fn(&str) + Sync),
    survivors: &mut Vec<String>,
) -> Result<usize> {
    let list = visit.list;
    let began = Instant::now();
    if end.is_some_and(|end| began >= end) {
        return Ok(0);
    }
    let copy = copy::copy(root, list)?;
    let Some(suites) = run::build(&copy, list, end)? else {
        say(&format!("{}: not built in time", list.folder));
        return Ok(0);
    };
    say(&format!("{}: built in {:.1} s", list.folder, began.elapsed().as_secs_f64()));
    let results = in_parallel(visit.mutants.len(), |i| {
        let at = visit.mutants[i];
        let mutant = &list.mutants[at];
        let mut survived = Vec::new();
        for name in &mutant.suites {
            let result = suites[name].run(plant::number(at), end, say)?;
            match result {
                SuiteResult::Unfinished => return Ok((false, survived)),
                SuiteResult::Caught { .. } => {}
                SuiteResult::Passed(_) => {
                    survived.push(format!("{} ({} of {}): {}", mutant.name, name, list.folder, mutant.why));
                }
            }
            say(&row(mutant, &result));
        }
        Ok((true, survived))
    })?;
    let run = results.iter().filter(|(is_done, _)| *is_done).count();
    survivors.extend(results.into_iter().flat_map(|(_, survived)| survived));
    Ok(run)
}

/// A number that differs from commit to commit: where the mutants that take turns begin.
fn turn_of(root: &Path) -> u64 {
    let head = shell::read(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root));
    // Without a commit nothing tells one run from the next, and each begins with the first.
    let head = head.unwrap_or_default();
    u64::from_str_radix(head.get(..15).unwrap_or_default(), 16).unwrap_or(0)
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
        SuiteResult::Unfinished => format!("left     {name}"),
    }
}
