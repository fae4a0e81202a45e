//! What it gains that gradients are added up while the backward pass still computes others: steps of one bucket beside steps
//! of several, over an emulated network, where communication takes as much of a step as a user would want to hide; and what
//! it costs where there is nothing to hide, on the machine's own cores.

use std::fs;
use std::io::{self, Write};
use std::time::Duration;

use antdt_collective::Buckets;
use anyhow::{Context, Result};

use super::{OTHERS_MAX, accounting_of};
use crate::entry::State;
use crate::meter::{Others, interval, median};
use crate::run::{batch_time_s, run as run_antdt};
use crate::{Entry, Rows, Settings};

/// What its rows begin with.
pub(super) const OVERLAP: &str = "overlap";

const WORKERS: u32 = 2;
/// Samples of a worker's batch: with an emulated gradient, and with one that keeps a core busy for tens of milliseconds.
const BATCH: u32 = 32;
const OWN_BATCH: u32 = 512;
/// Layers of the perceptron: numbers of a sample, hidden units, classes. The hidden ones alike, so that there is something to
/// send from the first third of the backward pass on.
const LAYERS: [usize; 6] = [64, 256, 256, 256, 256, 10];
/// Longer than the model, and the weights of half a hidden layer: a bucket for each layer but the last, which goes with the one
/// before.
const ONE_BUCKET: usize = 16 << 20;
const SMALL_BUCKETS: usize = 128 << 10;
/// Emulated time of a gradient, and of the model over a link.
const COMPUTE: Duration = Duration::from_millis(120);
const TRANSFER: Duration = Duration::from_millis(80);
/// Share of a gradient's emulated time before the first layer's gradient is there, as in `antdt`.
const FORWARD_SHARE: f64 = 1.0 / 3.0;

const NAMES: [&str; 2] = ["one bucket", "small buckets"];

/// How long the jobs are and how much noise is forgiven.
struct Scale {
    pairs: usize,
    paced_steps: u32,
    unpaced_steps: u32,
    /// Most of a step over its bound.
    over_bound: f64,
    /// Least share of the bounds' gain.
    gain_share: f64,
    /// What small buckets may cost on the machine's own cores, percent of a step.
    cost_percent: f64,
}

impl Scale {
    const QUICK: Self = Self {
        pairs: 3,
        paced_steps: 16,
        unpaced_steps: 40,
        over_bound: 1.2,
        gain_share: 0.85,
        cost_percent: 10.0,
    };
    const FULL: Self = Self {
        pairs: 8,
        paced_steps: 60,
        unpaced_steps: 150,
        over_bound: 1.1,
        gain_share: 0.9,
        cost_percent: 3.0,
    };
}

/// Lengths of the groups of parameters: weights and biases of each layer.
fn groups() -> Vec<usize> {
    LAYERS.windows(2).flat_map(|layer| [layer[0] * layer[1], layer[1]]).collect()
}

fn model_bytes() -> usize {
    4 * groups().iter().sum::<usize>()
}

/// Bytes per second of a link that carries the model in [`TRANSFER`].
#[allow(clippy::cast_precision_loss, reason = "a model is far smaller than 2^53 bytes")]
fn bandwidth() -> f64 {
    model_bytes() as f64 / TRANSFER.as_secs_f64()
}

/// Least time of a step, in seconds: each bucket goes over the link when its last group is there and the bucket before has
/// gone. Of two workers each sends and receives a bucket once.
#[allow(clippy::cast_precision_loss, reason = "a model is far smaller than 2^53 bytes")]
fn bound_s(bucket_bytes: usize) -> f64 {
    let groups = groups();
    let all = groups.iter().sum::<usize>() as f64;
    let (mut handed, mut sent_s) = (0, 0.0_f64);
    for bucket in Buckets::plan(&groups, bucket_bytes, bucket_bytes).buckets() {
        handed += bucket.len;
        let share = FORWARD_SHARE + (1.0 - FORWARD_SHARE) * handed as f64 / all;
        sent_s = sent_s.max(COMPUTE.as_secs_f64() * share) + 4.0 * bucket.len as f64 / bandwidth();
    }
    sent_s
}

