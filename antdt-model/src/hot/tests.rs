use std::collections::{BTreeMap, BTreeSet};

use antdt_core::Seed;
use proptest::prelude::*;

use super::*;

const ROWS: u64 = 24;

/// What befalls a table.
#[derive(Debug, Clone)]
enum Event {
    /// A batch touches rows, and a step changes some rows, of this batch or of others.
    Batch(BTreeSet<u64>, BTreeSet<u64>),
    /// The host reads rows.
    Read(BTreeSet<u64>),
    /// The host reads all rows.
    ReadAll,
}

fn rows() -> impl Strategy<Value = BTreeSet<u64>> {
    // Low rows come more often.
    let row = (0..ROWS, 0..ROWS).prop_map(|(a, b)| a.min(b));
    proptest::collection::btree_set(row, 0..12)
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (rows(), rows()).prop_map(|(touched, changed)| Event::Batch(touched, changed)),
        1 => rows().prop_map(Event::Read),
        1 => Just(Event::ReadAll),
    ]
}

/// A table and a memory whose values are the numbers of the changes, beside the newest value of each row.
#[derive(Debug, Default)]
struct World {
    table: BTreeMap<u64, u64>,
    memory: BTreeMap<u32, u64>,
    newest: BTreeMap<u64, u64>,
    changes: u64,
}

impl World {
    fn back(&mut self, out: &[Hot]) {
        for Hot { row, slot } in out {
            self.table.insert(*row, self.memory[slot]);
        }
    }

    fn of_table(&self, row: u64) -> u64 {
        self.table.get(&row).copied().unwrap_or(0)
    }

    fn newest(&self, row: u64) -> u64 {
        self.newest.get(&row).copied().unwrap_or(0)
    }
}

proptest! {
    #[test]
    fn every_row_is_read_as_it_was_changed_last_wherever_it_lies(
        slots in 0_u32..9, events in proptest::collection::vec(event(), 1..60)
    ) {
        let mut hot = HotRows::new(ROWS as usize, slots);
        let mut world = World::default();
        for event in events {
            match event {
                Event::Batch(touched, changed) => {
                    let rows: Vec<u64> = touched.into_iter().collect();
                    let before: Vec<Option<u32>> = rows.iter().map(|row| hot.slot(*row)).collect();
                    let moves = hot.touch(&rows);
                    world.back(&moves.out);
                    for Hot { row, slot } in &moves.into {
                        world.memory.insert(*slot, world.of_table(*row));
                    }
                    for ((row, place), before) in rows.iter().zip(&moves.places).zip(before) {
                        prop_assert_eq!(hot.slot(*row), *place);
                        prop_assert!(before.is_none() || before == *place, "a hot row keeps its slot");
                        let value = place.map_or_else(|| world.of_table(*row), |slot| world.memory[&slot]);
                        prop_assert_eq!(value, world.newest(*row));
                    }
                    // The sums of all workers are of other rows, too.
                    let changed: Vec<u64> = changed.into_iter().collect();
                    for row in &changed {
                        world.changes += 1;
                        world.newest.insert(*row, world.changes);
                        match hot.slot(*row) {
                            Some(slot) => world.memory.insert(slot, world.changes),
                            None => world.table.insert(*row, world.changes),
                        };
                    }
                    hot.change(&changed);
                }
                Event::Read(rows) => {
                    let rows: Vec<u64> = rows.into_iter().collect();
                    let out = hot.write_back(&rows);
                    world.back(&out);
                    for row in rows {
                        prop_assert_eq!(world.of_table(row), world.newest(row));
                    }
                }
                Event::ReadAll => {
                    let out = hot.write_back_all();
                    prop_assert!(out.is_sorted());
                    world.back(&out);
                    for row in 0..ROWS {
                        prop_assert_eq!(world.of_table(row), world.newest(row));
                    }
                    prop_assert_eq!(hot.write_back_all(), []);
                }
            }
            let taken: BTreeSet<u32> = (0..ROWS).filter_map(|row| hot.slot(row)).collect();
            let rows = (0..ROWS).filter(|row| hot.slot(*row).is_some()).count();
            prop_assert_eq!(taken.len(), rows, "no two rows share a slot");
            prop_assert_eq!(rows, hot.len());
            prop_assert!(taken.iter().all(|slot| *slot < slots));
        }
    }
}

