//! The service in a process of its own, killed again and again at random moments, under clients that also die.
//!
//! What was promised to a client must hold in every later life of the service, and nothing may be done that no client
//! ever asked for. At the end the log must say that every sample was acknowledged once.
//!
//! This is a program of its own, and not a function of the test harness, because it starts itself as the service.

#![allow(clippy::disallowed_methods, reason = "processes, not a pure machine")]

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use antdt_core::port::ShardSource;
use antdt_core::{
    Ack, AckOutcome, Counts, Epoch, FetchOutcome, Generation, Grant, Holder, Incarnation, NodeId, RequestId,
    Seed, ShardKey,
};
use antdt_rt::{CancellationToken, JobClock};
use antdt_shard::runtime::{
    ClientOptions, FileStore, FileStoreOptions, ShardClient, ShardServer, ShardService,
};
use antdt_shard::{DatasetSpec, Epochs, LedgerStore, ShardLedger, SourceError};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

type Failure = Box<dyn Error + Send + Sync>;

const KILLS: u32 = 50;
const CLIENTS: u32 = 4;
/// Set for the process that is the service: the folder of its log.
const SERVE: &str = "ANTDT_SHARD_SERVE";
/// A hang is a failure. Nothing here takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(120);

fn spec() -> DatasetSpec {
    DatasetSpec { epochs: Epochs::Finite(3), epoch_overlap: 1, ..DatasetSpec::new("kill", 24_991, 32) }
}

/// So small that the log is compacted several times in each life.
fn options() -> FileStoreOptions {
    FileStoreOptions { segment_bytes: 2_048, ..FileStoreOptions::default() }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    if std::env::args().any(|arg| arg == "--list") {
        return Ok(()); // There is nothing that could be chosen from.
    }
    match std::env::var_os(SERVE) {
        Some(folder) => serve(folder.as_ref()).await,
        None => timeout(PATIENCE, kill_again_and_again()).await?,
    }
}

/// The service, until it is killed or its parent is gone.
async fn serve(folder: &Path) -> Result<(), Failure> {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    let store = FileStore::open(folder, spec(), options())?;
    let service = ShardService::start(spec(), store, JobClock::start(), CancellationToken::new()).await?;
    let server = ShardServer::new().with(service.handle())?.into_service();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Ok(Server::builder().add_service(server).serve_with_incoming(incoming).await?)
}

/// Starts the service and waits for its address.
fn start(folder: &Path) -> Result<(Child, String), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(SERVE, folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let stdout = child.stdout.take().ok_or("the output is piped")?;
    let mut address = String::new();
    BufReader::new(stdout).read_line(&mut address)?;
    if address.is_empty() {
        return Err(format!("the service did not start: {}", child.wait()?).into());
    }
    Ok((child, address.trim().to_owned()))
}

async fn kill_again_and_again() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let mut rng = Seed(20_240).rng();
    let world = Arc::new(World::default());
    let (addresses, address) = watch::channel(None);
    let mut clients = JoinSet::new();
    for index in 0..CLIENTS {
        clients.spawn(train(index, address.clone(), world.clone()));
    }
    let mut kills = 0;
    let last = loop {
        let (mut child, address) = start(folder.path())?;
        if kills == KILLS {
            addresses.send_replace(Some(address));
            break child;
        }
        // One in eight dies before anybody reaches it.
        if rng.below(8) > 0 {
            addresses.send_replace(Some(address));
            let until = world.answers.load(Ordering::Relaxed) + rng.below(200);
            while world.answers.load(Ordering::Relaxed) < until {
                tokio::select! {
                    () = world.answered.notified() => {}
                    Some(ended) = clients.join_next() => {
                        ended??;
                        return Err(format!("the data came to its end after {kills} kills; take more").into());
                    }
                }
            }
        }
        child.kill()?; // SIGKILL
        child.wait()?;
        kills += 1;
    };
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    let mut last = last;
    last.kill()?;
    last.wait()?;
    world.check(folder.path()).await?;
    println!(
        "{kills} kills, {} answers, {} of {} samples trained more than once: nothing lost, nothing counted twice",
        world.answers.load(Ordering::Relaxed),
        world.trained.load(Ordering::Relaxed) - world.promised().values().sum::<u64>(),
        spec().num_samples * 3,
    );
    Ok(())
}

