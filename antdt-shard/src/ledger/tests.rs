//! The ledger against the naive model, against invariants of its own, and in named cases.

/// Both ledgers side by side, and a book-keeper that trusts neither.
mod pair;

/// Named cases: what a reader may want to know.
mod cases;
/// The baseline without stealing.
mod fixed;
/// One regression for each defect seen in `DLRover` that can occur here.
mod regressions;

/// Random histories with adversarial clients.
mod histories;
/// Every history of small worlds.
mod worlds;
