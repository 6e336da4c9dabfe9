//! Plan flow 1: several models on one device: which part of its memory each gets, added up before anything is loaded.

use super::{
    KV_AT_LEAST, KV_AT_MOST, KV_PART, LendError, draft_need,
    memory::{Need, Size, StageHolder},
};
use std::fmt;
use tsnode_kernels::source::ModelSource;

/// What to do where a model's own part is too little.
const LARGER_PART: &str = "give it more with memory in its [[models]], or name a smaller model";

/// A model that is to have a part.
#[derive(Clone, Copy)]
pub struct Sharer<'a> {
    /// It.
    pub source: &'a ModelSource,
    /// What drafts for it.
    pub draft: Option<&'a ModelSource>,
    /// Its part (bytes), where its owner says it.
    pub memory_bytes: Option<u64>,
    /// Whether it stays in memory where not all are there at once.
    pub is_kept: bool,
}

/// A model's part of a device's memory (bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPart {
    /// For weights and KV pages.
    pub memory_bytes: u64,
    /// Of that, its quota of the KV pages.
    pub kv_bytes: u64,
}

/// What there is to share.
#[derive(Clone, Copy, Debug)]
pub struct SharedMemory {
    /// Memory that is lent (bytes).
    pub lent: u64,
    /// Of that, for KV pages, where nothing else is said (bytes).
    pub kv_bytes: u64,
    /// Whether the owner said how much for KV pages.
    pub is_kv_told: bool,
    /// Whose memory it is.
    pub holder: StageHolder,
    /// Whether weights of all models need not be in memory at once.
    pub swaps: bool,
}

/// What a model takes, as it is added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenMemory {
    /// What it is called.
    pub name: String,
    /// Of which, how much (bytes).
    pub bytes: u64,
    /// How that comes about.
    pub how: String,
}

/// Models that together need more than is lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLargeTogether {
    /// Each of them.
    pub all: Vec<TakenMemory>,
    /// What there is (bytes).
    pub lent: u64,
}

impl std::error::Error for TooLargeTogether {}

impl fmt::Display for TooLargeTogether {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = self.all.iter().fold(0u64, |sum, taken| sum.saturating_add(taken.bytes));
        let all: Vec<&str> = self.all.iter().map(|taken| taken.how.as_str()).collect();
        write!(
            f,
            "{} models need {}, where {} is lent: {}",
            self.all.len(),
            Size(sum),
            Size(self.lent),
            all.join("; ")
        )?;
        let fit = self.would_fit();
        if fit.is_empty() {
            f.write_str("; none of them would fit")?;
        } else {
            write!(f, "; {} would fit", fit.join(" and "))?;
        }
        f.write_str(
            "; lend more with --memory, less KV with --kv-memory, give each a part with memory in its [[models]], or have those \
             loaded that are asked for with --swap-models",
        )
    }
}

impl TooLargeTogether {
    /// As many as there is room for, in the order in which they were named.
    fn would_fit(&self) -> Vec<&str> {
        let mut left = self.lent;
        let fits = |taken: &&TakenMemory| {
            let fits = taken.bytes <= left;
            left -= if fits { taken.bytes } else { 0 };
            fits
        };
        self.all.iter().filter(fits).map(|taken| taken.name.as_str()).collect()
    }
}

