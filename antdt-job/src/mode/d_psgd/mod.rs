//! The sync mode `d-psgd[=ring|exp]`: every worker trains a separate model, and averages it with fixed
//! neighbours in each step.
//!
//! A step of a worker is one step of its own optimizer, then the uniform mean of its model and those of its neighbours. On a `ring`
//! these are the ranks before and after it, in every step. On `exp` they are the ranks 1, 2, 4, ... places before and after it, one
//! distance in each step, so that each worker's progress reaches all in about `log2 n` steps instead of `n / 2`.
//!
//! The neighbours are a function of the step and of the group, and every member has as many as every other, so that the mean of all models
//! stays what it is in each averaging. When workers come or go, a new group is formed and the neighbours are those of the new ranks.
//!
//! All members agree on each step before they go on, in the second of two rounds. A worker that dies takes the step in
//! flight with it, or its neighbours have it.
//!
//! A step of a worker: `Load`, `Compute`, `Advance`, `Combine`, `Agree`, `Apply`, `Exchange`.
//!
//! Source: D-PSGD (Lian et al., 2017; recalled) and the exponential graph (Assran et al., 2019; recalled), here undirected, so that no
//! weights have to travel. That all agree on each step, and what a death means, is our design.

use std::fmt;

use antdt_core::{Capabilities, Holder, InvalidValue, Rank};

use super::shared::group::Group;
use super::shared::local_steps::LocalSteps;
use super::shared::member::{Member, Partners};
use super::{Entry, HeadHalf, Mode, SyncMode, WorkerHalf};

/// Entry of the sync mode `d-psgd` in the registry.
pub const ENTRY: Entry = Entry {
    name: "d-psgd",
    setting: Some("[GRAPH]"),
    about: "every worker trains a model of its own and averages it with fixed neighbours: ring (the default) or exp",
    example: "d-psgd=ring",
    parse,
};

fn parse(setting: Option<&str>) -> Result<SyncMode, InvalidValue> {
    let graph = match setting {
        None | Some("ring") => Graph::Ring,
        Some("exp") => Graph::Exponential,
        Some(other) => {
            let given = format!("{}={other}", ENTRY.name);
            return Err(InvalidValue::new("--sync", given, "d-psgd=ring or d-psgd=exp"));
        }
    };
    Ok(SyncMode::new(DPsgd { graph }))
}

/// Graph of the neighbours whose models a worker averages with its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Graph {
    /// The neighbours are the rank before and the rank after.
    Ring,
    /// The neighbours are the ranks a power of two before and after, with another power in each step.
    Exponential,
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ring => "ring",
            Self::Exponential => "exp",
        })
    }
}

impl Graph {
    /// Places between two neighbours in this step, in a group of `world` members.
    fn distance(self, step: u64, world: u32) -> u32 {
        match self {
            Self::Ring => 1,
            Self::Exponential => {
                // 1, 2, 4, ... up to half of the ring: beyond, neighbours are nearer on the other side.
                let distances = (world / 2).max(1).ilog2() + 1;
                1 << (step % u64::from(distances))
            }
        }
    }
}

/// The sync mode `d-psgd`: workers average their models with fixed neighbours. See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct DPsgd {
    /// Graph of the neighbours whose models a worker averages with its own.
    pub graph: Graph,
}

impl Partners for DPsgd {
    fn of(&self, step: u64, me: Rank, members: &[(Holder, String)]) -> Vec<Rank> {
        let world = u32::try_from(members.len()).expect("a group is smaller than 2^32");
        let distance = self.graph.distance(step, world) % world;
        let (before, after) = ((me.0 + (world - distance)) % world, (me.0 + distance) % world);
        let mut ranks = vec![Rank(before), me, Rank(after)];
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }
}

impl Mode for DPsgd {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn setting(&self) -> Option<String> {
        Some(self.graph.to_string())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::MIXED_IN_STEP
    }

    fn head(&self) -> Box<dyn HeadHalf> {
        Box::new(Group::default())
    }

    fn worker(&self) -> Box<dyn WorkerHalf> {
        Box::new(Member::mixing(LocalSteps::new(1), *self))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::mode::shared::mixing;

    #[test]
    fn the_ring_is_the_default_and_other_graphs_are_refused() {
        for (text, written) in
            [("d-psgd", "d-psgd=ring"), ("d-psgd=ring", "d-psgd=ring"), ("d-psgd=exp", "d-psgd=exp")]
        {
            assert_eq!(text.parse::<SyncMode>().unwrap().to_string(), written);
        }
        for wrong in ["d-psgd=", "d-psgd=4", "d-psgd=Ring", "d-psgd=ring=2"] {
            let error = wrong.parse::<SyncMode>().unwrap_err().to_string();
            assert_eq!(error, format!("--sync = {wrong}: must be d-psgd=ring or d-psgd=exp"));
        }
    }

    #[test]
    fn neighbours_are_mutual_and_the_mean_of_all_models_stays() {
        for graph in [Graph::Ring, Graph::Exponential] {
            for world in 1..20 {
                for step in 0..10 {
                    mixing::keeps_the_mean(&DPsgd { graph }, step, &mixing::one_host(world));
                }
            }
        }
    }

    #[test]
    fn on_the_exponential_graph_all_reach_all_in_the_logarithm_of_the_members() {
        for world in [2_u32, 3, 8, 16, 31] {
            let members = mixing::one_host(world);
            let partners = DPsgd { graph: Graph::Exponential };
            let steps = u64::from((world / 2).max(1).ilog2() + 1);
            let mut known: Vec<BTreeSet<u32>> = (0..world).map(|rank| BTreeSet::from([rank])).collect();
            for step in 0..steps {
                let before = known.clone();
                for (rank, known) in (0..).zip(known.iter_mut()) {
                    let of = partners.of(step, Rank(rank), &members);
                    *known = of.iter().flat_map(|peer| before[peer.0 as usize].clone()).collect();
                }
            }
            assert!(known.iter().all(|known| known.len() == world as usize), "{world}: {known:?}");
        }
    }
}
