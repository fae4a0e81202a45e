//! [`Mixed`]: models are averaged uniformly, among a few members at a time.

use antdt_core::ParamLayout;
use antdt_model::{Given, LocalReplica};

use super::own::Averaging;
use super::spread::Spread;
use super::{GroupStep, PeerGroup, StepUpdate, mean, unfit};
use crate::worker::WorkerError;

/// See the [module](self).
pub(super) struct Mixed {
    layout: ParamLayout,
    mean: Option<Given>,
    spread: Spread,
}

impl Mixed {
    pub(super) fn new(layout: ParamLayout) -> Self {
        Self { layout, mean: None, spread: Spread::default() }
    }
}

impl Averaging for Mixed {
    fn reduce(&mut self, _: &LocalReplica, _: &mut PeerGroup<'_>) -> Result<(), WorkerError> {
        Ok(())
    }

    fn announce(&mut self) -> Vec<u64> {
        // Whole models travel, of whose rows the others need not know before.
        vec![0; self.layout.tables().len()]
    }

    fn exchange(
        &mut self,
        own: &LocalReplica,
        peers: &mut PeerGroup<'_>,
        step: &GroupStep<'_>,
        _: &[Vec<u64>],
    ) -> Result<(), WorkerError> {
        self.mean = Some(mean::uniform(peers.group()?, own, &self.layout, step.peers)?);
        Ok(())
    }

    fn apply(&mut self, own: &mut LocalReplica, update: &StepUpdate) -> Result<Option<f64>, WorkerError> {
        let mean = self.mean.take();
        let mean = mean.ok_or_else(|| WorkerError::Loop("no average was made to apply".to_owned()))?;
        let is_measured = self.spread.averages(update.of_all, update.samples);
        let distance = if is_measured { own.distance(&mean.dense) } else { None };
        own.mix(mean, update.committed.unwrap_or(update.samples)).map_err(unfit)?;
        Ok(distance)
    }

    fn forget(&mut self) {
        self.mean = None;
    }
}
