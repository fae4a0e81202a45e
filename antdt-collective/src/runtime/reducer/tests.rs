use std::sync::Barrier;
use std::thread;

use antdt_core::Seed;

use super::*;
use crate::runtime::testing::{self, holder, mem_members, tcp_members};
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
                let handles: Vec<Handle> = order
                    .iter()
                    .map(|layer| reducer.submit(*layer, gradient(me, step, *layer)).unwrap())
                    .collect();
                // Handles may be waited for before or after the end of the step.
                let late = handles.into_iter().filter_map(|handle| {
                    if handle.layer() % 2 == 0 {
                        Some(handle)
                    } else {
                        check(handle, step);
                        None
                    }
                });
                let late: Vec<Handle> = late.collect();
                reducer.finish(later()).unwrap();
                late.into_iter().for_each(|handle| check(handle, step));
            }
            let (mut communicator, _) = reducer.into_parts().unwrap();
            communicator.barrier().unwrap();
        });
    }
}

fn check(handle: Handle, step: u64) {
    let layer = handle.layer();
    let all = [0, 1, 2].map(|rank| gradient(rank, step, layer));
    let expected: Vec<f32> = (0..layer_len(layer)).map(|i| all.iter().map(|g| g[i]).sum()).collect();
    assert_eq!(handle.wait(later()), Ok(expected), "layer {layer} of step {step}");
}

#[test]
fn results_come_back_in_the_memory_that_was_handed_over() {
    for bucket_bytes in [0, 1000] {
        on_all(reducers(2, &Buckets::plan(&[3, 4], bucket_bytes, bucket_bytes)), |_, mut reducer| {
            let gradients = [vec![1.0; 3], vec![2.0; 4]];
            let places = gradients.each_ref().map(|gradient| gradient.as_ptr() as usize);
            let handles: Vec<Handle> = (0..)
                .zip(gradients)
                .map(|(layer, gradient)| reducer.submit(layer, gradient).unwrap())
                .collect();
            for (handle, place) in handles.into_iter().zip(places) {
                let reduced = handle.wait(later()).unwrap();
                assert_eq!(reduced.as_ptr() as usize, place);
            }
        });
    }
}

#[test]
fn a_gradient_that_does_not_fit_is_refused_and_the_step_goes_on() {
    on_all(reducers(2, &Buckets::plan(&[3, 4], 0, 0)), |_, mut reducer| {
        let first = reducer.submit(0, vec![1.0; 3]).unwrap();
        let refused = |result: Result<Handle, ReducerError>| result.unwrap_err();
        assert_eq!(refused(reducer.submit(0, vec![1.0; 3])), BucketError::Twice { layer: 0 }.into());
        let length = BucketError::Length { layer: 1, got: 3, expected: 4 };
        assert_eq!(refused(reducer.submit(1, vec![1.0; 3])), length.into());
        assert_eq!(refused(reducer.submit(2, vec![])), BucketError::Unknown { layer: 2, layers: 2 }.into());
        reducer.submit(1, vec![1.0; 4]).unwrap();
        reducer.finish(later()).unwrap();
        assert_eq!(first.wait(later()), Ok(vec![2.0; 3]));
    });
}

#[test]
fn a_lost_members_bucket_fails_and_so_does_every_handle_after_it() {
    let plan = Buckets::plan(&[2, 2, 2], 0, 0);
    lose(started(mem_members(3), &plan));
    lose(started(tcp_members(3), &plan));
}

