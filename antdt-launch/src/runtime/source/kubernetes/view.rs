//! What the object of a pod says: whether its program waits, runs or has ended, and why. Pure.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodCondition, PodStatus};

use super::manifest::HOST_LABEL;

/// A pod of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodView {
    pub(super) name: String,
    /// Host of the job that it is.
    pub(super) host: String,
    /// Node on which it runs; `None` until it has one.
    pub(super) node: Option<String>,
    pub(super) phase: PodPhase,
    /// What is said of its removal, if it is being removed.
    pub(super) removal: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PodPhase {
    /// With what is amiss, if anything is.
    Waits(Option<String>),
    Runs,
    Over(PodEnd),
}

/// How the program of a pod ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodEnd {
    pub(super) why: String,
    /// Whether that is due to the node, so that another one is better.
    pub(super) is_of_node: bool,
}

/// Returns what a pod says; `None` if it is no host of a job.
pub(super) fn view(pod: &Pod) -> Option<PodView> {
    let name = pod.metadata.name.clone()?;
    let host = pod.metadata.labels.as_ref()?.get(HOST_LABEL)?.clone();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let nothing = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&nothing);
    let is_leaving = pod.metadata.deletion_timestamp.is_some();
    let removal = is_leaving.then(|| {
        disruption(status, node.as_deref()).unwrap_or_else(|| {
            format!("its pod {name} was deleted, by a user, a preemption or the drain of its node")
        })
    });
    let phase = phase(pod, status, node.as_deref());
    Some(PodView { name, host, node, phase, removal })
}

fn phase(pod: &Pod, status: &PodStatus, node: Option<&str>) -> PodPhase {
    match status.phase.as_deref() {
        Some("Running") => match container(status).and_then(|it| it.state.as_ref()) {
            Some(ContainerState { terminated: Some(_), .. }) => PodPhase::Over(end(pod, status, node)),
            _ => PodPhase::Runs,
        },
        Some("Succeeded" | "Failed") => PodPhase::Over(end(pod, status, node)),
        _ => PodPhase::Waits(amiss(status)),
    }
}

