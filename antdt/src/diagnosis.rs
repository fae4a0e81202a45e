//! The answer to `antdt status --diagnose`: which nodes of a running job are slow, how that is known, and what was done.
//!
//! [`render`] is for people, [`to_json`] for programs: its keys stay as they are.

use std::fmt::Write as _;
use std::time::Duration;

use antdt_core::Holder;
use antdt_proto::v1::{Decision, DiagnoseReply, HostLoad, NodeDiagnosis, NodeLoad, SlowHost, SlowLink};
use serde_json::{Value as Json, json};

/// Share of a worker's own time from which on waiting for data is told as a cause. 0.25: as large as a slowdown of
/// 1.3x, from which a worker is a straggler.
const DATA_WAIT_SHARE: f64 = 0.25;

/// Share of the time that a CPU quota took from a node, from which on it is told although the node is no straggler. 0.1: a plan that
/// gains less is hardly worth its change.
const THROTTLED_SHARE: f64 = 0.1;

/// Share of a step from which on a worker's wait for others is told, and share of the steps to which a worker that is waited for
/// comes last. 0.1: a plan that gains less is hardly worth its change.
const BARRIER_SHARE: f64 = 0.1;

/// Returns a diagnosis as text of a few lines, for people.
pub fn render(reply: &DiagnoseReply) -> String {
    let elapsed = seconds(reply.elapsed_ns);
    let dry = if reply.dry_run { ", dry run: its decisions are not carried out" } else { "" };
    let mut text = format!("job {}: {elapsed:.1} s, policy {}{dry}\n", reply.job, reply.policy);
    if let (Some(step), Some(overhead)) = (reply.step_ns, reply.overhead_ns) {
        let (step, overhead) = (seconds(step) * 1e3, seconds(overhead) * 1e3);
        let plan = reply.plan;
        let _ = writeln!(
            text,
            "a step under plan {plan} takes {step:.1} ms, of which its slowest worker does not compute for {overhead:.1} ms"
        );
    }
    if let Some(ratio) = reply.slowdown {
        let _ = writeln!(
            text,
            "all workers take {ratio:.2}x their own time per sample of before under this plan: no single one is the cause"
        );
    }
    barrier(&mut text, reply);
    for host in &reply.hosts {
        slow_host(&mut text, host);
    }
    for link in &reply.links {
        slow_link(&mut text, reply, link);
    }
    let (stragglers, others): (Vec<_>, Vec<_>) = reply.nodes.iter().partition(|node| node.straggler);
    for node in &stragglers {
        straggler(&mut text, reply, node);
    }
    let running: Vec<_> = others.into_iter().filter(|node| node.status == "running").collect();
    held_back(&mut text, &running);
    let beside = if stragglers.is_empty() { "" } else { "other " };
    verdict_of_others(&mut text, &running, beside);
    match &reply.decision {
        Some(decision) => {
            let _ = writeln!(text, "newest decision, {}", line(decision));
        }
        None => text += "nothing was decided yet\n",
    }
    text
}

/// Writes what holds a worker back although it is no straggler.
fn held_back(text: &mut String, running: &[&NodeDiagnosis]) {
    for node in running.iter().filter(|node| node.data_wait_share >= DATA_WAIT_SHARE) {
        let _ = writeln!(text, "{} computes no slower than its peers", name(node));
        waiting(text, node);
    }
    for node in running {
        let throttled = node.load.as_ref().and_then(|load| load.cpu_throttled).unwrap_or_default();
        if let (true, Some(evidence)) = (throttled >= THROTTLED_SHARE, node.load.as_ref().and_then(evidence))
        {
            let _ = writeln!(
                text,
                "{} is held back by its CPU quota, though most of its batches are no slower than those of its peers\n  {evidence}",
                name(node)
            );
        }
    }
}

