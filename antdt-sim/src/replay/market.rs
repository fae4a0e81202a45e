//! Records of spot machines, which start and end at times that the user does not choose.

use antdt_core::{InvalidValue, JobTime};

use super::{ReplayError, moment, refused, rows};
use crate::model::scheduler::MarketEvent;

/// Parses the changes of a spot market from rows of `time,add,machine` and `time,remove,machine`.
///
/// Under the header `t_s,event,machine` times are seconds. Without a header they are milliseconds, as Parcae's traces of
/// spot instances have them. Time runs `speedup` times faster than recorded.
///
/// # Errors
/// If a line cannot be parsed (the error has its number), or `speedup` is not between 0.001 and 1,000,000.
pub fn read_market(text: &str, speedup: f64) -> Result<Vec<(JobTime, MarketEvent)>, ReplayError> {
    if !(1e-3..=1e6).contains(&speedup) {
        let remedy = "between 0.001 and 1000000; 1 is as recorded";
        return Err(InvalidValue::new("speedup", speedup, remedy).into());
    }
    let mut unit_ns = 1e6;
    let mut changes = Vec::new();
    for (index, row) in rows(text).enumerate() {
        let row = row?;
        let [time, event, machine] = row.columns("three columns, time,add|remove,machine")?;
        if index == 0 && [time, event, machine] == ["t_s", "event", "machine"] {
            unit_ns = 1e9;
            continue;
        }
        let at = moment(row.line, time, unit_ns / speedup)?;
        let change = match event {
            "add" => MarketEvent::Added(machine.to_owned()),
            "remove" => MarketEvent::Removed(machine.to_owned()),
            _ => return Err(refused(row.line, event, "add or remove")),
        };
        changes.push((at, change));
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_milliseconds_without_a_header_and_seconds_with_it() {
        let added = |at| (JobTime(at), MarketEvent::Added("a".to_owned()));
        let removed = |at| (JobTime(at), MarketEvent::Removed("a".to_owned()));
        let plain = read_market("0,add,a\n1500,remove,a\n", 1.0).unwrap();
        assert_eq!(plain, [added(0), removed(1_500_000_000)]);
        let seconds = read_market("t_s,event,machine\n0,add,a\n15,remove,a\n", 10.0).unwrap();
        assert_eq!(seconds, plain);
    }

    #[test]
    fn an_unreadable_row_is_named_by_its_line() {
        let refused = |text| read_market(text, 1.0).unwrap_err().to_string();
        assert_eq!(refused("0,add,a\n0,drop,a"), "line 2: `drop`: must be add or remove");
        assert!(refused("0,add").contains("three columns"));
        assert!(refused("x,add,a").contains("`x`: must be a time"));
        assert!(read_market("", 0.0).unwrap_err().to_string().starts_with("speedup = 0"));
    }
}
