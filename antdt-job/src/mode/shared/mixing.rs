//! What every mode that mixes models owes, for the tests of such modes.

use antdt_core::{Holder, Incarnation, NodeId, Rank};

use super::member::Partners;

/// So many members on one host.
pub(crate) fn one_host(world: u32) -> Vec<(Holder, String)> {
    hosts(world, 1)
}

/// So many members, spread over hosts in turn.
pub(crate) fn hosts(world: u32, hosts: u32) -> Vec<(Holder, String)> {
    let member = |index| {
        let address = format!("10.0.0.{}:{}", index % hosts, 1000 + index);
        (Holder::new(NodeId::worker(index), Incarnation(0)), address)
    };
    (0..world).map(member).collect()
}

/// Asserts what all modes that mix models owe: each member is a partner of its partners; partners are members, in order of rank; a member
/// of a group of several has another partner than itself; and the shares of each model in the averages add up to one.
pub(crate) fn keeps_the_mean(partners: &impl Partners, step: u64, members: &[(Holder, String)]) {
    let ranks = || (0..).map(Rank).take(members.len());
    let of: Vec<Vec<Rank>> = ranks().map(|me| partners.of(step, me, members)).collect();
    for (me, own) in ranks().zip(&of) {
        let what = || format!("{partners:?}, step {step}, rank {me} of {}: {own:?}", members.len());
        assert!(own.contains(&me) && own.is_sorted_by(|a, b| a < b), "{}", what());
        assert!(own.len() > 1 || members.len() == 1, "{}", what());
        assert!(own.iter().all(|peer| of[peer.0 as usize].contains(&me)), "{}", what());
        let share: f64 = own.iter().map(|peer| 1.0 / of[peer.0 as usize].len() as f64).sum();
        assert!((share - 1.0).abs() < 1e-9, "{}: {share}", what());
    }
}
