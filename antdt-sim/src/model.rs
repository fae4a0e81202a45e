//! How fast and how reliable things are: small traits, each with several implementations.

use std::fmt::Debug;
use std::time::Duration;

use antdt_core::{DetRng, DeviceClass, Holder, InvalidValue, JobTime, NodeId};

pub mod host;

pub mod compute;
pub mod network;

pub mod faults;
pub mod scheduler;

pub use host::{Host, Hosts};

/// Sender or receiver of a message in the simulated network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Site {
    /// The process of the master, which is alone on its host.
    Master,
    /// A worker or a server.
    Node(NodeId),
}

/// Model of how long a gradient takes.
pub trait Compute: Debug + Send {
    /// Time from "batch in memory" to "gradient ready" of a batch of `samples`, at least 1, that `holder` begins at `at`.
    /// Calls of one holder come in order of time; `rng` is the holder's own.
    ///
    /// A server's holder asks how long its process is busy with one request that stands for `samples`: a pushed gradient
    /// of so many, or parameters for so many.
    fn time(&mut self, at: JobTime, holder: Holder, samples: u64, rng: &mut DetRng) -> Duration;

    /// The hardware that the node says it has when it registers: only nodes of one class are compared. The same of all, unless
    /// a model says otherwise; one that changes what another says leaves the hardware what it is.
    fn device(&self, _node: NodeId) -> DeviceClass {
        DeviceClass::default()
    }

    /// Largest batch, or micro-batch, in samples that fits the node, as it says when it registers; `None` if any fits.
    fn batch_size_max(&self, _node: NodeId) -> Option<u32> {
        None
    }

    /// The node runs on another host from its next life on. Changes nothing, unless a model has times by host.
    fn moved(&mut self, _node: NodeId, _host: Host) {}
}

impl<C: Compute + ?Sized> Compute for Box<C> {
    fn time(&mut self, at: JobTime, holder: Holder, samples: u64, rng: &mut DetRng) -> Duration {
        (**self).time(at, holder, samples, rng)
    }

    fn device(&self, node: NodeId) -> DeviceClass {
        (**self).device(node)
    }

    fn batch_size_max(&self, node: NodeId) -> Option<u32> {
        (**self).batch_size_max(node)
    }

    fn moved(&mut self, node: NodeId, host: Host) {
        (**self).moved(node, host);
    }
}

/// An operation that all members of a group take part in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Collective {
    /// The sum of a buffer of this many bytes, for all.
    AllReduce(u64),
    /// An all-gather of this many bytes in total.
    AllGather(u64),
    /// One member's buffer of this many bytes, for all.
    Broadcast(u64),
}

/// Model of a network: the time that messages take.
pub trait Network: Debug + Send {
    /// When a message of `bytes` sent at `at` arrives; `None` if it is lost. Calls come in order of `at`.
    fn message(&mut self, at: JobTime, from: Site, to: Site, bytes: u64, rng: &mut DetRng)
    -> Option<JobTime>;

    /// How long `operation` takes among `world` members, once the last one has begun at `at`.
    fn collective(&mut self, at: JobTime, operation: Collective, world: u32, rng: &mut DetRng) -> Duration;

    /// How long `world` members of a new group take to connect and to measure the network, once the last one has come at
    /// `at`. No time, unless a model says otherwise: against what a group lives for it is short.
    fn form(&mut self, _at: JobTime, _world: u32, _rng: &mut DetRng) -> Duration {
        Duration::ZERO
    }
}

impl<N: Network + ?Sized> Network for Box<N> {
    fn message(
        &mut self,
        at: JobTime,
        from: Site,
        to: Site,
        bytes: u64,
        rng: &mut DetRng,
    ) -> Option<JobTime> {
        (**self).message(at, from, to, bytes, rng)
    }

    fn collective(&mut self, at: JobTime, operation: Collective, world: u32, rng: &mut DetRng) -> Duration {
        (**self).collective(at, operation, world, rng)
    }

    fn form(&mut self, at: JobTime, world: u32, rng: &mut DetRng) -> Duration {
        (**self).form(at, world, rng)
    }
}

/// The cluster's scheduler: how long until a process runs.
pub trait Scheduler: Debug + Send {
    /// Time from the order to start this life until its process has read its data and registers; `None` if it never does.
    fn start(&mut self, at: JobTime, life: Holder, rng: &mut DetRng) -> Option<Duration>;

