//! What an expression comes to.

use super::super::args::Args;
use super::super::ast::{CallArgs, Expr, Unary};
use super::super::error::{Result, refuse};
use super::super::objects::Function;
use super::super::scope::Scope;
use super::super::value::{Dict, Value};
use super::super::{checks, display, methods, operators};
use super::Machine;
use std::rc::Rc;
use std::sync::Arc;

impl Machine<'_> {
    pub(super) fn eval(&mut self, expression: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        self.enter()?;
        let value = self.value(expression, scope)?;
        self.leave();
        Ok(value)
    }

    fn value(&mut self, expression: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        match expression {
            Expr::Const(constant) => Ok(Value::constant(constant)),
            Expr::Name(name) => Ok(self.name(name, scope)),
            Expr::Attribute(value, name) => {
                let value = self.eval(value, scope)?;
                self.attribute(&value, name)
            }
            Expr::Item(value, key) => {
                let (value, key) = (self.eval(value, scope)?, self.eval(key, scope)?);
                self.item(&value, &key)
            }
            Expr::Slice(value, bounds) => self.slice(value, bounds, scope),
            Expr::Call(callee, given) => {
                let callee = self.eval(callee, scope)?;
                let given = self.args(given, scope)?;
                self.call(&callee, given)
            }
            Expr::Filter(value, filter) => {
                let value = self.eval(value, scope)?;
                let given = self.args(&filter.given, scope)?;
                self.filter(&filter.name, value, given)
            }
            Expr::Test(value, test) => {
                let value = self.eval(value, scope)?;
                let given = self.args(&test.given, scope)?;
                checks::apply(&test.name, &value, given).map(Value::Bool)
            }
            Expr::Unary(sign, value) => self.unary(*sign, value, scope),
            Expr::Binary(sign, left, right) => {
                let (left, right) = (self.eval(left, scope)?, self.eval(right, scope)?);
                operators::binary(*sign, &left, &right)
            }
            Expr::Concat(parts) => self.concat(parts, scope),
            Expr::And(left, right) => match self.eval(left, scope)? {
                left if left.is_true() => self.eval(right, scope),
                left => Ok(left),
            },
            Expr::Or(left, right) => match self.eval(left, scope)? {
                left if left.is_true() => Ok(left),
                _ => self.eval(right, scope),
            },
            Expr::Compare(first, others) => self.compare(first, others, scope),
            Expr::If(test, then, otherwise) => self.conditional(test, then, otherwise.as_deref(), scope),
            Expr::List(items) => self.all(items, scope).map(Value::list),
            Expr::Tuple(items) => self.all(items, scope).map(Value::tuple),
            Expr::Dict(pairs) => self.dict(pairs, scope),
        }
    }

    fn name(&self, name: &Arc<str>, scope: &Rc<Scope>) -> Value {
        if let Some(value) = scope.get(name) {
            return value;
        }
        match Function::ALL.iter().find(|(known, _)| **known == **name) {
            Some((_, function)) => Value::Function(*function),
            None if &**name == "self" => Value::Blocks,
            None => Value::undefined(format!("{name:?} is not defined")),
        }
    }

    /// `value.name`: what a value has of itself comes before what lies in it.
    pub fn attribute(&mut self, value: &Value, name: &str) -> Result<Value> {
        if let (Value::Blocks, Some((name, _))) = (value, self.template.blocks.get_key_value(name)) {
            return Ok(Value::BlockOf(name.clone()));
        }
        if let Some(found) = methods::attribute(value, name)? {
            return Ok(found);
        }
        Ok(operators::item(value, &Value::text(name))?.unwrap_or_else(|| missing(value, name)))
    }

    /// `value[key]`: what lies in a value comes before what it has of itself.
    pub fn item(&mut self, value: &Value, key: &Value) -> Result<Value> {
        if let Some(found) = operators::item(value, key)? {
            return Ok(found);
        }
        match key.as_text() {
            Some(name) => Ok(methods::attribute(value, name)?.unwrap_or_else(|| missing(value, name))),
            None => Ok(Value::undefined(format!("what is {} has no such part", value.kind()))),
        }
    }

    fn slice(&mut self, value: &Expr, bounds: &[Option<Expr>; 3], scope: &Rc<Scope>) -> Result<Value> {
        let value = self.eval(value, scope)?;
        let mut made = [None, None, None];
        for (made, bound) in made.iter_mut().zip(bounds) {
            *made = bound.as_ref().map(|bound| self.eval(bound, scope)).transpose()?;
        }
        operators::slice(&value, made)
    }

    fn unary(&mut self, sign: Unary, value: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        let value = self.eval(value, scope)?;
        match sign {
            Unary::Not => Ok(Value::Bool(!value.is_true())),
            Unary::Negative => operators::negative(&value),
            Unary::Positive => operators::positive(&value),
        }
    }

    fn concat(&mut self, parts: &[Expr], scope: &Rc<Scope>) -> Result<Value> {
        let mut text = String::new();
        for part in parts {
            let part = self.eval(part, scope)?;
            text.push_str(&display::text(&part)?);
        }
        Ok(Value::text(text))
    }

    fn compare(
        &mut self,
        first: &Expr,
        others: &[(super::super::ast::Comparison, Expr)],
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        let mut left = self.eval(first, scope)?;
        for (how, right) in others {
            let right = self.eval(right, scope)?;
            if !operators::compare(*how, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn conditional(&mut self, test: &Expr, then: &Expr, otherwise: Option<&Expr>, scope: &Rc<Scope>) -> Result<Value> {
        if self.eval(test, scope)?.is_true() {
            return self.eval(then, scope);
        }
        match otherwise {
            Some(otherwise) => self.eval(otherwise, scope),
            None => Ok(Value::undefined("a condition that does not hold has no \"else\"")),
        }
    }

    fn all(&mut self, items: &[Expr], scope: &Rc<Scope>) -> Result<Vec<Value>> {
        items.iter().map(|item| self.eval(item, scope)).collect()
    }

    fn dict(&mut self, pairs: &[(Expr, Expr)], scope: &Rc<Scope>) -> Result<Value> {
        let mut dict = Dict::default();
        for (key, value) in pairs {
            let (key, value) = (self.eval(key, scope)?, self.eval(value, scope)?);
            dict.insert(key, value)?;
        }
        Ok(Value::dict(dict))
    }

    pub(super) fn args(&mut self, given: &CallArgs, scope: &Rc<Scope>) -> Result<Args> {
        let mut args = Args::from(self.all(&given.positional, scope)?);
        for (name, value) in &given.named {
            args.named.push((name.clone(), self.eval(value, scope)?));
        }
        if let Some(list) = &given.list {
            let list = self.eval(list, scope)?;
            if list.is_undefined() {
                return refuse!("* is before what is not defined");
            }
            args.positional.extend(list.iter()?);
        }
        if let Some(dict) = &given.dict {
            let Value::Dict(dict) = self.eval(dict, scope)? else {
                return refuse!("** is before what is no dictionary");
            };
            for (key, value) in dict.pairs() {
                let Some(name) = key.as_text() else { return refuse!("a call's names are texts") };
                if args.named.iter().any(|(known, _)| known == name) {
                    return refuse!("a call is given {name:?} twice");
                }
                args.named.push((name.clone(), value.clone()));
            }
        }
        Ok(args)
    }
}

fn missing(value: &Value, name: &str) -> Value {
    Value::undefined(format!("what is {} has no {name:?}", value.kind()))
}
