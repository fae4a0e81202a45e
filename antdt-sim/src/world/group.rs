//! A group of workers that reduce together, as the network sees it: which members have come to which operation, and which of them learn
//! its result when a member dies meanwhile.

use std::sync::Arc;

use antdt_collective::lanes::Lanes;
use antdt_core::{Acks, Contribution, Holder, JobTime, StepResult};
use antdt_job::Peers;

use super::life::LifeId;

/// What a member does in an operation.
#[derive(Debug)]
pub(super) enum Part {
    /// Comes in; whether it lacks the model.
    Enter { lacking: bool },
    /// Gives its gradient, or its model to these members.
    Combine { step: u64, acks: Acks, peers: Peers },
    /// Gives its control values.
    Agree(Lanes),
}

/// What the members have brought to the open operation so far. The first of them says what it is; a member that brings something
/// else gets a reply that does not answer its call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sum {
    /// Whether a member lacks the model.
    Entered { lacking: bool },
    /// The step, the acks for it, how many members average with each other, at most, and whether they make a mean of models in
    /// parts.
    Combined { step: u64, acks: u64, peers: u32, in_parts: bool },
    /// The totals of the control values.
    Agreed([f64; Lanes::LEN]),
}

/// Whether a member hears of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Completes,
    Breaks,
}

/// What a member that has not come waits in: calls count from 1.
const NO_CALL: u64 = 0;

#[derive(Debug)]
pub(super) struct SimGroup {
    /// In order of rank.
    pub(super) members: Arc<[LifeId]>,
    /// The same, as the job names them.
    pub(super) holders: Arc<[Holder]>,
    /// Member that gives the model to those that lack it.
    pub(super) source: Option<usize>,
    /// A member died, left or was late: no further operation ends well.
    pub(super) broken: bool,
    /// By rank: the call in which the member waits for the open operation.
    calls: Vec<u64>,
    /// The memory of the operation before.
    spare: Vec<u64>,
    /// `None` until the first member came.
    pub(super) sum: Option<Sum>,
    /// What each member contributes to the open step.
    contributions: Arc<[Contribution]>,
    /// What each contributed to the step before: its memory is used again when it is no longer needed.
    before: Arc<[Contribution]>,
    pub(super) arrived: usize,
    /// When the first member came, and the last one.
    pub(super) first: JobTime,
    pub(super) last: JobTime,
    /// All have come; the result is on its way.
    pub(super) under_way: bool,
    /// By rank, if a member died while the result was on its way.
    pub(super) fates: Option<Vec<Fate>>,
    /// Number of the open operation.
    pub(super) operation: u64,
    /// Whether something looks after members that wait too long.
    pub(super) timer_armed: bool,
}

impl SimGroup {
    pub(super) fn new(members: Vec<LifeId>, holders: Arc<[Holder]>, source: Option<usize>) -> Self {
        Self {
            calls: vec![NO_CALL; members.len()],
            members: members.into(),
            holders,
            source,
            broken: false,
            spare: Vec::new(),
            sum: None,
            contributions: Arc::default(),
            before: Arc::default(),
            arrived: 0,
            first: JobTime::NEVER,
            last: JobTime::ZERO,
            under_way: false,
            fates: None,
            operation: 0,
            timer_armed: false,
        }
    }

    /// A member comes to the open operation, in this call.
    pub(super) fn come(&mut self, at: JobTime, rank: usize, call: u64, part: Part) {
        self.first = self.first.min(at);
        self.last = self.last.max(at);
        self.arrived += 1;
        self.bring(rank, call, part);
    }

    fn bring(&mut self, rank: usize, call: u64, part: Part) {
        self.calls[rank] = call;
        match (&mut self.sum, part) {
            (sum @ None, Part::Enter { lacking }) => *sum = Some(Sum::Entered { lacking }),
            (sum @ None, Part::Agree(lanes)) => *sum = Some(Sum::Agreed(lanes.encode())),
            (Some(Sum::Entered { lacking: any }), Part::Enter { lacking }) => *any |= lacking,
            (Some(Sum::Agreed(totals)), Part::Agree(lanes)) => {
                totals.iter_mut().zip(lanes.encode()).for_each(|(total, lane)| *total += lane);
            }
            (sum @ (None | Some(Sum::Combined { .. })), Part::Combine { step, acks, peers }) => {
                let world = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
                let in_parts = peers.average_in_parts(world);
                let Sum::Combined { acks: count, peers: most, .. } =
                    sum.get_or_insert(Sum::Combined { step, acks: 0, peers: 0, in_parts })
                else {
                    return;
                };
                *count += acks.len() as u64;
                *most = peers.count(world).max(*most);
                self.contribution(rank).acks = acks;
            }
            (Some(_), _) => {}
        }
    }

    fn contribution(&mut self, rank: usize) -> &mut Contribution {
        if self.contributions.len() != self.holders.len() || Arc::get_mut(&mut self.contributions).is_none() {
            let empty = |holder: &Holder| Contribution { holder: *holder, acks: Acks::new() };
            self.contributions = self.holders.iter().map(empty).collect();
        }
        &mut Arc::get_mut(&mut self.contributions).expect("nobody else has it")[rank]
    }

    /// The step that all have contributed to.
    pub(super) fn combined(&mut self, step: u64) -> StepResult {
        let contributions = Arc::clone(&self.contributions);
        std::mem::swap(&mut self.contributions, &mut self.before);
        StepResult { step, contributions }
    }

    /// By rank, the call in which each member waits that has come.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (usize, u64)> {
        self.calls.iter().copied().enumerate().filter(|(_, call)| *call != NO_CALL)
    }

    /// Ends the open operation: by rank, the call in which each member waited for it.
    /// [Give it back](Self::give_back), for its memory.
    pub(super) fn take(&mut self) -> Calls {
        self.operation += 1;
        self.arrived = 0;
        self.under_way = false;
        self.sum = None;
        (self.first, self.last) = (JobTime::NEVER, JobTime::ZERO);
        let mut none = std::mem::take(&mut self.spare);
        none.resize(self.members.len(), NO_CALL);
        Calls(std::mem::replace(&mut self.calls, none))
    }

    /// Takes back what was [taken](Self::take), for the next operation.
    pub(super) fn give_back(&mut self, calls: Calls) {
        self.spare = calls.0;
        self.spare.clear();
    }
}

/// By rank, the call in which each member waited.
#[derive(Debug)]
pub(super) struct Calls(Vec<u64>);

impl Calls {
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, u64)> {
        self.0.iter().copied().enumerate().filter(|(_, call)| *call != NO_CALL)
    }
}
