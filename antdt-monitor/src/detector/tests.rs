use std::io::Read;
use std::path::PathBuf;

use antdt_core::{DeviceClass, Iteration, PlanVersion, Seed};
use proptest::prelude::*;

use super::*;
use crate::LivenessConfig;
use crate::rule::{Evidence, PaceRule, Rule};
use crate::testing::SyntheticJob;

const TRANSIENT: Pace = Pace::Straggler(StragglerKind::Transient);
const PERSISTENT: Pace = Pace::Straggler(StragglerKind::Persistent);
const HEALTHY: Duration = Duration::from_micros(1250);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn at(time: Duration) -> JobTime {
    JobTime::from_duration(time)
}

fn detector() -> StragglerDetector {
    StragglerDetector::new(MonitorConfig::default()).unwrap()
}

/// A registered job of workers with 64 samples per batch: steps of 80 ms.
fn job(synchronous: bool, workers: usize) -> (SyntheticJob, StragglerDetector) {
    let job = SyntheticJob::new(synchronous, 64, &vec![HEALTHY; workers]);
    let mut detector = detector();
    job.join_all(&mut detector);
    (job, detector)
}

/// Feeds the reports of so many steps.
fn steps(
    job: &mut SyntheticJob,
    detector: &mut StragglerDetector,
    count: u32,
    slowdown: impl Fn(usize, JobTime) -> f64,
) {
    for _ in 0..count {
        for report in job.next(&slowdown) {
            assert_eq!(detector.report(job.now, &report), ReportAnswer::Accepted);
        }
    }
}

fn slow(index: usize, factor: f64) -> impl Fn(usize, JobTime) -> f64 + Copy {
    move |worker, _| if worker == index { factor } else { 1.0 }
}

fn healthy(_: usize, _: JobTime) -> f64 {
    1.0
}

fn paces(detector: &StragglerDetector) -> Vec<Pace> {
    detector.nodes.iter().map(|(_, watched)| watched.pace).collect()
}

fn see(detector: &StragglerDetector, index: u32) -> Observation {
    detector.observe(JobTime::NEVER, NodeId::worker(index)).unwrap()
}

#[test]
fn one_slow_worker_of_two_three_or_four_is_found() {
    for workers in 2..=4 {
        let (mut job, mut detector) = job(true, workers);
        steps(&mut job, &mut detector, 30, slow(workers - 1, 4.0));
        let mut expected = vec![Pace::Normal; workers];
        expected[workers - 1] = TRANSIENT;
        assert_eq!(paces(&detector), expected, "of {workers}");
        assert_eq!(see(&detector, workers as u32 - 1).slowness_ratio, Some(4.0));
    }
}

#[test]
fn the_deadlines_follow_the_slowest_workers_steps_and_are_long_before_the_first() {
    // Steps of 8 s; where workers do not wait for each other, those of a slow one are its own.
    let mut job = SyntheticJob::new(false, 64, &[Duration::from_millis(125); 3]);
    let mut detector = detector();
    job.join_all(&mut detector);
    assert_eq!((detector.deadlines().step, detector.deadlines().hung), (None, ms(1_200_000)));
    let hangs = |detector: &mut StragglerDetector, lasts| {
        let life = Holder::new(NodeId::worker(2), Incarnation(0));
        detector.stalled(life, Stall { work: antdt_core::Work::Training, lasts });
        let mut effects = std::iter::from_fn(|| detector.poll_effect());
        effects.any(|effect| matches!(effect, MonitorEffect::Hung(..)))
    };
    assert!(!hangs(&mut detector, ms(600_000)), "a first step may take ten minutes");
    steps(&mut job, &mut detector, 1, healthy);
    assert_eq!(detector.deadlines().step, Some(ms(8_000)), "of the first step, until there is a usual one");
    assert!(
        !hangs(&mut detector, ms(95_999)) && hangs(&mut detector, ms(96_000)),
        "12 steps of another worker"
    );
    steps(&mut job, &mut detector, 60, slow(1, 2.0));
    let deadlines = detector.deadlines();
    assert_eq!((deadlines.step, deadlines.hung), (Some(ms(16_000)), ms(192_000)));
    assert!(deadlines.peer > deadlines.hung && deadlines.master > deadlines.peer);
}

