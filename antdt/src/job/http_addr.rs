//! [`HttpAddr`]: where a job shows itself to people and to Prometheus.

use std::fmt;
use std::str::FromStr;

use antdt_core::InvalidValue;

use crate::net;

/// Address and port on which the master serves its live page and its metrics. Text form: `HOST:PORT`; an IPv6 address is in
/// brackets, and port 0 takes a free one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAddr {
    /// Address or name of this machine, without brackets.
    pub host: String,
    /// Port; 0 for a free one.
    pub port: u16,
}

impl FromStr for HttpAddr {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        const FORM: &str = "ADDR:PORT, such as 127.0.0.1:9464, [::1]:9464 or, for a free port, 127.0.0.1:0";
        let refused = || InvalidValue::new("--http-addr", format!("`{text}`"), FORM);
        let (host, port) = text.rsplit_once(':').ok_or_else(refused)?;
        // Without brackets, the last group of an IPv6 address would be the port.
        if host.contains(':') && !host.starts_with('[') {
            return Err(refused());
        }
        let host = net::host("--http-addr", host).map_err(|_| refused())?;
        let port = port.parse().map_err(|_| refused())?;
        Ok(Self { host, port })
    }
}

impl fmt::Display for HttpAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&net::join(&self.host, self.port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written_and_anything_else_refused_with_the_form() {
        for text in ["127.0.0.1:0", "[::1]:9464", "node-3:80"] {
            let read: HttpAddr = text.parse().unwrap();
            assert_eq!(read.to_string(), text);
        }
        for text in
            ["", "9464", ":9464", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "::1:80", "http://a:1"]
        {
            let error = text.parse::<HttpAddr>().unwrap_err().to_string();
            assert!(error.contains("--http-addr") && error.contains("127.0.0.1:9464"), "{error}");
        }
    }
}
