//! The nine hypotheses of a faithful reproduction of Ripples, each with its band.

use std::fmt;

use super::cell::{Measured, Scheme};
use crate::Entry;
use crate::entry::State;

/// What the measured cells say of a hypothesis.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Verdict {
    Holds(String),
    Fails(String),
    /// Which cells are missing.
    NotMeasured(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds(why) => write!(f, "holds: {why}"),
            Self::Fails(why) => write!(f, "fails: {why}"),
            Self::NotMeasured(why) => write!(f, "not measured: {why}"),
        }
    }
}

/// Name and claim of each hypothesis.
pub(super) const CLAIMS: [(&str, &str); 9] = [
    ("H1", "even: ripples-static and ripples=smart are 1.02 to 1.6 times as fast as all-reduce"),
    ("H2", "even: all-reduce is at least 2 times as fast as a parameter server"),
    ("H3", "even: ad-psgd is slower than all-reduce"),
    ("H4", "slow 5x: all-reduce within 10 % of its bound, ripples-static within 25 % of all-reduce"),
    (
        "H5",
        "slow 5x: ripples=smart keeps 70 % of its even throughput, and is 2.5 times as fast as all-reduce",
    ),
    ("H6", "even: ripples=buffer is slower than ripples=division"),
    ("H7", "even: samples to the loss of averaged models at most 1.1 times those of all-reduce"),
    ("H8", "the filter off is slower than on, slow 5x"),
    (
        "H9",
        "slow 5x: in asynchronous modes the slow worker waits for nobody: its share of the others' steps is what \
         its own gradients allow, +- 25 %",
    ),
];

/// All that was measured with one ratio of communication to computing.
pub(super) struct Cells<'a> {
    pub(super) ratio: f64,
    pub(super) all: &'a [Measured],
}

