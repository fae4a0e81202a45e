//! [`StaticSchedule`]: groups that follow from rank and step alone, without a generator.

use antdt_core::{InvalidValue, Rank};

/// A fixed schedule of groups, without a generator, for even clusters: every member computes the same group
/// from its rank and the step alone.
///
/// In odd steps a host averages as a whole. In even ones one worker of each host, its head, averages with
/// those of the other hosts, and the rest of the host in pairs; which worker is the head changes from one
/// even step to the next. So each network card carries one flow, every second step. All members of a group
/// are in the same step, and take their steps in order: no two can wait for each other. But all workers wait
/// for each other within two steps, so one slow worker slows all; that is what the
/// [`GroupGenerator`](crate::GroupGenerator) is for.
///
/// Among models that are equal inside hosts, each two steps leave `(1 - 1/L)²` of the variance with `L`
/// workers a host, however many hosts there are.
///
/// Source: the static scheduler in the public part of Ripples's code, which has 4 workers a host built in;
/// other numbers of workers, also different ones, are our generalisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticSchedule {
    /// The first rank of each host, and the number of all ranks.
    firsts: Vec<u32>,
    /// Local ranks that take turns as heads.
    heads: u32,
}

impl StaticSchedule {
    /// Returns the schedule for hosts with these numbers of workers; ranks are counted host by host. Two
    /// workers of a host take turns as its head.
    ///
    /// # Errors
    /// If there is no host, a host has no workers, or there are too many workers to count.
    pub fn new(workers_per_host: &[u32]) -> Result<Self, InvalidValue> {
        let most = workers_per_host.iter().copied().max().unwrap_or(0);
        Self::with_heads(workers_per_host, most.min(2))
    }

    /// Returns the schedule in which `heads` workers of each host take turns as its head.
    ///
    /// # Errors
    /// As [`new`](Self::new); also if `heads` is 0, or larger than the number of workers of the largest host.
    pub fn with_heads(workers_per_host: &[u32], heads: u32) -> Result<Self, InvalidValue> {
        let (Some(most), Some(least)) = (workers_per_host.iter().max(), workers_per_host.iter().min()) else {
            return Err(InvalidValue::new("workers_per_host", "(nothing)", "at least one host"));
        };
        if *least == 0 {
            return Err(InvalidValue::new("workers_per_host", 0, "at least 1 on every host"));
        }
        if heads == 0 || heads > *most {
            return Err(InvalidValue::new("heads", heads, format!("1 to {most}, the workers of a host")));
        }
        let mut firsts = vec![0_u32];
        for workers in workers_per_host {
            let next = firsts.last().and_then(|first| first.checked_add(*workers));
            let too_many = || InvalidValue::new("workers_per_host", workers, "below 2^32 in all");
            firsts.push(next.ok_or_else(too_many)?);
        }
        Ok(Self { firsts, heads })
    }

    /// Returns the number of ranks.
    pub fn world(&self) -> u32 {
        self.firsts.last().copied().unwrap_or(0)
    }

    /// Returns the group of `rank` in `step`, in order of ranks; only `rank` itself if it averages alone.
    /// O(its size), and O(hosts) for heads.
    ///
    /// # Panics
    /// If `rank` is not below [`world`](Self::world).
    pub fn group(&self, rank: Rank, step: u64) -> Vec<Rank> {
        assert!(rank.0 < self.world(), "rank {rank} is outside a world of {}", self.world());
        let host = self.firsts.partition_point(|first| *first <= rank.0) - 1;
        let (first, len) = self.host(host);
        if step % 2 == 1 {
            return (first..first + len).map(Rank).collect();
        }
        let head = u32::try_from(step / 2 % u64::from(self.heads)).expect("below a u32");
        let local = rank.0 - first;
        if local == head {
            let hosts = (0..self.firsts.len() - 1).map(|host| self.host(host));
            return hosts.filter(|(_, len)| head < *len).map(|(first, _)| Rank(first + head)).collect();
        }
        // The others are counted from the head on, or from the first if this host has none, and paired from the end.
        let (from, others) = if head < len { (head + 1, len - 1) } else { (0, len) };
        let place = (local + len - from % len) % len;
        let alone = others % 2;
        if place < alone {
            return vec![rank];
        }
        let peer = ((place - alone) ^ 1) + alone;
        let peer = first + (peer + from) % len;
        let mut pair = vec![rank, Rank(peer)];
        pair.sort_unstable();
        pair
    }

