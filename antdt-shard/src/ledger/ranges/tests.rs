use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use antdt_core::Seed;

use super::bits::{Bits, WINDOW};
use super::chunk::{Chunk, Form, RUNS_MAX, RUNS_MIN, window};
use super::*;

type Naive = BTreeSet<u64>;

fn numbers(set: &RangeSet) -> impl Iterator<Item = u64> {
    set.runs().flat_map(|(start, end)| start..end)
}

fn count_bits(set: &RangeSet) -> usize {
    set.chunks.iter().filter(|chunk| matches!(chunk.form, Form::Bits(_))).count()
}

/// Everything that a set must be, seen from outside and from inside.
fn check(set: &RangeSet, naive: &Naive) {
    assert!(numbers(set).eq(naive.iter().copied()));
    assert_eq!((set.len(), set.is_empty()), (naive.len() as u64, naive.is_empty()));
    assert_eq!(set.first(), naive.first().copied());
    let runs: Vec<(u64, u64)> = set.runs().collect();
    assert!(runs.windows(2).all(|w| w[0].1 < w[1].0), "runs touch: {runs:?}");
    assert_eq!(set.run_count(), runs.len());

    let chunks: Vec<&Chunk> = set.chunks.iter().collect();
    for (index, chunk) in chunks.iter().enumerate() {
        assert_eq!(chunk.start % WINDOW, 0);
        let parts: Vec<(u64, u64)> = chunk.runs().collect();
        assert!(parts.windows(2).all(|w| w[0].1 < w[1].0), "runs of a chunk touch: {parts:?}");
        let end = chunks.get(index + 1).map_or(u64::MAX, |next| next.start);
        assert!(!parts.is_empty() && parts[0].0 >= chunk.start && parts[parts.len() - 1].1 <= end);
        assert_eq!((chunk.first(), chunk.end()), (Some(parts[0].0), Some(parts[parts.len() - 1].1)));
        match &chunk.form {
            Form::Runs(runs) => {
                assert!(runs.len() < RUNS_MAX && runs.capacity() <= RUNS_MAX);
                if let Some(Chunk { form: Form::Runs(next), .. }) = chunks.get(index + 1) {
                    assert!(runs.len() + next.len() > RUNS_MIN, "two chunks where one would do");
                }
            }
            Form::Bits(bits) => {
                assert!(bits.run_count() >= RUNS_MIN && bits.run_count() == parts.len());
                assert!(parts[parts.len() - 1].1 - chunk.start <= WINDOW);
            }
        }
    }

    let mut rebuilt = RangeSet::default();
    assert!(runs.iter().all(|(start, end)| rebuilt.push(*start, *end)));
    assert_eq!(&rebuilt, set);
}

/// One random change of both, in `base..base + span`; `keep` of 8 of the changes put in what is not there.
fn change(
    set: &mut RangeSet,
    naive: &mut Naive,
    rng: &mut antdt_core::DetRng,
    (base, span): (u64, u64),
    keep: u64,
) {
    let number = base + rng.below(span);
    let there = naive.contains(&number);
    assert_eq!(set.contains(number), there);
    if rng.below(64) == 0 {
        assert_eq!(set.pop_first(), naive.pop_first());
    } else if rng.below(8) >= keep {
        assert_eq!(set.remove(number), there);
        assert!(!set.remove(number));
        naive.remove(&number);
    } else if !there {
        set.insert(number);
        naive.insert(number);
    }
    assert_eq!((set.len(), set.first()), (naive.len() as u64, naive.first().copied()));
}

#[test]
fn a_range_set_is_a_set() {
    let mut rng = Seed(1).rng();
    for len in 1..40 {
        let mut set = RangeSet::of(0, len);
        let mut naive: Naive = (0..len).collect();
        for _ in 0..400 {
            change(&mut set, &mut naive, &mut rng, (0, len), 4);
            assert!((0..=len).all(|n| set.contains(n) == naive.contains(&n)));
            check(&set, &naive);
        }
    }
}

