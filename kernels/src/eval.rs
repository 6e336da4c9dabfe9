//! What int4 on the wire costs: perplexity with KV that went through the codec, against KV that did not.

mod quality;
mod reference;

pub use quality::{LayerError, PrefixChange, PrefixQuality, SideError, Subject, rouge_l};
pub use reference::{as_reference, reference_bits};

use crate::{
    engine::{Engine, EngineError, Input, Output, Slice, StageKey},
    sampling::log_sum_exp,
};
use tsnode_protocol::{KvCodec, ModelShape, RequestId, TileHeader, Token};

/// Held-out text of the embedded model (public domain).
pub const TEXT: &str = include_str!("../models/gutenberg-tiny/eval.txt");
/// Prompts for the embedded model, one a line.
pub const PROMPTS: &str = include_str!("../models/gutenberg-tiny/prompts.txt");

/// How a text is cut for measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Put in front of every window.
    pub bos: Token,
    /// Tokens of a window, the first one included.
    pub window: usize,
    /// Tokens of a window whose KV is handed over; those after are scored.
    pub prompt: usize,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Perplexity {
    /// exp of the mean negative log-likelihood (natural log).
    pub perplexity: f64,
    /// Tokens scored.
    pub tokens: usize,
    /// Payload of the KV that was handed over (bytes).
    pub kv_bytes: u64,
}

/// Perplexity of `text`, each window's first `prompt` tokens computed as one sequence, handed to a second one through
/// `codec` (or not at all), and the rest scored there.
///
/// # Errors
/// When the engine has too few pages, or the window is longer than the model's context.
pub fn perplexity(
    engine: &mut Engine,
    stage: StageKey,
    shape: &ModelShape,
    text: &[Token],
    cut: Windows,
    codec: Option<KvCodec>,
) -> Result<Perplexity, EngineError> {
    let (mut loss, mut tokens, mut kv_bytes) = (0.0, 0, 0);
    for piece in text.chunks(cut.window.saturating_sub(1).max(1)) {
        let window: Vec<Token> = std::iter::once(cut.bos).chain(piece.iter().copied()).collect();
        if window.len() <= cut.prompt.max(1) {
            continue;
        }
        let (nll, bytes) = score(engine, stage, shape, &window, cut.prompt, codec)?;
        loss += nll;
        kv_bytes += bytes;
        tokens += window.len() - cut.prompt.max(1);
    }
    Ok(Perplexity { perplexity: (loss / tokens.max(1) as f64).exp(), tokens, kv_bytes })
}

/// Negative log-likelihood of `window[prompt..]`, and the bytes handed over.
fn score(
    engine: &mut Engine,
    stage: StageKey,
    shape: &ModelShape,
    window: &[Token],
    prompt: usize,
    codec: Option<KvCodec>,
) -> Result<(f64, u64), EngineError> {
    let [first, second] = [1, 2].map(|n| RequestId([n; 16]));
    let room = window.len() as u32;
    engine.admit(stage, first, room)?;
    let mut reader = first;
    let mut bytes = 0;
    let mut start = 0;
    if prompt > 0 {
        // The last prompt token stays for the scoring pass: its logits predict the first scored one.
        start = prompt - 1;
        run(engine, stage, first, &window[..start], 0, &[])?;
    }
    if let Some(codec) = codec.filter(|_| start > 0) {
        engine.admit(stage, second, room)?;
        bytes = kv_transfer(engine, stage, shape, (first, second), start as u32, codec)?;
        reader = second;
    }
    let rows: Vec<usize> = (0..window.len() - 1 - start).collect();
    let logits = run(engine, stage, reader, &window[start..window.len() - 1], start, &rows)?;
    let mut loss = 0.0;
    for (logits, target) in logits.chunks_exact(shape.vocab as usize).zip(&window[start + 1..]) {
        loss += f64::from(log_sum_exp(logits) - logits[target.0 as usize]);
    }
    engine.release(stage, first);
    engine.release(stage, second);
    Ok((loss, bytes))
}

fn run<'e>(
    engine: &'e mut Engine,
    stage: StageKey,
    request: RequestId,
    tokens: &[Token],
    start: usize,
    rows: &[usize],
) -> Result<&'e [f32], EngineError> {
    if tokens.is_empty() {
        return Ok(&[]);
    }
    let slice = Slice { request, start: start as u32, len: tokens.len() as u32 };
    let out = engine.forward(stage, &[slice], Input::Tokens(tokens), Output::Logits { rows })?;
    Ok(out)
}

fn kv_transfer(
    engine: &mut Engine,
    stage: StageKey,
    shape: &ModelShape,
    (from, to): (RequestId, RequestId),
    tokens: u32,
    codec: KvCodec,
) -> Result<u64, EngineError> {
    let (mut payload, mut bytes) = (Vec::new(), 0);
    for layer in 0..shape.layers {
        let mut tile =
            TileHeader { layer, head_start: 0, head_end: shape.kv_heads, token_start: 0, token_end: tokens, bytes: 0 };
        engine.export(stage, from, &tile, codec, &mut payload)?;
        tile.bytes = payload.len() as u32;
        bytes += payload.len() as u64;
        engine.import(stage, to, &tile, codec, &payload)?;
    }
    engine.set_len(stage, to, tokens)?;
    Ok(bytes)
}
