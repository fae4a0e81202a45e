//! Every rule catches a planted violation, and the real tree is found.

use super::*;

pub(super) fn package(name: &str, dependencies: Vec<Dependency>) -> Package {
    Package {
        name: name.to_owned(),
        folder: name.to_owned(),
        dependencies,
        roots: vec![format!("{name}/src/lib.rs")],
        unsaid: Vec::new(),
        published: true,
    }
}

fn dependency(name: &str) -> Dependency {
    Dependency { name: name.to_owned(), dev: false, optional: false }
}

pub(super) fn tree(packages: Vec<Package>, files: &[(&str, &str)]) -> Tree {
    Tree {
        packages,
        files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect(),
    }
}

/// What the rule of arrows finds in `packages`, with these rows in the table.
fn arrows_of(packages: Vec<Package>, rows: &str) -> Vec<String> {
    let table = format!("Text.\n\n{ARROWS}\n|---|---|---|\n{rows}\nMore.\n");
    arrows(&tree(packages, &[(ARCHITECTURE, &table)]))
}

#[test]
fn manifest_without_documentation_and_keywords_is_caught() {
    let unsaid = vec!["documentation".to_owned(), "keywords".to_owned()];
    let bare = Package { unsaid, ..package("antdt-gpu", vec![]) };
    let found = manifests(&tree(vec![bare, package("antdt-core", vec![])], &[]));
    assert_eq!(found, ["antdt-gpu/Cargo.toml says no documentation, keywords, which a registry shows"]);
}

#[test]
fn readme_of_a_library_without_its_dependency_line_is_caught() {
    let tool = Package { published: false, ..package("xtask", vec![]) };
    let all = vec![package("antdt-core", vec![]), package("antdt-shard", vec![]), tool];
    let told = ("antdt-core/README.md", "Use it.\n```toml\n[dependencies]\nantdt-core = \"0.1\"\n```\n");
    let readme = [told, ("antdt-shard/README.md", "Use it."), ("xtask/README.md", "Call it.")];
    let found = readmes(&tree(all, &readme));
    assert_eq!(found, ["antdt-shard/README.md has no lines of [dependencies] with antdt-shard first"]);
}

#[test]
fn two_services_that_meet_are_caught() {
    let shard = package("antdt-shard", vec![dependency("antdt-core"), dependency("antdt-monitor")]);
    let all = vec![shard, package("antdt-core", vec![]), package("antdt-monitor", vec![])];
    let found = arrows_of(all, "| `antdt-core`, `antdt-monitor` | | |\n| `antdt-shard` | `antdt-core` | |\n");
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("antdt-shard depends on antdt-monitor; it may not at all"), "{found:?}");
}

#[test]
fn a_runtime_that_cannot_be_left_out_is_caught() {
    let rows = "| `antdt-rt` | | |\n| `antdt-agent` | | `antdt-rt` |\n";
    let rt = || package("antdt-rt", vec![]);
    let always = package("antdt-agent", vec![dependency("antdt-rt")]);
    assert!(arrows_of(vec![always, rt()], rows)[0].contains("optional"));
    let behind_a_feature = Dependency { optional: true, ..dependency("antdt-rt") };
    assert_eq!(arrows_of(vec![package("antdt-agent", vec![behind_a_feature]), rt()], rows), [""; 0]);
}

#[test]
fn an_arrow_that_is_gone_is_caught() {
    let found = arrows_of(
        vec![package("antdt-core", vec![]), package("antdt-sim", vec![])],
        "| `antdt-core` | | |\n| `antdt-sim` | `antdt-core` | |\n",
    );
    assert_eq!(
        found,
        ["antdt-sim does not depend on antdt-core: take antdt-core out of its row in ARCHITECTURE.md"]
    );
}

#[test]
fn dev_dependencies_and_the_tests_package_are_free() {
    let dev = Dependency { dev: true, ..dependency("antdt-shard") };
    let all = vec![
        package("antdt-monitor", vec![dev]),
        package("antdt-shard", vec![]),
        package(TESTS, vec![dependency("antdt-shard"), dependency("antdt-monitor")]),
    ];
    assert_eq!(arrows_of(all, "| `antdt-monitor`, `antdt-shard` | | |\n"), [""; 0]);
}

#[test]
fn nothing_may_depend_on_the_tests_package() {
    let all = vec![package("antdt", vec![dependency(TESTS)]), package(TESTS, vec![])];
    assert_eq!(arrows_of(all, "| `antdt` | | |\n").len(), 1);
}

