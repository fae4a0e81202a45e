//! The folder of a job that names none: `runs/JOB` below the working directory, so that its report and its checkpoints are kept, and
//! mixed with those of no other job.

use std::path::Path;
use std::time::SystemTime;

use crate::job::JobSpec;

/// Folder with the folders of jobs.
const RUNS: &str = "runs";

/// Names the job and its folder, unless the settings say where something of it is kept. Jobs of one second differ by the `process`.
pub(super) fn apply(spec: &mut JobSpec, now: SystemTime, process: u32) {
    let named = [&spec.report_dir, &spec.run_dir, &spec.checkpoint_dir, &spec.resume];
    if named.into_iter().any(Option::is_some) {
        return;
    }
    let time = humantime::format_rfc3339_seconds(now).to_string().replace(['-', ':'], "");
    let words = spec.program.as_deref().unwrap_or_default();
    // A script rather than what runs it.
    let named = words.iter().find(|word| word.ends_with(".py")).or(words.first());
    let program = named.and_then(|word| Path::new(word).file_stem());
    let what = program.map_or_else(|| spec.workload.clone().into(), |name| name.to_string_lossy());
    let job = spec.job_id.get_or_insert_with(|| format!("{what}-{time}-{process}"));
    spec.report_dir = Some(Path::new(RUNS).join(crate::run_dir::file_name(job)));
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn folder(mut spec: JobSpec) -> (Option<String>, Option<PathBuf>) {
        apply(&mut spec, UNIX_EPOCH + Duration::from_secs(1_800_000_000), 7);
        (spec.job_id, spec.report_dir)
    }

    #[test]
    fn a_job_that_names_no_folder_has_one_of_its_own() {
        let text = |job: &str| (Some(job.to_owned()), Some(Path::new("runs").join(job)));
        assert_eq!(folder(JobSpec::default()), text("deepfm-20270115T080000Z-7"));
        let program = Some(["python3", "-u", "my/train.py", "x"].map(str::to_owned).to_vec());
        assert_eq!(folder(JobSpec { program, ..JobSpec::default() }), text("train-20270115T080000Z-7"));
        let named = JobSpec { job_id: Some("a/b".to_owned()), ..JobSpec::default() };
        assert_eq!(folder(named), (Some("a/b".to_owned()), Some("runs/a_b".into())));
    }

    #[test]
    fn a_job_that_names_a_folder_keeps_its_files_there_alone() {
        let spec = JobSpec { checkpoint_dir: Some("c".into()), ..JobSpec::default() };
        assert_eq!(folder(spec), (None, None));
    }
}
