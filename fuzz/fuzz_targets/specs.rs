//! The data sets whose bytes are read.

use antdt_core::Generation;
use antdt_shard::{Assignment, DatasetSpec, Epochs, LedgerSnapshot, OnQuarantine, Recovery, Shuffle};

/// One of a few data sets, small enough that a fuzzer finds its limits.
pub fn spec(choice: u8) -> DatasetSpec {
    let base = DatasetSpec {
        epochs: Epochs::Finite(3),
        epoch_overlap: 1,
        max_data_faults: 2,
        on_quarantine: OnQuarantine::Continue { max_samples: 1_000_000 },
        ..DatasetSpec::new("fuzz", 103, 10)
    };
    match choice % 4 {
        0 => base,
        1 => DatasetSpec { shuffle: Shuffle::None, epochs: Epochs::Infinite, ..base },
        2 => DatasetSpec { assignment: Assignment::Static { workers: 3 }, ..base },
        _ => DatasetSpec { max_data_faults: 1, num_samples: 20, ..base },
    }
}

/// The eight bytes that stand for the settings of a data set in all that is written of it.
pub fn fingerprint(spec: &DatasetSpec) -> [u8; 8] {
    let recovery = Recovery::new(spec.clone()).expect("a valid data set");
    recovery.snapshot().to_bytes()[6..14].try_into().expect("eight bytes")
}

/// What was read is a ledger that adds up, and goes on.
pub fn live(snapshot: &LedgerSnapshot, recovery: Recovery) {
    assert!(snapshot.counts().balance(), "{:?}", snapshot.counts());
    let Some(generation) = snapshot.generation().unwrap_or_default().0.checked_add(1) else { return };
    let ledger = recovery.finish(Generation(generation)).expect("a generation that is newer");
    assert!(ledger.counts().balance(), "{:?}", ledger.counts());
}
