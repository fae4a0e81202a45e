//! A program of one's own that is `antdt` with other parts.

use std::process::ExitCode;

use antdt_collective::runtime::transport;
use antdt_controller::{Action, LauncherFactory, action, policy};
use antdt_core::InvalidValue;
use antdt_model::optimizer;
use antdt_monitor::rule;

use crate::cli::CliError;
use crate::master::{RecorderFactory, Seams, StoreFactory};
use crate::{command, workload};

/// Puts parts of the user's own into the `antdt` command, and runs it: every part is optional, and the `antdt` program is the
/// builder with none.
///
/// What is known by name (policies, actions, pace rules, optimizers, trainers, transports) is added to what ships: `--policy`,
/// `--pace-rule` and the other flags find it, and so do `antdt whatif`, `antdt sim`, recordings and `antdt policies`. What a job
/// has one of (launcher, ledger store, recorder) is replaced.
///
/// The nodes of a job are processes of the same program, so each of them has the same parts.
///
/// ```no_run
/// use antdt::JobBuilder;
/// use antdt::controller::policy::{Entry, Unmanaged};
///
/// fn main() -> std::process::ExitCode {
///     JobBuilder::new().policy(Entry::new("calm", "does nothing", |_| Ok(Box::new(Unmanaged)))).main()
/// }
/// ```
#[derive(Default)]
#[must_use = "a builder does nothing until `main` is called"]
pub struct JobBuilder {
    seams: Seams,
    /// The first part that could not be added.
    refused: Option<InvalidValue>,
}

impl JobBuilder {
    /// Returns a builder with the built-in parts only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a policy: a value of `--policy`.
    pub fn policy(self, entry: policy::Entry) -> Self {
        self.added(policy::REGISTRY.register(entry))
    }

    /// Adds an action, which a policy may then decide on. Masters and workers of a job must know the same ones.
    pub fn action(self, action: &'static dyn Action) -> Self {
        self.added(action::REGISTRY.register(action))
    }

    /// Adds a pace rule: a value of `--pace-rule`.
    pub fn pace_rule(self, entry: rule::Entry) -> Self {
        self.added(rule::REGISTRY.register(entry))
    }

    /// Adds an optimizer: the value of `--optimizer`.
    pub fn optimizer(self, entry: optimizer::Entry) -> Self {
        self.added(optimizer::REGISTRY.register(entry))
    }

    /// Adds a trainer: the value of `--workload`.
    pub fn trainer(self, entry: workload::Entry) -> Self {
        self.added(workload::REGISTRY.register(entry))
    }

    /// Adds a transport: the value of `--transport`.
    pub fn transport(self, entry: transport::Entry) -> Self {
        self.added(transport::REGISTRY.register(entry))
    }

    /// Starts the nodes of a job by another launcher than the processes of this machine.
    pub fn launcher(mut self, launcher: LauncherFactory) -> Self {
        self.seams.launcher = launcher;
        self.seams.again = None;
        self
    }

    /// Keeps the log of a job's ledger in a store; without one, it is kept in the run directory, as long as the job runs.
    pub fn ledger_store(mut self, store: StoreFactory) -> Self {
        self.seams.store = Some(store);
        self.seams.again = None;
        self
    }

    /// Records a job where `recorder` opens its recording, instead of in the file that `--record` names.
    pub fn recorder(mut self, recorder: RecorderFactory) -> Self {
        self.seams.recorder = recorder;
        self.seams.again = None;
        self
    }

    /// Reads the command line of this process and carries it out.
    ///
    /// A part whose name is taken is refused in one line, with exit code 2.
    pub fn main(self) -> ExitCode {
        match self.refused {
            None => command::main(self.seams),
            Some(error) => {
                command::complain(&error);
                ExitCode::from(CliError::EXIT_CODE)
            }
        }
    }

    fn added(mut self, added: Result<(), InvalidValue>) -> Self {
        self.refused = self.refused.or(added.err());
        self
    }
}

impl std::fmt::Debug for JobBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobBuilder").field("refused", &self.refused).finish_non_exhaustive()
    }
}
