//! `cargo xtask tidy`: the rules of the tree that no compiler knows.
//!
//! Each rule is a function of a [`Tree`], so that its test can plant a violation.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use self::tree::{Dependency, Package, Tree};
use crate::{mutants, shell, verify};

mod exports;
mod tree;

#[cfg(test)]
mod tests;

/// The package that may depend on everything, and on which nothing may.
const TESTS: &str = "antdt-tests";

/// What must not be in the tree of a crate that computes.
const RUNTIME: [&str; 3] = ["tokio", "tonic", "hyper"];

/// The package of the command that users install.
const COMMAND: &str = "antdt";

/// Applies every rule and reports all violations at once.
pub(crate) fn run(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let mut violations = Vec::new();
    let rules = [
        arrows,
        manifests,
        readmes,
        file_heads,
        no_ignored_tests,
        documents,
        named_tests,
        dead_links,
        long_documents,
        placed_mutants,
        no_unsafe,
        modes_named_at_home,
        rooms,
        seams,
        exports::one_meaning,
        shown_parts,
        no_machine_paths,
    ];
    for rule in rules {
        violations.extend(rule(&tree));
    }
    for name in verify::PURE {
        let mut list = Command::new("cargo");
        list.args(["tree", "-p", name, "-e", "normal", "--no-default-features", "--prefix", "none"])
            .current_dir(root);
        violations.extend(no_runtime(name, &shell::read(&mut list)?));
    }
    let built = |packages: &[&str]| {
        let mut list = Command::new("cargo");
        list.arg("tree").args(packages).args([
            "-e",
            "normal,build",
            "--prefix",
            "none",
            "--format",
            "{p} [{f}]",
        ]);
        shell::read(list.current_dir(root))
    };
    violations.extend(built_twice(&built(&["-p", COMMAND])?, &built(&[])?));
    if !violations.is_empty() {
        bail!("{}", violations.join("\n"));
    }
    Ok(())
}

/// Header of the table of arrows between crates in ARCHITECTURE.md.
const ARROWS: &str = "| Crate | Depends on | Behind a feature |";

/// A crate depends exactly on those that its row of [`ARROWS`] names; dev-dependencies are free.
fn arrows(tree: &Tree) -> Vec<String> {
    let ours: Vec<&str> = tree.packages.iter().map(|package| package.name.as_str()).collect();
    let rows = arrow_rows(tree.text(ARCHITECTURE).unwrap_or_default());
    let mut violations = Vec::new();
    for package in tree.packages.iter().filter(|package| package.name != TESTS) {
        let name = package.name.as_str();
        let Some((_, always, optional)) = rows.iter().find(|(names, ..)| names.contains(&name)) else {
            violations.push(format!("{name} has no row in the table of arrows of {ARCHITECTURE}"));
            continue;
        };
        let found: Vec<&Dependency> =
            package.dependencies.iter().filter(|d| !d.dev && ours.contains(&d.name.as_str())).collect();
        for dependency in &found {
            let on = dependency.name.as_str();
            let row =
                if dependency.optional { [&always[..], &optional[..]].concat() } else { always.clone() };
            if !row.contains(&on) {
                let remedy = match optional.contains(&on) {
                    true => "only as an optional dependency behind a feature",
                    false => "not at all (ARCHITECTURE.md, \"The allowed arrows\")",
                };
                violations.push(format!("{name} depends on {on}; it may {remedy}"));
            }
        }
        for on in always.iter().chain(optional) {
            if !found.iter().any(|dependency| dependency.name == *on) {
                violations.push(format!(
                    "{name} does not depend on {on}: take {on} out of its row in {ARCHITECTURE}"
                ));
            }
        }
    }
    violations
}

/// A package for a registry says what that shows of it.
fn manifests(tree: &Tree) -> Vec<String> {
    let bare = tree.packages.iter().filter(|package| !package.unsaid.is_empty());
    bare.map(|package| {
        let unsaid = package.unsaid.join(", ");
        format!("{}/Cargo.toml says no {unsaid}, which a registry shows", package.folder)
    })
    .collect()
}

