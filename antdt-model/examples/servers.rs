//! One step of one worker on two parameter servers, and the same step on a replica: `cargo run -p antdt-model --example
//! servers`. Everything runs in this process, over TCP.

use antdt_collective::{AbortHandle, JobToken};
use antdt_core::{Holder, Incarnation, Iteration, NodeId, OptimizerSpec, ParamLayout, Seed, TableSpec};
use antdt_model::{PartitionConfig, PsClient, PsClientConfig, PsServer, PsServerConfig};
use antdt_model::{Replica, SparseGradient, Staleness, StepCommit};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A flat vector of 3 and a table of a million rows of 2, spread over two servers.
    let table = TableSpec { rows: 1 << 20, dim: 2, init_scale: 0.1 };
    let layout = ParamLayout { dense_len: 3, table: Some(table) };
    let (optimizer, seed) = (OptimizerSpec::Adagrad { learning_rate: 0.5, epsilon: 1e-8 }, Seed(7));
    let job = JobToken::new("the job's secret");
    let serve = |server| {
        let (servers, staleness, layout) = (2, Staleness::Synchronous, layout.clone());
        let partition = PartitionConfig { layout, optimizer, seed, server, servers, staleness };
        PsServer::bind(([127, 0, 0, 1], 0).into(), PsServerConfig::new(partition, job))
    };
    let servers = [serve(0)?, serve(1)?];
    let worker = Holder::new(NodeId::worker(0), Incarnation(0));
    let addresses = servers.each_ref().map(PsServer::local_address);
    let config = PsClientConfig::new(worker, job, layout.clone());
    let mut client = PsClient::connect(&addresses, config, &AbortHandle::new()?)?;
    client.init_dense(&[0.0; 3])?;
    // Sums of gradients over a batch of 2 samples that touched rows 5 and 900.
    let (step, samples, dense) = (Iteration(0), 2, [2.0, 4.0, -6.0]);
    let gradient = SparseGradient { rows: vec![5, 900], values: vec![1.0, 2.0, 3.0, 4.0] };
    client.push(step, samples, &dense, &gradient.rows, &gradient.values)?;
    // Nothing has changed yet: the next pull says which pushes make up the step.
    let commit = StepCommit { step, contributors: vec![worker], samples };
    let (mut pulled, mut rows) = ([0.0; 3], Vec::new());
    client.pull(Some(&commit), &gradient.rows, &mut pulled, &mut rows)?;

    let mut replica = Replica::new(&layout, optimizer, seed, vec![0.0; 3])?;
    replica.apply(&dense, &gradient, samples)?;
    assert_eq!(replica.dense(), pulled);
    println!("two servers and one replica hold {pulled:?}; rows 5 and 900 hold {rows:?}");
    Ok(())
}
