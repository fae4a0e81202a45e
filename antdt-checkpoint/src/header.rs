//! [`Header`]: the header of a safetensors file: eight bytes with its length, then JSON.
//!
//! Written here and not by the crate `safetensors`, which writes a whole tensor at a time without telling its
//! checksum, and cannot write a tensor that is computed piece by piece. The tests read these files with that
//! crate, and the reverse.

use std::collections::BTreeMap;
use std::str::FromStr;

use antdt_core::InvalidValue;
use serde::de::IntoDeserializer;
use serde::de::value::Error as ValueError;
use serde::{Deserialize, Serialize};

/// Type of the values of a tensor, by the names of the safetensors format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, reason = "the names say the kind of number and its bits")]
pub enum Dtype {
    Bool,
    U8,
    I8,
    #[serde(rename = "F8_E5M2")]
    F8E5m2,
    #[serde(rename = "F8_E4M3")]
    F8E4m3,
    I16,
    U16,
    F16,
    Bf16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

impl Dtype {
    const fn bytes(self) -> u64 {
        match self {
            Self::Bool | Self::U8 | Self::I8 | Self::F8E5m2 | Self::F8E4m3 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::C64 | Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// Returns the length of a tensor in bytes; `None` if it is beyond all numbers.
    pub(crate) fn bytes_of(self, shape: &[u64]) -> Option<u64> {
        shape.iter().try_fold(self.bytes(), |bytes, len| bytes.checked_mul(*len))
    }
}

impl FromStr for Dtype {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let expected = "a type of the safetensors format, such as F32";
        Self::deserialize(text.into_deserializer())
            .map_err(|_: ValueError| InvalidValue::new("dtype", text, expected))
    }
}

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    /// Where its bytes begin and end, counted from the end of the header.
    pub(crate) data_offsets: (u64, u64),
}

/// See the [module](self).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Header {
    #[serde(rename = "__metadata__", default)]
    pub(crate) metadata: BTreeMap<String, String>,
    #[serde(flatten)]
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

const METADATA: &str = "__metadata__";

/// The longest header that readers of the format take.
const LEN_MAX: u64 = 100_000_000;

impl Header {
    /// Bytes before the JSON.
    pub(crate) const PREFIX: usize = 8;

    /// A header without tensors.
    pub(crate) fn new(metadata: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        let metadata = metadata.into_iter().map(|(key, value)| (format!("antdt.{key}"), value)).collect();
        Self { metadata, tensors: BTreeMap::new() }
    }

    /// What is noted under a key of ours.
    pub(crate) fn note(&self, key: &str) -> Option<&str> {
        self.metadata.get(&format!("antdt.{key}")).map(String::as_str)
    }

    /// Bytes of all tensors.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.data_offsets.1).max().unwrap_or(0)
    }

    /// Appends a tensor, whose data follow those of the ones before. Says why not if its name is taken or it is too large.
    pub(crate) fn push(
        &mut self,
        name: String,
        dtype: Dtype,
        shape: Vec<u64>,
        begin: u64,
    ) -> Result<u64, String> {
        if name == METADATA || self.tensors.contains_key(&name) {
            return Err(format!("the tensor name `{name}` is taken; rename the group or table"));
        }
        let bytes = dtype.bytes_of(&shape);
        let end = bytes.and_then(|bytes| begin.checked_add(bytes));
        // Readers count in signed numbers.
        let end = end.filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or_else(|| format!("the tensor `{name}` is larger than any file"))?;
        self.tensors.insert(name, Tensor { dtype, shape, data_offsets: (begin, end) });
        Ok(end)
    }

