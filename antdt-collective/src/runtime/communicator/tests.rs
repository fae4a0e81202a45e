use super::*;
use crate::runtime::testing::{check_transport, mem_members, on_all};

const PATIENT: Duration = Duration::from_secs(60);

#[test]
fn members_in_memory_conform() {
    check_transport(mem_members);
}

#[test]
fn a_wrong_weight_or_root_fails_on_all_members_and_changes_nothing() {
    for weight in [-1.0, f64::NAN, f64::INFINITY] {
        let results = on_all(mem_members(3).0, PATIENT, |me, communicator| {
            let mut data = [1.0_f32];
            let result = communicator.weighted_mean(&mut data, if me.0 == 1 { weight } else { 1.0 });
            assert_eq!(data, [1.0]);
            result
        });
        assert!(results.iter().all(Result::is_err), "{results:?}");
    }
    let results =
        on_all(mem_members(2).0, PATIENT, |_, communicator| communicator.broadcast(Rank(2), &mut Vec::new()));
    assert!(results.iter().all(Result::is_err));
}

#[test]
fn messages_longer_than_accepted_fail_on_all_members() {
    let (transports, _aborts) = mem_members(3);
    let config = CommunicatorConfig { bytes_max: 100, ..CommunicatorConfig::default() };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = transports
            .into_iter()
            .map(|transport| {
                scope.spawn(|| ScheduledCommunicator::new(transport, config).all_gather_v(&[0; 40]))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for result in results {
        let error = result.unwrap_err();
        assert!(error.to_string().contains("at most 100"), "{error}");
    }
}

#[test]
fn scaling_all_weights_changes_nothing_but_the_total() {
    let run = |factor: f64| {
        on_all(mem_members(4).0, PATIENT, |me, communicator| {
            let mut data: Vec<f32> = (0..5).map(|i| 1.0 / (1.0 + i as f32 + me.0 as f32)).collect();
            communicator.weighted_mean(&mut data, factor * f64::from(me.0 + 1)).unwrap();
            data
        })
    };
    let (once, scaled) = (run(1.0), run(1024.0));
    assert_eq!(once, scaled, "a power of two scales exactly");
    assert!(once.iter().all(|data| *data == once[0]));
}

#[test]
fn two_groups_that_run_at_the_same_time_do_not_meet() {
    std::thread::scope(|scope| {
        for value in [1.0_f64, 100.0] {
            scope.spawn(move || {
                let results = on_all(mem_members(3).0, PATIENT, |_, communicator| {
                    let mut data = [value; 50];
                    for _ in 0..5 {
                        communicator.all_reduce(&mut data, ReduceOp::Max).unwrap();
                    }
                    data
                });
                assert!(results.iter().all(|data| *data == [value; 50]));
            });
        }
    });
}
