//! Reference models on a GPU: logits and greedy tokens of the processor, beginnings shared, KV that leaves and comes.

use super::{
    attention::{apart, both},
    machines,
};
use crate::{
    engine::{Engine, EngineError, Fresh, Input, Output, Prefix, RowToSample, Slice, StageKey, Tap, Threads},
    source::{ModelSource, Precision},
    speed::{self, StepShape},
};
use tsnode_protocol::{KvCodec, KvDtype, RequestId, Sampling, TileHeader, Token};

pub(super) const REQUEST: RequestId = RequestId([1; 16]);
pub(super) const OTHER: RequestId = RequestId([2; 16]);

pub(super) fn source(name: &str) -> ModelSource {
    ModelSource::open(&super::here().join("models/reference").join(name)).unwrap()
}

pub(super) fn prompt(len: usize) -> Vec<Token> {
    (0..len).map(|i| Token((i * 37 + 11) as u32 % 64)).collect()
}

/// Logits of a prompt's last row, and greedy tokens after it.
pub(super) fn greedy(engine: &mut Engine, stage: StageKey, len: usize, count: usize) -> (Vec<f32>, Vec<u32>) {
    engine.admit(stage, REQUEST, (len + count) as u32).unwrap();
    let batch = [Slice { request: REQUEST, start: 0, len: len as u32 }];
    let output = Output::Logits { rows: &[len - 1] };
    let logits = engine.forward(stage, &batch, Input::Tokens(&prompt(len)), output).unwrap().to_vec();
    let mut next = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u32;
    let mut tokens = vec![next];
    for i in 0..count {
        let batch = [Slice { request: REQUEST, start: (len + i) as u32, len: 1 }];
        let position = (len + i + 1) as u32;
        let picks = [RowToSample { row: 0, sampling: &Sampling::greedy(), position }];
        let chosen = engine.forward_choosing(stage, &batch, Input::Tokens(&[Token(next)]), &picks).unwrap();
        next = chosen[0].token.0;
        tokens.push(next);
    }
    (logits, tokens)
}

#[test]
fn greedy_tokens_of_reference_models_are_the_processors() {
    let names = [
        "llama-gqa",
        "llama3-rope",
        "qwen2-bias",
        "qwen3-norms",
        "gemma2-caps",
        "gemma3-local",
        "phi3-longrope",
        "smollm3-still",
        "granite-factors",
        "granite4-dense",
        "glm-neighbours",
        "glm4-neighbours",
        "olmo2-post-norms",
        "olmo3-yarn",
        "ministral3-yarn",
        "gemma4-wide",
        "gemma4-values",
    ];
    for machine in machines() {
        for name in names {
            for (len, dtype) in [(5, KvDtype::F32), (14, KvDtype::F16)] {
                let found = both(&machine, &source(name), dtype).map(|(mut e, stage)| greedy(&mut e, stage, len, 6));
                let [(cpu, wanted), (gpu, tokens)] = found;
                // Rows for weights of 16 bits are rounded to these: by the processor all for bfloat16, by a GPU those of many.
                assert!(apart(&cpu, &gpu) < 0.02, "{name}, {len}: {}", apart(&cpu, &gpu));
                assert_eq!(tokens, wanted, "{name}");
            }
        }
    }
}

/// Queries that grow from position 64 on, windows that end before, angles that are stretched, heads of several widths.
#[test]
fn long_prompts_of_stretched_models_are_computed_as_the_processor_does() {
    for machine in machines() {
        for name in ["ministral3-yarn", "olmo3-yarn", "gemma4-wide", "gemma4-values"] {
            for dtype in [KvDtype::F32, KvDtype::F16] {
                let found = both(&machine, &source(name), dtype).map(|(mut e, stage)| {
                    e.admit(stage, REQUEST, 71).unwrap();
                    [(0, 70), (70, 1)].map(|(start, len)| {
                        let batch = [Slice { request: REQUEST, start, len }];
                        let (rows, tokens) = ([len as usize - 1], prompt(len as usize));
                        let output = Output::Logits { rows: &rows };
                        e.forward(stage, &batch, Input::Tokens(&tokens), output).unwrap().to_vec()
                    })
                });
                let [cpu, gpu] = found;
                let most = cpu.iter().zip(&gpu).map(|(cpu, gpu)| apart(cpu, gpu)).fold(0.0, f32::max);
                assert!(most < 0.02, "{name}, {dtype:?}: {most}");
            }
        }
    }
}

