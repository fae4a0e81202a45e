//! [`EtcdSpec`]: where masters of a job elect the one that leads it.

use std::fmt;
use std::str::FromStr;

use antdt_core::InvalidValue;

/// Location of the etcd cluster through which the masters of a job elect the one that leads it. Text form:
/// `etcd://HOST:PORT,HOST:PORT/PREFIX`; the default prefix is `antdt`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdSpec {
    /// Addresses of members of the cluster, `host:port`.
    pub endpoints: Vec<String>,
    /// Prefix of every etcd key of the election; it ends with a slash.
    pub prefix: String,
}

impl FromStr for EtcdSpec {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        const FORM: &str = "etcd://HOST:PORT[,HOST:PORT ...][/PREFIX], such as etcd://10.0.0.1:2379";
        let refused = || InvalidValue::new("--elect", format!("`{text}`"), FORM);
        let rest = text.strip_prefix("etcd://").ok_or_else(refused)?;
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoints: Vec<String> = hosts.split(',').map(str::to_owned).collect();
        let is_address = |address: &String| {
            address.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && !host.contains(char::is_whitespace) && port.parse::<u16>().is_ok()
            })
        };
        if !endpoints.iter().all(is_address) {
            return Err(refused());
        }
        let prefix = match prefix.trim_matches('/') {
            "" => "antdt/".to_owned(),
            prefix => format!("{prefix}/"),
        };
        Ok(Self { endpoints, prefix })
    }
}

impl fmt::Display for EtcdSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}/{}", self.endpoints.join(","), self.prefix.trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_read_as_it_is_written_and_anything_else_refused_with_the_form() {
        let read = |text: &str| text.parse::<EtcdSpec>();
        let spec = read("etcd://10.0.0.1:2379,db:2380/jobs/of-me/").unwrap();
        assert_eq!(
            (&spec.endpoints[..], &*spec.prefix),
            (&["10.0.0.1:2379".into(), "db:2380".into()][..], "jobs/of-me/")
        );
        assert_eq!(read(&spec.to_string()), Ok(spec));
        assert_eq!(read("etcd://[::1]:2379").unwrap().prefix, "antdt/");
        for text in
            ["", "10.0.0.1:2379", "etcd://", "etcd://db", "etcd://db:2379,", "etcd://:1/a", "http://db:1"]
        {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("--elect") && error.contains("etcd://HOST:PORT"), "{error}");
        }
    }
}
