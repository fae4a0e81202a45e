//! What one rank tells all others in a step besides its dense gradient.

use antdt_core::{Ack, Acks, Generation, LeaseId};

use super::error::WorkerError;

/// The sparse part of a rank's gradient, and which samples it comes from.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Blob {
    /// Samples in the batch.
    pub(super) samples: u64,
    /// Acks that are due when the step is committed.
    pub(super) acks: Acks,
    /// Touched rows, ascending.
    pub(super) rows: Vec<u64>,
    /// Gradient sums, `[rows, dim]`.
    pub(super) row_sums: Vec<f32>,
}

impl Blob {
    /// Little-endian: samples, number of acks, number of rows, acks (generation, sequence, offset), rows, sums.
    pub(super) fn encode(&self) -> Vec<u8> {
        let len = 24 + self.acks.len() * 24 + self.rows.len() * 8 + self.row_sums.len() * 4;
        let mut bytes = Vec::with_capacity(len);
        for number in [self.samples, self.acks.len() as u64, self.rows.len() as u64] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for Ack { lease, offset } in &self.acks {
            for number in [lease.generation.0, lease.sequence, *offset] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        for row in &self.rows {
            bytes.extend_from_slice(&row.to_le_bytes());
        }
        for value in &self.row_sums {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// Reads what a peer with the same `dim` wrote.
    pub(super) fn decode(bytes: &[u8], dim: usize) -> Result<Self, WorkerError> {
        let damaged =
            || WorkerError::Parameters(format!("a peer's contribution of {} bytes is damaged", bytes.len()));
        let (head, mut rest) = bytes.split_at_checked(24).ok_or_else(damaged)?;
        let number = |bytes: &[u8]| {
            bytes.try_into().map(u64::from_le_bytes).expect("chunks of eight bytes are eight bytes")
        };
        let mut head = head.chunks_exact(8).map(number);
        let (samples, acks, rows) = (
            head.next().ok_or_else(damaged)?,
            head.next().ok_or_else(damaged)?,
            head.next().ok_or_else(damaged)?,
        );
        let mut take = |count: u64, size: u64| {
            let len =
                count.checked_mul(size).and_then(|len| usize::try_from(len).ok()).ok_or_else(damaged)?;
            let (taken, left) = rest.split_at_checked(len).ok_or_else(damaged)?;
            rest = left;
            Ok::<&[u8], WorkerError>(taken)
        };
        let acks = take(acks, 24)?
            .chunks_exact(24)
            .map(|ack| Ack {
                lease: LeaseId { generation: Generation(number(&ack[..8])), sequence: number(&ack[8..16]) },
                offset: number(&ack[16..]),
            })
            .collect();
        let row_bytes = take(rows, 8)?;
        let sum_bytes = take(rows, 4 * dim as u64)?;
        if !rest.is_empty() {
            return Err(damaged());
        }
        let rows = row_bytes.chunks_exact(8).map(number).collect();
        let row_sums =
            sum_bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        Ok(Self { samples, acks, rows, row_sums })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob() -> Blob {
        let ack = |sequence| Ack { lease: LeaseId { generation: Generation(2), sequence }, offset: 17 };
        Blob {
            samples: 9,
            acks: vec![ack(1), ack(2)].into(),
            rows: vec![3, 8],
            row_sums: vec![0.5, -1.0, 2.0, 3.0],
        }
    }

    #[test]
    fn a_contribution_reads_back() {
        assert_eq!(Blob::decode(&blob().encode(), 2).unwrap(), blob());
        assert_eq!(Blob::decode(&Blob::default().encode(), 0).unwrap(), Blob::default());
    }

    #[test]
    fn a_damaged_contribution_is_an_error_at_every_length_and_never_a_panic() {
        let bytes = blob().encode();
        for len in 0..bytes.len() {
            assert!(Blob::decode(&bytes[..len], 2).is_err(), "{len}");
        }
        assert!(Blob::decode(&[bytes.clone(), vec![0]].concat(), 2).is_err());
        let mut huge = bytes;
        huge[8..16].fill(0xff);
        assert!(Blob::decode(&huge, 2).is_err());
    }
}
