//! I12: collectives that are composed of others give the same results.

use antdt_core::Rank;

use super::case::{cases, for_each, in_order, numbers};
use super::members::{AnyTransport, Make, PATIENT, on_all};
use crate::runtime::{Communicator, CopyRole, ScheduledCommunicator};
use crate::schedule::Choice;

/// Checks invariant I12: an all-reduce equals a reduce-scatter followed by an all-gather of the parts, and
/// gathering all operands and folding them in order, exactly for integers. A gather, an all-to-all and a
/// scatter move every block to where it belongs, a broadcast leaves the root's bytes everywhere, and a copy those of
/// one or several members with the ones that take them, from and to every root.
///
/// # Panics
/// If the invariant is broken.
pub fn i12_composition(make: &Make<'_>) {
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
            blocks(communicator, me, case.world, case.len % 1000 / 5);
        });
    });
    // Longer than what is passed on at a time.
    for world in [1, 2, 4, 7] {
        on_all(make(world).0, PATIENT, |me, communicator| blocks(communicator, me, world, 200_003));
    }
}

/// What `from` has for `to`: up to ten times `unit`, and nothing among them.
fn block(unit: usize, from: u32, to: u32) -> Vec<u8> {
    let len = (from as usize * 7 + to as usize * 3) % 11 * unit;
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (from * 16 + to) as u8).collect()
}

fn blocks(communicator: &mut ScheduledCommunicator<AnyTransport>, me: Rank, world: u32, unit: usize) {
    let ranks = || 0..world;
    let of = |from: u32| ranks().map(move |to| block(unit, from, to)).collect::<Vec<_>>();
    let received = communicator.all_to_all_v(&of(me.0)).expect("all members exchange");
    assert!(
        received == ranks().map(|from| block(unit, from, me.0)).collect::<Vec<_>>(),
        "rank {me} of {world}, {unit}"
    );
    let gathered = communicator.all_gather_v(&block(unit, me.0, 0)).expect("all members gather");
    let all: Vec<_> = ranks().map(|from| block(unit, from, 0)).collect();
    assert!(gathered == all, "rank {me} of {world}, {unit}");
    for root in ranks().map(Rank) {
        let here = communicator.gather_v(root, &block(unit, me.0, 0)).expect("all members give");
        assert!(
            here == if root == me { all.clone() } else { Vec::new() },
            "root {root}, rank {me} of {world}, {unit}"
        );
        let given = if root == me { of(me.0) } else { Vec::new() };
        let taken = communicator.scatter_v(root, &given).expect("all members take");
        assert!(taken == block(unit, root.0, me.0), "root {root}, rank {me} of {world}, {unit}");
        let mut bytes = block(unit, me.0, 0);
        communicator.broadcast(root, &mut bytes).expect("all members broadcast");
        assert!(bytes == all[root.0 as usize], "root {root}, rank {me} of {world}, {unit}");
        // The root takes, or gives as the only one, or with the ranks of its parity; others take, or have no part.
        for (of_root, of_parity, of_others) in
            [('G', 'G', 'T'), ('T', 'G', '-'), ('G', 'T', '-'), ('G', '-', 'T')]
        {
            let role = match (me.0 == root.0, me.0 % 2 == root.0 % 2) {
                (true, _) => of_root,
                (_, true) => of_parity,
                _ => of_others,
            };
            let given = &all[root.0 as usize];
            let mut into = vec![0; given.len()];
            let anybody = of_root == 'G' || (0..world).any(|rank| rank != root.0 && rank % 2 == root.0 % 2);
            let copied = communicator.copy(match role {
                'G' => CopyRole::Gives(given),
                'T' if anybody => CopyRole::Takes(&mut into),
                _ => CopyRole::Neither,
            });
            copied.expect("all members copy");
            assert!(
                role != 'T' || !anybody || into == *given,
                "copy, root {root}, rank {me} of {world}, {unit}"
            );
        }
    }
    communicator.barrier().expect("all members meet");
}
