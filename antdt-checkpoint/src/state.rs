//! [`ModelState`]: a model in the words of the program that keeps it, as a part of a checkpoint.
//!
//! The file is a safetensors file like every part. Its metadata has the program's own outline as `antdt.outline`, and its tensors
//! have the names and types that the program gave them.

use serde::{Deserialize, Serialize};

use crate::header::{Dtype, Header, Tensor};
use crate::part::PartFileError;

/// A model whose shape and numbers only the program that trains it can read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelState {
    /// What the tensors are parts of, in the words of the program.
    pub outline: String,
    /// Tensors with unlike names, in the order of the outline.
    pub tensors: Vec<StateTensor>,
}

/// A tensor of a [`ModelState`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateTensor {
    /// Name and shape.
    pub spec: TensorSpec,
    /// The values as they lie in memory, row by row.
    pub bytes: Vec<u8>,
}

/// Description of a tensor of a [`ModelState`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// Name; no other tensor of the model has it.
    pub name: String,
    /// Type of the values.
    pub dtype: Dtype,
    /// Length of each axis.
    pub shape: Vec<u64>,
}

impl TensorSpec {
    /// Returns the length in bytes; `None` if no memory is that long.
    pub fn bytes(&self) -> Option<usize> {
        self.dtype.bytes_of(&self.shape).and_then(|bytes| usize::try_from(bytes).ok())
    }
}

/// Key of the outline.
const OUTLINE: &str = "outline";

/// The header of the file called `part`.
///
/// # Errors
/// If two tensors have one name, or one has another length than its shape.
pub(crate) fn header(state: &ModelState, part: &str) -> Result<Header, PartFileError> {
    let mut header = Header::new([
        ("format", crate::Manifest::FORMAT.to_string()),
        ("part", part.to_owned()),
        (OUTLINE, state.outline.clone()),
    ]);
    let mut end = 0;
    for StateTensor { spec, bytes } in &state.tensors {
        let begin = end;
        end = header.push(spec.name.clone(), spec.dtype, spec.shape.clone(), begin)?;
        if end - begin != bytes.len() as u64 {
            let (name, due, given) = (&spec.name, end - begin, bytes.len());
            return Err(format!("tensor `{name}` has {given} bytes, and {due} by its shape").into());
        }
    }
    Ok(header)
}

/// The outline that a header has.
///
/// # Errors
/// If it is the header of another kind of part.
pub(crate) fn outline(header: &Header) -> Result<&str, PartFileError> {
    header.note(OUTLINE).ok_or_else(|| "antdt.outline is missing in its metadata".to_owned().into())
}

/// The model that a header announces, all zeros.
///
/// # Errors
/// If it is the header of another kind of part.
pub(crate) fn zeros(header: Header) -> Result<ModelState, PartFileError> {
    let outline = outline(&header)?.to_owned();
    let mut tensors: Vec<(String, Tensor)> = header.tensors.into_iter().collect();
    // Those without values lie where the next one begins.
    tensors.sort_by_key(|(_, tensor)| tensor.data_offsets);
    let zeros = |(name, Tensor { dtype, shape, data_offsets: (begin, end) })| {
        let len = usize::try_from(end - begin).unwrap_or(usize::MAX);
        StateTensor { spec: TensorSpec { name, dtype, shape }, bytes: vec![0; len] }
    };
    Ok(ModelState { outline, tensors: tensors.into_iter().map(zeros).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, dtype: Dtype, shape: &[u64]) -> StateTensor {
        let spec = TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() };
        let bytes = vec![0; spec.bytes().unwrap()];
        StateTensor { spec, bytes }
    }

    #[test]
    fn tensors_of_all_types_keep_their_order_names_and_shapes() {
        let dtypes = [Dtype::Bool, Dtype::U8, Dtype::I16, Dtype::Bf16, Dtype::F32, Dtype::F64, Dtype::C64];
        let named = |(at, dtype): (usize, &Dtype)| tensor(&format!("t{}", 9 - at), *dtype, &[at as u64, 3]);
        let mut tensors: Vec<_> = dtypes.iter().enumerate().map(named).collect();
        tensors.push(tensor("step", Dtype::I64, &[]));
        let state = ModelState { outline: "{\"a\": [1]}".to_owned(), tensors };
        let encoded = header(&state, "program").unwrap().encode().unwrap();
        let read = Header::decode(&encoded[Header::PREFIX..]).unwrap();
        assert_eq!(zeros(read), Ok(state));
    }

    #[test]
    fn types_are_named_as_the_format_names_them() {
        let parsed = ["F32", "BF16", "F8_E4M3", "BOOL", "C64"].map(|name| name.parse::<Dtype>());
        let expected = [Dtype::F32, Dtype::Bf16, Dtype::F8E4m3, Dtype::Bool, Dtype::C64];
        assert_eq!(parsed, expected.map(Ok));
        let error = "complex128".parse::<Dtype>().unwrap_err().to_string();
        assert_eq!(error, "dtype = complex128: must be a type of the safetensors format, such as F32");
    }

    #[test]
    fn names_that_repeat_and_lengths_that_do_not_fit_are_refused() {
        let refused =
            |tensors| header(&ModelState { outline: String::new(), tensors }, "p").unwrap_err().to_string();
        let twice = refused(vec![tensor("w", Dtype::F32, &[2]), tensor("w", Dtype::F32, &[2])]);
        assert!(twice.contains("`w` is taken"), "{twice}");
        let short = StateTensor { bytes: vec![0; 7], ..tensor("w", Dtype::F32, &[2]) };
        assert_eq!(refused(vec![short]), "tensor `w` has 7 bytes, and 8 by its shape");
    }

    #[test]
    fn a_part_of_another_kind_is_refused() {
        let error = zeros(Header::new([("part", "replica".to_owned())])).unwrap_err().to_string();
        assert_eq!(error, "antdt.outline is missing in its metadata");
    }
}
