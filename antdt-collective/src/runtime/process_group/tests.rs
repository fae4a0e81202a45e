use std::net::SocketAddr;
use std::time::Instant;

use antdt_core::MembershipVersion;

use super::*;
use crate::bucket::Buckets;
use crate::compress::Compression;
use crate::group::Member;
use crate::runtime::testing::{PATIENT, abort_handles, at_once, holder, loopback_listener};
use crate::runtime::transport::REGISTRY;
use crate::runtime::{Compressor, Reducer};

struct Process {
    me: u32,
    listener: Listener,
    backend: Box<dyn Backend>,
}

fn processes(transport: &str, count: u32) -> Vec<Process> {
    let process = |me| {
        let backend = TransportBackend::new(REGISTRY.by_name(transport).unwrap());
        Process { me, listener: loopback_listener(), backend: Box::new(backend) }
    };
    (0..count).map(process).collect()
}

fn addresses(processes: &[Process]) -> Vec<SocketAddr> {
    processes.iter().map(|process| process.listener.local_address()).collect()
}

impl Process {
    fn join(
        &mut self,
        membership: u64,
        members: &[u32],
        addresses: &[SocketAddr],
        config: CommunicatorConfig,
    ) -> (Box<dyn ProcessGroup>, Resolution, AbortHandle) {
        let member = |index: &u32| Member { holder: holder(*index), address: addresses[*index as usize] };
        let rank = members.iter().position(|index| *index == self.me).unwrap();
        let members = members.iter().map(member).collect();
        let group =
            Group::new(MembershipVersion(membership), members, Rank(u32::try_from(rank).unwrap())).unwrap();
        let abort = abort_handles(1).remove(0);
        let (group, resolution) = self.backend.join(&self.listener, &group, config, &abort).unwrap();
        (group, resolution, abort)
    }
}

fn config() -> CommunicatorConfig {
    CommunicatorConfig { timeout: PATIENT, ..CommunicatorConfig::default() }
}

#[test]
fn a_process_goes_from_group_to_group_over_every_transport() {
    for transport in ["auto", "tcp", "shm"] {
        let processes = processes(transport, 3);
        let addresses = addresses(&processes);
        at_once(processes, |mut process| {
            let all = (0..3).collect::<Vec<_>>();
            let (mut group, _, _) = process.join(1, &all, &addresses, config());
            group.fit().unwrap();
            let mut values = vec![f64::from(process.me); 5];
            group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            assert_eq!(values, [3.0; 5], "{transport}");
            group.leave();
            if process.me == 1 {
                return;
            }
            // In the other order, so that a connection that is kept belongs to another rank.
            let (mut group, _, _) = process.join(2, &[2, 0], &addresses, config());
            let gathered = group.all_gather_v(&[process.me as u8]).unwrap();
            assert_eq!(gathered, [[2], [0]], "{transport}");
            group.leave();
        });
    }
}

#[test]
fn a_call_that_broke_in_one_group_is_resolved_in_the_next() {
    let config = CommunicatorConfig { unanimous: true, ..config() };
    let processes = processes("auto", 2);
    let addresses = addresses(&processes);
    at_once(processes, |mut process| {
        let (mut group, _, abort) = process.join(1, &[0, 1], &addresses, config);
        let mut values = [1_i64, 2];
        group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        abort.abort("the group ends here");
        group.all_reduce(&mut values, ReduceOp::Sum).unwrap_err();
        assert_eq!(values, [2, 4]);
        group.leave();
        let (mut group, resolution, _) = process.join(2, &[0, 1], &addresses, config);
        assert_eq!(resolution, Resolution::Level, "both have the first result, and none the second");
        let nothing = group.adopt(ElementsMut::of(&mut values)).unwrap_err();
        assert!(nothing.to_string().contains("call adopt once"), "{nothing}");
        group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        assert_eq!(values, [4, 8]);
        group.leave();
    });
}

#[test]
fn users_of_communicators_run_over_a_boxed_group() {
    for transport in ["auto", "tcp"] {
        let processes = processes(transport, 2);
        let addresses = addresses(&processes);
        at_once(processes, |mut process| {
            let (mut group, _, abort) = process.join(1, &[0, 1], &addresses, config());
            let mine = process.me as f32;
            let mut gradient = vec![1.0, mine];
            Compressor::new(Compression::Bf16).all_reduce(&mut group, &mut gradient).unwrap();
            assert_eq!(gradient, [2.0, 1.0]);
            let mut buffer = group.buffer::<f32>(40_000).unwrap();
            buffer.fill(mine + 1.0);
            group.all_reduce_buffer(&mut buffer, ReduceOp::Sum).unwrap();
            assert!(buffer.iter().all(|value| *value == 3.0));
            let part = group.reduce_scatter(&[1.0_f32, 2.0, 3.0], ReduceOp::Sum).unwrap();
            assert_eq!(part, [vec![2.0, 4.0], vec![6.0]][process.me as usize]);
            let mut into = [0_u8; 2];
            group.all_reduce_into(&[process.me as u8, 7], &mut into, ReduceOp::Max).unwrap();
            assert_eq!(into, [1, 7]);

            let buckets = Buckets::plan(&[2, 3], 1 << 10, 1 << 10);
            let mut reducer = Reducer::new(group, buckets, abort).unwrap();
            reducer.submit(1, &[mine; 3]).unwrap();
            reducer.submit(0, &[1.0; 2]).unwrap();
            reducer.finish(Instant::now() + PATIENT).unwrap();
            assert_eq!(reducer.wait(1, Instant::now()).unwrap(), [1.0; 3]);
            assert_eq!(reducer.wait(0, Instant::now()).unwrap(), [2.0; 2]);
            reducer.into_parts().unwrap().communicator.leave();
        });
    }
}