#[test]
fn every_change_of_every_small_set_is_right_wherever_it_lies() {
    const SPAN: u64 = 6;
    for base in [0, WINDOW - 3, 5 * WINDOW - 2, u64::MAX - SPAN] {
        for members in 0_u64..1 << SPAN {
            let naive: Naive = (0..SPAN).filter(|n| members >> n & 1 == 1).map(|n| base + n).collect();
            let mut set = RangeSet::default();
            for number in &naive {
                // A run for each number where they do not touch; single numbers otherwise.
                if !set.push(*number, number + 1) {
                    set.insert(*number);
                }
            }
            check(&set, &naive);
            for number in base..base + SPAN {
                let (mut other, mut other_naive) = (set.clone(), naive.clone());
                if other_naive.insert(number) {
                    assert!(!other.remove(number));
                    other.insert(number);
                } else {
                    assert!(other.remove(number) && other_naive.remove(&number));
                }
                check(&other, &other_naive);
                assert_ne!(other, set);
            }
            let (mut other, mut other_naive) = (set.clone(), naive.clone());
            assert_eq!(other.pop_first(), other_naive.pop_first());
            check(&other, &other_naive);
            check(&set, &naive);
            for (start, end) in (base..=base + SPAN).flat_map(|s| (base..=base + SPAN).map(move |e| (s, e))) {
                let (mut other, mut other_naive) = (set.clone(), naive.clone());
                let fits = start < end && naive.last().is_none_or(|last| last + 1 < start);
                assert_eq!(other.push(start, end), fits);
                other_naive.extend((start..end).filter(|_| fits));
                check(&other, &other_naive);
            }
        }
    }
}

#[test]
fn a_set_full_of_holes_is_a_set_and_its_copies_never_change() {
    let mut rng = Seed(2).rng();
    for (base, windows) in [(WINDOW / 2, 2), (u64::MAX - WINDOW, 1)] {
        let span = windows * WINDOW;
        let mut set = RangeSet::of(base, base + span);
        let mut naive: Naive = (base..base + span).collect();
        let mut copies: VecDeque<(RangeSet, Naive)> = VecDeque::new();
        let mut most_bits = 0;
        // Emptied, filled again, and emptied to the last: through all forms of a chunk, in both directions.
        for keep in [0, 3, 6, 8, 1, 0] {
            for _ in 0..2 {
                for _ in 0..span / 2 {
                    change(&mut set, &mut naive, &mut rng, (base, span), keep);
                }
                check(&set, &naive);
                most_bits = most_bits.max(count_bits(&set));
                copies.push_back((set.clone(), naive.clone()));
                if copies.len() > 2 {
                    let (copy, was) = copies.pop_front().unwrap();
                    check(&copy, &was);
                }
            }
        }
        assert!(most_bits >= usize::try_from(windows).unwrap(), "it was to become bits");
        while let Some(first) = set.pop_first() {
            assert_eq!(Some(first), naive.pop_first());
        }
        check(&set, &naive);
        assert_eq!(set.chunks.len(), 0);
        copies.iter().for_each(|(copy, was)| check(copy, was));
    }
}

#[test]
fn few_holes_anywhere_in_a_large_set_stay_runs_and_are_closed_again() {
    let end = 10_u64.pow(12);
    let mut rng = Seed(3).rng();
    let mut set = RangeSet::of(0, end);
    let mut holes = Naive::new();
    for _ in 0..20_000 {
        let number = rng.below(end);
        assert_eq!(set.remove(number), holes.insert(number));
    }
    let lone = holes.iter().filter(|n| !holes.contains(&(**n + 1))).count();
    assert_eq!(
        set.run_count(),
        lone + 1 - usize::from(holes.contains(&0)) - usize::from(holes.contains(&(end - 1)))
    );
    assert_eq!((set.len(), count_bits(&set)), (end - holes.len() as u64, 0));
    assert!(set.bytes() <= 40 * holes.len(), "{} bytes for {} holes", set.bytes(), holes.len());
    let copy = set.clone();
    for number in &holes {
        assert!(!set.contains(*number));
        set.insert(*number);
    }
    assert_eq!(set, RangeSet::of(0, end));
    assert_eq!((set.chunks.len(), set.chunks[0].runs().count(), set.run_count()), (1, 1, 1));
    assert_eq!(copy.len(), end - holes.len() as u64);
}

#[test]
fn holes_next_to_each_other_and_far_apart_go_together() {
    let end = 10_u64.pow(12);
    let mut rng = Seed(4).rng();
    let mut set = RangeSet::of(0, end);
    let mut holes = Naive::new();
    let places: Vec<u64> = (0..8).map(|_| rng.below(end)).collect();
    for step in 0..120_000_u64 {
        let place = places[usize::try_from(rng.below(8)).unwrap()];
        let number = if step % 16 == 0 { rng.below(end) } else { (place + rng.below(40_000)).min(end - 1) };
        if holes.insert(number) {
            assert!(set.remove(number));
        } else {
            set.insert(number);
            holes.remove(&number);
        }
    }
    assert!(count_bits(&set) >= 8);
    assert_eq!(set.len(), end - holes.len() as u64);
    let gaps = set.runs().zip(set.runs().skip(1)).flat_map(|((_, end), (start, _))| end..start);
    assert!(gaps.eq(holes.iter().copied().filter(|n| *n != 0)));
    for number in &holes {
        set.insert(*number);
    }
    assert_eq!((set.chunks.len(), set.runs().collect::<Vec<_>>()), (1, vec![(0, end)]));
}

