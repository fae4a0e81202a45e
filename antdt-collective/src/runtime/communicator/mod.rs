//! What a training loop calls.

use std::time::{Duration, Instant};

use antdt_core::Rank;

use super::transport::{Exchange, Fold, Incoming, Outgoing, Sink, Transport};
use crate::element::Element;
use crate::error::CollectiveError;
use crate::frame::{Operation, OperationKind, Tag};
use crate::group::Group;
use crate::kernel;
use crate::op::ReduceOp;
use crate::schedule::{
    Algorithm, ChainBroadcast, Choice, CostModel, Direct, DirectGather, Schedule, Span, Step,
    select_all_gather, spans_of,
};
use crate::weighted::{self, WeightedMean};

/// Collectives of one group. Every member makes the same calls in the same order.
///
/// On an error the caller's buffers are as they were, and every later call fails: form a new group. A call may fail on
/// some members after it succeeded on others; who must know agrees on the outcome by other means (the next call, or
/// the master). A group of one does nothing and sends nothing.
pub trait Communicator: Send {
    /// The members.
    fn group(&self) -> &Group;

    /// Replaces `data` by the element-wise reduction over all members; all end with the same bits. The same members,
    /// length and operands give the same bits in every run.
    ///
    /// # Errors
    /// See [`CollectiveError`]; `data` is then as it was.
    fn all_reduce<E: Element>(&mut self, data: &mut [E], op: ReduceOp) -> Result<(), CollectiveError>;

    /// Every member's bytes, by rank. Lengths may differ.
    ///
    /// # Errors
    /// See [`CollectiveError`]; also if the lengths add up to more than is accepted.
    fn all_gather_v(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError>;

    /// Replaces `bytes` by those of `root`, whatever their length was before.
    ///
    /// # Errors
    /// See [`CollectiveError`]; `bytes` are then as they were.
    fn broadcast(&mut self, root: Rank, bytes: &mut Vec<u8>) -> Result<(), CollectiveError>;

    /// Returns once all members have called it.
    ///
    /// # Errors
    /// See [`CollectiveError`].
    fn barrier(&mut self) -> Result<(), CollectiveError>;

    /// Replaces `data` by `Σ wᵢ xᵢ / Σ wᵢ` over all members: the mean over all samples if each member's `data` is the
    /// mean over its own `weight` samples. A member of weight 0 adds nothing, whatever its data hold, and gets the
    /// mean like the others. Without any weight, `data` stay and the result says so.
    ///
    /// # Errors
    /// See [`CollectiveError`]; also if the weight is negative or not finite. `data` are then as they were.
    fn weighted_mean(&mut self, data: &mut [f32], weight: f64) -> Result<WeightedMean, CollectiveError>;
}

/// Limits of a communicator. The same on all members.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CommunicatorConfig {
    /// How long one collective may take, waiting for the slowest member included. A silent member is given up after
    /// this; a dead one is noticed at once. Default 60 s: well above any step of a straggler, well below the patience
    /// of a user.
    pub timeout: Duration,
    /// Bytes that a gathered or broadcast message may have in all, a guard against a member gone mad. Default 4 GiB.
    pub bytes_max: u64,
    /// How all-reduces pick their algorithm. Default: direct for short buffers, ring for long ones.
    pub algorithm: Choice,
    /// The network, as [`Choice::Auto`] sees it. Default: loopback.
    pub cost: CostModel,
}

impl Default for CommunicatorConfig {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            bytes_max: 4 << 30,
            algorithm: Choice::RingOrDirect,
            cost: CostModel::LOOPBACK,
        }
    }
}

/// Bytes passed on at a time in a broadcast. Shorter ones fill the chain sooner; each costs a round.
const BROADCAST_SEGMENT: usize = 1 << 20;

/// Executes schedules over a transport.
#[derive(Debug)]
pub struct ScheduledCommunicator<T> {
    transport: T,
    config: CommunicatorConfig,
    sequence: u64,
    // The caller's data before the call, to be put back if it fails; 8-byte aligned.
    saved: Vec<u64>,
}

impl<T: Transport> ScheduledCommunicator<T> {
    /// A communicator that owns its transport.
    pub const fn new(transport: T, config: CommunicatorConfig) -> Self {
        Self { transport, config, sequence: 0, saved: Vec::new() }
    }

    /// All-reduce by a given algorithm, which must be the same on all members.
    ///
    /// # Errors
    /// See [`CollectiveError`]; `data` is then as it was.
    pub fn all_reduce_by<E: Element>(
        &mut self,
        algorithm: &dyn Algorithm,
        data: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let operation = Operation {
            kind: OperationKind::AllReduce,
            element: E::TYPE,
            op,
            algorithm: algorithm.code(),
            root: Rank(0),
            len: data.len() as u64,
        };
        let call = self.begin(operation);
        if data.is_empty() {
            // Nothing to send, but a member with another length must find out.
            return self.meet(&call);
        }
        let saved_len = size_of_val(data);
        self.saved.resize(self.saved.len().max(saved_len.div_ceil(8)), 0);
        let saved: &mut [u8] = bytemuck::cast_slice_mut(&mut self.saved);
        if self.transport.group().world() > 1 {
            saved[..saved_len].copy_from_slice(bytemuck::cast_slice(data));
        }
        let schedule = algorithm.schedule(self.me(), self.world(), data.len());
        self.execute(call, &schedule, data, op).inspect_err(|_| {
            if self.transport.group().world() > 1 {
                let saved: &[u8] = bytemuck::cast_slice(&self.saved);
                bytemuck::cast_slice_mut(data).copy_from_slice(&saved[..saved_len]);
            }
        })
    }

