//! Mixtures of experts on a GPU: which experts rows pass, products with the matrices of theirs, whole models.

use super::{
    Lcg,
    attention::{apart, both},
    machines,
    models::{OTHER, REQUEST, greedy, prompt, source},
    poisoned,
    products::Case,
    read, several, with,
};
use crate::{
    config::Clamped,
    cpu::Dtype,
    cuda::{
        Gpu,
        machine::{GpuMemory, Machine},
        ops::{ExpertRouting, GpuPairs, GpuRows, GpuScores, Kind, Ops, Out, Tiling},
        weights::{Form, GpuExpertMatrices},
    },
    engine::{Engine, Input, Output, Slice, Threads},
    gpu_check,
    quant::QuantType,
};
use std::sync::Arc;
use tsnode_protocol::KvDtype;

/// Rows at the experts that their scores choose, as a machine has them.
struct Routed {
    pairs: GpuPairs,
    chosen: GpuMemory,
    parts: GpuMemory,
    _places: [GpuMemory; 2],
}

impl Routed {
    fn by(
        machine: &Arc<dyn Machine>,
        scores: &[f32],
        (used, experts): (usize, usize),
        routing: &ExpertRouting,
        tiling: Tiling,
    ) -> Self {
        let rows = scores.len() / experts;
        let [chosen, parts, order] = [(); 3].map(|()| poisoned(machine, rows * used));
        let (chosen_at, parts_at, order_at) = (chosen.at(), parts.at(), order.at());
        let mut pairs =
            GpuPairs { rows, used, chosen: chosen_at, parts: parts_at, order: order_at, tiles: 0, tiling, experts };
        let tiles = poisoned(machine, 4 * pairs.tile_count());
        pairs.tiles = tiles.at();
        Ops::new(machine.clone()).route(with(machine, scores).at(), routing, &pairs).unwrap();
        machine.finish().unwrap();
        Self { pairs, chosen, parts, _places: [order, tiles] }
    }

    fn chosen(&self, machine: &Arc<dyn Machine>) -> Vec<usize> {
        read(machine, &self.chosen, self.pairs.count()).iter().map(|x| x.to_bits() as usize).collect()
    }
}

/// Experts and parts of one row, in the order of experts' numbers.
fn routed_plainly(
    scores: &[f32],
    correction: Option<&[f32]>,
    used: usize,
    routing: &ExpertRouting,
) -> Vec<(usize, f64)> {
    let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = scores.iter().map(|x| f64::from(x - top).exp()).sum();
    let chances: Vec<f64> = match correction {
        None => scores.iter().map(|x| f64::from(x - top).exp() / sum).collect(),
        Some(_) => scores.iter().map(|x| 1.0 / (1.0 + (-f64::from(*x)).exp())).collect(),
    };
    let by = |expert: usize| chances[expert] + correction.map_or(0.0, |all| f64::from(all[expert]));
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // Sorting keeps equal ones in their order.
    order.sort_by(|a, b| by(*b).total_cmp(&by(*a)));
    order.truncate(used);
    let all: f64 = if routing.normed { order.iter().map(|expert| chances[*expert]).sum() } else { 1.0 };
    order.sort_unstable();
    order.iter().map(|expert| (*expert, chances[*expert] / all * f64::from(routing.scale))).collect()
}

