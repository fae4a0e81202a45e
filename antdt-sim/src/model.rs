//! Models of compute times, network, scheduler and faults: small traits, each with several implementations.

use std::fmt::Debug;
use std::time::Duration;

use antdt_core::{DetRng, DeviceClass, Holder, InvalidValue, JobTime, NodeId, Role};

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
    /// Returns the time that `holder` takes for the gradient of a batch of `samples` (at least 1), once the
    /// batch is in memory. The gradient begins at `at`; calls for one holder come in order of time, and `rng`
    /// is the holder's own.
    ///
    /// For a server it is the time that one request keeps its process busy; `samples` is the number of
    /// samples of the pushed gradient, or for which parameters are pulled.
    fn time(&mut self, at: JobTime, holder: Holder, samples: u64, rng: &mut DetRng) -> Duration;

    /// Returns the hardware class that the node registers with; only nodes of one class are compared. The
    /// default is one class for all nodes. A model that wraps another one returns the class of the inner
    /// model.
    fn device(&self, _node: NodeId) -> DeviceClass {
        DeviceClass::default()
    }

    /// Returns the largest batch, or micro-batch, in samples that the node registers with; `None` if any
    /// fits.
    fn batch_size_max(&self, _node: NodeId) -> Option<u32> {
        None
    }

    /// Called when the node runs on another host from its next incarnation on. By default it changes nothing.
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

/// An operation in which all members of a group take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Collective {
    /// An all-reduce of a buffer of this many bytes.
    AllReduce(u64),
    /// An all-gather of this many bytes in total.
    AllGather(u64),
    /// A broadcast of one member's buffer of this many bytes.
    Broadcast(u64),
}

/// Model of a network: the time that messages take.
pub trait Network: Debug + Send {
    /// Returns the time at which a message of `bytes` sent at `at` arrives; `None` if it is lost. Calls come
    /// in order of `at`.
    fn message(&mut self, at: JobTime, from: Site, to: Site, bytes: u64, rng: &mut DetRng)
    -> Option<JobTime>;

    /// Returns how long `operation` takes among `world` members, once the last one has begun at `at`.
    fn collective(&mut self, at: JobTime, operation: Collective, world: u32, rng: &mut DetRng) -> Duration;

    /// Returns how long the network takes for `bytes` that one member of a group sends to another within a
    /// collective that begins at `at`, as the sender measures it; `None`, the default, if they cross no
    /// network, or the model says nothing of single links.
    fn transfer(&self, _at: JobTime, _from: Site, _to: Site, _bytes: u64) -> Option<Duration> {
        None
    }

    /// Returns how long `world` members of a new group take to connect and to measure the network, once the
    /// last member has come at `at`. Zero by default, because that is short compared with the lifetime of a
    /// group.
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

    fn transfer(&self, at: JobTime, from: Site, to: Site, bytes: u64) -> Option<Duration> {
        (**self).transfer(at, from, to, bytes)
    }

    fn form(&mut self, at: JobTime, world: u32, rng: &mut DetRng) -> Duration {
        (**self).form(at, world, rng)
    }
}

/// Model of the cluster's scheduler: the time until a process runs.
pub trait Scheduler: Debug + Send {
    /// Returns the time from the order to start this incarnation until its process has loaded its data and
    /// registers; `None` if it never does.
    fn start(&mut self, at: JobTime, life: Holder, rng: &mut DetRng) -> Option<Duration>;

    /// Returns the time that a registered worker needs, from `at` on, to make its model before it joins the
    /// others. Zero by default.
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

/// A fault of a simulated job. A fault of a node has no effect if the node does not run at the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process of the node ends at once, as by `kill -9`.
    Crash(NodeId),
    /// The process of the node ends with this exit code.
    Exit(NodeId, i32),
    /// The platform takes the process back: it tells the process to leave, as by SIGTERM, and ends it after
    /// this time. A worker reports that with each heartbeat, finishes its step, gives its leases back and
    /// leaves. A server stays until a checkpoint is complete, or to its end in a job that takes none.
    Preempt(NodeId, Duration),
    /// The training thread of a worker stops for this time in the middle of its next batch. Its heartbeats go
    /// on, and report that the thread makes no progress.
    Hang(NodeId, Duration),
    /// The process of the node stops for this time, and then continues as if nothing had happened. If the
    /// time exceeds the silence limit, it continues although it was declared lost.
    Pause(NodeId, Duration),
    /// The master's process stops for this time.
    PauseMaster(Duration),
    /// No message reaches the node or leaves it for this time, nor does an order to end its process or the
    /// report of its end. If the node is declared lost meanwhile, it runs on until the order arrives.
    Cut(NodeId, Duration),
    /// For this time, every message of the node to the master and to the shard service arrives a second time,
    /// up to 0.3 s later and after messages that were sent later.
    Duplicate(NodeId, Duration),
    /// The shard service is started again from its log.
    RestartLedger,
    /// The master's process ends, and the shard service with it. After this time a successor continues the
    /// job from the master's records, and the shard service restarts from its log. With `None` the master
    /// ends at once; with a number it ends during the next event that it records, after it has carried out
    /// that many further effects. Has no effect in a job that does not [go back](crate::Setup::goes_back),
    /// because no successor could continue it.
    RestartMaster(Duration, Option<u32>),
    /// The user asks for this number of parameter servers. Has no effect while there is no master, and none in a
    /// job that takes no checkpoints or does not [go back](crate::Setup::goes_back): the master refuses it.
    ScaleServers(u32),
    /// All processes of the job end at once, as in a power cut, after this many further events of the
    /// simulation. That ends the simulation; what is left is the newest complete checkpoint
    /// ([`SimulatedJob::kept`](crate::SimulatedJob::kept)), from which [`World::resumed`](crate::World::resumed)
    /// continues.
    CrashAll(u64),
}

impl Fault {
    /// Returns the node that the fault is about; `None` if it is about the master, the shard service, or all processes.
    pub const fn node(&self) -> Option<NodeId> {
        match *self {
            Self::Crash(node)
            | Self::Exit(node, _)
            | Self::Preempt(node, _)
            | Self::Hang(node, _)
            | Self::Pause(node, _)
            | Self::Cut(node, _)
            | Self::Duplicate(node, _) => Some(node),
            Self::PauseMaster(_)
            | Self::RestartLedger
            | Self::RestartMaster(..)
            | Self::ScaleServers(_)
            | Self::CrashAll(_) => None,
        }
    }

    /// Returns whether a job of so many workers and servers has the node that the fault is about, if it is about one.
    pub(crate) fn fits(&self, workers: u32, servers: u32) -> bool {
        self.node().is_none_or(|node| match node.role {
            Role::Worker => node.index < workers,
            Role::Server => node.index < servers,
        })
    }
}

/// Model of which faults happen, and when.
pub trait Faults: Debug + Send {
    /// Returns the next fault, in order of time; `None` if there are no more.
    fn next(&mut self, rng: &mut DetRng) -> Option<(JobTime, Fault)>;
}

impl<F: Faults + ?Sized> Faults for Box<F> {
    fn next(&mut self, rng: &mut DetRng) -> Option<(JobTime, Fault)> {
        (**self).next(rng)
    }
}

/// The models of a simulated job: compute, network, scheduler and faults.
#[derive(Debug)]
pub struct Models {
    /// Model of the time that gradients take.
    pub compute: Box<dyn Compute>,
    /// Model of the time that messages take.
    pub network: Box<dyn Network>,
    /// Model of the time that processes take to start.
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
