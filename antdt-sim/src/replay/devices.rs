//! How fast devices are.

use serde_json::Value;

use super::{ReplayError, after_header, number};
use crate::model::compute::DeviceTimes;

/// Parses measured device speeds from CSV with the columns `device,batch_size,steps_per_s`.
///
/// # Errors
/// If a line cannot be parsed (the error has its number), or the lines contradict each other.
pub fn read_devices(text: &str) -> Result<DeviceTimes, ReplayError> {
    let mut rows = Vec::new();
    for row in after_header(text, "device,batch_size,steps_per_s")? {
        let row = row?;
        let [device, batch_size, rate] = row.columns("three columns, device,batch_size,steps_per_s")?;
        let batch_size: u32 = number(row.line, batch_size, "a number of samples")?;
        let rate: f64 = number(row.line, rate, "a number of steps per second")?;
        rows.push((device.to_owned(), batch_size, rate));
    }
    Ok(DeviceTimes::new(rows)?)
}

/// Parses the speeds of one model, running alone on one device, from a table in the form of Gavel's: device,
/// then `ResNet-50 (batch size 16)` or `('ResNet-50 (batch size 16)', 1)`, then `null`, in JSON that is not
/// compressed. Rates of 0 are sizes that did not run, and are left out.
///
/// # Errors
/// If the text is not JSON, or has no rate of this model.
pub fn read_gavel(text: &str, model: &str) -> Result<DeviceTimes, ReplayError> {
    let table: Value = serde_json::from_str(text).map_err(|error| ReplayError::Json(error.to_string()))?;
    let devices = table.as_object().into_iter().flatten();
    let rows = devices.flat_map(|(device, jobs)| {
        let jobs = jobs.as_object().into_iter().flatten();
        jobs.filter_map(move |(job, rates)| {
            let rate = rates.get("null")?.as_f64().filter(|rate| *rate > 0.0)?;
            Some((device.as_str(), batch_size(job, model)?, rate))
        })
    });
    DeviceTimes::new(rows).map_err(|mut error| {
        error.expected = format!("{}, of a model called `{model}`", error.expected);
        error.into()
    })
}

// Of `model`, on one device.
fn batch_size(job: &str, model: &str) -> Option<u32> {
    let alone = match job.strip_prefix("('") {
        Some(pair) => pair.strip_suffix("', 1)")?,
        None => job,
    };
    alone.strip_prefix(model)?.strip_prefix(" (batch size ")?.strip_suffix(')')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_make_a_table() {
        let times = read_devices("device,batch_size,steps_per_s\nfast,16,10\nslow,16,2\n").unwrap();
        assert_eq!(times.devices().collect::<Vec<_>>(), ["fast", "slow"]);
        assert_eq!(times.seconds("slow", 16), Some(0.5));
        let error = read_devices("device,batch_size,steps_per_s\nfast,few,10\n").unwrap_err().to_string();
        assert_eq!(error, "line 2: `few`: must be a number of samples");
    }

    #[test]
    fn one_model_is_taken_from_a_table_of_many() {
        let table = r#"{
            "k80": {"('A (batch size 16)', 1)": {"null": 2.0, "('B (batch size 1)', 1)": [1.0, 1.0]},
                    "('A (batch size 16)', 2)": {"null": 9.0}, "('A (batch size 32)', 1)": {"null": 0.0},
                    "('AA (batch size 64)', 1)": {"null": 3.0}},
            "v100": {"A (batch size 16)": {"null": 4.0}}
        }"#;
        let times = read_gavel(table, "A").unwrap();
        let expected = DeviceTimes::new([("k80", 16, 2.0), ("v100", 16, 4.0)]).unwrap();
        assert_eq!(times, expected);
        let error = read_gavel(table, "C").unwrap_err().to_string();
        assert!(error.contains("of a model called `C`"), "{error}");
        assert!(matches!(read_gavel("{", "A"), Err(ReplayError::Json(_))));
        assert!(read_gavel("[1]", "A").is_err());
    }
}