    fn me(&self) -> Rank {
        self.transport.group().me()
    }

    fn world(&self) -> u32 {
        self.transport.group().world()
    }

    fn begin(&mut self, operation: Operation) -> Exchange {
        self.sequence += 1;
        let started = Instant::now();
        let membership = self.transport.group().membership();
        Exchange {
            tag: Tag { membership, sequence: self.sequence, round: 0, operation },
            started,
            deadline: started + self.config.timeout,
        }
    }

    // One byte from everybody to everybody: nobody returns before all have come, with the same operation.
    fn meet(&mut self, call: &Exchange) -> Result<(), CollectiveError> {
        let mut bytes = vec![0_u8; self.world() as usize];
        let schedule = Direct.schedule(self.me(), self.world(), bytes.len());
        self.execute(*call, &schedule, &mut bytes, ReduceOp::Sum)
    }

    // Every member's number, by rank.
    fn numbers(&mut self, call: &Exchange, mine: u64) -> Result<Vec<u64>, CollectiveError> {
        let mut numbers = vec![0_u64; self.world() as usize];
        numbers[self.me().0 as usize] = mine;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut numbers);
        let gather = DirectGather { blocks: vec![8; self.world() as usize] };
        let schedule = gather.schedule(self.me(), self.world(), bytes.len());
        self.execute(*call, &schedule, bytes, ReduceOp::Sum)?;
        Ok(numbers)
    }

    // Fails here and tells the others why.
    fn refuse(&mut self, what: String) -> CollectiveError {
        self.transport.fail(CollectiveError::Invalid { what })
    }

    fn checked_len(&mut self, lens: &[u64]) -> Result<usize, CollectiveError> {
        let total = lens.iter().try_fold(0_u64, |sum, len| sum.checked_add(*len));
        let most = self.config.bytes_max;
        match total.filter(|total| *total <= most).and_then(|total| usize::try_from(total).ok()) {
            Some(total) => Ok(total),
            None => {
                Err(self.refuse(format!("messages of {lens:?} bytes, at most {most} in all are accepted")))
            }
        }
    }

    fn execute<E: Element>(
        &mut self,
        mut call: Exchange,
        schedule: &Schedule,
        buffer: &mut [E],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        for round in &schedule.rounds {
            if !round.is_empty() {
                execute_round(&mut self.transport, &call, round, buffer, op)?;
            }
            call.tag.round += 1;
        }
        Ok(())
    }
}

struct FoldInto<'a, E> {
    into: &'a mut [E],
    op: ReduceOp,
}

impl<E: Element> Fold for FoldInto<'_, E> {
    fn len_bytes(&self) -> usize {
        size_of_val(self.into)
    }

    fn fold(&mut self, at: usize, bytes: &[u8]) {
        let at = at / size_of::<E>();
        kernel::reduce_bytes(self.op, &mut self.into[at..at + bytes.len() / size_of::<E>()], bytes);
    }
}

// A message that is folded after the exchange.
struct Apart<E> {
    from: Rank,
    span: Span,
    kept: Vec<E>,
    left: bool,
}

