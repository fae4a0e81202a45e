//! What is at which path.

use antdt_proto::v1;
use antdt_proto::v1::job_server::Job as _;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_SECURITY_POLICY};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use axum::routing::{get, post};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tonic::metadata::MetadataMap;
use tonic::service::Interceptor as _;

use super::door::Visit;
use super::guard::Refusal;
use super::{Operator, SILENCE_MAX, Window, answer, events};
use crate::live::{metrics, page};
use crate::master::lock;
use crate::random;

/// Most bytes of a request's body.
const BODY_MAX: usize = 4 << 10;

/// Paths that read take the request's state and its connection.
pub(super) fn router(window: Window) -> Router {
    Router::new()
        .route("/", get(show_page))
        .route("/metrics", get(show_metrics))
        .route("/healthz", get(show_health))
        .route("/events", get(stream_events))
        .route("/api/state", get(show_state))
        .route("/api/{action}", post(act))
        .fallback(async || answer::refused(&Refusal::Path))
        .method_not_allowed_fallback(async || answer::refused(&Refusal::Method))
        .with_state(window)
}

async fn show_page(State(window): State<Window>, headers: HeaderMap) -> Response<Body> {
    if let Err(refusal) = window.0.names.check_read(&headers) {
        return answer::refused(&refusal);
    }
    let Ok(nonce) = random::hex::<16>() else {
        // Without one, no browser could tell the page's script from another.
        return answer::of(
            StatusCode::INTERNAL_SERVER_ERROR,
            "text/plain",
            "the system gives no random bytes\n",
        );
    };
    let mut answer = answer::of(StatusCode::OK, "text/html; charset=utf-8", page::render(&nonce));
    if let Ok(policy) = HeaderValue::from_str(&page::policy(&nonce)) {
        answer.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    answer
}

/// Whatever the job is called by those who collect its metrics: they are no browsers.
async fn show_metrics(State(window): State<Window>) -> Response<Body> {
    let text = metrics::render(&lock(&window.0.board.view));
    answer::of(StatusCode::OK, metrics::CONTENT_TYPE, text)
}

async fn show_health(State(window): State<Window>) -> Response<Body> {
    let silent = lock(&window.0.board.told).elapsed();
    let Some(Operator { service, .. }) = lock(&window.0.operator).clone() else {
        return answer::of(StatusCode::OK, "text/plain", "the job is starting or ending\n");
    };
    if silent <= SILENCE_MAX.max(service.control_tick.saturating_mul(10)) {
        return answer::of(StatusCode::OK, "text/plain", "the job runs\n");
    }
    let text = format!("the head of the job has said nothing for {} s\n", silent.as_secs());
    answer::of(StatusCode::SERVICE_UNAVAILABLE, "text/plain", text)
}

async fn show_state(State(window): State<Window>, headers: HeaderMap) -> Response<Body> {
    if let Err(refusal) = window.0.names.check_read(&headers) {
        return answer::refused(&refusal);
    }
    window.look();
    let state = lock(&window.0.board.view).state(0);
    answer::json(StatusCode::OK, &state)
}

async fn stream_events(State(window): State<Window>, request: Request) -> Response<Body> {
    if let Err(refusal) = window.0.names.check_read(request.headers()) {
        return answer::refused(&refusal);
    }
    match request.extensions().get::<Visit>() {
        Some(visit) => events::stream(window, visit),
        None => answer::refused(&Refusal::Busy),
    }
}

/// Carries out what an operator asks for.
async fn act(State(window): State<Window>, Path(action): Path<String>, request: Request) -> Response<Body> {
    match allowed(&window, request).await {
        Ok((operator, body)) => {
            carry_out(&operator, &action, &body).await.unwrap_or_else(|refusal| answer::refused(&refusal))
        }
        Err(refusal) => answer::refused(&refusal),
    }
}

/// Returns what answers the request, and its body, if it may be carried out.
async fn allowed(window: &Window, request: Request) -> Result<(Operator, Vec<u8>), Refusal> {
    window.0.names.check_change(request.headers())?;
    let operator = lock(&window.0.operator).clone().ok_or(Refusal::Busy)?;
    // The same check as that of the gRPC port.
    let mut call = tonic::Request::new(());
    if let Some(token) = request.headers().get(AUTHORIZATION) {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, token.clone())]);
        *call.metadata_mut() = MetadataMap::from_headers(headers);
    }
    if let Some(visit) = request.extensions().get::<Visit>() {
        call.extensions_mut().insert(visit.caller.clone());
    }
    let mut check = operator.check.clone();
    check.call(call).map_err(|status| Refusal::Token(status.message().to_owned()))?;
    let body = to_bytes(request.into_body(), BODY_MAX).await;
    let body =
        body.map_err(|error| Refusal::Body { form: "JSON of at most 4 KiB", why: error.to_string() })?;
    Ok((operator, body.to_vec()))
}

/// Number of workers, or of servers, that the job should have.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ScaleTo {
    Workers(u32),
    Servers(u32),
}

/// Worker that is to be started again, by name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Worker {
    node: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

fn read<T: DeserializeOwned>(form: &'static str, body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::Body { form, why: error.to_string() })
}

async fn carry_out(operator: &Operator, action: &str, body: &[u8]) -> Result<Response<Body>, Refusal> {
    let service = &operator.service;
    let outcome = match action {
        "scale" => {
            let (which, now, request) = match read(r#"{"workers": N} or {"servers": N}"#, body)? {
                ScaleTo::Workers(workers) => {
                    ("workers", workers, v1::ScaleRequest { workers, servers: None })
                }
                ScaleTo::Servers(servers) => {
                    ("servers", servers, v1::ScaleRequest { workers: 0, servers: Some(servers) })
                }
            };
            let scaled = service.scale(tonic::Request::new(request)).await;
            scaled.map(|reply| format!("from {} to {now} {which}", reply.into_inner().before))
        }
        "restart" => {
            let Worker { node } = read(r#"{"node": "worker-N"}"#, body)?;
            let worker = node.strip_prefix("worker-").and_then(|index| index.parse().ok());
            let worker = worker.ok_or_else(|| Refusal::Body {
                form: r#"{"node": "worker-N"}"#,
                why: format!("`{}` is no worker", node.chars().take(40).collect::<String>()),
            })?;
            let restarted = service.restart(tonic::Request::new(v1::RestartRequest { worker })).await;
            restarted.map(|_| format!("{node} is killed and started again"))
        }
        "checkpoint" => {
            let Nothing {} = read("{}", body)?;
            let asked = v1::CheckpointRequest { checkpoint: None };
            let begun = service.checkpoint(tonic::Request::new(asked)).await;
            begun.map(|reply| format!("checkpoint {} is being taken", reply.into_inner().checkpoint))
        }
        "stop" => {
            let Nothing {} = read("{}", body)?;
            let stopped = service.stop(tonic::Request::new(v1::StopRequest {})).await;
            stopped.map(|_| "the job is stopping".to_owned())
        }
        _ => return Err(Refusal::Path),
    };
    Ok(match outcome {
        Ok(text) => answer::done(&text),
        Err(status) => answer::failed(&status),
    })
}
