//! `antdt data inspect`: what files of data are, and what a job would do with them.

use std::fmt::Write;

use antdt_burn::data::inspect::{InspectedClass, InspectedColumn, Inspection};
use serde_json::{Value as Json, json};

use super::say;
use crate::cli::{CliError, DataInspect, quoted};
use crate::job::JobSpec;
use crate::simulate::CommandOutput;
use crate::workload;

/// Lines of the whole answer, at most.
const LINES_MAX: usize = 40;

/// Lines about a data set besides its columns.
const LINES_BESIDE: usize = 5;

/// Classes of a label whose shares are shown, at most.
const CLASSES_MAX: usize = 10;

pub(super) fn data_inspect(asked: &DataInspect) -> Result<CommandOutput, CliError> {
    let mut found = Vec::new();
    for job in &asked.jobs {
        let seen = workload::inspect(job, &mut |notice| say(notice));
        found.push((job, seen.map_err(|error| CliError::new(error.to_string()))?));
    }
    let good = found.iter().all(|(_, seen)| seen.problem.is_none());
    if asked.json {
        let all: Vec<Json> = found.iter().map(|(job, seen)| as_json(job, seen)).collect();
        return Ok(CommandOutput { text: format!("{:#}\n", Json::Array(all)), good });
    }
    let each = LINES_MAX / found.len().max(1);
    let mut text = String::new();
    for (job, seen) in found.iter().take(LINES_MAX / (LINES_BESIDE + 1)) {
        text += &as_text(job, seen, each.saturating_sub(LINES_BESIDE).max(1));
    }
    if let Some(others @ 1..) = found.len().checked_sub(LINES_MAX / (LINES_BESIDE + 1)) {
        let _ = writeln!(text, "and {others} more; --json shows all");
    }
    Ok(CommandOutput { text, good })
}

/// The data as `--data` names them.
fn name(job: &JobSpec) -> String {
    job.data.as_ref().map(ToString::to_string).unwrap_or_default()
}

/// The data set in at most `columns_max` lines for columns and [`LINES_BESIDE`] others.
fn as_text(job: &JobSpec, seen: &Inspection, columns_max: usize) -> String {
    if !seen.classes.is_empty() {
        return of_pictures(job, seen, columns_max);
    }
    let files = if seen.files == 1 { String::new() } else { format!("{} files, ", seen.files) };
    let exact = if seen.exact { "exact" } else { "estimated" };
    let mut text = format!(
        "{}: {}, {files}{} columns, {} rows ({exact}); {} rows looked at\n",
        name(job),
        seen.format,
        seen.columns.len(),
        seen.rows,
        seen.sampled
    );
    // The last line is for those that are left out.
    let shown = if seen.columns.len() > columns_max { columns_max - 1 } else { columns_max };
    let width = seen.columns.iter().take(shown).map(|column| column.name.chars().count()).max().unwrap_or(0);
    for InspectedColumn { name, kind, why, missing } in seen.columns.iter().take(shown) {
        let missing =
            if *missing > 0.0 { format!("{:.1} % missing", missing * 100.0) } else { String::new() };
        let line = format!("  {name:width$}  {kind:11}  {missing:15}  {why}");
        text += line.trim_end();
        text.push('\n');
    }
    if let Some(others @ 1..) = seen.columns.len().checked_sub(shown) {
        let _ = writeln!(text, "  and {others} more columns; --json shows all");
    }
    if let Some((label, rule)) = &seen.label {
        let share = seen.positive.map(|share| format!("; {:.1} % of the rows are 1", share * 100.0));
        let _ = writeln!(text, "label {label}: {rule}{}", share.unwrap_or_default());
        let of_class = |(name, share): &(String, f64)| format!("{name} {:.1} %", share * 100.0);
        let shown: Vec<String> = seen.shares.iter().take(CLASSES_MAX).map(of_class).collect();
        if !shown.is_empty() {
            let others = seen.shares.len() - shown.len();
            let others = if others > 0 { format!(" and {others} more classes") } else { String::new() };
            let _ = writeln!(text, "  {}{others}", shown.join(", "));
        }
    }
    text + &verdict(job, seen)
}

/// Why a job refuses the data, or what starts one.
fn verdict(job: &JobSpec, seen: &Inspection) -> String {
    match &seen.problem {
        Some(why) => format!("a job refuses it: {why}\n"),
        None => {
            let flags: Vec<String> = seen.flags.iter().map(|flag| quoted(flag)).collect();
            format!("a job: antdt run --data {} {}\n", quoted(&name(job)), flags.join(" "))
        }
    }
}

