//! MLPs whose one half gates the other.

use super::{
    super::{LayerStep, Scratch},
    Linear, Part, act,
};
use crate::{
    config::Activation,
    cpu::Cpu,
    models::{ROWS_OF_MLP, outline::GatedOutline, sized},
    ranks::RankOutputs,
    weights::WeightsError,
};

/// An MLP whose one half gates the other.
pub(in crate::models) struct GatedMlp {
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl GatedMlp {
    /// From a matrix each for gate and up.
    pub(in crate::models) fn load(part: &Part<'_>) -> Result<Self, WeightsError> {
        Self::load_at(part, "mlp", part.config.intermediate)
    }

    /// The one called `name`, so wide.
    pub(in crate::models) fn load_at(part: &Part<'_>, name: &str, width: usize) -> Result<Self, WeightsError> {
        let linear = |of: &str| part.linear(&format!("{name}.{of}"), part.outputs(width), part.config.hidden);
        let inputs = [linear("gate_proj")?, linear("up_proj")?];
        Self::with_inputs(part, inputs, (&format!("{name}.down_proj"), width))
    }

    /// From one matrix with the rows of gate and up.
    pub(in crate::models) fn load_fused(part: &Part<'_>) -> Result<Self, WeightsError> {
        Self::load_fused_as(part, ["mlp.gate_up_proj", "mlp.down_proj"])
    }

    /// The same under other names.
    pub(in crate::models) fn load_fused_as(part: &Part<'_>, [both, down]: [&str; 2]) -> Result<Self, WeightsError> {
        let c = part.config;
        let inputs = part.fused(both, [(); 2].map(|()| part.outputs(c.intermediate)), c.hidden)?;
        Self::with_inputs(part, inputs, (down, c.intermediate))
    }

    fn with_inputs(
        part: &Part<'_>,
        [gate, up]: [Linear; 2],
        (down, width): (&str, usize),
    ) -> Result<Self, WeightsError> {
        let c = part.config;
        Ok(Self { gate, up, down: part.linear(down, part.outputs(c.hidden), width)?, activation: c.activation })
    }

    pub(in crate::models) fn outline(&self) -> GatedOutline<'_> {
        GatedOutline {
            inputs: [&self.gate, &self.up].map(Linear::outline),
            down: self.down.outline(),
            activation: self.activation,
        }
    }

    /// Some rows at a time: what lies between the matrices is the widest of all, and is not kept for more.
    pub(in crate::models) fn forward(&self, step: &LayerStep<'_, '_>, s: &mut Scratch) {
        let (rows, width) = (step.rows, self.down.outputs.mine.len());
        let inputs = s.normed.len() / rows.max(1);
        let Scratch { normed, out, gate, up, .. } = s;
        let together = rows.clamp(1, ROWS_OF_MLP);
        let each = normed.chunks(together * inputs).zip(sized(out, rows * width).chunks_mut(together * width));
        for (x, out) in each {
            self.some_rows(step, (x.len() / inputs, x), out, (&mut *gate, &mut *up));
        }
        step.attend.gather(rows, out);
    }

    /// The rank's outputs of rows `x`.
    pub(in crate::models::decoder) fn some_rows(
        &self,
        step: &LayerStep<'_, '_>,
        (rows, x): (usize, &[f32]),
        out: &mut [f32],
        (gate, up): (&mut Vec<f32>, &mut Vec<f32>),
    ) {
        self.gate(step.cpu, rows, x, gate, up);
        step.attend.gather(rows, gate);
        self.down.apply(step.cpu, gate, out);
    }

    /// What comes out.
    pub(in crate::models::decoder) fn outputs(&self) -> &RankOutputs {
        &self.down.outputs
    }

    /// `gate` is what goes into the last matrix.
    fn gate(&self, cpu: &Cpu, rows: usize, x: &[f32], gate: &mut Vec<f32>, up: &mut Vec<f32>) {
        if self.gate.bias.is_none() && self.up.bias.is_none() {
            let [gate, up] = [(&self.gate, gate), (&self.up, up)]
                .map(|(linear, out)| (linear.weight.operand(cpu), sized(out, rows * linear.outputs.mine.len())));
            cpu.gated(x, gate, up, act(self.activation));
        } else {
            Linear::forward_all(cpu, rows, x, [(&self.gate, &mut *gate), (&self.up, &mut *up)]);
            cpu.gate_mul(act(self.activation), gate, up);
        }
    }
}
