//! [`OpenPairs`]: pairs workers that look for a partner while they compute.
//!
//! Half of the workers are active, the others passive, as in [`Bipartite`](crate::Bipartite). A worker that asks is open until it is
//! paired or takes its question back. An active worker that seeks a partner gets one of the open passive ones, drawn evenly; if none
//! is open, it gets the next passive worker that asks. Only open workers are paired, so a pair can begin at once: no worker
//! waits until another one has computed.
//!
//! Each question costs O(workers that are open).
//!
//! Source: the two sides, the even draw and the passive side that answers at any time are those of AD-PSGD (Lian et al., 2018;
//! recalled). There a passive worker queues the active ones that call it while it averages; here it is not open then, so that they take another one.

use std::collections::BTreeMap;

use antdt_core::{DetRng, Holder, Seed};

/// Answer to a worker that asks for a partner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// The worker is paired with this one, which was open. Neither is open any more.
    With(Holder),
    /// No partner is open. The worker itself is open from now on, so that a later question can pair it.
    Open,
    /// The worker gets no partner and is not open.
    Alone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Member {
    is_active: bool,
    is_open: bool,
}

/// Pairs workers that look for a partner while they compute. See the [module](self).
#[derive(Debug, Clone)]
pub struct OpenPairs {
    members: BTreeMap<Holder, Member>,
    rng: DetRng,
}

impl OpenPairs {
    /// Returns the pairs of these workers, none of which is open. Every second one is active, in the order given, so
    /// that the passive side has as many or one more.
    pub fn new(members: impl IntoIterator<Item = Holder>, seed: Seed) -> Self {
        let member = |(at, holder): (usize, Holder)| {
            (holder, Member { is_active: !at.is_multiple_of(2), is_open: false })
        };
        Self {
            members: members.into_iter().enumerate().map(member).collect(),
            rng: seed.derive("pairs").rng(),
        }
    }

    /// Handles the question of a worker for a partner, which replaces an earlier question of that worker. The
    /// partner is drawn evenly from the open workers of the other side. If none is open, the worker is open
    /// from now on with `waits`, and stays without a partner otherwise. An active worker that asks without
    /// `seeks` gets no partner; for a passive worker `seeks` has no meaning.
    pub fn ask(&mut self, holder: Holder, seeks: bool, waits: bool) -> Pairing {
        let Some(me) = self.members.get_mut(&holder) else { return Pairing::Alone };
        me.is_open = false;
        let is_active = me.is_active;
        if is_active && !seeks {
            return Pairing::Alone;
        }
        let is_free = |(_, other): &(&Holder, &Member)| other.is_open && other.is_active != is_active;
        let free: Vec<Holder> = self.members.iter().filter(is_free).map(|(other, _)| *other).collect();
        if free.is_empty() {
            self.set_open(holder, waits);
            return if waits { Pairing::Open } else { Pairing::Alone };
        }
        let partner = free[self.rng.below(free.len() as u64) as usize];
        self.set_open(partner, false);
        Pairing::With(partner)
    }

    fn set_open(&mut self, holder: Holder, is_open: bool) {
        if let Some(member) = self.members.get_mut(&holder) {
            member.is_open = is_open;
        }
    }

    /// Makes no worker open any more: the caller has put all of them into another group.
    pub fn close(&mut self) {
        self.members.values_mut().for_each(|member| member.is_open = false);
    }