    /// Time that a worker which has registered, and knows the servers if there are any, needs at `at` until it meets the
    /// others: it makes its model. No time, unless a model says otherwise.
    fn ready(&mut self, _at: JobTime, _life: Holder, _rng: &mut DetRng) -> Duration {
        Duration::ZERO
    }
}

impl<S: Scheduler + ?Sized> Scheduler for Box<S> {
    fn start(&mut self, at: JobTime, life: Holder, rng: &mut DetRng) -> Option<Duration> {
        (**self).start(at, life, rng)
    }

    fn ready(&mut self, at: JobTime, life: Holder, rng: &mut DetRng) -> Duration {
        (**self).ready(at, life, rng)
    }
}

/// Something that goes wrong. One that names a node does nothing if that node does not run at the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process ends at once, as by `kill -9`.
    Crash(NodeId),
    /// The process ends with this exit code.
    Exit(NodeId, i32),
    /// The platform takes the process back: it tells it to leave, as by SIGTERM, and ends it after this long. A worker says so with
    /// each heartbeat, finishes its step, gives back what it holds and leaves; a server stays, since no checkpoint stands in for it.
    Preempt(NodeId, Duration),
    /// The training thread of a worker stands still for this long in the middle of its next batch, while its heartbeats go on and say
    /// that it does not get on.
    Hang(NodeId, Duration),
    /// The process stands still for this long, and then goes on as if nothing had happened. If that exceeds the silence
    /// limit, it goes on as a zombie.
    Pause(NodeId, Duration),
    /// The master's process stands still for this long.
    PauseMaster(Duration),
    /// No message reaches the node or leaves it for this long; neither does an order to end it, nor the news of its
    /// end. If the node is declared dead meanwhile, it is a zombie until the order arrives.
    Cut(NodeId, Duration),
    /// For this long, what the node sends to the master and to the shard service arrives a second time, up to 0.3 s later: after what
    /// it sent next.
    Duplicate(NodeId, Duration),
    /// The shard service is started again from its log.
    RestartLedger,
    /// The master's process ends, and the shard service with it; so long afterwards another master goes on with the job from what it
    /// has written down, and the shard service is started again from its log. It ends at once; or in the midst of the next
    /// event of which it writes something down, when it has carried out so many of its further effects. Does nothing in
    /// a job that does not [go back](crate::Setup::goes_back), which nobody can go on with.
    RestartMaster(Duration, Option<u32>),
}

/// Model of which faults happen, and when.
pub trait Faults: Debug + Send {
    /// The next fault, in order of time; `None` if there is none any more.
    fn next(&mut self, rng: &mut DetRng) -> Option<(JobTime, Fault)>;
}

impl<F: Faults + ?Sized> Faults for Box<F> {
    fn next(&mut self, rng: &mut DetRng) -> Option<(JobTime, Fault)> {
        (**self).next(rng)
    }
}

/// The models of a simulated job: of its compute, its network, its scheduler and its faults.
#[derive(Debug)]
pub struct Models {
    /// Model of how long gradients take.
    pub compute: Box<dyn Compute>,
    /// Model of how long messages take.
    pub network: Box<dyn Network>,
    /// Model of how long processes take to start.
    pub scheduler: Box<dyn Scheduler>,
    /// Model of the faults that happen.
    pub faults: Box<dyn Faults>,
}

/// `duration` times `factor`, to the nearest nanosecond; what no duration can say is for ever, what is no number is zero.
fn scaled(duration: Duration, factor: f64) -> Duration {
    // A cast from a float saturates. 2^53 ns are 104 days: beyond, the last digits are lost.
    Duration::from_nanos((duration.as_nanos() as f64 * factor).round() as u64)
}

/// `seconds` as a duration, by the rules of [`scaled`].
fn seconds(seconds: f64) -> Duration {
    Duration::from_nanos((seconds * 1e9).round() as u64)
}

/// A number from the exponential distribution of mean 1.
fn exponential(rng: &mut DetRng) -> f64 {
    -(1.0 - rng.unit()).ln()
}

/// Refuses what is not a finite number of at least `least`.
fn at_least(field: &str, value: f64, least: f64, remedy: &str) -> Result<f64, InvalidValue> {
    if value.is_finite() && value >= least { Ok(value) } else { Err(InvalidValue::new(field, value, remedy)) }
}