/// Writes of how many workers it is known that they are no stragglers; `beside` is "other " if there are stragglers.
fn verdict_of_others(text: &mut String, running: &[&NodeDiagnosis], beside: &str) {
    let workers = running.iter().filter(|node| node.batch_size > 0).count();
    let known = running.iter().filter(|node| node.ratio.is_some()).count();
    let _ = match workers {
        0 => writeln!(text, "no {beside}worker runs"),
        _ if known < workers => writeln!(
            text,
            "of {workers} {beside}workers, {known} are known to be no slower than their peers; too little is known of the others"
        ),
        1 => writeln!(text, "the {beside}worker is no slower than its peers, as far as noise can tell"),
        _ => writeln!(
            text,
            "the {workers} {beside}workers are no slower than their peers, as far as noise can tell"
        ),
    };
}

fn slow_host(text: &mut String, host: &SlowHost) {
    let _ = write!(text, "host {} is slow, with all its workers: {}", host.host, workers_of(host).join(", "));
    let _ = match host.ratio {
        Some(ratio) => writeln!(text, ", at {ratio:.2}x the time per sample of all"),
        None => writeln!(text),
    };
    if let Some(load) = &host.load {
        host_load(text, load);
    }
}

fn workers_of(host: &SlowHost) -> Vec<String> {
    host.workers.iter().map(|index| format!("worker-{index}")).collect()
}

/// Writes whether a slow host's CPUs are busy with others.
fn host_load(text: &mut String, load: &HostLoad) {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let steal = match load.steal {
        Some(steal) if steal >= 0.005 => {
            format!(", {} of it for other guests of its machine (steal)", percent(steal))
        }
        _ => String::new(),
    };
    let (busy, others) = (percent(load.busy), percent(load.others));
    let _ = match load.explains {
        true => writeln!(
            text,
            "  its CPUs are busy with others: {others} of their time is not this job's{steal}, {busy} in all; end that load, or give the \
             job other hosts (policy exclude-host)"
        ),
        false => writeln!(
            text,
            "  its CPUs are {busy} busy, {others} with others{steal}: look at its clock, its memory or its devices, not at the load of its CPUs"
        ),
    };
}

fn slow_link(text: &mut String, reply: &DiagnoseReply, link: &SlowLink) {
    let end = |node: &str, host: &str| {
        if host.is_empty() { node.to_owned() } else { format!("{node} on {host}") }
    };
    let (from, to) = (end(&link.from, &link.from_host), end(&link.to, &link.to_host));
    let mega = |bytes: f64| bytes / 1e6;
    let _ = writeln!(
        text,
        "the link from {from} to {to} is slow: {:.2}x the time per byte of other links, {:.1} instead of {:.1} MB/s, in {} reports",
        link.ratio,
        mega(link.bytes_per_second),
        mega(link.usual_bytes_per_second),
        link.reports
    );
    let (since, ago) = (seconds(link.since_ns), seconds(reply.elapsed_ns.saturating_sub(link.since_ns)));
    let _ = writeln!(
        text,
        "  takes {:.0} % of the time of {} more than usual; since {since:.1} s, {ago:.1} s ago",
        link.share * 100.0,
        link.from
    );
    let done = done_about_link(reply, link);
    for decision in &done {
        let _ = writeln!(text, "  done since: {}", line(decision));
    }
    if done.is_empty() {
        let _ = writeln!(
            text,
            "  nothing was done: look at the network between the two, or at the card of a host that several slow links have in common"
        );
    }
}

