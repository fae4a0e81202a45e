use antdt_core::{ParamLayout, TableSpec};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::identity::DataIdentity;

/// A manifest of one part, without bytes behind it.
pub(crate) fn sample() -> Manifest {
    let layout = ParamLayout::dense(3).with_table(TableSpec::new("rows", 10, 2, 0.1)).unwrap();
    let data = DataIdentity {
        name: "synthetic:1000".to_owned(),
        rows: 900,
        evaluation: "0.1".to_owned(),
        fingerprint: None,
    };
    let file = |name: &str, bytes, crc32c| FileEntry { name: name.to_owned(), bytes, crc32c };
    Manifest {
        format: Manifest::FORMAT,
        antdt: "0.1.0".to_owned(),
        checkpoint: CheckpointId(7),
        created_unix_s: 1_800_000_000,
        job: JobIdentity { workload: "deepfm".to_owned(), layout, seed: 1, rows_seed: u64::MAX, data },
        trained: Trained { steps: 12, samples: 1000 },
        optimizer: "adagrad (epsilon=0.000001)".to_owned(),
        ledger: "7:1000:00c0ffee".parse().unwrap(),
        mode: "allreduce".to_owned(),
        workers: 2,
        servers: 0,
        epochs: 3,
        shard_len: 64,
        plan: [("worker-0".to_owned(), 100), ("worker-1".to_owned(), 28)].into(),
        extra: [("global-batch-size".to_owned(), "128".to_owned())].into(),
        files: vec![file("replica.safetensors", 400, 0xab), file("ledger.cut", 90, 0xdead_beef)],
    }
}

#[test]
fn a_manifest_reads_back_as_it_was_written() {
    let json = sample().to_json();
    assert_eq!(Manifest::from_json(json.as_bytes()).unwrap(), sample());
    for says in
        ["\"ledger\": \"7:1000:00c0ffee\"", "\"crc32c\": \"000000ab\"", "\"steps\": 12", "\"checkpoint\": 7"]
    {
        assert!(json.contains(says), "{json}");
    }
    assert_eq!(sample().parts().count(), 1);
    assert_eq!((sample().bytes(), sample().file("ledger.cut").unwrap().bytes), (490, 90));
}

/// A manifest that its writer changed, and not a fault of the disk.
fn rewritten(json: &str) -> String {
    seal(json.rsplit_once(CHECKSUM).map_or(json, |(content, _)| content))
}

#[test]
fn fields_of_a_later_version_are_no_reason_to_refuse() {
    let json = sample().to_json().replacen('{', "{\"colour\": {\"red\": 1},", 1);
    let json = rewritten(&json);
    assert_eq!(Manifest::from_json(json.as_bytes()).unwrap(), sample());
}

