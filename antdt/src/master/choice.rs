//! What a job with `--sync auto` chooses its mode by, besides what its head measures.

use antdt_core::ParamLayout;
use antdt_job::SyncMode;
use antdt_job::head::ModeChoice;

use super::Programs;
use crate::job::{JobSpec, NetworkSpec};

/// Returns the choice among these modes. A job whose program has its data from elsewhere (`has_data` is false) stays in the first.
pub(super) fn of(spec: &JobSpec, modes: Vec<SyncMode>, programs: &Programs, has_data: bool) -> ModeChoice {
    let layout = programs.layout.as_ref();
    let latency = spec.emulate_network.as_ref().map(|NetworkSpec(network)| network.latency.as_secs_f64());
    ModeChoice {
        modes,
        servers: spec.servers,
        latency: latency.unwrap_or_default(),
        whole: layout.map_or(1.0, |layout| whole(layout, spec.global_batch_size)),
        fixed: (!has_data).then(|| "its program has its data from elsewhere".to_owned()),
    }
}

/// Returns the choice of a job that keeps no checkpoints, from which it could go on in another mode.
pub(super) fn without_checkpoints(choice: ModeChoice) -> ModeChoice {
    let none = "it keeps no checkpoints (--report-dir, --run-dir, --checkpoint-dir)";
    ModeChoice { fixed: choice.fixed.or_else(|| Some(none.to_owned())), ..choice }
}

/// Size of a model in units of what a step changes: the flat vector, and of each table a row for each sample.
fn whole(layout: &ParamLayout, batch: u32) -> f64 {
    let rows = |most: u64| -> f64 {
        let values =
            layout.tables().iter().map(|table| table.rows.min(most).saturating_mul(table.dim as u64));
        #[allow(clippy::cast_precision_loss, reason = "an estimate")]
        let values = values.fold(layout.dense_len() as u64, u64::saturating_add) as f64;
        values
    };
    (rows(u64::MAX) / rows(batch.into()).max(1.0)).max(1.0)
}
