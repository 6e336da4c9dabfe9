//! What a template computes with: Python's values, as far as templates have them.

use super::ast::Const;
use super::error::{Result, refuse};
use super::objects::{Cycler, Function, Joiner, Loop, MacroObject, Namespace};
use indexmap::IndexMap;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

#[derive(Clone)]
pub enum Value {
    /// Nothing; what asks for more of it than its text or truth is told why.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Arc<str>),
    /// Text in which signs of HTML are escaped.
    Markup(Arc<str>),
    Bytes(Rc<[u8]>),
    List(Rc<Items>),
    Tuple(Rc<Items>),
    /// A key and the values that have it: a tuple whose parts have names too.
    Group(Rc<Items>),
    Dict(Rc<Dict>),
    View(DictView, Rc<Dict>),
    Range(Range),
    /// What can be gone through once.
    Iterator(Rc<RefCell<VecDeque<Value>>>),
    Namespace(Rc<Namespace>),
    Loop(Rc<Loop>),
    Macro(Rc<MacroObject>),
    Cycler(Rc<Cycler>),
    Joiner(Rc<Joiner>),
    Function(Function),
    /// A method of a value.
    Method(Rc<(Value, &'static str)>),
    /// `self`, whose attributes are blocks.
    Blocks,
    BlockOf(Arc<str>),
}

/// Values in a row. They are taken apart one by one, however deep they lie in each other.
#[derive(Default)]
pub struct Items(pub Vec<Value>);

impl Drop for Items {
    fn drop(&mut self) {
        take_apart(std::mem::take(&mut self.0));
    }
}

/// Drops values without a stack as deep as they are.
fn take_apart(mut waiting: Vec<Value>) {
    while let Some(value) = waiting.pop() {
        match value {
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => {
                if let Ok(mut items) = Rc::try_unwrap(items) {
                    waiting.append(&mut items.0);
                }
            }
            Value::Dict(dict) | Value::View(_, dict) => {
                if let Ok(mut dict) = Rc::try_unwrap(dict) {
                    waiting
                        .extend(std::mem::take(&mut dict.entries).into_values().flat_map(|(key, value)| [key, value]));
                }
            }
            Value::Iterator(items) => {
                if let Ok(items) = Rc::try_unwrap(items) {
                    waiting.extend(items.into_inner());
                }
            }
            _ => {}
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DictView {
    Keys,
    Values,
    Items,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub start: i128,
    pub stop: i128,
    pub step: i128,
}

impl Range {
    pub fn len(self) -> usize {
        let span = if self.step > 0 { self.stop - self.start } else { self.start - self.stop };
        let steps = if span <= 0 { 0 } else { (span - 1) / self.step.abs() + 1 };
        usize::try_from(steps).unwrap_or(usize::MAX)
    }

    pub fn get(self, place: usize) -> Option<i128> {
        (place < self.len()).then(|| self.start + self.step * place as i128)
    }

    pub fn iter(self) -> impl Iterator<Item = Value> {
        (0..self.len()).filter_map(move |place| self.get(place).map(Value::Int))
    }
}

/// A key as Python compares it: `1`, `1.0` and `true` are one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum DictKey {
    None,
    Undefined,
    Int(i128),
    Float(u64),
    Text(Arc<str>),
    Bytes(Rc<[u8]>),
    Tuple(Vec<DictKey>),
}

/// A dictionary, in the order its keys came in.
#[derive(Default)]
pub struct Dict {
    entries: IndexMap<DictKey, (Value, Value)>,
}

impl Drop for Dict {
    fn drop(&mut self) {
        take_apart(std::mem::take(&mut self.entries).into_values().flat_map(|(key, value)| [key, value]).collect());
    }
}

impl Dict {
    pub fn from_pairs(pairs: impl IntoIterator<Item = (Value, Value)>) -> Result<Self> {
        let mut dict = Self::default();
        for (key, value) in pairs {
            dict.insert(key, value)?;
        }
        Ok(dict)
    }

    /// A key that is there already stays as it is, and has the new value.
    pub fn insert(&mut self, key: Value, value: Value) -> Result<()> {
        let entry = self.entries.entry(key.key()?).or_insert((key, Value::None));
        entry.1 = value;
        Ok(())
    }

    pub fn get(&self, key: &Value) -> Result<Option<&Value>> {
        Ok(self.entries.get(&key.key()?).map(|(_, value)| value))
    }

    pub fn get_text(&self, key: &str) -> Option<&Value> {
        self.entries.get(&DictKey::Text(key.into())).map(|(_, value)| value)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn pairs(&self) -> impl DoubleEndedIterator<Item = (&Value, &Value)> {
        self.entries.values().map(|(key, value)| (key, value))
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &Value> {
        self.pairs().map(|(key, _)| key)
    }

    pub fn copy(&self) -> Self {
        Self { entries: self.entries.clone() }
    }
}

impl Value {
    pub fn undefined(why: impl AsRef<str>) -> Self {
        Self::Undefined(why.as_ref().into())
    }

    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::Text(text.into())
    }

    pub fn list(items: Vec<Self>) -> Self {
        Self::List(Rc::new(Items(items)))
    }

    pub fn tuple(items: Vec<Self>) -> Self {
        Self::Tuple(Rc::new(Items(items)))
    }

    pub fn dict(dict: Dict) -> Self {
        Self::Dict(Rc::new(dict))
    }

    pub fn iterator(items: Vec<Self>) -> Self {
        Self::Iterator(Rc::new(RefCell::new(items.into())))
    }

    /// A count as a number.
    pub fn size(size: usize) -> Self {
        Self::Int(size as i128)
    }

    pub fn constant(constant: &Const) -> Self {
        match constant {
            Const::None => Self::None,
            Const::Bool(truth) => Self::Bool(*truth),
            Const::Int(number) => Self::Int(*number),
            Const::Float(number) => Self::Float(*number),
            Const::Text(text) => Self::Text(text.clone()),
        }
    }

    /// Its text, if it is one.
    pub fn as_text(&self) -> Option<&Arc<str>> {
        match self {
            Self::Text(text) | Self::Markup(text) => Some(text),
            _ => None,
        }
    }

    /// Its number, if it is a whole one; truths are.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bool(truth) => Some(i128::from(*truth)),
            _ => None,
        }
    }

    /// Its number, if it is one. Those beyond 2^53 lose digits, as Python's do.
    pub fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            _ => self.as_int().map(|number| number as f64),
        }
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    /// What Python calls its type.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::Markup(_) => "Markup",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Group(_) => "_GroupTuple",
            Self::Dict(_) => "dict",
            Self::View(DictView::Keys, _) => "dict_keys",
            Self::View(DictView::Values, _) => "dict_values",
            Self::View(DictView::Items, _) => "dict_items",
            Self::Range(_) => "range",
            Self::Iterator(_) => "generator",
            Self::Namespace(_) => "Namespace",
            Self::Loop(_) => "LoopContext",
            Self::Macro(_) => "Macro",
            Self::Cycler(_) => "Cycler",
            Self::Joiner(_) => "Joiner",
            Self::Function(_) => "function",
            Self::Method(_) => "method",
            Self::Blocks => "TemplateReference",
            Self::BlockOf(_) => "BlockReference",
        }
    }