fn straggler(text: &mut String, reply: &DiagnoseReply, node: &NodeDiagnosis) {
    let _ = write!(text, "{} is a straggler", name(node));
    if let (Some(ratio), Some(low), Some(high)) = (node.ratio, node.ratio_low, node.ratio_high) {
        let _ = write!(
            text,
            ": it takes {ratio:.2}x its peers' time per sample, known from {} batches to be between {low:.2}x and {high:.2}x \
             (chance of error {:.1} %)",
            node.batches,
            reply.error_rate * 100.0
        );
    }
    text.push('\n');
    let verdict = match node.pace.as_str() {
        "transient" => "slow in the short window",
        "persistent" => "slow through the long window",
        "deterministic" => "its device class is slower than the fastest one",
        _ => "no verdict over a whole window yet",
    };
    let _ = write!(text, "  class {} ({verdict}), device {}", node.pace, node.device);
    if let Some(since) = node.pace_since_ns {
        let ago = seconds(reply.elapsed_ns.saturating_sub(since));
        let _ = write!(text, "; at this pace since {:.1} s, {ago:.1} s ago", seconds(since));
    }
    let _ = writeln!(text, "; slow in {:.0} % of the long window", node.slow_share * 100.0);
    if node.batch_size > 0 {
        let _ = writeln!(text, "  batch size now {}", node.batch_size);
    }
    waiting(text, node);
    if let Some(evidence) = node.load.as_ref().and_then(evidence) {
        let _ = writeln!(text, "  {evidence}");
    }
    let done = done_about(reply, node);
    for decision in &done {
        let _ = writeln!(text, "  done since: {}", line(decision));
    }
    if let (true, Some(decision)) = (done.is_empty(), &reply.decision) {
        let _ = writeln!(text, "  nothing was done: {}", decision.reason);
    }
}

/// Writes which worker waits for which, in the steps that all workers take together.
fn barrier(text: &mut String, reply: &DiagnoseReply) {
    let Some(step) = reply.step_ns.map(seconds) else { return };
    let arrivals: Vec<_> =
        reply.nodes.iter().filter_map(|node| Some((node, node.arrival.as_ref()?))).collect();
    let waits = arrivals.iter().filter(|(_, it)| seconds(it.barrier_wait_ns) >= BARRIER_SHARE * step);
    let mut last: Vec<_> = arrivals.iter().filter(|(_, it)| it.last_share >= BARRIER_SHARE).collect();
    last.sort_by(|(_, one), (_, other)| other.last_share.total_cmp(&one.last_share));
    for (node, arrival) in waits {
        let of: Vec<String> = last
            .iter()
            .filter(|(other, _)| name(other) != name(node))
            .map(|(other, it)| {
                let (share, by) = (it.last_share * 100.0, seconds(it.holds_up_ns) * 1e3);
                format!("{} (last in {share:.0} % of the steps, by {by:.1} ms)", name(other))
            })
            .collect();
        let whom = if of.is_empty() { "others in turn".to_owned() } else { of.join(", ") };
        let wait = seconds(arrival.barrier_wait_ns) * 1e3;
        let _ = writeln!(text, "{} waits {wait:.1} ms of a step for {whom}", name(node));
    }
}

/// Says so if the worker waits for data.
fn waiting(text: &mut String, node: &NodeDiagnosis) {
    if node.data_wait_share >= DATA_WAIT_SHARE {
        let _ = writeln!(
            text,
            "  waits for data for {:.0} % of its own time: look at its disk, its cache or its link to the data, not at its device",
            node.data_wait_share * 100.0
        );
    }
}

