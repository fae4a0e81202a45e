//! The hand-out order of an epoch is a permutation fixed by seed and epoch: of the waiting shards, a request gets
//! those that come first in it.

use std::collections::BTreeSet;

use antdt_core::{Epoch, Seed, ShardKey};

use crate::ledger::tests::cases::hand_out;
use crate::spec::{DatasetSpec, Epochs, Shuffle};

#[test]
fn each_epoch_is_handed_out_in_its_own_seeded_order() {
    let spec = DatasetSpec { epochs: Epochs::Finite(2), seed: Seed(5), ..DatasetSpec::new("d", 100, 3) };
    let keys = hand_out(spec.clone());
    assert_eq!(keys, hand_out(spec.clone()), "equal seeds give equal orders");
    assert_ne!(keys, hand_out(DatasetSpec { seed: Seed(6), ..spec.clone() }));
    let (first, second) = keys.split_at(34);
    assert!(first.iter().all(|key| key.epoch == Epoch(0)) && second.iter().all(|key| key.epoch == Epoch(1)));
    let indices = |keys: &[ShardKey]| keys.iter().map(|key| key.index).collect::<Vec<_>>();
    assert_ne!(indices(first), indices(second), "epochs differ");
    for pass in [first, second] {
        assert_eq!(indices(pass).into_iter().collect::<BTreeSet<_>>(), (0..34).collect());
    }
    let plain = hand_out(DatasetSpec { shuffle: Shuffle::None, ..spec });
    assert_eq!(indices(&plain), (0..34).chain(0..34).collect::<Vec<_>>());
}
