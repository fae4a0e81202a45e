//! Names of columns, as files spell them and as users do. Pure.

/// Columns that hold the label if a table has exactly one of them and the user names none, in the form of [`normal`].
pub(super) const LABELS: [&str; 6] = ["click", "label", "target", "clicked", "is_click", "y"];

/// A name without what people spell in several ways: case, quotes, spaces around it; and between its words a space, a dash and
/// a dot count as `_`.
pub(super) fn normal(name: &str) -> String {
    let name = name.trim_matches(|c: char| c.is_whitespace() || c == '"' || c == '\'');
    let plain = name.to_lowercase();
    let words = plain.split(|c: char| c.is_whitespace() || ['_', '-', '.'].contains(&c));
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_")
}

/// Finds the column of a name: the one that is spelt so, otherwise the ones whose [`normal`] form is that of the name.
pub(super) fn find(name: &str, names: &[String]) -> Vec<usize> {
    let at = |is: &dyn Fn(&str) -> bool| -> Vec<usize> {
        names.iter().enumerate().filter(|(_, known)| is(known)).map(|(at, _)| at).collect()
    };
    let exact = at(&|known| known == name);
    if !exact.is_empty() {
        return exact;
    }
    let wanted = normal(name);
    at(&|known| normal(known) == wanted)
}

/// The columns whose name says that they hold the label.
pub(in crate::data) fn labels(names: &[String]) -> Vec<usize> {
    let is = |name: &String| LABELS.contains(&normal(name).as_str());
    names.iter().enumerate().filter(|(_, name)| is(name)).map(|(at, _)| at).collect()
}

/// Whether a name says that a number is the key of something: `id`, `user_id`, `movieId`.
pub(super) fn is_key(name: &str) -> bool {
    let name = name.trim();
    let word = normal(name);
    word == "id" || word.ends_with("_id") || (name.ends_with("Id") || name.ends_with("ID"))
}

/// At most `most` names in one line, and how many others there are.
pub(in crate::data) fn listed<'a>(names: impl IntoIterator<Item = &'a str>, most: usize) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let shown = names.iter().take(most).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(most) {
        0 => shown,
        others => format!("{shown} and {others} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_however_it_is_spelt_and_the_exact_one_first() {
        let names = ["Is Click", "age", "AGE", "\"user id\""].map(str::to_owned);
        for (name, expected) in [
            ("is_click", &[0][..]),
            ("IS-CLICK", &[0]),
            ("age", &[1]),
            ("AGE", &[2]),
            ("Age", &[1, 2]),
            ("User.ID", &[3]),
            ("none", &[]),
        ] {
            assert_eq!(find(name, &names), expected, "{name}");
        }
        assert_eq!(labels(&names), [0]);
    }

    #[test]
    fn keys_are_told_by_the_end_of_their_name() {
        for name in ["id", "ID", "user_id", "UserID", "movieId", "Customer Id"] {
            assert!(is_key(name), "{name}");
        }
        for name in ["paid", "width", "humidity", "identity"] {
            assert!(!is_key(name), "{name}");
        }
    }

    #[test]
    fn a_long_list_of_names_is_cut() {
        assert_eq!(listed(["a", "b"], 2), "a, b");
        assert_eq!(listed(["a", "b", "c", "d"], 2), "a, b and 2 more");
    }
}