/// The README of a library says how one depends on it.
fn readmes(tree: &Tree) -> Vec<String> {
    let is_library = |package: &&Package| {
        package.published && package.roots.iter().any(|root| root.ends_with("src/lib.rs"))
    };
    let readme = |package: &Package| format!("{}/README.md", package.folder);
    let tells = |package: &Package| {
        let lines = format!("[dependencies]\n{} = ", package.name);
        tree.text(&readme(package)).is_none_or(|text| text.contains(&lines))
    };
    let silent = tree.packages.iter().filter(is_library).filter(|package| !tells(package));
    silent
        .map(|package| {
            format!("{} has no lines of [dependencies] with {} first", readme(package), package.name)
        })
        .collect()
}

/// The rows of the table of arrows: crates, their dependencies, and those behind a feature.
fn arrow_rows(text: &str) -> Vec<(Vec<&str>, Vec<&str>, Vec<&str>)> {
    fn names(cell: &str) -> Vec<&str> {
        cell.split('`').skip(1).step_by(2).collect()
    }
    rows_below(text, ARROWS)
        .filter_map(|row| {
            let mut cells = row.trim_matches('|').split('|').map(names);
            Some((cells.next()?, cells.next()?, cells.next()?))
        })
        .collect()
}

/// The rows of the table with this header, without the line that separates them from it.
fn rows_below<'a>(text: &'a str, header: &str) -> impl Iterator<Item = &'a str> {
    text.lines().skip_while(move |line| *line != header).skip(2).take_while(|line| line.starts_with('|'))
}

/// A package has the same features in the command alone, which `cargo install` builds, as beside its benchmark, which the first command
/// of the README builds: otherwise it, and all that is built from it, is built twice. Both are trees as `cargo tree` prints them.
fn built_twice(alone: &str, beside: &str) -> Vec<String> {
    let packages = |tree: &str| -> BTreeSet<String> {
        tree.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
    };
    let beside = packages(beside);
    packages(alone)
        .difference(&beside)
        .map(|package| {
            format!("{package} has other features beside antdt-bench: make both ask for the same, or it is built twice")
        })
        .collect()
}

/// Every source file says first what it is. The tests of a noun (`noun/tests.rs`) need not: their name says it.
fn file_heads(tree: &Tree) -> Vec<String> {
    tree.sources()
        .filter(|(path, text)| !path.ends_with("/tests.rs") && !path.contains("/tests/") && !has_head(text))
        .map(|(path, _)| format!("{path} does not begin with a `//!` line that says what it is"))
        .collect()
}

/// Whether nothing but blank lines and inner attributes stands before the first `//!`.
fn has_head(text: &str) -> bool {
    let attribute = |line: &&str| line.is_empty() || line.starts_with([' ', ')']) || line.starts_with("#![");
    let is_head = |line: &&str| line.starts_with("//!") || line.starts_with("#![doc");
    text.lines().find(|line| is_head(line) || !attribute(line)).is_some_and(|line| is_head(&line))
}

/// A test that is never run proves nothing.
fn no_ignored_tests(tree: &Tree) -> Vec<String> {
    let mark = concat!("#[", "ignore");
    tree.sources()
        .filter(|(_, text)| text.contains(mark))
        .map(|(path, _)| {
            format!("{path} ignores a test; make it run, or print \"skipped: ...\" with what is missing")
        })
        .collect()
}

/// Every crate that others read has a README and a changelog.
fn documents(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for package in
        tree.packages.iter().filter(|package| package.name != TESTS && !package.folder.starts_with("xtask"))
    {
        for document in ["README.md", "CHANGELOG.md"] {
            let path = format!("{}/{document}", package.folder);
            if !tree.has(&path) {
                violations.push(format!("{path} is missing"));
            }
        }
    }
    violations
}

/// A table whose last column is called `test` names tests that exist.
fn named_tests(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for (path, text) in tree.files.iter().filter(|(path, _)| path.ends_with(".md")) {
        let mut of_tests = false;
        for line in text.lines() {
            let Some(row) = line.strip_prefix('|') else {
                of_tests = false;
                continue;
            };
            let last = row.trim_end().trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
            if last == "test" {
                of_tests = true;
                continue;
            }
            let names = last.split('`').skip(1).step_by(2).filter(|name| of_tests && !name.contains('/'));
            for name in names {
                let functions = [format!("fn {name}("), format!("fn {name}<")];
                if !tree.sources().any(|(_, source)| functions.iter().any(|f| source.contains(f))) {
                    violations.push(format!("{path} names the test {name}, which does not exist"));
                }
            }
        }
    }
    violations
}