/// What servers' quantisers stored: FP8 as bfloat16, four bits as blocks that GPUs have or in half precision. Where the processor
/// rounds rows to 8 bits and a GPU does not, they are as far apart as that leaves them.
#[test]
fn weights_of_servers_quantisers_are_computed_as_the_processor_does() {
    for machine in machines() {
        for (name, most) in [
            ("qwen3-fp8-blocks", 0.02),
            ("llama-fp8-channels", 0.02),
            ("mistral-gptq-order", 0.02),
            ("qwen3-int4-packed", 0.05),
            ("llama-awq", 0.05),
        ] {
            let source = ModelSource::open(&super::here().join("models/coded").join(name)).unwrap();
            let found = both(&machine, &source, KvDtype::F32).map(|(mut e, stage)| greedy(&mut e, stage, 14, 1));
            let [(cpu, _), (gpu, _)] = found;
            assert!(apart(&cpu, &gpu) < most, "{name}: {}", apart(&cpu, &gpu));
        }
    }
}

/// Products of up to 64 rows read them rounded, and attention of chunks, which begin at 16, rounds nothing.
#[test]
fn chunks_of_few_rows_are_rounded_after_attention() {
    for machine in machines() {
        let source = ModelSource::open(&super::here().join("models/coded/qwen3-int4-packed")).unwrap();
        for len in [16, 40, 64] {
            let found = both(&machine, &source, KvDtype::F16).map(|(mut e, stage)| greedy(&mut e, stage, len, 1));
            let [(cpu, _), (gpu, _)] = found;
            assert!(apart(&cpu, &gpu) < 0.05, "{len}: {}", apart(&cpu, &gpu));
        }
    }
}

#[test]
fn a_stage_comes_from_another_thread_while_steps_go_on() {
    for machine in machines() {
        let source = source("llama-gqa");
        let [_, (mut engine, stage)] = both(&machine, &source, KvDtype::F16);
        let alone = greedy(&mut engine, stage, 14, 6);
        engine.release(stage, REQUEST);
        let (carrier, all) = (engine.carrier(), source.card().shape.all_layers());
        let (carried, beside) = std::thread::scope(|scope| {
            let carry = || (0..4).map(|_| carrier.carry(source.load_stage_for_gpu(all, 1).unwrap()).unwrap()).collect();
            let carried: std::thread::ScopedJoinHandle<'_, Vec<_>> = scope.spawn(carry);
            let beside = greedy(&mut engine, stage, 14, 6);
            (carried.join().unwrap(), beside)
        });
        assert_eq!(beside, alone);
        for stage in carried.into_iter().map(|carried| engine.take(carried)).collect::<Vec<_>>() {
            assert_eq!(greedy(&mut engine, stage, 14, 6), alone);
            engine.unload(stage);
        }
        let two = source.load_stage_for_gpus(all, Threads { count: 1, ranks: 2 }).unwrap();
        assert!(matches!(carrier.carry(two), Err(EngineError::Ranks { found: 2, expected: 1 })));
    }
}

#[test]
fn a_model_without_kernels_is_refused_in_words() {
    for machine in machines() {
        // The second has heads of 20 channels; eight are read at a time.
        for name in ["opt-relu", "mistral-window", "gemma4-inputs", "gemma4-shared"] {
            let source = source(name);
            let range = tsnode_protocol::LayerRange { start: 0, end: source.card().shape.layers };
            let gpu = crate::cuda::Gpu::on(machine.clone());
            let mut engine = Engine::on_gpu(gpu, 1 << 20, KvDtype::F16).unwrap();
            let refusal = engine.load(source.load_stage(range).unwrap()).unwrap_err();
            assert!(refusal.to_string().contains("not supported"), "{refusal}");
        }
        let exact = source("llama-gqa").in_precision(Precision::Exact).unwrap();
        let gpu = crate::cuda::Gpu::on(machine.clone());
        let mut engine = Engine::on_gpu(gpu, 1 << 20, KvDtype::F16).unwrap();
        let refusal = engine.load(exact.load_stage(exact.card().shape.all_layers()).unwrap()).unwrap_err();
        assert!(refusal.to_string().contains("--precision exact"), "{refusal}");
    }
}

