use std::collections::BTreeSet;

use antdt_core::{Holder, Incarnation, JobTime, Machine, NodeId, Seed};

use super::*;
use crate::config::GeneratorConfig;
use crate::generator::GroupGenerator;
use crate::message::{GeneratorEffect, GroupKey, ReduceOutcome};

fn holder(index: u32) -> Holder {
    Holder::new(NodeId::worker(index), Incarnation(0))
}

/// The first request of `initiator` among idle workers, `per_host` on a host: the groups that are formed for it, in order.
fn formed(
    policy: Box<dyn GroupPolicy>,
    workers: u32,
    per_host: u32,
    seed: u64,
    initiator: u32,
) -> Vec<(GroupOrigin, Vec<u32>)> {
    let config = GeneratorConfig { seed: Seed(seed), ..GeneratorConfig::default() };
    let mut generator = GroupGenerator::new(config, policy).unwrap();
    for index in 0..workers {
        generator.hello(JobTime::ZERO, holder(index), index / per_host).unwrap();
    }
    generator.request(JobTime::ZERO, holder(initiator), 1).unwrap();
    let buffers = (0..workers).map(NodeId::worker);
    let keys: BTreeSet<(GroupKey, NodeId)> =
        buffers.flat_map(|node| generator.buffer(node).map(move |key| (key, node))).collect();
    let mut groups: Vec<(GroupKey, NodeId)> = keys.into_iter().collect();
    groups.dedup_by_key(|(key, _)| *key);
    let members = |(key, node): (GroupKey, NodeId)| {
        let (kind, members) = generator.group_of(node, key).unwrap();
        (kind, members.iter().map(|member| member.node.index).collect())
    };
    groups.into_iter().map(members).collect()
}

/// What `groups` leave of the variance of models, one after the other.
fn left(groups: &[(GroupOrigin, Vec<u32>)], models: &[f64]) -> f64 {
    let variance = |models: &[f64]| {
        let mean = models.iter().sum::<f64>() / models.len() as f64;
        models.iter().map(|model| (model - mean).powi(2)).sum::<f64>()
    };
    let mut after = models.to_vec();
    for (_, members) in groups {
        let mean = members.iter().map(|member| after[*member as usize]).sum::<f64>() / members.len() as f64;
        members.iter().for_each(|member| after[*member as usize] = mean);
    }
    variance(&after) / variance(models)
}

/// I16: the mean over many draws is the closed form, within three times what chance makes of it.
#[test]
fn groups_mix_models_as_fast_as_evenly_drawn_ones() {
    let draws = 2_000_u32;
    for (workers, size) in [(8, 2), (8, 4), (12, 3), (16, 4), (16, 8)] {
        let (n, g) = (f64::from(workers), f64::from(size));
        // Models that differ in no regular way.
        let models: Vec<f64> = (0..workers).map(|worker| f64::from(worker * worker * 7 % 31)).collect();
        let one = 1.0 - (g - 1.0) / (n - 1.0);
        let partition = (n - g) / (g * (n - 1.0));
        let policies: [(Box<dyn GroupPolicy>, f64); 3] = [
            (Box::new(Random::new(size).unwrap()), one),
            (Box::new(Random::buffered(size).unwrap()), one),
            (Box::new(Division::new(size).unwrap()), partition),
        ];
        for (policy, expected) in policies {
            let name = policy.name();
            let seen: Vec<f64> = (0..draws)
                // The worker that asks is in a group: all ask in turn, so that it is even.
                .map(|seed| left(&formed(policy.clone(), workers, 1, seed.into(), seed % workers), &models))
                .collect();
            let mean = seen.iter().sum::<f64>() / f64::from(draws);
            let spread = seen.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / f64::from(draws - 1);
            let chance = (spread / f64::from(draws)).sqrt();
            assert!((mean - expected).abs() < 3.0 * chance, "{name} {workers} {size}: {mean} of {expected}");
            assert!(chance < 0.02, "{name} {workers} {size}: {chance} shows nothing");
        }
    }
}

/// I22: no idle worker is left out.
#[test]
fn a_division_puts_all_idle_workers_into_one_group_each() {
    for (workers, size) in [(2, 4), (3, 2), (5, 4), (8, 4), (9, 4), (13, 3), (16, 8)] {
        for seed in 0..20 {
            let groups = formed(Box::new(Division::new(size).unwrap()), workers, 1, seed, workers - 1);
            let mut members: Vec<u32> = groups.iter().flat_map(|(_, members)| members.clone()).collect();
            members.sort_unstable();
            assert_eq!(members, (0..workers).collect::<Vec<_>>(), "{groups:?}");
            let sizes =
                |(_, members): &(GroupOrigin, Vec<u32>)| (2..=size as usize + 1).contains(&members.len());
            assert!(groups.iter().all(sizes), "{groups:?}");
        }
    }
}

