//! Plan flow 1: a card that this host lends. It is tried with the model before anybody counts on it.

use super::{KV_AT_LEAST, KV_PART, Lend, log};
use crate::{
    memory::Size,
    store::{Measured, Store},
};
use serde::{Deserialize, Serialize};
use tsnode_kernels::{
    cuda::{Card, CardError, CardInfo, CardSpeeds},
    engine::{Engine, EngineError},
    profile, proof,
    proof::ProofError,
    source::ModelSource,
    weights::WeightsError,
};
use tsnode_protocol::{BytesPerSecond, Device, DeviceKind, FlopsPerSecond, KvDtype, LayerProfile, LayerRange, ModelId};

/// Pages for a trial alone (bytes).
const TRIED_WITH: usize = 64 << 20;

/// Why a card is not lent.
#[derive(Debug, thiserror::Error)]
pub enum CardUnfit {
    /// It is not there, or does not start.
    #[error(transparent)]
    Card(#[from] CardError),
    /// It does not compute this model, or not as the processor does.
    #[error("tried with the model: {0}")]
    Proof(#[from] ProofError),
    /// Its pages.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The model's weights, which opening it found well before.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Not one layer fits beside the pages.
    #[error(
        "{} of it can be lent, where a layer of the model needs {} beside {} of KV pages; lend less KV with --kv-memory, or name a smaller model with --model",
        Size(*.lent), Size(*.layer), Size(*.kv)
    )]
    Memory {
        /// What may be lent (bytes).
        lent: u64,
        /// Its largest layer (bytes).
        layer: u64,
        /// KV pages (bytes).
        kv: u64,
    },
}

/// What a card was found to do.
#[derive(Clone, Serialize, Deserialize)]
struct Found {
    of: Of,
    speeds: Speeds,
    /// None where the model cannot be measured.
    profile: Option<LayerProfile>,
}

/// What it holds for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Of {
    card: String,
    driver: Option<String>,
    capability: (i32, i32),
    version: String,
    model: ModelId,
    kv: String,
    method: u32,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Speeds {
    multiply: f64,
    copy: f64,
}

impl From<CardSpeeds> for Speeds {
    fn from(CardSpeeds { multiply, copy, .. }: CardSpeeds) -> Self {
        Self { multiply, copy }
    }
}

/// Memory of a card as it is shared out (bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shared {
    lent: u64,
    kv: u64,
}

/// A card, and an engine on it that is ready to load. Measures and tries it in some seconds, unless it has before.
///
/// # Errors
/// When it cannot be used, for the model or at all.
pub fn lend(
    ordinal: u16,
    (source, draft): (&ModelSource, Option<&ModelSource>),
    lend: Lend,
    kv_dtype: KvDtype,
    store: &Store,
) -> Result<(Device, Engine), CardUnfit> {
    let card = Card::open(ordinal)?;
    let about = card.about();
    let shape = source.card().shape;
    let whole = |source: &ModelSource| source.card_bytes(source.card().shape.all_layers(), 1);
    let (weights, beside) = (whole(source)?, draft.map_or(Ok(0), whole)?);
    let free = (card.pool_bytes(0)? as u64).saturating_sub(beside);
    let shared = shared(lend, free, weights);
    let layer = largest_layer(source)?;
    if shared.lent < layer + shared.kv || shared.kv < KV_AT_LEAST {
        return Err(CardUnfit::Memory { lent: shared.lent, layer, kv: shared.kv });
    }
    let of = Of {
        card: about.name.clone(),
        driver: about.facts.driver.clone(),
        capability: about.capability,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        model: source.card().id,
        kv: format!("{kv_dtype:?}"),
        method: profile::METHOD,
    };
    let known = store.measured(Measured::Card(ordinal)).and_then(|bytes| serde_json::from_slice::<Found>(&bytes).ok());
    let known = known.filter(|known| known.of == of && known.profile.is_none_or(|p| p.is_plausible()));
    let speeds = known.as_ref().map_or_else(|| card.speeds().map(Speeds::from), |known| Ok(known.speeds))?;
    let mut engine = Engine::on_card(card, shared.kv as usize, kv_dtype)?;
    let profile = match known {
        Some(known) => known.profile,
        None => {
            let profile = tried(&mut engine, source, lend.threads)?;
            if let Ok(bytes) = serde_json::to_vec(&Found { of, speeds, profile }) {
                store.set_measured(Measured::Card(ordinal), &bytes);
            }
            profile
        }
    };
    tell(ordinal, &about, shared, speeds);
    // Plans count weights as they are stored; formats that are widened on a card leave room for fewer of them.
    let stored = shape.stage_bytes(shape.all_layers()) as f64 / weights.max(1) as f64;
    let room = ((shared.lent - shared.kv) as f64 * stored.min(1.0)) as u64;
    let device = Device {
        kind: DeviceKind::Cuda { ordinal },
        name: about.name.chars().take(100).collect(),
        memory_bytes: shared.kv + room,
        kv_bytes: shared.kv,
        flops: FlopsPerSecond(speeds.multiply),
        bandwidth: BytesPerSecond(speeds.copy),
        profile,
    };
    Ok((device, engine))
}

