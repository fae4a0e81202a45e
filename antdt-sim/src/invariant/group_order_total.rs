//! Groups that share workers run in one order at all of them. Otherwise two members wait for each other for ever, or two
//! averages that do not commute are taken in different orders.
//!
//! The buffers of the generator, and what each life enters, grow in (order, attempt); so any two groups that two lives enter
//! are entered in the same order by both.
//!
//! Source: the proof against deadlock in our design of partial all-reduce.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{Holder, JobTime, NodeId};
use antdt_groups::member::MemberEffect;
use antdt_groups::{GeneratorEvent, GroupGenerator, GroupKey};

use super::Invariant;
use crate::happening::Happening;

/// Checks that groups with common workers run in one order at all of them; see the [module](self).
#[derive(Debug, Default)]
pub struct GroupOrderTotal {
    nodes: BTreeSet<NodeId>,
    /// The group that each life entered last.
    entered: BTreeMap<Holder, GroupKey>,
}

impl GroupOrderTotal {
    fn buffers(&self, generator: &GroupGenerator) -> Result<(), String> {
        for node in &self.nodes {
            let mut before = None;
            for group in generator.buffer(*node) {
                if let Some(before) = before.filter(|before| *before >= group) {
                    return Err(format!("{node} is to run group {group} after group {before}"));
                }
                before = Some(group);
            }
        }
        Ok(())
    }
}

impl Invariant for GroupOrderTotal {
    fn name(&self) -> &'static str {
        "group_order_total"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        match what {
            Happening::Group(GeneratorEvent::Hello { holder, .. }, _) => {
                self.nodes.insert(holder.node);
            }
            Happening::Groups(generator) => return self.buffers(generator),
            Happening::Member(holder, MemberEffect::Reduce(go)) => {
                if let Some(before) = self.entered.insert(*holder, go.key).filter(|before| *before >= go.key)
                {
                    return Err(format!("{holder} enters group {} after group {before}", go.key));
                }
                if !go.members.contains(holder) {
                    return Err(format!("{holder} enters group {}, which is without it", go.key));
                }
            }
            Happening::Died(holder) => drop(self.entered.remove(holder)),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use antdt_core::MembershipVersion;
    use antdt_groups::{Go, GroupOrigin};

    use super::super::testing::{History, holder};
    use super::*;

    fn enter(order: u64, attempt: u32, members: &[u32]) -> MemberEffect {
        let members = members.iter().map(|index| holder(*index)).collect();
        let (key, kind) = (GroupKey { order, attempt }, GroupOrigin::Random);
        let (membership, deadline) = (MembershipVersion(1), JobTime::NEVER);
        MemberEffect::Reduce(Arc::new(Go { key, kind, membership, members, deadline }))
    }

    #[test]
    fn whoever_enters_groups_does_so_in_the_order_of_their_keys() {
        let mut history = History::new(GroupOrderTotal::default());
        for (order, attempt) in [(0, 0), (0, 1), (3, 0)] {
            history.saw(&Happening::Member(holder(0), &enter(order, attempt, &[0, 1])));
        }
        history.saw(&Happening::Member(holder(1), &enter(0, 1, &[0, 1]))).holds();
        history.saw(&Happening::Member(holder(1), &enter(0, 0, &[0, 1])));
        history.fails("worker-1#0 enters group 0.0 after group 0.1");
        let mut history = History::new(GroupOrderTotal::default());
        history.saw(&Happening::Member(holder(2), &enter(0, 0, &[0, 1]))).fails("without it");
    }
}
