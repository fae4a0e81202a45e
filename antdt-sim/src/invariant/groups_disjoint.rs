//! Checks that groups which average at the same time share no worker: otherwise a model would be read for one
//! average while another one replaces it.
//!
//! A group runs from the master's first word to a member until its commit, or until the workers meet anew, which makes
//! all groups void.
//!
//! Source: our design of partial all-reduce.

use std::collections::BTreeMap;

use antdt_core::{Holder, JobTime, MembershipVersion, StepCommit};
use antdt_job::HeadEffect;

use super::Invariant;
use super::group_word::{GroupWord, group_word};
use crate::happening::Happening;

/// Checks that groups which average at the same time share no worker; see the [module](self).
#[derive(Debug, Default)]
pub struct GroupsDisjoint {
    membership: MembershipVersion,
    /// Members of the groups that run, by the number of the group.
    running: BTreeMap<u64, Vec<Holder>>,
    /// The running group of each worker.
    of: BTreeMap<Holder, u64>,
    /// The newest group that was told to run.
    newest: u64,
}

impl GroupsDisjoint {
    fn runs(&mut self, go: &StepCommit) -> Result<(), String> {
        let group = go.step;
        let members: Vec<Holder> = go.contributors.keys().copied().collect();
        if let Some(known) = self.running.get(&group) {
            if *known == members {
                return Ok(());
            }
            return Err(format!(
                "group {group} is of {members:?} for one member, and of {known:?} for another"
            ));
        }
        // An answer of before that is repeated: that group is over.
        if group <= self.newest {
            return Ok(());
        }
        self.newest = group;
        for member in &members {
            if let Some(other) = self.of.insert(*member, group) {
                return Err(format!("{member} is in group {group} while it is in group {other}"));
            }
        }
        self.running.insert(group, members);
        Ok(())
    }

    fn over(&mut self, group: u64) {
        for member in self.running.remove(&group).unwrap_or_default() {
            self.of.remove(&member);
        }
    }
}

impl Invariant for GroupsDisjoint {
    fn name(&self) -> &'static str {
        "groups_disjoint"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        match group_word(what) {
            Some((_, GroupWord::Go(go))) => return self.runs(go),
            Some((_, GroupWord::Commit(commit))) => self.over(commit.step),
            None => {}
        }
        if let Happening::Effect(HeadEffect::RollBack(_)) = what {
            // Nothing that was told before counts, and groups are numbered anew.
            self.running.clear();
            self.of.clear();
            self.newest = 0;
        }
        if let Happening::Effect(HeadEffect::Joined(_, joined)) = what
            && joined.membership > self.membership
        {
            self.membership = joined.membership;
            self.running.clear();
            self.of.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{History, group_commit, group_go, holder, joined, plan};
    use super::*;

    #[test]
    fn a_worker_is_in_one_group_until_that_is_over() {
        let mut history = History::new(GroupsDisjoint::default());
        for effect in [group_go(0, 0, 1, &[0, 1]), group_go(1, 0, 1, &[0, 1]), group_go(2, 0, 2, &[2, 3])] {
            history.effect(&effect);
        }
        history.effect(&group_commit(0, 1, 1, &[0, 1])).effect(&group_go(1, 2, 3, &[1, 4])).holds();
        // The answer to an older question is repeated.
        history.effect(&group_go(0, 0, 1, &[0, 1])).holds();
        history.effect(&group_go(3, 2, 4, &[0, 3])).fails("worker-3#0 is in group 4 while it is in group 2");
    }

    #[test]
    fn when_all_meet_anew_groups_are_void() {
        let mut history = History::new(GroupsDisjoint::default());
        history.effect(&group_go(0, 0, 1, &[0, 1]));
        let members = [holder(0), holder(1)];
        let joined = HeadEffect::Joined(holder(0), joined(2, &members, plan(2, &[]), 0).into());
        history.effect(&joined).effect(&group_go(0, 2, 2, &[0, 1])).holds();
        history.effect(&group_go(1, 2, 2, &[1, 2])).fails("group 2 is of");
    }
}
