use std::time::Duration;

use antdt_core::{Incarnation, Seed};

use super::*;
use crate::filter::ProgressFilter;
use crate::policy::{Bipartite, Division, FirstToArrive, InterIntra, Random};

mod room;
mod small;

use room::Room;

fn holder(index: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(0))
}

fn key(order: u64, attempt: u32) -> GroupKey {
    GroupKey { order, attempt }
}

/// Forms one group of all that are idle.
#[derive(Debug, Clone)]
struct Everybody;

impl GroupPolicy for Everybody {
    fn name(&self) -> &'static str {
        "everybody"
    }
    fn group_size(&self) -> u32 {
        2
    }
    fn form(&mut self, draft: &mut Draft<'_>) {
        let idle = draft.idle();
        draft.form(GroupOrigin::Division, &idle);
    }
    fn clone_box(&self) -> Box<dyn GroupPolicy> {
        Box::new(self.clone())
    }
}

/// Forms these groups, in this order, whichever worker asks first.
#[derive(Debug, Clone)]
struct Listed {
    groups: Vec<Vec<u32>>,
    buffered: bool,
}

fn listed(groups: &[&[u32]]) -> Listed {
    Listed { groups: groups.iter().map(|group| group.to_vec()).collect(), buffered: true }
}

impl GroupPolicy for Listed {
    fn name(&self) -> &'static str {
        "listed"
    }
    fn group_size(&self) -> u32 {
        2
    }
    fn is_buffered(&self) -> bool {
        self.buffered
    }
    fn form(&mut self, draft: &mut Draft<'_>) {
        let idle = draft.idle();
        for group in std::mem::take(&mut self.groups) {
            let of = |index: &u32| idle.iter().find(|one| one.holder().node.index == *index).copied();
            let members: Vec<_> = group.iter().filter_map(of).collect();
            draft.form(GroupOrigin::Division, &members);
        }
    }
    fn clone_box(&self) -> Box<dyn GroupPolicy> {
        Box::new(self.clone())
    }
}

/// A generator that is told things, and what it wants to be said.
struct Story {
    generator: GroupGenerator,
    now: JobTime,
}

impl Story {
    fn of(workers: u32, policy: impl GroupPolicy + 'static) -> Self {
        let config = GeneratorConfig { filter: ProgressFilter::off(), ..GeneratorConfig::default() };
        let mut generator = GroupGenerator::new(config, Box::new(policy)).unwrap();
        for index in 0..workers {
            assert_eq!(generator.hello(JobTime(0), holder(index), index / 2), Ok(Taken::New));
        }
        let mut story = Self { generator, now: JobTime(0) };
        story.said();
        story
    }

    /// Its messages, in short: receiver, kind, group or request.
    fn said(&mut self) -> Vec<String> {
        let effects = std::iter::from_fn(|| self.generator.poll_effect());
        effects
            .map(|effect| match effect {
                GeneratorEffect::Go { to, go, last, .. } => {
                    let members: Vec<String> =
                        go.members.iter().map(|member| member.node.index.to_string()).collect();
                    let more = if last { "" } else { " and more" };
                    format!("{} go {} [{}]{more}", to.node.index, go.key, members.join(" "))
                }
                GeneratorEffect::Skip { to, request } => format!("{} skip {request}", to.node.index),
                GeneratorEffect::Commit { to, group } => format!("{} commit {group}", to.node.index),
                GeneratorEffect::Abort { to, group, .. } => format!("{} abort {group}", to.node.index),
                GeneratorEffect::Membership { holder, joined, .. } => format!("{holder} joined {joined}"),
            })
            .collect()
    }

    fn request(&mut self, index: u32, sequence: u64) -> Vec<String> {
        assert_eq!(self.generator.request(self.now, holder(index), sequence), Ok(Taken::New));
        self.said()
    }

    fn done(&mut self, index: u32, group: GroupKey, outcome: ReduceOutcome) -> Vec<String> {
        self.generator.done(self.now, holder(index), group, outcome).unwrap();
        self.said()
    }

    fn reduced(&mut self, index: u32, group: GroupKey) -> Vec<String> {
        self.done(index, group, ReduceOutcome::Reduced)
    }

    fn buffer(&self, index: u32) -> Vec<GroupKey> {
        self.generator.buffer(NodeId::worker(index)).collect()
    }
}

