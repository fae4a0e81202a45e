//! Sync modes: how the workers of a job combine what they compute.
//!
//! A mode is one folder with two halves. Its [`HeadHalf`] decides in the master which worker may begin, and
//! what happens to work in flight when a worker dies or leaves; its [`WorkerHalf`] decides in each worker
//! which [`Call`] comes next. Both are pure and hold only the state of the mode; [`HeadCore`] and
//! [`WorkerCore`] hold the state that all modes share. All other code asks for the mode's [`Capabilities`]
//! and never for its name.
//!
//! To add a mode: write a folder with a type that implements [`Mode`], and add its [`Entry`] to the modes that
//! ship. A program adds modes of its own to the [`REGISTRY`] before it reads its command line; the simulator,
//! recordings and `--sync auto` then treat them like those that ship.
//!
//! Source: our design.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use antdt_agent::AgentSession;
use antdt_core::registry::{Named, Registry};
use antdt_core::{Capabilities, Holder, InvalidValue, JobTime, Joined, Readiness, Standing};

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

/// Registry of all sync modes that a job can name, in the order of the help text. The first one is the default.
pub static REGISTRY: Registry<Entry> = Registry::new("sync mode", SHIPPED);

/// Sync modes that ship.
const SHIPPED: &[Entry] = &[
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

/// A sync mode in the registry, under the name that [`Mode::name`] returns.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Name on the command line, in job files and in reports.
    pub name: &'static str,
    /// Name of the setting that follows the mode's name after `=`, for the help text; in brackets if the
    /// setting may be left out. `None` for a mode without a setting.
    pub setting: Option<&'static str>,
    /// What the mode does, in one line.
    pub about: &'static str,
    /// Text that names the mode with a setting that works in any job, such as `local-sgd=4`, for tests and
    /// suggestions.
    pub example: &'static str,
    /// Function that makes the mode from the text of its setting.
    pub parse: fn(Option<&str>) -> Result<SyncMode, InvalidValue>,
}

impl Entry {
    /// Returns the entry of a mode without a setting, which `parse` makes.
    pub const fn new(
        name: &'static str,
        about: &'static str,
        parse: fn(Option<&str>) -> Result<SyncMode, InvalidValue>,
    ) -> Self {
        Self { name, setting: None, about, example: name, parse }
    }

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

impl Named for Entry {
    fn name(&self) -> &'static str {
        self.name
    }
}

/// Returns the names of the modes that keep the model on parameter servers, for error texts: `a or b`.
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

/// Outer optimizer of a mode that averages models: it treats the change to the average as a gradient, and
/// applies it with Nesterov momentum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OuterStep {
    /// Learning rate, finite and above 0.
    pub rate: f32,
    /// Factor by which the running sum decays in each outer step, from 0 to below 1.
    pub momentum: f32,
}

/// A sync mode: one way of combining the gradients or models of the workers.
pub trait Mode: fmt::Debug + Send + Sync {
    /// Returns the mode's name in the [`REGISTRY`].
    fn name(&self) -> &'static str;

    /// Returns the mode's setting as text, in the form that the registry parses; `None` if it has none.
    fn setting(&self) -> Option<String> {
        None
    }

    /// Returns the capabilities of the mode, by which all other code treats it.
    fn capabilities(&self) -> Capabilities;

    /// Returns the messages in which workers combine their results, in a job of this many workers and
    /// servers.
    fn traffic(&self, workers: u32, servers: u32) -> Traffic {
        Traffic::usual(self.capabilities(), workers, servers)
    }

    /// Returns the outer optimizer that applies an average; `None` if workers continue with the average
    /// itself.
    fn outer(&self) -> Option<OuterStep> {
        None
    }

    /// Returns the master's half of the mode, for a job in which nothing has happened yet.
    fn head(&self) -> Box<dyn HeadHalf>;

    /// Returns the worker's half of the mode, for an incarnation that begins.
    fn worker(&self) -> Box<dyn WorkerHalf>;
}

/// The half of a sync mode that runs in the master. The head calls it in the order of events; it answers
/// workers through the [`HeadCore`].
pub trait HeadHalf: fmt::Debug + Send {
    /// Handles the request of a live worker to take part, for the first time or again. [`HeadCore::let_in`]
    /// answers it, now or later.
    fn joining(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, standing: Standing);

    /// Handles the message that a worker's push of a step is on all servers. [`HeadCore::tell_commit`]
    /// answers it, now or later.
    ///
    /// # Errors
    /// If the mode has no such steps, or the worker names another step than the open one.
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

