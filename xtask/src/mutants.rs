//! `cargo xtask mutants`: plants defects in a crate and demands that its tests catch every one.
//!
//! A crate that wants it has a `mutants.toml`: suites of tests, and defects. Its sources and those that it is built
//! from are copied below the target folder, and every defect of its list is planted in the copy beside what it
//! replaces, behind a number: `(if crate::planted::is(7) { defect } else { original })`. So one build serves all of a
//! list, and a mutant is a run of the tests with a number in the environment. A suite catches a mutant if a test
//! fails, it crashes, or it takes far longer than without one. A defect may lie in another crate that this one is built
//! from: the simulator's tests must catch what is wrong with the machines that it drives.
//!
//! Crates come one after the other, each with a build of its own. Where time is short, mutants come first whose file or list the
//! newest change has touched, then the others in turn, from another one on after each commit.
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
use self::run::SuiteResult;
use crate::shell;
use crate::verify::Done;

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

/// How many mutants were run, all of them caught.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Caught {
    run: usize,
    /// Not run for want of time.
    left: usize,
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
        match self.left {
            0 => Ok(()),
            left => write!(f, "; {left} not run for want of time"),
        }
    }
}

/// Mutants of one crate that are run after one build: its list, and their places in it, in the order in which they are run.
type Visit<'a> = (&'a List, Vec<usize>);

/// Carries out the command: `[--within MINUTES] [NAME]…`. A name is that of a mutant, or of a crate for all of its list; without
/// one, all mutants are chosen.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<()> {
    let (time, names) = match arguments {
        ["--within", minutes, names @ ..] => {
            let time = minutes.parse().ok();
            let time = time.and_then(|minutes: f64| Duration::try_from_secs_f64(minutes * 60.0).ok());
            (Some(time.with_context(|| format!("--within {minutes}: must be minutes, such as 8"))?), names)
        }
        names => (None, names),
    };
    if let Some(flag) = names.iter().find(|name| name.starts_with('-')) {
        bail!("`{flag}` is not a flag of mutants; use `cargo xtask mutants [--within MINUTES] [NAME]...`");
    }
    let caught = check(root, names, time, |line| println!("{line}"))?;
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
    let caught = check(root, &[], None, say).inspect_err(|_| {
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

fn check(root: &Path, names: &[&str], time: Option<Duration>, say: impl Fn(&str) + Sync) -> Result<Caught> {
    let end = time.map(|time| Instant::now() + time);
    let lists = lists(root)?;
    let is_named = |list: &List, mutant: &Mutant| {
        names.is_empty() || names.iter().any(|name| *name == list.folder || *name == mutant.name)
    };
    let known = |name: &&&str| {
        lists
            .iter()
            .any(|list| list.folder == **name || list.mutants.iter().any(|mutant| mutant.name == **name))
    };
    if let Some(name) = names.iter().find(|name| !known(name)) {
        bail!("there is no mutant {name:?}, and no crate of this name with a {LIST}");
    }
    let (touched, turn) = match time {
        Some(_) => (touched(root), turn_of(root)),
        None => (BTreeSet::new(), 0),
    };
    let is_touched = |list: &List, mutant: &Mutant| {
        touched.contains(&mutant.path(list)) || touched.contains(&format!("{}/{LIST}", list.folder))
    };
    let mut caught = Caught::default();
    let mut survivors = Vec::new();
    for (list, mutants) in order(&lists, is_named, is_touched, turn) {
        let run = visit(root, list, &mutants, end, &say, &mut survivors)?;
        caught.run += run;
        caught.left += mutants.len() - run;
    }
    if !survivors.is_empty() {
        bail!("{} of {} mutants survive: {}", survivors.len(), caught.run, survivors.join("; "));
    }
    Ok(caught)
}

/// Builds a crate and runs its mutants; begins none after `end`. Returns how many were run; a mutant that survives is added to `survivors`.
fn visit(
    root: &Path,
    list: &List,
    mutants: &[usize],
    end: Option<Instant>,
    say: &(impl Fn(&str) + Sync),
    survivors: &mut Vec<String>,
) -> Result<usize> {
    let is_over = || end.is_some_and(|end| Instant::now() >= end);
    if is_over() {
        return Ok(0);
    }
    let began = Instant::now();
    let suites = run::build(&copy::copy(root, list)?, list)?;
    say(&format!("{}: built in {:.1} s", list.folder, began.elapsed().as_secs_f64()));
    let results = in_parallel(mutants.len(), |i| {
        if is_over() {
            return Ok(None);
        }
        let (number, mutant) = (plant::number(mutants[i]), &list.mutants[mutants[i]]);
        let mut survived = Vec::new();
        for name in &mutant.suites {
            let result = suites[name].run(number, say)?;
            if let SuiteResult::Passed(_) = result {
                survived.push(format!("{} ({} of {}): {}", mutant.name, name, list.folder, mutant.why));
            }
            say(&row(mutant, &result));
        }
        Ok(Some(survived))
    })?;
    let run = results.iter().flatten().count();
    survivors.extend(results.into_iter().flatten().flatten());
    Ok(run)
}

/// The chosen mutants, crate by crate: first those that are touched, then the others, each kind from the `turn`-th on.
fn order<'a>(
    lists: &'a [List],
    is_chosen: impl Fn(&List, &Mutant) -> bool,
    is_touched: impl Fn(&List, &Mutant) -> bool,
    turn: usize,
) -> Vec<Visit<'a>> {
    let all = lists.iter().flat_map(|list| (0..list.mutants.len()).map(move |at| (list, at)));
    let chosen = all.filter(|(list, at)| is_chosen(list, &list.mutants[*at]));
    let (touched, others): (Vec<_>, Vec<_>) =
        chosen.partition(|(list, at)| is_touched(list, &list.mutants[*at]));
    let mut order: Vec<Visit<'a>> = Vec::new();
    for mut mutants in [touched, others] {
        let first = order.len();
        if !mutants.is_empty() {
            let turn = turn % mutants.len();
            mutants.rotate_left(turn);
        }
        for (list, at) in mutants {
            match order[first..].iter_mut().find(|(known, _)| known.folder == list.folder) {
                Some((_, mutants)) => mutants.push(at),
                None => order.push((list, vec![at])),
            }
        }
    }
    order
}

