//! Checks that all members of a group take over its average, or none: the master commits a group when every
//! member has reported the average, tells all of them at once, and no member takes over an average that is not committed.
//!
//! Source: our design of partial all-reduce.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{Holder, JobTime, StepCommit};
use antdt_job::{Call, HeadEffect, HeadEvent};

use super::Invariant;
use super::group_word::{GroupWord, group_word};
use crate::happening::Happening;

/// What is known of a group that is not over.
#[derive(Debug)]
struct Account {
    members: BTreeSet<Holder>,
    reported: BTreeSet<Holder>,
}

/// Checks that an average is taken over by all members of its group or by none; see the [module](self).
#[derive(Debug, Default)]
pub struct GroupCountsForAll {
    accounts: BTreeMap<u64, Account>,
    /// The newest group that each worker was told of, and the question that this answered.
    of: BTreeMap<Holder, (u64, u64)>,
    /// Members of committed groups that were not told of the commit yet.
    untold: BTreeMap<u64, BTreeSet<Holder>>,
    /// Workers that were told of a commit and have not taken the average over.
    may_take: BTreeSet<Holder>,
    /// The newest group that was told to run.
    newest: u64,
}

impl GroupCountsForAll {
    fn told_to_go(&mut self, to: Holder, go: &StepCommit) {
        // Of the groups before this one that the worker is in none is committed any more.
        if let Some((before, _)) =
            self.of.insert(to, (go.step, go.asked)).filter(|(before, _)| *before < go.step)
        {
            self.accounts.remove(&before);
        }
        // An older one is an answer that is repeated.
        if go.step > self.newest {
            self.newest = go.step;
            let members = go.contributors.keys().copied().collect();
            self.accounts.insert(go.step, Account { members, reported: BTreeSet::new() });
        }
    }

    fn reported(&mut self, holder: Holder, question: u64) {
        let group = self.of.get(&holder).filter(|(_, asked)| asked + 1 == question).map(|(group, _)| *group);
        if let Some(account) = group.and_then(|group| self.accounts.get_mut(&group)) {
            account.reported.insert(holder);
        }
    }

    fn committed(&mut self, to: Holder, commit: &StepCommit) -> Result<(), String> {
        let group = commit.step;
        if let Some(Account { members, reported }) = self.accounts.remove(&group) {
            if let Some(lacks) = members.difference(&reported).next() {
                return Err(format!("group {group} is committed, and {lacks} has not reported it"));
            }
            self.untold.insert(group, members);
        }
        self.may_take.insert(to);
        if let Some(untold) = self.untold.get_mut(&group) {
            untold.remove(&to);
            if untold.is_empty() {
                self.untold.remove(&group);
            }
        }
        Ok(())
    }
}

impl Invariant for GroupCountsForAll {
    fn name(&self) -> &'static str {
        "group_counts_for_all"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        match group_word(what) {
            Some((to, GroupWord::Go(go))) => self.told_to_go(to, go),
            Some((to, GroupWord::Commit(commit))) => return self.committed(to, commit),
            None => {}
        }
        match what {
            Happening::Head(event, _) => {
                // What the event before brought about is done.
                if let Some((group, untold)) = self.untold.first_key_value() {
                    return Err(format!("group {group} is committed, and {untold:?} were not told"));
                }
                if let HeadEvent::Ready { holder, step, .. } = event {
                    self.reported(*holder, *step);
                }
            }
            Happening::Worker(holder, _, Call::Apply) if !self.may_take.remove(holder) => {
                return Err(format!("{holder} takes over an average that is not committed"));
            }
            // Nothing that was told before counts, and groups are numbered anew.
            Happening::TakenOver | Happening::Effect(HeadEffect::RollBack(_)) => {
                self.accounts.clear();
                self.of.clear();
                self.untold.clear();
                self.newest = 0;
            }
            Happening::Died(holder) => {
                self.may_take.remove(holder);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{PlanVersion, Readiness};
    use antdt_job::{HeadAnswer, Reply};

    use super::super::testing::{History, group_commit, group_go, holder};
    use super::*;

    fn report(index: u32, step: u64) -> HeadEvent {
        let readiness = Readiness { samples: 1, end_of_data: false, plan: PlanVersion(0), acks: vec![] };
        HeadEvent::Ready { holder: holder(index), step, readiness }
    }

    /// A group of two, of which these have reported their averages.
    fn begun(reported: &[u32]) -> History<GroupCountsForAll> {
        let mut history = History::new(GroupCountsForAll::default());
        for index in [0, 1] {
            history.effect(&group_go(index, 2, 7, &[0, 1]));
        }
        for index in reported {
            history.head(&report(*index, 3), &HeadAnswer::Parked);
        }
        history
    }

    #[test]
    fn a_group_that_all_reported_is_committed_for_all_and_taken_over() {
        let commit = |index| group_commit(index, 3, 7, &[0, 1]);
        let mut history = begun(&[0, 1]);
        history.effect(&commit(0)).effect(&commit(1));
        history
            .worker(holder(1), &Reply::Entered, &Call::Apply)
            .head(&report(1, 5), &HeadAnswer::Parked)
            .holds();
        history.worker(holder(1), &Reply::Entered, &Call::Apply).fails("that is not committed");
        begun(&[1]).effect(&commit(1)).fails("group 7 is committed, and worker-0#0 has not reported it");
        begun(&[0, 1]).worker(holder(1), &Reply::Entered, &Call::Apply).fails("worker-1#0 takes over");
        begun(&[0, 1]).effect(&commit(0)).head(&report(1, 3), &HeadAnswer::Parked).fails("were not told");
    }

    #[test]
    fn a_report_on_an_older_group_is_none_on_this_one() {
        let mut history = begun(&[0]);
        history.head(&report(1, 1), &HeadAnswer::Parked).effect(&group_commit(0, 3, 7, &[0, 1]));
        history.fails("worker-1#0 has not reported it");
    }
}
