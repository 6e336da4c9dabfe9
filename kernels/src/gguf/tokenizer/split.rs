//! How a text is cut into words before bytes are merged, by llama.cpp's names for the ways models do it.

use super::super::{GgufError, Metadata};

/// One way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Split {
    names: &'static [&'static str],
    /// Patterns of words; each cuts what those before it left.
    pub patterns: &'static [&'static str],
    /// Whether a word that is a token needs no merges.
    pub whole_words: bool,
    /// Whether texts begin with a token of their own when the file does not say.
    pub adds_bos: bool,
    /// Whether accents are put together with their letters first.
    pub composes: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

const PLAIN: Split = Split { names: &[], patterns: &[GPT2], whole_words: false, adds_bos: false, composes: false };

static KNOWN: [Split; 11] = [
    Split {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        patterns: &[LLAMA3],
        whole_words: true,
        adds_bos: true,
        composes: false,
    },
    Split { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], patterns: &[LLAMA3], ..PLAIN },
    Split {
        names: &["qwen2", "deepseek-r1-qwen", "megrez", "kormo", "hunyuan"],
        patterns: &[QWEN2],
        composes: true,
        ..PLAIN
    },
    Split { names: &["stablelm2", "grok-2", "solar-open"], patterns: &[QWEN2], ..PLAIN },
    Split {
        names: &["gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "mpt", "olmo", "jais", "trillion"],
        ..PLAIN
    },
    Split {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        patterns: &[r"\p{N}", GPT2],
        ..PLAIN
    },
    Split { names: &["tekken"], patterns: &[TEKKEN], whole_words: true, adds_bos: true, composes: false },
    Split { names: &["gpt-4o", "llama4", "kanana2"], patterns: &[GPT4O], ..PLAIN },
    Split {
        names: &["deepseek-coder"],
        patterns: &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
        ..PLAIN
    },
    Split { names: &["deepseek-v3"], patterns: &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3], ..PLAIN },
    // What llama.cpp does with files that were made before this had a name.
    Split { names: &["default"], patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], ..PLAIN },
];

impl Split {
    /// The way a file names, or the one of files that name none.
    pub(super) fn of(metadata: &Metadata<'_>) -> Result<Self, GgufError> {
        const KEY: &str = "tokenizer.ggml.pre";
        let name = metadata.text(KEY)?.filter(|name| !name.is_empty()).unwrap_or("default");
        KNOWN.iter().find(|split| split.names.contains(&name)).copied().ok_or_else(|| GgufError::Unsupported {
            key: KEY.to_owned(),
            value: name.chars().take(64).collect(),
            supported: format!("{} are", KNOWN.map(|split| split.names.join(", ")).join(", ")),
        })
    }
}
