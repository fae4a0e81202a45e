//! Measurement of the cost model: once, when a group is formed.

use std::hint::black_box;
use std::time::Instant;

use antdt_core::Rank;

use super::ScheduledCommunicator;
use crate::error::CollectiveError;
use crate::frame::{Operation, OperationKind};
use crate::kernel;
use crate::op::ReduceOp;
use crate::runtime::transport::{Exchange, Incoming, Outgoing, Sink, Transport};
use crate::schedule::CostModel;

/// Times that each thing is measured; the median counts.
const REPEATS: usize = 9;
/// Times that a message is sent to see whether it is long enough; the quickest counts, for noise only adds.
const TRIES: usize = 3;
/// Bytes of the shortest and of the longest message that the bandwidth is measured with.
const SHORTEST: usize = 16 << 10;
const LONGEST: usize = 1 << 20;
/// Factor from one length that is tried to the next.
const LONGER: usize = 4;
/// Seconds that a long message takes beyond two short ones, at least: enough that latency and noise are little against them.
const ENOUGH: f64 = 2e-3;

/// Returns the bytes of a message that shows the bandwidth, so short that a slow network is not occupied for seconds.
/// `time` gives the seconds of a message without bytes and of one of so many bytes.
fn long_enough<Error>(mut time: impl FnMut(usize) -> Result<[f64; 2], Error>) -> Result<usize, Error> {
    let mut len = SHORTEST;
    while len < LONGEST {
        let [short, long] = time(len)?;
        if long >= 2.0 * short + ENOUGH {
            break;
        }
        len *= LONGER;
    }
    Ok(len)
}

impl<T: Transport> ScheduledCommunicator<T> {
    /// Measures the network and uses the result to choose algorithms from now on. All members call it at the
    /// same time, best once after the group was formed; it takes some tens of messages. All end with the same
    /// model, that of the slowest member.
    ///
    /// # Errors
    /// As any collective; see [`CollectiveError`].
    pub fn fit(&mut self) -> Result<CostModel, CollectiveError> {
        let world = self.world();
        if world < 2 {
            return Ok(self.cost);
        }
        let mut call = self.begin(Operation::plain(OperationKind::Barrier), LONGEST);
        self.meet(&call)?;
        let (mut short, mut long, mut fan) = (Vec::new(), Vec::new(), Vec::new());
        let mut bytes = vec![0_u8; 2 * LONGEST];
        let len = long_enough(|len| {
            let mut quickest = [f64::INFINITY; 2];
            for _ in 0..TRIES {
                for (quickest, len) in quickest.iter_mut().zip([8, len]) {
                    let took = self.timed(&mut call, |this, call| this.pass_on(call, &mut bytes, len))?;
                    *quickest = quickest.min(took);
                }
            }
            // All go on with the same length.
            self.slowest(&mut call, quickest)
        })?;
        for _ in 0..REPEATS {
            short.push(self.timed(&mut call, |this, call| this.pass_on(call, &mut bytes, 8))?);
            long.push(self.timed(&mut call, |this, call| this.pass_on(call, &mut bytes, len))?);
            let mut blocks = vec![0_u8; 8 * world as usize];
            fan.push(self.timed(&mut call, |this, call| this.transport.all_gather(call, &mut blocks))?);
        }
        let (alpha, fan) = (median(&mut short), median(&mut fan));
        let further = f64::from(world.max(3) - 2);
        let measured = [
            alpha,
            if world > 2 { (fan - alpha).max(0.0) / further } else { alpha / 2.0 },
            (median(&mut long) - alpha).max(1e-9) / len as f64,
            fold_seconds(&mut bytes) / LONGEST as f64,
        ];
        // The slowest member's, so that all have the same.
        let [alpha, overhead, per_byte, gamma] = self.slowest(&mut call, measured)?;
        self.cost = CostModel { alpha, overhead, bandwidth: 1.0 / per_byte, gamma, burst: self.cost.burst };
        self.last_choice = None;
        Ok(self.cost)
    }

    // The largest of all members' numbers, each above 0.
    fn slowest<const N: usize>(
        &mut self,
        call: &mut Exchange,
        mine: [f64; N],
    ) -> Result<[f64; N], CollectiveError> {
        call.tag.round += 1;
        self.gather_blocks(call, bytemuck::cast_slice(&mine))?;
        let all: &[f64] = bytemuck::cast_slice(&self.blocks[..N * self.world() as usize]);
        let most = |which| all.iter().skip(which).step_by(N).fold(f64::MIN_POSITIVE, |a, b| a.max(*b));
        Ok(std::array::from_fn(most))
    }

    fn timed(
        &mut self,
        call: &mut Exchange,
        work: impl FnOnce(&mut Self, &Exchange) -> Result<(), CollectiveError>,
    ) -> Result<f64, CollectiveError> {
        call.tag.round += 1;
        let began = Instant::now();
        work(self, call)?;
        Ok(began.elapsed().as_secs_f64())
    }

    // To the next rank, while the one before sends here.
    fn pass_on(&mut self, call: &Exchange, bytes: &mut [u8], len: usize) -> Result<(), CollectiveError> {
        let (me, world) = (self.me().0, self.world());
        let (out, into) = bytes.split_at_mut(LONGEST);
        let from = Rank((me + world - 1) % world);
        self.transport.exchange(
            call,
            &[Outgoing { to: Rank((me + 1) % world), bytes: &out[..len] }],
            &mut [Incoming { from, sink: Sink::Place(&mut into[..len]) }],
        )
    }
}

fn fold_seconds(bytes: &mut [u8]) -> f64 {
    let (into, from) = bytes.split_at_mut(LONGEST);
    let mut into: Vec<f32> = bytemuck::pod_collect_to_vec(into);
    let mut seconds: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let began = Instant::now();
            kernel::reduce_bytes(ReduceOp::Sum, black_box(&mut into), black_box(from));
            began.elapsed().as_secs_f64()
        })
        .collect();
    median(&mut seconds)
}

fn median(seconds: &mut [f64]) -> f64 {
    let middle = seconds.len() / 2;
    *seconds.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_measured_with_messages_that_its_speed_is_seen_by_and_no_longer_ones() {
        for (bandwidth, alpha) in
            [(1e5, 1e-3), (1.4e6, 1e-3), (1e8, 2e-4), (1e9, 5e-2), (2.2e9, 2e-5), (1e11, 1e-6)]
        {
            let mut spent = 0.0;
            let time = |len: usize| {
                let times = [alpha, alpha + len as f64 / bandwidth];
                spent += TRIES as f64 * (times[0] + times[1]);
                Ok::<_, std::convert::Infallible>(times)
            };
            let Ok(len) = long_enough(time);
            let long = len as f64 / bandwidth;
            spent += REPEATS as f64 * (2.0 * alpha + long);
            // Twelve of the shortest message, where even that is long; else what the factor between lengths may cost.
            let shortest = SHORTEST as f64 / bandwidth;
            assert!(spent <= 60.0 * (ENOUGH + 3.0 * alpha) + 12.0 * shortest, "{bandwidth}: {spent} s");
            assert!(len == LONGEST || long >= ENOUGH + alpha, "{bandwidth}: {len} bytes in {long} s");
        }
    }

    #[test]
    fn a_network_that_lets_a_little_through_at_once_is_measured_with_more() {
        // As a token bucket of 64 KiB before a line of 1 MB/s.
        let time = |len: usize| {
            Ok::<_, std::convert::Infallible>([1e-4, 1e-4 + len.saturating_sub(64 << 10) as f64 / 1e6])
        };
        assert_eq!(long_enough(time), Ok(256 << 10));
    }
}
