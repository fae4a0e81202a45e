//! A master of 1,000 hosts with four workers each, or as many as this system allows it descriptors for: what their heartbeats cost it, how long they take, and what a scrape of its metrics is.
//!
//! The workers are connections of this process, which register and beat as often as they are told to; the master is a process of its own.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use antdt::run_dir::{self, MasterFile};
use antdt_core::{Connections, Holder, Incarnation, NodeId};
use antdt_proto::v1::control_client::ControlClient;
use antdt_proto::{Bearer, JobChannel, Token, connection, v1};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::Endpoint;

use super::super::meter::{quantile, status_bytes_of};
use super::super::run::{last_lines, program_with};
use super::Scale;
use crate::{Entry, Rows, Settings};

const HOSTS: u32 = 1_000;
const PER_HOST: u32 = 4;

/// Descriptors that a master asks for with each worker, and others.
const OF_WORKER: u64 = 5;
const SPARE: u64 = 200;

/// How long the master may take to start, and a call.
const LIMIT: Duration = Duration::from_secs(60);

/// Between the registration of the last worker and the first heartbeat that counts.
const WARM_UP: Duration = Duration::from_secs(2);

/// Between two attempts to register.
const PAUSE: Duration = Duration::from_millis(200);

/// Ticks of the processor's clock in a second, as Linux tells them to programs.
const TICKS: f64 = 100.0;

/// The master. It ends with this value.
struct Master {
    child: Child,
    run_dir: PathBuf,
    log: PathBuf,
}

impl Drop for Master {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Master {
    fn start(folder: &Path, workers: u32) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("antdt-crowd");
        ensure!(
            program.is_file(),
            "{} is not there; build antdt-lab with all its programs",
            program.display()
        );
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder)?;
        let (run_dir, log) = (folder.join("run"), folder.join("master.log"));
        let words = format!(
            "run --launcher crowd --nproc-per-node {workers} --data synthetic:1000000 --global-batch-size {workers} --policy none \
             --http-addr 127.0.0.1:0 --quiet --run-dir"
        );
        let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        words.push(run_dir.display().to_string());
        let child = program_with(&program, &words, File::create(&log)?)?;
        Ok(Self { child, run_dir, log })
    }

    fn reach(&mut self) -> Result<(MasterFile, Token)> {
        let began = Instant::now();
        loop {
            if let Ok(found) = run_dir::read(&self.run_dir) {
                return Ok(found);
            }
            if self.child.try_wait()?.is_some() || began.elapsed() > LIMIT {
                bail!("the master did not start: {}", last_lines(&self.log));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Seconds that it has computed.
    fn cpu(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name, in brackets, may have spaces; the times are the 12th and 13th word after it.
        let words: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| words.get(at).and_then(|word| word.parse::<f64>().ok());
        Ok((ticks(11).zip(ticks(12)).map(|(user, system)| user + system)).context("no times")? / TICKS)
    }
}

pub(super) fn control(settings: &Settings, scale: &Scale, rows: &mut Rows) -> Result<()> {
    let hosts = hosts()?;
    let workers = hosts * PER_HOST;
    let folder = std::path::absolute(settings.report_dir.join("control"))?;
    let mut master = Master::start(&folder, workers)?;
    let (file, token) = master.reach()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (told, beats) = unbounded_channel();
    let count = Arc::new(AtomicU32::new(0));
    let mut crowd = runtime.block_on(gather((&file, &token), workers, &count, told))?;
    await_all(&count, workers)?;
    std::thread::sleep(WARM_UP);
    let seen = Beats { received: beats };
    let (before, began) = (master.cpu()?, Instant::now());
    let mut times = runtime.block_on(seen.within(scale.watched))?;
    let cores = (master.cpu()? - before) / began.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "numbers of bytes and of calls")]
    let (memory, rate) = (
        status_bytes_of(&master.child.id().to_string(), "VmRSS:")? as f64
            / f64::from(workers)
            / f64::from(1 << 20),
        times.len() as f64 / began.elapsed().as_secs_f64(),
    );
    let [p50, p99] = [0.5, 0.99].map(|share| quantile(&mut times, share).as_secs_f64() * 1e3);
    let what = format!("control plane, {hosts} hosts with {workers} workers");
    rows.push(
        Entry::shown(format!("{what}: heartbeat p99"), p99, "ms")
            .at_most(100.0)
            .beside(format!("p50 {p50:.2} ms; {rate:.0} heartbeats/s")),
    );
    rows.push(Entry::shown(format!("{what}: master"), cores, "cores").at_most(1.0));
    rows.push(Entry::shown(format!("{what}: its memory for each"), memory, "MiB").at_most(1.0));
    scrape(&file, workers, rows)?;
    runtime.block_on(async { crowd.shutdown().await });
    Ok(())
}

/// How many hosts a master can have here: as many as wanted, unless the system allows it too few descriptors. Raises the limit of this
/// process to the most, which the master takes over.
fn hosts() -> Result<u32> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let workers = limit.maximum.map_or(u64::MAX, |most| most.saturating_sub(SPARE) / OF_WORKER);
    let most = u32::try_from(workers / u64::from(PER_HOST)).unwrap_or(u32::MAX);
    ensure!(most > 0, "this system allows too few descriptors; raise `ulimit -Hn`");
    Ok(HOSTS.min(most))
}

