use std::time::Duration;

use super::*;
use crate::runtime::testing::{mem_members, on_all};

const PATIENT: Duration = Duration::from_secs(60);

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

// Calls `work` on all members, with a configuration.
fn on_all_with<R: Send>(
    world: u32,
    config: CommunicatorConfig,
    work: impl Fn(Rank, &mut ScheduledCommunicator<crate::runtime::MemTransport>) -> R + Sync,
) -> Vec<R> {
    let (transports, _aborts) = mem_members(world);
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .map(Rank)
            .zip(transports)
            .map(|(me, transport)| {
                scope.spawn(move || work(me, &mut ScheduledCommunicator::new(transport, config)))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn a_mean_is_the_sum_divided_once_and_integers_have_none() {
    for world in 1..=5 {
        for choice in Choice::ALL {
            on_all_with(world, CommunicatorConfig::default(), |me, communicator| {
                let mut data = vec![0.1 + me.0 as f32, 7.25];
                communicator.all_reduce_by(choice, &mut data, ReduceOp::Mean).unwrap();
                let expected = 0.1 + (world - 1) as f32 / 2.0;
                assert!((data[0] - expected).abs() < 1e-5 && data[1] == 7.25, "{data:?}");
            });
        }
        let results = on_all_with(world, CommunicatorConfig::default(), |_, communicator| {
            communicator.all_reduce(&mut [1_i32], ReduceOp::Mean)
        });
        for result in results {
            assert!(matches!(result, Err(CollectiveError::Invalid { .. })), "{result:?}");
        }
    }
}

#[test]
fn in_place_into_another_place_and_in_a_buffer_are_the_same_reduction() {
    for world in 1..=5 {
        for choice in Choice::ALL {
            let config = CommunicatorConfig { algorithm: choice, ..CommunicatorConfig::default() };
            for len in [0, 1, 5, 300, 70_001] {
                on_all_with(world, config, |me, communicator| {
                    let data: Vec<f32> = (0..len).map(|i| 1.0 / (1 + i + me.0 as usize) as f32).collect();
                    let mut place = data.clone();
                    communicator.all_reduce(&mut place, ReduceOp::Sum).unwrap();
                    let mut into = vec![f32::NAN; len];
                    communicator.all_reduce_into(&data, &mut into, ReduceOp::Sum).unwrap();
                    let mut buffer = communicator.buffer(len).unwrap();
                    buffer.copy_from_slice(&data);
                    communicator.all_reduce_buffer(&mut buffer, ReduceOp::Sum).unwrap();
                    assert!(place == into && *buffer == place[..], "{choice}, {len} of {world}");
                });
            }
        }
    }
}

#[test]
fn blocks_reach_the_ranks_they_are_for() {
    for world in 1..=6 {
        on_all_with(world, CommunicatorConfig::default(), |me, communicator| {
            let n = world as usize;
            let block = |from: usize, to: usize| vec![(from * 16 + to) as u8; (from * 5 + to * 3) % 4 * 30];
            for root in 0..world {
                let gathered = communicator.gather_v(Rank(root), &block(me.0 as usize, 0)).unwrap();
                let expected: Vec<Vec<u8>> = (0..n).map(|from| block(from, 0)).collect();
                assert_eq!(gathered, if me.0 == root { expected.clone() } else { Vec::new() });
                let blocks = if me.0 == root { expected.clone() } else { Vec::new() };
                let mine = communicator.scatter_v(Rank(root), &blocks).unwrap();
                assert_eq!(mine, expected[me.0 as usize]);
            }
            let out: Vec<Vec<u8>> = (0..n).map(|to| block(me.0 as usize, to)).collect();
            let into = communicator.all_to_all_v(&out).unwrap();
            assert_eq!(into, (0..n).map(|from| block(from, me.0 as usize)).collect::<Vec<_>>());
            for len in [0, 1, n - 1, n + 1, 1000, 50_000] {
                let mut data: Vec<i64> = (0..len).map(|i| (i + me.0 as usize) as i64).collect();
                let part = communicator.reduce_scatter(&data, ReduceOp::Sum).unwrap();
                communicator.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                assert_eq!(part, data[split_even(len, n)[me.0 as usize].range()]);
            }
        });
    }
}

#[test]
fn a_wrong_number_of_blocks_fails_on_all_members() {
    let results = on_all_with(3, CommunicatorConfig::default(), |me, communicator| {
        communicator.all_to_all_v(&vec![vec![1]; if me.0 == 1 { 2 } else { 3 }])
    });
    assert!(results.iter().all(Result::is_err), "{results:?}");
    let results = on_all_with(3, CommunicatorConfig::default(), |_, communicator| {
        communicator.scatter_v(Rank(2), &[vec![1], vec![2]])
    });
    assert!(results.iter().all(Result::is_err), "{results:?}");
}

#[test]
fn a_fitted_model_is_the_same_on_all_members_and_makes_sense() {
    for world in 2..=4 {
        let costs = on_all_with(world, CommunicatorConfig::default(), |_, communicator| {
            let cost = communicator.fit().unwrap();
            // Everybody goes on alike.
            let mut data = vec![1.0_f32; 1000];
            communicator.all_reduce_by(Choice::Auto, &mut data, ReduceOp::Sum).unwrap();
            assert_eq!(data, vec![world as f32; 1000]);
            cost
        });
        let first = costs[0];
        assert!(costs.iter().all(|cost| *cost == first), "{costs:?}");
        for value in [first.alpha, first.bandwidth, first.gamma] {
            assert!(value.is_finite() && value > 0.0, "{first:?}");
        }
    }
}

#[test]
fn members_that_hold_an_open_result_take_it_over_if_one_of_them_did() {
    // The vote is the second gathering of a unanimous call by gathering: member 2 hears nobody's, the others hear all.
    use crate::outcome::Resolution;
    let config = CommunicatorConfig { unanimous: true, ..CommunicatorConfig::default() };
    let histories: Vec<History> = on_all_with(3, config, |me, communicator| {
        let mut data = [me.0 as f32; 100];
        communicator.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, [3.0; 100]);
        // As if the vote had not come.
        communicator.open = me.0 == 2;
        communicator.committed -= u64::from(me.0 == 2);
        std::mem::replace(communicator, ScheduledCommunicator::new(mem_members(1).0.remove(0), config))
            .leave()
            .1
    });
    let (transports, _aborts) = mem_members(3);
    std::thread::scope(|scope| {
        for (me, (transport, history)) in transports.into_iter().zip(histories).enumerate() {
            scope.spawn(move || {
                let (mut communicator, resolution) =
                    ScheduledCommunicator::join(transport, config, history).unwrap();
                let mut data = [me as f32; 100];
                if me == 2 {
                    assert_eq!(resolution, Resolution::Committed);
                    communicator.adopt(&mut data).unwrap();
                    assert_eq!(data, [3.0; 100]);
                } else {
                    assert_eq!(resolution, Resolution::Level);
                }
                assert!(communicator.adopt(&mut data).is_err(), "once, and only where it was open");
                communicator.all_reduce(&mut data, ReduceOp::Max).unwrap();
            });
        }
    });
}

#[test]
fn a_mean_to_which_nobody_adds_a_sample_leaves_the_data_as_they_were() {
    for world in 1..=4 {
        on_all(mem_members(world).0, PATIENT, |me, communicator| {
            let mut data = [f32::from_bits(0x7fc0_0001), me.0 as f32];
            let before = data.map(f32::to_bits);
            assert_eq!(communicator.weighted_mean(&mut data, 0.0), Ok(WeightedMean::NoWeight));
            assert_eq!(data.map(f32::to_bits), before);
        });
    }
}

#[test]
fn a_unanimous_call_counts_for_both_or_for_none_whatever_round_a_member_dies_before() {
    use crate::outcome::Resolution;
    use crate::runtime::testing::{Fault, FaultTransport, at_once};
    let config =
        CommunicatorConfig { unanimous: true, algorithm: Choice::Ring, ..CommunicatorConfig::default() };
    let mut resolutions = Vec::new();
    for rounds in 0.. {
        let members = (0_i64..).zip(mem_members(2).0);
        let mut results = at_once(members, |(me, transport)| {
            let rounds = if me == 1 { rounds } else { u64::MAX };
            let transport = FaultTransport::new(transport, Fault::Dies, rounds);
            let mut communicator = ScheduledCommunicator::new(transport, config);
            let mut data = [me; 5];
            let result = communicator.all_reduce(&mut data, ReduceOp::Sum);
            assert_eq!(data, [if result.is_ok() { 1 } else { me }; 5], "before round {rounds}");
            (result.is_ok(), communicator.leave().1)
        });
        let (_, (first, history)) = (results.pop(), results.swap_remove(0));
        let (_, resolution) =
            ScheduledCommunicator::join(mem_members(1).0.remove(0), config, history).unwrap();
        resolutions.push(resolution);
        if first {
            break;
        }
    }
    // Two rounds of the ring, and the vote, in which the result is held already.
    let [begins, gathers, votes, ends] = &resolutions[..] else { panic!("{resolutions:?}") };
    assert_eq!([begins, gathers, ends], [&Resolution::Level; 3]);
    assert_eq!(*votes, Resolution::RolledBack);
}
