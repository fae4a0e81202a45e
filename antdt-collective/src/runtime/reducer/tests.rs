use std::sync::Barrier;
use std::thread;

use antdt_core::Seed;

use super::*;
use crate::runtime::testing::{self, CountTransport, holder, mem_members, tcp_members};
use crate::{CommunicatorConfig, Compression, MemTransport, ScheduledCommunicator, TopK, Transport};

type Members<T> = Vec<Reducer<ScheduledCommunicator<T>>>;

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn started<T: Transport + 'static>((transports, aborts): testing::Members<T>, plan: &Buckets) -> Members<T> {
    let start = |(transport, abort)| {
        let communicator = ScheduledCommunicator::new(transport, CommunicatorConfig::default());
        Reducer::new(communicator, plan.clone(), abort).unwrap()
    };
    transports.into_iter().zip(aborts).map(start).collect()
}

fn reducers(world: u32, plan: &Buckets) -> Members<MemTransport> {
    started(mem_members(world), plan)
}

/// Runs `work` on all members at once; results by rank.
fn on_all<T: Transport + 'static, R: Send>(
    members: Members<T>,
    work: impl Fn(u32, Reducer<ScheduledCommunicator<T>>) -> R + Sync,
) -> Vec<R> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..).zip(members).map(|(rank, member)| scope.spawn(move || work(rank, member))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn layer_len(layer: usize) -> usize {
    [5, 0, 3, 100, 1, 7, 64, 2][layer]
}

const LAYERS: usize = 8;

fn gradient(rank: u32, step: u64, layer: usize) -> Vec<f32> {
    let mut rng = Seed(u64::from(rank)).derive_number(step).derive_number(layer as u64).rng();
    (0..layer_len(layer)).map(|_| (rng.normal() * 100.0).round() as f32).collect()
}

#[test]
fn layers_that_come_in_any_order_get_the_sums_of_their_own_step() {
    let lens: Vec<usize> = (0..LAYERS).map(layer_len).collect();
    for (bucket_bytes, first) in [(0, 0), (40, 8), (400, 4), (1 << 20, 1 << 20)] {
        let plan = Buckets::plan(&lens, bucket_bytes, first);
        on_all(reducers(3, &plan), |me, mut reducer| {
            for step in 0..4 {
                let mut order: Vec<usize> = (0..LAYERS).collect();
                order.sort_by_key(|layer| {
                    Seed(u64::from(me)).derive_number(step).derive_number(*layer as u64).0
                });
                for layer in &order {
                    reducer.submit(*layer, &gradient(me, step, *layer)).unwrap();
                }
                // Sums may be waited for before or after the end of the step.
                let early = order.iter().filter(|layer| **layer % 2 == 1);
                early.for_each(|layer| check(&mut reducer, *layer, step));
                reducer.finish(later()).unwrap();
                order.iter().for_each(|layer| check(&mut reducer, *layer, step));
            }
            reducer.into_parts().unwrap().communicator.barrier().unwrap();
        });
    }
}

fn check<C: Communicator + 'static>(reducer: &mut Reducer<C>, layer: usize, step: u64) {
    let all = [0, 1, 2].map(|rank| gradient(rank, step, layer));
    let expected: Vec<f32> = (0..layer_len(layer)).map(|i| all.iter().map(|g| g[i]).sum()).collect();
    assert_eq!(reducer.wait(layer, later()).unwrap(), expected, "layer {layer} of step {step}");
}

#[test]
fn buckets_are_registered_once_and_sent_from_there_in_every_step() {
    const LEN: usize = 100_000;
    let plan = &Buckets::plan(&[LEN, 10, LEN, 0, LEN], 600_000, 0);
    let buckets = plan.buckets().iter().filter(|bucket| bucket.len > 0).count() as u64;
    let (transports, aborts) = tcp_members(2);
    thread::scope(|scope| {
        for (transport, abort) in transports.into_iter().zip(aborts) {
            scope.spawn(move || {
                let (transport, traffic) = CountTransport::new(transport);
                let communicator = ScheduledCommunicator::new(transport, CommunicatorConfig::default());
                let mut reducer = Reducer::new(communicator, plan.clone(), abort.clone()).unwrap();
                for step in 0..6 {
                    for (layer, len) in plan.layer_lens().iter().enumerate().rev() {
                        reducer.submit(layer, &vec![step as f32; *len]).unwrap();
                    }
                    reducer.finish(later()).unwrap();
                    let sums = reducer.wait(0, later()).unwrap();
                    assert!(
                        sums.len() == LEN && sums.iter().all(|sum| *sum == 2.0 * step as f32),
                        "step {step}"
                    );
                    // A training loop makes a reducer for each step.
                    reducer =
                        Reducer::resume(reducer.into_parts().unwrap(), plan.clone(), abort.clone()).unwrap();
                    assert_eq!(traffic.regions(), 2 * buckets, "operand and result of each, in step {step}");
                }
                assert!(traffic.bytes() > 6 * 4 * 3 * LEN as u64);
                assert_eq!(traffic.copied_bytes(), 0, "all was sent from where it lay");
            });
        }
    });
}

