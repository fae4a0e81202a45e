//! Assignment of parameters to parameter servers.

use std::ops::Range;
use std::sync::Arc;

use antdt_core::{InvalidValue, ServerWeights};

/// The assignment of parameters to servers: each server has a contiguous piece of the flat vector and, of each
/// table, rows that are spread over the whole table.
///
/// With equal weights a server has every `servers`-th row, and the lengths of the pieces differ by at most one value.
/// With [other weights](Self::weighted) each server has its share: of the flat vector to one value, of the rows to one
/// of `64 * servers`. A server that has less than an equal share keeps rows that it has with equal weights, and a server
/// that has more keeps all of them, so that no more rows move than the shares differ.
///
/// Rejected: placing whole tensors by hash; one big layer or one hot range of rows would then sit on one server. Runs of
/// rows, one for each server: batches touch neighbouring rows, which would then sit on one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionMap {
    servers: u32,
    dense_len: usize,
    /// `None` where all servers have the same weight.
    shares: Option<Arc<Shares>>,
}

/// Where the parameters lie if servers differ in their weights.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    weights: ServerWeights,
    /// Where the piece of each server begins in the flat vector, and where the last one ends.
    dense: Vec<usize>,
    /// Owners of the rows of one period; row `r` has that of slot `r % slots.len()`.
    slots: Vec<Slot>,
    /// The slots of each server, ascending.
    own: Vec<Vec<u32>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    owner: u32,
    /// Number of the owner's slots before this one.
    rank: u32,
}

impl PartitionMap {
    /// Returns the map of `servers` servers of equal weight and a flat vector of `dense_len` values.
    ///
    /// # Errors
    /// If `servers` is 0.
    pub fn new(servers: u32, dense_len: usize) -> Result<Self, InvalidValue> {
        Self::weighted(servers, dense_len, &ServerWeights::default())
    }

    /// Returns the map of `servers` servers with these weights.
    ///
    /// # Errors
    /// If `servers` is 0, or there are weights for another number of servers.
    pub fn weighted(servers: u32, dense_len: usize, weights: &ServerWeights) -> Result<Self, InvalidValue> {
        if servers == 0 {
            return Err(InvalidValue::new("servers", 0, "at least 1"));
        }
        if !weights.fits(servers) {
            let expected = format!("one for each of {servers} servers");
            return Err(InvalidValue::new("server weights", weights, expected));
        }
        let shares = weights.uneven().map(|each| Arc::new(Shares::new(weights, each, dense_len)));
        Ok(Self { servers, dense_len, shares })
    }

    /// Returns the number of servers.
    pub const fn servers(&self) -> u32 {
        self.servers
    }

    /// Returns the weights of the servers.
    pub fn weights(&self) -> ServerWeights {
        self.shares.as_ref().map_or_else(ServerWeights::default, |shares| shares.weights.clone())
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
        if let Some(shares) = &self.shares {
            return shares.dense[server as usize]..shares.dense[server as usize + 1];
        }
        let (server, servers) = (server as usize, self.servers as usize);
        // The first pieces are one longer where the division leaves a rest.
        let (len, longer) = (self.dense_len / servers, self.dense_len % servers);
        let start = server * len + server.min(longer);
        start..start + len + usize::from(server < longer)
    }

    /// Returns the index of the server that holds a row.
    #[allow(clippy::cast_possible_truncation, reason = "below the number of servers")]
    pub fn owner(&self, row: u64) -> u32 {
        match &self.shares {
            None => (row % u64::from(self.servers)) as u32,
            Some(shares) => shares.slot(row).1.owner,
        }
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

    /// The rows of a server in a table whose row 0 is the joint row `first`.
    pub(crate) fn own_rows(&self, server: u32, first: u64) -> OwnRows {
        match &self.shares {
            None => {
                // Row `r` of the table is the joint row `first + r`, so `r % servers` lags behind by `first`.
                let servers = u64::from(self.servers);
                let own = (u64::from(server) + servers - first % servers) % servers;
                let own = u32::try_from(own).expect("below the number of servers");
                OwnRows::Every { partition: own, partitions: self.servers }
            }
            Some(shares) => {
                let before = shares.count(server, first);
                OwnRows::Shares { shares: Arc::clone(shares), server, first, before }
            }
        }
    }
}

impl Shares {
    fn new(weights: &ServerWeights, each: &[u32], dense_len: usize) -> Self {
        let mut dense = vec![0];
        for len in apportion(dense_len, each) {
            dense.push(dense[dense.len() - 1] + len);
        }
        let (servers, period) = (each.len(), ServerWeights::MOST as usize);
        let due = apportion(servers * period, each);
        // With equal weights, slot `turn * servers + server` is that server's. What one has too much goes to those that have too
        // little, spread evenly over the period and over them.
        let mut missing: Vec<usize> = due.iter().map(|due| due.saturating_sub(period)).collect();
        let all = missing.clone();
        let mut slots = Vec::with_capacity(servers * period);
        let mut own = vec![Vec::new(); servers];
        for turn in 0..period {
            for (server, due) in due.iter().enumerate() {
                let kept = *due.min(&period);
                let keeps = (turn + 1) * kept / period > turn * kept / period;
                let owner = if keeps { server } else { neediest(&missing, &all) };
                if !keeps {
                    missing[owner] -= 1;
                }
                let number = |at: usize| u32::try_from(at).expect("64 slots for each server");
                slots.push(Slot { owner: number(owner), rank: number(own[owner].len()) });
                own[owner].push(number(slots.len() - 1));
            }
        }
        Self { weights: weights.clone(), dense, slots, own }
    }

