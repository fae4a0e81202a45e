//! The gRPC services of a master: for its nodes, for its operators, and for the workers that take shards.

use antdt_core::Connections;
use antdt_proto::connection::Incoming;
use antdt_proto::v1::control_server::ControlServer;
use antdt_proto::v1::job_server::JobServer;
use antdt_proto::{Token, TokenCheck};
use antdt_rt::CancellationToken;
use antdt_shard::runtime::ShardServer;
use tokio::net::TcpListener;
use tonic::service::InterceptorLayer;

use super::JobError;
use super::desk::Desk;
use super::http::Window;
use super::operate::JobService;
use super::scaler::Scaler;
use super::service::ControlService;
use super::start::Shared;
use crate::descriptors;
use crate::job::JobSpec;

/// Builds the services; the future answers calls until `stop` is cancelled.
pub(super) fn serve(
    spec: &JobSpec,
    job: &str,
    (listener, token, connections): (TcpListener, Token, Connections),
    shared: &Shared,
    (scaler, window): (Scaler, Option<Window>),
    desk: Option<Desk>,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + use<>, JobError> {
    let Shared { clock, head, ledger, nodes, parked, recorder, pace, stop: stop_job, .. } = shared.clone();
    let control = ControlService::new(job.to_owned(), head.clone(), parked, desk);
    let operate = JobService {
        job: job.to_owned(),
        policy: spec.policy.clone(),
        dry_run: spec.dry_run,
        scaler,
        head,
        clock,
        pace,
        recorder,
        nodes,
        ledger: ledger.clone(),
        stop: stop_job,
        control_tick: spec.control_tick,
    };
    let check = TokenCheck::new(token);
    if let Some(window) = window {
        window.operate(Some((operate.clone(), check.clone())));
    }
    let mut server = tonic::transport::Server::builder()
        // Around all services, so that none is forgotten.
        .layer(InterceptorLayer::new(check))
        .add_service(ControlServer::new(control))
        .add_service(JobServer::new(operate));
    if let Some(ledger) = ledger {
        server = server.add_service(ShardServer::new().with(ledger)?.into_service());
    }
    Ok(async move {
        let incoming = Incoming::new(listener, connections, descriptors::doorway());
        if let Err(error) = server.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()).await {
            tracing::error!(%error, "the control plane failed");
        }
    })
}
