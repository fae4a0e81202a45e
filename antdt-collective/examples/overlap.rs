//! How much of the reduction hides behind the backward pass: two ranks as threads over loopback.
//!
//! `cargo run --release -p antdt-collective --example overlap -- [layers] [layer KiB] [layer µs]`
//!
//! Three times per step, medians of all steps: the backward pass alone, the reduction alone (all layers handed over at
//! once), and both with each layer handed over as it is made. Once with a backward pass that computes on this host, which
//! then shares its cores with the reduction, and once with one that runs elsewhere, as on an accelerator: the thread
//! only waits for it.
#![allow(
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an example that measures reads the clock and rounds what it read"
)]

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use antdt_collective::{
    AbortHandle, Buckets, CommunicatorConfig, Group, JobToken, Listener, Member, Reducer,
    ScheduledCommunicator, TcpTransport,
};
use antdt_core::{Holder, Incarnation, MembershipVersion, NodeId, Rank};

type Failure = Box<dyn std::error::Error + Send + Sync>;
type TcpReducer = Reducer<ScheduledCommunicator<TcpTransport>>;

const STEPS: usize = 31;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
struct Model {
    layers: usize,
    layer_len: usize,
    layer_time: Duration,
}

/// Where the backward pass runs.
#[derive(Debug, Clone, Copy)]
enum Backward {
    Here { passes: u32 },
    Elsewhere,
}

fn main() -> Result<(), Failure> {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let mut number = |default: u64| numbers.next().transpose().map(|found| found.unwrap_or(default));
    let model = Model {
        layers: usize::try_from(number(24)?)?,
        layer_len: usize::try_from(number(2048)?)? * 1024 / size_of::<f32>(),
        layer_time: Duration::from_micros(number(2000)?),
    };
    println!("{model:?}, 2 ranks, buckets of 8 MiB after a first one of 1 MiB, medians of {STEPS} steps");
    println!(
        "{:<10} {:>12} {:>12} {:>12} {:>18}",
        "backward", "alone", "reduction", "both", "reduction hidden"
    );
    for (name, backward) in
        [("here", Backward::Here { passes: calibrate(model) }), ("elsewhere", Backward::Elsewhere)]
    {
        let [backward, reduction, both] = measure(model, backward)?;
        let hidden = (backward + reduction - both) / reduction;
        let ms = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
        println!(
            "{name:<10} {:>12} {:>12} {:>12} {:>17.0}%",
            ms(backward),
            ms(reduction),
            ms(both),
            hidden * 100.0
        );
    }
    Ok(())
}

// Seconds of rank 0: the backward pass alone, the reduction alone, both.
fn measure(model: Model, backward: Backward) -> Result<[f64; 3], Failure> {
    let address = "127.0.0.1:0".parse()?;
    let listeners: Vec<Listener> =
        (0..2).map(|_| Listener::bind(address, JobToken::new("overlap"))).collect::<Result<_, _>>()?;
    let members: Vec<Member> = (0..)
        .zip(&listeners)
        .map(|(index, listener)| Member {
            holder: Holder::new(NodeId::worker(index), Incarnation(0)),
            address: listener.local_address(),
        })
        .collect();
    let together = Barrier::new(2);
    let run = |rank: u32, listener: &Listener| -> Result<[f64; 3], Failure> {
        let group = Group::new(MembershipVersion(1), members.clone(), Rank(rank))?;
        let abort = AbortHandle::new()?;
        let transport = TcpTransport::connect(listener, &group, PATIENCE, &abort)?;
        let communicator = ScheduledCommunicator::new(transport, CommunicatorConfig::default());
        let plan = Buckets::plan(&vec![model.layer_len; model.layers], 8 << 20, 1 << 20);
        let mut reducer = Reducer::new(communicator, plan, abort)?;
        let mut times = [const { Vec::new() }; 3];
        let mut gradients = vec![vec![0.0_f32; model.layer_len]; model.layers];
        for _ in 0..STEPS {
            for (kind, times) in times.iter_mut().enumerate() {
                together.wait();
                let began = Instant::now();
                step(model, &mut reducer, &mut gradients, (kind != 1).then_some(backward), kind > 0)?;
                times.push(began.elapsed().as_secs_f64());
            }
        }
        Ok(times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        }))
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| run(1, &listeners[1]));
        let mine = run(0, &listeners[0]);
        other.join().map_err(|_| "rank 1 panicked")??;
        mine
    })
}

// One step: with a backward pass, unless there is no place for it, and with a reduction or not.
fn step(
    model: Model,
    reducer: &mut TcpReducer,
    gradients: &mut [Vec<f32>],
    backward: Option<Backward>,
    reduces: bool,
) -> Result<(), Failure> {
    let mut handles = Vec::new();
    for layer in (0..model.layers).rev() {
        match backward {
            None => {}
            Some(Backward::Here { passes }) => compute(&mut gradients[layer], passes),
            Some(Backward::Elsewhere) => thread::sleep(model.layer_time),
        }
        if reduces {
            handles.push(reducer.submit(layer, std::mem::take(&mut gradients[layer]))?);
        }
    }
    if reduces {
        reducer.finish(Instant::now() + PATIENCE)?;
    }
    for handle in handles {
        let layer = handle.layer();
        gradients[layer] = handle.wait(Instant::now() + PATIENCE)?;
    }
    Ok(())
}

// Arithmetic that stays in the cache: a layer's matrix products.
fn compute(gradient: &mut [f32], passes: u32) {
    let block = gradient.len().min(1 << 12);
    for _ in 0..passes {
        gradient[..block].iter_mut().for_each(|value| *value = value.mul_add(0.5, 0.25));
        std::hint::black_box(&mut *gradient);
    }
}

// Passes that take a layer's time on an idle core.
fn calibrate(model: Model) -> u32 {
    let mut gradient = vec![0.0; model.layer_len];
    let (mut passes, mut took) = (1, Duration::ZERO);
    while took < Duration::from_millis(20) {
        passes *= 2;
        let began = Instant::now();
        compute(&mut gradient, passes);
        took = began.elapsed();
    }
    (f64::from(passes) * model.layer_time.as_secs_f64() / took.as_secs_f64()).round().max(1.0) as u32
}
