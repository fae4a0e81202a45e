//! The layout of a model's parameters: named groups in one flat vector, and named tables of rows.

use std::ops::Range;

use crate::error::InvalidValue;

/// How a training step changes the values of a parameter group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum GroupKind {
    /// The optimizer changes the values along the mean gradient.
    Trainable,
    /// No optimizer changes the values: they are statistics that the model keeps of its data, like the
    /// running mean of a batch normalisation. Instead of a gradient, the trainer returns for each value its
    /// new value times the samples of the batch. The mean over the samples of the step replaces the value.
    /// Where servers apply each push at once, the value moves towards the push's mean by the push's share of
    /// a nominal batch.
    State,
}

/// A named group of parameters: a piece of the model's flat vector.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ParamGroup {
    /// Name of the group, unique in the model: usually the parameter's path in the framework's module.
    pub name: String,
    /// Number of values in the group.
    pub len: usize,
    /// Dimensions of the tensor that the values form, in row-major order; their product is `len`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub shape: Vec<usize>,
    /// How a step changes the values.
    pub kind: GroupKind,
    /// Whether weight decay applies to the group. Biases and norms are usually exempt.
    pub decays: bool,
}

impl ParamGroup {
    /// Returns a group that the optimizer changes, with weight decay if the job has any.
    pub fn trainable(name: impl Into<String>, len: usize) -> Self {
        Self { name: name.into(), len, shape: vec![len], kind: GroupKind::Trainable, decays: true }
    }

    /// Returns a group that no optimizer changes; see [`GroupKind::State`].
    pub fn state(name: impl Into<String>, len: usize) -> Self {
        Self { name: name.into(), len, shape: vec![len], kind: GroupKind::State, decays: false }
    }

    /// Returns the same group, whose values form a tensor of the dimensions `shape`, in row-major order. Their product must be the
    /// group's number of values; [`ParamLayout::new`] checks that.
    #[must_use]
    pub fn with_shape(self, shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), ..self }
    }

    /// Returns the same group without weight decay.
    #[must_use]
    pub fn without_decay(self) -> Self {
        Self { decays: false, ..self }
    }
}

/// Shape of a model's parameters: groups of dense values, one after another in one flat vector of `f32`, and
/// tables of embedding rows of which a batch touches few.
///
/// The rows of all tables share one numbering, the *joint rows*: those of a table follow those of the table
/// before it. So a batch names all rows that it touches in one ascending list. Their values are in one list
/// in the same order; the number of values per row depends on the row's table.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "UncheckedLayout", into = "UncheckedLayout")
)]
pub struct ParamLayout {
    groups: Vec<ParamGroup>,
    dense_len: usize,
    tables: Vec<TableSpec>,
    /// First joint row of each table, and one past the last row of all.
    starts: Vec<u64>,
}

impl ParamLayout {
    /// Returns a layout of these groups and tables, in this order.
    ///
    /// # Errors
    /// If a group or table has no name or the name of another, a group is empty, a table is invalid, or there
    /// are more values or rows than can be counted.
    pub fn new(groups: Vec<ParamGroup>, tables: Vec<TableSpec>) -> Result<Self, InvalidValue> {
        let mut names: Vec<&str> = Vec::with_capacity(groups.len().max(tables.len()));
        let mut dense_len = 0_usize;
        for group in &groups {
            if group.len == 0 {
                return Err(InvalidValue::new(format!("group `{}`", group.name), 0, "at least one value"));
            }
            let values = group.shape.iter().try_fold(1_usize, |values, dim| values.checked_mul(*dim));
            if values != Some(group.len) {
                let (field, expected) =
                    (format!("shape of group `{}`", group.name), format!("of {} values", group.len));
                return Err(InvalidValue::new(field, format!("{:?}", group.shape), expected));
            }
            dense_len = dense_len.checked_add(group.len).ok_or_else(|| {
                InvalidValue::new(
                    format!("group `{}`", group.name),
                    group.len,
                    "countable with those before it",
                )
            })?;
            names.push(&group.name);
        }
        check_names("group", &mut names)?;
        names.clear();
        let mut starts = vec![0_u64];
        for table in &tables {
            table.validate()?;
            let end = starts[starts.len() - 1].checked_add(table.rows);
            starts.push(end.ok_or_else(|| {
                InvalidValue::new(
                    format!("rows of table `{}`", table.name),
                    table.rows,
                    "countable with those before it",
                )
            })?);
            names.push(&table.name);
        }
        check_names("table", &mut names)?;
        Ok(Self { groups, dense_len, tables, starts })
    }