#[test]
fn a_step_of_more_rows_than_a_grid_takes_is_refused_in_words() {
    for machine in machines() {
        let source = source("llama-gqa");
        let range = tsnode_protocol::LayerRange { start: 0, end: source.card().shape.layers };
        let gpu = crate::cuda::Gpu::on(machine.clone());
        let mut engine = Engine::on_gpu(gpu, 64 << 20, KvDtype::F16).unwrap();
        let stage = engine.load(source.load_stage_for_gpu(range, 1).unwrap()).unwrap();
        let batch: Vec<Slice> = (0..128).map(|i| Slice { request: RequestId([i; 16]), start: 0, len: 512 }).collect();
        batch.iter().for_each(|slice| engine.admit(stage, slice.request, slice.len).unwrap());
        let (rows, tokens) = (batch.len() * 512, prompt(batch.len() * 512));
        let mut step = |batch: &[Slice], rows: usize| {
            let output = Output::Logits { rows: &[rows - 1] };
            engine.forward(stage, batch, Input::Tokens(&tokens[..rows]), output).map(|logits| logits.len())
        };
        assert_eq!(step(&batch, rows).unwrap_err().to_string(), "a step of 65536 rows where a GPU takes 65535");
        assert!(step(&[Slice { len: 3, ..batch[0] }], 3).is_ok());
    }
}

/// Whoever takes a layer's KV while the step goes on.
pub(super) struct Taken(pub Vec<(u32, Vec<u8>)>);

impl Tap for Taken {
    fn layer(&mut self, layer: u32, fresh: &mut Fresh<'_>) {
        let mut payload = Vec::new();
        assert!(fresh.export(REQUEST, 0..64, KvCodec::Int4, &mut payload));
        self.0.push((layer, payload));
    }
}

#[test]
fn kv_taken_layer_by_layer_is_what_is_exported_after_and_can_be_gone_on_from() {
    for machine in machines() {
        let source = source("llama-gqa");
        let [_, (mut engine, stage)] = both(&machine, &source, KvDtype::F16);
        engine.admit(stage, REQUEST, 70).unwrap();
        let batch = [Slice { request: REQUEST, start: 0, len: 64 }];
        let (tokens, mut taken) = (prompt(64), Taken(Vec::new()));
        let output = Output::Logits { rows: &[63] };
        engine.forward_tapped(stage, &batch, Input::Tokens(&tokens), output, Some(&mut taken)).unwrap();
        let (layers, heads) = engine.extent(stage).unwrap();
        assert_eq!(taken.0.len(), layers.len() as usize);
        engine.admit(stage, OTHER, 70).unwrap();
        for (layer, payload) in &taken.0 {
            let tile =
                TileHeader { layer: *layer, head_start: 0, head_end: heads, token_start: 0, token_end: 64, bytes: 0 };
            let mut after = Vec::new();
            engine.export(stage, REQUEST, &tile, KvCodec::Int4, &mut after).unwrap();
            assert!(after == *payload, "layer {layer}");
            engine.import(stage, OTHER, &tile, KvCodec::Int4, payload).unwrap();
        }
        engine.set_len(stage, OTHER, 64).unwrap();
        engine.fake_quantise(stage, REQUEST, 0..64, KvCodec::Int4).unwrap();
        let mut next = |request| {
            let batch = [Slice { request, start: 64, len: 1 }];
            engine.forward(stage, &batch, Input::Tokens(&[Token(5)]), Output::Logits { rows: &[0] }).unwrap().to_vec()
        };
        assert_eq!(next(REQUEST), next(OTHER));
    }
}

