//! The service in a process of its own, killed again and again at random moments, under clients that also die.
//!
//! What was promised to a client must hold in every later life of the service, and nothing may be done that no client
//! ever asked for. At the end the log must say that every sample was acknowledged once. Four rounds:
//!
//! - No process dies: then nothing is trained twice.
//! - The service is killed 200 times, clients die in between, and what survives presents its leases.
//! - The service is killed, the clients live: with and without presenting, and how much is trained again.
//! - The machine of the service is lost with the end of the log that was not durable yet.
//!
//! `ANTDT_KILL_SEED` takes another way through all this; when exactly a process dies is up to the system.
//!
//! This is a program of its own, and not a function of the test harness, because it starts itself as the service.

#![allow(clippy::disallowed_methods, reason = "processes, not a pure machine")]

mod client;
mod service;
mod world;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use antdt_core::{DetRng, Generation, Seed};
use antdt_shard::runtime::{ClientOptions, ShardClient};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use client::{Client, Habits};
use world::ServiceWorld;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

const CLIENTS: u32 = 8;
/// A hang is a failure. Nothing here takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(300);

/// What this program is called as a test.
const TEST: &str = "nothing_is_lost_and_nothing_counted_twice_whoever_is_killed";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    // What a test runner asks first. Without an answer it takes the program for one without tests, and never starts it.
    let asked = |flag: &str| std::env::args().any(|arg| arg == flag);
    if asked("--list") {
        if !asked("--ignored") {
            println!("{TEST}: test");
        }
        return Ok(());
    }
    match service::asked() {
        Some((folder, spec)) => service::serve(&folder, spec).await,
        None => timeout(PATIENCE, all_rounds()).await?,
    }
}

async fn all_rounds() -> Result<(), Failure> {
    let seed = match std::env::var("ANTDT_KILL_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => 20_240,
    };
    println!("ANTDT_KILL_SEED={seed}");
    let mortal = Habits { deaths: true, presents: true };
    let steady = Habits { deaths: false, presents: true };
    let forgetful = Habits { deaths: false, presents: false };
    let round = |what, samples, kills, habits| Round {
        what,
        samples,
        kills,
        habits,
        machine: false,
        seed: Seed(seed),
    };

    let quiet = round("nobody dies", 30_000, 0, steady).run().await?;
    if quiet > 0 {
        return Err(format!("{quiet} samples were trained twice though nobody died").into());
    }
    round("service and clients die", 400_000, 200, mortal).run().await?;
    let forgotten = round("the service dies, leases are forgotten", 120_000, 40, forgetful).run().await?;
    let presented = round("the service dies, leases are presented", 120_000, 40, steady).run().await?;
    if presented >= forgotten / 4 {
        return Err(
            format!("presented leases repeated {presented} samples, forgotten ones {forgotten}").into()
        );
    }
    Round { machine: true, ..round("the machine dies", 160_000, 40, mortal) }.run().await?;
    Ok(())
}

/// A job under one kind of death.
struct Round {
    what: &'static str,
    samples: u64,
    kills: u32,
    habits: Habits,
    /// Whether the end of the log that is not durable is lost with each kill.
    machine: bool,
    seed: Seed,
}

impl Round {
    /// Samples that were trained more often than once.
    async fn run(self) -> Result<u64, Failure> {
        let folder = tempfile::tempdir()?;
        let spec = service::spec(self.samples / 2);
        let mut rng = self.seed.derive(self.what).rng();
        let world = Arc::new(ServiceWorld::new(spec.clone()));
        let (addresses, address) = watch::channel(None);
        let mut clients = JoinSet::new();
        for index in 0..CLIENTS {
            let client = Client::new(index, self.habits, rng.next_u64(), world.clone());
            clients.spawn(client.train(address.clone()));
        }
        let mut last = Generation(0);
        for kills in 0..self.kills {
            let (mut child, address) = service::start(folder.path(), &spec)?;
            last = check_start(&address, &world, last).await?;
            // One in eight dies before a client reaches it.
            if rng.below(8) > 0 {
                addresses.send_replace(Some(address));
                self.let_work(&world, &mut clients, &mut rng)
                    .await
                    .map_err(|e| format!("after {kills} kills: {e}"))?;
            }
            child.kill()?; // SIGKILL
            child.wait()?;
            if self.machine {
                service::lose_machine(folder.path(), last, &world, &mut rng)?;
            }
        }
        let (mut child, address) = service::start(folder.path(), &spec)?;
        check_start(&address, &world, last).await?;
        world.hurry();
        addresses.send_replace(Some(address));
        while let Some(ended) = clients.join_next().await {
            ended??;
        }
        child.kill()?;
        child.wait()?;
        let repeated = world.check(folder.path()).await?;
        println!("{}: {} kills, {}", self.what, self.kills, world.summary(repeated));
        Ok(repeated)
    }

    /// Until a random number of answers was given.
    async fn let_work(
        &self,
        world: &ServiceWorld,
        clients: &mut JoinSet<Result<(), Failure>>,
        rng: &mut DetRng,
    ) -> Result<(), Failure> {
        let until = world.answers() + rng.below(100);
        while world.answers() < until {
            tokio::select! {
                () = world.answered() => {}
                Some(ended) = clients.join_next() => {
                    ended??;
                    return Err("the data came to its end; take more".into());
                }
            }
        }
        Ok(())
    }
}

/// A service that was started again knows all that was promised, nothing that was never said, and is of a new generation.
async fn check_start(address: &str, world: &ServiceWorld, last: Generation) -> Result<Generation, Failure> {
    let client = ShardClient::connect(address, "kill", ClientOptions::default())?;
    let promised = world.promised();
    let status = client.status().await?.remove("kill").ok_or("the data set is not open")??;
    let said = world.said();
    if status.counts.acked < promised || status.counts.acked > said {
        return Err(format!("{promised} samples were promised, {said} said to be done: {status:?}").into());
    }
    if status.generation <= last {
        return Err(format!("generation {} follows on {last}", status.generation).into());
    }
    Ok(status.generation)
}
