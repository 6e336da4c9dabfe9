//! Whether a GPU, or several together, compute a model as the processor does: looked at before anybody counts on it.
//!
//! Kernels are the same on every GPU, drivers and GPUs are not; and an owner's GPU may be broken. So the model that is to be
//! served is tried itself, in the format of its weights: its first layer and its last, and one of each other kind between them
//! ([`ModelSource::one_of_each_kind`]). A layer is one of a plan's: with attention, and with those counted with it that keep a state.
//! Each gets a prompt in two chunks, of some rows and of many, and single tokens behind it; where no layer of the model has a state,
//! its KV leaves packed and as it is; and of the last the choice of a token is tried. That takes a fraction of a second, of large
//! mixtures of experts seconds, and the memory of the largest of these layers. Of a model that is still fetched the numbers are zeros:
//! then only that everything runs is looked at, and layers are compared once they are there.

use crate::{
    cuda::{EXPERTS_TOGETHER, GpuError, many_rows},
    engine::{Engine, EngineConfig, EngineError, Input, Output, RowToSample, Slice, StageKey, Threads},
    pages::PAGE_BYTES,
    source::ModelSource,
    weights::WeightsError,
};
use half::{bf16, f16};
use tsnode_protocol::{KvCodec, KvDtype, LayerRange, RequestId, Sampled, Sampling, TileHeader, Token};

/// Which of a model's parts are tried: counted up when they are more, since what passed with fewer is to be tried again.
pub const METHOD: u32 = 2;

/// Tokens of the prompt's first chunk; the second has as many as kernels of many rows are for ([`many_rows`]).
const PROMPT: u32 = 40;
/// Single tokens behind it; [`SEVERAL`] where layers are mixtures of experts.
const AFTER: u32 = 3;
/// Rows may be as far apart, in parts of their length: what quantised weights and rows of 16 bits leave of a layer, many times
/// over. What a kernel that is wrong leaves is no row at all.
const APART: f32 = 0.05;
/// The same of more rows: for quantised weights the processor rounds them to 8 bits, where kernels of many round them to 16.
const APART_MANY: f32 = 0.1;
/// The same of a mixture of experts: of two that score alike rounding chooses either, and a row gets what another makes of it.
/// That comes up in some rows; half of them have to be as near as any others.
const APART_ROUTED: f32 = 0.2;
/// Routed rows of which half say something.
const SEVERAL: u32 = 8;
/// The same of KV that went through four bits.
const APART_PACKED: f32 = 0.2;
/// Pages for keys and values of two sequences on the processor (bytes); committed as they are used.
const POOL: usize = 256 << 20;

const REQUEST: RequestId = RequestId([1; 16]);
const COPY: RequestId = RequestId([2; 16]);

/// Why a GPU is not used.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// The system gives no threads.
    #[error("no threads: {0}")]
    Threads(#[from] std::io::Error),
    /// The layers' weights.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A layer did not run on one of them.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// It ran, and gave something else.
    #[error("{what} on the GPU are {by:.2} of their length off the processor's, where {most} is the most")]
    Differs {
        /// Which rows.
        what: &'static str,
        /// Distance, as a part of their length.
        by: f32,
        /// As much is what rounding may do.
        most: f32,
    },
    /// It chose another token than the likeliest of its own.
    #[error("the GPU chose token {} where {} was the likeliest", .chosen.0, .likeliest.0)]
    Choice {
        /// Its choice.
        chosen: Token,
        /// The likeliest.
        likeliest: Token,
    },
}

/// Refuses a model that no GPU computes, or that so many do not compute together, without asking one.
///
/// # Errors
/// When its family has a part that no kernels are written for.
pub fn refuse_unwritten(source: &ModelSource, gpus: usize) -> Result<(), ProofError> {
    let experts = source.card().shape.experts.is_some().then_some(EXPERTS_TOGETHER);
    let together = experts.or(source.gpus_lack()).filter(|_| gpus > 1);
    match source.gpu_lacks().or(together) {
        Some(lacks) => Err(EngineError::from(GpuError::Unsupported(lacks.into())).into()),
        None => Ok(()),
    }
}

/// Memory for pages that trials take for what layers keep beside keys and values (bytes), of two sequences.
#[must_use]
pub fn state_bytes(source: &ModelSource) -> usize {
    2 * source.states().pages() * PAGE_BYTES
}