/// What the system says about a node's load, in words; `None` if it says nothing.
fn evidence(load: &NodeLoad) -> Option<String> {
    let mut parts = Vec::new();
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    #[allow(clippy::cast_precision_loss, reason = "one decimal place is shown")]
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    if let Some(throttled) = load.cpu_throttled.filter(|share| *share > 0.0 || load.cpu_quota.is_some()) {
        let over = seconds(load.over_ns);
        parts.push(format!("cgroup throttled {} of the last {over:.0} s", percent(throttled)));
    }
    if let Some(quota) = load.cpu_quota {
        parts.push(format!("CPU quota {quota:.1}"));
    }
    if let Some(busy) = load.host_busy {
        let own = load.own_busy.map(|own| format!(", {} by this node", percent(own))).unwrap_or_default();
        parts.push(format!("CPUs of the host {} busy{own}", percent(busy)));
    }
    if let Some(steal) = load.host_steal.filter(|share| *share >= 0.005) {
        parts.push(format!("{} stolen", percent(steal)));
    }
    if let (Some(used), Some(bound)) = (load.memory_used, load.memory_bound) {
        parts.push(format!("memory {:.1} of {:.1} GiB", gib(used), gib(bound)));
    }
    if let Some(gpu) = &load.gpu {
        let (used, bound) = (gib(gpu.memory_used), gib(gpu.memory_bound));
        parts.push(format!("GPU {} {} busy, {used:.1} of {bound:.1} GiB", gpu.index, percent(gpu.busy)));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Returns a diagnosis as JSON, for programs. Its keys do not change between releases.
pub fn to_json(reply: &DiagnoseReply) -> Json {
    let stragglers = reply.nodes.iter().filter(|node| node.straggler);
    json!({
        "job": reply.job,
        "elapsed_s": seconds(reply.elapsed_ns),
        "policy": reply.policy,
        "dry_run": reply.dry_run,
        "error_rate": reply.error_rate,
        "plan": reply.plan,
        "step_s": reply.step_ns.map(seconds),
        "overhead_s": reply.overhead_ns.map(seconds),
        "slowdown": reply.slowdown,
        "slow_hosts": reply.hosts.iter().map(host_json).collect::<Vec<_>>(),
        "slow_links": reply.links.iter().map(|link| link_json(reply, link)).collect::<Vec<_>>(),
        "stragglers": stragglers.map(name).collect::<Vec<_>>(),
        "nodes": reply.nodes.iter().map(|node| node_json(reply, node)).collect::<Vec<_>>(),
        "decision": reply.decision.as_ref().map(decision),
        "actions": reply.actions.iter().map(decision).collect::<Vec<_>>(),
    })
}

fn node_json(reply: &DiagnoseReply, node: &NodeDiagnosis) -> Json {
    json!({
        "node": name(node),
        "life": node.holder.map(|holder| holder.incarnation),
        "status": node.status,
        "device": node.device,
        "class": node.pace,
        "straggler": node.straggler,
        "ratio": node.ratio,
        "ratio_low": node.ratio_low,
        "ratio_high": node.ratio_high,
        "batches": node.batches,
        "pace_since_s": node.pace_since_ns.map(seconds),
        "slow_share": node.slow_share,
        "batch_size": node.batch_size,
        "data_wait_share": node.data_wait_share,
        "barrier_wait_s": node.arrival.map(|it| seconds(it.barrier_wait_ns)),
        "communicate_s": node.arrival.map(|it| seconds(it.communicate_ns)),
        "last_share": node.arrival.map(|it| it.last_share),
        "holds_up_s": node.arrival.map(|it| seconds(it.holds_up_ns)),
        "host": node.host,
        "load": node.load.as_ref().map(load),
        "done": done_about(reply, node).into_iter().map(decision).collect::<Vec<_>>(),
    })
}

fn host_json(host: &SlowHost) -> Json {
    let load = host.load.as_ref();
    json!({
        "host": host.host,
        "workers": workers_of(host),
        "ratio": host.ratio,
        "busy": load.map(|load| load.busy),
        "busy_with_others": load.map(|load| load.others),
        "steal": load.and_then(|load| load.steal),
        "explained_by_load": load.map(|load| load.explains),
    })
}

fn link_json(reply: &DiagnoseReply, link: &SlowLink) -> Json {
    json!({
        "from": link.from,
        "to": link.to,
        "from_host": link.from_host,
        "to_host": link.to_host,
        "ratio": link.ratio,
        "bytes_per_s": link.bytes_per_second,
        "usual_bytes_per_s": link.usual_bytes_per_second,
        "share": link.share,
        "since_s": seconds(link.since_ns),
        "reports": link.reports,
        "done": done_about_link(reply, link).into_iter().map(decision).collect::<Vec<_>>(),
    })
}

/// Actions since the link is slow that move one of its ends: other batch sizes send as many bytes.
fn done_about_link<'a>(reply: &'a DiagnoseReply, link: &SlowLink) -> Vec<&'a Decision> {
    let moves = |it: &&Decision| {
        let of_an_end = it.target == link.from || it.target == link.to;
        it.at_ns >= link.since_ns && (of_an_end || it.kind == "EXCLUDE_HOST")
    };
    reply.actions.iter().filter(moves).collect()
}

