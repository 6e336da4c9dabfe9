//! Several GPUs that hold a stage together against one that has all of it: the same bits, whatever is asked for. Only a
//! library that multiplies many rows cuts a sum by what a GPU has: where there is one, logits are within 0.4 % of their
//! length.

use super::{
    attention::{POOL, Shape, apart, scenario},
    models::{OTHER, REQUEST, Taken, greedy, prompt, source},
    several,
};
use crate::{
    cuda::{Gpu, Libraries},
    engine::{Engine, EngineError, Input, Output, Prefix, RowToSample, Slice, StageKey, Tap, Threads},
    source::ModelSource,
    speed,
};
use tsnode_protocol::{KvCodec, KvDtype, LayerRange, RequestId, Sampling, TileHeader, Token};

/// An engine on so many GPUs; none where there is nothing that kernels run on.
fn engine(count: usize, dtype: KvDtype) -> Option<Engine> {
    let machines = several(count);
    let gpus: Vec<Gpu> = machines.into_iter().map(Gpu::on).collect();
    (gpus.len() == count).then(|| Engine::on_gpus(gpus, POOL, dtype).unwrap())
}

fn load(engine: &mut Engine, source: &ModelSource, layers: LayerRange, ranks: usize) -> StageKey {
    let threads = Threads { count: 1, ranks };
    engine.load(source.load_stage_for_gpus(layers, threads).unwrap()).unwrap()
}

/// The whole model on so many GPUs.
pub(super) fn on(count: usize, source: &ModelSource, dtype: KvDtype) -> Option<(Engine, StageKey)> {
    let mut engine = engine(count, dtype)?;
    let stage = load(&mut engine, source, source.card().shape.all_layers(), count);
    Some((engine, stage))
}