#[test]
fn a_crate_without_a_row_in_the_table_is_caught() {
    assert_eq!(
        arrows_of(vec![package("antdt-extra", vec![])], "| `antdt-core` | | |\n"),
        ["antdt-extra has no row in the table of arrows of ARCHITECTURE.md"]
    );
}

#[test]
fn a_file_without_a_head_is_caught() {
    let files = [
        ("a/src/lib.rs", "#![doc = include_str!(\"../README.md\")]\n"),
        ("a/src/good.rs", "\n//! What it is.\n"),
        ("a/src/runtime/mod.rs", "#![allow(\n    clippy::disallowed_methods,\n)]\n//! I/O.\n"),
        ("a/src/good/tests.rs", "use super::*;\n"),
        ("a/src/bad.rs", "use std::fmt;\n"),
        ("a/src/empty.rs", ""),
        ("a/README.md", "no source"),
    ];
    let found = file_heads(&tree(vec![], &files));
    assert_eq!(found.len(), 2);
    assert!(found[0].starts_with("a/src/bad.rs") && found[1].starts_with("a/src/empty.rs"));
}

#[test]
fn an_ignored_test_is_caught() {
    let text = concat!("//! T.\n#[test]\n#[", "ignore = \"slow\"]\nfn t() {}\n");
    assert_eq!(no_ignored_tests(&tree(vec![], &[("a/src/t.rs", text)])).len(), 1);
    assert!(no_ignored_tests(&tree(vec![], &[("a/src/t.rs", "//! T.\n#[test]\nfn t() {}\n")])).is_empty());
}

#[test]
fn a_crate_without_documents_is_caught() {
    let found = documents(&tree(vec![package("antdt-core", vec![])], &[("antdt-core/README.md", "x")]));
    assert_eq!(found, ["antdt-core/CHANGELOG.md is missing"]);
}

#[test]
fn a_guarantee_whose_test_is_gone_is_caught() {
    let table = "| when | test |\n|---|---|\n| a | `it_holds`, `it_holds_of`, `tests/kill` |\n| b `x` | `it_is_gone` |\n\n| c | `free` |\n";
    let source = ("antdt-core/src/lib.rs", "fn it_holds() {}\nfn it_holds_of<T>() {}");
    let found = named_tests(&tree(vec![], &[("antdt-core/README.md", table), source]));
    assert_eq!(found, ["antdt-core/README.md names the test it_is_gone, which does not exist"]);
}

#[test]
fn a_link_to_a_document_or_heading_that_is_gone_is_caught() {
    let modes = ("docs/modes.md", "# Modes\n## `ps-bsp`, in step: why?\n");
    let found = |link: &str| {
        let text = format!("See [it]({link}).\n```text\n[x](gone.md)\n```\n## Here\n");
        dead_links(&tree(vec![], &[("docs/modes/a.md", &text), modes])).len()
    };
    for link in
        ["../modes.md", "../modes.md#ps-bsp-in-step-why", "#here", "https://x.org/gone.md", "../folder"]
    {
        assert_eq!(found(link), 0, "{link}");
    }
    for link in ["modes.md", "../modes.md#ps-asp", "#there"] {
        assert_eq!(found(link), 1, "{link}");
    }
}

#[test]
fn a_readme_of_more_than_two_minutes_is_caught() {
    let found = |words: usize| long_documents(&tree(vec![], &[("README.md", &"word ".repeat(words))]));
    assert_eq!(found(900), [""; 0]);
    assert_eq!(found(901), ["README.md has 901 words, at most 900: move details to docs/"]);
}

#[test]
fn a_mutant_whose_place_is_gone_or_taken_is_caught() {
    let mutant = |name: &str, file: &str, original: &str| {
        let place = format!("name = \"{name}\"\nfile = \"{file}\"\noriginal = \"{original}\"\n");
        format!("[[mutant]]\n{place}defect = \"0\"\nwhy = \"w\"\n")
    };
    let found = |mutants: &[String]| {
        let list = format!("[suites.unit]\ntarget = \"lib\"\n{}", mutants.concat());
        placed_mutants(&tree(
            vec![],
            &[("a/mutants.toml", &list), ("a/src/lib.rs", "a + b + c; a"), ("b/src/lib.rs", "gone")],
        ))
    };
    let lib = "src/lib.rs";
    assert!(found(&[mutant("m", lib, "a + b"), mutant("n", lib, "b"), mutant("o", lib, "b")]).is_empty());
    assert!(found(&[mutant("m", lib, "gone").replace("file", "crate = \"b\"\nfile")]).is_empty());
    for (mutants, what) in [
        (vec![mutant("m", lib, "gone")], "a/mutants.toml: m (a/src/lib.rs): the original is not in the file"),
        (
            vec![mutant("m", lib, "a + b").replace("file", "crate = \"b\"\nfile")],
            "a/mutants.toml: m (b/src/lib.rs): the original is not in the file",
        ),
        (
            vec![mutant("m", lib, "a")],
            "a/mutants.toml: m (a/src/lib.rs): the original is in the file more than once",
        ),
        (vec![mutant("m", "src/x.rs", "a")], "a/mutants.toml: m (a/src/x.rs): there is no such text"),
        (
            vec![mutant("m", lib, "a + b"), mutant("n", lib, "b + c")],
            "a/src/lib.rs: the originals of m and n cross each other",
        ),
        (vec![], "a/mutants.toml: [[mutant]]: at least one is needed"),
    ] {
        let found = found(&mutants);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(what), "{found:?}");
    }
}

