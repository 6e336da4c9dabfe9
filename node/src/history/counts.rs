//! Tokens computed for others and by others, by day and model.
//!
//! A peer that holds some of a model's layers computes that part of each token. So what is counted is tokens times layers, which are
//! whole numbers and add up over all peers of a group to the tokens themselves.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;
use tsnode_coordinator::gateway::Trace;
use tsnode_protocol::{ModelId, PeerId, Stage};

/// Days kept: those on which anything was computed, so that a clock that was wrong once costs one of them.
pub const DAYS: usize = 366;
/// Days times models times two that are kept at most; the oldest go first.
const ENTRIES: usize = 8192;
/// Characters of a model's name that are kept.
const NAME: usize = 100;

/// A day of UTC, by its number from 1970-01-01.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(pub u32);

impl Day {
    /// The day of a time since 1970.
    #[must_use]
    pub fn at(since_1970: Duration) -> Self {
        Self(u32::try_from(since_1970.as_secs() / 86_400).unwrap_or(u32::MAX))
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let second = i64::from(self.0).saturating_mul(86_400);
        match jiff::Timestamp::from_second(second) {
            Ok(at) => write!(f, "{}", at.strftime("%Y-%m-%d")),
            Err(_) => write!(f, "day {}", self.0),
        }
    }
}

/// Work on one model, each token as often as it passed a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenWork {
    /// Of prompts.
    pub prompt: u64,
    /// Of answers.
    pub answer: u64,
    /// Layers of the model: through how many a token passes.
    pub layers: u32,
}

impl TokenWork {
    /// So many tokens of a prompt and of an answer through these of a model's layers.
    #[must_use]
    pub fn of(prompt: u32, answer: u32, own: u32, layers: u32) -> Self {
        let times = |tokens: u32| u64::from(tokens) * u64::from(own);
        Self { prompt: times(prompt), answer: times(answer), layers }
    }

    fn add(&mut self, more: Self) {
        self.prompt = self.prompt.saturating_add(more.prompt);
        self.answer = self.answer.saturating_add(more.answer);
        self.layers = self.layers.max(more.layers);
    }

    fn is_nothing(self) -> bool {
        self.prompt == 0 && self.answer == 0
    }

    fn tokens(self) -> Tokens {
        let layers = u64::from(self.layers.max(1));
        let tokens = |work: u64| work.saturating_add(layers / 2) / layers;
        Tokens { prompt_tokens: tokens(self.prompt), completion_tokens: tokens(self.answer) }
    }
}

/// Work in tokens: a stage's part of them, rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Prompt tokens computed.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub completion_tokens: u64,
}

impl Tokens {
    fn add(&mut self, more: Self) {
        self.prompt_tokens = self.prompt_tokens.saturating_add(more.prompt_tokens);
        self.completion_tokens = self.completion_tokens.saturating_add(more.completion_tokens);
    }
}

/// The sum of what others got, and of what others gave.
#[must_use]
pub fn total(lines: &[DayLine]) -> Total {
    let mut total = Total::default();
    for line in lines {
        total.for_others.add(line.for_others);
        total.by_others.add(line.by_others);
    }
    total
}

/// A sum over days and models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Total {
    /// Computed here for others.
    pub for_others: Tokens,
    /// Computed by others for this peer's clients.
    pub by_others: Tokens,
}

/// A day's work on a model, as it is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DayLine {
    /// The day (UTC).
    pub day: String,
    /// What the model was called.
    pub model: String,
    /// What it is.
    pub model_id: ModelId,
    /// Computed here for requests of other peers' gateways.
    pub for_others: Tokens,
    /// Computed by other peers for requests of this one's gateway.
    pub by_others: Tokens,
}

/// For whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WorkSide {
    ForOthers,
    ByOthers,
}

/// What is counted by itself. Sorted by day first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CountKey {
    pub day: Day,
    pub model: ModelId,
    pub side: WorkSide,
}

/// What is counted, and what the model was called then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CountEntry {
    #[serde(flatten)]
    pub work: TokenWork,
    pub name: String,
}

/// All that is counted.
#[derive(Debug, Default)]
pub struct Counts {
    entries: BTreeMap<CountKey, CountEntry>,
    /// What is not on the disk as it is here.
    changed: BTreeSet<CountKey>,
}

impl Counts {
    /// Computed here for another peer's gateway.
    pub fn for_others(&mut self, day: Day, model: (ModelId, &str), work: TokenWork) {
        self.add(day, WorkSide::ForOthers, model, work);
    }

