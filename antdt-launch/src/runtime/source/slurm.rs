//! Hosts of a Slurm job that have lost their program: a step of its own starts it there again.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::Stdio;
use std::sync::Arc;

use antdt_core::registry::Setting;
use antdt_rt::CancellationToken;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::{HostEvent, HostRequest, HostSource, SourceContext, SourceEntry, SourceParts};

/// Variable with the number of the job of which this process is a part.
const JOB: &str = "SLURM_JOB_ID";

/// The source's line in the registry.
pub(super) const ENTRY: SourceEntry = SourceEntry {
    name: "slurm",
    about: "steps of the Slurm job that this process is of, on hosts of it that have lost their program",
    settings: || vec![Setting::new("job", "", "number of the Slurm job; of this process if none is given")],
    build: |settings| {
        let given: String = settings.value("job", String::new(), "a number")?;
        let text = if given.is_empty() { std::env::var(JOB).unwrap_or_default() } else { given };
        let job: u64 = text
            .parse()
            .map_err(|_| settings.refuse("job", text, "the number of a Slurm job, or left out within one"))?;
        let factory = move |context| -> Result<Box<dyn HostSource>, _> {
            Ok(Box::new(SlurmSteps { job, context, steps: BTreeMap::new(), tasks: JoinSet::new() }))
        };
        Ok(SourceParts { names: |_| None, factory: Arc::new(factory) })
    },
};

/// See the module.
struct SlurmSteps {
    job: u64,
    context: SourceContext,
    /// What ends each step that runs.
    steps: BTreeMap<String, CancellationToken>,
    /// A step ends with its task.
    tasks: JoinSet<()>,
}

impl HostSource for SlurmSteps {
    fn asked(&self) -> &'static str {
        "Slurm is asked for a step there"
    }

    fn start(&mut self, host: &HostRequest) {
        // Those that have ended.
        while self.tasks.try_join_next().is_some() {}
        let (events, name) = (Arc::clone(&self.context.events), host.name.clone());
        let ended = move |why| events(HostEvent::Ended { host: name, why, is_dead: false });
        match self.command(host).spawn() {
            Ok(step) => {
                let stop = CancellationToken::new();
                self.steps.insert(host.name.clone(), stop.clone());
                self.tasks.spawn(async move { ended(watch(step, stop).await) });
            }
            Err(error) => ended(format!("srun cannot be started: {error}")),
        }
    }

    fn stop(&mut self, name: &str) {
        if let Some(step) = self.steps.remove(name) {
            step.cancel();
        }
    }
}

/// Waits for the end of a step, which comes with `stop` at the latest. Returns how it ended.
async fn watch(mut step: Child, stop: CancellationToken) -> String {
    let status = tokio::select! {
        status = step.wait() => status,
        () = stop.cancelled() => {
            let _ = step.start_kill();
            step.wait().await
        }
    };
    status.map_or_else(|error| error.to_string(), |status| format!("its step has ended, {status}"))
}

impl SlurmSteps {
    fn command(&self, host: &HostRequest) -> Command {
        let own = std::env::current_exe().unwrap_or_else(|_| "antdt".into());
        let mut command = Command::new("srun");
        let (job, HostRequest { name, slots }) = (self.job.to_string(), host);
        command
            .args(["--jobid", &job, "--overlap", "--nodes", "1", "--ntasks", "1", "--nodelist", name])
            .arg(own)
            .args(["join", &self.context.endpoint, "--host-name", name])
            .args(["--nproc-per-node", &slots.to_string()]);
        match &self.context.secret {
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
