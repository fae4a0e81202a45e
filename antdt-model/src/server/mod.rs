//! One parameter server's part of the model, and the rule by which pushes change it.
//!
//! **Synchronous training** ([`Staleness::Synchronous`]): a push is buffered under (step, worker) and changes
//! nothing. The step coordinator decides whose pushes make up the step; the next pull of any worker brings
//! that decision, a [`CommitToken`], and each server applies exactly those pushes, once, in order of worker,
//! before it answers. So all servers apply the same set, or none, without talking to each other: a gradient
//! can't be accepted for some parameters and dropped for others.
//!
//! **Asynchronous training** ([`Staleness::Unbounded`]): a push is buffered too. Once all servers have it, the worker has
//! the coordinator count it, and tells the servers up to which of its pushes all count: each server applies exactly
//! those, once, in order of step. Of a worker that died in between, the coordinator says the same. So a push is applied by
//! all servers or by none, and its samples count if it is.
//!
//! In both cases the server refuses an incarnation that was declared lost, and earlier incarnations of a node
//! once a later one has pushed: a late push of a lost process cannot change the model.
//!
//! Rejected: a queue of tokens, as `TensorFlow`'s `SyncReplicasOptimizer` has (read): a slow worker's unused
//! token is taken by a fast one, and a push may be dropped without its worker learning of it.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{
    Holder, Incarnation, InvalidValue, Iteration, NodeId, ParamLayout, PushMark, Seed, ServerWeights,
};
use serde::{Deserialize, Serialize};

use crate::dense::{Change, DenseParams};
use crate::gradient::{SparseGradient, mean_scale};
use crate::optimizer::UpdateStep;
use crate::partition::PartitionMap;
use crate::portion::Portion;
use crate::rule::{Trained, UpdateRule};
use crate::table::TableError;
use crate::tables::Tables;

/// When a worker's push takes effect.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Staleness {
    /// Synchronous training: the push takes effect when its step is committed, divided by the step's samples.
    #[doc(alias = "BSP")]
    Synchronous,
    /// Asynchronous training: the push takes effect on its own, once it counts. [`UpdateRule::clip_norm`] is ignored, because a
    /// server has only a part of the gradient: a worker clips its whole gradient before it pushes.
    #[doc(alias = "ASP")]
    Unbounded {
        /// Factor for gradient sums: one over the nominal batch of a worker, so that a step of a small batch
        /// weighs less than one of a large batch.
        scale: f32,
    },
}

/// Settings of one server's part of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct PartitionConfig {
    /// Shape of the whole model.
    pub layout: ParamLayout,
    /// Rule by which gradients change the parameters.
    pub rule: UpdateRule,
    /// Seed of the initial values of tables; the same on all servers.
    pub seed: Seed,
    /// Index of this server, from 0.
    pub server: u32,
    /// Number of servers.
    pub servers: u32,
    /// Weights of the servers; the same on all servers.
    pub weights: ServerWeights,
    /// When a push takes effect.
    pub staleness: Staleness,
}

/// The step coordinator's decision about a step: the workers whose pushes it consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitToken {
    /// Number of the step.
    pub step: Iteration,
    /// Workers whose pushes make up the step.
    pub contributors: Vec<Holder>,
    /// Samples of all of them together; with 0 the step changes nothing.
    pub samples: u64,
    /// Whether no worker that may have had samples was left out of the step. If so, a step with fewer samples
    /// than [a full batch](UpdateRule::full_batch) is taken at their share of the rate.
    pub everyone: bool,
}

/// A worker's gradient for one server.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Push {
    /// Number of samples that the gradient is the sum of. A push with 0 samples changes nothing, but the
    /// worker counts as present.
    pub samples: u64,
    /// Share of the learning rate at which the gradient changes the parameters; `None` is the whole rate. In
    /// asynchronous training the server divides the gradient by the push's own number of samples if there is
    /// a share, otherwise by the nominal batch size. In synchronous training all pushes of a step have the
    /// same share.
    #[doc(alias = "ADJUST_LR")]
    pub rate_share: Option<f32>,
    /// Gradient sums for the server's piece of the flat vector.
    pub dense: Vec<f32>,
    /// Gradient sums for rows that the server holds.
    pub rows: SparseGradient,
}