fn container(status: &PodStatus) -> Option<&ContainerStatus> {
    status.container_statuses.as_ref()?.first()
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a PodCondition> {
    status.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

fn with_message(reason: &str, message: Option<&str>) -> String {
    match message.map(str::trim).filter(|text| !text.is_empty()) {
        Some(text) => format!("{reason}: {}", text.replace(['\n', '\r'], " ")),
        None => reason.to_owned(),
    }
}

/// For what a pod waits, if that is not just the start of its container.
fn amiss(status: &PodStatus) -> Option<String> {
    let waiting = container(status).and_then(|it| it.state.as_ref()?.waiting.as_ref());
    if let Some(waiting) = waiting {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        return match reason {
            "" | "ContainerCreating" | "PodInitializing" => None,
            "ErrImagePull"
            | "ImagePullBackOff"
            | "InvalidImageName"
            | "ErrImageNeverPull"
            | "RegistryUnavailable" => {
                let image = &container(status)?.image;
                let what = format!("its image {image} is not pulled, {reason}");
                Some(with_message(&what, waiting.message.as_deref()))
            }
            _ => Some(with_message(&format!("its container, {reason}"), waiting.message.as_deref())),
        };
    }
    let scheduled = condition(status, "PodScheduled").filter(|it| it.status == "False")?;
    let reason = match scheduled.reason.as_deref() {
        Some("SchedulingGated") => "its pod is held back until its queue admits it",
        _ => "no node takes its pod",
    };
    Some(with_message(reason, scheduled.message.as_deref()))
}

/// Why a pod was disrupted, as releases from 1.26 on say it.
fn disruption(status: &PodStatus, node: Option<&str>) -> Option<String> {
    let condition = condition(status, "DisruptionTarget").filter(|it| it.status == "True")?;
    let node = node.unwrap_or("(none)");
    let what = match condition.reason.as_deref() {
        Some("PreemptionByScheduler") => format!("preempted on node {node} by a pod of a higher priority"),
        Some("DeletionByTaintManager") => format!("node {node} is lost or tainted"),
        Some("EvictionByEvictionAPI") => format!("evicted from node {node}, which is drained"),
        Some("DeletionByPodGC") => format!("node {node} is gone"),
        Some("TerminationByKubelet") => format!("evicted by node {node}"),
        other => format!("disrupted on node {node}, {}", other.unwrap_or("without a reason")),
    };
    Some(with_message(&what, condition.message.as_deref()))
}

fn end(pod: &Pod, status: &PodStatus, node: Option<&str>) -> PodEnd {
    let of_node = |why| PodEnd { why, is_of_node: true };
    let at = node.unwrap_or("(none)");
    match status.reason.as_deref() {
        Some("Evicted") => {
            return of_node(with_message(&format!("evicted by node {at}"), status.message.as_deref()));
        }
        Some("NodeLost") => return of_node(format!("node {at} is lost")),
        Some(reason @ ("Shutdown" | "NodeShutdown" | "Terminated")) => {
            let what = format!("node {at} shuts down, {reason}");
            return of_node(with_message(&what, status.message.as_deref()));
        }
        _ => {}
    }
    if let Some(why) = disruption(status, node) {
        return of_node(why);
    }
    if let Some(reason) = status.reason.as_deref().filter(|reason| !reason.is_empty()) {
        let what = format!("node {at} refused its pod, {reason}");
        return of_node(with_message(&what, status.message.as_deref()));
    }
    let terminated = container(status).and_then(|it| it.state.as_ref()?.terminated.as_ref());
    let Some(terminated) = terminated else {
        return PodEnd { why: "its pod has ended, and does not say how".to_owned(), is_of_node: false };
    };
    let why = match (terminated.reason.as_deref(), terminated.exit_code) {
        (Some("OOMKilled"), _) => match memory_limit(pod) {
            Some(limit) => format!("out of memory: its container was killed at its limit of {limit}"),
            None => format!("out of memory: its container was killed on node {at}"),
        },
        (Some("ContainerCannotRun" | "StartError"), _) => {
            with_message("its container cannot run", terminated.message.as_deref())
        }
        (_, 0) => "its pod has ended, with exit code 0".to_owned(),
        (_, code) => {
            let how = match code {
                129..=192 => format!("its pod has ended, by signal {}", code - 128),
                _ => format!("its pod has ended, with exit code {code}"),
            };
            // The last line of what it has written, where the template asks for that.
            let last = terminated.message.as_deref().and_then(|text| text.trim().lines().last());
            with_message(&how, last)
        }
    };
    PodEnd { why, is_of_node: false }
}

fn memory_limit(pod: &Pod) -> Option<String> {
    let container = pod.spec.as_ref()?.containers.first()?;
    Some(container.resources.as_ref()?.limits.as_ref()?.get("memory")?.0.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn viewed(status: &Value, is_leaving: bool) -> PodView {
        let deletion = is_leaving.then_some("2026-11-30T00:00:00Z");
        let pod = json!({
            "metadata": { "name": "j-host-1-0", "labels": { "antdt.dev/host": "host-1" }, "deletionTimestamp": deletion },
            "spec": { "nodeName": "n7", "containers": [
                { "name": "antdt", "resources": { "limits": { "memory": "8Gi" } } },
            ] },
            "status": status,
        });
        view(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    fn over(status: &Value) -> (String, bool) {
        match viewed(status, false).phase {
            PodPhase::Over(PodEnd { why, is_of_node }) => (why, is_of_node),
            other => panic!("{other:?}"),
        }
    }

    fn terminated(state: &Value) -> Value {
        json!({ "phase": "Failed", "containerStatuses": [
            { "name": "antdt", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": { "terminated": state } },
        ] })
    }

    #[test]
    fn end_of_a_pod_has_its_cause() {
        for (state, why) in [
            (
                json!({ "exitCode": 137, "reason": "OOMKilled" }),
                "out of memory: its container was killed at its limit of 8Gi",
            ),
            (json!({ "exitCode": 137, "reason": "Error" }), "its pod has ended, by signal 9"),
            (
                json!({ "exitCode": 2, "reason": "Error", "message": "a\nerror: no such file\n" }),
                "its pod has ended, with exit code 2: error: no such file",
            ),
            (json!({ "exitCode": 0, "reason": "Completed" }), "its pod has ended, with exit code 0"),
            (
                json!({ "exitCode": 128, "reason": "StartError", "message": "exec: no such file" }),
                "its container cannot run: exec: no such file",
            ),
        ] {
            assert_eq!(over(&terminated(&state)), (why.to_owned(), false));
        }
        for (status, why) in [
            (
                json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory." }),
                "evicted by node n7: The node was low on resource: memory.",
            ),
            (
                json!({ "phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected" }),
                "node n7 refused its pod, OutOfcpu: Pod was rejected",
            ),
            (json!({ "phase": "Failed", "reason": "NodeLost" }), "node n7 is lost"),
            (
                json!({ "phase": "Failed", "reason": "Terminated", "message": "Pod was terminated in response to imminent node shutdown." }),
                "node n7 shuts down, Terminated: Pod was terminated in response to imminent node shutdown.",
            ),
            (
                json!({ "phase": "Failed", "conditions": [
                    { "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler" },
                ] }),
                "preempted on node n7 by a pod of a higher priority",
            ),
        ] {
            assert_eq!(over(&status), (why.to_owned(), true));
        }
    }

    #[test]
    fn pod_that_waits_says_for_what_unless_it_is_just_its_container() {
        let container = |reason: &str, message: &str| {
            json!({ "phase": "Pending", "containerStatuses": [
                { "name": "antdt", "image": "r/i:1", "imageID": "", "ready": false, "restartCount": 0,
                  "state": { "waiting": { "reason": reason, "message": message } } },
            ] })
        };
        let scheduled = |reason: &str, message: &str| {
            json!({ "phase": "Pending", "conditions": [
                { "type": "PodScheduled", "status": "False", "reason": reason, "message": message },
            ] })
        };
        for (status, why) in [
            (json!({}), None),
            (container("ContainerCreating", ""), None),
            (
                container("ImagePullBackOff", "Back-off pulling image \"r/i:1\""),
                Some("its image r/i:1 is not pulled, ImagePullBackOff: Back-off pulling image \"r/i:1\""),
            ),
            (
                container("CreateContainerConfigError", "secret \"s\" not found"),
                Some("its container, CreateContainerConfigError: secret \"s\" not found"),
            ),
            (
                scheduled("Unschedulable", "0/3 nodes are available: 3 Insufficient cpu."),
                Some("no node takes its pod: 0/3 nodes are available: 3 Insufficient cpu."),
            ),
            (scheduled("SchedulingGated", ""), Some("its pod is held back until its queue admits it")),
        ] {
            assert_eq!(viewed(&status, false).phase, PodPhase::Waits(why.map(str::to_owned)));
        }
        assert_eq!(viewed(&json!({ "phase": "Running" }), false).phase, PodPhase::Runs);
    }

    #[test]
    fn pod_that_is_being_removed_says_why_where_the_cluster_does() {
        let running = json!({ "phase": "Running" });
        assert_eq!(viewed(&running, false).removal, None);
        assert!(viewed(&running, true).removal.unwrap().contains("was deleted, by a user, a preemption"));
        let target = |reason: &str| {
            json!({ "phase": "Running", "conditions": [
                { "type": "DisruptionTarget", "status": "True", "reason": reason, "message": "why" },
            ] })
        };
        for (reason, says) in [
            ("EvictionByEvictionAPI", "evicted from node n7, which is drained: why"),
            ("DeletionByTaintManager", "node n7 is lost or tainted: why"),
            ("DeletionByPodGC", "node n7 is gone: why"),
            ("TerminationByKubelet", "evicted by node n7: why"),
            ("Other", "disrupted on node n7, Other: why"),
        ] {
            assert_eq!(viewed(&target(reason), true).removal.as_deref(), Some(says));
        }
    }

    #[test]
    fn pod_without_the_label_of_a_host_is_none_of_the_job() {
        let pod = json!({ "metadata": { "name": "x", "labels": { "antdt.dev/job": "j" } } });
        assert_eq!(view(&serde_json::from_value(pod).unwrap()), None);
    }
}
