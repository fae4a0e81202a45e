//! `antdt submit --kubernetes`: the objects of a job in a cluster. Its master is a Job, which starts the other pods itself.

mod client;
mod manifests;
#[cfg(test)]
mod tests;

use antdt_core::InvalidValue;
use serde::Serialize;

use crate::cli::{CliError, KubernetesBatch, Submit};
use crate::random;
use crate::simulate::CommandOutput;

/// Bytes of the job's secret.
const SECRET_LEN: usize = 32;

/// Namespace of manifests that are printed, unless it is given.
const NAMESPACE: &str = "default";

/// Creates the objects, or prints them.
pub(super) fn submit(submit: &Submit, batch: &KubernetesBatch) -> Result<CommandOutput, CliError> {
    let secret = random::hex::<SECRET_LEN>().map_err(|error| CliError::new(error.to_string()))?;
    let text = match submit.print {
        true => {
            let namespace = batch.namespace.as_deref().unwrap_or(NAMESPACE);
            let objects = manifests::objects(batch, namespace, &secret)?;
            objects.iter().map(yaml).collect::<Result<Vec<_>, _>>()?.join("---\n")
        }
        false => client::create(batch, &secret)?,
    };
    Ok(CommandOutput { text, good: true })
}

/// Writes a value as YAML.
fn yaml(value: &impl Serialize) -> Result<String, InvalidValue> {
    serde_saphyr::to_string(value)
        .map_err(|error| InvalidValue::new("the manifest", error, "a value that YAML can say"))
}
