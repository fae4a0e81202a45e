//! [`NodeFile`]: the text of the file that a launcher hands over to a node: what is secret or may be long.

use std::path::PathBuf;
use std::time::Duration;

use antdt_core::{InvalidValue, ParamLayout, ServerWeights};
use antdt_proto::Token;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::job::JobSpec;

/// What a node is told by a file; the fields are those of [`NodeEnv`](super::NodeEnv).
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeFile {
    #[serde(serialize_with = "write_token", deserialize_with = "read_token")]
    pub(super) token: Token,
    pub(super) tls: bool,
    #[serde(with = "antdt_core::time::nanoseconds")]
    pub(super) job_start: Duration,
    pub(super) network: Option<PathBuf>,
    pub(super) weights: ServerWeights,
    pub(super) layout: Option<ParamLayout>,
    pub(super) spec: JobSpec,
}

impl NodeFile {
    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).expect("plain values")
    }

    pub(super) fn read(text: &str) -> Result<Self, InvalidValue> {
        serde_json::from_str(text).map_err(|error| {
            let expected = format!("what a master of this version tells a node: {error}");
            InvalidValue::new(super::NodeEnv::FILE, "(JSON)", expected)
        })
    }
}

fn write_token<S: Serializer>(token: &Token, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(token.text())
}

fn read_token<'de, D: Deserializer<'de>>(from: D) -> Result<Token, D::Error> {
    Token::new(String::deserialize(from)?).map_err(serde::de::Error::custom)
}
