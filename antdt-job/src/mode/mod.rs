//! Sync modes: how the workers of a job combine what they compute.
//!
//! A mode is one folder with two halves. Its [`HeadHalf`] decides at the master which worker may begin, and what becomes of work in
//! flight when a worker dies or leaves; its [`WorkerHalf`] decides in each worker which [`Call`] comes next.
//! Both are pure and own only what is the mode's; what all modes share is [`HeadCore`] and [`WorkerCore`]. Everyone else
//! asks for the mode's [`Capabilities`] and never for its name.
//!
//! To add a mode: write a folder with a type that implements [`Mode`], and add its [`Entry`] to [`REGISTRY`].
//!
//! Source: our design.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use antdt_agent::AgentSession;
use antdt_core::{Capabilities, Holder, InvalidValue, JobTime, Joined, Readiness, Standing, text::nearest};

use crate::choice::Traffic;
use crate::head::HeadCore;
use crate::worker::{Call, Reply, WorkerCore};

mod shared;

pub mod ad_psgd;
pub mod all_reduce;
pub mod d_psgd;
pub mod diloco;
pub mod local_sgd;
pub mod ps_asp;
pub mod ps_backup;
pub mod ps_bsp;
pub mod ps_ssp;
pub mod ripples;
pub mod ripples_static;

/// The modes that a job can name, in the order of the help text. The first one is the default.
pub const REGISTRY: &[Entry] = &[
    all_reduce::ENTRY,
    ps_bsp::ENTRY,
    ps_asp::ENTRY,
    ps_backup::ENTRY,
    ps_ssp::ENTRY,
    local_sgd::ENTRY,
    diloco::ENTRY,
    d_psgd::ENTRY,
    ad_psgd::ENTRY,
    ripples_static::ENTRY,
    ripples::ENTRY,
];

/// One line of the registry of sync modes.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Name on the command line, in job files and in reports.
    pub name: &'static str,
    /// Name of the setting that follows the mode's name after `=`, for the help text; `None` for a mode without a
    /// setting. In brackets if the setting may be left out.
    pub setting: Option<&'static str>,
    /// What the mode does, in one line.
    pub about: &'static str,
    /// A value that works in any job, such as `local-sgd=4`, for tests and suggestions.
    pub example: &'static str,
    /// Function that makes the mode from the text of its setting.
    pub parse: fn(Option<&str>) -> Result<SyncMode, InvalidValue>,
}

impl Entry {
    /// Returns the mode as the help text shows it: `local-sgd=STEPS`, or `d-psgd[=GRAPH]` if the setting may be left out.
    pub fn usage(&self) -> String {
        let Self { name, setting, .. } = self;
        match setting.map(|setting| setting.strip_prefix('[').ok_or(setting)) {
            None => (*name).to_owned(),
            Some(Ok(optional)) => format!("{name}[={optional}"),
            Some(Err(needed)) => format!("{name}={needed}"),
        }
    }
}

/// Returns the names of the modes that keep the model on servers, for error texts: `a or b`.
pub fn with_servers() -> String {
    let modes = SyncMode::examples().into_iter().filter(|mode| mode.capabilities().needs_servers());
    modes.map(|mode| mode.name()).collect::<Vec<_>>().join(" or ")
}

/// Reason for which a worker left the job in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// The master ordered the worker to leave.
    Drained,
    /// No samples are left.
    EndOfData,
}

/// The step that an average of all models is for an outer optimizer: momentum that looks ahead (Nesterov).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OuterStep {
    /// Learning rate, finite and above 0.
    pub rate: f32,
    /// Share of the running sum that is left after a step, from 0 to below 1.
    pub momentum: f32,
}

/// One way of combining the gradients or models of the workers.
pub trait Mode: fmt::Debug + Send + Sync {
    /// Its name in the [`REGISTRY`].
    fn name(&self) -> &'static str;

    /// Its setting, as the registry reads it.
    fn setting(&self) -> Option<String> {
        None
    }

    /// What it asks of everyone else.
    fn capabilities(&self) -> Capabilities;

    /// Returns what workers move when they combine their results, in a job of so many workers and servers.
    fn traffic(&self, workers: u32, servers: u32) -> Traffic {
        Traffic::usual(self.capabilities(), workers, servers)
    }

    /// Returns how an average changes the model; `None` if workers go on with the average itself.
    fn outer(&self) -> Option<OuterStep> {
        None
    }

    /// What it decides at the master, for a job in which nothing has happened yet.
    fn head(&self) -> Box<dyn HeadHalf>;

    /// What it decides in a worker, for a life that begins.
    fn worker(&self) -> Box<dyn WorkerHalf>;
}

/// The half of a mode that runs in the master. Its methods are called in the order of events; it answers through the
/// [`HeadCore`].
pub trait HeadHalf: fmt::Debug + Send {
    /// A live worker asks to take part, for the first time or again. [`HeadCore::let_in`] answers it, now or later.
    fn joining(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, standing: Standing);

    /// A worker's push of a step is on all servers. [`HeadCore::tell_commit`] answers it, now or later.
    ///
    /// # Errors
    /// If the mode has no such steps, or the worker names another one than the open one.
    fn ready(
        &mut self,
        _now: JobTime,
        core: &mut HeadCore,
        holder: Holder,
        _step: u64,
        _readiness: Readiness,
    ) -> Result<(), String> {
        Err(format!("{holder} waits for the commit of a step, which --sync {} has not", core.sync()))
    }

    /// The answer to a worker's heartbeat has orders for it, to leave or to stand still for a checkpoint: a worker that waits here
    /// for others between two steps is called off, so that it looks at them.
    fn ordered(&mut self, _core: &mut HeadCore, _holder: Holder) {}

