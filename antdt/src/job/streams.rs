//! [`StreamsSpec`] and [`RanksSpec`]: which output of which workers is meant.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use antdt_core::{InvalidValue, NodeId, Role};
use antdt_launch::OutputStream;

/// Output streams of the nodes, as torchrun numbers them: 0 none, 1 standard output, 2 standard error, 3 both. Text form: the number,
/// for all nodes, or `RANK:NUMBER,…`, for these workers alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamsSpec {
    /// Of all nodes.
    All(u8),
    /// Of these workers; of others none.
    Of(BTreeMap<u32, u8>),
}

impl StreamsSpec {
    /// Returns whether this stream of a node is meant.
    pub fn has(&self, node: NodeId, stream: OutputStream) -> bool {
        let number = match self {
            Self::All(number) => *number,
            Self::Of(ranks) if node.role == Role::Worker => ranks.get(&node.index).copied().unwrap_or(0),
            Self::Of(_) => 0,
        };
        let bit = match stream {
            OutputStream::Out => 1,
            OutputStream::Err => 2,
        };
        number & bit != 0
    }
}

impl Default for StreamsSpec {
    fn default() -> Self {
        Self::All(0)
    }
}

impl fmt::Display for StreamsSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(number) => number.fmt(f),
            Self::Of(ranks) => {
                let words: Vec<_> = ranks.iter().map(|(rank, number)| format!("{rank}:{number}")).collect();
                f.write_str(&words.join(","))
            }
        }
    }
}

impl FromStr for StreamsSpec {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let refused = || {
            let expected = "0 for none, 1 for standard output, 2 for standard error, 3 for both, or RANK:NUMBER,RANK:NUMBER";
            InvalidValue::new("streams", text, expected)
        };
        let number = |text: &str| text.trim().parse().ok().filter(|number: &u8| *number <= 3);
        if let Some(number) = number(text) {
            return Ok(Self::All(number));
        }
        let mut ranks = BTreeMap::new();
        for word in text.split(',') {
            let (rank, streams) = word.split_once(':').ok_or_else(refused)?;
            let rank = rank.trim().parse().map_err(|_| refused())?;
            let given_twice = ranks.insert(rank, number(streams).ok_or_else(refused)?).is_some();
            if given_twice {
                return Err(refused());
            }
        }
        Ok(Self::Of(ranks))
    }
}

/// Workers by rank. Text form: `0,3`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RanksSpec(BTreeSet<u32>);

impl RanksSpec {
    /// Returns whether a node is one of these workers; a server always is.
    pub fn has(&self, node: NodeId) -> bool {
        node.role == Role::Server || self.0.contains(&node.index)
    }
}

impl fmt::Display for RanksSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&words.join(","))
    }
}

impl FromStr for RanksSpec {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let ranks: Result<BTreeSet<u32>, _> = text.split(',').map(|word| word.trim().parse()).collect();
        ranks
            .map(Self)
            .map_err(|_| InvalidValue::new("ranks", text, "ranks with a comma between them, such as 0,3"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_those_of_a_number_for_all_nodes_or_for_some_workers() {
        let has = |text: &str, node| {
            let streams: StreamsSpec = text.parse().unwrap();
            assert_eq!(streams.to_string(), text);
            [OutputStream::Out, OutputStream::Err].map(|stream| streams.has(node, stream))
        };
        let (worker, server) = (NodeId::worker(1), NodeId::server(1));
        for (text, expected) in
            [("0", [false, false]), ("1", [true, false]), ("2", [false, true]), ("3", [true, true])]
        {
            assert_eq!((has(text, worker), has(text, server)), (expected, expected));
        }
        assert_eq!(has("0:3,1:2", worker), [false, true]);
        assert_eq!(has("0:3", worker), [false, false]);
        assert_eq!(has("1:3", server), [false, false]);
        for text in ["", "4", "out", "0:4", "0:", ":1", "0:1,0:2", "-1"] {
            let error = text.parse::<StreamsSpec>().unwrap_err().to_string();
            assert!(error.contains("3 for both"), "{error}");
        }
    }

    #[test]
    fn ranks_are_a_list_and_servers_are_always_among_them() {
        let ranks: RanksSpec = "3,0".parse().unwrap();
        assert_eq!(ranks.to_string(), "0,3");
        let nodes = [NodeId::worker(0), NodeId::worker(1), NodeId::worker(3), NodeId::server(1)];
        assert_eq!(nodes.map(|node| ranks.has(node)), [true, false, true, true]);
        assert!("0,".parse::<RanksSpec>().is_err());
    }
}
