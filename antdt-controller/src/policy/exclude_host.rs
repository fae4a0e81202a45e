//! The policy `exclude-host`: it excludes hosts all of whose workers are slow, by the action `EXCLUDE_HOST`.
//!
//! A host is excluded when all its live workers, at least two, are stragglers and were slow for half of the
//! long window, one of them through all of it, while a live worker of another host is no straggler at all.
//! One worker that is slow through the whole window is enough, because it may be restarted then, and a
//! restart must not place it on the host again. When two workers of one host are slow for so long, the host
//! is a likelier cause than the workers, and a restart on the same host cures nothing. The policy restarts no
//! worker itself; joined with one that does (`nd+exclude-host`), restarted workers run on other hosts.
//!
//! At most half of the hosts that the launcher may choose among are excluded, because the others carry all
//! workers. A host stays excluded to the end of the job, because no worker runs there any more that could
//! show that the host has become fast.
//!
//! Source: our design.

use std::collections::BTreeMap;
use std::sync::Arc;

use antdt_core::{ClusterView, JobTime, NodeView, Pace, Reason, StragglerKind};

use super::{Decision, Policy, percent};
use crate::action::ValueAction;
use crate::action::exclude_host::{ExcludeHost, Excluded};
use crate::budget::RestartBudget;

/// Fewest live workers of a host that are evidence about the host.
const WORKERS_MIN: usize = 2;

/// Part of the long window in which each of them was slow. Half: a second one that is slow for a moment is no evidence about the host.
const SLOW_LEAST: f64 = 0.5;

/// The policy that excludes a host when all its workers are slow. The [module](self) has the rules.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExcludeSlowHosts;

impl ExcludeSlowHosts {
    /// Name of the policy in the registry.
    pub const NAME: &'static str = "exclude-host";
}

/// Lower median of the ratios of these workers, in percent; `None` if none is known.
fn ratio_percent(workers: &[&NodeView]) -> Option<u32> {
    let mut ratios: Vec<f64> = workers.iter().filter_map(|worker| worker.slowness_ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len().checked_sub(1)? / 2).copied().map(percent)
}

