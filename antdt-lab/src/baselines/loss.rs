//! When a job has reached a loss, by its report.
//!
//! A job has one epoch of generated samples, so that no sample was trained on before its loss is taken: the mean loss of the
//! batches is one of samples that the model does not know, and means the same in every mode. Where workers have models of their
//! own it is the mean over their models; the average of these is evaluated at the end on samples held out.

use antdt::report::LossPoint;

/// Losses of single batches vary; a value is the mean over the samples of this share of the job.
const WINDOW: f64 = 0.1;

/// Mean losses over the samples just before, by time and by samples since the start.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Smooth {
    points: Vec<(f64, u64, f64)>,
}

impl Smooth {
    /// The curve of a job.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share"
    )]
    pub(super) fn of(curve: &[LossPoint], samples: u64) -> Self {
        let window = (samples as f64 * WINDOW).ceil() as u64;
        let (mut first, mut inside, mut sum, mut seen) = (0, 0, 0.0, 0);
        let mut points = Vec::new();
        for point in curve {
            seen += point.samples;
            inside += point.samples;
            sum += point.loss * point.samples as f64;
            while inside - curve[first].samples >= window {
                inside -= curve[first].samples;
                sum -= curve[first].loss * curve[first].samples as f64;
                first += 1;
            }
            if inside >= window {
                points.push((point.time_s, seen, sum / inside as f64));
            }
        }
        Self { points }
    }

    /// The loss after this share of the samples.
    #[allow(clippy::cast_precision_loss, reason = "a share")]
    pub(super) fn after(&self, share: f64, samples: u64) -> Option<f64> {
        let enough = |point: &&(f64, u64, f64)| point.1 as f64 >= share * samples as f64;
        self.points.iter().find(enough).map(|point| point.2)
    }

    /// Time and samples until the loss is at most `loss`; `None` if it never is.
    pub(super) fn until(&self, loss: f64) -> Option<(f64, u64)> {
        self.points.iter().find(|point| point.2 <= loss).map(|point| (point.0, point.1))
    }
}

/// When the first losses of a job arrived: before that, processes start, connect and measure their links.
pub(super) fn began_s(curve: &[LossPoint]) -> f64 {
    curve.first().map_or(0.0, |point| point.time_s)
}

/// Samples per second from the first losses of a job to the last ones.
#[allow(clippy::cast_precision_loss, reason = "a count of samples")]
pub(super) fn throughput(curve: &[LossPoint]) -> Option<f64> {
    let ([_, later @ ..], Some(last)) = (curve, curve.last()) else { return None };
    let (samples, took): (u64, _) =
        (later.iter().map(|point| point.samples).sum(), last.time_s - began_s(curve));
    (took > 0.0).then(|| samples as f64 / took)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(time_s: f64, loss: f64) -> LossPoint {
        LossPoint { time_s, steps: 1, samples: 10, loss }
    }

    #[test]
    fn one_lucky_batch_does_not_reach_the_loss() {
        // 100 samples: a value is the mean of 10, of 200 it is that of 20.
        let curve: Vec<_> = [4.0, 1.0, 4.0, 3.0, 2.0, 2.0]
            .iter()
            .zip(1_u32..)
            .map(|(loss, at)| point(at.into(), *loss))
            .collect();
        assert_eq!(Smooth::of(&curve, 100).until(1.5), Some((2.0, 20)));
        let smooth = Smooth::of(&curve, 200);
        assert_eq!(smooth.until(1.5), None);
        assert_eq!(smooth.until(2.5), Some((2.0, 20)));
        assert_eq!(smooth.until(2.4), Some((6.0, 60)));
    }

    #[test]
    fn the_loss_after_a_share_is_that_of_the_samples_just_before_it() {
        let curve: Vec<_> = (1..=10_u32).map(|at| point(at.into(), f64::from(11 - at))).collect();
        let smooth = Smooth::of(&curve, 100);
        assert_eq!(smooth.after(0.6, 100), Some(5.0));
        assert_eq!(smooth.after(1.1, 100), None);
        assert_eq!(Smooth::of(&[], 100).after(0.5, 100), None);
    }

    #[test]
    fn a_slow_start_is_not_training() {
        // Seven seconds until the first losses, then ten samples a second.
        let curve: Vec<_> = (7..=10_u32).map(|at| point(at.into(), 1.0)).collect();
        assert_eq!((began_s(&curve), throughput(&curve)), (7.0, Some(10.0)));
        assert_eq!([throughput(&[]), throughput(&curve[..1]), throughput(&[curve[0]; 2])], [None; 3]);
    }
}
