use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::list::{List, Mutant};
use super::plant::{Planted, find, plant};
use super::{copy, order};

fn planted<'a>(text: &str, number: u32, original: &'a str, defect: &'a str) -> Planted<'a> {
    Planted { place: find(text, original).unwrap(), number, name: original, defect }
}

#[test]
fn an_original_is_found_however_it_is_laid_out_and_only_if_there_is_one() {
    let text = "fn f() -> u32 {\n    g(1,\n      2) + g(3, 4)\n}\n";
    let place = find(text, "g(1, 2) +").unwrap();
    assert_eq!(&text[place], "g(1,\n      2) +");
    assert!(find(text, "g(").unwrap_err().to_string().contains("more than once"));
    assert!(find(text, "h(").unwrap_err().to_string().contains("not in the file"));
    assert!(find(text, " \n").is_err());
    assert_eq!(&text[find(text, "+ g(«3»,").unwrap()], "3");
    let text = "let é = \"ü\"; x";
    assert_eq!(&text[find(text, "é = \"ü\"").unwrap()], "é = \"ü\"");
}

#[test]
fn a_defect_stands_beside_the_code_that_it_replaces() {
    let text = "a(b(c)); d;";
    let whole = planted(text, 1, "a(b(c));", "");
    let inner = planted(text, 2, "b(c)", "c");
    let also = planted(text, 3, "b(c)", "0");
    let last = planted(text, 4, "d;", "return;");
    let made = plant(text, vec![last, also, inner, whole]).unwrap();
    let is = |n: u32| format!("if crate::planted::is({n})");
    let choice = format!("({} {{ c }} else {{ ({} {{ 0 }} else {{ b(c) }}) }})", is(2), is(3));
    assert_eq!(
        made,
        format!("{} {{  }} else {{ a({choice}); }} {} {{ return; }} else {{ d; }}", is(1), is(4))
    );
}

#[test]
fn originals_that_cross_are_refused() {
    let text = "a + b + c";
    let crossing = vec![planted(text, 1, "a + b", "x"), planted(text, 2, "b + c", "y")];
    let error = plant(text, crossing).unwrap_err().to_string();
    assert_eq!(error, "the originals of a + b and b + c cross each other");
}

const LIST: &str = "
[suites.unit]
target = \"lib\"
[[mutant]]
name = \"m\"
file = \"src/lib.rs\"
original = \"1\"
defect = \"2\"
why = \"because\"
";

#[test]
fn a_list_names_its_wrong_fields() {
    let list = List::parse("a", LIST).unwrap();
    assert_eq!((list.mutants[0].suites.as_slice(), list.opt_level), (&["unit".to_owned()][..], 1));
    for (from, to, part) in [
        ("why = \"because\"\n", "", "why is missing"),
        ("why =", "what = \"x\"\nwhy =", "what is not a key"),
        ("why =", "suites = [\"other\"]\nwhy =", "\"other\", which is not listed"),
        ("why =", "suites = []\nwhy =", "names no suite"),
        ("[suites.unit]\n", "", "[suites] is missing"),
        ("target =", "targets =", "target is missing"),
        ("file =", "crate = 1\nfile =", "crate is missing or not a text"),
    ] {
        let error = format!("{:#}", List::parse("a", &LIST.replace(from, to)).unwrap_err());
        assert!(error.contains(part), "{error} lacks {part}");
    }
    let twice = format!("{LIST}{}", &LIST[LIST.find("[[").unwrap()..]);
    let error = format!("{:#}", List::parse("a", &twice).unwrap_err());
    assert!(error.starts_with("a/mutants.toml: two mutants are called"), "{error}");
}

