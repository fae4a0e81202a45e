//! [`TableSums`]: the sums over all members of the gradients of rows.

use antdt_collective::runtime::ProcessGroup;
use antdt_core::ParamLayout;
use antdt_model::{Overlap, SparseGradient, TableShape, all_reduce_counted};

use crate::worker::WorkerError;

/// Adds up the gradients of rows over the members of a group, table by table. Only rows that some member touches travel.
#[derive(Debug)]
pub struct TableSums {
    layout: ParamLayout,
    /// Gradient of each table that this worker brings.
    mine: Vec<SparseGradient>,
    /// Of the rows of each table that the members touch, as seen in this group.
    overlaps: Vec<Overlap>,
}

impl TableSums {
    /// Returns sums for tables of this layout.
    pub const fn new(layout: ParamLayout) -> Self {
        Self { layout, mine: Vec::new(), overlaps: Vec::new() }
    }

    /// Forgets what was seen of a group, because another one was formed: its members choose the same routes only if they have seen the
    /// same exchanges.
    pub fn enter(&mut self) {
        self.overlaps.clear();
    }

    /// Takes what this worker brings, by joint rows of the layout. Returns the number of rows of each table, which all members must
    /// know for [`exchange`](Self::exchange).
    pub fn announce(&mut self, gradient: SparseGradient) -> Vec<u64> {
        self.mine = gradient.into_tables(&self.layout);
        self.mine.iter().map(|table| table.rows.len() as u64).collect()
    }

    /// Returns the sums over all members, by joint rows; the same bits on all. `announced` is what each member announced.
    ///
    /// # Errors
    /// If a member fails, or has announced another number of tables.
    pub fn exchange(
        &mut self,
        comm: &mut Box<dyn ProcessGroup>,
        announced: &[Vec<u64>],
    ) -> Result<SparseGradient, WorkerError> {
        let mut tables = std::mem::take(&mut self.mine);
        self.overlaps.resize_with(tables.len(), Overlap::default);
        for (number, (table, overlap)) in tables.iter_mut().zip(&mut self.overlaps).enumerate() {
            let spec = &self.layout.tables()[number];
            let shape = TableShape { dim: spec.dim, rows: Some(spec.rows) };
            let count = |counts: &Vec<u64>| counts.get(number).copied();
            let counts: Option<Vec<u64>> = announced.iter().map(count).collect();
            let counts = counts.ok_or_else(|| {
                WorkerError::Parameters("a peer has announced another number of tables".to_owned())
            })?;
            *table = all_reduce_counted(comm, table, &counts, shape, overlap)?;
        }
        Ok(SparseGradient::from_tables(tables, &self.layout))
    }
}