#[test]
fn a_gradient_that_does_not_fit_is_refused_and_the_step_goes_on() {
    on_all(reducers(2, &Buckets::plan(&[3, 4], 0, 0)), |_, mut reducer| {
        reducer.submit(0, &[1.0; 3]).unwrap();
        assert_eq!(reducer.submit(0, &[7.0; 3]), Err(BucketError::Twice { layer: 0 }.into()));
        let length = BucketError::Length { layer: 1, got: 3, expected: 4 };
        assert_eq!(reducer.submit(1, &[1.0; 3]), Err(length.into()));
        let unknown = BucketError::Unknown { layer: 2, layers: 2 };
        assert_eq!(reducer.submit(2, &[]), Err(unknown.clone().into()));
        assert_eq!(reducer.wait(2, later()), Err(unknown.into()));
        reducer.submit(1, &[1.0; 4]).unwrap();
        reducer.finish(later()).unwrap();
        assert_eq!(reducer.wait(0, later()).unwrap(), [2.0; 3]);
    });
}

#[test]
fn a_lost_members_bucket_fails_and_so_does_every_bucket_after_it() {
    let plan = Buckets::plan(&[2, 2, 2], 0, 0);
    lose(started(mem_members(3), &plan));
    lose(started(tcp_members(3), &plan));
}

fn lose<T: Transport + 'static>(members: Members<T>) {
    // A call may fail on one member after it succeeded on another, so the first bucket is over on all before one goes.
    let over = Barrier::new(members.len());
    on_all(members, |me, mut reducer| {
        reducer.submit(2, &[1.0; 2]).unwrap();
        assert_eq!(reducer.wait(2, later()).unwrap(), [3.0; 2]);
        over.wait();
        if me == 0 {
            return;
        }
        let named = |result: Result<&[f32], ReducerError>| match result {
            Err(ReducerError::Collective(error)) => assert_eq!(error.culprit(), Some(holder(0)), "{error}"),
            other => panic!("{other:?}"),
        };
        // Layer 0 has come, but its bucket is behind the one that fails.
        reducer.submit(0, &[1.0; 2]).unwrap();
        reducer.submit(1, &[1.0; 2]).unwrap();
        named(reducer.wait(1, later()));
        named(reducer.wait(0, later()));
        assert!(matches!(reducer.finish(later()), Err(ReducerError::Collective(_))));
        assert!(matches!(reducer.submit(2, &[1.0; 2]), Err(ReducerError::Collective(_))));
        assert_eq!(reducer.wait(2, later()).unwrap(), [3.0; 2], "what was reduced before stays");
        reducer.into_parts().unwrap();
    });
}

#[test]
fn a_step_without_all_layers_names_them_and_fails_on_all_members() {
    let plan = Buckets::plan(&[2, 2, 2], 1000, 0);
    forget(started(mem_members(2), &plan));
    forget(started(tcp_members(2), &plan));
}

fn forget<T: Transport + 'static>(members: Members<T>) {
    let over = Barrier::new(members.len());
    on_all(members, |me, mut reducer| {
        reducer.submit(2, &[1.0; 2]).unwrap();
        reducer.submit(1, &[1.0; 2]).unwrap();
        assert_eq!(reducer.wait(2, later()).unwrap(), [2.0; 2]);
        over.wait();
        if me == 0 {
            let missing = ReducerError::Bucket(BucketError::Missing { layers: vec![0] });
            assert_eq!(reducer.wait(1, later()).unwrap_err(), missing);
            assert_eq!(reducer.finish(later()), Err(missing));
            assert!(matches!(reducer.submit(0, &[1.0; 2]), Err(ReducerError::Collective(_))));
        } else {
            reducer.submit(0, &[1.0; 2]).unwrap();
        }
        let error = reducer.wait(1, later()).unwrap_err().to_string();
        assert!(error.contains("layers [0] never came"), "{me}: {error}");
    });
}

#[test]
fn a_deadline_passes_and_the_step_can_still_be_finished() {
    let (started, over) = (&Barrier::new(2), &Barrier::new(2));
    on_all(reducers(2, &Buckets::plan(&[2, 2], 1000, 1000)), |me, mut reducer| {
        reducer.submit(1, &[1.0; 2]).unwrap();
        if me == 0 {
            reducer.submit(0, &[1.0; 2]).unwrap();
            // The other member's bucket is not full.
            let late = |result: Result<(), ReducerError>, said: &str| {
                let error = result.unwrap_err();
                assert!(matches!(&error, ReducerError::Timeout { what, .. } if what == said), "{error}");
            };
            late(reducer.wait(1, Instant::now()).map(drop), "layer 1");
            late(reducer.finish(Instant::now()), "the step");
            started.wait();
        } else {
            started.wait();
            reducer.submit(0, &[1.0; 2]).unwrap();
        }
        reducer.finish(later()).unwrap();
        assert_eq!(reducer.wait(0, later()).unwrap(), [2.0; 2]);
        over.wait();
    });
}

