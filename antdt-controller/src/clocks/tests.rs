use proptest::prelude::*;

use super::*;

fn worker(index: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(0))
}

fn of(bound: u32, workers: u32) -> Clocks {
    let mut clocks = Clocks::new(bound);
    (0..workers).for_each(|index| clocks.join(worker(index)));
    clocks
}

/// The workers that may begin, by number.
fn allowed(clocks: &mut Clocks) -> Vec<u32> {
    clocks.allowed().into_iter().map(|(holder, _)| holder.node.index).collect()
}

#[test]
fn a_worker_begins_as_many_steps_ahead_as_the_bound_says_and_no_more() {
    for bound in 0..4 {
        let mut clocks = of(bound, 2);
        // The other one takes its first step all the while.
        assert_eq!(clocks.ask(worker(1), 0, true), Ok(None));
        assert_eq!(allowed(&mut clocks), [1]);
        for step in 0..=u64::from(bound) {
            assert_eq!(clocks.ask(worker(0), step, true), Ok(None));
            assert_eq!(allowed(&mut clocks), [0], "step {step} within {bound}");
        }
        let next = u64::from(bound) + 1;
        assert_eq!(clocks.ask(worker(0), next, true), Ok(None));
        assert_eq!(allowed(&mut clocks), [0; 0], "within {bound}");
        assert!(clocks.waiting().eq([worker(0)]));
        assert_eq!(clocks.ask(worker(1), 1, true), Ok(None));
        let mut both = clocks.allowed();
        both.sort_unstable();
        assert_eq!(both, [(worker(0), next), (worker(1), 1)]);
    }
}

#[test]
fn without_a_lead_all_begin_each_step_together() {
    let mut clocks = of(0, 3);
    for step in 0..5 {
        for index in 0..3 {
            assert_eq!(allowed(&mut clocks), [0; 0], "{index} has not finished step {step}");
            clocks.ask(worker(index), step, true).unwrap();
            if step == 0 {
                // All start at the same clock.
                assert_eq!(allowed(&mut clocks), [index]);
            }
        }
        if step > 0 {
            assert_eq!(allowed(&mut clocks), [0, 1, 2]);
        }
    }
}

#[test]
fn no_worker_waits_for_one_that_waits_for_data_is_dead_or_has_left() {
    for is_idle in [true, false] {
        let mut clocks = of(0, 2);
        clocks.ask(worker(0), 0, true).unwrap();
        assert_eq!(allowed(&mut clocks), [0]);
        clocks.ask(worker(0), 1, true).unwrap();
        assert_eq!(allowed(&mut clocks), [0; 0]);
        if is_idle {
            assert_eq!(clocks.ask(worker(1), 0, false), Ok(Some(false)));
        } else {
            clocks.remove(worker(1));
        }
        assert_eq!(allowed(&mut clocks), [0]);
    }
}

#[test]
fn a_worker_that_has_data_again_or_joins_starts_at_the_smallest_clock() {
    for is_idle in [true, false] {
        let mut clocks = of(1, 2);
        clocks.ask(worker(1), 0, false).unwrap();
        for step in 0..6 {
            clocks.ask(worker(0), step, true).unwrap();
            assert_eq!(allowed(&mut clocks), [0]);
        }
        let late = if is_idle { worker(1) } else { Holder::new(NodeId::worker(1), Incarnation(1)) };
        clocks.join(late);
        // Worker 0 takes step 5: its clock is 5, and so is that of the other. Two more steps are within the bound.
        clocks.ask(late, 1, true).unwrap();
        assert_eq!(clocks.allowed(), [(late, 1)]);
        clocks.ask(worker(0), 6, true).unwrap();
        assert_eq!(allowed(&mut clocks), [0]);
        clocks.ask(worker(0), 7, true).unwrap();
        assert_eq!(allowed(&mut clocks), [0; 0]);
    }
}

#[test]
fn a_repeated_question_is_answered_as_before_and_an_old_one_refused() {
    let mut clocks = of(0, 2);
    assert_eq!(clocks.ask(worker(0), 3, true), Ok(None));
    assert_eq!(clocks.ask(worker(0), 3, true), Ok(None));
    assert_eq!(clocks.allowed(), [(worker(0), 3)]);
    assert_eq!(clocks.ask(worker(0), 3, true), Ok(Some(true)), "no second step");
    assert_eq!(clocks.ask(worker(0), 4, false), Ok(Some(false)));
    assert_eq!(clocks.ask(worker(0), 4, false), Ok(Some(false)));
    let past = AskError::Past { holder: worker(0), step: 3, asked: 4 };
    assert_eq!(clocks.ask(worker(0), 3, true), Err(past));
    let stranger = Holder::new(NodeId::worker(0), Incarnation(7));
    assert_eq!(clocks.ask(stranger, 0, true), Err(AskError::NotAMember { holder: stranger }));
}