/// Result of sending initial values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum InitOutcome {
    /// The server has stored the values.
    Stored,
    /// The server had values of another worker before, and keeps them.
    AlreadyInitialised,
}

/// Result of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PushOutcome {
    /// The push is kept until its step is committed, or until the server learns that it counts.
    Buffered,
    /// The server applied this push before, or has a later one of the same worker; nothing changed.
    Duplicate,
}

/// Result of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
    /// The step's pushes were applied now.
    Applied,
    /// The step, or a later one, was committed before; nothing changed.
    AlreadyCommitted,
}

/// Reason why a pull was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// No worker has sent initial values yet.
    #[error("the parameters have no values yet; initialise them before the first pull")]
    NotInitialised,
    /// Some rows cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Reason why a push was refused. The parameters are as they were.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// No worker has sent initial values yet.
    #[error("the parameters have no values yet; initialise them before the first push")]
    NotInitialised,
    /// This incarnation of the worker was declared lost or replaced: it must exit.
    #[error("{holder} was given up, lives below {live} may not push; exit")]
    Fenced {
        /// Worker that pushed.
        holder: Holder,
        /// Oldest incarnation of the node whose pushes the server accepts.
        live: Incarnation,
    },
    /// The step was committed without this push; the worker drops it.
    #[error(
        "{holder} pushed for step {step}, step {committed} is committed already; pull and go on from there"
    )]
    Stale {
        /// Worker that pushed.
        holder: Holder,
        /// Number of the step.
        step: Iteration,
        /// Newest step that is committed.
        committed: Iteration,
    },
    /// The worker has too many pushes that wait for their commit.
    #[error("{holder} has {pending} pushes waiting for their commit; commit a step before the next push")]
    TooManyPending {
        /// Worker that pushed.
        holder: Holder,
        /// Number of the worker's pushes that wait for their commit.
        pending: usize,
    },
    /// The dense gradient does not have the length of this server's piece of the flat vector.
    #[error("{got} dense values came, this server holds {expected}")]
    DenseLength {
        /// Number of values received.
        got: usize,
        /// Number of values expected.
        expected: usize,
    },
    /// The push has a share of the learning rate that is negative or not finite.
    #[error("a share of {share} of the learning rate; it must be finite and at least 0")]
    RateShare {
        /// Share in the push.
        share: f32,
    },
    /// Some rows cannot be changed.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Reason why a commit was refused. The parameters are as they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// In asynchronous training each push counts on its own: there is no step to commit.
    #[error("this server applies each push on its own and has no steps to commit; pull without a commit")]
    NotSynchronous,
    /// The push of a contributor has not arrived.
    #[error(
        "step {step} counts {holder} in, whose push is not here; it was counted before its push was answered"
    )]
    Missing {
        /// Number of the step.
        step: Iteration,
        /// Worker whose push is missing.
        holder: Holder,
    },
    /// The announced number of samples differs from the sum over the contributors' pushes.
    #[error("step {step} counts {announced} samples, its pushes have {pushed}")]
    Samples {
        /// Number of the step.
        step: Iteration,
        /// Number of samples that the commit announces.
        announced: u64,
        /// Number of samples in the contributors' pushes.
        pushed: u64,
    },
}

/// One server's part of the model, as a pure state machine. A call that returns an error changes nothing.
#[derive(Debug)]
pub struct Partition {
    map: PartitionMap,
    server: u32,
    rule: UpdateRule,
    trained: Trained,
    staleness: Staleness,
    dense: Option<DenseParams>,
    tables: Tables,
    committed: Option<Iteration>,
    // Waiting for their commit; asynchronous: for the word that they count.
    pending: BTreeMap<(Iteration, Holder), Push>,
    // Lives below this may not push.
    live: BTreeMap<NodeId, Incarnation>,
    // Asynchronous: newest step applied of each life that may still push.
    applied: BTreeMap<Holder, Iteration>,
}