    /// Returns a layout of one trainable group `dense` and no table; no group if `len` is 0.
    pub fn dense(len: usize) -> Self {
        let groups = if len == 0 { Vec::new() } else { vec![ParamGroup::trainable("dense", len)] };
        Self { groups, dense_len: len, tables: Vec::new(), starts: vec![0] }
    }

    /// Returns this layout with one more table.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_table(mut self, table: TableSpec) -> Result<Self, InvalidValue> {
        self.tables.push(table);
        Self::new(self.groups, self.tables)
    }

    /// Returns the groups, in the order in which they lie in the flat vector.
    pub fn groups(&self) -> &[ParamGroup] {
        &self.groups
    }

    /// Returns the groups, each with its range in the flat vector.
    pub fn ranges(&self) -> impl Iterator<Item = (Range<usize>, &ParamGroup)> {
        let mut start = 0;
        self.groups.iter().map(move |group| {
            let range = start..start + group.len;
            start = range.end;
            (range, group)
        })
    }

    /// Returns the length of the flat vector, which is that of all groups together.
    pub const fn dense_len(&self) -> usize {
        self.dense_len
    }

    /// Returns the tables.
    pub fn tables(&self) -> &[TableSpec] {
        &self.tables
    }

    /// Returns the number of rows of all tables together. The joint rows, which number the rows of all tables
    /// one table after another, are `0..rows()`.
    pub fn rows(&self) -> u64 {
        self.starts[self.tables.len()]
    }

    /// Returns the joint row of a table's first row.
    ///
    /// # Panics
    /// If there is no such table.
    pub fn first_row(&self, table: usize) -> u64 {
        assert!(table < self.tables.len(), "table {table} of {}", self.tables.len());
        self.starts[table]
    }

    /// Returns the joint row of a table's row.
    ///
    /// # Panics
    /// If there is no such table or row.
    pub fn row(&self, table: usize, index: u64) -> u64 {
        let first = self.first_row(table);
        assert!(index < self.tables[table].rows, "row {index} of {}", self.tables[table].rows);
        first + index
    }

    /// Returns the index of the table that a joint row is in; `None` beyond the last.
    pub fn table_of(&self, row: u64) -> Option<usize> {
        let table = match &self.starts[..] {
            // One table: no search.
            [_, _] => 0,
            starts => starts.partition_point(|start| *start <= row) - 1,
        };
        (row < self.rows()).then_some(table)
    }

    /// Returns the number of values of a joint row; 0 beyond the last.
    pub fn row_len(&self, row: u64) -> usize {
        self.table_of(row).map_or(0, |table| self.tables[table].dim)
    }

    /// Returns the number of values of all these joint rows, each counted as often as it is listed.
    pub fn rows_len(&self, rows: &[u64]) -> usize {
        match &self.tables[..] {
            [table] => rows.iter().filter(|row| **row < table.rows).count() * table.dim,
            _ => rows.iter().map(|row| self.row_len(*row)).sum(),
        }
    }

    /// Splits ascending joint rows by table: one part for each table, in order. Rows beyond the last table
    /// are in no part.
    pub fn by_table<'a>(&'a self, rows: &[u64]) -> Vec<TableRows<'a>> {
        let (mut start, mut value) = (0, 0);
        let deal = |(number, spec): (usize, &'a TableSpec)| {
            let (first, end) = (self.starts[number], self.starts[number + 1]);
            let len = rows[start..].partition_point(|row| *row < end);
            let part =
                TableRows { spec, first, rows: start..start + len, values: value..value + len * spec.dim };
            (start, value) = (part.rows.end, part.values.end);
            part
        };
        self.tables.iter().enumerate().map(deal).collect()
    }

    /// Returns joint rows with their values; `values` are those of all `rows`, one row after another.
    ///
    /// # Panics
    /// While iterating, if there are fewer values than the rows need.
    pub fn by_row<'a>(
        &'a self,
        rows: &'a [u64],
        values: &'a [f32],
    ) -> impl Iterator<Item = (u64, &'a [f32])> {
        let mut rest = values;
        rows.iter().map(move |row| {
            let (values, left) = rest.split_at(self.row_len(*row));
            rest = left;
            (*row, values)
        })
    }

    /// Returns rows as [`by_row`](Self::by_row) does, to change the values.
    ///
    /// # Panics
    /// As [`by_row`](Self::by_row).
    pub fn by_row_mut<'a>(
        &'a self,
        rows: &'a [u64],
        values: &'a mut [f32],
    ) -> impl Iterator<Item = (u64, &'a mut [f32])> {
        let mut rest = values;
        rows.iter().map(move |row| {
            let (values, left) = std::mem::take(&mut rest).split_at_mut(self.row_len(*row));
            rest = left;
            (*row, values)
        })
    }
}

