//! [`Weighted`]: models are averaged among all members, each by its samples.

use antdt_collective::{Compression, Compressor};
use antdt_core::ParamLayout;
use antdt_model::{LocalReplica, SparseGradient};

use super::own::Averaging;
use super::sums::{Sums, SumsMemory};
use super::{GroupStep, PeerGroup, StepUpdate, TableSums, unfit};
use crate::worker::WorkerError;

/// See the [module](self): what travels is how far each model went since the last average, times its samples.
pub(super) struct Weighted {
    memory: SumsMemory,
    compress: Option<Compression>,
    /// With what it has not sent yet.
    compressor: Option<Compressor>,
    tables: TableSums,
    /// How far rows went, until they are announced.
    drift: SparseGradient,
    /// The sums over all members.
    sums: Option<(Sums, SparseGradient)>,
    /// The dense ones, until the rows are here too.
    dense: Option<Sums>,
}

impl Weighted {
    pub(super) fn new(layout: ParamLayout, compress: Option<Compression>) -> Self {
        Self {
            memory: SumsMemory::default(),
            compress,
            compressor: compress.map(Compressor::new),
            tables: TableSums::new(layout),
            drift: SparseGradient::default(),
            sums: None,
            dense: None,
        }
    }
}

impl Averaging for Weighted {
    fn reduce(&mut self, own: &LocalReplica, peers: &mut PeerGroup<'_>) -> Result<(), WorkerError> {
        self.forget();
        let (dense, rows) = own.drift();
        self.drift = rows;
        self.dense = Some(self.memory.reduce(peers.group()?, self.compressor.as_mut(), dense)?);
        Ok(())
    }

    fn announce(&mut self) -> Vec<u64> {
        self.tables.announce(std::mem::take(&mut self.drift))
    }

    fn exchange(
        &mut self,
        _: &LocalReplica,
        peers: &mut PeerGroup<'_>,
        _: &GroupStep<'_>,
        announced: &[Vec<u64>],
    ) -> Result<(), WorkerError> {
        let rows = self.tables.exchange(peers.group()?, announced)?;
        self.sums = self.dense.take().map(|dense| (dense, rows));
        Ok(())
    }

    fn apply(&mut self, own: &mut LocalReplica, update: &StepUpdate) -> Result<Option<f64>, WorkerError> {
        let sums = self.sums.take();
        let (dense, rows) =
            sums.ok_or_else(|| WorkerError::Loop("no average was made to apply".to_owned()))?;
        let distance = own.average(dense.host().unwrap_or_default(), &rows, update.samples).map_err(unfit)?;
        self.memory.keep(dense);
        Ok(distance)
    }

    fn entered(&mut self) {
        self.tables.enter();
    }

    fn restart(&mut self) {
        self.compressor = self.compress.map(Compressor::new);
    }

    fn forget(&mut self) {
        let before = self.sums.take().map(|(dense, _)| dense);
        before.into_iter().chain(self.dense.take()).for_each(|dense| self.memory.keep(dense));
    }
}
