//! Bulk data of a job whose connections are wrapped. One test, so that all sockets of the process are its own.

use antdt_collective::group::{Group, Member};
use antdt_collective::runtime::testing::{PATIENT, abort_handles, at_once, holder, listener_over};
use antdt_collective::runtime::transport::REGISTRY;
use antdt_collective::runtime::{Communicator, CommunicatorConfig, Listener, ScheduledCommunicator};
use antdt_collective::{JobToken, ReduceOp};
use antdt_core::testing::{Mask, connected_sockets};
use antdt_core::{
    Connections, Iteration, MembershipVersion, ParamLayout, Rank, Seed, ServerWeights, StreamEnd,
};
use antdt_model::{
    PartitionConfig, PsClient, PsClientConfig, PsServer, PsServerConfig, Staleness, UpdateRule,
};

const WORLD: u32 = 3;

#[test]
fn no_stream_of_a_collective_or_a_parameter_server_is_opened_around_the_wrapper() {
    for transport in ["tcp", "auto"] {
        let mask = Mask::default();
        let connections = Connections::wrapped(mask.clone());
        let fabric = REGISTRY.by_name(transport).unwrap();
        let job = JobToken::new("job");
        let layout = ParamLayout::dense(5);
        let partition = PartitionConfig {
            layout: layout.clone(),
            rule: UpdateRule::named("sgd", 0.1).unwrap(),
            seed: Seed(1),
            server: 0,
            servers: 1,
            weights: ServerWeights::default(),
            staleness: Staleness::Synchronous,
        };
        let mut config = PsServerConfig::new(partition, job);
        config.connections = connections.clone();
        let address = "127.0.0.1:0".parse().unwrap();
        let server = PsServer::bind(address, config, REGISTRY.by_name(transport).unwrap()).unwrap();
        let listeners: Vec<Listener> = (0..WORLD).map(|_| listener_over(connections.clone())).collect();
        let members = (0..).zip(&listeners);
        let members: Vec<Member> = members
            .map(|(rank, own)| Member { holder: holder(rank), address: own.local_address() })
            .collect();
        let aborts = abort_handles(WORLD);
        let kept = at_once(0..WORLD, |rank| {
            let (listener, abort) = (&listeners[rank as usize], &aborts[rank as usize]);
            let group = Group::new(MembershipVersion(1), members.clone(), Rank(rank)).unwrap();
            let transport = fabric.connect(listener, &group, PATIENT, abort).unwrap();
            let mut group = ScheduledCommunicator::new(transport, CommunicatorConfig::default());
            // Longer than what a codec takes at once.
            let mut sums = vec![rank as f32; 300_000];
            group.all_reduce(&mut sums, ReduceOp::Sum).unwrap();
            assert!(sums.iter().all(|sum| *sum == 3.0));
            let mut config = PsClientConfig::new(holder(rank), job, layout.clone());
            config.connections = connections.clone();
            let mut client = PsClient::connect(&[server.local_address()], config, &*fabric, abort).unwrap();
            client.init_dense(&[0.5; 5]).unwrap();
            let mut dense = [0.0; 5];
            client.pull(None, &[], &mut dense, &mut Vec::new()).unwrap();
            assert_eq!(dense, [0.5; 5]);
            client.push(Iteration(0), 1, &dense, &[], &[]).unwrap();
            (group, client)
        });
        let pairs = WORLD * (WORLD - 1) / 2;
        let streams = (pairs + WORLD) as usize;
        assert_eq!(connected_sockets(), 2 * streams, "{transport}");
        let wrapped = [StreamEnd::Opened, StreamEnd::Accepted].map(|end| mask.wrapped(end));
        assert_eq!(wrapped, [streams; 2], "{transport}");
        drop(kept);
        server.shutdown();
    }
}
