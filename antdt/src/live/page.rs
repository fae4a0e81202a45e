//! The live page: one HTML document that needs nothing but the job's own `/events` and `/api`.

use crate::report::html::STYLE;

const HTML: &str = include_str!("page/live.html");
const LIVE_STYLE: &str = include_str!("page/live.css");
const SCRIPT: &str = include_str!("page/live.js");

/// Returns the page. Browsers run only the script and use only the style with the `nonce`, which must be another one for each
/// answer and consist of letters and digits.
pub(crate) fn render(nonce: &str) -> String {
    HTML.replace("{nonce}", nonce)
        .replace("{style}", &format!("{STYLE}{LIVE_STYLE}"))
        .replace("{script}", SCRIPT)
        .replace("{version}", env!("CARGO_PKG_VERSION"))
}

/// Returns the content security policy of a page with this nonce: it loads nothing, sends nothing elsewhere, and is in no frame.
pub(crate) fn policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}
