//! Names and what they stand for.

use super::value::Value;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// Names of one place, and those around it.
#[derive(Default)]
pub struct Scope {
    names: RefCell<HashMap<Arc<str>, Value>>,
    around: Option<Rc<Scope>>,
}

impl Scope {
    pub fn within(around: &Rc<Self>) -> Rc<Self> {
        Rc::new(Self { names: RefCell::default(), around: Some(around.clone()) })
    }

    /// The nearest of this name.
    pub fn get(&self, name: &str) -> Option<Value> {
        let mut scope = self;
        loop {
            if let Some(value) = scope.names.borrow().get(name) {
                return Some(value.clone());
            }
            scope = scope.around.as_deref()?;
        }
    }

    pub fn set(&self, name: Arc<str>, value: Value) {
        self.names.borrow_mut().insert(name, value);
    }

    /// Forgets all: a macro holds the scope that holds it.
    pub fn clear(&self) {
        let names = std::mem::take(&mut *self.names.borrow_mut());
        drop(names);
    }
}
