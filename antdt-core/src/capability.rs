//! [`Capabilities`]: what a sync mode requires of the rest of the system.
//!
//! A sync mode says how workers combine what they compute. Policies, servers, reports and the simulator never ask which
//! mode a job runs; they ask for one of these answers. A new kind of answer is a new variant here, which every reader
//! that matches on the enum has to consider.
//!
//! Source: our design.

/// Which workers wait for each other when they combine their results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Barrier {
    /// Every worker waits for all others: the slowest one sets the pace.
    All,
    /// Every worker waits for all others but this many, the slowest of the step.
    AllBut(u32),
    /// No worker gets more than this many steps ahead of the slowest one that has data.
    Within(u32),
    /// A worker waits only for the few workers that it averages with, which are others in each step.
    Peers,
    /// No worker waits for another one.
    Nobody,
}

/// Which processes hold parameters of one kind: the dense ones, or the rows of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ParamPlace {
    /// Every worker holds the same replica.
    Replicas,
    /// Parameter servers hold one partition each.
    Servers,
    /// Every worker trains separate parameters, which differ from the others' between two averages.
    PerWorker,
    /// Every worker trains separate parameters, and averages them in each step with those of a few others. The
    /// job's model is the uniform mean of all models, which the workers compute before a checkpoint, a change
    /// of the group, and the end.
    Mixed,
}

impl ParamPlace {
    /// Returns whether parameter servers hold the parameters.
    pub const fn is_on_servers(self) -> bool {
        match self {
            Self::Servers => true,
            Self::Replicas | Self::PerWorker | Self::Mixed => false,
        }
    }

    /// Returns whether each worker holds all of the parameters. Then a worker that comes copies them from another one, a
    /// worker writes them to checkpoints, and they are lost with the last worker that has them. Parameters that no worker
    /// holds as a whole are written, and lost, by the processes that have a part of them.
    pub const fn is_whole_in_workers(self) -> bool {
        match self {
            Self::Replicas | Self::PerWorker | Self::Mixed => true,
            Self::Servers => false,
        }
    }

    /// Returns whether the workers exchange the parameters, or their gradients, in a group, which breaks when a member dies.
    pub const fn forms_groups(self) -> bool {
        match self {
            Self::Replicas | Self::PerWorker | Self::Mixed => true,
            Self::Servers => false,
        }
    }

    /// Returns whether each worker changes parameters of its own, so that workers combine parameters and not gradients.
    pub const fn is_own(self) -> bool {
        match self {
            Self::PerWorker | Self::Mixed => true,
            Self::Replicas | Self::Servers => false,
        }
    }

    /// Returns whether a worker averages its parameters with only some of the other workers at a time.
    pub const fn mixes(self) -> bool {
        match self {
            Self::Mixed => true,
            Self::Replicas | Self::Servers | Self::PerWorker => false,
        }
    }
}

/// The moment from which on a sample counts as trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum AckPoint {
    /// The sample counts when the group of workers has agreed on the step that contains it.
    Step,
    /// The sample counts when the master has committed the step, or the push, that contains it.
    Commit,
    /// The sample counts when the group of workers has agreed on the average that contains it.
    Average,
}

/// What the batch sizes of a plan must add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum BatchSizes {
    /// The global batch size, whichever workers are alive.
    Global,
    /// No total: a worker keeps its share when others join or leave.
    Own,
}

/// Number of steps that a worker takes between two moments at which workers combine their results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum LocalSteps {
    /// Always one step.
    One,
    /// Several steps; a plan may change how many.
    Several,
}

/// Properties of a sync mode: what it requires of the rest of the system, and what it promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(from = "written::Capabilities")
)]
pub struct Capabilities {
    /// Which workers wait for each other when they combine their results.
    pub barrier: Barrier,
    /// Which processes hold the dense parameters.
    pub dense: ParamPlace,
    /// Which processes hold the rows of tables.
    pub rows: ParamPlace,
    /// When a sample counts as trained, and is acknowledged.
    pub acks: AckPoint,
    /// Total that the batch sizes of a plan must add up to, if any.
    pub batch_sizes: BatchSizes,
    /// Number of steps that a worker takes between two moments at which workers combine their results.
    pub local_steps: LocalSteps,
}

impl Capabilities {
    /// All-reduce (BSP): every worker holds the model and adds its gradient to every step.
    pub const REPLICAS_IN_STEP: Self = Self {
        barrier: Barrier::All,
        dense: ParamPlace::Replicas,
        rows: ParamPlace::Replicas,
        acks: AckPoint::Step,
        batch_sizes: BatchSizes::Global,
        local_steps: LocalSteps::One,
    };

    /// Synchronous parameter servers (BSP): servers hold the model; all workers take each step together.
    #[doc(alias = "BSP")]
    pub const SERVERS_IN_STEP: Self = Self {
        barrier: Barrier::All,
        dense: ParamPlace::Servers,
        rows: ParamPlace::Servers,
        acks: AckPoint::Commit,
        batch_sizes: BatchSizes::Global,
        local_steps: LocalSteps::One,
    };

