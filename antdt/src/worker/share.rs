//! The values besides the gradient that a rank sends to all others in a step.

use antdt_core::{Ack, Acks, Generation, LeaseId};
use serde::{Deserialize, Serialize};

use super::error::WorkerError;

/// Which samples a rank's gradient comes from, and how many rows of each table it touches.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Share {
    /// Samples in the batch.
    pub(super) samples: u64,
    /// Rows of each table that the gradient touches.
    pub(super) rows: Vec<u64>,
    /// Acks that are due when the step is committed.
    pub(super) acks: Acks,
}

/// A [`Share`] on the wire: an ack as (generation, sequence, offset).
#[derive(Serialize, Deserialize)]
struct Sent {
    samples: u64,
    rows: Vec<u64>,
    acks: Vec<(u64, u64, u64)>,
}

impl Share {
    /// As bytes, for [`decode`](Self::decode).
    pub(super) fn encode(&self) -> Vec<u8> {
        let ack = |ack: &Ack| (ack.lease.generation.0, ack.lease.sequence, ack.offset);
        let (rows, acks) = (self.rows.clone(), self.acks.iter().map(ack).collect());
        let sent = Sent { samples: self.samples, rows, acks };
        postcard::to_stdvec(&sent).expect("numbers have a form as bytes")
    }

    /// Reads what a peer with as many tables encoded.
    pub(super) fn decode(bytes: &[u8], tables: usize) -> Result<Self, WorkerError> {
        let damaged =
            || WorkerError::Parameters(format!("a peer's share of {} bytes is damaged", bytes.len()));
        let (sent, rest) = postcard::take_from_bytes::<Sent>(bytes).map_err(|_| damaged())?;
        if !rest.is_empty() || sent.rows.len() != tables {
            return Err(damaged());
        }
        let ack = |(generation, sequence, offset)| Ack {
            lease: LeaseId { generation: Generation(generation), sequence },
            offset,
        };
        Ok(Self { samples: sent.samples, rows: sent.rows, acks: sent.acks.into_iter().map(ack).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share() -> Share {
        let ack = |sequence| Ack { lease: LeaseId { generation: Generation(2), sequence }, offset: 17 };
        Share { samples: 9, rows: vec![300, 0], acks: vec![ack(1), ack(2)].into() }
    }

    #[test]
    fn a_share_reads_back() {
        assert_eq!(Share::decode(&share().encode(), 2).unwrap(), share());
        assert_eq!(Share::decode(&Share::default().encode(), 0).unwrap(), Share::default());
    }

    #[test]
    fn a_damaged_share_is_an_error_at_every_length_and_never_a_panic() {
        let bytes = share().encode();
        for len in 0..bytes.len() {
            assert!(Share::decode(&bytes[..len], 2).is_err(), "{len}");
        }
        assert!(Share::decode(&[&bytes[..], &[0]].concat(), 2).is_err());
        assert!(Share::decode(&bytes, 1).is_err(), "a peer with another number of tables");
        // More acks announced than memory could hold.
        let huge = [&[9, 0][..], &[0xff; 9], &[1]].concat();
        assert!(Share::decode(&huge, 0).is_err());
    }
}
