//! All-reduce of compressed gradients.

use antdt_core::Rank;

use super::Communicator;
use crate::compress::{Compression, ErrorFeedback, PayloadError, bf16, top_k};
use crate::error::CollectiveError;
use crate::schedule::split_even;
use crate::weighted::{self, WeightedMean};

/// Bytes before each message: the form and the gradient's length, so that members that disagree find out.
const HEADER: usize = 16;

/// All-reduces one gradient, step by step, in a compressed form, and keeps what the compression lost. Every
/// member uses one compressor for each gradient, or each bucket of it, and all use the same compression.
///
/// A compressor outlives its group: after a change of the group it takes the communicator of the next group.
#[derive(Debug, Clone, PartialEq)]
pub struct Compressor {
    compression: Compression,
    feedback: ErrorFeedback,
}

impl Compressor {
    /// Returns a compressor with an empty residual.
    pub fn new(compression: Compression) -> Self {
        Self { compression, feedback: ErrorFeedback::default() }
    }

    /// Returns the residual: the part of the gradients that compression has left out and this member has not
    /// sent yet.
    pub const fn feedback(&self) -> &ErrorFeedback {
        &self.feedback
    }

    /// Replaces `gradient` by approximately the sum over all members; later steps send what is missing from
    /// the sum. All members get the same bits. A group of one gets its own gradient plus the residual.
    ///
    /// [`Compression::Bf16`] makes two calls; each rank sends `(n-1)/n` of half the gradient's bytes in each.
    /// Meanwhile it holds one more copy of the gradient, and messages of one and a half times its bytes.
    ///
    /// # Errors
    /// See [`CollectiveError`]; also if the gradient has another length than before, or more than 2³² values.
    /// The gradient and the residual are then as they were. As with every all-reduce, another member may have
    /// succeeded.
    pub fn all_reduce<C: Communicator>(
        &mut self,
        communicator: &mut C,
        gradient: &mut [f32],
    ) -> Result<(), CollectiveError> {
        if u32::try_from(gradient.len()).is_err() {
            let what = format!("a gradient of {} values; at most 2^32 in one, use several", gradient.len());
            return Err(CollectiveError::Invalid { what });
        }
        let values = self.feedback.compensate(gradient)?;
        let (total, lost) = if communicator.group().world() == 1 {
            let lost = vec![0.0; values.len()];
            (values, lost)
        } else {
            match self.compression {
                Compression::Bf16 => reduce_bf16(communicator, values)?,
                Compression::TopK(top_k) => reduce_top_k(communicator, values, top_k)?,
            }
        };
        gradient.copy_from_slice(&total);
        self.feedback.keep(lost);
        Ok(())
    }

    /// Replaces `gradient` by approximately `Σ wᵢ gᵢ / Σ wᵢ`, as [`Communicator::weighted_mean`] does. The
    /// residual holds what is missing from the weighted sum. If all weights are 0 nothing is sent, and
    /// gradient and residual stay as they were.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); also if the weight is negative or not finite.
    pub fn weighted_mean<C: Communicator>(
        &mut self,
        communicator: &mut C,
        gradient: &mut [f32],
        weight: f64,
    ) -> Result<WeightedMean, CollectiveError> {
        // A member whose weight is refused fails on all: a NaN reaches the total of every member.
        let valid = weight.is_finite() && weight >= 0.0;
        let mut total = [if valid { weight } else { f64::NAN }];
        communicator.all_reduce(&mut total, crate::op::ReduceOp::Sum)?;
        if total[0].is_nan() {
            let what = format!("a member's weight is not finite or negative; this one's is {weight}");
            return Err(CollectiveError::Invalid { what });
        }
        if total[0] == 0.0 {
            return Ok(WeightedMean::NoWeight);
        }
        let mut sums = vec![0.0; gradient.len()];
        weighted::weigh(gradient, weight, &mut sums);
        self.all_reduce(communicator, &mut sums)?;
        weighted::unweigh(&sums, total[0], gradient);
        Ok(WeightedMean::Averaged { total: total[0] })
    }
}

