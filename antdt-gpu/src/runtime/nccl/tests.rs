//! What this host has of NCCL. How a group goes on over a library is tested with one of threads, in `runtime::device`.

use std::net::SocketAddr;

use antdt_collective::group::{Group, Member};
use antdt_collective::runtime::TransportBackend;
use antdt_collective::runtime::testing::{abort_handles, at_once, holder, loopback_listener};
use antdt_collective::runtime::transport::REGISTRY;
use antdt_core::{MembershipVersion, Rank};

use super::*;
use crate::runtime::device::tests::{config, every_collective};

#[test]
fn every_collective_holds_over_nccl_where_this_host_has_a_gpu_for_each_of_two_ranks() {
    in_groups_of_two(&[([0, 1], "initialised anew: there was none"), ([0, 1], "the communicator is kept")]);
}

#[test]
fn a_split_puts_two_ranks_in_another_order_where_this_host_has_a_gpu_for_each() {
    in_groups_of_two(&[
        ([0, 1], "initialised anew: there was none"),
        ([1, 0], "ncclCommSplit: the same members in another order"),
        ([1, 0], "the communicator is kept"),
    ]);
}

// One group after the other: its members in order of rank, and how it comes to its communicator.
fn in_groups_of_two(groups: &[([u32; 2], &str)]) {
    let lacking = match crate::runtime::cuda::gpus() {
        Ok(gpus) if gpus.len() < 2 => {
            Some("this host has one GPU, and NCCL wants one for each rank".to_owned())
        }
        Ok(_) => check(0).err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(lacking) = lacking {
        println!("skipped, not here: {lacking}");
        return;
    }
    let below = || Box::new(TransportBackend::new(REGISTRY.by_name("auto").unwrap()));
    let processes: Vec<_> = (0..2).map(|me| (me, loopback_listener(), over(Some(me), below()))).collect();
    let addresses: Vec<SocketAddr> =
        processes.iter().map(|(_, listener, _)| listener.local_address()).collect();
    at_once(processes, |(me, listener, mut backend)| {
        for (membership, (members, way)) in (1..).zip(groups) {
            let rank = if members[0] == me { Rank(0) } else { Rank(1) };
            let member = |index: u32| Member { holder: holder(index), address: addresses[index as usize] };
            let members = members.map(member).to_vec();
            let group = Group::new(MembershipVersion(membership), members, rank).unwrap();
            let abort = abort_handles(1).remove(0);
            let (mut group, _) = backend.join(&listener, &group, config(), &abort).unwrap();
            // Over NCCL indeed.
            assert_eq!(backend.told.as_deref(), Some(*way));
            every_collective(&mut group);
            group.leave();
        }
    });
}

#[test]
fn a_host_without_a_gpu_or_without_the_library_gets_a_typed_error_and_no_panic() {
    match check(0) {
        Ok(()) => println!("NCCL is here"),
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n'), "{text}");
            match error {
                NcclError::Cuda(_) => assert!(text.contains("CUDA driver"), "{text}"),
                NcclError::NoLibrary { .. } => assert!(text.contains("libnccl.so.2"), "{text}"),
                other => panic!("{other}"),
            }
        }
    }
    let below = || Box::new(TransportBackend::new(REGISTRY.by_name("tcp").unwrap()));
    assert!(format!("{:?}", over(None, below())).contains("computes on no GPU"));
}