/// I22 and I24, and the order of the phases.
#[test]
fn two_phases_group_hosts_across_once_and_then_whole_hosts() {
    for (workers, per_host, size) in [(8, 4, 2), (12, 4, 3), (16, 4, 4), (9, 4, 2), (15, 5, 2)] {
        let hosts = workers_of_hosts(workers, per_host);
        for seed in 0..20 {
            let policy = Box::new(InterIntra::new(size).unwrap());
            let groups = formed(policy, workers, per_host, seed, 0);
            let of = |kind| groups.iter().filter(move |(one, _)| *one == kind).map(|(_, members)| members);
            let [heads] = of(GroupOrigin::Inter).collect::<Vec<_>>()[..] else { panic!("{groups:?}") };
            assert_eq!(heads.iter().map(|head| head / per_host).collect::<Vec<_>>(), of_all(&hosts));
            // In the first phase each worker is in one group, unless it is the only one that is left of its host.
            let first: Vec<u32> =
                of(GroupOrigin::Inter).chain(of(GroupOrigin::IntraPart)).flatten().copied().collect();
            let once: BTreeSet<u32> = first.iter().copied().collect();
            assert_eq!(once.len(), first.len(), "{groups:?}");
            for host in &hosts {
                let out = host.iter().filter(|worker| !once.contains(worker)).count();
                assert_eq!(out, usize::from(host.len() == 2), "{groups:?}");
            }
            let whole: Vec<Vec<u32>> = of(GroupOrigin::IntraAll).cloned().collect();
            let several = |host: &&Vec<u32>| host.len() > 1;
            assert_eq!(whole, hosts.iter().filter(several).cloned().collect::<Vec<_>>(), "{groups:?}");
            let second = groups.iter().position(|(kind, _)| *kind == GroupOrigin::IntraAll).unwrap();
            assert!(groups[second..].iter().all(|(kind, _)| *kind == GroupOrigin::IntraAll), "{groups:?}");
        }
    }
    // On one host there is nothing to cross.
    let groups = formed(Box::new(InterIntra::new(2).unwrap()), 4, 4, 0, 0);
    assert_eq!(groups, [(GroupOrigin::IntraAll, vec![0, 1, 2, 3])]);
}

fn workers_of_hosts(workers: u32, per_host: u32) -> Vec<Vec<u32>> {
    let all: Vec<u32> = (0..workers).collect();
    all.chunks(per_host as usize).map(<[u32]>::to_vec).collect()
}

/// The numbers of the hosts.
fn of_all(hosts: &[Vec<u32>]) -> Vec<u32> {
    (0..).take(hosts.len()).collect()
}

/// Each head may be any worker of its host: no card carries more than others over time.
#[test]
fn every_worker_of_a_host_is_its_head_as_often_as_others() {
    let (draws, per_host) = (4_000_u32, 4);
    let mut heads = [0_u32; 8];
    for seed in 0..draws {
        let groups = formed(Box::new(InterIntra::new(2).unwrap()), 8, per_host, seed.into(), 0);
        groups[0].1.iter().for_each(|head| heads[*head as usize] += 1);
    }
    let even = f64::from(draws) / f64::from(per_host);
    // Four times the standard deviation of a count.
    let most = 4.0 * (even * (1.0 - 1.0 / f64::from(per_host))).sqrt();
    assert!(heads.iter().all(|count| (f64::from(*count) - even).abs() < most), "{heads:?}");
}

/// Workers that ask at their own pace: one that has averaged, or has no group now, begins its next step.
struct Pace {
    generator: GroupGenerator,
    /// Time of each worker's step, and when the one under way ends; `None` while it waits.
    steps: Vec<(u64, Option<u64>)>,
    made: Vec<u64>,
    /// How long each worker waited.
    waited: Vec<u64>,
    groups: Vec<Vec<u32>>,
}

impl Pace {
    /// Pairs on one host.
    fn pairs(times: &[u64], until: u64, seed: u64) -> Self {
        Self::run(Box::new(Bipartite), u32::MAX, times, until, seed)
    }

    fn run(policy: Box<dyn GroupPolicy>, per_host: u32, times: &[u64], until: u64, seed: u64) -> Self {
        // Pairs are drawn from all, and need no bridges.
        let config = GeneratorConfig {
            seed: Seed(seed),
            bridges: policy.group_size() > 2,
            ..GeneratorConfig::default()
        };
        let mut generator = GroupGenerator::new(config, policy).unwrap();
        for index in 0..u32::try_from(times.len()).unwrap() {
            generator.hello(JobTime::ZERO, holder(index), index / per_host).unwrap();
        }
        while generator.poll_effect().is_some() {}
        let mut rng = Seed(seed).rng();
        // They begin at different moments.
        let steps = times.iter().map(|time| (*time, Some(rng.below(*time)))).collect();
        let none = vec![0; times.len()];
        let mut pace = Self { generator, steps, made: none.clone(), waited: none, groups: Vec::new() };
        for now in 0..until {
            pace.tick(now);
        }
        pace
    }

