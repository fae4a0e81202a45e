//! Creates the objects of a job. Whatever goes wrong, it takes back what it has created.

use std::time::Duration;

use antdt_launch::runtime::source::kubernetes::denied;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, TypeMeta};
use kube::{Api, Client, Error};
use serde_json::{Value as Json, json};
use tokio::time::timeout;

use super::manifests;
use crate::cli::{CliError, KubernetesBatch};

/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Creates the objects, the last of which is the Job that owns the others. Returns what is said of it.
pub(super) fn create(batch: &KubernetesBatch, secret: &str) -> Result<String, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::new(error.to_string()))?;
    runtime.block_on(async {
        let client = Client::try_default().await.map_err(|error| {
            CliError::new(format!("no cluster is known: {error}; set KUBECONFIG, or use --print and kubectl apply -f -"))
        })?;
        let namespace =
            batch.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let objects = manifests::objects(batch, &namespace, secret)?;
        let mut created = Vec::new();
        if let Err(error) = create_all(&client, &namespace, objects, &mut created).await {
            for (api, name) in created.iter().rev() {
                let _ = called(api.delete(name, &DeleteParams::background())).await;
            }
            return Err(error);
        }
        let name = &batch.name;
        Ok(format!(
            "job {name} is submitted in namespace {namespace}; kubectl logs -n {namespace} -f job/{name} follows it, \
             kubectl delete -n {namespace} job/{name} ends it and removes all of it\n"
        ))
    })
}

async fn create_all(
    client: &Client,
    namespace: &str,
    objects: Vec<Json>,
    created: &mut Vec<(Api<DynamicObject>, String)>,
) -> Result<(), CliError> {
    let mut owner = Json::Null;
    for object in objects {
        let object: DynamicObject =
            serde_json::from_value(object).map_err(|error| CliError::new(error.to_string()))?;
        let TypeMeta { api_version, kind } = object.types.clone().unwrap_or_default();
        let name = object.metadata.name.clone().unwrap_or_default();
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", &api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let made = called(api.create(&PostParams::default(), &object))
            .await
            .map_err(|why| CliError::new(format!("{kind} {name} is not created: {why}")))?;
        owner = json!({
            "apiVersion": api_version, "kind": kind, "name": name, "uid": made.metadata.uid.unwrap_or_default(),
        });
        created.push((api, name));
    }
    // The last one is the Job, with which the others go.
    let Some(((_, _), others)) = created.split_last() else { return Ok(()) };
    let patch = Patch::Merge(json!({ "metadata": { "ownerReferences": [owner] } }));
    for (api, name) in others {
        let patched = called(api.patch(name, &PatchParams::default(), &patch)).await;
        patched.map_err(|why| CliError::new(format!("{name} is not given to its job: {why}")))?;
    }
    Ok(())
}

/// Waits for a call, and says in one line why it came to nothing.
async fn called<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
    match timeout(CALL_LIMIT, call).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(Error::Api(status))) => {
            Err(denied(&status.message).unwrap_or_else(|| status.message.replace('\n', " ")))
        }
        Ok(Err(other)) => Err(format!("the API server is not reached: {other}")),
        Err(_) => Err(format!("the API server does not answer within {CALL_LIMIT:?}")),
    }
}
