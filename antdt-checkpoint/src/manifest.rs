//! [`Manifest`]: the description of a checkpoint: its job, its progress, and its files.
//!
//! It is the file `manifest.json` of a checkpoint's folder, written last: a folder without a complete
//! manifest is no checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use antdt_core::CheckpointId;
use antdt_model::Trained;
use antdt_shard::CutBinding;
use serde::{Deserialize, Serialize};

use crate::identity::JobIdentity;

/// The description of a checkpoint (`manifest.json`): its job, the progress of training, and all of its
/// files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the manifest's format; this crate writes [`FORMAT`](Self::FORMAT).
    pub format: u32,
    /// Version of the program that took the checkpoint.
    pub antdt: String,
    /// Number of the checkpoint; a later one has a higher number.
    pub checkpoint: CheckpointId,
    /// Time at which the checkpoint was taken, in seconds since 1970, UTC.
    pub created_unix_s: u64,
    /// Properties that a job must share to continue from it.
    pub job: JobIdentity,
    /// Number of steps and samples that the model was trained for.
    #[serde(with = "TrainedText")]
    pub trained: Trained,
    /// Name of the optimizer with its settings: [`UpdateRule::identity`](antdt_model::UpdateRule::identity).
    /// A job with another optimizer takes over the parameters without the optimizer's state.
    pub optimizer: String,
    /// Binding that the ledger's cut in the file `ledger.cut` must have.
    #[serde(with = "as_text")]
    pub ledger: CutBinding,
    /// Sync mode, in the form of `--sync`. This field and the following ones, up to `files`, are for
    /// information only.
    pub mode: String,
    /// Number of workers that took part in the job.
    pub workers: u32,
    /// Number of parameter servers.
    pub servers: u32,
    /// Passes over the data that the job was asked for.
    pub epochs: u32,
    /// Length of a shard in samples.
    pub shard_len: u64,
    /// Batch size of each worker in the plan in force, in samples, by the worker's name.
    pub plan: BTreeMap<String, u32>,
    /// Further information, such as settings of the job.
    #[serde(default)]
    pub extra: BTreeMap<String, String>,
    /// All files of the checkpoint except the manifest.
    pub files: Vec<FileEntry>,
}

/// Name, length and checksum of a file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Name of the file within the checkpoint's folder.
    pub name: String,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// CRC-32C of the file's bytes; the manifest has it as eight hexadecimal digits.
    #[serde(with = "as_hex")]
    pub crc32c: u32,
}

/// Reason why bytes are not a manifest that this program can read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// The bytes are not JSON, or a field is missing or malformed.
    #[error("not a manifest of a checkpoint: {why}; remove the checkpoint, or restore the file from a copy")]
    Malformed {
        /// Description of the error, and its place.
        why: String,
    },
    /// The checksum does not match: the file has changed since it was written.
    #[error("its checksum is wrong: it is damaged; restore the file from a copy, or take another checkpoint")]
    Damaged,
    /// A later version of the program wrote the manifest: use that version.
    #[error(
        "format = {format}, written by antdt {antdt}: this program reads formats up to {}; use that version",
        Manifest::FORMAT
    )]
    Newer {
        /// Format version of the file.
        format: u32,
        /// Version of the program that wrote the manifest, if it is named.
        antdt: String,
    },
}

impl Manifest {
    /// Format version that this release writes, and the newest that it reads.
    pub const FORMAT: u32 = 1;
    /// Name of the manifest's file.
    pub const NAME: &'static str = "manifest.json";
    /// Name of the file with the ledger's cut.
    pub const LEDGER: &'static str = "ledger.cut";
    /// Name of the file with a model that is a program's own.
    pub const STATE: &'static str = "program.safetensors";
    /// Suffix of files with a part of the model.
    pub const PART: &'static str = ".safetensors";

    /// Returns the files with parts of the model.
    pub fn parts(&self) -> impl Iterator<Item = &FileEntry> {
        self.files.iter().filter(|file| file.name.ends_with(Self::PART))
    }

