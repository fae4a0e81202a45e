//! A property test of a policy of one's own, as the README shows it.

// README begin
use antdt_controller::policy::NonDedicated;
use antdt_controller::testing::{Invariants, history};
use proptest::prelude::*;

proptest! {
    #[test]
    fn my_policy_keeps_the_promises(history in history::any()) {
        let policy = NonDedicated::default(); // yours: any `Policy`
        Invariants::all().check(&history, policy)?;
    }
}
// README end
