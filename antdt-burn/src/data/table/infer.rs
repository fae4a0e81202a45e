//! What each column of a table becomes: inferred from a sample of rows, unless the user says it. Pure.

use antdt_data::Meaning;

use super::label::{self, Label};
use super::tally::Tally;
use super::{Column, ColumnChoice, ColumnError, FolderColumns, LabelTask, Role, names};
use crate::data::inspect::InspectedColumn;

/// Rows from which on a column with another value in each row is taken for their names.
pub(super) const KEYS_MIN: u64 = 50;

/// Whole numbers with at most so many values from the least to the largest have a bucket each.
const EXACT_MAX: f64 = 1000.0;

/// The columns of a table, and what a sample of its rows shows of them.
#[derive(Debug, Clone, Default)]
pub(in crate::data) struct Seen {
    pub(super) names: Vec<String>,
    pub(super) tallies: Vec<Tally>,
    /// What a column of Parquet stands for; `None` for text, which says nothing.
    pub(super) meanings: Vec<Option<Meaning>>,
    /// Number of columns at the end that are of folders, of which each value was looked at once a file.
    pub(super) folders: usize,
}

impl Seen {
    /// Adds the columns of the folders.
    ///
    /// # Errors
    /// If the file has a column that is called as one of them.
    pub(super) fn add_folders(&mut self, folders: &FolderColumns) -> Result<(), ColumnError> {
        for (key, name) in folders.keys().iter().enumerate() {
            let same = |known: &&String| names::normal(known) == names::normal(name);
            if let Some(column) = self.names.iter().find(same) {
                return Err(ColumnError::FolderColumn { name: name.clone(), column: column.clone() });
            }
            let mut tally = Tally::of("files");
            folders.paths().enumerate().for_each(|(file, _)| tally.add(&folders.field(file, key)));
            self.names.push(name.clone());
            self.tallies.push(tally);
            self.meanings.push(None);
            self.folders += 1;
        }
        Ok(())
    }

    /// The column that a flag names.
    fn find(&self, flag: &'static str, name: &str) -> Result<usize, ColumnError> {
        let (name, columns) = (name.trim().to_owned(), || self.names.clone());
        match names::find(&name, &self.names)[..] {
            [at] => Ok(at),
            [] => Err(ColumnError::NoColumn { flag, name, columns: columns() }),
            ref several => Err(ColumnError::Ambiguous { flag, name, count: several.len() }),
        }
    }

    /// The column of the label and its rule.
    pub(super) fn label(&self, choice: &ColumnChoice) -> Result<(usize, Label), ColumnError> {
        const FLAG: &str = "--label";
        let (at, rule) = match &choice.label {
            Some(text) => {
                let is_name = |name: &str| !names::find(name, &self.names).is_empty();
                let (name, rule) = label::asked(text, is_name)?;
                (self.find(FLAG, name)?, rule)
            }
            None => (self.label_by_name(choice)?, None),
        };
        if let Some(Meaning::Other(kind)) = self.meanings[at] {
            return Err(ColumnError::Kind { flag: FLAG, name: self.names[at].clone(), kind });
        }
        let rule = match (rule, choice.task) {
            (Some(_), Some(LabelTask::Regression)) => {
                let text = choice.label.clone().unwrap_or_default();
                return Err(ColumnError::ConditionEstimated { text });
            }
            (Some(rule), _) => rule,
            (None, task) => Label::infer(&self.names[at], &self.tallies[at], task)?,
        };
        Ok((at, rule))
    }

    /// The column that is called as a label is, of those that are not to be ignored.
    fn label_by_name(&self, choice: &ColumnChoice) -> Result<usize, ColumnError> {
        let called_so = names::labels(&self.names);
        let is_ignored =
            |at: &usize| choice.ignore.iter().any(|name| names::find(name, &self.names).contains(at));
        let (ignored, left): (Vec<usize>, Vec<usize>) = called_so.into_iter().partition(is_ignored);
        match (&left[..], ignored.first()) {
            ([at], _) => Ok(*at),
            ([], Some(at)) => Err(ColumnError::LabelIgnored { name: self.names[*at].clone() }),
            (several, _) => {
                let found = several.iter().map(|at| self.names[*at].clone()).collect();
                Err(ColumnError::NoLabel { found, columns: self.names.clone() })
            }
        }
    }

    /// What each column becomes; `label` is the column that is the label, if that is known.
    pub(in crate::data) fn columns(
        &self,
        choice: &ColumnChoice,
        label: Option<usize>,
    ) -> Result<Vec<Column>, ColumnError> {
        let mut asked: Vec<Option<&'static str>> = vec![None; self.names.len()];
        if let Some(at) = label {
            asked[at] = Some("--label");
        }
        for (flag, names) in choice.lists() {
            for name in names {
                let at = self.find(flag, name)?;
                match asked[at] {
                    Some(first) if first != flag => {
                        return Err(ColumnError::Twice { name: self.names[at].clone(), first, second: flag });
                    }
                    _ => asked[at] = Some(flag),
                }
            }
        }
        (0..self.names.len()).map(|at| self.column(at, asked[at])).collect()
    }