#[test]
fn a_newer_format_with_any_other_fields_is_refused_by_field_and_version() {
    let error = Manifest::from_json(br#"{"format": 2, "antdt": "3.1", "parts": 4}"#).unwrap_err();
    assert_eq!(
        error.to_string(),
        "format = 2, written by antdt 3.1: this program reads formats up to 1; use that version"
    );
    assert!(matches!(Manifest::from_json(b"{\"format\": 9}"), Err(ManifestError::Newer { format: 9, .. })));
}

#[test]
fn text_that_is_no_manifest_is_refused_in_one_line_that_says_where() {
    let json = sample().to_json();
    let torn = &json[..json.len() / 2];
    let cases = [
        (String::new(), "EOF"),
        (torn.to_owned(), "EOF"),
        ("[]".to_owned(), "not a manifest"),
        ("{\"format\": 1}".to_owned(), "missing field `antdt`"),
        (rewritten(&json.replace("\"format\": 1", "\"format\": 0")), "format = 0"),
        (rewritten(&json.replace("7:1000:00c0ffee", "7:1000")), "cut binding"),
        (
            rewritten(&json.replace("7:1000:00c0ffee", "6:1000:00c0ffee")),
            "ledger is of checkpoint 6 and the model of 7",
        ),
        (rewritten(&json.replace("000000ab", "+00000ab")), "crc32c = \"+00000ab\""),
        (
            rewritten(&json.replace("\"replica.safetensors\"", "\"../replica.safetensors\"")),
            "no name of a file",
        ),
        (rewritten(&json.replace("\"replica.safetensors\"", "\"ledger.cut\"")), "listed twice"),
        (rewritten(&json.replace("\"replica.safetensors\"", "\"replica.bin\"")), "no part of the model"),
        (rewritten(&json.replace("\"len\": 3", "\"len\": 0")), "at least one value"),
    ];
    for (text, says) in cases {
        let error = Manifest::from_json(text.as_bytes()).unwrap_err();
        assert!(matches!(error, ManifestError::Malformed { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{says}: {error}");
    }
    assert!(Manifest::from_json(b"\xff\xfe").is_err());
    let unsealed = json.rsplit_once(CHECKSUM).unwrap().0.to_owned() + "\n}\n";
    assert!(
        Manifest::from_json(unsealed.as_bytes()).unwrap_err().to_string().contains("checksum is missing")
    );
}

#[test]
fn no_bit_of_a_manifest_is_another_one_unseen() {
    let bytes = sample().to_json().into_bytes();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            assert!(Manifest::from_json(&damaged).is_err(), "bit {bit} of byte {at}");
        }
        assert!(Manifest::from_json(&bytes[..at]).is_err(), "the first {at} bytes");
    }
    let steps = sample().to_json().replace("\"steps\": 12", "\"steps\": 13");
    assert_eq!(Manifest::from_json(steps.as_bytes()), Err(ManifestError::Damaged));
}

#[test]
fn folders_are_named_so_that_names_sort_as_numbers() {
    assert_eq!(folder_name(CheckpointId(12)), "00000000000000000012");
    for id in [0, 1, 12, u64::MAX] {
        assert_eq!(checkpoint_of(&folder_name(CheckpointId(id))), Some(CheckpointId(id)));
    }
    for other in ["12", "+0000000000000000012", "00000000000000000012.part", "99999999999999999999", ""] {
        assert_eq!(checkpoint_of(other), None, "{other}");
    }
}

/// All values within a value that hold no further ones.
fn leaves(value: &mut Value) -> Vec<&mut Value> {
    if value.as_array().is_some_and(|values| !values.is_empty()) {
        value.as_array_mut().into_iter().flatten().flat_map(leaves).collect()
    } else if value.as_object().is_some_and(|fields| !fields.is_empty()) {
        value.as_object_mut().into_iter().flat_map(|fields| fields.values_mut()).flat_map(leaves).collect()
    } else {
        vec![value]
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_are_no_manifest(bytes in prop::collection::vec(any::<u8>(), 0..300), digits in "[0-9eE.\\-]{0,40}") {
        prop_assert!(Manifest::from_json(&bytes).is_err());
        let head = format!("{{\"format\": {digits}}}");
        prop_assert!(Manifest::from_json(head.as_bytes()).is_err());
    }

    /// As from a program with a defect: the checksum fits, the values do not.
    #[test]
    fn any_values_in_a_manifest_are_read_or_refused(
        at in any::<prop::sample::Index>(),
        to in prop_oneof![
            any::<u64>().prop_map(|number| json!(number)),
            any::<i64>().prop_map(|number| json!(number)),
            any::<f64>().prop_map(|number| json!(number)),
            ".{0,20}".prop_map(|text| json!(text)),
            prop::sample::select(vec![json!(null), json!([]), json!({}), json!(u64::MAX), json!([[u64::MAX, 2]])]),
        ],
    ) {
        let mut value: Value = serde_json::from_str(&sample().to_json()).unwrap();
        value.as_object_mut().unwrap().remove("checksum");
        let mut all = leaves(&mut value);
        *all.swap_remove(at.index(all.len())) = to;
        let text = serde_json::to_string_pretty(&value).unwrap();
        let text = seal(text.strip_suffix("\n}").unwrap());
        match Manifest::from_json(text.as_bytes()) {
            Ok(manifest) => {
                prop_assert_eq!(&Manifest::from_json(manifest.to_json().as_bytes()).unwrap(), &manifest);
                prop_assert!(manifest.bytes() >= manifest.files[0].bytes);
                // Whatever it says, a job is told whether it may go on from it.
                let _ = manifest.job.check(&sample().job);
            }
            Err(error) => prop_assert!(!error.to_string().contains('\n'), "{error}"),
        }
    }
}
