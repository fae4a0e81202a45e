//! The pod of a host, made from the job's template. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodTemplateSpec,
    PreferredSchedulingTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// Label with the name of the job.
pub(super) const JOB_LABEL: &str = "antdt.dev/job";

/// Label with the name of the host of the job.
pub(super) const HOST_LABEL: &str = "antdt.dev/host";

/// Label of a node with its name.
const NODE_LABEL: &str = "kubernetes.io/hostname";

/// What the pods of a job have in common.
#[derive(Debug, Clone)]
pub(super) struct PodRecipe {
    pub(super) job: String,
    pub(super) template: PodTemplateSpec,
    /// Where the hosts join, `HOST:PORT`.
    pub(super) endpoint: String,
    /// Path of the file with the job's secret, in the pod; `None` if the job has none.
    pub(super) secret: Option<String>,
}

/// A pod that is to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodOrder {
    pub(super) pod: String,
    pub(super) host: String,
    pub(super) slots: u32,
    /// Nodes that are to be left alone, if there are others.
    pub(super) not_on: Vec<String>,
}

/// Reads a template.
pub(super) fn template(text: &str) -> Result<PodTemplateSpec, String> {
    let template: PodTemplateSpec = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    match template.spec.as_ref().map(|spec| spec.containers.len()) {
        Some(0) | None => Err("it has no container".to_owned()),
        Some(_) => Ok(template),
    }
}

impl PodRecipe {
    /// Makes a pod, which ends with its owner.
    pub(super) fn pod(&self, order: &PodOrder, owner: &OwnerReference) -> Pod {
        let PodTemplateSpec { metadata, spec } = self.template.clone();
        let ObjectMeta { labels, annotations, .. } = metadata.unwrap_or_default();
        let mut labels: BTreeMap<String, String> = labels.unwrap_or_default();
        labels.insert(JOB_LABEL.to_owned(), self.job.clone());
        labels.insert(HOST_LABEL.to_owned(), order.host.clone());
        let metadata = ObjectMeta {
            name: Some(order.pod.clone()),
            labels: Some(labels),
            annotations,
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        };
        let mut spec = spec.unwrap_or_default();
        // Who restarts a program that has ended is the job alone: it knows by then that the host is lost.
        spec.restart_policy = Some("Never".to_owned());
        if !order.not_on.is_empty() {
            prefer_others(spec.affinity.get_or_insert_default(), &order.not_on);
        }
        if let Some(container) = spec.containers.first_mut() {
            container.args.get_or_insert_default().extend(self.words(order));
        }
        Pod { metadata, spec: Some(spec), status: None }
    }

    /// Arguments of the program.
    fn words(&self, order: &PodOrder) -> Vec<String> {
        let slots = order.slots.to_string();
        let mut words: Vec<String> =
            ["join", &self.endpoint, "--host-name", &order.host, "--nproc-per-node", &slots]
                .map(str::to_owned)
                .into();
        match &self.secret {
            Some(file) => words.extend(["--rdzv-secret-file".to_owned(), file.clone()]),
            None => words.push("--insecure".to_owned()),
        }
        words
    }
}

fn prefer_others(affinity: &mut Affinity, nodes: &[String]) {
    let requirement = NodeSelectorRequirement {
        key: NODE_LABEL.to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(nodes.to_vec()),
    };
    let preference =
        NodeSelectorTerm { match_expressions: Some(vec![requirement]), ..NodeSelectorTerm::default() };
    let node_affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    node_affinity
        .preferred_during_scheduling_ignored_during_execution
        .get_or_insert_default()
        .push(PreferredSchedulingTerm { weight: 100, preference });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(text: &str) -> PodRecipe {
        PodRecipe {
            job: "train".to_owned(),
            template: template(text).unwrap(),
            endpoint: "train:29400".to_owned(),
            secret: Some("/etc/antdt/secret".to_owned()),
        }
    }

    const TEMPLATE: &str = "metadata: {labels: {app.kubernetes.io/name: antdt}}\n\
        spec:\n  restartPolicy: Always\n  containers: [{name: antdt, image: i, command: [antdt]}]\n";

    #[test]
    fn pod_of_a_host_joins_the_job_belongs_to_its_owner_and_is_not_restarted_in_place() {
        let order = PodOrder {
            pod: "train-host-1-4".into(),
            host: "host-1".into(),
            slots: 2,
            not_on: vec!["n7".into()],
        };
        let owner = OwnerReference { kind: "Job".into(), name: "train".into(), ..OwnerReference::default() };
        let pod = serde_json::to_value(recipe(TEMPLATE).pod(&order, &owner)).unwrap();
        assert_eq!(pod["metadata"]["name"], "train-host-1-4");
        assert_eq!(pod["metadata"]["ownerReferences"][0]["name"], "train");
        assert_eq!(
            pod["metadata"]["labels"],
            serde_json::json!({ "app.kubernetes.io/name": "antdt", "antdt.dev/job": "train", "antdt.dev/host": "host-1" })
        );
        assert_eq!(pod["spec"]["restartPolicy"], "Never");
        let args: Vec<&str> = pod["spec"]["containers"][0]["args"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_str().unwrap())
            .collect();
        assert_eq!(
            args.join(" "),
            "join train:29400 --host-name host-1 --nproc-per-node 2 --rdzv-secret-file /etc/antdt/secret"
        );
        let preferred =
            &pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(preferred[0]["preference"]["matchExpressions"][0]["values"][0], "n7");
    }

    #[test]
    fn template_without_a_container_and_text_that_is_none_are_refused() {
        for text in ["spec: {containers: []}", "metadata: {}", "]", "spec: 3"] {
            assert!(template(text).is_err(), "{text}");
        }
    }
}
