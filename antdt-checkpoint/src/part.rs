//! The file of one part of a model: its tensors, and their conversion to and from a [`Portion`].
//!
//! Names: `GROUP` and `optimizer.0/GROUP` for a dense group, `TABLE/rows`, `TABLE/values` and
//! `TABLE/optimizer.0` for the rows of a table. Where the part holds only a piece of a group, the tensor has
//! that piece; where the piece begins follows from `antdt.dense` in the file's metadata, the range of the
//! model's flat vector. All tensors of the flat vector stand in its order, so that each array of the portion
//! is one run of bytes.

use std::ops::Range;

use antdt_core::ParamLayout;
use antdt_model::{Portion, TablePortion};

use crate::header::{Dtype, Header};

/// Reason why a file is not a part of the model, or a portion of the model cannot be written as one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct PartFileError {
    why: String,
}

impl PartFileError {
    fn new(why: impl Into<String>) -> Self {
        Self { why: why.into() }
    }
}

impl From<String> for PartFileError {
    fn from(why: String) -> Self {
        Self { why }
    }
}

/// How much of a model a part holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartShape {
    /// The part's range of the flat vector.
    pub(crate) dense: Range<usize>,
    /// Numbers that the optimizer keeps for each value.
    pub(crate) states: usize,
    /// Rows of each table.
    pub(crate) rows: Vec<usize>,
}

/// More numbers than this for each value no optimizer keeps; a file that says so is damaged.
const STATES_MAX: usize = 16;

impl PartShape {
    /// The shape of a portion.
    ///
    /// # Errors
    /// If its arrays do not fit each other or the layout.
    pub(crate) fn of(layout: &ParamLayout, portion: &Portion) -> Result<Self, PartFileError> {
        portion.validate(layout).map_err(|error| PartFileError::new(error.to_string()))?;
        let states = portion.dense_state.len();
        if states > STATES_MAX {
            return Err(PartFileError::new(format!(
                "{states} numbers are kept of each value, {STATES_MAX} are the most"
            )));
        }
        if let Some(at) = portion.tables.iter().position(|table| table.state.len() != states) {
            let (name, kept) = (&layout.tables()[at].name, portion.tables[at].state.len());
            return Err(PartFileError::new(format!(
                "{kept} numbers are kept of each value of table `{name}`, and {states} of dense ones"
            )));
        }
        let dense = portion.dense_from..portion.dense_from + portion.dense.len();
        Ok(Self { dense, states, rows: portion.tables.iter().map(|table| table.rows.len()).collect() })
    }

    /// The header of the file called `part`.
    ///
    /// # Errors
    /// If two tensors would have one name, or one is too large.
    pub(crate) fn header(&self, layout: &ParamLayout, part: &str) -> Result<Header, PartFileError> {
        let Self { dense, states, rows } = self;
        let mut header = Header::new([
            ("format", crate::Manifest::FORMAT.to_string()),
            ("part", part.to_owned()),
            ("dense", format!("{}..{}", dense.start, dense.end)),
            ("optimizer_states", states.to_string()),
        ]);
        let mut end = 0;
        for (spec, rows) in layout.tables().iter().zip(rows) {
            end = header.push(format!("{}/rows", spec.name), Dtype::I64, vec![*rows as u64], end)?;
        }
        let kept = |number: usize| format!("optimizer.{number}");
        for array in 0..=*states {
            for (place, group) in layout.ranges() {
                let held = place.start.max(dense.start)..place.end.min(dense.end);
                if held.is_empty() {
                    continue;
                }
                let name = match array {
                    0 => group.name.clone(),
                    array => format!("{}/{}", kept(array - 1), group.name),
                };
                end = header.push(name, Dtype::F32, vec![held.len() as u64], end)?;
            }
        }
        for (spec, rows) in layout.tables().iter().zip(rows) {
            for array in 0..=*states {
                let what = if array == 0 { "values".to_owned() } else { kept(array - 1) };
                let shape = vec![*rows as u64, spec.dim as u64];
                end = header.push(format!("{}/{what}", spec.name), Dtype::F32, shape, end)?;
            }
        }
        Ok(header)
    }