#[test]
fn opening_is_one_run_of_any_length() {
    for end in [1, WINDOW, 100_000_000, u64::MAX] {
        let mut set = RangeSet::of(0, end);
        assert_eq!((set.len(), set.run_count(), set.chunks.len()), (end, 1, 1));
        assert!(set.bytes() < 512);
        assert_eq!(set.pop_first(), Some(0));
        assert!(!set.contains(end) && !set.remove(end) && !set.contains(u64::MAX) && !set.remove(u64::MAX));
        assert_eq!(set.contains(end - 1), end > 1);
    }
    assert!(RangeSet::of(7, 7).is_empty());
    assert_eq!(RangeSet::of(8, 7), RangeSet::default());
}

#[test]
fn memory_is_a_bit_for_each_position_at_most() {
    let windows = 40;
    let end = windows * WINDOW;
    let mut scattered = RangeSet::of(0, end);
    let mut every_other = RangeSet::of(0, end);
    let mut pushed = RangeSet::default();
    let mut rng = Seed(5).rng();
    for _ in 0..end / 10 {
        scattered.remove(rng.below(end));
    }
    for number in (0..end).step_by(2) {
        assert!(every_other.remove(number) && pushed.push(number + 1, number + 2));
    }
    assert_eq!(every_other, pushed);
    let most = usize::try_from(end / 8 + windows * 128).unwrap();
    for set in [scattered, every_other, pushed] {
        assert!(set.bytes() <= most, "{} bytes for {end} positions", set.bytes());
    }
}

#[test]
fn a_write_copies_one_chunk_and_only_if_it_is_shared() {
    let windows = 20;
    let mut set = RangeSet::of(0, windows * WINDOW);
    let mut rng = Seed(6).rng();
    for _ in 0..windows * WINDOW / 10 {
        set.remove(rng.below(windows * WINDOW));
    }
    let shared = |a: &RangeSet, b: &RangeSet| {
        let same = |(a, b): (&Chunk, &Chunk)| match (&a.form, &b.form) {
            (Form::Bits(a), Form::Bits(b)) => Arc::ptr_eq(a, b),
            (Form::Runs(a), Form::Runs(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        a.chunks.iter().zip(&b.chunks).filter(|pair| same(*pair)).count()
    };
    let copy = set.clone();
    let all = set.chunks.len();
    assert_eq!((shared(&set, &copy), all), (all, usize::try_from(windows).unwrap()));
    let gone = (0..).find(|n| !set.contains(*n)).unwrap();
    assert!(!set.remove(gone));
    assert_eq!(shared(&set, &copy), all, "nothing was taken out, so nothing is copied");
    let there = (3 * WINDOW..).find(|n| set.contains(*n)).unwrap();
    assert!(set.remove(there));
    assert_eq!(shared(&set, &copy), all - 1);
    set.pop_first();
    assert_eq!(shared(&set, &copy), all - 2);
    let again = (3 * WINDOW..).find(|n| set.contains(*n)).unwrap();
    assert!(set.remove(again));
    assert_eq!(shared(&set, &copy), all - 2);
}

#[test]
fn equal_sets_of_different_chunks_are_equal() {
    let end = 4 * WINDOW;
    let mut sparse = RangeSet::default();
    let mut dense = RangeSet::of(0, end);
    for number in 0..end {
        // Every 200th number stays. On the way there, the set is full of holes.
        if number % 200 != 0 && number % 2 == 0 {
            dense.remove(number);
        }
    }
    for number in 0..end {
        if number % 200 == 0 {
            assert!(sparse.push(number, number + 1));
        } else {
            dense.remove(number);
        }
    }
    assert!(count_bits(&dense) > count_bits(&sparse), "the forms are to differ");
    assert_eq!(dense, sparse);
    assert_eq!(format!("{dense:?}"), format!("{sparse:?}"));
    assert!(dense.remove(200));
    assert_ne!(dense, sparse);
    dense.insert(201);
    assert_ne!(dense, sparse, "as many numbers and runs, but not the same");
}

#[test]
fn bits_are_a_set_of_a_window() {
    let bits = Bits::of([(0, 1), (63, 65), (128, 192), (200, 1_000), (WINDOW - 1, WINDOW)]);
    let runs: Vec<(u64, u64)> = iter::successors(bits.run_from(0), |(_, end)| bits.run_from(*end)).collect();
    assert_eq!(runs, [(0, 1), (63, 65), (128, 192), (200, 1_000), (WINDOW - 1, WINDOW)]);
    assert_eq!((bits.run_count(), bits.first(), bits.end()), (5, 0, WINDOW));
    assert_eq!(bits.run_from(150), Some((150, 192)));
    assert_eq!(window(WINDOW - 1), 0);
}
