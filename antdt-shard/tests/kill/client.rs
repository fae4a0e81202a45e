//! A client that trains for as long as there is data, whichever service answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use antdt_core::port::ShardSource;
use antdt_core::{
    Ack, AckOutcome, DetRng, FetchOutcome, Generation, Grant, Held, Holder, Incarnation, LeaseId, NodeId,
    RequestId, Seed,
};
use antdt_shard::SourceError;
use antdt_shard::runtime::{ClientOptions, ShardClient};
use tokio::sync::watch;

use crate::Failure;
use crate::world::ServiceWorld;

#[derive(Clone, Copy)]
pub(crate) struct Habits {
    /// Whether it dies now and then, in the middle of a batch.
    pub(crate) deaths: bool,
    /// Whether it presents its leases to a service that was started again.
    pub(crate) presents: bool,
}

/// A lease and how far it is: all below the offset is in the model.
struct Lease {
    grant: Grant,
    offset: u64,
}

pub(crate) struct Client {
    node: NodeId,
    habits: Habits,
    rng: DetRng,
    world: Arc<ServiceWorld>,
    life: u32,
    /// The life of the service that it is registered at.
    generation: Generation,
    request: RequestId,
    leases: VecDeque<Lease>,
    /// An ack of the life before, which no service may count any more.
    last_words: Option<(Holder, Ack)>,
}

impl Client {
    pub(crate) fn new(index: u32, habits: Habits, seed: u64, world: Arc<ServiceWorld>) -> Self {
        Self {
            node: NodeId::worker(index),
            habits,
            rng: Seed(seed).rng(),
            world,
            life: 0,
            generation: Generation(0),
            request: RequestId(0),
            leases: VecDeque::new(),
            last_words: None,
        }
    }

    pub(crate) async fn train(mut self, mut address: watch::Receiver<Option<String>>) -> Result<(), Failure> {
        loop {
            let Some(at) = address.borrow_and_update().clone() else {
                address.changed().await?;
                continue;
            };
            // Not repeated: the next service has another address.
            let options = ClientOptions { retry_for: Duration::ZERO, ..ClientOptions::default() };
            let service = ShardClient::connect(&at, "kill", options)?;
            match self.train_at(&service).await {
                Ok(()) => return Ok(()),
                Err(error) => match error.downcast_ref() {
                    Some(SourceError::Unavailable { .. }) => address.changed().await?,
                    _ => return Err(error),
                },
            }
        }
    }

    fn holder(&self) -> Holder {
        Holder::new(self.node, Incarnation(self.life))
    }

    /// Until the end of the data, or of the service.
    async fn train_at(&mut self, service: &ShardClient) -> Result<(), Failure> {
        self.register(service).await?;
        loop {
            let acks = self.train_batch();
            if self.habits.deaths && self.rng.below(100) == 0 {
                self.die(acks.first());
                self.register(service).await?;
            } else if self.exchange(service, &acks).await? {
                return Ok(());
            }
        }
    }

    async fn register(&mut self, service: &ShardClient) -> Result<(), Failure> {
        let before = std::mem::take(&mut self.leases);
        if self.habits.presents {
            // To be kept should the service die over it.
            self.leases = before;
        }
        let held =
            |lease: &Lease| Held { lease: lease.grant.lease, key: lease.grant.key, offset: lease.offset };
        let held: Vec<Held> = self.leases.iter().map(held).collect();
        for Held { key, offset, .. } in &held {
            self.world.say(*key, *offset);
        }
        let registered = service.register(self.holder(), &held).await?;
        self.generation = registered.generation;
        self.leases.clear();
        for (held, adopted) in held.iter().zip(registered.adopted) {
            self.world.presented(self.generation, held.key, held.offset, adopted.as_ref())?;
            self.leases.extend(adopted.map(|grant| Lease { grant, offset: grant.resume_at }));
        }
        if let Some((dead, ack)) = self.last_words.take() {
            match service.ack(dead, &[ack]).await {
                Err(SourceError::Fenced(_)) => {}
                Err(error @ SourceError::Unavailable { .. }) => return Err(error.into()),
                heard => return Err(format!("{dead} is dead and was heard: {heard:?}").into()),
            }
        }
        Ok(())
    }