// The total and what was lost. This rank's part of the gradient is never rounded before it is summed.
fn reduce_bf16<C: Communicator>(
    communicator: &mut C,
    mut values: Vec<f32>,
) -> Result<(Vec<f32>, Vec<f32>), CollectiveError> {
    let (me, world) = (communicator.group().me(), communicator.group().world());
    let parts = split_even(values.len(), world as usize);
    let mine = parts[me.0 as usize];
    let mut blocks = Vec::with_capacity(parts.len());
    for (rank, part) in (0..).map(Rank).zip(&parts) {
        let mut block = header(Form::Bf16, values.len());
        if rank != me {
            bf16::encode(&mut values[part.range()], &mut block);
        }
        blocks.push(block);
    }
    let received = communicator.all_to_all_v(&blocks)?;
    drop(blocks);

    let mut total = vec![0.0_f32; mine.len];
    for (rank, block) in (0..).map(Rank).zip(&received) {
        let bytes = payload(communicator, rank, block, Form::Bf16, values.len())?;
        if rank == me {
            total.iter_mut().zip(&values[mine.range()]).for_each(|(sum, value)| *sum += value);
        } else {
            let incoming =
                bf16::decode(bytes, mine.len).map_err(|error| corrupt(communicator, rank, &error))?;
            total.iter_mut().zip(incoming).for_each(|(sum, value)| *sum += value);
        }
    }
    drop(received);

    let mut rounded = Vec::with_capacity(2 * mine.len);
    bf16::encode(&mut total, &mut rounded);
    values[mine.range()].copy_from_slice(&total);
    let gathered = communicator.all_gather_v(&rounded)?;
    let mut sum = Vec::with_capacity(values.len());
    for (rank, (bytes, part)) in (0..).map(Rank).zip(gathered.iter().zip(&parts)) {
        sum.extend(bf16::decode(bytes, part.len).map_err(|error| corrupt(communicator, rank, &error))?);
    }
    Ok((sum, values))
}

fn reduce_top_k<C: Communicator>(
    communicator: &mut C,
    mut values: Vec<f32>,
    chooser: top_k::TopK,
) -> Result<(Vec<f32>, Vec<f32>), CollectiveError> {
    let mut block = header(Form::TopK, values.len());
    chooser.encode(&mut values, &mut block);
    let gathered = communicator.all_gather_v(&block)?;
    let mut total = vec![0.0; values.len()];
    for (rank, block) in (0..).map(Rank).zip(&gathered) {
        let bytes = payload(communicator, rank, block, Form::TopK, total.len())?;
        top_k::add(bytes, &mut total).map_err(|error| corrupt(communicator, rank, &error))?;
    }
    Ok((total, values))
}

#[derive(Debug, Clone, Copy)]
enum Form {
    Bf16 = 1,
    TopK = 2,
}

/// Returns the bytes before compressed values. By hand, since they are only compared, as bytes.
fn header(form: Form, len: usize) -> Vec<u8> {
    [form as u64, len as u64].into_iter().flat_map(u64::to_le_bytes).collect()
}

// Every member sees every other's header in the first call, so all find out that one of them differs.
fn payload<'a>(
    communicator: &impl Communicator,
    from: Rank,
    block: &'a [u8],
    form: Form,
    len: usize,
) -> Result<&'a [u8], CollectiveError> {
    let due = header(form, len);
    match block.split_at_checked(HEADER) {
        Some((theirs, payload)) if theirs == due => Ok(payload),
        Some((theirs, _)) => Err(CollectiveError::Mismatch {
            peer: communicator.group().holder(from),
            theirs: format!("a compressed gradient with the header {theirs:?}"),
            ours: format!("one of {len} values as {form:?}, header {due:?}"),
        }),
        None => Err(CollectiveError::Corrupt {
            peer: communicator.group().holder(from),
            what: format!("{} bytes are no compressed gradient", block.len()),
        }),
    }
}

fn corrupt(communicator: &impl Communicator, from: Rank, error: &PayloadError) -> CollectiveError {
    CollectiveError::Corrupt { peer: communicator.group().holder(from), what: error.to_string() }
}

#[cfg(test)]
mod tests;