#[test]
fn a_worker_is_slow_since_its_first_slow_batch_not_since_it_was_found() {
    let (mut job, mut detector) = job(true, 4);
    steps(&mut job, &mut detector, 40, healthy);
    assert!(see(&detector, 2).pace_since.unwrap() <= at(ms(80)), "its first batch");
    let began = job.now;
    steps(&mut job, &mut detector, 30, slow(2, 4.0));
    let since = see(&detector, 2).pace_since.unwrap();
    let off = since.since(began).max(began.since(since));
    assert!(off <= ms(320), "within one of its batches: {since:?} and {began:?}");
    assert!(see(&detector, 0).pace_since.unwrap() <= at(ms(80)), "that of the others did not change");
}

#[test]
fn the_newest_load_of_the_present_life_is_kept() {
    let (job, mut detector) = job(true, 2);
    let load = |busy| NodeLoad { over: ms(10_000), host_busy: Some(busy), ..NodeLoad::default() };
    assert_eq!(detector.load(NodeId::worker(1)), None);
    assert_eq!(detector.loaded(job.holder(1), load(0.5)), ReportAnswer::Accepted);
    detector.loaded(job.holder(1), load(0.9));
    assert_eq!(detector.load(NodeId::worker(1)), Some(load(0.9)));
    let next = Holder::new(NodeId::worker(1), Incarnation(1));
    assert_eq!(detector.loaded(next, load(0.1)), ReportAnswer::UnknownHolder);
    detector.node_joined(JobTime::ZERO, &NodeInfo { holder: next, ..job.info(1) });
    assert_eq!(detector.load(NodeId::worker(1)), None, "what the life before said is forgotten");
}

#[test]
fn noise_alone_makes_no_straggler_and_hides_none() {
    for (seed, spread) in (1 << 20..).zip([0.05, 0.2, 0.3, 0.3, 0.3, 0.3]) {
        let mut rng = Seed(seed).derive("healthy workers").rng();
        let (mut job, mut detector) = job(true, 8);
        let mut noisy = |job: &mut SyntheticJob, detector: &mut StragglerDetector, slow: f64| {
            for _ in 0..400 {
                let noise: Vec<f64> = (0..8).map(|_| (spread * rng.normal()).exp()).collect();
                let factor = |worker: usize| noise[worker] * if worker == 5 { slow } else { 1.0 };
                steps(job, detector, 1, |worker, _| factor(worker));
            }
            std::iter::from_fn(|| detector.poll_effect())
                .filter_map(|effect| match effect {
                    MonitorEffect::PaceChanged { holder, from, to, .. } => {
                        (to.is_straggler() && !from.is_straggler()).then_some(holder.node.index)
                    }
                    _ => None,
                })
                .collect::<Vec<u32>>()
        };
        assert!(noisy(&mut job, &mut detector, 1.0).is_empty(), "noise of {spread}");
        assert_eq!(noisy(&mut job, &mut detector, 2.5), [5], "noise of {spread}");
    }
}

#[test]
fn half_of_the_workers_slow_are_all_found() {
    let (mut job, mut detector) = job(true, 4);
    steps(&mut job, &mut detector, 30, |worker, _| if worker < 2 { 4.0 } else { 1.0 });
    assert_eq!(paces(&detector), [TRANSIENT, TRANSIENT, Pace::Normal, Pace::Normal]);
}

#[test]
fn one_fast_worker_of_three_is_a_leader() {
    let (mut job, mut detector) = job(true, 3);
    steps(&mut job, &mut detector, 30, slow(1, 0.5));
    assert_eq!(paces(&detector), [Pace::Normal, Pace::Leader, Pace::Normal]);
}