#[test]
fn a_worker_that_is_called_off_keeps_its_clock_and_still_counts() {
    let mut clocks = of(0, 2);
    clocks.ask(worker(0), 0, true).unwrap();
    assert_eq!(allowed(&mut clocks), [0]);
    clocks.ask(worker(0), 1, true).unwrap();
    assert_eq!(clocks.call_off(worker(0)), Some(1));
    assert_eq!(clocks.call_off(worker(0)), None);
    assert_eq!(clocks.ask(worker(0), 1, true), Ok(Some(false)));
    clocks.ask(worker(0), 2, true).unwrap();
    assert_eq!(allowed(&mut clocks), [0; 0], "still one ahead");
    clocks.ask(worker(1), 0, true).unwrap();
    assert_eq!(allowed(&mut clocks), [1]);
    clocks.ask(worker(1), 1, true).unwrap();
    assert_eq!(allowed(&mut clocks), [0, 1]);
}

#[derive(Debug, Clone)]
enum Event {
    Ask { index: u32, has_data: bool },
    CallOff { index: u32 },
    Join { index: u32 },
    Remove { index: u32 },
}

fn events() -> impl Strategy<Value = Event> {
    let index = || 0..5_u32;
    prop_oneof![
        12 => (index(), prop::bool::weighted(0.8)).prop_map(|(index, has_data)| Event::Ask { index, has_data }),
        1 => index().prop_map(|index| Event::CallOff { index }),
        2 => index().prop_map(|index| Event::Join { index }),
        1 => index().prop_map(|index| Event::Remove { index }),
    ]
}

/// What a worker was told, and how many steps it has behind it.
#[derive(Debug, Clone, Copy)]
struct Seen {
    holder: Holder,
    clock: u64,
    step: u64,
    at: At,
}

proptest! {
    /// I30, with the clocks counted apart: by what workers are told.
    #[test]
    fn no_clock_is_further_ahead_than_the_bound_and_a_worker_may_always_go_on(
        bound in 0..4_u32,
        events in prop::collection::vec(events(), 0..300),
    ) {
        let mut clocks = Clocks::new(bound);
        let mut seen: BTreeMap<u32, Seen> = BTreeMap::new();
        let mut lives = 0;
        let mut least = 0;
        let counted = |seen: &BTreeMap<u32, Seen>| {
            seen.values().filter(|one| one.at != At::Idle).map(|one| one.clock).min()
        };
        for event in events {
            match event {
                Event::Join { index } => {
                    lives += 1;
                    let holder = Holder::new(NodeId::worker(index), Incarnation(lives));
                    clocks.join(holder);
                    // No worker waits for the older life any more.
                    seen.remove(&index);
                    least = counted(&seen).unwrap_or(least);
                    seen.insert(index, Seen { holder, clock: least, step: 0, at: At::Between });
                }
                Event::Remove { index } => {
                    if let Some(gone) = seen.remove(&index) {
                        clocks.remove(gone.holder);
                    }
                }
                Event::CallOff { index } => {
                    if let Some(one) = seen.get_mut(&index) {
                        let asks = one.at == At::Asking;
                        prop_assert_eq!(clocks.call_off(one.holder).is_some(), asks);
                        if asks {
                            (one.at, one.step) = (At::Between, one.step + 1);
                        }
                    }
                }
                Event::Ask { index, has_data } => {
                    let Some(one) = seen.get_mut(&index).filter(|one| one.at != At::Asking) else { continue };
                    match one.at {
                        At::Stepping => one.clock += 1,
                        At::Idle => one.clock = one.clock.max(least),
                        At::Between | At::Asking => {}
                    }
                    let answer = clocks.ask(one.holder, one.step, has_data).unwrap();
                    prop_assert_eq!(answer, (!has_data).then_some(false));
                    one.at = if has_data { At::Asking } else { At::Idle };
                    if !has_data {
                        one.step += 1;
                    }
                }
            }
            let before = least;
            least = counted(&seen).unwrap_or(least);
            prop_assert!(least >= before, "the smallest clock fell from {} to {}", before, least);
            for (holder, step) in clocks.allowed() {
                let one = seen.get_mut(&holder.node.index).unwrap();
                prop_assert!(one.holder == holder && one.at == At::Asking && one.step == step);
                prop_assert!(one.clock <= least + u64::from(bound), "{:?} begins, {} is the least", one, least);
                (one.at, one.step) = (At::Stepping, one.step + 1);
            }
            let most = seen.values().filter(|one| one.at != At::Idle).map(|one| one.clock).max();
            prop_assert!(most.unwrap_or(least) <= least + u64::from(bound) + 1);
            let waits = |one: &Seen| one.at == At::Asking;
            prop_assert!(
                seen.values().all(|one| !waits(one) || one.clock > least + u64::from(bound)),
                "one that may begin is not told"
            );
        }
    }
}
