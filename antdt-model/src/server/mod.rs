//! One server's part of the parameters, and the rule by which pushes change it.
//!
//! **In step** ([`Staleness::Synchronous`]): a push is buffered under (step, holder) and changes nothing. The step
//! coordinator decides whose pushes make up the step; the next pull of any worker brings that decision, a
//! [`StepCommit`], and each server applies exactly those pushes, once, in order of holder, before it answers. So all
//! servers apply the same set, or none, without talking to each other: a gradient can't be accepted for some
//! parameters and dropped for others.
//!
//! **At its own pace** ([`Staleness::Unbounded`]): a push is applied when it comes, once per (holder, step).
//!
//! Either way a life that was declared lost, and every earlier life of a node once a later one has pushed, is refused:
//! a late push of a process that was given up cannot change the model.
//!
//! Rejected: a queue of tokens, as `TensorFlow`'s `SyncReplicasOptimizer` has (read): a slow worker's unused token is
//! taken by a fast one, and a push may be dropped without its worker learning of it.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{Holder, Incarnation, InvalidValue, Iteration, NodeId, OptimizerSpec, ParamLayout, Seed};

use crate::gradient::{SparseGradient, mean_scale};
use crate::optimizer::DenseParams;
use crate::partition::PartitionMap;
use crate::table::{SparseTable, TableError, no_rows};

/// When a push takes effect.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Staleness {
    /// All workers in step: when the step is committed, divided by its samples.
    #[doc(alias = "BSP")]
    Synchronous,
    /// Each worker at its own pace: at once.
    #[doc(alias = "ASP")]
    Unbounded {
        /// What a gradient sum is multiplied with: one over the nominal batch of a worker, so that a step of a small
        /// batch weighs less than one of a large batch.
        scale: f32,
    },
}

/// What a server must know to hold its part.
#[derive(Debug, Clone, PartialEq)]
pub struct PartitionConfig {
    /// Shape of the whole model.
    pub layout: ParamLayout,
    /// How gradients change it.
    pub optimizer: OptimizerSpec,
    /// Where the table's initial values come from; the same on all servers.
    pub seed: Seed,
    /// This server, from 0.
    pub server: u32,
    /// Number of servers.
    pub servers: u32,
    /// When a push takes effect.
    pub staleness: Staleness,
}

/// Which pushes make up a step: the step coordinator's word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepCommit {
    /// Which step.
    pub step: Iteration,
    /// Whose pushes.
    pub contributors: Vec<Holder>,
    /// Samples of all of them; 0 changes nothing.
    pub samples: u64,
}

/// A worker's gradient for one server.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Push {
    /// Samples behind it; 0 makes it count as present and change nothing.
    pub samples: u64,
    /// Sums for the server's piece of the flat vector.
    pub dense: Vec<f32>,
    /// Sums for rows that the server holds.
    pub rows: SparseGradient,
}

/// What became of initial values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitOutcome {
    /// They were the first.
    Stored,
    /// Others came first; those stay.
    AlreadyInitialised,
}

/// What became of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushOutcome {
    /// Kept until its step is committed.
    Buffered,
    /// Applied.
    Applied,
    /// It was applied before; nothing changed.
    Duplicate,
}

/// What became of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
    /// Its pushes were applied now.
    Applied,
    /// The step, or a later one, was committed before; nothing changed.
    AlreadyCommitted,
}