#[test]
fn a_worker_without_peers_gets_no_verdict_but_a_time() {
    let (mut job, mut detector) = job(true, 1);
    steps(&mut job, &mut detector, 300, healthy);
    assert_eq!(paces(&detector), [Pace::Unknown]);
    assert_eq!(see(&detector, 0).sample_time_short, Some(HEALTHY));
    assert_eq!(see(&detector, 0).slowness_ratio, None);
}

/// Trap: in step, all have the same batch time.
#[test]
fn the_barrier_hides_no_straggler() {
    let (mut job, mut detector) = job(true, 4);
    let mut walls = Vec::new();
    for _ in 0..30 {
        for report in job.next(slow(2, 3.0)) {
            walls.push(report.compute + report.barrier_wait);
            detector.report(job.now, &report);
        }
    }
    assert!(walls.iter().all(|wall| *wall == walls[0]), "nobody looks slow by batch time");
    assert_eq!(paces(&detector), [Pace::Normal, Pace::Normal, TRANSIENT, Pace::Normal]);
}

/// Trap: after a rebalancing all compute for the same time.
#[test]
fn new_batch_sizes_hide_no_straggler() {
    let (mut job, mut detector) = job(true, 4);
    steps(&mut job, &mut detector, 30, slow(3, 4.0));
    job.plan = PlanVersion(2);
    for (worker, size) in job.workers.iter_mut().zip([80, 80, 80, 20]) {
        worker.batch_size = size;
    }
    for _ in 0..30 {
        let reports = job.next(slow(3, 4.0));
        assert!(reports.iter().all(|report| report.compute == reports[0].compute));
        for report in reports {
            detector.report(job.now, &report);
        }
    }
    assert_eq!(paces(&detector), [Pace::Normal, Pace::Normal, Pace::Normal, TRANSIENT]);
    assert_eq!(see(&detector, 3).sample_time_short, Some(HEALTHY * 4));
}

#[test]
fn a_plan_may_rest_on_numbers_from_after_the_last_plan_only() {
    let (mut job, mut detector) = job(true, 4);
    steps(&mut job, &mut detector, 9, slow(3, 4.0));
    assert_eq!(see(&detector, 3).sample_time_short, None, "5 of warm-up and 4");
    steps(&mut job, &mut detector, 1, slow(3, 4.0));
    assert_eq!(see(&detector, 3).sample_time_short, Some(HEALTHY * 4), "10 batches into the job");
    steps(&mut job, &mut detector, 20, slow(3, 4.0));
    job.plan = PlanVersion(2);
    steps(&mut job, &mut detector, 9, slow(3, 4.0));
    assert_eq!(see(&detector, 3).sample_time_short, None);
    assert_eq!(see(&detector, 3).sample_time_long, Some(HEALTHY * 4), "the long window goes on");
    assert_eq!(see(&detector, 3).pace, TRANSIENT, "and so does the verdict");
    steps(&mut job, &mut detector, 1, slow(3, 4.0));
    assert_eq!(see(&detector, 3).sample_time_short, Some(HEALTHY * 4));
}

#[test]
fn a_change_is_noticed_within_fifteen_batches_and_told_once() {
    let (mut job, mut detector) = job(true, 4);
    steps(&mut job, &mut detector, 50, healthy);
    while detector.poll_effect().is_some() {}
    steps(&mut job, &mut detector, 16, slow(1, 4.0));
    let holder = job.holder(1);
    let changed =
        |from, to, ratio| MonitorEffect::PaceChanged { holder, from, to, slowness_ratio: Some(ratio) };
    assert_eq!(detector.poll_effect(), Some(changed(Pace::Normal, TRANSIENT, 4.0)));
    assert_eq!(detector.poll_effect(), None);
    steps(&mut job, &mut detector, 100, slow(1, 4.0));
    assert_eq!(detector.poll_effect(), None);
    steps(&mut job, &mut detector, 16, healthy);
    assert_eq!(detector.poll_effect(), Some(changed(TRANSIENT, Pace::Normal, 1.0)));
}

