//! Grammars in EBNF, as llama.cpp (GBNF), xgrammar and vLLM's `guided_grammar` have them, told in Lark's notation, which is what
//! `llguidance` reads.
//!
//! EBNF speaks of letters, Lark of pieces (terminals) that are cut from the text first, the longest that fits. What is not
//! recursive is made one piece, as far as it goes, so that nothing is cut where EBNF would not: a grammar without recursion is
//! one regular expression, and means the same to the letter.

mod parse;
mod swallow;
#[cfg(test)]
mod tests;

use parse::{EbnfExpr, EbnfRule, parse};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

/// Where an answer begins.
const ROOT: &str = "root";
/// Groups within groups that are written so. `llguidance` takes some thirty, and grammars that programs make have more.
const DEEP: usize = 8;
/// Names of pieces and of other parts of rules.
const PIECE: &str = "PIECE";
const PART: &str = "part";

/// What is wrong with a grammar, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {why}")]
pub struct EbnfError {
    line: usize,
    column: usize,
    why: String,
}

/// Whether a text is written in EBNF: its first rule is.
#[must_use]
pub fn is_ebnf(text: &str) -> bool {
    let lines = text.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.take(1).any(|line| {
        let name = line.trim_start_matches(parse::is_name);
        name.len() < line.len() && name.trim_start().starts_with("::=")
    }) || text.lines().map(str::trim).zip(text.lines().skip(1)).any(|(name, next)| {
        !name.is_empty() && name.chars().all(parse::is_name) && next.trim_start().starts_with("::=")
    })
}

/// The same grammar in Lark's notation.
///
/// # Errors
/// Where it is none, or has what Lark has not.
pub fn to_lark(text: &str) -> Result<String, EbnfError> {
    let rules = parse(text)?;
    let names: BTreeMap<&str, usize> = rules.iter().enumerate().map(|(at, rule)| (rule.name.as_str(), at)).collect();
    for rule in &rules {
        let mut unknown = None;
        rule.expr.each(&mut |expr| match expr {
            EbnfExpr::Rule(name, place) if !names.contains_key(name.as_str()) => {
                unknown.get_or_insert((name.clone(), *place));
            }
            _ => {}
        });
        if let Some((name, place)) = unknown {
            return Err(EbnfError::at(text, place, format!("there is no rule '{name}'")));
        }
    }
    let Some(root) = names.get(ROOT) else {
        return Err(EbnfError::at(text, 0, format!("there is no rule '{ROOT}', where an answer begins")));
    };
    let lark = Lark { rules: &rules, recursive: recursive(&rules, &names), names: &names, parts: Vec::new() };
    swallow::check(&lark, text)?;
    Ok(lark.written(*root))
}

impl EbnfError {
    fn at(text: &str, place: usize, why: impl Into<String>) -> Self {
        let before = &text.as_bytes()[..place.min(text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
        Self { line, column, why: why.into() }
    }
}

/// Rules that come back to themselves, and those that lead to such.
fn recursive(rules: &[EbnfRule], names: &BTreeMap<&str, usize>) -> BTreeSet<usize> {
    let mut needs: Vec<BTreeSet<usize>> = Vec::new();
    for rule in rules {
        let mut of_rule = BTreeSet::new();
        rule.expr.each(&mut |expr| {
            if let EbnfExpr::Rule(name, _) = expr {
                of_rule.extend(names.get(name.as_str()));
            }
        });
        needs.push(of_rule);
    }
    // Whatever needs nothing that is left is not recursive, in turn: no stack, and no more than two passes over each need.
    let mut needed_by: Vec<Vec<usize>> = vec![Vec::new(); rules.len()];
    let mut open: Vec<usize> = needs.iter().map(BTreeSet::len).collect();
    needs.iter().enumerate().for_each(|(at, of_rule)| of_rule.iter().for_each(|need| needed_by[*need].push(at)));
    let mut flat: Vec<usize> = (0..rules.len()).filter(|at| open[*at] == 0).collect();
    let mut left: BTreeSet<usize> = (0..rules.len()).collect();
    while let Some(at) = flat.pop() {
        left.remove(&at);
        for user in &needed_by[at] {
            open[*user] -= 1;
            if open[*user] == 0 {
                flat.push(*user);
            }
        }
    }
    left
}

/// A grammar that is written down.
struct Lark<'g> {
    rules: &'g [EbnfRule],
    recursive: BTreeSet<usize>,
    names: &'g BTreeMap<&'g str, usize>,
    /// Parts of rules that have a name of their own: pieces, and groups that lie deep.
    parts: Vec<(String, String)>,
}

impl Lark<'_> {
    fn written(mut self, root: usize) -> String {
        let mut lines = format!("start: {}\n", self.name(root));
        let rules = self.rules;
        for at in self.used(root) {
            let text = match self.recursive.contains(&at) {
                true => self.rule(&rules[at].expr, 0),
                false => self.piece(&rules[at].expr, 0),
            };
            // Writing to a text cannot fail.
            _ = writeln!(lines, "{}: {text}", self.name(at));
        }
        for (name, text) in &self.parts {
            _ = writeln!(lines, "{name}: {text}");
        }
        lines
    }

