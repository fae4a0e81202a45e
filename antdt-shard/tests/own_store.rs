//! A property test of a store of one's own, as the README shows it.

// README begin
use antdt_shard::MemStore;
use antdt_shard::testing::{Invariants, history};
use proptest::prelude::*;

proptest! {
    #[test]
    fn my_store_keeps_the_promises(history in history::any()) {
        let disk = MemStore::default(); // yours: an empty folder, for each history a new one
        Invariants::all().check(&history, || disk.clone())?;
    }
}
// README end