#[test]
fn rows_pass_the_experts_that_score_best_and_of_equal_ones_the_first() {
    for machine in machines() {
        let mut draw = Lcg(21);
        for (rows, experts, used, normed, corrected) in [
            (1, 8, 2, true, false),
            (7, 128, 8, false, false),
            (19, 6, 6, true, true),
            (5, 512, 32, false, true),
            (40, 37, 3, true, false),
        ] {
            let mut scores = draw.numbers(rows * experts);
            scores.chunks_exact_mut(experts).for_each(|row| row[3] = row[1]);
            let correction = corrected.then(|| draw.numbers(experts));
            let held = correction.as_ref().map(|numbers| with(&machine, numbers));
            let scale = if corrected { 2.5 } else { 1.0 };
            let at = held.as_ref().map_or(0, GpuMemory::at);
            let (factors, by) = (draw.numbers(experts), if corrected { 0.0 } else { 1.0 });
            let factors: Vec<f32> = factors.iter().map(|factor| 1.0 + by * factor).collect();
            let factors_held = with(&machine, &factors);
            let routing = ExpertRouting { bias: 0, correction: at, normed, scale, factors: factors_held.at() };
            let [alone, few, many] = [Tiling::Alone, Tiling::Few, Tiling::Many]
                .map(|tiling| Routed::by(&machine, &scores, (used, experts), &routing, tiling));
            let (chosen, parts) = (alone.chosen(&machine), read(&machine, &alone.parts, rows * used));
            assert!([&few, &many].iter().all(|other| other.chosen(&machine) == chosen));
            for (row, scores) in scores.chunks_exact(experts).enumerate() {
                let wanted = routed_plainly(scores, correction.as_deref(), used, &routing);
                for (slot, (expert, part)) in wanted.into_iter().enumerate() {
                    let pair = row * used + slot;
                    assert_eq!(chosen[pair], expert, "{rows} x {experts}, {row}, {slot}");
                    let part = part * f64::from(factors[expert]);
                    assert!((f64::from(parts[pair]) - part).abs() < 4e-6, "{rows} x {experts}, {row}, {slot}");
                }
            }
        }
    }
}

#[test]
fn scores_are_sums_in_single_precision_whatever_rows_are_beside() {
    for machine in machines() {
        let mut draw = Lcg(22);
        for (rows, outs, cols) in [(1, 1, 8), (9, 13, 136), (17, 8, 1032)] {
            let (x, w) = (draw.numbers(rows * cols), draw.numbers(outs * cols));
            let weight = GpuScores { weight: with(&machine, &w), outs, cols };
            let scores = |x: &[f32]| {
                let (rows, held) = (x.len() / cols, with(&machine, x));
                let out = poisoned(&machine, rows * outs);
                Ops::new(machine.clone()).scores(held.at(), rows, &weight, out.at()).unwrap();
                read(&machine, &out, rows * outs)
            };
            let found = scores(&x);
            for (row, x) in x.chunks_exact(cols).enumerate() {
                let of_row = &found[row * outs..][..outs];
                assert_eq!(scores(x), of_row);
                for (found, w) in of_row.iter().zip(w.chunks_exact(cols)) {
                    let products = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                    let (wanted, size) = (products.clone().sum::<f64>(), products.map(f64::abs).sum::<f64>());
                    assert!((f64::from(*found) - wanted).abs() <= 2e-6 * size, "{rows} x {outs} x {cols}");
                }
            }
        }
    }
}

/// Products of rows with experts that they pass, `[pair][column]`, some columns of wider rows.
fn products(machine: &Arc<dyn Machine>, cases: &[Case], routed: &Routed, (x, of_row): (&[f32], usize)) -> Vec<f32> {
    let views: Vec<_> = cases.iter().map(Case::view).collect();
    let matrices = GpuExpertMatrices::of_each(machine, &views).unwrap();
    let (stride, held) = (cases[0].outs + 5, with(machine, x));
    let out = poisoned(machine, routed.pairs.count() * stride);
    let (input, place) = (GpuRows { at: held.at(), kind: Kind::F32 }, Out { at: out.at() + 4 * 3, stride });
    let mut ops = Ops::new(machine.clone());
    ops.expert_products(input, of_row, &routed.pairs, &[(&matrices, place)]).unwrap();
    read(machine, &out, routed.pairs.count() * stride)
}

/// Formats that kernels of experts read.
const WITH_KERNELS: [QuantType; 5] =
    [QuantType::Q4_0, QuantType::Q8_0, QuantType::Q4K, QuantType::Q6K, QuantType::Mxfp4];

