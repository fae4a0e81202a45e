//! What Slurm tells a program that `srun` starts on several hosts, as settings of a job: `srun antdt run …` needs none of its own.
//!
//! Source: the section "Output environment variables" of srun(1).

use std::path::{Path, PathBuf};

use super::CliError;

/// First of the ports at which hosts of a step meet, and how many there are: each job and step of a host has another one.
const PORTS: (u64, u64) = (15_000, 10_000);

/// Folder with the folders of jobs.
const RUNS: &str = "runs";

/// A step of a job of Slurm, by the variables of one of its tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlurmStep {
    job: u64,
    step: u64,
    hosts: u32,
    tasks: u32,
    /// Position of this host.
    rank: u32,
    /// Name of this host, and of the first one.
    name: String,
    first: String,
    /// Folder in which the job was submitted.
    folder: PathBuf,
    /// Whether the job was started before, and put back into the queue.
    again: bool,
}

impl SlurmStep {
    /// Reads the variables; `None` if `srun` has not started this process.
    pub(crate) fn of(env: &impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| env(name).and_then(|text| text.parse::<u64>().ok());
        let (job, step) = (number("SLURM_JOB_ID")?, number("SLURM_STEP_ID")?);
        let small = |name: &str| number(name).and_then(|number| u32::try_from(number).ok());
        let hosts = small("SLURM_STEP_NUM_NODES").unwrap_or(1);
        let tasks = small("SLURM_STEP_NUM_TASKS").unwrap_or(hosts);
        let name = env("SLURMD_NODENAME").unwrap_or_default();
        let first =
            env("SLURM_STEP_NODELIST").and_then(|list| first_of(&list)).unwrap_or_else(|| name.clone());
        Some(Self {
            job,
            step,
            hosts,
            tasks,
            rank: small("SLURM_NODEID").unwrap_or_default(),
            name,
            first,
            folder: env("SLURM_SUBMIT_DIR").map_or_else(|| PathBuf::from("."), PathBuf::from),
            again: number("SLURM_RESTART_COUNT").is_some_and(|count| count > 0),
        })
    }

    /// Returns the settings that follow, each with the variable that it follows from.
    ///
    /// # Errors
    /// If there are several tasks on a host: each would be the whole job of that host.
    pub(super) fn settings(&self) -> Result<Vec<(&'static str, &'static str, String)>, CliError> {
        let Self { hosts, tasks, .. } = self;
        if tasks > hosts {
            return Err(CliError::new(format!(
                "srun started {tasks} tasks on {hosts} hosts, and antdt starts the workers of a host itself; \
                 give srun --ntasks-per-node=1, and antdt --nproc-per-node with the workers of a host"
            )));
        }
        if *hosts == 1 {
            return Ok(Vec::new());
        }
        let (first, count) = PORTS;
        let port = first + (self.job.wrapping_mul(97).wrapping_add(self.step)) % count;
        Ok(vec![
            ("nnodes", "SLURM_STEP_NUM_NODES", self.hosts.to_string()),
            ("node-rank", "SLURM_NODEID", self.rank.to_string()),
            ("rdzv-endpoint", "SLURM_STEP_NODELIST", format!("{}:{port}", self.first)),
            ("rdzv-secret-file", "SLURM_SUBMIT_DIR", self.secret().display().to_string()),
            ("host-name", "SLURMD_NODENAME", self.name.clone()),
            ("host-source", "SLURM_JOB_ID", "slurm".to_owned()),
        ])
    }

    /// Returns whether the step is of several hosts.
    pub(crate) const fn has_hosts(&self) -> bool {
        self.hosts > 1
    }

    /// Returns the file with the secret of the job's hosts, unless its user names one.
    pub(crate) fn secret(&self) -> PathBuf {
        self.folder.join(format!(".antdt-slurm-{}.{}", self.job, self.step))
    }

    /// Returns the folder of the job, unless its user names one: the same when Slurm starts it again. `None` for a further job of the
    /// step, as in a shell that srun has started: that has a folder of its own.
    pub(super) fn runs(&self, is_there: impl Fn(&Path) -> bool) -> Option<PathBuf> {
        let step = if self.step == 0 { String::new() } else { format!(".{}", self.step) };
        let folder = Path::new(RUNS).join(format!("slurm-{}{step}", self.job));
        (self.again || !is_there(&folder)).then_some(folder)
    }

    /// Returns whether the job was started before, and put back into the queue.
    pub(crate) const fn is_again(&self) -> bool {
        self.again
    }
}

