//! Trains a model for two steps, takes a checkpoint of it with its ledger, and goes on from that.
#![allow(clippy::disallowed_methods, reason = "a program may ask for the time")]

use std::time::{SystemTime, UNIX_EPOCH};

use antdt_checkpoint::{DataIdentity, Folder, JobIdentity, Manifest, Retention, export};
use antdt_core::{
    Ack, CheckpointId, FetchOutcome, Generation, Holder, Incarnation, NodeId, ParamLayout, RequestId, Seed,
    TableSpec,
};
use antdt_model::{Replica, SparseGradient, UpdateRule};
use antdt_shard::{DatasetSpec, LedgerCut, ShardLedger};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let place = std::env::temp_dir().join(format!("antdt-checkpoint-{}", std::process::id()));
    let layout = ParamLayout::dense(3).with_table(TableSpec::new("table", 1000, 2, 0.1))?;
    let (rule, seed) = (UpdateRule::named("adam", 0.1)?, Seed(7));
    let mut model = Replica::new(&layout, &rule, seed, vec![0.0; 3])?;
    let data = DatasetSpec::new("clicks", 400, 100);
    let mut ledger = ShardLedger::new(data.clone(), Generation(1))?;

    // Two shards, a step for each.
    let me = Holder::new(NodeId::worker(0), Incarnation(0));
    let generation = ledger.register(me)?;
    for request in 1..=2 {
        let FetchOutcome::Granted(grant) = ledger.fetch(me, generation, RequestId(request))? else { break };
        let rows = SparseGradient { rows: vec![request, 900], values: vec![1.0, 2.0, 3.0, 4.0] };
        model.apply(&[2.0, 4.0, -6.0], &rows, grant.len)?;
        ledger.ack(me, Ack { lease: grant.lease, offset: grant.len })?;
    }

    // The model and the ledger of one moment, as files.
    let folder = Folder::create(place.join("checkpoints"))?;
    let id = folder.next_id()?;
    let cut = ledger.cut(id, model.trained().samples)?;
    let part = folder.write_part(id, "replica", &layout, &model.portion())?;
    let manifest = Manifest { files: vec![part], ..about(id, &cut, &model, &layout, &rule, seed)? };
    let manifest = folder.commit(manifest, &cut)?;
    println!("checkpoint {id}: {} bytes in {} files", manifest.bytes(), manifest.files.len());
    folder.retain(&Retention { newest: 3, max_age: None, pinned: None }, manifest.created_unix_s)?;

    // Another process goes on from the newest.
    let found = Folder::open(place.join("checkpoints"))?.newest()?;
    let checkpoint = found.checkpoint.ok_or("there is no checkpoint")?;
    let mut again = Replica::new(&layout, &rule, seed, vec![0.0; 3])?;
    for portion in checkpoint.portions() {
        again.restore(&portion?, checkpoint.manifest().optimizer == rule.identity())?;
    }
    again.set_trained(checkpoint.manifest().trained);
    let mut ledger = ShardLedger::new(data.clone(), Generation(2))?;
    ledger.restore_cut(&checkpoint.ledger_cut(&data)?, &checkpoint.manifest().ledger, Generation(3))?;
    println!("{} samples are trained, {:?} are the dense parameters", ledger.counts().acked, again.dense());
    assert_eq!(again.export(), model.export());

    let exported = export(&checkpoint, &place.join("model.safetensors"), false)?;
    println!("the plain model: {} tensors, {} bytes", exported.tensors, exported.bytes);
    std::fs::remove_dir_all(place)?;
    Ok(())
}

/// What the manifest says besides its files.
fn about(
    checkpoint: CheckpointId,
    cut: &LedgerCut,
    model: &Replica,
    layout: &ParamLayout,
    rule: &UpdateRule,
    seed: Seed,
) -> Result<Manifest, Box<dyn std::error::Error>> {
    Ok(Manifest {
        format: Manifest::FORMAT,
        antdt: env!("CARGO_PKG_VERSION").to_owned(),
        checkpoint,
        created_unix_s: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
        job: JobIdentity {
            workload: "example".to_owned(),
            layout: layout.clone(),
            seed: seed.0,
            rows_seed: seed.0,
            data: DataIdentity {
                name: "clicks".to_owned(),
                rows: 400,
                evaluation: "0".to_owned(),
                fingerprint: None,
            },
        },
        trained: model.trained(),
        optimizer: rule.identity(),
        ledger: cut.binding(),
        mode: "allreduce".to_owned(),
        workers: 1,
        servers: 0,
        epochs: 1,
        shard_len: 100,
        plan: [(NodeId::worker(0).to_string(), 100)].into(),
        extra: [("global-batch-size".to_owned(), "100".to_owned())].into(),
        files: Vec::new(),
    })
}