const FAILED: ReduceOutcome = ReduceOutcome::Failed { suspect: None };

fn blames(index: u32) -> ReduceOutcome {
    ReduceOutcome::Failed { suspect: Some(holder(index)) }
}

#[test]
fn a_group_starts_when_the_last_member_has_arrived_and_counts_when_the_last_has_reported() {
    let mut story = Story::of(3, Everybody);
    assert!(story.request(0, 1).is_empty());
    assert!(story.request(2, 1).is_empty());
    assert_eq!(story.request(1, 1), ["0 go 0.0 [0 1 2]", "1 go 0.0 [0 1 2]", "2 go 0.0 [0 1 2]"]);
    assert!(story.reduced(1, key(0, 0)).is_empty());
    assert!(story.reduced(0, key(0, 0)).is_empty());
    assert!(story.generator.is_locked(NodeId::worker(0)), "it has reported, and is still part of it");
    assert_eq!(story.reduced(2, key(0, 0)), ["0 commit 0.0", "1 commit 0.0", "2 commit 0.0"]);
    assert!(!story.generator.is_locked(NodeId::worker(0)) && story.generator.deadline().is_none());
}

#[test]
fn groups_that_share_a_worker_run_in_the_order_in_which_they_were_made() {
    let mut story = Story::of(4, listed(&[&[0, 1], &[1, 2], &[2, 3]]));
    story.request(3, 1);
    assert!(story.request(2, 1).is_empty(), "2 is in another group first");
    assert!(story.request(1, 1).is_empty());
    assert_eq!(story.request(0, 1), ["0 go 0.0 [0 1]", "1 go 0.0 [0 1]"]);
    story.reduced(0, key(0, 0));
    story.reduced(1, key(0, 0));
    assert_eq!(story.request(1, 2), ["1 go 1.0 [1 2]", "2 go 1.0 [1 2]"]);
    story.reduced(2, key(1, 0));
    story.reduced(1, key(1, 0));
    assert_eq!(story.request(2, 2), ["2 go 2.0 [2 3]", "3 go 2.0 [2 3]"]);
}

#[test]
fn without_a_buffer_a_request_is_answered_after_all_groups_before_its_own() {
    let mut story = Story::of(2, Random::new(2).unwrap());
    story.request(0, 1);
    assert_eq!(story.request(1, 1), ["0 go 0.0 [0 1]", "1 go 0.0 [0 1] and more"]);
    story.reduced(0, key(0, 0));
    story.reduced(1, key(0, 0));
    assert_eq!(story.request(0, 2), ["0 go 1.0 [0 1] and more", "1 go 1.0 [0 1]"]);
}

#[test]
fn a_request_whose_last_group_is_void_is_answered_after_those_before_it() {
    let mut story = Story::of(3, Listed { buffered: false, ..listed(&[&[0, 1], &[0, 2]]) });
    story.request(0, 1);
    assert_eq!(story.request(1, 1), ["0 go 0.0 [0 1] and more", "1 go 0.0 [0 1]"]);
    story.generator.lost(story.now, holder(2)).unwrap();
    assert_eq!(story.said(), ["worker-2#0 joined false"], "it is busy, and was told that more follows");
    story.reduced(0, key(0, 0));
    assert_eq!(story.reduced(1, key(0, 0)), ["0 commit 0.0", "1 commit 0.0", "0 skip 1"]);
}

#[test]
fn survivors_of_a_failure_run_again_without_the_suspect_in_the_same_place() {
    let mut story = Story::of(4, listed(&[&[0, 1, 2], &[0, 1], &[2, 3]]));
    story.request(0, 1);
    story.request(1, 1);
    story.request(2, 1);
    story.reduced(0, key(0, 0));
    let said = story.done(1, key(0, 0), blames(2));
    assert_eq!(
        said,
        ["0 abort 0.0", "1 abort 0.0", "2 abort 0.0", "2 skip 1", "0 go 0.1 [0 1]", "1 go 0.1 [0 1]"]
    );
    assert_eq!(story.buffer(0), [key(0, 1), key(1, 0)]);
    assert_eq!(story.buffer(2), [key(2, 0)]);
    assert_eq!(
        story.done(2, key(0, 0), ReduceOutcome::Reduced),
        ["2 abort 0.0"],
        "it learns what became of it"
    );
    story.reduced(0, key(0, 1));
    assert_eq!(story.reduced(1, key(0, 1)), ["0 commit 0.1", "1 commit 0.1"]);
}

