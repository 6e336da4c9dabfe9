//! Gated delta rules (Yang et al. 2024, eq. 10) behind a short convolution: what Qwen3-Next and Qwen3.5 have in most layers in place
//! of attention. Each head of values has a matrix that says a value for a key; a token fades it, and turns what it says for
//! the token's key towards the token's value.
//!
//! Rows change a state in their order, one by one, so it does not depend on how a prompt was cut or with whom it was batched.

use super::{
    super::{LayerStep, Scratch},
    Linear, Part, RmsNorm,
};
use crate::{
    config::DeltaNet,
    cpu::{
        Cpu, Dtype, Gate, LANES, Matrix,
        plain::{exp, reduce},
    },
    engine::{GroupState, StateLayer},
    models::{
        outline::{DeltaOutline, DeltaSizes},
        sized,
    },
    weights::WeightsError,
};
use std::ops::Range;

/// Memory kept from step to step: what matrices made of each row.
#[derive(Default)]
pub(in crate::models) struct DeltaScratch {
    /// Where one matrix made several of these.
    together: Vec<f32>,
    both: Vec<f32>,
    /// Queries, keys and values of all heads: what the convolution passes.
    qkv: Vec<f32>,
    /// What gates what comes out.
    gates: Vec<f32>,
    /// By how much states are turned towards values, and fade; of each head of values.
    turns: Vec<f32>,
    fades: Vec<f32>,
}

/// A gated delta rule with its matrices. It is whole: ranks do not share it.
pub(in crate::models) struct GatedDelta {
    inputs: InputProjections,
    /// `[group][token][channel]`, the row's own token last.
    convolution: Vec<f32>,
    /// How fast states fade, of each head of values.
    rates: Vec<f32>,
    rate_biases: Vec<f32>,
    /// Of what each head of values says.
    norm: RmsNorm,
    output: Linear,
    sizes: DeltaSizes,
    /// Its place among layers with a state.
    place: usize,
}

/// Matrices that rows are multiplied by.
enum InputProjections {
    /// For queries, keys and values, for gates, and for how states turn and fade (Qwen3.5).
    Apart(Box<[Linear; 4]>),
    /// One for the first two and one for the others, head of keys by head of keys (Qwen3-Next).
    ByGroup(Box<[Linear; 2]>),
}

/// What matrices made of the rows of a batch.
#[derive(Clone, Copy)]
struct Projected<'a> {
    qkv: &'a [f32],
    turns: &'a [f32],
    fades: &'a [f32],
}

/// Rows of a group that pass the convolution together.
const ROWS: usize = 32;
/// Under the roots that queries and keys are divided by.
const EPSILON: f32 = 1e-6;

impl GatedDelta {
    /// That of the layer at `place` among those with a state.
    pub(in crate::models) fn load(part: &Part<'_>, net: &DeltaNet, place: usize) -> Result<Self, WeightsError> {
        let (hidden, values, heads) = (part.config.hidden, net.values(), net.value_heads);
        let linear = |name: &str, rows| part.linear(&format!("linear_attn.{name}"), part.outputs(rows), hidden);
        let inputs = if part.has("linear_attn.in_proj_qkvz.weight") {
            let both = [linear("in_proj_qkvz", net.channels() + values)?, linear("in_proj_ba", 2 * heads)?];
            InputProjections::ByGroup(Box::new(both))
        } else {
            InputProjections::Apart(Box::new([
                linear("in_proj_qkv", net.channels())?,
                linear("in_proj_z", values)?,
                linear("in_proj_b", heads)?,
                linear("in_proj_a", heads)?,
            ]))
        };
        let sizes = DeltaSizes::of(net);
        let vector = |name: &str, len| part.whole_vector(&format!("linear_attn.{name}"), len);
        let mut rates = vector("A_log", heads)?;
        rates.iter_mut().for_each(|rate| *rate = -libm::expf(*rate));
        Ok(Self {
            inputs,
            convolution: convolution(part, &sizes)?,
            rates,
            rate_biases: vector("dt_bias", heads)?,
            // Its weights are no differences from 1, as those of other norms are.
            norm: RmsNorm { weight: vector("norm.weight", net.value_dim)?, eps: part.config.norm_eps },
            output: part.linear("linear_attn.out_proj", part.outputs(hidden), values)?,
            sizes,
            place,
        })
    }

