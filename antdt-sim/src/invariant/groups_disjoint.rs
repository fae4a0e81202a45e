//! Groups that average at the same time have no worker in common: otherwise its model would be read for one average while it
//! is replaced by another. And the generator's locks say just that.
//!
//! Source: Ripples's lock vector (recalled).

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{Holder, JobTime, NodeId};
use antdt_groups::{GeneratorEffect, GeneratorEvent, GroupGenerator, GroupKey};

use super::Invariant;
use crate::happening::Happening;

/// Checks that groups that average at the same time have no worker in common; see the [module](self).
#[derive(Debug, Default)]
pub struct GroupsDisjoint {
    /// Members of each group that runs.
    running: BTreeMap<GroupKey, Box<[Holder]>>,
    /// The group that each node is in.
    of: BTreeMap<NodeId, GroupKey>,
    /// All nodes that ever took part.
    nodes: BTreeSet<NodeId>,
}

impl GroupsDisjoint {
    fn over(&mut self, group: GroupKey) {
        for member in self.running.remove(&group).unwrap_or_default() {
            self.of.remove(&member.node);
        }
    }

    fn locks(&self, generator: &GroupGenerator) -> Result<(), String> {
        for node in &self.nodes {
            let (locked, group) = (generator.is_locked(*node), self.of.get(node));
            match group {
                Some(group) if !locked => {
                    return Err(format!("{node} is in group {group}, and is not locked"));
                }
                None if locked => return Err(format!("{node} is locked, and in no group that runs")),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Invariant for GroupsDisjoint {
    fn name(&self) -> &'static str {
        "groups_disjoint"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        match what {
            Happening::Group(GeneratorEvent::Hello { holder, .. }, _) => {
                self.nodes.insert(holder.node);
            }
            Happening::GroupEffect(GeneratorEffect::Go { go, .. }) if !self.running.contains_key(&go.key) => {
                for member in &go.members {
                    if let Some(other) = self.of.insert(member.node, go.key) {
                        let group = go.key;
                        return Err(format!("{member} is in group {group} while it is in group {other}"));
                    }
                }
                self.running.insert(go.key, go.members.clone());
            }
            // The first word of its end is its end for all.
            Happening::GroupEffect(
                GeneratorEffect::Commit { group, .. } | GeneratorEffect::Abort { group, .. },
            ) => self.over(*group),
            Happening::Groups(generator) => return self.locks(generator),
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

    fn key(order: u64) -> GroupKey {
        GroupKey { order, attempt: 0 }
    }

    fn go(to: u32, order: u64, members: &[u32]) -> GeneratorEffect {
        let members = members.iter().map(|index| holder(*index)).collect();
        let (kind, deadline) = (GroupOrigin::Random, JobTime::NEVER);
        let go = Go { key: key(order), kind, membership: MembershipVersion(1), members, deadline };
        GeneratorEffect::Go { to: holder(to), request: 1, go: Arc::new(go), last: true }
    }

    #[test]
    fn a_worker_is_in_one_group_until_that_is_over() {
        let mut history = History::new(GroupsDisjoint::default());
        for effect in [go(0, 0, &[0, 1]), go(1, 0, &[0, 1]), go(2, 1, &[2, 3]), go(0, 0, &[0, 1])] {
            history.saw(&Happening::GroupEffect(&effect));
        }
        let over = GeneratorEffect::Commit { to: holder(0), group: key(0) };
        history.saw(&Happening::GroupEffect(&over)).saw(&Happening::GroupEffect(&go(1, 2, &[1, 4])));
        history.holds();
        history.saw(&Happening::GroupEffect(&go(3, 3, &[3, 0])));
        history.fails("worker-3#0 is in group 3.0 while it is in group 1.0");
    }
}