    /// The shape that a header means for a model of this layout.
    ///
    /// # Errors
    /// If it is not the header of a part of such a model.
    pub(crate) fn from_header(header: &Header, layout: &ParamLayout) -> Result<Self, PartFileError> {
        let note = |key: &str| {
            header
                .note(key)
                .ok_or_else(|| PartFileError::new(format!("antdt.{key} is missing in its metadata")))
        };
        let malformed =
            |key: &str, text: &str| PartFileError::new(format!("antdt.{key} = {text:?} in its metadata"));
        let text = note("dense")?;
        let dense = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
        let dense =
            dense.filter(|dense: &Range<usize>| dense.start <= dense.end && dense.end <= layout.dense_len());
        let dense = dense.ok_or_else(|| malformed("dense", text))?;
        let text = note("optimizer_states")?;
        let states = text.parse().ok().filter(|states| *states <= STATES_MAX);
        let states = states.ok_or_else(|| malformed("optimizer_states", text))?;
        let rows = |spec: &antdt_core::TableSpec| {
            let tensor = header.tensors.get(&format!("{}/rows", spec.name));
            let rows = tensor.and_then(|tensor| usize::try_from(*tensor.shape.first()?).ok());
            rows.ok_or_else(|| PartFileError::new(format!("the rows of table `{}` are missing", spec.name)))
        };
        let rows = layout.tables().iter().map(rows).collect::<Result<_, _>>()?;
        let shape = Self { dense, states, rows };
        let expected = shape.header(layout, note("part")?)?;
        if let Some(name) = header.tensors.keys().find(|name| !expected.tensors.contains_key(*name)) {
            return Err(PartFileError::new(format!("tensor `{name}` is none of the model's")));
        }
        for (name, tensor) in &expected.tensors {
            if header.tensors.get(name) != Some(tensor) {
                return Err(PartFileError::new(format!("tensor `{name}` is missing or has another shape")));
            }
        }
        Ok(shape)
    }

    /// A portion of this shape, all zeros.
    pub(crate) fn zeros(&self, layout: &ParamLayout) -> Portion {
        let arrays = |len: usize| vec![vec![0.0; len]; self.states];
        let table = |(rows, spec): (&usize, &antdt_core::TableSpec)| {
            let len = rows * spec.dim;
            TablePortion { rows: vec![0; *rows], values: vec![0.0; len], state: arrays(len) }
        };
        Portion {
            dense_from: self.dense.start,
            dense: vec![0.0; self.dense.len()],
            dense_state: arrays(self.dense.len()),
            tables: self.rows.iter().zip(layout.tables()).map(table).collect(),
        }
    }
}

/// The data of a part's file: the arrays of the portion as bytes, in the order of the file.
pub(crate) fn arrays(portion: &Portion) -> impl Iterator<Item = &[u8]> {
    let Portion { dense_from: _, dense, dense_state, tables } = portion;
    let rows = tables.iter().map(|table| bytemuck::cast_slice(&table.rows));
    let dense = std::iter::once(dense).chain(dense_state).map(|values| bytemuck::cast_slice(values));
    let of_rows = tables.iter().flat_map(|table| std::iter::once(&table.values).chain(&table.state));
    rows.chain(dense).chain(of_rows.map(|values| bytemuck::cast_slice(values)))
}

/// As [`arrays`], to be filled.
pub(crate) fn arrays_mut(portion: &mut Portion) -> Vec<&mut [u8]> {
    let Portion { dense_from: _, dense, dense_state, tables } = portion;
    let (mut rows, mut of_rows) = (Vec::new(), Vec::new());
    for table in tables {
        rows.push(bytemuck::cast_slice_mut(&mut table.rows));
        for values in std::iter::once(&mut table.values).chain(&mut table.state) {
            of_rows.push(bytemuck::cast_slice_mut(values));
        }
    }
    for values in std::iter::once(dense).chain(dense_state) {
        rows.push(bytemuck::cast_slice_mut(values));
    }
    rows.append(&mut of_rows);
    rows
}

/// Checks that the parts together hold every dense value once. `parts` are their names and ranges of the flat vector.
pub(crate) fn check_cover(dense_len: usize, parts: &[(&str, Range<usize>)]) -> Result<(), PartFileError> {
    let mut in_order: Vec<_> = parts.iter().filter(|(_, range)| !range.is_empty()).collect();
    in_order.sort_by_key(|(_, range)| range.start);
    let mut end = 0;
    for (name, range) in in_order {
        if range.start != end {
            let what = if range.start > end { "in no part" } else { "in two parts" };
            let (from, to) = (end.min(range.start), end.max(range.start));
            return Err(PartFileError::new(format!(
                "the dense values {from}..{to} are {what}, before {name}"
            )));
        }
        end = range.end;
    }
    if end < dense_len {
        return Err(PartFileError::new(format!("the dense values {end}..{dense_len} are in no part")));
    }
    Ok(())
}