    pub(in crate::models) fn forward(&self, step: &mut LayerStep<'_, '_>, s: &mut Scratch) {
        let LayerStep { cpu, rows, .. } = *step;
        let Scratch { normed, mixed, out, delta, .. } = s;
        self.inputs.forward(cpu, (rows, &self.sizes), normed, delta);
        let DeltaSizes { groups, key_dim, .. } = self.sizes;
        let said = sized(mixed, rows * self.sizes.values());
        let (at, work) = (StateLayer { layer: self.place, groups }, 3 * said.len() * key_dim);
        let made = Projected { qkv: &delta.qkv, turns: &delta.turns, fades: &delta.fades };
        step.attend.states(cpu, at, work, said, |state| self.group(cpu, made, state));
        self.norm.forward(cpu, mixed, out);
        cpu.gate_mul(Gate::Silu, &mut delta.gates, out);
        self.output.forward(cpu, rows, &delta.gates, out);
    }

    /// What a group's heads say for the rows of a sequence, which change their matrices.
    fn group(&self, cpu: &Cpu, made: Projected<'_>, state: &mut GroupState<'_>) {
        let DeltaSizes { shared, value_dim, .. } = self.sizes;
        let (width, all) = (self.sizes.group_channels(), state.rows.clone());
        let mut passed = vec![0.0; ROWS.min(all.len()) * width];
        let mut said = vec![0.0; ROWS.min(all.len()) * value_dim];
        for first in all.clone().step_by(ROWS) {
            let rows = first..all.end.min(first + ROWS);
            let passed = &mut passed[..rows.len() * width];
            self.pass(cpu, (made.qkv, rows.clone()), passed, state);
            for head in 0..shared {
                let said = &mut said[..rows.len() * value_dim];
                self.say(cpu, (made, rows.clone()), head, passed, (&mut *state, &mut *said));
                for (row, said) in rows.clone().zip(said.chunks_exact(value_dim)) {
                    state.put(row, head * value_dim, said);
                }
            }
        }
    }

    /// Channels of the group's queries, keys and values behind the convolution, `[row][channel]`; queries and keys are of one length.
    fn pass(&self, cpu: &Cpu, (qkv, rows): (&[f32], Range<usize>), passed: &mut [f32], state: &mut GroupState<'_>) {
        let (width, all) = (self.sizes.group_channels(), self.sizes.channels());
        let (key_dim, group) = (self.sizes.key_dim, state.group);
        let weights = &self.convolution[group * self.sizes.kernel * width..][..self.sizes.kernel * width];
        let (mut inputs, ones) = (vec![0.0; width], vec![1.0; width]);
        state.tail(|tail| {
            for (row, passed) in rows.zip(passed.chunks_exact_mut(width)) {
                let mut rest = inputs.as_mut_slice();
                for channels in self.sizes.channels_of(group) {
                    let (some, more) = std::mem::take(&mut rest).split_at_mut(channels.len());
                    some.copy_from_slice(&qkv[row * all..][channels]);
                    rest = more;
                }
                convolve(weights, tail, &inputs, passed);
                cpu.simd().gate_mul(Gate::Silu, passed, &ones);
                let (query, others) = passed.split_at_mut(key_dim);
                to_length_one(query, 1.0 / (key_dim as f32).sqrt());
                to_length_one(&mut others[..key_dim], 1.0);
            }
        });
    }

    /// What a head of values says for some rows, `[row][channel]`.
    fn say(
        &self,
        cpu: &Cpu,
        (made, rows): (Projected<'_>, Range<usize>),
        head: usize,
        passed: &[f32],
        (state, said): (&mut GroupState<'_>, &mut [f32]),
    ) {
        let DeltaSizes { groups, shared, key_dim, value_dim, .. } = self.sizes;
        let (heads, number) = (groups * shared, state.group * shared + head);
        state.matrix(head, |matrix| {
            let each = passed.chunks_exact(self.sizes.group_channels()).zip(said.chunks_exact_mut(value_dim));
            for (row, (passed, said)) in rows.zip(each) {
                let (query, others) = passed.split_at(key_dim);
                let (key, values) = others.split_at(key_dim);
                let rate = self.rates[number] * softplus(made.fades[row * heads + number] + self.rate_biases[number]);
                let token = HeadToken {
                    query,
                    key,
                    value: &values[head * value_dim..][..value_dim],
                    fade: exp(rate),
                    turn: sigmoid(made.turns[row * heads + number]),
                };
                token.change(cpu, matrix, said);
            }
        });
    }

    pub(in crate::models) fn outline(&self) -> DeltaOutline<'_> {
        let (inputs, by_group) = match &self.inputs {
            InputProjections::Apart(each) => (each.iter().map(Linear::outline).collect(), false),
            InputProjections::ByGroup(each) => (each.iter().map(Linear::outline).collect(), true),
        };
        DeltaOutline {
            inputs,
            by_group,
            convolution: &self.convolution,
            rates: &self.rates,
            rate_biases: &self.rate_biases,
            norm: self.norm.outline(),
            output: self.output.outline(),
            sizes: self.sizes,
            place: self.place,
        }
    }
}

impl DeltaSizes {
    fn of(net: &DeltaNet) -> Self {
        let DeltaNet { key_heads, key_dim, value_dim, kernel, .. } = *net;
        Self { groups: key_heads, shared: net.shared_by(), key_dim, value_dim, kernel }
    }

