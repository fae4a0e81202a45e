use antdt_core::{BatchView, Capabilities, StepView};

use super::*;
use crate::testing::quiet_view;

/// A device: its class, milliseconds of a micro-batch, microseconds of a sample, most samples of a micro-batch.
type Device = (&'static str, u64, u64, u32);

/// A cluster that takes exactly the time that its devices say, and does what the policy wants.
struct Cluster {
    devices: Vec<Device>,
    policy: Dedicated,
    view: ClusterView,
    /// Batches of each plan that was made, by worker: samples and micro-batches.
    plans: Vec<Vec<(u32, u32)>>,
}

impl Cluster {
    fn new(total: u32, devices: &[Device]) -> Self {
        let mut view = quiet_view(Capabilities::REPLICAS_IN_STEP, &vec![1000; devices.len()]);
        view.global_batch_size = total;
        view.plan = PlanVersion(0);
        for (worker, (class, _, _, most)) in view.workers.iter_mut().zip(devices) {
            worker.device = DeviceClass((*class).into());
            worker.batch_size_max = *most;
        }
        let mut cluster =
            Self { devices: devices.to_vec(), policy: Dedicated::default(), view, plans: Vec::new() };
        let seats = cluster.seats();
        let split = cluster.policy.split(total, &seats).unwrap();
        cluster.apply(&split);
        cluster
    }

    fn seats(&self) -> Vec<Seat> {
        self.view.live_workers().map(Seat::from).collect()
    }

    fn time(&self, index: usize, samples: u32, count: u32) -> Duration {
        let (_, fixed, per_sample, _) = self.devices[index];
        Duration::from_millis(fixed) * count + Duration::from_micros(per_sample) * samples
    }

    /// A plan is in force, and every worker has computed some batches under it.
    fn apply(&mut self, split: &Split) {
        self.view.plan = self.view.plan.next();
        let total: u32 = split.batch_sizes.values().sum();
        assert_eq!(total, self.view.global_batch_size);
        for worker in &mut self.view.workers {
            worker.batch_size = split.batch_sizes[&worker.id];
            worker.micro_batches = split.accumulation.get(&worker.id).copied().unwrap_or(1);
            let largest = worker.batch_size.div_ceil(worker.micro_batches);
            assert!(largest <= worker.batch_size_max, "{worker:?}");
        }
        self.plans.push(self.view.workers.iter().map(|w| (w.batch_size, w.micro_batches)).collect());
        self.compute();
    }

    fn compute(&mut self) {
        for index in 0..self.devices.len() {
            let worker = &self.view.workers[index];
            let (samples, micro_batches) = (worker.batch_size, worker.micro_batches);
            let compute = self.time(index, samples, micro_batches);
            self.view.workers[index].batch =
                Some(BatchView { plan: self.view.plan, samples, micro_batches, compute, batches: 5 });
        }
    }

    fn step(&self) -> Duration {
        let workers = self.view.workers.iter().enumerate();
        workers.map(|(index, w)| self.time(index, w.batch_size, w.micro_batches)).max().unwrap()
    }

    fn decide(&mut self) -> Decision {
        self.policy.decide(JobTime::ZERO, &self.view, &RestartBudget::default())
    }

    /// Lets the policy decide until it is content. The reason for that.
    fn settle(&mut self) -> Reason {
        for _ in 0..20 {
            let decision = self.decide();
            match decision.batch_sizes {
                Some(batch_sizes) => {
                    self.apply(&Split { batch_sizes, accumulation: decision.accumulation });
                }
                None => return decision.reasons[0].clone(),
            }
        }
        panic!("it never settles: {:?}", self.plans);
    }

    /// The least step time that the devices allow.
    fn best(&self) -> Duration {
        let share = |(index, (_, fixed, per_sample, most)): (usize, &Device)| Share {
            fixed: Duration::from_millis(*fixed),
            micro_batches_max: 16,
            ..Share::new(
                NodeId::worker(u32::try_from(index).unwrap()),
                Duration::from_micros(*per_sample),
                1,
                *most,
            )
        };
        let shares: Vec<Share> = self.devices.iter().enumerate().map(share).collect();
        apportion(self.view.global_batch_size, 1, &shares).unwrap().step_time
    }
}

/// Four fast devices and four slow ones.
fn mixed() -> Vec<Device> {
    [vec![("fast", 20, 2500, 128); 4], vec![("slow", 25, 6000, 96); 4]].concat()
}

#[test]
fn each_class_is_measured_at_doubled_sizes_and_then_the_step_is_the_shortest() {
    let mut cluster = Cluster::new(1024, &mixed());
    assert_eq!(cluster.settle(), Reason::Balanced);
    // 128 for each worker: 96 do not fit a slow device at once, so that it begins with two or more.
    let counts = |index: usize| cluster.plans.iter().map(|plan| plan[index].1).collect::<Vec<_>>();
    assert_eq!((counts(0), counts(4)), (vec![4, 2, 1, 2], vec![6, 3, 2, 1]));
    assert!(cluster.plans[..3].iter().flatten().all(|(samples, _)| *samples == 128), "{:?}", cluster.plans);
    let (best, step) = (cluster.best().as_secs_f64(), cluster.step().as_secs_f64());
    assert!(step <= best * 1.005, "{step} and {best}");
    assert!((best - 0.488).abs() < 0.001, "{best}");
}

#[test]
fn a_global_batch_that_does_not_fit_all_devices_at_once_is_computed_in_micro_batches_from_the_start() {
    let mut cluster = Cluster::new(200, &[("a", 1, 1000, 16), ("b", 1, 3000, 8)]);
    assert_eq!(cluster.plans[0].iter().map(|(samples, _)| samples).sum::<u32>(), 200);
    cluster.settle();
    let step = cluster.step().as_secs_f64();
    assert!(step <= cluster.best().as_secs_f64() * 1.02, "{step}: {:?}", cluster.plans);
}

#[test]
fn a_plan_states_its_promise_and_keeps_it() {
    let mut cluster = Cluster::new(768, &mixed());
    cluster.view.step = Some(StepView {
        plan: PlanVersion(1),
        steps: 9,
        time: Duration::from_secs(1),
        overhead: Duration::from_millis(7),
    });
    for _ in 0..3 {
        let decision = cluster.decide();
        let Some(batch_sizes) = decision.batch_sizes else { panic!("{decision:?}") };
        if let Some(forecast) = decision.forecast {
            let text = decision.reasons[0].to_string();
            assert!(text.starts_with("fast: 2 x 67, slow: 1 x 5"), "{text}");
            let without = (cluster.step() + Duration::from_millis(7)).as_secs_f64();
            assert!((forecast.without.as_secs_f64() / without - 1.0).abs() < 1e-6, "{forecast:?}");
            cluster.apply(&Split { batch_sizes, accumulation: decision.accumulation });
            let with = forecast.with.as_secs_f64();
            let step = (cluster.step() + Duration::from_millis(7)).as_secs_f64();
            assert!((with / step - 1.0).abs() < 0.001, "{with} and {step}");
            return;
        }
        cluster.apply(&Split { batch_sizes, accumulation: decision.accumulation });
    }
    panic!("no plan with a forecast: {:?}", cluster.plans);
}

#[test]
fn equal_devices_end_with_even_batches_at_once() {
    let mut cluster = Cluster::new(256, &[("cpu", 2, 1000, 256); 4]);
    assert_eq!(cluster.settle(), Reason::Balanced);
    assert_eq!(cluster.plans.last().unwrap()[..], [(64, 1); 4]);
    assert_eq!(cluster.plans.len(), 3, "no plan beside those of the profile: {:?}", cluster.plans);
}

#[test]
fn a_class_that_changes_its_speed_gets_other_batches_and_noise_changes_nothing() {
    let mut cluster = Cluster::new(1024, &mixed());
    cluster.settle();
    let plans = cluster.plans.len();
    for worker in 4..8 {
        cluster.devices[worker].2 = 6300;
    }
    cluster.compute();
    assert_eq!(cluster.settle(), Reason::Balanced);
    assert_eq!(cluster.plans.len(), plans, "5 % is within what a profile may be off");
    for worker in 4..8 {
        (cluster.devices[worker].1, cluster.devices[worker].2) = (50, 12_000);
    }
    cluster.compute();
    cluster.settle();
    assert!(cluster.plans.len() > plans);
    let (best, step) = (cluster.best().as_secs_f64(), cluster.step().as_secs_f64());
    assert!(step <= best * 1.03, "{step} and {best}");
}

#[test]
fn survivors_share_the_global_batch_by_the_profiles() {
    let mut cluster = Cluster::new(1024, &mixed());
    cluster.settle();
    let seats: Vec<Seat> = cluster.seats().into_iter().filter(|seat| seat.id.index != 0).collect();
    let split = cluster.policy.split(1024, &seats).unwrap();
    assert_eq!(split.batch_sizes.values().sum::<u32>(), 1024);
    let [fast, slow] = [1, 5].map(|index| split.batch_sizes[&NodeId::worker(index)]);
    assert!(fast > 2 * slow, "{split:?}");
    // A worker that was never seen is taken for a slow one until it is.
    let unknown = Seat { id: NodeId::worker(9), ..seats[0] };
    let split = cluster.policy.split(1024, &[&seats[..], &[unknown]].concat()).unwrap();
    assert!(split.batch_sizes[&unknown.id].abs_diff(split.batch_sizes[&NodeId::worker(5)]) <= 1, "{split:?}");
}

#[test]
fn too_few_batches_and_modes_without_a_common_step_change_nothing() {
    let mut cluster = Cluster::new(256, &[("cpu", 2, 1000, 256); 4]);
    cluster.view.workers[2].batch.as_mut().unwrap().batches = 4;
    let reason = |decision: Decision| decision.reasons[0].clone();
    assert_eq!(reason(cluster.decide()), Reason::NotEnoughData { known: 3, needed: 4 });
    cluster.view.workers[2].batch = None;
    assert_eq!(reason(cluster.decide()), Reason::NotEnoughData { known: 3, needed: 4 });
    cluster.view.mode = Capabilities::SERVERS_AT_OWN_PACE;
    let text = reason(cluster.decide()).to_string();
    assert_eq!(
        text,
        "workers that do not wait for each other keep their batch sizes and compute them at once"
    );
}

#[test]
fn a_line_is_found_through_its_points_and_parts_below_zero_are_none() {
    let fit = |points: &[(f64, f64)]| Profile { points: points.to_vec(), plans: 0 }.fit();
    let close = |cost: Option<Cost>, fixed: f64, per_sample: f64| {
        let cost = cost.unwrap();
        assert!((cost.fixed - fixed).abs() < 1e-9 && (cost.per_sample - per_sample).abs() < 1e-9, "{cost:?}");
    };
    assert_eq!(fit(&[]), None);
    close(fit(&[(16.0, 0.08)]), 0.0, 0.005);
    close(fit(&[(16.0, 0.06), (64.0, 0.18), (32.0, 0.1)]), 0.02, 0.0025);
    // A larger one that takes no longer; and one that takes more than in proportion.
    // The smaller one counts half, an octave from the newest.
    close(fit(&[(10.0, 1.0), (20.0, 1.0)]), 0.0, 25.0 / 450.0);
    assert_eq!(fit(&[(10.0, 1.0), (20.0, 4.0)]).unwrap().fixed, 0.0);
}

#[test]
fn a_size_that_is_measured_again_moves_the_whole_profile() {
    let mut profile = Profile::default();
    for size in [16.0, 32.0, 64.0] {
        profile.learn(size, 0.02 + 0.0025 * size);
    }
    // Twice as slow, at a size that was not measured before but near one that was.
    profile.learn(60.0, 2.0 * (0.02 + 0.0025 * 60.0));
    let cost = profile.fit().unwrap();
    assert!((cost.fixed - 0.04).abs() < 1e-6 && (cost.per_sample - 0.005).abs() < 1e-6, "{cost:?}");
    assert_eq!(profile.points.len(), 3);
}

#[test]
fn a_plan_that_turns_out_slower_gives_way_to_the_fastest_that_was_measured() {
    let mut cluster = Cluster::new(256, &[("a", 10, 1000, 256), ("a", 10, 1000, 256), ("b", 10, 4000, 256)]);
    cluster.settle();
    let fastest = cluster.plans.last().unwrap().clone();
    // As a poor line makes them.
    let slower = Split {
        batch_sizes: (0..3).map(NodeId::worker).zip([60, 60, 136]).collect(),
        accumulation: BTreeMap::new(),
    };
    cluster.policy.solved = SOLVED_MAX;
    cluster.apply(&slower);
    cluster.settle();
    assert_eq!(cluster.plans.last(), Some(&fastest), "{:?}", cluster.plans);
}