#[test]
fn slow_through_the_long_window_is_persistent_until_it_recovers() {
    let (mut job, mut detector) = job(true, 4);
    steps(&mut job, &mut detector, 170, slow(3, 2.0));
    assert_eq!(see(&detector, 3).pace, TRANSIENT, "not yet four fifths of 200 batches");
    steps(&mut job, &mut detector, 30, slow(3, 2.0));
    assert_eq!(see(&detector, 3).pace, PERSISTENT);
    assert!(see(&detector, 3).slow_fraction_long >= 0.8);
    // It recovers: the long window must not keep it on the list of those to be restarted.
    steps(&mut job, &mut detector, 16, healthy);
    assert_eq!(see(&detector, 3).pace, Pace::Normal);
}

#[test]
fn a_burst_of_half_the_long_window_is_not_persistent() {
    let (mut job, mut detector) = job(true, 4);
    steps(&mut job, &mut detector, 300, healthy);
    steps(&mut job, &mut detector, 100, slow(3, 10.0));
    assert_eq!(see(&detector, 3).pace, TRANSIENT, "half of the long window");
}

#[test]
fn the_same_job_with_steps_of_30_s_is_judged_alike() {
    let run = |sample_time: Duration| {
        let mut job = SyntheticJob::new(true, 64, &[sample_time; 4]);
        let mut detector = detector();
        job.join_all(&mut detector);
        let mut history = Vec::new();
        for step in 0..400 {
            steps(&mut job, &mut detector, 1, slow(3, if step < 300 { 2.0 } else { 1.0 }));
            history.push(paces(&detector));
        }
        history
    };
    assert_eq!(run(HEALTHY), run(Duration::from_millis(470)));
}

#[test]
fn asynchronous_workers_are_judged_over_the_same_time() {
    let (mut job, mut detector) = job(false, 4);
    job.run(&mut detector, at(Duration::from_secs(4)), slow(3, 4.0));
    assert_eq!(paces(&detector), [Pace::Normal, Pace::Normal, Pace::Normal, TRANSIENT]);
    job.run(&mut detector, at(Duration::from_secs(24)), slow(3, 4.0));
    assert_eq!(see(&detector, 3).pace, PERSISTENT);
    // 3 of 800 samples a second, and one of a quarter of it.
    let rate = detector.samples_per_second();
    assert!((rate - 2600.0).abs() < 1.0, "{rate}");
}

#[test]
fn the_rate_of_a_synchronous_job_is_its_global_batch_over_its_step() {
    let (mut job, mut detector) = job(true, 4);
    steps(&mut job, &mut detector, 50, slow(0, 2.0));
    let rate = detector.samples_per_second();
    assert!((rate - 256.0 / 0.160).abs() < 1e-6, "{rate}");
}

#[test]
fn a_slow_device_class_is_slow_hardware_and_judged_within_itself() {
    let mut job = SyntheticJob::new(true, 64, &[HEALTHY, HEALTHY, HEALTHY * 3, HEALTHY * 3, HEALTHY * 9]);
    for worker in &mut job.workers[2..] {
        worker.device = DeviceClass("old".into());
    }
    let mut detector = detector();
    job.join_all(&mut detector);
    steps(&mut job, &mut detector, 250, healthy);
    let hardware = Pace::Straggler(StragglerKind::Deterministic);
    assert_eq!(paces(&detector), [Pace::Normal, Pace::Normal, hardware, hardware, PERSISTENT]);
    assert_eq!(see(&detector, 2).slowness_ratio, Some(1.0), "like its own class");
    assert_eq!(see(&detector, 4).slowness_ratio, Some(3.0));
}

