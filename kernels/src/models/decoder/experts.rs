//! Mixtures of experts: MLPs of which a row passes some, as a router chooses for it (Shazeer et al. 2017).
//!
//! A row's outputs do not depend on what rows it is computed with: its experts are chosen by its own chances, of which equal
//! ones go to the lower number, and what they make of it is added in the order of their numbers. Rows that pass one expert
//! are multiplied together, however many there are.

mod stacked;

use super::{
    LayerStep, Scratch,
    parts::{GatedMlp, Part},
};
use crate::{
    config::{Clamped, Mixture},
    cpu::{Cpu, Gate, plain::exp},
    linear::Weight,
    models::{
        ROWS_OF_MLP, add, add_bias,
        outline::{ExpertsOutline, MlpOutline, SharedExpertOutline},
        sized,
    },
    ranks::RankOutputs,
    weights::WeightsError,
};
use stacked::{Stack, inputs};

/// What stands behind a layer's second norm.
pub(in crate::models) enum Mlp {
    Gated(GatedMlp),
    Experts(Box<MoeBlock>),
}

impl Mlp {
    /// A mixture in the layers that have one, an MLP in the others.
    pub(in crate::models) fn load(part: &Part<'_>) -> Result<Self, WeightsError> {
        Ok(match part.mixture() {
            Some(mixture) => Self::Experts(Box::new(MoeBlock::load(part, mixture)?)),
            None => Self::Gated(GatedMlp::load(part)?),
        })
    }

    pub(in crate::models) fn forward(&self, step: &LayerStep<'_, '_>, s: &mut Scratch) {
        match self {
            Self::Gated(gated) => gated.forward(step, s),
            Self::Experts(experts) => experts.forward(step, s),
        }
    }

    pub(in crate::models) fn outline(&self) -> MlpOutline<'_> {
        match self {
            Self::Gated(gated) => MlpOutline::Gated(gated.outline()),
            Self::Experts(experts) => MlpOutline::Experts(Box::new(experts.outline())),
        }
    }
}

impl From<GatedMlp> for Mlp {
    fn from(gated: GatedMlp) -> Self {
        Self::Gated(gated)
    }
}

/// A mixture of experts, as far as a rank has it: the router whole, a part of each expert's outputs.
pub(in crate::models) struct MoeBlock {
    router: Weight,
    /// Added to its outputs.
    router_bias: Option<Vec<f32>>,
    /// Where chances are by themselves: what is added to each to choose by it, and what those used are multiplied by.
    sigmoid: Option<(Vec<f32>, f32)>,
    experts: Vec<Expert>,
    clamped: Option<Clamped>,
    shared: Option<SharedExpert>,
    used: usize,
    normed: bool,
    /// What the parts of those used are multiplied by in the end, expert by expert.
    factors: Option<Vec<f32>>,
    /// Whether it is chosen by other rows than experts get.
    apart: bool,
    /// How experts' gates bend, where they do not end anywhere.
    act: Gate,
    /// Of an expert's gate, as all are.
    width: RankOutputs,
    /// Of what comes out.
    hidden: RankOutputs,
}

/// The matrices of one.
struct Expert {
    gate: Weight,
    up: Weight,
    down: Weight,
    /// Of the three, in that order.
    biases: Option<[Vec<f32>; 3]>,
}

/// The one that all rows pass, and how much of it they get.
struct SharedExpert {
    mlp: GatedMlp,
    gate: Option<Weight>,
}

/// Which expert a row passes, and how much of what it makes counts.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RoutedRow {
    expert: u32,
    row: u32,
    part: f32,
}

/// Memory kept from step to step.
#[derive(Default)]
pub(super) struct MoeScratch {
    /// Chances, `[row][expert]`.
    chances: Vec<f32>,
    /// Those of a row, where what chooses is another number.
    scores: Vec<f32>,
    /// By expert, then by row.
    passed: Vec<RoutedRow>,
    /// Rows as often as they pass an expert, in that order.
    x: Vec<f32>,
    /// What it makes of each.
    y: Vec<f32>,
}

/// Rows that an expert has on average, up to which threads take whole experts: meeting for each costs more than it saves.
const FEW: usize = 4;

