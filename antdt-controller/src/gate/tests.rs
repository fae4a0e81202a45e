use std::collections::BTreeSet;

use antdt_core::{Ack, Generation, Incarnation, LeaseId, NodeId, PlanVersion};
use proptest::prelude::*;

use super::*;

fn worker(index: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(0))
}

fn gate(workers: u32) -> StepGate {
    let mut gate = StepGate::new();
    gate.begin(0, (0..workers).map(worker));
    gate
}

/// What the gate says, as the indexes of the members that are told, with a `+` if they bring their gradient.
fn said(passages: Option<Vec<Passage>>) -> Option<String> {
    let of =
        |passage: Passage| format!("{}{}", passage.holder.node.index, if passage.counted { "+" } else { "" });
    Some(passages?.into_iter().map(of).collect::<Vec<_>>().join(" "))
}

#[test]
fn a_message_with_samples_and_without_acknowledgements_promises_a_gradient() {
    let ack = Ack { lease: LeaseId { generation: Generation(1), sequence: 1 }, offset: 4 };
    let message = |samples, acks: &[Ack]| Readiness {
        samples,
        end_of_data: false,
        plan: PlanVersion(0),
        acks: acks.to_vec(),
    };
    assert_eq!(Brings::of(&message(0, &[])), Brings::Nothing);
    assert_eq!(Brings::of(&message(4, &[])), Brings::Later);
    assert_eq!(Brings::of(&message(4, &[ack])), Brings::Now);
}

#[test]
fn a_step_begins_with_the_first_gradients_and_a_late_one_is_in_no_step() {
    let mut gate = gate(3);
    for member in 0..3 {
        assert_eq!(gate.arrive(worker(member), 0, Brings::Later), Ok(None));
    }
    assert_eq!(gate.close(1), None);
    gate.arrive(worker(2), 0, Brings::Now).unwrap();
    assert_eq!(gate.close(1), None, "one of two");
    gate.arrive(worker(0), 0, Brings::Now).unwrap();
    assert_eq!(said(gate.close(1)).as_deref(), Some("0+ 1 2+"), "the one that computes goes with them");
    let late = gate.arrive(worker(1), 0, Brings::Now).unwrap();
    assert_eq!(late, Some(Passage { holder: worker(1), step: 0, counted: false }));
    let again = gate.arrive(worker(2), 0, Brings::Now).unwrap();
    assert_eq!(again, Some(Passage { holder: worker(2), step: 0, counted: true }), "its answer was lost");
    assert_eq!(gate.step(), 1);
}

#[test]
fn members_without_samples_are_no_backups_and_the_last_samples_are_waited_for() {
    let mut gate = gate(3);
    gate.arrive(worker(0), 0, Brings::Nothing).unwrap();
    gate.arrive(worker(1), 0, Brings::Later).unwrap();
    assert_eq!(gate.close(1), None, "two may have samples, and none is there");
    gate.arrive(worker(2), 0, Brings::Nothing).unwrap();
    assert_eq!(gate.close(5), None, "a step needs one");
    gate.arrive(worker(1), 0, Brings::Now).unwrap();
    assert_eq!(said(gate.close(1)).as_deref(), Some("0 1+ 2"));
    for member in 0..3 {
        assert_eq!(gate.close(1), None, "some may have samples");
        gate.arrive(worker(member), 1, Brings::Nothing).unwrap();
    }
    assert_eq!(said(gate.close(1)).as_deref(), Some("0 1 2"), "no member has any");
}

#[test]
fn a_member_that_computes_for_an_older_step_may_turn_out_to_have_no_samples() {
    let mut gate = gate(2);
    gate.arrive(worker(0), 0, Brings::Later).unwrap();
    gate.arrive(worker(1), 0, Brings::Nothing).unwrap();
    gate.arrive(worker(0), 0, Brings::Nothing).unwrap();
    assert_eq!(said(gate.close(1)).as_deref(), Some("0 1"));
}

#[test]
fn old_copies_take_nothing_back() {
    let mut gate = gate(2);
    for brings in [Brings::Later, Brings::Now, Brings::Later, Brings::Nothing, Brings::Now] {
        gate.arrive(worker(0), 0, brings).unwrap();
    }
    assert_eq!(said(gate.close(1)).as_deref(), Some("0+"));
    gate.arrive(worker(0), 0, Brings::Later).unwrap();
    assert_eq!(gate.close(1), None, "of a step that is over");
}