const fn global_batch_size(paced: bool) -> u32 {
    WORKERS * if paced { BATCH } else { OWN_BATCH }
}

fn arguments(job: &str, paced: bool, bucket_bytes: usize, steps: u32) -> Vec<String> {
    let global = global_batch_size(paced);
    let mut text = format!(
        "--nproc-per-node {WORKERS} --sync allreduce --policy none --data synthetic:{} --epochs 1 --seed 1 \
         --global-batch-size {global} --bucket-bytes {bucket_bytes} --quiet",
        u64::from(steps) * u64::from(global),
    );
    if paced {
        let speed = f64::from(BATCH) / COMPUTE.as_secs_f64();
        text += &format!(" --emulate-speed {speed} --emulate-network bandwidth={:.0}B/s", bandwidth());
    }
    let job = ["--job", job].map(str::to_owned);
    job.into_iter().chain(text.split_whitespace().map(str::to_owned)).collect()
}

/// Runs the jobs in pairs that take turns at being first.
pub(super) fn run(settings: &Settings, rows: &mut Rows) -> Result<()> {
    let scale = &if settings.quick { Scale::QUICK } else { Scale::FULL };
    let job = settings.report_dir.join("overlap.toml");
    let hidden = LAYERS[1..LAYERS.len() - 1].iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let text = format!(
        "[workload]\nname = \"mlp\"\n\n[workload.mlp]\nfeatures = {}\nhidden = \"{hidden}\"\n",
        LAYERS[0]
    );
    fs::write(&job, text).with_context(|| format!("cannot write {}", job.display()))?;
    for (paced, steps) in [(true, scale.paced_steps), (false, scale.unpaced_steps)] {
        let (mut pairs, mut others) = (Vec::new(), Vec::new());
        for pair in 0..scale.pairs {
            let mut took = [0.0; 2];
            for which in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
                let place = if paced { "paced link" } else { "own cores" };
                let name = format!("{OVERLAP}, {place}, {}, pair {}", NAMES[which], pair + 1);
                print!("{name:<48}");
                // Progress only.
                let _ = io::stdout().flush();
                let arguments =
                    arguments(&job.to_string_lossy(), paced, [ONE_BUCKET, SMALL_BUCKETS][which], steps);
                let folder = settings.report_dir.join(name.replace(", ", "-").replace(' ', "-"));
                let watched = Others::watch();
                let report = run_antdt(&settings.antdt, &arguments, &folder, Duration::from_secs(120))?;
                others.extend(watched.share());
                took[which] =
                    batch_time_s(&report.workers, 0.0).with_context(|| format!("{name}: no batch"))?;
                println!(" {:>7.2} ms", took[which] * 1e3);
                let accounting = accounting_of(&name, u64::from(steps * global_batch_size(paced)), &report);
                rows.extend((accounting.state != State::Ok).then_some(accounting));
            }
            pairs.push(took);
        }
        let others = others.into_iter().reduce(f64::max);
        let judged = if paced { judge_paced(scale, &pairs) } else { vec![judge_unpaced(scale, &pairs)] };
        rows.extend(judged.into_iter().map(|row| row.unless_overloaded(others, OTHERS_MAX)));
    }
    Ok(())
}

/// The rows of pairs over the emulated network: step times with one bucket and with small ones, in seconds.
fn judge_paced(scale: &Scale, pairs: &[[f64; 2]]) -> Vec<Entry> {
    let bounds = [ONE_BUCKET, SMALL_BUCKETS].map(bound_s);
    let medians = [0, 1].map(|which| median(pairs.iter().map(|pair| pair[which])));
    let over = |which: usize| {
        let name = format!("{OVERLAP}, paced link, {}: step over its bound", NAMES[which]);
        Entry::shown(name, medians[which] / bounds[which], "x").at_most(scale.over_bound).beside(format!(
            "{:.1} ms, bound {:.1} ms",
            medians[which] * 1e3,
            bounds[which] * 1e3
        ))
    };
    let gains: Vec<f64> = pairs.iter().map(|[one, small]| one / small).collect();
    let (gain, interval) = interval(&gains);
    let oracle = bounds[0] / bounds[1];
    let hidden = (medians[0] - medians[1]) / TRANSFER.as_secs_f64();
    let gain = Entry::shown(format!("{OVERLAP}, paced link: gain"), gain, "x")
        .interval_at_least(interval, oracle * scale.gain_share)
        .beside(format!(
            "oracle {oracle:.2}; {:.0} % of the communication is hidden, {} pairs",
            100.0 * hidden,
            pairs.len()
        ));
    vec![over(0), over(1), gain]
}

