//! Pieces that take what must follow them: a rule that ends with as many letters as there are, before one of those letters.
//!
//! In EBNF the last of them is left for what follows. A piece is the longest that fits, so that an answer could never go on behind
//! it; such a grammar is refused rather than followed without end.

use super::{
    EbnfError, Lark,
    parse::{EbnfExpr, Letters},
};
use std::collections::{BTreeMap, BTreeSet};

/// Rules within rules that are looked into.
const DEPTH: usize = 32;

/// Whether what follows can follow everywhere.
///
/// # Errors
/// Where it surely cannot.
pub(super) fn check(lark: &Lark<'_>, text: &str) -> Result<(), EbnfError> {
    let mut edges = Edges { lark, ends: BTreeMap::new(), begins: BTreeMap::new() };
    for (at, rule) in lark.rules.iter().enumerate().filter(|(at, _)| lark.recursive.contains(at)) {
        let mut taken = None;
        rule.expr.each(&mut |expr| {
            if let EbnfExpr::Sequence(parts) = expr {
                let pairs = parts.windows(2).filter(|pair| !pair.iter().all(|part| lark.is_piece(part)));
                taken = taken.or_else(|| pairs.filter_map(|pair| edges.taken(&pair[0], &pair[1])).next());
            }
        });
        if let Some(letter) = taken {
            let (name, begins) = (&lark.rules[at].name, super::quoted(&letter.to_string()));
            let why = format!(
                "in the rule '{name}' what must begin with {begins} comes behind what takes as many of these as there are: leave \
                 {begins} out of the letters there"
            );
            return Err(EbnfError::at(text, rule.place, why));
        }
    }
    Ok(())
}

/// Letters that an end takes more of, as long as there is some, by where they are written.
type EndLetters<'g> = BTreeMap<usize, &'g Letters>;

/// What rules begin and end with, each looked at once.
struct Edges<'l, 'g> {
    lark: &'l Lark<'g>,
    ends: BTreeMap<usize, Option<EndLetters<'g>>>,
    begins: BTreeMap<usize, Option<BTreeSet<char>>>,
}

impl<'g> Edges<'_, 'g> {
    /// The letter that must come next and cannot, since all that may stand before takes it.
    fn taken(&mut self, before: &'g EbnfExpr, next: &'g EbnfExpr) -> Option<char> {
        let ends = self.ends(before, DEPTH).filter(|ends| !ends.is_empty())?;
        let begins = self.begins(next, DEPTH)?;
        let is_taken = |letter: &char| ends.values().all(|letters| letters.contains(*letter));
        begins.iter().all(is_taken).then(|| begins.first().copied()).flatten()
    }

    fn rule(&self, name: &str) -> Option<(usize, &'g EbnfExpr)> {
        let at = *self.lark.names.get(name)?;
        Some((at, &self.lark.rules[at].expr))
    }

    /// Nothing where one of an expression's ends takes no more.
    fn ends(&mut self, expr: &'g EbnfExpr, depth: usize) -> Option<EndLetters<'g>> {
        let depth = depth.checked_sub(1)?;
        match expr {
            EbnfExpr::Repeat(inner, times) => match &**inner {
                EbnfExpr::Letters(letters) if times.most.is_none() => {
                    Some(BTreeMap::from([(std::ptr::from_ref(letters).addr(), letters)]))
                }
                inner if times.least > 0 => self.ends(inner, depth),
                _ => None,
            },
            EbnfExpr::Sequence(parts) => self.ends(parts.last()?, depth),
            EbnfExpr::Choice(parts) => {
                let mut all = EndLetters::new();
                for part in parts {
                    all.append(&mut self.ends(part, depth)?);
                }
                Some(all)
            }
            EbnfExpr::Rule(name, _) => {
                let (at, inner) = self.rule(name)?;
                if let Some(known) = self.ends.get(&at) {
                    return known.clone();
                }
                // A rule that comes back to itself says nothing more there.
                self.ends.insert(at, None);
                let found = self.ends(inner, depth);
                self.ends.insert(at, found.clone());
                found
            }
            EbnfExpr::Text(_) | EbnfExpr::Letters(_) => None,
        }
    }

    /// The letters that an expression begins with, where they are few.
    fn begins(&mut self, expr: &'g EbnfExpr, depth: usize) -> Option<BTreeSet<char>> {
        let depth = depth.checked_sub(1)?;
        match expr {
            EbnfExpr::Text(text) => text.chars().next().map(|letter| BTreeSet::from([letter])),
            EbnfExpr::Sequence(parts) => self.begins(parts.first()?, depth),
            EbnfExpr::Choice(parts) => {
                let mut all = BTreeSet::new();
                for part in parts {
                    all.append(&mut self.begins(part, depth)?);
                }
                Some(all)
            }
            EbnfExpr::Repeat(inner, times) if times.least > 0 => self.begins(inner, depth),
            EbnfExpr::Rule(name, _) => {
                let (at, inner) = self.rule(name)?;
                if let Some(known) = self.begins.get(&at) {
                    return known.clone();
                }
                self.begins.insert(at, None);
                let found = self.begins(inner, depth);
                self.begins.insert(at, found.clone());
                found
            }
            EbnfExpr::Repeat(..) | EbnfExpr::Letters(_) => None,
        }
    }
}
