//! Columns of a file in the order of the first file of its data set.

use std::collections::BTreeMap;

use crc32c::crc32c_append;

use super::Dialect;

/// Places that the columns of the first file have in another one, whose header has them in another order or has more of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ColumnOrder {
    /// For each column of the first file, its position in a row of this one.
    places: Vec<usize>,
    /// Number of columns of this file.
    width: usize,
}

impl ColumnOrder {
    /// Finds the columns of the header `first` in `header`; `None` if both have the same columns in the same order.
    ///
    /// # Errors
    /// If a column is missing, or two of them have one name; the text says which.
    pub(super) fn of(dialect: Dialect, first: &[u8], header: &[u8]) -> Result<Option<Self>, String> {
        let names = |header| -> Vec<Vec<u8>> {
            dialect.fields(header).map(|name| name.trim_ascii().to_vec()).collect()
        };
        let (due, found) = (names(first), names(header));
        if due == found {
            return Ok(None);
        }
        let mut known = BTreeMap::<&[u8], Vec<usize>>::new();
        found.iter().enumerate().for_each(|(at, name)| known.entry(name).or_default().push(at));
        let place = |name: &Vec<u8>| {
            let shown = String::from_utf8_lossy(name);
            match known.remove(&name[..]).as_deref() {
                Some([place]) => Ok(*place),
                Some(_) => Err(format!("two of its columns are called {shown:?}")),
                None => {
                    Err(format!("its header {:?} lacks column {shown:?}", String::from_utf8_lossy(header)))
                }
            }
        };
        let places = due.iter().map(place).collect::<Result<_, _>>()?;
        Ok(Some(Self { places, width: found.len() }))
    }

    /// Appends a row of this file to `into`, with the columns of the first file in its order.
    ///
    /// # Errors
    /// If the row has another number of columns than its header.
    pub(super) fn arrange(&self, dialect: Dialect, row: &[u8], into: &mut Vec<u8>) -> Result<(), String> {
        let fields: Vec<&[u8]> = dialect.raw_fields(row).collect();
        if fields.len() != self.width {
            return Err(format!("{} columns, but the header has {}", fields.len(), self.width));
        }
        for (at, place) in self.places.iter().enumerate() {
            if at > 0 {
                into.push(dialect.delimiter);
            }
            into.extend_from_slice(fields[*place]);
        }
        Ok(())
    }

    /// Id of a check of rows that are given to it in this order.
    pub(super) fn check_id(&self, check: u32) -> u32 {
        let numbers = self.places.iter().chain([&self.width]);
        numbers.fold(check, |id, number| crc32c_append(id, &number.to_le_bytes()))
    }
}
