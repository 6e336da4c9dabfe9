//! Short names of models that are known to be served, with licence and size: data, in `catalogue.toml`.

use super::name::ModelName;
use serde::Deserialize;
use std::sync::LazyLock;

static TEXT: &str = include_str!("catalogue.toml");
/// Letters that may be other ones in what was meant: a third.
const PART: usize = 3;

/// A short name, and what it stands for.
#[derive(Clone, Debug)]
pub struct Alias {
    /// `llama3.2:1b`.
    pub alias: String,
    /// What it stands for.
    pub model: ModelName,
    /// What comes over the network, about (10⁹ bytes).
    pub gigabytes: f64,
    /// The licence, as the hub calls it.
    pub licence: String,
}

#[derive(Deserialize)]
struct Catalogue {
    model: Vec<CatalogueEntry>,
}

#[derive(Deserialize)]
struct CatalogueEntry {
    alias: String,
    model: String,
    gigabytes: f64,
    licence: String,
}

/// Empty where the program was built with a broken catalogue, which a test excludes.
static ALL: LazyLock<Vec<Alias>> = LazyLock::new(|| {
    let entries = toml::from_str(TEXT).map_or(Vec::new(), |Catalogue { model }| model);
    let read = |entry: CatalogueEntry| {
        let CatalogueEntry { alias, model, gigabytes, licence } = entry;
        Some(Alias { alias, model: model.parse().ok()?, gigabytes, licence })
    };
    entries.into_iter().filter_map(read).collect()
});

/// All of them.
#[must_use]
pub fn aliases() -> &'static [Alias] {
    &ALL
}

/// The one that is called so.
#[must_use]
pub fn find(text: &str) -> Option<&'static Alias> {
    ALL.iter().find(|entry| entry.alias.eq_ignore_ascii_case(text))
}

/// The alias that was most likely meant, if any is near.
#[must_use]
pub fn nearest(text: &str) -> Option<&'static str> {
    let far = |entry: &'static Alias| (strsim::damerau_levenshtein(text, &entry.alias), entry.alias.as_str());
    let (far, alias) = ALL.iter().map(far).min()?;
    (far <= text.chars().count().div_ceil(PART)).then_some(alias)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_read() {
        let entries = toml::from_str::<Catalogue>(TEXT).unwrap().model;
        assert!(entries.len() >= 10 && entries.len() == aliases().len());
        for Alias { alias, model, gigabytes, licence } in aliases() {
            assert!(alias.contains(':') && !alias.contains('/') && !licence.is_empty(), "{alias}");
            assert!(model.quant.is_some() && (0.01..1000.0).contains(gigabytes), "{alias}");
            assert_eq!(aliases().iter().filter(|other| other.alias == *alias).count(), 1, "{alias}");
        }
        assert_eq!(find("Llama3.2:1B").unwrap().alias, "llama3.2:1b");
        assert_eq!((nearest("llama3.2:1c"), nearest("something:else")), (Some("llama3.2:1b"), None));
    }
}