    /// The columns as `antdt data inspect` shows them.
    #[allow(clippy::cast_precision_loss, reason = "shares to read")]
    pub(in crate::data) fn report(&self, columns: &[Column]) -> Vec<InspectedColumn> {
        let of = |(column, tally): (&Column, &Tally)| InspectedColumn {
            name: column.name.clone(),
            kind: column.role.name(),
            why: column.why.clone(),
            missing: tally.missing as f64 / tally.rows.max(1) as f64,
        };
        columns.iter().zip(&self.tallies).map(of).collect()
    }

    fn column(&self, at: usize, asked: Option<&'static str>) -> Result<Column, ColumnError> {
        let (name, tally, meaning) = (self.names[at].clone(), &self.tallies[at], self.meanings[at]);
        let (role, why) = match (asked, meaning) {
            (Some("--label"), _) => (Role::Label, String::new()),
            (Some("--ignore"), _) => (Role::Ignored, "--ignore".to_owned()),
            (Some(flag), Some(Meaning::Other(kind))) => return Err(ColumnError::Kind { flag, name, kind }),
            (Some("--numeric"), _) => match &tally.word {
                Some(value) => return Err(ColumnError::NoNumber { name, value: value.clone() }),
                None => (number(tally), "--numeric".to_owned()),
            },
            (Some(_), _) => (Role::Category, "--categorical".to_owned()),
            (None, _) if at + self.folders >= self.names.len() => of_folders(&name, tally),
            (None, _) => inferred(&name, tally, meaning),
        };
        Ok(Column { name, role, why, meaning })
    }
}

/// How the numbers of a column are divided into buckets.
fn number(tally: &Tally) -> Role {
    let exact = tally.whole == tally.present() && tally.most - tally.least < EXACT_MAX;
    if exact { Role::Exact } else { Role::Octaves }
}

/// A number to read: with three significant digits, unless it has few anyway.
pub(super) fn short(number: f64) -> String {
    let whole = number.to_string();
    if whole.len() <= 8 {
        return whole;
    }
    let rounded: f64 = format!("{number:.2e}").parse().unwrap_or(number);
    let plain = rounded.to_string();
    if plain.len() <= 8 { plain } else { format!("{rounded:e}") }
}

/// What a column of folders becomes that the user says nothing of, and why.
fn of_folders(name: &str, tally: &Tally) -> (Role, String) {
    let (role, why) = inferred(name, tally, None);
    (role, format!("of folders; {why}"))
}

