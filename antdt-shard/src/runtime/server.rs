//! The gRPC service over the handles of its data sets.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::{Ack, Generation, Holder, InvalidValue, RequestId};
use antdt_proto::WireError;
use antdt_proto::convert::required;
use antdt_proto::v1;
use tonic::{Request, Response, Status};

use crate::runtime::service::ShardHandle;
use crate::runtime::status::to_status;

/// Serves any number of data sets by name. The status codes it answers with:
///
/// | code | when | the client |
/// |---|---|---|
/// | `FAILED_PRECONDITION` | a new generation, or never registered | drops its leases and registers |
/// | `PERMISSION_DENIED` | the holder is fenced | exits |
/// | `DATA_LOSS` | too many samples are quarantined | exits |
/// | `NOT_FOUND` | no such data set | aborts |
/// | `INVALID_ARGUMENT` | a malformed or wrong request | aborts |
/// | `UNAVAILABLE` | the task of the data set has ended | tries again |
#[derive(Debug, Default)]
pub struct ShardServer {
    datasets: BTreeMap<String, ShardHandle>,
}

impl ShardServer {
    /// A server without data sets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a data set, found under the name in its spec.
    ///
    /// # Errors
    /// If there is one of that name already.
    pub fn with(mut self, handle: ShardHandle) -> Result<Self, InvalidValue> {
        let name = handle.dataset().to_owned();
        if self.datasets.contains_key(&name) {
            return Err(InvalidValue::new(
                "dataset",
                name,
                "another name than that of a data set already served",
            ));
        }
        self.datasets.insert(name, handle);
        Ok(self)
    }

    /// To be added to a tonic server.
    pub fn into_service(self) -> v1::shard_server::ShardServer<Self> {
        v1::shard_server::ShardServer::new(self)
    }

    fn dataset(&self, name: &str) -> Result<&ShardHandle, Status> {
        self.datasets.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.datasets.keys().map(String::as_str).collect();
            Status::not_found(format!("there is no data set {name:?}; there is {known:?}"))
        })
    }
}

fn holder(wire: Option<v1::Holder>) -> Result<Holder, WireError> {
    required("holder", wire)?.try_into()
}

fn acks(wire: Vec<v1::Ack>) -> Result<Vec<Ack>, WireError> {
    wire.into_iter().map(Ack::try_from).collect()
}

#[tonic::async_trait]
impl v1::shard_server::Shard for ShardServer {
    async fn register(
        &self,
        request: Request<v1::RegisterShardsRequest>,
    ) -> Result<Response<v1::RegisterShardsReply>, Status> {
        let request = request.into_inner();
        let dataset = self.dataset(&request.dataset)?;
        let generation = dataset.register(holder(request.holder)?).await.map_err(to_status)?;
        Ok(Response::new(v1::RegisterShardsReply { generation: generation.0 }))
    }

    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Result<Response<v1::FetchReply>, Status> {
        let request = request.into_inner();
        let dataset = self.dataset(&request.dataset)?;
        let holder = holder(request.holder)?;
        let wait = Duration::from_nanos(request.wait_ns);
        let (generation, id) = (Generation(request.generation), RequestId(request.request));
        let outcome = dataset.fetch(holder, generation, id, wait).await.map_err(to_status)?;
        Ok(Response::new(outcome.into()))
    }

    // The generation of the three requests below is not looked at: every lease carries its own, and one of an
    // earlier generation is answered as stale.
    async fn ack(&self, request: Request<v1::AckRequest>) -> Result<Response<v1::AckReply>, Status> {
        let request = request.into_inner();
        let dataset = self.dataset(&request.dataset)?;
        let outcomes = dataset.ack(holder(request.holder)?, acks(request.acks)?).await.map_err(to_status)?;
        Ok(Response::new(ack_reply(outcomes)))
    }

    async fn release(&self, request: Request<v1::AckRequest>) -> Result<Response<v1::AckReply>, Status> {
        let request = request.into_inner();
        let dataset = self.dataset(&request.dataset)?;
        let outcomes =
            dataset.release(holder(request.holder)?, acks(request.acks)?).await.map_err(to_status)?;
        Ok(Response::new(ack_reply(outcomes)))
    }

    async fn fail(&self, request: Request<v1::FailRequest>) -> Result<Response<v1::FailReply>, Status> {
        let request = request.into_inner();
        let dataset = self.dataset(&request.dataset)?;
        let ack = required("ack", request.ack)?.try_into()?;
        let outcome = dataset.fail(holder(request.holder)?, ack, &request.why).await.map_err(to_status)?;
        Ok(Response::new(v1::FailReply { outcome: v1::AckOutcome::from(outcome).into() }))
    }
}

fn ack_reply(outcomes: Vec<antdt_core::AckOutcome>) -> v1::AckReply {
    let outcomes = outcomes.into_iter().map(|outcome| v1::AckOutcome::from(outcome).into()).collect();
    v1::AckReply { outcomes }
}