/// Whether a GPU's logits are what they should be.
fn alike(found: &[f32], wanted: &[f32]) -> bool {
    bits(found) == bits(wanted) || (Libraries::find().blas.found.is_some() && apart(found, wanted) < 0.004)
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

pub(super) fn written(shape: &Shape) -> (tempfile::TempDir, ModelSource) {
    let folder = tempfile::tempdir().unwrap();
    shape.write(folder.path());
    let source = ModelSource::open(folder.path()).unwrap();
    (folder, source)
}

#[test]
fn reference_models_on_two_gpus_give_the_bits_and_tokens_of_one() {
    for name in
        ["llama-gqa", "qwen2-bias", "qwen3-norms", "gemma2-caps", "phi3-longrope", "ministral3-yarn", "gemma4-wide"]
    {
        let source = source(name);
        // One row, few, and many, with steps of single tokens behind each.
        for (len, dtype) in [(1, KvDtype::F16), (5, KvDtype::F32), (40, KvDtype::F16)] {
            let Some((mut one, stage)) = on(1, &source, dtype) else { return };
            let (logits, tokens) = greedy(&mut one, stage, len, 6);
            let (mut two, stage) = on(2, &source, dtype).unwrap();
            let (found, chosen) = greedy(&mut two, stage, len, 6);
            assert!(alike(&found, &logits), "{name}, {len} {dtype:?}");
            assert_eq!(chosen, tokens, "{name}, {len} {dtype:?}");
        }
    }
}

/// Models whose heads, outputs and tokens cannot be shared out alike, and whose sums are cut.
pub(super) fn uneven() -> [Shape; 3] {
    let base = Shape { family: "llama", hidden: 72, heads: 9, kv_heads: 3, dim: 8, mlp: 520, vocab: 321, more: "" };
    let gemma = r#","query_pre_attn_scalar":24,"sliding_window":24,"attn_logit_softcapping":5.0,"final_logit_softcapping":9.0,"hidden_activation":"gelu_pytorch_tanh""#;
    [
        Shape { hidden: 48, heads: 3, dim: 16, mlp: 2064, ..base },
        Shape { family: "qwen2", heads: 10, kv_heads: 5, dim: 24, vocab: 322, ..base },
        Shape { family: "gemma2", heads: 6, kv_heads: 3, dim: 72, mlp: 104, more: gemma, ..base },
    ]
}

#[test]
fn parts_of_all_sizes_give_the_bits_of_the_whole() {
    for shape in uneven() {
        let (_folder, source) = written(&shape);
        let Some((mut one, stage)) = on(1, &source, KvDtype::F16) else { return };
        let wanted = scenario(&mut one, stage, shape.vocab);
        for count in [2, 3] {
            let (mut gpus, stage) = on(count, &source, KvDtype::F16).unwrap();
            let free = gpus.pages();
            let found = scenario(&mut gpus, stage, shape.vocab);
            for (row, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                assert!(alike(found, wanted), "{} on {count}, row {row}", shape.family);
            }
            for request in [1, 2] {
                gpus.release(stage, RequestId([request; 16]));
            }
            assert_eq!(gpus.pages(), free);
        }
    }
}

/// A long sequence and a short one step together: attention of one is cut, and how follows from all heads.
fn long_and_short(engine: &mut Engine, stage: StageKey) -> Vec<f32> {
    for (request, len) in [(REQUEST, 300), (OTHER, 3)] {
        engine.admit(stage, request, 310).unwrap();
        let batch = [Slice { request, start: 0, len }];
        engine.forward(stage, &batch, Input::Tokens(&prompt(len as usize)), Output::Logits { rows: &[] }).unwrap();
    }
    let batch = [(REQUEST, 300), (OTHER, 3)].map(|(request, start)| Slice { request, start, len: 1 });
    let tokens = [Token(3), Token(4)];
    engine.forward(stage, &batch, Input::Tokens(&tokens), Output::Logits { rows: &[0, 1] }).unwrap().to_vec()
}

#[test]
fn long_sequences_give_the_bits_of_one_gpu() {
    let [_, shape, _] = uneven();
    let (_folder, source) = written(&shape);
    let Some((mut one, stage)) = on(1, &source, KvDtype::F16) else { return };
    let wanted = long_and_short(&mut one, stage);
    let (mut gpus, stage) = on(3, &source, KvDtype::F16).unwrap();
    assert!(alike(&long_and_short(&mut gpus, stage), &wanted));
}

#[test]
fn tokens_are_drawn_on_the_first_gpu_as_on_one() {
    let source = source("qwen3-norms");
    let sampling = |seed| Sampling { temperature: 1.3, top_k: 40, top_p: 0.95, seed, ..Sampling::greedy() };
    let drawn = |count| {
        let (mut engine, stage) = on(count, &source, KvDtype::F16)?;
        engine.admit(stage, REQUEST, 20).unwrap();
        let batch = [Slice { request: REQUEST, start: 0, len: 8 }];
        let ways: Vec<Sampling> = (0..8).map(sampling).collect();
        let picks: Vec<RowToSample<'_>> = ways
            .iter()
            .enumerate()
            .map(|(row, sampling)| RowToSample { row, sampling, position: row as u32 + 1 })
            .collect();
        Some(engine.forward_choosing(stage, &batch, Input::Tokens(&prompt(8)), &picks).unwrap())
    };
    assert_eq!(drawn(2), drawn(1));
}

/// A prompt through a stage of the first layers and one of the others.
fn through_two_stages(engine: &mut Engine, source: &ModelSource, count: usize) -> [Vec<f32>; 2] {
    let layers = source.card().shape.layers;
    let first = load(engine, source, LayerRange { start: 0, end: 1 }, count);
    let second = load(engine, source, LayerRange { start: 1, end: layers }, count);
    let (mut between, mut out) = (Vec::new(), Vec::new());
    for stage in [first, second] {
        engine.admit(stage, REQUEST, 30).unwrap();
    }
    for (start, len) in [(0, 20u32), (20, 1), (21, 3)] {
        let batch = [Slice { request: REQUEST, start, len }];
        let tokens = prompt(len as usize);
        let rows = engine.forward(first, &batch, Input::Tokens(&tokens), Output::Hidden).unwrap().to_vec();
        let wanted = [len as usize - 1];
        let output = Output::Logits { rows: &wanted };
        out.extend_from_slice(engine.forward(second, &batch, Input::Hidden(&rows), output).unwrap());
        between.extend(rows);
    }
    [between, out]
}

#[test]
fn rows_come_from_a_stage_before_and_leave_for_one_behind() {
    let source = source("gemma2-caps");
    let Some(mut one) = engine(1, KvDtype::F16) else { return };
    let wanted = through_two_stages(&mut one, &source, 1);
    let mut two = engine(2, KvDtype::F16).unwrap();
    let found = through_two_stages(&mut two, &source, 2);
    assert!(found.iter().zip(&wanted).all(|(found, wanted)| alike(found, wanted)));
}

fn next(engine: &mut Engine, stage: StageKey, request: RequestId, start: u32) -> Vec<u32> {
    let batch = [Slice { request, start, len: 1 }];
    bits(engine.forward(stage, &batch, Input::Tokens(&[Token(5)]), Output::Logits { rows: &[0] }).unwrap())
}

#[test]
fn kv_goes_from_several_gpus_to_one_and_back() {
    let [shape, ..] = uneven();
    let (_folder, source) = written(&shape);
    let range = source.card().shape.all_layers();
    let Some((mut one, stage)) = on(1, &source, KvDtype::F16) else { return };
    let (mut two, there) = on(2, &source, KvDtype::F16).unwrap();
    for (engine, stage) in [(&mut one, stage), (&mut two, there)] {
        engine.admit(stage, REQUEST, 80).unwrap();
        engine.admit(stage, OTHER, 80).unwrap();
        // Few rows at a time, which no library multiplies.
        for start in (0..70).step_by(7) {
            let batch = [Slice { request: REQUEST, start, len: 7 }];
            engine.forward(stage, &batch, Input::Tokens(&prompt(7)), Output::Logits { rows: &[] }).unwrap();
        }
    }
    for codec in [KvCodec::Raw, KvCodec::Int8, KvCodec::Int4] {
        for layer in range.iter() {
            // All heads, those of one GPU, and those over the border.
            for (head_start, head_end) in [(0, 1), (1, 3), (0, 3)] {
                let tile = TileHeader { layer, head_start, head_end, token_start: 0, token_end: 70, bytes: 0 };
                let (mut wanted, mut found) = (Vec::new(), vec![1; 3]);
                one.export(stage, REQUEST, &tile, codec, &mut wanted).unwrap();
                two.export(there, REQUEST, &tile, codec, &mut found).unwrap();
                assert!(found == wanted, "{codec:?}, layer {layer}, {head_start}..{head_end}");
                one.import(stage, OTHER, &tile, codec, &found).unwrap();
                two.import(there, OTHER, &tile, codec, &wanted).unwrap();
            }
        }
        let (layers, heads) = one.extent(stage).unwrap();
        let tile =
            TileHeader { layer: layers.start, head_start: 0, head_end: heads, token_start: 0, token_end: 70, bytes: 0 };
        let (mut wanted, mut found) = (Vec::new(), Vec::new());
        one.export_layers(stage, REQUEST, &tile, layers.len(), codec, &mut wanted).unwrap();
        two.export_layers(there, REQUEST, &tile, layers.len(), codec, &mut found).unwrap();
        assert!(found == wanted, "{codec:?}, all layers");
        for (engine, stage) in [(&mut one, stage), (&mut two, there)] {
            engine.set_len(stage, OTHER, 70).unwrap();
            engine.fake_quantise(stage, REQUEST, 0..70, codec).unwrap();
        }
        let mut steps = Vec::new();
        for (engine, stage) in [(&mut one, stage), (&mut two, there)] {
            for request in [REQUEST, OTHER] {
                steps.push(next(engine, stage, request, 70));
                engine.truncate(stage, request, 70).unwrap();
            }
        }
        assert!(steps.iter().all(|step| *step == steps[0]), "{codec:?}");
    }
}

#[test]
fn kv_taken_layer_by_layer_from_several_gpus_is_ones() {
    let source = source("llama-gqa");
    let taken = |count| {
        let (mut engine, stage) = on(count, &source, KvDtype::F16)?;
        engine.admit(stage, REQUEST, 70).unwrap();
        let mut taken = Taken(Vec::new());
        for start in (0..64).step_by(8) {
            let batch = [Slice { request: REQUEST, start, len: 8 }];
            let (tokens, output) = (prompt(8), Output::Logits { rows: &[7] });
            // What the last step is computing leaves with what was there.
            let tap = (start == 56).then_some(&mut taken as &mut dyn Tap);
            engine.forward_tapped(stage, &batch, Input::Tokens(&tokens), output, tap).unwrap();
        }
        assert_eq!(taken.0.len(), source.card().shape.layers as usize);
        Some(taken.0)
    };
    assert!(taken(2) == taken(1));
}

#[test]
fn packing_on_several_gpus_is_measured() {
    let source = source("llama-gqa");
    let measured = |count| {
        let (mut engine, stage) = on(count, &source, KvDtype::F16)?;
        Some(speed::measure_packing(&mut engine, stage, 70, KvCodec::Int4).unwrap())
    };
    let Some((one, two)) = measured(1).zip(measured(2)) else { return };
    assert_eq!(one.bytes.to_bits(), two.bytes.to_bits());
    assert!(two.pack > 0.0 && two.unpack > 0.0);
}

#[test]
fn a_beginning_shared_on_several_gpus_is_as_good_as_ones_own() {
    let source = source("llama-gqa");
    let Some((mut engine, stage)) = on(2, &source, KvDtype::F16) else { return };
    let free = engine.pages();
    let step = |engine: &mut Engine, request, start: usize, tokens: &[Token]| {
        let batch = [Slice { request, start: start as u32, len: tokens.len() as u32 }];
        let output = Output::Logits { rows: &[tokens.len() - 1] };
        bits(engine.forward(stage, &batch, Input::Tokens(tokens), output).unwrap())
    };
    let tokens = prompt(12);
    engine.admit(stage, REQUEST, 20).unwrap();
    step(&mut engine, REQUEST, 0, &tokens[..8]);
    engine.admit_after(stage, OTHER, 20, Prefix::Running(REQUEST), 7).unwrap();
    // What the first goes on to write lies in the pages that the second began with.
    step(&mut engine, REQUEST, 8, &tokens[8..10]);
    engine.grow(stage, OTHER, 40).unwrap();
    let shared = step(&mut engine, OTHER, 7, &tokens[7..9]);
    engine.release(stage, REQUEST);
    engine.release(stage, OTHER);
    engine.admit(stage, REQUEST, 20).unwrap();
    step(&mut engine, REQUEST, 0, &tokens[..7]);
    assert!(shared == step(&mut engine, REQUEST, 7, &tokens[7..9]));
    engine.release(stage, REQUEST);
    assert_eq!(engine.pages(), free);
}

#[test]
fn stages_cut_for_another_number_are_refused() {
    let source = source("llama-gqa");
    let Some(mut engine) = engine(2, KvDtype::F16) else { return };
    let range = source.card().shape.all_layers();
    let refusal = engine.load(source.load_stage_for_gpu(range, 1).unwrap()).unwrap_err();
    assert_eq!(refusal, EngineError::Ranks { found: 1, expected: 2 });
    // Two heads of keys and values are not for three GPUs.
    assert!(source.load_stage_for_gpus(range, Threads { count: 1, ranks: 3 }).is_err());
    assert!(matches!(Engine::on_gpus(Vec::new(), POOL, KvDtype::F16), Err(EngineError::Gpu(_))));
    let model = source.load_stage_for_gpus(range, Threads { count: 1, ranks: 2 }).unwrap();
    let weights = model.rank_bytes();
    // The first has the table of tokens beside its half.
    assert!(weights.len() == 2 && weights[0] > weights[1], "{weights:?}");
    let gpus: Vec<Gpu> = several(2).into_iter().map(Gpu::on).collect();
    let least = gpus[0].pool_bytes(weights[0]).unwrap();
    assert_eq!(Gpu::pool_bytes_of_all(&gpus, &weights).unwrap(), 2 * least);
}
