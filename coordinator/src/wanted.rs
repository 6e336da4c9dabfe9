//! Which model a peer fetches that was told none: one that the swarm serves, that its owner allows, and that fits.

use crate::{cards, default_model::default_model};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use tsnode_protocol::{Advert, ModelCard, ModelId, ModelShape, PeerId, weights::CHUNK_BYTES};

/// What a peer may fetch.
#[derive(Clone, Debug)]
pub struct FetchLimits<'a> {
    /// Bytes of layers at most.
    pub budget: u64,
    /// Memory that it would lend (bytes): one layer of the model has to find room in it.
    pub memory: u64,
    /// Names of models that its owner allows; all where there are none.
    pub allowed: &'a [Glob],
}

/// A model to fetch, and who has it.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchableModel {
    /// The model to fetch.
    pub card: ModelCard,
    /// Its weights as stored (bytes), by its card.
    pub bytes: u64,
    /// Peers that have them.
    pub holders: Vec<PeerId>,
}

/// Why none is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unwanted {
    /// No peer has one.
    None,
    /// Peers have it, and none gives it.
    NotGiven {
        /// One of those.
        model: String,
    },
    /// The owner allows none of those there are.
    NotAllowed {
        /// One of them.
        model: String,
    },
    /// Not even one layer of it, or not all of one that one stage has to hold, is within the owner's budget.
    OverBudget {
        /// The smallest.
        model: String,
        /// The least that plans give of it: a layer, or all.
        part: &'static str,
        /// What that has (bytes).
        layer: u64,
    },
    /// Not even one layer of it, or not all of one that one stage has to hold, finds room in what is lent.
    OverMemory {
        /// The smallest.
        model: String,
        /// The least that plans give of it: a layer, or all.
        part: &'static str,
        /// What that takes (bytes).
        layer: u64,
    },
}

impl fmt::Display for Unwanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: u64| match bytes as f64 / f64::from(1 << 20) {
            mib if mib < 1024.0 => format!("{mib:.1} MiB"),
            mib => format!("{:.1} GiB", mib / 1024.0),
        };
        match self {
            Self::None => f.write_str("no peer has a model"),
            Self::NotGiven { model } => {
                write!(
                    f,
                    "nobody gives {model}, which is gated: --give-gated at a peer that has it, if its terms allow that"
                )
            }
            Self::NotAllowed { model } => write!(f, "--allow-models does not allow {model}"),
            Self::OverBudget { model, part, layer } => {
                write!(f, "{part} of {model} has {}, and does not fit in --model-budget", size(*layer))
            }
            Self::OverMemory { model, part, layer } => {
                write!(f, "{part} of {model} has {}, more than is lent: --memory", size(*layer))
            }
        }
    }
}

/// The model to fetch of those that others have: the one that most of the lent memory is for, as requests that name none get, if it may be
/// fetched; else the largest that may. A name that is asked for leaves no other.
///
/// # Errors
/// Says what keeps all of them away.
pub fn choose(
    others: &BTreeMap<PeerId, &Advert>,
    limits: &FetchLimits<'_>,
    named: Option<&str>,
) -> Result<FetchableModel, Unwanted> {
    let mut known = BTreeMap::<ModelId, (&ModelCard, Vec<PeerId>)>::new();
    for (peer, advert) in others {
        for card in advert.models.iter().filter(|card| named.is_none_or(|name| card.name == name)) {
            let (_, holders) = known.entry(card.id).or_insert((card, Vec::new()));
            holders.extend(Some(*peer).filter(|_| advert.gives(card.id)));
        }
    }
    // Of several cards of one id, what most say: another would be fetched in vain. But for sizes, which are not in an id, and which the
    // files tell before any layer is fetched: who says that a model is too large keeps nobody from it, where others say that it is not.
    let agreed = |(card, holders): (&ModelCard, Vec<PeerId>)| {
        let said = cards::said(card.id, others.iter().map(|(peer, advert)| (peer, *advert)));
        let files = said.first().map(|most| &most.card.files);
        let alike = said.iter().filter(|said| Some(&said.card.files) == files);
        let mut named = alike.map(|said| ModelCard { name: card.name.clone(), ..said.card.clone() });
        let most = named.next().unwrap_or_else(|| card.clone());
        let fitting = if fits(&most, limits).is_ok() { None } else { named.find(|other| fits(other, limits).is_ok()) };
        (fitting.unwrap_or(most), holders)
    };
    let weights = |card: &ModelCard| card.shape.stage_bytes(card.shape.all_layers());
    let first = default_model(others.values().copied()).map(|card| card.id);
    let mut sorted: Vec<(ModelCard, Vec<PeerId>)> = known.into_values().map(agreed).collect();
    sorted.sort_by_key(|(card, _)| (Reverse(Some(card.id) == first), Reverse(weights(card)), card.id));
    let mut why = Unwanted::None;
    for (card, holders) in sorted {
        let bytes = weights(&card);
        match fits(&card, limits) {
            Ok(()) if holders.is_empty() => why = Unwanted::NotGiven { model: card.name },
            Ok(()) => return Ok(FetchableModel { card, bytes, holders }),
            Err(because) => why = because,
        }
    }
    Err(why)
}