#[test]
fn layers_packed_together_are_those_packed_one_by_one() {
    for machine in machines() {
        // Of one some layers turn by other angles, of one some do not turn, of one heads lie in several of a page's.
        for name in ["llama-gqa", "gemma3-local", "smollm3-still", "gemma4-wide"] {
            let source = source(name);
            let [processor, gpu] = both(&machine, &source, KvDtype::F16).map(|(mut engine, stage)| {
                greedy(&mut engine, stage, 70, 1);
                let (layers, heads) = engine.extent(stage).unwrap();
                let mut found = Vec::new();
                for (codec, token_start) in [(KvCodec::Raw, 3), (KvCodec::Int4, 0), (KvCodec::Int8, 64)] {
                    let tile = |layer| TileHeader {
                        layer,
                        head_start: 0,
                        head_end: heads,
                        token_start,
                        token_end: 70,
                        bytes: 0,
                    };
                    let (mut wanted, mut one, mut all) = (Vec::new(), Vec::new(), vec![1; 5]);
                    for layer in layers.iter() {
                        engine.export(stage, REQUEST, &tile(layer), codec, &mut one).unwrap();
                        wanted.extend_from_slice(&one);
                    }
                    let first = tile(layers.start);
                    engine.export_layers(stage, REQUEST, &first, layers.len(), codec, &mut all).unwrap();
                    assert!(all == wanted, "{name} {codec:?}");
                    let more = engine.export_layers(stage, REQUEST, &first, layers.len() + 1, codec, &mut all);
                    assert!(matches!(more, Err(EngineError::Tile(_))), "{name}: {more:?}");
                    found.push(wanted.len());
                }
                found
            });
            assert_eq!(processor, gpu, "{name}");
        }
    }
}

#[test]
fn what_a_gpu_can_do_is_measured() {
    for machine in machines() {
        let speeds = crate::cuda::Gpu::on(machine.clone()).speeds().unwrap();
        let all = [speeds.copy, speeds.multiply, speeds.up, speeds.down];
        assert!(all.iter().all(|speed| speed.is_finite() && *speed > 0.0), "{speeds:?}");
        let source = source("llama-gqa");
        let [_, (mut engine, stage)] = both(&machine, &source, KvDtype::F16);
        let free = engine.pages();
        let packing = speed::measure_packing(&mut engine, stage, 70, KvCodec::Int4).unwrap();
        assert_eq!(packing.bytes as usize, 70 * 2 * 2 * 16 * 2 * 3);
        assert!(packing.packed < packing.bytes && packing.pack_whole > 0.0 && packing.unpack_whole > 0.0);
        let kv_transfer = speed::measure_kv_transfer(&mut engine, stage, &source, 64, KvCodec::Int4).unwrap();
        assert!(kv_transfer.plain > 0.0 && kv_transfer.tapped > 0.0);
        let step = StepShape { batch: 2, context: 20, new: 1 };
        // Often enough that the step is recorded and run again.
        let time = std::time::Duration::from_millis(300);
        assert!(speed::measure(&mut engine, stage, &source, KvDtype::F16, step, time).unwrap().seconds > 0.0);
        assert_eq!(engine.pages(), free);
    }
}

#[test]
fn a_beginning_shared_with_another_sequence_is_as_good_as_ones_own() {
    for machine in machines() {
        let source = source("llama-gqa");
        let [_, (mut engine, stage)] = both(&machine, &source, KvDtype::F16);
        let step = |engine: &mut Engine, request, start: usize, tokens: &[Token]| {
            let batch = [Slice { request, start: start as u32, len: tokens.len() as u32 }];
            let output = Output::Logits { rows: &[tokens.len() - 1] };
            engine.forward(stage, &batch, Input::Tokens(tokens), output).unwrap().to_vec()
        };
        let tokens = prompt(12);
        engine.admit(stage, REQUEST, 20).unwrap();
        step(&mut engine, REQUEST, 0, &tokens[..8]);
        engine.admit_after(stage, OTHER, 20, Prefix::Running(REQUEST), 7).unwrap();
        // What the first goes on to write lies in the page that the second began with.
        step(&mut engine, REQUEST, 8, &tokens[8..10]);
        let shared = step(&mut engine, OTHER, 7, &tokens[7..9]);
        engine.release(stage, REQUEST);
        engine.release(stage, OTHER);
        engine.admit(stage, REQUEST, 20).unwrap();
        step(&mut engine, REQUEST, 0, &tokens[..7]);
        assert_eq!(shared, step(&mut engine, REQUEST, 7, &tokens[7..9]));
    }
}
