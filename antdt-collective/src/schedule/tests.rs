use std::num::Wrapping;

use proptest::prelude::*;

use super::*;
use crate::element::Element;
use crate::op::ReduceOp;

fn schedules(algorithm: &dyn Algorithm, world: u32, len: usize) -> Vec<Schedule> {
    (0..world).map(|me| algorithm.schedule(Rank(me), world, len)).collect()
}

fn lengths() -> impl Iterator<Item = usize> {
    (0..=20).chain([31, 64, 100, 1021])
}

/// Lengths at which chunks become empty, uneven or even.
fn lengths_of(world: u32) -> impl Iterator<Item = usize> {
    let n = world as usize;
    [0, 1, 2, 3, n - 1, n, n + 1, 2 * n - 1, 2 * n, 2 * n + 1, 16 * n + 7, 331].into_iter()
}

fn worlds() -> impl Iterator<Item = u32> {
    (1..=17).chain([32, 64])
}

const ALL_REDUCES: [&dyn Algorithm; 8] = [
    &Ring,
    &Direct,
    &HalvingDoubling,
    &RecursiveDoubling,
    &DoubleTree { segments: 0 },
    &DoubleTree { segments: 1 },
    &DoubleTree { segments: 3 },
    &DoubleTree { segments: 8 },
];

/// Distinct, and with a different value for each rank and place.
fn integers(world: u32, len: usize) -> Vec<Vec<i64>> {
    (0..i64::from(world))
        .map(|r| (0..len as i64).map(|i| (r + 1) * 1_000_003 + i * i + 7).collect())
        .collect()
}

