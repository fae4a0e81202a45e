//! All randomness of a job, derived from one number, the same on every platform.

/// The number from which a job's randomness is derived. Derive a seed for each use, so that no two uses share
/// a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Seed(pub u64);

impl Seed {
    /// Returns the seed for the use called `label`.
    ///
    /// ```
    /// use antdt_core::Seed;
    /// assert_eq!(Seed(7).derive("data"), Seed(7).derive("data"));
    /// assert_ne!(Seed(7).derive("data"), Seed(7).derive("init"));
    /// ```
    #[must_use]
    pub fn derive(self, label: &str) -> Self {
        // FNV-1a over the label, then mixed with the parent: labels are few and short, collisions are not adversarial.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in label.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Self(mix(self.0 ^ mix(hash)))
    }

    /// Returns the seed for the `number`-th of many things of one kind, such as epochs, shards or rows.
    #[must_use]
    pub fn derive_number(self, number: u64) -> Self {
        Self(mix(self.0 ^ mix(number.wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    /// Returns a generator of random numbers from this seed.
    pub fn rng(self) -> DetRng {
        DetRng { state: self.0 }
    }
}

/// The finaliser of SplitMix64: a bijection of the 64-bit numbers that spreads every input bit.
const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A deterministic generator (SplitMix64). Not for secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetRng {
    state: u64,
}

impl DetRng {
    /// Returns the next 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Returns a uniform number in `0..bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Multiply-shift; the bias is below bound / 2^64.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a uniform number in `[0, 1)`.
    #[allow(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number from the standard normal distribution (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// A permutation of `0..len` that is computed, never stored: O(1) memory and time for any `len`.
///
/// A balanced Feistel network over the next even power of two, walked until the value falls below `len`
/// (cycle walking; fewer than 4 steps on average). Used for the order of shards in an epoch and the order of
/// samples in a shard, so that both are pure functions of (seed, epoch, index).
///
/// Source: our design; cycle walking is Black and Rogaway, "Ciphers with arbitrary finite domains", 2002 (recalled).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; Self::ROUNDS],
}

impl Permutation {
    // Four rounds make a pseudorandom permutation of a pseudorandom function (Luby-Rackoff); small domains need a few more.
    const ROUNDS: usize = 6;

    /// Returns the permutation of `0..len` that belongs to `seed`.
    pub fn new(seed: Seed, len: u64) -> Self {
        let bits = 64 - len.saturating_sub(1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        let mut rng = seed.derive("permutation").rng();
        Self { len, half_bits, keys: std::array::from_fn(|_| rng.next_u64()) }
    }

    /// Returns the number of permuted values.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the permutation is of no values.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the value at `position` in the shuffled order.
    ///
    /// # Panics
    /// If `position` is not below [`len`](Self::len).
    pub fn at(&self, position: u64) -> u64 {
        assert!(position < self.len, "position {position} is outside a permutation of {}", self.len);
        let mut value = position;
        loop {
            value = self.encrypt(value);
            if value < self.len {
                return value;
            }
        }
    }

    /// Returns the position of `value` in the shuffled order: the inverse of [`at`](Self::at), at the same
    /// cost.
    ///
    /// # Panics
    /// If `value` is not below [`len`](Self::len).
    pub fn position_of(&self, value: u64) -> u64 {
        assert!(value < self.len, "{value} is not in a permutation of {}", self.len);
        let mut position = value;
        loop {
            position = self.decrypt(position);
            if position < self.len {
                return position;
            }
        }
    }

    fn encrypt(&self, value: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }

    fn decrypt(&self, value: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys.iter().rev() {
            (left, right) = (right ^ (mix(left ^ key) & mask), left);
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_hits_every_number_once() {
        for len in (1..200).chain([1023, 1024, 1025, 4097]) {
            let order = Permutation::new(Seed(len), len);
            let mut seen = vec![false; usize::try_from(len).unwrap()];
            for position in 0..len {
                let value = usize::try_from(order.at(position)).unwrap();
                assert!(!std::mem::replace(&mut seen[value], true), "{value} twice of {len}");
            }
        }
    }

    #[test]
    fn every_value_is_found_at_its_position() {
        for len in (1..200).chain([1023, 1024, 1025, 4096, 4097, 65_536, 65_537]) {
            let order = Permutation::new(Seed(len), len);
            for position in 0..len {
                assert_eq!(order.position_of(order.at(position)), position, "of {len}");
            }
        }
        let mut rng = Seed(4).rng();
        for len in [u64::MAX, u64::MAX - 1, (1 << 63) + 1, 1 << 63, (1 << 62) + 1, 1 << 40, 100_000_007] {
            let order = Permutation::new(Seed(len), len);
            for position in (0..200).map(|_| rng.below(len)).chain([0, 1, len - 2, len - 1]) {
                assert_eq!(order.position_of(order.at(position)), position, "of {len}");
                assert_eq!(order.at(order.position_of(position)), position, "of {len}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "10 is not in a permutation of 10")]
    fn a_value_that_is_not_there_has_no_position() {
        Permutation::new(Seed(1), 10).position_of(10);
    }

    #[test]
    fn a_permutation_is_the_same_on_every_platform() {
        let order = Permutation::new(Seed(42), 10);
        let first: Vec<u64> = (0..10).map(|i| order.at(i)).collect();
        assert_eq!(first, PINNED_ORDER, "the order of samples is part of the contract of a seed");
    }

    // Pinned: a change here changes the order of samples of every job with a seed.
    const PINNED_ORDER: [u64; 10] = [2, 3, 4, 7, 6, 5, 1, 0, 9, 8];

    #[test]
    fn seeds_give_different_orders_and_positions_are_spread() {
        let len = 1000;
        let (a, b) = (Permutation::new(Seed(1), len), Permutation::new(Seed(2), len));
        let equal = (0..len).filter(|i| a.at(*i) == b.at(*i)).count();
        assert!(equal < 20, "{equal} of {len} positions agree");
        // Neighbours must not stay neighbours: the mean distance of a random pair is len / 3.
        let distance: u64 = (1..len).map(|i| a.at(i).abs_diff(a.at(i - 1))).sum::<u64>() / (len - 1);
        assert!((250..420).contains(&distance), "mean distance of neighbours {distance}");
    }

    #[test]
    fn the_largest_domain_works() {
        let order = Permutation::new(Seed(3), u64::MAX);
        assert_ne!(order.at(0), order.at(1));
    }

    #[test]
    fn normal_numbers_have_mean_0_and_variance_1() {
        let mut rng = Seed(5).rng();
        let n = 20_000;
        let (mut sum, mut square) = (0.0, 0.0);
        for _ in 0..n {
            let x = rng.normal();
            sum += x;
            square += x * x;
        }
        let n = f64::from(n);
        assert!((sum / n).abs() < 0.03 && (square / n - 1.0).abs() < 0.05);
    }
}