    /// The period that a row is in, and its slot.
    #[allow(clippy::cast_possible_truncation, reason = "an index of a slot")]
    fn slot(&self, row: u64) -> (u64, Slot) {
        let slots = self.slots.len() as u64;
        (row / slots, self.slots[(row % slots) as usize])
    }

    /// Number of a server's rows below this one.
    #[allow(clippy::cast_possible_truncation, reason = "an index of a slot")]
    fn count(&self, server: u32, row: u64) -> u64 {
        let (own, slots) = (&self.own[server as usize], self.slots.len() as u64);
        let rest = (row % slots) as u32;
        row / slots * own.len() as u64 + own.partition_point(|slot| *slot < rest) as u64
    }
}

/// The one that misses the largest part of what it is due; the first of several.
fn neediest(missing: &[usize], all: &[usize]) -> usize {
    let needs_more = |best: usize, at: usize| missing[at] * all[best] > missing[best] * all[at];
    let needy = (0..missing.len()).filter(|at| missing[*at] > 0);
    needy
        .reduce(|best, at| if needs_more(best, at) { at } else { best })
        .expect("slots are given to those due")
}

/// Divides `total` in proportion to the weights, by largest remainders; of equal ones the first.
fn apportion(total: usize, weights: &[u32]) -> Vec<usize> {
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let exact = |weight: &u32| total as u128 * u128::from(*weight);
    let part = |weight: &u32| usize::try_from(exact(weight) / sum).expect("a part of `total`");
    let mut parts: Vec<usize> = weights.iter().map(part).collect();
    let mut by_rest: Vec<usize> = (0..weights.len()).collect();
    by_rest.sort_by_key(|at| std::cmp::Reverse(exact(&weights[*at]) % sum));
    let missing = total - parts.iter().sum::<usize>();
    by_rest.into_iter().take(missing).for_each(|at| parts[at] += 1);
    parts
}

/// The rows of one table that one server holds. They are numbered from 0 in ascending order.
#[derive(Debug, Clone)]
pub(crate) enum OwnRows {
    /// Every `partitions`-th row, from row `partition` on.
    Every { partition: u32, partitions: u32 },
    /// Rows by the weights of the servers.
    Shares {
        shares: Arc<Shares>,
        server: u32,
        /// Joint row of the table's row 0.
        first: u64,
        /// Number of the server's joint rows below `first`.
        before: u64,
    },
}

impl OwnRows {
    /// Number of these rows in a table of `rows` rows.
    pub(crate) fn count(&self, rows: u64) -> u64 {
        match self {
            Self::Every { partition, partitions } => {
                rows.saturating_sub(u64::from(*partition)).div_ceil(u64::from(*partitions))
            }
            Self::Shares { shares, server, first, before } => shares.count(*server, first + rows) - before,
        }
    }

    /// The partition that these rows make up, for messages.
    pub(crate) const fn partition(&self) -> u32 {
        match self {
            Self::Every { partition, .. } => *partition,
            Self::Shares { server, .. } => *server,
        }
    }

    /// The partition that a row belongs to.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "below the number of partitions")]
    pub(crate) fn owner(&self, row: u64) -> u32 {
        match (self, u32::try_from(row)) {
            (Self::Every { partitions: 1, .. }, _) => 0,
            (Self::Every { partitions, .. }, Ok(row)) => row % partitions,
            (Self::Every { partitions, .. }, Err(_)) => (row % u64::from(*partitions)) as u32,
            (Self::Shares { shares, first, .. }, _) => shares.slot(first + row).1.owner,
        }
    }

    /// The number of one of these rows.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "checked rows are below the table's length in memory")]
    pub(crate) fn number(&self, row: u64) -> usize {
        // Divisions are the dearest instructions of a look-up: none for a whole table, a 32-bit one (half the price
        // of a 64-bit one) for nearly all others.
        match (self, u32::try_from(row)) {
            (Self::Every { partitions: 1, .. }, _) => row as usize,
            (Self::Every { partitions, .. }, Ok(row)) => (row / partitions) as usize,
            (Self::Every { partitions, .. }, Err(_)) => (row / u64::from(*partitions)) as usize,
            (Self::Shares { shares, server, first, before }, _) => {
                let (period, slot) = shares.slot(first + row);
                let own = shares.own[*server as usize].len() as u64;
                (period * own + u64::from(slot.rank) - before) as usize
            }
        }
    }

    /// The row of this number.
    #[allow(clippy::cast_possible_truncation, reason = "an index of a slot")]
    pub(crate) fn row(&self, number: usize) -> u64 {
        match self {
            Self::Every { partition, partitions } => {
                number as u64 * u64::from(*partitions) + u64::from(*partition)
            }
            Self::Shares { shares, server, first, before } => {
                let (own, joint) = (&shares.own[*server as usize], number as u64 + before);
                let slot = own[(joint % own.len() as u64) as usize];
                joint / own.len() as u64 * shares.slots.len() as u64 + u64::from(slot) - first
            }
        }
    }
}

#[cfg(test)]
mod tests;