impl Partition {
    /// Largest number of uncommitted steps of one worker. A worker pushes a step only after the one before was
    /// committed or applied, so one would do; the second one allows a repetition under a later number after
    /// an abandoned step.
    pub const PENDING_MAX: usize = 2;

    /// Returns a part without values: [`init_dense`](Self::init_dense) sets them.
    ///
    /// # Errors
    /// If the layout, the rule, the scale, the server's number or the weights are invalid; or if the rule clips gradients
    /// in synchronous training on several servers, of which none has the whole gradient.
    pub fn new(config: &PartitionConfig) -> Result<Self, InvalidValue> {
        let PartitionConfig { layout, rule, seed, server, servers, weights, staleness } = config;
        rule.validate()?;
        let map = PartitionMap::weighted(*servers, layout.dense_len(), weights)?;
        if server >= servers {
            return Err(InvalidValue::new("server", server, format!("below {servers}")));
        }
        let mut rule = rule.clone();
        match staleness {
            Staleness::Unbounded { scale } if !scale.is_finite() || *scale <= 0.0 => {
                return Err(InvalidValue::new("scale", scale, "finite and above 0"));
            }
            Staleness::Unbounded { .. } => rule.clip_norm = None,
            Staleness::Synchronous => {
                if let Some(norm) = rule.clip_norm.filter(|_| *servers > 1) {
                    let expected = "left out with several servers, of which none has the whole gradient";
                    return Err(InvalidValue::new("clip norm", norm, expected));
                }
            }
        }
        let tables = Tables::partition(layout, &*rule.optimizer, *seed, *server, map.clone())?;
        Ok(Self {
            map,
            server: *server,
            rule,
            trained: Trained::default(),
            staleness: *staleness,
            dense: None,
            tables,
            committed: None,
            pending: BTreeMap::new(),
            live: BTreeMap::new(),
            applied: BTreeMap::new(),
        })
    }

    /// Returns the length of this server's piece of the flat vector.
    pub fn dense_len(&self) -> usize {
        self.map.dense(self.server).len()
    }

    /// Returns the newest step that was committed.
    pub const fn committed(&self) -> Option<Iteration> {
        self.committed
    }

    /// Returns the numbers of steps and samples that the part was trained for, by committed steps or applied
    /// pushes.
    pub const fn trained(&self) -> Trained {
        self.trained
    }

    /// Returns the number of pushes that wait for their commit.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Sets the initial values of this server's piece of the flat vector. The first values that arrive stay;
    /// every worker may send them, because all workers compute the same ones.
    ///
    /// # Errors
    /// If there are more or fewer values than this server holds.
    pub fn init_dense(&mut self, values: Vec<f32>) -> Result<InitOutcome, PushError> {
        let expected = self.dense_len();
        if values.len() != expected {
            return Err(PushError::DenseLength { got: values.len(), expected });
        }
        if self.dense.is_some() {
            return Ok(InitOutcome::AlreadyInitialised);
        }
        self.dense = Some(DenseParams::new(
            &*self.rule.optimizer,
            self.tables.layout(),
            self.map.dense(self.server),
            values,
        ));
        Ok(InitOutcome::Stored)
    }

    /// Returns all numbers of this server's part, for a checkpoint; `None` before it has initial values.
    /// Pushes that wait for their commit are not included.
    pub fn portion(&self) -> Option<Portion> {
        let from = self.map.dense(self.server).start;
        self.dense.as_ref().map(|dense| Portion::of(from, dense, &self.tables, &*self.rule.optimizer))
    }

    /// Overwrites the parameters that `portion` and this server's part have in common and, if `with_state`,
    /// their optimizer state. Returns how many dense values were set; the part is complete when all are.
    ///
    /// # Errors
    /// If the portion does not fit the model, or its optimizer keeps other numbers. Nothing is changed then.
    pub fn restore(&mut self, portion: &Portion, with_state: bool) -> Result<usize, InvalidValue> {
        let (range, optimizer) = (self.map.dense(self.server), &*self.rule.optimizer);
        let (from, len) = (range.start, range.len());
        let layout = self.tables.layout().clone();
        let mut dense = match self.dense.take() {
            Some(dense) => dense,
            None => DenseParams::new(optimizer, &layout, range, vec![0.0; len]),
        };
        let restored = portion.restore_into(from, &mut dense, &mut self.tables, optimizer, with_state);
        self.dense = Some(dense);
        restored
    }