/// A link from a document to a document leads to a file, and to a heading that the file has.
fn dead_links(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for (path, text) in tree.files.iter().filter(|(path, _)| path.ends_with(".md")) {
        let prose = prose(text);
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            if link.contains("://") || !(file.is_empty() || file.ends_with(".md")) {
                continue;
            }
            let target = if file.is_empty() { path.clone() } else { beside(path, file) };
            match tree.text(&target) {
                None => violations.push(format!("{path} links to {link}; there is no {target}")),
                Some(found) if !heading.is_empty() && !has_heading(found, heading) => {
                    violations.push(format!("{path} links to {link}; {target} has no such heading"));
                }
                Some(_) => {}
            }
        }
    }
    violations
}

/// A document without its blocks of code.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The path of `file`, which a document at `path` names.
fn beside(path: &str, file: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Whether a document has a heading with this anchor: lower case, dashes for spaces, nothing for other signs.
fn has_heading(text: &str, anchor: &str) -> bool {
    let kept = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
    prose(text).lines().filter(|line| line.starts_with('#')).any(|line| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        heading.chars().filter(|c| kept(*c)).map(|c| if c == ' ' { '-' } else { c }).eq(anchor.chars())
    })
}

/// Words that a reader of these documents has time for: two minutes, and ten.
const WORDS_MAX: [(&str, usize); 2] = [("README.md", 900), (ARCHITECTURE, 3_000)];

/// The documents that a newcomer reads first stay short.
fn long_documents(tree: &Tree) -> Vec<String> {
    let long = |(path, max): (&str, usize)| {
        let words = tree.text(path)?.split_whitespace().count();
        (words > max).then(|| format!("{path} has {words} words, at most {max}: move details to docs/"))
    };
    WORDS_MAX.into_iter().filter_map(long).collect()
}

/// What a mutant replaces is exactly once in its file, and no two of them cross: known now, not after a long build.
fn placed_mutants(tree: &Tree) -> Vec<String> {
    let list = |(path, text)| {
        let folder = str::strip_suffix(path, mutants::LIST)?.strip_suffix('/')?;
        Some((folder, text))
    };
    let lists: Vec<(&str, &str)> =
        tree.files.iter().map(|(path, text)| (path.as_str(), text.as_str())).filter_map(list).collect();
    mutants::misplaced(&lists, |file| tree.text(file))
}

/// Crates that touch hardware or raw memory: they deny unsafe code, and allow it per module with a reason.
const UNSAFE: [&str; 4] = ["antdt-collective", "antdt-gpu", "antdt-py", "antdt-rdma"];

/// Unsafe code is forbidden in every crate root, except where hardware and raw memory are touched.
fn no_unsafe(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for package in &tree.packages {
        let level = if UNSAFE.contains(&package.name.as_str()) { "deny" } else { "forbid" };
        let wanted = format!("#![{level}(unsafe_code)]");
        for root in &package.roots {
            if !tree.text(root).is_some_and(|text| text.contains(&wanted)) {
                violations.push(format!("{root} lacks {wanted}"));
            }
        }
    }
    violations
}

/// A sync mode is named in its folder and its line of the registry; what others ask for are its capabilities. Tests and
/// benchmarks choose modes as users do.
fn modes_named_at_home(tree: &Tree) -> Vec<String> {
    const HOME: &str = "antdt-job/src/mode/";
    let declared = |(path, text): &(String, String)| {
        let line = text.lines().find(|line| line.trim_start().starts_with("name: \""))?;
        let folder = path.strip_prefix(HOME)?.strip_suffix("/mod.rs")?.to_owned();
        Some((folder, line.split('"').nth(1)?.to_owned()))
    };
    let modes: Vec<(String, String)> = tree.sources().filter_map(declared).collect();
    let elsewhere = |path: &str| {
        let source = path.starts_with("antdt") && path.contains("/src/") && !path.contains("/tests");
        source
            && !path.starts_with(HOME)
            && !path.starts_with("antdt-bench/")
            && !path.starts_with("antdt-lab/")
    };
    let mut violations = Vec::new();
    for (path, text) in tree.sources().filter(|(path, _)| elsewhere(path)) {
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (i, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            let named = |(folder, name): &&(String, String)| {
                line.split('"').skip(1).step_by(2).any(|text| names_mode(text, name))
                    || line.contains(&format!("mode::{folder}"))
            };
            if let Some((_, name)) = modes.iter().find(named) {
                violations.push(format!("{path}:{} names the sync mode {name}; ask for a capability", i + 1));
            }
        }
    }
    violations
}

