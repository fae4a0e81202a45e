//! `ripples-static[=WORKERS]`: every worker trains a model of its own, and averages it with the group that a fixed schedule names.
//!
//! The schedule is [`StaticSchedule`]: in odd steps the workers of a host average with each other; in even steps one worker of
//! each host, its head, averages with the heads of the other hosts, and the rest of a host in pairs. So one flow leaves each
//! host, every second step. The groups of a step are a function of the step and of the members alone.
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

/// The line of this mode in the registry.
pub const ENTRY: Entry = Entry {
    name: "ripples-static",
    setting: Some("WORKERS"),
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

/// See the [module](self).
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

impl Partners for RipplesStatic {
    fn of(&self, step: u64, me: Rank, members: &[(Holder, String)]) -> Vec<Rank> {
        let (order, workers) = self.hosts(members);
        let schedule = StaticSchedule::new(&workers).expect("each host has a worker");
        let place = order.iter().position(|rank| *rank == me).expect("a member is on a host");
        let group = schedule.group(Rank(u32::try_from(place).expect("fewer than 2^32")), step);
        let mut ranks: Vec<Rank> = group.into_iter().map(|place| order[place.0 as usize]).collect();
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
    fn workers_of_a_host_average_in_odd_steps_and_heads_in_even_ones() {
        // Ranks 0, 3 on one host, 1, 4 on another, and 2 on a third one.
        let members = mixing::hosts(5, 3);
        let by_address = RipplesStatic { host: None };
        let of = |mode: &RipplesStatic, step, me| -> Vec<u32> {
            mode.of(step, Rank(me), &members).iter().map(|rank| rank.0).collect()
        };
        assert_eq!(of(&by_address, 1, 3), [0, 3]);
        assert_eq!(of(&by_address, 1, 2), [2]);
        assert_eq!(of(&by_address, 0, 0), [0, 1, 2], "the heads of the hosts");
        assert_eq!(of(&by_address, 2, 4), [3, 4], "the other worker of a host takes its turn");
        let by_number = RipplesStatic { host: Some(2) };
        assert_eq!(of(&by_number, 1, 3), [2, 3]);
        assert_eq!(of(&by_number, 0, 0), [0, 2, 4]);
    }
}