/// Under which names files have a mixture: its block, and gate, up and down of an expert.
const NAMES: [(&str, [&str; 3]); 2] =
    [("mlp", ["gate_proj", "up_proj", "down_proj"]), ("block_sparse_moe", ["w1", "w3", "w2"])];

impl MoeBlock {
    fn load(part: &Part<'_>, mixture: &Mixture) -> Result<Self, WeightsError> {
        let Mixture { experts, used, width, shared, normed, clamped, sigmoid, .. } = *mixture;
        let hidden = part.hidden();
        let router = |block: &str| format!("{block}.gate.weight");
        let (block, names) = NAMES.into_iter().find(|(block, _)| part.has(&router(block))).unwrap_or(NAMES[0]);
        let outputs = [width, width, hidden].map(|all| part.outputs(all));
        let shared = shared.map(|width| SharedExpert::load(part, width)).transpose()?;
        let correction = |scale| {
            // GGUF files have it as a bias of its own.
            let own = format!("{block}.gate.e_score_correction_bias");
            let names = [format!("{own}.bias"), own];
            let name = names.iter().find(|name| part.has(name)).unwrap_or(&names[1]);
            let bias = part.whole_vector(name, experts);
            bias.map(|bias| (bias, scale))
        };
        let sigmoid = sigmoid.map(correction).transpose()?;
        // gpt-oss's name for it, but in GGUF files.
        let own = "mlp.router.weight";
        let router = if part.has(own) { own.to_owned() } else { router(block) };
        let bias = router.replace(".weight", ".bias");
        let bias = if part.has(&bias) { Some(part.whole_vector(&bias, experts)?) } else { None };
        Ok(Self {
            router: part.exact(&router, experts, hidden)?,
            router_bias: bias,
            sigmoid,
            clamped,
            experts: Expert::load_all(part, &format!("{block}.experts"), names, experts, &outputs)?,
            shared,
            used,
            normed,
            factors: None,
            apart: false,
            act: part.gate(),
            width: outputs[0].clone(),
            hidden: outputs[2].clone(),
        })
    }

    /// Gemma 4's, which stand beside an MLP: chosen by rows of their own, with a factor of what each makes.
    pub(in crate::models) fn load_apart(part: &Part<'_>, mixture: &Mixture) -> Result<Self, WeightsError> {
        let Mixture { experts, used, width, normed, .. } = *mixture;
        let hidden = part.hidden();
        let outputs = [width, width, hidden].map(|all| part.outputs(all));
        Ok(Self {
            router: part.exact("router.proj.weight", experts, hidden)?,
            router_bias: None,
            sigmoid: None,
            experts: Expert::load_all(part, "experts", NAMES[0].1, experts, &outputs)?,
            clamped: None,
            shared: None,
            used,
            normed,
            factors: Some(part.whole_vector("router.per_expert_scale", experts)?),
            apart: true,
            act: part.gate(),
            width: outputs[0].clone(),
            hidden: outputs[2].clone(),
        })
    }