/// Why a pull was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// Nobody has sent initial values yet.
    #[error("the parameters have no values yet; initialise them before the first pull")]
    NotInitialised,
    /// Rows that cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Why a push was refused. The parameters are as they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// Nobody has sent initial values yet.
    #[error("the parameters have no values yet; initialise them before the first push")]
    NotInitialised,
    /// This life is over.
    #[error("{holder} was given up, lives below {live} may not push; exit")]
    Fenced {
        /// Who pushed.
        holder: Holder,
        /// First life of the node that may push.
        live: Incarnation,
    },
    /// The step is over.
    #[error(
        "{holder} pushed for step {step}, step {committed} is committed already; pull and go on from there"
    )]
    Stale {
        /// Who pushed.
        holder: Holder,
        /// For which step.
        step: Iteration,
        /// Newest step that is committed.
        committed: Iteration,
    },
    /// Too many uncommitted steps of one holder.
    #[error("{holder} has {pending} pushes waiting for their commit; commit a step before the next push")]
    TooManyPending {
        /// Who pushed.
        holder: Holder,
        /// Waiting pushes of it.
        pending: usize,
    },
    /// Another length than this server's piece of the flat vector.
    #[error("{got} dense values came, this server holds {expected}")]
    DenseLength {
        /// Values that came.
        got: usize,
        /// Values held.
        expected: usize,
    },
    /// Rows that cannot be changed.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Why a commit was refused. The parameters are as they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// Under asynchronous updates there is nothing to commit.
    #[error("this server applies pushes at once and has no steps to commit; pull without a commit")]
    NotSynchronous,
    /// A contributor's push never came.
    #[error(
        "step {step} counts {holder} in, whose push is not here; it was counted before its push was answered"
    )]
    Missing {
        /// The step.
        step: Iteration,
        /// Whose push is missing.
        holder: Holder,
    },
    /// Listed contributors and samples do not fit what was pushed.
    #[error("step {step} counts {announced} samples, its pushes have {pushed}")]
    Samples {
        /// The step.
        step: Iteration,
        /// In the commit.
        announced: u64,
        /// In the pushes.
        pushed: u64,
    },
}

/// The machine: one server's part. Errors leave it as it was.
#[derive(Debug)]
pub struct Partition {
    map: PartitionMap,
    server: u32,
    optimizer: OptimizerSpec,
    staleness: Staleness,
    dense: Option<DenseParams>,
    table: Option<SparseTable>,
    committed: Option<Iteration>,
    // Synchronous: waiting for their commit.
    pending: BTreeMap<(Iteration, Holder), Push>,
    // Lives below this may not push.
    live: BTreeMap<NodeId, Incarnation>,
    // Asynchronous: newest step applied of each node's present life.
    applied: BTreeMap<NodeId, (Incarnation, Iteration)>,
}

impl Partition {
    /// Uncommitted steps of one holder. A worker pushes a step only after the pull that commits the one before, so one
    /// would do; the second allows a repeat under a later number after an abandoned step.
    pub const PENDING_MAX: usize = 2;

    /// A part without values: [`init_dense`](Self::init_dense) gives them.
    ///
    /// # Errors
    /// If the layout, the optimizer, the scale or the server's number makes no sense.
    pub fn new(config: &PartitionConfig) -> Result<Self, InvalidValue> {
        let PartitionConfig { layout, optimizer, seed, server, servers, staleness } = config;
        optimizer.validate()?;
        let map = PartitionMap::new(*servers, layout.dense_len)?;
        if server >= servers {
            return Err(InvalidValue::new("server", server, format!("below {servers}")));
        }
        if let Staleness::Unbounded { scale } = staleness
            && (!scale.is_finite() || *scale <= 0.0)
        {
            return Err(InvalidValue::new("scale", scale, "finite and above 0"));
        }
        let table = layout
            .table
            .map(|spec| SparseTable::new(spec, *optimizer, *seed, *server, *servers))
            .transpose()?;
        Ok(Self {
            map,
            server: *server,
            optimizer: *optimizer,
            staleness: *staleness,
            dense: None,
            table,
            committed: None,
            pending: BTreeMap::new(),
            live: BTreeMap::new(),
            applied: BTreeMap::new(),
        })
    }

    /// Length of this server's piece of the flat vector.
    pub fn dense_len(&self) -> usize {
        self.map.dense(self.server).len()
    }

    /// Values per row of the table; 0 without one.
    pub fn dim(&self) -> usize {
        self.table.as_ref().map_or(0, |table| table.spec().dim)
    }

    /// Newest step that was committed.
    pub const fn committed(&self) -> Option<Iteration> {
        self.committed
    }