/// What the table of rooms is called, and where it stands.
const ROOMS: &str = "| What | Room: one file or folder | Registry | Line | Suite |";
const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// The extension table says the truth: rooms, registries and suites exist, every line of a registry has its room, every room its line, and
/// no registry is left out.
fn rooms(tree: &Tree) -> Vec<String> {
    let Some(text) = tree.text(ARCHITECTURE) else { return Vec::new() };
    let mut violations = Vec::new();
    let mut listed = 0;
    for row in rows_below(text, ROOMS) {
        listed += 1;
        let cells: Vec<&str> =
            row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [what, room, registry, line, suite] = cells[..] else {
            violations.push(format!("{ARCHITECTURE}: a row of the rooms has not five cells: {row}"));
            continue;
        };
        violations.extend(room_of(tree, what, room, registry, line));
        violations.extend(suite_of(tree, what, suite));
    }
    if listed == 0 {
        violations.push(format!("{ARCHITECTURE} lacks the table of rooms: {ROOMS}"));
    }
    for (path, source) in tree.sources() {
        let declares =
            ["\npub static REGISTRY: ", "\npub const REGISTRY: "].iter().any(|d| source.contains(d));
        if declares && path.starts_with("antdt") && !text.contains(&format!("`{path}`")) {
            violations
                .push(format!("{path} declares a registry that {ARCHITECTURE} does not name; add its row"));
        }
    }
    violations
}

/// What the table of traits is called that a job has one implementation of.
const SEAMS: &str = "| What | Trait | Line of the program | Suite |";

/// That table: every trait is declared where it is said to be, the program that adds a part can write the line, and every suite
/// exists.
fn seams(tree: &Tree) -> Vec<String> {
    let Some(text) = tree.text(ARCHITECTURE) else { return Vec::new() };
    let rows: Vec<&str> = rows_below(text, SEAMS).collect();
    let mut violations = Vec::new();
    if rows.is_empty() {
        violations.push(format!("{ARCHITECTURE} lacks the table of seams: {SEAMS}"));
    }
    for row in rows {
        let words: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
        let [name, file, line, suite] = words[..] else {
            violations.push(format!(
                "{ARCHITECTURE}: a row of the seams has not a trait, a file, a line and a suite: {row}"
            ));
            continue;
        };
        let has_line = line.split_once("::").is_some_and(|(of, function)| {
            let declared = [format!("impl {of} {{"), format!("pub fn {function}(")];
            tree.sources().any(|(_, text)| declared.iter().all(|part| text.contains(part)))
        });
        if !has_line {
            violations.push(format!("{ARCHITECTURE}: no public function {line} takes a {name}"));
        }
        if !tree.text(file).is_some_and(|text| text.contains(&format!("pub trait {name}"))) {
            violations.push(format!("{ARCHITECTURE}: {file} declares no trait {name}"));
        }
        violations.extend(suite_of(tree, name, suite));
    }
    violations
}

/// Whether the suite that a row names exists.
fn suite_of(tree: &Tree, what: &str, suite: &str) -> Option<String> {
    let suite = suite.rsplit("::").next().unwrap_or_default();
    let declared = [format!("fn {suite}("), format!("fn {suite}<"), format!("macro_rules! {suite} ")];
    let exists = tree.sources().any(|(_, source)| declared.iter().any(|d| source.contains(d)));
    (!exists).then(|| format!("{ARCHITECTURE}: the suite {suite} of {what} does not exist"))
}