/// Returns what is said of a job that is of one host of an allocation with several, because no `srun` has started it on each.
pub(crate) fn idle_hosts(env: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let hosts: u32 = env("SLURM_JOB_NUM_NODES")?.parse().ok().filter(|hosts| *hosts > 1)?;
    env("SLURM_STEP_ID").is_none().then(|| {
        format!(
            "the Slurm job has {hosts} hosts, and this one alone trains; `srun antdt run ...` trains on all"
        )
    })
}

/// The first host of a list such as `n[01-03,07],m5`.
fn first_of(list: &str) -> Option<String> {
    let mut name = String::new();
    let mut rest = list;
    while let Some((before, ranges)) = rest.split_once('[') {
        // A comma before it ends the first host.
        if before.contains(',') {
            break;
        }
        let (ranges, after) = ranges.split_once(']')?;
        let number = ranges.split(['-', ',']).next()?;
        name = name + before + number;
        rest = after;
    }
    name += rest.split(',').next()?;
    Some(name).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(variables: &[(&str, &str)]) -> Option<SlurmStep> {
        let find = |name: &str| variables.iter().rev().find(|(known, _)| *known == name);
        SlurmStep::of(&|name: &str| find(name).map(|(_, text)| (*text).to_owned()))
    }

    /// As srun of Slurm 22.05 sets them, on the second of three hosts.
    const SECOND: [(&str, &str); 8] = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_NODES", "3"),
        ("SLURM_STEP_NUM_TASKS", "3"),
        ("SLURM_STEP_NODELIST", "n[1-3]"),
        ("SLURM_NODEID", "1"),
        ("SLURMD_NODENAME", "n2"),
        ("SLURM_SUBMIT_DIR", "/shared/a"),
    ];

    #[test]
    fn task_of_a_step_over_hosts_needs_no_setting_of_its_own() {
        let settings = step(&SECOND).unwrap().settings().unwrap();
        let short: Vec<String> = settings.iter().map(|(name, _, text)| format!("{name}={text}")).collect();
        assert_eq!(
            short,
            [
                "nnodes=3",
                "node-rank=1",
                "rdzv-endpoint=n1:15679",
                "rdzv-secret-file=/shared/a/.antdt-slurm-7.0",
                "host-name=n2",
                "host-source=slurm"
            ]
        );
        let next = [&SECOND[..], &[("SLURM_STEP_ID", "1"), ("SLURM_RESTART_COUNT", "2")]].concat();
        let next = step(&next).unwrap();
        assert_eq!(next.settings().unwrap()[2].2, "n1:15680");
        assert!(next.is_again());
        assert_eq!(next.runs(|_| true), Some(PathBuf::from("runs/slurm-7.1")));
        let first = step(&SECOND).unwrap();
        assert_eq!(first.runs(|_| false), Some(PathBuf::from("runs/slurm-7")));
        assert_eq!(first.runs(|_| true), None);
    }

    #[test]
    fn process_that_srun_did_not_start_or_on_one_host_alone_is_told_nothing() {
        assert_eq!(step(&SECOND[..1]), None);
        let one = [&SECOND[..], &[("SLURM_STEP_NUM_NODES", "1"), ("SLURM_STEP_NUM_TASKS", "1")]].concat();
        assert_eq!(step(&one).unwrap().settings(), Ok(Vec::new()));
    }

    #[test]
    fn batch_script_that_uses_one_of_several_hosts_is_told_so() {
        let said = |hosts: &str, step: Option<&str>| {
            idle_hosts(&|name| match name {
                "SLURM_JOB_NUM_NODES" => Some(hosts.to_owned()),
                "SLURM_STEP_ID" => step.map(str::to_owned),
                _ => None,
            })
        };
        assert!(said("3", None).unwrap().contains("has 3 hosts"));
        assert_eq!((said("3", Some("0")), said("1", None), idle_hosts(&|_| None)), (None, None, None));
    }

    #[test]
    fn several_tasks_on_a_host_are_refused_with_the_remedy() {
        let twice = [&SECOND[..], &[("SLURM_STEP_NUM_TASKS", "6")]].concat();
        let error = step(&twice).unwrap().settings().unwrap_err().to_string();
        assert!(error.contains("6 tasks on 3 hosts") && error.contains("--ntasks-per-node=1"), "{error}");
    }

    #[test]
    fn first_host_of_a_list_is_found_however_it_is_written() {
        for (list, first) in [
            ("n1", "n1"),
            ("n1,n2", "n1"),
            ("n[1-3]", "n1"),
            ("n[07,09-12]", "n07"),
            ("n[01-03],m[1-2]", "n01"),
            ("a,n[1-2]", "a"),
            ("rack[1-2]n[3-4]", "rack1n3"),
            ("gpu-[10-11].local", "gpu-10.local"),
        ] {
            assert_eq!(first_of(list).as_deref(), Some(first), "{list}");
        }
        assert_eq!((first_of(""), first_of("n[1")), (None, None));
    }
}