/// What plans may give of a model (bytes by its sizes) to a peer that is to have no more than its budget on its disk. A layer's tensors
/// lie side by side in a file, as all write them, but come in whole chunks: with something of others at either end.
#[must_use]
pub fn takes(shape: &ModelShape, budget: u64) -> u64 {
    let layer = u128::from(shape.layer_bytes);
    (u128::from(budget) * layer / (layer + 2 * u128::from(CHUNK_BYTES))) as u64
}

fn fits(card: &ModelCard, limits: &FetchLimits<'_>) -> Result<(), Unwanted> {
    let (model, layer) = (card.name.clone(), card.shape.least_bytes());
    let part = if card.shape.whole { "all" } else { "a layer" };
    if !limits.allowed.is_empty() && !limits.allowed.iter().any(|glob| glob.fits(&model)) {
        return Err(Unwanted::NotAllowed { model });
    }
    if !is_within(&card.shape, limits.budget) {
        return Err(Unwanted::OverBudget { model, part, layer });
    }
    if layer > limits.memory { Err(Unwanted::OverMemory { model, part, layer }) } else { Ok(()) }
}

/// Whether the least that plans give of a model may be here, as far as its sizes tell. Of one that one stage has to hold that is all,
/// which is there as it is, and its head may be its embedding: its files say that, before any layer is fetched.
fn is_within(shape: &ModelShape, budget: u64) -> bool {
    let least = shape.least_bytes();
    if shape.whole { least.saturating_sub(shape.head_bytes) <= budget } else { least <= takes(shape, budget) }
}

/// A pattern of names: `*` is any letters, `?` any one; capitals count as small letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Vec<char>);

