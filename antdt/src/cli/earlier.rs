//! `--resume DIR`: the settings of the job that is resumed stand in for those that are not given.

use std::path::Path;

use serde_json::Value as Json;

use super::CliError;
use super::config::{Origin, Origins, part_setting};
use crate::job::JobSpec;
use crate::report::FILES;
use crate::run_dir::JOB;
use crate::{master, resume};

/// Settings of one start of the program, or of the place where a job runs: the next start has its own.
const OF_ONE_START: [&str; 31] = [
    "resume",
    "force",
    "job-id",
    "bind",
    "advertise",
    "master-port",
    "port-range",
    "record",
    "http-addr",
    "tensorboard",
    "trace-file",
    "quiet",
    "log",
    "log-format",
    "log-dir",
    "redirects",
    "tee",
    "local-ranks-filter",
    "nnodes",
    "node-rank",
    "rdzv-endpoint",
    "rdzv-secret-file",
    "insecure",
    "data-plane",
    "rdzv-timeout",
    "local-addr",
    "host-name",
    "host-source",
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

/// Takes what is not given from the job that `spec` resumes, if that left its settings; an unreadable file of it is
/// reported where the job is resumed. A job that is resumed from its report or run directory goes on in it.
pub(super) fn apply(spec: &mut JobSpec, origins: &mut Origins) {
    let Some(dir) = spec.resume.clone() else { return };
    let Some(before) = settings(&dir) else { return };
    take(spec, origins, &dir, &before);
    if origins.has("report-dir") || origins.has("run-dir") {
        return;
    }
    let place = resume::place(&dir);
    let is_run_dir = |dir: &Path| [resume::CHECKPOINTS, JOB].iter().any(|name| dir.join(name).exists());
    if is_run_dir(&dir.join("run")) || dir.join(FILES[0]).is_file() {
        spec.report_dir = Some(dir.clone());
        origins.insert("report-dir", Origin::Resumed(dir.clone()));
    } else if is_run_dir(&dir) {
        spec.run_dir = Some(dir.clone());
        origins.insert("run-dir", Origin::Resumed(dir.clone()));
    } else {
        return;
    }
    if !place.starts_with(&dir) && !origins.has("checkpoint-dir") {
        spec.checkpoint_dir = Some(place);
        origins.insert("checkpoint-dir", Origin::Resumed(dir));
    }
}

/// Takes what is not given from the settings of the job `before`.
fn take(spec: &mut JobSpec, origins: &mut Origins, dir: &Path, before: &JobSpec) {
    let own = |key: &str| OF_ONE_START.contains(&key) || key == "report-dir" || key == "run-dir";
    let (ours, theirs) = (spec.to_json(), before.to_json());
    let goes_with = |key: &str| {
        let changed = |of: &str| origins.has(of) && ours.get(of) != theirs.get(of);
        TOGETHER.iter().any(|(of, keys)| keys.contains(&key) && changed(of))
    };
    let taken: Vec<&'static str> = JobSpec::keys()
        .filter(|key| !own(key) && !origins.has(key) && !goes_with(key))
        .filter(|key| ours.get(*key) != theirs.get(*key))
        .collect();
    for key in taken {
        // It was a value of the same setting; one that this version does not have stays what it is.
        if spec.put(key, &theirs[key]).is_ok() {
            for name in names(key, &theirs[key]) {
                origins.insert(name, Origin::Resumed(dir.to_owned()));
            }
        }
    }
}

/// The name of the setting, if it has a value, and the names of the settings of its parts.
fn names(key: &str, value: &Json) -> Vec<String> {
    let Json::Object(parts) = value else { return vec![key.to_owned()] };
    let of_part = |(part, value): (&String, &Json)| match value {
        Json::Object(settings) => settings.keys().map(|name| part_setting(key, part, name)).collect(),
        Json::Null => Vec::new(),
        _ => vec![key.to_owned()],
    };
    parts.iter().flat_map(of_part).collect()
}

/// Whether there is a job to resume in this folder.
///
/// # Errors
/// If there is neither one that ended without a word nor a checkpoint.
pub(super) fn check(dir: &Path) -> Result<(), CliError> {
    if settings(dir).is_some() {
        return Ok(());
    }
    resume::check(dir).map_err(|error| CliError::new(error.to_string()))
}

/// Those of a job that ended without a word, else those of the newest checkpoint.
fn settings(dir: &Path) -> Option<JobSpec> {
    master::left_settings(dir).or_else(|| resume::settings(dir))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The policy, the drain of `nd`, and the origins of both, after `given` settings resume a job with tables.
    fn resumed(given: &[(&str, Json)]) -> [String; 4] {
        let mut before = JobSpec::default();
        before.put("policy", &json!({ "name": "dd", "nd": { "drain": "7s" } })).unwrap();
        let (mut spec, mut origins) = (JobSpec::default(), Origins::default());
        for (key, value) in given {
            spec.put(key, value).unwrap();
            // A table that stands alone gives the part, too.
            let given = names(key, value).into_iter().chain([(*key).to_owned()]);
            given.for_each(|name| origins.insert(name, Origin::Flag((*key).to_owned())));
        }
        take(&mut spec, &mut origins, Path::new("before"), &before);
        let texts = spec.texts();
        let [policy, drain] = ["policy", "policy.nd.drain"];
        let text = |name: &str| texts.get(name).cloned().unwrap_or_default();
        [text(policy), text(drain), origins.of(policy).to_string(), origins.of(drain).to_string()]
    }

    #[test]
    fn settings_of_parts_are_taken_with_the_part_and_say_so() {
        let origin = "job resumed from before";
        assert_eq!(resumed(&[]), ["dd", "7s", origin, origin]);
        assert_eq!(resumed(&[("policy", json!("none"))]), ["none", "", "flag policy", "default"]);
        let table = json!({ "nd": { "drain": "9s" } });
        assert_eq!(resumed(&[("policy", table)]), ["nd", "9s", "flag policy", "flag policy"]);
    }
}
