//! Hosts of a Slurm job that have lost `antdt`: a step of its own starts it there again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use antdt_launch::runtime::join::HostWatch;
use antdt_rt::CancellationToken;
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// How long a host may be away before it is helped: it comes back by itself if only its connection broke.
const PATIENCE: Duration = Duration::from_secs(2);

/// Pause between two steps on one host, which doubles with each in vain, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// How long a step may take until the host is there.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Decides on which hosts a step is started. Pure.
#[derive(Debug)]
struct StepKeeper {
    hosts: BTreeMap<String, Kept>,
}

/// A host of the job.
#[derive(Debug, Default)]
struct Kept {
    /// Since when it is away.
    away: Option<Duration>,
    /// Steps in vain since it was there last.
    in_vain: u32,
    /// Not before then.
    not_before: Duration,
    /// When the step began that is to bring it back.
    step: Option<Duration>,
}

/// What is to be done for a host.
#[derive(Debug, Clone, PartialEq, Eq)]
enum StepOrder {
    Start(String),
    /// It has come to nothing in time.
    Stop(String),
}

impl StepKeeper {
    fn new(hosts: impl IntoIterator<Item = String>) -> Self {
        Self { hosts: hosts.into_iter().map(|name| (name, Kept::default())).collect() }
    }

    /// Looks at which hosts are there.
    fn look(&mut self, now: Duration, there: &BTreeSet<String>) -> Vec<StepOrder> {
        let mut orders = Vec::new();
        for (name, host) in &mut self.hosts {
            if there.contains(name) {
                (host.away, host.in_vain) = (None, 0);
                continue;
            }
            let away = *host.away.get_or_insert(now);
            match host.step {
                Some(began) if now.saturating_sub(began) >= START_LIMIT => {
                    orders.push(StepOrder::Stop(name.clone()));
                }
                None if now.saturating_sub(away) >= PATIENCE && now >= host.not_before => {
                    host.step = Some(now);
                    orders.push(StepOrder::Start(name.clone()));
                }
                Some(_) | None => {}
            }
        }
        orders
    }

    /// The step of a host has ended.
    fn ended(&mut self, now: Duration, name: &str) {
        let Some(host) = self.hosts.get_mut(name) else { return };
        host.step = None;
        let (least, most) = PAUSE;
        host.not_before = now + most.min(least * 2_u32.saturating_pow(host.in_vain.min(9)));
        host.in_vain += 1;
    }
}

/// What a step runs.
#[derive(Debug, Clone)]
pub(crate) struct StepProgram {
    /// Number of the Slurm job.
    pub(crate) job: u64,
    /// Where the hosts of the job meet.
    pub(crate) endpoint: String,
    /// File with the job's secret; `None` without one.
    pub(crate) secret: Option<PathBuf>,
}

/// Starts a step on each host that is away, until the job is stopped or this is dropped.
pub(crate) async fn keep(
    watch: HostWatch,
    program: StepProgram,
    stop: CancellationToken,
    say: impl Fn(&str),
) {
    let slots: BTreeMap<String, u32> = watch.hosts().into_iter().collect();
    let mut keeper = StepKeeper::new(slots.keys().cloned());
    let mut steps: BTreeMap<String, Child> = BTreeMap::new();
    let began = Instant::now();
    while !stop.is_cancelled() {
        watch.changed().await;
        let over: Vec<String> = steps
            .iter_mut()
            .filter_map(|(name, step)| step.try_wait().ok().flatten().map(|_| name.clone()))
            .collect();
        for name in over {
            steps.remove(&name);
            keeper.ended(began.elapsed(), &name);
        }
        let there = watch.hosts().into_iter().map(|(name, _)| name).collect();
        for order in keeper.look(began.elapsed(), &there) {
            match order {
                StepOrder::Start(name) => {
                    say(&format!("host {name} is away; Slurm is asked for a step there"));
                    match program.command(&name, slots[&name]).spawn() {
                        Ok(step) => drop(steps.insert(name, step)),
                        Err(error) => {
                            say(&format!("srun cannot be started: {error}"));
                            keeper.ended(began.elapsed(), &name);
                        }
                    }
                }
                StepOrder::Stop(name) => {
                    if let Some(step) = steps.get_mut(&name) {
                        let _ = step.start_kill();
                    }
                }
            }
        }
    }
}

impl StepProgram {
    fn command(&self, host: &str, workers: u32) -> Command {
        let own = std::env::current_exe().unwrap_or_else(|_| "antdt".into());
        let mut command = Command::new("srun");
        let job = self.job.to_string();
        command
            .args(["--jobid", &job, "--overlap", "--nodes", "1", "--ntasks", "1", "--nodelist", host])
            .arg(own)
            .args(["join", &self.endpoint, "--host-name", host, "--nproc-per-node", &workers.to_string()]);
        match &self.secret {
            Some(file) => command.arg("--rdzv-secret-file").arg(file),
            None => command.arg("--insecure"),
        };
        // What Slurm said of the step of this process is not meant for the other one.
        let of_this_step = |name: &OsString| {
            let name = name.to_string_lossy();
            name.starts_with("SLURM_") && name != "SLURM_CONF"
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| of_this_step(name)) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn start(name: &str) -> Vec<StepOrder> {
        vec![StepOrder::Start(name.to_owned())]
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn host_that_stays_away_gets_a_step_and_one_that_comes_back_none() {
        let mut keeper = StepKeeper::new(set(&["a", "b"]));
        assert_eq!(keeper.look(SECOND, &set(&["a", "b"])), []);
        assert_eq!(keeper.look(2 * SECOND, &set(&["a"])), []);
        assert_eq!(keeper.look(3 * SECOND, &set(&["a", "b"])), []);
        assert_eq!(keeper.look(4 * SECOND, &set(&["a"])), []);
        assert_eq!(keeper.look(4 * SECOND + PATIENCE, &set(&["a"])), start("b"));
        assert_eq!(keeper.look(5 * SECOND + PATIENCE, &set(&["a"])), [], "one at a time");
        assert_eq!(keeper.look(6 * SECOND + PATIENCE, &set(&["a", "b"])), []);
    }

    #[test]
    fn steps_in_vain_follow_each_other_ever_later_and_one_that_hangs_is_stopped() {
        let mut keeper = StepKeeper::new(set(&["a"]));
        let (mut now, mut pauses) = (Duration::ZERO, Vec::new());
        let mut ended = now;
        for _ in 0..8 {
            while keeper.look(now, &set(&[])).is_empty() {
                now += SECOND;
            }
            pauses.push((now - ended).as_secs());
            ended = now + SECOND;
            keeper.ended(ended, "a");
            now = ended;
        }
        assert_eq!(pauses, [2, 2, 4, 8, 16, 32, 60, 60]);
        while keeper.look(now, &set(&[])).is_empty() {
            now += SECOND;
        }
        assert_eq!(keeper.look(now + START_LIMIT, &set(&[])), [StepOrder::Stop("a".to_owned())]);
        // Once it was there, it is helped at once again.
        keeper.look(now + START_LIMIT, &set(&["a"]));
        keeper.ended(now + START_LIMIT, "a");
        now += START_LIMIT + PATIENCE;
        assert_eq!(keeper.look(now, &set(&[])), []);
        assert_eq!(keeper.look(now + PATIENCE, &set(&[])), start("a"));
    }
}
