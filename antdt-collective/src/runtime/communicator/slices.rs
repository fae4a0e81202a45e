//! Reductions in place, with long buffers reduced slice by slice.
//!
//! A slice holds so many bytes for each member ([`CommunicatorConfig::slice`](super::CommunicatorConfig)) that what one
//! round has folded is still in the cache when the next one sends it, and is not fetched from memory once more: over
//! loopback, 64 MiB then take two thirds to four fifths of the time, on the clock and on the cores. A slice costs its
//! rounds' latency `α`; where that would tell, over slower or longer ways, slices grow until it does not.
//!
//! In place, a slice is first copied into a log, past the caches, and then reduced where it lies: `S` bytes read and `S`
//! written besides. A call that breaks off copies the log back.
//!
//! Rejected: the result made elsewhere and copied, which reads and writes as much again once the call is over, when nothing
//! of it is in a cache any more. Slices in two rounds at once, to hide `α`: with a core for each rank none is idle.
//!
//! Source: our design.

use super::{ScheduledCommunicator, Way, lending};
use crate::element::Element;
use crate::error::CollectiveError;
use crate::runtime::transport::{Exchange, Transport};
use crate::schedule::CostModel;

/// Bytes for each member: a message of that length is still in the second level of the cache when it is sent on.
const SLICE_BYTES: usize = 512 << 10;

/// From this length of a buffer on, its log goes past the caches: they hold a slice and what is on its way, and little more.
/// Over loopback 1 MiB then takes a twentieth less time, 4 MiB a tenth; for 512 KiB and less it takes longer.
const LOG_STREAM_MIN_BYTES: usize = 1 << 20;

/// The bytes of a round take so many times its latency, at the least.
const LATENCIES: f64 = 8.0;

/// Elements that an algorithm which [slices](crate::schedule::Algorithm::slices) reduces at a time, of `len`.
pub(in crate::runtime) fn slice_len<E: Element>(
    bytes: Option<usize>,
    cost: &CostModel,
    world: u32,
    len: usize,
) -> usize {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, as it should")]
    let worth_a_round = (LATENCIES * cost.alpha * cost.bandwidth) as usize;
    let bytes = bytes.unwrap_or(SLICE_BYTES.max(worth_a_round));
    (bytes / size_of::<E>()).max(1).saturating_mul(world as usize).min(len.max(1))
}

impl<T: Transport> ScheduledCommunicator<T> {
    /// Elements that are reduced at a time, of `len`: the same on all members.
    pub(super) fn slice_len<E: Element>(&self, way: Way<'_>, len: usize) -> usize {
        match way {
            Way::By(algorithm) if algorithm.slices() => {
                slice_len::<E>(self.config.slice, &self.cost, self.world(), len)
            }
            _ => len.max(1),
        }
    }

    /// Has `reduce` reduce `data` where they lie, one slice of so many elements after the other; if anything fails, they are
    /// as they were.
    pub(super) fn in_place<E: Element>(
        &mut self,
        mut call: Exchange,
        slice: usize,
        data: &mut [E],
        mut reduce: impl FnMut(&mut Self, &mut Exchange, &mut [E]) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let streams = size_of_val(data) >= LOG_STREAM_MIN_BYTES;
        self.with_target(data.len(), |this, log| {
            let (mut logged, mut result) = (0, Ok(()));
            for (piece, log) in data.chunks_mut(slice).zip(log.chunks_mut(slice)) {
                lending::copy(bytemuck::cast_slice_mut(log), bytemuck::cast_slice(piece), streams);
                logged += piece.len();
                result = reduce(this, &mut call, piece);
                if result.is_err() {
                    break;
                }
            }
            let result = result.and_then(|()| this.conclude(&call, size_of_val(data)));
            if result.is_err() && this.open {
                // The result may count yet: it is kept where the log was.
                data.swap_with_slice(log);
            } else if result.is_err() {
                data[..logged].copy_from_slice(&log[..logged]);
            }
            result
        })
    }
}
