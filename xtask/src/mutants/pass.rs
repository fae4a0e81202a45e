//! Which mutants come first when there is no time for all: those in files that changed since all were caught.
//!
//! [`PASS`] names the commit at which that was. It is written by a run of all mutants on a tree without changes, and
//! committed like any file.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// Where the commit is kept, from the root.
const PASS: &str = "xtask/mutants.pass";

/// What changed since all mutants were caught.
#[derive(Debug)]
pub(super) struct Changed {
    /// Files from the root; `None` if that is not known, and all count as changed.
    files: Option<BTreeSet<String>>,
    /// A number that differs from commit to commit: where the others begin.
    pub(super) turn: u64,
}

impl Changed {
    /// Whether this file changed.
    pub(super) fn has(&self, file: &str) -> bool {
        self.files.as_ref().is_none_or(|files| files.contains(file))
    }
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    shell::read(Command::new("git").args(arguments).current_dir(root))
}

/// What changed since the commit that is kept, in the working tree too.
pub(super) fn changed(root: &Path) -> Result<Changed> {
    let head = git(root, &["rev-parse", "HEAD"])?;
    let turn = u64::from_str_radix(head.get(..15).unwrap_or_default(), 16).unwrap_or(0);
    // Without the file, or in a clone that is not deep enough, nobody knows.
    let files = std::fs::read_to_string(root.join(PASS)).ok().and_then(|pass| {
        let names = git(root, &["diff", "--name-only", pass.trim()]).ok()?;
        Some(names.lines().map(str::to_owned).collect())
    });
    Ok(Changed { files, turn })
}

/// Those that changed, in their order, then the others from the `turn`-th on. Returns the number of the first, too.
pub(super) fn order<T>(all: Vec<T>, is_changed: impl Fn(&T) -> bool, turn: u64) -> (Vec<T>, usize) {
    let (mut first, mut others): (Vec<T>, Vec<T>) = all.into_iter().partition(is_changed);
    let changed = first.len();
    if !others.is_empty() {
        let turn = turn % others.len() as u64;
        others.rotate_left(usize::try_from(turn).expect("below a length"));
    }
    first.append(&mut others);
    (first, changed)
}

/// Keeps the present commit as one at which all were caught, unless the tree differs from it.
pub(super) fn keep(root: &Path) -> Result<()> {
    if git(root, &["status", "--porcelain"]).is_ok_and(|changes| changes.is_empty()) {
        let head = git(root, &["rev-parse", "HEAD"])?;
        std::fs::write(root.join(PASS), head).with_context(|| format!("cannot write {PASS}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_comes_first_and_the_others_take_turns() {
        let (order_of_five, changed) = order(vec![1, 2, 3, 4, 5], |number| number % 2 == 0, 4);
        assert_eq!((order_of_five, changed), (vec![2, 4, 3, 5, 1], 2));
        assert_eq!(order(vec![1], |_| true, 7), (vec![1], 1));
        let begins: BTreeSet<i32> = (0..3).map(|turn| order(vec![1, 2, 3], |_| false, turn).0[0]).collect();
        assert_eq!(begins.len(), 3);
    }

    #[test]
    fn without_a_commit_that_is_known_everything_changed() {
        assert!(Changed { files: None, turn: 0 }.has("a"));
        let changed = Changed { files: Some(BTreeSet::from(["a".to_owned()])), turn: 0 };
        assert!(changed.has("a") && !changed.has("b"));
    }
}
