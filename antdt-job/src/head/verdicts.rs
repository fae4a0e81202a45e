//! What the monitor finds, as events of the job.

use antdt_core::{Holder, JobTime, Machine, Pace, Stall};
use antdt_monitor::{LinkChange, LinkVerdict, MonitorEffect};

use super::core::HeadCore;
use super::{EventKind, HeadEffect};

impl HeadCore {
    pub(super) fn detector_effects(&mut self, now: JobTime) {
        while let Some(effect) = self.detector.poll_effect() {
            match effect {
                MonitorEffect::PaceChanged { holder, from, to, slowness_ratio } => {
                    self.pace_changed(now, holder, from, to, slowness_ratio);
                }
                MonitorEffect::GlobalSlowdown(slowdown) => {
                    let text = slowdown.map_or_else(
                        || "the workers are as fast as they were".to_owned(),
                        |ratio| format!("all workers take {ratio:.2}x their own time per sample of before: no single one is the cause"),
                    );
                    let kind =
                        if slowdown.is_some() { EventKind::GlobalSlowdown } else { EventKind::Recovered };
                    self.event(now, None, kind, text);
                }
                MonitorEffect::Late(holder) => {
                    self.event(
                        now,
                        Some(holder.node),
                        EventKind::Late,
                        format!("{holder} missed heartbeats"),
                    );
                }
                MonitorEffect::Stalled(holder, Stall { work, lasts }) => {
                    let text =
                        format!("{holder} is {work} and has not got on for {:.1} s", lasts.as_secs_f64());
                    self.event(now, Some(holder.node), EventKind::Stalled, text);
                }
                MonitorEffect::Hung(holder, Stall { work, lasts }) => {
                    let text = format!(
                        "{holder} hangs while {work}: it has not got on for {:.1} s; it is killed and started again",
                        lasts.as_secs_f64()
                    );
                    self.event(now, Some(holder.node), EventKind::Lost, text);
                    // Its exit, which the launcher tells, does the rest.
                    self.effects.push_back(HeadEffect::Kill(holder));
                }
                MonitorEffect::Silent(holder) => {
                    let text = format!("{holder} fell silent; it is killed and started again");
                    self.event(now, Some(holder.node), EventKind::Lost, text);
                    // Its exit, which the launcher tells, does the rest.
                    self.effects.push_back(HeadEffect::Kill(holder));
                }
                MonitorEffect::Link(LinkChange::Slow(link)) => {
                    let LinkVerdict { from, to, ratio, share, .. } = link;
                    let text = format!(
                        "the network takes {ratio:.2}x the usual time per byte from {from} to {to}, {:.0} % of the time of {from} more",
                        share * 100.0
                    );
                    self.event(now, Some(from), EventKind::SlowLink, text);
                }
                MonitorEffect::Link(LinkChange::Recovered { from, to }) => {
                    let text = format!("the network is no slower than usual any more from {from} to {to}");
                    self.event(now, Some(from), EventKind::Recovered, text);
                }
                _ => {}
            }
        }
    }

    pub(super) fn pace_changed(
        &mut self,
        now: JobTime,
        holder: Holder,
        from: Pace,
        to: Pace,
        ratio: Option<f64>,
    ) {
        let ratio =
            ratio.map(|ratio| format!(", {ratio:.2}x the time per sample of its peers")).unwrap_or_default();
        match (from.is_straggler(), to) {
            (_, Pace::Straggler(kind)) => {
                let text = format!("{holder} is a {kind:?} straggler{ratio}").to_lowercase();
                self.event(now, Some(holder.node), EventKind::Straggler, text);
            }
            (true, _) => {
                self.event(
                    now,
                    Some(holder.node),
                    EventKind::Recovered,
                    format!("{holder} is no straggler any more{ratio}"),
                );
            }
            (false, _) => {}
        }
    }
}
