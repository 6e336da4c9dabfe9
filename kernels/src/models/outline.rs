//! A stage as data: what a device that computes whole layers itself needs to know of it.

use crate::{
    config::{Activation, Clamped, Growth},
    cpu::Gate,
    engine::AttentionParams,
    linear::Weight,
    pages::StateLayout,
    ranks::RankOutputs,
    rope::{Rope, RopePairs},
    weights::Tensor,
};

/// What several GPUs do not compute together: each has some heads only.
pub(crate) const ROW_NORMS_TOGETHER: &str = "a norm over the queries of all heads, which several GPUs hold together,";
/// The same of layers with a state, which lies whole on one.
pub(crate) const STATES_TOGETHER: &str = "a state in place of keys and values, which several GPUs hold together,";

/// A stage of a family of rotary decoders.
pub(crate) struct Outline<'a> {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Table of tokens, if the stage begins the model, and what its rows are multiplied by.
    pub embed: Option<(&'a Tensor, f32)>,
    /// In their order.
    pub layers: Vec<LayerOutline<'a>>,
    /// If the stage ends the model.
    pub head: Option<HeadOutline<'a>>,
    /// Those that layers turn by.
    pub ropes: &'a [Rope],
    /// How what layers keep of a sequence beside keys and values lies in its pages.
    pub states: StateLayout,
    /// What of it is not in these data: such a stage can be looked at, and not be computed by them.
    pub lacks: Option<&'static str>,
}

/// A layer: what mixes tokens behind a norm, an MLP behind a norm; some norm what comes out, too.
pub(crate) struct LayerOutline<'a> {
    /// None in families that norm only what comes out.
    pub attention_norm: Option<NormOutline<'a>>,
    pub mixer: MixerOutline<'a>,
    pub attention_post_norm: Option<NormOutline<'a>>,
    pub mlp_norm: Option<NormOutline<'a>>,
    pub mlp: MlpOutline<'a>,
    pub mlp_post_norm: Option<NormOutline<'a>>,
    /// What comes out is multiplied by; 1 where nothing norms what comes out.
    pub factor: f32,
}

/// What mixes tokens.
pub(crate) enum MixerOutline<'a> {
    Attention(AttentionOutline<'a>),
    /// A state in place of keys and values.
    Delta(DeltaOutline<'a>),
}

impl<'a> LayerOutline<'a> {
    /// Its attention, if it has that.
    pub fn attention(&self) -> Option<&AttentionOutline<'a>> {
        match &self.mixer {
            MixerOutline::Attention(attention) => Some(attention),
            MixerOutline::Delta(_) => None,
        }
    }

    /// Matrices that rows are multiplied by: of which part, and which of its own. All experts' are those of one part.
    pub fn matrices(&self) -> Vec<((&'static str, usize), &'a Weight)> {
        let mut all = Vec::new();
        let mut add = |part: &'static str, weights: &[&'a Weight]| {
            all.extend(weights.iter().enumerate().map(|(place, weight)| ((part, place), *weight)));
        };
        match &self.mixer {
            MixerOutline::Attention(attention) => {
                add("attention", &attention.inputs.map(|input| input.weight));
                add("attention's output", &[attention.output.weight]);
            }
            MixerOutline::Delta(delta) => {
                let inputs: Vec<&'a Weight> = delta.inputs.iter().map(|input| input.weight).collect();
                add("delta rule", &inputs);
                add("delta rule's output", &[delta.output.weight]);
            }
        }
        match &self.mlp {
            MlpOutline::Gated(mlp) => add("MLP", &mlp.matrices()),
            MlpOutline::Experts(experts) => {
                add("router", &[experts.router]);
                for expert in &experts.experts {
                    add("expert", expert);
                }
                if let Some(shared) = &experts.shared {
                    add("shared expert", &shared.mlp.matrices());
                    add("shared expert's gate", shared.gate.as_slice());
                }
                if let Some(beside) = &experts.beside {
                    add("MLP", &beside.mlp.matrices());
                }
            }
        }
        all
    }
}

/// An RMS norm.
#[derive(Clone, Copy)]
pub(crate) struct NormOutline<'a> {
    pub weight: &'a [f32],
    pub eps: f32,
}

/// A product, and perhaps a bias.
#[derive(Clone, Copy)]
pub(crate) struct LinearOutline<'a> {
    pub weight: &'a Weight,
    pub bias: Option<&'a [f32]>,
    /// Those of all ranks' that weight and bias are of.
    pub outputs: &'a RankOutputs,
}

