//! Environment variables that look like the program's, and have no effect.

use antdt_core::text::nearest;
use antdt_launch::runtime::process::LAUNCHER_PID;

use crate::host;
use crate::job::{JobSetting, JobSpec};
use crate::node::NodeEnv;

/// Beginning of the names of all variables of the program.
const PREFIX: &str = "ANTDT_";

/// Variables that are no setting of a job and have an effect: the job file, what the master or a launcher tells a node, what a node says of
/// its device, and the folder of data sets that tests and benchmarks read.
const OTHERS: [&str; 13] = [
    "ANTDT_JOB",
    "ANTDT_DATA",
    host::DEVICE,
    host::BATCH_MAX,
    LAUNCHER_PID,
    NodeEnv::MASTER,
    NodeEnv::JOB,
    NodeEnv::BIND,
    NodeEnv::ADVERTISE,
    NodeEnv::NODE,
    NodeEnv::INCARNATION,
    NodeEnv::HOST,
    NodeEnv::FILE,
];

/// Beginnings of the names that the tests and tools of this repository use among themselves.
const OF_TESTS: [&str; 7] = [
    "ANTDT_TEST",
    "ANTDT_KILL_",
    "ANTDT_BENCH_",
    "ANTDT_SUITE_",
    "ANTDT_PLANTED",
    "ANTDT_COMMAND",
    "ANTDT_WRITE_EXAMPLES",
];

/// Returns a line for each of these environment variables that is named as those of the program are, and that nothing reads.
pub(crate) fn unread(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let settings: Vec<String> = JobSpec::SETTINGS.iter().filter_map(JobSetting::variable).collect();
    let known: Vec<&str> = settings.iter().map(String::as_str).chain(OTHERS).collect();
    let is_unread = |name: &String| {
        name.starts_with(PREFIX)
            && !known.contains(&name.as_str())
            && !OF_TESTS.iter().any(|prefix| name.starts_with(prefix))
    };
    let mut unread: Vec<String> = names.into_iter().filter(is_unread).collect();
    unread.sort_unstable();
    unread
        .into_iter()
        .map(|name| format!("the variable {name} has no effect; {}", remedy(&name, &settings)))
        .collect()
}

/// What to do about a variable that nothing reads.
fn remedy(name: &str, settings: &[String]) -> String {
    let bare = |name: &str| name.trim_start_matches(PREFIX).to_owned();
    let key = bare(name).to_lowercase().replace('_', "-");
    let mut without = JobSpec::SETTINGS.iter().filter(|setting| setting.variable().is_none());
    if let Some(setting) = without.find(|setting| setting.name == key) {
        return format!("give the flag {}", setting.flag());
    }
    let of_settings: Vec<String> = settings.iter().map(|name| bare(name)).collect();
    match nearest(&bare(name), &of_settings.iter().map(String::as_str).collect::<Vec<_>>()) {
        Some(near) => format!("did you mean {PREFIX}{near}?"),
        None => "`antdt config reference` lists those that have one".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(names: &[&str]) -> Vec<String> {
        unread(names.iter().map(|name| (*name).to_owned()))
    }

    #[test]
    fn variables_that_are_read_and_those_of_others_cause_no_word() {
        let settings = JobSpec::SETTINGS.iter().filter_map(JobSetting::variable);
        assert_eq!(unread(settings), Vec::<String>::new());
        let of_tests = ["ANTDT_TEST_MEMBER", "ANTDT_KILL_SEED", "ANTDT_PLANTED"];
        assert_eq!(said(&[&OTHERS[..], &of_tests, &["PATH", "ANTDTX", "MY_ANTDT_POLICI"]].concat()), [""; 0]);
    }

    #[test]
    fn a_variable_that_nothing_reads_is_named_once_with_the_remedy() {
        assert_eq!(
            said(&["ANTDT_WINDOW_OF_LIGHT", "ANTDT_RESUME", "ANTDT_POLICI", "ANTDT_NPROC-PER-NODE"]),
            [
                "the variable ANTDT_NPROC-PER-NODE has no effect; did you mean ANTDT_NPROC_PER_NODE?",
                "the variable ANTDT_POLICI has no effect; did you mean ANTDT_POLICY?",
                "the variable ANTDT_RESUME has no effect; give the flag --resume",
                "the variable ANTDT_WINDOW_OF_LIGHT has no effect; `antdt config reference` lists those that have one",
            ]
        );
    }
}
