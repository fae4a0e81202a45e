//! Defects into a source text, each beside what it replaces.

use std::collections::BTreeSet;
use std::ops::Range;

use anyhow::{Result, bail};

/// The module that is added to the crate, as `planted.rs`.
pub(super) const MODULE: &str = "\
//! Which defect is switched on; made by `cargo xtask mutants`.
#![allow(missing_docs, dead_code)]

/// Whether this is the one that the environment names.
#[inline]
pub(crate) fn is(number: u32) -> bool {
    static CHOSEN: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {
        std::env::var(\"ANTDT_PLANTED\").ok().and_then(|number| number.parse().ok()).unwrap_or(0)
    });
    *CHOSEN == number
}
";

/// The variable that the module reads.
pub(super) const VARIABLE: &str = "ANTDT_PLANTED";

/// The number of the mutant at this place of the lists; 0 is none.
pub(super) fn number(at: usize) -> u32 {
    u32::try_from(at + 1).expect("the lists are written by hand")
}

/// A defect, and the place of what it replaces.
#[derive(Debug)]
pub(super) struct Planted<'a> {
    pub(super) place: Range<usize>,
    pub(super) number: u32,
    pub(super) name: &'a str,
    pub(super) defect: &'a str,
}

/// What `original` stands for in `text`, white space aside, so that a formatter may move it. If a part of it lies
/// between `«` and `»`, that part; the rest says which of several places is meant.
pub(super) fn find(text: &str, original: &str) -> Result<Range<usize>> {
    let wanted: String = original.split_whitespace().collect();
    let (before, marked) = wanted.split_once('«').unwrap_or(("", &wanted));
    let (marked, after) = marked.split_once('»').unwrap_or((marked, ""));
    if marked.is_empty() {
        bail!("the original is empty");
    }
    let wanted = [before, marked, after].concat();
    let (mut dense, mut at) = (String::new(), Vec::new());
    for (i, c) in text.char_indices().filter(|(_, c)| !c.is_whitespace()) {
        dense.push(c);
        at.resize(dense.len(), i);
    }
    let mut found = dense.match_indices(&wanted).map(|(start, _)| start + before.len());
    match (found.next(), found.next()) {
        (Some(start), None) => {
            let last = at[start + marked.len() - 1];
            Ok(at[start]..last + text[last..].chars().next().map_or(0, char::len_utf8))
        }
        (None, _) => bail!("the original is not in the file"),
        (Some(_), Some(_)) => {
            bail!("the original is in the file more than once; name more of what surrounds it")
        }
    }
}

/// The text with all defects in it. One may lie inside what another replaces, but they may not cross.
pub(super) fn plant(text: &str, mut planted: Vec<Planted<'_>>) -> Result<String> {
    planted.sort_by_key(|p| (p.place.start, std::cmp::Reverse(p.place.end), p.number));
    for (i, outer) in planted.iter().enumerate() {
        if let Some(inner) = planted[i + 1..]
            .iter()
            .find(|inner| inner.place.start < outer.place.end && inner.place.end > outer.place.end)
        {
            bail!("the originals of {} and {} cross each other", outer.name, inner.name);
        }
    }
    Ok(render(text, 0..text.len(), &planted))
}

/// `planted` lie within `part`, the outer before the inner.
fn render(text: &str, part: Range<usize>, planted: &[Planted<'_>]) -> String {
    let mut out = String::new();
    let (mut at, mut rest) = (part.start, planted);
    while let Some((first, behind)) = rest.split_first() {
        let inside = behind.iter().take_while(|p| p.place.end <= first.place.end).count();
        let (inner, after) = behind.split_at(inside);
        out.push_str(&text[at..first.place.start]);
        let original = render(text, first.place.clone(), inner);
        out.push_str(&choice(first, &text[first.place.clone()], &original));
        at = first.place.end;
        rest = after;
    }
    out.push_str(&text[at..part.end]);
    out
}

/// The defect if it is switched on, else the original. What ends as a statement is one.
fn choice(planted: &Planted<'_>, plain: &str, original: &str) -> String {
    let Planted { number, defect, .. } = planted;
    let choice = format!("if {CHOICE}{number}) {{ {defect} }} else {{ {original} }}");
    if plain.ends_with([';', '}']) { choice } else { format!("({choice})") }
}

/// What the choice between a defect and the original begins with.
const CHOICE: &str = "crate::planted::is(";

/// How a constant function begins.
const CONSTANT: &str = "const fn ";

/// Takes the word `const` from every function with a mutant in it, since the choice is made while the program runs, and
/// from every one that calls such a function, whatever text it is in. Functions are known by their names alone: one too
/// many does no harm unless a constant is made with it.
pub(super) fn make_variable(texts: &mut [String]) {
    let mut variable: BTreeSet<String> = BTreeSet::new();
    loop {
        let mut found = false;
        for text in texts.iter_mut() {
            let mut at = 0;
            while let Some(begin) = text[at..].find(CONSTANT).map(|offset| at + offset) {
                let name = name_at(text, begin + CONSTANT.len()).to_owned();
                at = begin + CONSTANT.len();
                let body = body(&text[at..]);
                if body.contains(CHOICE) || variable.iter().any(|name| calls(body, name)) {
                    text.replace_range(begin..begin + "const ".len(), "");
                    at = begin;
                    variable.insert(name);
                    found = true;
                }
            }
        }
        if !found {
            return;
        }
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn name_at(text: &str, at: usize) -> &str {
    let rest = &text[at..];
    &rest[..rest.find(|c| !is_of_name(c)).unwrap_or(rest.len())]
}

// What is between the first brace and the one that closes it; all of it if none does.
fn body(text: &str) -> &str {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return &text[..at],
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    text
}

fn calls(body: &str, name: &str) -> bool {
    body.match_indices(name)
        .any(|(at, _)| !body[..at].ends_with(is_of_name) && body[at + name.len()..].starts_with('('))
}
