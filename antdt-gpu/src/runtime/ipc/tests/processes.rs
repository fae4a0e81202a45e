//! Several processes on one GPU, where this host has one: a process cannot open its own memory.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use antdt_collective::group::{Group, Member};
use antdt_collective::runtime::TransportBackend;
use antdt_collective::runtime::testing::{abort_handles, holder, loopback_listener};
use antdt_collective::runtime::transport::REGISTRY;
use antdt_core::{MembershipVersion, Rank};

use super::super::*;
use crate::runtime::device::tests::{config, every_collective};

/// The rank of a process that this test has started.
const RANK: &str = "CUDA_IPC_RANK";

const NAME: &str = "runtime::ipc::tests::processes::processes_that_share_a_gpu_reduce_in_its_memory";

const WORLD: u32 = 4;

#[test]
fn processes_that_share_a_gpu_reduce_in_its_memory() {
    if let Ok(rank) = std::env::var(RANK) {
        return be(rank.parse().unwrap());
    }
    if let Err(error) = check(0) {
        return println!("skipped, not here: {error}");
    }
    let program = std::env::current_exe().unwrap();
    let start = |rank: u32| {
        Command::new(&program)
            .args([NAME, "--exact", "--nocapture"])
            .env(RANK, rank.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut children: Vec<Child> = (0..WORLD).map(start).collect();
    let mut said: Vec<_> =
        children.iter_mut().map(|child| BufReader::new(child.stdout.take().unwrap()).lines()).collect();
    let mut address = |rank: usize| {
        said[rank].find_map(|line| Some(line.unwrap().strip_prefix("listens at ")?.to_owned())).unwrap()
    };
    let addresses: Vec<String> = (0..WORLD as usize).map(&mut address).collect();
    for child in &mut children {
        writeln!(child.stdin.take().unwrap(), "{}", addresses.join(" ")).unwrap();
    }
    for (rank, (mut child, said)) in children.into_iter().zip(said).enumerate() {
        let said: Vec<String> = said.map_while(Result::ok).collect();
        assert!(child.wait().unwrap().success(), "rank {rank}: {said:?}");
    }
}

/// What each of the processes does.
fn be(me: u32) {
    let listener = loopback_listener();
    println!("\nlistens at {}", listener.local_address());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let addresses: Vec<SocketAddr> =
        line.split_whitespace().map(|address| address.parse().unwrap()).collect();
    let below = TransportBackend::new(REGISTRY.by_name("auto").unwrap());
    let mut backend = over(Some(0), Box::new(below));
    for (membership, how) in [(1, "initialised anew: there was none"), (2, "the communicator is kept")] {
        let member = |index: u32| Member { holder: holder(index), address: addresses[index as usize] };
        let members = (0..WORLD).map(member).collect();
        let group = Group::new(MembershipVersion(membership), members, Rank(me)).unwrap();
        let abort = abort_handles(1).remove(0);
        let (mut group, _) = backend.join(&listener, &group, config(), &abort).unwrap();
        // In the GPU's memory indeed.
        assert_eq!(backend.told.as_deref(), Some(how));
        every_collective(&mut group);
        group.leave();
    }
}