/// Deals memory out: to each what it was told, or what all of it needs and an even part of what is left.
///
/// # Errors
/// Where that is more than is lent, with the sum, or less than one layer needs.
pub fn divide(shared: SharedMemory, models: &[Sharer<'_>]) -> Result<Vec<MemoryPart>, LendError> {
    let even = shared.kv_bytes / models.len().max(1) as u64;
    if even < KV_AT_LEAST {
        return Err(LendError::Memory { asked: even, free: shared.kv_bytes });
    }
    let mut parts = Vec::with_capacity(models.len());
    let mut all = Vec::with_capacity(models.len());
    for model in models {
        let kv_bytes = match model.memory_bytes {
            Some(part) if !shared.is_kv_told => ((part as f64 * KV_PART) as u64).clamp(KV_AT_LEAST, KV_AT_MOST),
            _ => even,
        };
        let taken = taken(model, kv_bytes, shared.holder)?;
        parts.push(MemoryPart { memory_bytes: taken.bytes, kv_bytes });
        all.push(taken);
    }
    let sum = all.iter().fold(0u64, |sum, taken| sum.saturating_add(taken.bytes));
    let Some(left) = shared.lent.checked_sub(sum) else {
        return by_turns(shared, models, parts, all);
    };
    let untold = models.iter().filter(|model| model.memory_bytes.is_none()).count();
    for (part, _) in parts.iter_mut().zip(models).filter(|(_, model)| model.memory_bytes.is_none()) {
        part.memory_bytes += left / untold.max(1) as u64;
    }
    // What drafts is beside the stages that plans give.
    for (part, model) in parts.iter_mut().zip(models) {
        if let Some(draft) = model.draft {
            let beside = draft_need(model.source, draft, shared.holder)?.total();
            part.memory_bytes = part.memory_bytes.saturating_sub(beside).max(part.kv_bytes);
        }
    }
    Ok(parts)
}

/// Parts of models that are not all in memory at once: what each needs, where there is as much beside the KV pages of all.
fn by_turns(
    shared: SharedMemory,
    models: &[Sharer<'_>],
    parts: Vec<MemoryPart>,
    all: Vec<TakenMemory>,
) -> Result<Vec<MemoryPart>, LendError> {
    let (lent, pages) = (shared.lent, parts.iter().map(|part| part.kv_bytes).fold(0, u64::saturating_add));
    let weights: Vec<u64> = parts.iter().map(|part| part.memory_bytes.saturating_sub(part.kv_bytes)).collect();
    let largest = weights.iter().copied().max().unwrap_or_default();
    if !shared.swaps || pages.saturating_add(largest) > lent {
        return Err(TooLargeTogether { all, lent }.into());
    }
    let (kept, others): (Vec<(&Sharer<'_>, u64)>, Vec<_>) =
        models.iter().zip(weights).partition(|(model, _)| model.is_kept);
    let stays = kept.iter().map(|(_, weights)| *weights).fold(pages, u64::saturating_add);
    let Some((model, needs)) = others.into_iter().max_by_key(|(_, weights)| *weights) else {
        return Err(TooLargeTogether { all, lent }.into());
    };
    if stays.saturating_add(needs) > lent {
        let (model, left) = (model.source.card().name.clone(), lent.saturating_sub(stays));
        return Err(LendError::KeepsTooMuch { model, needs, left });
    }
    // It would stay where the model that it drafts for goes.
    if let Some(model) = models.iter().find(|model| model.draft.is_some()) {
        return Err(LendError::SwapsWithDraft(model.source.card().name.clone()));
    }
    tracing::info!(models = parts.len(), lent = %Size(lent), "not all in memory at once: those that are asked for are loaded");
    Ok(parts)
}

fn taken(model: &Sharer<'_>, kv_bytes: u64, holder: StageHolder) -> Result<TakenMemory, LendError> {
    let card = model.source.card();
    let name = card.name.clone();
    let beside = model.draft.map(|draft| draft_need(model.source, draft, holder)).transpose()?;
    let draft_bytes = beside.as_ref().map_or(0, Need::total);
    if let Some(bytes) = model.memory_bytes {
        Need::of_least(model.source, holder, kv_bytes)?.within_or(bytes.saturating_sub(draft_bytes), LARGER_PART)?;
        let whole = Need::of(model.source, card.shape.all_layers(), holder, kv_bytes)?;
        if whole.total() + draft_bytes > bytes {
            let part = Size(bytes);
            tracing::warn!(%whole, %part, "this peer has room for a part of the model only: others must hold the rest");
        }
        return Ok(TakenMemory { how: format!("{name} has {} of its own", Size(bytes)), name, bytes });
    }
    let whole = Need::of(model.source, card.shape.all_layers(), holder, kv_bytes)?;
    let how = beside.map_or_else(|| whole.to_string(), |beside| format!("{whole}; {beside}"));
    Ok(TakenMemory { name, bytes: whole.total().saturating_add(draft_bytes), how })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn shared(lent: u64, kv_bytes: u64) -> SharedMemory {
        SharedMemory {
            lent: lent * MIB,
            kv_bytes: kv_bytes * MIB,
            is_kv_told: false,
            holder: StageHolder::Ranks(1),
            swaps: false,
        }
    }

    fn sharer(source: &ModelSource, memory: Option<u64>) -> Sharer<'_> {
        Sharer { source, draft: None, memory_bytes: memory.map(|mib| mib * MIB), is_kept: false }
    }

    #[test]
    fn each_gets_what_it_needs_and_an_even_part_of_the_rest() {
        let source = ModelSource::embedded().unwrap();
        let parts = divide(shared(1024, 64), &[sharer(&source, None), sharer(&source, None)]).unwrap();
        assert_eq!((parts[0], parts[0].kv_bytes, parts[0].memory_bytes), (parts[1], 32 * MIB, 512 * MIB));
        // Whoever was told has that; the other one has all else.
        let parts = divide(shared(1024, 64), &[sharer(&source, Some(400)), sharer(&source, None)]).unwrap();
        assert_eq!(parts.iter().map(|p| p.memory_bytes / MIB).collect::<Vec<_>>(), [400, 624]);
        assert_eq!(parts.iter().map(|p| p.kv_bytes / MIB).collect::<Vec<_>>(), [100, 32]);
    }

    #[test]
    fn what_does_not_fit_together_is_refused_with_its_sum_and_what_would_fit() {
        let (one, other) = (ModelSource::embedded().unwrap(), ModelSource::embedded().unwrap().called("other"));
        let need = Need::of(&one, one.card().shape.all_layers(), StageHolder::Ranks(1), 8 * MIB).unwrap().total();
        let too_little = SharedMemory { lent: 2 * need - 1, ..shared(0, 16) };
        let refused = divide(too_little, &[sharer(&one, None), sharer(&other, None)]).unwrap_err().to_string();
        for part in
            ["2 models need", "is lent", "gutenberg-tiny needs", "other needs", "gutenberg-tiny would fit", "--memory"]
        {
            assert!(refused.contains(part), "{refused} does not say: {part}");
        }
        let told =
            divide(shared(500, 16), &[sharer(&one, Some(400)), sharer(&other, Some(200))]).unwrap_err().to_string();
        assert!(told.contains("2 models need 600 MiB, where 500 MiB is lent"), "{told}");
        assert!(told.contains("other has 200 MiB of its own") && told.contains("gutenberg-tiny would fit"), "{told}");
        let least = divide(shared(500, 16), &[sharer(&one, Some(2)), sharer(&other, None)]).unwrap_err().to_string();
        assert!(least.contains("1 of 4 layers of gutenberg-tiny") && least.contains("[[models]]"), "{least}");
    }

    #[test]
    fn what_does_not_fit_together_may_be_loaded_by_turns_as_far_as_each_fits_beside_all_pages() {
        let source = ModelSource::embedded().unwrap();
        let need = Need::of(&source, source.card().shape.all_layers(), StageHolder::Ranks(1), 8 * MIB).unwrap().total();
        let (both, with) = ([sharer(&source, None); 2], |lent| SharedMemory { lent, swaps: true, ..shared(0, 16) });
        let parts = divide(with(2 * need - 1), &both).unwrap();
        assert_eq!(parts, [MemoryPart { memory_bytes: need, kv_bytes: 8 * MIB }; 2]);
        assert_eq!(divide(with(need + 8 * MIB), &both).unwrap(), parts, "one, and the pages of the other");
        let refused = divide(with(need + 8 * MIB - 1), &both).unwrap_err().to_string();
        assert!(refused.contains("2 models need"), "{refused}");
        let kept = [Sharer { is_kept: true, ..both[0] }, both[1]];
        let refused = divide(with(2 * need - 1), &kept).unwrap_err().to_string();
        assert!(refused.contains("leaves") && refused.contains("--keep"), "{refused}");
        let three =
            |models: [Sharer<'_>; 3]| divide(SharedMemory { kv_bytes: 24 * MIB, ..with(2 * need + 8 * MIB) }, &models);
        assert_eq!(three([kept[0], both[0], both[1]]).unwrap(), [parts[0]; 3], "one of the others beside it");
        assert!(matches!(three([kept[0], kept[0], both[1]]), Err(LendError::KeepsTooMuch { .. })));
        let drafted = [Sharer { draft: Some(&source), ..both[0] }, both[1]];
        assert!(matches!(divide(with(2 * need), &drafted), Err(LendError::SwapsWithDraft(_))));
        assert!(divide(with(4 * need), &both).unwrap()[0].memory_bytes > need, "there is room for all");
    }

    #[test]
    fn pages_for_all_are_at_least_a_few_for_each() {
        let source = ModelSource::embedded().unwrap();
        let many = vec![sharer(&source, None); 3];
        assert!(matches!(divide(shared(1024, 2), &many), Err(LendError::Memory { .. })));
    }
}
