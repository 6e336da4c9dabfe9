//! A template as it was read.

use std::sync::Arc;

/// A statement, and the line it begins in.
#[derive(Debug)]
pub struct Stmt {
    pub line: u32,
    pub kind: StmtKind,
}

#[derive(Debug)]
pub enum StmtKind {
    /// Text as it stands.
    Text(Arc<str>),
    /// `{{ … }}`
    Print(Expr),
    If {
        branches: Vec<(Expr, Vec<Stmt>)>,
        otherwise: Vec<Stmt>,
    },
    For(Arc<For>),
    Set {
        target: AssignTarget,
        value: Expr,
    },
    /// `{% set x %}…{% endset %}`, the text filtered.
    SetBlock {
        target: AssignTarget,
        filters: Vec<Filter>,
        body: Vec<Stmt>,
    },
    With {
        bindings: Vec<(AssignTarget, Expr)>,
        body: Vec<Stmt>,
    },
    /// Statements with names of their own.
    Scope(Vec<Stmt>),
    FilterBlock {
        filters: Vec<Filter>,
        body: Vec<Stmt>,
    },
    Macro(Arc<Macro>),
    CallBlock {
        callee: Expr,
        given: CallArgs,
        body: Arc<Macro>,
    },
    Block {
        name: Arc<str>,
        /// Whether it sees the names around it.
        scoped: bool,
    },
    Break,
    Continue,
    /// What is valid, but needs what templates of models do not have.
    Unsupported(&'static str),
}

#[derive(Debug)]
pub struct For {
    pub target: AssignTarget,
    pub over: Expr,
    pub test: Option<Expr>,
    pub recursive: bool,
    pub body: Vec<Stmt>,
    pub otherwise: Vec<Stmt>,
}

#[derive(Debug)]
pub struct Macro {
    /// None of a call block's.
    pub name: Option<Arc<str>>,
    pub parameters: Vec<Arc<str>>,
    /// Of the last parameters.
    pub defaults: Vec<Expr>,
    pub body: Vec<Stmt>,
    pub uses: Uses,
}

/// Which names a macro asks for that no parameter has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uses {
    pub varargs: bool,
    pub kwargs: bool,
    pub caller: bool,
}

impl Uses {
    pub fn or(self, other: Self) -> Self {
        Self {
            varargs: self.varargs || other.varargs,
            kwargs: self.kwargs || other.kwargs,
            caller: self.caller || other.caller,
        }
    }
}

/// What is assigned to.
#[derive(Debug)]
pub enum AssignTarget {
    Name(Arc<str>),
    /// `namespace.name`
    Attribute(Arc<str>, Arc<str>),
    Tuple(Vec<AssignTarget>),
}

#[derive(Debug)]
pub struct Filter {
    pub name: Arc<str>,
    pub given: CallArgs,
}

#[derive(Debug, Default)]
pub struct CallArgs {
    pub positional: Vec<Expr>,
    pub named: Vec<(Arc<str>, Expr)>,
    /// `*x`
    pub list: Option<Box<Expr>>,
    /// `**x`
    pub dict: Option<Box<Expr>>,
}

#[derive(Debug)]
pub enum Expr {
    Const(Const),
    Name(Arc<str>),
    Attribute(Box<Expr>, Arc<str>),
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, Box<[Option<Expr>; 3]>),
    Call(Box<Expr>, CallArgs),
    Filter(Box<Expr>, Filter),
    Test(Box<Expr>, Filter),
    Unary(Unary, Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    Concat(Vec<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    If(Box<Expr>, Box<Expr>, Option<Box<Expr>>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
}

#[derive(Clone, Debug)]
pub enum Const {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Arc<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    Not,
    Negative,
    Positive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Remainder,
    Power,
}

impl Binary {
    pub fn sign(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::FloorDivide => "//",
            Self::Remainder => "%",
            Self::Power => "**",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}
