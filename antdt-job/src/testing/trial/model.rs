//! The model of a trial: which samples are in it, and what its checkpoints have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use antdt_core::{Barrier, CheckpointId, Fragment, Holder, PushMark};

use super::{Breach, CUT_TRIES, Trial};
use crate::head::HeadEvent;
use crate::testing::invariant::Invariant;
use crate::worker::Reply;

impl Trial<'_> {
    /// The keeper has the ledger cut: at once where every worker stands still, else when all that is in its model is
    /// acknowledged.
    pub(super) fn keep(&mut self, holder: Holder) -> Result<(), Breach> {
        let reaches = self.reaches_servers(holder);
        let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
        let Some((checkpoint, tries)) = life.keeps.take() else { return Ok(()) };
        let in_model: u64 = self.in_model.iter().map(|times| u64::from(*times)).sum();
        let acked = self.service.counts().acked;
        let whole = reaches && (!self.capabilities.steps_in_common() || acked == in_model);
        if !whole && reaches && tries < CUT_TRIES {
            life.keeps = Some((checkpoint, tries + 1));
            return Ok(());
        }
        let taken =
            if whole { Ok(()) } else { Err("the ledger has other samples than the model".to_owned()) };
        if whole {
            self.is_exact(holder, checkpoint)?;
            let writer = self.capabilities.forms_groups().then_some(holder);
            self.written.push((checkpoint, writer));
        }
        self.tell(HeadEvent::Cut { checkpoint, taken })?;
        if self.capabilities.forms_groups() {
            if let Some(life) = self.lives.get_mut(&holder) {
                life.coming = Some(Reply::Rested.into());
            }
            return Ok(());
        }
        // It asks whether the job hands its servers over, and stands still for that if it does.
        self.tell(HeadEvent::Rest { holder, checkpoint }).map(|_| ())
    }

    pub(super) fn is_exact(&mut self, holder: Holder, checkpoint: CheckpointId) -> Result<(), Breach> {
        self.moments.insert(checkpoint, self.moment());
        let of_all = self.lives.get(&holder).is_some_and(|life| life.of_all);
        self.holds(Invariant::ExactCheckpoint, of_all || !self.capabilities.mixes(), || {
            format!("{holder} takes checkpoint {checkpoint} of a model that is its own")
        })?;
        let acked: BTreeSet<u64> = self.service.acked().collect();
        let wrong = (0_u64..)
            .zip(&self.in_model)
            .find(|(sample, times)| if acked.contains(sample) { **times == 0 } else { **times > 0 });
        self.holds(Invariant::ExactCheckpoint, wrong.is_none(), || {
            let (sample, times) = wrong.expect("one was found");
            let acked = if acked.contains(&sample) { "acknowledged" } else { "not acknowledged" };
            format!("in checkpoint {checkpoint} of {holder}, sample {sample} is {acked} and {times} times in the model")
        })
    }

    // The model.

    /// These samples become part of the model.
    pub(super) fn learn(&mut self, holder: Holder, fragments: &[Fragment]) -> Result<(), Breach> {
        let old = fragments.iter().find(|fragment| fragment.grant.lease.generation < self.valid_from);
        self.holds(Invariant::ExactRollback, old.is_none(), || {
            format!("after the rollback, what {holder} trained before it gets into the model: {old:?}")
        })?;
        for sample in fragments.iter().flat_map(Fragment::samples) {
            let at = usize::try_from(sample).unwrap_or(usize::MAX);
            self.in_model[at] += 1;
            let times = self.in_model[at];
            self.holds(Invariant::OnceInModel, times == 1, || {
                format!("sample {sample}, of {holder}, is in the model {times} times")
            })?;
        }
        Ok(())
    }

    /// The servers apply what counts of these lives.
    pub(super) fn count(&mut self, pushes: &[PushMark]) -> Result<(), Breach> {
        for mark in pushes {
            if let Some(fragments) = self.counted.remove(&mark.holder) {
                self.learn(mark.holder, &fragments)?;
            }
        }
        Ok(())
    }

    /// A worker applies what was combined last.
    pub(super) fn apply(&mut self, holder: Holder) -> Result<(), Breach> {
        let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
        let replaced = std::mem::take(&mut life.advanced);
        let (before, prepared) = (life.model, life.prepared.take());
        let given = prepared.as_ref().and_then(|(_, parts)| parts.by.get(&holder).cloned());
        let is_kept = !self.capabilities.averages_models() || given.is_none_or(|given| given == replaced);
        self.holds(Invariant::MeanKept, is_kept, || {
            format!("{holder} replaces a model by the mean that is not the one which it gave")
        })?;
        let Some(life) = self.lives.get_mut(&holder) else { return Ok(()) };
        let Some((step, parts)) = prepared else {
            return self.holds(Invariant::SameModel, false, || {
                format!("{holder} applies a step, and no result came since the last one")
            });
        };
        life.model = Some(step);
        life.of_all = parts.for_all;
        if self.capabilities.barrier == Barrier::Peers {
            // Each takes steps of its own, and the master has committed this one.
            return Ok(());
        }
        if life.rollback < self.rollback {
            // The job went back without it; no worker takes its model, and it is started again when it asks for something.
            return Ok(());
        }
        let follows = before.map_or(0, |before| before + 1);
        self.holds(Invariant::SameModel, follows == step, || {
            format!("{holder} applies step {step} to a model of which step {follows} is the next")
        })?;
        if let Some(known) = self.steps.get(&step) {
            return self.holds(Invariant::SameModel, *known == parts, || {
                format!("{holder} applies another step {step} than others: {parts:?}, not {known:?}")
            });
        }
        self.steps.insert(step, Arc::clone(&parts));
        for (member, fragments) in &parts.by {
            self.learn(*member, fragments)?;
        }
        Ok(())
    }

    /// A worker begins a step with the parameters that it pulls. Where workers may be `n` steps ahead, it may have been `n` behind one
    /// that is in a step all the while, and be `n` ahead of it at the end: it begins no more than `2n + 1` meanwhile.
    pub(super) fn begins_step(&mut self, holder: Holder) -> Result<(), Breach> {
        let Barrier::Within(lead) = self.capabilities.barrier else { return Ok(()) };
        let most = 2 * lead + 1;
        let mut left_behind = None;
        for (slow, others) in self.overtaken.iter_mut().filter(|(slow, _)| **slow != holder) {
            let steps = others.entry(holder).or_default();
            *steps += 1;
            if *steps > most {
                left_behind = Some(*slow);
            }
        }
        self.overtaken.insert(holder, BTreeMap::new());
        self.holds(Invariant::BoundedLead, left_behind.is_none(), || {
            format!(
                "{holder} begins more than {most} steps while {} is in one",
                left_behind.unwrap_or(holder)
            )
        })
    }

    pub(super) fn acked_is_in_model(&self, holder: Holder) -> Result<(), Breach> {
        // What the master has settled for the dead comes into the survivors' model with their next step.
        if self.capabilities.forms_groups() && !self.released.is_empty() {
            return Ok(());
        }
        // What counts is on its way into the model.
        let counted: BTreeSet<u64> = self.counted.values().flatten().flat_map(Fragment::samples).collect();
        let is_early = |sample: &u64| self.in_model[*sample as usize] == 0 && !counted.contains(sample);
        let early = self.service.acked().find(is_early);
        self.holds(Invariant::AckedIsInModel, early.is_none(), || {
            format!("{holder} acknowledges sample {}, which is in no model", early.unwrap_or_default())
        })
    }
}