#[test]
fn a_new_life_starts_from_nothing() {
    let (mut job, mut detector) = job(true, 4);
    steps(&mut job, &mut detector, 250, slow(3, 4.0));
    assert_eq!(see(&detector, 3).pace, PERSISTENT);
    job.workers[3].incarnation = Incarnation(1);
    job.join(&mut detector, 3);
    let seen = see(&detector, 3);
    assert_eq!((seen.incarnation, seen.pace, seen.sample_time_long), (Incarnation(1), Pace::Unknown, None));
    assert_eq!(seen.slow_fraction_long, 0.0);
    steps(&mut job, &mut detector, 30, healthy);
    assert_eq!(see(&detector, 3).pace, Pace::Normal);
}

fn report(holder: Holder, sequence: u64) -> BatchReport {
    BatchReport {
        holder,
        sequence,
        iteration: Iteration(sequence),
        plan: PlanVersion(1),
        phase: Phase::Train,
        samples: 64,
        micro_batches: 1,
        data_wait: Duration::ZERO,
        compute: ms(80),
        communicate: Duration::ZERO,
        barrier_wait: Duration::ZERO,
    }
}

#[test]
fn repeated_stale_and_false_reports_change_nothing() {
    let (mut job, mut detector) = job(true, 2);
    job.workers[1].incarnation = Incarnation(3);
    job.join(&mut detector, 1);
    let life = |incarnation| Holder::new(NodeId::worker(1), Incarnation(incarnation));
    let day = Duration::from_secs(25 * 3600);
    let cases = [
        (report(life(3), 5), ReportAnswer::Accepted),
        (report(life(3), 5), ReportAnswer::Repeated),
        (report(life(3), 4), ReportAnswer::Repeated),
        (report(life(2), 6), ReportAnswer::UnknownHolder),
        (report(life(4), 6), ReportAnswer::UnknownHolder),
        (report(Holder::new(NodeId::worker(9), Incarnation(0)), 1), ReportAnswer::UnknownHolder),
        (
            BatchReport { samples: 0, ..report(life(3), 6) },
            ReportAnswer::Malformed("compute time without samples"),
        ),
        (
            BatchReport { compute: Duration::ZERO, ..report(life(3), 6) },
            ReportAnswer::Malformed("samples without compute time"),
        ),
        (
            BatchReport { data_wait: day, ..report(life(3), 6) },
            ReportAnswer::Malformed("a part of the batch took longer than a day"),
        ),
        (BatchReport { samples: 0, compute: Duration::ZERO, ..report(life(3), 6) }, ReportAnswer::Accepted),
    ];
    for (report, expected) in cases {
        assert_eq!(detector.report(at(ms(1)), &report), expected, "{report:?}");
    }
}

#[test]
fn only_training_is_judged() {
    let (mut job, mut detector) = job(true, 3);
    for _ in 0..40 {
        for mut report in job.next(slow(2, 9.0)) {
            report.phase = Phase::Evaluate;
            detector.report(job.now, &report);
        }
    }
    assert_eq!(see(&detector, 2).sample_time_short, None);
    assert!(see(&detector, 2).last_report_age.is_some(), "but it was heard of");
    steps(&mut job, &mut detector, 30, healthy);
    assert_eq!(paces(&detector), [Pace::Normal; 3]);
    // A batch beside which a checkpoint is written, and one that stood still for it.
    for _ in 0..40 {
        for mut report in job.next(slow(2, 9.0)) {
            if report.holder.node.index == 2 {
                report.phase = Phase::Checkpoint;
            }
            assert_eq!(detector.report(job.now, &report), ReportAnswer::Accepted);
        }
    }
    assert_eq!(detector.stragglers().next(), None);
    steps(&mut job, &mut detector, 40, slow(2, 9.0));
    assert!(paces(&detector)[2].is_straggler(), "and only those");
    let stood = BatchReport { samples: 0, phase: Phase::Checkpoint, ..report(job.holder(2), 1_000_000) };
    assert_eq!(detector.report(job.now, &stood), ReportAnswer::Accepted);
}

