//! [`Entrance`]: how workers come into a job whose model lives on servers: the first ones all at once, later ones as they come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use antdt_core::{Holder, JobTime, Joined, MembershipVersion, Plan, PlanVersion, Readiness, StepCommit};

use crate::head::HeadCore;

/// A worker at its own pace says, with the question of this number, that its push of a step is on all servers: it counts.
pub(crate) fn count_push(
    core: &mut HeadCore,
    holder: Holder,
    (asked, step): (u64, u64),
    readiness: Readiness,
) {
    let answer = StepCommit {
        step: asked,
        contributors: BTreeMap::from([(holder, readiness.acks.clone())]).into(),
        samples: readiness.samples,
        asked,
        counted: true,
        everyone: true,
        ..StepCommit::default()
    };
    core.count_push(holder, step, readiness.acks);
    core.tell_commit(holder, answer);
}

/// Workers that wait for the first common start.
#[derive(Debug, Default)]
pub(crate) struct Entrance {
    waiting: BTreeSet<Holder>,
}

impl Entrance {
    /// A worker waits to be let in.
    pub(crate) fn comes(&mut self, holder: Holder) {
        self.waiting.insert(holder);
    }

    /// A worker is gone.
    pub(crate) fn goes(&mut self, holder: Holder) {
        self.waiting.remove(&holder);
    }

    /// Lets workers in, if it is time: `take_in` hears which workers enter, `joined` completes the answer to each of them.
    pub(crate) fn open(
        &mut self,
        now: JobTime,
        core: &mut HeadCore,
        mut take_in: impl FnMut(Holder),
    ) -> Option<Entering> {
        let may = core.knows_servers() && !core.is_rolling_back();
        if !may || self.waiting.is_empty() || (!core.started() && self.is_anyone_awaited(core)) {
            return None;
        }
        let holders: Vec<Holder> = std::mem::take(&mut self.waiting).into_iter().collect();
        core.take_in(&holders);
        holders.iter().for_each(|holder| take_in(*holder));
        let first = core.start();
        if first {
            let version = core.membership().version();
            core.replan(now, version);
        }
        Some(Entering { holders, first })
    }

    /// Whether a worker is not yet there for the common start.
    fn is_anyone_awaited(&self, core: &HeadCore) -> bool {
        // Counted first: at the start of a job, every worker but the last is told in O(1) that others are awaited.
        (!core.was_rolled_back() && self.waiting.len() < core.unfinished())
            || core.awaited_workers().any(|holder| !self.waiting.contains(&holder))
    }
}

/// Workers that were let in, and are to be told so.
#[derive(Debug)]
pub(crate) struct Entering {
    holders: Vec<Holder>,
    first: bool,
}

impl Entering {
    /// Answers all of them. A plan that names a worker which joins later takes effect for it when all have switched to it, if
    /// `in_step`: until then it keeps an empty batch, so that the batches of one step always add up to the same. The published
    /// plan may name it too soon: as an earlier life, or because it is a member already and its answer was lost.
    pub(crate) fn tell(
        self,
        now: JobTime,
        core: &mut HeadCore,
        in_step: bool,
        complete: impl FnOnce(Joined) -> Joined,
    ) {
        let version: MembershipVersion = core.membership().version();
        let mut joined = complete(core.joined_reply(version, Arc::default()));
        if !self.first && in_step {
            joined.plan = Plan::new(PlanVersion(0), joined.membership, Default::default());
        }
        let joined = Arc::new(joined);
        for holder in self.holders {
            core.let_in(holder, Arc::clone(&joined));
        }
        if !self.first {
            core.membership_changes();
            core.replan(now, version);
        }
    }
}