    /// The first rank of a host, and its workers.
    fn host(&self, host: usize) -> (u32, u32) {
        (self.firsts[host], self.firsts[host + 1] - self.firsts[host])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn group(schedule: &StaticSchedule, rank: u32, step: u64) -> Vec<u32> {
        schedule.group(Rank(rank), step).iter().map(|rank| rank.0).collect()
    }

    #[test]
    fn hosts_of_four_follow_the_table_of_the_published_schedule() {
        let schedule = StaticSchedule::new(&[4; 3]).unwrap();
        // By phase, of the second host's workers.
        let heads = |head| vec![head, 4 + head, 8 + head];
        let whole = || vec![4, 5, 6, 7];
        let table = [
            [heads(0), vec![5], vec![6, 7], vec![6, 7]],
            [whole(), whole(), whole(), whole()],
            [vec![4, 7], heads(1), vec![6], vec![4, 7]],
            [whole(), whole(), whole(), whole()],
        ];
        for (step, row) in (0_u64..8).zip(table.iter().cycle()) {
            for (rank, expected) in (4..8).zip(row) {
                assert_eq!(group(&schedule, rank, step), *expected, "rank {rank} in step {step}");
            }
        }
    }

    #[test]
    fn groups_of_a_step_partition_the_workers_and_all_members_agree() {
        for hosts in [&[1][..], &[1, 1, 1], &[2, 2], &[3], &[5, 5], &[4, 1, 3, 2], &[1, 7], &[8, 8]] {
            let most = *hosts.iter().max().unwrap();
            for heads in 1..=most {
                let schedule = StaticSchedule::with_heads(hosts, heads).unwrap();
                for step in 0..u64::from(4 * most) {
                    let groups: BTreeSet<Vec<u32>> =
                        (0..schedule.world()).map(|rank| group(&schedule, rank, step)).collect();
                    let mut all: Vec<u32> = groups.iter().flatten().copied().collect();
                    all.sort_unstable();
                    assert_eq!(all, (0..schedule.world()).collect::<Vec<_>>(), "{hosts:?} {heads} {step}");
                    let own = |rank: u32| group(&schedule, rank, step).contains(&rank);
                    assert!((0..schedule.world()).all(own));
                    // In even steps at most one group spans hosts, and no worker is alone but the odd one of a host.
                    let host = |rank: u32| schedule.firsts.partition_point(|first| *first <= rank);
                    let spans = |group: &&Vec<u32>| group.iter().any(|rank| host(*rank) != host(group[0]));
                    assert!(groups.iter().filter(spans).count() <= usize::from(step % 2 == 0));
                }
            }
        }
    }

    #[test]
    fn four_steps_leave_the_variance_between_hosts_that_the_formula_says() {
        for workers in 2..6_u32 {
            let hosts = 4;
            let schedule = StaticSchedule::new(&vec![workers; hosts]).unwrap();
            // Models that agree inside each host.
            let mut models: Vec<f64> =
                (0..schedule.world()).map(|rank| f64::from(rank / workers * 3 % 5)).collect();
            let variance = |models: &[f64]| {
                let mean = models.iter().sum::<f64>() / models.len() as f64;
                models.iter().map(|model| (model - mean).powi(2)).sum::<f64>()
            };
            let before = variance(&models);
            for step in 0..4 {
                let mean = |rank: u32| {
                    let group = group(&schedule, rank, step);
                    group.iter().map(|rank| models[*rank as usize]).sum::<f64>() / group.len() as f64
                };
                models = (0..schedule.world()).map(mean).collect();
            }
            let expected = (1.0 - 1.0 / f64::from(workers)).powi(4);
            assert!((variance(&models) / before - expected).abs() < 1e-9, "{workers} workers a host");
        }
    }

    #[test]
    fn impossible_schedules_are_refused() {
        for hosts in [&[][..], &[2, 0], &[u32::MAX, 1]] {
            assert!(StaticSchedule::new(hosts).unwrap_err().to_string().starts_with("workers_per_host"));
        }
        assert!(StaticSchedule::with_heads(&[2, 3], 4).is_err());
        assert!(StaticSchedule::with_heads(&[2, 3], 0).is_err());
    }
}