    /// Returns the capabilities of parameter servers with backup workers: workers take each step together,
    /// without the `backups` slowest of them.
    #[doc(alias = "backup workers")]
    pub const fn servers_with_backups(backups: u32) -> Self {
        Self { barrier: Barrier::AllBut(backups), ..Self::SERVERS_IN_STEP }
    }

    /// Returns the same capabilities with steps that wait for all workers but `backups` of them; with 0, for
    /// all. Only for a mode that [takes backups](Self::takes_backups).
    #[must_use]
    pub const fn with_backups(self, backups: u32) -> Self {
        let barrier = if backups == 0 { Barrier::All } else { Barrier::AllBut(backups) };
        Self { barrier, ..self }
    }

    /// Asynchronous parameter servers (ASP): each worker trains at its own pace.
    #[doc(alias = "ASP")]
    pub const SERVERS_AT_OWN_PACE: Self = Self {
        barrier: Barrier::Nobody,
        dense: ParamPlace::Servers,
        rows: ParamPlace::Servers,
        acks: AckPoint::Commit,
        batch_sizes: BatchSizes::Own,
        local_steps: LocalSteps::One,
    };

    /// Returns the capabilities of stale synchronous parameter servers (SSP): each worker trains at its own
    /// pace, but none gets more than `steps` ahead of the slowest one.
    #[doc(alias = "SSP")]
    pub const fn servers_within(steps: u32) -> Self {
        Self { barrier: Barrier::Within(steps), ..Self::SERVERS_AT_OWN_PACE }
    }

    /// Model averaging: every worker trains a model of its own for some steps; then all models are averaged.
    pub const AVERAGED: Self = Self {
        barrier: Barrier::All,
        dense: ParamPlace::PerWorker,
        rows: ParamPlace::PerWorker,
        acks: AckPoint::Average,
        batch_sizes: BatchSizes::Global,
        local_steps: LocalSteps::Several,
    };

    /// Mixing in common steps: every worker trains a model of its own, and averages it with those of a few
    /// others in each step; all workers take each step together.
    #[doc(alias = "D-PSGD")]
    pub const MIXED_IN_STEP: Self = Self {
        barrier: Barrier::All,
        dense: ParamPlace::Mixed,
        rows: ParamPlace::Mixed,
        acks: AckPoint::Average,
        batch_sizes: BatchSizes::Global,
        local_steps: LocalSteps::One,
    };

    /// Mixing in groups: every worker trains a model of its own, and averages it in small groups, which the
    /// master forms and commits.
    #[doc(alias = "Ripples")]
    pub const MIXED_IN_GROUPS: Self = Self {
        barrier: Barrier::Peers,
        dense: ParamPlace::Mixed,
        rows: ParamPlace::Mixed,
        acks: AckPoint::Commit,
        batch_sizes: BatchSizes::Own,
        local_steps: LocalSteps::One,
    };

    /// All combinations that sync modes use, for tests that go through all of them.
    pub const COMMON: [Self; 9] = [
        Self::REPLICAS_IN_STEP,
        Self::SERVERS_IN_STEP,
        Self::SERVERS_AT_OWN_PACE,
        Self::AVERAGED,
        Self::MIXED_IN_STEP,
        Self::MIXED_IN_GROUPS,
        Self::servers_within(2),
        Self::servers_with_backups(1),
        Self::REPLICAS_IN_STEP.with_backups(1),
    ];

    /// Returns whether the job needs parameter servers.
    pub const fn needs_servers(self) -> bool {
        self.dense.is_on_servers() || self.rows.is_on_servers()
    }

    /// Returns whether each worker changes a model of its own, so that workers combine models and not
    /// gradients.
    pub const fn averages_models(self) -> bool {
        self.dense.is_own() || self.rows.is_own()
    }

    /// Returns whether a worker averages its model with only some of the other workers at a time. The
    /// workers' models then differ until all workers average theirs together.
    pub const fn mixes(self) -> bool {
        self.dense.mixes() || self.rows.mixes()
    }

    /// Returns whether workers combine in a group, which breaks when a member dies.
    pub const fn forms_groups(self) -> bool {
        self.dense.forms_groups() || self.rows.forms_groups()
    }

    /// Returns whether a worker holds parameters as a whole. A worker that comes then copies them from another one,
    /// a worker writes them to checkpoints, and they are lost with the last worker that has them.
    pub const fn workers_have_model(self) -> bool {
        self.dense.is_whole_in_workers() || self.rows.is_whole_in_workers()
    }

    /// Returns whether servers add up the gradients of several workers before they apply them. No worker then
    /// has the gradient of a whole step, and each of several servers has only a part of it.
    pub const fn servers_sum_gradients(self) -> bool {
        self.needs_servers() && self.steps_in_common()
    }

