//! The last full pass of a crate's list: what its mutants and their files were like when all of them were caught.
//!
//! It lies beside the list as `mutants.pass` and is committed like any file: one line for each mutant, with a hash of
//! the mutant and of the file that it is planted in. A mutant whose line is missing or says another hash has changed
//! since. Hashes rather than the name of a commit, because they hold as well in a clone without history and after a
//! rebase.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::list::{List, Mutant};

/// The file in a crate's folder that holds its last full pass.
pub(super) const PASS: &str = "mutants.pass";

const HEAD: &str = "# All mutants of mutants.toml as they were caught last: a hash of each and of its file. Written by\n\
                    # `cargo xtask mutants`.\n";

/// Hashes of mutants, by their names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Pass(BTreeMap<String, String>);

impl Pass {
    /// What a pass of this list would be today. `text_of` is given a path from the root.
    pub(super) fn of(list: &List, text_of: impl Fn(&str) -> Option<String>) -> Self {
        let mut texts = BTreeMap::new();
        let hashes = list.mutants.iter().map(|mutant| {
            let path = mutant.path(list);
            let text = texts.entry(path).or_insert_with_key(|path| text_of(path).unwrap_or_default());
            (mutant.name.clone(), hash(list, mutant, text))
        });
        Self(hashes.collect())
    }

    /// Reads the pass of the crate in `folder`; an empty one if none is stored.
    pub(super) fn read(root: &Path, folder: &str) -> Self {
        Self::parse(&fs::read_to_string(root.join(folder).join(PASS)).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.split_once(' ')).filter(|(name, _)| *name != "#");
        Self(lines.map(|(name, hash)| (name.to_owned(), hash.to_owned())).collect())
    }

    /// Stores it as that of the crate in `folder`.
    pub(super) fn write(&self, root: &Path, folder: &str) -> Result<()> {
        let file = root.join(folder).join(PASS);
        fs::write(&file, self.text()).with_context(|| format!("cannot write {}", file.display()))
    }

    fn text(&self) -> String {
        let lines = self.0.iter().map(|(name, hash)| format!("{name} {hash}\n"));
        HEAD.to_owned() + &lines.collect::<String>()
    }

    /// Whether a mutant is not as it was in `before`.
    pub(super) fn differs(&self, before: &Self, mutant: &Mutant) -> bool {
        self.0.get(&mutant.name) != before.0.get(&mutant.name)
    }
}

/// FNV-1a with 64 bits over the file, the mutant and the tests that must catch it: it must tell versions apart, not
/// withstand anybody.
fn hash(list: &List, mutant: &Mutant, text: &str) -> String {
    let runs: Vec<_> = mutant.suites.iter().filter_map(|name| list.suites.get(name)).collect();
    let tests = format!("{:?}", runs);
    let parts = [text, &mutant.original, &mutant.defect, &tests];
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "
[suites.unit]
target = \"lib\"
[[mutant]]
name = \"m\"
file = \"src/m.rs\"
original = \"1\"
defect = \"2\"
why = \"because\"
[[mutant]]
name = \"n\"
crate = \"b\"
file = \"src/n.rs\"
original = \"1\"
defect = \"2\"
why = \"because\"
";

    fn list(from: &str, to: &str) -> List {
        assert!(LIST.contains(from));
        List::parse("a", &LIST.replacen(from, to, 1)).unwrap()
    }

    /// A pass over a tree in which `touched` has another text.
    fn pass(list: &List, touched: &str) -> Pass {
        Pass::of(list, |path| Some(if path == touched { "1 + 2" } else { "1" }.to_owned()))
    }

    #[test]
    fn a_mutant_changes_with_its_file_with_itself_and_with_its_tests() {
        let before = pass(&list("", ""), "");
        let changed = |list: &List, touched: &str| -> Vec<String> {
            let now = pass(list, touched);
            let changed = list.mutants.iter().filter(|mutant| now.differs(&before, mutant));
            changed.map(|mutant| mutant.name.clone()).collect()
        };
        assert!(changed(&list("", ""), "").is_empty(), "nothing changed");
        assert!(changed(&list("", ""), "a/src/other.rs").is_empty(), "no mutant lies there");
        assert_eq!(changed(&list("", ""), "a/src/m.rs"), ["m"]);
        assert_eq!(changed(&list("", ""), "b/src/n.rs"), ["n"], "it lies in another crate");
        assert_eq!(changed(&list("defect = \"2\"", "defect = \"3\""), ""), ["m"]);
        assert_eq!(changed(&list("name = \"m\"", "name = \"new\""), ""), ["new"]);
        assert_eq!(changed(&list("\"lib\"", "\"lib\"\nruns = [[\"some\"]]"), ""), ["m", "n"]);
        assert!(changed(&list("because", "for this reason"), "").is_empty(), "the words alone");
    }

    #[test]
    fn without_a_stored_pass_everything_changed() {
        let folder = tempfile::tempdir().unwrap();
        let list = list("", "");
        let (now, none) = (pass(&list, ""), Pass::read(folder.path(), "a"));
        assert!(list.mutants.iter().all(|mutant| now.differs(&none, mutant)));
    }

    #[test]
    fn a_pass_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        let now = pass(&list("", ""), "");
        now.write(folder.path(), "a").unwrap();
        assert_eq!(Pass::read(folder.path(), "a"), now);
        assert!(now.text().lines().all(|line| line.len() <= 120));
    }
}
