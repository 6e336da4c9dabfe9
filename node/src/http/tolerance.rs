//! Fields that only advise: clients send them to every server, and an answer means the same without them. They are ignored,
//! and named in a header, so that whoever relied on one finds out.

use super::fields::Fields;
use axum::http::{HeaderName, HeaderValue};

/// The header that names what was ignored.
pub(super) const IGNORED: HeaderName = HeaderName::from_static("x-tsnode-ignored");

/// Names that do nothing here. What they ask for is how soon, how dear, for whom or in what tone, never what is true.
pub(super) const ADVISORY: [&str; 14] = [
    // OpenAI's.
    "metadata",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "store",
    "user",
    "verbosity",
    // vLLM's.
    "cache_salt",
    "mm_processor_kwargs",
    "request_id",
    "spaces_between_special_tokens",
    // OpenRouter's and proxies'.
    "provider",
];

/// What of a request was ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ignored(Vec<&'static str>);

impl Ignored {
    /// Takes out of the fields whatever only advises.
    pub fn of(fields: &mut Fields) -> Self {
        Self(ADVISORY.into_iter().filter(|name| fields.take(name).is_some()).collect())
    }

    /// One more, by its name.
    pub fn add(&mut self, name: &'static str) {
        self.0.push(name);
    }

    /// The header's value; none where nothing was ignored.
    pub fn header(&self) -> Option<HeaderValue> {
        (!self.0.is_empty()).then(|| HeaderValue::from_str(&self.0.join(", ")).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_advises_is_named_and_nothing_else_is_taken() {
        let body = br#"{"verbosity":"low","user":{"a":[1]},"store":null,"prediction":7,"tools":[]}"#;
        let mut fields = Fields::parse(body, 3).unwrap();
        let ignored = Ignored::of(&mut fields);
        assert_eq!(ignored.header().unwrap(), "prediction, user, verbosity");
        assert!(fields.take("tools").is_some() && fields.finish().is_ok());
        assert_eq!(Ignored::default().header(), None);
        let sorted = |names: &[&str]| names.is_sorted();
        assert!(sorted(&ADVISORY[..9]) && sorted(&ADVISORY[9..13]));
    }
}
