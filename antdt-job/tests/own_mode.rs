//! A property test of a sync mode of one's own, as the README shows it.

// README begin
use antdt_job::SyncMode;
use antdt_job::testing::{Invariants, history};
use proptest::prelude::*;

proptest! {
    #[test]
    fn my_mode_keeps_the_promises(history in history::any()) {
        let mode: SyncMode = "local-sgd=2".parse()?; // yours: SyncMode::new(MyMode)
        Invariants::all().check(&history, &mode)?;
    }
}
// README end
