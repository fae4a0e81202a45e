//! One rank of ours: a process that reduces what it is told.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use antdt_collective::{
    AbortHandle, CollectiveError, Communicator, CommunicatorBuffer, CommunicatorConfig, Group, JobToken,
    Listener, Member, MixedTransport, ReduceOp, ScheduledCommunicator, TcpTransport, Transport,
};
use antdt_core::{Holder, Incarnation, MembershipVersion, NodeId, Rank};
use anyhow::{Context, Result, bail, ensure};
use rustix::thread::CpuSet;
use rustix::time::ClockId;
use serde::Serialize;

use super::order::{Done, Failed, Hello, Prepared, Refusal, Times};
use crate::meter::{clock_time, reset_peak, status_bytes};

/// Reductions that a group has done before one of its members is killed.
const HEALTHY: usize = 3;
/// Values differ from element to element and from rank to rank; their sums are exact.
const PERIOD: usize = 251;

/// Runs one rank of this project's collectives: connects to `control` and carries out its orders until it
/// closes the connection.
///
/// # Errors
/// If `control` or the other ranks cannot be reached.
pub fn run(control: SocketAddr, rank: u32) -> Result<()> {
    let stream = TcpStream::connect(control).with_context(|| format!("cannot reach {control}"))?;
    stream.set_nodelay(true)?;
    let mut control = Control { orders: BufReader::new(stream) };
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), JobToken::new("bench"))?;
    let address = Some(listener.local_address().to_string());
    control.say(&Hello { rank, pid: i32::try_from(std::process::id())?, address })?;
    let Some(order) = control.next()? else { return Ok(()) };
    let ["meet", medium, addresses @ ..] = &words(&order)[..] else {
        bail!("`{order}` came before the ranks have met");
    };
    let mut members = Vec::new();
    for (index, address) in (0..).zip(addresses) {
        let holder = Holder::new(NodeId::worker(index), Incarnation(0));
        members.push(Member { holder, address: address.parse()? });
    }
    let group = Group::new(MembershipVersion(1), members, Rank(rank))?;
    bind(rank, group.world())?;
    let abort = AbortHandle::new()?;
    let patience = Duration::from_secs(30);
    match *medium {
        "tcp" => serve(TcpTransport::connect(&listener, &group, patience, &abort)?, control),
        // On one host it shares memory with every peer.
        "shm" => serve(MixedTransport::connect(&listener, &group, patience, &abort)?, control),
        other => bail!("there is no transport `{other}`"),
    }
}

/// Keeps this rank on a core of its own where there are enough, as `mpirun` does: ranks that all wake at one order would
/// often be put on the core of the process that woke them.
fn bind(rank: u32, world: u32) -> Result<()> {
    let allowed = rustix::thread::sched_getaffinity(None).context("cannot ask for the cores")?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    if world as usize > cores.len() {
        return Ok(());
    }
    let mut own = CpuSet::new();
    own.set(cores[rank as usize]);
    rustix::thread::sched_setaffinity(None, &own).context("cannot stay on one core")
}

fn words(order: &str) -> Vec<&str> {
    order.split_whitespace().collect()
}

struct Control {
    orders: BufReader<TcpStream>,
}

impl Control {
    /// Sleeps until there is one; `None` when there will be no more.
    fn next(&mut self) -> Result<Option<String>> {
        let mut line = String::new();
        Ok((self.orders.read_line(&mut line)? > 0).then_some(line))
    }

    fn say(&mut self, answer: &impl Serialize) -> Result<()> {
        let line = format!("{}\n", serde_json::to_string(answer)?);
        self.orders.get_mut().write_all(line.as_bytes()).context("nobody hears the answer")
    }
}

fn serve(transport: impl Transport, mut control: Control) -> Result<()> {
    let mut reducer = Reducer {
        communicator: ScheduledCommunicator::new(transport, CommunicatorConfig::default()),
        heap: Vec::new(),
        own: None,
    };
    control.say(&Done {})?;
    let mut slept = cpu();
    while let Some(order) = control.next()? {
        let idle = cpu().saturating_sub(slept);
        let said = match words(&order)[..] {
            ["prepare", buffer, bytes] => match reducer.prepare(buffer, bytes.parse()?) {
                Ok(prepared) => control.say(&prepared),
                Err(e) => control.say(&Refusal { error: format!("{e:#}") }),
            },
            ["time", buffer, calls, repetitions, warm] => {
                let plan =
                    Plan { calls: calls.parse()?, repetitions: repetitions.parse()?, warm: warm.parse()? };
                match reducer.time(buffer, &plan) {
                    Ok(times) => control.say(&Times { idle_cpu_s: idle.as_secs_f64(), ..times }),
                    Err(e) => control.say(&Refusal { error: format!("{e:#}") }),
                }
            }
            ["repeat", bytes] => {
                let mut data = vec![0.0_f32; bytes.parse::<usize>()? / size_of::<f32>()];
                for _ in 0..HEALTHY {
                    reducer.communicator.all_reduce(&mut data, ReduceOp::Sum)?;
                }
                control.say(&Done {})?;
                let failed = reducer.until_failure(&mut data);
                control.say(&failed)
            }
            _ => control.say(&Refusal { error: format!("antdt knows no order {order}") }),
        };
        said?;
        slept = cpu();
    }
    Ok(())
}