    /// Returns whether a plan may set the number of workers that a step need not wait for. That requires steps that are the sum of the workers'
    /// gradients, of which one can be left out; an average of models that a worker is not in has lost that worker's steps.
    #[doc(alias = "BACKUP_WORKERS")]
    pub const fn takes_backups(self) -> bool {
        !self.averages_models() && self.steps_in_common()
    }

    /// Returns whether a worker whose gradient is late stays in the group of all workers, so that they take each step with it and
    /// without its gradient.
    pub const fn late_workers_stay(self) -> bool {
        self.takes_backups() && self.forms_groups()
    }

    /// Returns the number of workers that a step need not wait for.
    pub const fn backups(self) -> u32 {
        match self.barrier {
            Barrier::AllBut(backups) => backups,
            Barrier::All | Barrier::Within(_) | Barrier::Peers | Barrier::Nobody => 0,
        }
    }

    /// Returns whether the batch sizes of a plan must add up to the global batch size.
    pub const fn sums_to_global_batch(self) -> bool {
        match self.batch_sizes {
            BatchSizes::Global => true,
            BatchSizes::Own => false,
        }
    }

    /// Returns whether every step takes as long as its slowest worker needs.
    pub const fn steps_together(self) -> bool {
        match (self.barrier, self.local_steps) {
            (Barrier::All, LocalSteps::One) => true,
            (Barrier::All, LocalSteps::Several)
            | (Barrier::AllBut(_) | Barrier::Within(_) | Barrier::Peers | Barrier::Nobody, _) => false,
        }
    }

    /// Returns whether the slowest worker sets the pace of all.
    pub const fn waits_for_all(self) -> bool {
        match self.barrier {
            Barrier::All => true,
            Barrier::AllBut(_) | Barrier::Within(_) | Barrier::Peers | Barrier::Nobody => false,
        }
    }

    /// Returns whether all workers share steps, or averages of several steps, that are numbered and committed
    /// once, even if some workers have no part in one.
    pub const fn steps_in_common(self) -> bool {
        match self.barrier {
            Barrier::All | Barrier::AllBut(_) => true,
            Barrier::Within(_) | Barrier::Peers | Barrier::Nobody => false,
        }
    }

    /// Returns whether one worker that pauses holds all others back at their next step, so that only one
    /// worker has to pause for a checkpoint.
    pub const fn waits_for_a_keeper(self) -> bool {
        match self.barrier {
            Barrier::All | Barrier::AllBut(_) | Barrier::Peers => true,
            Barrier::Within(_) | Barrier::Nobody => false,
        }
    }
}

/// How [`Capabilities`] are written, now and before dense parameters and rows had a place each.
#[cfg(feature = "serde")]
mod written {
    use serde::Deserialize;

    use super::{AckPoint, Barrier, BatchSizes, LocalSteps, ParamPlace};

    #[derive(Deserialize)]
    struct Both {
        dense: ParamPlace,
        rows: ParamPlace,
    }

    #[derive(Deserialize)]
    struct One {
        model: ParamPlace,
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Places {
        Both(Both),
        One(One),
    }

    #[derive(Deserialize)]
    pub(super) struct Capabilities {
        barrier: Barrier,
        #[serde(flatten)]
        places: Places,
        acks: AckPoint,
        batch_sizes: BatchSizes,
        local_steps: LocalSteps,
    }

    impl From<Capabilities> for super::Capabilities {
        fn from(written: Capabilities) -> Self {
            let Capabilities { barrier, places, acks, batch_sizes, local_steps } = written;
            let (dense, rows) = match places {
                Places::Both(Both { dense, rows }) => (dense, rows),
                Places::One(One { model }) => (model, model),
            };
            Self { barrier, dense, rows, acks, batch_sizes, local_steps }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_parameters_decides_its_own_holders() {
        let split = Capabilities { rows: ParamPlace::Servers, ..Capabilities::REPLICAS_IN_STEP };
        assert!(split.needs_servers() && split.forms_groups() && split.workers_have_model());
        assert!(!split.averages_models() && !split.mixes());
        for mode in Capabilities::COMMON {
            assert_eq!(mode.needs_servers(), !mode.workers_have_model(), "{mode:?}");
            assert_eq!(mode.forms_groups(), mode.workers_have_model(), "{mode:?}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn capabilities_read_back_and_so_do_those_with_one_place_for_all_parameters() {
        for mode in Capabilities::COMMON {
            let text = serde_json::to_string(&mode).unwrap();
            assert_eq!(serde_json::from_str::<Capabilities>(&text).unwrap(), mode, "{text}");
            let places = format!(r#""dense":"{:?}","rows":"{0:?}""#, mode.dense);
            let before = text.replace(&places, &format!(r#""model":"{:?}""#, mode.dense));
            assert_ne!(before, text);
            assert_eq!(serde_json::from_str::<Capabilities>(&before).unwrap(), mode, "{before}");
        }
    }
}
