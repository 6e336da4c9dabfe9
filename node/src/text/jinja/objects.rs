//! Values that hold a state or can be called.

use super::ast;
use super::scope::Scope;
use super::value::Value;
use indexmap::IndexMap;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// What `{% set x.y = … %}` may assign to.
#[derive(Default)]
pub struct Namespace {
    pub values: RefCell<IndexMap<Arc<str>, Value>>,
}

/// `loop`, as it is in one round.
pub struct Loop {
    pub items: Rc<Vec<Value>>,
    pub place: Cell<usize>,
    pub depth: usize,
    /// What `changed` was last asked for.
    pub changed: RefCell<Option<Vec<Value>>>,
    /// The loop and the names around it, where it may be called with its own kind.
    pub recursive: Option<(Arc<ast::For>, Rc<Scope>)>,
}

/// A macro, and the names around it.
pub struct MacroObject {
    pub definition: Arc<ast::Macro>,
    pub scope: Rc<Scope>,
}

/// Goes round and round.
pub struct Cycler {
    pub items: Vec<Value>,
    pub place: Cell<usize>,
}

/// Says nothing the first time.
pub struct Joiner {
    pub separator: Value,
    pub used: Cell<bool>,
}

/// Functions that templates may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    Range,
    Dict,
    Lipsum,
    Cycler,
    Joiner,
    Namespace,
    RaiseException,
    StrftimeNow,
}

impl Function {
    pub const ALL: [(&'static str, Self); 8] = [
        ("range", Self::Range),
        ("dict", Self::Dict),
        ("lipsum", Self::Lipsum),
        ("cycler", Self::Cycler),
        ("joiner", Self::Joiner),
        ("namespace", Self::Namespace),
        ("raise_exception", Self::RaiseException),
        ("strftime_now", Self::StrftimeNow),
    ];
}