#[test]
fn a_row_that_does_not_fit_is_a_guest_and_moves_nothing() {
    let mut hot = HotRows::new(10, 2);
    assert!(hot.is_empty());
    let moves = hot.touch(&[1, 2, 3]);
    assert_eq!(moves.places, [Some(0), Some(1), None], "the batch itself keeps both slots");
    assert_eq!(moves.into, [Hot { row: 1, slot: 0 }, Hot { row: 2, slot: 1 }]);
    assert_eq!((moves.out.len(), hot.len()), (0, 2));
    // Row 4 comes once, as row 1 did.
    assert_eq!(hot.touch(&[4]).places, [None]);
}

#[test]
fn a_row_that_is_touched_more_often_takes_the_slot_and_the_changed_one_goes_out() {
    let mut hot = HotRows::new(10, 1);
    hot.touch(&[1]);
    hot.change(&[1, 5]);
    assert_eq!(hot.touch(&[2]).places, [None], "as often");
    let moves = hot.touch(&[2]);
    assert_eq!((moves.places, moves.out), (vec![Some(0)], vec![Hot { row: 1, slot: 0 }]));
    assert_eq!(moves.into, [Hot { row: 2, slot: 0 }]);
    assert_eq!(hot.write_back_all(), [], "row 2 is as it is in the table");
}

#[test]
fn touches_count_half_after_eight_rounds_of_the_hand() {
    let mut hot = HotRows::new(20, 1);
    for _ in 0..3 {
        hot.touch(&[1]);
    }
    // Each of these is a round: row 1 counts 3 in the first eight, then 1, then nothing.
    let rounds = (2..19).position(|row| hot.touch(&[row]).places == [Some(0)]);
    assert_eq!(rounds, Some(16));
}

#[test]
fn rows_that_come_once_do_not_move_those_that_come_often() {
    const ALL: usize = 100_000;
    let mut hot = HotRows::new(ALL, 100);
    let often: Vec<u64> = (0..100).collect();
    for _ in 0..4 {
        hot.touch(&often);
    }
    let mut once = 1000..;
    for _ in 0..50 {
        let batch: Vec<u64> = (0..50).chain(once.by_ref().take(500)).collect();
        let moves = hot.touch(&batch);
        assert!(moves.places[..50].iter().all(Option::is_some));
    }
}

// A table as click models have them: the touches of a row fall with its rank. The best that any rule can do without knowing the
// future is to keep the rows of the first ranks.
#[test]
fn of_rows_whose_use_falls_with_their_rank_most_touches_are_of_hot_ones() {
    const ALL: u64 = 50_000;
    const SLOTS: u32 = 2_000;
    let mut hot = HotRows::new(ALL as usize, SLOTS);
    let mut rng = Seed(4).rng();
    // The logarithm of the rank is even: its use falls as 1 / rank. Ranks change places halfway.
    let mut draw = |half: bool| {
        let rank = (rng.unit() * (ALL as f64).ln()).exp() as u64 % ALL;
        if half { (rank * 7919 + 13) % ALL } else { rank }
    };
    let (mut hits, mut best, mut touches) = (0, 0, 0);
    for batch in 0..400 {
        let half = batch >= 200;
        let drawn: BTreeSet<u64> = (0..1_500).map(|_| draw(half)).collect();
        let first: BTreeSet<u64> =
            (0..u64::from(SLOTS)).map(|rank| if half { (rank * 7919 + 13) % ALL } else { rank }).collect();
        let rows: Vec<u64> = drawn.iter().copied().collect();
        let before = rows.iter().filter(|row| hot.slot(**row).is_some()).count();
        let moves = hot.touch(&rows);
        // After each change of use there is a time to learn.
        if batch % 200 >= 60 {
            hits += before;
            best += drawn.intersection(&first).count();
            touches += rows.len();
        }
        assert!(moves.into.len() <= rows.len());
    }
    println!("{hits} of {touches} touches hit, at best {best}");
    assert!(hits * 10 >= best * 9, "{hits} of {touches} touches hit, at best {best}");
}