/// A folder of pictures in at most `classes_max` lines for classes and [`LINES_BESIDE`] others.
fn of_pictures(job: &JobSpec, seen: &Inspection, classes_max: usize) -> String {
    let mut text = format!(
        "{}: {}, {} classes, {} pictures (exact); {} looked at\n",
        name(job),
        seen.format,
        seen.classes.len(),
        seen.rows,
        seen.sampled
    );
    let shown = if seen.classes.len() > classes_max { classes_max - 1 } else { classes_max };
    let width = seen.classes.iter().take(shown).map(|class| class.name.chars().count()).max().unwrap_or(0);
    for InspectedClass { name, pictures, smallest, largest } in seen.classes.iter().take(shown) {
        let sizes = smallest.zip(*largest).map(|(least, most)| {
            if least == most {
                return format!("   {}x{} pixels", least.0, least.1);
            }
            format!("   {}x{} to {}x{} pixels", least.0, least.1, most.0, most.1)
        });
        let _ = writeln!(text, "  {name:width$}  {pictures} pictures{}", sizes.unwrap_or_default());
    }
    if let Some(others @ 1..) = seen.classes.len().checked_sub(shown) {
        let _ = writeln!(text, "  and {others} more classes; --json shows all");
    }
    text + &verdict(job, seen)
}

fn as_json(job: &JobSpec, seen: &Inspection) -> Json {
    let column = |column: &InspectedColumn| {
        json!({
            "name": column.name,
            "kind": column.kind,
            "why": column.why,
            "missing_share": column.missing,
        })
    };
    let class = |class: &InspectedClass| {
        json!({
            "name": class.name,
            "pictures": class.pictures,
            "smallest": class.smallest,
            "largest": class.largest,
        })
    };
    json!({
        "data": name(job),
        "format": seen.format,
        "files": seen.files,
        "rows": seen.rows,
        "rows_exact": seen.exact,
        "rows_looked_at": seen.sampled,
        "columns": seen.columns.iter().map(column).collect::<Vec<_>>(),
        "classes": seen.classes.iter().map(class).collect::<Vec<_>>(),
        "label": seen.label.as_ref().map(|(name, rule)| json!({ "name": name, "rule": rule })),
        "positive_share": seen.positive,
        "class_shares": seen.shares.iter().map(|(name, share)| json!({ "name": name, "share": share })).collect::<Vec<_>>(),
        "problem": seen.problem,
        "flags": seen.flags,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(columns: usize) -> Inspection {
        let column = |at| InspectedColumn {
            name: format!("column {at}"),
            kind: "numeric",
            why: "1 to 2".to_owned(),
            missing: 0.25,
        };
        Inspection {
            format: "csv".to_owned(),
            files: 1,
            rows: 10,
            exact: false,
            sampled: 10,
            columns: (0..columns).map(column).collect(),
            classes: Vec::new(),
            label: Some(("y".to_owned(), "1 is 1, 0 is 0".to_owned())),
            positive: Some(0.5),
            shares: (0..columns).map(|class| (format!("class {class}"), 0.125)).collect(),
            problem: None,
            flags: vec!["--label".to_owned(), "is it".to_owned()],
        }
    }

    #[test]
    fn an_answer_of_any_width_has_at_most_40_lines() {
        let mut job = JobSpec::default();
        job.set("data", "a b.csv").unwrap();
        for columns in [1, 34, 35, 36, 500] {
            let text = as_text(&job, &seen(columns), LINES_MAX - LINES_BESIDE);
            assert!(text.lines().count() <= LINES_MAX, "{text}");
            assert!(
                text.contains("10 rows (estimated)") && text.contains("25.0 % missing   1 to 2"),
                "{text}"
            );
            assert_eq!(text.contains("more columns"), columns > 35, "{text}");
            assert!(text.ends_with("a job: antdt run --data 'a b.csv' --label 'is it'\n"), "{text}");
        }
        let text = as_text(&job, &Inspection { problem: Some("why".to_owned()), ..seen(1) }, 10);
        assert!(text.ends_with("a job refuses it: why\n"), "{text}");
        assert_eq!(as_json(&job, &seen(2))["columns"][1]["missing_share"], 0.25);
    }
}