    /// Computed by others for this peer's.
    pub fn by_others(&mut self, day: Day, model: (ModelId, &str), work: TokenWork) {
        self.add(day, WorkSide::ByOthers, model, work);
    }

    fn add(&mut self, day: Day, side: WorkSide, (model, name): (ModelId, &str), work: TokenWork) {
        if work.is_nothing() {
            return;
        }
        let key = CountKey { day, model, side };
        let is_new = !self.entries.contains_key(&key);
        let entry = self.entries.entry(key).or_default();
        entry.work.add(work);
        entry.name = cut(name);
        self.changed.insert(key);
        if is_new {
            self.forget();
        }
    }

    /// Adds what earlier runs have counted.
    pub(super) fn restore(&mut self, earlier: impl IntoIterator<Item = (CountKey, CountEntry)>) {
        for (key, CountEntry { work, name }) in earlier {
            let entry = self.entries.entry(key).or_default();
            entry.work.add(work);
            if entry.name.is_empty() {
                entry.name = cut(&name);
            }
        }
        self.forget();
    }

    /// Lets the oldest days go above what is kept.
    fn forget(&mut self) {
        let mut days: Vec<Day> = self.entries.keys().map(|key| key.day).collect();
        days.dedup();
        let from = days.len().checked_sub(DAYS).map_or(Day(0), |first| days[first]);
        let mut left = self.entries.len();
        while let Some(oldest) = self.entries.first_entry()
            && (oldest.key().day < from || left > ENTRIES)
        {
            left -= 1;
            self.changed.insert(oldest.remove_entry().0);
        }
    }

    /// Whether all of it is on the disk.
    pub(super) fn is_kept(&self) -> bool {
        self.changed.is_empty()
    }

    /// What has changed since this was asked last; none of what is no more.
    pub(super) fn take_changes(&mut self) -> Vec<(CountKey, Option<CountEntry>)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|key| (key, self.entries.get(&key).cloned())).collect()
    }

    /// The last days on which anything was computed, newest first; of each its models by name.
    #[must_use]
    pub fn lines(&self, days: usize) -> Vec<DayLine> {
        let mut lines: BTreeMap<(Day, ModelId), DayLine> = BTreeMap::new();
        for (key, CountEntry { work, name }) in &self.entries {
            let line = lines.entry((key.day, key.model)).or_insert_with(|| DayLine {
                day: key.day.to_string(),
                model: name.clone(),
                model_id: key.model,
                for_others: Tokens::default(),
                by_others: Tokens::default(),
            });
            match key.side {
                WorkSide::ForOthers => line.for_others = work.tokens(),
                WorkSide::ByOthers => line.by_others = work.tokens(),
            }
        }
        let which: BTreeSet<Day> = lines.keys().map(|(day, _)| *day).collect();
        let Some(first) = which.iter().rev().take(days).next_back() else { return Vec::new() };
        let mut lines: Vec<(Day, DayLine)> =
            lines.into_iter().filter(|((day, _), _)| day >= first).map(|((day, _), line)| (day, line)).collect();
        lines.sort_by(|(a, one), (b, other)| b.cmp(a).then_with(|| one.model.cmp(&other.model)));
        lines.into_iter().map(|(_, line)| line).collect()
    }
}

/// Which part of a request's work others than `me` have done, as its trace says: the group that decoded it at its end did all of the
/// answer, but for the first token where a prefill group chose it.
#[must_use]
pub fn of_trace(trace: &Trace, me: PeerId) -> TokenWork {
    let computed = trace.prompt_tokens.saturating_sub(trace.cached_tokens);
    let is_one = trace.prefill_stages == trace.decode_stages;
    let (first, chosen) = match trace.first_part {
        _ if is_one => (0, 0),
        Some(part) => (part.saturating_sub(trace.cached_tokens).min(computed), 0),
        None => (computed, trace.new_tokens.min(1)),
    };
    let layers: u32 = trace.decode_stages.iter().map(|stage| stage.layers.len()).sum();
    let others = |stages: &[Stage]| -> u32 { stages.iter().filter(|s| s.peer != me).map(|s| s.layers.len()).sum() };
    let mut work = TokenWork::of(computed - first, trace.new_tokens - chosen, others(&trace.decode_stages), layers);
    work.add(TokenWork::of(first, chosen, others(&trace.prefill_stages), layers));
    work
}

/// As much of a name as is kept.
fn cut(name: &str) -> String {
    name.chars().take(NAME).collect()
}
