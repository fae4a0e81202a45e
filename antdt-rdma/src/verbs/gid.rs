//! GIDs: the addresses under which an adapter is reached, and the choice among them.

use std::net::{IpAddr, Ipv6Addr};

/// Network protocol of a GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GidKind {
    /// InfiniBand, or RoCE v1; routers do not forward either.
    Link,
    /// RoCE v2: RDMA over UDP and IP.
    Udp,
}

/// An entry in an adapter's table of GIDs, the addresses under which it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// Index of the entry in the table.
    pub index: u8,
    /// The 128-bit address.
    pub address: [u8; 16],
    /// Network protocol of the address.
    pub kind: GidKind,
}

impl Gid {
    /// Parses an entry of the table from the two texts that Linux has for it: the address, and the name of
    /// its protocol. `None` for an empty or malformed entry.
    pub fn parse(index: u8, address: &str, kind: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        let mut groups = address.trim().split(':');
        for pair in bytes.chunks_exact_mut(2) {
            let group = groups.next().filter(|group| group.len() == 4)?;
            pair.copy_from_slice(&u16::from_str_radix(group, 16).ok()?.to_be_bytes());
        }
        let kind = match kind.trim() {
            "RoCE v2" => GidKind::Udp,
            "IB/RoCE v1" => GidKind::Link,
            _ => return None,
        };
        (groups.next().is_none() && bytes != [0; 16]).then_some(Self { index, address: bytes, kind })
    }

    /// Returns whether the GID is an IPv4 address.
    pub fn is_ipv4(&self) -> bool {
        self.address[..10] == [0; 10] && self.address[10..12] == [0xff, 0xff]
    }

    // `fe80::/64`: valid on one link only.
    fn is_link_local(&self) -> bool {
        self.address[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0]
    }
}

/// Returns the IP address that a GID of RoCE v2 stands for; `None` if the address is valid on its link only.
pub fn ip_of(gid: [u8; 16]) -> Option<IpAddr> {
    let address = Ipv6Addr::from(gid);
    let mapped = address.to_ipv4_mapped().map(IpAddr::V4);
    mapped.or_else(|| (!address.is_unicast_link_local()).then_some(IpAddr::V6(address)))
}

/// Returns the GID to use of an Ethernet adapter's table: one of RoCE v2, preferably IPv4, then IPv6 that is
/// valid beyond the link, then any; the first among equals. `None` if the adapter has no GID of RoCE v2.
pub fn choose(table: &[Gid]) -> Option<Gid> {
    let rank = |gid: &Gid| if gid.is_ipv4() { 0 } else { 1 + u8::from(gid.is_link_local()) };
    table.iter().filter(|gid| gid.kind == GidKind::Udp).min_by_key(|gid| (rank(gid), gid.index)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK_LOCAL: &str = "fe80:0000:0000:0000:0011:22ff:fe33:4455";
    const IPV6: &str = "2001:0db8:0000:0000:0000:0000:0000:0001";
    const IPV4: &str = "0000:0000:0000:0000:0000:ffff:0a4d:0001";

    type Entries<'a> = &'a [(&'a str, &'a str)];

    fn table(entries: Entries<'_>) -> Vec<Gid> {
        (0..).zip(entries).filter_map(|(index, (address, kind))| Gid::parse(index, address, kind)).collect()
    }

    #[test]
    fn the_ipv4_address_of_roce_v2_is_chosen_wherever_it_stands() {
        let (v1, v2) = ("IB/RoCE v1\n", "RoCE v2\n");
        let cases: [(Entries<'_>, Option<u8>); 6] = [
            (&[(LINK_LOCAL, v2), (IPV4, v2)], Some(1)),
            (&[(IPV4, v1), (IPV4, v2), (IPV6, v2)], Some(1)),
            (&[(LINK_LOCAL, v2), (IPV6, v2)], Some(1)),
            (&[(LINK_LOCAL, v2)], Some(0)),
            (&[(LINK_LOCAL, v1), (IPV4, v1)], None),
            (&[], None),
        ];
        for (entries, index) in cases {
            assert_eq!(choose(&table(entries)).map(|gid| gid.index), index, "{entries:?}");
        }
    }

    #[test]
    fn empty_and_damaged_entries_are_none() {
        let zero = "0000:0000:0000:0000:0000:0000:0000:0000";
        for address in [zero, "", "fe80", &IPV4[1..], &format!("{IPV4}:0000")] {
            assert_eq!(Gid::parse(0, address, "RoCE v2"), None, "{address}");
        }
        assert_eq!(Gid::parse(0, IPV4, ""), None);
        let gid = Gid::parse(7, IPV4, "RoCE v2").unwrap();
        assert_eq!(gid.address[12..], [10, 77, 0, 1]);
        assert_eq!(ip_of(gid.address).unwrap().to_string(), "10.77.0.1");
    }

    #[test]
    fn an_address_of_a_link_alone_is_no_ip_address_that_others_reach() {
        let ip = |text: &str| ip_of(Gid::parse(0, text, "RoCE v2").unwrap().address);
        assert_eq!(ip(IPV6).unwrap().to_string(), "2001:db8::1");
        assert_eq!(ip(LINK_LOCAL), None);
    }
}
