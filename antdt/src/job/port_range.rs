//! [`PortRange`]: the ports that a job's processes listen at.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use antdt_core::InvalidValue;

/// Ports that a firewall lets through. Text form: `FIRST-LAST`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Returns the addresses at `ip` to try one after the other, from the port at this position on, and around: processes that begin at
    /// different ones are seldom in each other's way.
    pub fn addresses(self, ip: IpAddr, from: u32) -> Vec<SocketAddr> {
        let ports: Vec<u16> = (self.first..=self.last).collect();
        let at = from as usize % ports.len();
        let around = ports[at..].iter().chain(&ports[..at]);
        around.map(|port| SocketAddr::new(ip, *port)).collect()
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for PortRange {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let ports = text
            .split_once('-')
            .and_then(|(first, last)| Some((first.trim().parse().ok()?, last.trim().parse().ok()?)));
        match ports {
            Some((first, last)) if 1 <= first && first <= last => Ok(Self { first, last }),
            _ => Err(InvalidValue::new(
                "--port-range",
                text,
                "FIRST-LAST, such as 29500-29599, from 1 to 65535",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn range_says_itself_again_and_what_is_none_is_refused() {
        for text in ["29500-29599", "7-7", "1-65535"] {
            assert_eq!(text.parse::<PortRange>().unwrap().to_string(), text);
        }
        for text in ["", "29500", "0-7", "9-7", "1-65536", "a-b", "-"] {
            assert!(text.parse::<PortRange>().unwrap_err().to_string().contains("FIRST-LAST"), "{text}");
        }
    }

    #[test]
    fn each_port_is_tried_once_whoever_begins_where() {
        let range: PortRange = "10-12".parse().unwrap();
        let ports = |from| -> Vec<u16> {
            range.addresses(Ipv4Addr::LOCALHOST.into(), from).iter().map(SocketAddr::port).collect()
        };
        assert_eq!((ports(0), ports(2), ports(4)), (vec![10, 11, 12], vec![12, 10, 11], vec![11, 12, 10]));
    }
}
