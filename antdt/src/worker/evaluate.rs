//! Evaluation of the model at the end of a job.

use antdt_agent::runtime::Pulse;
use antdt_agent::{Params, TrainError, Trainer};
use antdt_core::{Metrics, SampleRange, Work};

use super::error::WorkerError;
use super::plane::Plane;

/// Samples evaluated at once: bounds the memory, and is large enough to be fast; larger ones gained nothing.
const EVAL_BATCH: u64 = 256;

/// Evaluates all samples that are there for it and can be read; returns how many there were and what was found.
pub(super) fn evaluate(
    trainer: &mut dyn Trainer,
    plane: &mut Plane,
    pulse: &Pulse,
) -> Result<(u64, Metrics), WorkerError> {
    let samples = trainer.eval_samples();
    let mut values = Vec::new();
    let mut metrics = Metrics::default();
    trainer.begin_evaluation();
    let evaluated = over_readable(samples, |range| {
        let loading = pulse.begin(Work::Evaluating);
        let rows = match trainer.load_eval(range) {
            Ok(rows) => rows.to_vec(),
            Err(error @ TrainError::Data { .. }) => return Ok(Err(error)),
            Err(error) => return Err(error.into()),
        };
        drop(loading);
        values.clear();
        plane.rows().gather(&rows, &mut values)?;
        let dense = plane.dense().host()?;
        let _at_work = pulse.begin(Work::Evaluating);
        trainer.evaluate(Params::host(dense, &values), &mut metrics)?;
        Ok::<_, WorkerError>(Ok(()))
    })?;
    trainer.end_evaluation(&mut metrics)?;
    if let Some(names) = not_finite(&metrics) {
        // They are left out of the report, which has finite numbers only.
        tracing::warn!(
            "the evaluation is not finite: {names}; the model has diverged, choose a smaller --learning-rate"
        );
    }
    Ok((evaluated, metrics))
}

/// Calls `each` with all samples in batches. Where it cannot read one of a batch, with halves of that batch, until the sample is alone:
/// it does not make the model worse, and is left out. Returns how many samples were not.
fn over_readable<E>(
    samples: u64,
    mut each: impl FnMut(SampleRange) -> Result<Result<(), TrainError>, E>,
) -> Result<u64, E> {
    let (mut parts, mut rest, mut evaluated) = (Vec::new(), 0, 0);
    loop {
        let batch = SampleRange { start: rest, end: (rest + EVAL_BATCH).min(samples) };
        let Some(range) = parts.pop().or((rest < samples).then_some(batch)) else { return Ok(evaluated) };
        rest = rest.max(range.end);
        match each(range)? {
            Ok(()) => evaluated += range.len(),
            Err(_) if range.len() > 1 => {
                let middle = range.start + range.len() / 2;
                parts.push(SampleRange { start: middle, ..range });
                parts.push(SampleRange { end: middle, ..range });
            }
            Err(error) => {
                tracing::warn!(%error, "sample {} is left out of the evaluation", range.start);
            }
        }
    }
}

/// The metrics that are infinite or not a number, with their values; `None` if there are none.
fn not_finite(metrics: &Metrics) -> Option<String> {
    let odd = metrics.iter().filter(|metric| !metric.value.is_finite());
    let texts: Vec<String> = odd.map(|metric| format!("{} is {}", metric.name, metric.value)).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

#[cfg(test)]
mod tests {
    use antdt_core::Metric;

    use super::*;

    /// The samples that are evaluated where these cannot be read, and how many there are said to be.
    fn evaluated(samples: u64, bad: &[u64]) -> (Vec<u64>, u64) {
        let mut seen = Vec::new();
        let count = over_readable(samples, |range| {
            let all = range.start..range.end;
            Ok::<_, WorkerError>(match bad.iter().find(|sample| all.contains(sample)) {
                Some(sample) => Err(TrainError::Data { sample: *sample, why: "torn".to_owned() }),
                None => {
                    seen.extend(all);
                    Ok(())
                }
            })
        });
        (seen, count.unwrap())
    }

    #[test]
    fn an_evaluation_leaves_out_the_samples_that_cannot_be_read_and_no_others() {
        let last = 2 * EVAL_BATCH + 87;
        for bad in [&[][..], &[300], &[0, 1, EVAL_BATCH, last], &[255, 256, 257, 511, 512]] {
            let (seen, count) = evaluated(last + 1, bad);
            let readable: Vec<u64> = (0..=last).filter(|sample| !bad.contains(sample)).collect();
            assert_eq!((seen, count), (readable.clone(), readable.len() as u64), "{bad:?}");
        }
        assert_eq!(evaluated(0, &[]), (vec![], 0));
        assert_eq!(evaluated(3, &[0, 1, 2]), (vec![], 0), "all are bad");
        // A framework that fails ends the evaluation.
        let failed = over_readable(5, |_| Err::<Result<(), TrainError>, _>("out of memory"));
        assert_eq!(failed, Err("out of memory"));
    }

    #[test]
    fn metrics_of_a_model_that_has_diverged_are_named() {
        let mut metrics = Metrics::default();
        metrics.record(Metric::mean("auc", 0.5, 1.0)).unwrap();
        assert_eq!(not_finite(&metrics), None);
        metrics.record(Metric::mean("loss", f64::NAN, 1.0)).unwrap();
        assert_eq!(not_finite(&metrics).unwrap(), "loss is NaN");
    }
}
