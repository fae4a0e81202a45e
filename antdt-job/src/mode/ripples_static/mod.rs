//! The sync mode `ripples-static[=WORKERS]`: every worker trains a separate model, and averages it with the
//! group that a fixed schedule names.
//!
//! The schedule is [`StaticSchedule`]: in odd steps the workers of a host average with each other; in even
//! steps one worker of each host, its head, averages with the heads of the other hosts, and the rest of a
//! host in pairs. So one flow leaves each host, every second step. Workers that the schedule leaves alone
//! average with other such workers, if there are any. The groups of a step are a function of the step and of
//! the members alone.
//!
//! Workers are on one host if their data addresses are. With a number, that many workers one after the other count as a host,
//! wherever they are. When workers come or go, a new group is formed, and the schedule is that of the new ranks.
//!
//! All members agree on each step before they go on, in the second of two rounds.
//!
//! A step of a worker: `Load`, `Compute`, `Advance`, `Combine`, `Agree`, `Apply`, `Exchange`.
//!
//! Source: the static scheduler of Ripples, see [`StaticSchedule`]; agreement and deaths are our design.

use antdt_core::{Capabilities, Holder, InvalidValue, Rank};
use antdt_groups::StaticSchedule;

use super::shared::group::Group;
use super::shared::local_steps::LocalSteps;
use super::shared::member::{Member, Partners};
use super::{Entry, HeadHalf, Mode, SyncMode, WorkerHalf};

/// Entry of the sync mode `ripples-static` in the registry.
pub const ENTRY: Entry = Entry {
    name: "ripples-static",
    setting: Some("[WORKERS]"),
    about: "every worker trains a model of its own and averages it in groups by a fixed schedule; WORKERS count as a host",
    example: "ripples-static=2",
    parse,
};

/// Most workers of a host: beyond, a slip of the hand is likelier than a wish.
const HOST_MAX: u32 = 4096;

fn parse(setting: Option<&str>) -> Result<SyncMode, InvalidValue> {
    let Some(given) = setting else { return Ok(SyncMode::new(RipplesStatic { host: None })) };
    match given.parse().ok().filter(|host| (2..=HOST_MAX).contains(host)) {
        Some(host) => Ok(SyncMode::new(RipplesStatic { host: Some(host) })),
        None => {
            let expected = format!(
                "{0}, or {0}=WORKERS with 2 to {HOST_MAX} workers that count as a host, such as {1}",
                ENTRY.name, ENTRY.example
            );
            Err(InvalidValue::new("--sync", format!("{}={given}", ENTRY.name), expected))
        }
    }
}

/// The sync mode `ripples-static`: a fixed schedule names the groups that average their models. See the
/// [module](self).
#[derive(Debug, Clone, Copy)]
pub struct RipplesStatic {
    /// Number of workers that count as one host; `None` to take workers with the same address as one host.
    pub host: Option<u32>,
}

impl RipplesStatic {
    /// The members host by host, in the order in which hosts and their workers come, and the number of workers of each host.
    fn hosts(self, members: &[(Holder, String)]) -> (Vec<Rank>, Vec<u32>) {
        let mut hosts: Vec<(&str, Vec<Rank>)> = Vec::new();
        for ((_, address), rank) in members.iter().zip(0..) {
            let name = match self.host {
                Some(_) => "",
                None => address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host),
            };
            let is_open = |(known, ranks): &&mut (&str, Vec<Rank>)| {
                *known == name && self.host.is_none_or(|most| ranks.len() < most as usize)
            };
            match hosts.iter_mut().find(is_open) {
                Some((_, ranks)) => ranks.push(Rank(rank)),
                None => hosts.push((name, vec![Rank(rank)])),
            }
        }
        let lens = hosts.iter().map(|(_, ranks)| u32::try_from(ranks.len()).expect("fewer than 2^32"));
        let lens = lens.collect();
        (hosts.into_iter().flat_map(|(_, ranks)| ranks).collect(), lens)
    }
}

/// The groups of a step by the schedule, as places in the order host by host; each in order, and they in that of their firsts.
fn groups(workers: &[u32], step: u64) -> Vec<Vec<usize>> {
    let schedule = StaticSchedule::new(workers).expect("each host has a worker");
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut is_placed = vec![false; schedule.world() as usize];
    for place in 0..schedule.world() {
        if !is_placed[place as usize] {
            let group = schedule.group(Rank(place), step).into_iter().map(|rank| rank.0 as usize);
            groups.push(group.inspect(|member| is_placed[*member] = true).collect());
        }
    }
    groups
}

