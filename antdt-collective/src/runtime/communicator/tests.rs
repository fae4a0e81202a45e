use std::time::Duration;

use super::*;
use crate::runtime::region::{DeviceMemory, DevicePlace};
use crate::runtime::testing::{self, mem_members, on_all, shm_members};

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
    on_all(mem_members(2).0, PATIENT, |_, communicator| {
        let error = communicator.weighted_mean(&mut [1_i32], 1.0).unwrap_err();
        assert!(error.to_string().contains("a mean of i32"), "{error}");
    });
    let results =
        on_all(mem_members(2).0, PATIENT, |_, communicator| communicator.broadcast(Rank(2), &mut Vec::new()));
    assert!(results.iter().all(Result::is_err));
}

/// Memory that the host does not address, as that of a GPU is.
#[derive(Debug)]
struct Elsewhere {
    bytes: Vec<u8>,
    breaks: bool,
}

impl DeviceMemory for Elsewhere {
    fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn place(&self) -> DevicePlace {
        DevicePlace { gpu: 7, address: 1 << 40, stream: 0 }
    }

    fn read(&mut self, into: &mut [u8]) -> Result<(), CollectiveError> {
        if self.breaks {
            let kind = std::io::ErrorKind::Other;
            return Err(CollectiveError::Io { what: "an uncorrectable error of memory".to_owned(), kind });
        }
        into.copy_from_slice(&self.bytes);
        Ok(())
    }

    fn write(&mut self, from: &[u8]) -> Result<(), CollectiveError> {
        self.bytes.copy_from_slice(from);
        Ok(())
    }
}

fn elsewhere(values: &[f32], breaks: bool) -> Halves {
    let memory = |bytes| Region::on_device(Box::new(Elsewhere { bytes, breaks }));
    let bytes: Vec<u8> = bytemuck::cast_slice(values).to_vec();
    Halves::new(memory(bytes.clone()), memory(vec![0; bytes.len()]))
}

fn values_of(halves: &mut Halves) -> Vec<f32> {
    let mut bytes = vec![0; halves.len_bytes()];
    halves.device_parts().unwrap().0.read(&mut bytes).unwrap();
    bytemuck::pod_collect_to_vec(&bytes)
}

#[test]
fn memory_of_a_gpu_is_reduced_through_memory_of_the_transport() {
    for unanimous in [false, true] {
        for len in [3, 40_000] {
            let config = CommunicatorConfig { unanimous, ..CommunicatorConfig::default() };
            let results = testing::on_all_with(shm_members(3).0, config, |me, communicator| {
                let mut halves = elsewhere(&vec![me.0 as f32; len], false);
                assert!(halves.live().is_empty());
                for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max] {
                    communicator.all_reduce_halves(&mut halves, ElementType::F32, op).unwrap();
                }
                values_of(&mut halves)
            });
            assert!(results.iter().all(|values| *values == vec![3.0; len]), "{unanimous}, {len}");
        }
    }
}

#[test]
fn a_gpu_that_fails_ends_the_call_on_all_members() {
    let results = on_all(mem_members(3).0, PATIENT, |me, communicator| {
        let mut halves = elsewhere(&[1.0; 5], me.0 == 1);
        communicator.all_reduce_halves(&mut halves, ElementType::F32, ReduceOp::Sum)
    });
    assert!(results.iter().all(Result::is_err), "{results:?}");
    assert!(results[1].as_ref().unwrap_err().to_string().contains("an uncorrectable error"), "{results:?}");
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
            // All members go on alike.
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
    // The vote is the second gathering of a unanimous call by gathering, and the second after a ring's rounds: all hear it
    // but member 2, which breaks off when the others have its own.
    use crate::runtime::testing::{Fault, FaultTransport, at_once};
    for (algorithm, before) in [(Choice::Gather, 1), (Choice::Ring, 4)] {
        let config = CommunicatorConfig { unanimous: true, algorithm, ..CommunicatorConfig::default() };
        let members = (0_u32..).zip(mem_members(3).0);
        let histories: Vec<History> = at_once(members, |(me, transport)| {
            let rounds = if me == 2 { before } else { u64::MAX };
            let transport = FaultTransport::new(transport, Fault::DiesWithin, rounds);
            let mut communicator = ScheduledCommunicator::new(transport, config);
            let mut data = [me as f32; 100];
            assert_eq!(communicator.all_reduce(&mut data, ReduceOp::Sum).is_ok(), me != 2);
            assert_eq!(data, [if me == 2 { 2.0 } else { 3.0 }; 100]);
            if me == 2 {
                // A member that tries once more neither spoils its data nor the result that may count.
                assert!(communicator.all_reduce(&mut data, ReduceOp::Sum).is_err());
                assert!(communicator.weighted_mean(&mut data, 1.0).is_err());
                assert_eq!(data, [2.0; 100]);
            }
            communicator.leave().1
        });
        held_by_one(histories, config);
    }
}

