//! Every setting, with its default and what it does.

/// A setting: its name in the file (dashes become underscores), as a flag (`--name`) and as a variable.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// `data-dir`.
    pub name: &'static str,
    /// Used where nothing is said; empty for none.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
    /// What it was called in the version before, which is still taken in this one.
    pub former: Option<&'static str>,
}

/// Every setting.
pub const KNOBS: [Knob; 56] = [
    knob("data-dir", "", "Folder for identity and state [default: $XDG_DATA_HOME/tsnode]"),
    knob("name", "", "Name people see [default: the host's name]"),
    knob("http", "127.0.0.1:7448", "Where HTTP listens"),
    knob(
        "listen",
        "[::]:7447",
        "Where peers connect: TCP and UDP, and the next UDP port for data; [::] is all addresses of IPv6 and IPv4, 0.0.0.0 those of IPv4, port 0 takes any",
    ),
    knob(
        "model",
        "",
        "Model to serve; may be said several times, or in the settings file's [[models]]: a folder, a safetensors or a GGUF file, a name as llama3.2:1b, org/repo or org/repo:Q4_K_M, or embedded [default: the embedded one, where no other is served]",
    ),
    knob("no-model", "false", "Serve no model: a gateway only"),
    knob(
        "model-budget",
        "20GiB",
        "Without --model: most layers to have here of the model that the swarm serves, fetched from peers to serve them too; 0 fetches none",
    ),
    knob(
        "allow-models",
        "",
        "Without --model: names of models that may be fetched, as meta-llama/*,*qwen* [default: any]",
    ),
    knob("give-gated", "false", "Give peers weights of repositories whose terms have to be accepted on the hub"),
    knob(
        "default-model",
        "",
        "Model of this peer's clients' requests that name none, by its name or id, while somebody has it [default: the swarm's]",
    ),
    knob(
        "invite",
        "",
        "Invite (ts1…) of the swarm to join; - reads it from standard input [default: the last one, else the local network's]",
    ),
    knob("invite-file", "", "File with the invite: other users can read what is on a command line"),
    knob("private", "false", "Start a new swarm with a secret"),
    knob("mdns", "true", "Look for peers on the local network"),
    knob(
        "device",
        "auto",
        "What computes: cpu, GPUs as cuda:0 or cuda:0,cuda:1, several that hold each layer together as cuda:0-1, or all GPUs that pass a trial with the model, else the processor (auto)",
    ),
    knob("threads", "", "Threads that compute, from 1 [default: as many as cores]"),
    knob("cores", "", "Processors to use, as 0-3; with fewer threads the others are for the network [default: any]"),
    knob("tensor-parallel", "1", "Ranks that share the threads, each with its part of every layer's heads and columns"),
    knob("memory", "", "Most memory to lend, for weights and KV pages, as 8GiB [default: half of what is free]"),
    knob("kv-memory", "", "Memory for KV pages, as 512MiB or 2GiB [default: an eighth of free memory]"),
    knob("swap-models", "false", "Lend models that together need more memory than is lent: those asked for are loaded"),
    knob(
        "keep",
        "",
        "With --swap-models: model that stays in memory whatever others are asked for, as --model names it or as it is called; may be said several times [default: none]",
    ),
    knob(
        "precision",
        "stored",
        "What products do with rows: round them to what weights are stored as (stored), or take them as they are, in single precision (exact): another model to the swarm, on processors alone",
    ),
    knob(
        "long-context",
        "false",
        "Compute all sequences by the frequencies that a LongRoPE model (Phi-3) has for those longer than its first training's: another model to the swarm",
    ),
    knob("kv-dtype", "f16", "Elements of KV pages: f16, bf16 or f32"),
    knob("kv-codec", "auto", "KV on the wire: auto, raw, int8, int4 or int3"),
    knob(
        "fixed-kv",
        "",
        "What every prompt's KV goes through, sent or not, so that a request has the same tokens every time: raw, int8, int4 or int3 [default: as is quickest]",
    ),
    knob(
        "kv-pace",
        "auto",
        "When KV leaves: layer by layer beside the prefill (layers), after it (whole), or as pays (auto)",
    ),
    knob(
        "kv-streams",
        "auto",
        "Connections that share a KV transfer: 1 to 4, or as many as links and spare cores are worth (auto)",
    )
    .formerly("kv-lanes"),
    knob("split", "auto", "Prefill elsewhere where it pays (auto), or always"),
    knob(
        "speculative-decoding",
        "auto",
        "Propose an answer's next tokens where that is measured to help (auto), or never",
    )
    .formerly("guess"),
    knob(
        "draft",
        "",
        "Small model with the tokenizer of --model that drafts for it, as SmolLM2-135M.gguf: a folder, a safetensors or a GGUF file [default: none]",
    ),
    knob(
        "embedding-model",
        "",
        "Model to lend for /v1/embeddings, beside whatever else is lent: a folder with safetensors, as all-MiniLM-L6-v2 [default: none]",
    ),
    knob(
        "rerank-model",
        "",
        "Cross-encoder to lend for /v1/rerank, as ms-marco-MiniLM-L6-v2: a folder with safetensors [default: none]",
    ),
    knob("spot-check", "auto", "Have others compute a token of some answers again (auto), or trust every peer (never)"),
    knob(
        "sharing",
        "doubling",
        "Whose step is next on a device with several models: by what requests are measured to take, short ones first (doubling), each model in turn (round-robin), or as requests came (first-come)",
    ),
    knob("layout", "", "Groups to form, as prefill=2,decode=3 [default: the planner's choice]"),
    knob("api-key", "", "Key that HTTP clients must show, beside those of tsnode keys; - reads it from standard input"),
    knob("api-key-file", "", "File with that key: other users can read what is on a command line"),
    knob(
        "http-rate",
        "",
        "Requests a minute of each key, or of each address where there are none [default: 600 beyond this host, any number on it]",
    ),
    knob(
        "guard-special-tokens",
        "false",
        "Read special tokens' texts in clients' messages as plain text; else they are control tokens, as in transformers",
    ),
    knob(
        "tool-call-parser",
        "auto",
        "How models write calls of tools: as their templates show (auto), hermes, qwen3_coder, llama3_json, mistral, deepseek_v3, deepseek_v31, openai, gemma4 or json",
    ),
    knob(
        "reasoning-parser",
        "auto",
        "How models write thoughts: as their templates and vocabularies show (auto), between <think> and </think> (think), on a channel (gemma4), or not at all (none)",
    ),
    knob("allow-remote-http", "false", "Let HTTP listen beyond this host without a key"),
    knob(
        "allow-host",
        "",
        "Names by which HTTP is asked beside this host's own, as llm.example.com,.example.org [default: none]",
    ),
    knob(
        "allow-origin",
        "",
        "Pages that may ask beside the peer's own, as https://chat.example.com,http://localhost:3000 [default: none]",
    ),
    knob("ollama-port", "false", "Answer HTTP at Ollama's port as well, 11434 of the address of --http"),
    knob("relay", "true", "Carry between peers of the swarm that do not reach each other, where this one is reachable"),
    knob("upload-mbit", "", "Most Mbit/s to send to other peers, all together [default: what the link carries]"),
    knob("hours", "", "Hours of the day in which to lend, as 22:00-07:00 [default: all]"),
    knob("shape-mbit", "", "Pretend links of this many Mbit/s"),
    knob("shape-ms", "", "Pretend links of this latency in milliseconds"),
    knob("faults", "false", "Let POST /api/faults break this peer's network on purpose: for testnets"),
    knob("wall", "none", "With --faults: pretend a NAT (nat), or one without UDP (udp), in front of this peer"),
    knob("log", "info", "What to log, as info or tsnode=debug"),
    knob("log-format", "text", "How to log: text or json"),
];

impl Knob {
    /// `TSNODE_DATA_DIR`.
    #[must_use]
    pub fn variable(&self) -> String {
        variable(self.name)
    }

    /// The variable of the version before.
    #[must_use]
    pub fn former_variable(&self) -> Option<String> {
        self.former.map(variable)
    }

    /// Whether it is called so, or was in the version before.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.former == Some(name)
    }
}

pub(super) fn variable(name: &str) -> String {
    format!("TSNODE_{}", name.to_uppercase().replace('-', "_"))
}

impl Knob {
    const fn formerly(self, name: &'static str) -> Self {
        Self { former: Some(name), ..self }
    }
}

const fn knob(name: &'static str, default: &'static str, help: &'static str) -> Knob {
    Knob { name, default, help, former: None }
}
