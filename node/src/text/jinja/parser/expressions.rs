//! Expressions, by how tightly their signs bind.

use super::super::ast::{Binary, CallArgs, Comparison, Const, Expr, Filter, Unary};
use super::super::checks;
use super::super::error::Result;
use super::super::lexer::Lexeme;
use super::Parser;

impl Parser {
    pub(super) fn expression(&mut self) -> Result<Expr> {
        self.deeper(Self::conditional)
    }

    fn conditional(&mut self) -> Result<Expr> {
        let mark = self.unknown.len();
        let (mut value, mut links) = (self.either()?, 0);
        while self.skip_name("if") {
            self.link(&mut links)?;
            let test = self.either()?;
            let otherwise = if self.skip_name("else") { Some(Box::new(self.expression()?)) } else { None };
            value = Expr::If(Box::new(test), Box::new(value), otherwise);
            self.unknown.truncate(mark);
        }
        Ok(value)
    }

    fn either(&mut self) -> Result<Expr> {
        let (mut left, mut links) = (self.both()?, 0);
        while self.skip_name("or") {
            self.link(&mut links)?;
            left = Expr::Or(Box::new(left), Box::new(self.both()?));
        }
        Ok(left)
    }

    fn both(&mut self) -> Result<Expr> {
        let (mut left, mut links) = (self.negated()?, 0);
        while self.skip_name("and") {
            self.link(&mut links)?;
            left = Expr::And(Box::new(left), Box::new(self.negated()?));
        }
        Ok(left)
    }

