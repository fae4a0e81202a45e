//! Answers, with the headers that all of them have.

use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, RETRY_AFTER,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, Response, StatusCode};
use serde_json::{Value as Json, json};
use tonic::{Code, Status};

use super::guard::Refusal;

/// Policy of answers that are no page: nothing in them is loaded or run.
const NO_PAGE: &str = "default-src 'none'; frame-ancestors 'none'";

/// Returns an answer of this type, which no cache keeps and no browser takes for another type.
pub(super) fn of(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CONTENT_SECURITY_POLICY, NO_PAGE),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("3"));
    }
    answer
}

pub(super) fn json(status: StatusCode, body: &Json) -> Response<Body> {
    of(status, "application/json", format!("{body}\n"))
}

/// Returns the answer to a request that was carried out, as the text says.
pub(super) fn done(text: &str) -> Response<Body> {
    json(StatusCode::OK, &json!({ "done": text }))
}

pub(super) fn refused(refusal: &Refusal) -> Response<Body> {
    json(refusal.status(), &json!({ "error": refusal.to_string() }))
}

/// Returns the answer for what the job's service says to a request that it did not carry out.
pub(super) fn failed(status: &Status) -> Response<Body> {
    let code = match status.code() {
        Code::FailedPrecondition | Code::InvalidArgument => StatusCode::CONFLICT,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    json(code, &json!({ "error": status.message() }))
}