impl Policy for ExcludeSlowHosts {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn actions(&self) -> Vec<&'static str> {
        vec![ExcludeHost::NAME]
    }

    fn decide(&mut self, _now: JobTime, view: &ClusterView, _budget: &RestartBudget) -> Decision {
        let mut hosts: BTreeMap<&Arc<str>, Vec<&NodeView>> = BTreeMap::new();
        for worker in view.live_workers().filter(|worker| !worker.host.is_empty()) {
            hosts.entry(&worker.host).or_default().push(worker);
        }
        let Excluded(mut excluded) = Excluded::of(&view.actions);
        let is_persistent = |worker: &&NodeView| worker.pace == Pace::Straggler(StragglerKind::Persistent);
        let is_slow = |worker: &&NodeView| {
            let own = is_persistent(worker) || worker.pace == Pace::Straggler(StragglerKind::Transient);
            own && worker.slow_fraction_long >= SLOW_LEAST
        };
        let slow = hosts.iter().find(|(host, workers)| {
            let others = hosts.iter().filter(|(other, _)| other != host);
            let one_is_well = others
                .flat_map(|(_, workers)| workers)
                .any(|worker| matches!(worker.pace, Pace::Normal | Pace::Leader));
            workers.len() >= WORKERS_MIN
                && workers.iter().all(is_slow)
                && workers.iter().any(is_persistent)
                && one_is_well
                && !excluded.contains(&****host)
        });
        let Some((host, workers)) = slow else { return Decision::nothing(Reason::Balanced) };
        excluded.insert((**host).to_string());
        let count = excluded.len();
        let value = Excluded(excluded);
        if let Err(unfit) = value.suits(&view.hosts) {
            return Decision::nothing(Reason::Other(unfit.to_string()));
        }
        if count > view.hosts.len() / 2 {
            let text = format!("host {host} is slow, and half of the hosts are excluded already");
            return Decision::nothing(Reason::Other(text));
        }
        let ratio = ratio_percent(workers).map_or(String::new(), |percent| {
            format!(" ({:.2}x their peers' time per sample)", f64::from(percent) / 100.0)
        });
        let text = format!(
            "all {} workers of host {host} are slow{ratio}: workers that are restarted run elsewhere",
            workers.len()
        );
        let mut decision = Decision { reasons: vec![Reason::Other(text)], ..Decision::default() };
        decision.ask::<ExcludeHost>(&value);
        decision
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::Capabilities;

    use super::*;
    use crate::testing::quiet_view;

    /// Two workers on each of these hosts, slow ones or not.
    fn view(hosts: &[(&str, bool)]) -> ClusterView {
        let times: Vec<u64> =
            hosts.iter().flat_map(|(_, slow)| [if *slow { 3000 } else { 1000 }; 2]).collect();
        let mut view = quiet_view(Capabilities::REPLICAS_IN_STEP, &times);
        for (worker, (host, slow)) in view.workers.iter_mut().zip(hosts.iter().flat_map(|it| [it; 2])) {
            worker.host = (*host).into();
            if *slow {
                worker.pace = Pace::Straggler(StragglerKind::Persistent);
                worker.slow_fraction_long = 1.0;
            }
        }
        view.hosts = Arc::new(hosts.iter().map(|(host, _)| (*host).to_owned()).collect());
        view
    }

    fn decide(view: &ClusterView) -> Decision {
        ExcludeSlowHosts.decide(JobTime::ZERO, view, &RestartBudget::default())
    }

    fn excluded(view: &ClusterView) -> Option<String> {
        decide(view).actions.get(ExcludeHost::NAME).cloned()
    }

    #[test]
    fn a_host_all_of_whose_workers_are_slow_is_excluded_once_and_named_with_its_evidence() {
        let mut slow = view(&[("a", false), ("b", true), ("c", false), ("d", false)]);
        assert_eq!(excluded(&slow).as_deref(), Some("b"));
        let said = decide(&slow).reasons[0].to_string();
        assert!(said.contains("all 2 workers of host b") && said.contains("3.00x"), "{said}");
        slow.actions = Arc::new(decide(&slow).actions);
        assert_eq!(decide(&slow), Decision::nothing(Reason::Balanced));
        // Another one comes on top.
        let mut two = view(&[("a", false), ("b", true), ("c", true), ("d", false)]);
        two.actions = slow.actions;
        assert_eq!(excluded(&two).as_deref(), Some("b,c"));
    }

    #[test]
    fn one_slow_worker_or_a_moment_or_all_workers_is_no_reason() {
        let hosts = [("a", false), ("b", true), ("c", false)];
        let mut one = view(&hosts);
        one.workers[3].pace = Pace::Normal;
        assert_eq!(excluded(&one), None);
        let mut moment = view(&hosts);
        moment.workers[3].pace = Pace::Straggler(StragglerKind::Transient);
        assert_eq!(
            excluded(&moment).as_deref(),
            Some("b"),
            "one may be restarted, and both were slow for long"
        );
        moment.workers[3].slow_fraction_long = 0.4;
        assert_eq!(excluded(&moment), None);
        let mut soon = view(&hosts);
        for worker in &mut soon.workers[2..4] {
            worker.pace = Pace::Straggler(StragglerKind::Transient);
        }
        assert_eq!(excluded(&soon), None);
        let mut alone = view(&hosts);
        alone.workers.remove(3);
        assert_eq!(excluded(&alone), None, "one worker is no evidence about its host");
        assert_eq!(excluded(&view(&[("a", true), ("b", true)])), None);
    }

    #[test]
    fn where_there_is_no_other_host_or_half_are_excluded_it_says_so() {
        let mut one = view(&[("a", false), ("b", true)]);
        one.hosts = Arc::default();
        let said = decide(&one).reasons[0].to_string();
        assert!(said.contains("does not know several hosts"), "{said}");
        let mut half = view(&[("a", true), ("b", false), ("c", true)]);
        half.actions = Arc::new(decide(&view(&[("a", true), ("b", false), ("c", false)])).actions);
        let said = decide(&half).reasons[0].to_string();
        assert!(said.contains("half of the hosts"), "{said}");
    }
}
