//! Cards: what members tell each other over TCP before they connect their adapters.

use super::mtu::Mtu;
use super::shape::Shape;

/// Message in which a member describes its RDMA adapter to the other members before they connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdapterOffer {
    /// The member has an adapter.
    Adapter {
        /// Whether the adapter's port is an Ethernet port, which is reached by an IP address.
        ethernet: bool,
        /// Longest packet that the adapter's port takes.
        mtu: Mtu,
        /// Number and size of the slots that this member would keep for each other member.
        shape: Shape,
        /// Whether this member wants the connection manager of the RDMA stack to connect the members.
        managed: bool,
    },
    /// The member has no usable adapter, for this reason.
    Nothing(String),
}

const NOTHING: u8 = 0;
const INFINIBAND: u8 = 1;
const ETHERNET: u8 = 2;

impl AdapterOffer {
    /// Length of an encoded offer, in bytes.
    pub const LEN: usize = 256;

    /// Encodes the offer for the wire. A reason that is too long is cut.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        match self {
            Self::Adapter { ethernet, mtu, shape, managed } => {
                bytes[0] = if *ethernet { ETHERNET } else { INFINIBAND };
                bytes[1] = u8::from(*managed);
                bytes[4..8].copy_from_slice(&mtu.code().to_le_bytes());
                bytes[8..12].copy_from_slice(&shape.slots.to_le_bytes());
                bytes[12..16].copy_from_slice(&shape.slot_bytes.to_le_bytes());
            }
            Self::Nothing(reason) => {
                bytes[0] = NOTHING;
                let end = reason.floor_char_boundary(Self::LEN - 2);
                #[allow(clippy::cast_possible_truncation, reason = "less than 256")]
                let len = end as u8;
                bytes[1] = len;
                bytes[2..2 + end].copy_from_slice(&reason.as_bytes()[..end]);
            }
        }
        bytes
    }

    /// Decodes an offer; `None` if the bytes are not one.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let u32_at = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        match bytes[0] {
            NOTHING => {
                let reason = bytes.get(2..2 + bytes[1] as usize)?;
                Some(Self::Nothing(String::from_utf8_lossy(reason).into_owned()))
            }
            kind @ (INFINIBAND | ETHERNET) => {
                let shape = Shape { slots: u32_at(8)?, slot_bytes: u32_at(12)? };
                let mtu = Mtu::from_code(u32_at(4)?)?;
                let offer = Self::Adapter { ethernet: kind == ETHERNET, mtu, shape, managed: bytes[1] == 1 };
                (shape.is_valid() && bytes[1] < 2).then_some(offer)
            }
            _ => None,
        }
    }
}

/// One end of an RDMA connection between two members, as it is told to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// Number of the queue pair at this end.
    pub queue_pair: u32,
    /// Number of the first packet that this end sends; 24 bits.
    pub packet: u32,
    /// GID (address) of the adapter's port.
    pub gid: [u8; 16],
    /// LID, the address of the port on an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Port number at which the connection manager takes calls; 0 if it is not used.
    pub service: u16,
    /// Memory address of the slots into which the peer writes its messages.
    pub slots: u64,
    /// Remote key of the memory of the slots.
    pub key: u32,
}

impl Endpoint {
    /// Length of an encoded endpoint, in bytes.
    pub const LEN: usize = 48;

    /// Encodes the endpoint for the wire.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.queue_pair.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.packet.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.gid);
        bytes[24..26].copy_from_slice(&self.lid.to_le_bytes());
        bytes[26..28].copy_from_slice(&self.service.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.key.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.slots.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..40]);
        bytes[40..44].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes an endpoint; `None` if the bytes are damaged.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let u32_at = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let endpoint = Self {
            queue_pair: u32_at(0)?,
            packet: u32_at(4)?,
            gid: bytes[8..24].try_into().ok()?,
            lid: u16::from_le_bytes([bytes[24], bytes[25]]),
            service: u16::from_le_bytes([bytes[26], bytes[27]]),
            key: u32_at(28)?,
            slots: bytes[32..40].try_into().map(u64::from_le_bytes).ok()?,
        };
        (u32_at(40)? == crc32c::crc32c(&bytes[..40])).then_some(endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_read_back_and_a_damaged_endpoint_is_refused() {
        let shape = Shape::of_group(4);
        let mtu = Mtu::from_code(5).unwrap();
        let long = "é".repeat(200);
        for (ethernet, managed) in [(false, false), (true, false), (true, true)] {
            let offer = AdapterOffer::Adapter { ethernet, mtu, shape, managed };
            assert_eq!(AdapterOffer::decode(&offer.encode()), Some(offer));
        }
        let nothing = AdapterOffer::Nothing("no adapter".to_owned());
        assert_eq!(AdapterOffer::decode(&nothing.encode()), Some(nothing));
        let cut = AdapterOffer::decode(&AdapterOffer::Nothing(long.clone()).encode());
        assert_eq!(cut, Some(AdapterOffer::Nothing(long[..254].to_owned())));
        let impossible =
            AdapterOffer::Adapter { ethernet: true, mtu, shape: Shape { slots: 0, ..shape }, managed: false };
        assert_eq!(AdapterOffer::decode(&impossible.encode()), None);
        let endpoint = Endpoint {
            queue_pair: 17,
            packet: 0xff_ffff,
            gid: [7; 16],
            lid: 3,
            service: 0xfedc,
            slots: 1 << 47,
            key: 0x1234,
        };
        let bytes = endpoint.encode();
        assert_eq!(Endpoint::decode(&bytes), Some(endpoint));
        for bit in 0..44 * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Endpoint::decode(&damaged), None, "bit {bit}");
        }
    }
}