    /// Pushes that wait for their commit.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Sets the initial values of this server's piece of the flat vector. The first ones stay; all workers may send
    /// theirs, which are the same.
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
        self.dense = Some(DenseParams::new(self.optimizer, values));
        Ok(InitOutcome::Stored)
    }

    /// Appends this server's piece of the flat vector to `dense` and the values of `rows` to `row_values`.
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
        match &self.table {
            Some(table) => table.gather(rows, row_values)?,
            None => no_rows(rows)?,
        }
        dense.extend_from_slice(params.values());
        Ok(())
    }

    /// Takes a worker's gradient. Under [`Staleness::Synchronous`] a second push of the same holder for the same step
    /// replaces the first: the worker did the step again.
    ///
    /// # Errors
    /// If the life is fenced, the step is over, or the gradient does not fit this server.
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
        match &self.table {
            Some(table) => {
                table.check(&push.rows.rows)?;
                let (values, rows, dim) = (push.rows.values.len(), push.rows.rows.len(), table.spec().dim);
                if rows.checked_mul(dim) != Some(values) {
                    return Err(TableError::Length { values, rows, dim }.into());
                }
            }
            None => no_rows(&push.rows.rows)?,
        }
        let outcome = match self.staleness {
            Staleness::Synchronous => self.buffer(holder, step, push)?,
            Staleness::Unbounded { scale } => self.apply_at_once(holder, step, &push, scale)?,
        };
        self.live.insert(holder.node, holder.incarnation);
        Ok(outcome)
    }

    fn buffer(&mut self, holder: Holder, step: Iteration, push: Push) -> Result<PushOutcome, PushError> {
        if let Some(committed) = self.committed.filter(|committed| step <= *committed) {
            return Err(PushError::Stale { holder, step, committed });
        }
        let pending = self.pending.keys().filter(|(s, h)| *h == holder && *s != step).count();
        if pending >= Self::PENDING_MAX {
            return Err(PushError::TooManyPending { holder, pending });
        }
        self.pending.insert((step, holder), push);
        Ok(PushOutcome::Buffered)
    }

    fn apply_at_once(
        &mut self,
        holder: Holder,
        step: Iteration,
        push: &Push,
        scale: f32,
    ) -> Result<PushOutcome, PushError> {
        let newest = self.applied.get(&holder.node).filter(|(life, _)| *life == holder.incarnation);
        if newest.is_some_and(|(_, newest)| step <= *newest) {
            return Ok(PushOutcome::Duplicate);
        }
        if push.samples > 0 {
            self.apply(&push.dense, &push.rows, scale)?;
        }
        self.applied.insert(holder.node, (holder.incarnation, step));
        Ok(PushOutcome::Applied)
    }

    /// Applies a step: exactly the pushes of its contributors, in order of holder, divided by its samples. Idempotent:
    /// the first commit of a step wins. Pushes of this and earlier steps are dropped.
    ///
    /// # Errors
    /// If a contributor's push is not here or the samples do not add up.
    pub fn commit(&mut self, commit: &StepCommit) -> Result<CommitOutcome, CommitError> {
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
            let parts = pushes.iter().map(|push| (push.rows.rows.as_slice(), push.rows.values.as_slice()));
            let rows = SparseGradient::merge(parts, self.dim());
            self.apply(&dense, &rows, mean_scale(commit.samples))
                .expect("each push was checked when it came, and merging keeps rows ascending");
        }
        self.committed = Some(commit.step);
        self.pending.retain(|(step, _), _| *step > commit.step);
        Ok(CommitOutcome::Applied)
    }

    /// A life was given up: its later pushes, and those of earlier lives, are refused. What it pushed before stays
    /// until its step is decided, since the coordinator may have counted it in.
    pub fn lost(&mut self, holder: Holder) {
        let live = self.live.entry(holder.node).or_default();
        *live = (*live).max(holder.incarnation.next());
    }

    fn apply(&mut self, dense: &[f32], rows: &SparseGradient, scale: f32) -> Result<(), TableError> {
        if let Some(table) = &mut self.table {
            table.apply(&rows.rows, &rows.values, scale)?;
        }
        if let Some(params) = &mut self.dense {
            params.apply(dense, scale);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
