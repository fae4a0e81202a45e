//! How a worker that joins copies the parameters from members of its group.

use std::borrow::Cow;
use std::time::Instant;

use antdt_collective::ReduceOp;
use antdt_collective::runtime::{Communicator, CopyRole, ProcessGroup};
use antdt_core::{Holder, ParamLayout, Rank, Seed};
use antdt_model::{Replica, UpdateRule};

use super::offer::Offer;
use super::{Plane, unfit};
use crate::worker::WorkerError;

/// Parameters that a worker gives to one that joins: an outline, which says what follows, and arrays as they are in memory.
pub trait SharedModel {
    /// Returns the outline, from which the taker knows the lengths of the arrays.
    fn outline(&self) -> Vec<u8>;

    /// Returns the arrays that follow the outline. Empty ones do not travel.
    fn arrays(&self) -> Vec<&[u8]>;
}

impl SharedModel for Cow<'_, Replica> {
    fn outline(&self) -> Vec<u8> {
        Replica::outline(self)
    }

    fn arrays(&self) -> Vec<&[u8]> {
        Replica::arrays(self).to_vec()
    }
}

/// Where a worker that joins takes parameters from: the outlines and arrays of all [`SharedModel`]s, in the order in which they
/// are given.
pub struct ModelSource<'a> {
    comm: &'a mut Box<dyn ProcessGroup>,
    outlines: std::vec::IntoIter<u64>,
    len_bytes: usize,
}

impl std::fmt::Debug for ModelSource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelSource").field("outlines", &self.outlines).finish_non_exhaustive()
    }
}

impl ModelSource<'_> {
    /// Receives the next outline. All arrays of the one before must have been received.
    ///
    /// # Errors
    /// If there is no other one, or the copy fails.
    pub fn outline(&mut self) -> Result<Vec<u8>, WorkerError> {
        let len = self.outlines.next().ok_or_else(|| unfit("fewer models are shared than are needed"))?;
        let mut outline = vec![0; usize::try_from(len).map_err(unfit)?];
        self.fill(&mut outline)?;
        Ok(outline)
    }

    /// Receives an array, straight to where it is needed.
    ///
    /// # Errors
    /// If the copy fails.
    pub fn fill(&mut self, array: &mut [u8]) -> Result<(), WorkerError> {
        if !array.is_empty() {
            self.len_bytes += array.len();
            self.comm.copy(CopyRole::Takes(array))?;
        }
        Ok(())
    }

    /// Receives a [`Replica`] that was given.
    ///
    /// # Errors
    /// If it does not fit the layout or the rule, or the copy fails.
    pub fn replica(
        &mut self,
        layout: &ParamLayout,
        rule: &UpdateRule,
        seed: Seed,
    ) -> Result<Replica, WorkerError> {
        let outline = self.outline()?;
        let mut model = Replica::from_outline(&outline, layout, rule, seed).map_err(unfit)?;
        // The pages are there when the last byte is, and the model is not in memory twice.
        for array in model.arrays_mut() {
            self.fill(array)?;
        }
        Ok(model)
    }
}

/// Gives the parameters to the members of a group that lack them, or takes them. They are those of `source`; all members that have the
/// same ones send a share.
pub(in crate::worker) fn share(
    plane: &mut Plane,
    is_trained: bool,
    comm: &mut Box<dyn ProcessGroup>,
    source: Rank,
    holder: Holder,
) -> Result<(), WorkerError> {
    let mut lacking = [u8::from(!is_trained)];
    comm.all_reduce(&mut lacking, ReduceOp::Max)?;
    if lacking[0] == 0 {
        return Ok(());
    }
    if is_trained { give(plane, comm, source) } else { take(plane, comm, source, holder) }
}

fn give(plane: &mut Plane, comm: &mut Box<dyn ProcessGroup>, source: Rank) -> Result<(), WorkerError> {
    let models = plane.give()?;
    let outlines: Vec<Vec<u8>> = models.iter().map(|model| model.outline()).collect();
    let offer = Offer::of(&models, &outlines).to_bytes();
    // Where each member goes on with a model of its own, only that of the source is asked for.
    let gives = comm.all_gather_v(&offer)?.get(source.0 as usize) == Some(&offer);
    let mut give = |bytes| comm.copy(if gives { CopyRole::Gives(bytes) } else { CopyRole::Neither });
    for (model, outline) in models.iter().zip(&outlines) {
        give(outline)?;
        for array in model.arrays().into_iter().filter(|array| !array.is_empty()) {
            give(array)?;
        }
    }
    Ok(())
}

fn take(
    plane: &mut Plane,
    comm: &mut Box<dyn ProcessGroup>,
    source: Rank,
    holder: Holder,
) -> Result<(), WorkerError> {
    let began = Instant::now();
    let offers = comm.all_gather_v(&[])?;
    let of_source = offers.get(source.0 as usize);
    let offer = of_source.and_then(|offer| Offer::read(offer));
    let offer = offer.ok_or_else(|| unfit(format!("rank {source} has no model to share")))?;
    let givers = offers.iter().filter(|offer| Some(*offer) == of_source).count();
    let mut from = ModelSource { comm, outlines: offer.outlines.into_iter(), len_bytes: 0 };
    plane.each(|home| home.take(&mut from))?;
    if from.outlines.len() > 0 {
        return Err(unfit(format!("{} more models are shared than are needed", from.outlines.len())));
    }
    let (bytes, seconds) = (from.len_bytes, began.elapsed().as_secs_f64());
    tracing::debug!(%holder, bytes, givers, seconds, "the model is here");
    Ok(())
}