/// The part of a list of joint rows that belongs to one table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableRows<'a> {
    /// Table that the rows belong to.
    pub spec: &'a TableSpec,
    /// First joint row of the table: a joint row minus this number is a row of the table.
    pub first: u64,
    /// Range of the table's rows in the list.
    pub rows: Range<usize>,
    /// Range of the values of these rows among the values of all listed rows.
    pub values: Range<usize>,
}

fn check_names(what: &str, names: &mut [&str]) -> Result<(), InvalidValue> {
    names.sort_unstable();
    if names.first().is_some_and(|name| name.is_empty()) {
        return Err(InvalidValue::new(format!("name of a {what}"), "", "not empty"));
    }
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(InvalidValue::new(
            format!("name of a {what}"),
            pair[0],
            format!("unlike the name of any other {what}"),
        )),
        None => Ok(()),
    }
}

/// What a layout is made from.
#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
struct UncheckedLayout {
    groups: Vec<ParamGroup>,
    tables: Vec<TableSpec>,
}

#[cfg(feature = "serde")]
impl TryFrom<UncheckedLayout> for ParamLayout {
    type Error = InvalidValue;

    fn try_from(mut layout: UncheckedLayout) -> Result<Self, InvalidValue> {
        for group in layout.groups.iter_mut().filter(|group| group.shape.is_empty()) {
            // Its writer knew of no dimensions.
            group.shape = vec![group.len];
        }
        Self::new(layout.groups, layout.tables)
    }
}

#[cfg(feature = "serde")]
impl From<ParamLayout> for UncheckedLayout {
    fn from(layout: ParamLayout) -> Self {
        Self { groups: layout.groups, tables: layout.tables }
    }
}

/// Shape and initial values of a sparse table.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TableSpec {
    /// Name of the table, unique in the model.
    pub name: String,
    /// Number of rows; their ids are `0..rows`.
    pub rows: u64,
    /// Number of values per row.
    pub dim: usize,
    /// Half-width of the initial values, which are uniform in `[-init_scale, init_scale)`. They are a pure
    /// function of (seed, row id), so that every process computes the same.
    pub init_scale: f32,
}

impl TableSpec {
    /// Returns a table of this shape.
    pub fn new(name: impl Into<String>, rows: u64, dim: usize, init_scale: f32) -> Self {
        Self { name: name.into(), rows, dim, init_scale }
    }

