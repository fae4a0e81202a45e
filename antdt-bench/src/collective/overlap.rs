//! How much of the reduction of a step hides behind its backward pass, when layers are handed over as they are made.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use antdt_collective::{
    AbortHandle, Buckets, CommunicatorConfig, Group, JobToken, Listener, Member, Reducer,
    ScheduledCommunicator, TcpTransport,
};
use antdt_core::{Holder, Incarnation, MembershipVersion, NodeId, Rank};
use anyhow::{Context, Result, anyhow};

use crate::meter::median;
use crate::{Entry, Rows};

/// 48 MiB of gradients, whose reduction takes about half as long as the backward pass.
const LAYERS: usize = 24;
const LAYER_LEN: usize = 512 << 10;
const LAYER_TIME: Duration = Duration::from_millis(2);
/// Bytes of a bucket, and of the first one.
const BUCKET: (usize, usize) = (8 << 20, 1 << 20);
/// Passes over a block of a layer between two readings of the clock, where it is computed.
const PASSES: u32 = 64;
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the backward pass runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backward {
    /// On an accelerator: the thread waits for it.
    Elsewhere,
    /// On the cores that reduce, one for each rank.
    Here,
}

/// Seconds of a step, medians of rank 0.
struct Step {
    backward: f64,
    reduction: f64,
    both: f64,
}

/// A line for each place where the backward pass can run.
pub(super) fn overlap(steps: usize, rows: &mut Rows) -> Result<()> {
    for (place, backward) in [("elsewhere", Backward::Elsewhere), ("on the same cores", Backward::Here)] {
        let Step { backward, reduction, both } = measure(steps, backward)?;
        let hidden = (backward + reduction - both) / reduction;
        let title = format!("{OVERLAP}: hidden behind a backward pass {place}");
        let [backward, reduction, both] = [backward, reduction, both].map(|seconds| seconds * 1e3);
        rows.push(
            Entry::shown(title, 100.0 * hidden, "%")
                .beside(format!("backward {backward:.1} ms, reduction {reduction:.1} ms, both {both:.1} ms")),
        );
    }
    Ok(())
}

/// What its lines begin with.
pub(super) const OVERLAP: &str = "tcp, 2 ranks, reduction of 48 MiB in buckets";

fn measure(steps: usize, backward: Backward) -> Result<Step> {
    let address: SocketAddr = ([127, 0, 0, 1], 0).into();
    let bind = |_| Listener::bind(address, JobToken::new("overlap"));
    let listeners = (0..2).map(bind).collect::<Result<Vec<Listener>, _>>()?;
    let holder = |index| Holder::new(NodeId::worker(index), Incarnation(0));
    let members = (0..).zip(&listeners);
    let members: Vec<Member> = members
        .map(|(index, listener)| Member { holder: holder(index), address: listener.local_address() })
        .collect();
    let together = Barrier::new(2);
    let run = |me: Rank, listener: &Listener| -> Result<Step> {
        let group = Group::new(MembershipVersion(1), members.clone(), me)?;
        let abort = AbortHandle::new()?;
        let transport = TcpTransport::connect(listener, &group, PATIENCE, &abort)?;
        let communicator = ScheduledCommunicator::new(transport, CommunicatorConfig::default());
        let plan = Buckets::plan(&[LAYER_LEN; LAYERS], BUCKET.0, BUCKET.1);
        let mut reducer = Reducer::new(communicator, plan, abort)?;
        let mut gradients = vec![vec![0.0_f32; LAYER_LEN]; LAYERS];
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..steps {
            for (kind, times) in times.iter_mut().enumerate() {
                together.wait();
                let began = Instant::now();
                step(&mut reducer, &mut gradients, (kind != 1).then_some(backward), kind > 0)?;
                times.push(began.elapsed().as_secs_f64());
            }
        }
        let [backward, reduction, both] = times.map(median);
        Ok(Step { backward, reduction, both })
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| run(Rank(1), &listeners[1]));
        let mine = run(Rank(0), &listeners[0]);
        other.join().map_err(|_| anyhow!("rank 1 panicked"))?.context("rank 1")?;
        mine.context("rank 0")
    })
}

// With a backward pass, unless there is no place for it, and with a reduction or not.
fn step(
    reducer: &mut Reducer<ScheduledCommunicator<TcpTransport>>,
    gradients: &mut [Vec<f32>],
    backward: Option<Backward>,
    reduces: bool,
) -> Result<()> {
    for layer in (0..LAYERS).rev() {
        match backward {
            None => {}
            Some(Backward::Here) => compute(&mut gradients[layer]),
            Some(Backward::Elsewhere) => thread::sleep(LAYER_TIME),
        }
        if reduces {
            reducer.submit(layer, &gradients[layer])?;
        }
    }
    if reduces {
        reducer.finish(Instant::now() + PATIENCE)?;
        for layer in 0..LAYERS {
            std::hint::black_box(reducer.wait(layer, Instant::now() + PATIENCE)?);
        }
    }
    Ok(())
}

// Arithmetic that stays in the cache, as a layer's matrix products do, for a layer's time on the core. The clock of the
// thread stands still while others have the core.
fn compute(gradient: &mut [f32]) {
    let cpu = || crate::meter::clock_time(rustix::time::ClockId::ThreadCPUTime);
    let block = gradient.len().min(1 << 12);
    let until = cpu() + LAYER_TIME;
    while cpu() < until {
        for _ in 0..PASSES {
            gradient[..block].iter_mut().for_each(|value| *value = value.mul_add(0.5, 0.25));
            std::hint::black_box(&mut *gradient);
        }
    }
}