/// Computes some of a model on a GPU, and the same on the processor by so many threads.
///
/// # Errors
/// When the GPU does not compute the model, or not as the processor does.
pub fn compare(gpu: &mut Engine, source: &ModelSource, threads: usize) -> Result<(), ProofError> {
    compare_layers(gpu, source, threads, source.card().shape.all_layers())
}

/// The same with some layers, of which the first, the last, and one of each other kind are tried. Rows that enter layers behind the
/// model's first are made up.
///
/// # Errors
/// As [`compare`].
pub fn compare_layers(
    gpu: &mut Engine,
    source: &ModelSource,
    threads: usize,
    layers: LayerRange,
) -> Result<(), ProofError> {
    refuse_unwritten(source, gpu.gpus())?;
    let pool_bytes = POOL + state_bytes(source);
    let config = EngineConfig { threads: Threads::together(threads), pool_bytes, kv_dtype: gpu.kv_dtype() };
    let mut processor = Engine::new(config)?;
    let one = |layer| LayerRange { start: layer, end: layer + 1 };
    let mut entering = (layers.start > 0).then(|| made_up(source));
    for layer in source.one_of_each_kind(layers)? {
        entering = Some(LayerPair::load(&mut processor, gpu, source, one(layer))?.compare(source, entering)?);
    }
    Ok(())
}

/// Tokens of the prompt's chunks and single ones behind them, as the model's context allows.
#[derive(Clone, Copy)]
struct TrialLengths {
    chunks: [u32; 2],
    after: u32,
}

impl TrialLengths {
    fn of(source: &ModelSource) -> Self {
        let (context, experts) = (source.card().shape.context, source.card().shape.experts);
        let singles = if experts.is_some() { SEVERAL } else { AFTER };
        let after = singles.min(context.saturating_sub(1));
        let first = PROMPT.min(context - after);
        let many = (many_rows(experts) as u32).min(context - after - first);
        Self { chunks: [first, many], after }
    }

    fn tokens(self) -> u32 {
        self.chunks[0] + self.chunks[1] + self.after
    }

    /// Where each step begins, and how many tokens it has.
    fn steps(self) -> impl Iterator<Item = (u32, u32)> {
        let [first, many] = self.chunks;
        let prompt = first + many;
        let chunks = [(0, first), (first, many)].into_iter().filter(|(_, len)| *len > 0);
        chunks.chain((prompt..prompt + self.after).map(|start| (start, 1)))
    }
}

/// Rows as a layer may get them, the same every time: numbers between -1 and 1.
fn made_up(source: &ModelSource) -> Vec<f32> {
    let numbers = u64::from(TrialLengths::of(source).tokens()) * u64::from(source.card().shape.hidden);
    let number = |n: u64| {
        // Bits are mixed as SplitMix64 does it.
        let mixed = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..numbers).map(number).collect()
}

/// How far numbers are from those that are right, as a part of their length.
fn distance(right: &[f32], found: &[f32]) -> f32 {
    let squares = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| f64::from(x) * f64::from(x)).sum::<f64>();
    let size = squares(&mut right.iter().copied());
    let off = squares(&mut right.iter().zip(found).map(|(a, b)| a - b));
    (off / size.max(f64::MIN_POSITIVE)).sqrt() as f32
}

/// Refuses rows that are further apart than rounding leaves them.
fn within(what: &'static str, right: &[f32], found: &[f32], most: f32) -> Result<(), ProofError> {
    let by = distance(right, found);
    // What is no number is not within anything.
    if by <= most && found.len() == right.len() { Ok(()) } else { Err(ProofError::Differs { what, by, most }) }
}

/// How far as many rows of a step may be apart where they are not routed.
fn near(rows: u32) -> f32 {
    if rows > PROMPT { APART_MANY } else { APART }
}

/// Refuses rows of which more than half are further apart.
fn half_within(what: &'static str, mut apart: Vec<f32>, most: f32) -> Result<(), ProofError> {
    if apart.len() < SEVERAL as usize {
        return Ok(());
    }
    let middle = (apart.len() - 1) / 2;
    let (_, by, _) = apart.select_nth_unstable_by(middle, f32::total_cmp);
    if *by <= most { Ok(()) } else { Err(ProofError::Differs { what, by: *by, most }) }
}

/// A payload's elements.
fn numbers(bytes: &[u8], dtype: KvDtype) -> Vec<f32> {
    let pairs = || bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    match dtype {
        KvDtype::F16 => pairs().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        KvDtype::Bf16 => pairs().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        KvDtype::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    }
}