    fn tick(&mut self, now: u64) {
        for index in 0..self.steps.len() {
            if self.steps[index].1 == Some(now) {
                self.steps[index].1 = None;
                self.made[index] += 1;
                let who = holder(u32::try_from(index).unwrap());
                self.generator.request(JobTime(now), who, self.made[index]).unwrap();
                self.obey(now);
            }
        }
        for (waited, (_, step)) in self.waited.iter_mut().zip(&self.steps) {
            *waited += u64::from(step.is_none());
        }
    }

    fn obey(&mut self, now: u64) {
        while let Some(effect) = self.generator.poll_effect() {
            match effect {
                GeneratorEffect::Go { to, go, .. } => {
                    let done = self.generator.done(JobTime(now), to, go.key, ReduceOutcome::Reduced);
                    done.unwrap();
                    if to == go.members[0] {
                        self.groups.push(go.members.iter().map(|member| member.node.index).collect());
                    }
                }
                GeneratorEffect::Commit { to, .. } | GeneratorEffect::Skip { to, .. } => {
                    let (time, step) = &mut self.steps[to.node.index as usize];
                    *step = Some(now + *time);
                }
                GeneratorEffect::Abort { .. } | GeneratorEffect::Membership { .. } => panic!("{effect:?}"),
            }
        }
    }
}

/// The paper's graph: half of the workers ask, and only pairs across average.
#[test]
fn pairs_are_of_an_active_and_a_passive_worker_and_each_active_one_meets_each_passive_one() {
    for workers in 2_u32..9 {
        let times: Vec<u64> = (0..workers).map(|index| 100 + u64::from(index)).collect();
        let pace = Pace::pairs(&times, 40_000, workers.into());
        let met: BTreeSet<Vec<u32>> = pace.groups.iter().cloned().collect();
        assert!(met.iter().all(|pair| pair.len() == 2 && pair[0] % 2 != pair[1] % 2), "{met:?}");
        assert_eq!(met.len() as u32, (workers / 2) * workers.div_ceil(2), "{workers}: {met:?}");
    }
}

#[test]
fn active_workers_average_in_each_step_and_passive_ones_never_wait() {
    for workers in [2_usize, 4, 8] {
        let pace = Pace::pairs(&vec![100; workers], 20_000, 1);
        let of = |index: u32| pace.groups.iter().filter(|pair| pair.contains(&index)).count() as u64;
        for index in 0..workers {
            let (made, waited) = (pace.made[index], pace.waited[index]);
            if index % 2 == 1 {
                assert!(made - of(index as u32) <= 1, "{index} of {workers}: {made} steps");
            } else {
                assert_eq!(waited, 0, "{index} of {workers}");
            }
        }
    }
}

/// The filter lets no worker wait for a step of the slow one, but in the first few steps; and the slow one has its share.
#[test]
fn a_slow_worker_does_not_set_the_pace_of_the_others_and_is_not_left_alone() {
    for slow in 0..8_usize {
        let mut times = vec![100; 8];
        times[slow] = 1_000;
        let pace = Pace::pairs(&times, 50_000, 3);
        for index in (0..8).filter(|index| *index != slow) {
            // Of 500 steps without any wait: one that asks waits half a step of a like one on average.
            assert!(pace.made[index] > 250, "{index} beside slow {slow}: {:?}", pace.made);
        }
        let of_slow = pace.groups.iter().filter(|pair| pair.contains(&(slow as u32))).count();
        assert!(of_slow > 40, "{slow}: {of_slow} of {} steps", pace.made[slow]);
    }
}

/// A fast worker that averaged with it often enough is as far behind, and no other drafts either: they would keep its pace.
#[test]
fn a_worker_that_is_far_behind_does_not_keep_its_host_behind() {
    for seed in 0..10 {
        let run = |factor: u64| {
            let mut times = vec![100; 8];
            times[1] *= factor;
            Pace::run(Box::new(InterIntra::new(3).unwrap()), 4, &times, 20_000, seed)
        };
        let (even, pace) = (run(1), run(5));
        let fast = |pace: &Pace| pace.made.iter().sum::<u64>() - pace.made[1];
        assert!(4 * fast(&pace) > 3 * fast(&even), "{:?} and {:?}", pace.made, even.made);
        // It is not left alone, and averages inside and outside of its host.
        let of_slow: Vec<_> = pace.groups.iter().filter(|group| group.contains(&1)).collect();
        assert!(4 * of_slow.len() as u64 > pace.made[1], "{} of {}", of_slow.len(), pace.made[1]);
        let met: BTreeSet<bool> =
            of_slow.iter().copied().flatten().filter(|it| **it != 1).map(|it| *it < 4).collect();
        assert_eq!(met.len(), 2, "{of_slow:?}");
    }
}
