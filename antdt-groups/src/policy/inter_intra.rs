//! The policy that averages across hosts first, then inside them.

use antdt_core::InvalidValue;

use super::{GroupPolicy, checked, cut};
use crate::draft::Draft;
use crate::message::GroupOrigin;

/// A group policy that divides all idle workers in two phases. In the first, one worker of each host averages
/// with those of the other hosts, one flow for each network card, while the others average with some of their
/// own host; in the second, each host averages as a whole. So every update is sent to each host once and
/// spread there.
///
/// A worker that is far behind most others drafts no other one that is: they may be fast workers of its host, which the
/// filter keeps from all others' groups once they are as far behind as it is, and which would keep its pace for good.
///
/// Source: Prague's smart group generator (recalled; the details are ours, and so is what laggards draft).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(alias = "smart")]
pub struct InterIntra {
    group_size: u32,
}

impl InterIntra {
    /// Returns the policy. In its first phase, the workers that stay inside their host average in groups of
    /// `group_size` members.
    ///
    /// # Errors
    /// If `group_size` is below 2.
    pub fn new(group_size: u32) -> Result<Self, InvalidValue> {
        Ok(Self { group_size: checked(group_size)? })
    }
}

impl GroupPolicy for InterIntra {
    fn name(&self) -> &'static str {
        "inter-intra"
    }

    fn group_size(&self) -> u32 {
        self.group_size
    }

    fn form(&mut self, draft: &mut Draft<'_>) {
        let mut idle = draft.idle();
        let initiator = draft.initiator();
        if draft.lags(initiator) {
            idle.retain(|candidate| *candidate == initiator || !draft.lags(*candidate));
        }
        draft.shuffle(&mut idle);
        // A stable sort: within a host the order stays random, so the first one is a random head.
        idle.sort_by_key(|candidate| candidate.host());
        let hosts: Vec<_> = idle.chunk_by(|a, b| a.host() == b.host()).collect();
        if hosts.len() > 1 {
            let heads: Vec<_> = hosts.iter().map(|host| host[0]).collect();
            draft.form(GroupOrigin::Inter, &heads);
            for host in &hosts {
                cut(draft, GroupOrigin::IntraPart, &host[1..], self.group_size);
            }
        }
        for host in &hosts {
            draft.form(GroupOrigin::IntraAll, host);
        }
    }

    fn clone_box(&self) -> Box<dyn GroupPolicy> {
        Box::new(*self)
    }
}
