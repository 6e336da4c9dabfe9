//! Looks for one kind of JSON somewhere, and keeps nothing of any other.

use super::{owned, skip, skip_map};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// What stands somewhere: nothing, what is looked for, or something else.
#[derive(Default)]
pub(super) enum Read<T> {
    #[default]
    Null,
    Is(T),
    Other,
}

/// What is looked for somewhere; all else is passed over.
pub(super) trait Wanted<'de>: Sized {
    type Value;

    fn text(self, _: &str) -> Read<Self::Value> {
        Read::Other
    }

    fn list<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Read<Self::Value>, A::Error> {
        skip(&mut seq).map(|_| Read::Other)
    }

    fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Read<Self::Value>, A::Error> {
        skip_map(&mut map).map(|()| Read::Other)
    }
}

/// Looks for something.
pub(super) struct Shallow<W>(pub W);

impl<'de, W: Wanted<'de>> DeserializeSeed<'de> for Shallow<W> {
    type Value = Read<W::Value>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, W: Wanted<'de>> Visitor<'de> for Shallow<W> {
    type Value = Read<W::Value>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.0.text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Value, A::Error> {
        self.0.list(seq)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        self.0.object(map)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Read::Null)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Read::Other)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Read::Other)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Read::Other)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Read::Other)
    }
}

/// A text of its own.
pub(super) struct Owned;

impl Wanted<'_> for Owned {
    type Value = String;

    fn text(self, text: &str) -> Read<String> {
        Read::Is(owned(text))
    }
}
