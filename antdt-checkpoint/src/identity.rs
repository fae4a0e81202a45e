//! [`JobIdentity`]: the properties that a job must share with the job that took a checkpoint, to continue
//! from it.
//!
//! Workers, servers, sync mode, policy, batch size and optimizer may change, and so are not in it.

use antdt_core::{GroupKind, ParamLayout};
use serde::{Deserialize, Serialize};

/// Properties that a job must have in common with the job that took a checkpoint, to continue from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobIdentity {
    /// Name of the workload.
    pub workload: String,
    /// Shape of the model.
    pub layout: ParamLayout,
    /// The job's seed, from which follow the order of the data, the choice of the samples that are held out
    /// for evaluation, and the initial values of the parameters.
    pub seed: u64,
    /// Seed of the initial values of table rows, derived from the job's seed.
    pub rows_seed: u64,
    /// Data set that the job trains on.
    pub data: DataIdentity,
}

/// Identity of the data that a job trains on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataIdentity {
    /// Location of the data as the user gave it. It is compared only if a fingerprint is missing, because
    /// data may move.
    pub name: String,
    /// Number of training samples of one epoch.
    pub rows: u64,
    /// Text form of the setting that says which samples are held out for evaluation, such as `0.1`.
    pub evaluation: String,
    /// Digest of the data's content; `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

/// Report that a checkpoint and this job differ in a property, so that the job cannot continue from the
/// checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {theirs} in the checkpoint and {ours} in this job; {remedy}")]
pub struct Mismatch {
    /// Name of the property that differs.
    pub field: String,
    /// Value in the checkpoint.
    pub theirs: String,
    /// Value in this job.
    pub ours: String,
    /// What the user can do about it.
    pub remedy: &'static str,
}

const START_ANEW: &str = "name a checkpoint of this model, or train anew in another --checkpoint-dir";

impl JobIdentity {
    /// Checks whether `job` can continue from a checkpoint of this job.
    ///
    /// # Errors
    /// The first difference. Fingerprints are compared if both sides have one, otherwise the names of the
    /// data.
    pub fn check(&self, job: &Self) -> Result<(), Mismatch> {
        let same = |field: &str, theirs: &dyn ToString, ours: &dyn ToString, remedy| {
            let (theirs, ours) = (theirs.to_string(), ours.to_string());
            if theirs == ours {
                return Ok(());
            }
            Err(Mismatch { field: field.to_owned(), theirs, ours, remedy })
        };
        const SAME_DATA: &str = "name the data set of the checkpoint with --data";
        same("the workload", &self.workload, &job.workload, "choose the same --workload")?;
        self.check_layout(&job.layout)?;
        same("the seed", &self.seed, &job.seed, "choose the same --seed")?;
        same("the seed of rows", &self.rows_seed, &job.rows_seed, START_ANEW)?;
        let (theirs, ours) = (&self.data, &job.data);
        match (&theirs.fingerprint, &ours.fingerprint) {
            // An earlier program wrote the same without the checksum of the whole content.
            (Some(theirs), Some(ours)) if ours.rsplit_once(':').is_some_and(|(files, _)| files == theirs) => {
            }
            (Some(theirs), Some(ours)) => same("the data's fingerprint", theirs, ours, SAME_DATA)?,
            _ => same("the data set", &theirs.name, &ours.name, SAME_DATA)?,
        }
        same(
            "the evaluation split",
            &theirs.evaluation,
            &ours.evaluation,
            "choose the same --eval-fraction",
        )?;
        same("the number of training samples", &theirs.rows, &ours.rows, SAME_DATA)
    }

