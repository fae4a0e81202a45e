//! A group of workers that reduce together, as the network sees it: who has come to which operation, and who hears of
//! its result when somebody dies meanwhile.

use std::sync::Arc;

use antdt_collective::lanes::Lanes;
use antdt_core::{Ack, JobTime};

use super::life::LifeId;

/// What a member does in an operation.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part {
    /// Comes in; whether it lacks the model.
    Enter { lacking: bool },
    /// Gives its gradient.
    Combine { step: u64, samples: u64, acks: Vec<Ack> },
    /// Gives its control values.
    Agree(Lanes),
}

/// Whether a member hears of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Completes,
    Breaks,
}

#[derive(Debug)]
pub(super) struct Group {
    /// In order of rank.
    pub(super) members: Arc<[LifeId]>,
    /// Who gives the model to those that lack it.
    pub(super) source: Option<usize>,
    /// A member died, left or was late: no further operation ends well.
    pub(super) broken: bool,
    /// By rank: what each member brought to the open operation, and the number of its call.
    pub(super) parts: Vec<Option<(u64, Part)>>,
    /// The memory of the operation before.
    spare: Vec<Option<(u64, Part)>>,
    pub(super) arrived: usize,
    /// When the first member came.
    pub(super) first: JobTime,
    /// All have come; the result is on its way.
    pub(super) under_way: bool,
    /// By rank, if somebody died while the result was on its way.
    pub(super) fates: Option<Vec<Fate>>,
    /// Number of the open operation.
    pub(super) operation: u64,
    /// Whether something looks after members that wait too long.
    pub(super) timer_armed: bool,
}

impl Group {
    pub(super) fn new(members: Vec<LifeId>, source: Option<usize>) -> Self {
        let parts = vec![None; members.len()];
        Self {
            members: members.into(),
            source,
            broken: false,
            parts,
            spare: Vec::new(),
            arrived: 0,
            first: JobTime::ZERO,
            under_way: false,
            fates: None,
            operation: 0,
            timer_armed: false,
        }
    }

    /// Ends the open operation: what each member brought, by rank. [Give it back](Self::give_back), for its memory.
    pub(super) fn take(&mut self) -> Vec<Option<(u64, Part)>> {
        self.operation += 1;
        self.arrived = 0;
        self.under_way = false;
        let mut empty = std::mem::take(&mut self.spare);
        empty.resize(self.members.len(), None);
        std::mem::replace(&mut self.parts, empty)
    }

    /// Takes back what was [taken](Self::take), for the next operation: in a large group it is megabytes.
    pub(super) fn give_back(&mut self, mut parts: Vec<Option<(u64, Part)>>) {
        parts.clear();
        self.spare = parts;
    }
}
