//! [`Scaler`]: changes how many workers and servers a running job has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use antdt_job::{Head, HeadAnswer, HeadEvent};
use antdt_rt::Mailbox;
use tonic::Status;

use super::operate::unexpected;
use crate::descriptors;
use crate::job::{JobSpec, Sharding};

/// For users, and for launchers that have room for more. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Scaler {
    /// Settings that the job began with.
    spec: Arc<JobSpec>,
    /// Workers that the job should have.
    now: Arc<AtomicU32>,
    head: Mailbox<Head>,
}

impl Scaler {
    pub(super) fn new(spec: &JobSpec, now: Arc<AtomicU32>, head: Mailbox<Head>) -> Self {
        Self { spec: Arc::new(spec.clone()), now, head }
    }

    /// Workers that the job should have.
    pub(super) fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    /// Changes the number of workers. Returns the one before.
    ///
    /// # Errors
    /// If the job cannot have so many.
    pub(super) async fn workers(&self, workers: u32) -> Result<u32, Status> {
        if self.spec.sharding == Sharding::Static {
            return Err(Status::failed_precondition(
                "--sharding static divides the data among the workers that the job began with; their number cannot change",
            ));
        }
        check_descriptors(workers, self.spec.servers)?;
        let before = self.call(HeadEvent::Scale { workers }).await?;
        self.now.store(workers, Ordering::Relaxed);
        Ok(before)
    }

    /// Changes the number of servers. Returns the one before.
    ///
    /// # Errors
    /// If the job cannot have so many.
    pub(super) async fn servers(&self, servers: u32) -> Result<u32, Status> {
        // What a job with so many servers must not have, it must not get either.
        let then = JobSpec { servers, ..JobSpec::clone(&self.spec) };
        then.validate().map_err(|error| Status::failed_precondition(error.to_string()))?;
        check_descriptors(self.now(), servers)?;
        self.call(HeadEvent::ScaleServers { servers }).await
    }

    async fn call(&self, event: HeadEvent) -> Result<u32, Status> {
        match self.head.call(event).await {
            Ok(HeadAnswer::Scaled { before }) => Ok(before),
            Ok(HeadAnswer::Refused(why)) => Err(Status::failed_precondition(why)),
            Ok(answer) => Err(unexpected(&answer)),
            Err(closed) => Err(Status::unavailable(closed.to_string())),
        }
    }
}

fn check_descriptors(workers: u32, servers: u32) -> Result<(), Status> {
    descriptors::check_master(workers, servers)
        .map_err(|error| Status::failed_precondition(error.to_string()))
}
