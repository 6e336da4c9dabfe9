//! A template is run: statements here, expressions in `machine/eval.rs`, calls in `machine/calls.rs`.

mod calls;
mod eval;

use super::args::Args;
use super::ast::{AssignTarget, For, Stmt, StmtKind};
use super::display;
use super::error::{Error, Result, refuse};
use super::filters;
use super::objects::{Loop, MacroObject, Namespace};
use super::parser::ParsedTemplate;
use super::scope::Scope;
use super::value::Value;
use crate::text::clock::Clock;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Steps of one rendering, so that none runs forever.
const FUEL: u64 = 5_000_000;
/// Macros and loops that call each other.
const DEPTH: usize = 200;
/// Statements and expressions that run within each other, those of all macros together: what a stack holds.
const LEVELS: usize = 3_000;

/// One rendering.
pub struct Machine<'t> {
    template: &'t ParsedTemplate,
    root: Rc<Scope>,
    clock: Clock,
    fuel: u64,
    depth: usize,
    levels: usize,
    /// What holds itself, to be taken apart in the end.
    scopes: Vec<Rc<Scope>>,
    spaces: Vec<Rc<Namespace>>,
}

/// Where a statement leads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    Break,
    Continue,
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        self.scopes.drain(..).for_each(|scope| scope.clear());
        self.spaces.drain(..).for_each(|space| drop(std::mem::take(&mut *space.values.borrow_mut())));
    }
}

impl<'t> Machine<'t> {
    /// A machine for a template; names are what it is given.
    pub fn new(template: &'t ParsedTemplate, clock: Clock, names: impl IntoIterator<Item = (Arc<str>, Value)>) -> Self {
        let root = Rc::new(Scope::default());
        names.into_iter().for_each(|(name, value)| root.set(name, value));
        Self { template, root, clock, fuel: FUEL, depth: 0, levels: 0, scopes: Vec::new(), spaces: Vec::new() }
    }

    /// The template's text.
    pub fn render(&mut self) -> Result<String> {
        let mut out = String::new();
        // Names that the template sets are not among those it is given.
        let scope = Scope::within(&self.root);
        self.root = scope.clone();
        self.run(&self.template.body, &scope, &mut out)?;
        Ok(out)
    }

    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// One step of so many.
    pub fn step(&mut self) -> Result<()> {
        match self.fuel.checked_sub(1) {
            Some(left) => self.fuel = left,
            None => return refuse!("the template takes more than {FUEL} steps"),
        }
        Ok(())
    }

    /// Goes one level deeper, which is a step; an error ends the rendering, and leaves no level.
    fn enter(&mut self) -> Result<()> {
        self.step()?;
        self.levels += 1;
        if self.levels > LEVELS {
            return refuse!("tags, brackets and macros lie more than {LEVELS} deep in each other");
        }
        Ok(())
    }

    fn leave(&mut self) {
        self.levels -= 1;
    }

    /// A namespace, which may come to hold itself.
    pub fn namespace(&mut self, space: Namespace) -> Value {
        let space = Rc::new(space);
        self.spaces.push(space.clone());
        Value::Namespace(space)
    }

