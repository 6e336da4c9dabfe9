//! Metadata: values by key, asked for by the kind the caller wants.

use super::{GgufError, at_most, reader::Reader};
use std::collections::BTreeMap;

/// Bytes of a key.
const KEY: u64 = 1024;
/// Where tensors begin when a file does not say: at multiples of this.
const ALIGNMENT: u64 = 32;
/// The largest such multiple.
const ALIGNMENT_MAX: u64 = 1 << 20;

/// One value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetadataValue<'a> {
    /// A whole number.
    Integer(i128),
    /// Any number.
    Real(f64),
    /// Yes or no.
    Flag(bool),
    /// A text, as its bytes.
    Text(&'a [u8]),
    /// Values of one kind.
    Array(Array<'a>),
}

/// A list that stays in the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    kind: ValueType,
    len: u64,
    bytes: &'a [u8],
}

/// Kinds of values, all but lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Flag,
    Text,
    U64,
    I64,
    F64,
}

/// The number that stands for a list.
const ARRAY: u32 = 9;

impl ValueType {
    fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Flag,
            8 => Self::Text,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// Bytes of one value; a text's are in the file.
    fn bytes(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Flag => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Text => None,
        }
    }

    fn read<'a>(self, reader: &mut Reader<'a>) -> Result<MetadataValue<'a>, GgufError> {
        let Some(len) = self.bytes() else { return reader.text().map(MetadataValue::Text) };
        let bytes = reader.take(len)?;
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        Ok(match self {
            Self::I8 => MetadataValue::Integer((bits as i8).into()),
            Self::I16 => MetadataValue::Integer((bits as i16).into()),
            Self::I32 => MetadataValue::Integer((bits as i32).into()),
            Self::I64 => MetadataValue::Integer((bits as i64).into()),
            Self::F32 => MetadataValue::Real(f32::from_bits(bits as u32).into()),
            Self::F64 => MetadataValue::Real(f64::from_bits(bits)),
            Self::Flag => MetadataValue::Flag(bits != 0),
            Self::U8 | Self::U16 | Self::U32 | Self::U64 | Self::Text => MetadataValue::Integer(bits.into()),
        })
    }
}

impl<'a> Array<'a> {
    /// Values in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values in order.
    pub fn iter(&self) -> impl Iterator<Item = MetadataValue<'a>> + use<'a> {
        let (kind, mut reader) = (self.kind, Reader::new(self.bytes));
        // The bytes were walked once when the file was read: no value is missing.
        (0..self.len).map_while(move |_| kind.read(&mut reader).ok())
    }
}

/// What a file says about its model.
#[derive(Clone, Debug, Default)]
pub struct Metadata<'a> {
    values: BTreeMap<&'a str, MetadataValue<'a>>,
}

/// Reads `entries` keys and values.
pub(super) fn read<'a>(reader: &mut Reader<'a>, entries: u64) -> Result<Metadata<'a>, GgufError> {
    let mut values = BTreeMap::new();
    for _ in 0..entries {
        let key = reader.name("metadata entry", KEY)?;
        if values.insert(key, value(reader, key)?).is_some() {
            return Err(GgufError::Twice(format!("metadata {key}")));
        }
    }
    Ok(Metadata { values })
}

fn value<'a>(reader: &mut Reader<'a>, key: &str) -> Result<MetadataValue<'a>, GgufError> {
    let kind = |number| ValueType::of(number).ok_or_else(|| GgufError::ValueType { key: key.to_owned(), kind: number });
    match reader.u32()? {
        ARRAY => {
            let (kind, len) = (kind(reader.u32()?)?, reader.u64()?);
            array(reader, kind, len).map(MetadataValue::Array)
        }
        number => kind(number)?.read(reader),
    }
}

fn array<'a>(reader: &mut Reader<'a>, kind: ValueType, len: u64) -> Result<Array<'a>, GgufError> {
    let bytes = match kind.bytes() {
        Some(one) => {
            let short = GgufError::CutShort { at: reader.at() as u64, needed: u64::MAX, len: reader.len() as u64 };
            reader.take(len.checked_mul(one).ok_or(short)?)?
        }
        None => reader.texts(len)?,
    };
    Ok(Array { kind, len, bytes })
}

impl<'a> Metadata<'a> {
    /// What is stored under `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<MetadataValue<'a>> {
        self.values.get(key).copied()
    }

    /// What `read` makes of the value of `key`, if there is one.
    fn get_as<T>(
        &self,
        key: &str,
        wanted: &'static str,
        read: impl Fn(MetadataValue<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let wrong = || GgufError::Value { key: key.to_owned(), wanted };
        self.get(key).map(|value| read(value).ok_or_else(wrong)).transpose()
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        self.get_as(key, "a text", |value| match value {
            MetadataValue::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        })
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.get_as(key, "true or false", |value| match value {
            MetadataValue::Flag(flag) => Some(flag),
            _ => None,
        })
    }

    /// A number that is not negative; of a list with one number for each layer, what all layers have.
    pub(crate) fn count(&self, key: &str) -> Result<Option<u32>, GgufError> {
        let one = |value| match value {
            MetadataValue::Integer(number) => u32::try_from(number).ok(),
            _ => None,
        };
        self.get_as(key, "a number from 0 to 4294967295, the same for all layers", |value| match value {
            MetadataValue::Array(array) => {
                let first = one(array.iter().next()?)?;
                array.iter().all(|value| one(value) == Some(first)).then_some(first)
            }
            value => one(value),
        })
    }

    pub(super) fn real(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.get_as(key, "a finite number", |value| match value {
            MetadataValue::Real(number) => Some(number).filter(|number| number.is_finite()),
            MetadataValue::Integer(number) => Some(number as f64),
            _ => None,
        })
    }

    pub(super) fn array(&self, key: &str) -> Result<Option<Array<'a>>, GgufError> {
        self.get_as(key, "a list", |value| match value {
            MetadataValue::Array(array) => Some(array),
            _ => None,
        })
    }

    /// What tensors' places are multiples of.
    pub(super) fn alignment(&self) -> Result<u64, GgufError> {
        const KEY: &str = "general.alignment";
        let alignment = self.count(KEY)?.map_or(ALIGNMENT, u64::from);
        at_most(KEY, alignment, ALIGNMENT_MAX)?;
        if alignment.is_power_of_two() {
            Ok(alignment)
        } else {
            Err(GgufError::Value { key: KEY.to_owned(), wanted: "a power of two" })
        }
    }
}