/// A matrix as experts have it.
fn quantised(draw: &mut Lcg, kind: QuantType, outs: usize, cols: usize) -> Case {
    let mut case = Case::quantised(draw, kind, outs, cols);
    let form = Form::of_expert(&case.view());
    case.form = form;
    case
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// Products of all pairs by tiles, of each alone, and of a row by itself: the same bits, and what they should be.
fn check(machine: &Arc<dyn Machine>, cases: &[Case], (rows, used): (usize, usize), draw: &mut Lcg) {
    let (Case { outs, cols, form, .. }, experts) = (&cases[0], cases.len());
    let (outs, cols, form, stride) = (*outs, *cols, *form, outs + 5);
    let routing = ExpertRouting { bias: 0, correction: 0, normed: true, scale: 1.0, factors: 0 };
    let scores = draw.numbers(rows * experts);
    let by = |scores: &[f32], tiling| Routed::by(machine, scores, (used, experts), &routing, tiling);
    let [alone, tiled] = [Tiling::Alone, Tiling::Few].map(|tiling| by(&scores, tiling));
    let chosen = alone.chosen(machine);
    let widened = cases[0].quant.is_some() && form.rounded().is_none();
    let tolerance = match Tiling::Few.reads(form) {
        Kind::F32 if widened => 6e-4,
        Kind::Bf16 => 5e-3,
        _ => 2e-6,
    };
    // Rows that pass several, as gates have them, and rows of pairs, as downs have them.
    for of_row in [used, 1] {
        let each = used / of_row;
        let x = draw.numbers(rows * each * cols);
        let found = products(machine, cases, &tiled, (&x[..], of_row));
        assert_eq!(bits(&products(machine, cases, &alone, (&x[..], of_row))), bits(&found), "{form:?} alone");
        let last = rows - 1;
        let by_itself = by(&scores[last * experts..], Tiling::Alone);
        let of_last = products(machine, cases, &by_itself, (&x[last * each * cols..], of_row));
        assert_eq!(bits(&of_last), bits(&found[last * used * stride..]), "{form:?}, a row by itself");
        for (pair, row) in found.chunks_exact(stride).enumerate() {
            let (case, from) = (&cases[chosen[pair]], pair / of_row);
            let rounded = if widened { None } else { case.rounded_product(&x[from * cols..][..cols]) };
            for (column, found) in row.iter().enumerate() {
                let Some(output) = column.checked_sub(3).filter(|output| *output < outs) else {
                    assert!(found.is_nan(), "{form:?} {outs} x {cols}: column {column} was written");
                    continue;
                };
                let (mut wanted, size) = case.exact(&x, from, output);
                if let Some(rounded) = &rounded {
                    wanted = f64::from(rounded[output]);
                }
                let off = (f64::from(*found) - wanted).abs() / size.max(1e-30);
                assert!(off <= tolerance, "{form:?} {outs} x {cols}, {pair}, {output}: {found} for {wanted}");
            }
        }
    }
}

#[test]
fn products_with_experts_are_the_processors_and_a_rows_do_not_depend_on_others() {
    for machine in machines() {
        let mut draw = Lcg(23);
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            for (experts, outs, cols, rows, used) in [(5, 5, 8, 1, 2), (3, 67, 72, 21, 2), (4, 34, 1040, 7, 3)] {
                let cases: Vec<_> = (0..experts).map(|_| Case::dense(&mut draw, dtype, outs, cols)).collect();
                check(&machine, &cases, (rows, used), &mut draw);
            }
        }
        for kind in WITH_KERNELS.into_iter().chain([QuantType::Q5K]) {
            for (experts, outs, blocks, rows, used) in [(4, 5, 1, 1, 2), (2, 67, 3, 19, 1), (3, 34, 5, 6, 2)] {
                let cols = blocks * kind.numbers();
                let cases: Vec<_> = (0..experts).map(|_| quantised(&mut draw, kind, outs, cols)).collect();
                check(&machine, &cases, (rows, used), &mut draw);
            }
        }
    }
}