    /// What may call itself.
    fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= DEPTH {
            return refuse!("macros call each other more than {DEPTH} deep");
        }
        self.depth += 1;
        let made = work(self);
        self.depth -= 1;
        made
    }

    fn run(&mut self, body: &[Stmt], scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        self.enter()?;
        let mut flow = Flow::On;
        for statement in body {
            self.step()?;
            flow = self.statement(&statement.kind, scope, out).map_err(|error| error.at(statement.line))?;
            if flow != Flow::On {
                break;
            }
        }
        self.leave();
        Ok(flow)
    }

    /// The text of statements with names of their own.
    fn captured(&mut self, body: &[Stmt], scope: &Rc<Scope>) -> Result<String> {
        let mut text = String::new();
        self.run(body, &Scope::within(scope), &mut text)?;
        Ok(text)
    }

    fn statement(&mut self, kind: &StmtKind, scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        match kind {
            StmtKind::Text(text) => out.push_str(text),
            StmtKind::Print(value) => {
                let value = self.eval(value, scope)?;
                out.push_str(&display::text(&value)?);
            }
            StmtKind::If { branches, otherwise } => {
                for (test, body) in branches {
                    if self.eval(test, scope)?.is_true() {
                        return self.run(body, scope, out);
                    }
                }
                return self.run(otherwise, scope, out);
            }
            StmtKind::For(looped) => {
                let over = self.eval(&looped.over, scope)?;
                self.run_loop(looped, &over, scope, 0, out)?;
            }
            StmtKind::Set { target, value } => {
                let value = self.eval(value, scope)?;
                assign(target, value, scope)?;
            }
            StmtKind::SetBlock { target, filters, body } => {
                let text = Value::text(self.captured(body, scope)?);
                let value = self.through(filters, text, scope)?;
                assign(target, value, scope)?;
            }
            StmtKind::With { bindings, body } => {
                let inner = Scope::within(scope);
                for (target, value) in bindings {
                    let value = self.eval(value, scope)?;
                    assign(target, value, &inner)?;
                }
                return self.run(body, &inner, out);
            }
            StmtKind::Scope(body) => return self.run(body, &Scope::within(scope), out),
            StmtKind::FilterBlock { filters, body } => {
                let text = Value::text(self.captured(body, scope)?);
                let value = self.through(filters, text, scope)?;
                out.push_str(&display::text(&value)?);
            }
            StmtKind::Macro(definition) => {
                let made = self.macro_object(definition, scope);
                scope.set(definition.name.clone().unwrap_or_else(|| "caller".into()), made);
            }
            StmtKind::CallBlock { callee, given, body } => {
                let callee = self.eval(callee, scope)?;
                let mut given = self.args(given, scope)?;
                given.named.push(("caller".into(), self.macro_object(body, scope)));
                let value = self.call(&callee, given)?;
                out.push_str(&display::text(&value)?);
            }
            StmtKind::Block { name, scoped } => {
                let around = if *scoped { scope.clone() } else { self.root.clone() };
                out.push_str(&self.block(name, &around)?);
            }
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
            StmtKind::Unsupported(why) => return refuse!("{why}"),
        }
        Ok(Flow::On)
    }

    /// The text of a block, which sees the names of the whole template.
    fn block(&mut self, name: &str, around: &Rc<Scope>) -> Result<String> {
        let template = self.template;
        let body = template.blocks.get(name).ok_or_else(|| Error::new(format!("there is no block {name:?}")))?;
        self.deeper(|machine| machine.captured(body, around))
    }

    /// A macro holds the names around it, which hold it.
    fn macro_object(&mut self, definition: &Arc<super::ast::Macro>, scope: &Rc<Scope>) -> Value {
        if !self.scopes.last().is_some_and(|last| Rc::ptr_eq(last, scope)) {
            self.scopes.push(scope.clone());
        }
        Value::Macro(Rc::new(MacroObject { definition: definition.clone(), scope: scope.clone() }))
    }

    fn through(&mut self, filters: &[super::ast::Filter], mut value: Value, scope: &Rc<Scope>) -> Result<Value> {
        for filter in filters {
            let given = self.args(&filter.given, scope)?;
            value = self.filter(&filter.name, value, given)?;
        }
        Ok(value)
    }

    fn run_loop(
        &mut self,
        looped: &Arc<For>,
        over: &Value,
        scope: &Rc<Scope>,
        depth: usize,
        out: &mut String,
    ) -> Result<()> {
        let items = self.passing(looped, over.iter()?, scope)?;
        if items.is_empty() {
            self.run(&looped.otherwise, &Scope::within(scope), out)?;
            return Ok(());
        }
        let state = Rc::new(Loop {
            items: Rc::new(items),
            place: Cell::new(0),
            depth,
            changed: RefCell::new(None),
            recursive: looped.recursive.then(|| (looped.clone(), scope.clone())),
        });
        for (place, item) in state.items.iter().enumerate() {
            self.step()?;
            state.place.set(place);
            let inner = Scope::within(scope);
            inner.set("loop".into(), Value::Loop(state.clone()));
            assign(&looped.target, item.clone(), &inner)?;
            if self.run(&looped.body, &inner, out)? == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    /// What a loop's condition lets through.
    fn passing(&mut self, looped: &For, items: Vec<Value>, scope: &Rc<Scope>) -> Result<Vec<Value>> {
        let Some(test) = &looped.test else { return Ok(items) };
        let mut passing = Vec::new();
        for item in items {
            let inner = Scope::within(scope);
            assign(&looped.target, item.clone(), &inner)?;
            if self.eval(test, &inner)?.is_true() {
                passing.push(item);
            }
        }
        Ok(passing)
    }

    /// A value through a filter.
    pub fn filter(&mut self, name: &str, value: Value, given: Args) -> Result<Value> {
        self.step()?;
        filters::apply(self, name, value, given)
    }
}

fn assign(target: &AssignTarget, value: Value, scope: &Rc<Scope>) -> Result<()> {
    match target {
        AssignTarget::Name(name) => scope.set(name.clone(), value),
        AssignTarget::Attribute(space, name) => match scope.get(space) {
            Some(Value::Namespace(space)) => _ = space.values.borrow_mut().insert(name.clone(), value),
            _ => return refuse!("{space}.{name} cannot be set: {space} is no namespace"),
        },
        AssignTarget::Tuple(targets) => {
            let items = value.iter()?;
            if items.len() != targets.len() {
                return refuse!("{} values cannot be set as {} names", items.len(), targets.len());
            }
            for (target, item) in targets.iter().zip(items) {
                assign(target, item, scope)?;
            }
        }
    }
    Ok(())
}
