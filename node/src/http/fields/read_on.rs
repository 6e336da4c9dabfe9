//! Lists from which nothing more is taken: how far they are read on, and what ends reading.

use super::ApiError;
use serde::de::{Error, IgnoredAny, SeqAccess};
use std::cell::RefCell;

/// So much of such a list is read on, for its length and for what follows it. Eight megabytes of token ids are four million
/// numbers, and others' bodies wait while they are read.
pub(super) const READ_ON: usize = 64 << 10;

/// What to answer with where a list has ended reading.
#[derive(Debug, Default)]
pub(super) struct EarlyRefusal(RefCell<Option<ApiError>>);

impl EarlyRefusal {
    /// Reads the rest of a list from which nothing more is taken, and says how much there was; or ends reading with this refusal,
    /// where there is so much of it that the rest of the body is not worth it.
    pub fn read_on<'de, A: SeqAccess<'de>>(
        &self,
        seq: &mut A,
        refusal: impl FnOnce() -> ApiError,
    ) -> Result<usize, A::Error> {
        for passed in 0..READ_ON {
            if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(passed);
            }
        }
        *self.0.borrow_mut() = Some(refusal());
        Err(A::Error::custom("far too long"))
    }

    /// The error to answer with, if that is why reading ended.
    pub fn refusal(self) -> Option<ApiError> {
        self.0.into_inner()
    }
}