    /// Rules that an answer can come to, as they were written.
    fn used(&self, root: usize) -> BTreeSet<usize> {
        let (mut used, mut next) = (BTreeSet::from([root]), vec![root]);
        while let Some(at) = next.pop() {
            self.rules[at].expr.each(&mut |expr| {
                if let EbnfExpr::Rule(name, _) = expr
                    && let Some(at) = self.names.get(name.as_str())
                    && used.insert(*at)
                {
                    next.push(*at);
                }
            });
        }
        used
    }

    /// Pieces have names in capitals.
    fn name(&self, at: usize) -> String {
        let name: String = self.rules[at].name.chars().filter(char::is_ascii_alphanumeric).collect();
        match self.recursive.contains(&at) {
            true => format!("r_{}_{at}", name.to_ascii_lowercase()),
            false => format!("T_{}_{at}", name.to_ascii_uppercase()),
        }
    }

    fn is_piece(&self, expr: &EbnfExpr) -> bool {
        let mut is_piece = true;
        expr.each(&mut |expr| {
            if let EbnfExpr::Rule(name, _) = expr {
                is_piece &= !self.names.get(name.as_str()).is_some_and(|at| self.recursive.contains(at));
            }
        });
        is_piece
    }

    /// An expression of pieces, within one.
    fn piece(&mut self, expr: &EbnfExpr, depth: usize) -> String {
        match expr {
            EbnfExpr::Text(text) => quoted(text),
            EbnfExpr::Letters(letters) => format!("/{}/", letters.regex()),
            EbnfExpr::Rule(name, _) => self.names.get(name.as_str()).map(|at| self.name(*at)).unwrap_or_default(),
            EbnfExpr::Sequence(parts) if parts.is_empty() => quoted(""),
            EbnfExpr::Sequence(parts) => joined(parts.iter().map(|part| self.piece(part, depth)), " "),
            EbnfExpr::Choice(parts) => self
                .grouped(PIECE, depth, |lark, depth| joined(parts.iter().map(|part| lark.piece(part, depth)), " | ")),
            EbnfExpr::Repeat(inner, times) => {
                self.grouped(PIECE, depth, |lark, depth| lark.piece(inner, depth)) + &times.to_string()
            }
        }
    }

    /// An expression of a rule: what follows one another and is not recursive is one piece.
    fn rule(&mut self, expr: &EbnfExpr, depth: usize) -> String {
        if self.is_piece(expr) {
            return self.one_piece(std::slice::from_ref(expr));
        }
        match expr {
            EbnfExpr::Sequence(parts) => {
                let runs = parts.chunk_by(|one, next| self.is_piece(one) && self.is_piece(next));
                let runs: Vec<&[EbnfExpr]> = runs.collect();
                let one = |lark: &mut Self, run: &[EbnfExpr]| match lark.is_piece(&run[0]) {
                    true => lark.one_piece(run),
                    false => lark.rule(&run[0], depth),
                };
                joined(runs.into_iter().map(|run| one(self, run)), " ")
            }
            EbnfExpr::Choice(parts) => {
                self.grouped(PART, depth, |lark, depth| joined(parts.iter().map(|part| lark.rule(part, depth)), " | "))
            }
            EbnfExpr::Repeat(inner, times) => {
                self.grouped(PART, depth, |lark, depth| lark.rule(inner, depth)) + &times.to_string()
            }
            EbnfExpr::Rule(name, _) => self.names.get(name.as_str()).map(|at| self.name(*at)).unwrap_or_default(),
            EbnfExpr::Text(_) | EbnfExpr::Letters(_) => self.piece(expr, depth),
        }
    }

    /// A group in brackets, or where it lies deep by a name.
    fn grouped(&mut self, kind: &str, depth: usize, inner: impl FnOnce(&mut Self, usize) -> String) -> String {
        if depth < DEEP {
            return format!("({})", inner(self, depth + 1));
        }
        let text = inner(self, 0);
        self.part(kind, text)
    }

    /// What is one piece.
    fn one_piece(&mut self, run: &[EbnfExpr]) -> String {
        let text = joined(run.iter().map(|part| self.piece(part, 0)), " ");
        match run {
            [EbnfExpr::Text(_) | EbnfExpr::Letters(_) | EbnfExpr::Rule(..)] => text,
            _ => self.part(PIECE, text),
        }
    }

    /// A name for a part.
    fn part(&mut self, kind: &str, text: String) -> String {
        let name = format!("{kind}_{}", self.parts.len());
        self.parts.push((name.clone(), text));
        name
    }
}

fn joined(parts: impl IntoIterator<Item = String>, between: &str) -> String {
    parts.into_iter().collect::<Vec<_>>().join(between)
}

/// A text in Lark's notation.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