    /// Channels of all heads of values.
    fn values(&self) -> usize {
        self.groups * self.shared * self.value_dim
    }

    /// Channels that the convolution passes: all queries, then all keys, then all values.
    fn channels(&self) -> usize {
        2 * self.groups * self.key_dim + self.values()
    }

    /// Those of a group.
    fn group_channels(&self) -> usize {
        self.channels() / self.groups
    }

    /// Where they are among all.
    fn channels_of(&self, group: usize) -> [Range<usize>; 3] {
        let (keys, values) = (self.groups * self.key_dim, self.shared * self.value_dim);
        let of = |from: usize, width: usize| from + group * width..from + (group + 1) * width;
        [of(0, self.key_dim), of(keys, self.key_dim), of(2 * keys, values)]
    }
}

impl InputProjections {
    fn forward(&self, cpu: &Cpu, (rows, sizes): (usize, &DeltaSizes), x: &[f32], delta: &mut DeltaScratch) {
        let DeltaScratch { together, both, qkv, gates, turns, fades } = delta;
        match self {
            Self::Apart(each) => {
                let [of_qkv, of_gates, of_turns, of_fades] = &**each;
                let each = [(of_qkv, qkv), (of_gates, gates), (of_turns, turns), (of_fades, fades)];
                Linear::forward_all(cpu, rows, x, each);
            }
            Self::ByGroup(each) => {
                let [first, second] = &**each;
                Linear::forward_all(cpu, rows, x, [(first, &mut *together), (second, &mut *both)]);
                let (groups, values, heads) = (sizes.groups, sizes.values(), sizes.groups * sizes.shared);
                let (qkv, gates) = (sized(qkv, rows * sizes.channels()), sized(gates, rows * values));
                let each = together.chunks_exact(groups * (sizes.group_channels() + values / groups));
                for ((row, qkv), gates) in
                    each.zip(qkv.chunks_exact_mut(sizes.channels())).zip(gates.chunks_exact_mut(values))
                {
                    take_apart(row, sizes, qkv, gates);
                }
                let (turns, fades) = (sized(turns, rows * heads), sized(fades, rows * heads));
                let parts = turns.chunks_exact_mut(sizes.shared).zip(fades.chunks_exact_mut(sizes.shared));
                for (both, (turns, fades)) in both.chunks_exact(2 * sizes.shared).zip(parts) {
                    turns.copy_from_slice(&both[..sizes.shared]);
                    fades.copy_from_slice(&both[sizes.shared..]);
                }
            }
        }
    }
}

/// A row of which each group's query, key, values and gates lie together.
fn take_apart(row: &[f32], sizes: &DeltaSizes, qkv: &mut [f32], gates: &mut [f32]) {
    let of_gates = sizes.shared * sizes.value_dim;
    let groups = row.chunks_exact(sizes.group_channels() + of_gates).zip(gates.chunks_exact_mut(of_gates));
    for (group, (mut row, gates)) in groups.enumerate() {
        for channels in sizes.channels_of(group) {
            let (some, rest) = row.split_at(channels.len());
            qkv[channels].copy_from_slice(some);
            row = rest;
        }
        gates.copy_from_slice(row);
    }
}

/// Weights of the convolution, group by group, of each the oldest token's first.
fn convolution(part: &Part<'_>, sizes: &DeltaSizes) -> Result<Vec<f32>, WeightsError> {
    let (kernel, width) = (sizes.kernel, sizes.group_channels());
    let tensor = part.stack("linear_attn.conv1d.weight", sizes.channels(), 1, kernel)?;
    let (mut all, mut of_channel) = (vec![0.0; sizes.channels() * kernel], vec![0.0; kernel]);
    for group in 0..sizes.groups {
        for (place, channel) in sizes.channels_of(group).into_iter().flatten().enumerate() {
            tensor.kept_row(channel, &mut of_channel)?;
            for (token, weight) in of_channel.iter().enumerate() {
                all[(group * kernel + token) * width + place] = *weight;
            }
        }
    }
    part.bytes.set(part.bytes.get() + 4 * all.len() as u64);
    Ok(all)
}

/// What comes of a row's inputs and of those before, which are in `tail`: sums in the order of tokens. The row's inputs are put
/// behind the others.
fn convolve(weights: &[f32], tail: &mut [f32], inputs: &[f32], out: &mut [f32]) {
    let width = inputs.len();
    let (of_tail, of_row) = weights.split_at(tail.len());
    out.fill(0.0);
    let before = of_tail.chunks_exact(width).zip(tail.chunks_exact(width));
    for (weights, inputs) in before.chain([(of_row, inputs)]) {
        for ((out, weight), input) in out.iter_mut().zip(weights).zip(inputs) {
            *out += weight * input;
        }
    }
    tail.copy_within(width.., 0);
    let last = tail.len() - width;
    tail[last..].copy_from_slice(inputs);
}

/// A token as one head of values sees it.
struct HeadToken<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    /// What the matrix is multiplied by.
    fade: f32,
    /// How far what it says for the key is turned towards the value.
    turn: f32,
}

