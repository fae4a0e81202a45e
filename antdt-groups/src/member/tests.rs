use antdt_core::{Incarnation, MembershipVersion, NodeId};

use super::*;
use crate::message::GroupOrigin;

const SOON: Duration = Duration::from_nanos(10);

fn me() -> Holder {
    Holder::new(NodeId::worker(0), Incarnation(0))
}

fn key(order: u64, attempt: u32) -> GroupKey {
    GroupKey { order, attempt }
}

struct Story(GroupMember);

impl Story {
    fn new() -> Self {
        let mut story = Self(GroupMember::new(JobTime(0), me(), 0, SOON).unwrap());
        assert_eq!(story.said(), ["hello"]);
        let hello = GeneratorEvent::Hello { holder: me(), host: 0 };
        assert_eq!(story.then(MemberEvent::Answered(hello, Ok(Taken::New))), ["resume"]);
        story
    }

    fn said(&mut self) -> Vec<String> {
        let effects = std::iter::from_fn(|| self.0.poll_effect());
        effects
            .map(|effect| match effect {
                MemberEffect::Send(GeneratorEvent::Hello { .. }) => "hello".to_owned(),
                MemberEffect::Send(GeneratorEvent::Request { sequence, .. }) => format!("request {sequence}"),
                MemberEffect::Send(GeneratorEvent::Done { group, outcome, .. }) => {
                    let word = if outcome == ReduceOutcome::Reduced { "done" } else { "failed" };
                    format!("{word} {group}")
                }
                MemberEffect::Send(GeneratorEvent::Bye { .. }) => "bye".to_owned(),
                MemberEffect::Send(GeneratorEvent::Lost { .. }) => unreachable!("that is for the monitor"),
                MemberEffect::Reduce(go) => format!("reduce {}", go.key),
                MemberEffect::Apply(group) => format!("apply {group}"),
                MemberEffect::Discard(group) => format!("discard {group}"),
                MemberEffect::Resume => "resume".to_owned(),
                MemberEffect::Left => "left".to_owned(),
                MemberEffect::Fenced(error) => error.to_string(),
            })
            .collect()
    }

    fn then(&mut self, event: MemberEvent) -> Vec<String> {
        self.0.handle(JobTime(5), event);
        self.said()
    }

    fn go(&mut self, key: GroupKey, request: u64, last: bool) -> Vec<String> {
        let go = Go {
            key,
            kind: GroupOrigin::Division,
            membership: MembershipVersion(2),
            members: Box::new([me(), Holder::new(NodeId::worker(1), Incarnation(0))]),
            deadline: JobTime::NEVER,
        };
        let go = Arc::new(go);
        self.then(MemberEvent::Told(GeneratorEffect::Go { to: me(), request, go, last }))
    }

    fn commit(&mut self, group: GroupKey) -> Vec<String> {
        self.then(MemberEvent::Told(GeneratorEffect::Commit { to: me(), group }))
    }

    fn abort(&mut self, group: GroupKey) -> Vec<String> {
        self.then(MemberEvent::Told(GeneratorEffect::Abort { to: me(), group, culprit: None }))
    }

    fn skip(&mut self, request: u64) -> Vec<String> {
        self.then(MemberEvent::Told(GeneratorEffect::Skip { to: me(), request }))
    }

    fn over(&mut self, group: GroupKey, outcome: ReduceOutcome) -> Vec<String> {
        self.then(MemberEvent::Over(group, outcome))
    }
}

const FAILED: ReduceOutcome = ReduceOutcome::Failed { suspect: None };

#[test]
fn an_average_is_taken_over_when_it_is_committed_and_not_before() {
    let mut story = Story::new();
    assert_eq!(story.then(MemberEvent::Synchronize), ["request 1"]);
    assert_eq!(story.go(key(4, 0), 1, false), ["reduce 4.0"]);
    assert!(story.commit(key(4, 0)).is_empty(), "it has not said that it has it");
    assert_eq!(story.over(key(4, 0), ReduceOutcome::Reduced), ["done 4.0"]);
    assert!(story.commit(key(3, 0)).is_empty());
    assert_eq!(story.commit(key(4, 0)), ["apply 4.0"]);
    assert_eq!(story.go(key(6, 1), 1, true), ["reduce 6.1"], "another one belongs to the request");
    story.over(key(6, 1), ReduceOutcome::Reduced);
    assert_eq!(story.commit(key(6, 1)), ["apply 6.1", "resume"]);
}

