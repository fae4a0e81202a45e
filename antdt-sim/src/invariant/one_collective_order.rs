//! Checks that all members of a group make the same collective calls in the same order: they agree on its
//! members, and the k-th call of each is the k-th call of all. Otherwise a collective library adds up what
//! does not belong together, or hangs.
//!
//! Source: the contract of MPI's collectives, which gloo and NCCL share.

use std::collections::{BTreeMap, VecDeque};

use antdt_core::{Holder, JobTime, MembershipVersion};
use antdt_job::{Call, Peers};

use super::Invariant;
use crate::happening::Happening;

/// Groups remembered: a straggler of an older one calls into the void.
const GROUPS_MAX: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    Combine(u64),
    Agree,
}

#[derive(Debug)]
struct SeenGroup {
    members: Vec<Holder>,
    /// Calls of each member.
    calls: BTreeMap<Holder, u64>,
    /// Calls that not all members have made, and how many have; the first is the `begin`-th of the group.
    open: VecDeque<(Made, usize)>,
    begin: u64,
}

/// Checks that all members of a group make the same collective calls in the same order; see the [module](self).
#[derive(Debug, Default)]
pub struct OneCollectiveOrder {
    groups: BTreeMap<MembershipVersion, SeenGroup>,
    of: BTreeMap<Holder, MembershipVersion>,
}

impl OneCollectiveOrder {
    fn called(&mut self, holder: Holder, made: Made) -> Result<(), String> {
        let Some(version) = self.of.get(&holder) else {
            return Err(format!("{holder} makes {made:?} in no group"));
        };
        let Some(group) = self.groups.get_mut(version) else { return Ok(()) };
        let count = group.calls.entry(holder).or_default();
        let place = usize::try_from(*count - group.begin).unwrap_or(usize::MAX);
        *count += 1;
        match group.open.get_mut(place) {
            Some((first, came)) if *first == made => *came += 1,
            Some((first, _)) => {
                let number = *count;
                return Err(format!(
                    "call {number} of {holder} in group {version} is {made:?}, that of others is {first:?}"
                ));
            }
            None => group.open.push_back((made, 1)),
        }
        while group.open.front().is_some_and(|(_, came)| *came == group.members.len()) {
            group.open.pop_front();
            group.begin += 1;
        }
        Ok(())
    }
}

impl Invariant for OneCollectiveOrder {
    fn name(&self) -> &'static str {
        "one_collective_order"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        match what {
            Happening::Worker(holder, _, Call::Enter(joined)) => {
                let version = joined.membership;
                let members: Vec<Holder> = joined.members.iter().map(|(member, _)| *member).collect();
                if !members.contains(holder) {
                    return Err(format!("{holder} enters group {version}, which is without it"));
                }
                self.of.insert(*holder, version);
                let new = || SeenGroup {
                    members: members.clone(),
                    calls: BTreeMap::new(),
                    open: VecDeque::new(),
                    begin: 0,
                };
                let known = &self.groups.entry(version).or_insert_with(new).members;
                if *known != members {
                    return Err(format!("group {version} is {members:?} for {holder}, {known:?} for others"));
                }
                while self.groups.len() > GROUPS_MAX {
                    self.groups.pop_first();
                }
                Ok(())
            }
            // Its members are at steps of their own.
            Happening::Worker(_, _, Call::Combine { peers: Peers::Apart { .. }, .. }) => Ok(()),
            Happening::Worker(holder, _, Call::Combine { step, .. }) => {
                self.called(*holder, Made::Combine(*step))
            }
            Happening::Worker(holder, _, Call::Agree(_)) => self.called(*holder, Made::Agree),
            Happening::Died(holder) => {
                self.of.remove(holder);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use antdt_collective::lanes::Lanes;
    use antdt_job::Reply;

    use super::super::testing::{History, holder, joined, plan};
    use super::*;

    fn combine(step: u64) -> Call {
        Call::Combine { step, samples: 1, acks: vec![].into(), peers: Peers::All }
    }

    fn in_a_group() -> History<OneCollectiveOrder> {
        let mut history = History::new(OneCollectiveOrder::default());
        let enter = Call::Enter(Box::new(joined(1, &[holder(0), holder(1)], plan(1, &[1, 1]), 0)));
        for who in [holder(0), holder(1)] {
            history.worker(who, &Reply::Applied, &enter);
        }
        history
    }

    #[test]
    fn the_same_calls_in_the_same_order() {
        let mut history = in_a_group();
        for step in 0..5 {
            for who in [holder(1), holder(0)] {
                history.worker(who, &Reply::Loaded, &combine(step));
                history.worker(who, &Reply::Loaded, &Call::Agree(Lanes::default()));
            }
        }
        history.holds();
        history.worker(holder(0), &Reply::Loaded, &combine(5)).holds();
        history.worker(holder(1), &Reply::Loaded, &Call::Agree(Lanes::default())).fails("is Agree");
    }

    #[test]
    fn another_step_or_another_group_is_another_call() {
        let mut history = in_a_group();
        history.worker(holder(0), &Reply::Loaded, &combine(0));
        history
            .worker(holder(1), &Reply::Loaded, &combine(1))
            .fails("is Combine(1), that of others is Combine(0)");
        let other = Call::Enter(Box::new(joined(1, &[holder(1), holder(2)], plan(1, &[1, 1]), 0)));
        in_a_group().worker(holder(2), &Reply::Applied, &other).fails("for others");
        in_a_group().worker(holder(3), &Reply::Loaded, &combine(0)).fails("in no group");
    }
}