/// Gives each worker that the schedule leaves alone at least one partner: all members commit a step together, and the samples of a
/// worker that averaged with no other would be lost if it died.
///
/// Lone workers of one host average with each other. A single lone worker of a host joins the first group that lies within that
/// host; if there is none, it averages with the lone workers of other hosts.
fn no_worker_alone(workers: &[u32], groups: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
    let (alone, mut groups): (Vec<_>, Vec<_>) = groups.into_iter().partition(|group| group.len() == 1);
    let mut strangers = Vec::new();
    let mut first = 0;
    for len in workers {
        let host = first..first + *len as usize;
        first = host.end;
        let mut own: Vec<usize> =
            alone.iter().flatten().copied().filter(|place| host.contains(place)).collect();
        let of_host = groups.iter_mut().find(|group| group.iter().all(|place| host.contains(place)));
        match (own.len(), of_host) {
            (0, _) => {}
            (1, Some(group)) => group.append(&mut own),
            (1, None) => strangers.append(&mut own),
            _ => groups.push(own),
        }
    }
    match groups.first_mut() {
        Some(group) if strangers.len() == 1 => group.append(&mut strangers),
        _ if strangers.is_empty() => {}
        _ => groups.push(strangers),
    }
    groups
}

impl Partners for RipplesStatic {
    fn of(&self, step: u64, me: Rank, members: &[(Holder, String)]) -> Vec<Rank> {
        let (order, workers) = self.hosts(members);
        let place = order.iter().position(|rank| *rank == me).expect("a member is on a host");
        let groups = no_worker_alone(&workers, groups(&workers, step));
        let own = groups.into_iter().find(|group| group.contains(&place)).expect("a member is in a group");
        let mut ranks: Vec<Rank> = own.into_iter().map(|place| order[place]).collect();
        ranks.sort_unstable();
        ranks
    }
}

impl Mode for RipplesStatic {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn setting(&self) -> Option<String> {
        self.host.map(|host| host.to_string())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::MIXED_IN_STEP
    }

    fn head(&self) -> Box<dyn HeadHalf> {
        Box::new(Group::default())
    }

    fn worker(&self) -> Box<dyn WorkerHalf> {
        Box::new(Member::mixing(LocalSteps::new(1), *self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::shared::mixing;

    #[test]
    fn a_host_has_at_least_two_workers_or_is_found_by_its_address() {
        for text in ["ripples-static", "ripples-static=2", "ripples-static=4096"] {
            assert_eq!(text.parse::<SyncMode>().unwrap().to_string(), text);
        }
        for wrong in [
            "ripples-static=",
            "ripples-static=0",
            "ripples-static=1",
            "ripples-static=4097",
            "ripples-static=x",
        ] {
            let error = wrong.parse::<SyncMode>().unwrap_err().to_string();
            let expected =
                format!("--sync = {wrong}: must be ripples-static, or ripples-static=WORKERS with 2 to 4096");
            assert!(error.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn groups_are_mutual_and_the_mean_of_all_models_stays() {
        for host in [None, Some(2), Some(3), Some(4)] {
            for world in 1..14 {
                for step in 0..8 {
                    mixing::keeps_the_mean(&RipplesStatic { host }, step, &mixing::one_host(world));
                    mixing::keeps_the_mean(&RipplesStatic { host }, step, &mixing::hosts(world, 3));
                }
            }
        }
    }

    #[test]
    fn no_worker_with_company_averages_alone() {
        for host in [None, Some(2), Some(3), Some(4)] {
            let mode = RipplesStatic { host };
            for world in 2..14_u32 {
                for members in [mixing::one_host(world), mixing::hosts(world, 3), mixing::hosts(world, world)]
                {
                    for (step, me) in (0..8).flat_map(|step| (0..world).map(move |me| (step, Rank(me)))) {
                        let own = mode.of(step, me, &members);
                        assert!(own.len() > 1, "{mode:?}, {world} workers, step {step}: {me} with {own:?}");
                    }
                }
            }
        }
        assert_eq!(RipplesStatic { host: None }.of(1, Rank(0), &mixing::one_host(1)), [Rank(0)]);
    }

    #[test]
    fn workers_of_a_host_average_in_odd_steps_and_heads_in_even_ones() {
        // Ranks 0, 3 on one host, 1, 4 on another, and 2 on a third one.
        let members = mixing::hosts(5, 3);
        let by_address = RipplesStatic { host: None };
        let of = |mode: &RipplesStatic, step, me| -> Vec<u32> {
            mode.of(step, Rank(me), &members).iter().map(|rank| rank.0).collect()
        };
        assert_eq!(of(&by_address, 1, 4), [1, 4]);
        assert_eq!(of(&by_address, 1, 2), [0, 2, 3], "alone on its host, it comes to the first group");
        assert_eq!(of(&by_address, 0, 0), [0, 1, 2], "the heads of the hosts");
        assert_eq!(of(&by_address, 2, 4), [3, 4], "the other worker of a host takes its turn");
        let by_number = RipplesStatic { host: Some(2) };
        assert_eq!(of(&by_number, 1, 3), [2, 3]);
        assert_eq!(of(&by_number, 0, 0), [0, 2, 4]);
    }
}
