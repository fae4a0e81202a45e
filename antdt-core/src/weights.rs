//! [`ServerWeights`]: how much of the model each parameter server holds, relative to the others.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::InvalidValue;

/// Weights of the parameter servers of a job, by index: a server of weight 2 holds twice as many parameters as one of
/// weight 1. The default gives all servers the same.
///
/// Weights that are all the same are [`EQUAL`](Self::is_equal), whatever their value.
///
/// ```
/// use antdt_core::ServerWeights;
///
/// let weights: ServerWeights = "64,64,64,21".parse()?;
/// assert_eq!(format!("{:.3}", weights.share(3, 4)), "0.099");
/// assert_eq!("7,7".parse::<ServerWeights>()?, ServerWeights::default());
/// # Ok::<(), antdt_core::InvalidValue>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "Vec<u32>", into = "Vec<u32>"))]
pub struct ServerWeights(
    // Empty where all are the same, so that equal weights fit any number of servers.
    Arc<[u32]>,
);

impl ServerWeights {
    /// Largest weight, and the number of rows of each server in a period of the assignment of rows. 64: a share is exact to a
    /// sixty-fourth of an equal one, below what is known of a server's speed; a larger number makes the tables of the assignment
    /// larger, which are looked up for each row.
    pub const MOST: u32 = 64;

    /// Text form of equal weights.
    const EQUAL: &'static str = "equal";

    /// Returns these weights, one for each server.
    ///
    /// # Errors
    /// If a weight is 0 or above [`MOST`](Self::MOST).
    pub fn new(weights: &[u32]) -> Result<Self, InvalidValue> {
        if let Some(weight) = weights.iter().find(|weight| !(1..=Self::MOST).contains(*weight)) {
            let expected = format!("1 to {} for each server", Self::MOST);
            return Err(InvalidValue::new("server weights", weight, expected));
        }
        let differ = weights.windows(2).any(|pair| pair[0] != pair[1]);
        Ok(if differ { Self(weights.into()) } else { Self::default() })
    }

    /// Returns whether all servers hold the same.
    pub fn is_equal(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the weights by server; `None` if all are the same.
    pub fn uneven(&self) -> Option<&[u32]> {
        (!self.is_equal()).then_some(&self.0[..])
    }

    /// Returns whether there is a weight for each of this many servers. Equal weights fit any number.
    pub fn fits(&self, servers: u32) -> bool {
        self.is_equal() || self.0.len() == servers as usize
    }

    /// Returns the share of the parameters that a server of `servers` holds, 0 to 1; 0 if there is no such server.
    pub fn share(&self, server: u32, servers: u32) -> f64 {
        match self.uneven() {
            None if server < servers => 1.0 / f64::from(servers),
            None => 0.0,
            Some(weights) => {
                let weight = weights.get(server as usize).copied().unwrap_or(0);
                f64::from(weight) / weights.iter().map(|weight| f64::from(*weight)).sum::<f64>()
            }
        }
    }
}

impl fmt::Display for ServerWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_equal() {
            return f.write_str(Self::EQUAL);
        }
        for (at, weight) in self.0.iter().enumerate() {
            write!(f, "{}{weight}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for ServerWeights {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if text == Self::EQUAL {
            return Ok(Self::default());
        }
        let weights: Option<Vec<u32>> = text.split(',').map(|weight| weight.trim().parse().ok()).collect();
        let expected = "whole numbers with a comma between them, one for each server, or equal";
        let weights =
            weights.ok_or_else(|| InvalidValue::new("server weights", format!("`{text}`"), expected))?;
        Self::new(&weights)
    }
}

impl TryFrom<Vec<u32>> for ServerWeights {
    type Error = InvalidValue;

    fn try_from(weights: Vec<u32>) -> Result<Self, InvalidValue> {
        Self::new(&weights)
    }
}

impl From<ServerWeights> for Vec<u32> {
    fn from(weights: ServerWeights) -> Self {
        weights.0.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_read_and_written_back_and_those_that_are_none_are_refused() {
        for text in ["equal", "1,2", "64,64,21"] {
            assert_eq!(text.parse::<ServerWeights>().unwrap().to_string(), text);
        }
        assert_eq!(" 3, 3 ".parse::<ServerWeights>().unwrap().to_string(), "equal");
        for (text, why) in [("", "comma"), ("1,,2", "comma"), ("1,0", "1 to 64"), ("65,1", "1 to 64")] {
            let error = text.parse::<ServerWeights>().unwrap_err().to_string();
            assert!(error.starts_with("server weights = ") && error.contains(why), "{error}");
        }
    }

    #[test]
    fn shares_add_up_to_the_whole_model() {
        for (weights, servers) in [(vec![], 3), (vec![1, 2, 5], 3), (vec![64, 1], 2)] {
            let weights = ServerWeights::new(&weights).unwrap();
            let sum: f64 = (0..servers).map(|server| weights.share(server, servers)).sum();
            assert!((sum - 1.0).abs() < 1e-12 && weights.fits(servers), "{weights}");
            assert_eq!(weights.share(servers, servers), 0.0);
        }
        assert!(!ServerWeights::new(&[1, 2]).unwrap().fits(3));
    }
}
