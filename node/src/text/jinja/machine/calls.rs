//! Functions, methods, macros and loops are called.

use super::super::args::Args;
use super::super::ast::Macro;
use super::super::error::{Error, Result, refuse};
use super::super::objects::{Loop, MacroObject};
use super::super::scope::Scope;
use super::super::value::{Dict, Value};
use super::super::{functions, methods};
use super::Machine;
use std::rc::Rc;

impl Machine<'_> {
    /// What a call gives.
    pub fn call(&mut self, callee: &Value, given: Args) -> Result<Value> {
        self.step()?;
        match callee {
            Value::Function(function) => functions::call(self, *function, given),
            Value::Method(method) => methods::call(self, &method.0, method.1, given),
            Value::Macro(object) => self.deeper(|machine| machine.call_macro(object, given)),
            Value::Joiner(joiner) => {
                given.none("a joiner")?;
                Ok(if joiner.used.replace(true) { joiner.separator.clone() } else { Value::text("") })
            }
            Value::Loop(state) => self.deeper(|machine| machine.call_loop(state, given)),
            Value::BlockOf(name) => {
                given.none("a block")?;
                let root = self.root.clone();
                self.block(name, &root).map(Value::text)
            }
            Value::Undefined(why) => Err(Error::new(format!("{why}, so it cannot be called"))),
            other => refuse!("what is {} cannot be called", other.kind()),
        }
    }

    /// A loop within itself.
    fn call_loop(&mut self, state: &Rc<Loop>, given: Args) -> Result<Value> {
        let over = given.one("loop")?;
        let Some((looped, scope)) = state.recursive.clone() else {
            return refuse!("only a loop with \"recursive\" can be called");
        };
        let mut text = String::new();
        self.run_loop(&looped, &over, &scope, state.depth + 1, &mut text)?;
        Ok(Value::text(text))
    }

    fn call_macro(&mut self, object: &MacroObject, mut given: Args) -> Result<Value> {
        let definition = &*object.definition;
        let scope = Scope::within(&object.scope);
        let extra = given.positional.split_off(definition.parameters.len().min(given.positional.len()));
        let mut positional = given.positional.drain(..).collect::<Vec<_>>().into_iter();
        let first_default = definition.parameters.len() - definition.defaults.len();
        for (place, name) in definition.parameters.iter().enumerate() {
            let value = match positional.next().or_else(|| given.take(name)) {
                Some(value) => value,
                None => match place.checked_sub(first_default).and_then(|place| definition.defaults.get(place)) {
                    Some(usual) => self.eval(usual, &scope)?,
                    None => Value::undefined(format!("parameter {name:?} was not given")),
                },
            };
            scope.set(name.clone(), value);
        }
        if definition.uses.caller {
            let caller = given.take("caller").unwrap_or_else(|| Value::undefined("there is no caller"));
            scope.set("caller".into(), caller);
        }
        self.rest(definition, &scope, extra, given)?;
        let mut text = String::new();
        self.run(&definition.body, &scope, &mut text)?;
        Ok(Value::text(text))
    }

    /// What a macro is given beyond its parameters.
    fn rest(&self, definition: &Macro, scope: &Scope, extra: Vec<Value>, given: Args) -> Result<()> {
        let name = definition.name.as_deref().unwrap_or("caller");
        if definition.uses.kwargs {
            let pairs = given.named.into_iter().map(|(name, value)| (Value::Text(name), value));
            scope.set("kwargs".into(), Value::dict(Dict::from_pairs(pairs)?));
        } else if let Some((named, _)) = given.named.first() {
            return refuse!("macro {name:?} has no parameter {named:?}");
        }
        if definition.uses.varargs {
            scope.set("varargs".into(), Value::tuple(extra));
        } else if !extra.is_empty() {
            return refuse!("macro {name:?} takes at most {} arguments", definition.parameters.len());
        }
        Ok(())
    }
}
