//! The lock vector: which workers are in a running group.

/// One bit per worker, which is set while the worker is in a running group.
///
/// Groups that share a worker run one after the other anyway, because each worker runs its groups in the
/// order of their keys; the lock vector is a second check. The bits of all members are set at once or not at
/// all, so that no worker holds a lock while it waits for another.
///
/// Source: Ripples's lock vector (recalled).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockVector {
    bits: Vec<u64>,
}

impl LockVector {
    /// Returns whether this worker's bit is set.
    pub fn is_set(&self, worker: u32) -> bool {
        let (word, bit) = place(worker);
        self.bits.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// Sets the bits of all `workers`, or none if one of them is set. Returns whether it did.
    pub fn take(&mut self, workers: &[u32]) -> bool {
        if workers.iter().any(|worker| self.is_set(*worker)) {
            return false;
        }
        for worker in workers {
            let (word, bit) = place(*worker);
            if word >= self.bits.len() {
                self.bits.resize(word + 1, 0);
            }
            self.bits[word] |= bit;
        }
        true
    }

    /// Clears the bits of `workers`.
    pub fn release(&mut self, workers: &[u32]) {
        for worker in workers {
            let (word, bit) = place(*worker);
            if let Some(bits) = self.bits.get_mut(word) {
                *bits &= !bit;
            }
        }
    }
}

const fn place(worker: u32) -> (usize, u64) {
    ((worker / 64) as usize, 1 << (worker % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_taken_all_or_none() {
        let mut locks = LockVector::default();
        assert!(locks.take(&[3, 64, 200]));
        assert!(!locks.take(&[5, 64]) && !locks.is_set(5), "none if one is set");
        assert!(locks.take(&[5, 65]));
        locks.release(&[3, 64, 200, 9_999]);
        assert!(!locks.is_set(64) && locks.is_set(65) && !locks.is_set(9_999));
        assert!(locks.take(&[64]));
    }
}