/// One layer on both.
struct LayerPair<'e> {
    processor: &'e mut Engine,
    gpu: &'e mut Engine,
    keys: (StageKey, StageKey),
    layers: LayerRange,
    last: bool,
    /// Whether some of what the layer stands for is a mixture of experts.
    routed: bool,
    /// Whether some of the model's keep a state: then no step is computed twice, and keys and values do not leave.
    has_states: bool,
}

impl Drop for LayerPair<'_> {
    fn drop(&mut self) {
        self.processor.unload(self.keys.0);
        self.gpu.unload(self.keys.1);
    }
}

impl<'e> LayerPair<'e> {
    fn load(
        processor: &'e mut Engine,
        gpu: &'e mut Engine,
        source: &ModelSource,
        layers: LayerRange,
    ) -> Result<Self, ProofError> {
        let on_processor = processor.load(source.outlined(layers, Threads::together(1))?)?;
        let on_gpu = gpu
            .load(source.outlined_for_gpus(layers, Threads { count: 1, ranks: gpu.gpus() })?)
            .inspect_err(|_| processor.unload(on_processor))?;
        let last = layers.end == source.card().shape.layers;
        let (routed, has_states) = (source.has_experts(layers.start), source.states().pages() > 0);
        Ok(Self { processor, gpu, keys: (on_processor, on_gpu), layers, last, routed, has_states })
    }

    /// Compares a prompt's rows and single tokens'; the processor's rows, which enter the next layer.
    fn compare(mut self, source: &ModelSource, entering: Option<Vec<f32>>) -> Result<Vec<f32>, ProofError> {
        let (shape, lengths) = (source.card().shape, TrialLengths::of(source));
        let width = shape.hidden as usize;
        let tokens: Vec<Token> = (0..lengths.tokens()).map(|i| Token((i * 37 + 11) % shape.vocab)).collect();
        self.processor.admit(self.keys.0, REQUEST, lengths.tokens())?;
        self.gpu.admit(self.keys.1, REQUEST, lengths.tokens())?;
        if self.has_states {
            self.gpu.admit(self.keys.1, COPY, lengths.tokens())?;
        }
        // How far rows are apart: those of single tokens together.
        let (mut leaving, mut singles) = (Vec::new(), Vec::new());
        for (start, len) in lengths.steps() {
            let range = start as usize..(start + len) as usize;
            let input = match &entering {
                Some(rows) => Input::Hidden(&rows[range.start * width..range.end * width]),
                None => Input::Tokens(&tokens[range]),
            };
            let (right, apart) = self.step(Slice { request: REQUEST, start, len }, input)?;
            leaving.extend(right);
            match len {
                _ if !self.routed => {}
                1 => singles.extend(apart),
                _ => half_within(self.what(), apart, near(len))?,
            }
        }
        half_within(self.what(), singles, near(1))?;
        if !self.has_states {
            self.compare_kv(lengths.chunks[0], source)?;
        }
        Ok(leaving)
    }

