//! What the memory of a step costs, and nothing else.
//!
//! A step of all-reduce takes four walks over all workers: the step is combined; it is agreed on, and the shard service is
//! asked; it answers; and the answers arrive, the next gradients begin, and are given to the group as it is foreseen that they
//! will be ready. No walk can begin before the one before it is over, and with many workers none of them finds in the
//! processor's near caches what the one before it used. This does the same walks over as much memory, and does nothing
//! there but add 1 to a number in each line: no line waits for what another one says, each worker's lie side by side, and
//! the processor sees well ahead where the walk goes. What it takes longer with many workers than with few is the least that a
//! simulated step does.
//!
//! The lines were counted in the simulator as it was in November 2026, with `valgrind --tool=cachegrind --cache-sim=yes
//! --D1=1048576,16,64`: 40 steps less 10 with shards of 160 samples. For each worker and step, 82 lines are read or written
//! beyond the first MiB if there are 16,384 workers, and 7 if there are 100; the walks do no more than the difference. So early
//! all workers still have shards; those that ask for new ones touch more. How many different lines they are was estimated
//! from the sizes of what they belong to: 18 of a life with its training loop, 5 of its place in the ledger, 7 of a
//! question, its answer and their entries in the clock, 5 of the group's tables and the step's report.

/// Different lines of one worker.
const LINES: usize = 35;

/// Walks in a step.
const WALKS: usize = 4;

/// Lines of one worker that a walk touches.
const TOUCHED: usize = 18;

/// As much memory as moves at a time between memory and processor.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line(u64);

/// The memory of some workers.
#[derive(Debug)]
pub(crate) struct Memory(Vec<[Line; LINES]>);

impl Memory {
    /// That of so many workers.
    pub(crate) fn new(workers: usize) -> Self {
        Self(vec![[Line(0); LINES]; workers])
    }

    /// Takes so many steps. Returns how many lines were touched, as they themselves counted.
    pub(crate) fn walk(&mut self, steps: usize) -> u64 {
        for walk in 0..steps * WALKS {
            let first = walk % WALKS * TOUCHED;
            for lines in &mut self.0 {
                for line in first..first + TOUCHED {
                    lines[line % LINES].0 += 1;
                }
                // The next worker is another event.
                std::hint::black_box(lines);
            }
        }
        self.0.iter().flatten().map(|line| line.0).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_touches_as_many_lines_as_were_counted_and_leaves_none_out() {
        let mut memory = Memory::new(3);
        assert_eq!(memory.walk(2), 2 * 3 * 72);
        assert!(memory.0.iter().flatten().all(|line| line.0 >= 2 * 2), "each at least twice a step");
    }
}
