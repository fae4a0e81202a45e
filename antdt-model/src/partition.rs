//! Assignment of parameters to parameter servers.

use std::ops::Range;

use antdt_core::InvalidValue;

/// The assignment of parameters to servers: each server has a contiguous piece of the flat vector and, of each
/// table, every `servers`-th row. The lengths of the pieces differ by at most one value.
///
/// Rejected: placing whole tensors by hash; one big layer or one hot range of rows would then sit on one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionMap {
    servers: u32,
    dense_len: usize,
}

impl PartitionMap {
    /// Returns the map of `servers` servers and a flat vector of `dense_len` values.
    ///
    /// # Errors
    /// If `servers` is 0.
    pub fn new(servers: u32, dense_len: usize) -> Result<Self, InvalidValue> {
        if servers == 0 {
            return Err(InvalidValue::new("servers", 0, "at least 1"));
        }
        Ok(Self { servers, dense_len })
    }

    /// Returns the number of servers.
    pub const fn servers(&self) -> u32 {
        self.servers
    }

    /// Returns the length of the whole flat vector.
    pub const fn dense_len(&self) -> usize {
        self.dense_len
    }

    /// Returns the piece of the flat vector that a server holds; empty if there are more servers than values.
    ///
    /// # Panics
    /// If there is no such server.
    pub fn dense(&self, server: u32) -> Range<usize> {
        assert!(server < self.servers, "server {server} of {}", self.servers);
        let (server, servers) = (server as usize, self.servers as usize);
        // The first pieces are one longer where the division leaves a rest.
        let (len, longer) = (self.dense_len / servers, self.dense_len % servers);
        let start = server * len + server.min(longer);
        start..start + len + usize::from(server < longer)
    }

    /// Returns the index of the server that holds a row.
    #[allow(clippy::cast_possible_truncation, reason = "below the number of servers")]
    pub const fn owner(&self, row: u64) -> u32 {
        (row % self.servers as u64) as u32
    }

    /// Returns the rows that each server holds, by server, in the order given.
    pub fn split_rows(&self, rows: &[u64]) -> Vec<Vec<u64>> {
        let mut split =
            vec![Vec::with_capacity(rows.len() / self.servers as usize + 1); self.servers as usize];
        for row in rows {
            split[self.owner(*row) as usize].push(*row);
        }
        split
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_cover_the_vector_once_in_order() {
        for servers in 1..6 {
            for len in 0..20 {
                let map = PartitionMap::new(servers, len).unwrap();
                let covered: Vec<usize> = (0..servers).flat_map(|server| map.dense(server)).collect();
                assert_eq!(covered, (0..len).collect::<Vec<_>>());
                let lens = || (0..servers).map(|server| map.dense(server).len());
                assert!(lens().max().unwrap() - lens().min().unwrap() <= 1, "{len} over {servers}");
            }
        }
        assert!(PartitionMap::new(0, 1).is_err());
    }

    #[test]
    fn each_row_goes_to_its_owner() {
        let map = PartitionMap::new(3, 0).unwrap();
        assert_eq!(map.split_rows(&[0, 1, 2, 4, 9]), [vec![0, 9], vec![1, 4], vec![2]]);
    }
}
