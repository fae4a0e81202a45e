//! How long starts waited.

use super::{ReplayError, after_header, number};

/// Parses the waiting times of starts, in seconds, one a line under the header `pending_s`, for
/// [`Quantiles::recorded`](crate::model::scheduler::Quantiles::recorded).
///
/// # Errors
/// If a line cannot be parsed; the error has its number.
pub fn read_pending(text: &str) -> Result<Vec<f64>, ReplayError> {
    let expected = "a number of seconds of at least 0";
    let times = after_header(text, "pending_s")?.map(|row| {
        let row = row?;
        let [time] = row.columns(expected)?;
        match number(row.line, time, expected)? {
            time if time >= 0.0 && f64::is_finite(time) => Ok(time),
            _ => Err(row.refused(expected)),
        }
    });
    times.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_time() {
        assert_eq!(read_pending("pending_s\n0\n1.5\n").unwrap(), [0.0, 1.5]);
        for bad in ["-1", "x", "inf", "1,2"] {
            let error = read_pending(&format!("pending_s\n{bad}\n")).unwrap_err().to_string();
            assert_eq!(error, format!("line 2: `{bad}`: must be a number of seconds of at least 0"));
        }
    }
}
