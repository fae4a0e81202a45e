//! The objects of a job in a Kubernetes cluster. Pure.

use antdt_core::InvalidValue;
use serde_json::{Map, Value as Json, json};

use crate::cli::KubernetesBatch;
use crate::job::JobSpec;

/// Where pods find the files of the job, and where they may write.
const CONFIG: &str = "/etc/antdt";
const SECRET: &str = "/etc/antdt-secret";
const WORK: &str = "/work";

/// Port of the gate, and of the live page with its metrics.
const GATE_PORT: u16 = 29400;
const HTTP_PORT: u16 = 9464;

/// A user and group that no image has as anything else.
const NOBODY: u32 = 65_532;

/// How long pods wait for each other: a pod may wait in a queue.
const RDZV_TIMEOUT: &str = "7d";

/// Starts of the master again, where it can go on after its last checkpoint.
const RESTARTS: u32 = 6;

/// The settings of the job as its master takes them: those of the user, and what follows from the cluster.
fn settings(batch: &KubernetesBatch) -> Result<JobSpec, InvalidValue> {
    let (KubernetesBatch { name, volume, .. }, unset) = (batch, JobSpec::default());
    let mut spec = batch.spec.clone();
    let source = json!({
        "name": "kubernetes",
        "kubernetes": {
            "job": name,
            "template": format!("{CONFIG}/pod.yaml"),
            "endpoint": format!("{name}:{GATE_PORT}"),
        },
    });
    spec.put("host-source", &source)?;
    spec.set("rdzv-secret-file", &format!("{SECRET}/secret"))?;
    if spec.rdzv_timeout == unset.rdzv_timeout {
        spec.set("rdzv-timeout", RDZV_TIMEOUT)?;
    }
    if spec.http_addr.is_none() {
        spec.set("http-addr", &format!("0.0.0.0:{HTTP_PORT}"))?;
    }
    spec.job_id.get_or_insert_with(|| name.clone());
    if volume.is_some() {
        // What a program of its own has trained is known to nobody else.
        match spec.is_foreign() {
            true => spec.force = true,
            false if spec.resume.is_none() => spec.set("resume", "auto")?,
            false => {}
        }
    }
    Ok(spec)
}

/// The settings as a job file: those that are not the defaults.
fn job_file(spec: &JobSpec) -> Result<String, InvalidValue> {
    let unset = JobSpec::default().to_json();
    let mut given = spec.to_json();
    given.retain(|key, value| unset.get(key) != Some(value));
    let text = toml::to_string(&Json::Object(without_nulls(given)));
    text.map_err(|error| InvalidValue::new("the settings", error, "such as a job file can have"))
}

/// TOML has no null: what is not set is left out.
fn without_nulls(object: Map<String, Json>) -> Map<String, Json> {
    let kept = object.into_iter().filter(|(_, value)| !value.is_null());
    kept.map(|(key, value)| match value {
        Json::Object(inner) => (key, Json::Object(without_nulls(inner))),
        other => (key, other),
    })
    .collect()
}

/// All objects of the job, in the order in which they are created. `secret` is the job's.
///
/// # Errors
/// If a setting cannot be written.
pub(super) fn objects(
    batch: &KubernetesBatch,
    namespace: &str,
    secret: &str,
) -> Result<Vec<Json>, InvalidValue> {
    let spec = settings(batch)?;
    let template = super::yaml(&batch.pod_template())?;
    let files = json!({ "job.toml": job_file(&spec)?, "pod.yaml": template });
    let of_kind = |kind: &str, version: &str, rest: Json| {
        let mut object =
            json!({ "apiVersion": version, "kind": kind, "metadata": batch.metadata(namespace) });
        if let (Json::Object(object), Json::Object(rest)) = (&mut object, rest) {
            object.extend(rest);
        }
        object
    };
    const RBAC: &str = "rbac.authorization.k8s.io/v1";
    let name = &batch.name;
    let verbs = ["get", "list", "watch", "create", "delete"];
    let subject = json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace });
    let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name });
    let ports = json!([
        { "name": "gate", "port": GATE_PORT },
        { "name": "http", "port": HTTP_PORT },
    ]);
    Ok(vec![
        of_kind("ServiceAccount", "v1", json!({ "automountServiceAccountToken": false })),
        of_kind(
            "Role",
            RBAC,
            json!({ "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": verbs }] }),
        ),
        of_kind("RoleBinding", RBAC, json!({ "subjects": [subject], "roleRef": role })),
        of_kind("Secret", "v1", json!({ "type": "Opaque", "stringData": { "secret": secret } })),
        of_kind("ConfigMap", "v1", json!({ "data": files })),
        // The master is found before it is ready: hosts join it first.
        of_kind(
            "Service",
            "v1",
            json!({ "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": true,
                "selector": batch.selector("master"),
                "ports": ports,
            } }),
        ),
        of_kind("Job", "batch/v1", json!({ "spec": batch.job() })),
    ])
}

impl KubernetesBatch {
    fn labels(&self) -> Json {
        json!({
            "app.kubernetes.io/name": "antdt",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/version": env!("CARGO_PKG_VERSION"),
            "app.kubernetes.io/part-of": "antdt",
            "app.kubernetes.io/managed-by": "antdt",
            "antdt.dev/job": self.name,
        })
    }

    fn selector(&self, component: &str) -> Json {
        json!({ "app.kubernetes.io/instance": self.name, "app.kubernetes.io/component": component })
    }