#[test]
fn a_crate_root_that_allows_unsafe_code_is_caught() {
    let all = || vec![package("antdt-core", vec![]), package("antdt-rdma", vec![])];
    let found = |of_core, of_rdma| {
        no_unsafe(&tree(all(), &[("antdt-core/src/lib.rs", of_core), ("antdt-rdma/src/lib.rs", of_rdma)]))
    };
    let (forbid, deny) = ("#![forbid(unsafe_code)]\n", "#![deny(unsafe_code)]\n");
    assert!(found(forbid, deny).is_empty());
    assert_eq!(found(deny, deny), ["antdt-core/src/lib.rs lacks #![forbid(unsafe_code)]"]);
    assert_eq!(found(forbid, "//! C.\n"), ["antdt-rdma/src/lib.rs lacks #![deny(unsafe_code)]"]);
}

#[test]
fn a_path_of_somebodys_machine_is_caught() {
    let planted = concat!("see `/ho", "me/ann/x`");
    let found = no_machine_paths(&tree(vec![], &[("a.md", planted), ("b.md", "https://example.org/x")]));
    assert_eq!(found.len(), 1);
    let inside = concat!("src/wo", "rk/mod.rs and ../wo", "rk/x");
    assert!(no_machine_paths(&tree(vec![], &[("a.md", inside)])).is_empty());
}

#[test]
fn a_sync_mode_that_is_named_outside_its_folder_is_caught() {
    let folder =
        ("antdt-job/src/mode/gossip/mod.rs", "pub const ENTRY: Entry = Entry {\n    name: \"gossip\",\n};");
    let found = |path: &'static str, text: &'static str| {
        modes_named_at_home(&tree(vec![], &[folder, (path, text)])).len()
    };
    assert_eq!(found("antdt/src/server.rs", "if sync == \"gossip\" {}"), 1);
    assert_eq!(found("antdt/src/server.rs", "let remedy = \"choose gossip to do without servers\";"), 1);
    assert_eq!(found("antdt-sim/src/world.rs", "use antdt_job::mode::gossip::Gossip;"), 1);
    assert_eq!(found("antdt/src/server.rs", "// A gossip among \"gossip\"\nlet text = \"gossiping\";"), 0);
    assert_eq!(found("antdt-job/src/mode/mod.rs", "let entry = \"gossip\";"), 0);
    assert_eq!(found("antdt/src/x/tests.rs", "run(\"gossip\")"), 0);
}

#[test]
fn a_room_and_its_line_that_do_not_belong_together_are_caught() {
    const REGISTRY: &str = "antdt-x/src/dish/mod.rs";
    let table = |suite: &str| {
        format!(
            "{ROOMS}\n|---|---|---|---|---|\n| a dish | `antdt-x/src/dish/` | `{REGISTRY}` | `NAME::ENTRY` | `{suite}` |\n"
        )
    };
    let soup = ("antdt-x/src/dish/soup.rs", "pub const ENTRY: Entry = Entry {\n};\nfn check_dish() {}\n");
    let found = |architecture: &str, registry: &str, more: &[(&str, &str)]| {
        let files = [&[(ARCHITECTURE, architecture), (REGISTRY, registry), soup][..], more].concat();
        rooms(&tree(vec![], &files))
    };
    let good = "mod soup;\npub const REGISTRY: &[Entry] = &[soup::ENTRY];\n";
    assert_eq!(found(&table("x::check_dish"), good, &[]), [""; 0]);
    assert!(found(&table("x::check_meal"), good, &[])[0].contains("suite check_meal"));
    assert!(found("", good, &[])[0].contains("lacks the table"));
    let lone = ("antdt-x/src/dish/cake.rs", "pub const ENTRY: Entry = Entry {\n};\n");
    assert!(
        found(&table("check_dish"), good, &[lone])[0].contains("cake.rs is a room of a dish without a line")
    );
    let more = "mod soup;\npub const REGISTRY: &[Entry] = &[soup::ENTRY, cake::ENTRY];\n";
    assert!(found(&table("check_dish"), more, &[])[0].contains("names cake, which has no file"));
    assert!(
        found(&table("check_dish"), "pub const REGISTRY: &[Entry] = &[];\n", &[])[0].contains("no line like")
    );
    let other = ("antdt-x/src/drink.rs", "//! Drinks.\npub static REGISTRY: Registry<Entry> = x;\n");
    assert!(found(&table("check_dish"), good, &[other])[0].contains("does not name; add its row"));
}