#[test]
fn every_all_reduce_equals_the_reference_for_every_operation_world_and_length() {
    for algorithm in ALL_REDUCES {
        for world in worlds() {
            for len in lengths_of(world) {
                for op in ReduceOp::ALL {
                    let mut buffers = integers(world, len);
                    let expected: Vec<i64> = (0..len)
                        .map(|i| {
                            let column = buffers.iter().map(|b| b[i]);
                            match op {
                                ReduceOp::Sum | ReduceOp::Mean => column.sum(),
                                ReduceOp::Min => column.min().unwrap(),
                                ReduceOp::Max => column.max().unwrap(),
                                ReduceOp::Prod => column.map(Wrapping).product::<Wrapping<i64>>().0,
                            }
                        })
                        .collect();
                    interpret(&schedules(algorithm, world, len), &mut buffers, op).unwrap();
                    for (rank, buffer) in buffers.iter().enumerate() {
                        assert_eq!(
                            *buffer,
                            expected,
                            "{} {op}, {len} on rank {rank} of {world}",
                            algorithm.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn floats_have_the_same_bits_on_all_ranks_and_are_near_the_double_precision_sum() {
    for algorithm in ALL_REDUCES {
        for world in worlds() {
            for len in lengths_of(world) {
                let mut rng = antdt_core::Seed(u64::from(world)).derive_number(len as u64).rng();
                let mut buffers: Vec<Vec<f32>> =
                    (0..world).map(|_| (0..len).map(|_| rng.normal() as f32).collect()).collect();
                let exact: Vec<(f64, f64)> = (0..len)
                    .map(|i| {
                        let column = || buffers.iter().map(|b| f64::from(b[i]));
                        (column().sum(), column().map(f64::abs).sum())
                    })
                    .collect();
                interpret(&schedules(algorithm, world, len), &mut buffers, ReduceOp::Sum).unwrap();
                for buffer in &buffers {
                    assert_eq!(bits(buffer), bits(&buffers[0]));
                    for (value, (sum, magnitude)) in buffer.iter().zip(&exact) {
                        let bound = f64::from(world) * f64::from(f32::EPSILON) * magnitude;
                        assert!((f64::from(*value) - sum).abs() <= bound);
                    }
                }
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_nan_of_one_rank_reaches_all_alike() {
    for algorithm in ALL_REDUCES {
        for op in ReduceOp::ALL {
            let mut buffers = vec![vec![1.0_f32; 7]; 5];
            buffers[3][2] = f32::NAN;
            interpret(&schedules(algorithm, 5, 7), &mut buffers, op).unwrap();
            for buffer in &buffers {
                assert!(buffer.iter().enumerate().all(|(i, value)| value.is_nan() == (i == 2)), "{op}");
            }
        }
    }
}

#[test]
fn two_zeros_and_two_nans_leave_the_same_bits_on_all_ranks() {
    // Which of them wins depends on the order of the operands.
    for (one, other) in [(0.0_f32, -0.0_f32), (f32::from_bits(0x7fc0_0001), f32::from_bits(0x7fc0_0002))] {
        for algorithm in ALL_REDUCES {
            for world in worlds() {
                for op in ReduceOp::ALL {
                    let mut buffers: Vec<Vec<f32>> = (0..world)
                        .map(|r| vec![if r.count_ones() % 2 == 0 { one } else { other }; 5])
                        .collect();
                    interpret(&schedules(algorithm, world, 5), &mut buffers, op).unwrap();
                    let name = algorithm.name();
                    assert!(buffers.iter().all(|b| bits(b) == bits(&buffers[0])), "{name} {op} {world}");
                }
            }
        }
    }
}

#[test]
fn no_rank_sends_more_bytes_or_rounds_than_its_algorithm_promises() {
    for world in worlds().filter(|world| *world > 1) {
        let (n, levels) = (world as usize, world.ilog2() as usize);
        let (core, extra) = (1 << levels, usize::from(!world.is_power_of_two()));
        let len = 96 * n;
        let most = |algorithm: &dyn Algorithm| {
            let all = schedules(algorithm, world, len);
            let sent = all.iter().map(Schedule::sent).max().unwrap();
            (all.iter().map(|s| s.rounds.len()).max().unwrap(), sent)
        };
        assert_eq!(most(&HalvingDoubling).0, 2 * levels + 2 * extra);
        // Chunks of the core may be one element uneven in each of its rounds.
        let bound = 2 * len * (core - 1) / core + extra * len + 2 * core;
        assert!(most(&HalvingDoubling).1 <= bound, "{world}");
        assert_eq!(most(&RecursiveDoubling), (levels + 2 * extra, (levels + extra) * len));
        // Inside one tree: up once and down twice. A leaf of the other: up once.
        assert!(most(&DoubleTree::default()).1 <= 2 * len + len * extra, "{world}");
    }
}

#[test]
fn every_rank_ends_with_the_total_of_its_own_block() {
    for world in worlds() {
        for len in lengths_of(world) {
            let n = world as usize;
            let even: Vec<usize> = split_even(len, n).iter().map(|span| span.len).collect();
            let uneven: Vec<usize> = (0..n).map(|r| r * 7 % 5).collect();
            for blocks in [even, uneven] {
                let spans = spans_of(&blocks);
                let len = blocks.iter().sum();
                let scatters =
                    [&RingScatter { blocks: blocks.clone() } as &dyn Algorithm, &DirectScatter { blocks }];
                for algorithm in scatters {
                    let mut buffers = integers(world, len);
                    let totals: Vec<i64> = (0..len).map(|i| buffers.iter().map(|b| b[i]).sum()).collect();
                    let all = schedules(algorithm, world, len);
                    interpret(&all, &mut buffers, ReduceOp::Sum).unwrap();
                    for (span, buffer) in spans.iter().zip(&buffers) {
                        assert_eq!(buffer[span.range()], totals[span.range()], "{}", algorithm.name());
                    }
                    assert_eq!(all.iter().map(Schedule::sent).sum::<usize>(), (n - 1) * len);
                }
            }
        }
    }
}

#[test]
fn a_scatter_and_a_gather_of_the_same_blocks_are_an_all_reduce() {
    for world in worlds() {
        for len in lengths_of(world) {
            let blocks: Vec<usize> = split_even(len, world as usize).iter().map(|span| span.len).collect();
            let mut whole = integers(world, len);
            let mut halves = whole.clone();
            interpret(&schedules(&Ring, world, len), &mut whole, ReduceOp::Sum).unwrap();
            let scatter = RingScatter { blocks: blocks.clone() };
            interpret(&schedules(&scatter, world, len), &mut halves, ReduceOp::Sum).unwrap();
            interpret(&schedules(&RingGather { blocks }, world, len), &mut halves, ReduceOp::Sum).unwrap();
            assert_eq!(whole, halves);
        }
    }
}

#[test]
fn no_rank_leaves_the_barrier_before_all_came() {
    for world in worlds() {
        let all = schedules(&Dissemination, world, 1);
        assert_eq!(all[0].rounds.len(), world.next_power_of_two().ilog2() as usize);
        for late in 0..world {
            // What the late one brings reaches all: none of them can have gone before.
            let mut buffers = vec![vec![0_u8]; world as usize];
            buffers[late as usize][0] = 1;
            interpret(&all, &mut buffers, ReduceOp::Max).unwrap();
            assert!(buffers.iter().all(|buffer| buffer[0] == 1), "{late} of {world}");
        }
    }
}

#[test]
fn two_ranks_get_the_same_bits_from_the_ring_and_directly() {
    for len in lengths() {
        let start: Vec<Vec<f32>> =
            (0..2).map(|r| (0..len).map(|i| 1.0 / (3.0 + i as f32 + r as f32)).collect()).collect();
        let (mut ring, mut direct) = (start.clone(), start);
        interpret(&schedules(&Ring, 2, len), &mut ring, ReduceOp::Sum).unwrap();
        interpret(&schedules(&Direct, 2, len), &mut direct, ReduceOp::Sum).unwrap();
        assert_eq!(ring, direct);
    }
}

#[test]
fn the_ring_sends_the_fewest_bytes_in_two_n_minus_two_messages() {
    for world in 1..=9_u32 {
        for len in lengths() {
            let n = world as usize;
            let all = schedules(&Ring, world, len);
            assert_eq!(all.iter().map(Schedule::sent).sum::<usize>(), 2 * (n - 1) * len);
            for schedule in &all {
                let even = 2 * (n - 1) * len / n;
                assert!(schedule.sent().abs_diff(even) <= 2 * (n - 1), "{} of {even}", schedule.sent());
                assert!(len < n || schedule.messages() == 2 * (n - 1));
            }
        }
    }
}

#[test]
fn one_rank_alone_sends_nothing() {
    let gathers = [&RingGather { blocks: vec![5] } as &dyn Algorithm, &DirectGather { blocks: vec![5] }];
    let chain = ChainBroadcast { root: Rank(0), segment: 2 };
    let binomial = BinomialBroadcast { root: Rank(0) };
    let others = [&chain as &dyn Algorithm, &binomial, &Dissemination];
    for algorithm in gathers.into_iter().chain(others).chain(ALL_REDUCES) {
        assert_eq!(algorithm.schedule(Rank(0), 1, 5).messages(), 0, "{}", algorithm.name());
    }
}

#[test]
fn every_rank_ends_with_the_roots_buffer() {
    for world in worlds() {
        for root in (0..world).filter(|root| world < 10 || root % 7 == 0 || root + 1 == world) {
            let chains = [1, 3, 1000].map(|segment| ChainBroadcast { root: Rank(root), segment });
            let [short, middle, long] = &chains;
            let binomial = BinomialBroadcast { root: Rank(root) };
            for algorithm in [short as &dyn Algorithm, middle, long, &binomial] {
                for len in lengths_of(world).filter(|len| *len < 100) {
                    let mut buffers = integers(world, len);
                    let expected = buffers[root as usize].clone();
                    interpret(&schedules(algorithm, world, len), &mut buffers, ReduceOp::Sum).unwrap();
                    assert!(buffers.iter().all(|buffer| *buffer == expected), "{}", algorithm.name());
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn every_taker_of_a_relay_ends_with_the_givers_buffer_and_givers_send_alike(
        roles in prop::collection::vec(0_u8..3, 1..12),
        len in 0_usize..200,
        segment in 1_usize..40,
    ) {
        let of = |role: u8| (0..).map(Rank).zip(&roles).filter(move |(_, it)| **it == role).map(|(rank, _)| rank);
        let relay = Relay { givers: of(0).collect(), takers: of(1).collect(), segment };
        let world = u32::try_from(roles.len()).unwrap();
        let whole: Vec<i64> = (1..=len as i64).collect();
        let before: Vec<Vec<i64>> =
            roles.iter().map(|role| if *role == 0 { whole.clone() } else { vec![-1; len] }).collect();
        let all = schedules(&relay, world, len);
        let mut buffers = before.clone();
        interpret(&all, &mut buffers, ReduceOp::Sum).unwrap();
        let given = !relay.givers.is_empty();
        for (rank, role) in roles.iter().enumerate() {
            let due = if *role == 1 && given { &whole } else { &before[rank] };
            prop_assert!(buffers[rank] == *due, "rank {rank}, {relay:?}");
        }
        let sent: Vec<usize> = relay.givers.iter().map(|giver| all[giver.0 as usize].sent()).collect();
        let (least, most) = (sent.iter().min().copied().unwrap_or(0), sent.iter().max().copied().unwrap_or(0));
        prop_assert!(most - least <= segment, "{sent:?}");
        prop_assert_eq!(sent.iter().sum::<usize>(), if given && !relay.takers.is_empty() { len } else { 0 });
    }

    #[test]
    fn every_rank_ends_with_every_block(blocks in prop::collection::vec(0_usize..9, 1..9)) {
        let world = u32::try_from(blocks.len()).unwrap();
        let len = blocks.iter().sum();
        let whole: Vec<i64> = (0..len as i64).collect();
        for algorithm in [
            &RingGather { blocks: blocks.clone() } as &dyn Algorithm,
            &DirectGather { blocks: blocks.clone() },
        ] {
            let mut buffers: Vec<Vec<i64>> = spans_of(&blocks)
                .iter()
                .map(|mine| {
                    let mut buffer = vec![-1; len];
                    buffer[mine.range()].copy_from_slice(&whole[mine.range()]);
                    buffer
                })
                .collect();
            interpret(&schedules(algorithm, world, len), &mut buffers, ReduceOp::Sum).unwrap();
            prop_assert!(buffers.iter().all(|buffer| *buffer == whole));
        }
    }

    #[test]
    fn relabelling_the_ranks_changes_no_integer(world in 1_u32..9, len in 0_usize..40, shift in 0_usize..8) {
        for algorithm in ALL_REDUCES {
            let mut plain = integers(world, len);
            let mut moved = plain.clone();
            moved.rotate_left(shift % world as usize);
            interpret(&schedules(algorithm, world, len), &mut plain, ReduceOp::Sum).unwrap();
            interpret(&schedules(algorithm, world, len), &mut moved, ReduceOp::Sum).unwrap();
            prop_assert_eq!(plain, moved);
        }
    }
}

#[test]
fn schedules_that_do_not_fit_together_are_refused() {
    fn run<E: Element>(change: impl Fn(&mut Vec<Schedule>)) -> Result<(), ScheduleError> {
        let mut all = schedules(&Ring, 3, 6);
        change(&mut all);
        interpret(&all, &mut vec![vec![E::default(); 6]; 3], ReduceOp::Sum)
    }
    assert_eq!(run::<f32>(|_| {}), Ok(()));
    assert!(matches!(run::<f32>(|all| all[1].rounds[2].clear()), Err(ScheduleError::Unmatched { .. })));
    let longer = run::<f32>(|all| {
        for step in &mut all[0].rounds[0] {
            if let Step::Send { span, .. } = step {
                span.len += 1;
            }
        }
    });
    assert!(matches!(longer, Err(ScheduleError::Unmatched { .. } | ScheduleError::Overlap { .. })));
    let twice = run::<f32>(|all| {
        let step = all[0].rounds[0][0];
        all[0].rounds[0].push(step);
    });
    assert!(matches!(twice, Err(ScheduleError::Twice { .. })));
    let overwritten = run::<f32>(|all| {
        for step in &mut all[1].rounds[0] {
            if let Step::RecvReduce { from, .. } = *step {
                *step = Step::RecvCopy { from, span: Span { start: 1, len: 2 } };
            }
        }
    });
    assert!(matches!(overwritten, Err(ScheduleError::Overlap { .. })), "{overwritten:?}");
    let outside = Step::Send { to: Rank(9), span: Span { start: 0, len: 1 } };
    assert!(matches!(
        run::<f32>(|all| all[0].rounds[0].push(outside)),
        Err(ScheduleError::Impossible { .. })
    ));
}

#[test]
fn a_long_chunk_is_collected_segment_by_segment() {
    for len in [3 * direct::SEGMENT_LEN - 1, 3 * direct::SEGMENT_LEN, 6 * direct::SEGMENT_LEN + 5] {
        let mut buffers = integers(3, len);
        let totals: Vec<i64> = (0..len).map(|i| buffers.iter().map(|b| b[i]).sum()).collect();
        let all = schedules(&Direct, 3, len);
        assert_eq!(all[0].rounds.len(), len.div_ceil(3).div_ceil(direct::SEGMENT_LEN) + 1);
        interpret(&all, &mut buffers, ReduceOp::Sum).unwrap();
        assert!(buffers.iter().all(|buffer| *buffer == totals));
    }
}

/// Blocks of uneven length, some of them empty.
fn uneven(world: u32, seed: usize) -> Vec<usize> {
    (0..world as usize).map(|r| (r * 7 + seed * 3) % 5).collect()
}

#[test]
fn a_root_gathers_every_block_and_scatters_every_block() {
    for world in worlds() {
        for root in [0, world / 2, world - 1] {
            let blocks = uneven(world, root as usize);
            let (spans, root) = (spans_of(&blocks), Rank(root));
            let total: usize = blocks.iter().sum();
            let block = |r: usize| -> Vec<i64> { (0..blocks[r]).map(|i| (r * 100 + i) as i64 + 1).collect() };
            let whole: Vec<i64> = (0..world as usize).flat_map(block).collect();
            let mut buffers: Vec<Vec<i64>> = (0..world as usize).map(block).collect();
            let mut at_root = vec![0; total];
            at_root[spans[root.0 as usize].range()].copy_from_slice(&buffers[root.0 as usize]);
            buffers[root.0 as usize] = at_root;
            let all = schedules(&Gather { root, blocks: blocks.clone() }, world, 0);
            interpret(&all, &mut buffers, ReduceOp::Sum).unwrap();
            assert_eq!(buffers[root.0 as usize], whole);
            let mut buffers: Vec<Vec<i64>> = blocks.iter().map(|len| vec![0; *len]).collect();
            buffers[root.0 as usize] = whole.clone();
            interpret(
                &schedules(&Scatter { root, blocks: blocks.clone() }, world, 0),
                &mut buffers,
                ReduceOp::Sum,
            )
            .unwrap();
            for r in (0..world as usize).filter(|r| *r != root.0 as usize) {
                assert_eq!(buffers[r], block(r));
            }
            assert_eq!(buffers[root.0 as usize], whole, "the root's stay");
        }
    }
}

#[test]
fn every_block_of_an_all_to_all_reaches_its_rank() {
    for world in worlds() {
        let n = world as usize;
        let len = |from: usize, to: usize| if from == to { 0 } else { (from * 5 + to * 3) % 4 };
        let value = |from: usize, to: usize, i: usize| (from * 10_000 + to * 10 + i) as i64 + 1;
        let all = |me: usize| AllToAll {
            out: (0..n).map(|to| len(me, to)).collect(),
            into: (0..n).map(|from| len(from, me)).collect(),
        };
        let mut buffers: Vec<Vec<i64>> = (0..n)
            .map(|me| {
                let out = (0..n).flat_map(|to| (0..len(me, to)).map(move |i| value(me, to, i)));
                let mut buffer: Vec<i64> = out.collect();
                buffer.resize(buffer.len() + all(me).into.iter().sum::<usize>(), 0);
                buffer
            })
            .collect();
        let schedules: Vec<Schedule> =
            (0..world).map(|me| all(me as usize).schedule(Rank(me), world, 0)).collect();
        interpret(&schedules, &mut buffers, ReduceOp::Sum).unwrap();
        for (me, buffer) in buffers.iter().enumerate() {
            let sent: usize = all(me).out.iter().sum();
            let expected: Vec<i64> =
                (0..n).flat_map(|from| (0..len(from, me)).map(move |i| value(from, me, i))).collect();
            assert_eq!(buffer[sent..], expected);
        }
        assert!(
            schedules.iter().flat_map(|s| &s.rounds).all(|round| round.len() <= 2),
            "one message each way"
        );
    }
}

/// The least that leaves a host and comes to it is all regions but its own, twice.
#[test]
fn links_between_hosts_carry_the_fewest_bytes_spread_over_the_ranks_of_the_host() {
    let cross = |hosts: &[u32], len: usize| -> Vec<usize> {
        let algorithm = Hierarchical { hosts: hosts.to_vec() };
        let all = schedules(&algorithm, u32::try_from(hosts.len()).unwrap(), len);
        let sent = |(me, schedule): (usize, &Schedule)| {
            let other =
                |step: &&Step| matches!(step, Step::Send { to, .. } if hosts[to.0 as usize] != hosts[me]);
            schedule.rounds.iter().flatten().filter(other).map(|step| step.span().len).sum()
        };
        all.iter().enumerate().map(sent).collect()
    };
    for (count, size) in [(1, 4), (2, 1), (2, 2), (2, 4), (3, 2), (4, 4), (5, 3)] {
        let len = 7 * count * size;
        // Hosts one after the other, and dealt out in turn.
        for hosts in [|rank, _, size| rank / size, |rank, count, _| rank % count as u32]
            as [fn(u32, usize, u32) -> u32; 2]
        {
            let hosts: Vec<u32> =
                (0..(count * size) as u32).map(|rank| hosts(rank, count, size as u32)).collect();
            let formula = 2 * (count - 1) * len / (count * size);
            assert_eq!(cross(&hosts, len), vec![formula; count * size], "{hosts:?}");
        }
    }
    // One rank, eight ranks, and three that lie apart: each host sends the same, each rank its share of that.
    let uneven = [4, 9, 9, 9, 7, 9, 9, 9, 9, 7, 9, 7];
    let (len, count) = (3 * 3 * 8 * 10, 3);
    for (host, sent) in uneven.iter().zip(cross(&uneven, len)) {
        let size = uneven.iter().filter(|other| *other == host).count();
        // Sums to other hosts' regions, in even parts; and totals of the own region to each other host.
        assert_eq!(sent, 2 * (count - 1) * len / (count * size), "host {host}");
    }
}

#[test]
fn long_parts_are_summed_segment_by_segment_on_hosts_of_any_size() {
    for (hosts, sizes) in [(vec![0, 0, 0], 3), (vec![0, 1, 1, 1], 2), (vec![5, 2, 5, 2], 4)] {
        let world = u32::try_from(hosts.len()).unwrap();
        let algorithm = Hierarchical { hosts };
        let len = sizes * hierarchical::SEGMENT_LEN + 3;
        let all = schedules(&algorithm, world, len);
        let folded = all.iter().flat_map(|schedule| &schedule.rounds).flatten().filter(|step| step.folds());
        assert_eq!(folded.map(|step| step.span().len).max().unwrap().div_ceil(hierarchical::SEGMENT_LEN), 1);
        let mut buffers = integers(world, len);
        let totals: Vec<i64> = (0..len).map(|i| buffers.iter().map(|b| b[i]).sum()).collect();
        interpret(&all, &mut buffers, ReduceOp::Sum).unwrap();
        assert!(buffers.iter().all(|buffer| *buffer == totals));
    }
}

#[test]
fn two_hosts_of_one_rank_talk_like_two_ranks_that_talk_directly() {
    for len in lengths() {
        let hosts = Hierarchical { hosts: vec![1, 0] };
        let start: Vec<Vec<f32>> =
            (0..2).map(|r| (0..len).map(|i| 1.0 / (3 + i + r) as f32).collect()).collect();
        let (mut apart, mut direct) = (start.clone(), start);
        interpret(&schedules(&hosts, 2, len), &mut apart, ReduceOp::Sum).unwrap();
        interpret(&schedules(&Direct, 2, len), &mut direct, ReduceOp::Sum).unwrap();
        assert_eq!(apart, direct);
        let sent = |algorithm: &dyn Algorithm| {
            schedules(algorithm, 2, len).iter().map(Schedule::sent).sum::<usize>()
        };
        assert_eq!(sent(&hosts), sent(&Direct));
    }
}

proptest! {
    #[test]
    fn ranks_on_any_hosts_end_with_the_exact_sum_of_integers_and_the_same_bits_of_floats(
        hosts in prop::collection::vec(0_u32..6, 1..18),
        len in 0_usize..300,
        short in 0_usize..9,
    ) {
        let world = u32::try_from(hosts.len()).unwrap();
        let algorithm = Hierarchical { hosts };
        for len in [len, short] {
            let all = schedules(&algorithm, world, len);
            for op in ReduceOp::ALL {
                let mut expected = integers(world, len);
                let mut buffers = expected.clone();
                interpret(&schedules(&Ring, world, len), &mut expected, op).unwrap();
                interpret(&all, &mut buffers, op).unwrap();
                prop_assert_eq!(buffers, expected);
            }
            let mut rng = antdt_core::Seed(u64::from(world)).derive_number(len as u64).rng();
            let special = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::from_bits(0x7fc0_0001)];
            let mut buffers: Vec<Vec<f32>> = (0..world)
                .map(|r| (0..len).map(|i| if i % 9 < 5 { special[(i + r as usize) % 5] } else { rng.normal() as f32 }).collect())
                .collect();
            let exact: Vec<f64> = (0..len).map(|i| buffers.iter().map(|b| f64::from(b[i])).sum()).collect();
            interpret(&all, &mut buffers, ReduceOp::Sum).unwrap();
            prop_assert!(buffers.iter().all(|buffer| bits(buffer) == bits(&buffers[0])));
            for (value, exact) in buffers[0].iter().zip(exact) {
                let near = (f64::from(*value) - exact).abs() <= 1e-4 || f64::from(*value) == exact;
                prop_assert!(near || value.is_nan() && exact.is_nan(), "{} {}", value, exact);
            }
        }
    }
}