    /// Returns the entry of the file with this name; `None` if the checkpoint has no such file.
    pub fn file(&self, name: &str) -> Option<&FileEntry> {
        self.files.iter().find(|file| file.name == name)
    }

    /// Returns the total length of all files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// Returns the manifest as JSON. Its last field is the checksum of everything before it.
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("texts, numbers, and maps whose keys are texts");
        seal(text.strip_suffix("\n}").expect("an object with fields"))
    }

    /// Parses and checks a manifest.
    ///
    /// # Errors
    /// If the bytes are not a manifest, are damaged, or have a newer format.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ManifestError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
            #[serde(default)]
            antdt: String,
        }
        let malformed = |why: String| ManifestError::Malformed { why: why.replace(['\n', '\r'], " ") };
        let unread = |error: serde_json::Error| malformed(error.to_string());
        let Head { format, antdt } = serde_json::from_slice(bytes).map_err(unread)?;
        // First of all: a later format may look different in everything else.
        if format > Self::FORMAT {
            let antdt = if antdt.is_empty() { "of an unknown version".to_owned() } else { antdt };
            return Err(ManifestError::Newer { format, antdt });
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(unread)?;
        let text = std::str::from_utf8(bytes).map_err(|error| malformed(error.to_string()))?;
        let content =
            text.rsplit_once(CHECKSUM).ok_or_else(|| malformed("its checksum is missing".to_owned()))?.0;
        if seal(content) != text {
            return Err(ManifestError::Damaged);
        }
        manifest.check().map_err(malformed)?;
        Ok(manifest)
    }

    /// What the types do not say.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.format == 0 || self.format > Self::FORMAT {
            return Err(format!("format = {}: must be 1 to {}", self.format, Self::FORMAT));
        }
        if self.ledger.checkpoint != self.checkpoint {
            let (ledger, model) = (self.ledger.checkpoint, self.checkpoint);
            return Err(format!("ledger is of checkpoint {ledger} and the model of {model}"));
        }
        let mut names = BTreeSet::new();
        for FileEntry { name, .. } in &self.files {
            if !is_plain(name) || name == Self::NAME {
                return Err(format!("files: {name:?} is no name of a file in the checkpoint's folder"));
            }
            if !names.insert(name) {
                return Err(format!("files: {name:?} is listed twice"));
            }
        }
        if self.parts().next().is_none() {
            return Err("files: no part of the model is listed".to_owned());
        }
        Ok(())
    }
}

/// What stands between the content of a manifest and its checksum.
const CHECKSUM: &str = ",\n  \"checksum\": \"";

/// A manifest of this content, which lacks the end of its object.
fn seal(content: &str) -> String {
    format!("{content}{CHECKSUM}{:08x}\"\n}}\n", crc32c::crc32c(content.as_bytes()))
}

/// Whether a name means a file in the folder, and not one elsewhere, a hidden or an unfinished one.
pub(crate) fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=128).contains(&name.len()) && !name.starts_with('.') && name.chars().all(plain)
}

/// Returns the name of a checkpoint's folder: 20 digits, so that names sort as numbers.
pub fn folder_name(checkpoint: CheckpointId) -> String {
    format!("{:020}", checkpoint.0)
}

/// Returns the number of the checkpoint whose folder has this name; `None` if no checkpoint's folder has such
/// a name.
pub fn checkpoint_of(name: &str) -> Option<CheckpointId> {
    let digits = name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|_| digits).map(CheckpointId)
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Trained")]
struct TrainedText {
    steps: u64,
    samples: u64,
}

/// Values that are written as their text.
mod as_text {
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::fmt::Display;

    pub(super) fn serialize<S: Serializer>(value: &impl Display, into: S) -> Result<S::Ok, S::Error> {
        into.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>, T>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Checksums.
mod as_hex {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands references over")]
    pub(super) fn serialize<S: Serializer>(value: &u32, into: S) -> Result<S::Ok, S::Error> {
        into.collect_str(&format_args!("{value:08x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u32::from_str_radix(&text, 16).ok().filter(|_| digits);
        number.ok_or_else(|| {
            D::Error::custom(format_args!("crc32c = {text:?}: must be eight hexadecimal digits"))
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
