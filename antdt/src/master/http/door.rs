//! Accepts connections, and answers the one request of each.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use antdt_core::Connections;
use antdt_proto::connection::{Caller, GrpcStream, Incoming};
use antdt_rt::CancellationToken;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response};
use axum::routing::future::RouteFuture;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::codegen::tokio_stream::StreamExt as _;
use tonic::codegen::{Service, StdError};
use tonic::transport::server::Connected;

use crate::descriptors;

/// Longest time from the acceptance of a connection to the last byte of its answer. The doorway closes those of callers that it does
/// not know earlier, before they have sent their request.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Longest time of a stream of events: a reader that is still there comes again by itself, and one that is not gives its seat back.
const STREAM_LIMIT: Duration = Duration::from_secs(300);

/// Most bytes of a request's head, which browsers keep below 8 KiB. A longer one is answered by 431.
const HEAD_MAX: usize = 16 << 10;

/// A connection, as its request knows it.
#[derive(Debug, Clone)]
pub(super) struct Visit {
    pub(super) caller: Option<Caller>,
    reads_on: Arc<AtomicBool>,
}

impl Visit {
    /// The answer is a stream that ends by itself or when its time is over.
    pub(super) fn reads_on(&self) {
        self.reads_on.store(true, Ordering::Relaxed);
        if let Some(caller) = &self.caller {
            caller.pass();
        }
    }
}

/// Answers until `stop` is cancelled, and then those whose requests have begun.
pub(super) async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    // Browsers and Prometheus speak plain HTTP: what a program wraps the job's own connections in is unknown to them.
    let mut incoming = Incoming::new(listener, Connections::default(), descriptors::doorway());
    let mut visits = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = visits.join_next() => {}
            // It yields no errors, and does not end.
            Some(Ok(stream)) = incoming.next() => {
                visits.spawn(visit(stream, router.clone()));
            }
        }
    }
    drop(incoming);
    while visits.join_next().await.is_some() {}
}

async fn visit(stream: GrpcStream, router: Router) {
    let reads_on = Arc::new(AtomicBool::new(false));
    let visit = Visit { caller: stream.connect_info(), reads_on: Arc::clone(&reads_on) };
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().keep_alive(false).max_buf_size(HEAD_MAX);
    let service = TowerToHyperService::new(Visited { visit, router });
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let limit = async {
        tokio::time::sleep(ANSWER_LIMIT).await;
        if reads_on.load(Ordering::Relaxed) {
            tokio::time::sleep(STREAM_LIMIT).await;
        }
    };
    tokio::select! {
        // A caller that hangs up or sends nonsense is no concern of the job.
        _ = connection => {}
        () = limit => {}
    }
}

/// The routes, for the requests of one connection.
#[derive(Debug, Clone)]
struct Visited {
    visit: Visit,
    router: Router,
}

impl<B> Service<Request<B>> for Visited
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = RouteFuture<Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        request.extensions_mut().insert(self.visit.clone());
        self.router.call(request)
    }
}
