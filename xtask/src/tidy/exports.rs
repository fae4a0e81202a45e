//! Types that crates export: one public name means one thing.
//!
//! The rule reads text, not the compiler's tables: it follows `pub mod` from a crate's root and takes the types that are
//! declared there or re-exported from the crate's own modules. Types that a macro declares escape it.

use std::collections::{BTreeMap, BTreeSet};

use super::{TESTS, Tree};

/// Names that several crates may export, and why.
const SHARED: [(&str, &str); 2] = [
    (
        "Entry",
        "a line of a registry: every registry has its own, and it is reached through the registry's module",
    ),
    ("FromFn", "what a `from_fn` returns, as in the standard library; it is never named by a caller"),
];

/// Crates whose names are not compared, and why.
const EXEMPT: [(&str, &str); 5] = [
    ("antdt-proto", "a message is named after the type that it carries"),
    ("antdt-bench", "a program: only that of `antdt-lab` uses its types"),
    ("antdt-lab", "a program: no crate uses its types"),
    (TESTS, "a program: no crate uses its types"),
    ("xtask", "a program: no crate uses its types"),
];

/// The module of a crate that helps other crates' tests: each has its own `History` and `Invariant`, on purpose.
const TESTING: &str = "testing";

/// No two crates export a type of one name.
pub(super) fn one_meaning(tree: &Tree) -> Vec<String> {
    exporters(tree)
        .into_iter()
        .filter(|(name, crates)| crates.len() > 1 && !SHARED.iter().any(|(shared, _)| shared == name))
        .map(|(name, crates)| {
            let crates = crates.into_iter().collect::<Vec<_>>().join(" and ");
            format!(
                "{crates} both export a type {name}; rename one (docs/glossary.md), or say in \
                 xtask/src/tidy/exports.rs why the name is shared"
            )
        })
        .collect()
}

/// The crates that export each type name.
fn exporters(tree: &Tree) -> BTreeMap<String, BTreeSet<String>> {
    let mut exporters: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in tree.packages.iter().filter(|p| !EXEMPT.iter().any(|(name, _)| *name == p.name)) {
        let mut names = BTreeSet::new();
        exported(tree, &format!("{}/src/lib.rs", package.folder), &mut names);
        for name in names {
            exporters.entry(name).or_default().insert(package.name.clone());
        }
    }
    exporters
}

/// Adds to `names` what the module in `file` and its public modules export.
fn exported(tree: &Tree, file: &str, names: &mut BTreeSet<String>) {
    let Some(text) = tree.text(file) else { return };
    // A line feed before the first line too, so that every statement at the left margin follows one.
    let code = format!("\n{}", text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default());
    let modules: Vec<(&str, bool)> = code.lines().filter_map(module).collect();
    for (name, _) in modules.iter().filter(|(name, public)| *public && *name != TESTING) {
        let folder = file.trim_end_matches("/lib.rs").trim_end_matches("/mod.rs").trim_end_matches(".rs");
        for file in [format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")] {
            exported(tree, &file, names);
        }
    }
    names.extend(code.lines().filter_map(declared).map(str::to_owned));
    for statement in code.split("\npub use ").skip(1) {
        let path = statement.split(';').next().unwrap_or_default();
        let first = path.split("::").next().unwrap_or_default().trim();
        let own =
            ["crate", "self", "super"].contains(&first) || modules.iter().any(|(name, _)| *name == first);
        if own {
            names.extend(path.split(['{', '}', ',']).filter_map(imported).map(str::to_owned));
        }
    }
}

/// The module that a line declares in a file of its own, and whether it is public.
fn module(line: &str) -> Option<(&str, bool)> {
    let line = line.strip_suffix(';')?;
    match line.strip_prefix("pub mod ") {
        Some(name) => Some((name, true)),
        None => Some((line.split_once("mod ").filter(|(before, _)| !before.contains("//"))?.1, false)),
    }
}

/// The public type that a line of a module declares.
fn declared(line: &str) -> Option<&str> {
    let item = line.strip_prefix("pub ")?;
    let item = item.strip_prefix("unsafe ").unwrap_or(item);
    let kinds = ["struct ", "enum ", "union ", "trait ", "type "];
    let name = kinds.iter().find_map(|kind| item.strip_prefix(kind))?;
    name.split(|c: char| !c.is_alphanumeric()).next()
}

/// The type that a part of a `use` brings in; functions, modules and constants are none.
fn imported(part: &str) -> Option<&str> {
    let name = part.rsplit([':', ' ']).find(|word| !word.trim().is_empty()).map(str::trim)?;
    let is_type = name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase);
    is_type.then_some(name).filter(|_| !part.trim_end().ends_with("::"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{package, tree};
    use super::*;

    fn two(first: &str, more: &[(&str, &str)]) -> Vec<String> {
        let second = ("antdt-y/src/lib.rs", "pub mod door;\n");
        let door = ("antdt-y/src/door.rs", "/// A door.\npub struct Door;\n");
        let files = [&[("antdt-x/src/lib.rs", first), second, door][..], more].concat();
        one_meaning(&tree(vec![package("antdt-x", vec![]), package("antdt-y", vec![])], &files))
    }

    #[test]
    fn a_name_that_two_crates_export_is_caught() {
        for first in [
            "pub enum Door {}\n",
            "mod inside;\npub use inside::Door;\n",
            "mod inside;\npub use inside::{\n    Gate, deep::{Door, LEAVES},\n};\n",
            "mod inside;\npub use inside::Gate as Door;\n",
        ] {
            let found = two(first, &[]);
            assert_eq!(found.len(), 1, "{first}");
            assert!(found[0].starts_with("antdt-x and antdt-y both export a type Door"), "{found:?}");
        }
        let deep = [
            ("antdt-x/src/hall/mod.rs", "pub mod wall;\n"),
            ("antdt-x/src/hall/wall.rs", "pub unsafe trait Door {}\n"),
        ];
        assert_eq!(two("pub mod hall;\n", &deep).len(), 1);
    }

    #[test]
    fn private_and_re_exported_types_are_no_second_meaning() {
        for first in [
            "struct Door;\npub(crate) struct Door;\n",
            "pub use antdt_y::door::Door;\n",
            "mod inside;\npub use inside::{Gate, DOOR, door};\n",
            "pub struct Doors;\n",
            "pub mod testing;\n",
            "mod inside;\n",
        ] {
            let door = "pub struct Door;\n";
            let more = [("antdt-x/src/testing.rs", door), ("antdt-x/src/inside.rs", door)];
            assert_eq!(two(first, &more), [""; 0], "{first}");
        }
        let mirror = package("antdt-proto", vec![]);
        let files =
            [("antdt-proto/src/lib.rs", "pub struct Door;\n"), ("antdt-y/src/lib.rs", "pub struct Door;\n")];
        assert_eq!(one_meaning(&tree(vec![mirror, package("antdt-y", vec![])], &files)), [""; 0]);
    }

    #[test]
    fn every_exception_is_needed() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let exporters = exporters(&Tree::read(root).unwrap());
        for (name, _) in SHARED {
            assert!(exporters.get(name).is_some_and(|crates| crates.len() > 1), "{name} needs no exception");
        }
    }
}