/// Actions since the node has its present pace that concern it: its own, and plans for all.
fn done_about<'a>(reply: &'a DiagnoseReply, node: &NodeDiagnosis) -> Vec<&'a Decision> {
    if !node.straggler {
        return Vec::new();
    }
    let name = name(node);
    let concerns = |it: &&Decision| {
        let since = it.at_ns >= node.pace_since_ns.unwrap_or(0);
        since && (it.target == name || (it.target == "all" && it.kind != "REFUSED"))
    };
    reply.actions.iter().filter(concerns).collect()
}

fn load(load: &NodeLoad) -> Json {
    json!({
        "over_s": seconds(load.over_ns),
        "cpu_quota": load.cpu_quota,
        "cpu_throttled": load.cpu_throttled,
        "host_busy": load.host_busy,
        "host_steal": load.host_steal,
        "own_busy": load.own_busy,
        "memory_bytes": load.memory_used,
        "memory_bound_bytes": load.memory_bound,
        "gpu": load.gpu.as_ref().map(|gpu| json!({
            "index": gpu.index,
            "busy": gpu.busy,
            "memory_bytes": gpu.memory_used,
            "memory_bound_bytes": gpu.memory_bound,
        })),
    })
}

fn decision(decision: &Decision) -> Json {
    json!({
        "time_s": seconds(decision.at_ns),
        "kind": decision.kind,
        "target": decision.target,
        "reason": decision.reason,
    })
}

fn line(decision: &Decision) -> String {
    let Decision { at_ns, kind, target, reason } = decision;
    format!("{:.1} s  {kind} {target}: {reason}", seconds(*at_ns))
}