#[test]
fn a_group_that_fails_too_often_is_given_up_and_its_members_go_on() {
    let mut story = Story::of(2, Everybody);
    story.request(0, 1);
    story.request(1, 1);
    for attempt in 0..2 {
        assert_eq!(story.done(attempt, key(0, attempt), FAILED).len(), 4, "aborted, and run again");
    }
    assert_eq!(story.done(0, key(0, 2), FAILED), ["0 abort 0.2", "1 abort 0.2", "0 skip 1", "1 skip 1"]);
    assert!(story.buffer(0).is_empty() && !story.generator.is_locked(NodeId::worker(1)));
}

#[test]
fn a_group_that_takes_too_long_runs_again_without_its_silent_members() {
    let mut story = Story::of(3, Everybody);
    for index in 0..3 {
        story.request(index, 1);
    }
    story.reduced(0, key(0, 0));
    story.reduced(2, key(0, 0));
    let limit = story.generator.deadline().unwrap();
    assert_eq!(limit, JobTime::ZERO + GeneratorConfig::default().group_limit);
    story.generator.on_deadline(JobTime(limit.0 - 1));
    assert!(story.said().is_empty());
    story.generator.on_deadline(limit);
    let said = story.said();
    assert_eq!(said[3..], ["1 skip 1", "0 go 0.1 [0 2]", "2 go 0.1 [0 2]"]);
    // No member has sent anything: none is to blame more than others.
    story.generator.on_deadline(story.generator.deadline().unwrap());
    assert_eq!(story.said()[2..], ["0 go 0.2 [0 2]", "2 go 0.2 [0 2]"]);
}

#[test]
fn a_lost_worker_is_missing_from_groups_that_run_and_from_those_that_do_not_yet() {
    let mut story = Story::of(4, listed(&[&[0, 1, 2], &[1, 2, 3], &[0, 1]]));
    for index in 0..4 {
        story.request(index, 1);
    }
    assert_eq!(story.generator.lost(story.now, holder(1)), Ok(Taken::New));
    let said = story.said();
    assert_eq!(said[3..5], ["0 go 0.1 [0 2]", "2 go 0.1 [0 2]"]);
    assert_eq!(said[5..], ["worker-1#0 joined false"]);
    assert_eq!(story.buffer(0), [key(0, 1)], "of the last group only one was left: it is none");
    assert_eq!(story.buffer(2), [key(0, 1), key(1, 0)]);
    assert_eq!(story.generator.group_of(NodeId::worker(3), key(1, 0)).unwrap().1, [holder(2), holder(3)]);
    assert_eq!(story.generator.lost(story.now, holder(1)), Ok(Taken::Again));
}

#[test]
fn a_member_that_is_left_alone_in_a_group_goes_on() {
    let mut story = Story::of(2, Everybody);
    story.request(0, 1);
    story.generator.lost(story.now, holder(1)).unwrap();
    assert_eq!(story.said(), ["0 skip 1", "worker-1#0 joined false"]);
    assert_eq!(story.request(0, 2), ["0 skip 2"], "there is nobody else");
}

#[test]
fn no_group_waits_for_a_worker_that_leaves() {
    let mut story = Story::of(3, Everybody);
    story.request(0, 1);
    story.request(1, 1);
    assert_eq!(
        story.generator.bye(story.now, holder(0)),
        Err(GeneratorError::Open { holder: holder(0), open: 1 })
    );
    story.generator.bye(story.now, holder(2)).unwrap();
    assert_eq!(story.said(), ["0 go 0.0 [0 1]", "1 go 0.0 [0 1]", "worker-2#0 joined false"]);
    assert_eq!(story.generator.bye(story.now, holder(2)), Ok(Taken::Again));
}

