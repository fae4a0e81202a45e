//! The average of a group is taken over by all of its members, or by none: it is committed when all have reported it, no member
//! takes over what is not committed, and what is committed is not aborted.
//!
//! Source: the atomicity that aborted averages need, our design.

use std::collections::{BTreeMap, BTreeSet};

use antdt_core::{Holder, JobTime};
use antdt_groups::member::MemberEffect;
use antdt_groups::message::ReduceOutcome;
use antdt_groups::{GeneratorEffect, GeneratorEvent, GroupDecision, GroupKey};

use super::Invariant;
use crate::happening::Happening;

#[derive(Debug, Default)]
struct SeenGroup {
    members: BTreeSet<Holder>,
    reported: BTreeSet<Holder>,
    decision: Option<GroupDecision>,
}

/// Checks that all members of a group take its average over, or none; see the [module](self).
#[derive(Debug, Default)]
pub struct GroupCountsForAll {
    groups: BTreeMap<GroupKey, SeenGroup>,
}

impl GroupCountsForAll {
    fn ends(&mut self, group: GroupKey, decision: GroupDecision) -> Result<(), String> {
        let known = self.groups.entry(group).or_default();
        match known.decision.replace(decision) {
            Some(before) if before != decision => {
                return Err(format!("group {group} ends twice, by {before:?}"));
            }
            Some(_) => return Ok(()),
            None => {}
        }
        let missing = known.members.difference(&known.reported).next();
        match missing.filter(|_| decision == GroupDecision::Commit) {
            Some(member) => Err(format!("group {group} is committed, and {member} has not reported it")),
            None => Ok(()),
        }
    }
}

impl Invariant for GroupCountsForAll {
    fn name(&self) -> &'static str {
        "group_counts_for_all"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        match what {
            Happening::GroupEffect(GeneratorEffect::Go { go, .. }) => {
                let known = self.groups.entry(go.key).or_default();
                known.members.extend(go.members.iter().copied());
                Ok(())
            }
            Happening::Group(
                GeneratorEvent::Done { holder, group, outcome: ReduceOutcome::Reduced },
                Ok(_),
            ) => {
                self.groups.entry(*group).or_default().reported.insert(*holder);
                Ok(())
            }
            Happening::GroupEffect(GeneratorEffect::Commit { group, .. }) => {
                self.ends(*group, GroupDecision::Commit)
            }
            Happening::GroupEffect(GeneratorEffect::Abort { group, .. }) => {
                self.ends(*group, GroupDecision::Abort)
            }
            Happening::Member(holder, MemberEffect::Apply(group)) => {
                match self.groups.get(group).and_then(|group| group.decision) {
                    Some(GroupDecision::Commit) => Ok(()),
                    other => Err(format!("{holder} takes over group {group}, which ended by {other:?}")),
                }
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use antdt_core::MembershipVersion;
    use antdt_groups::{Go, GroupOrigin, Taken};

    use super::super::testing::{History, holder};
    use super::*;

    const KEY: GroupKey = GroupKey { order: 4, attempt: 1 };

    fn begun(reported: &[u32]) -> History<GroupCountsForAll> {
        let mut history = History::new(GroupCountsForAll::default());
        let go = Arc::new(Go {
            key: KEY,
            kind: GroupOrigin::Random,
            membership: MembershipVersion(1),
            members: Box::new([holder(0), holder(1)]),
            deadline: JobTime::NEVER,
        });
        let go = GeneratorEffect::Go { to: holder(0), request: 1, go, last: true };
        history.saw(&Happening::GroupEffect(&go));
        for index in reported {
            let (holder, outcome) = (holder(*index), ReduceOutcome::Reduced);
            let done = GeneratorEvent::Done { holder, group: KEY, outcome };
            history.saw(&Happening::Group(&done, &Ok(Taken::New)));
        }
        history
    }

    #[test]
    fn what_all_have_reported_is_committed_and_taken_over() {
        let (commit, apply) =
            (GeneratorEffect::Commit { to: holder(0), group: KEY }, MemberEffect::Apply(KEY));
        let mut history = begun(&[0, 1]);
        history.saw(&Happening::GroupEffect(&commit)).saw(&Happening::Member(holder(1), &apply)).holds();
        let abort = GeneratorEffect::Abort { to: holder(0), group: KEY, culprit: None };
        history.saw(&Happening::GroupEffect(&abort)).fails("group 4.1 ends twice");
        begun(&[1]).saw(&Happening::GroupEffect(&commit)).fails("worker-0#0 has not reported it");
        begun(&[0, 1]).saw(&Happening::Member(holder(1), &apply)).fails("takes over group 4.1");
    }
}
