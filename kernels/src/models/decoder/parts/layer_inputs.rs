//! Inputs of each layer (Gemma 4 E2B and E4B): they follow of a token alone, and each layer gates its own into what it made.

use super::{
    super::{LayerStep, Scratch},
    Linear, Part, RmsNorm, act,
};
use crate::{
    config::{Activation, LayerInputs},
    cpu::Cpu,
    engine::Attend,
    models::sized,
    weights::{Tensor, WeightsError},
};
use std::f32::consts::FRAC_1_SQRT_2;

/// What makes those of all layers: a table by token, and a matrix by which its embedding is multiplied.
pub(in crate::models) struct InputTable {
    /// `[token][layer][number]`, read row by row where it lies.
    table: Tensor,
    projection: Linear,
    /// Of what the matrix made, layer by layer.
    norm: RmsNorm,
    /// What the table's numbers are multiplied by.
    factor: f32,
    layers: usize,
    width: usize,
}

impl InputTable {
    pub(in crate::models) fn load(part: &Part<'_>, inputs: &LayerInputs) -> Result<Self, WeightsError> {
        let (c, LayerInputs { width, tokens }) = (part.config, *inputs);
        let all = c.input_numbers();
        let norm = part.norm_over("per_layer_projection_norm", width)?;
        // What is normed would be divided by the root of the hidden width, and what comes out of both halves by that of two.
        let norm = RmsNorm { eps: norm.eps * c.hidden as f32, ..norm }.scaled(FRAC_1_SQRT_2);
        Ok(Self {
            table: part.matrix("embed_tokens_per_layer.weight", tokens, all)?,
            projection: part.linear("per_layer_model_projection", part.outputs(all), c.hidden)?,
            norm,
            factor: (width as f32).sqrt() * FRAC_1_SQRT_2,
            layers: c.layers,
            width,
        })
    }

    pub(in crate::models) fn table(&self) -> &Tensor {
        &self.table
    }

    /// Makes `[layer][row][number]` of the rows that enter the first layer.
    pub(in crate::models) fn forward(&self, cpu: &Cpu, hidden: &[f32], attend: &Attend<'_>, s: &mut Scratch) {
        let (rows, all) = (attend.positions().len(), self.layers * self.width);
        let Scratch { inputs, mixed, gate, up, .. } = s;
        self.projection.forward(cpu, rows, hidden, mixed);
        attend.gather(rows, mixed);
        self.norm.forward(cpu, mixed, gate);
        let of_token = sized(up, all);
        let inputs = sized(inputs, rows * all);
        for (row, (made, token)) in gate.chunks_exact(all).zip(attend.tokens()).enumerate() {
            self.table.widen_row(token.0 as usize, of_token);
            let each = made.chunks_exact(self.width).zip(of_token.chunks_exact(self.width)).enumerate();
            for (layer, (made, said)) in each {
                let input = &mut inputs[(layer * rows + row) * self.width..][..self.width];
                for ((input, made), said) in input.iter_mut().zip(made).zip(said) {
                    *input = made + self.factor * said;
                }
            }
        }
    }
}

/// A layer's own: what came out gates them, and they are added to it.
pub(in crate::models) struct GatedInput {
    gate: Linear,
    projection: Linear,
    norm: RmsNorm,
    activation: Activation,
}

impl GatedInput {
    pub(in crate::models) fn load(part: &Part<'_>, inputs: &LayerInputs) -> Result<Self, WeightsError> {
        let c = part.config;
        Ok(Self {
            gate: part.linear("per_layer_input_gate", part.outputs(inputs.width), c.hidden)?,
            projection: part.linear("per_layer_projection", part.outputs(c.hidden), inputs.width)?,
            norm: part.norm("post_per_layer_input_norm")?,
            activation: c.activation,
        })
    }

    /// Adds to `hidden` what becomes of the layer's inputs.
    pub(in crate::models) fn forward(&self, step: &LayerStep<'_, '_>, hidden: &mut [f32], s: &mut Scratch) {
        let LayerStep { cpu, rows, layer, .. } = *step;
        self.gate.forward(cpu, rows, hidden, &mut s.gate);
        step.attend.gather(rows, &mut s.gate);
        let numbers = s.gate.len();
        cpu.gate_mul(act(self.activation), &mut s.gate, &s.inputs[layer * numbers..][..numbers]);
        self.projection.forward(cpu, rows, &s.gate, &mut s.out);
        step.attend.gather(rows, &mut s.out);
        self.norm.forward(cpu, &s.out, &mut s.normed);
        cpu.add(hidden, &s.normed);
    }
}
