//! All-reduce of the gradient of a table, by the rows that were touched.

use antdt_collective::compress::PayloadError;
use antdt_collective::{CollectiveError, Communicator, ReduceOp};
use antdt_core::Rank;

use crate::sparse::{
    Overlap, Route, TableShape, decode, encode, from_dense, split, sum_duplicates, to_dense,
};
use crate::{PartitionMap, SparseGradient};

/// Returns the sum over all members of the gradients of the rows that each touched: every row that any member
/// touched, ascending, once. All members get the same bits.
///
/// `rows` may be in any order and list a row more than once; `values` is `[rows, dim]`. A member without rows
/// must call this, too.
///
/// # Errors
/// See [`CollectiveError`]. If one member's rows and values do not fit each other or the table, or its table has
/// another shape, the call fails on all.
pub fn all_reduce_sparse<C: Communicator>(
    communicator: &mut C,
    rows: &[u64],
    values: &[f32],
    shape: TableShape,
) -> Result<SparseGradient, CollectiveError> {
    let summed = sum_duplicates(rows, values, shape);
    let said = Announcement { rows: summed.as_ref().ok().map(|summed| summed.rows.len() as u64), shape };
    let counts = agree(communicator, said)?;
    let mine = summed.map_err(|error| CollectiveError::Invalid { what: error.to_string() })?;
    all_reduce_counted(communicator, &mine, &counts, shape, &mut Overlap::default())
}

/// Returns the same sum as [`all_reduce_sparse`], for members that call this once a step and already know how many rows each of them
/// touches.
///
/// `mine` is this member's gradient, whose rows ascend, each once. `counts` holds the number of rows that each member touches, in
/// order of rank. `overlap` is the value that the call in the previous step updated; when the group has a new member, all members
/// pass the [default](Overlap::default).
///
/// # Errors
/// See [`CollectiveError`]; also if the rows of a member do not fit the table.
pub fn all_reduce_counted<C: Communicator>(
    communicator: &mut C,
    mine: &SparseGradient,
    counts: &[u64],
    shape: TableShape,
    overlap: &mut Overlap,
) -> Result<SparseGradient, CollectiveError> {
    let total = match overlap.cheapest(counts, shape) {
        Route::Everyone => {
            let all = communicator.all_gather_v(&encode(mine))?;
            sum(communicator, &all, shape)?
        }
        Route::Owners => by_owners(communicator, mine, shape)?,
        Route::Dense => {
            let mut dense = to_dense(mine, shape)
                .map_err(|error| CollectiveError::Invalid { what: error.to_string() })?;
            communicator.all_reduce(&mut dense, ReduceOp::Sum)?;
            from_dense(&dense, shape.dim)
        }
    };
    overlap.saw(counts.iter().sum(), total.rows.len() as u64);
    Ok(total)
}

fn by_owners<C: Communicator>(
    communicator: &mut C,
    mine: &SparseGradient,
    shape: TableShape,
) -> Result<SparseGradient, CollectiveError> {
    let owners = PartitionMap::new(communicator.group().world(), 0)
        .map_err(|error| CollectiveError::Invalid { what: error.to_string() })?;
    let blocks: Vec<Vec<u8>> = split(mine, shape.dim, &owners).iter().map(encode).collect();
    let owned = communicator.all_to_all_v(&blocks)?;
    drop(blocks);
    let owned = sum(communicator, &owned, shape)?;
    let totals = communicator.all_gather_v(&encode(&owned))?;
    sum(communicator, &totals, shape)
}

// In order of rank.
fn sum(
    communicator: &impl Communicator,
    blocks: &[Vec<u8>],
    shape: TableShape,
) -> Result<SparseGradient, CollectiveError> {
    let mut parts = Vec::with_capacity(blocks.len());
    for (rank, block) in (0..).map(Rank).zip(blocks) {
        parts.push(decode(block, shape).map_err(|error: PayloadError| CollectiveError::Corrupt {
            peer: communicator.group().holder(rank),
            what: error.to_string(),
        })?);
    }
    let parts = parts.iter().map(|part| (part.rows.as_slice(), part.values.as_slice()));
    Ok(SparseGradient::merge(parts, shape.dim))
}

// What each member says before the exchange.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Announcement {
    // Distinct rows; `None` if they do not fit the table.
    rows: Option<u64>,
    shape: TableShape,
}

impl Announcement {
    // Rows and bounds of 2^64 - 1 stand for none; neither can be reached. By hand, since all but the first word is compared as bytes.
    fn encode(self) -> Vec<u8> {
        let words =
            [self.rows.unwrap_or(u64::MAX), self.shape.dim as u64, self.shape.rows.unwrap_or(u64::MAX)];
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }
}

// The counts of all members. All see what all say, so all fail alike.
fn agree<C: Communicator>(communicator: &mut C, mine: Announcement) -> Result<Vec<u64>, CollectiveError> {
    let said = mine.encode();
    let all = communicator.all_gather_v(&said)?;
    let mut counts = Vec::with_capacity(all.len());
    for (rank, theirs) in (0..).map(Rank).zip(&all) {
        let words: Vec<u64> = bytemuck::pod_collect_to_vec(theirs);
        let peer = communicator.group().holder(rank);
        if theirs.len() != said.len() || theirs[8..] != said[8..] {
            return Err(CollectiveError::Mismatch {
                peer,
                theirs: format!("a sparse all-reduce of (rows, dim, table) {words:?}"),
                ours: format!("one of {:?}", mine.shape),
            });
        }
        if words[0] == u64::MAX {
            let what = format!("{peer} has rows or values that do not fit its table of {:?}", mine.shape);
            return Err(CollectiveError::Invalid { what });
        }
        counts.push(words[0]);
    }
    Ok(counts)
}

#[cfg(test)]
mod tests;