    pub(in crate::models) fn outline(&self) -> ExpertsOutline<'_> {
        ExpertsOutline {
            router: &self.router,
            router_bias: self.router_bias.as_deref(),
            sigmoid: self.sigmoid.as_ref().map(|(correction, scale)| (correction.as_slice(), *scale)),
            used: self.used,
            normed: self.normed,
            factors: self.factors.as_deref(),
            experts: self.experts.iter().map(|expert| [&expert.gate, &expert.up, &expert.down]).collect(),
            act: self.act,
            clamped: self.clamped,
            biases: self.experts.iter().map(Expert::bias_outlines).collect(),
            outputs: [&self.width, &self.hidden],
            shared: self.shared.as_ref().map(SharedExpert::outline),
            beside: None,
            lacks: self.outline_lacks(),
        }
    }

    /// What of it is in no outline.
    fn outline_lacks(&self) -> Option<&'static str> {
        let biased = self.experts.iter().any(|expert| expert.biases.is_some());
        (self.clamped.is_none() && biased).then_some("experts with biases whose gates end nowhere")
    }

    /// Some rows at a time, as MLPs have them.
    pub(in crate::models) fn forward(&self, step: &LayerStep<'_, '_>, s: &mut Scratch) {
        let (rows, width) = (step.rows, self.hidden.mine.len());
        let inputs = s.normed.len() / rows.max(1);
        let Scratch { normed, routed, out, gate, up, work, .. } = s;
        let (normed, routed) = (&*normed, if self.apart { &*routed } else { &*normed });
        let together = rows.clamp(1, ROWS_OF_MLP);
        let some = together * inputs;
        let each = normed.chunks(some).zip(routed.chunks(some));
        for ((x, by), out) in each.zip(sized(out, rows * width).chunks_mut(together * width)) {
            self.choose(step.cpu, by, x.len() / inputs, work);
            self.mix(step, (inputs, x), out, (&mut *gate, &mut *up, &mut *work));
            if let Some(shared) = &self.shared {
                shared.add(step, x, out, (&mut *gate, &mut *up, &mut *work));
            }
        }
        step.attend.gather(rows, out);
    }

    /// The experts that each row passes, by its chances.
    fn choose(&self, cpu: &Cpu, x: &[f32], rows: usize, work: &mut MoeScratch) {
        let all = self.experts.len();
        let chances = sized(&mut work.chances, rows * all);
        self.router.apply(cpu, x, chances);
        if let Some(bias) = &self.router_bias {
            add_bias(chances, bias);
        }
        work.passed.clear();
        for (row, chances) in chances.chunks_exact_mut(all).enumerate() {
            let from = work.passed.len();
            match &self.sigmoid {
                None => cpu.softmax(chances),
                Some((correction, _)) => {
                    let scores = sized(&mut work.scores, all);
                    for ((chance, more), score) in chances.iter_mut().zip(correction).zip(scores) {
                        *score = sigmoid(*chance);
                        *chance = *score + more;
                    }
                }
            }
            for _ in 0..self.used {
                let (expert, best) = take_best(chances);
                // What is added decides who is chosen, not how much of it counts.
                let part = if self.sigmoid.is_some() { work.scores[expert] } else { best };
                work.passed.push(RoutedRow { expert: expert as u32, row: row as u32, part });
            }
            if self.normed {
                let chosen = &mut work.passed[from..];
                let sum: f32 = chosen.iter().map(|passed| passed.part).sum();
                chosen.iter_mut().for_each(|passed| passed.part /= sum);
            }
            if let Some((_, scale)) = self.sigmoid {
                work.passed[from..].iter_mut().for_each(|passed| passed.part *= scale);
            }
            if let Some(factors) = &self.factors {
                work.passed[from..].iter_mut().for_each(|passed| passed.part *= factors[passed.expert as usize]);
            }
        }
        work.passed.sort_unstable_by_key(|passed| (passed.expert, passed.row));
    }

    /// What experts make of their rows, added up: whole experts are shared out among threads where they are many with few rows.
    fn mix(
        &self,
        step: &LayerStep<'_, '_>,
        (inputs, x): (usize, &[f32]),
        out: &mut [f32],
        (gate, up, work): (&mut Vec<f32>, &mut Vec<f32>, &mut MoeScratch),
    ) {
        let MoeScratch { passed, x: some, y, .. } = work;
        let (cpu, count) = (step.cpu, passed.len());
        let groups = || passed.chunk_by(|a, b| a.expert == b.expert);
        let (mine, all, width) = (self.width.mine.len(), self.width.all, self.hidden.mine.len());
        let [mut xs, mut gates, mut ups] =
            [(some, inputs), (&mut *gate, mine), (up, mine)].map(|(buffer, width)| sized(buffer, count * width));
        let task = |group: &'_ [RoutedRow]| {
            let rows = group.len();
            (cut(&mut xs, rows * inputs), cut(&mut gates, rows * mine), cut(&mut ups, rows * mine))
        };
        let mut tasks: Vec<_> = groups().zip(groups().map(task)).collect();
        let few = count <= FEW * tasks.len();
        cpu.each(&mut tasks, few, |(group, (some, gated, up))| {
            for (passed, row) in group.iter().zip(some.chunks_exact_mut(inputs)) {
                row.copy_from_slice(&x[passed.row as usize * inputs..][..inputs]);
            }
            self.experts[group[0].expert as usize].gate(cpu, some, (gated, up), self.act, self.clamped);
        });
        drop(tasks);
        // Once for all experts: their gates are side by side like rows.
        step.attend.gather(count, gate);
        let (mut gates, mut ys) = (&gate[..], sized(y, count * width));
        let task = |group: &'_ [RoutedRow]| {
            let (gated, rest) = gates.split_at(group.len() * all);
            gates = rest;
            (gated, cut(&mut ys, group.len() * width))
        };
        let mut tasks: Vec<_> = groups().zip(groups().map(task)).collect();
        cpu.each(&mut tasks, few, |(group, (gated, y))| {
            self.experts[group[0].expert as usize].down(cpu, gated, y);
        });
        drop(tasks);
        out.fill(0.0);
        for (passed, y) in passed.iter().zip(y.chunks_exact(width)) {
            add_part(&mut out[passed.row as usize * width..][..width], y, passed.part);
        }
    }
}

