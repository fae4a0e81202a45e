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
/// Bytes of the long message: enough that latency is nothing against them, few enough that measuring takes milliseconds.
const LONG: usize = 1 << 20;

impl<T: Transport> ScheduledCommunicator<T> {
    /// Measures the network and uses the result to choose algorithms from now on. All members call it at the
    /// same time, best once after the group was formed; it takes some tens of messages. All end with the same
    /// model, that of the slowest member.
    ///
    /// # Errors
    /// As any collective.
    pub fn fit(&mut self) -> Result<CostModel, CollectiveError> {
        let world = self.world();
        if world < 2 {
            return Ok(self.cost);
        }
        let mut call = self.begin(Operation::plain(OperationKind::Barrier), LONG);
        self.meet(&call)?;
        let (mut short, mut long, mut fan) = (Vec::new(), Vec::new(), Vec::new());
        let mut bytes = vec![0_u8; 2 * LONG];
        for _ in 0..REPEATS {
            short.push(self.timed(&mut call, |this, call| this.pass_on(call, &mut bytes, 8))?);
            long.push(self.timed(&mut call, |this, call| this.pass_on(call, &mut bytes, LONG))?);
            let mut blocks = vec![0_u8; 8 * world as usize];
            fan.push(self.timed(&mut call, |this, call| this.transport.all_gather(call, &mut blocks))?);
        }
        let (alpha, fan) = (median(&mut short), median(&mut fan));
        let further = f64::from(world.max(3) - 2);
        let measured = [
            alpha,
            if world > 2 { (fan - alpha).max(0.0) / further } else { alpha / 2.0 },
            (median(&mut long) - alpha).max(1e-9) / LONG as f64,
            fold_seconds(&mut bytes) / LONG as f64,
        ];
        // The slowest member's, so that all have the same.
        call.tag.round += 1;
        self.gather_blocks(&call, bytemuck::cast_slice(&measured))?;
        let all: &[f64] = bytemuck::cast_slice(&self.blocks[..4 * world as usize]);
        let slowest =
            |which: usize| all.iter().skip(which).step_by(4).fold(f64::MIN_POSITIVE, |a, b| a.max(*b));
        self.cost = CostModel {
            alpha: slowest(0),
            overhead: slowest(1),
            bandwidth: 1.0 / slowest(2),
            gamma: slowest(3),
            burst: self.cost.burst,
        };
        self.last_choice = None;
        Ok(self.cost)
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
        let (out, into) = bytes.split_at_mut(LONG);
        let from = Rank((me + world - 1) % world);
        self.transport.exchange(
            call,
            &[Outgoing { to: Rank((me + 1) % world), bytes: &out[..len] }],
            &mut [Incoming { from, sink: Sink::Place(&mut into[..len]) }],
        )
    }
}

fn fold_seconds(bytes: &mut [u8]) -> f64 {
    let (into, from) = bytes.split_at_mut(LONG);
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