    pub fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(truth) => *truth,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) | Self::Markup(text) => !text.is_empty(),
            Self::Bytes(bytes) => !bytes.is_empty(),
            Self::List(items) | Self::Tuple(items) | Self::Group(items) => !items.0.is_empty(),
            Self::Dict(dict) | Self::View(_, dict) => dict.len() > 0,
            Self::Range(range) => range.len() > 0,
            _ => true,
        }
    }

    /// `len`, if it has one.
    pub fn len(&self) -> Option<usize> {
        Some(match self {
            Self::Undefined(_) => 0,
            Self::Text(text) | Self::Markup(text) => text.chars().count(),
            Self::Bytes(bytes) => bytes.len(),
            Self::List(items) | Self::Tuple(items) | Self::Group(items) => items.0.len(),
            Self::Dict(dict) | Self::View(_, dict) => dict.len(),
            Self::Range(range) => range.len(),
            Self::Loop(state) => state.items.len(),
            _ => return None,
        })
    }

    /// What going through it gives. An iterator is empty afterwards.
    pub fn iter(&self) -> Result<Vec<Self>> {
        Ok(match self {
            Self::Undefined(_) => Vec::new(),
            Self::Text(text) => text.chars().map(letter).collect(),
            Self::Markup(text) => text.chars().map(|letter| Self::Markup(String::from(letter).into())).collect(),
            Self::Bytes(bytes) => bytes.iter().map(|byte| Self::Int((*byte).into())).collect(),
            Self::List(items) | Self::Tuple(items) | Self::Group(items) => items.0.clone(),
            Self::Dict(dict) | Self::View(DictView::Keys, dict) => dict.keys().cloned().collect(),
            Self::View(DictView::Values, dict) => dict.pairs().map(|(_, value)| value.clone()).collect(),
            Self::View(DictView::Items, dict) => dict.pairs().map(pair).collect(),
            Self::Range(range) => range.iter().collect(),
            Self::Iterator(items) => std::mem::take(&mut *items.borrow_mut()).into(),
            other => return refuse!("what is {} cannot be gone through", other.kind()),
        })
    }

    pub fn is_iterable(&self) -> bool {
        matches!(self, Self::Undefined(_) | Self::Iterator(_) | Self::Loop(_))
            || (self.len().is_some() && !matches!(self, Self::Loop(_)))
    }

    /// As a dictionary's key.
    pub fn key(&self) -> Result<DictKey> {
        Ok(match self {
            Self::None => DictKey::None,
            Self::Undefined(_) => DictKey::Undefined,
            Self::Float(number) if number.fract() == 0.0 && number.abs() < 1e30 => DictKey::Int(*number as i128),
            Self::Float(number) => DictKey::Float(number.to_bits()),
            Self::Text(text) | Self::Markup(text) => DictKey::Text(text.clone()),
            Self::Bytes(bytes) => DictKey::Bytes(bytes.clone()),
            Self::Tuple(items) | Self::Group(items) => {
                DictKey::Tuple(items.0.iter().map(Self::key).collect::<Result<_>>()?)
            }
            other => match other.as_int() {
                Some(number) => DictKey::Int(number),
                None => return refuse!("what is {} cannot be a key", other.kind()),
            },
        })
    }
}

/// One letter as a text.
pub fn letter(letter: char) -> Value {
    Value::text(letter.encode_utf8(&mut [0; 4]).to_owned())
}

/// A key and its value as a tuple.
pub fn pair((key, value): (&Value, &Value)) -> Value {
    Value::tuple(vec![key.clone(), value.clone()])
}