    /// What leaves the layer.
    fn what(&self) -> &'static str {
        if self.last { "logits" } else { "a layer's rows" }
    }

    /// One step on both; the processor's rows, or its logits on the last layer, and how far each of the GPU's is from them.
    fn step(&mut self, slice: Slice, input: Input<'_>) -> Result<(Vec<f32>, Vec<f32>), ProofError> {
        let (batch, rows) = ([slice], slice.len as usize);
        let wanted: Vec<usize> = (rows.saturating_sub(if self.routed { SEVERAL as usize } else { 1 })..rows).collect();
        let output = if self.last { Output::Logits { rows: &wanted } } else { Output::Hidden };
        let right = self.processor.forward(self.keys.0, &batch, input, output)?.to_vec();
        let found = self.gpu.forward(self.keys.1, &batch, input, output)?.to_vec();
        within(self.what(), &right, &found, if self.routed { APART_ROUTED } else { near(slice.len) })?;
        let width = (right.len() / if self.last { wanted.len() } else { rows }).max(1);
        let each = right.chunks_exact(width).zip(found.chunks_exact(width));
        let apart = each.map(|(right, found)| distance(right, found)).collect();
        if self.last {
            self.choose(slice, input, &found[found.len() - width..])?;
        }
        Ok((right, apart))
    }

    /// The same step once more, its token chosen there; with a state by a sequence of its own.
    fn choose(&mut self, slice: Slice, input: Input<'_>, logits: &[f32]) -> Result<(), ProofError> {
        let slice = Slice { request: if self.has_states { COPY } else { slice.request }, ..slice };
        if !self.has_states {
            self.gpu.set_len(self.keys.1, slice.request, slice.start)?;
        }
        let greedy = Sampling::greedy();
        let picks = [RowToSample { row: slice.len as usize - 1, sampling: &greedy, position: slice.start + slice.len }];
        let chosen = self.gpu.choose_on_gpu(self.keys.1, &[slice], input, &picks, None)?;
        let Some([Sampled { token: chosen, .. }]) = chosen.as_deref() else { return Ok(()) };
        let (chosen, likeliest) = (*chosen, crate::sampling::greedy(logits));
        if chosen == likeliest { Ok(()) } else { Err(ProofError::Choice { chosen, likeliest }) }
    }

    /// KV as it is, and through four bits.
    fn compare_kv(&mut self, tokens: u32, source: &ModelSource) -> Result<(), ProofError> {
        let heads = source.card().shape.kv_heads;
        let layer = self.layers.start;
        let tile = TileHeader { layer, head_start: 0, head_end: heads, token_start: 0, token_end: tokens, bytes: 0 };
        let (mut right, mut found, mut packed) = (Vec::new(), Vec::new(), Vec::new());
        self.processor.export(self.keys.0, REQUEST, &tile, KvCodec::Raw, &mut right)?;
        self.gpu.export(self.keys.1, REQUEST, &tile, KvCodec::Raw, &mut found)?;
        let dtype = self.processor.kv_dtype();
        let numbers = |bytes: &[u8]| numbers(bytes, dtype);
        let right = numbers(&right);
        within("keys and values", &right, &numbers(&found), APART)?;
        self.gpu.export(self.keys.1, REQUEST, &tile, KvCodec::Int4, &mut packed)?;
        self.gpu.admit(self.keys.1, COPY, tokens)?;
        self.gpu.import(self.keys.1, COPY, &tile, KvCodec::Int4, &packed)?;
        self.gpu.set_len(self.keys.1, COPY, tokens)?;
        self.gpu.export(self.keys.1, COPY, &tile, KvCodec::Raw, &mut found)?;
        within("packed keys and values", &right, &numbers(&found), APART_PACKED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_not_what_the_processor_computes() {
        let right = [1.0, -2.0, 0.5];
        assert!(within("rows", &right, &[1.01, -2.0, 0.5], APART).is_ok());
        for wrong in [&[1.0, -2.0, f32::NAN][..], &[1.0, -2.0, 1.5], &[0.0; 3], &right[..2]] {
            let said = within("rows", &right, wrong, APART).unwrap_err();
            assert!(said.to_string().starts_with("rows on the GPU"), "{said}");
        }
        assert!(within("rows", &[0.0; 3], &[1e-3, 0.0, 0.0], APART).is_err());
    }

    #[test]
    fn half_of_the_rows_that_are_routed_have_to_be_as_near_as_any_others() {
        let apart = |wrong: usize| (0..16).map(|row| if row < wrong { 0.1 } else { 0.001 }).collect();
        assert!(half_within("rows", apart(8), near(16)).is_ok());
        let said = half_within("rows", apart(9), near(16)).unwrap_err().to_string();
        assert_eq!(said, "rows on the GPU are 0.10 of their length off the processor's, where 0.05 is the most");
        assert!(half_within("rows", vec![0.1; 7], near(1)).is_ok(), "they are too few");
    }

    #[test]
    fn steps_are_those_of_some_rows_of_many_and_of_one() {
        let source = ModelSource::embedded().unwrap();
        let steps: Vec<_> = TrialLengths::of(&source).steps().collect();
        assert_eq!(steps, [(0, 40), (40, 65), (105, 1), (106, 1), (107, 1)]);
    }

    #[test]
    fn rows_that_are_made_up_are_as_large_as_others_and_differ() {
        let source = ModelSource::embedded().unwrap();
        let rows = made_up(&source);
        let tokens = PROMPT as usize + many_rows(None) + AFTER as usize;
        assert_eq!(rows.len(), tokens * source.card().shape.hidden as usize);
        assert!(rows.iter().all(|x| (-1.0..1.0).contains(x)));
        let mean = rows.iter().sum::<f32>() / rows.len() as f32;
        let square = rows.iter().map(|x| x * x).sum::<f32>() / rows.len() as f32;
        assert!(mean.abs() < 0.05 && (square - 1.0 / 3.0).abs() < 0.05, "{mean} {square}");
    }
}
