//! [`Manifest`]: what a checkpoint is, of which job, and of which files it consists.
//!
//! It is the file `manifest.json` of a checkpoint's folder, written last: a folder without a whole one is no checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use antdt_core::CheckpointId;
use antdt_model::Trained;
use antdt_shard::CutBinding;
use serde::{Deserialize, Serialize};

use crate::identity::JobIdentity;

/// See the [module](self).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format: [`FORMAT`](Self::FORMAT) in what this crate writes.
    pub format: u32,
    /// Version of the program that took it.
    pub antdt: String,
    /// Number of the checkpoint; a later one has a higher number.
    pub checkpoint: CheckpointId,
    /// When it was taken: seconds since 1970, UTC.
    pub created_unix_s: u64,
    /// What a job must have in common with the one that took it.
    pub job: JobIdentity,
    /// How far the model is trained.
    #[serde(with = "TrainedText")]
    pub trained: Trained,
    /// The optimizer with its settings: [`UpdateRule::identity`](antdt_model::UpdateRule::identity). A job with another one
    /// takes the parameters over, not what the optimizer keeps.
    pub optimizer: String,
    /// The ledger's half: the cut in the file `ledger.cut` must have this binding.
    #[serde(with = "as_text")]
    pub ledger: CutBinding,
    /// Sync mode, as `--sync` takes it. As information, like all that follows up to the files.
    pub mode: String,
    /// Workers that took part.
    pub workers: u32,
    /// Parameter servers.
    pub servers: u32,
    /// Passes over the data that were asked for.
    pub epochs: u32,
    /// Samples of a shard.
    pub shard_len: u64,
    /// The plan in force: batch size of each worker, by the worker's name.
    pub plan: BTreeMap<String, u32>,
    /// Where it comes from: settings of the job, and what else the writer wants to be known.
    #[serde(default)]
    pub extra: BTreeMap<String, String>,
    /// Every file but this one.
    pub files: Vec<FileEntry>,
}

/// A file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Name within the checkpoint's folder.
    pub name: String,
    /// Length, in bytes.
    pub bytes: u64,
    /// CRC-32C of all bytes; eight hexadecimal digits in the file.
    #[serde(with = "as_hex")]
    pub crc32c: u32,
}

/// Bytes that are not the manifest of a checkpoint that this program can read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// Not JSON, or a field is missing or malformed.
    #[error("not a manifest of a checkpoint: {why}; remove the checkpoint, or restore the file from a copy")]
    Malformed {
        /// What is wrong, and where.
        why: String,
    },
    /// Not the bytes that were written.
    #[error("its checksum is wrong: it is damaged; restore the file from a copy, or take another checkpoint")]
    Damaged,
    /// Written by a later version.
    #[error(
        "format = {format}, written by antdt {antdt}: this program reads formats up to {}; use that version",
        Manifest::FORMAT
    )]
    Newer {
        /// The format in the file.
        format: u32,
        /// The version that wrote it, as far as it says so.
        antdt: String,
    },
}

impl Manifest {
    /// The format that is written, and the newest that is read.
    pub const FORMAT: u32 = 1;
    /// Name of the file.
    pub const NAME: &'static str = "manifest.json";
    /// Name of the file with the ledger's half.
    pub const LEDGER: &'static str = "ledger.cut";
    /// Suffix of files with a part of the model.
    pub const PART: &'static str = ".safetensors";

    /// The files with parts of the model.
    pub fn parts(&self) -> impl Iterator<Item = &FileEntry> {
        self.files.iter().filter(|file| file.name.ends_with(Self::PART))
    }

    /// The file with this name.
    pub fn file(&self, name: &str) -> Option<&FileEntry> {
        self.files.iter().find(|file| file.name == name)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// The content of the file. Its last field is the checksum of what stands before that.
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("texts, numbers, and maps whose keys are texts");
        seal(text.strip_suffix("\n}").expect("an object with fields"))
    }

    /// Reads the content of the file.
    ///
    /// # Errors
    /// If it is not a manifest, or one of a newer format.
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

/// The name of a checkpoint's folder: 20 digits, so that names sort as numbers.
pub fn folder_name(checkpoint: CheckpointId) -> String {
    format!("{:020}", checkpoint.0)
}

/// The checkpoint whose folder has this name; `None` if it is no such name.
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
