//! Tokens become statements. Expressions are in `parser/expressions.rs`.

mod expressions;

use super::ast::{AssignTarget, CallArgs, Expr, Filter, For, Macro, Stmt, StmtKind, Uses};
use super::error::{Error, Result};
use super::lexer::{Lexeme, PlacedLexeme, tokens};
use std::collections::HashMap;
use std::sync::Arc;

/// Statements and expressions within each other.
const DEPTH: usize = 200;

/// Values with signs between them, in one row: each holds those before it.
const CHAIN: usize = 200;

/// A template as it was read.
#[derive(Debug, Default)]
pub struct ParsedTemplate {
    pub body: Vec<Stmt>,
    pub blocks: HashMap<Arc<str>, Vec<Stmt>>,
}

/// Reads a template.
pub fn parse(source: &str) -> Result<ParsedTemplate> {
    let mut parser = Parser {
        tokens: tokens(source)?,
        at: 0,
        depth: 0,
        loops: 0,
        uses: Uses::default(),
        unknown: Vec::new(),
        blocks: HashMap::new(),
    };
    let body = parser.statements(&[])?;
    parser.no_unknown_since(0)?;
    Ok(ParsedTemplate { body, blocks: parser.blocks })
}

/// Parameters, and defaults of the last of them.
type Signature = (Vec<Arc<str>>, Vec<Expr>);

struct Parser {
    tokens: Vec<PlacedLexeme>,
    at: usize,
    depth: usize,
    /// Loops around what is read.
    loops: usize,
    /// What the macro that is read asks for.
    uses: Uses,
    /// Filters and tests that there are not. Where a condition stands before them, they may stay unknown.
    unknown: Vec<(u32, String)>,
    blocks: HashMap<Arc<str>, Vec<Stmt>>,
}

impl Parser {
    fn token(&self) -> &Lexeme {
        self.tokens.get(self.at).map_or(&Lexeme::End, |placed| &placed.token)
    }

