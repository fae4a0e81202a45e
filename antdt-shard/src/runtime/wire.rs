//! Conversion of a data set and its state to and from the wire. Incoming messages are checked: no field may
//! be missing, and none is guessed.

use antdt_core::{Delivery, Epoch, Generation, InvalidValue, SampleRange, Seed};
use antdt_proto::convert::required;
use antdt_proto::{WireError, v1};

use crate::ledger::{LedgerStatus, Missing, MissingWhy};
use crate::spec::{Assignment, Cut, DatasetSpec, Epochs, OnQuarantine, Shuffle};

/// Places at most at which a data set on the wire is cut: with all else it fits a message. One with more is opened in
/// the process of the service.
pub(super) const CUT_ENDS_MAX: usize = 1 << 18;

pub(super) fn spec_out(spec: &DatasetSpec) -> v1::DatasetSpec {
    use v1::dataset_spec as wire;
    v1::DatasetSpec {
        name: spec.name.clone(),
        num_samples: spec.num_samples,
        cut: Some(match &spec.cut {
            Cut::Every(len) => wire::Cut::Every(*len),
            Cut::At(ends) => wire::Cut::At(v1::CutAt { ends: ends.to_vec() }),
        }),
        epochs: Some(match spec.epochs {
            Epochs::Finite(epochs) => wire::Epochs::Finite(epochs),
            Epochs::Infinite => wire::Epochs::Infinite(v1::Infinite {}),
        }),
        shuffle: match spec.shuffle {
            Shuffle::None => v1::Shuffle::None,
            Shuffle::Shards => v1::Shuffle::Shards,
            Shuffle::ShardsAndSamples => v1::Shuffle::ShardsAndSamples,
        }
        .into(),
        seed: Some(spec.seed.0),
        epoch_overlap: spec.epoch_overlap,
        delivery: match spec.delivery {
            Delivery::AtLeastOnce => v1::Delivery::AtLeastOnce,
            Delivery::AtMostOnce => v1::Delivery::AtMostOnce,
        }
        .into(),
        max_data_faults: spec.max_data_faults,
        on_quarantine: Some(match spec.on_quarantine {
            OnQuarantine::FailJob => wire::OnQuarantine::FailJob(v1::FailJob {}),
            OnQuarantine::Continue { max_samples } => wire::OnQuarantine::MaxSamples(max_samples),
        }),
        max_leases_per_holder: spec.max_leases_per_holder,
        assignment: Some(match spec.assignment {
            Assignment::Dynamic => wire::Assignment::Dynamic(v1::Dynamic {}),
            Assignment::Static { workers } => wire::Assignment::Workers(workers),
        }),
    }
}