#[test]
fn steps_without_the_gate_are_passed_over() {
    let mut gate = gate(2);
    gate.arrive(worker(0), 0, Brings::Now).unwrap();
    gate.arrive(worker(1), 7, Brings::Now).unwrap();
    assert_eq!(gate.step(), 7);
    assert_eq!(gate.close(0), None, "what the first has brought was for another step");
    assert_eq!(
        gate.arrive(worker(0), 3, Brings::Now).unwrap(),
        Some(Passage { holder: worker(0), step: 3, counted: false })
    );
}

#[test]
fn a_group_that_broke_up_lets_no_step_begin() {
    let mut gate = gate(3);
    gate.arrive(worker(1), 0, Brings::Later).unwrap();
    gate.arrive(worker(2), 0, Brings::Now).unwrap();
    assert_eq!(gate.break_up(), [worker(1), worker(2)], "both wait for an answer");
    assert_eq!(gate.close(9), None);
    assert_eq!(gate.arrive(worker(0), 0, Brings::Now), Err(NotAMember { holder: worker(0) }));
    assert_eq!(gate.break_up(), []);
}

/// A world of members: each has for the open step so many messages to send, the last of which is final.
#[derive(Debug, Clone)]
struct Story {
    workers: u32,
    backups: u32,
    /// In each turn, the member that sends its next message, and whether an old copy of one of its messages comes after it.
    turns: Vec<(u32, bool)>,
    /// For each member and step, whether it has samples.
    samples: Vec<u32>,
}

fn story() -> impl Strategy<Value = Story> {
    let turns = prop::collection::vec((any::<u32>(), any::<bool>()), 1..200);
    (1_u32..6, 0_u32..6, turns, prop::collection::vec(any::<u32>(), 6))
        .prop_map(|(workers, backups, turns, samples)| Story { workers, backups, turns, samples })
}

proptest! {
    /// The gate against the definition: a step begins with the message after which all that may have samples but `backups` have
    /// their gradients, and at least one of them if any may have some; exactly those that had theirs are counted.
    #[test]
    fn each_step_has_the_first_gradients_that_suffice(story in story()) {
        let mut gate = gate(story.workers);
        // Of each member: the step it is at, whether it has promised a gradient, and what it brings for good.
        let mut at = vec![(0_u64, false, None::<Brings>); story.workers as usize];
        let mut open = 0_u64;
        for (turn, copy) in story.turns {
            let member = turn % story.workers;
            let (step, promised, settled) = at[member as usize];
            let has = story.samples[member as usize] >> (step % 32) & 1 == 1;
            let brings = match (has, promised) {
                (false, _) => Brings::Nothing,
                (true, false) => Brings::Later,
                (true, true) => Brings::Now,
            };
            let brings = settled.unwrap_or(brings);
            let answer = gate.arrive(worker(member), step, brings).unwrap();
            if step < open {
                // It missed the step, and is told so at once.
                let told = answer.expect("the step is over");
                prop_assert_eq!((told.step, told.counted), (step, false));
                at[member as usize] = (open, false, None);
                continue;
            }
            prop_assert_eq!(answer, None);
            let settled = (brings != Brings::Later).then_some(brings);
            at[member as usize] = (step, true, settled);
            if copy && promised {
                gate.arrive(worker(member), step, Brings::Later).unwrap();
            }
            let of = |wanted: Brings| at.iter().filter(|(of, _, it)| *of == open && *it == Some(wanted)).count();
            let may_have = story.workers as usize - of(Brings::Nothing);
            let due = if may_have == 0 { 0 } else { may_have.saturating_sub(story.backups as usize).max(1) };
            let begins = of(Brings::Now) >= due;
            let told = gate.close(story.backups);
            prop_assert_eq!(told.is_some(), begins, "{:?}", at);
            let Some(told) = told else { continue };
            let counted: BTreeSet<u32> =
                told.iter().filter(|it| it.counted).map(|it| it.holder.node.index).collect();
            let expected: BTreeSet<u32> = (0..story.workers)
                .filter(|it| at[*it as usize].0 == open && at[*it as usize].2 == Some(Brings::Now))
                .collect();
            prop_assert_eq!(counted, expected);
            let asked = at.iter().filter(|(of, promised, it)| *of == open && (*promised || it.is_some())).count();
            prop_assert_eq!(told.len(), asked, "all that have asked are told");
            for passage in told {
                prop_assert_eq!(passage.step, open);
                at[passage.holder.node.index as usize] = (open + 1, false, None);
            }
            open += 1;
        }
    }
}
