//! A property test that finds a defect: the store forgets its last record when it is opened again. Shows what the reader of
//! a failure is told, and that the line which it prints plays the same history again.

use antdt_shard::testing::{Invariants, find_break, history};
use antdt_shard::{LedgerStore, MemStore, Record, RecoverError, Recovery};

/// The records of a service, but for the last.
struct Forgetful(MemStore);

impl LedgerStore for Forgetful {
    type Error = RecoverError;

    async fn load(&mut self, mut recovery: Recovery) -> Result<Recovery, RecoverError> {
        let records = self.0.records();
        for record in &records[..records.len().saturating_sub(1)] {
            recovery.apply(record)?;
        }
        Ok(recovery)
    }

    async fn append(&mut self, records: &[Record]) -> Result<(), RecoverError> {
        self.0.append(records).await
    }
}

fn main() {
    // What `proptest!` does, so that it can be shown outside of a test.
    let found = find_break(256, history::any(), |history| {
        let disk = MemStore::default();
        Invariants::all().check(history, || Forgetful(disk.clone()))
    });
    match found {
        Ok(()) => println!("nothing was found"),
        Err(violation) => println!("{violation}"),
    }
}