impl Glob {
    /// Of its text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.to_lowercase().chars().collect())
    }

    /// Whether a name is one of them.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        let name: Vec<char> = name.to_lowercase().chars().collect();
        // Where the last star was, and how much of the name it has taken.
        let (mut at, mut read, mut star) = (0, 0, None);
        while read < name.len() {
            match self.0.get(at) {
                Some('*') => {
                    star = Some((at, read));
                    at += 1;
                }
                Some(letter) if *letter == '?' || *letter == name[read] => (at, read) = (at + 1, read + 1),
                _ => {
                    let Some((place, taken)) = star else { return false };
                    star = Some((place, taken + 1));
                    (at, read) = (place + 1, taken + 1);
                }
            }
        }
        self.0[at..].iter().all(|letter| *letter == '*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::ModelOrigin;

    const ALL: FetchLimits<'_> = FetchLimits { budget: u64::MAX, memory: u64::MAX, allowed: &[] };

    fn has(id: u8, name: &str, layer_bytes: u64) -> Advert {
        let card = sample::card();
        let shape = ModelShape { layer_bytes, embed_bytes: 0, head_bytes: 0, ..card.shape };
        sample::lends(0, ModelCard { id: ModelId([id; 16]), name: name.into(), shape, ..card })
    }

    fn chosen(adverts: &[Advert], limits: &FetchLimits<'_>, named: Option<&str>) -> Result<(String, usize), Unwanted> {
        let others = (0..).zip(adverts).map(|(n, advert)| (PeerId([n; 32]), advert)).collect();
        choose(&others, limits, named).map(|wanted| (wanted.card.name, wanted.holders.len()))
    }

    #[test]
    fn what_the_swarm_serves_is_fetched_from_all_who_have_it() {
        let swarm = [has(1, "org/large", 4 << 20), has(1, "org/large", 4 << 20), has(2, "small", 1 << 20)];
        assert_eq!(chosen(&swarm, &ALL, None), Ok(("org/large".into(), 2)));
        assert_eq!(chosen(&swarm, &ALL, Some("small")), Ok(("small".into(), 1)));
        assert_eq!(chosen(&swarm, &ALL, Some("other")), Err(Unwanted::None));
        assert_eq!(chosen(&[sample::gateway(0)], &ALL, None), Err(Unwanted::None));
    }

    #[test]
    fn what_does_not_fit_or_is_not_allowed_is_left_and_said() {
        let swarm = [has(1, "org/large", 4 << 20), has(2, "other/small", 1 << 20)];
        let budget = |budget| FetchLimits { budget, ..ALL };
        assert_eq!(chosen(&swarm, &budget(5 << 20), None), Ok(("other/small".into(), 1)), "with its chunks' ends");
        assert_eq!(chosen(&swarm, &budget(7 << 20), None), Ok(("org/large".into(), 1)), "a layer of four");
        let said = chosen(&swarm, &budget(1 << 20), None).unwrap_err().to_string();
        assert!(said.contains("--model-budget"), "{said}");
        let memory = FetchLimits { memory: 2 << 20, ..ALL };
        assert_eq!(chosen(&swarm, &memory, None), Ok(("other/small".into(), 1)));
        let org = [Glob::new("Org/*")];
        let allowed = FetchLimits { allowed: &org, ..ALL };
        assert_eq!(chosen(&swarm, &allowed, None), Ok(("org/large".into(), 1)));
        assert!(matches!(chosen(&swarm[1..], &allowed, None), Err(Unwanted::NotAllowed { .. })));
    }

    #[test]
    fn a_model_that_one_stage_has_to_hold_is_fetched_where_all_of_it_fits() {
        let mut whole = has(1, "whole", 4 << 20);
        let shape = &mut whole.models[0].shape;
        (shape.whole, shape.embed_bytes, shape.head_bytes) = (true, 3 << 20, 2 << 20);
        let said = |budget: u64, memory: u64| {
            let limits = FetchLimits { budget: budget << 20, memory: memory << 20, allowed: &[] };
            chosen(std::slice::from_ref(&whole), &limits, None).map_err(|why| why.to_string())
        };
        // Four layers, the embedding, and a head that may be the embedding.
        assert_eq!((said(21, 21), said(19, 21)), (Ok(("whole".into(), 1)), Ok(("whole".into(), 1))));
        assert!(said(18, 21).unwrap_err().starts_with("all of whole has "), "{:?}", said(18, 21));
        assert!(said(21, 20).unwrap_err().contains("--memory"), "{:?}", said(21, 20));
    }

    #[test]
    fn plans_give_what_fits_in_a_budget_with_the_ends_of_its_chunks() {
        let shape = ModelShape { layer_bytes: 8 << 20, ..sample::card().shape };
        assert_eq!((takes(&shape, 0), takes(&shape, 10 << 20), takes(&shape, 40 << 20)), (0, 8 << 20, 32 << 20));
        assert!(takes(&shape, u64::MAX) > u64::MAX / 2);
        assert_eq!(takes(&ModelShape { layer_bytes: 0, ..shape }, u64::MAX), 0);
    }

    #[test]
    fn what_nobody_gives_is_left_for_what_somebody_does_and_said() {
        let gated = |is_given| {
            let (model, source) = (ModelId([1; 16]), "org/large@0".into());
            let origin = ModelOrigin { model, source, licence: None, is_gated: true, is_given };
            Advert { origins: vec![origin], ..has(1, "org/large", 4 << 20) }
        };
        let swarm = [gated(false), has(2, "small", 1 << 20)];
        assert_eq!(chosen(&swarm, &ALL, None), Ok(("small".into(), 1)));
        let said = chosen(&swarm[..1], &ALL, None).unwrap_err().to_string();
        assert!(said.contains("--give-gated"), "{said}");
        assert_eq!(chosen(&[gated(false), gated(true)], &ALL, None), Ok(("org/large".into(), 1)));
    }

    #[test]
    fn of_two_cards_of_one_id_what_most_say_is_fetched() {
        let false_one = |mut advert: Advert| {
            advert.models[0].files = vec![tsnode_protocol::ModelFile { name: "a".into(), bytes: 1, hash: [1; 32] }];
            advert
        };
        let swarm = [false_one(has(1, "a", 1 << 20)), has(1, "b", 1 << 20), has(1, "c", 1 << 20)];
        let others = (0..).zip(&swarm).map(|(n, advert)| (PeerId([n; 32]), advert)).collect();
        let wanted = choose(&others, &ALL, None).unwrap();
        assert_eq!((wanted.card.files.len(), wanted.card.name.as_str(), wanted.holders.len()), (0, "a", 3));
    }

    #[test]
    fn who_says_that_a_model_is_too_large_keeps_nobody_from_it() {
        let swarm = [has(1, "a", 1 << 40), has(1, "a", 1 << 40), has(1, "a", 1 << 20)];
        let others = (0..).zip(&swarm).map(|(n, advert)| (PeerId([n; 32]), advert)).collect();
        let few = FetchLimits { memory: 2 << 20, ..ALL };
        let wanted = choose(&others, &few, None).unwrap();
        assert_eq!((wanted.card.shape.layer_bytes, wanted.holders.len()), (1 << 20, 3));
        let wanted = choose(&others, &ALL, None).unwrap();
        assert_eq!(wanted.card.shape.layer_bytes, 1 << 40, "where all fit, what most say");
        assert!(matches!(chosen(&swarm[..2], &few, None), Err(Unwanted::OverMemory { .. })));
    }

    #[test]
    fn globs_are_those_of_shells() {
        let fits = |glob: &str, name: &str| Glob::new(glob).fits(name);
        for (glob, name) in
            [("*", ""), ("*", "a/b"), ("org/*", "ORG/x"), ("*llama*:q?_0", "meta/Llama-3:Q4_0"), ("a*b*c", "aXbYbZc")]
        {
            assert!(fits(glob, name), "{glob} {name}");
        }
        for (glob, name) in [("", "a"), ("org/*", "other/x"), ("a?", "a"), ("a*b", "abc"), ("?", "")] {
            assert!(!fits(glob, name), "{glob} {name}");
        }
    }
}