    /// Called when the answer to a worker's heartbeat orders it to leave or to pause for a checkpoint. If the
    /// worker waits between two steps for an answer of the master, this method must answer the worker, so
    /// that it can follow the order.
    fn ordered(&mut self, _core: &mut HeadCore, _holder: Holder) {}

    /// Returns whether this worker may take the copies of a checkpoint. In a mode with common steps it must
    /// know of the newest step.
    fn may_keep(&self, _holder: Holder) -> bool {
        true
    }

    /// Called when a checkpoint begins (`true`) or ends (`false`) to wait for its keeper to pause and copy
    /// the model. Meanwhile no step may be committed without the keeper.
    fn keeping(&mut self, _now: JobTime, _core: &mut HeadCore, _keeping: bool) {}

    /// Handles the departure of a worker that has given its leases back.
    fn left(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, departure: Departure);

    /// Handles the end of a worker's incarnation that did not leave in order. `took_part` says whether it
    /// took part in the training.
    fn lost(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, took_part: bool);

    /// Handles the start of a rollback: nothing that workers did or wait for counts any more. No worker joins
    /// until [`go_on`](Self::go_on).
    fn set_back(&mut self, now: JobTime, core: &mut HeadCore);

    /// Called once all servers are registered and, after a rollback, model and ledger are those of the
    /// checkpoint: workers that wait may begin.
    fn go_on(&mut self, now: JobTime, core: &mut HeadCore);
}

/// The half of a sync mode that runs in a worker. The worker loop calls it; most methods return the worker's
/// next call. [`WorkerCore::call`] makes one whose reply comes back to [`answered`](Self::answered); other
/// methods of the core make the other calls.
pub trait WorkerHalf: fmt::Debug + Send {
    /// Returns what the worker tells the master about its group and model when it asks to take part.
    fn standing(&self) -> Standing {
        Standing::default()
    }

    /// Returns whether the worker has acted on this answer to a join before, so that it must ask again.
    fn knows(&self, _joined: &Joined) -> bool {
        false
    }

    /// Forgets all work since the checkpoint, after a rollback of the job. The worker loop gives the leases
    /// back itself.
    fn rolled_back(&mut self);

    /// Called when the worker has joined. Returns its next call.
    fn joined(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, joined: &Joined) -> Call;

    /// Called when the batch that [`WorkerCore::take_batch`] asked for is in memory; the batch may be empty.
    /// Returns the next call.
    fn loaded(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call;

    /// Called when the batch holds a sample that cannot be read. Returns `None` if the worker may report the
    /// sample's lease as a data fault at once. Otherwise returns a call that the worker must make first; it
    /// then takes and reads the same samples again.
    fn before_fault(&mut self, _core: &mut WorkerCore, _turn: &mut Turn<'_>) -> Option<Call> {
        None
    }

    /// Handles the reply to a call that this half made. Returns the next call.
    fn answered(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, reply: &Reply) -> Call;

    /// Called when the shard service has answered the call given to [`WorkerCore::feed`]. Returns the next
    /// call.
    fn fed(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call;

    /// Returns a copy in the same state.
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

/// A sync mode with its setting. Two are equal if their texts are, such as `local-sgd=4`.
#[derive(Clone)]
pub struct SyncMode(Arc<dyn Mode>);

impl SyncMode {
    /// Wraps a mode, which may be one of the registry or a program's own.
    pub fn new(mode: impl Mode + 'static) -> Self {
        Self(Arc::new(mode))
    }

    /// Returns the name of the mode, without its setting.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Returns the capabilities of the mode, by which all other code treats it.
    pub fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    /// Returns the messages in which workers combine their results, in a job of this many workers and
    /// servers.
    pub fn traffic(&self, workers: u32, servers: u32) -> Traffic {
        self.0.traffic(workers, servers)
    }

    /// Returns the outer optimizer that applies an average; `None` if workers continue with the average
    /// itself.
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
        let example = |entry: &Entry| entry.example.parse().expect("an example can be read");
        REGISTRY.entries().iter().map(example).collect()
    }
}

impl Default for SyncMode {
    fn default() -> Self {
        SHIPPED[0].example.parse().expect("an example can be read")
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
        let entry = REGISTRY.find(name).map_err(|unknown| {
            let usages: Vec<String> = REGISTRY.entries().iter().map(Entry::usage).collect();
            let near = unknown.suggestion.map(|near| format!("; did you mean `{near}`?"));
            let expected = format!("one of {}{}", usages.join(", "), near.unwrap_or_default());
            InvalidValue::new("--sync", text, expected)
        })?;
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
