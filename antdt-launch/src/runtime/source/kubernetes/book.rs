//! [`PodBook`]: the pods of a job, and what is to be created and deleted. Pure: it is told what is asked for and what the API server shows.
//!
//! A host has one pod at a time, named after it and a number that grows. What another master of the same job has left counts: its pods are
//! found by their labels, before anything is created.

use std::collections::{BTreeMap, BTreeSet};

use super::manifest::PodOrder;
use super::view::{PodEnd, PodPhase, PodView};
use crate::runtime::source::{HostEvent, HostRequest};

/// Nodes of a host's earlier pods that its next pod avoids, at most.
const AVOIDED_MAX: usize = 3;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BookEffect {
    Create(PodOrder),
    /// Delete a pod; at once, without a word of its node, if so.
    Delete {
        pod: String,
        at_once: bool,
    },
    Report(HostEvent),
}

/// See the module.
#[derive(Debug)]
pub(super) struct PodBook {
    job: String,
    hosts: BTreeMap<String, HostPods>,
    /// What was asked for before it is known what there is.
    asked: Option<Vec<HostRequest>>,
}

#[derive(Debug, Default)]
struct HostPods {
    /// Number of its next pod.
    next: u32,
    live: Option<LivePod>,
    /// The last pod that has ended, kept for its log.
    over: Option<String>,
    /// Nodes to leave alone, the oldest first.
    not_on: Vec<String>,
}

#[derive(Debug)]
struct LivePod {
    name: String,
    node: Option<String>,
    /// What was reported of it.
    phase: Option<PodPhase>,
    removal: Option<String>,
    /// Whether it was given up, because it is out of reach.
    is_given_up: bool,
}

impl LivePod {
    const fn new(name: String) -> Self {
        Self { name, node: None, phase: None, removal: None, is_given_up: false }
    }
}

impl PodBook {
    pub(super) fn new(job: &str) -> Self {
        Self { job: job.to_owned(), hosts: BTreeMap::new(), asked: Some(Vec::new()) }
    }

    /// A host is wanted.
    pub(super) fn start(&mut self, request: &HostRequest) -> Vec<BookEffect> {
        if let Some(asked) = &mut self.asked {
            asked.push(request.clone());
            return Vec::new();
        }
        let HostRequest { name, slots } = request;
        let host = self.hosts.entry(name.clone()).or_default();
        if let Some(live) = &host.live {
            return live.phase.iter().filter_map(|phase| report(name, phase)).collect();
        }
        let pod = format!("{}-{name}-{}", self.job, host.next);
        host.next += 1;
        host.live = Some(LivePod::new(pod.clone()));
        let not_on = host.not_on.clone();
        vec![BookEffect::Create(PodOrder { pod, host: name.clone(), slots: *slots, not_on })]
    }

    /// The host's pod is out of reach, or has come to nothing.
    pub(super) fn stop(&mut self, name: &str) -> Vec<BookEffect> {
        let Some(host) = self.hosts.get_mut(name) else { return Vec::new() };
        let Some(live) = &mut host.live else { return Vec::new() };
        live.is_given_up = true;
        let (pod, node) = (live.name.clone(), live.node.clone());
        host.avoid(node);
        vec![BookEffect::Delete { pod, at_once: true }]
    }

    /// All pods that there are.
    pub(super) fn listed(&mut self, pods: Vec<PodView>) -> Vec<BookEffect> {
        let there: BTreeSet<String> = pods.iter().map(|pod| pod.name.clone()).collect();
        let known = self.hosts.values().flat_map(|host| {
            // One that is being created may not be in the list yet.
            let seen = host.live.as_ref().filter(|live| live.phase.is_some()).map(|live| live.name.clone());
            [seen, host.over.clone()]
        });
        let gone: Vec<String> = known.flatten().filter(|name| !there.contains(name)).collect();
        let mut effects: Vec<BookEffect> = gone.iter().flat_map(|name| self.gone(name)).collect();
        effects.extend(pods.into_iter().flat_map(|pod| self.seen(pod)));
        for request in self.asked.take().unwrap_or_default() {
            effects.extend(self.start(&request));
        }
        effects
    }

