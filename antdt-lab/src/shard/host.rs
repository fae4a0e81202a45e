//! What is asked over loopback: services with their journals, and an echo.

use std::time::Duration;

use antdt_core::{Connections, DoorwayLimits};
use antdt_proto::connection::Incoming;
use antdt_proto::v1;
use antdt_proto::v1::shard_server::{Shard, ShardServer as Stub};
use antdt_rt::{CancellationToken, JobClock, Recorder};
use antdt_shard::ledger::{Answer, Effect, Event};
use antdt_shard::runtime::{ShardHandle, ShardServer, ShardService};
use antdt_shard::{DatasetSpec, LedgerStore};
use anyhow::Result;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Server;
use tonic::transport::server::{Router, TcpIncoming};
use tonic::{Request, Response, Status};

/// The threads of the services: of their own, as they are in a process of their own.
#[derive(Debug)]
pub(super) struct Host {
    runtime: Runtime,
    shutdown: CancellationToken,
}

impl Host {
    /// With as many threads as the command `antdt` gives its services.
    pub(super) fn new() -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        Ok(Self { runtime, shutdown: CancellationToken::new() })
    }

    /// Starts a service; gives its address and a way to reach it without one.
    pub(super) fn serve<S: LedgerStore>(&self, spec: DatasetSpec, store: S) -> Result<(String, ShardHandle)> {
        self.serve_watched(spec, store, ())
    }

    /// The same, with a watcher that sees every event, answer and effect of the ledger.
    pub(super) fn serve_watched<S: LedgerStore>(
        &self,
        spec: DatasetSpec,
        store: S,
        watcher: impl Recorder<Event, Answer, Effect> + 'static,
    ) -> Result<(String, ShardHandle)> {
        let shutdown = self.shutdown.clone();
        let started = ShardService::start_watched(spec, store, JobClock::start(), shutdown, watcher);
        let handle = self.runtime.block_on(started)?.handle();
        let server = ShardServer::new().with(handle.clone())?.into_service();
        Ok((self.listen(Server::builder().add_service(server))?, handle))
    }

    /// Starts a service whose connections are wrapped; gives its address.
    pub(super) fn serve_wrapped<S: LedgerStore>(
        &self,
        spec: DatasetSpec,
        store: S,
        connections: &Connections,
    ) -> Result<String> {
        let started = ShardService::start(spec, store, JobClock::start(), self.shutdown.clone());
        let server = ShardServer::new().with(self.runtime.block_on(started)?.handle())?.into_service();
        let listener = self.runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?.to_string();
        let router = Server::builder().add_service(server);
        let connections = connections.clone();
        self.runtime.spawn(async move {
            let incoming = Incoming::new(listener, connections, DoorwayLimits::default());
            router.serve_with_incoming(incoming).await
        });
        Ok(address)
    }

    /// Starts what answers the same messages without a ledger: no service over gRPC is faster.
    pub(super) fn echo(&self) -> Result<String> {
        self.listen(Server::builder().add_service(Stub::new(Echo)))
    }

    fn listen(&self, router: Router) -> Result<String> {
        let listener = self.runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?.to_string();
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        self.runtime.spawn(router.serve_with_incoming(incoming));
        Ok(address)
    }

    /// Ends the services and their journals.
    pub(super) fn end(self) {
        self.shutdown.cancel();
        self.runtime.shutdown_timeout(Duration::from_secs(10));
    }
}

struct Echo;

#[tonic::async_trait]
impl Shard for Echo {
    async fn register(
        &self,
        _: Request<v1::RegisterShardsRequest>,
    ) -> Result<Response<v1::RegisterShardsReply>, Status> {
        Ok(Response::new(v1::RegisterShardsReply { generation: 1, adopted: Vec::new() }))
    }

    async fn exchange(
        &self,
        request: Request<v1::ExchangeRequest>,
    ) -> Result<Response<v1::ExchangeReply>, Status> {
        let request = request.into_inner();
        let (accepted, sequence) = (v1::AckOutcome::Accepted.into(), request.request);
        let grant = v1::Grant {
            lease: Some(v1::LeaseId { generation: 1, sequence }),
            epoch: 1,
            index: sequence,
            start: sequence,
            len: super::SHARD_LEN,
            resume_at: 0,
            seed: Some(u64::MAX),
        };
        Ok(Response::new(v1::ExchangeReply {
            outcomes: vec![accepted; request.acks.len()],
            fetched: Some(v1::exchange_reply::Fetched::Grant(grant)),
            more: vec![grant; request.want.saturating_sub(1) as usize],
            recalled: Vec::new(),
        }))
    }

    // No client asks an echo anything else.
    async fn open(&self, _: Request<v1::OpenRequest>) -> Result<Response<v1::OpenReply>, Status> {
        Err(no_ledger())
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        Err(no_ledger())
    }

    async fn missing(&self, _: Request<v1::MissingRequest>) -> Result<Response<v1::MissingReply>, Status> {
        Err(no_ledger())
    }

    async fn release(&self, _: Request<v1::ReleaseRequest>) -> Result<Response<v1::ReleaseReply>, Status> {
        Err(no_ledger())
    }

    async fn fail(&self, _: Request<v1::FailRequest>) -> Result<Response<v1::FailReply>, Status> {
        Err(no_ledger())
    }
}

fn no_ledger() -> Status {
    Status::unimplemented("an echo has no ledger")
}