    /// Checks whether a model of this shape can take the checkpoint's parameters.
    ///
    /// # Errors
    /// The first group or table that differs.
    pub fn check_layout(&self, layout: &ParamLayout) -> Result<(), Mismatch> {
        let differs = |field: String, theirs: Option<String>, ours: Option<String>| Mismatch {
            field,
            theirs: theirs.unwrap_or_else(|| "missing".to_owned()),
            ours: ours.unwrap_or_else(|| "missing".to_owned()),
            remedy: START_ANEW,
        };
        let (theirs, ours) = (self.layout.groups(), layout.groups());
        for number in 0..theirs.len().max(ours.len()) {
            let (theirs, ours) = (theirs.get(number), ours.get(number));
            if theirs != ours {
                let text = |group: &antdt_core::ParamGroup| {
                    let decays = if group.decays { "" } else { ", no decay" };
                    let kind = match group.kind {
                        GroupKind::Trainable => "trainable",
                        GroupKind::State => "state",
                    };
                    let shape: Vec<String> = group.shape.iter().map(ToString::to_string).collect();
                    format!("`{}` ({} values, {kind}{decays})", group.name, shape.join(" x "))
                };
                return Err(differs(format!("group {number}"), theirs.map(text), ours.map(text)));
            }
        }
        let (theirs, ours) = (self.layout.tables(), layout.tables());
        for number in 0..theirs.len().max(ours.len()) {
            let (theirs, ours) = (theirs.get(number), ours.get(number));
            if theirs != ours {
                let text = |table: &antdt_core::TableSpec| {
                    let start = table.init_scale;
                    format!("`{}` ({} x {}, starts in ±{start})", table.name, table.rows, table.dim)
                };
                return Err(differs(format!("table {number}"), theirs.map(text), ours.map(text)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{ParamGroup, TableSpec};

    use super::*;

    fn identity() -> JobIdentity {
        let layout = ParamLayout::dense(3).with_table(TableSpec::new("rows", 10, 2, 0.1)).unwrap();
        JobIdentity {
            workload: "deepfm".to_owned(),
            layout,
            seed: 7,
            rows_seed: 8,
            data: DataIdentity {
                name: "a.tsv".to_owned(),
                rows: 900,
                evaluation: "0.1".to_owned(),
                fingerprint: None,
            },
        }
    }

    #[test]
    fn each_difference_is_named_with_both_values_and_a_remedy() {
        identity().check(&identity()).unwrap();
        type Change = fn(&mut JobIdentity);
        let other_group: Change = |job| {
            job.layout =
                ParamLayout::new(vec![ParamGroup::state("dense", 3)], job.layout.tables().to_vec()).unwrap();
        };
        let changes: [(Change, &str); 10] = [
            (
                |job| job.workload = "xdeepfm".to_owned(),
                "the workload is deepfm in the checkpoint and xdeepfm in",
            ),
            (
                |job| job.layout = ParamLayout::dense(3),
                "table 0 is `rows` (10 x 2, starts in ±0.1) in the checkpoint and missing",
            ),
            (
                |job| job.layout = ParamLayout::dense(4),
                "group 0 is `dense` (3 values, trainable) in the checkpoint and `dense` (4 values",
            ),
            (
                |job| {
                    job.layout =
                        ParamLayout::new(vec![ParamGroup::trainable("w", 6).with_shape(&[3, 2])], Vec::new())
                            .unwrap();
                },
                "and `w` (3 x 2 values, trainable) in this job",
            ),
            (other_group, "and `dense` (3 values, state, no decay) in this job"),
            (|job| job.seed = 1, "the seed is 7 in the checkpoint and 1 in this job; choose the same --seed"),
            (|job| job.rows_seed = 1, "the seed of rows"),
            (|job| job.data.name = "b.tsv".to_owned(), "the data set is a.tsv in the checkpoint and b.tsv"),
            (|job| job.data.evaluation = "0.2".to_owned(), "the evaluation split is 0.1"),
            (|job| job.data.rows = 901, "the number of training samples is 900"),
        ];
        for (change, says) in changes {
            let mut job = identity();
            change(&mut job);
            let error = identity().check(&job).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
            assert!(error.contains("; ") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn data_that_moved_is_known_by_its_fingerprint() {
        let with = |name: &str, print: &str| {
            let mut job = identity();
            job.data.name = name.to_owned();
            job.data.fingerprint = Some(print.to_owned());
            job
        };
        with("a.tsv", "x").check(&with("elsewhere/a.tsv", "x")).unwrap();
        // A checkpoint from before there was a checksum of the whole content.
        with("a.tsv", "1:9:x").check(&with("a.tsv", "1:9:x:y")).unwrap();
        assert!(with("a.tsv", "1:9:x:z").check(&with("a.tsv", "1:9:x:y")).is_err());
        assert!(with("a.tsv", "1:9:x:y").check(&with("a.tsv", "1:9:x")).is_err());
        let error = with("a.tsv", "x").check(&with("a.tsv", "y")).unwrap_err();
        assert_eq!(
            (error.field.as_str(), error.theirs.as_str(), error.ours.as_str()),
            ("the data's fingerprint", "x", "y")
        );
        assert!(
            with("a.tsv", "x")
                .check(&JobIdentity {
                    data: DataIdentity { name: "b.tsv".to_owned(), ..identity().data },
                    ..identity()
                })
                .is_err()
        );
    }
}