#[test]
fn repeated_messages_are_answered_again_and_old_ones_change_nothing() {
    let mut story = Story::of(2, Everybody);
    story.request(0, 1);
    assert_eq!(story.generator.request(story.now, holder(0), 1), Ok(Taken::Again));
    assert!(story.said().is_empty(), "there is nothing to say yet");
    story.request(1, 1);
    assert_eq!(story.generator.request(story.now, holder(0), 1), Ok(Taken::Again));
    assert_eq!(story.said(), ["0 go 0.0 [0 1]"]);
    story.reduced(0, key(0, 0));
    assert_eq!(
        story.generator.done(story.now, holder(0), key(0, 0), ReduceOutcome::Reduced),
        Ok(Taken::Again)
    );
    assert!(story.said().is_empty(), "one report of one member is one");
    story.reduced(1, key(0, 0));
    assert_eq!(story.reduced(0, key(0, 0)), ["0 commit 0.0"]);
    story.request(0, 2);
    assert_eq!(story.generator.done(story.now, holder(0), key(0, 0), ReduceOutcome::Reduced), Ok(Taken::Old));
    assert_eq!(story.generator.request(story.now, holder(0), 1), Ok(Taken::Old));
    assert!(story.said().is_empty());
}

#[test]
fn a_life_that_is_over_is_fenced_even_if_its_greeting_comes_after_the_news_of_its_end() {
    let mut story = Story::of(2, Everybody);
    let (old, new) = (holder(0), Holder::new(NodeId::worker(0), Incarnation(1)));
    let fenced = |holder| Err(GeneratorError::Fenced { holder });
    story.generator.hello(story.now, new, 0).unwrap();
    assert_eq!(story.said(), ["worker-0#0 joined false", "worker-0#1 joined true"]);
    assert_eq!(story.generator.request(story.now, old, 7), fenced(old));
    assert_eq!(story.generator.hello(story.now, old, 0), fenced(old));
    assert_eq!(story.generator.lost(story.now, holder(5)), Ok(Taken::New));
    assert_eq!(story.generator.hello(story.now, holder(5), 0), fenced(holder(5)));
    assert!(story.said().is_empty());
    // The new life's requests are counted from 1.
    story.request(1, 1);
    assert_eq!(story.generator.request(story.now, new, 1), Ok(Taken::New));
}

#[test]
fn impossible_messages_and_settings_are_refused_with_a_remedy() {
    let mut story = Story::of(2, Everybody);
    let server = Holder::new(NodeId::server(0), Incarnation(0));
    let error = story.generator.hello(story.now, server, 0).unwrap_err();
    assert_eq!(error, GeneratorError::NoWorker { holder: server });
    assert_eq!(story.generator.lost(story.now, server), Err(error));
    let unknown = story.generator.request(story.now, holder(9), 1).unwrap_err();
    assert_eq!(unknown.to_string(), "worker-9#0 does not take part; say hello first");
    let none = story.generator.done(story.now, holder(0), key(3, 0), FAILED).unwrap_err();
    assert!(
        none.to_string().starts_with("worker-0#0 reports group 3.0, and only 0 were ever made"),
        "{none}"
    );
    story.request(0, 1);
    let open = story.generator.request(story.now, holder(0), 2).unwrap_err();
    assert_eq!(open, GeneratorError::Open { holder: holder(0), open: 1 });
    assert!(story.said().is_empty());

    let make = |config| GroupGenerator::new(config, Box::new(Everybody)).map(drop);
    let usual = GeneratorConfig::default();
    for config in [
        GeneratorConfig { group_limit: Duration::ZERO, ..usual },
        GeneratorConfig { attempts_max: 0, ..usual },
        GeneratorConfig { members_max: 0, ..usual },
    ] {
        assert!(make(config).is_err());
    }
    let one = GeneratorConfig { members_max: 1, ..usual };
    let mut generator = GroupGenerator::new(one, Box::new(Everybody)).unwrap();
    generator.hello(JobTime(0), holder(0), 0).unwrap();
    assert_eq!(
        generator.hello(JobTime(0), holder(1), 0),
        Err(GeneratorError::Full { holder: holder(1), most: 1 })
    );
    for size in [0, 1] {
        assert!(Random::new(size).is_err() && Random::buffered(size).is_err());
        assert!(
            Division::new(size).is_err()
                && InterIntra::new(size).is_err()
                && FirstToArrive::new(size).is_err()
        );
    }
}

