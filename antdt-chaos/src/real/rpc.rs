//! Calls to the master that arrive twice, late or in another order: a proxy that repeats and holds back whole calls, as a load balancer
//! with retries would.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use antdt_core::{DetRng, Seed};
use http_body_util::{BodyExt, Full};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{Bytes, Service};
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server};

/// Whatever went wrong on the way.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Longest time until the second copy of a call.
const SECOND_AFTER: Duration = Duration::from_millis(300);

/// Longest time that a call is held back.
const HELD: Duration = Duration::from_millis(500);

/// What happens to calls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Trouble {
    /// This share arrives twice, the second time a little later.
    Twice(f64),
    /// This share arrives later than those that are made after it.
    Late(f64),
}

#[derive(Debug)]
struct State {
    trouble: Option<Trouble>,
    rng: DetRng,
    /// Calls that were repeated or held back.
    troubled: u64,
}

/// The proxy.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    master: Channel,
    state: Arc<Mutex<State>>,
}

impl Calls {
    /// Takes calls at `listener` and passes them on to the master.
    pub(super) fn serve(listener: TcpListener, master: SocketAddr, seed: Seed) -> Result<Self, BoxError> {
        let master = Endpoint::from_shared(format!("http://{master}"))?.tcp_nodelay(true).connect_lazy();
        let state = State { trouble: None, rng: seed.derive("calls").rng(), troubled: 0 };
        let calls = Self { master, state: Arc::new(Mutex::new(state)) };
        let routes = Routes::from(Routes::default().into_axum_router().fallback_service(calls.clone()));
        let incoming = tokio_stream::StreamExt::map(TcpListenerStream::new(listener), |stream| {
            stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream))
        });
        tokio::spawn(Server::builder().add_routes(routes).serve_with_incoming(incoming));
        Ok(calls)
    }

    /// Begins or ends what happens to calls.
    pub(super) fn set(&self, trouble: Option<Trouble>) {
        self.lock().trouble = trouble;
    }

    /// Calls so far that were repeated or held back.
    pub(super) fn troubled(&self) -> u64 {
        self.lock().troubled
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What is behind the lock is valid after every statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What becomes of the next call: how long it is held back, and how much later it is made a second time.
    fn fate(&self) -> (Duration, Option<Duration>) {
        let State { trouble, rng, troubled } = &mut *self.lock();
        let fate = match *trouble {
            Some(Trouble::Twice(share)) if rng.unit() < share => {
                (Duration::ZERO, Some(SECOND_AFTER.mul_f64(rng.unit())))
            }
            Some(Trouble::Late(share)) if rng.unit() < share => (HELD.mul_f64(rng.unit()), None),
            _ => return (Duration::ZERO, None),
        };
        *troubled += 1;
        fate
    }

    async fn pass<B>(mut self, request: Request<B>) -> Result<Response<Body>, BoxError>
    where
        B: tonic::codegen::Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        // All calls of a job have one message each way.
        let message = body.collect().await.map_err(Into::into)?.to_bytes();
        let copy = |parts: &tonic::codegen::http::request::Parts| {
            Request::from_parts(parts.clone(), Body::new(Full::new(message.clone())))
        };
        let (held, second) = self.fate();
        tokio::time::sleep(held).await;
        if let Some(after) = second {
            let (mut master, again) = (self.master.clone(), copy(&parts));
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                // The caller has another answer.
                if let Ok(answer) = ready(&mut master, again).await {
                    let _ = answer.into_body().collect().await;
                }
            });
        }
        Ok(ready(&mut self.master, copy(&parts)).await?)
    }
}

async fn ready(
    master: &mut Channel,
    request: Request<Body>,
) -> Result<Response<Body>, tonic::transport::Error> {
    std::future::poll_fn(|context| master.poll_ready(context)).await?;
    master.call(request).await
}

impl<B> Service<Request<B>> for Calls
where
    B: tonic::codegen::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let calls = self.clone();
        Box::pin(async move {
            let passed = calls.pass(request).await;
            Ok(passed.unwrap_or_else(|error| Status::unavailable(error.to_string()).into_http()))
        })
    }
}
