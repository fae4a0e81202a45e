//! Checks that every batch and micro-batch that a worker is given or takes lies within the limits that the
//! worker stated.
//!
//! Source: our design; a batch that does not fit the memory of a device ends the job.

use std::collections::BTreeMap;

use antdt_core::{JobTime, NodeId};
use antdt_job::{HeadAnswer, HeadEffect, HeadEvent, Note};

use super::Invariant;
use crate::happening::Happening;

/// Checks that no worker gets or takes a batch outside of its bounds; see the [module](self).
#[derive(Debug, Default)]
pub struct BoundsRespected {
    bounds: BTreeMap<NodeId, (u32, u32)>,
}

impl Invariant for BoundsRespected {
    fn name(&self) -> &'static str {
        "bounds_respected"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        match what {
            Happening::Head(HeadEvent::Register(registration), HeadAnswer::Registered { .. }) => {
                let info = &registration.info;
                self.bounds.insert(info.holder.node, (info.batch_size_min, info.batch_size_max));
            }
            Happening::Effect(HeadEffect::Note { note: Note::Published(plan), .. }) => {
                for (node, size) in plan.batch_sizes.iter() {
                    let Some((min, max)) = self.bounds.get(node) else {
                        return Err(format!("plan {} names {node}, which never registered", plan.version));
                    };
                    let count = plan.micro_batches(*node);
                    if *size < min.saturating_mul(count) || *size > max.saturating_mul(count) {
                        let version = plan.version;
                        let pieces = if count == 1 { String::new() } else { format!(" in {count}") };
                        return Err(format!(
                            "plan {version} has {size}{pieces} for {node}, which takes {min} to {max}"
                        ));
                    }
                }
            }
            Happening::Worker(holder, _, call) => {
                if let Some((batch, micro)) = call.loads()
                    && let samples = batch.piece(micro).len()
                    && let Some((_, max)) = self.bounds.get(&holder.node)
                    && samples > u64::from(*max)
                {
                    return Err(format!("{holder} takes a batch of {samples}, at most {max} fit"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{History, IDLE, batch, holder, plan, registered};
    use super::*;
    use antdt_agent::MicroBatch;
    use antdt_job::{Call, Reply};

    #[test]
    fn a_plan_keeps_to_the_bounds_of_the_nodes() {
        let publish =
            |sizes: &[u32]| HeadEffect::Note { at: JobTime::ZERO, note: Note::Published(plan(3, sizes)) };
        let mut history = History::new(BoundsRespected::default());
        let (event, answer) = registered(holder(0), 2, 8);
        history.head(&event, &answer).effect(&publish(&[8])).effect(&publish(&[2]));
        history.worker(holder(0), &Reply::Slept, &Call::Load(batch(8)));
        history.worker(holder(0), &Reply::Slept, &IDLE).holds();
        history.effect(&publish(&[9])).fails("plan 3 has 9 for worker-0, which takes 2 to 8");
        let in_pieces = |size, count| {
            let counts = [(holder(0).node, count)].into_iter().collect();
            let note = Note::Published(plan(3, &[size]).with_accumulation(counts));
            HeadEffect::Note { at: JobTime::ZERO, note }
        };
        let mut history = History::new(BoundsRespected::default());
        history.head(&event, &answer).effect(&in_pieces(9, 2)).effect(&in_pieces(6, 3)).holds();
        history.effect(&in_pieces(5, 3)).fails("plan 3 has 5 in 3 for worker-0, which takes 2 to 8");
        let mut history = History::new(BoundsRespected::default());
        history.head(&event, &answer);
        history.worker(holder(0), &Reply::Slept, &Call::Load(batch(9))).fails("at most 8 fit");
        let second = MicroBatch { index: 1, count: 2 };
        let mut history = History::new(BoundsRespected::default());
        history.head(&event, &answer);
        history.worker(holder(0), &Reply::Slept, &Call::LoadPiece(batch(16), second)).holds();
        let first = MicroBatch { index: 0, count: 2 };
        history.worker(holder(0), &Reply::Slept, &Call::LoadPiece(batch(17), first)).fails("at most 8 fit");
    }

    #[test]
    fn a_plan_names_no_absent_worker() {
        let mut history = History::new(BoundsRespected::default());
        let note = Note::Published(plan(1, &[1]));
        history.effect(&HeadEffect::Note { at: JobTime::ZERO, note }).fails("which never registered");
    }
}
