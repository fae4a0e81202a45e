//! Example files in the formats that this module reads, for scenarios and tests. The same seed gives the same
//! file.

use std::fmt::Write;

use antdt_core::Seed;

/// Returns an example of recorded slowdowns of `workers` workers over `span_s` seconds, one every ten
/// seconds. The workers differ a little, and one is three times slower for a tenth of the time.
///
/// The text has the format of [`read_slowdowns`](super::read_slowdowns).
pub fn slowdowns(seed: Seed, workers: u32, span_s: u32) -> String {
    let mut rng = seed.derive("slowdowns").rng();
    let own: Vec<f64> = (0..workers).map(|_| 1.0 + 0.2 * rng.unit()).collect();
    let burst_worker = rng.below(workers.into()) as u32;
    let burst_length = u64::from(span_s / 10);
    let burst_from = rng.below(u64::from(span_s) - burst_length + 1);
    let burst = burst_from..burst_from + burst_length;
    let mut text = "t_s,worker,slowdown\n".to_owned();
    for second in (0..span_s).step_by(10) {
        for (worker, own) in (0..workers).zip(&own) {
            let slow = worker == burst_worker && burst.contains(&second.into());
            let slowdown = own * (1.0 + 0.05 * rng.unit()) * if slow { 3.0 } else { 1.0 };
            writeln!(text, "{second},{worker},{slowdown:.3}").expect("a string takes all text");
        }
    }
    text
}

/// Returns an example of a machine market over `span_s` seconds. It has `machines` machines at the start;
/// about every `gap_s` seconds one is removed or added, and there are never more than at the start.
///
/// The text has the format of [`read_market`](super::read_market).
pub fn market(seed: Seed, machines: u32, span_s: u32, gap_s: u32) -> String {
    let mut rng = seed.derive("market").rng();
    let mut text = "t_s,event,machine\n".to_owned();
    let mut there: Vec<u32> = (0..machines).collect();
    for machine in &there {
        writeln!(text, "0,add,machine-{machine}").expect("a string takes all text");
    }
    let mut next = machines;
    let mut second = 0;
    loop {
        second += 1 + rng.below(2 * u64::from(gap_s));
        if second >= span_s.into() {
            return text;
        }
        let full = there.len() as u64 >= u64::from(machines);
        let (event, machine) = if !there.is_empty() && (full || rng.below(2) == 0) {
            ("remove", there.swap_remove(rng.below(there.len() as u64) as usize))
        } else {
            there.push(next);
            next += 1;
            ("add", next - 1)
        };
        writeln!(text, "{second},{event},machine-{machine}").expect("a string takes all text");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::scheduler::Market;
    use crate::replay::{read_market, read_slowdowns};

    #[test]
    fn examples_read_back_and_are_the_same_from_the_same_seed() {
        for seed in 0..50 {
            let text = slowdowns(Seed(seed), 4, 600);
            assert_eq!(text, slowdowns(Seed(seed), 4, 600));
            let series = read_slowdowns(&text).unwrap();
            assert_eq!((series.workers(), series.period().as_secs()), (4, 600));
            let slow = (0..4).flat_map(|worker| series.entries(worker)).filter(|(_, factor)| *factor > 2.0);
            assert!((5..=7).contains(&slow.count()));

            let text = market(Seed(seed), 8, 600, 20);
            let market = Market::new(read_market(&text, 1.0).unwrap(), 8).unwrap();
            assert!(market.crashes().count() > 3, "{text}");
        }
        assert_ne!(slowdowns(Seed(1), 4, 600), slowdowns(Seed(2), 4, 600));
    }
}