// Files are little-endian, and so is memory.
const _: () = assert!(cfg!(target_endian = "little"), "parts are written as they lie in memory");

#[cfg(test)]
mod tests {
    use antdt_core::{ParamGroup, TableSpec};
    use proptest::prelude::*;

    use super::*;

    fn layout() -> ParamLayout {
        let groups = vec![ParamGroup::trainable("deep.0.weight", 4), ParamGroup::trainable("bias", 2)];
        ParamLayout::new(groups, vec![TableSpec::new("rows", 9, 2, 0.1), TableSpec::new("wide", 5, 1, 0.0)])
            .unwrap()
    }

    fn portion() -> Portion {
        let table = |rows: &[u64], dim: usize| {
            let values = vec![1.5; rows.len() * dim];
            TablePortion { rows: rows.to_vec(), state: vec![values.clone()], values }
        };
        Portion {
            dense_from: 3,
            dense: vec![1.0, 2.0, 3.0],
            dense_state: vec![vec![0.0; 3]],
            tables: vec![table(&[0, 8], 2), table(&[], 1)],
        }
    }

    #[test]
    fn a_part_of_a_group_is_named_as_the_group_and_noted_as_a_range() {
        let shape = PartShape::of(&layout(), &portion()).unwrap();
        let header = shape.header(&layout(), "server-1").unwrap();
        let mut tensors: Vec<_> =
            header.tensors.iter().map(|(name, t)| (t.data_offsets.0, name.as_str(), &t.shape[..])).collect();
        tensors.retain(|(_, _, shape)| shape[0] > 0);
        tensors.sort_unstable();
        let expected: [(u64, &str, &[u64]); 7] = [
            (0, "rows/rows", &[2]),
            (16, "deep.0.weight", &[1]),
            (20, "bias", &[2]),
            (28, "optimizer.0/deep.0.weight", &[1]),
            (32, "optimizer.0/bias", &[2]),
            (40, "rows/values", &[2, 2]),
            (56, "rows/optimizer.0", &[2, 2]),
        ];
        assert_eq!(tensors, expected);
        assert_eq!((header.note("dense"), header.note("part")), (Some("3..6"), Some("server-1")));
        assert_eq!(header.data_bytes(), arrays(&portion()).map(|bytes| bytes.len() as u64).sum::<u64>());
        assert_eq!(PartShape::from_header(&header, &layout()), Ok(shape.clone()));
        let mut back = shape.zeros(&layout());
        for (into, from) in arrays_mut(&mut back).into_iter().zip(arrays(&portion())) {
            into.copy_from_slice(from);
        }
        assert_eq!(arrays(&back).collect::<Vec<_>>(), arrays(&portion()).collect::<Vec<_>>());
    }