fn name(node: &NodeDiagnosis) -> String {
    let holder = node.holder.and_then(|holder| Holder::try_from(holder).ok());
    holder.map_or_else(|| "a node".to_owned(), |holder| holder.node.to_string())
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use antdt_proto::v1;

    use super::*;

    fn node(index: u32, straggler: bool) -> NodeDiagnosis {
        let ratio = if straggler { 4.0 } else { 1.0 };
        NodeDiagnosis {
            holder: Some(v1::Holder { role: v1::Role::Worker.into(), index, incarnation: 0 }),
            status: "running".to_owned(),
            device: "cpu".to_owned(),
            pace: if straggler { "transient" } else { "normal" }.to_owned(),
            straggler,
            ratio: Some(ratio),
            ratio_low: Some(ratio * 0.9),
            ratio_high: Some(ratio * 1.1),
            batches: 33,
            pace_since_ns: Some(2_000_000_000),
            slow_share: if straggler { 0.25 } else { 0.0 },
            batch_size: 64,
            data_wait_share: 0.0,
            host: format!("host-{index}"),
            load: None,
            arrival: None,
        }
    }

    fn told(at_s: u64, kind: &str, reason: &str) -> Decision {
        Decision {
            at_ns: at_s * 1_000_000_000,
            kind: kind.to_owned(),
            target: "all".to_owned(),
            reason: reason.to_owned(),
        }
    }

    fn reply(actions: Vec<Decision>) -> DiagnoseReply {
        DiagnoseReply {
            job: "demo".to_owned(),
            elapsed_ns: 10_000_000_000,
            policy: "nd".to_owned(),
            dry_run: false,
            error_rate: 0.001,
            plan: 2,
            step_ns: Some(100_000_000),
            overhead_ns: Some(5_000_000),
            nodes: vec![node(0, false), node(1, true)],
            decision: Some(told(9, "NONE", "predicted gain of 3 % is too small")),
            actions,
            slowdown: None,
            hosts: Vec::new(),
            links: Vec::new(),
        }
    }

    #[test]
    fn a_straggler_is_told_with_its_evidence_and_the_actions() {
        let plan = told(1, "ADJUST_BS", "2 live workers share the global batch");
        let text = render(&reply(vec![plan.clone(), told(3, "ADJUST_BS", "worker-1 is slow")]));
        let expected = "job demo: 10.0 s, policy nd\n\
            a step under plan 2 takes 100.0 ms, of which its slowest worker does not compute for 5.0 ms\n\
            worker-1 is a straggler: it takes 4.00x its peers' time per sample, known from 33 batches to be between \
            3.60x and 4.40x (chance of error 0.1 %)\n  \
            class transient (slow in the short window), device cpu; at this pace since 2.0 s, 8.0 s ago; slow in 25 % of \
            the long window\n  batch size now 64\n  \
            done since: 3.0 s  ADJUST_BS all: worker-1 is slow\n\
            the other worker is no slower than its peers, as far as noise can tell\n\
            newest decision, 9.0 s  NONE all: predicted gain of 3 % is too small\n";
        assert_eq!(text, expected);
        let text = render(&reply(vec![plan]));
        assert!(text.contains("  nothing was done: predicted gain of 3 % is too small\n"), "{text}");
    }

    #[test]
    fn waiting_workers_are_told_with_the_one_they_wait_for() {
        let mut reply = reply(Vec::new());
        assert!(!render(&reply).contains(" waits "), "not known");
        let arrival = |barrier_wait_ns, last_share, holds_up_ns| {
            Some(v1::Arrival { barrier_wait_ns, communicate_ns: 5_000_000, last_share, holds_up_ns })
        };
        reply.nodes.push(node(2, false));
        reply.nodes[0].arrival = arrival(71_000_000, 0.02, 1_000_000);
        reply.nodes[1].arrival = arrival(0, 0.73, 68_000_000);
        reply.nodes[2].arrival = arrival(9_900_000, 0.25, 2_500_000);
        let text = render(&reply);
        let expected = "\nworker-0 waits 71.0 ms of a step for worker-1 (last in 73 % of the steps, by 68.0 ms), \
            worker-2 (last in 25 % of the steps, by 2.5 ms)\nworker-1 is a straggler";
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("worker-2 waits"), "less than a tenth of a step: {text}");
        let json = &to_json(&reply)["nodes"];
        let of = |node: usize| {
            [&json[node]["barrier_wait_s"], &json[node]["last_share"], &json[node]["holds_up_s"]]
        };
        assert_eq!(of(1), [&json!(0.0), &json!(0.73), &json!(0.068)]);
        assert_eq!(json[0]["communicate_s"], json!(0.005));
        reply.nodes[1].arrival = None;
        reply.nodes[2].arrival = None;
        assert!(render(&reply).contains("worker-0 waits 71.0 ms of a step for others in turn\n"));
    }

    #[test]
    fn a_common_slowdown_and_waiting_for_data_are_told_as_causes_of_their_own() {
        let mut reply = reply(Vec::new());
        reply.slowdown = Some(2.0);
        reply.hosts =
            vec![SlowHost { host: "b".to_owned(), workers: vec![2, 3], ratio: Some(4.0), load: None }];
        reply.nodes[0].data_wait_share = 0.4;
        let text = render(&reply);
        assert!(
            text.contains("\nall workers take 2.00x their own time per sample of before under this plan"),
            "{text}"
        );
        assert!(
            text.contains("\nhost b is slow, with all its workers: worker-2, worker-3, at 4.00x"),
            "{text}"
        );
        assert!(!text.contains("its CPUs"), "nothing is known of its load: {text}");
        assert!(
            text.contains(
                "\nworker-0 computes no slower than its peers\n  waits for data for 40 % of its own time"
            ),
            "{text}"
        );
        let json = to_json(&reply);
        assert_eq!(
            (&json["slowdown"], &json["slow_hosts"][0]["workers"][1]),
            (&json!(2.0), &json!("worker-3"))
        );
        assert_eq!(json["slow_hosts"][0]["explained_by_load"], Json::Null);
    }

    #[test]
    fn a_slow_host_that_is_busy_with_others_is_told_as_such() {
        let mut reply = reply(Vec::new());
        let load = HostLoad { busy: 0.97, others: 0.61, steal: Some(0.12), explains: true };
        reply.hosts =
            vec![SlowHost { host: "b".to_owned(), workers: vec![2, 3], ratio: Some(4.0), load: Some(load) }];
        let text = render(&reply);
        let expected = "\nhost b is slow, with all its workers: worker-2, worker-3, at 4.00x the time per sample of all\n  its CPUs are busy \
            with others: 61 % of their time is not this job's, 12 % of it for other guests of its machine (steal), 97 % in all;";
        assert!(text.contains(expected), "{text}");
        let host = &to_json(&reply)["slow_hosts"][0];
        let told = ["busy", "busy_with_others", "steal", "explained_by_load"].map(|key| host[key].clone());
        assert_eq!(told, [json!(0.97), json!(0.61), json!(0.12), json!(true)]);
        reply.hosts[0].load = Some(HostLoad { busy: 0.4, others: 0.03, steal: None, explains: false });
        let text = render(&reply);
        assert!(text.contains("\n  its CPUs are 40 % busy, 3 % with others: look at its clock"), "{text}");
    }

    #[test]
    fn a_slow_link_is_told_with_its_evidence_and_the_actions() {
        let mut reply = reply(vec![told(3, "ADJUST_BS", "worker-1 is slow")]);
        reply.nodes[1].straggler = false;
        reply.links = vec![SlowLink {
            from: "worker-0".to_owned(),
            to: "worker-1".to_owned(),
            from_host: "a".to_owned(),
            to_host: String::new(),
            ratio: 7.9,
            bytes_per_second: 12.5e6,
            usual_bytes_per_second: 98.75e6,
            share: 0.42,
            since_ns: 2_000_000_000,
            reports: 8,
        }];
        let text = render(&reply);
        let expected = "\nthe link from worker-0 on a to worker-1 is slow: 7.90x the time per byte of other links, 12.5 instead of 98.8 MB/s, \
            in 8 reports\n  takes 42 % of the time of worker-0 more than usual; since 2.0 s, 8.0 s ago\n  nothing was done: ";
        assert!(text.contains(expected), "{text}");
        let moved = Decision { target: "worker-1".to_owned(), ..told(4, "KILL_RESTART", "its link is slow") };
        let before = Decision { at_ns: 1, ..moved.clone() };
        reply.actions = vec![before, moved];
        let text = render(&reply);
        assert!(text.contains("  done since: 4.0 s  KILL_RESTART worker-1: its link is slow\n"), "{text}");
        let link = &to_json(&reply)["slow_links"][0];
        assert_eq!(
            (&link["to"], &link["share"], &link["since_s"]),
            (&json!("worker-1"), &json!(0.42), &json!(2.0))
        );
        assert_eq!(link["done"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn the_load_of_the_system_stands_beside_the_verdict() {
        let mut reply = reply(Vec::new());
        let load = NodeLoad {
            over_ns: 10_000_000_000,
            cpu_quota: Some(0.5),
            cpu_throttled: Some(0.38),
            host_busy: Some(0.97),
            host_steal: Some(0.12),
            own_busy: Some(0.4),
            memory_used: Some(3 << 29),
            memory_bound: Some(4 << 30),
            gpu: Some(v1::GpuLoad { index: 1, busy: 0.99, memory_used: 1 << 30, memory_bound: 80 << 30 }),
        };
        reply.nodes[1].load = Some(load);
        let expected = "\n  cgroup throttled 38 % of the last 10 s, CPU quota 0.5, CPUs of the host 97 % busy, 40 % by this node, \
            12 % stolen, memory 1.5 of 4.0 GiB, \
            GPU 1 99 % busy, 1.0 of 80.0 GiB\n";
        let text = render(&reply);
        assert!(text.contains(expected), "{text}");
        let json = &to_json(&reply)["nodes"];
        let load_of_1 = &json[1]["load"];
        assert_eq!((&load_of_1["cpu_throttled"], &load_of_1["over_s"]), (&json!(0.38), &json!(10.0)));
        assert_eq!((&load_of_1["gpu"]["index"], &load_of_1["gpu"]["busy"]), (&json!(1), &json!(0.99)));
        assert_eq!(json[0]["load"], Json::Null, "not known");
        // What is not known is not said; without a quota nothing is said of it.
        let some = NodeLoad { host_busy: Some(0.2), cpu_throttled: Some(0.0), ..NodeLoad::default() };
        assert_eq!(evidence(&some).as_deref(), Some("CPUs of the host 20 % busy"));
        assert_eq!(evidence(&NodeLoad::default()), None);
    }

    #[test]
    fn a_node_that_its_quota_holds_back_for_few_of_its_batches_is_named() {
        let mut reply = reply(Vec::new());
        let load = |throttled| {
            Some(NodeLoad {
                over_ns: 10_000_000_000,
                cpu_quota: Some(0.5),
                cpu_throttled: Some(throttled),
                ..NodeLoad::default()
            })
        };
        reply.nodes[0].load = load(0.72);
        let expected = "\nworker-0 is held back by its CPU quota, though most of its batches are no slower than those of its peers\n  \
            cgroup throttled 72 % of the last 10 s, CPU quota 0.5\n";
        let text = render(&reply);
        assert!(text.contains(expected), "{text}");
        reply.nodes[0].load = load(0.05);
        reply.nodes[1].load = load(0.72);
        let text = render(&reply);
        assert!(
            !text.contains("is held back"),
            "too little, and a straggler is told with its evidence: {text}"
        );
    }

    #[test]
    fn the_keys_of_the_json_are_these() {
        let json = to_json(&reply(vec![told(3, "ADJUST_BS", "worker-1 is slow")]));
        let keys = |json: &Json| json.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let mut all = keys(&json);
        all.sort();
        let expected = [
            "actions",
            "decision",
            "dry_run",
            "elapsed_s",
            "error_rate",
            "job",
            "nodes",
            "overhead_s",
            "plan",
            "policy",
            "slow_hosts",
            "slow_links",
            "slowdown",
            "step_s",
            "stragglers",
        ];
        assert_eq!(all, expected);
        let mut of_node = keys(&json["nodes"][1]);
        of_node.sort();
        let expected = [
            "barrier_wait_s",
            "batch_size",
            "batches",
            "class",
            "communicate_s",
            "data_wait_share",
            "device",
            "done",
            "holds_up_s",
            "host",
            "last_share",
            "life",
            "load",
            "node",
            "pace_since_s",
            "ratio",
            "ratio_high",
            "ratio_low",
            "slow_share",
            "status",
            "straggler",
        ];
        assert_eq!(of_node, expected);
        assert_eq!(json["stragglers"], json!(["worker-1"]));
        assert_eq!(json["nodes"][1]["done"][0], json["actions"][0]);
        assert_eq!((&json["nodes"][0]["done"], &json["pace_since_s"]), (&json!([]), &Json::Null));
    }
}