    /// This life ends in the middle of a batch; the next one begins without a word of it.
    fn die(&mut self, unsaid: Option<&Ack>) {
        self.world.count_death();
        self.last_words = unsaid.map(|ack| (self.holder(), *ack));
        self.leases.clear();
        self.life += 1;
    }

    /// A batch of any size, which can span shards. What is to be said of it.
    fn train_batch(&mut self) -> Vec<Ack> {
        let shard = |lease: &Lease| lease.grant.len - lease.offset;
        let mut left =
            if self.world.in_hurry() { self.leases.front().map_or(0, shard) } else { self.rng.below(40) };
        let mut acks = Vec::new();
        for Lease { grant, offset } in &mut self.leases {
            let step = left.min(grant.len - *offset);
            if step > 0 {
                self.world.trained(grant.key, *offset, *offset + step);
                *offset += step;
                left -= step;
                acks.push(Ack { lease: grant.lease, offset: *offset });
            }
        }
        acks
    }

    /// Says what is done and asks for more. Whether the data is at its end.
    async fn exchange(&mut self, service: &ShardClient, acks: &[Ack]) -> Result<bool, Failure> {
        let holder = self.holder();
        let open = self.leases.iter().filter(|lease| lease.offset < lease.grant.len).count() as u64;
        let want = match self.rng.below(4) as u32 {
            0 if acks.is_empty() || open == 0 => 1,
            want => want,
        };
        if want > 0 {
            self.request = self.request.next();
        }
        for lease in &self.leases {
            self.world.say(lease.grant.key, lease.offset);
        }
        let exchanged = service.exchange(holder, self.request, acks, want, Duration::from_secs(1)).await?;
        self.world.count_answer();
        if exchanged.outcomes.iter().any(|outcome| *outcome != AckOutcome::Accepted) {
            return Err(format!("{holder} said {acks:?} and was told {:?}", exchanged.outcomes).into());
        }
        for lease in &self.leases {
            self.world.accepted(self.generation, lease.grant.key, lease.offset);
        }
        self.leases.retain(|lease| lease.offset < lease.grant.len);
        for grant in exchanged.grants() {
            self.world.granted(&grant)?;
            self.leases.push_back(Lease { grant, offset: grant.resume_at });
        }
        self.give_back(service, &exchanged.recalled).await?;
        match exchanged.fetched {
            Some(FetchOutcome::EndOfData) if self.leases.is_empty() => Ok(true),
            Some(FetchOutcome::EndOfData) => {
                Err(format!("{holder} has leases at the end of the data").into())
            }
            Some(FetchOutcome::AtLimit) if self.leases.is_empty() => {
                Err("every lease was acknowledged".into())
            }
            _ => Ok(false),
        }
    }

    /// Others could begin these at once.
    async fn give_back(&mut self, service: &ShardClient, recalled: &[LeaseId]) -> Result<(), Failure> {
        let unbegun =
            |lease: &&Lease| lease.offset == lease.grant.resume_at && recalled.contains(&lease.grant.lease);
        let acks = |lease: &Lease| Ack { lease: lease.grant.lease, offset: lease.offset };
        let acks: Vec<Ack> = self.leases.iter().filter(unbegun).map(acks).collect();
        if acks.is_empty() {
            return Ok(());
        }
        let outcomes = service.release(self.holder(), &acks).await?;
        if outcomes.iter().any(|outcome| *outcome != AckOutcome::Accepted) {
            return Err(format!("{acks:?} were recalled, and it was said {outcomes:?}").into());
        }
        self.world.count_recalled();
        self.leases.retain(|lease| acks.iter().all(|ack| ack.lease != lease.grant.lease));
        Ok(())
    }
}