// Forms the next group, in which member 2 learns what became of its call.
fn held_by_one(histories: Vec<History>, config: CommunicatorConfig) {
    use crate::outcome::Resolution;
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

const SLICED: [Choice; 3] = [Choice::Ring, Choice::HalvingDoubling, Choice::RecursiveDoubling];

// 8 bytes of each member in a slice: 2 elements of 4 bytes.
fn in_slices(algorithm: Choice) -> CommunicatorConfig {
    CommunicatorConfig { algorithm, slice: Some(8), ..CommunicatorConfig::default() }
}

#[test]
fn a_buffer_in_slices_is_reduced_like_a_whole_one_wherever_the_result_goes() {
    for (world, algorithm) in (2..=5).flat_map(|world| SLICED.map(|algorithm| (world, algorithm))) {
        let n = world as usize;
        for len in [2 * n - 1, 2 * n, 2 * n + 1, 7 * n + 3] {
            on_all_with(world, in_slices(algorithm), |me, communicator| {
                let mine: Vec<i32> = (0..len).map(|i| (i * 10 + me.0 as usize) as i32).collect();
                let sum = |i: usize| (n * i * 10 + n * (n - 1) / 2) as i32;
                let expected: Vec<i32> = (0..len).map(sum).collect();
                let (mut data, mut into) = (mine.clone(), vec![0; len]);
                communicator.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                assert_eq!(data, expected, "{algorithm}, {world} ranks");
                communicator.all_reduce_into(&mine, &mut into, ReduceOp::Sum).unwrap();
                assert_eq!(into, expected);
                let mut buffer = communicator.buffer(len).unwrap();
                buffer.copy_from_slice(&mine);
                communicator.all_reduce_buffer(&mut buffer, ReduceOp::Sum).unwrap();
                assert_eq!(*buffer, expected);
                let mut floats: Vec<f32> = mine.iter().map(|x| *x as f32).collect();
                communicator.weighted_mean(&mut floats, if me.0 == 1 { 2.0 } else { 0.0 }).unwrap();
                let of_member_1: Vec<f32> = (0..len).map(|i| (i * 10 + 1) as f32).collect();
                assert_eq!(floats, of_member_1);
                communicator.all_reduce(&mut floats, ReduceOp::Mean).unwrap();
                assert_eq!(floats, of_member_1);
            });
        }
    }
}

#[test]
fn a_call_that_breaks_off_in_any_round_of_any_slice_has_changed_nothing() {
    use crate::runtime::testing::{Fault, FaultTransport, at_once};
    for (algorithm, unanimous) in SLICED.into_iter().flat_map(|choice| [(choice, false), (choice, true)]) {
        for weighted in [false, true] {
            let config = CommunicatorConfig { unanimous, ..in_slices(algorithm) };
            let mut broken = 0;
            for rounds in 0.. {
                let members = (0_u32..).zip(mem_members(2).0);
                let done = at_once(members, |(me, transport)| {
                    let rounds = if me == 1 { rounds } else { u64::MAX };
                    let transport = FaultTransport::new(transport, Fault::GivesUp, rounds);
                    let mut communicator = ScheduledCommunicator::new(transport, config);
                    let before: Vec<f32> = (0..11).map(|i| (i * 2 + me) as f32).collect();
                    let mut data = before.clone();
                    let result = if weighted {
                        communicator.weighted_mean(&mut data, 1.0).map(|_| ())
                    } else {
                        communicator.all_reduce(&mut data, ReduceOp::Mean)
                    };
                    let mean: Vec<f32> = (0..11).map(|i| i as f32 * 2.0 + 0.5).collect();
                    assert_eq!(
                        data,
                        if result.is_ok() { mean } else { before },
                        "{algorithm}, round {rounds}"
                    );
                    result.is_ok()
                });
                broken += usize::from(done.contains(&false));
                if done.iter().all(|done| *done) {
                    break;
                }
            }
            // 11 elements are three slices of at most four, of one round each or two.
            assert!(broken >= 3, "{algorithm}: {broken}");
        }
    }
}

#[test]
fn every_rank_counts_as_many_rounds_for_a_slice() {
    for algorithm in SLICED.into_iter().filter_map(Choice::algorithm) {
        assert!(algorithm.slices());
        for world in 2..=17 {
            for len in [1, 2, world as usize, 100] {
                let rounds = |me| algorithm.schedule(Rank(me), world, len).rounds.len();
                assert!((1..world).all(|me| rounds(me) == rounds(0)), "{}", algorithm.name());
            }
        }
    }
}

#[test]
fn slices_grow_where_latency_would_tell_and_are_none_where_segments_follow_each_other() {
    on_all_with(4, CommunicatorConfig::default(), |_, communicator| {
        let by = |communicator: &ScheduledCommunicator<_>, choice: Choice, len| {
            communicator.slice_len::<f32>(Way::of(choice), len)
        };
        let member = 512 << 10 >> 2;
        communicator.cost = CostModel::LOOPBACK;
        assert_eq!(by(communicator, Choice::Ring, 64 << 20), 4 * member);
        assert_eq!(by(communicator, Choice::DoubleTree, 64 << 20), 64 << 20);
        assert_eq!(by(communicator, Choice::Ring, 100), 100, "not more than there is");
        communicator.cost.alpha = 100e-6;
        // 8 times 100 µs at 2.2 GB/s.
        assert_eq!(by(communicator, Choice::Ring, 64 << 20), 4 * 440_000);
    });
}

#[test]
fn a_mean_without_any_sample_leaves_the_data_as_they_were() {
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
fn a_unanimous_call_counts_for_both_or_for_none_when_a_member_dies_before_any_round() {
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
