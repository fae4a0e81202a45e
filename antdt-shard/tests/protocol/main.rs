//! Lease, ack, failover and restore as a protocol, taken through every order of its messages and faults.
//!
//! The service of the model is the real `ShardLedger`: it is given the events that production gives it, its records
//! make the journal, and what is left of that after a crash is what `Recovery` reads. The clients are small machines
//! that register, fetch, acknowledge, give back and fail. Between them a network loses, repeats, delays and
//! reorders; workers die and are declared dead, also when they are not; the service crashes and loses the end of its
//! journal; the ledger is set back to an old snapshot. Each fault happens as often as a world allows it.
//!
//! `witness.rs` hears every event with its answer and every record, believes neither, and says what was broken.
//!
//! What keeps the worlds small, and loses nothing: an answer that is late, and a call that is late while its client
//! lives, are a client that is slow, so they take no time here; what is late in the network are copies, last words of
//! the dead, and what the master says. A call that is lost was not made. A place that is down is one whose next life has
//! not spoken yet. A client that is told to wait asks again under the same number, which the ledger allows. And clients
//! differ in nothing but their number, so they begin in its order.
//!
//! The checker is `stateright`; a broken property is shown with the shortest way to it.

#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod client;
mod service;
mod witness;
mod world;

use std::thread::available_parallelism;

use antdt_shard::{DatasetSpec, Epochs, OnQuarantine, Shuffle};
use stateright::{Checker, CheckerBuilder, HasDiscoveries, Model, UniformChooser};

use service::Flaw;
use world::{Faults, ProtocolWorld};

fn spec(samples: u64) -> DatasetSpec {
    DatasetSpec {
        shuffle: Shuffle::None,
        max_leases_per_holder: 1,
        max_data_faults: 1,
        on_quarantine: OnQuarantine::Continue { max_samples: 100 },
        ..DatasetSpec::new("model", samples, 2)
    }
}

fn checker(world: ProtocolWorld) -> CheckerBuilder<ProtocolWorld> {
    world.checker().finish_when(HasDiscoveries::AnyFailures)
}

/// Goes through all of a world, the shortest histories first. The number of different states.
fn explore(what: &str, world: ProtocolWorld) -> usize {
    let threads = available_parallelism().map_or(1, Into::into);
    let checker = checker(world).threads(threads).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{what}: {states} states, {depth} steps deep");
    checker.assert_properties();
    states
}

/// Every kind of fault, whenever it can happen.
#[test]
fn two_clients_lose_nothing_under_any_one_fault() {
    let states = explore("2 shards of 2 samples, one fault", ProtocolWorld::new(spec(4), 2, Faults::once(1)));
    assert!(states > 5_000, "{states}");
}

/// Every two kinds of faults, whenever they can happen.
#[test]
fn two_clients_lose_nothing_under_any_two_faults() {
    let states =
        explore("shards of 2 and 1 samples, two faults", ProtocolWorld::new(spec(3), 2, Faults::once(2)));
    assert!(states > 50_000, "{states}");
}

/// Every kind of fault in one history, some twice: too much to go through, so histories are drawn.
#[test]
fn three_clients_lose_nothing_in_many_histories() {
    const STATES: usize = 60_000;
    let spec = DatasetSpec { epochs: Epochs::Finite(2), epoch_overlap: 1, ..spec(6) };
    let faults = Faults { losses: 2, repeats: 2, deaths: 2, ..Faults::once(10) };
    let checker = checker(ProtocolWorld::new(spec, 3, faults)).target_state_count(STATES);
    let checker = checker.spawn_simulation(7, UniformChooser).join();
    println!("3 shards of 2 samples in 2 epochs, ten faults: {} states", checker.state_count());
    checker.assert_properties();
}

/// A checker that finds nothing proves nothing: here the service, not the ledger, has a defect.
#[test]
fn a_planted_defect_is_found_with_the_way_to_it() {
    for flaw in
        [Flaw::AnswersBeforeItRecords, Flaw::TakesTheLeaseAsProofOfItsHolder, Flaw::KeepsNoGenerations]
    {
        let world = ProtocolWorld::new(spec(4), 2, Faults::once(3)).with(flaw);
        let checker = checker(world).spawn_bfs().join();
        let found = checker.discoveries();
        let failure = found
            .iter()
            .find(|(name, _)| checker.discovery_classification(name).to_string() == "counterexample");
        let (name, path) = failure.unwrap_or_else(|| panic!("{flaw:?} was not found"));
        println!("{flaw:?}: {name:?} is broken after {:?}", path.clone().into_actions());
    }
}
