//! The objects of a job are what the API says, and safe.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PodTemplateSpec, Secret, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::*;
use crate::cli::{Command, SubmitTarget, parse};

fn batch(line: &str) -> KubernetesBatch {
    let line = format!("submit --kubernetes --image registry/train:1 {line}");
    let args = line.split_whitespace().map(str::to_owned);
    match parse(args, |_| None) {
        Ok(Command::Submit(submit)) => match submit.to {
            SubmitTarget::Kubernetes(batch) => *batch,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn objects(line: &str) -> Vec<Json> {
    manifests::objects(&batch(line), "lab", "secret").unwrap()
}

const FULL: &str = "--name train --namespace lab --cpu 8 --memory 64Gi --gpus 4 --shm 8Gi --volume runs:/runs --queue team \
    -- --nnodes 2:4 --nproc-per-node 4 --data synthetic:9000 --policy nd --straggler worker=1,slow=4";

/// Every field of an object is one of its type: what the type does not know would be lost.
fn assert_typed<T: DeserializeOwned + Serialize>(object: &Json) {
    let typed: T = serde_json::from_value(object.clone()).unwrap();
    let mut again = serde_json::to_value(typed).unwrap();
    // A binary field is written as such.
    if let (Some(text), Some(back)) = (object.get("stringData"), again.get_mut("stringData")) {
        *back = text.clone();
    }
    assert_eq!(&again, object);
}

#[test]
fn every_field_of_every_object_is_one_of_the_api() {
    for line in [FULL, "-- --data synthetic:9"] {
        let objects = objects(line);
        let kinds: Vec<&str> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["ServiceAccount", "Role", "RoleBinding", "Secret", "ConfigMap", "Service", "Job"]);
        assert_typed::<ServiceAccount>(&objects[0]);
        assert_typed::<Role>(&objects[1]);
        assert_typed::<RoleBinding>(&objects[2]);
        assert_typed::<Secret>(&objects[3]);
        assert_typed::<ConfigMap>(&objects[4]);
        assert_typed::<Service>(&objects[5]);
        assert_typed::<Job>(&objects[6]);
        let template = objects[4]["data"]["pod.yaml"].as_str().unwrap();
        assert_typed::<PodTemplateSpec>(&serde_saphyr::from_str(template).unwrap());
    }
}

#[test]
fn settings_in_the_file_are_those_of_the_command_line_and_of_the_cluster() {
    let objects = objects(FULL);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.toml");
    std::fs::write(&file, objects[4]["data"]["job.toml"].as_str().unwrap()).unwrap();
    let read = || {
        let own = ["run", "--job", file.to_str().unwrap()];
        let args = own.map(str::to_owned);
        match parse(args, |name| (name == "ANTDT_RDZV_ENDPOINT").then(|| "10.0.0.7".to_owned())) {
            Ok(Command::Run(spec)) => *spec,
            other => panic!("{other:?}"),
        }
    };
    let spec = read();
    let text = |name: &str| spec.texts().get(name).cloned().unwrap_or_default();
    for (name, expected) in [
        ("nnodes", "2:4"),
        ("nproc-per-node", "4"),
        ("policy", "nd"),
        ("report-dir", "/runs/train"),
        ("job-id", "train"),
        ("http-addr", "0.0.0.0:9464"),
        ("rdzv-secret-file", "/etc/antdt-secret/secret"),
        ("rdzv-endpoint", "10.0.0.7"),
        ("host-source", "kubernetes"),
        ("host-source.kubernetes.job", "train"),
        ("host-source.kubernetes.endpoint", "train:29400"),
    ] {
        assert_eq!(text(name), expected, "{name}");
    }
    assert_eq!(spec.stragglers.len(), 1);
}

#[test]
fn pods_run_as_nobody_on_a_read_only_tree_and_only_the_master_has_rights() {
    let objects = objects(FULL);
    let template: Json = serde_saphyr::from_str(objects[4]["data"]["pod.yaml"].as_str().unwrap()).unwrap();
    let master = &objects[6]["spec"]["template"]["spec"];
    for pod in [master, &template["spec"]] {
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        let container = &pod["containers"][0]["securityContext"];
        assert_eq!(container["readOnlyRootFilesystem"], true);
        assert_eq!(container["allowPrivilegeEscalation"], false);
        assert_eq!(container["capabilities"]["drop"][0], "ALL");
    }
    assert_eq!(master["automountServiceAccountToken"], true);
    assert_eq!(template["spec"]["automountServiceAccountToken"], false);
    let rules = objects[1]["rules"].as_array().unwrap();
    assert_eq!((rules.len(), &rules[0]["resources"]), (1, &serde_json::json!(["pods"])));
    // The secret is in its own object alone.
    let others = objects.iter().filter(|object| object["kind"] != "Secret");
    assert!(others.into_iter().all(|object| !object.to_string().contains("\"secret\":\"secret\"")));
    assert_eq!(objects[3]["stringData"]["secret"], "secret");
}

#[test]
fn resources_are_those_of_the_hosts() {
    let objects = objects(FULL);
    let template: Json = serde_saphyr::from_str(objects[4]["data"]["pod.yaml"].as_str().unwrap()).unwrap();
    let limits = &template["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits, &serde_json::json!({ "cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "4" }));
    assert_eq!(template["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "team");
}

#[test]
fn text_that_looks_like_another_type_stays_text() {
    for word in
        ["yes", "1e3", "0x1f", "null", "1:30", "007", "~", "on", "2026-11-30", "a: b", "- a", "", " a", "#"]
    {
        let text = yaml(&serde_json::json!({ "key": word })).unwrap();
        let again: Json = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(again["key"], word, "{text}");
    }
}

#[test]
fn what_cannot_be_submitted_is_refused_by_its_flag() {
    for (line, says) in [
        ("submit --kubernetes -- --data synthetic:9", "--image = (nothing): must be given"),
        ("submit --kubernetes --image i --name A -- --data synthetic:9", "--name = A: must be"),
        ("submit --kubernetes --image i --gpus x -- --data synthetic:9", "--gpus = x"),
        ("submit --kubernetes --image i --volume a -- --data synthetic:9", "--volume = a: must be the name"),
        ("submit --kubernetes --image i -- --data synthetic:9 --launcher ssh", "--launcher after `--`"),
        ("submit --kubernetes --image i -- --data synthetic:9 --bind 1.2.3.4", "--bind after `--`"),
        ("submit --kubernetes --image i -- --data synthetic:9 --policy nope", "nope"),
        ("submit --kubernetes --image i", "is missing"),
    ] {
        let args = line.split_whitespace().map(str::to_owned);
        let error = parse(args, |_| None).unwrap_err().to_string();
        assert!(error.contains(says), "{line}: {error}");
    }
}