/// The row of pairs at the machine's own speed.
fn judge_unpaced(scale: &Scale, pairs: &[[f64; 2]]) -> Entry {
    let percents: Vec<f64> = pairs.iter().map(|[one, small]| 100.0 * (small / one - 1.0)).collect();
    let (mean, interval) = interval(&percents);
    Entry::shown(format!("{OVERLAP}, own cores: cost of small buckets"), mean, "%")
        .interval_at_most(interval, scale.cost_percent)
        .beside(format!(
            "{} pairs, one bucket {:.2} ms a step",
            pairs.len(),
            1e3 * median(pairs.iter().map(|[one, _]| *one))
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_a_bucket_and_the_last_one_goes_with_the_one_before() {
        let plan = Buckets::plan(&groups(), SMALL_BUCKETS, SMALL_BUCKETS);
        let lens: Vec<usize> = plan.buckets().iter().map(|bucket| bucket.len).collect();
        let hidden = 257 * 256;
        assert_eq!(lens, [257 * 10 + hidden, hidden, hidden, 65 * 256]);
        assert_eq!(Buckets::plan(&groups(), ONE_BUCKET, ONE_BUCKET).buckets().len(), 1);
        assert_eq!(model_bytes(), 4 * lens.iter().sum::<usize>());
    }

    #[test]
    fn without_overlap_a_step_is_its_parts_one_after_the_other_and_with_it_the_link_begins_sooner() {
        let parts = (COMPUTE + TRANSFER).as_secs_f64();
        assert!((bound_s(ONE_BUCKET) - parts).abs() < 1e-9);
        // From when the first bucket is there, 54 % into the gradient, the link is never idle.
        let first = f64::from(257 * 10 + 257 * 256) / (model_bytes() as f64 / 4.0);
        let begins = COMPUTE.as_secs_f64() * (FORWARD_SHARE + (1.0 - FORWARD_SHARE) * first);
        assert!((bound_s(SMALL_BUCKETS) - begins - TRANSFER.as_secs_f64()).abs() < 1e-9);
        assert!(bound_s(ONE_BUCKET) / bound_s(SMALL_BUCKETS) > 1.35);
    }

    #[test]
    fn steps_at_their_bounds_pass_and_steps_without_overlap_do_not() {
        let scale = &Scale::QUICK;
        let [one, small] = [ONE_BUCKET, SMALL_BUCKETS].map(bound_s);
        let states =
            |pairs: &[[f64; 2]]| judge_paced(scale, pairs).iter().map(|row| row.state).collect::<Vec<_>>();
        assert_eq!(states(&[[one, small]; 3]), [State::Ok; 3]);
        // What came out one by one came out no sooner.
        assert_eq!(states(&[[one, one]; 3]), [State::Ok, State::Failed, State::Failed]);
        assert_eq!(judge_unpaced(scale, &[[1.0, 1.05]; 3]).state, State::Ok);
        assert_eq!(judge_unpaced(scale, &[[1.0, 1.2]; 3]).state, State::Failed);
    }

    #[test]
    fn jobs_differ_in_their_buckets_alone_and_are_paced_or_not() {
        let line = |paced, bucket| arguments("job.toml", paced, bucket, 10).join(" ");
        let paced = line(true, ONE_BUCKET);
        assert!(paced.contains("--emulate-network bandwidth=") && paced.contains("--data synthetic:640"));
        assert_eq!(line(true, SMALL_BUCKETS), paced.replace("16777216", "131072"));
        let own = line(false, ONE_BUCKET);
        assert!(!own.contains("emulate") && own.contains("--data synthetic:10240"), "{own}");
    }
}