/// One row: the lines of `registry` and the files of `room` belong together.
fn room_of(tree: &Tree, what: &str, room: &str, registry: &str, line: &str) -> Vec<String> {
    let Some(source) = tree.text(registry) else {
        return vec![format!("{ARCHITECTURE}: the registry {registry} of {what} does not exist")];
    };
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let begin = code.find("const SHIPPED: ").or_else(|| code.find("pub const REGISTRY: "));
    let Some(block) = begin.and_then(|at| code[at..].split("];").next()) else {
        return vec![format!("{registry} has no table that ends in `];`")];
    };
    let mark = line.trim_start_matches("NAME::");
    if !block.contains(mark) {
        return vec![format!("{ARCHITECTURE}: the table of {registry} has no line like {line}")];
    }
    // A line names the module, or the type that is declared in it.
    let words = |text: &str| {
        let word =
            |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'))
            .filter_map(|path| path.split_once("::").map(|(first, _)| first.to_owned()))
            .filter(|first| word(first))
            .collect::<Vec<String>>()
    };
    let inside: Vec<&(String, String)> = tree.sources().filter(|(path, _)| path.starts_with(room)).collect();
    let file_of = |word: &str| {
        inside.iter().any(|(path, text)| {
            let place = &path[room.len()..];
            place == format!("{word}.rs")
                || place == format!("{word}/mod.rs")
                || text.contains(&format!("pub struct {word}"))
        })
    };
    let named = words(block);
    let foreign = ["Entry", "Box", "Arc", "Ok", "Vec", "Format"];
    let mut violations: Vec<String> = named
        .iter()
        .filter(|word| !foreign.contains(&word.as_str()) && !file_of(word))
        .map(|word| format!("{registry} names {word}, which has no file in {room}"))
        .collect();
    let declares =
        ["pub const NAME: &'static str", ": Entry = Entry {", ": Model = Model {", "impl Columns for "];
    for (path, text) in inside.iter().filter(|(path, _)| path != registry && !path.contains("/tests")) {
        let is_room = text.lines().any(|line| declares.iter().any(|d| line.contains(d)));
        let place = path[room.len()..].split(['/', '.']).next().unwrap_or_default();
        let known = named.iter().any(|word| word == place || text.contains(&format!("pub struct {word}")));
        if is_room && !known {
            violations.push(format!("{path} is a room of {what} without a line in {registry}"));
        }
    }
    violations
}

/// Whether a text names a mode as a word of its own.
fn names_mode(text: &str, name: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').any(|word| word == name)
}

/// Lines that a README may show of a file: what fits on a screen beside its text.
const SHOWN_MAX: usize = 15;

/// What a file marks as shown in its crate's README is there, line by line, and short: a reader gets what is built and run.
fn shown_parts(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for (path, text) in tree.sources() {
        let shown = text.lines().skip_while(|line| line.trim() != "// README begin").skip(1);
        let shown: Vec<&str> = shown.take_while(|line| line.trim() != "// README end").collect();
        let Some(first) = shown.first() else { continue };
        let indented = first.len() - first.trim_start().len();
        let shown: Vec<&str> = shown.iter().map(|line| line.get(indented..).unwrap_or_default()).collect();
        let readme = format!("{}/README.md", path.split('/').next().unwrap_or_default());
        if !tree.text(&readme).is_some_and(|text| text.contains(&shown.join("\n"))) {
            violations.push(format!("{readme} does not show what {path} marks for it"));
        }
        if shown.len() > SHOWN_MAX {
            violations.push(format!("{path} marks {} lines for {readme}, at most {SHOWN_MAX}", shown.len()));
        }
    }
    violations
}

/// No file names a path of the machine that it was written on.
fn no_machine_paths(tree: &Tree) -> Vec<String> {
    // Written in pieces, so that this file does not break its own rule.
    const PLACES: [&str; 4] =
        [concat!("/ho", "me/"), concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];
    let mut violations = Vec::new();
    for (path, text) in &tree.files {
        for (i, line) in text.lines().enumerate() {
            if let Some(place) = PLACES.iter().find(|place| names_place(line, place)) {
                violations.push(format!("{path}:{} names the machine path {place}", i + 1));
            }
        }
    }
    violations
}

/// Whether `place` begins a path in `line`: a folder of that name inside the tree does not count.
fn names_place(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '~' | '*'))
    })
}

/// `listed` is the dependency tree of a crate that must compute without a runtime.
fn no_runtime(name: &str, listed: &str) -> Vec<String> {
    let depends = |runtime: &str| listed.lines().any(|line| line.split(' ').next() == Some(runtime));
    RUNTIME
        .into_iter()
        .filter(|runtime| depends(runtime))
        .map(|runtime| format!("{name} --no-default-features depends on {runtime}; find it with `cargo tree -p {name} --no-default-features -i {runtime}`"))
        .collect()
}