/// What a column becomes that the user says nothing of, and why.
fn inferred(name: &str, tally: &Tally, meaning: Option<Meaning>) -> (Role, String) {
    let ignored = |why: &str| (Role::Ignored, why.to_owned());
    // Folders are few because each has many rows.
    let of_rows = tally.unit == Tally::ROWS && tally.present() >= KEYS_MIN;
    let each_another = of_rows && tally.distinct() == tally.present();
    match meaning {
        Some(Meaning::Other(kind)) => return ignored(kind),
        Some(Meaning::Date) => return ignored("dates; --numeric takes them as days"),
        Some(Meaning::Timestamp { .. }) => return ignored("times; --numeric takes them as seconds"),
        _ => {}
    }
    if tally.present() == 0 {
        return ignored("empty");
    }
    if tally.dates * 10 >= tally.present() * 9 {
        return ignored("dates");
    }
    // Strings of Parquet are what their writer wanted to be no numbers.
    if tally.numbers == tally.present() && meaning != Some(Meaning::Text) {
        let whole = tally.whole == tally.present();
        if whole && tally.counts_up && of_rows {
            return ignored("counts the rows");
        }
        if whole && names::is_key(name) {
            let key = (Role::Category, "a key by its name".to_owned());
            return if each_another { ignored("a key, another one in each row") } else { key };
        }
        return (number(tally), format!("{} to {}", short(tally.least), short(tally.most)));
    }
    if each_another {
        return ignored("another value in each row");
    }
    (Role::Category, format!("{} values", tally.distinct()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::format::RowField;

    fn seen(columns: &[(&str, &dyn Fn(usize) -> String)]) -> Seen {
        let mut seen = Seen::default();
        for (name, value) in columns {
            let mut tally = Tally::default();
            (0..60).for_each(|row| tally.add(&RowField::of_text(value(row).into_bytes().into())));
            seen.names.push((*name).to_owned());
            seen.tallies.push(tally);
            seen.meanings.push(None);
        }
        seen
    }

    fn churn() -> Seen {
        seen(&[
            ("customerID", &|row| format!("c{}", row * 7919 % 61)),
            ("row", &|row| row.to_string()),
            ("tenure", &|row| (row % 40).to_string()),
            ("charges", &|row| format!("{}.5", row * 30)),
            ("contract", &|row| ["month", "year"][row % 2].to_owned()),
            ("zip_id", &|row| (10_000 + row % 9).to_string()),
            ("since", &|row| format!("2024-01-{:02}", row % 28 + 1)),
            ("notes", &|_| String::new()),
            ("Churned", &|row| ["Yes", "No"][row % 2].to_owned()),
        ])
    }

    fn choice(label: &str) -> ColumnChoice {
        ColumnChoice { label: Some(label.to_owned()), ..ColumnChoice::default() }
    }

    #[test]
    fn kind_of_a_column_follows_from_its_values() {
        let seen = churn();
        let (at, _) = seen.label(&choice("churned")).unwrap();
        let roles: Vec<Role> =
            seen.columns(&choice("churned"), Some(at)).unwrap().iter().map(|column| column.role).collect();
        let ignored = Role::Ignored;
        let expected = [
            ignored,
            ignored,
            Role::Exact,
            Role::Octaves,
            Role::Category,
            Role::Category,
            ignored,
            ignored,
            Role::Label,
        ];
        assert_eq!(roles, expected);
    }

    #[test]
    fn range_of_a_column_is_shown_with_few_digits() {
        for (number, shown) in [
            (71.0, "71"),
            (109.99, "109.99"),
            (0.123_456_789_012_345_6, "0.123"),
            (-1_234.567_890_1, "-1230"),
            (1e-9, "1e-9"),
            (1_234_567_890.5, "1.23e9"),
        ] {
            assert_eq!(short(number), shown);
        }
        let seen = seen(&[("share", &|row| (row as f64 / 7.0).to_string())]);
        assert_eq!(seen.columns(&ColumnChoice::default(), None).unwrap()[0].why, "0 to 8.43");
    }

    #[test]
    fn the_user_is_right_about_a_column_and_told_where_that_cannot_be() {
        let seen = churn();
        let with = |numeric: &[&str], categorical: &[&str]| ColumnChoice {
            numeric: numeric.iter().map(|name| (*name).to_owned()).collect(),
            categorical: categorical.iter().map(|name| (*name).to_owned()).collect(),
            ..ColumnChoice::default()
        };
        let columns = seen.columns(&with(&["ZIP ID"], &["tenure", "customerid"]), None).unwrap();
        assert_eq!(
            [columns[0].role, columns[2].role, columns[5].role],
            [Role::Category, Role::Category, Role::Exact]
        );
        for (choice, words) in [
            (with(&["contract"], &[]), "--numeric = contract: 'month' is no number"),
            (with(&["tenure"], &["tenure"]), "tenure is named by --categorical and by --numeric"),
            (with(&["age"], &[]), "--numeric = age: no column is called so; there are: customerID, row"),
            (
                ColumnChoice { ignore: vec!["Tenure".to_owned()], ..with(&[], &["tenure"]) },
                "tenure is named by --categorical and by --ignore; leave it out of one of them",
            ),
            (
                ColumnChoice { ignore: vec!["zip id".to_owned()], ..with(&["zip_id"], &[]) },
                "zip_id is named by --numeric and by --ignore; leave it out of one of them",
            ),
        ] {
            let error = seen.columns(&choice, None).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn label_that_is_to_be_ignored_is_refused_unless_another_column_can_be_it() {
        let flag: &dyn Fn(usize) -> String = &|row| (row % 2).to_string();
        let ignoring = |choice: ColumnChoice| ColumnChoice { ignore: vec!["Y".to_owned()], ..choice };
        let one = seen(&[("x", flag), ("y", flag)]);
        let error = one.label(&ignoring(ColumnChoice::default())).unwrap_err().to_string();
        assert!(
            error.starts_with("--ignore = y: it is called as the label is; leave it out of --ignore"),
            "{error}"
        );
        let (at, _) = one.label(&ignoring(choice("y"))).unwrap();
        let error = one.columns(&ignoring(choice("y")), Some(at)).unwrap_err().to_string();
        assert_eq!(error, "y is named by --label and by --ignore; leave it out of one of them");
        let two = seen(&[("y", flag), ("target", flag)]);
        assert_eq!(two.label(&ignoring(ColumnChoice::default())).unwrap().0, 1);
    }

    #[test]
    fn without_a_label_that_is_named_or_plain_the_columns_are_listed() {
        let error = churn().label(&ColumnChoice::default()).unwrap_err().to_string();
        assert!(error.contains("--label, one of: customerID, row, tenure"), "{error}");
        let flag: &dyn Fn(usize) -> String = &|row| (row % 2).to_string();
        let error = seen(&[("y", flag), ("Target", flag)]).label(&ColumnChoice::default()).unwrap_err();
        assert!(error.to_string().starts_with("y and Target may each be the label"), "{error}");
        assert_eq!(seen(&[("x", flag), ("Is Click", flag)]).label(&ColumnChoice::default()).unwrap().0, 1);
        let error = churn().label(&choice("churn")).unwrap_err().to_string();
        assert!(error.starts_with("--label = churn: no column is called so"), "{error}");
        let error = churn().label(&choice("customerid")).unwrap_err().to_string();
        assert!(
            error.contains("has another value in each row") && error.contains("--label 'COLUMN>=NUMBER'"),
            "{error}"
        );
        let estimated = ColumnChoice { task: Some(LabelTask::Regression), ..choice("charges>=3") };
        let error = churn().label(&estimated).unwrap_err().to_string();
        assert!(error.starts_with("--task = regression: --label charges>=3 makes two classes"), "{error}");
    }
}