/// Not [validated](DatasetSpec::validate) yet.
pub(super) fn spec_in(wire: v1::DatasetSpec) -> Result<DatasetSpec, InvalidValue> {
    use v1::dataset_spec as wire_of;
    let absent = |field: &str, expected: &str| InvalidValue::new(field, "nothing", expected);
    let shuffle = match v1::Shuffle::try_from(wire.shuffle) {
        Ok(v1::Shuffle::None) => Shuffle::None,
        Ok(v1::Shuffle::Shards) => Shuffle::Shards,
        Ok(v1::Shuffle::ShardsAndSamples) => Shuffle::ShardsAndSamples,
        Ok(v1::Shuffle::Unspecified) | Err(_) => {
            let expected = "none, shards, or shards and samples (1 to 3)";
            return Err(InvalidValue::new("shuffle", wire.shuffle, expected));
        }
    };
    let seed = match (shuffle, wire.seed) {
        (_, Some(seed)) => Seed(seed),
        (Shuffle::None, None) => Seed(0),
        (Shuffle::Shards | Shuffle::ShardsAndSamples, None) => {
            return Err(absent("seed", "given where something is shuffled"));
        }
    };
    let delivery = match v1::Delivery::try_from(wire.delivery) {
        Ok(v1::Delivery::AtLeastOnce) => Delivery::AtLeastOnce,
        Ok(v1::Delivery::AtMostOnce) => Delivery::AtMostOnce,
        Ok(v1::Delivery::Unspecified) | Err(_) => {
            return Err(InvalidValue::new(
                "delivery",
                wire.delivery,
                "at least once, or at most once (1 or 2)",
            ));
        }
    };
    let cut = match wire.cut {
        Some(wire_of::Cut::Every(len)) => Cut::Every(len),
        Some(wire_of::Cut::At(v1::CutAt { ends })) if ends.len() > CUT_ENDS_MAX => {
            let expected = format!("cut at no more than {CUT_ENDS_MAX} places over the network");
            return Err(InvalidValue::new("cut", format!("{} places", ends.len()), expected));
        }
        Some(wire_of::Cut::At(v1::CutAt { ends })) => Cut::At(ends.into()),
        None => return Err(absent("cut", "every so many samples, or at the ends of the shards")),
    };
    Ok(DatasetSpec {
        name: wire.name,
        num_samples: wire.num_samples,
        cut,
        epochs: match wire.epochs {
            Some(wire_of::Epochs::Finite(epochs)) => Epochs::Finite(epochs),
            Some(wire_of::Epochs::Infinite(v1::Infinite {})) => Epochs::Infinite,
            None => return Err(absent("epochs", "a number, or infinite")),
        },
        shuffle,
        seed,
        epoch_overlap: wire.epoch_overlap,
        delivery,
        max_data_faults: wire.max_data_faults,
        on_quarantine: match wire.on_quarantine {
            Some(wire_of::OnQuarantine::FailJob(v1::FailJob {})) => OnQuarantine::FailJob,
            Some(wire_of::OnQuarantine::MaxSamples(max_samples)) => OnQuarantine::Continue { max_samples },
            None => {
                return Err(absent("on_quarantine", "to fail the job, or the most samples to do without"));
            }
        },
        max_leases_per_holder: wire.max_leases_per_holder,
        assignment: match wire.assignment {
            Some(wire_of::Assignment::Dynamic(v1::Dynamic {})) => Assignment::Dynamic,
            Some(wire_of::Assignment::Workers(workers)) => Assignment::Static { workers },
            None => return Err(absent("assignment", "dynamic, or the number of workers with a share")),
        },
    })
}

pub(super) fn status_out(status: LedgerStatus) -> v1::LedgerStatus {
    let LedgerStatus { generation, counts, finished, failed } = status;
    v1::LedgerStatus { generation: generation.0, counts: Some(counts.into()), finished, failed }
}

pub(super) fn status_in(wire: v1::LedgerStatus) -> Result<LedgerStatus, WireError> {
    Ok(LedgerStatus {
        generation: Generation(wire.generation),
        counts: required("status.counts", wire.counts)?.into(),
        finished: wire.finished,
        failed: wire.failed,
    })
}

pub(super) fn missing_out(missing: &Missing) -> v1::MissingRange {
    let why = match missing.why {
        MissingWhy::Waiting => v1::MissingWhy::Waiting,
        MissingWhy::Leased => v1::MissingWhy::Leased,
        MissingWhy::Quarantined => v1::MissingWhy::Quarantined,
    };
    v1::MissingRange { start: missing.samples.start, end: missing.samples.end, why: why.into() }
}

pub(super) fn missing_in(epoch: Epoch, wire: v1::MissingRange) -> Result<Missing, WireError> {
    let why = match v1::MissingWhy::try_from(wire.why) {
        Ok(v1::MissingWhy::Waiting) => MissingWhy::Waiting,
        Ok(v1::MissingWhy::Leased) => MissingWhy::Leased,
        Ok(v1::MissingWhy::Quarantined) => MissingWhy::Quarantined,
        Ok(v1::MissingWhy::Unspecified) | Err(_) => {
            return Err(WireError::Unknown { field: "missing.why", value: wire.why.into() });
        }
    };
    Ok(Missing { epoch, samples: SampleRange { start: wire.start, end: wire.end }, why })
}
