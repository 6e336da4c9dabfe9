//! Shapes of public models by name, for planning clusters that are not there yet.

use tsnode_protocol::{Bytes, BytesPerToken, ModelShape, Tokens};

/// Blocks differ in their MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MlpKind {
    /// Gate, up and down (LLaMA, Qwen2).
    Gated,
    /// Up and down (OPT, BLOOM).
    Plain,
}

/// A model as the cost model sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// What tables and reports call it.
    pub name: String,
    /// Sizes of its layers.
    pub shape: ModelShape,
    /// Weights in the matrices of one block, each used once a token.
    pub layer_weights: f64,
    /// Bytes of an element of KV, and of activations within a host.
    pub element: f64,
    /// Bytes of an element of the activations that a stage hands on to the next.
    pub handed_on: f64,
}

/// Bytes of an element that peers' stages hand on: they compute, and send, in single precision.
pub const HANDED_ON: u64 = 4;

type ModelRow = (&'static str, u32, u32, u32, u32, u32, u32, u32, MlpKind);

/// Name, layers, hidden, MLP width, heads, KV heads, vocabulary, context, MLP: each model's public
/// `config.json`.
const TABLE: [ModelRow; 25] = [
    ("LLaMA-7B", 32, 4096, 11008, 32, 32, 32000, 2048, MlpKind::Gated),
    ("LLaMA-13B", 40, 5120, 13824, 40, 40, 32000, 2048, MlpKind::Gated),
    ("LLaMA-30B", 60, 6656, 17920, 52, 52, 32000, 2048, MlpKind::Gated),
    ("LLaMA-65B", 80, 8192, 22016, 64, 64, 32000, 2048, MlpKind::Gated),
    ("Llama-2-7B", 32, 4096, 11008, 32, 32, 32000, 4096, MlpKind::Gated),
    ("Llama-2-13B", 40, 5120, 13824, 40, 40, 32000, 4096, MlpKind::Gated),
    ("Llama-2-70B", 80, 8192, 28672, 64, 8, 32000, 4096, MlpKind::Gated),
    ("Llama-3-8B", 32, 4096, 14336, 32, 8, 128_256, 8192, MlpKind::Gated),
    ("Llama-3-70B", 80, 8192, 28672, 64, 8, 128_256, 8192, MlpKind::Gated),
    ("Llama-3.2-1B", 16, 2048, 8192, 32, 8, 128_256, 131_072, MlpKind::Gated),
    ("Llama-3.2-3B", 28, 3072, 8192, 24, 8, 128_256, 131_072, MlpKind::Gated),
    ("Qwen2-0.5B", 24, 896, 4864, 14, 2, 151_936, 32768, MlpKind::Gated),
    ("Qwen2-1.5B", 28, 1536, 8960, 12, 2, 151_936, 32768, MlpKind::Gated),
    ("Qwen2-7B", 28, 3584, 18944, 28, 4, 152_064, 32768, MlpKind::Gated),
    ("Qwen2-72B", 80, 8192, 29568, 64, 8, 152_064, 32768, MlpKind::Gated),
    ("OPT-1.3B", 24, 2048, 8192, 32, 32, 50272, 2048, MlpKind::Plain),
    ("OPT-2.7B", 32, 2560, 10240, 32, 32, 50272, 2048, MlpKind::Plain),
    ("OPT-6.7B", 32, 4096, 16384, 32, 32, 50272, 2048, MlpKind::Plain),
    ("OPT-13B", 40, 5120, 20480, 40, 40, 50272, 2048, MlpKind::Plain),
    ("OPT-30B", 48, 7168, 28672, 56, 56, 50272, 2048, MlpKind::Plain),
    ("OPT-66B", 64, 9216, 36864, 72, 72, 50272, 2048, MlpKind::Plain),
    ("OPT-175B", 96, 12288, 49152, 96, 96, 50272, 2048, MlpKind::Plain),
    ("BLOOM-7B1", 30, 4096, 16384, 32, 32, 250_880, 2048, MlpKind::Plain),
    ("BLOOM-176B", 70, 14336, 57344, 112, 112, 250_880, 2048, MlpKind::Plain),
    ("Mistral-7B", 32, 4096, 14336, 32, 8, 32000, 32768, MlpKind::Gated),
];

/// The model of this name, however its letters are cased; in 16 bit, activations too, as the papers' systems have them.
#[must_use]
pub fn by_name(name: &str) -> Option<Model> {
    let row = TABLE.iter().find(|row| row.0.eq_ignore_ascii_case(name))?;
    let &(name, layers, hidden, intermediate, heads, kv_heads, vocab, context, mlp) = row;
    let head_dim = hidden / heads;
    let matrices = match mlp {
        MlpKind::Gated => 3,
        MlpKind::Plain => 2,
    };
    let weights = layer_weights(hidden, heads * head_dim, kv_heads * head_dim, matrices, intermediate);
    let table = u64::from(vocab) * u64::from(hidden) * 2;
    let shape = ModelShape {
        layers,
        hidden,
        intermediate,
        heads,
        kv_heads,
        head_dim,
        vocab,
        context,
        layer_bytes: weights * 2,
        embed_bytes: table,
        // A head that shares the embedding's table still needs it where the last stage is.
        head_bytes: table,
        experts: None,
        whole: false,
        state_bytes: 0,
    };
    Some(Model { name: name.to_owned(), shape, layer_weights: weights as f64, element: 2.0, handed_on: 2.0 })
}

/// Names of all known models.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|row| row.0)
}