    /// The bytes before the data. Padded with spaces, so that the data begin at a multiple of eight.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, String> {
        let mut json = serde_json::to_vec(self).expect("texts, numbers, and maps whose keys are texts");
        json.resize(json.len().next_multiple_of(8), b' ');
        let len = json.len() as u64;
        if len > LEN_MAX {
            return Err(format!(
                "{} tensors have a header of {len} bytes, {LEN_MAX} is the most",
                self.tensors.len()
            ));
        }
        Ok([&len.to_le_bytes()[..], &json].concat())
    }

    /// The length of the JSON that these first bytes announce, in a file of `file_bytes`.
    pub(crate) fn json_len(prefix: [u8; Self::PREFIX], file_bytes: u64) -> Result<usize, String> {
        let len = u64::from_le_bytes(prefix);
        let fits = len <= LEN_MAX && len <= file_bytes.saturating_sub(Self::PREFIX as u64);
        let len = usize::try_from(len).ok().filter(|_| fits);
        len.ok_or_else(|| "it does not begin with the length of a header".to_owned())
    }

    /// Reads the JSON. The tensors cover the data without a hole, in whatever order.
    pub(crate) fn decode(json: &[u8]) -> Result<Self, String> {
        let header: Self = serde_json::from_slice(json)
            .map_err(|error| format!("its header is no JSON of tensors: {error}"))?;
        let mut places = Vec::with_capacity(header.tensors.len());
        for (name, Tensor { dtype, shape, data_offsets: (begin, end) }) in &header.tensors {
            let bytes = dtype.bytes_of(shape);
            if bytes.is_none() || bytes != end.checked_sub(*begin) {
                return Err(format!("tensor `{name}` has another length than its shape says"));
            }
            places.push((*begin, *end, name));
        }
        places.sort_unstable();
        let mut expected = 0;
        for (begin, end, name) in places {
            if begin != expected {
                return Err(format!("tensor `{name}` does not begin where the one before it ends"));
            }
            expected = end;
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;
    use safetensors::tensor::TensorView;

    use super::*;

    fn header() -> Header {
        let mut header = Header::new([("part", "replica".to_owned())]);
        let end = header.push("t/rows".to_owned(), Dtype::I64, vec![1], 0).unwrap();
        let end = header.push("w".to_owned(), Dtype::F32, vec![2, 3], end).unwrap();
        header.push("none".to_owned(), Dtype::F32, vec![0, 3], end).unwrap();
        header
    }

    #[test]
    fn other_programs_read_headers_that_are_written_here() {
        let values = [1.0_f32, -2.0, 3.5, 4.0, 5.0, f32::MIN_POSITIVE];
        let mut bytes = header().encode().unwrap();
        assert_eq!(bytes.len() % 8, 0);
        bytes.extend(9_i64.to_le_bytes());
        bytes.extend_from_slice(bytemuck::cast_slice(&values));
        assert_eq!(header().data_bytes(), 32);
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["antdt.part"], "replica");
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = tensors.tensor("w").unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (safetensors::Dtype::F32, &[2, 3][..]));
        assert_eq!(tensor.data(), bytemuck::cast_slice::<f32, u8>(&values));
        assert_eq!(tensors.tensor("t/rows").unwrap().data(), 9_i64.to_le_bytes());
        assert_eq!(tensors.tensor("none").unwrap().shape(), [0, 3]);
    }

    #[test]
    fn headers_of_other_programs_are_read_here() {
        let (rows, values) = ([3_i64, 4], [1.0_f32, 2.0, 3.0]);
        let view = |dtype, shape: &[usize], data| TensorView::new(dtype, shape.to_vec(), data).unwrap();
        let tensors = [
            ("w", view(safetensors::Dtype::F32, &[3], bytemuck::cast_slice(&values))),
            ("rows", view(safetensors::Dtype::I64, &[2], bytemuck::cast_slice(&rows))),
        ];
        let bytes = safetensors::serialize(tensors, None).unwrap();
        let (prefix, rest) = bytes.split_first_chunk().unwrap();
        let len = Header::json_len(*prefix, bytes.len() as u64).unwrap();
        let header = Header::decode(&rest[..len]).unwrap();
        assert_eq!(header.tensors.len(), 2);
        let (begin, end) = header.tensors["w"].data_offsets;
        assert_eq!(&rest[len..][begin as usize..end as usize], bytemuck::cast_slice::<f32, u8>(&values));
        assert_eq!((header.tensors["rows"].dtype, header.data_bytes()), (Dtype::I64, 28));
    }

    #[test]
    fn a_header_reads_back_and_damage_is_refused() {
        let bytes = header().encode().unwrap();
        let (prefix, json) = bytes.split_first_chunk().unwrap();
        assert_eq!(Header::json_len(*prefix, bytes.len() as u64), Ok(json.len()));
        assert_eq!(Header::decode(json), Ok(header()));
        assert_eq!(header().note("part"), Some("replica"));
        assert!(Header::json_len(*prefix, bytes.len() as u64 - 1).is_err(), "longer than the file");
        let text = String::from_utf8(json.to_vec()).unwrap();
        for (from, to) in [
            ("[8,32]", "[8,28]"),
            ("[8,32]", "[9,33]"),
            ("[8,32]", "[4,28]"),
            ("\"F32\"", "\"F8\""),
            ("[2,3]", "[-2,3]"),
        ] {
            assert!(text.contains(from), "{text}");
            assert!(Header::decode(text.replace(from, to).as_bytes()).is_err(), "{from} as {to}");
        }
        assert!(Header::decode(&json[..json.len() / 2]).is_err());
    }

    #[test]
    fn names_are_unique_and_sizes_countable() {
        let mut header = header();
        for name in ["w", "__metadata__"] {
            let error = header.push(name.to_owned(), Dtype::F32, vec![1], 32).unwrap_err();
            assert!(error.contains(name) && error.contains("rename"), "{error}");
        }
        assert!(header.push("x".to_owned(), Dtype::F32, vec![1 << 40, 1 << 40], 32).is_err());
        assert!(header.push("x".to_owned(), Dtype::I64, vec![1 << 60], 32).is_err());
    }
}