impl Cells<'_> {
    /// The middle one of the seeds.
    fn median(
        &self,
        scheme: Scheme,
        sigma: f64,
        of: impl Fn(&Measured) -> Option<f64>,
    ) -> Result<f64, String> {
        let is_it = |it: &&Measured| {
            it.cell.scheme == scheme
                && it.cell.is_one_slow(sigma)
                && (it.cell.ratio - self.ratio).abs() < 1e-9
                && !it.is_overloaded()
        };
        let values: Vec<f64> = self.all.iter().filter(is_it).filter_map(of).collect();
        let missing = || format!("{} at sigma {sigma} is missing", scheme.name());
        if values.is_empty() { Err(missing()) } else { Ok(crate::meter::median(values)) }
    }

    fn speed(&self, scheme: Scheme, sigma: f64) -> Result<f64, String> {
        self.median(scheme, sigma, |it| Some(it.throughput))
    }

    fn judge(&self, number: usize, setting: &super::Setting) -> Result<Verdict, String> {
        let all_reduce = |sigma| self.speed(Scheme::AllReduce, sigma);
        let over = |scheme, sigma| Ok::<_, String>(self.speed(scheme, sigma)? / all_reduce(sigma)?);
        let (holds, said) = match number {
            0 => {
                let (fixed, smart) = (over(Scheme::RipplesStatic, 1.0)?, over(Scheme::RipplesSmart, 1.0)?);
                let fits = |gain: f64| (1.02..=1.6).contains(&gain);
                (fits(fixed) && fits(smart), format!("static {fixed:.2}x, smart {smart:.2}x"))
            }
            1 => {
                let gain = 1.0 / over(Scheme::PsBspOne, 1.0)?;
                (gain >= 2.0, format!("{gain:.2}x"))
            }
            2 => {
                let gain = over(Scheme::AdPsgd, 1.0)?;
                (gain < 1.0, format!("ad-psgd {gain:.2}x of all-reduce"))
            }
            3 => {
                let bound = all_reduce(5.0)? / setting.all_reduce_bound(5.0, self.ratio);
                let fixed = over(Scheme::RipplesStatic, 5.0)?;
                let fits = (bound - 1.0).abs() <= 0.1 && (fixed - 1.0).abs() <= 0.25;
                (fits, format!("all-reduce {bound:.2} of its bound, static {fixed:.2}x"))
            }
            4 => {
                let kept = self.speed(Scheme::RipplesSmart, 5.0)? / self.speed(Scheme::RipplesSmart, 1.0)?;
                let gain = over(Scheme::RipplesSmart, 5.0)?;
                (kept >= 0.7 && gain >= 2.5, format!("keeps {:.0} %, {gain:.2}x", 100.0 * kept))
            }
            5 => {
                let gain =
                    self.speed(Scheme::RipplesBuffer, 1.0)? / self.speed(Scheme::RipplesDivision, 1.0)?;
                (gain < 1.0, format!("buffer {gain:.2}x of division"))
            }
            6 => {
                #[allow(clippy::cast_precision_loss, reason = "a count of samples")]
                let samples = |scheme| self.median(scheme, 1.0, |it| it.samples_to_loss.map(|n| n as f64));
                let base = samples(Scheme::AllReduce)?;
                let schemes = [Scheme::AdPsgd, Scheme::RipplesStatic, Scheme::RipplesSmart];
                let more = schemes.map(|scheme| Ok::<_, String>((scheme, samples(scheme)? / base)));
                let more = more.into_iter().collect::<Result<Vec<_>, _>>()?;
                let said: Vec<String> =
                    more.iter().map(|(scheme, more)| format!("{} {more:.2}x", scheme.name())).collect();
                (more.iter().all(|(_, more)| *more <= 1.1), said.join(", "))
            }
            7 => {
                let gain =
                    self.speed(Scheme::RipplesUnfiltered, 5.0)? / self.speed(Scheme::RipplesSmart, 5.0)?;
                (gain < 1.0, format!("off {gain:.2}x of on"))
            }
            _ => {
                let mut said = Vec::new();
                let mut fits = true;
                for scheme in [Scheme::AdPsgd, Scheme::RipplesSmart, Scheme::PsAspFair] {
                    let share = self.median(scheme, 5.0, |it| it.slow_steps)?;
                    let allowed = setting.unblocked_share(5.0, self.speed(scheme, 1.0)?);
                    fits &= (share / allowed - 1.0).abs() <= 0.25;
                    said.push(format!("{} {share:.2} of {allowed:.2}", scheme.name()));
                }
                (fits, said.join(", "))
            }
        };
        Ok(if holds { Verdict::Holds(said) } else { Verdict::Fails(said) })
    }

    /// One verdict for each of [`CLAIMS`].
    pub(super) fn verdicts(&self, setting: &super::Setting) -> Vec<Verdict> {
        (0..CLAIMS.len())
            .map(|number| self.judge(number, setting).unwrap_or_else(Verdict::NotMeasured))
            .collect()
    }

    /// Figures that were published, and ours.
    pub(super) fn published(&self) -> Vec<Entry> {
        let fastest = |sigma| {
            let ours = [Scheme::RipplesSmart, Scheme::RipplesDivision, Scheme::RipplesStatic];
            let speeds = ours.iter().filter_map(|scheme| self.speed(*scheme, sigma).ok());
            speeds.reduce(f64::max).ok_or_else(|| format!("ripples at sigma {sigma} is missing"))
        };
        let figures = [
            ("even, over all-reduce", 1.0, Scheme::AllReduce, "1.1x"),
            ("even, over a parameter server", 1.0, Scheme::PsBspOne, "5.1x"),
            ("even, over a server per node", 1.0, Scheme::PsBspFair, "5.1x over its PS"),
            ("even, over ad-psgd", 1.0, Scheme::AdPsgd, "4.3x"),
            ("slow 5x, over all-reduce", 5.0, Scheme::AllReduce, "2x"),
            ("slow 5x, over a parameter server", 5.0, Scheme::PsBspOne, "3x"),
        ];
        figures
            .into_iter()
            .map(|(what, sigma, base, published)| {
                let name = format!("R_e {}: fastest ripples, {what}", self.ratio);
                match fastest(sigma).and_then(|fast| Ok(fast / self.speed(base, sigma)?)) {
                    Ok(gain) => Entry::shown(name, gain, "x").beside(format!("published: {published}")),
                    Err(missing) => Entry::without(name, State::NotMeasured, missing),
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Setting;
    use super::super::cell::Cell;
    use super::*;

    const SETTING: Setting =
        Setting { workers: 8, per_host: 4, steps: 48, compute: Duration::from_millis(100) };

    fn measured(scheme: Scheme, sigma: f64, throughput: f64) -> Measured {
        let cell = Cell::one_slow(scheme, sigma, 0.5, 1);
        Measured { throughput, load: Some(0.2), ..Measured::of(cell) }
    }

    fn verdict(number: usize, all: &[Measured]) -> Verdict {
        Cells { ratio: 0.5, all }.verdicts(&SETTING).remove(number - 1)
    }

    #[test]
    fn a_hypothesis_holds_inside_its_band_only() {
        let of = |fixed, smart| {
            verdict(
                1,
                &[
                    measured(Scheme::AllReduce, 1.0, 100.0),
                    measured(Scheme::RipplesStatic, 1.0, fixed),
                    measured(Scheme::RipplesSmart, 1.0, smart),
                ],
            )
        };
        assert!(matches!(of(110.0, 160.0), Verdict::Holds(_)));
        assert!(matches!(of(110.0, 101.0), Verdict::Fails(_)));
        assert!(matches!(of(161.0, 110.0), Verdict::Fails(_)));
    }

    #[test]
    fn a_missing_or_overloaded_cell_is_named_and_judges_nothing() {
        let mut cells = vec![measured(Scheme::AllReduce, 1.0, 100.0), measured(Scheme::PsBspOne, 1.0, 20.0)];
        assert!(matches!(verdict(2, &cells), Verdict::Holds(_)));
        cells[1].load = Some(0.9);
        let Verdict::NotMeasured(missing) = verdict(2, &cells) else { panic!("an overloaded cell counted") };
        assert_eq!(missing, "ps-bsp, 1 server at sigma 1 is missing");
        assert!(matches!(verdict(8, &cells), Verdict::NotMeasured(_)));
    }

    #[test]
    fn a_slow_worker_that_never_waits_is_told_from_one_that_waits() {
        // A step of all takes 1.5 gradients: the slow worker's 5.5, and 0.27 of the others' steps.
        let even = SETTING.speed() * 8.0 / 1.5;
        let of = |share| {
            let schemes = [Scheme::AdPsgd, Scheme::RipplesSmart, Scheme::PsAspFair];
            let slow = |scheme| Measured { slow_steps: Some(share), ..measured(scheme, 5.0, 1.0) };
            let cells: Vec<_> =
                schemes.into_iter().flat_map(|it| [measured(it, 1.0, even), slow(it)]).collect();
            verdict(9, &cells)
        };
        assert!(matches!(of(0.25), Verdict::Holds(_)));
        assert!(matches!(of(0.2), Verdict::Fails(_)), "it was held back");
        assert!(matches!(of(1.0), Verdict::Fails(_)), "the others waited");
        let Verdict::Holds(said) = of(0.27) else { panic!("what its gradients allow") };
        assert!(said.starts_with("ad-psgd 0.27 of 0.27, "), "{said}");
    }

    #[test]
    fn all_reduce_is_held_against_its_bound() {
        let bound = SETTING.all_reduce_bound(5.0, 0.5);
        let of = |speed| {
            let fixed = measured(Scheme::RipplesStatic, 5.0, speed);
            verdict(4, &[measured(Scheme::AllReduce, 5.0, speed), fixed])
        };
        assert!(matches!(of(0.95 * bound), Verdict::Holds(_)));
        assert!(matches!(of(0.85 * bound), Verdict::Fails(_)));
    }
}