fn lose<T: Transport + 'static>(members: Members<T>) {
    // A call may fail on one member after it succeeded on another, so the first bucket is over on all before one goes.
    let over = Barrier::new(members.len());
    on_all(members, |me, mut reducer| {
        let last = reducer.submit(2, vec![1.0; 2]).unwrap();
        assert_eq!(last.wait(later()), Ok(vec![3.0; 2]));
        over.wait();
        if me == 0 {
            return;
        }
        let named = |result: Result<Vec<f32>, ReducerError>| match result {
            Err(ReducerError::Collective(error)) => assert_eq!(error.culprit(), Some(holder(0)), "{error}"),
            other => panic!("{other:?}"),
        };
        // Layer 0 has come, but its bucket is behind the one that fails.
        let behind = reducer.submit(0, vec![1.0; 2]).unwrap();
        named(reducer.submit(1, vec![1.0; 2]).unwrap().wait(later()));
        named(behind.wait(later()));
        assert!(matches!(reducer.finish(later()), Err(ReducerError::Collective(_))));
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
        let last = reducer.submit(2, vec![1.0; 2]).unwrap();
        let middle = reducer.submit(1, vec![1.0; 2]).unwrap();
        assert_eq!(last.wait(later()), Ok(vec![2.0; 2]));
        over.wait();
        if me == 0 {
            let missing = ReducerError::Bucket(BucketError::Missing { layers: vec![0] });
            assert_eq!(reducer.finish(later()), Err(missing));
            assert_eq!(reducer.submit(0, vec![1.0; 2]).unwrap_err(), ReducerError::Ended);
        } else {
            reducer.submit(0, vec![1.0; 2]).unwrap();
        }
        let error = middle.wait(later()).unwrap_err().to_string();
        assert!(error.contains("layers [0] never came"), "{me}: {error}");
    });
}

#[test]
fn a_deadline_passes_and_the_step_can_still_be_finished() {
    on_all(reducers(2, &Buckets::plan(&[2, 2], 1000, 1000)), |_, mut reducer| {
        let handle = reducer.submit(1, vec![1.0; 2]).unwrap();
        let error = handle.wait(Instant::now()).unwrap_err();
        assert!(matches!(&error, ReducerError::Timeout { what, .. } if what == "layer 1"), "{error}");
        let first = reducer.submit(0, vec![1.0; 2]).unwrap();
        // Passed already or just in time: the step is over either way after the second call.
        while reducer.finish(Instant::now()).is_err() {}
        assert_eq!(first.wait(later()), Ok(vec![2.0; 2]));
    });
}

#[test]
fn dropping_the_reducer_ends_a_call_that_waits_for_another_member() {
    let mut members = reducers(2, &Buckets::plan(&[2], 0, 0));
    let handle = members[0].submit(0, vec![1.0; 2]).unwrap();
    // Joins the thread: it would wait for member 1 for the whole of the communicator's deadline.
    drop(members.remove(0));
    let error = handle.wait(later()).unwrap_err();
    assert!(matches!(&error, ReducerError::Collective(CollectiveError::Aborted { .. })), "{error}");
    let error = members[0].submit(0, vec![1.0; 2]).unwrap().wait(later()).unwrap_err();
    assert!(error.to_string().contains("dropped") || error.to_string().contains("closed"), "{error}");
}

#[test]
fn each_bucket_needs_its_own_compressor() {
    let (mut transports, mut aborts) = mem_members(1);
    let communicator = ScheduledCommunicator::new(transports.remove(0), CommunicatorConfig::default());
    let refused = Reducer::compressed(communicator, Buckets::plan(&[1], 0, 0), Vec::new(), aborts.remove(0));
    assert!(refused.unwrap_err().to_string().contains("0 compressors for 1 buckets"));
}

#[test]
fn what_compressed_buckets_lost_comes_back_with_them() {
    let lens: Vec<usize> = (0..LAYERS).map(layer_len).collect();
    let plan = Buckets::plan(&lens, 40, 8);
    let form = Compression::TopK(TopK::new(0.1).unwrap());
    let compressors = vec![Compressor::new(form); plan.buckets().len()];
    let (transports, aborts) = mem_members(3);
    let start = |(transport, abort)| {
        let communicator = ScheduledCommunicator::new(transport, CommunicatorConfig::default());
        Reducer::compressed(communicator, plan.clone(), compressors.clone(), abort).unwrap()
    };
    let results = on_all(transports.into_iter().zip(aborts).map(start).collect(), |me, mut reducer| {
        let mut received: Vec<Vec<f32>> = lens.iter().map(|len| vec![0.0; *len]).collect();
        for step in 0..3 {
            let handles: Vec<Handle> =
                (0..LAYERS).map(|layer| reducer.submit(layer, gradient(me, step, layer)).unwrap()).collect();
            for (sums, handle) in received.iter_mut().zip(handles) {
                sums.iter_mut().zip(handle.wait(later()).unwrap()).for_each(|(sum, value)| *sum += value);
            }
            reducer.finish(later()).unwrap();
        }
        (received, reducer.into_parts().unwrap().1)
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