    fn negated(&mut self) -> Result<Expr> {
        if self.skip_name("not") {
            let value = self.deeper(Self::negated)?;
            return Ok(Expr::Unary(Unary::Not, Box::new(value)));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut others = Vec::new();
        while let Some(how) = self.compared() {
            others.push((how, self.sum()?));
        }
        Ok(if others.is_empty() { first } else { Expr::Compare(Box::new(first), others) })
    }

    fn compared(&mut self) -> Option<Comparison> {
        let how = match self.token() {
            Lexeme::Sign("==") => Comparison::Equal,
            Lexeme::Sign("!=") => Comparison::Unequal,
            Lexeme::Sign("<") => Comparison::Less,
            Lexeme::Sign("<=") => Comparison::LessOrEqual,
            Lexeme::Sign(">") => Comparison::Greater,
            Lexeme::Sign(">=") => Comparison::GreaterOrEqual,
            Lexeme::Name(name) if **name == *"in" => Comparison::In,
            Lexeme::Name(name) if **name == *"not" => {
                if !matches!(self.after(), Lexeme::Name(name) if **name == *"in") {
                    return None;
                }
                self.at += 1;
                Comparison::NotIn
            }
            _ => return None,
        };
        self.at += 1;
        Some(how)
    }

    /// Values with signs of one strength between them.
    fn chain(&mut self, signs: &[(&str, Binary)], next: fn(&mut Self) -> Result<Expr>) -> Result<Expr> {
        let (mut left, mut links) = (next(self)?, 0);
        while let Some((_, sign)) = signs.iter().find(|(text, _)| self.is_sign(text)) {
            self.link(&mut links)?;
            self.at += 1;
            left = Expr::Binary(*sign, Box::new(left), Box::new(next(self)?));
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<Expr> {
        self.chain(&[("+", Binary::Add), ("-", Binary::Subtract)], Self::concat)
    }

    fn concat(&mut self) -> Result<Expr> {
        let first = self.product()?;
        if !self.is_sign("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_sign("~") {
            parts.push(self.product()?);
        }
        Ok(Expr::Concat(parts))
    }

    fn product(&mut self) -> Result<Expr> {
        let signs =
            [("*", Binary::Multiply), ("/", Binary::Divide), ("//", Binary::FloorDivide), ("%", Binary::Remainder)];
        self.chain(&signs, Self::power)
    }

    fn power(&mut self) -> Result<Expr> {
        self.chain(&[("**", Binary::Power)], Self::filtered)
    }

    fn filtered(&mut self) -> Result<Expr> {
        let (mut value, mut links) = (self.signed()?, 0);
        loop {
            self.link(&mut links)?;
            if self.skip_sign("|") {
                value = Expr::Filter(Box::new(value), self.filter()?);
            } else if self.skip_name("is") {
                value = self.test(value)?;
            } else if self.is_sign("(") {
                value = Expr::Call(Box::new(value), self.call_args()?);
            } else {
                return Ok(value);
            }
        }
    }

    fn signed(&mut self) -> Result<Expr> {
        for (sign, unary) in [("-", Unary::Negative), ("+", Unary::Positive)] {
            if self.skip_sign(sign) {
                let value = self.deeper(Self::signed)?;
                return self.postfix(Expr::Unary(unary, Box::new(value)));
            }
        }
        let value = self.primary()?;
        self.postfix(value)
    }

    fn test(&mut self, value: Expr) -> Result<Expr> {
        let negated = self.skip_name("not");
        let line = self.line();
        let name = self.dotted()?;
        if !checks::exists(&name) {
            self.unknown.push((line, format!("there is no test {name:?}")));
        }
        let given = if self.is_sign("(") {
            self.call_args()?
        } else if self.is_name("is") {
            return self.fail("tests with \"is\" cannot follow each other");
        } else if self.begins_value() {
            let argument = self.primary()?;
            CallArgs { positional: vec![self.postfix(argument)?], ..CallArgs::default() }
        } else {
            CallArgs::default()
        };
        let test = Expr::Test(Box::new(value), Filter { name, given });
        Ok(if negated { Expr::Unary(Unary::Not, Box::new(test)) } else { test })
    }

    /// Whether a test's argument stands here without brackets.
    fn begins_value(&self) -> bool {
        match self.token() {
            Lexeme::Name(name) => !matches!(&**name, "else" | "or" | "and"),
            Lexeme::Text(_) | Lexeme::Int(_) | Lexeme::Float(_) => true,
            Lexeme::Sign(sign) => matches!(*sign, "(" | "[" | "{"),
            _ => false,
        }
    }

    fn postfix(&mut self, mut value: Expr) -> Result<Expr> {
        let mut links = 0;
        loop {
            self.link(&mut links)?;
            if self.skip_sign(".") {
                value = match self.next() {
                    Lexeme::Name(name) => Expr::Attribute(Box::new(value), name),
                    Lexeme::Int(place) => Expr::Item(Box::new(value), Box::new(Expr::Const(Const::Int(place)))),
                    _ => {
                        self.at -= 1;
                        return self.unexpected("a name or a number");
                    }
                };
            } else if self.skip_sign("[") {
                value = self.subscript(value)?;
            } else if self.is_sign("(") {
                value = Expr::Call(Box::new(value), self.call_args()?);
            } else {
                return Ok(value);
            }
        }
    }

    fn subscript(&mut self, value: Expr) -> Result<Expr> {
        let mut bounds = [None, None, None];
        let mut colons = 0;
        while !self.is_sign("]") {
            if self.skip_sign(":") {
                colons += 1;
                if colons > 2 {
                    return self.unexpected("\"]\"");
                }
            } else if bounds[colons].is_none() && !self.is_sign(",") {
                bounds[colons] = Some(self.expression()?);
            } else if colons == 0 && self.is_sign(",") {
                return self.several(value, bounds[0].take());
            } else {
                return self.unexpected("\"]\"");
            }
        }
        self.expect_sign("]")?;
        match bounds {
            [Some(key), None, None] if colons == 0 => Ok(Expr::Item(Box::new(value), Box::new(key))),
            _ if colons == 0 => self.fail("brackets hold nothing"),
            bounds => Ok(Expr::Slice(Box::new(value), Box::new(bounds))),
        }
    }

    /// `value[a, b]`: a tuple as the key.
    fn several(&mut self, value: Expr, first: Option<Expr>) -> Result<Expr> {
        let mut keys = Vec::from_iter(first);
        while self.skip_sign(",") {
            if !self.is_sign("]") {
                keys.push(self.expression()?);
            }
        }
        self.expect_sign("]")?;
        Ok(Expr::Item(Box::new(value), Box::new(Expr::Tuple(keys))))
    }

    pub(super) fn call_args(&mut self) -> Result<CallArgs> {
        let mut given = CallArgs::default();
        self.expect_sign("(")?;
        let mut first = true;
        while !self.is_sign(")") {
            if !std::mem::take(&mut first) {
                self.expect_sign(",")?;
                if self.is_sign(")") {
                    break;
                }
            }
            self.call_arg(&mut given)?;
        }
        self.expect_sign(")")?;
        Ok(given)
    }

    fn call_arg(&mut self, given: &mut CallArgs) -> Result<()> {
        let misplaced = "what a call is given stands in the wrong order";
        if self.skip_sign("*") {
            if given.list.is_some() || given.dict.is_some() {
                return self.fail(misplaced);
            }
            given.list = Some(Box::new(self.expression()?));
        } else if self.skip_sign("**") {
            if given.dict.is_some() {
                return self.fail(misplaced);
            }
            given.dict = Some(Box::new(self.expression()?));
        } else if matches!((self.token(), self.after()), (Lexeme::Name(_), Lexeme::Sign("="))) {
            if given.dict.is_some() {
                return self.fail(misplaced);
            }
            let name = self.expect_name()?;
            self.at += 1;
            if given.named.iter().any(|(known, _)| *known == name) {
                return self.fail(format!("a call is given {name:?} twice"));
            }
            given.named.push((name, self.expression()?));
        } else {
            if given.list.is_some() || given.dict.is_some() || !given.named.is_empty() {
                return self.fail(misplaced);
            }
            given.positional.push(self.expression()?);
        }
        Ok(())
    }

    /// One expression, or several with commas between them.
    pub(super) fn tuple(&mut self, conditional: bool) -> Result<Expr> {
        let one = |parser: &mut Self| if conditional { parser.expression() } else { parser.deeper(Self::either) };
        let first = one(self)?;
        if !self.is_sign(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_sign(",") {
            if self.is_tuple_end() {
                break;
            }
            items.push(one(self)?);
        }
        Ok(Expr::Tuple(items))
    }

    fn is_tuple_end(&self) -> bool {
        matches!(self.token(), Lexeme::PrintEnd | Lexeme::BlockEnd | Lexeme::Sign(")")) || self.is_name("recursive")
    }

    fn primary(&mut self) -> Result<Expr> {
        Ok(match self.next() {
            Lexeme::Name(name) => match &*name {
                "true" | "True" => Expr::Const(Const::Bool(true)),
                "false" | "False" => Expr::Const(Const::Bool(false)),
                "none" | "None" => Expr::Const(Const::None),
                _ => {
                    self.uses.varargs |= &*name == "varargs";
                    self.uses.kwargs |= &*name == "kwargs";
                    self.uses.caller |= &*name == "caller";
                    Expr::Name(name)
                }
            },
            Lexeme::Text(text) => self.texts(text),
            Lexeme::Int(number) => Expr::Const(Const::Int(number)),
            Lexeme::Float(number) => Expr::Const(Const::Float(number)),
            Lexeme::Sign("(") => self.deeper(Self::bracketed)?,
            Lexeme::Sign("[") => self.deeper(Self::list)?,
            Lexeme::Sign("{") => self.deeper(Self::dict)?,
            _ => {
                self.at -= 1;
                return self.unexpected("a value");
            }
        })
    }

    /// Texts one behind the other are one.
    fn texts(&mut self, first: std::sync::Arc<str>) -> Expr {
        let mut text = first;
        while let Lexeme::Text(next) = self.token() {
            text = format!("{text}{next}").into();
            self.at += 1;
        }
        Expr::Const(Const::Text(text))
    }

    fn bracketed(&mut self) -> Result<Expr> {
        let value = if self.is_sign(")") { Expr::Tuple(Vec::new()) } else { self.tuple(true)? };
        self.expect_sign(")")?;
        Ok(value)
    }

    fn list(&mut self) -> Result<Expr> {
        let mut items = Vec::new();
        while !self.is_sign("]") {
            if !items.is_empty() {
                self.expect_sign(",")?;
                if self.is_sign("]") {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        self.expect_sign("]")?;
        Ok(Expr::List(items))
    }

    fn dict(&mut self) -> Result<Expr> {
        let mut pairs = Vec::new();
        while !self.is_sign("}") {
            if !pairs.is_empty() {
                self.expect_sign(",")?;
                if self.is_sign("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect_sign(":")?;
            pairs.push((key, self.expression()?));
        }
        self.expect_sign("}")?;
        Ok(Expr::Dict(pairs))
    }
}