    /// Whether this worker may take the copies of a checkpoint, in a mode whose steps are in common: it knows of the newest one.
    fn may_keep(&self, _holder: Holder) -> bool {
        true
    }

    /// A checkpoint waits from now on for its keeper to stand still between two steps, and for the copies; or not any more. Meanwhile no
    /// step may be committed without the keeper.
    fn keeping(&mut self, _now: JobTime, _core: &mut HeadCore, _keeping: bool) {}

    /// A worker that gave its leases back does not take part any more.
    fn left(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, departure: Departure);

    /// A life of a worker ended without leaving; whether it took part.
    fn lost(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, took_part: bool);

    /// The job goes back to an earlier moment: nothing that workers did or wait for counts any more. No worker joins until
    /// [`go_on`](Self::go_on).
    fn set_back(&mut self, now: JobTime, core: &mut HeadCore);

    /// The servers are known, and after a rollback model and ledger are those of the checkpoint: workers that wait may begin.
    fn go_on(&mut self, now: JobTime, core: &mut HeadCore);
}

/// The half of a mode that runs in a worker. Each method returns the worker's next call: [`WorkerCore::call`] for a
/// call whose reply comes back to [`answered`](Self::answered), or one of the other methods of the core.
pub trait WorkerHalf: fmt::Debug + Send {
    /// What the worker says of itself when it asks to take part.
    fn standing(&self) -> Standing {
        Standing::default()
    }

    /// Whether this answer is one that the worker has acted on before, so that it asks again.
    fn knows(&self, _joined: &Joined) -> bool {
        false
    }

    /// The job went back to a checkpoint, after which the worker takes part again: what the half remembers is undone. The leases
    /// go back without it.
    fn rolled_back(&mut self);

    /// The worker takes part.
    fn joined(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, joined: &Joined) -> Call;

    /// The batch that [`WorkerCore::take_batch`] was asked for is in memory; it may be empty.
    fn loaded(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call;

    /// The batch holds a sample that cannot be read. `None` if its lease may be returned at once, as a data fault;
    /// otherwise what has to come before that: the same samples are taken and read again.
    fn before_fault(&mut self, _core: &mut WorkerCore, _turn: &mut Turn<'_>) -> Option<Call> {
        None
    }

    /// The reply to a call of this half.
    fn answered(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, reply: &Reply) -> Call;

    /// The shard service has answered what [`WorkerCore::feed`] asked.
    fn fed(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call;

    /// A copy in the same state.
    fn clone_box(&self) -> Box<dyn WorkerHalf>;
}

impl Clone for Box<dyn WorkerHalf> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}

/// What the worker half of a mode is given for one decision: the time, and the agent's session with the master.
#[derive(Debug)]
pub struct Turn<'a> {
    /// Time of the decision.
    pub now: JobTime,
    /// The agent's session with the master: the mode reads orders and plans from it, and leaves reports in it.
    pub session: &'a mut AgentSession,
}

/// A sync mode with its setting. Two modes are equal if they are written alike.
#[derive(Clone)]
pub struct SyncMode(Arc<dyn Mode>);

impl SyncMode {
    /// Returns a mode, either of the registry or a program's own.
    pub fn new(mode: impl Mode + 'static) -> Self {
        Self(Arc::new(mode))
    }

    /// Returns the name of the mode, without its setting.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Returns what the mode asks of all other parts of a job.
    pub fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    /// Returns what workers move when they combine their results, in a job of so many workers and servers.
    pub fn traffic(&self, workers: u32, servers: u32) -> Traffic {
        self.0.traffic(workers, servers)
    }

    /// Returns how an average changes the model; `None` if workers go on with the average itself.
    pub fn outer(&self) -> Option<OuterStep> {
        self.0.outer()
    }

    /// Returns the half of the mode that runs in the master.
    pub fn head(&self) -> Box<dyn HeadHalf> {
        self.0.head()
    }

    /// Returns the half of the mode that runs in a worker.
    pub fn worker(&self) -> Box<dyn WorkerHalf> {
        self.0.worker()
    }

    /// Returns every mode of the registry once, with the setting of its example.
    pub fn examples() -> Vec<Self> {
        REGISTRY.iter().map(|entry| entry.example.parse().expect("an example can be read")).collect()
    }
}

impl Default for SyncMode {
    fn default() -> Self {
        REGISTRY[0].example.parse().expect("an example can be read")
    }
}

impl fmt::Display for SyncMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        self.0.setting().map_or(Ok(()), |setting| write!(f, "={setting}"))
    }
}

impl fmt::Debug for SyncMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SyncMode({self})")
    }
}

impl PartialEq for SyncMode {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name() && self.0.setting() == other.0.setting()
    }
}

impl Eq for SyncMode {}

impl FromStr for SyncMode {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (name, setting) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let Some(entry) = REGISTRY.iter().find(|entry| entry.name == name) else {
            let names: Vec<&str> = REGISTRY.iter().map(|entry| entry.name).collect();
            let usages: Vec<String> = REGISTRY.iter().map(Entry::usage).collect();
            let mut expected = format!("one of {}", usages.join(", "));
            if let Some(near) = nearest(name, &names) {
                expected = format!("{expected}; did you mean `{near}`?");
            }
            return Err(InvalidValue::new("--sync", text, expected));
        };
        match (entry.setting, setting) {
            (None, Some(_)) => Err(InvalidValue::new("--sync", text, format!("{name}, without `=`"))),
            _ => (entry.parse)(setting),
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for SyncMode {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for SyncMode {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
