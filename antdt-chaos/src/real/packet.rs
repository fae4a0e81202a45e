//! What happens to a packet on its way: pure, without a network.
//!
//! All packets of a job go to one address and come back from it: [`Segment::reflect`] exchanges source and destination, so that the sender's
//! own host receives them. [`Rules`] say what a fault does to those from and to a victim, which is known by its ports.

use std::collections::BTreeSet;
use std::time::Duration;

use antdt_core::DetRng;

/// Bits of the TCP header.
const RST: u8 = 0x04;
const SYN: u8 = 0x02;
const FIN: u8 = 0x01;
const ACK: u8 = 0x10;

/// An IPv4 packet with a TCP segment.
#[derive(Debug)]
pub(super) struct Segment<'a> {
    bytes: &'a mut [u8],
    /// Where the TCP header begins.
    tcp: usize,
    /// Where the payload begins.
    payload: usize,
}

impl<'a> Segment<'a> {
    /// Reads a packet; `None` if it is another one.
    pub(super) fn read(bytes: &'a mut [u8]) -> Option<Self> {
        let first = *bytes.first()?;
        let tcp = usize::from(first & 0x0f) * 4;
        if first >> 4 != 4 || tcp < 20 || bytes.len() < tcp + 20 || bytes[9] != 6 {
            return None;
        }
        let total = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        let payload = tcp + usize::from(bytes[tcp + 12] >> 4) * 4;
        // No fragments: they have no ports.
        let fragment = u16::from_be_bytes([bytes[6], bytes[7]]) & 0x3fff;
        (payload >= tcp + 20 && payload <= total && total == bytes.len() && fragment == 0).then_some(Self {
            bytes,
            tcp,
            payload,
        })
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn long(&self, at: usize) -> u32 {
        u32::from(self.word(at)) << 16 | u32::from(self.word(at + 2))
    }

    /// Source and destination port.
    pub(super) fn ports(&self) -> (u16, u16) {
        (self.word(self.tcp), self.word(self.tcp + 2))
    }

    /// Sends the packet back to the host that it comes from, as from the address that it went to; `from` and `to` are its ports then.
    pub(super) fn reflect(&mut self, (from, to): (u16, u16)) {
        // A sum does not change with the order of what is added up.
        for byte in 12..16 {
            self.bytes.swap(byte, byte + 4);
        }
        if self.ports() != (from, to) {
            self.bytes[self.tcp..][..2].copy_from_slice(&from.to_be_bytes());
            self.bytes[self.tcp + 2..][..2].copy_from_slice(&to.to_be_bytes());
            self.seal();
        }
    }

    /// Changes a bit of the payload so that no checksum of the network notices it. Returns whether there is a payload.
    pub(super) fn corrupt(&mut self, rng: &mut DetRng) -> bool {
        let len = self.bytes.len() - self.payload;
        let at = self.payload + usize::try_from(rng.below(len as u64)).unwrap_or(0);
        if len > 0 {
            self.bytes[at] ^= 1 << rng.below(8);
            self.seal();
        }
        len > 0
    }

    /// The answer of a host that knows nothing of the connection; `None` if the packet is such an answer.
    pub(super) fn reset(&self) -> Option<Vec<u8>> {
        let flags = self.bytes[self.tcp + 13];
        if flags & RST != 0 {
            return None;
        }
        let mut answer = vec![0_u8; 40];
        answer[..20].copy_from_slice(&self.bytes[..20]);
        answer[0] = 0x45;
        answer[2..4].copy_from_slice(&40_u16.to_be_bytes());
        let (from, to) = self.ports();
        answer[20..22].copy_from_slice(&to.to_be_bytes());
        answer[22..24].copy_from_slice(&from.to_be_bytes());
        // What the sender of the packet takes: the next byte that it waits for.
        let next = if flags & ACK != 0 { self.long(self.tcp + 8) } else { 0 };
        let taken = u32::try_from(self.bytes.len() - self.payload).unwrap_or(0)
            + u32::from(flags & SYN != 0)
            + u32::from(flags & FIN != 0);
        answer[24..28].copy_from_slice(&next.to_be_bytes());
        answer[28..32].copy_from_slice(&self.long(self.tcp + 4).wrapping_add(taken).to_be_bytes());
        answer[32] = 0x50;
        answer[33] = RST | ACK;
        answer[10..12].fill(0);
        let sum = folded(sum(&answer[..20]));
        answer[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut segment = Segment { bytes: &mut answer, tcp: 20, payload: 40 };
        // Back to the sender, from where the packet went to.
        for byte in 12..16 {
            segment.bytes.swap(byte, byte + 4);
        }
        segment.seal();
        Some(answer)
    }

    /// Computes the checksum of the segment anew.
    fn seal(&mut self) {
        let at = self.tcp + 16;
        self.bytes[at..at + 2].fill(0);
        let sum = folded(self.sum());
        self.bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }

    fn sum(&self) -> u64 {
        let len = self.bytes.len() - self.tcp;
        sum(&self.bytes[12..20]) + 6 + len as u64 + sum(&self.bytes[self.tcp..])
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
    bytes.chunks(2).map(word).sum()
}

fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    #[allow(clippy::cast_possible_truncation, reason = "folded")]
    !(sum as u16)
}

/// What a fault does to packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Effect {
    /// They wait for a link of this bandwidth, in bytes per second, and then so long.
    Slow { bandwidth: f64, latency: Duration },
    /// This share is lost.
    Lossy(f64),
    /// Their sender is told that there is no such connection.
    Cut,
    /// One side is told that there is no such connection, the victim or its peers; what is for that side is lost.
    HalfReset { victim: bool },
    /// They are lost.
    BlackHole,
    /// A bit of this share is another one.
    Corrupt(f64),
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fate {
    /// It goes on at this moment, which may be now.
    Pass { at: Duration, corrupt: bool },
    /// It is lost.
    Lost,
    /// It is lost, and its sender gets [`Segment::reset`].
    Reset,
}

/// A fault of the links of one victim.
#[derive(Debug, Clone)]
struct Rule {
    fault: u32,
    effect: Effect,
    ports: BTreeSet<u16>,
    /// Until when the slow link is busy.
    busy: Duration,
    /// Packets that it hit.
    hits: u64,
}

/// The faults of links that last.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<Rule>);

impl Rules {
    /// A fault begins.
    pub(super) fn begin(&mut self, fault: u32, effect: Effect) {
        self.0.push(Rule { fault, effect, ports: BTreeSet::new(), busy: Duration::ZERO, hits: 0 });
    }

    /// The victim of a fault has these ports now.
    pub(super) fn ports(&mut self, fault: u32, ports: &BTreeSet<u16>) {
        for rule in self.0.iter_mut().filter(|rule| rule.fault == fault) {
            // The system would tell the other side of a connection that one side has closed.
            if !matches!(rule.effect, Effect::HalfReset { .. }) {
                rule.ports.clear();
            }
            rule.ports.extend(ports);
        }
    }

    /// A fault ends. Returns how many packets it hit.
    pub(super) fn end(&mut self, fault: u32) -> u64 {
        let (ended, rest) = std::mem::take(&mut self.0).into_iter().partition(|rule| rule.fault == fault);
        self.0 = rest;
        let ended: Vec<Rule> = ended;
        ended.iter().map(|rule| rule.hits).sum()
    }

    /// What becomes of a packet of so many bytes between two ports. `is_call` says that it is one from or to the master, whose bits
    /// stay as they are: calls have no checksum of their own.
    pub(super) fn fate(
        &mut self,
        now: Duration,
        (from, to): (u16, u16),
        len: usize,
        is_call: bool,
        rng: &mut DetRng,
    ) -> Fate {
        let (mut at, mut spoilt) = (now, false);
        for rule in &mut self.0 {
            if !rule.ports.contains(&from) && !rule.ports.contains(&to) {
                continue;
            }
            let chance = match rule.effect {
                Effect::Lossy(share) => rng.unit() < share,
                Effect::Corrupt(share) => !is_call && rng.unit() < share,
                Effect::Slow { .. } | Effect::Cut | Effect::HalfReset { .. } | Effect::BlackHole => true,
            };
            if !chance {
                continue;
            }
            rule.hits += 1;
            match rule.effect {
                Effect::Slow { bandwidth, latency } => {
                    #[allow(clippy::cast_precision_loss, reason = "a packet is small")]
                    let takes = Duration::from_secs_f64(len as f64 / bandwidth);
                    rule.busy = rule.busy.max(now) + takes;
                    at = at.max(rule.busy + latency);
                }
                Effect::Corrupt(_) => spoilt = true,
                Effect::Cut => return Fate::Reset,
                Effect::HalfReset { victim } if victim == rule.ports.contains(&from) => return Fate::Reset,
                Effect::Lossy(_) | Effect::HalfReset { .. } | Effect::BlackHole => return Fate::Lost,
            }
        }
        Fate::Pass { at, corrupt: spoilt }
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::Seed;
    use proptest::prelude::*;

    use super::*;

    /// A segment from 10.0.0.2 to 10.0.0.1, with right checksums.
    fn packet(from: u16, to: u16, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 40];
        bytes[0] = 0x45;
        bytes[2..4].copy_from_slice(&u16::try_from(40 + payload.len()).unwrap().to_be_bytes());
        bytes[8] = 64;
        bytes[9] = 6;
        bytes[12..16].copy_from_slice(&[10, 0, 0, 2]);
        bytes[16..20].copy_from_slice(&[10, 0, 0, 1]);
        let header = folded(sum(&bytes[..20]));
        bytes[10..12].copy_from_slice(&header.to_be_bytes());
        bytes[20..22].copy_from_slice(&from.to_be_bytes());
        bytes[22..24].copy_from_slice(&to.to_be_bytes());
        bytes[24..28].copy_from_slice(&1_000_u32.to_be_bytes());
        bytes[28..32].copy_from_slice(&2_000_u32.to_be_bytes());
        bytes[32] = 0x50;
        bytes[33] = flags;
        bytes.extend(payload);
        Segment { bytes: &mut bytes, tcp: 20, payload: 40 }.seal();
        bytes
    }

    /// Whether both checksums are right.
    fn is_whole(bytes: &mut [u8]) -> bool {
        folded(sum(&bytes[..20])) == 0 && folded(Segment::read(bytes).unwrap().sum()) == 0
    }

    proptest! {
        #[test]
        fn a_packet_comes_back_whole(from: u16, to: u16, other: u16, payload in proptest::collection::vec(any::<u8>(), 0..50)) {
            let mut bytes = packet(from, to, ACK, &payload);
            prop_assert!(is_whole(&mut bytes));
            Segment::read(&mut bytes).unwrap().reflect((from, other));
            prop_assert!(is_whole(&mut bytes));
            prop_assert_eq!((&bytes[12..16], &bytes[16..20]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
            prop_assert_eq!(Segment::read(&mut bytes).unwrap().ports(), (from, other));
            prop_assert_eq!(&bytes[40..], &payload[..]);
        }

        #[test]
        fn one_bit_of_a_payload_is_another_and_the_network_does_not_notice(
            payload in proptest::collection::vec(any::<u8>(), 0..50), seed: u64
        ) {
            let mut bytes = packet(1, 2, ACK, &payload);
            let spoilt = Segment::read(&mut bytes).unwrap().corrupt(&mut Seed(seed).rng());
            prop_assert_eq!(spoilt, !payload.is_empty());
            prop_assert!(is_whole(&mut bytes));
            let flipped: u32 = bytes[40..].iter().zip(&payload).map(|(a, b)| (a ^ b).count_ones()).sum();
            prop_assert_eq!(flipped, u32::from(spoilt));
        }

        #[test]
        fn any_bytes_are_read_or_are_none(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), seed: u64) {
            if let Some(mut segment) = Segment::read(&mut bytes) {
                segment.reset();
                segment.corrupt(&mut Seed(seed).rng());
                segment.reflect((1, 2));
            }
        }
    }

    #[test]
    fn a_reset_fits_the_sequence_that_its_receiver_expects() {
        let mut bytes = packet(7, 9, ACK, b"12345");
        let mut answer = Segment::read(&mut bytes).unwrap().reset().unwrap();
        assert!(is_whole(&mut answer));
        let segment = Segment::read(&mut answer).unwrap();
        assert_eq!(segment.ports(), (9, 7));
        assert_eq!((segment.long(24), segment.long(28)), (2_000, 1_005));
        assert!(segment.reset().is_none(), "a reset is not answered");
        let mut begin = packet(7, 9, SYN, b"");
        let mut refused = Segment::read(&mut begin).unwrap().reset().unwrap();
        assert_eq!(Segment::read(&mut refused).unwrap().long(28), 1_001);
    }

    #[test]
    fn a_fault_hits_the_packets_of_its_victim_while_it_lasts() {
        let (mut rules, rng) = (Rules::default(), &mut Seed(1).rng());
        let now = Duration::from_secs(1);
        let pass = Fate::Pass { at: now, corrupt: false };
        rules.begin(3, Effect::Cut);
        rules.ports(3, &BTreeSet::from([80]));
        assert_eq!(rules.fate(now, (80, 5), 40, false, rng), Fate::Reset);
        assert_eq!(rules.fate(now, (5, 80), 40, false, rng), Fate::Reset);
        assert_eq!(rules.fate(now, (5, 6), 40, false, rng), pass);
        assert_eq!(rules.end(3), 2);
        assert_eq!(rules.fate(now, (80, 5), 40, false, rng), pass);
        for victim in [true, false] {
            rules.begin(3, Effect::HalfReset { victim });
            rules.ports(3, &BTreeSet::from([80]));
            // The victim has closed it meanwhile.
            rules.ports(3, &BTreeSet::new());
            let told = |is_told| if is_told { Fate::Reset } else { Fate::Lost };
            assert_eq!(rules.fate(now, (80, 5), 40, false, rng), told(victim));
            assert_eq!(rules.fate(now, (5, 80), 40, false, rng), told(!victim));
            assert_eq!(rules.fate(now, (5, 6), 40, false, rng), pass);
            rules.end(3);
        }
        rules.begin(4, Effect::Slow { bandwidth: 1_000.0, latency: Duration::from_millis(10) });
        rules.ports(4, &BTreeSet::from([80]));
        let at = |ms| Fate::Pass { at: now + Duration::from_millis(ms), corrupt: false };
        assert_eq!(rules.fate(now, (80, 5), 100, false, rng), at(110));
        assert_eq!(rules.fate(now, (80, 5), 100, false, rng), at(210), "it waits for the one before");
        rules.end(4);
        rules.begin(5, Effect::Corrupt(1.0));
        rules.ports(5, &BTreeSet::from([80]));
        assert_eq!(rules.fate(now, (80, 5), 40, false, rng), Fate::Pass { at: now, corrupt: true });
        assert_eq!(rules.fate(now, (80, 5), 40, true, rng), pass);
        rules.begin(6, Effect::Lossy(0.25));
        rules.ports(6, &BTreeSet::from([80]));
        let lost = (0..10_000).filter(|_| rules.fate(now, (80, 5), 40, true, rng) == Fate::Lost).count();
        // Five standard deviations.
        assert!((2_280..=2_720).contains(&lost), "{lost}");
    }
}
