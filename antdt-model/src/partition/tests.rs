use antdt_core::ServerWeights;
use proptest::prelude::*;

use super::*;

#[test]
fn the_pieces_cover_the_vector_once_in_order() {
    for servers in 1..6 {
        for len in 0..20 {
            let map = PartitionMap::new(servers, len).unwrap();
            let covered: Vec<usize> = (0..servers).flat_map(|server| map.dense(server)).collect();
            assert_eq!(covered, (0..len).collect::<Vec<_>>());
            let lens = || (0..servers).map(|server| map.dense(server).len());
            assert!(lens().max().unwrap() - lens().min().unwrap() <= 1, "{len} over {servers}");
        }
    }
    assert!(PartitionMap::new(0, 1).is_err());
}

#[test]
fn each_row_goes_to_its_owner() {
    let map = PartitionMap::new(3, 0).unwrap();
    assert_eq!(map.split_rows(&[0, 1, 2, 4, 9]), [vec![0, 9], vec![1, 4], vec![2]]);
}

#[test]
fn weights_of_another_number_of_servers_are_refused() {
    let weights = ServerWeights::new(&[1, 2]).unwrap();
    let error = PartitionMap::weighted(3, 8, &weights).unwrap_err().to_string();
    assert_eq!(error, "server weights = 1,2: must be one for each of 3 servers");
}

/// Checkpoints, layouts and results of jobs without weights are those of the map without weights.
#[test]
fn equal_weights_give_the_map_without_weights() {
    for servers in 1..9_u32 {
        let same = ServerWeights::new(&vec![7; servers as usize]).unwrap();
        let (map, plain) = (
            PartitionMap::weighted(servers, 1001, &same).unwrap(),
            PartitionMap::new(servers, 1001).unwrap(),
        );
        assert_eq!(map, plain);
        for row in 0..100 {
            assert_eq!(u64::from(map.owner(row)), row % u64::from(servers));
        }
    }
}

fn weights() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(1..=ServerWeights::MOST, 1..7)
}

fn map_of(weights: &[u32], dense_len: usize) -> PartitionMap {
    let weights_of = ServerWeights::new(weights).unwrap();
    PartitionMap::weighted(weights.len() as u32, dense_len, &weights_of).unwrap()
}

/// Part of `total` that is due to a server.
fn due(weights: &[u32], server: u32, total: usize) -> f64 {
    let sum: u32 = weights.iter().sum();
    total as f64 * f64::from(weights[server as usize]) / f64::from(sum)
}

proptest! {
    #[test]
    fn every_value_has_one_server_and_every_server_its_share(weights in weights(), len in 0_usize..5000) {
        let map = map_of(&weights, len);
        let servers = map.servers();
        let covered: Vec<usize> = (0..servers).flat_map(|server| map.dense(server)).collect();
        prop_assert_eq!(covered, (0..len).collect::<Vec<_>>());
        for server in 0..servers {
            let off = map.dense(server).len() as f64 - due(&weights, server, len);
            prop_assert!(off.abs() < 1.0, "{} of {:?}: {} off", server, weights, off);
        }
    }

    #[test]
    fn every_row_has_one_server_and_every_server_its_share_of_each_period(weights in weights(), period in 0_u64..5) {
        let (map, servers) = (map_of(&weights, 0), weights.len() as u32);
        let slots = 64 * u64::from(servers);
        let mut held = vec![0_usize; weights.len()];
        for row in period * slots..(period + 1) * slots {
            held[map.owner(row) as usize] += 1;
        }
        for server in 0..servers {
            let off = held[server as usize] as f64 - due(&weights, server, slots as usize);
            prop_assert!(off.abs() < 1.0, "{} of {:?}: {} off", server, weights, off);
        }
        // What a batch touches is close together: no server has none of it, and none has much more than its share.
        for server in 0..servers {
            let near = (0..slots / 2).filter(|row| map.owner(*row) == server).count() as f64;
            let most = f64::from(servers) + 2.0;
            prop_assert!((near - due(&weights, server, slots as usize) / 2.0).abs() <= most, "{:?}: {}", weights, near);
        }
    }

    #[test]
    fn no_more_rows_move_from_equal_weights_than_the_shares_differ(weights in weights()) {
        let (map, servers) = (map_of(&weights, 0), weights.len());
        let equal = PartitionMap::new(map.servers(), 0).unwrap();
        let slots = 64 * servers as u64;
        let held = |map: &PartitionMap, server| (0..slots).filter(|row| map.owner(*row) == server).count();
        let less: usize = (0..map.servers()).map(|server| held(&equal, server).saturating_sub(held(&map, server))).sum();
        let moved = (0..slots).filter(|row| map.owner(*row) != equal.owner(*row)).count();
        prop_assert_eq!(moved, less);
    }

    #[test]
    fn the_rows_of_a_server_are_numbered_in_order(weights in weights(), first in 0_u64..1000, rows in 0_u64..1000) {
        let map = map_of(&weights, 0);
        let mut all = 0;
        for server in 0..map.servers() {
            let own = map.own_rows(server, first);
            let held: Vec<u64> = (0..rows).filter(|row| map.owner(first + row) == server).collect();
            prop_assert_eq!(own.count(rows), held.len() as u64);
            all += held.len() as u64;
            for (number, row) in held.into_iter().enumerate() {
                prop_assert_eq!(own.number(row), number);
                prop_assert_eq!(own.row(number), row);
                prop_assert_eq!(own.owner(row), own.partition());
            }
        }
        prop_assert_eq!(all, rows);
    }

    /// Workers and servers compute it each for themselves.
    #[test]
    fn nodes_that_know_the_weights_agree(weights in weights(), len in 0_usize..200) {
        let text = ServerWeights::new(&weights).unwrap().to_string();
        let read = PartitionMap::weighted(weights.len() as u32, len, &text.parse().unwrap()).unwrap();
        prop_assert_eq!(&read, &map_of(&weights, len));
        prop_assert_eq!(read.weights().to_string(), text);
    }
}