    /// A pod has come or changed.
    pub(super) fn seen(&mut self, pod: PodView) -> Vec<BookEffect> {
        let PodView { name, host: host_name, node, phase, removal } = pod;
        let host = self.hosts.entry(host_name.clone()).or_default();
        let number = name.rsplit('-').next().and_then(|number| number.parse::<u32>().ok());
        host.next = host.next.max(number.map_or(0, |number| number.saturating_add(1)));
        if let PodPhase::Over(end) = phase {
            return host.over(&host_name, name, node, end);
        }
        let live = host.live.get_or_insert_with(|| LivePod::new(name.clone()));
        if live.name != name {
            // A host is one program.
            let is_news = removal.is_none();
            return is_news.then_some(BookEffect::Delete { pod: name, at_once: false }).into_iter().collect();
        }
        (live.node, live.removal) = (node, removal.or(live.removal.take()));
        if live.phase.as_ref() == Some(&phase) {
            return Vec::new();
        }
        let report = report(&host_name, &phase);
        live.phase = Some(phase);
        report.into_iter().collect()
    }

    /// A pod is there no more.
    pub(super) fn gone(&mut self, pod: &str) -> Vec<BookEffect> {
        for (name, host) in &mut self.hosts {
            if host.over.as_deref() == Some(pod) {
                host.over = None;
            }
            let Some(live) = host.live.take_if(|live| live.name == pod) else { continue };
            let node = live.node.as_deref().unwrap_or("(none)");
            let why = match live.removal {
                _ if live.is_given_up => {
                    format!(
                        "its pod on node {node} was given up: no word from it, the node or its network is lost"
                    )
                }
                Some(why) => why,
                None => format!("its pod {pod} was deleted"),
            };
            return vec![BookEffect::Report(HostEvent::Ended { host: name.clone(), why, is_dead: true })];
        }
        Vec::new()
    }

    /// A pod could not be created.
    pub(super) fn refused(&mut self, pod: &str, why: String) -> Vec<BookEffect> {
        for (name, host) in &mut self.hosts {
            // One that is seen has been created after all.
            if host.live.take_if(|live| live.name == pod && live.phase.is_none()).is_some() {
                return vec![BookEffect::Report(HostEvent::Ended { host: name.clone(), why, is_dead: true })];
            }
        }
        Vec::new()
    }

    /// Names of all pods that there are, as far as is known.
    pub(super) fn pods(&self) -> BTreeSet<String> {
        let of_host = |host: &HostPods| [host.live.as_ref().map(|live| live.name.clone()), host.over.clone()];
        self.hosts.values().flat_map(of_host).flatten().collect()
    }
}

impl HostPods {
    /// The program of a pod has ended.
    fn over(&mut self, host: &str, name: String, node: Option<String>, end: PodEnd) -> Vec<BookEffect> {
        if self.over.as_ref() == Some(&name) {
            return Vec::new();
        }
        let mut effects = Vec::new();
        if self.live.take_if(|live| live.name == name).is_some() {
            let PodEnd { why, is_of_node } = end;
            if is_of_node {
                self.avoid(node);
            }
            effects.push(BookEffect::Report(HostEvent::Ended { host: host.to_owned(), why, is_dead: true }));
        }
        let before = self.over.replace(name);
        effects.extend(before.map(|pod| BookEffect::Delete { pod, at_once: false }));
        effects
    }

    fn avoid(&mut self, node: Option<String>) {
        let Some(node) = node else { return };
        self.not_on.retain(|known| *known != node);
        self.not_on.push(node);
        if self.not_on.len() > AVOIDED_MAX {
            self.not_on.remove(0);
        }
    }
}

fn report(host: &str, phase: &PodPhase) -> Option<BookEffect> {
    let host = host.to_owned();
    match phase {
        PodPhase::Waits(why) => Some(BookEffect::Report(HostEvent::Waits { host, why: why.clone() })),
        PodPhase::Runs => Some(BookEffect::Report(HostEvent::Runs { host })),
        PodPhase::Over(_) => None,
    }
}

#[cfg(test)]
mod tests;