impl Model {
    /// A model some peer has, of the Llama family; of a mixture of experts, what a token passes. Its stages hand on what peers send.
    #[must_use]
    pub fn of_shape(name: String, shape: ModelShape, element: f64) -> Self {
        let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let weights = layer_weights(shape.hidden, q, kv, 3, shape.intermediate);
        Self { name, shape, layer_weights: weights as f64, element, handed_on: HANDED_ON as f64 }
    }

    /// A token's activations from one stage to the next.
    #[must_use]
    pub fn row(&self) -> Bytes {
        Bytes(f64::from(self.shape.hidden) * self.handed_on)
    }

    /// All weights, as stored.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.shape.stage_bytes(self.shape.all_layers()) as f64)
    }

    /// KV of one token in all layers.
    #[must_use]
    pub fn kv(&self) -> BytesPerToken {
        Bytes(self.kv_elements() * self.element).per_token()
    }

    /// Tokens whose KV takes as much memory as what a sequence keeps beside its own.
    #[must_use]
    pub fn state_tokens(&self) -> Tokens {
        Tokens(self.shape.state_bytes as f64 / (self.kv_elements() * self.element))
    }

    /// KV elements of one token in all layers.
    #[must_use]
    pub fn kv_elements(&self) -> f64 {
        self.shape.kv_elements_per_token_layer() as f64 * f64::from(self.shape.layers)
    }
}

fn layer_weights(hidden: u32, q: u32, kv: u32, mlp_matrices: u64, intermediate: u32) -> u64 {
    let [hidden, q, kv, intermediate] = [hidden, q, kv, intermediate].map(u64::from);
    2 * hidden * q + 2 * hidden * kv + mlp_matrices * hidden * intermediate
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published parameter counts.
    #[test]
    fn shapes_add_up_to_the_names() {
        let cases =
            [("llama-30b", 32.5), ("Llama-3-8B", 8.03), ("Llama-2-70B", 69.0), ("OPT-66B", 65.7), ("Qwen2-7B", 7.6)];
        for (name, billions) in cases {
            let model = by_name(name).unwrap();
            // OPT's head is its embedding.
            let head = if name.starts_with("OPT") { model.shape.head_bytes as f64 } else { 0.0 };
            let params = (model.bytes().0 - head) / 2e9;
            assert!((params / billions - 1.0).abs() < 0.01, "{name}: {params}");
        }
        // 1.597 MB of KV a token in fp16: ThunderServe's model, by arithmetic.
        assert!((by_name("LLaMA-30B").unwrap().kv_elements() * 2.0 - 1_597_440.0).abs() < 1.0);
        assert!(by_name("LLaMA-31B").is_none());
        assert_eq!(names().count(), TABLE.len());
    }
}