fn execute_round<E: Element>(
    transport: &mut impl Transport,
    call: &Exchange,
    round: &[Step],
    buffer: &mut [E],
    op: ReduceOp,
) -> Result<(), CollectiveError> {
    // Kept apart until all is there: several messages folded into one span, which are then folded in the order of the
    // steps; what is folded into a span that is sent; and what becomes the left operand.
    let folds = round.iter().filter(|step| step.folds()).count();
    let sent = |span: Span| {
        round.iter().any(|step| matches!(step, Step::Send { span: other, .. } if other.overlaps(span)))
    };
    let mut apart: Vec<Apart<E>> = Vec::new();
    let (mut into, mut out) = (Vec::new(), Vec::new());
    for step in round {
        match *step {
            Step::Send { to, span } => out.push((to, span)),
            Step::RecvReduce { from, span } if folds > 1 || sent(span) => {
                apart.push(Apart { from, span, kept: vec![E::default(); span.len], left: false });
            }
            Step::RecvReduceLeft { from, span } => {
                apart.push(Apart { from, span, kept: vec![E::default(); span.len], left: true });
            }
            Step::RecvReduce { from, span } => into.push((span, from, true)),
            Step::RecvCopy { from, span } => into.push((span, from, false)),
        }
    }
    into.sort_unstable_by_key(|(span, ..)| span.start);

    // The buffer falls into spans to be received into, mutable, and what lies between them, to be sent from.
    let mut between: Vec<(usize, &[E])> = Vec::with_capacity(into.len() + 1);
    let mut places: Vec<(Rank, &mut [E], bool)> = Vec::with_capacity(into.len());
    let (mut rest, mut at) = (&mut *buffer, 0);
    for (span, from, reduces) in into {
        let (before, tail) = rest.split_at_mut(span.start - at);
        let (place, tail) = tail.split_at_mut(span.len);
        between.push((at, before));
        places.push((from, place, reduces));
        (rest, at) = (tail, span.start + span.len);
    }
    between.push((at, rest));

    let sends: Vec<Outgoing<'_>> = out
        .iter()
        .map(|(to, span)| {
            let index = between.partition_point(|(start, _)| *start <= span.start) - 1;
            let (start, elements) = between[index];
            let elements = &elements[span.start - start..][..span.len];
            Outgoing { to: *to, bytes: bytemuck::cast_slice(elements) }
        })
        .collect();
    let mut folding: Vec<(Rank, FoldInto<'_, E>)> = Vec::new();
    let mut receives: Vec<Incoming<'_>> = Vec::new();
    for (from, place, reduces) in places {
        if reduces {
            folding.push((from, FoldInto { into: place, op }));
        } else {
            receives.push(Incoming { from, sink: Sink::Place(bytemuck::cast_slice_mut(place)) });
        }
    }
    receives.extend(folding.iter_mut().map(|(from, fold)| Incoming { from: *from, sink: Sink::Fold(fold) }));
    receives.extend(apart.iter_mut().map(|apart| Incoming {
        from: apart.from,
        sink: Sink::Place(bytemuck::cast_slice_mut(&mut apart.kept)),
    }));
    transport.exchange(call, &sends, &mut receives)?;
    for Apart { span, mut kept, left, .. } in apart {
        let into = &mut buffer[span.range()];
        if left {
            kernel::reduce(op, &mut kept, into);
            into.copy_from_slice(&kept);
        } else {
            kernel::reduce(op, into, &kept);
        }
    }
    Ok(())
}

impl<T: Transport> Communicator for ScheduledCommunicator<T> {
    fn group(&self) -> &Group {
        self.transport.group()
    }

    fn all_reduce<E: Element>(&mut self, data: &mut [E], op: ReduceOp) -> Result<(), CollectiveError> {
        let algorithm = self.config.algorithm.algorithm(self.world(), size_of_val(data), &self.config.cost);
        self.all_reduce_by(algorithm, data, op)
    }

    fn all_gather_v(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let mut call = self.begin(Operation::plain(OperationKind::AllGather));
        let lens = self.numbers(&call, mine.len() as u64)?;
        let mut gathered = vec![0_u8; self.checked_len(&lens)?];
        #[allow(clippy::cast_possible_truncation, reason = "their sum fits")]
        let blocks: Vec<usize> = lens.iter().map(|len| *len as usize).collect();
        let spans = spans_of(&blocks);
        gathered[spans[self.me().0 as usize].range()].copy_from_slice(mine);
        call.tag.round = 1;
        let schedule = select_all_gather(&blocks).schedule(self.me(), self.world(), gathered.len());
        self.execute(call, &schedule, &mut gathered, ReduceOp::Sum)?;
        Ok(spans.iter().map(|span| gathered[span.range()].to_vec()).collect())
    }

    fn broadcast(&mut self, root: Rank, bytes: &mut Vec<u8>) -> Result<(), CollectiveError> {
        if root.0 >= self.world() {
            return Err(self.refuse(format!("root {root} does not exist, the group has {}", self.world())));
        }
        let mut call = self.begin(Operation { root, ..Operation::plain(OperationKind::Broadcast) });
        // All exchange lengths first: members that disagree about the root find out.
        let lens = self.numbers(&call, bytes.len() as u64)?;
        let len = self.checked_len(&[lens[root.0 as usize]])?;
        call.tag.round = 1;
        let algorithm = ChainBroadcast { root, segment: BROADCAST_SEGMENT };
        let schedule = algorithm.schedule(self.me(), self.world(), len);
        if self.me() == root {
            return self.execute(call, &schedule, bytes, ReduceOp::Sum);
        }
        let mut received = vec![0; len];
        self.execute(call, &schedule, &mut received, ReduceOp::Sum)?;
        *bytes = received;
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        let call = self.begin(Operation::plain(OperationKind::Barrier));
        self.meet(&call)
    }

    fn weighted_mean(&mut self, data: &mut [f32], weight: f64) -> Result<WeightedMean, CollectiveError> {
        if !weight.is_finite() || weight < 0.0 {
            return Err(self.refuse(format!("a weight of {weight}; it must be finite and not negative")));
        }
        let mut sums = weighted::weigh(data, weight);
        self.all_reduce(&mut sums, ReduceOp::Sum)?;
        let mut total = [weight];
        self.all_reduce(&mut total, ReduceOp::Sum)?;
        Ok(weighted::unweigh(&sums, total[0], data))
    }
}

#[cfg(test)]
mod tests;
