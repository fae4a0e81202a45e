//! The ledger against the naive model, against invariants of its own, and in named cases.
//!
//! Everything that happens to a ledger is a `Call`. The model of `testing` answers it first: a naive ledger, and a
//! book-keeper who trusts neither. Then the [`Real`](real::Real) one is told; all invariants of `testing` are checked, and
//! what only this crate sees.

mod inside;
mod pair;
mod real;

/// One file for each invariant that has cases of its own, beside its check in `testing::invariant`.
mod invariants;

/// Named cases: what a reader may want to know.
mod cases;
/// Several shards in one call, recall, adoption, cuts.
mod elastic;
/// The baseline without stealing.
mod fixed;
/// One regression for each defect seen in `DLRover` that can occur here.
mod regressions;
/// Cases that the mutants asked for.
mod survivors;

/// Random histories with adversarial clients.
mod histories;
/// Honest clients, and a network between them and the ledger that loses, repeats and reorders.
mod network;
/// Every history of small worlds.
mod worlds;
