//! Which requests are refused, and why: decided from their heads alone.
//!
//! A page of another origin can have its reader's browser send requests here. It cannot read the answers, and it has no token; that
//! it may not even try is for the reader whose browser is asked to find out what runs here. Names that resolve to this address
//! without being ones of it (DNS rebinding) are refused, which would make a foreign page one of this origin.

use std::net::IpAddr;

use axum::http::header::{CONTENT_TYPE, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, StatusCode};

/// Header by which browsers say whether a request comes from a page of the same origin.
static FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// The request is for another host.
    #[error("Host = {0}: this job is not called so; use the address, or the name that --advertise says")]
    Host(String),
    /// A page of another origin has sent the request.
    #[error("Origin = {0}: only the job's own page may change it")]
    Origin(String),
    /// The body is not said to be JSON.
    #[error("Content-Type = {0}: must be application/json")]
    ContentType(String),
    /// The body cannot be read.
    #[error("the body must be {form}: {why}")]
    Body {
        /// Expected JSON.
        form: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The request carries no token, or not the job's.
    #[error("{0}; the file `token` in the job's run directory has it")]
    Token(String),
    /// The job is starting or ending.
    #[error("the job is starting or ending; ask again in a moment")]
    Busy,
    /// Too many pages are open.
    #[error("{0} readers have the page open already; close one")]
    Full(usize),
    /// There is nothing at this path.
    #[error("there is nothing here; try /, /metrics, /healthz or /api/state")]
    Path,
    /// There is something at this path, for another method.
    #[error("this path takes another method")]
    Method,
}

impl Refusal {
    pub(super) const fn status(&self) -> StatusCode {
        match self {
            Self::Host(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin(_) => StatusCode::FORBIDDEN,
            Self::ContentType(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Body { .. } => StatusCode::BAD_REQUEST,
            Self::Token(_) => StatusCode::UNAUTHORIZED,
            Self::Busy | Self::Full(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Path => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
        }
    }
}

/// Names by which this address may be called, besides addresses and `localhost`.
#[derive(Debug)]
pub(super) struct HostNames(Vec<String>);

impl HostNames {
    pub(super) fn new(names: impl Iterator<Item = String>) -> Self {
        Self(names.map(|name| name.to_ascii_lowercase()).collect())
    }

    /// Whether `host`, a name or address with or without a port, is one of this machine's. An address cannot be rebound.
    fn has(&self, host: &str) -> bool {
        let bare = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        let name = bare.to_ascii_lowercase();
        bare.parse::<IpAddr>().is_ok() || name == "localhost" || self.0.contains(&name)
    }

    /// Checks that a request is meant for this job.
    pub(super) fn check_read(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = text(headers, &HOST);
        if self.has(host) { Ok(()) } else { Err(Refusal::Host(shown(host))) }
    }

    /// Checks that a request that changes something comes from the job's own page, or from no page.
    pub(super) fn check_change(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        self.check_read(headers)?;
        let (host, origin) = (text(headers, &HOST), text(headers, &ORIGIN));
        // A proxy in front may have made HTTP of HTTPS.
        let own = ["http://", "https://"].into_iter().any(|scheme| origin.strip_prefix(scheme) == Some(host));
        if headers.contains_key(ORIGIN) && !own {
            return Err(Refusal::Origin(shown(origin)));
        }
        let site = text(headers, &FETCH_SITE);
        if headers.contains_key(&FETCH_SITE) && !["same-origin", "none"].contains(&site) {
            return Err(Refusal::Origin(shown(site)));
        }
        // A form of another page cannot be of this type.
        let kind = text(headers, &CONTENT_TYPE);
        match kind.split(';').next().map(str::trim) {
            Some("application/json") => Ok(()),
            _ => Err(Refusal::ContentType(shown(kind))),
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// What a caller has sent, in an answer to it.
fn shown(text: &str) -> String {
    if text.is_empty() { "(nothing)".to_owned() } else { text.chars().take(100).collect() }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| ((*name).clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    fn names() -> HostNames {
        HostNames::new(["Node-3.rack".to_owned()].into_iter())
    }

    #[test]
    fn a_reader_comes_by_an_address_or_a_name_of_this_machine_and_by_no_other_name() {
        for host in ["127.0.0.1:80", "10.1.2.3", "[::1]:80", "localhost:9", "node-3.rack:80", "NODE-3.RACK"] {
            assert_eq!(names().check_read(&headers(&[(&HOST, host)])), Ok(()), "{host}");
        }
        for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[evil"] {
            let refused = names().check_read(&headers(&[(&HOST, host)])).unwrap_err();
            assert_eq!(refused.status(), StatusCode::MISDIRECTED_REQUEST, "{host}");
        }
        assert!(names().check_read(&HeaderMap::new()).is_err(), "no Host at all");
    }

    #[test]
    fn only_the_jobs_own_page_and_programs_may_change_something() {
        let json = (&CONTENT_TYPE, "application/json; charset=utf-8");
        let host = (&HOST, "127.0.0.1:80");
        let status = |pairs: &[_]| names().check_change(&headers(pairs)).map_err(|refused| refused.status());
        assert_eq!(status(&[host, json]), Ok(()), "a program says no origin");
        assert_eq!(
            status(&[host, json, (&ORIGIN, "http://127.0.0.1:80"), (&FETCH_SITE, "same-origin")]),
            Ok(())
        );
        assert_eq!(status(&[host, json, (&ORIGIN, "https://127.0.0.1:80")]), Ok(()));
        for origin in ["http://evil.example", "http://127.0.0.1:81", "null", "", "http://127.0.0.1:80.evil"] {
            assert_eq!(status(&[host, json, (&ORIGIN, origin)]), Err(StatusCode::FORBIDDEN), "{origin}");
        }
        assert_eq!(status(&[host, json, (&FETCH_SITE, "cross-site")]), Err(StatusCode::FORBIDDEN));
        for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
            let refused = status(&[host, (&CONTENT_TYPE, kind)]);
            assert_eq!(refused, Err(StatusCode::UNSUPPORTED_MEDIA_TYPE), "{kind}");
        }
        assert_eq!(status(&[(&HOST, "evil.example"), json]), Err(StatusCode::MISDIRECTED_REQUEST));
    }

    #[test]
    fn a_refusal_says_no_more_of_a_request_than_a_line_holds() {
        let long = "x".repeat(5000);
        let refused = names().check_read(&headers(&[(&HOST, &long)])).unwrap_err();
        assert!(refused.to_string().len() < 250, "{refused}");
    }
}