/// Attention.
pub(crate) struct AttentionOutline<'a> {
    /// Queries, keys and values; keys once more where those are the values.
    pub inputs: [LinearOutline<'a>; 3],
    /// Whether behind each head's rows of the matrix for queries come as many for what gates what it mixes.
    pub is_gated: bool,
    /// Whether values have a matrix of their own: else they are keys, before norms and turning.
    pub has_values: bool,
    /// The epsilon of a norm without weights over each head's values.
    pub value_norm: Option<f32>,
    pub output: LinearOutline<'a>,
    /// Of each head's queries and keys.
    pub head_norms: Option<[NormOutline<'a>; 2]>,
    /// Of all heads' queries together, and of their keys.
    pub row_norms: Option<[NormOutline<'a>; 2]>,
    pub head_dim: usize,
    pub look: AttentionParams,
    /// Which of the stage's ropes.
    pub rope: usize,
    pub pairs: RopePairs,
    /// How queries grow with their position, before they turn.
    pub growth: Option<Growth>,
    /// Scores of a token without a value, of each query head of the rank.
    pub sinks: Option<&'a [f32]>,
}

/// Sizes of a gated delta rule. A group is a head of queries and keys, and the heads of values that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeltaSizes {
    pub groups: usize,
    /// Heads of values in a group.
    pub shared: usize,
    /// Channels of a head of queries and keys, and of one of values.
    pub key_dim: usize,
    pub value_dim: usize,
    /// Tokens that the convolution sees.
    pub kernel: usize,
}

/// A gated delta rule behind a short convolution.
pub(crate) struct DeltaOutline<'a> {
    /// For queries, keys and values, for gates, for how states turn, and for how they fade; or with `by_group` one for the first two and
    /// one for the others, group by group.
    pub inputs: Vec<LinearOutline<'a>>,
    pub by_group: bool,
    /// `[group][token][channel]`, the row's own token last.
    pub convolution: &'a [f32],
    /// How fast states fade, of each head of values, and what is added to that before.
    pub rates: &'a [f32],
    pub rate_biases: &'a [f32],
    /// Of what each head of values says.
    pub norm: NormOutline<'a>,
    pub output: LinearOutline<'a>,
    pub sizes: DeltaSizes,
    /// The layer's place among those with a state.
    pub place: usize,
}

/// What stands behind a layer's second norm.
pub(crate) enum MlpOutline<'a> {
    Gated(GatedOutline<'a>),
    Experts(Box<ExpertsOutline<'a>>),
}

/// A gated MLP.
pub(crate) struct GatedOutline<'a> {
    /// Gate and up.
    pub inputs: [LinearOutline<'a>; 2],
    pub down: LinearOutline<'a>,
    pub activation: Activation,
}

impl<'a> GatedOutline<'a> {
    /// Gate, up and down.
    fn matrices(&self) -> [&'a Weight; 3] {
        let [gate, up] = self.inputs.map(|input| input.weight);
        [gate, up, self.down.weight]
    }
}

/// A mixture of experts.
pub(crate) struct ExpertsOutline<'a> {
    /// What a row scores at each expert. Rows are multiplied by it as they are.
    pub router: &'a Weight,
    pub router_bias: Option<&'a [f32]>,
    /// Where chances are a sigmoid each, not the softmax of all: what is added to choose by, and what parts are multiplied by.
    pub sigmoid: Option<(&'a [f32], f32)>,
    /// How many a row passes.
    pub used: usize,
    /// Whether their chances are divided by their sum.
    pub normed: bool,
    /// What parts are multiplied by in the end, expert by expert.
    pub factors: Option<&'a [f32]>,
    /// Gate, up and down of each.
    pub experts: Vec<[&'a Weight; 3]>,
    pub act: Gate,
    /// Of gates that end somewhere.
    pub clamped: Option<Clamped>,
    /// Of gate, up and down of each.
    pub biases: Option<Vec<[&'a [f32]; 3]>>,
    /// Those of all ranks' that gates and ups are of, and downs.
    pub outputs: [&'a RankOutputs; 2],
    /// The one that all rows pass.
    pub shared: Option<SharedExpertOutline<'a>>,
    /// Where it stands beside an MLP.
    pub beside: Option<BesideOutline<'a>>,
    /// What of it is not in these data.
    pub lacks: Option<&'static str>,
}

/// An expert that all rows pass, and what a row scores there: the sigmoid of that is how much of it counts, or all does.
pub(crate) struct SharedExpertOutline<'a> {
    pub mlp: GatedOutline<'a>,
    pub gate: Option<&'a Weight>,
}

/// An MLP that a mixture stands beside (Gemma 4): both get the rows as they are, normed for each; what both make is normed and added.
pub(crate) struct BesideOutline<'a> {
    pub mlp: GatedOutline<'a>,
    /// Before the router, before the experts, and behind them.
    pub router_norm: NormOutline<'a>,
    pub norm: NormOutline<'a>,
    pub post_norm: NormOutline<'a>,
    /// Behind the MLP.
    pub mlp_post_norm: NormOutline<'a>,
}

/// What makes logits.
pub(crate) struct HeadOutline<'a> {
    pub norm: NormOutline<'a>,
    pub linear: LinearOutline<'a>,
    /// Largest size of a logit, approached smoothly.
    pub cap: Option<f32>,
}