/// What the clients know, whoever serves them.
#[derive(Default)]
struct World {
    /// Acknowledged offsets that a service said were accepted.
    promised: Mutex<BTreeMap<ShardKey, u64>>,
    /// Offsets that somebody asked a service to acknowledge.
    said: Mutex<BTreeMap<ShardKey, u64>>,
    /// Samples that were trained, repetitions included.
    trained: AtomicU64,
    answers: AtomicU64,
    answered: Notify,
}

impl World {
    fn promised(&self) -> std::sync::MutexGuard<'_, BTreeMap<ShardKey, u64>> {
        self.promised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn said(&self) -> std::sync::MutexGuard<'_, BTreeMap<ShardKey, u64>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.answered.notify_one();
    }

    fn granted(&self, grant: &Grant) -> Result<(), Failure> {
        let promised = self.promised().get(&grant.key).copied().unwrap_or(0);
        let said = self.said().get(&grant.key).copied().unwrap_or(0);
        if grant.resume_at < promised || grant.resume_at > said {
            return Err(format!("{promised} were promised and {said} said to be done of {grant:?}").into());
        }
        Ok(())
    }

    /// What is left on the disk agrees with what the clients know.
    async fn check(&self, folder: &Path) -> Result<(), Failure> {
        let mut store = FileStore::open(folder, spec(), options())?;
        let records = store.load().await?;
        let ledger = ShardLedger::recover(spec(), records, Generation(u64::MAX))?;
        let total = spec().num_samples * 3;
        let expected = Counts { total, acked: total, ..Counts::default() };
        if ledger.counts() != expected || !ledger.is_finished() {
            return Err(format!("the log says {:?}", ledger.counts()).into());
        }
        for epoch in 0..3 {
            for index in 0..spec().shard_count() {
                let key = ShardKey { epoch: Epoch(epoch), index };
                // The last ack of a shard may have been stored and its answer lost with the service.
                if self.said().get(&key).copied() != Some(spec().shard(index).len()) {
                    return Err(format!("{key:?} is done though nobody trained it").into());
                }
            }
        }
        Ok(())
    }
}

/// A client for as long as there is data, whoever serves.
async fn train(
    index: u32,
    mut address: watch::Receiver<Option<String>>,
    world: Arc<World>,
) -> Result<(), Failure> {
    let mut rng = Seed(u64::from(index)).rng();
    let mut life = 0;
    loop {
        let Some(at) = address.borrow_and_update().clone() else {
            address.changed().await?;
            continue;
        };
        // Not repeated: the next service has another address.
        let options = ClientOptions { retry_for: Duration::ZERO, ..ClientOptions::default() };
        let client = ShardClient::connect(&at, "kill", options)?;
        match train_at(&client, NodeId::worker(index), &mut life, &mut rng, &world).await {
            Ok(()) => return Ok(()),
            Err(error) => match error.downcast_ref() {
                Some(SourceError::Unavailable { .. }) => address.changed().await?,
                _ => return Err(error),
            },
        }
    }
}

async fn train_at(
    client: &ShardClient,
    node: NodeId,
    life: &mut u32,
    rng: &mut antdt_core::DetRng,
    world: &World,
) -> Result<(), Failure> {
    let mut request = RequestId(0);
    loop {
        let holder = Holder::new(node, Incarnation(*life));
        client.register(holder).await?;
        loop {
            request = request.next();
            let grant = match client.fetch(holder, request, Duration::from_secs(1)).await? {
                FetchOutcome::Granted(grant) => grant,
                FetchOutcome::Wait { .. } => continue,
                FetchOutcome::EndOfData => return Ok(()),
                FetchOutcome::AtLimit => return Err("every lease was acknowledged".into()),
            };
            world.count_answer();
            world.granted(&grant)?;
            let mut offset = grant.resume_at;
            while offset < grant.len {
                let step = 1 + rng.below(20).min(grant.len - offset - 1);
                world.trained.fetch_add(step, Ordering::Relaxed);
                offset += step;
                world.said().entry(grant.key).and_modify(|o| *o = offset.max(*o)).or_insert(offset);
                let outcomes = client.ack(holder, &[Ack { lease: grant.lease, offset }]).await?;
                if outcomes != [AckOutcome::Accepted] {
                    return Err(format!("{holder} holds {grant:?} and was told {outcomes:?}").into());
                }
                world.promised().entry(grant.key).and_modify(|o| *o = offset.max(*o)).or_insert(offset);
                world.count_answer();
                if rng.below(100) == 0 {
                    break;
                }
            }
            if offset < grant.len {
                // This life ends in the middle of a shard; the next one begins without a word of it.
                *life += 1;
                break;
            }
        }
    }
}