    /// Labels of a pod, which its queue knows it by if it is to.
    fn pod_labels(&self, component: &str, is_queued: bool) -> Json {
        let mut labels = self.labels();
        labels["app.kubernetes.io/component"] = json!(component);
        if let Some(queue) = self.queue.as_ref().filter(|_| is_queued) {
            labels["kueue.x-k8s.io/queue-name"] = json!(queue);
        }
        labels
    }

    fn metadata(&self, namespace: &str) -> Json {
        json!({ "name": self.name, "namespace": namespace, "labels": self.labels() })
    }

    /// The template of the hosts' pods, which the master fills in.
    fn pod_template(&self) -> Json {
        let mut container = self.container();
        let mut limits = Map::new();
        for (resource, amount) in [("cpu", &self.cpu), ("memory", &self.memory)] {
            limits.extend(amount.as_ref().map(|amount| (resource.to_owned(), json!(amount))));
        }
        limits.extend(self.gpus.map(|gpus| ("nvidia.com/gpu".to_owned(), json!(gpus.to_string()))));
        if !limits.is_empty() {
            container["resources"] = json!({ "limits": limits, "requests": limits });
        }
        let mut spec = self.pod(&container);
        spec["automountServiceAccountToken"] = json!(false);
        spec["terminationGracePeriodSeconds"] = json!(60);
        let soon = |taint: &str| {
            let key = format!("node.kubernetes.io/{taint}");
            json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10 })
        };
        spec["tolerations"] = json!([soon("not-ready"), soon("unreachable")]);
        json!({ "metadata": { "labels": self.pod_labels("host", true) }, "spec": spec })
    }

    /// The Job of the master.
    fn job(&self) -> Json {
        let mut container = self.container();
        container["args"] = json!(["run", "--job", format!("{CONFIG}/job.toml")]);
        let field = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
        if let Json::Array(env) = &mut container["env"] {
            env.extend([
                json!({ "name": "POD_NAME", "valueFrom": field("metadata.name") }),
                json!({ "name": "POD_IP", "valueFrom": field("status.podIP") }),
                json!({ "name": "ANTDT_RDZV_ENDPOINT", "value": "$(POD_IP)" }),
            ]);
        }
        container["ports"] = json!([
            { "name": "gate", "containerPort": GATE_PORT },
            { "name": "http", "containerPort": HTTP_PORT },
        ]);
        container["resources"] = json!({ "requests": { "cpu": "500m", "memory": "1Gi" } });
        let health = json!({ "path": "/healthz", "port": "http" });
        // It answers once all hosts have come, for which the job may wait for days.
        let days = 7 * 24 * 60 * 60 / 10;
        container["startupProbe"] =
            json!({ "httpGet": health, "periodSeconds": 10, "failureThreshold": days });
        container["livenessProbe"] = json!({ "httpGet": health, "periodSeconds": 10, "failureThreshold": 6 });
        container["readinessProbe"] = json!({ "httpGet": health, "periodSeconds": 5 });
        let mut pod = self.pod(&container);
        pod["serviceAccountName"] = json!(self.name);
        pod["automountServiceAccountToken"] = json!(true);
        pod["terminationGracePeriodSeconds"] = json!(120);
        let mut job = json!({
            "backoffLimit": if self.volume.is_some() { RESTARTS } else { 0 },
            // Exit codes of a job that is refused, or that ended with samples missing: another start ends alike.
            "podFailurePolicy": { "rules": [
                { "action": "FailJob", "onExitCodes": { "containerName": "antdt", "operator": "In", "values": [2, 3] } },
                { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] },
            ] },
            "template": { "metadata": { "labels": self.pod_labels("master", false) }, "spec": pod },
        });
        if self.volume.is_none() {
            // Without a volume, the next master would train from the beginning.
            job["podFailurePolicy"]["rules"] = json!([job["podFailurePolicy"]["rules"][0]]);
        }
        if self.queue.is_some() {
            job["suspend"] = json!(true);
        }
        job
    }

    fn container(&self) -> Json {
        let mut mounts = json!([
            { "name": "config", "mountPath": CONFIG, "readOnly": true },
            { "name": "secret", "mountPath": SECRET, "readOnly": true },
            { "name": "tmp", "mountPath": "/tmp" },
            { "name": "shm", "mountPath": "/dev/shm" },
            { "name": "work", "mountPath": WORK },
        ]);
        if let (Json::Array(mounts), Some((_, path))) = (&mut mounts, &self.volume) {
            mounts.push(json!({ "name": "volume", "mountPath": path }));
        }
        json!({
            "name": "antdt",
            "image": self.image,
            "command": ["antdt"],
            "workingDir": WORK,
            "env": [{ "name": "HOME", "value": WORK }],
            "volumeMounts": mounts,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"] },
            },
        })
    }

    fn pod(&self, container: &Json) -> Json {
        let mut volumes = json!([
            { "name": "config", "configMap": { "name": self.name } },
            { "name": "secret", "secret": { "secretName": self.name, "defaultMode": 0o400 } },
            { "name": "tmp", "emptyDir": {} },
            { "name": "shm", "emptyDir": { "medium": "Memory", "sizeLimit": self.shm } },
            { "name": "work", "emptyDir": {} },
        ]);
        if let (Json::Array(volumes), Some((claim, _))) = (&mut volumes, &self.volume) {
            volumes.push(json!({ "name": "volume", "persistentVolumeClaim": { "claimName": claim } }));
        }
        json!({
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": NOBODY,
                "runAsGroup": NOBODY,
                "fsGroup": NOBODY,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [container],
            "volumes": volumes,
        })
    }
}