#[test]
fn the_first_to_arrive_are_a_group_however_far_behind_one_is() {
    let mut story = Story::of(4, FirstToArrive::new(2).unwrap());
    let config = GeneratorConfig { bridges: false, ..GeneratorConfig::default() };
    story.generator = GroupGenerator::new(config, Box::new(FirstToArrive::new(2).unwrap())).unwrap();
    for index in 0..4 {
        story.generator.hello(story.now, holder(index), 0).unwrap();
    }
    story.said();
    // Workers 2 and 3 are slow: the others are ahead of them by more than the filter lets pass.
    for sequence in 1..=20 {
        assert!(story.request(0, sequence).is_empty());
        let group = key(sequence - 1, 0);
        let [first, second] = [0, 1].map(|index| format!("{index} go {group} [0 1]"));
        assert_eq!(story.request(1, sequence), [first, second]);
        story.reduced(0, group);
        assert_eq!(story.reduced(1, group), [format!("0 commit {group}"), format!("1 commit {group}")]);
    }
    assert!(story.request(3, 1).is_empty());
    assert!(story.generator.request(story.now, holder(3), 1) == Ok(Taken::Again) && story.said().is_empty());
    assert_eq!(story.request(0, 21), ["0 go 20.0 [0 3]", "3 go 20.0 [0 3]"]);
}

#[test]
fn no_worker_waits_for_workers_that_are_gone() {
    let mut story = Story::of(4, FirstToArrive::new(3).unwrap());
    assert!(story.request(0, 1).is_empty() && story.request(1, 1).is_empty());
    // Two are all there are.
    story.generator.bye(story.now, holder(2)).unwrap();
    assert_eq!(story.said().len(), 1);
    story.generator.lost(story.now, holder(3)).unwrap();
    let said = story.said();
    assert_eq!(said[1..], ["0 go 0.0 [0 1]", "1 go 0.0 [0 1]"], "{said:?}");
    story.reduced(0, key(0, 0));
    story.reduced(1, key(0, 0));
    assert!(story.request(1, 2).is_empty());
    story.generator.lost(story.now, holder(0)).unwrap();
    assert_eq!(story.said()[1..], ["1 skip 2"], "it is alone");
    assert_eq!(story.request(1, 3), ["1 skip 3"]);
    assert_eq!(story.generator.bye(story.now, holder(1)), Ok(Taken::New));
}

#[test]
fn a_worker_that_joins_later_begins_with_the_median_and_is_drafted_like_others() {
    let config = GeneratorConfig { bridges: false, ..GeneratorConfig::default() };
    let mut generator = GroupGenerator::new(config, Box::new(Everybody)).unwrap();
    generator.hello(JobTime(0), holder(0), 0).unwrap();
    for sequence in 1..=10 {
        generator.request(JobTime(0), holder(0), sequence).unwrap();
    }
    generator.hello(JobTime(0), holder(1), 0).unwrap();
    assert_eq!(generator.progress(NodeId::worker(1)), Some(10));
    generator.request(JobTime(0), holder(0), 11).unwrap();
    assert_eq!(generator.buffer(NodeId::worker(1)).count(), 1);
}

/// I18 to I26, and that a group counts for all of its members or for none: with messages lost, repeated and reordered,
/// members that fail, die, come back and are given up alive, and then none of that until all have finished.
#[test]
fn in_all_histories_groups_are_apart_and_in_order_and_every_member_is_answered() {
    let mut seen = room::Seen::default();
    for seed in 0..700 {
        seen.add(&Room::run(seed));
    }
    // Without these nothing is shown.
    for (what, count) in seen.counts() {
        assert!(count > 10, "{what}: {count}");
    }
}

/// I25: the generator is a function of what it was told, and repetitions change nothing but what is said again.
#[test]
fn a_generator_that_is_told_the_same_again_is_in_the_same_state() {
    for seed in 0..60 {
        let room = Room::run(seed);
        let (once, said) = room.told_again(1);
        assert_eq!(format!("{once:?}"), format!("{:?}", room.generator()), "seed {seed}");
        assert_eq!(said, *room.said(), "seed {seed}");
        let (twice, _) = room.told_again(2);
        assert_eq!(format!("{twice:?}"), format!("{:?}", room.generator()), "seed {seed}, everything twice");
    }
}