#[test]
fn dropping_the_reducer_ends_a_call_that_waits_for_another_member() {
    let mut members = reducers(2, &Buckets::plan(&[2], 0, 0));
    members[0].submit(0, &[1.0; 2]).unwrap();
    // Joins the thread: it would wait for member 1 for the whole of the communicator's deadline.
    drop(members.remove(0));
    members[0].submit(0, &[1.0; 2]).unwrap();
    let error = members[0].wait(0, later()).unwrap_err();
    assert!(error.to_string().contains("dropped") || error.to_string().contains("closed"), "{error}");
}

#[test]
fn dropping_the_reducer_in_the_middle_of_a_bucket_tells_the_others() {
    let mut members = reducers(2, &Buckets::plan(&[2, 2], 1000, 1000));
    members[0].submit(1, &[1.0; 2]).unwrap();
    for layer in [1, 0] {
        members[1].submit(layer, &[1.0; 2]).unwrap();
    }
    drop(members.remove(0));
    let error = members[0].wait(0, later()).unwrap_err();
    assert!(error.to_string().contains("dropped"), "{error}");
}

#[test]
fn each_bucket_needs_its_own_compressor() {
    let (mut transports, mut aborts) = mem_members(1);
    let communicator = ScheduledCommunicator::new(transports.remove(0), CommunicatorConfig::default());
    let compressors = vec![Compressor::new(Compression::Bf16); 2];
    let parts = ReducerParts { communicator, compressors, memory: BucketMemory::default() };
    let refused = Reducer::resume(parts, Buckets::plan(&[1], 0, 0), aborts.remove(0));
    assert!(refused.unwrap_err().to_string().contains("2 compressors for 1 buckets"));
}

#[test]
fn residuals_of_compressed_buckets_come_back_with_them() {
    let lens: Vec<usize> = (0..LAYERS).map(layer_len).collect();
    let plan = Buckets::plan(&lens, 40, 8);
    let form = Compression::TopK(TopK::new(0.1).unwrap());
    let compressors = vec![Compressor::new(form); plan.buckets().len()];
    let (transports, aborts) = mem_members(3);
    let start = |(transport, abort)| {
        let communicator = ScheduledCommunicator::new(transport, CommunicatorConfig::default());
        let memory = BucketMemory::default();
        let parts = ReducerParts { communicator, compressors: compressors.clone(), memory };
        Reducer::resume(parts, plan.clone(), abort).unwrap()
    };
    let results = on_all(transports.into_iter().zip(aborts).map(start).collect(), |me, mut reducer| {
        let mut received: Vec<Vec<f32>> = lens.iter().map(|len| vec![0.0; *len]).collect();
        for step in 0..3 {
            for layer in 0..LAYERS {
                reducer.submit(layer, &gradient(me, step, layer)).unwrap();
            }
            reducer.finish(later()).unwrap();
            for (layer, sums) in received.iter_mut().enumerate() {
                let reduced = reducer.wait(layer, later()).unwrap();
                sums.iter_mut().zip(reduced).for_each(|(sum, value)| *sum += value);
            }
        }
        (received, reducer.into_parts().unwrap().compressors)
    });
    for (index, bucket) in plan.buckets().iter().enumerate() {
        for (layer, span) in &bucket.layers {
            for i in 0..span.len {
                let kept: f32 =
                    results.iter().map(|(_, all)| all[index].feedback().residual()[span.start + i]).sum();
                let exact: f32 =
                    (0..3).map(|me| (0..3).map(|step| gradient(me, step, *layer)[i]).sum::<f32>()).sum();
                // Whole numbers: nothing is rounded.
                assert_eq!(results[0].0[*layer][i] + kept, exact, "value {i} of layer {layer}");
            }
        }
    }
    assert!(
        results.iter().any(|(_, all)| all.iter().any(|c| c.feedback().residual().iter().any(|v| *v != 0.0)))
    );
}

#[test]
fn a_copy_to_a_bucket_that_fails_ends_the_step_for_all() {
    let plan = Buckets::plan(&[2, 2], 0, 0);
    let over = Barrier::new(2);
    on_all(reducers(2, &plan), |me, mut reducer| {
        if me == 0 {
            let what = "the device failed".to_owned();
            let error = CollectiveError::Io { what, kind: std::io::ErrorKind::Other };
            let failed = reducer.submit_by(1, 2, |_| Err(error.clone()));
            assert_eq!(failed, Err(error.clone().into()));
            assert_eq!(reducer.submit(0, &[1.0; 2]), Err(error.into()));
            over.wait();
        } else {
            reducer.submit(1, &[1.0; 2]).unwrap();
            over.wait();
            // And not because it has waited in vain.
            assert!(matches!(reducer.wait(1, later()), Err(ReducerError::Collective(_))));
        }
    });
}