#[test]
fn a_seam_without_its_trait_or_its_suite_is_caught() {
    let table = |row: &str| format!("{SEAMS}\n|---|---|---|---|\n{row}\n");
    let source = (
        "antdt-x/src/lib.rs",
        "pub trait Cook {}\nimpl Kitchen {\n    pub fn cook(self) {}\n}\nfn check_cook() {}\n",
    );
    let found = |architecture: &str| seams(&tree(vec![], &[(ARCHITECTURE, architecture), source]));
    let row = |name: &str, file: &str, line: &str, suite: &str| {
        table(&format!("| a cook | `{name}` in `{file}` | `{line}` | `{suite}` |"))
    };
    let (file, line, suite) = ("antdt-x/src/lib.rs", "Kitchen::cook", "x::check_cook");
    assert_eq!(found(&row("Cook", file, line, suite)), [""; 0]);
    assert!(found(&row("Chef", file, line, suite))[0].contains("declares no trait Chef"));
    assert!(found(&row("Cook", "antdt-x/src/cook.rs", line, suite))[0].contains("declares no trait Cook"));
    assert!(
        found(&row("Cook", file, "Kitchen::chef", suite))[0].contains("no public function Kitchen::chef")
    );
    assert!(found(&row("Cook", file, line, "check_chef"))[0].contains("suite check_chef"));
    assert!(found(&table("| a cook | `Cook` |"))[0].contains("has not a trait"));
    assert!(found("")[0].contains("lacks the table of seams"));
}

#[test]
fn a_runtime_in_a_pure_tree_is_caught() {
    assert_eq!(no_runtime("antdt-core", "antdt-core v0.1.0\ntokio v1.48.0\n").len(), 1);
    assert!(no_runtime("antdt-core", "antdt-core v0.1.0\ntokio-like v1.0.0\n").is_empty());
}

#[test]
fn the_real_tree_is_read_with_its_crates_and_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let tree = Tree::read(root).unwrap();
    assert!(
        tree.packages
            .iter()
            .any(|package| package.name == "antdt-core" && package.roots == ["antdt-core/src/lib.rs"])
    );
    assert!(tree.has("antdt-core/src/lib.rs") && tree.has("xtask/src/tidy.rs"));
    assert!(!tree.files.iter().any(|(path, _)| path.contains("/generated/") || path.starts_with("target")));
}

#[test]
fn a_readme_that_shows_something_else_or_too_much_is_caught() {
    let marked = |lines: &str| format!("fn main() {{\n    // README begin\n{lines}    // README end\n}}\n");
    let found = |lines: &str, readme: &str| {
        shown_parts(&tree(vec![], &[("a/tests/own.rs", &marked(lines)), ("a/README.md", readme)]))
    };
    let two = "    let a = 1;\n        let b = a;\n";
    assert!(found(two, "```rust\nlet a = 1;\n    let b = a;\n```\n").is_empty());
    assert_eq!(
        found(two, "let a = 2;\n    let b = a;\n"),
        ["a/README.md does not show what a/tests/own.rs marks for it"]
    );
    let many = "    line();\n".repeat(SHOWN_MAX + 1);
    assert_eq!(found(&many, &"line();\n".repeat(SHOWN_MAX + 1)).len(), 1);
}

#[test]
fn a_package_that_two_commands_build_with_other_features_is_caught() {
    let alone = "antdt v0.1.0 [cli]\nrustix v1.1.6 [fs,std]\nlibc v0.2.0 [] (*)\n";
    assert!(built_twice(alone, &format!("{alone}antdt-bench v0.1.0 []\n")).is_empty());
    let found = built_twice(alone, &alone.replace("[fs,std]", "[default,fs,std]"));
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("rustix v1.1.6 [fs,std] has other features beside antdt-bench"),
        "{found:?}"
    );
}
