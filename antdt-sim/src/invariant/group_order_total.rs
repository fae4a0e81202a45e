//! Checks that groups which share workers run in the same order on all of them. Otherwise two members would
//! wait for each other for ever, or two averages that do not commute would be taken in different orders.
//!
//! The numbers of the groups that an incarnation of a worker enters grow, so two incarnations enter any two
//! common groups in the same order. The order of the groups that wait is checked where they are formed, in
//! the histories of `antdt_groups`.
//!
//! Source: the proof against deadlock in our design of partial all-reduce.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{Holder, JobTime, Rank};
use antdt_job::{Call, HeadEffect, Peers};

use super::Invariant;
use super::group_word::{GroupWord, group_word};
use crate::happening::Happening;

/// Groups whose members are remembered: a worker enters the newest one that it was told of.
const GROUPS_MAX: usize = 4096;

/// Checks that groups with common workers run in one order at all of them; see the [module](self).
#[derive(Debug, Default)]
pub struct GroupOrderTotal {
    /// All workers, by rank, as each life knows them.
    ranks: BTreeMap<Holder, Vec<Holder>>,
    /// The members of groups, as the master has said them.
    said: BTreeMap<u64, BTreeSet<Holder>>,
    /// The group that each life entered last.
    entered: BTreeMap<Holder, u64>,
}

impl GroupOrderTotal {
    fn enters(&mut self, holder: Holder, group: u64, ranks: &[Rank]) -> Result<(), String> {
        if let Some(before) = self.entered.insert(holder, group).filter(|before| *before >= group) {
            return Err(format!("{holder} enters group {group} after group {before}"));
        }
        let known = self.ranks.get(&holder).map(Vec::as_slice).unwrap_or_default();
        let of = |rank: &Rank| known.get(rank.0 as usize).copied();
        let Some(members) = ranks.iter().map(of).collect::<Option<BTreeSet<Holder>>>() else {
            return Err(format!("{holder} enters group {group} with ranks that nobody has: {ranks:?}"));
        };
        if !members.contains(&holder) {
            return Err(format!("{holder} enters group {group}, which is without it"));
        }
        match self.said.get(&group) {
            Some(said) if *said != members => {
                Err(format!("{holder} enters group {group} with {members:?}, and the master said {said:?}"))
            }
            _ => Ok(()),
        }
    }
}

impl Invariant for GroupOrderTotal {
    fn name(&self) -> &'static str {
        "group_order_total"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        if let Some((_, GroupWord::Go(go))) = group_word(what) {
            self.said.entry(go.step).or_insert_with(|| go.contributors.keys().copied().collect());
            if self.said.len() > GROUPS_MAX {
                self.said.pop_first();
            }
        }
        match what {
            Happening::Worker(holder, _, Call::Enter(joined)) => {
                let members = joined.members.iter().map(|(member, _)| *member).collect();
                self.ranks.insert(*holder, members);
            }
            Happening::Worker(holder, _, Call::Combine { peers: Peers::Apart { group, ranks }, .. }) => {
                return self.enters(*holder, *group, ranks);
            }
            // Groups are numbered anew.
            Happening::Effect(HeadEffect::RollBack(_)) => self.said.clear(),
            Happening::Died(holder) => {
                self.entered.remove(holder);
                self.ranks.remove(holder);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::Acks;
    use antdt_job::Reply;

    use super::super::testing::{History, group_go, holder, joined, plan};
    use super::*;

    fn enter(group: u64, ranks: &[u32]) -> Call {
        let ranks = ranks.iter().copied().map(Rank).collect();
        Call::Combine { step: 0, samples: 0, acks: Acks::new(), peers: Peers::Apart { group, ranks } }
    }

    fn of_three() -> History<GroupOrderTotal> {
        let mut history = History::new(GroupOrderTotal::default());
        let members = [holder(0), holder(1), holder(2)];
        for member in members {
            let joined = joined(1, &members, plan(1, &[]), 0);
            history.worker(member, &Reply::Entered, &Call::Enter(Box::new(joined)));
        }
        history
    }

    #[test]
    fn a_worker_enters_groups_in_the_order_of_their_numbers() {
        let mut history = of_three();
        for group in [1, 2, 4] {
            history.worker(holder(0), &Reply::Entered, &enter(group, &[0, 1]));
        }
        history.worker(holder(1), &Reply::Entered, &enter(2, &[0, 1])).holds();
        history.worker(holder(1), &Reply::Entered, &enter(1, &[0, 1]));
        history.fails("worker-1#0 enters group 1 after group 2");
    }

    #[test]
    fn all_members_mean_the_group_that_the_master_named() {
        let mut history = of_three();
        history.effect(&group_go(0, 0, 1, &[0, 2]));
        history.worker(holder(0), &Reply::Entered, &enter(1, &[0, 2])).holds();
        history.worker(holder(2), &Reply::Entered, &enter(1, &[1, 2])).fails("and the master said");
        of_three().worker(holder(2), &Reply::Entered, &enter(1, &[0, 1])).fails("without it");
        of_three().worker(holder(2), &Reply::Entered, &enter(1, &[2, 3])).fails("ranks that nobody has");
    }
}
