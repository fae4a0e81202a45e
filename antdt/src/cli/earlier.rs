//! `--resume DIR`: the settings of the job that is resumed stand in for those that are not given.

use std::collections::BTreeMap;
use std::path::Path;

use super::config::Origin;
use crate::job::JobSpec;
use crate::{master, resume};

/// Settings of one start of the program, or of the place where a job runs: the next start has its own.
const OF_ONE_START: [&str; 12] = [
    "resume",
    "job-id",
    "bind",
    "advertise",
    "master-port",
    "record",
    "quiet",
    "log",
    "log-format",
    "dry-run",
    "checkpoint-dir",
    "program",
];

/// A setting that is given, and those that meant something with its earlier value only.
const TOGETHER: [(&str, &[&str]); 4] = [
    ("sync", &["servers", "algorithm", "compress", "bucket-bytes"]),
    ("nproc-per-node", &["straggler", "device", "min-workers"]),
    ("workload", &["optimizer", "learning-rate"]),
    ("optimizer", &["learning-rate"]),
];

/// Takes what is not given from the job that `spec` resumes, if that left its settings; what it left that cannot be read is told by
/// whoever resumes it. A job that is resumed from its report or run directory goes on in it.
pub(super) fn apply(spec: &mut JobSpec, origins: &mut BTreeMap<&'static str, Origin>) {
    let Some(dir) = spec.resume.clone() else { return };
    let Some(before) = settings(&dir) else { return };
    let own = |key: &str| OF_ONE_START.contains(&key) || key == "report-dir" || key == "run-dir";
    let (ours, theirs) = (spec.to_json(), before.to_json());
    let goes_with = |key: &str| {
        let changed = |of: &str| origins.contains_key(of) && ours.get(of) != theirs.get(of);
        TOGETHER.iter().any(|(of, keys)| keys.contains(&key) && changed(of))
    };
    let taken: Vec<&'static str> = JobSpec::keys()
        .filter(|key| !own(key) && !origins.contains_key(key) && !goes_with(key))
        .filter(|key| ours.get(*key) != theirs.get(*key))
        .collect();
    for key in taken {
        // It was a value of the same setting; one that this version does not have stays what it is.
        if spec.put(key, &theirs[key]).is_ok() {
            origins.insert(key, Origin::Resumed(dir.clone()));
        }
    }
    if !origins.contains_key("report-dir") && !origins.contains_key("run-dir") {
        if dir.join("run").join(resume::CHECKPOINTS).is_dir() {
            spec.report_dir = Some(dir.clone());
            origins.insert("report-dir", Origin::Resumed(dir));
        } else if dir.join(resume::CHECKPOINTS).is_dir() {
            spec.run_dir = Some(dir.clone());
            origins.insert("run-dir", Origin::Resumed(dir));
        }
    }
}

/// Those of a job that ended without a word, else those of the newest checkpoint.
fn settings(dir: &Path) -> Option<JobSpec> {
    master::left_settings(dir).or_else(|| resume::settings(dir))
}