    /// Sets the numbers of steps and samples that the model was trained for, after its portions were
    /// restored.
    pub const fn set_trained(&mut self, trained: Trained) {
        self.trained = trained;
    }

    /// Appends this server's piece of the flat vector to `dense`, and the values of `rows` to `row_values`.
    ///
    /// # Errors
    /// If there are no values yet or a row is not this server's or out of order; nothing is then appended.
    pub fn pull(
        &self,
        rows: &[u64],
        dense: &mut Vec<f32>,
        row_values: &mut Vec<f32>,
    ) -> Result<(), PullError> {
        let params = self.dense.as_ref().ok_or(PullError::NotInitialised)?;
        self.tables.gather(rows, row_values)?;
        dense.extend_from_slice(params.values());
        Ok(())
    }

    /// Buffers a worker's gradient for a step, until the step is [committed](Self::commit) or, in asynchronous training,
    /// the push [counts](Self::count). A second push of the same worker for the same step replaces the first, because the
    /// worker has repeated the step; in asynchronous training a push replaces all earlier ones of its worker that do not
    /// count, and each has a number of its own.
    ///
    /// # Errors
    /// If the incarnation is fenced, the step was committed, or the gradient does not fit this server.
    pub fn push(&mut self, holder: Holder, step: Iteration, push: Push) -> Result<PushOutcome, PushError> {
        let live = self.live.get(&holder.node).copied().unwrap_or_default();
        if holder.incarnation < live {
            return Err(PushError::Fenced { holder, live });
        }
        if self.dense.is_none() {
            return Err(PushError::NotInitialised);
        }
        let expected = self.dense_len();
        if push.dense.len() != expected {
            return Err(PushError::DenseLength { got: push.dense.len(), expected });
        }
        if let Some(share) = push.rate_share.filter(|share| !(share.is_finite() && *share >= 0.0)) {
            return Err(PushError::RateShare { share });
        }
        self.tables.check_values(&push.rows.rows, &push.rows.values)?;
        if let Some(committed) = self.committed.filter(|committed| step <= *committed) {
            return Err(PushError::Stale { holder, step, committed });
        }
        if self.applied.get(&holder).is_some_and(|newest| step <= *newest) {
            return Ok(PushOutcome::Duplicate);
        }
        let mut others = self.pending.keys().filter(|(s, h)| *h == holder && *s != step).map(|(s, _)| *s);
        if self.staleness == Staleness::Synchronous {
            let pending = others.count();
            if pending >= Self::PENDING_MAX {
                return Err(PushError::TooManyPending { holder, pending });
            }
        } else if others.any(|other| other > step) {
            // A copy that comes late, over a connection that its worker has given up.
            return Ok(PushOutcome::Duplicate);
        } else {
            // The worker has given up what it pushed before: all that counts was applied before it pushed again.
            self.pending.retain(|(_, other), _| *other != holder);
        }
        self.pending.insert((step, holder), push);
        self.live.insert(holder.node, holder.incarnation);
        Ok(PushOutcome::Buffered)
    }

    /// In asynchronous training: applies the pushes of a worker's life that count and are not applied yet, in order of
    /// step. In synchronous training it does nothing. Idempotent; a mark that says more than this server was ever sent is
    /// of pushes that were in the parameters before it started from a checkpoint.
    pub fn count(&mut self, mark: PushMark) {
        let Staleness::Unbounded { scale } = self.staleness else { return };
        let Some(through) = mark.step.map(Iteration) else { return };
        let counts = |(step, holder): &(Iteration, Holder)| *holder == mark.holder && *step <= through;
        let due: Vec<_> = self.pending.keys().copied().filter(counts).collect();
        for key in due {
            let Some(push) = self.pending.remove(&key) else { continue };
            if push.samples > 0 {
                let scale = push.rate_share.map_or(scale, |_| mean_scale(push.samples));
                self.apply(&push.dense, &push.rows, (scale, push.rate_share), push.samples)
                    .expect("the push was checked when it came");
            }
            self.applied.insert(mark.holder, key.0);
        }
    }

