//! What shared memory gives parameter servers: pulls and pushes of one worker over TCP and through shared memory, in turns,
//! against two servers in processes of their own. `cargo run --release -p antdt-model --example transports`.
//!
//! Each round times a few steps over one transport and as many over the other one; what counts is the ratio of the two, whose
//! median and 95 % interval over all rounds is printed (by order statistics).
#![allow(clippy::disallowed_methods, reason = "this program measures time")]

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use antdt_collective::runtime::transport::REGISTRY;
use antdt_collective::{AbortHandle, JobToken};
use antdt_core::{Holder, Incarnation, Iteration, NodeId, ParamLayout, Seed, ServerWeights, TableSpec};
use antdt_model::{
    PartitionConfig, PsClient, PsClientConfig, PsServer, PsServerConfig, Staleness, UpdateRule,
};

type Fallible<T> = Result<T, Box<dyn Error>>;

const SERVERS: u32 = 2;
const ROUNDS: usize = 300;
const TRANSPORTS: [&str; 2] = ["tcp", "shm"];

/// Dense values, and rows of 9 values, that a step pulls and pushes.
const LOADS: [(&str, usize, u64); 3] = [
    ("46 KB dense, 5,000 rows of 9", 46 * 1024 / 4, 5000),
    ("4 MiB dense, no rows", 1 << 20, 0),
    ("4 KB dense, 50 rows of 9", 1024, 50),
];

fn job() -> JobToken {
    JobToken::new("transports")
}

fn layout(load: usize) -> Fallible<ParamLayout> {
    let (_, dense_len, _) = LOADS[load];
    Ok(ParamLayout::dense(dense_len).with_table(TableSpec::new("table", 1 << 20, 9, 0.01))?)
}

/// Serves until its standard input ends.
fn serve(transport: &str, server: u32, load: usize) -> Fallible<()> {
    let partition = PartitionConfig {
        layout: layout(load)?,
        rule: UpdateRule::named("adagrad", 0.1)?,
        seed: Seed(1),
        server,
        servers: SERVERS,
        weights: ServerWeights::default(),
        staleness: Staleness::Unbounded { scale: 1.0 },
    };
    let config = PsServerConfig::new(partition, job());
    let server = PsServer::bind(([127, 0, 0, 1], 0).into(), config, REGISTRY.by_name(transport)?)?;
    println!("{}", server.local_address());
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Ends the servers, which wait for the end of their input.
impl Drop for Side {
    fn drop(&mut self) {
        for server in &mut self.servers {
            drop(server.stdin.take());
            if let Err(error) = server.wait() {
                eprintln!("a server: {error}");
            }
        }
    }
}

/// Servers, and a worker that is connected with them.
struct Side {
    client: PsClient,
    step: u64,
    servers: Vec<Child>,
}

impl Side {
    fn start(transport: &str, load: usize) -> Fallible<Self> {
        let (mut servers, mut addresses) = (Vec::new(), Vec::<SocketAddr>::new());
        for server in 0..SERVERS {
            let mut child = Command::new(std::env::current_exe()?)
                .args([transport, &server.to_string(), &load.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let mut line = String::new();
            BufReader::new(child.stdout.take().ok_or("piped")?).read_line(&mut line)?;
            addresses.push(line.trim().parse()?);
            servers.push(child);
        }
        let worker = Holder::new(NodeId::worker(0), Incarnation(0));
        let config = PsClientConfig::new(worker, job(), layout(load)?);
        let fabric = REGISTRY.by_name(transport)?;
        let mut client = PsClient::connect(&addresses, config, &*fabric, &AbortHandle::new()?)?;
        client.init_dense(&vec![0.5; layout(load)?.dense_len()])?;
        Ok(Self { client, step: 0, servers })
    }

    /// Seconds for so many steps.
    fn run(&mut self, steps: usize, rows: &[u64], dense: &mut [f32], values: &mut Vec<f32>) -> Fallible<f64> {
        let began = Instant::now();
        for _ in 0..steps {
            self.client.pull(None, rows, dense, values)?;
            self.client.push(Iteration(self.step), 1, dense, rows, values)?;
            self.step += 1;
        }
        Ok(began.elapsed().as_secs_f64())
    }
}

fn main() -> Fallible<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [transport, server, load] = &args[..] {
        return serve(transport, server.parse()?, load.parse()?);
    }
    for (load, (name, dense_len, row_count)) in LOADS.into_iter().enumerate() {
        let mut sides = [Side::start(TRANSPORTS[0], load)?, Side::start(TRANSPORTS[1], load)?];
        let rows: Vec<u64> = (0..row_count).map(|row| row * 199).collect();
        let (mut dense, mut values) = (vec![0.0; dense_len], Vec::new());
        // So that half a round takes some 10 ms.
        let warm = sides[0].run(3, &rows, &mut dense, &mut values)?;
        sides[1].run(3, &rows, &mut dense, &mut values)?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
        let steps = ((0.01 * 3.0 / warm) as usize).clamp(1, 100);
        let (mut ratios, mut seconds) = (Vec::new(), [Vec::new(), Vec::new()]);
        for round in 0..ROUNDS {
            let mut took = [0.0; 2];
            // Each goes first in every other round.
            for turn in [round % 2, 1 - round % 2] {
                took[turn] = sides[turn].run(steps, &rows, &mut dense, &mut values)? / steps as f64;
                seconds[turn].push(took[turn]);
            }
            ratios.push(took[0] / took[1]);
        }
        let [tcp, shm] = seconds.map(|mut of| at(&mut of, 0.5) * 1e6);
        // Ranks of the 95 % interval of a median: n/2 ± 0.98 √n.
        let half = 0.98 / (ROUNDS as f64).sqrt();
        let (low, high) = (at(&mut ratios, 0.5 - half), at(&mut ratios, 0.5 + half));
        let middle = at(&mut ratios, 0.5);
        println!(
            "{name}: tcp {tcp:.0} µs, shm {shm:.0} µs a step; shm is {middle:.2}x as fast [{low:.2}, {high:.2}]"
        );
    }
    Ok(())
}

/// The value below which such a share lies.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
fn at(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(share * (values.len() - 1) as f64).round() as usize]
}