impl Expert {
    /// Those of a layer: each in tensors of its own, as models are published, or all in one, as GGUF files and
    /// transformers 5 have them.
    fn load_all(
        part: &Part<'_>,
        block: &str,
        names: [&str; 3],
        count: usize,
        outputs: &[RankOutputs; 3],
    ) -> Result<Vec<Self>, WeightsError> {
        let inputs = inputs(outputs);
        let stacks = Stack::find(part, block, names, count, outputs)?;
        let one = |expert: usize| {
            let weight = |which: usize| match &stacks {
                Some(stacks) => {
                    Ok(part.expert(&stacks[which].tensor, stacks[which].first_row(expert), &outputs[which]))
                }
                None => {
                    let name = format!("{block}.{expert}.{}.weight", names[which]);
                    let tensor = part.matrix(&name, outputs[which].all, inputs[which])?;
                    Ok(part.expert(&tensor, 0, &outputs[which]))
                }
            };
            let biases = Self::biases(part, block, names, count, (expert, outputs))?;
            Ok(Self { gate: weight(0)?, up: weight(1)?, down: weight(2)?, biases })
        };
        (0..count).map(one).collect()
    }

    /// The rank's part of an expert's biases, if there are any: GGUF files have them by matrix, gpt-oss's own files those of
    /// gate and up in turn.
    fn biases(
        part: &Part<'_>,
        block: &str,
        names: [&str; 3],
        count: usize,
        (expert, outputs): (usize, &[RankOutputs; 3]),
    ) -> Result<Option<[Vec<f32>; 3]>, WeightsError> {
        let row = |name: &str, len: usize| -> Result<Vec<f32>, WeightsError> {
            let mut all = vec![0.0; len];
            part.matrix(name, count, len)?.kept_row(expert, &mut all)?;
            Ok(all)
        };
        let both = format!("{block}.gate_up_proj_bias");
        let separate = names.map(|name| format!("{block}.{name}.bias"));
        let all = if part.has(&both) {
            let all = row(&both, 2 * outputs[0].all)?;
            let half = |from: usize| all.iter().skip(from).step_by(2).copied().collect();
            [half(0), half(1), row(&format!("{block}.down_proj_bias"), outputs[2].all)?]
        } else if separate.iter().any(|name| part.has(name)) {
            let [gate, up, down] = &separate;
            [row(gate, outputs[0].all)?, row(up, outputs[1].all)?, row(down, outputs[2].all)?]
        } else {
            return Ok(None);
        };
        let mut mine = all;
        for (mine, outputs) in mine.iter_mut().zip(outputs) {
            *mine = mine[outputs.mine.clone()].to_vec();
            part.count_numbers(mine.len());
        }
        Ok(Some(mine))
    }

