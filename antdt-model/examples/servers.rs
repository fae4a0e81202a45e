//! One step of one worker on two parameter servers, and the same step on a replica: `cargo run -p antdt-model --example
//! servers`. Everything runs in this process, through shared memory.

use antdt_collective::runtime::transport::REGISTRY;
use antdt_collective::{AbortHandle, JobToken};
use antdt_core::{Holder, Incarnation, Iteration, NodeId, ParamLayout, Seed, ServerWeights, TableSpec};
use antdt_model::{CommitToken, Replica, SparseGradient, Staleness, UpdateRule};
use antdt_model::{PartitionConfig, PsClient, PsClientConfig, PsServer, PsServerConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A flat vector of 3 and a table of a million rows of 2, spread over two servers.
    let layout = ParamLayout::dense(3).with_table(TableSpec::new("table", 1 << 20, 2, 0.1))?;
    let (rule, seed) = (UpdateRule::named("adagrad", 0.5)?, Seed(7));
    let job = JobToken::new("the job's secret");
    let serve = |server| -> Result<PsServer, Box<dyn std::error::Error>> {
        let (servers, staleness) = (2, Staleness::Synchronous);
        let (layout, rule, weights) = (layout.clone(), rule.clone(), ServerWeights::default());
        let partition = PartitionConfig { layout, rule, seed, server, servers, weights, staleness };
        let config = PsServerConfig::new(partition, job);
        Ok(PsServer::bind(([127, 0, 0, 1], 0).into(), config, REGISTRY.by_name("auto")?)?)
    };
    let servers = [serve(0)?, serve(1)?];
    let worker = Holder::new(NodeId::worker(0), Incarnation(0));
    let addresses = servers.each_ref().map(PsServer::local_address);
    let config = PsClientConfig::new(worker, job, layout.clone());
    let mut client =
        PsClient::connect(&addresses, config, &*REGISTRY.by_name("auto")?, &AbortHandle::new()?)?;
    client.init_dense(&[0.0; 3])?;
    // Sums of gradients over a batch of 2 samples that touched rows 5 and 900.
    let (step, samples, dense) = (Iteration(0), 2, [2.0, 4.0, -6.0]);
    let gradient = SparseGradient { rows: vec![5, 900], values: vec![1.0, 2.0, 3.0, 4.0] };
    client.push(step, samples, &dense, &gradient.rows, &gradient.values)?;
    // Nothing has changed yet: the next pull says which pushes make up the step.
    let commit = CommitToken { step, contributors: vec![worker], samples, everyone: true };
    let (mut pulled, mut rows) = ([0.0; 3], Vec::new());
    client.pull(Some(&commit), &gradient.rows, &mut pulled, &mut rows)?;

    let mut replica = Replica::new(&layout, &rule, seed, vec![0.0; 3])?;
    replica.apply(&dense, &gradient, samples)?;
    assert_eq!(replica.dense(), pulled);
    println!("two servers and one replica hold {pulled:?}; rows 5 and 900 hold {rows:?}");
    Ok(())
}