impl HeadToken<'_> {
    /// Changes a head's matrix, `[channel of keys][channel of values]`, and writes what it says for the query then. Sums run in the
    /// order of keys' channels.
    fn change(&self, cpu: &Cpu, matrix: &mut [f32], said: &mut [f32]) {
        says(cpu, matrix, self.key, said);
        for (change, value) in said.iter_mut().zip(self.value) {
            *change = (value - self.fade * *change) * self.turn;
        }
        for (row, key) in matrix.chunks_exact_mut(said.len()).zip(self.key) {
            for (x, change) in row.iter_mut().zip(&*said) {
                *x = self.fade * *x + key * change;
            }
        }
        says(cpu, matrix, self.query, said);
    }
}

/// What a matrix says for a key.
fn says(cpu: &Cpu, matrix: &[f32], key: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    let rows = Matrix::new(bytemuck::cast_slice(matrix), Dtype::F32, key.len(), out.len());
    cpu.weighted_rows(key, key.len(), rows, out);
}

/// Divides by the length, and multiplies by `factor`; squares are added in lanes.
fn to_length_one(x: &mut [f32], factor: f32) {
    let mut lanes = [0.0; LANES];
    for eight in x.chunks(LANES) {
        for (lane, x) in lanes.iter_mut().zip(eight) {
            *lane += x * x;
        }
    }
    let scale = factor / (reduce(lanes) + EPSILON).sqrt();
    x.iter_mut().for_each(|x| *x *= scale);
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `ln(1 + e^x)`, which is x where x is large.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { libm::log1pf(exp(x)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Simd;

    /// By transformers' `torch_recurrent_gated_delta_rule`, with norms over queries and keys.
    #[test]
    fn a_state_is_that_of_transformers() {
        let queries = [1.0, 1.0, -0.625, -0.5, -0.5, -0.375, -0.5, 0.625, 0.625, 0.875, -0.875, 0.25];
        let keys = [-0.75, -0.625, -0.875, 0.0, 0.5, -0.5, -0.625, 0.5, 0.625, 0.125, -0.5, 0.75];
        let values = [0.25, -0.125, 0.0, 1.0, -0.125, 0.75];
        let expected = [-0.024_294_95, 0.012_147_47, 0.024_707_29, 0.182_137_58, -0.016_579_13, 0.134_620_26];
        let state = [
            -0.056_287_17,
            0.333_169_37,
            -0.024_044_02,
            -0.255_118_97,
            -0.018_174_38,
            -0.357_988_24,
            -0.025_575_63,
            0.324_127_73,
        ];
        let (rates, turns) = ([-0.125, -0.5, -0.25], [0.5, 0.75, 0.25]);
        let near = |found: &[f32], expected: &[f32]| {
            let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-6, "{found:?}, not {expected:?}");
        };
        for simd in Simd::all() {
            let cpu = Cpu::new(simd, 1).unwrap();
            let (mut matrix, mut said) = ([0.0; 8], [0.0; 2]);
            for (token, (rate, turn)) in rates.into_iter().zip(turns).enumerate() {
                let (mut query, mut key) = (queries[4 * token..][..4].to_vec(), keys[4 * token..][..4].to_vec());
                to_length_one(&mut query, 0.5);
                to_length_one(&mut key, 1.0);
                let value = &values[2 * token..][..2];
                let seen = HeadToken { query: &query, key: &key, value, fade: exp(rate), turn };
                seen.change(&cpu, &mut matrix, &mut said);
                near(&said, &expected[2 * token..][..2]);
            }
            near(&matrix, &state);
        }
    }

    #[test]
    fn a_convolution_goes_on_from_its_last_inputs() {
        // Two channels, three tokens.
        let weights = [0.5, -1.0, 0.25, 2.0, 1.0, 0.5];
        let inputs: [[f32; 2]; 3] = [[1.0, 2.0], [-3.0, 0.5], [4.0, -1.0]];
        let (mut tail, mut out) = ([0.0; 4], [0.0; 2]);
        inputs.iter().for_each(|inputs| convolve(&weights, &mut tail, inputs, &mut out));
        assert_eq!(tail, [-3.0, 0.5, 4.0, -1.0]);
        assert_eq!(out, [0.5 - 0.75 + 4.0, -2.0 + 1.0 - 0.5]);
    }
}
