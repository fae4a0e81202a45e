//! Addresses of a job: what a process binds to, what other processes are told, and how names become
//! addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use antdt_core::InvalidValue;

/// Parses a host, given as an address or a name without a port; an IPv6 address may be in brackets. The
/// result has no brackets.
///
/// # Errors
/// If the text is neither; the error names `field`.
pub fn host(field: &str, text: &str) -> Result<String, InvalidValue> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(address.to_string());
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if text.is_empty() || text.len() > 253 || !text.bytes().all(plain) {
        let expected = "an address or host name without a port, such as 10.0.0.1, ::1 or node-3";
        return Err(InvalidValue::new(field, format!("`{text}`"), expected));
    }
    Ok(text.to_owned())
}

/// Returns `host:port`, with brackets around an IPv6 address.
pub fn join(host: &str, port: u16) -> String {
    if host.parse::<Ipv6Addr>().is_ok() { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Returns the host part of `host:port`, without the brackets of an IPv6 address.
pub fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

/// Resolves `host:port`. Where a name has several addresses, one of the same family (IPv4 or IPv6) as `like`
/// is preferred, because the processes of a job listen on one family.
///
/// # Errors
/// If the name is unknown, or there is no port.
pub fn resolve(address: &str, like: IpAddr) -> io::Result<SocketAddr> {
    let found: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    let preferred = found.iter().find(|found| found.is_ipv4() == like.is_ipv4());
    let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    preferred.or(found.first()).copied().ok_or_else(none)
}

/// Resolves the address or name that a process listens on.
///
/// # Errors
/// If the name is unknown.
pub fn bind_address(bind: &str) -> io::Result<IpAddr> {
    resolve(&join(bind, 0), IpAddr::V4(Ipv4Addr::UNSPECIFIED)).map(|address| address.ip())
}

/// Returns the local address from which packets to `peer` would be sent, without sending any.
///
/// # Errors
/// If there is no route.
pub fn local_address_towards(peer: SocketAddr) -> io::Result<IpAddr> {
    let any = match peer {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_addresses_and_names_without_ports() {
        let cases =
            [("10.0.0.1", "10.0.0.1"), ("::1", "::1"), ("[::1]", "::1"), ("node-3.rack", "node-3.rack")];
        for (text, expected) in cases {
            assert_eq!(host("--bind", text).unwrap(), expected);
        }
        for bad in ["", "node:80", "10.0.0.1:80", "[::1]:80", "two words", "[node]", "http://node"] {
            let error = host("--bind", bad).unwrap_err().to_string();
            assert!(error.contains("--bind") && error.contains("without a port"), "{error}");
        }
    }

    #[test]
    fn an_ipv6_address_is_in_brackets_beside_a_port() {
        for (host, joined) in [("::1", "[::1]:80"), ("10.0.0.1", "10.0.0.1:80"), ("node", "node:80")] {
            assert_eq!(join(host, 80), joined);
            assert_eq!(host_of(joined), host);
        }
        let like = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(resolve("[::1]:80", like).unwrap(), "[::1]:80".parse().unwrap());
    }

    #[test]
    fn a_name_is_resolved_to_the_family_that_is_listened_on() {
        let found = resolve("localhost:80", IpAddr::V4(Ipv4Addr::UNSPECIFIED)).unwrap();
        assert_eq!(found, "127.0.0.1:80".parse().unwrap());
        assert!(resolve("no-such-host.invalid:80", IpAddr::V4(Ipv4Addr::UNSPECIFIED)).is_err());
        assert!(resolve("localhost", IpAddr::V4(Ipv4Addr::UNSPECIFIED)).is_err(), "no port");
    }

    #[test]
    fn the_address_towards_loopback_is_loopback() {
        let peer = "127.0.0.1:9".parse().unwrap();
        assert_eq!(local_address_towards(peer).unwrap(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
}