    /// Checks that the settings are valid.
    ///
    /// # Errors
    /// If the table has no rows, no columns, or an initial scale that is negative or not finite.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        if self.rows == 0 {
            return Err(InvalidValue::new("table.rows", 0, "at least 1"));
        }
        if self.dim == 0 {
            return Err(InvalidValue::new("table.dim", 0, "at least 1"));
        }
        if !self.init_scale.is_finite() || self.init_scale < 0.0 {
            return Err(InvalidValue::new("table.init_scale", self.init_scale, "finite and not negative"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> ParamLayout {
        let tables = vec![TableSpec::new("users", 10, 2, 0.1), TableSpec::new("items", 5, 3, 0.1)];
        ParamLayout::new(vec![ParamGroup::trainable("w", 4), ParamGroup::state("mean", 3)], tables).unwrap()
    }

    #[test]
    fn groups_lie_one_after_another() {
        let layout = tables();
        let places: Vec<_> =
            layout.ranges().map(|(range, group)| (range, group.kind, group.decays)).collect();
        assert_eq!(places, [(0..4, GroupKind::Trainable, true), (4..7, GroupKind::State, false)]);
        assert_eq!((layout.dense_len(), ParamLayout::dense(0).groups().len()), (7, 0));
        assert_eq!(
            ParamLayout::dense(5),
            ParamLayout::new(vec![ParamGroup::trainable("dense", 5)], vec![]).unwrap()
        );
    }

    #[test]
    fn a_group_has_the_dimensions_it_was_given_and_as_many_values() {
        let weight = ParamGroup::trainable("w", 6).with_shape(&[2, 3]);
        let layout = ParamLayout::new(vec![weight.clone(), ParamGroup::trainable("b", 3)], vec![]).unwrap();
        assert_eq!((&*layout.groups()[0].shape, &*layout.groups()[1].shape), (&[2, 3][..], &[3][..]));
        for shape in [&[2, 4][..], &[], &[usize::MAX, 2]] {
            let error = ParamLayout::new(vec![weight.clone().with_shape(shape)], vec![]).unwrap_err();
            assert!(error.to_string().starts_with("shape of group `w` = "), "{error}");
        }
    }

    #[test]
    fn rows_of_all_tables_share_one_numbering() {
        let layout = tables();
        assert_eq!((layout.row(0, 9), layout.row(1, 0), layout.row(1, 4), layout.rows()), (9, 10, 14, 15));
        assert_eq!([0, 9, 10, 14, 15, u64::MAX].map(|row| layout.row_len(row)), [2, 2, 3, 3, 0, 0]);
        let (rows, mut values) = ([9, 10, 14], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(layout.rows_len(&rows), values.len());
        layout.by_row_mut(&rows, &mut values).for_each(|(row, values)| values[0] = row as f32);
        let by_row: Vec<_> = layout.by_row(&rows, &values).collect();
        assert_eq!(by_row, [(9, &[9.0, 2.0][..]), (10, &[10.0, 4.0, 5.0]), (14, &[14.0, 7.0, 8.0])]);
        let parts = layout.by_table(&rows);
        let places: Vec<_> =
            parts.iter().map(|part| (part.first, part.rows.clone(), part.values.clone())).collect();
        assert_eq!(places, [(0, 0..1, 0..2), (10, 1..3, 2..8)]);
        let one = ParamLayout::dense(1).with_table(TableSpec::new("t", 3, 2, 0.0)).unwrap();
        assert_eq!([0, 2, 3].map(|row| one.table_of(row)), [Some(0), Some(0), None]);
        assert_eq!(
            (one.rows_len(&[0, 2]), ParamLayout::dense(1).rows_len(&[]), ParamLayout::dense(1).row_len(0)),
            (4, 0, 0)
        );
    }

    #[test]
    fn names_are_there_and_differ_and_nothing_is_empty() {
        let group = |name: &str| ParamGroup::trainable(name, 1);
        let table = |name: &str, rows| TableSpec::new(name, rows, 1, 0.0);
        for (groups, tables, why) in [
            (vec![group("a"), group("b"), group("a")], vec![], "name of a group = a"),
            (vec![group("")], vec![], "name of a group = "),
            (vec![ParamGroup::state("s", 0)], vec![], "group `s` = 0"),
            (vec![group("a"), ParamGroup::trainable("b", usize::MAX)], vec![], "group `b`"),
            (vec![], vec![table("t", 1), table("t", 1)], "name of a table = t"),
            (vec![], vec![table("t", 0)], "table.rows"),
            (vec![], vec![table("t", 1), table("u", u64::MAX)], "rows of table `u`"),
        ] {
            let error = ParamLayout::new(groups, tables).unwrap_err().to_string();
            assert!(error.starts_with(why), "{error}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_layout_reads_back_from_text_and_is_checked() {
        let layout = tables();
        let text = serde_json::to_string(&layout).unwrap();
        assert_eq!(serde_json::from_str::<ParamLayout>(&text).unwrap(), layout);
        let twice = text.replace("items", "users");
        assert!(
            serde_json::from_str::<ParamLayout>(&twice).unwrap_err().to_string().contains("name of a table")
        );
    }
}