fn cpu() -> Duration {
    clock_time(ClockId::ProcessCPUTime)
}

struct Plan {
    calls: u32,
    repetitions: usize,
    warm: usize,
}

struct Reducer<T> {
    communicator: ScheduledCommunicator<T>,
    heap: Vec<f32>,
    own: Option<CommunicatorBuffer<f32>>,
}

impl<T: Transport> Reducer<T> {
    fn data(&mut self, buffer: &str) -> Result<&mut [f32]> {
        match buffer {
            "heap" => Ok(&mut self.heap),
            "own" => Ok(self.own.as_deref_mut().unwrap_or_default()),
            other => bail!("there is no buffer `{other}`"),
        }
    }

    fn reduce(&mut self, buffer: &str) -> Result<()> {
        match buffer {
            "heap" => self.communicator.all_reduce(&mut self.heap, ReduceOp::Sum)?,
            "own" => {
                let own = self.own.as_mut().context("`time` came before `prepare`")?;
                self.communicator.all_reduce_buffer(own, ReduceOp::Sum)?;
            }
            other => bail!("there is no buffer `{other}`"),
        }
        Ok(())
    }

    fn world(&self) -> usize {
        self.communicator.group().world() as usize
    }

    fn prepare(&mut self, buffer: &str, bytes: usize) -> Result<Prepared> {
        let len = bytes / size_of::<f32>();
        match buffer {
            "heap" => {
                self.heap = Vec::new();
                self.heap = vec![0.0; len];
            }
            "own" => {
                self.own = None;
                self.own = Some(self.communicator.buffer(len)?);
            }
            other => bail!("there is no buffer `{other}`"),
        }
        let (rank, world) = (self.communicator.group().me().0 as usize, self.world());
        for (i, value) in self.data(buffer)?.iter_mut().enumerate() {
            *value = (i % PERIOD + rank + 1) as f32;
        }
        reset_peak()?;
        let (before, shared) = (status_bytes("VmRSS:")?, status_bytes("RssShmem:")?);
        self.communicator.barrier()?;
        self.reduce(buffer)?;
        let (peak, shared_after) = (status_bytes("VmHWM:")?, status_bytes("RssShmem:")?);
        let expected = |i: usize| (world * (i % PERIOD) + world * (world + 1) / 2) as f32;
        let data = self.data(buffer)?;
        let wrong = data.iter().enumerate().filter(|(i, value)| **value != expected(*i)).count();
        ensure!(wrong == 0, "{wrong} of {len} sums are wrong");
        Ok(Prepared { before, peak, shared: i64::try_from(shared_after)? - i64::try_from(shared)? })
    }

    fn time(&mut self, buffer: &str, plan: &Plan) -> Result<Times> {
        // Sums of zeros stay zeros, however often they are summed.
        let fill = if plan.calls == 1 { 1.0 } else { 0.0 };
        let sum = fill * self.world() as f32;
        let (mut seconds, mut used) = (Vec::new(), Duration::ZERO);
        for repetition in 0..plan.warm + plan.repetitions {
            self.data(buffer)?.fill(fill);
            self.communicator.barrier()?;
            let (cpu_before, began) = (cpu(), Instant::now());
            for _ in 0..plan.calls {
                self.reduce(buffer)?;
            }
            let (took, cpu_used) = (began.elapsed(), cpu().saturating_sub(cpu_before));
            if repetition >= plan.warm {
                seconds.push(took.as_secs_f64() / f64::from(plan.calls));
                used += cpu_used;
            }
            let data = self.data(buffer)?;
            ensure!(data.first() == Some(&sum) && data.last() == Some(&sum), "a sum is wrong");
        }
        let calls = f64::from(plan.calls) * plan.repetitions as f64;
        Ok(Times { seconds, cpu_s: used.as_secs_f64() / calls, idle_cpu_s: 0.0 })
    }

    fn until_failure(&mut self, data: &mut [f32]) -> Failed {
        loop {
            if let Err(error) = self.communicator.all_reduce(data, ReduceOp::Sum) {
                let at = clock_time(ClockId::Monotonic);
                return Failed {
                    at_ns: u64::try_from(at.as_nanos()).unwrap_or(u64::MAX),
                    culprit: self.culprit(&error),
                    text: error.to_string(),
                };
            }
        }
    }

    fn culprit(&self, error: &CollectiveError) -> Option<u32> {
        Some(self.communicator.group().rank_of(error.culprit()?)?.0)
    }
}