#[test]
fn products_of_many_pairs_are_sums_of_products() {
    for machine in machines() {
        let mut draw = Lcg(25);
        let quants = WITH_KERNELS.map(Some);
        for (dtype, quant, tolerance) in [(Dtype::F16, None, 1.5e-3), (Dtype::Bf16, None, 5e-3)]
            .into_iter()
            .chain(quants.map(|quant| (Dtype::F16, quant, 1.5e-3)))
        {
            for (experts, outs, some, rows, used) in [(2, 5, 1, 3, 1), (2, 130, 3, 80, 2), (5, 140, 2, 70, 3)] {
                let cols = some * quant.map_or(40, QuantType::numbers);
                let one = |draw: &mut Lcg| match quant {
                    None => Case::dense(draw, dtype, outs, cols),
                    Some(kind) => quantised(draw, kind, outs, cols),
                };
                let cases: Vec<_> = (0..experts).map(|_| one(&mut draw)).collect();
                let routing = ExpertRouting { bias: 0, correction: 0, normed: true, scale: 1.0, factors: 0 };
                let scores = draw.numbers(rows * experts);
                let routed = Routed::by(&machine, &scores, (used, experts), &routing, Tiling::Many);
                let (chosen, stride) = (routed.chosen(&machine), outs + 5);
                for of_row in [used, 1] {
                    let x = draw.numbers(rows * used / of_row * cols);
                    let found = products(&machine, &cases, &routed, (&x[..], of_row));
                    for (pair, row) in found.chunks_exact(stride).enumerate() {
                        let (before, row) = row.split_at(3);
                        let (row, behind) = row.split_at(outs);
                        assert!(before.iter().chain(behind).all(|x| x.is_nan()), "{rows} x {outs} x {cols}, {pair}");
                        for (output, found) in row.iter().enumerate() {
                            let (wanted, size) = cases[chosen[pair]].exact(&x, pair / of_row, output);
                            let off = (f64::from(*found) - wanted).abs() / size.max(1e-30);
                            assert!(
                                off <= tolerance,
                                "{rows} x {outs} x {cols}, {pair}, {output}: {found} for {wanted}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn what_experts_make_is_added_in_their_order_and_what_all_rows_pass_behind() {
    for machine in machines() {
        let mut draw = Lcg(24);
        for (rows, used, width, shared, gated, biased) in
            [(1, 2, 8, false, false, true), (5, 8, 1032, true, true, false), (9, 3, 40, true, false, true)]
        {
            let (made, parts) = (draw.numbers(rows * used * width), draw.numbers(rows * used));
            let (before, gates) = (draw.numbers(rows * width), draw.numbers(rows));
            let [made_held, parts_held, gates_held] = [&made, &parts, &gates].map(|numbers| with(&machine, numbers));
            let out = if shared { with(&machine, &before) } else { poisoned(&machine, rows * width) };
            let (parts_at, tiling) = (parts_held.at(), Tiling::Alone);
            let (biases, chosen) = (draw.numbers(used * width), (0..rows * used).map(|pair| (pair * 5 % used) as u32));
            let (biases_held, chosen) = (with(&machine, &biases), chosen.collect::<Vec<_>>());
            let chosen_held = GpuMemory::of(&machine, bytemuck::cast_slice(&chosen)).unwrap();
            let (bias_at, chosen_at) = (if biased { biases_held.at() } else { 0 }, chosen_held.at());
            let pairs =
                GpuPairs { rows, used, chosen: chosen_at, parts: parts_at, order: 0, tiles: 0, tiling, experts: used };
            let gates_at = if gated { gates_held.at() } else { 0 };
            let ops = Ops::new(machine.clone());
            ops.mix_experts(made_held.at(), &pairs, width, (shared, gates_at), bias_at, out.at()).unwrap();
            for (i, found) in read(&machine, &out, rows * width).into_iter().enumerate() {
                let (row, column) = (i / width, i % width);
                let pairs = row * used..(row + 1) * used;
                let bias = |pair: usize| if biased { biases[chosen[pair] as usize * width + column] } else { 0.0 };
                let made = |pair: usize| made[pair * width + column] + bias(pair);
                let mut wanted = pairs.fold(0.0, |sum, pair| sum + parts[pair] * made(pair));
                let part = if gated { 1.0 / (1.0 + (-gates[row]).exp()) } else { 1.0 };
                if shared {
                    wanted += part * before[i];
                }
                assert!((found - wanted).abs() < 1e-5, "{rows} x {width}, {i}: {found} for {wanted}");
            }
        }
    }
}

const NAMES: [&str; 7] = [
    "qwen3moe-dense-between",
    "qwen3moe-fused",
    "qwen2moe-every-other",
    "mixtral-window",
    "olmoe-norms",
    "glm4moe-sigmoid",
    "gemma4-experts",
];

#[test]
fn greedy_tokens_of_models_with_experts_are_the_processors() {
    for machine in machines() {
        for name in NAMES {
            // More rows than pass experts at a time in tests.
            for (len, dtype) in [(5, KvDtype::F32), (14, KvDtype::F16), (40, KvDtype::F16)] {
                let found = both(&machine, &source(name), dtype).map(|(mut e, stage)| greedy(&mut e, stage, len, 6));
                let [(cpu, wanted), (gpu, tokens)] = found;
                assert!(apart(&cpu, &gpu) < 0.02, "{name}, {len}: {}", apart(&cpu, &gpu));
                assert_eq!(tokens, wanted, "{name}, {len}");
            }
        }
    }
}

/// Gates and ups as gpt-oss has them: with the bias of the expert that each row passes, up to a limit.
#[test]
fn gates_that_end_somewhere_are_the_processors() {
    for machine in machines() {
        let (mut draw, clamped) = (Lcg(26), Clamped { sharpness: 1.702, limit: 1.5 });
        for (rows, used, width, biased) in [(1, 2, 8, true), (5, 3, 1032, true), (3, 4, 44, false)] {
            let (experts, count) = (6, rows * used);
            let (x, bias) = (draw.numbers(count * 2 * width), draw.numbers(experts * 2 * width));
            let x: Vec<f32> = x.iter().map(|x| 3.0 * x).collect();
            let chosen: Vec<u32> = (0..count).map(|pair| (pair * 5 % experts) as u32).collect();
            let (x_held, bias_held, out) =
                (with(&machine, &x), with(&machine, &bias), poisoned(&machine, count * width));
            let chosen_held = GpuMemory::of(&machine, bytemuck::cast_slice(&chosen)).unwrap();
            let (chosen_at, tiling) = (chosen_held.at(), Tiling::Alone);
            let pairs = GpuPairs { rows, used, chosen: chosen_at, parts: 0, order: 0, tiles: 0, tiling, experts };
            let (bias_at, to) = (if biased { bias_held.at() } else { 0 }, GpuRows { at: out.at(), kind: Kind::F32 });
            Ops::new(machine.clone()).gate_clamped(x_held.at(), &pairs, width, bias_at, clamped, to).unwrap();
            for (i, found) in read(&machine, &out, count * width).into_iter().enumerate() {
                let (pair, column) = (i / width, i % width);
                let more = |at: usize| if biased { bias[chosen[pair] as usize * 2 * width + at] } else { 0.0 };
                let [gate, up] = [column, width + column].map(|at| x[pair * 2 * width + at] + more(at));
                let (open, up) = (gate.min(clamped.limit), up.clamp(-clamped.limit, clamped.limit));
                let wanted = open / (1.0 + (-clamped.sharpness * open).exp()) * (up + 1.0);
                assert!((found - wanted).abs() < 1e-5, "{rows} x {width}, {i}: {found} for {wanted}");
            }
        }
    }
}

/// With experts in MXFP4, whose rows are rounded to 8 bits where pairs are few, as the processor's are: then tokens are equal.
/// Where they are many a GPU rounds to 16, and now and then a router chooses another: half of the rows are near.
#[test]
fn gpt_oss_is_computed_as_the_processor_does() {
    for machine in machines() {
        let source = source("gptoss-sinks");
        for dtype in [KvDtype::F32, KvDtype::F16] {
            let [(cpu, wanted), (gpu, tokens)] =
                both(&machine, &source, dtype).map(|(mut e, stage)| greedy(&mut e, stage, 5, 6));
            assert!(apart(&cpu, &gpu) < 0.02, "{dtype:?}: {}", apart(&cpu, &gpu));
            assert_eq!(tokens, wanted, "{dtype:?}");
            let [cpu, gpu] = both(&machine, &source, dtype).map(|(mut engine, stage)| {
                engine.admit(stage, REQUEST, 40).unwrap();
                let (batch, rows) = ([Slice { request: REQUEST, start: 0, len: 40 }], (0..40usize).collect::<Vec<_>>());
                let output = Output::Logits { rows: &rows };
                engine.forward(stage, &batch, Input::Tokens(&prompt(40)), output).unwrap().to_vec()
            });
            let vocab = cpu.len() / 40;
            let rows = cpu.chunks_exact(vocab).zip(gpu.chunks_exact(vocab));
            let mut off: Vec<f32> = rows.map(|(cpu, gpu)| apart(cpu, gpu)).collect();
            off.sort_by(f32::total_cmp);
            assert!(off[20] < 0.05, "{dtype:?}: {off:?}");
        }
    }
}

/// Rows of several sequences in one step, some of which score as others do.
#[test]
fn batches_of_models_with_experts_are_computed_as_the_processor_does() {
    for machine in machines() {
        for name in NAMES {
            let found = both(&machine, &source(name), KvDtype::F16).map(|(mut engine, stage)| {
                let requests = [(REQUEST, 0, 9), (OTHER, 0, 4)];
                let batch = requests.map(|(request, start, len)| Slice { request, start, len });
                batch.iter().for_each(|slice| engine.admit(stage, slice.request, 16).unwrap());
                let output = Output::Logits { rows: &[8, 12] };
                engine.forward(stage, &batch, Input::Tokens(&prompt(13)), output).unwrap().to_vec()
            });
            let [cpu, gpu] = found;
            assert!(apart(&cpu, &gpu) < 0.02, "{name}: {}", apart(&cpu, &gpu));
        }
    }
}

#[test]
fn several_gpus_refuse_a_mixture_and_norms_over_all_heads_in_words() {
    let why = [
        ("qwen3moe-fused", "a mixture of experts that several GPUs hold together"),
        ("olmo2-post-norms", "a norm over the queries of all heads, which several GPUs hold together,"),
    ];
    for (name, why) in why {
        let gpus: Vec<Gpu> = several(2).into_iter().map(Gpu::on).collect();
        if gpus.len() < 2 {
            return;
        }
        let mut engine = Engine::on_gpus(gpus, 4 << 20, KvDtype::F16).unwrap();
        let source = source(name);
        // Also before any GPU is opened.
        let early = [1, 2].map(|gpus| gpu_check::refuse_unwritten(&source, gpus).err().map(|error| error.to_string()));
        let layers = source.card().shape.all_layers();
        let stage = source.load_stage_for_gpus(layers, Threads { count: 1, ranks: 2 }).unwrap();
        let refusal = engine.load(stage).unwrap_err().to_string();
        assert_eq!(refusal, format!("on a GPU {why} is not supported"));
        assert_eq!(early, [None, Some(refusal)]);
    }
}