#[test]
fn a_warm_up_is_no_pace_but_one_of_the_batches_that_a_window_skips() {
    let warm = |factor: u32| {
        let (mut job, mut detector) = job(true, 3);
        for mut report in job.next(healthy) {
            report.phase = Phase::WarmUp;
            report.compute *= factor;
            assert_eq!(detector.report(job.now, &report), ReportAnswer::Accepted);
        }
        for _ in 0..9 {
            job.next(healthy).iter().for_each(|report| _ = detector.report(job.now, report));
        }
        detector
    };
    let (cold, usual) = (warm(50), warm(1));
    for worker in 0..3 {
        let [cold, usual] = [&cold, &usual].map(|detector| {
            let seen = see(detector, worker);
            (seen.sample_time_short, seen.estimate, seen.batch)
        });
        assert!(cold.0.is_some(), "5 of warm-up, the first among them, and 5");
        assert_eq!(cold, usual);
        assert_eq!(cold.2.map(|batch| batch.batches), Some(9));
    }
    assert_eq!(cold.steps(), usual.steps());
}

#[test]
fn a_late_registration_of_an_old_life_and_its_end_change_nothing() {
    let (mut job, mut detector) = job(true, 2);
    job.workers[1].incarnation = Incarnation(2);
    job.join(&mut detector, 1);
    let old = Holder::new(NodeId::worker(1), Incarnation(1));
    let info = NodeInfo { holder: old, ..job.info(1) };
    assert_eq!(detector.node_joined(JobTime::ZERO, &info), ReportAnswer::UnknownHolder);
    assert_eq!(detector.node_left(JobTime::ZERO, old), ReportAnswer::UnknownHolder);
    assert_eq!(see(&detector, 1).incarnation, Incarnation(2));
    assert_eq!(detector.node_left(JobTime::ZERO, job.holder(1)), ReportAnswer::Accepted);
    assert_eq!(detector.observe(JobTime::ZERO, NodeId::worker(1)), None);
}

#[test]
fn survivors_are_judged_on_after_a_loss() {
    let (mut job, mut detector) = job(true, 4);
    steps(&mut job, &mut detector, 30, healthy);
    detector.node_left(job.now, job.holder(3));
    job.workers.pop();
    steps(&mut job, &mut detector, 30, slow(0, 2.0));
    assert_eq!(paces(&detector), [TRANSIENT, Pace::Normal, Pace::Normal]);
}

#[test]
fn a_silent_node_is_late_and_then_silent_and_reports_are_signs_of_life() {
    let (job, mut detector) = job(true, 2);
    let second = Duration::from_secs(1);
    for t in 1..=30_u64 {
        detector.report(at(second * t as u32), &report(job.holder(1), t));
        while detector.deadline().is_some_and(|deadline| deadline <= at(second * t as u32)) {
            detector.on_deadline(at(second * t as u32));
        }
    }
    let effects: Vec<MonitorEffect> = std::iter::from_fn(|| detector.poll_effect()).collect();
    assert_eq!(effects, [MonitorEffect::Late(job.holder(0)), MonitorEffect::Silent(job.holder(0))]);
    assert_eq!(detector.heartbeat(at(second * 31), job.holder(1)), ReportAnswer::Accepted);
    assert_eq!(see(&detector, 0).liveness, Liveness::Lost);
}

/// Before a median is known, the longest of the first steps says how long a silence may be.
#[test]
fn a_node_that_falls_silent_after_its_first_steps_is_not_waited_for_as_if_nothing_were_known() {
    let liveness = LivenessConfig::following_steps(ms(500), ms(1250), ms(10_000));
    let lost_after = |batches: u64| {
        let config = MonitorConfig { liveness, ..MonitorConfig::default() };
        let mut detector = StragglerDetector::new(config).unwrap();
        let (job, _) = job(true, 2);
        job.join_all(&mut detector);
        for batch in 1..=batches {
            (0..2).for_each(|worker| {
                detector.report(JobTime::ZERO, &report(job.holder(worker), batch));
            });
        }
        let mut now = JobTime::ZERO;
        while see(&detector, 0).liveness != Liveness::Lost {
            now = detector.deadline().unwrap();
            detector.on_deadline(now);
        }
        now.since(JobTime::ZERO)
    };
    assert_eq!(lost_after(2), ms(10_500));
    assert_eq!(lost_after(3), ms(1750));
}

