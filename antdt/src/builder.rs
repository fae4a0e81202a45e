//! [`JobBuilder`]: builds a program that is `antdt` with other or additional parts.

use std::process::ExitCode;
use std::sync::Arc;

use antdt_collective::runtime::process_group::Entry as Library;
use antdt_collective::runtime::transport::Entry as Transport;
use antdt_controller::{Action, action, policy};
use antdt_core::{Connections, InvalidValue, StreamWrapper};
use antdt_job::mode;
use antdt_launch::runtime as launcher;
use antdt_model::optimizer;
use antdt_monitor::rule;
use antdt_rt::{Packing, TraceSink};
use antdt_shard::{BoxStore, DatasetSpec};

use crate::cli::CliError;
use crate::job::JobSpec;
use crate::master::{NoteSink, PartError, Seams};
use crate::worker::plane::{ModeParts, PlaneFactory, Planes};
use crate::workload::format::{self, Format};
use crate::{command, transport, workload};

/// Builds an `antdt` command with additional or replaced parts, and runs it. Every part is optional; the
/// `antdt` program is the builder without any.
///
/// Parts that a job names (sync modes, policies, actions, pace rules, optimizers, trainers, data formats, transports,
/// libraries, launchers) are added to those that ship: `--sync`, `--policy`, `--pace-rule` and the other flags find
/// them, and so do `antdt whatif`, `antdt sim`, recordings and `antdt policies`. A part of which a job has exactly one
/// (ledger store, recorder, data plane, connections) is replaced; sinks for what happens in a job ([`sink`](Self::sink)) are added.
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
    planes: Planes,
    /// The first part that could not be added.
    refused: Option<InvalidValue>,
}

impl JobBuilder {
    /// Returns a builder with the built-in parts only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a sync mode that `--sync` can name, with a data plane of its own if the parts have one; an entry alone is a mode
    /// on the homes that ship. Its entry's example must name the mode with a setting that works in any job.
    pub fn mode(mut self, parts: impl Into<ModeParts>) -> Self {
        let ModeParts { entry, plane } = parts.into();
        if let Some(plane) = plane {
            self.planes.add(entry.name, plane);
        }
        self.added(mode::REGISTRY.register(entry))
    }

    /// Adds a policy that `--policy` can name.
    pub fn policy(self, entry: policy::Entry) -> Self {
        self.added(policy::REGISTRY.register(entry))
    }

    /// Adds an action, on which a policy may then decide. The masters and workers of a job must know the same
    /// actions.
    pub fn action(self, action: &'static dyn Action) -> Self {
        self.added(action::REGISTRY.register(action))
    }

    /// Adds a pace rule that `--pace-rule` can name.
    pub fn pace_rule(self, entry: rule::Entry) -> Self {
        self.added(rule::REGISTRY.register(entry))
    }

    /// Adds an optimizer that `--optimizer` can name.
    pub fn optimizer(self, entry: optimizer::Entry) -> Self {
        self.added(optimizer::REGISTRY.register(entry))
    }

    /// Adds a trainer that `--workload` can name.
    pub fn trainer(self, entry: workload::Entry) -> Self {
        self.added(workload::REGISTRY.register(entry))
    }

    /// Adds a data format that `--format` can name, made by [`Format::of`].
    pub fn format(self, format: Format) -> Self {
        self.added(format::REGISTRY.register(format))
    }

    /// Adds a transport that `--transport` can name.
    pub fn transport(self, entry: Transport) -> Self {
        self.added(transport::fabrics().register(entry))
    }

    /// Adds a library of collectives that `--transport` can name. Groups use it over the default transport.
    pub fn library(self, entry: Library) -> Self {
        self.added(transport::libraries().register(entry))
    }

    /// Adds a launcher, which starts the nodes of a job, that `--launcher` can name.
    pub fn launcher(self, entry: launcher::Entry) -> Self {
        self.added(launcher::REGISTRY.register(entry))
    }

    /// Replaces the store of the ledger's log. By default the log is in the run directory while the job runs,
    /// if another master may succeed this one; otherwise no log is kept. `store` gives an empty store, and is
    /// asked for another one when the job goes on after an evaluation or in another sync mode.
    pub fn ledger_store(
        mut self,
        store: impl Fn(&JobSpec, &DatasetSpec) -> Result<BoxStore, PartError> + Send + Sync + 'static,
    ) -> Self {
        self.seams.store = Some(Arc::new(store));
        self
    }

    /// Replaces the destination of a job's recording, which is the file that `--record` names by default.
    /// `recorder` opens it.
    pub fn recorder(
        mut self,
        recorder: impl Fn(&JobSpec) -> Result<Option<(Box<dyn TraceSink>, Packing)>, PartError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.seams.recorder = Arc::new(recorder);
        self
    }

    /// Adds a sink for all that happens in a job, such as metrics. `sink` opens it before the job starts; `None` if the settings ask
    /// for none.
    pub fn sink(
        mut self,
        sink: impl Fn(&JobSpec) -> Result<Option<Box<dyn NoteSink>>, PartError> + Send + Sync + 'static,
    ) -> Self {
        self.seams.sinks.push(Arc::new(sink));
        self
    }

    /// Replaces the factory of the workers' data planes, for sync modes that have none of their own. The default is
    /// [`Standard`](crate::worker::plane::Standard), which may be given devices of the program's own in place of GPUs.
    pub fn data_plane(mut self, plane: impl PlaneFactory + 'static) -> Self {
        self.planes.set_usual(plane);
        self
    }

    /// Wraps every byte stream between the processes of a job, in encryption, for example: those of collectives, of
    /// parameter servers and of gRPC. Memory that processes of one host share is no stream, and what RDMA or a
    /// [library](Self::library) carries passes by the wrapper. Commands such as `status` reach the job through this
    /// program only.
    pub fn connections(mut self, wrapper: impl StreamWrapper + 'static) -> Self {
        self.seams.connections = Connections::wrapped(wrapper);
        self
    }

    /// Parses the command line of this process, runs the command, and returns its exit code.
    ///
    /// If the name of an added part is taken, it prints one line and returns exit code 2.
    pub fn main(self) -> ExitCode {
        match self.refused {
            None => command::main(self.seams, &self.planes),
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
