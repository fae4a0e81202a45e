//! I12: collectives that are made of others come to the same.

use antdt_core::Rank;

use super::case::{Case, cases, for_each, in_order, numbers};
use super::members::{Make, PATIENT, on_all};
use crate::runtime::transport::Transport;
use crate::runtime::{Communicator, ScheduledCommunicator};
use crate::schedule::Choice;

/// An all-reduce equals a reduce-scatter and an all-gather of the parts, and gathering all operands and folding them in
/// order, exactly for integers. A gather, an exchange of all with all and a scatter move every block to where it belongs,
/// and a broadcast leaves the root's bytes everywhere, from and to every root.
///
/// # Panics
/// If not.
pub fn i12_composition<T: Transport>(make: &impl Make<T>) {
    for_each(40, &cases(), |case| {
        let case = case.of_integers();
        let expected = in_order::<i64>(&case, numbers);
        on_all(make(case.world).0, PATIENT, |me, communicator| {
            let mine = numbers::<i64>(&case, me.0);
            for choice in Choice::ALL {
                let mut data = mine.clone();
                communicator.all_reduce_by(choice, &mut data, case.op).expect("all members reduce");
                assert_eq!(data, expected, "{choice}, rank {me}, {case:?}");
            }
            let part = communicator.reduce_scatter(&mine, case.op).expect("all members reduce");
            let parts = communicator.all_gather_v(bytemuck::cast_slice(&part)).expect("all members gather");
            assert!(
                parts.concat() == bytemuck::cast_slice::<i64, u8>(&expected),
                "in parts, rank {me}, {case:?}"
            );
            blocks(communicator, me, &case);
        });
    });
}

/// What `from` has for `to`: any length, and none among them.
fn block(case: &Case, from: u32, to: u32) -> Vec<u8> {
    let len = (from as usize * 7 + to as usize * 3) % 11 * (case.len % 1000) / 5;
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (from * 16 + to) as u8).collect()
}

fn blocks<T: Transport>(communicator: &mut ScheduledCommunicator<T>, me: Rank, case: &Case) {
    let ranks = || 0..case.world;
    let of = |from: u32| ranks().map(move |to| block(case, from, to)).collect::<Vec<_>>();
    let received = communicator.all_to_all_v(&of(me.0)).expect("all members exchange");
    assert!(
        received == ranks().map(|from| block(case, from, me.0)).collect::<Vec<_>>(),
        "rank {me}, {case:?}"
    );
    let gathered = communicator.all_gather_v(&block(case, me.0, 0)).expect("all members gather");
    let all: Vec<_> = ranks().map(|from| block(case, from, 0)).collect();
    assert!(gathered == all, "rank {me}, {case:?}");
    for root in ranks().map(Rank) {
        let here = communicator.gather_v(root, &block(case, me.0, 0)).expect("all members give");
        assert!(
            here == if root == me { all.clone() } else { Vec::new() },
            "root {root}, rank {me}, {case:?}"
        );
        let given = if root == me { of(me.0) } else { Vec::new() };
        let taken = communicator.scatter_v(root, &given).expect("all members take");
        assert!(taken == block(case, root.0, me.0), "root {root}, rank {me}, {case:?}");
        let mut bytes = block(case, me.0, 0);
        communicator.broadcast(root, &mut bytes).expect("all members broadcast");
        assert!(bytes == all[root.0 as usize], "root {root}, rank {me}, {case:?}");
    }
    communicator.barrier().expect("all members meet");
}
