//! [`keep`]: has a source start the hosts that a job lacks.

use std::collections::{BTreeMap, BTreeSet};

use antdt_rt::CancellationToken;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{HostEvent, HostRequest, HostSource};
use crate::keeper::{HostKeeper, KeeperOrder};
use crate::runtime::join::HostWatch;

/// Hosts that a job keeps, and how.
struct Kept<'a, S: Fn(&str)> {
    watch: &'a HostWatch,
    hosts: BTreeMap<String, u32>,
    keeper: HostKeeper,
    source: Box<dyn HostSource>,
    began: Instant,
    /// Hosts that have been there.
    known: BTreeSet<String>,
    /// What was said last of each host.
    said: BTreeMap<String, String>,
    say: S,
}

/// Has the source start hosts that are away, until `over`; none after `stop`. `hosts` are those that the job keeps, with the workers of
/// each; `are_guests` if they come by themselves for the first time. Returns the source, which still has what it has started.
pub async fn keep(
    (watch, source): (HostWatch, Box<dyn HostSource>),
    mut events: mpsc::UnboundedReceiver<HostEvent>,
    (hosts, are_guests): (BTreeMap<String, u32>, bool),
    (stop, over): (CancellationToken, CancellationToken),
    say: impl Fn(&str),
) -> Box<dyn HostSource> {
    let (limits, names) = (source.limits(), hosts.keys().cloned());
    let keeper =
        if are_guests { HostKeeper::of_guests(limits, names) } else { HostKeeper::of_all(limits, names) };
    let (began, known, said) = (Instant::now(), BTreeSet::new(), BTreeMap::new());
    let mut kept = Kept { watch: &watch, hosts, keeper, source, began, known, said, say };
    while !over.is_cancelled() {
        kept.look(!stop.is_cancelled());
        tokio::select! {
            Some(event) = events.recv() => kept.hear(event),
            () = watch.changed() => {}
            () = over.cancelled() => {}
        }
    }
    kept.source
}

impl<S: Fn(&str)> Kept<'_, S> {
    fn look(&mut self, may_start: bool) {
        let there: BTreeSet<String> = self.watch.hosts().into_iter().map(|(name, _)| name).collect();
        self.known.extend(there.iter().cloned());
        if !may_start {
            return;
        }
        for order in self.keeper.look(self.began.elapsed(), &there) {
            match order {
                KeeperOrder::Start(name) => {
                    let Some(slots) = self.hosts.get(&name).copied() else { continue };
                    let away = if self.known.contains(&name) { " is away;" } else { ":" };
                    (self.say)(&format!("host {name}{away} {}", self.source.asked()));
                    self.said.remove(&name);
                    self.source.start(&HostRequest { name, slots });
                }
                KeeperOrder::Stop(name) => self.source.stop(&name),
            }
        }
    }

    fn hear(&mut self, event: HostEvent) {
        let now = self.began.elapsed();
        match event {
            HostEvent::Waits { host, why } => {
                self.keeper.waits(now, &host);
                let Some(why) = why else { return };
                let line = format!("host {host} waits: {why}");
                if self.said.insert(host, line.clone()).as_ref() != Some(&line) {
                    (self.say)(&line);
                }
            }
            HostEvent::Runs { host } => self.keeper.runs(now, &host),
            HostEvent::Ended { host, why, is_dead } => {
                self.keeper.ended(now, &host, is_dead);
                (self.say)(&format!("host {host}: {why}"));
                if is_dead {
                    self.watch.explain(&host, &why);
                }
            }
            HostEvent::Failed { why: line } | HostEvent::Notice { line } => (self.say)(&line),
        }
    }
}