/// I20 for all histories of small worlds.
#[test]
fn every_history_of_three_workers_with_any_one_fault_ends() {
    let policies: [Box<dyn GroupPolicy>; 7] = [
        Box::new(Random::new(2).unwrap()),
        Box::new(Random::buffered(2).unwrap()),
        Box::new(Division::new(2).unwrap()),
        Box::new(InterIntra::new(2).unwrap()),
        Box::new(Bipartite),
        Box::new(FirstToArrive::new(2).unwrap()),
        Box::new(listed(&[&[0, 1], &[1, 2], &[0, 2]])),
    ];
    for policy in policies {
        let name = policy.name();
        let states = small::explore(policy);
        assert!(states > 500, "{name}: {states}");
    }
}

/// Groups only workers whose numbers are odd or even as that of the one that asks.
#[derive(Debug, Clone)]
struct Kin;

impl GroupPolicy for Kin {
    fn name(&self) -> &'static str {
        "kin"
    }
    fn group_size(&self) -> u32 {
        3
    }
    fn form(&mut self, draft: &mut Draft<'_>) {
        let kind = draft.initiator().holder().node.index % 2;
        let mut idle = draft.idle();
        idle.retain(|candidate| candidate.holder().node.index % 2 == kind);
        draft.shuffle(&mut idle);
        idle.truncate(3);
        draft.form(GroupOrigin::Division, &idle);
    }
    fn clone_box(&self) -> Box<dyn GroupPolicy> {
        Box::new(self.clone())
    }
}

/// The members of committed groups, in order, of workers that ask as soon as they are answered, for so many rounds.
fn committed(policy: Box<dyn GroupPolicy>, bridges: bool, workers: u32, rounds: u64) -> Vec<Vec<u32>> {
    let config = GeneratorConfig { bridges, ..GeneratorConfig::default() };
    let mut generator = GroupGenerator::new(config, policy).unwrap();
    for index in 0..workers {
        generator.hello(JobTime(0), holder(index), index / 4).unwrap();
    }
    let mut sequences = vec![0_u64; workers as usize];
    let mut groups = Vec::new();
    for round in 0..rounds {
        for index in 0..workers {
            let sequence = &mut sequences[index as usize];
            // Every third worker asks half as often.
            let rests = index % 3 == 0 && round % 2 == 0;
            if !rests && generator.request(JobTime(round), holder(index), *sequence + 1).is_ok() {
                *sequence += 1;
            }
        }
        while let Some(effect) = generator.poll_effect() {
            if let GeneratorEffect::Go { to, go, .. } = effect {
                generator.done(JobTime(round), to, go.key, ReduceOutcome::Reduced).unwrap();
                if Some(&to) == go.members.last() {
                    groups.push(go.members.iter().map(|member| member.node.index).collect());
                }
            }
        }
    }
    groups
}

fn connects(groups: &[Vec<u32>], workers: u32) -> bool {
    let mut reached = BTreeSet::from([0]);
    loop {
        let before = reached.len();
        for group in groups {
            if group.iter().any(|member| reached.contains(member)) {
                reached.extend(group.iter().copied());
            }
        }
        if reached.len() == before {
            return before == workers as usize;
        }
    }
}

#[test]
fn a_large_job_is_not_bridged_before_its_workers_could_have_met() {
    let workers = 300;
    let groups = committed(Box::new(Division::new(3).unwrap()), true, workers, 8);
    assert!(groups.len() > 200 && groups.iter().all(|group| group.len() <= 4));
}

/// I28.
#[test]
fn workers_that_keep_to_themselves_are_bridged() {
    let workers = 12;
    let apart = committed(Box::new(Kin), false, workers, 200);
    assert!(apart.len() > 200 && !connects(&apart, workers), "without bridges they stay apart for ever");
    let shipped: [Box<dyn GroupPolicy>; 3] =
        [Box::new(Kin), Box::new(Division::new(3).unwrap()), Box::new(InterIntra::new(3).unwrap())];
    for policy in shipped {
        let name = policy.name();
        let groups = committed(policy, true, workers, 200);
        // A window is 6 groups of 3 times 4; then the bridge has to come to the front of all buffers.
        let stretch = 2 * 24 + 12;
        assert!(groups.len() > 4 * stretch, "{name}: {}", groups.len());
        assert!(groups.windows(stretch).all(|groups| connects(groups, workers)), "{name}");
    }
}
