//! `ADJUST_BS`: new batch sizes for all live workers, and the micro-batches in which they are computed.

use std::collections::BTreeSet;

use antdt_core::NodeId;

use super::{Action, Asked};
use crate::policy::Decision;
use crate::validate::Refusal;

/// The action that gives all live workers new batch sizes and micro-batches. All workers switch at one
/// iteration.
#[doc(alias = "ADJUST_BS")]
#[derive(Debug, Clone, Copy)]
pub struct AdjustBs;

impl AdjustBs {
    /// Name of the action in reports, decisions and plans.
    pub const NAME: &'static str = "ADJUST_BS";
}

impl Action for AdjustBs {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn dry_name(&self) -> &'static str {
        "WOULD_ADJUST_BS"
    }

    fn about(&self) -> &'static str {
        "new batch sizes, and the micro-batches in which they are computed"
    }

    fn is_asked(&self, decision: &Decision) -> bool {
        decision.batch_sizes.is_some() || !decision.accumulation.is_empty()
    }

    fn hand_over(&self, from: &mut Decision, to: &mut Decision) {
        if let Some(sizes) = from.batch_sizes.take() {
            to.batch_sizes = Some(sizes);
        }
        to.accumulation.append(&mut from.accumulation);
    }

    fn check(&self, asked: &Asked<'_>) -> Result<(), Refusal> {
        let Asked { decision, view, .. } = asked;
        let ids: BTreeSet<NodeId> = asked.live().map(|worker| worker.id).collect();
        if let Some(sizes) = &decision.batch_sizes {
            if let Some(node) = sizes.keys().find(|node| !ids.contains(node)) {
                return Err(Refusal::NotAWorker { node: *node });
            }
            for worker in asked.live() {
                let node = worker.id;
                let samples = *sizes.get(&node).ok_or(Refusal::WorkerLeftOut { node })?;
                let (min, max) = (worker.batch_size_min, worker.batch_size_max);
                let count = decision.accumulation.get(&node).copied().unwrap_or(1);
                if count == 1 && (samples < min || samples > max) {
                    return Err(Refusal::OutOfBounds { node, samples, min, max });
                }
                // They differ by at most one sample: the smallest is rounded down, the largest up.
                if count == 0 || samples / count < min || samples.div_ceil(count) > max {
                    return Err(Refusal::MicroBatches { node, samples, count, min, max });
                }
            }
            let sum: u64 = sizes.values().map(|samples| u64::from(*samples)).sum();
            if view.mode.sums_to_global_batch() && sum != u64::from(view.global_batch_size) {
                return Err(Refusal::WrongSum { sum, global: view.global_batch_size });
            }
        }
        let may_accumulate = decision.batch_sizes.is_some() && view.mode.sums_to_global_batch();
        for (node, count) in &decision.accumulation {
            if !may_accumulate && *count != 1 {
                return Err(Refusal::Accumulation { node: *node, count: *count });
            }
            if !ids.contains(node) {
                return Err(Refusal::NotAWorker { node: *node });
            }
        }
        Ok(())
    }
}