#[test]
fn a_member_repeats_messages_without_an_answer() {
    let mut story = Story::new();
    story.then(MemberEvent::Synchronize);
    assert_eq!(story.0.deadline(), Some(JobTime(15)));
    story.0.on_deadline(JobTime(14));
    assert!(story.said().is_empty());
    story.0.on_deadline(JobTime(15));
    assert_eq!((story.said(), story.0.deadline()), (vec!["request 1".to_owned()], Some(JobTime(25))));
    story.go(key(0, 0), 1, true);
    assert_eq!(story.0.deadline(), None, "how long an average may take is for those who make it");
    story.over(key(0, 0), FAILED);
    story.0.on_deadline(JobTime(15));
    assert_eq!(story.said(), ["failed 0.0"]);
}

#[test]
fn a_newer_group_says_that_an_older_one_was_aborted_unless_it_may_have_been_committed() {
    let mut story = Story::new();
    story.then(MemberEvent::Synchronize);
    story.go(key(1, 0), 1, false);
    assert_eq!(story.go(key(1, 1), 1, false), ["discard 1.0", "reduce 1.1"]);
    story.over(key(1, 1), ReduceOutcome::Reduced);
    assert!(story.go(key(2, 0), 1, true).is_empty(), "what became of 1.1 is to be learnt first");
    assert_eq!(story.go(key(1, 2), 1, false), ["discard 1.1", "reduce 1.2"]);
    assert_eq!(story.skip(1), ["discard 1.2", "resume"]);
}

#[test]
fn old_messages_change_nothing() {
    let mut story = Story::new();
    story.then(MemberEvent::Synchronize);
    story.go(key(1, 0), 1, true);
    story.over(key(1, 0), ReduceOutcome::Reduced);
    assert!(story.skip(1).is_empty(), "it may be committed");
    story.commit(key(1, 0));
    assert!(story.go(key(2, 0), 1, true).is_empty(), "it trains");
    story.then(MemberEvent::Synchronize);
    assert!(story.go(key(2, 0), 1, true).is_empty(), "that belongs to an older request");
    assert!(story.go(key(1, 0), 2, true).is_empty(), "that has been run");
    assert!(story.skip(1).is_empty() && story.abort(key(1, 0)).is_empty());
    assert!(story.over(key(1, 0), FAILED).is_empty() && story.then(MemberEvent::Leave).is_empty());
    assert_eq!(story.skip(2), ["resume"]);
}

#[test]
fn an_aborted_average_is_dropped_and_the_next_attempt_awaited() {
    let mut story = Story::new();
    story.then(MemberEvent::Synchronize);
    story.go(key(1, 0), 1, true);
    assert_eq!(story.abort(key(1, 0)), ["discard 1.0"]);
    assert!(story.over(key(1, 0), ReduceOutcome::Reduced).is_empty());
    assert_eq!(story.go(key(1, 1), 1, true), ["reduce 1.1"]);
}

#[test]
fn a_member_that_was_given_up_ends_and_one_that_leaves_waits_until_that_is_known() {
    let mut story = Story::new();
    assert_eq!(story.then(MemberEvent::Leave), ["bye"]);
    let bye = GeneratorEvent::Bye { holder: me() };
    assert_eq!(story.then(MemberEvent::Answered(bye, Ok(Taken::Again))), ["left"]);

    let mut story = Story::new();
    story.then(MemberEvent::Synchronize);
    let request = GeneratorEvent::Request { holder: me(), sequence: 1 };
    let fenced = Err(GeneratorError::Fenced { holder: me() });
    let said = story.then(MemberEvent::Answered(request, fenced));
    assert_eq!(said, ["worker-0#0 was given up or has left; start its next life and say hello"]);
    assert!(story.skip(1).is_empty() && story.0.deadline().is_none());
    assert!(GroupMember::new(JobTime(0), me(), 0, Duration::ZERO).is_err());
}