/// The files, from the root, that differ from where this branch left the main one, or from the commit before where it has not. None
/// without a history: then all mutants take turns.
fn touched(root: &Path) -> BTreeSet<String> {
    let git = |words: &[&str]| shell::read(Command::new("git").args(words).current_dir(root)).ok();
    let head = git(&["rev-parse", "HEAD"]);
    let left = git(&["merge-base", "HEAD", "origin/HEAD"]).filter(|left| Some(left) != head.as_ref());
    let base = left.unwrap_or_else(|| "HEAD~1".to_owned());
    let names = git(&["diff", "--name-only", base.trim()]).unwrap_or_default();
    names.lines().map(str::to_owned).collect()
}

/// A number that differs from commit to commit: where the mutants that take turns begin.
fn turn_of(root: &Path) -> usize {
    let head = shell::read(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root));
    // Without a commit nothing tells one run from the next, and each begins with the first.
    usize::from_str_radix(head.unwrap_or_default().get(..7).unwrap_or_default(), 16).unwrap_or(0)
}

/// The lists of all crates that have one.
fn lists(root: &Path) -> Result<Vec<List>> {
    let mut lists = Vec::new();
    for entry in std::fs::read_dir(root).with_context(|| format!("cannot list {}", root.display()))? {
        let folder = entry?.file_name().to_string_lossy().into_owned();
        let file = root.join(&folder).join(LIST);
        if file.is_file() {
            let text =
                std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            lists.push(List::parse(&folder, &text)?);
        }
    }
    lists.sort_by(|a, b| a.folder.cmp(&b.folder));
    Ok(lists)
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
            // No thread begins anything after an error.
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
