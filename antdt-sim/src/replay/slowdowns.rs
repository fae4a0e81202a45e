//! `t_s,worker,slowdown`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use antdt_core::JobTime;

use super::{ReplayError, after_header, moment, number};
use crate::model::compute::Slowdowns;

/// Parses recorded slowdowns from CSV with the columns `t_s,worker,slowdown`: from second `t_s` on, the
/// worker takes `slowdown` times as long as a healthy one.
///
/// Rows may be in any order. Times are relative to the first one; calendar dates are refused. Workers are
/// numbered from 0 without gaps. After its last time the series repeats, after an interval as long as that
/// between its last two times; with a single time, the factors hold for ever.
///
/// # Errors
/// If a line cannot be parsed (the error has its number), or the lines contradict each other.
pub fn read_slowdowns(text: &str) -> Result<Slowdowns, ReplayError> {
    let mut workers = BTreeMap::<u32, BTreeMap<JobTime, f64>>::new();
    let mut times = BTreeSet::new();
    for row in after_header(text, "t_s,worker,slowdown")? {
        let row = row?;
        let [time, worker, slowdown] = row.columns("three columns, t_s,worker,slowdown")?;
        let at = moment(row.line, time, 1e9)?;
        let worker = number(row.line, worker, "the number of a worker, from 0")?;
        let slowdown = number(row.line, slowdown, "a number, 1 being healthy")?;
        if workers.entry(worker).or_default().insert(at, slowdown).is_some() {
            return Err(row.refused("the only row of this worker and second"));
        }
        times.insert(at);
    }
    if let Some((expected, found)) = (0..).zip(workers.keys()).find(|(expected, found)| expected != *found) {
        let remedy = format!("{expected}: workers are numbered from 0 without gaps");
        return Err(antdt_core::InvalidValue::new("worker", found, remedy).into());
    }
    if let (Some(first), Some(last)) = (times.first(), times.last())
        && first.since_start() > last.since(*first)
    {
        let remedy = "a time since the series began; subtract that of the first row from all";
        return Err(antdt_core::InvalidValue::new("t_s", first.as_secs_f64(), remedy).into());
    }
    let mut latest = times.iter().rev();
    let period = match (latest.next(), latest.next()) {
        (Some(last), Some(before)) => (*last + last.since(*before)).since_start(),
        _ => Duration::MAX,
    };
    let workers = workers.into_values().map(|entries| entries.into_iter().collect());
    Ok(Slowdowns::new(workers.collect(), period)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_in_any_order_make_a_series_for_each_worker() {
        let text = "t_s,worker,slowdown\n10,0,2.5\n0,0,1\n0,1,1.25\n\n10,1,1\n";
        let slowdowns = read_slowdowns(text).unwrap();
        assert_eq!((slowdowns.workers(), slowdowns.period()), (2, Duration::from_secs(20)));
        let at = |worker, second: u64| slowdowns.at(worker, JobTime(second * 1_000_000_000));
        assert_eq!([at(0, 0), at(0, 10), at(1, 9), at(1, 19), at(0, 20)], [1.0, 2.5, 1.25, 1.0, 1.0]);
        let once = read_slowdowns("t_s,worker,slowdown\n0,0,3\n").unwrap();
        assert_eq!(once.at(0, JobTime::NEVER), 3.0);
    }

    #[test]
    fn an_unreadable_row_is_named_by_its_line() {
        let refused =
            |rows: &str| read_slowdowns(&format!("t_s,worker,slowdown\n{rows}")).unwrap_err().to_string();
        assert_eq!(refused("0,0"), "line 2: `0,0`: must be three columns, t_s,worker,slowdown");
        assert_eq!(refused("0,0,1\n-1,0,1"), "line 3: `-1`: must be a time of at least 0");
        assert_eq!(refused("0,x,1"), "line 2: `x`: must be the number of a worker, from 0");
        assert!(refused("0,0,1\n0,0,1").contains("line 3: `0,0,1`: must be the only row"));
        assert!(refused("0,1,1").starts_with("worker = 1: must be 0: workers are numbered"));
        assert!(refused("0,0,0").contains("above 0"));
        assert!(refused("").starts_with("slowdown.workers = 0"));
        let calendar = refused("1763000000,0,1\n1763000010,0,2");
        assert!(
            calendar.starts_with("t_s = 1763000000: must be a time since the series began"),
            "{calendar}"
        );
        let header = read_slowdowns("a,b\n").unwrap_err().to_string();
        assert_eq!(header, "line 1: `a,b`: must be the header `t_s,worker,slowdown`");
        assert!(read_slowdowns("").is_err());
    }
}
