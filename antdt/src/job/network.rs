//! The emulated network: links between the processes of a job that run on one machine.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use antdt_collective::runtime::transport::paced::{EmulatedNetwork, ServerHosts};
use antdt_core::InvalidValue;
use antdt_core::text::{format_duration, named_duration, nearest};

/// Units of a bandwidth, each with its bytes per second; the largest first, as values are written.
const UNITS: [(&str, f64); 8] = [
    ("GB/s", 1e9),
    ("MB/s", 1e6),
    ("kB/s", 1e3),
    ("B/s", 1.0),
    ("Gbit/s", 1.25e8),
    ("Mbit/s", 1.25e5),
    ("kbit/s", 125.0),
    ("bit/s", 0.125),
];

/// Links of the emulated network of a job. Text form:
/// `bandwidth=20MB/s,latency=1ms,per-host=4,servers=beside,slow=1:5MB/s`; only `bandwidth` is required, and
/// `slow` may occur several times.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkSpec(pub EmulatedNetwork);

impl NetworkSpec {
    pub(super) fn validate(&self, workers: u32, servers: u32) -> Result<(), InvalidValue> {
        self.0.validate().map_err(|error| {
            let rest = error.field.trim_start_matches("network");
            InvalidValue { field: format!("--emulate-network{rest}"), ..error }
        })?;
        let beside = if self.0.servers == ServerHosts::Beside { servers } else { 0 };
        let hosts = workers.div_ceil(self.0.workers_per_host).max(beside);
        match self.0.slow.iter().find(|(host, _)| *host >= hosts) {
            Some((host, _)) => {
                let expected = format!("one of the {hosts} hosts of the job, which are numbered from 0");
                Err(InvalidValue::new("--emulate-network slow", host, expected))
            }
            None => Ok(()),
        }
    }
}

/// Bytes per second of a text such as `20MB/s`.
fn bandwidth(field: &str, text: &str) -> Result<f64, InvalidValue> {
    let refused = || {
        let expected =
            "a number with one of the units GB/s, MB/s, kB/s, B/s, Gbit/s, Mbit/s, kbit/s, such as 20MB/s";
        InvalidValue::new(field, text, expected)
    };
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).ok_or_else(refused)?;
    let (number, unit) = text.split_at(digits);
    let unit = UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(refused)?;
    number.parse::<f64>().map(|number| number * unit.1).map_err(|_| refused())
}

/// A bandwidth as [`bandwidth`] reads it.
fn bandwidth_text(bytes_per_s: f64) -> String {
    let unit = UNITS[..4].iter().find(|(_, scale)| bytes_per_s >= *scale).unwrap_or(&UNITS[3]);
    format!("{}{}", bytes_per_s / unit.1, unit.0)
}

impl FromStr for NetworkSpec {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        const FORM: &str =
            "bandwidth=20MB/s[,latency=1ms][,per-host=WORKERS][,servers=apart|beside][,slow=HOST:5MB/s]";
        const KEYS: [&str; 5] = ["bandwidth", "latency", "per-host", "servers", "slow"];
        const FLAG: &str = "--emulate-network";
        let refused = || InvalidValue::new(FLAG, format!("`{text}`"), FORM);
        let mut network = EmulatedNetwork::new(0.0, Duration::ZERO);
        let mut given = false;
        for part in text.split(',') {
            let (key, value) = part.trim().split_once('=').ok_or_else(refused)?;
            let field = format!("{FLAG} {key}");
            match key {
                "bandwidth" => (network.bandwidth, given) = (bandwidth(&field, value)?, true),
                "latency" => network.latency = named_duration(field, value)?,
                "per-host" => {
                    let expected = "a number of workers, such as 4";
                    network.workers_per_host =
                        value.parse().map_err(|_| InvalidValue::new(field, value, expected))?;
                }
                "servers" => {
                    network.servers = match value {
                        "apart" => ServerHosts::Apart,
                        "beside" => ServerHosts::Beside,
                        _ => return Err(InvalidValue::new(field, value, "apart or beside")),
                    }
                }
                "slow" => {
                    let expected = "the number of a host and its bandwidth, such as 1:5MB/s";
                    let wrong = || InvalidValue::new(field.clone(), value, expected);
                    let (host, rate) = value.split_once(':').ok_or_else(wrong)?;
                    network.slow.push((host.parse().map_err(|_| wrong())?, bandwidth(&field, rate)?));
                }
                _ => {
                    let expected = match nearest(key, &KEYS) {
                        Some(known) => format!("a known word; did you mean `{known}`?"),
                        None => FORM.to_owned(),
                    };
                    return Err(InvalidValue::new(FLAG, format!("`{key}`"), expected));
                }
            }
        }
        if given { Ok(Self(network)) } else { Err(refused()) }
    }
}

impl fmt::Display for NetworkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let network = &self.0;
        write!(f, "bandwidth={}", bandwidth_text(network.bandwidth))?;
        if !network.latency.is_zero() {
            write!(f, ",latency={}", format_duration(network.latency))?;
        }
        if network.workers_per_host != 1 {
            write!(f, ",per-host={}", network.workers_per_host)?;
        }
        if network.servers == ServerHosts::Beside {
            f.write_str(",servers=beside")?;
        }
        for (host, bandwidth) in &network.slow {
            write!(f, ",slow={host}:{}", bandwidth_text(*bandwidth))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<NetworkSpec, String> {
        text.parse::<NetworkSpec>().map_err(|error| error.to_string())
    }

    #[test]
    fn a_network_is_written_as_it_is_read() {
        for text in [
            "bandwidth=20MB/s",
            "bandwidth=1.5GB/s,latency=250us,per-host=4,servers=beside,slow=1:5MB/s,slow=3:1kB/s",
        ] {
            assert_eq!(parsed(text).unwrap().to_string(), text);
        }
        assert_eq!(parsed("bandwidth=160Mbit/s").unwrap(), parsed("bandwidth=20MB/s").unwrap());
    }

    #[test]
    fn a_misspelt_network_is_refused_by_name() {
        let refused = |text: &str| parsed(text).unwrap_err();
        assert!(
            refused("bandwidth=20")
                .contains("--emulate-network bandwidth = 20: must be a number with one of")
        );
        assert!(refused("bandwidth=20MiB/s").contains("the units GB/s"));
        assert!(refused("latency=1ms").contains("must be bandwidth=20MB/s[,latency=1ms]"));
        assert!(refused("bandwith=20MB/s").contains("did you mean `bandwidth`?"));
        assert!(refused("bandwidth=1MB/s,latency=5").contains("did you mean 5s or 5ms?"));
        assert!(refused("bandwidth=1MB/s,servers=above").contains("apart or beside"));
        assert!(refused("bandwidth=1MB/s,slow=1").contains("such as 1:5MB/s"));
        let refused = |text: &str| parsed(text).unwrap().validate(4, 3).unwrap_err().to_string();
        let zero = refused("bandwidth=0MB/s");
        assert!(
            zero.starts_with("--emulate-network bandwidth = 0: must be at least 1 byte per second"),
            "{zero}"
        );
        let none = refused("bandwidth=1MB/s,per-host=0");
        assert!(none.starts_with("--emulate-network per-host = 0"), "{none}");
        let far = refused("bandwidth=1MB/s,per-host=2,slow=2:1kB/s");
        assert!(
            far.starts_with("--emulate-network slow = 2: must be one of the 2 hosts of the job"),
            "{far}"
        );
        parsed("bandwidth=1MB/s,per-host=2,servers=beside,slow=2:1kB/s").unwrap().validate(4, 3).unwrap();
    }
}
