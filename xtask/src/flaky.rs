//! Flaky tests: nextest saw them fail, ran them once more, and saw them pass. A busy machine causes that, and so does a race.

use std::collections::BTreeSet;

/// How nextest is told to run all tests, whatever fails, and those that fail once more.
pub(crate) const ONCE_MORE: [&str; 3] = ["--no-fail-fast", "--retries", "1"];

/// Finds their names in what nextest printed: `FLAKY 2/2 [   0.028s] (16/30) antdt-monitor detector::tests::name`.
pub(crate) fn find(printed: &str) -> BTreeSet<&str> {
    let flaky = printed.lines().filter_map(|line| line.trim().strip_prefix("FLAKY "));
    flaky.filter_map(|rest| Some(rest.split_once(") ")?.1.trim())).collect()
}

/// One line for each, after a line with their number; nothing without any.
pub(crate) fn list(flaky: &BTreeSet<&str>) -> String {
    if flaky.is_empty() {
        return String::new();
    }
    let names: String = flaky.iter().map(|name| format!("\n    {name}")).collect();
    format!("\n  FLAKY, passed only when run again: {}{names}", flaky.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_passed_only_when_run_again_are_listed_once_each() {
        let printed = "    TRY 1 FAIL [   0.003s] ( 1/30) antdt one\n    TRY 2 PASS [   0.003s] ( 1/30) antdt one\n  \
                       FLAKY 2/2 [   0.003s] ( 1/30) antdt one\n        PASS [   0.003s] ( 2/30) antdt two\n────\n  \
                       FLAKY 2/2 [   0.003s] ( 1/30) antdt one\n";
        let flaky = find(printed);
        assert_eq!(flaky.iter().copied().collect::<Vec<_>>(), ["antdt one"]);
        assert_eq!(list(&flaky), "\n  FLAKY, passed only when run again: 1\n    antdt one");
        assert_eq!(list(&find("PASS [ 0.1s] (1/1) a b\n")), "");
    }
}