#[test]
fn the_same_events_give_the_same_effects_through_the_machine() {
    let (mut job, mut direct) = job(true, 4);
    let mut machine = detector();
    for index in 0..4 {
        machine.handle(JobTime::ZERO, DetectorEvent::Joined(job.info(index)));
    }
    for _ in 0..100 {
        for report in job.next(slow(2, 3.0)) {
            assert_eq!(
                direct.report(job.now, &report),
                machine.handle(job.now, DetectorEvent::Report(report))
            );
            assert_eq!(direct.poll_effect(), machine.poll_effect());
        }
    }
    assert_eq!(paces(&direct), paces(&machine));
}

/// A rule that finds every worker slow.
#[derive(Debug)]
struct Strict;

impl PaceRule for Strict {
    fn is_slow(&self, _ratio: f64) -> bool {
        true
    }
    fn judge(&self, _evidence: &Evidence, _current: Pace) -> Pace {
        TRANSIENT
    }
}

#[test]
fn another_rule_can_be_put_in() {
    let (mut job, _) = job(true, 2);
    let config = MonitorConfig { rule: Rule::own("strict", Strict), ..MonitorConfig::default() };
    let mut detector = StragglerDetector::new(config).unwrap();
    job.join_all(&mut detector);
    steps(&mut job, &mut detector, 30, healthy);
    assert_eq!(paces(&detector), [TRANSIENT; 2]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Invariant 31: if all are equally slow, at any moment, no worker is a straggler.
    #[test]
    fn i31_a_slowdown_of_all_workers_makes_no_straggler(
        workers in 2_usize..9, factors in prop::collection::vec(1.0_f64..20.0, 10), synchronous in any::<bool>()
    ) {
        let (mut job, mut detector) = job(synchronous, workers);
        for factor in factors {
            steps(&mut job, &mut detector, 40, |_, _| factor);
            // In their own pace they meet a change at slightly different moments: judge what is in step.
            prop_assert!(!synchronous || detector.stragglers().next().is_none());
        }
        steps(&mut job, &mut detector, 40 * workers as u32, healthy);
        prop_assert!(detector.stragglers().next().is_none());
    }

    /// Invariant 31: the verdict does not depend on the batch sizes.
    #[test]
    fn i31_batch_sizes_do_not_change_the_verdict(
        sizes in prop::collection::vec(1_u32..500, 4), factors in prop::collection::vec(0.5_f64..5.0, 4)
    ) {
        let run = |sizes: &[u32]| {
            let (mut job, mut detector) = job(true, 4);
            for (worker, size) in job.workers.iter_mut().zip(sizes) {
                worker.batch_size = *size;
            }
            steps(&mut job, &mut detector, 220, |worker, _| factors[worker]);
            paces(&detector)
        };
        prop_assert_eq!(run(&sizes), run(&[64; 4]));
    }

    /// Invariant 31: one burst shorter than half the short window is not even transient, however slow.
    #[test]
    fn i31_a_burst_shorter_than_half_the_window_is_not_seen(
        before in 25_u32..80, length in 0_u32..=10, factor in 1.0_f64..100.0
    ) {
        let (mut job, mut detector) = job(true, 4);
        steps(&mut job, &mut detector, before, healthy);
        steps(&mut job, &mut detector, length, slow(1, factor));
        for _ in 0..60 {
            steps(&mut job, &mut detector, 1, healthy);
            prop_assert_eq!(detector.stragglers().next(), None);
        }
    }

    /// Invariant 31: a persistent node was slow in four fifths of the long window; one burst that is shorter, or two
    /// that are together, are not enough, wherever they are.
    #[test]
    fn i31_persistent_needs_four_fifths_of_the_long_window(
        before in 0_u32..250, first in 0_u32..=150, share in 0.0_f64..1.0, gap in 20_u32..50
    ) {
        let second = ((150 - first) as f64 * share) as u32;
        let (mut job, mut detector) = job(true, 4);
        let parts = [(before, 1.0), (first, 6.0), (gap, 1.0), (second, 6.0), (50, 1.0)];
        for (count, factor) in parts {
            for _ in 0..count {
                steps(&mut job, &mut detector, 1, slow(2, factor));
                prop_assert!(see(&detector, 2).pace != PERSISTENT);
            }
        }
    }

    /// The result does not depend on the places of workers.
    #[test]
    fn a_permutation_of_the_workers_permutes_the_verdicts(
        factors in prop::collection::vec(0.5_f64..5.0, 2..8), seed in any::<u64>()
    ) {
        let run = |factors: &[f64]| {
            let (mut job, mut detector) = job(true, factors.len());
            steps(&mut job, &mut detector, 220, |worker, _| factors[worker]);
            paces(&detector)
        };
        let mut order: Vec<usize> = (0..factors.len()).collect();
        let mut rng = Seed(seed).rng();
        order.sort_by_cached_key(|_| rng.next_u64());
        let permuted: Vec<f64> = order.iter().map(|index| factors[*index]).collect();
        let verdicts = run(&factors);
        let expected: Vec<Pace> = order.iter().map(|index| verdicts[*index]).collect();
        prop_assert_eq!(run(&permuted), expected);
    }
}

/// Replays a public series: `t_s,worker,slowdown`, constant between samples. Calls `check` after every step.
/// `None` if the data are not there.
fn replay(name: &str, step: Duration, mut check: impl FnMut(&StragglerDetector, &[f64])) -> Option<()> {
    let path =
        std::env::var_os("ANTDT_DATA").map(|data| PathBuf::from(data).join("slowdown_series").join(name));
    let Some(file) = path.and_then(|path| std::fs::File::open(path).ok()) else {
        println!("skipped: set ANTDT_DATA to a folder that has slowdown_series/{name}");
        return None;
    };
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    let mut series: BTreeMap<u64, BTreeMap<usize, f64>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let milliseconds = (fields[0].parse::<f64>().unwrap() * 1000.0) as u64;
        series
            .entry(milliseconds)
            .or_default()
            .insert(fields[1].parse().unwrap(), fields[2].parse().unwrap());
    }
    let workers = series.values().next().unwrap().len();
    let end = at(ms(*series.keys().next_back().unwrap()));
    let mut job = SyntheticJob::new(true, 64, &vec![step / 64; workers]);
    let mut detector = detector();
    job.join_all(&mut detector);
    let mut now = vec![1.0; workers];
    while job.now < end {
        let elapsed = u64::try_from(job.now.since_start().as_millis()).unwrap();
        if let Some((_, row)) = series.range(..=elapsed).next_back() {
            for (worker, slowdown) in row {
                now[*worker] = *slowdown;
            }
        }
        steps(&mut job, &mut detector, 1, |worker, _| now[worker]);
        check(&detector, &now);
    }
    Some(())
}

#[test]
fn of_a_public_job_only_the_worker_with_the_burst_is_found_and_never_as_persistent() {
    let mut found: BTreeMap<NodeId, u32> = BTreeMap::new();
    let mut worst = (0, 0.0_f64);
    let replayed = replay("alibaba_job1.csv.gz", ms(500), |detector, now| {
        for (node, kind) in detector.stragglers() {
            assert_eq!(kind, StragglerKind::Transient);
            *found.entry(node).or_default() += 1;
        }
        for (worker, slowdown) in now.iter().enumerate() {
            if *slowdown > worst.1 {
                worst = (worker as u32, *slowdown);
            }
        }
    });
    if replayed.is_some() {
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [NodeId::worker(worst.0)], "{found:?}");
    }
}

#[test]
fn in_a_public_job_without_stragglers_none_is_found() {
    replay("bytedance_ST.csv.gz", ms(200), |detector, _| assert_eq!(detector.stragglers().next(), None));
}