#[test]
fn a_mutant_of_another_crate_is_planted_there_and_only_there() {
    let other = LIST[LIST.find("[[").unwrap()..].replace("\"m\"", "\"n\"\ncrate = \"b\"");
    let list = List::parse("a", &format!("{LIST}{other}")).unwrap();
    let text_of = |path: &str| match path {
        "a/src/lib.rs" => Some("f(1)"),
        "b/src/lib.rs" => Some("g(1)"),
        _ => None,
    };
    assert_eq!(list.crates().into_iter().collect::<Vec<_>>(), ["a", "b"]);
    let (planted, misplaced) = list.plant(text_of);
    assert!(misplaced.is_empty(), "{misplaced:?}");
    let choice = |number: u32| format!("(if crate::planted::is({number}) {{ 2 }} else {{ 1 }})");
    assert_eq!(planted["a/src/lib.rs"], format!("f({})", choice(1)));
    assert_eq!(planted["b/src/lib.rs"], format!("g({})", choice(2)));
}

#[test]
fn callers_of_a_function_with_a_mutant_are_not_constant_in_any_crate() {
    let list = List::parse("a", LIST).unwrap();
    let constant = "pub const fn two() -> u32 { 2 }\npub const TWO: u32 = two();";
    let mut files: BTreeMap<PathBuf, Vec<u8>> = [
        ("a/src/lib.rs", "pub const fn one() -> u32 { { two(); } 1 }"),
        ("a/src/two.rs", constant),
        ("b/src/f.rs", "impl A { pub const fn f(self) -> u32 { self.g() }\nconst fn k() {} }"),
        ("b/src/g.rs", "pub(crate) const fn g() -> u32 { let none = 0; a::one() + none }"),
        ("b/build.rs", "const fn h() { one() }"),
    ]
    .map(|(path, text)| (PathBuf::from(path), text.as_bytes().to_vec()))
    .into();
    let folders = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
    copy::plant_all(&folders, &list, &mut files).unwrap();
    let text = |path: &str| String::from_utf8(files[&PathBuf::from(path)].clone()).unwrap();
    let choice = "(if crate::planted::is(1) { 2 } else { 1 })";
    assert!(text("a/src/lib.rs").contains(&format!("pub fn one() -> u32 {{ {{ two(); }} {choice} }}")));
    assert_eq!(text("a/src/two.rs"), constant);
    assert_eq!(text("b/src/f.rs"), "impl A { pub fn f(self) -> u32 { self.g() }\nconst fn k() {} }");
    assert_eq!(text("b/src/g.rs"), "pub(crate) fn g() -> u32 { let none = 0; a::one() + none }");
    assert_eq!(text("b/build.rs"), "const fn h() { one() }");
}

fn named(folder: &str, names: &[&str]) -> List {
    let mut text = "[suites.unit]\ntarget = \"lib\"\n".to_owned();
    for name in names {
        text += &format!("[[mutant]]\nname = \"{name}\"\nfile = \"src/{name}.rs\"\n");
        text += "original = \"1\"\ndefect = \"2\"\nwhy = \"because\"\n";
    }
    List::parse(folder, &text).unwrap()
}

#[test]
fn touched_mutants_come_first_and_the_others_take_turns() {
    let lists = [named("a", &["a1", "a2", "a3"]), named("b", &["b1", "b2"]), named("c", &["c1"])];
    let told = |touched: &[&str], turn: usize| -> Vec<String> {
        let is_touched = |_: &List, mutant: &Mutant| touched.contains(&mutant.name.as_str());
        let visits = order(&lists, |_, _| true, is_touched, turn);
        let names = |(list, mutants): (&List, Vec<usize>)| {
            mutants.iter().map(|at| list.mutants[*at].name.as_str()).collect::<Vec<_>>().join(" ")
        };
        visits.into_iter().map(names).collect()
    };
    assert_eq!(told(&["a2", "c1"], 0), ["a2", "c1", "a1 a3", "b1 b2"]);
    assert_eq!(told(&["a2", "c1"], 1), ["c1", "a2", "a3 a1", "b1 b2"]);
    let first: BTreeSet<String> = (0..6).map(|turn| told(&[], turn).join(" ")[..2].to_owned()).collect();
    assert_eq!(first.len(), 6, "each is the first in one of six turns");
    let chosen = order(&lists, |_, mutant| mutant.name == "c1" || mutant.name == "a3", |_, _| false, 0);
    assert_eq!(
        chosen.iter().map(|(list, at)| (list.folder.as_str(), at.len())).collect::<Vec<_>>(),
        [("a", 1), ("c", 1)]
    );
}