/// Compares a card with the processor and gives it back: what it is.
///
/// # Errors
/// When it cannot be used, for the model or at all.
pub fn try_card(ordinal: u16, source: &ModelSource, threads: usize, kv_dtype: KvDtype) -> Result<CardInfo, CardUnfit> {
    let card = Card::open(ordinal)?;
    let about = card.about();
    let mut engine = Engine::on_card(card, TRIED_WITH, kv_dtype)?;
    proof::compare(&mut engine, source, threads)?;
    Ok(about)
}

/// Compares the card with the processor, then measures it.
fn tried(engine: &mut Engine, source: &ModelSource, threads: usize) -> Result<Option<LayerProfile>, CardUnfit> {
    proof::compare(engine, source, threads)?;
    match profile::measure_on(engine, source) {
        Ok(profile) => {
            let profile = profile.filter(LayerProfile::is_plausible);
            profile.iter().for_each(|profile| log(profile, "a layer was measured on a card"));
            Ok(profile)
        }
        Err(error) => {
            tracing::warn!(%error, "the model was not measured on a card; plans count with the card's speeds alone");
            Ok(None)
        }
    }
}

fn tell(ordinal: u16, about: &CardInfo, shared: Shared, speeds: Speeds) {
    let (lent, kv) = (Size(shared.lent), Size(shared.kv));
    let (gb_s, tflop_s) = ((speeds.copy / 1e9).round(), (speeds.multiply / 1e12).round());
    let driver = about.facts.driver.as_deref().unwrap_or("unknown");
    tracing::info!(card = %format!("cuda:{ordinal}"), name = %about.name, driver, %lent, %kv, gb_s, tflop_s, "a card is lent");
}

/// What of `free` memory is lent, and what of that is for KV pages: what the whole model leaves, where that is no small part.
fn shared(lend: Lend, free: u64, weights: u64) -> Shared {
    let lent = lend.memory_bytes.map_or(free, |most| most.min(free));
    let beside = lent.saturating_sub(weights);
    let least = (lent as f64 * KV_PART) as u64;
    Shared { lent, kv: lend.kv_bytes.unwrap_or(beside.max(least)) }
}

/// What the largest layer takes on a card, embedding and head with the first and the last (bytes).
fn largest_layer(source: &ModelSource) -> Result<u64, WeightsError> {
    let layers = source.card().shape.layers;
    let ends = [0, layers.saturating_sub(1)].map(|start| LayerRange { start, end: start + 1 });
    ends.into_iter().try_fold(0, |most, layer| Ok(source.card_bytes(layer, 1)?.max(most)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_get_what_the_model_leaves_or_a_part_where_it_leaves_little() {
        let lend = |memory_bytes, kv_bytes| Lend { threads: 1, memory_bytes, kv_bytes };
        assert_eq!(shared(lend(None, None), 80, 16), Shared { lent: 80, kv: 64 });
        assert_eq!(shared(lend(None, None), 80, 140), Shared { lent: 80, kv: 20 });
        assert_eq!(shared(lend(Some(40), None), 80, 16), Shared { lent: 40, kv: 24 });
        assert_eq!(shared(lend(Some(100), Some(8)), 80, 16), Shared { lent: 80, kv: 8 });
    }
}