    /// Applies a step: exactly the pushes of its contributors, in order of worker, divided by its samples.
    /// Idempotent: the first commit of a step wins. Other pushes of this and earlier steps are dropped.
    ///
    /// # Errors
    /// If a contributor's push has not arrived or the samples do not add up.
    pub fn commit(&mut self, commit: &CommitToken) -> Result<CommitOutcome, CommitError> {
        if self.staleness != Staleness::Synchronous {
            return Err(CommitError::NotSynchronous);
        }
        if self.committed.is_some_and(|committed| commit.step <= committed) {
            return Ok(CommitOutcome::AlreadyCommitted);
        }
        let contributors: BTreeSet<Holder> = commit.contributors.iter().copied().collect();
        let mut pushes = Vec::with_capacity(contributors.len());
        for holder in contributors {
            let push = self
                .pending
                .get(&(commit.step, holder))
                .ok_or(CommitError::Missing { step: commit.step, holder })?;
            pushes.push(push);
        }
        let pushed = pushes.iter().map(|push| push.samples).sum();
        if pushed != commit.samples {
            return Err(CommitError::Samples { step: commit.step, announced: commit.samples, pushed });
        }
        pushes.retain(|push| push.samples > 0);
        if !pushes.is_empty() {
            let mut dense = pushes[0].dense.clone();
            for push in &pushes[1..] {
                dense.iter_mut().zip(&push.dense).for_each(|(sum, value)| *sum += value);
            }
            let rows = self.tables.merge(&pushes.iter().map(|push| &push.rows).collect::<Vec<_>>());
            // All workers switch to a plan at one step, so that they name one share.
            let share = pushes[0].rate_share.unwrap_or(1.0);
            let share = if commit.everyone { share * self.rule.share_of(commit.samples) } else { share };
            self.apply(&dense, &rows, (mean_scale(commit.samples), Some(share)), commit.samples)
                .expect("each push was checked when it came, and merging keeps rows ascending");
        }
        self.committed = Some(commit.step);
        self.pending.retain(|(step, _), _| *step > commit.step);
        Ok(CommitOutcome::Applied)
    }

    /// Declares an incarnation of a worker lost: its later pushes, and those of earlier incarnations, are
    /// refused. In asynchronous training those pushes of it are [applied](Self::count) that count, and the others are
    /// dropped. In synchronous training they stay until their step is decided, since the coordinator may have counted
    /// them in.
    pub fn lost(&mut self, mark: PushMark) {
        let live = self.live.entry(mark.holder.node).or_default();
        *live = (*live).max(mark.holder.incarnation.next());
        if self.staleness != Staleness::Synchronous {
            self.count(mark);
            self.pending.retain(|(_, holder), _| *holder != mark.holder);
            self.applied.remove(&mark.holder);
        }
    }

    fn apply(
        &mut self,
        dense: &[f32],
        rows: &SparseGradient,
        (scale, rate_share): (f32, Option<f32>),
        samples: u64,
    ) -> Result<(), TableError> {
        let parts = self.dense.iter().flat_map(|params| params.trainable(dense)).chain([&rows.values[..]]);
        let step = self.rule.next(self.trained, parts, scale).at(rate_share.unwrap_or(1.0));
        let update = &self.rule.optimizer.begin(step);
        self.tables.apply(&rows.rows, &rows.values, update)?;
        if let Some(params) = &mut self.dense {
            let exempt = &self.rule.optimizer.begin(UpdateStep { decay: 0.0, ..step });
            // A push that is applied at once moves statistics by its share of a nominal batch; a whole step replaces them.
            #[allow(clippy::cast_precision_loss, reason = "a weight")]
            let weight = (samples as f32 * scale).min(1.0);
            let weight = if self.staleness == Staleness::Synchronous { 1.0 } else { weight };
            params.apply(dense, &Change { update, exempt, mean: mean_scale(samples), weight });
        }
        self.trained.steps += 1;
        self.trained.samples += samples;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