/// When a heartbeat began and how long it took, or why a worker was turned away.
type BeatSender = UnboundedSender<Result<(Instant, Duration), tonic::Status>>;

/// How long heartbeats have taken.
struct Beats {
    received: UnboundedReceiver<Result<(Instant, Duration), tonic::Status>>,
}

impl Beats {
    /// Those that begin from now on, for so long.
    ///
    /// # Errors
    /// If one has failed.
    async fn within(mut self, length: Duration) -> Result<Vec<Duration>> {
        let began = Instant::now();
        let mut times = Vec::new();
        while let Ok(Some(beat)) =
            tokio::time::timeout(length.saturating_sub(began.elapsed()), self.received.recv()).await
        {
            let (at, took) = beat.context("a worker was turned away")?;
            if at >= began {
                times.push(took);
            }
        }
        Ok(times)
    }
}

/// Waits until all workers have registered.
fn await_all(registered: &AtomicU32, workers: u32) -> Result<()> {
    let began = Instant::now();
    while registered.load(Ordering::Relaxed) < workers {
        ensure!(
            began.elapsed() < LIMIT,
            "{} of {workers} workers have registered within {LIMIT:?}",
            registered.load(Ordering::Relaxed)
        );
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Registers all workers, each over a connection of its own, and has them beat until the set is dropped.
async fn gather(
    (file, token): (&MasterFile, &Token),
    workers: u32,
    registered: &Arc<AtomicU32>,
    beats: BeatSender,
) -> Result<JoinSet<()>> {
    let endpoint = Endpoint::from_shared(format!("http://{}", file.address))?.timeout(LIMIT);
    let mut crowd = JoinSet::new();
    for worker in 0..workers {
        let channel = connection::channel(&endpoint, LIMIT, Connections::default());
        let client = ControlClient::new(Bearer::new(token).over(channel));
        let (job, registered, beats) = (file.job.clone(), Arc::clone(registered), beats.clone());
        crowd.spawn(async move {
            let said = beat(client, worker, job, (&registered, &beats)).await;
            let _ = beats.send(Err(said));
        });
    }
    Ok(crowd)
}

/// Beats until a call fails, and says how.
async fn beat(
    mut client: ControlClient<JobChannel>,
    worker: u32,
    job: String,
    (registered, beats): (&AtomicU32, &BeatSender),
) -> tonic::Status {
    let holder: v1::Holder = Holder::new(NodeId::worker(worker), Incarnation(0)).into();
    let request = v1::RegisterRequest {
        holder: Some(holder),
        job,
        host: format!("host-{}", worker / PER_HOST),
        device: "cpu".to_owned(),
        batch_size_min: 1,
        batch_size_max: 1024,
        data_address: format!("127.0.0.1:{}", 1 + worker),
        process_id: 1 + worker,
        memory_bytes: None,
    };
    let began = Instant::now();
    let every = loop {
        match client.register(request.clone()).await {
            Ok(reply) => break Duration::from_nanos(reply.into_inner().heartbeat_ns),
            // A master closes connections of which too many come at once, and nodes come again.
            Err(status)
                if [Code::Unavailable, Code::Unknown, Code::Cancelled].contains(&status.code())
                    && began.elapsed() < LIMIT =>
            {
                tokio::time::sleep(PAUSE).await;
            }
            Err(status) => return status,
        }
    };
    registered.fetch_add(1, Ordering::Relaxed);
    // Not all at once.
    tokio::time::sleep(every * (worker % 97) / 97).await;
    loop {
        let request = v1::HeartbeatRequest { holder: Some(holder), ..v1::HeartbeatRequest::default() };
        let began = Instant::now();
        if let Err(status) = client.heartbeat(request).await {
            return status;
        }
        if beats.send(Ok((began, began.elapsed()))).is_err() {
            return tonic::Status::cancelled("nobody counts any more");
        }
        tokio::time::sleep(every.saturating_sub(began.elapsed())).await;
    }
}

/// What Prometheus gets, while the workers beat.
fn scrape(file: &MasterFile, workers: u32, rows: &mut Rows) -> Result<()> {
    let page = file.page.as_deref().context("the job has no page")?;
    let address = page.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mut times = Vec::new();
    let mut series = 0;
    for _ in 0..9 {
        let began = Instant::now();
        let mut stream = TcpStream::connect(&address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(
            format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        times.push(began.elapsed());
        ensure!(text.starts_with("HTTP/1.1 200"), "{}", text.lines().next().unwrap_or("no answer"));
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        series = body.lines().filter(|line| line.starts_with("antdt_")).count();
    }
    let median = quantile(&mut times, 0.5).as_secs_f64() * 1e3;
    rows.push(
        Entry::shown(format!("metrics of {workers} workers: a scrape"), median, "ms")
            .at_most(50.0)
            .beside(format!("{series} series")),
    );
    #[allow(clippy::cast_precision_loss, reason = "a number of lines")]
    let series = series as f64;
    rows.push(Entry::shown(format!("metrics of {workers} workers: series"), series, "").at_most(5_000.0));
    Ok(())
}
