//! Checks that a shard is in one state: waiting, held by one incarnation, done, or given up. A granted shard
//! is a whole shard of the data set, under a lease with a new id, and its worker holds fewer leases than its
//! limit.
//!
//! Source: `AntDT`'s three states of a shard, TODO, DOING and DONE; exclusive leases and their cap are our design.

use std::collections::BTreeMap;

use antdt_core::{JobTime, LeaseId, ShardKey};
use antdt_shard::{DatasetSpec, Epochs};

use super::Invariant;
use super::leases::{Leases, Move, Progress, shard};
use crate::happening::Happening;

/// Checks that every shard is in exactly one state; see the [module](self).
#[derive(Debug)]
pub struct ShardsPartition {
    spec: DatasetSpec,
    leases: Leases,
    progress: Progress,
    out: BTreeMap<ShardKey, LeaseId>,
    newest: Option<LeaseId>,
}

impl ShardsPartition {
    /// Returns the invariant for a ledger of this data set.
    pub fn new(spec: &DatasetSpec) -> Self {
        Self {
            spec: spec.clone(),
            leases: Leases::default(),
            progress: Progress::new(spec),
            out: BTreeMap::new(),
            newest: None,
        }
    }
}

impl Invariant for ShardsPartition {
    fn name(&self) -> &'static str {
        "shards_partition"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        self.progress.saw(what)?;
        let cap = self.spec.max_leases_per_holder as usize;
        let mut granted_to = None;
        for moved in self.leases.saw(what) {
            match *moved {
                Move::Ended(lease, _) => {
                    self.out.remove(&lease.grant.key);
                }
                Move::Granted(holder, grant) => {
                    let (key, id) = (grant.key, grant.lease);
                    if self.newest.is_some_and(|newest| id <= newest) {
                        return Err(format!("{holder} is granted lease {id}, a name that was used before"));
                    }
                    self.newest = Some(id);
                    let known = matches!(self.spec.epochs, Epochs::Infinite)
                        || matches!(self.spec.epochs, Epochs::Finite(epochs) if key.epoch.0 < epochs);
                    let range = self.spec.shard(key.index);
                    if !known || range.is_empty() || (grant.start, grant.len) != (range.start, range.len()) {
                        return Err(format!(
                            "{holder} is granted {} with {} samples from {}, which is no shard of the data set",
                            shard(key),
                            grant.len,
                            grant.start
                        ));
                    }
                    if let Some(other) = self.out.insert(key, id) {
                        return Err(format!(
                            "{} is granted to {holder} while lease {other} on it lives",
                            shard(key)
                        ));
                    }
                    if self.progress.is_given_up(key) || grant.resume_at >= grant.len {
                        return Err(format!("{} is granted to {holder}: nothing is left of it", shard(key)));
                    }
                    granted_to = Some(holder);
                }
                Move::Odd(..) => {}
            }
        }
        if let Some(holder) = granted_to.filter(|holder| self.leases.held(holder.node) > cap) {
            return Err(format!("{holder} has {} leases of {cap}", self.leases.held(holder.node)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{History, grant, holder, spec};
    use super::*;

    #[test]
    fn a_shard_may_be_granted_again_when_its_holder_has_ended_and_not_before() {
        let (one, two) = (holder(0), holder(1));
        let mut history = History::new(ShardsPartition::new(&spec()));
        history.generation(1);
        history.register(one).register(two);
        history.granted(one, 1, &[grant(1, 0, 0)]);
        history.granted(one, 1, &[grant(1, 0, 0)]);
        history.lost(one);
        history.granted(two, 1, &[grant(2, 0, 0)]).holds();
        history.granted(holder(2), 1, &[grant(3, 0, 0)]).fails("while lease 1.2 on it lives");
    }

    #[test]
    fn a_name_is_used_once_and_the_cap_is_kept() {
        let mut history = History::new(ShardsPartition::new(&spec()));
        history.generation(1);
        history.granted(holder(0), 1, &[grant(1, 0, 0), grant(2, 1, 0)]).holds();
        history.granted(holder(0), 2, &[grant(3, 2, 0)]).fails("has 3 leases of 2");
        let mut history = History::new(ShardsPartition::new(&spec()));
        history.granted(holder(0), 1, &[grant(2, 0, 0)]);
        history.granted(holder(1), 1, &[grant(1, 1, 0)]).fails("a name that was used before");
        let mut history = History::new(ShardsPartition::new(&spec()));
        history.granted(holder(0), 1, &[grant(2, 77, 0)]).fails("no shard of the data set");
    }
}
