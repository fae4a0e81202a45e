//! The cost of a schedule: five numbers of a network, and a walk over all ranks' rounds.

use super::{Schedule, Step};

/// The cost of messages in a network, as five numbers. All members must use the same, so that all choose
/// alike.
///
/// A round costs a rank `alpha`, `overhead` for each message each way beyond the first, the larger of its
/// bytes out and in at `bandwidth`, and `gamma` per byte it folds, half of that where the round has folded
/// into the same span before, because the span is in the cache then. A round begins once the rank's own round
/// before is over, and those of the ranks it receives from. The model ignores which ranks share a link, and
/// how badly a receiver takes many long messages at once.
///
/// Source: Hockney's α-β model with γ for the arithmetic, and the overhead per message of LogP (both
/// recalled).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostModel {
    /// Seconds that a round takes without any bytes, such as the hand-over and the wake-up.
    pub alpha: f64,
    /// Seconds for each message of a round beyond the first in its direction, such as a system call and a
    /// header.
    pub overhead: f64,
    /// Bytes per second that a rank can send, and receive at the same time.
    pub bandwidth: f64,
    /// Seconds to fold (add) one byte into another.
    pub gamma: f64,
    /// Number of bytes that all other ranks may send to one rank at once. Above it the messages slow each
    /// other down, and the choice leaves out algorithms that send to one rank at once.
    pub burst: usize,
}

impl CostModel {
    /// Cost of TCP between processes of one host with 2 cores. Measured on loopback: 20 µs a round, 2.2 GB/s
    /// each way, and 20 GB/s in the adding kernel. A further message took between a fifth of a round (8
    /// ranks) and a whole one (3 ranks), with other programs running; 12 µs lies between. A larger overhead
    /// favours algorithms with one message a round.
    pub const LOOPBACK: Self =
        Self { alpha: 20e-6, overhead: 12e-6, bandwidth: 2.2e9, gamma: 5e-11, burst: 64 << 10 };

    /// Cost of memory that processes of one host with 2 cores share. Among four of them, messages from all to
    /// all took as long as halving and doubling at 256 KiB, and a quarter longer from 1 MiB on, because a
    /// rank must copy the second and the third message of a round before it folds them.
    pub const SHARED: Self =
        Self { alpha: 1e-6, overhead: 0.3e-6, bandwidth: 8e9, gamma: 5e-11, burst: 256 << 10 };

    /// Cost of RDMA between hosts with adapters of 100 Gbit/s. Assumed, not measured: 3 µs a round and 1 µs a
    /// message are what vendors publish for short writes, and 12 GB/s is the line.
    pub const ADAPTER: Self =
        Self { alpha: 3e-6, overhead: 1e-6, bandwidth: 12e9, gamma: 5e-11, burst: 256 << 10 };

    /// Returns the seconds until the last rank is done. `schedules` are those of all ranks in order of rank.
    pub fn price(&self, schedules: &[Schedule], element_bytes: usize) -> f64 {
        let mut done = vec![0.0_f64; schedules.len()];
        let rounds = schedules.iter().map(|schedule| schedule.rounds.len()).max().unwrap_or(0);
        for round in 0..rounds {
            let before = done.clone();
            for (done, schedule) in done.iter_mut().zip(schedules) {
                let steps = schedule.rounds.get(round).map_or(&[][..], Vec::as_slice);
                if steps.is_empty() {
                    continue;
                }
                let (mut sends, mut bytes_out, mut bytes_in, mut bytes_folded) = (0_usize, 0, 0, 0.0);
                for (index, step) in steps.iter().enumerate() {
                    let bytes = step.span().len * element_bytes;
                    match *step {
                        Step::Send { .. } => {
                            sends += 1;
                            bytes_out += bytes;
                        }
                        Step::RecvCopy { from, .. }
                        | Step::RecvReduce { from, .. }
                        | Step::RecvReduceLeft { from, .. } => {
                            bytes_in += bytes;
                            let again = |other: &Step| other.folds() && other.span() == step.span();
                            bytes_folded += match step.folds() {
                                true if steps[..index].iter().any(again) => bytes as f64 / 2.0,
                                true => bytes as f64,
                                false => 0.0,
                            };
                            *done = done.max(before.get(from.0 as usize).copied().unwrap_or(0.0));
                        }
                    }
                }
                let messages = sends.max(steps.len() - sends);
                *done += self.round(messages as f64, bytes_out.max(bytes_in) as f64, bytes_folded);
            }
        }
        done.into_iter().fold(0.0, f64::max)
    }

    /// Seconds of one round of a rank: messages and bytes in the busier direction, bytes folded.
    pub(super) fn round(&self, messages: f64, bytes: f64, bytes_folded: f64) -> f64 {
        self.alpha + self.overhead * (messages - 1.0) + bytes / self.bandwidth + bytes_folded * self.gamma
    }
}

impl Default for CostModel {
    fn default() -> Self {
        Self::LOOPBACK
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::Rank;

    use super::*;
    use crate::schedule::Span;

    const MODEL: CostModel =
        CostModel { alpha: 100.0, overhead: 10.0, bandwidth: 2.0, gamma: 0.25, burst: 0 };

    fn span(len: usize) -> Span {
        Span { start: 0, len }
    }

    #[test]
    fn a_round_costs_its_latency_its_busier_direction_and_its_folding() {
        let sender = Schedule { rounds: vec![vec![Step::Send { to: Rank(1), span: span(3) }]] };
        let receiver = Schedule { rounds: vec![vec![Step::RecvReduce { from: Rank(0), span: span(3) }]] };
        // 3 elements of 4 bytes at 2 bytes per second, folded at 1/4 second each.
        assert_eq!(MODEL.price(&[sender, receiver], 4), 100.0 + 6.0 + 3.0);
    }

    #[test]
    fn further_messages_cost_their_overhead_and_empty_rounds_nothing() {
        let send = |to| Step::Send { to: Rank(to), span: span(2) };
        let receive = vec![Step::RecvCopy { from: Rank(0), span: span(2) }];
        let all = [
            Schedule { rounds: vec![vec![], vec![send(1), send(2)]] },
            Schedule { rounds: vec![vec![], receive.clone()] },
            Schedule { rounds: vec![vec![], receive] },
        ];
        assert_eq!(MODEL.price(&all, 1), 100.0 + 10.0 + 2.0);
    }

    #[test]
    fn a_rank_waits_for_those_it_hears_from_and_for_no_other() {
        let pass = |from: Option<u32>, to: Option<u32>, round: usize| {
            let mut rounds = vec![vec![]; round + 2];
            if let Some(from) = from {
                rounds[round] = vec![Step::RecvCopy { from: Rank(from), span: span(1) }];
            }
            if let Some(to) = to {
                rounds[round + 1] = vec![Step::Send { to: Rank(to), span: span(1) }];
            }
            Schedule { rounds }
        };
        // 0 tells 1 in round 1, and 1 tells 2 in round 2; 3 tells 4 in round 2.
        let all = [
            pass(None, Some(1), 0),
            pass(Some(0), Some(2), 1),
            pass(Some(1), None, 2),
            pass(None, Some(4), 1),
            pass(Some(3), None, 2),
        ];
        assert_eq!(MODEL.price(&all[..3], 2), 202.0);
        assert_eq!(MODEL.price(&all, 2), 202.0);
    }
}
