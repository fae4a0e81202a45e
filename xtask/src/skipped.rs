//! Tests that could not run what they are for. Such a test prints why, and ends:
//!
//! - `skipped: REASON` where this machine could run it if REASON were seen to;
//! - `skipped, not here: REASON` where it could not, for want of hardware or of a system that has it.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

/// A test that said that it was skipped.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Skipped {
    /// Its crate, if the runner says it, and its name.
    pub(crate) test: String,
    pub(crate) why: String,
    /// Whether this machine could run it.
    pub(crate) could_run: bool,
}

impl Skipped {
    /// A step of which nothing was built, for want of packages that this machine can install.
    pub(crate) fn step(name: &str, why: &str) -> Self {
        Self { test: name.to_owned(), why: why.to_owned(), could_run: true }
    }
}

/// Finds them in what a test runner printed with the output of tests that passed: `cargo nextest run --success-output
/// final` or `cargo test -- --show-output`. In order of name, each reason of a test once.
pub(crate) fn find(printed: &str) -> Vec<Skipped> {
    let (mut test, mut found) = ("", Vec::new());
    for line in printed.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("PASS [") {
            // `PASS [   0.028s] (16/30) antdt-monitor detector::tests::name`
            let rest = rest.split_once(']').map_or(rest, |(_, rest)| rest).trim();
            test = match rest.split_once(") ") {
                Some((counts, name)) if counts.starts_with('(') => name.trim(),
                _ => rest,
            };
        } else if let Some(name) =
            line.strip_prefix("---- ").and_then(|line| line.strip_suffix(" stdout ----"))
        {
            test = name;
        } else {
            let said = |mark| line.strip_prefix(mark).map(str::to_owned);
            let (why, could_run) = match (said("skipped: "), said("skipped, not here: ")) {
                (Some(why), _) => (why, true),
                (None, Some(why)) => (why, false),
                (None, None) => continue,
            };
            found.push(Skipped { test: test.to_owned(), why, could_run });
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Refuses tests that were skipped although this machine could run them.
///
/// # Errors
/// If there are any.
pub(crate) fn refuse(skipped: &[Skipped]) -> Result<()> {
    let could = skipped.iter().filter(|skipped| skipped.could_run).count();
    ensure!(
        could == 0,
        "tests were skipped for {could} reasons that could be seen to on this machine; they are listed above"
    );
    Ok(())
}

/// One line for each, after a line with their number; nothing without any.
pub(crate) fn list(skipped: &[Skipped]) -> String {
    let mut tests: Vec<&str> = skipped.iter().map(|skipped| skipped.test.as_str()).collect();
    tests.dedup();
    let mut text = String::new();
    if !tests.is_empty() {
        let _ = write!(text, "of which {} skipped:", tests.len());
    }
    for Skipped { test, why, could_run } in skipped {
        let _ = write!(text, "\n    {test}: {why}{}", if *could_run { "" } else { " (not on this machine)" });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(test: &str, why: &str, could_run: bool) -> Skipped {
        Skipped { test: test.to_owned(), why: why.to_owned(), could_run }
    }

    #[test]
    fn skipped_tests_are_found_with_their_names_in_the_output_of_both_runners() {
        let nextest = "\
        PASS [   0.003s] (15/30) antdt-monitor detector::tests::one\n  stdout ───\n\n    running 1 test\n    \
            skipped: set ANTDT_DATA\n    skipped: set ANTDT_DATA\n    test detector::tests::one ... ok\n        \
            PASS [   0.028s] ( 3/30) antdt-collective::netns two\n  stderr ───\n    skipped, not here: no AVX-512\n        \
            PASS [   0.001s] (17/30) antdt three\n  stdout ───\n    nothing was skipped: all ran\n";
        let found = find(nextest);
        let (one, two) = ("antdt-monitor detector::tests::one", "antdt-collective::netns two");
        assert_eq!(found, [skipped(two, "no AVX-512", false), skipped(one, "set ANTDT_DATA", true)]);
        assert_eq!(
            list(&found),
            format!(
                "of which 2 skipped:\n    {two}: no AVX-512 (not on this machine)\n    {one}: set ANTDT_DATA"
            )
        );
        let cargo = "successes:\n\n---- detector::tests::one stdout ----\nskipped: no `ip`\n\n---- b stdout ----\nfine\n";
        assert_eq!(find(cargo), [skipped("detector::tests::one", "no `ip`", true)]);
        assert_eq!(list(&find("PASS [ 0.1s] a b\n")), "");
    }

    #[test]
    fn a_test_that_this_machine_could_have_run_is_refused_and_one_that_it_could_not_is_not() {
        assert!(refuse(&[]).is_ok());
        let hardware = skipped("two", "no AVX-512", false);
        assert!(refuse(std::slice::from_ref(&hardware)).is_ok());
        assert!(
            refuse(&[hardware.clone(), Skipped::step("rdma in a guest", "there is no emulator")]).is_err()
        );
        let error = refuse(&[hardware, skipped("one", "set ANTDT_DATA", true)]).unwrap_err().to_string();
        assert!(error.starts_with("tests were skipped for 1 reasons"), "{error}");
    }
}
