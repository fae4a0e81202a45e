//! [`Sums`]: the sums over all members of a dense gradient.

use antdt_collective::runtime::{BucketMemory, Communicator};
use antdt_collective::{CollectiveError, CommunicatorBuffer, Compressor, ReduceOp};

/// Sums over all members.
#[derive(Debug)]
pub(super) enum Sums {
    /// They lie in memory of the communicator.
    Own(CommunicatorBuffer<f32>),
    Heap(Vec<f32>),
    /// They lie in buckets on a device.
    Device(BucketMemory),
}

impl From<Vec<f32>> for Sums {
    fn from(values: Vec<f32>) -> Self {
        Self::Heap(values)
    }
}

impl Sums {
    /// The sums, if they are on the host.
    pub(super) fn host(&self) -> Option<&[f32]> {
        match self {
            Self::Own(buffer) => Some(buffer),
            Self::Heap(values) => Some(values),
            Self::Device(_) => None,
        }
    }
}

/// Memory of the communicator for such a gradient, kept from step to step and from group to group: an adapter registers it once,
/// and peers read and write it where it lies.
#[derive(Debug, Default)]
pub(super) struct SumsMemory(Option<CommunicatorBuffer<f32>>);

impl SumsMemory {
    /// Adds up what all members bring. A compressed gradient, and that of a worker that is alone, stay where they are: their
    /// values do not travel.
    pub(super) fn reduce<C: Communicator>(
        &mut self,
        comm: &mut C,
        compressor: Option<&mut Compressor>,
        mut dense: Vec<f32>,
    ) -> Result<Sums, CollectiveError> {
        if let Some(compressor) = compressor {
            compressor.all_reduce(comm, &mut dense)?;
            return Ok(dense.into());
        }
        if comm.group().world() == 1 || dense.is_empty() {
            comm.all_reduce(&mut dense, ReduceOp::Sum)?;
            return Ok(dense.into());
        }
        let kept = self.0.take().filter(|buffer| buffer.len() == dense.len());
        let mut buffer = kept.map_or_else(|| comm.buffer(dense.len()), Ok)?;
        buffer.copy_from_slice(&dense);
        comm.all_reduce_buffer(&mut buffer, ReduceOp::Sum)?;
        Ok(Sums::Own(buffer))
    }

    /// Takes the memory back, for the next step.
    pub(super) fn keep(&mut self, sums: Sums) {
        if let Sums::Own(buffer) = sums {
            self.0 = Some(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use antdt_collective::runtime::testing::{CountTransport, tcp_members};
    use antdt_collective::runtime::{CommunicatorConfig, ScheduledCommunicator};

    use super::*;

    #[test]
    fn a_gradient_in_one_piece_is_registered_once_and_sent_from_there_in_every_step() {
        const LEN: usize = 300_000;
        thread::scope(|scope| {
            for (rank, transport) in (1_u8..).zip(tcp_members(3).0) {
                scope.spawn(move || {
                    let (transport, traffic) = CountTransport::new(transport);
                    let mut comm = ScheduledCommunicator::new(transport, CommunicatorConfig::default());
                    let mut memory = SumsMemory::default();
                    for step in 1_u8..6 {
                        let dense = vec![f32::from(rank * step); LEN];
                        let sums = memory.reduce(&mut comm, None, dense).unwrap();
                        let found = sums.host().unwrap();
                        assert!(
                            found.len() == LEN && found.iter().all(|sum| *sum == f32::from(6 * step)),
                            "step {step}"
                        );
                        memory.keep(sums);
                        assert_eq!(traffic.regions(), 2, "operand and result, in step {step}");
                    }
                    assert!(traffic.bytes() > 5 * 4 * LEN as u64);
                    assert_eq!(traffic.copied_bytes(), 0, "all was sent from where it lay");
                });
            }
        });
    }
}