    fn after(&self) -> &Lexeme {
        self.tokens.get(self.at + 1).map_or(&Lexeme::End, |placed| &placed.token)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |placed| placed.line)
    }

    fn next(&mut self) -> Lexeme {
        let token = self.token().clone();
        self.at += 1;
        token
    }

    fn fail<T>(&self, why: impl Into<String>) -> Result<T> {
        Err(Error::new(why).at(self.line()))
    }

    fn unexpected<T>(&self, expected: &str) -> Result<T> {
        let found = match self.token() {
            Lexeme::Data(_) => "text".to_owned(),
            Lexeme::BlockBegin => "{%".to_owned(),
            Lexeme::BlockEnd => "%}".to_owned(),
            Lexeme::PrintBegin => "{{".to_owned(),
            Lexeme::PrintEnd => "}}".to_owned(),
            Lexeme::Name(name) => format!("{name:?}"),
            Lexeme::Text(_) => "a text".to_owned(),
            Lexeme::Int(_) | Lexeme::Float(_) => "a number".to_owned(),
            Lexeme::Sign(sign) => format!("{sign:?}"),
            Lexeme::End => "the template's end".to_owned(),
        };
        self.fail(format!("expected {expected}, found {found}"))
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.token(), Lexeme::Sign(found) if *found == sign)
    }

    fn skip_sign(&mut self, sign: &str) -> bool {
        let found = self.is_sign(sign);
        self.at += usize::from(found);
        found
    }

    fn expect_sign(&mut self, sign: &str) -> Result<()> {
        if self.skip_sign(sign) { Ok(()) } else { self.unexpected(&format!("{sign:?}")) }
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.token(), Lexeme::Name(found) if **found == *name)
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn expect_name(&mut self) -> Result<Arc<str>> {
        match self.next() {
            Lexeme::Name(name) => Ok(name),
            _ => {
                self.at -= 1;
                self.unexpected("a name")
            }
        }
    }

    fn expect(&mut self, token: &Lexeme, called: &str) -> Result<()> {
        if self.token() == token {
            self.at += 1;
            return Ok(());
        }
        self.unexpected(called)
    }

    /// Goes one deeper while something within is read.
    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= DEPTH {
            return self.fail(format!("more than {DEPTH} tags and brackets within each other"));
        }
        self.depth += 1;
        let made = read(self);
        self.depth -= 1;
        made
    }

    /// Goes on in a row of so many.
    fn link(&self, links: &mut usize) -> Result<()> {
        *links += 1;
        if *links > CHAIN { self.fail(format!("more than {CHAIN} values in a row")) } else { Ok(()) }
    }

    /// An unknown filter or test that no condition guards is an error of the template.
    fn no_unknown_since(&mut self, mark: usize) -> Result<()> {
        match self.unknown.get(mark) {
            Some((line, why)) => Err(Error::new(why.clone()).at(*line)),
            None => Ok(()),
        }
    }

    /// Statements up to a tag of one of these names, which is then current.
    fn statements(&mut self, ends: &[&str]) -> Result<Vec<Stmt>> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            match self.next() {
                Lexeme::Data(text) => body.push(Stmt { line, kind: StmtKind::Text(text) }),
                Lexeme::PrintBegin => {
                    let value = self.deeper(|parser| parser.tuple(true))?;
                    self.expect(&Lexeme::PrintEnd, "}}")?;
                    body.push(Stmt { line, kind: StmtKind::Print(value) });
                }
                Lexeme::BlockBegin => {
                    if matches!(self.token(), Lexeme::Name(name) if ends.contains(&&**name)) {
                        return Ok(body);
                    }
                    let kinds = self.deeper(Self::statement)?;
                    body.extend(kinds.into_iter().map(|kind| Stmt { line, kind }));
                    self.expect(&Lexeme::BlockEnd, "%}")?;
                }
                Lexeme::End if ends.is_empty() => return Ok(body),
                _ => {
                    self.at -= 1;
                    let expected: Vec<_> = ends.iter().map(|end| format!("{{% {end} %}}")).collect();
                    return self.unexpected(&expected.join(" or "));
                }
            }
        }
    }

    /// What a tag holds up to its end: after its name, statements and the name of what ends them.
    fn body(&mut self, end: &str) -> Result<Vec<Stmt>> {
        self.expect(&Lexeme::BlockEnd, "%}")?;
        let body = self.statements(&[end])?;
        self.at += 1;
        Ok(body)
    }

    /// The same, where its text is kept: no loop around it can be left from there.
    fn kept_body(&mut self, end: &str) -> Result<Vec<Stmt>> {
        let loops = std::mem::take(&mut self.loops);
        let body = self.inner_body(end)?;
        self.loops = loops;
        Ok(body)
    }

    /// The same with names of its own: what it holds is guarded by no condition around it.
    fn inner_body(&mut self, end: &str) -> Result<Vec<Stmt>> {
        let mark = self.unknown.len();
        let body = self.body(end)?;
        self.no_unknown_since(mark)?;
        Ok(body)
    }

    fn statement(&mut self) -> Result<Vec<StmtKind>> {
        let Lexeme::Name(name) = self.token().clone() else { return self.unexpected("the name of a tag") };
        if matches!(&*name, "include" | "extends" | "import" | "from") {
            return self.other_template();
        }
        self.at += 1;
        let kind = match &*name {
            "for" => self.for_loop()?,
            "if" => self.condition()?,
            "set" => self.set()?,
            "with" => self.with()?,
            "macro" => self.macro_definition()?,
            "call" => self.call_block()?,
            "filter" => self.filter_block()?,
            "block" => self.block()?,
            "print" => return self.print(),
            "generation" => StmtKind::Scope(self.inner_body("endgeneration")?),
            "autoescape" => self.autoescape()?,
            "break" | "continue" if self.loops == 0 => return self.fail(format!("{name:?} stands in no loop")),
            "break" => StmtKind::Break,
            "continue" => StmtKind::Continue,
            _ => {
                self.at -= 1;
                return self.fail(format!("there is no tag {name:?}, or not here"));
            }
        };
        Ok(vec![kind])
    }

    fn print(&mut self) -> Result<Vec<StmtKind>> {
        let mut printed = Vec::new();
        while *self.token() != Lexeme::BlockEnd {
            if !printed.is_empty() {
                self.expect_sign(",")?;
            }
            printed.push(StmtKind::Print(self.expression()?));
        }
        Ok(printed)
    }

    /// Another template, of which a model has none: an error where it is asked for.
    fn other_template(&mut self) -> Result<Vec<StmtKind>> {
        while !matches!(self.token(), Lexeme::BlockEnd | Lexeme::End) {
            self.at += 1;
        }
        Ok(vec![StmtKind::Unsupported("a chat template cannot ask for another template")])
    }

    /// Only templates for web pages escape all they print.
    fn autoescape(&mut self) -> Result<StmtKind> {
        if self.is_name("false") || self.is_name("False") {
            self.at += 1;
            return Ok(StmtKind::Scope(self.inner_body("endautoescape")?));
        }
        self.expression()?;
        self.inner_body("endautoescape")?;
        Ok(StmtKind::Unsupported("{% autoescape %} is not supported, but for false"))
    }

    fn for_loop(&mut self) -> Result<StmtKind> {
        let target = self.target(false)?;
        if !self.skip_name("in") {
            return self.unexpected("\"in\"");
        }
        let over = self.tuple(false)?;
        let mark = self.unknown.len();
        let test = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.expect(&Lexeme::BlockEnd, "%}")?;
        self.loops += 1;
        let body = self.statements(&["endfor", "else"])?;
        self.loops -= 1;
        let otherwise = if self.skip_name("else") {
            self.body("endfor")?
        } else {
            self.at += 1;
            Vec::new()
        };
        self.no_unknown_since(mark)?;
        Ok(StmtKind::For(Arc::new(For { target, over, test, recursive, body, otherwise })))
    }

    fn condition(&mut self) -> Result<StmtKind> {
        let mark = self.unknown.len();
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let test = self.tuple(false)?;
            self.expect(&Lexeme::BlockEnd, "%}")?;
            branches.push((test, self.statements(&["elif", "else", "endif"])?));
            if self.skip_name("elif") {
                continue;
            }
            if self.skip_name("else") {
                otherwise = self.body("endif")?;
            } else {
                self.at += 1;
            }
            break;
        }
        self.unknown.truncate(mark);
        Ok(StmtKind::If { branches, otherwise })
    }

    fn set(&mut self) -> Result<StmtKind> {
        let target = self.target(true)?;
        if self.skip_sign("=") {
            return Ok(StmtKind::Set { target, value: self.tuple(true)? });
        }
        let mut filters = Vec::new();
        while self.skip_sign("|") {
            filters.push(self.filter()?);
        }
        Ok(StmtKind::SetBlock { target, filters, body: self.kept_body("endset")? })
    }

    fn with(&mut self) -> Result<StmtKind> {
        let mut bindings = Vec::new();
        while *self.token() != Lexeme::BlockEnd {
            if !bindings.is_empty() {
                self.expect_sign(",")?;
            }
            let target = self.target(false)?;
            self.expect_sign("=")?;
            bindings.push((target, self.expression()?));
        }
        Ok(StmtKind::With { bindings, body: self.inner_body("endwith")? })
    }

    fn macro_definition(&mut self) -> Result<StmtKind> {
        let name = self.expect_name()?;
        let signature = self.parameters()?;
        self.macro_body(Some(name), signature, "endmacro").map(StmtKind::Macro)
    }

    /// What a macro holds, which stands in none of the loops around it.
    fn macro_body(
        &mut self,
        name: Option<Arc<str>>,
        (parameters, defaults): Signature,
        end: &str,
    ) -> Result<Arc<Macro>> {
        let outer = (std::mem::take(&mut self.loops), std::mem::take(&mut self.uses));
        let body = self.inner_body(end)?;
        let mut uses = self.uses;
        self.loops = outer.0;
        // What a macro within asks for, this one is asked for too.
        self.uses = outer.1.or(uses);
        let first_default = parameters.len() - defaults.len();
        for (place, parameter) in parameters.iter().enumerate() {
            match &**parameter {
                "varargs" => uses.varargs = false,
                "kwargs" => uses.kwargs = false,
                "caller" if uses.caller && place < first_default => {
                    return self.fail("a parameter \"caller\" needs a default: a macro is not always called with one");
                }
                "caller" => uses.caller = false,
                _ => {}
            }
        }
        Ok(Arc::new(Macro { name, parameters, defaults, body, uses }))
    }

    fn parameters(&mut self) -> Result<Signature> {
        let (mut parameters, mut defaults) = (Vec::new(), Vec::new());
        self.expect_sign("(")?;
        while !self.is_sign(")") {
            if !parameters.is_empty() {
                self.expect_sign(",")?;
            }
            parameters.push(self.expect_name()?);
            if self.skip_sign("=") {
                defaults.push(self.expression()?);
            } else if !defaults.is_empty() {
                return self.fail("a parameter without a default stands behind one with a default");
            }
        }
        self.expect_sign(")")?;
        Ok((parameters, defaults))
    }

    fn call_block(&mut self) -> Result<StmtKind> {
        let signature = if self.is_sign("(") { self.parameters()? } else { Signature::default() };
        let Expr::Call(callee, given) = self.expression()? else { return self.fail("{% call %} takes a call") };
        let body = self.macro_body(None, signature, "endcall")?;
        Ok(StmtKind::CallBlock { callee: *callee, given, body })
    }

    fn filter_block(&mut self) -> Result<StmtKind> {
        let mut filters = vec![self.filter()?];
        while self.skip_sign("|") {
            filters.push(self.filter()?);
        }
        Ok(StmtKind::FilterBlock { filters, body: self.kept_body("endfilter")? })
    }

    fn block(&mut self) -> Result<StmtKind> {
        let name = self.expect_name()?;
        let scoped = self.skip_name("scoped");
        self.skip_name("required");
        let loops = std::mem::take(&mut self.loops);
        self.expect(&Lexeme::BlockEnd, "%}")?;
        let mark = self.unknown.len();
        let body = self.statements(&["endblock"])?;
        self.at += 1;
        self.no_unknown_since(mark)?;
        self.skip_name(&name);
        self.loops = loops;
        if self.blocks.insert(name.clone(), body).is_some() {
            return self.fail(format!("there are two blocks {name:?}"));
        }
        Ok(StmtKind::Block { name, scoped })
    }

    /// A filter's name and what it is given.
    fn filter(&mut self) -> Result<Filter> {
        let line = self.line();
        let name = self.dotted()?;
        if !super::filters::exists(&name) {
            self.unknown.push((line, format!("there is no filter {name:?}")));
        }
        let given = if self.is_sign("(") { self.call_args()? } else { CallArgs::default() };
        Ok(Filter { name, given })
    }

    fn dotted(&mut self) -> Result<Arc<str>> {
        let mut name = self.expect_name()?;
        while self.skip_sign(".") {
            name = format!("{name}.{}", self.expect_name()?).into();
        }
        Ok(name)
    }

    /// Names that are assigned to, with commas between them or not.
    fn target(&mut self, namespaces: bool) -> Result<AssignTarget> {
        let first = self.single_target(namespaces)?;
        if !self.is_sign(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.skip_sign(",") {
            if self.is_sign("=") || self.is_name("in") || self.is_sign(")") {
                break;
            }
            targets.push(self.single_target(namespaces)?);
        }
        Ok(AssignTarget::Tuple(targets))
    }

    fn single_target(&mut self, namespaces: bool) -> Result<AssignTarget> {
        if self.skip_sign("(") {
            let target = self.deeper(|parser| parser.target(namespaces))?;
            self.expect_sign(")")?;
            return Ok(target);
        }
        let name = self.expect_name()?;
        if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
            return self.fail(format!("{name:?} cannot be assigned to"));
        }
        if namespaces && self.skip_sign(".") {
            return Ok(AssignTarget::Attribute(name, self.expect_name()?));
        }
        Ok(AssignTarget::Name(name))
    }
}