    /// What goes into its last matrix, in place of what its gate makes of the rows.
    fn gate(&self, cpu: &Cpu, x: &[f32], (gate, up): (&mut [f32], &mut [f32]), act: Gate, clamped: Option<Clamped>) {
        let operands = [&self.gate, &self.up].map(|weight| weight.operand(cpu));
        let [first, second] = operands;
        if let (None, None) = (&self.biases, clamped) {
            return cpu.gated(x, (first, gate), (second, up), act);
        }
        cpu.products(x, [(first, &mut *gate), (second, &mut *up)]);
        if let Some([of_gate, of_up, _]) = &self.biases {
            add_bias(gate, of_gate);
            add_bias(up, of_up);
        }
        match clamped {
            None => cpu.gate_mul(act, gate, up),
            Some(Clamped { sharpness, limit }) => {
                for (gate, up) in gate.iter_mut().zip(up) {
                    let (open, up) = (gate.min(limit), up.clamp(-limit, limit));
                    *gate = open / (1.0 + exp(-sharpness * open)) * (up + 1.0);
                }
            }
        }
    }

    fn bias_outlines(&self) -> Option<[&[f32]; 3]> {
        self.biases.as_ref().map(|biases| biases.each_ref().map(Vec::as_slice))
    }

    fn down(&self, cpu: &Cpu, gated: &[f32], y: &mut [f32]) {
        self.down.apply(cpu, gated, y);
        if let Some([.., bias]) = &self.biases {
            add_bias(y, bias);
        }
    }
}

impl SharedExpert {
    fn load(part: &Part<'_>, width: usize) -> Result<Self, WeightsError> {
        // DeepSeek's and GLM's counts for all rows in full, and may be several in one.
        let whole = "mlp.shared_experts";
        if part.has(&format!("{whole}.down_proj.weight")) {
            return Ok(Self { mlp: GatedMlp::load_at(part, whole, width)?, gate: None });
        }
        let mlp = GatedMlp::load_at(part, "mlp.shared_expert", width)?;
        Ok(Self { mlp, gate: Some(part.exact_row("mlp.shared_expert_gate.weight", part.hidden())?) })
    }

    fn outline(&self) -> SharedExpertOutline<'_> {
        SharedExpertOutline { mlp: self.mlp.outline(), gate: self.gate.as_ref() }
    }

    /// Adds what it makes of the rows, as much of it as its own gate says.
    fn add(
        &self,
        step: &LayerStep<'_, '_>,
        x: &[f32],
        out: &mut [f32],
        (gate, up, work): (&mut Vec<f32>, &mut Vec<f32>, &mut MoeScratch),
    ) {
        let width = self.mlp.outputs().mine.len();
        let rows = x.len() / self.mlp.outputs().all.max(1);
        let y = sized(&mut work.y, rows * width);
        self.mlp.some_rows(step, (rows, x), y, (gate, up));
        let Some(gate) = &self.gate else { return add(out, y) };
        let parts = sized(&mut work.chances, rows);
        gate.apply(step.cpu, x, parts);
        for ((out, y), part) in out.chunks_exact_mut(width).zip(y.chunks_exact(width)).zip(parts) {
            add_part(out, y, sigmoid(*part));
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The best chance and whose it is, the first of equal ones. It is no chance any more.
fn take_best(chances: &mut [f32]) -> (usize, f32) {
    let (mut at, mut best) = (0, f32::NEG_INFINITY);
    for (expert, chance) in chances.iter().enumerate() {
        if *chance > best {
            (at, best) = (expert, *chance);
        }
    }
    chances[at] = f32::NEG_INFINITY;
    (at, best)
}

/// The first numbers of what is left.
fn cut<'a>(rest: &mut &'a mut [f32], count: usize) -> &'a mut [f32] {
    let (some, more) = std::mem::take(rest).split_at_mut(count);
    *rest = more;
    some
}

/// `out[i] += part * y[i]`.
fn add_part(out: &mut [f32], y: &[f32], part: f32) {
    for (out, y) in out.iter_mut().zip(y) {
        *out += part * y;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_chances_the_lower_number_is_taken() {
        let mut chances = [0.1, 0.3, 0.2, 0.3, 0.1];
        let taken: Vec<usize> = (0..4).map(|_| take_best(&mut chances).0).collect();
        assert_eq!(taken, [1, 3, 2, 0]);
    }
}
