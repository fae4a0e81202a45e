//! A property test of a sync mode of one's own, as the README shows it; and a mode that a program registers.

#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

use antdt_core::Capabilities;
use antdt_job::mode::{self, Entry, HeadHalf, Mode, WorkerHalf};
use antdt_job::testing::check_mode;

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

/// The mode `local-sgd` with the number of steps between two averages fixed at 3.
#[derive(Debug)]
struct EveryThird(SyncMode);

impl Mode for EveryThird {
    fn name(&self) -> &'static str {
        EVERY_THIRD.name
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn head(&self) -> Box<dyn HeadHalf> {
        self.0.head()
    }
    fn worker(&self) -> Box<dyn WorkerHalf> {
        self.0.worker()
    }
}

const EVERY_THIRD: Entry = Entry::new("every-third", "averages models every third step", |_| {
    Ok(SyncMode::new(EveryThird("local-sgd=3".parse()?)))
});

#[test]
fn a_registered_mode_is_parsed_listed_and_checked_like_one_that_ships() {
    assert!("every-third".parse::<SyncMode>().is_err());
    mode::REGISTRY.register(EVERY_THIRD).unwrap();
    let mine: SyncMode = "every-third".parse().unwrap();
    assert_eq!(mine.to_string(), "every-third");
    assert!(SyncMode::examples().contains(&mine) && SyncMode::default() != mine);
    assert!("every-third=2".parse::<SyncMode>().unwrap_err().to_string().contains("without `=`"));
    let near = "every-thrid".parse::<SyncMode>().unwrap_err().to_string();
    assert!(near.ends_with("ripples=POLICY, every-third; did you mean `every-third`?"), "{near}");
    check_mode(&mine).unwrap();
    let again = mode::REGISTRY.register(EVERY_THIRD).unwrap_err().to_string();
    assert_eq!(again, "sync mode = every-third: must be a name that no other sync mode has");
}