    /// Removes a worker, which is in no later pair. The other workers stay active or passive as they were.
    pub fn remove(&mut self, holder: Holder) {
        self.members.remove(&holder);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use antdt_core::{Incarnation, NodeId};
    use proptest::prelude::*;

    use super::*;

    fn holder(index: u32) -> Holder {
        Holder::new(NodeId::worker(index), Incarnation(0))
    }

    fn pairs(workers: u32, seed: u64) -> OpenPairs {
        OpenPairs::new((0..workers).map(holder), Seed(seed))
    }

    #[test]
    fn an_active_worker_takes_a_passive_one_that_is_open_and_waits_if_none_is() {
        let mut pairs = pairs(5, 0);
        assert_eq!(pairs.ask(holder(0), true, true), Pairing::Open);
        assert_eq!(pairs.ask(holder(2), true, true), Pairing::Open, "both are passive");
        assert_eq!(pairs.ask(holder(1), false, true), Pairing::Alone, "it has nothing to average");
        assert_eq!(pairs.ask(holder(2), true, false), Pairing::Alone, "it takes its question back");
        assert_eq!(pairs.ask(holder(1), true, true), Pairing::With(holder(0)));
        assert_eq!(pairs.ask(holder(3), true, true), Pairing::Open, "nobody is open any more");
        assert_eq!(pairs.ask(holder(3), true, false), Pairing::Alone);
        assert_eq!(pairs.ask(holder(1), true, true), Pairing::Open);
        assert_eq!(pairs.ask(holder(4), false, false), Pairing::With(holder(1)), "passive, it need not seek");
        assert_eq!(pairs.ask(holder(9), true, true), Pairing::Alone, "a stranger");
    }

    #[test]
    fn a_worker_in_another_group_or_gone_is_not_drawn() {
        let mut pairs = pairs(4, 0);
        assert_eq!(pairs.ask(holder(0), true, true), Pairing::Open);
        pairs.close();
        assert_eq!(pairs.ask(holder(1), true, false), Pairing::Alone);
        assert_eq!(pairs.ask(holder(0), true, true), Pairing::Open);
        pairs.remove(holder(0));
        assert_eq!(pairs.ask(holder(1), true, false), Pairing::Alone);
        assert_eq!(pairs.ask(holder(2), true, true), Pairing::Open, "it has kept its side");
        assert_eq!(pairs.ask(holder(1), true, false), Pairing::With(holder(2)));
    }

    #[test]
    fn open_passive_workers_are_drawn_evenly() {
        let mut drawn = [0_u32; 8];
        for seed in 0..3_000 {
            let mut pairs = pairs(8, seed);
            for passive in [0, 2, 4] {
                pairs.ask(holder(passive), true, true);
            }
            let Pairing::With(partner) = pairs.ask(holder(1), true, true) else { panic!("three are open") };
            drawn[partner.node.index as usize] += 1;
        }
        // Three times the deviation of an even draw.
        let near = |times: u32| (1_000 - 78..=1_000 + 78).contains(&times);
        assert!([0, 2, 4].iter().all(|at| near(drawn[*at])), "{drawn:?}");
    }

    proptest! {
        /// Against a plain list of those that are open.
        #[test]
        fn pairs_are_of_two_open_workers_of_two_sides_and_no_worker_is_open_beside_a_partner(
            workers in 1_u32..9,
            seed in any::<u64>(),
            questions in prop::collection::vec((0_u32..9, any::<bool>(), any::<bool>()), 0..60),
        ) {
            let mut pairs = pairs(workers, seed);
            let mut open = BTreeSet::new();
            for (index, seeks, waits) in questions {
                let (asks, is_active) = (holder(index), index % 2 == 1);
                open.remove(&asks);
                let others = |side: bool| move |other: &&Holder| (other.node.index % 2 == 1) != side;
                let free = open.iter().filter(others(is_active)).count();
                let may = index < workers && (!is_active || seeks);
                match pairs.ask(asks, seeks, waits) {
                    Pairing::With(partner) => {
                        prop_assert!(may && open.remove(&partner), "{asks} with {partner}, of {open:?}");
                        prop_assert_ne!(partner.node.index % 2, index % 2);
                    }
                    Pairing::Open => {
                        prop_assert!(may && waits && free == 0);
                        open.insert(asks);
                    }
                    Pairing::Alone => prop_assert!(!may || (!waits && free == 0)),
                }
            }
        }
    }
}