    #[test]
    fn a_portion_that_does_not_fit_is_refused() {
        type Change = fn(&mut Portion);
        let changes: [(Change, &str); 5] = [
            (|p| p.dense_from = 4, "dense values = 3 from 4"),
            (|p| p.tables[0].values.truncate(3), "values of table `rows`"),
            (|p| p.tables[0].rows = vec![8, 8], "rows of table `rows`"),
            (
                |p| p.tables[1].state.clear(),
                "0 numbers are kept of each value of table `wide`, and 1 of dense ones",
            ),
            (
                |p| p.dense_state = vec![p.dense.clone(); 17],
                "17 numbers are kept of each value, 16 are the most",
            ),
        ];
        for (change, says) in changes {
            let mut portion = portion();
            change(&mut portion);
            let error = PartShape::of(&layout(), &portion).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn two_tensors_of_one_name_are_refused() {
        let groups = vec![ParamGroup::trainable("t/rows", 1)];
        let layout = ParamLayout::new(groups, vec![TableSpec::new("t", 1, 1, 0.0)]).unwrap();
        let shape = PartShape { dense: 0..1, states: 0, rows: vec![0] };
        let error = shape.header(&layout, "x").unwrap_err().to_string();
        assert_eq!(error, "the tensor name `t/rows` is taken; rename the group or table");
    }

    #[test]
    fn a_header_of_another_model_is_refused() {
        let shape = PartShape::of(&layout(), &portion()).unwrap();
        let header = shape.header(&layout(), "server-1").unwrap();
        let other = |groups: Vec<ParamGroup>, tables| {
            let layout = ParamLayout::new(groups, tables).unwrap();
            PartShape::from_header(&header, &layout).unwrap_err().to_string()
        };
        let (groups, tables) = (layout().groups().to_vec(), layout().tables().to_vec());
        assert!(
            other(vec![ParamGroup::trainable("a", 5)], tables.clone()).contains("antdt.dense = \"3..6\"")
        );
        assert!(
            other(vec![ParamGroup::trainable("a", 6)], tables.clone()).contains("is none of the model's")
        );
        assert!(other(groups.clone(), tables[..1].to_vec()).contains("tensor `wide/"));
        assert!(other(groups.clone(), vec![]).contains("is none of the model's"));
        let wider = vec![TableSpec::new("rows", 9, 3, 0.1), tables[1].clone()];
        assert!(other(groups.clone(), wider).contains("tensor `rows/"));
        let renamed = vec![TableSpec::new("lines", 9, 2, 0.1), tables[1].clone()];
        assert!(other(groups, renamed).contains("table `lines`"));
        for key in ["dense", "optimizer_states", "part"] {
            let mut header = header.clone();
            header.metadata.remove(&format!("antdt.{key}"));
            let error = PartShape::from_header(&header, &layout()).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn parts_hold_every_dense_value_once() {
        let check = |ranges: &[(usize, usize)]| {
            let ranges = ranges.iter().map(|(start, end)| *start..*end);
            let parts: Vec<_> = ["a", "b", "c"].into_iter().zip(ranges).collect();
            check_cover(6, &parts).map_err(|error| error.to_string())
        };
        check(&[(0, 6)]).unwrap();
        check(&[(4, 6), (0, 4), (4, 4)]).unwrap();
        assert!(check(&[(0, 4)]).unwrap_err().contains("4..6 are in no part"));
        assert!(check(&[(0, 2), (3, 6)]).unwrap_err().contains("2..3 are in no part, before b"));
        assert!(check(&[(0, 4), (3, 6)]).unwrap_err().contains("3..4 are in two parts"));
        assert!(check(&[(1, 1), (2, 2)]).unwrap_err().contains("0..6 are in no part"));
        check_cover(0, &[]).unwrap();
    }

    /// Numbers and texts that a header may hold in place of its own.
    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![0_u64..70, prop::sample::select(vec![u64::MAX, 1 << 61, 1 << 63, 1 << 32]), any::<u64>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn any_bytes_are_a_header_or_an_error(prefix: [u8; 8], file_bytes: u64, json in "[\\[\\]{}\",:0-9a-zF_]{0,60}") {
            if let Ok(len) = Header::json_len(prefix, file_bytes) {
                prop_assert!(len as u64 <= file_bytes.min(100_000_000));
            }
            for json in [json.clone(), format!("{{\"w\":{{\"dtype\":\"F32\",{json}}}}}")] {
                if let Ok(header) = Header::decode(json.as_bytes()) {
                    let _ = PartShape::from_header(&header, &layout());
                }
            }
        }

        /// What is allocated for a part is as long as the data that its header announces, which are compared with the file's.
        #[test]
        fn any_numbers_in_a_header_are_a_part_of_that_length_or_an_error(
            edits in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..5, number(), number()), 0..4),
            dense in prop_oneof![Just("3..6".to_owned()), "[0-9.]{0,8}", "[0-9]{1,22}\\.\\.[0-9]{1,22}"],
            states in prop_oneof![Just("1".to_owned()), "[0-9]{1,22}"],
        ) {
            let shape = PartShape::of(&layout(), &portion()).unwrap();
            let mut header = shape.header(&layout(), "server-1").unwrap();
            header.metadata.insert("antdt.dense".to_owned(), dense);
            header.metadata.insert("antdt.optimizer_states".to_owned(), states);
            for (at, what, a, b) in edits {
                let len = header.tensors.len();
                let tensor = header.tensors.values_mut().nth(at.index(len)).unwrap();
                match what {
                    0 => tensor.data_offsets = (a, b),
                    1 => tensor.data_offsets.1 = a,
                    2 => tensor.shape = vec![a, b],
                    3 => tensor.shape[0] = a,
                    _ => tensor.dtype = if a % 2 == 0 { Dtype::F32 } else { Dtype::I64 },
                }
            }
            let Ok(bytes) = header.encode() else { return Ok(()) };
            if let Ok(header) = Header::decode(&bytes[Header::PREFIX..])
                && let Ok(shape) = PartShape::from_header(&header, &layout())
            {
                let mut zeros = shape.zeros(&layout());
                let taken: usize = arrays_mut(&mut zeros).iter().map(|array| array.len()).sum();
                prop_assert_eq!(taken as u64, header.data_bytes());
            }
        }
    }
}
