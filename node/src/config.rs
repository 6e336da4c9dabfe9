//! Configuration: flags over `TSNODE_*` variables over a TOML file over defaults, each value with its origin.

pub mod secrets;
pub mod values;
mod warnings;

pub use warnings::{Machine, unknown_variables};

use crate::{
    cores::Cores,
    faults::Wall,
    keys::KEYS_FILE,
    links::Shaping,
    node::{Membering, ModelChoice, NodeConfig},
    plain,
    sites::{self, Sites},
    text::{Parsers, ReasoningFormat, SpecialText, ToolFormat},
};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use tsnode_coordinator::{
    batcher::Speculation,
    gate::{KvChoice, SplitChoice},
    kv_streams::KvStreams,
    spot_check::SpotChecks,
};
use tsnode_kernels::engine::Threads;
use tsnode_protocol::{BytesPerSecond, EncoderTask, Invite, KvCodec, KvDtype, invite::InviteError, kv::KvPace, limits};
use values::Bytes;

/// The most threads or ranks that are taken for a wish.
const MOST_THREADS: usize = 1024;
/// Longest value that is repeated in an error.
const SHOWN_CHARS: usize = 40;
/// Requests a minute of each client beyond this host, unless told otherwise.
const REMOTE_RATE: u32 = 600;

/// A setting: its name in the file (dashes become underscores), as a flag (`--name`) and as a variable.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// `data-dir`.
    pub name: &'static str,
    /// Used where nothing is said; empty for none.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// Every setting.
pub const KNOBS: [Knob; 47] = [
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
        "Model to serve: a folder, a safetensors or a GGUF file, a name as llama3.2:1b, org/repo or org/repo:Q4_K_M, or embedded [default: the embedded one, where no other is served]",
    ),
    knob("no-model", "false", "Serve no model: a gateway only"),
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
        "kv-lanes",
        "auto",
        "Connections that share a KV transfer: 1 to 4, or as many as links and spare cores are worth (auto)",
    ),
    knob("split", "auto", "Prefill elsewhere where it pays (auto), or always"),
    knob("guess", "auto", "Guess an answer's next tokens where that is measured to help (auto), or never"),
    knob(
        "draft",
        "",
        "Small model with the tokenizer of --model that guesses for it, as SmolLM2-135M.gguf: a folder, a safetensors or a GGUF file [default: none]",
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
        "How models write calls of tools: as their templates show (auto), hermes, llama3_json, mistral, deepseek_v3, deepseek_v31 or json",
    ),
    knob(
        "reasoning-parser",
        "auto",
        "How models write thoughts: as their templates and vocabularies show (auto), between <think> and </think> (think), or not at all (none)",
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
}

fn variable(name: &str) -> String {
    format!("TSNODE_{}", name.to_uppercase().replace('-', "_"))
}

const fn knob(name: &'static str, default: &'static str, help: &'static str) -> Knob {
    Knob { name, default, help }
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// The file, at a line.
    File(PathBuf, usize),
    /// The environment.
    Variable(String),
    /// The command line.
    Flag,
    /// It is a secret, and was read where that says.
    Read(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag => f.write_str("flag"),
            Self::Read(from) => f.write_str(from),
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {error}; name another settings file with --config", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// There is nothing in the file, not even a remark.
    #[error("{}: it is empty, and that is most often damage; restore it from a copy, or remove it", path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// The file is not TOML.
    #[error("{}:{line}: this is no TOML ({error}); write a setting a line, as memory = \"8GiB\"", path.display())]
    Syntax {
        /// Which.
        path: PathBuf,
        /// Where.
        line: usize,
        /// Why.
        error: String,
    },
    /// The file has a key that is no setting.
    #[error("{}:{line}: unknown key `{key}`; {next}", path.display())]
    Unknown {
        /// Which.
        path: PathBuf,
        /// Where.
        line: usize,
        /// The key.
        key: String,
        /// The setting that was meant, or where all are listed.
        next: String,
    },
    /// The file has something else than a value.
    #[error("{}:{line}: `{key}` is a list or a table; write one value, as {key} = \"…\"", path.display())]
    Shape {
        /// Which.
        path: PathBuf,
        /// Where.
        line: usize,
        /// The key.
        key: String,
    },
    /// The file says a setting twice, with dashes and with underscores.
    #[error("{}:{line}: `{key}` is said twice; leave one", path.display())]
    Twice {
        /// Which.
        path: PathBuf,
        /// Where.
        line: usize,
        /// The key.
        key: String,
    },
    /// A value that is not what it should be.
    #[error("{place}: {error}")]
    Value {
        /// The setting with its value, as it was said: `--threads 0`.
        place: String,
        /// Why.
        error: String,
    },
}

/// All settings as text, with their origins.
#[derive(Clone, Debug)]
pub struct Settings(BTreeMap<&'static str, (String, Origin)>);

impl Settings {
    /// Gathers settings. `flags` are those given; `file` is read if it exists, and must exist if `named`.
    ///
    /// # Errors
    /// When the file cannot be read or holds what is no setting, or a setting is said to be nothing.
    pub fn gather(
        flags: &BTreeMap<String, String>,
        variables: impl Fn(&str) -> Option<String>,
        file: &Path,
        named: bool,
    ) -> Result<Self, ConfigError> {
        let in_file = if named || file.exists() { read(file)? } else { BTreeMap::new() };
        let mut all = BTreeMap::new();
        for knob in KNOBS {
            let variable = knob.variable();
            let found = if let Some(value) = flags.get(knob.name) {
                (value.clone(), Origin::Flag)
            } else if let Some(value) = variables(&variable) {
                (value, Origin::Variable(variable))
            } else if let Some((value, line)) = in_file.get(knob.name) {
                (value.clone(), Origin::File(file.to_owned(), *line))
            } else {
                (knob.default.to_owned(), Origin::Default)
            };
            all.insert(knob.name, found);
        }
        let settings = Self(all);
        // A script's empty variable is no wish for the default: an invite that was not there would found a swarm.
        let empty = settings.iter().find(|(_, value, origin)| value.trim().is_empty() && **origin != Origin::Default);
        match empty {
            Some((name, ..)) => Err(settings.wrong(name, "nothing is said; leave it out, or give it a value".into())),
            None => Ok(settings),
        }
    }

    /// Every setting with its value and origin.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str, &Origin)> {
        self.0.iter().map(|(name, (value, origin))| (*name, value.as_str(), origin))
    }

    /// A setting's text; empty where nothing is said.
    #[must_use]
    pub fn text(&self, name: &'static str) -> &str {
        self.0.get(name).map_or("", |(value, _)| value)
    }

    /// The data folder.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        match self.text("data-dir") {
            "" => xdg("XDG_DATA_HOME", ".local/share").join("tsnode"),
            path => path.into(),
        }
    }

    /// A setting by its own meaning; `None` where nothing is said.
    ///
    /// # Errors
    /// Names setting, value and origin.
    pub fn parse<T>(&self, name: &'static str) -> Result<Option<T>, ConfigError>
    where
        T: FromStr,
        T::Err: fmt::Display,
    {
        let text = self.text(name);
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|e: T::Err| self.wrong(name, e.to_string()))
    }

    fn wrong(&self, name: &'static str, error: String) -> ConfigError {
        ConfigError::Value { place: self.place(name), error }
    }

    fn origin(&self, name: &'static str) -> Option<&Origin> {
        self.0.get(name).map(|(_, origin)| origin)
    }

    /// A setting with its value, as it was said.
    fn place(&self, name: &'static str) -> String {
        let value = shown(name, self.text(name));
        match self.origin(name) {
            Some(Origin::Flag) => format!("--{name} {value}"),
            Some(Origin::Variable(variable)) => format!("{variable}={value}"),
            Some(file @ Origin::File(..)) => format!("{file}: {} = {value}", name.replace('-', "_")),
            Some(Origin::Read(from)) => from.clone(),
            Some(Origin::Default) | None => format!("{name} = {value} (default)"),
        }
    }

    fn whole<T>(&self, name: &'static str, range: RangeInclusive<T>) -> Result<Option<T>, ConfigError>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        let read = |text| values::whole(text, &range).map_err(|error| self.wrong(name, error));
        Some(self.text(name)).filter(|text| !text.is_empty()).map(read).transpose()
    }

    fn address(&self, name: &'static str) -> Result<SocketAddr, ConfigError> {
        let usual = KNOBS.iter().find(|knob| knob.name == name).and_then(|knob| knob.default.parse().ok());
        let usual = usual.ok_or_else(|| self.wrong(name, "an address is needed".into()))?;
        values::address(self.text(name), usual).map_err(|error| self.wrong(name, error))
    }

    /// Where HTTP listens.
    ///
    /// # Errors
    /// When that is no address.
    pub fn http(&self) -> Result<SocketAddr, ConfigError> {
        self.address("http")
    }

    fn choice<T: Copy>(&self, name: &'static str, choices: &[(&str, T)]) -> Result<T, ConfigError> {
        let found = choices.iter().find(|(text, _)| *text == self.text(name)).map(|(_, value)| *value);
        let names: Vec<&str> = choices.iter().map(|(text, _)| *text).collect();
        found.ok_or_else(|| self.wrong(name, format!("choose one of {}", names.join(", "))))
    }

    fn flag(&self, name: &'static str) -> Result<bool, ConfigError> {
        self.choice(name, &[("true", true), ("false", false), ("1", true), ("0", false)])
    }

    /// Settings of a peer.
    ///
    /// # Errors
    /// When one is not what it should be, or two contradict each other.
    pub fn node(&self) -> Result<NodeConfig, ConfigError> {
        let http = self.http()?;
        let api_key = Some(self.text("api-key").to_owned()).filter(|k| !k.is_empty());
        let has_keys = api_key.is_some() || self.data_dir().join(KEYS_FILE).exists();
        let is_open = self.flag("allow-remote-http")?;
        if !http.ip().is_loopback() && !has_keys && !is_open {
            let why = "listening beyond this host needs keys (tsnode keys add NAME, or --api-key-file FILE), or --allow-remote-http to go without";
            return Err(self.wrong("http", why.into()));
        }
        Ok(NodeConfig {
            data_dir: self.data_dir(),
            name: self.name(),
            http,
            listen: self.address("listen")?,
            membering: self.membering()?,
            mdns: self.flag("mdns")?,
            model: self.model()?,
            devices: self.parse("device")?.unwrap_or_default(),
            threads: self.threads()?,
            cores: self.cores()?.map(|(compute, _)| compute),
            memory_bytes: self.parse::<Bytes>("memory")?.map(|b| b.0),
            encoders: self.encoders(),
            hours: self.parse("hours")?,
            kv_bytes: self.parse::<Bytes>("kv-memory")?.map(|b| b.0),
            kv_dtype: self
                .choice("kv-dtype", &[("f16", KvDtype::F16), ("bf16", KvDtype::Bf16), ("f32", KvDtype::F32)])?,
            kv_codec: self.choice(
                "kv-codec",
                &[
                    ("auto", KvChoice::Auto),
                    ("raw", KvChoice::Raw),
                    ("int8", KvChoice::Int8),
                    ("int4", KvChoice::Int4),
                    ("int3", KvChoice::Int3),
                ],
            )?,
            fixed_kv: self.fixed_kv()?,
            kv_pace: self.choice(
                "kv-pace",
                &[("auto", None), ("layers", Some(KvPace::Layers)), ("whole", Some(KvPace::Whole))],
            )?,
            kv_streams: self.kv_streams()?,
            split: self.choice("split", &[("auto", SplitChoice::Auto), ("always", SplitChoice::Always)])?,
            spot_checks: self.choice("spot-check", &[("auto", SpotChecks::Auto), ("never", SpotChecks::Never)])?,
            speculation: self.choice("guess", &[("auto", Speculation::Measured), ("never", Speculation::Never)])?,
            draft: self.draft()?,
            layout: self.parse("layout")?,
            parsers: Parsers { tools: self.tool_format()?, reasoning: self.reasoning_format()? },
            special_text: if self.flag("guard-special-tokens")? { SpecialText::Plain } else { SpecialText::Control },
            api_key,
            http_rate: self.http_rate(http)?,
            sites: self.sites(http)?,
            ollama_port: self.flag("ollama-port")?,
            shaping: self.shaping()?,
            relay: self.relays()?,
            faults: self.flag("faults")?,
            wall: self.wall()?,
        })
    }

    fn tool_format(&self) -> Result<Option<ToolFormat>, ConfigError> {
        let mut choices = vec![("auto", None)];
        choices.extend(ToolFormat::names().map(|name| (name, ToolFormat::named(name))));
        self.choice("tool-call-parser", &choices)
    }

    fn reasoning_format(&self) -> Result<Option<ReasoningFormat>, ConfigError> {
        let choices = [("auto", None), ("think", Some(ReasoningFormat::Think)), ("none", Some(ReasoningFormat::None))];
        self.choice("reasoning-parser", &choices)
    }

    fn fixed_kv(&self) -> Result<Option<KvCodec>, ConfigError> {
        let choices = [
            ("", None),
            ("raw", Some(KvCodec::Raw)),
            ("int8", Some(KvCodec::Int8)),
            ("int4", Some(KvCodec::Int4)),
            ("int3", Some(KvCodec::Int3)),
        ];
        let fixed = choices.iter().find(|(text, _)| *text == self.text("fixed-kv")).map(|(_, value)| *value);
        fixed.ok_or_else(|| self.wrong("fixed-kv", "choose one of raw, int8, int4, int3, or leave it out".into()))
    }

    /// Processors that compute, and those for all else, where the owner says which this process uses.
    pub fn cores(&self) -> Result<Option<(Cores, Cores)>, ConfigError> {
        let threads = self.threads()?.count;
        Ok(self.parse::<Cores>("cores")?.map(|cores| cores.divided(threads)))
    }

    /// Threads that compute, and the ranks that share them.
    ///
    /// # Errors
    /// When one is no such number, or they do not fit the processors that are named.
    pub fn threads(&self) -> Result<Threads, ConfigError> {
        let number = |name| self.whole(name, 1..=MOST_THREADS);
        let named = self.parse::<Cores>("cores")?.map(|cores| cores.len());
        let cores = self.all_cores()?;
        let (count, ranks) =
            (number("threads")?.unwrap_or(cores.min(MOST_THREADS)), number("tensor-parallel")?.unwrap_or(1));
        if named.is_some_and(|cores| count > cores) {
            return Err(self.wrong("threads", format!("{count} threads do not fit {cores} cores")));
        }
        if ranks > count {
            return Err(self.wrong("tensor-parallel", format!("each rank needs a thread, and there are {count}")));
        }
        Ok(Threads { count, ranks })
    }

    /// Connections that may share a KV transfer; by itself as many as cores that compute nothing.
    ///
    /// # Errors
    /// When it is no number from 1 to [`limits::KV_STREAMS`], or threads and cores are not what they should be.
    pub fn kv_streams(&self) -> Result<KvStreams, ConfigError> {
        let text = self.text("kv-lanes");
        if text != "auto" {
            let kv_streams = text.parse::<NonZeroU8>().ok().filter(|n| n.get() <= limits::KV_STREAMS);
            let wrong = || self.wrong("kv-lanes", format!("choose auto, or from 1 to {}", limits::KV_STREAMS));
            return Ok(KvStreams::Fixed(kv_streams.ok_or_else(wrong)?));
        }
        let all = self.all_cores()?;
        Ok(KvStreams::Spare(all.saturating_sub(self.threads()?.count)))
    }

    /// How many processors this process may use.
    fn all_cores(&self) -> Result<usize, ConfigError> {
        let named = self.parse::<Cores>("cores")?.map(|cores| cores.len());
        Ok(named.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)))
    }

    fn http_rate(&self, http: SocketAddr) -> Result<Option<u32>, ConfigError> {
        let asked = self.whole("http-rate", 1..=u32::MAX)?;
        Ok(asked.or_else(|| (!http.ip().is_loopback()).then_some(REMOTE_RATE)))
    }

    fn sites(&self, http: SocketAddr) -> Result<Sites, ConfigError> {
        let (hosts, origins) = (self.parse("allow-host")?, self.parse("allow-origin")?);
        Ok(Sites::new(http.ip(), &sites::host_name(), hosts.unwrap_or_default(), origins.unwrap_or_default()))
    }

    fn name(&self) -> String {
        let own = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        let name = match self.text("name") {
            "" => own(),
            name => name.to_owned(),
        };
        name.chars().take(60).collect()
    }

    fn membering(&self) -> Result<Membering, ConfigError> {
        let invite = Some(self.text("invite")).filter(|text| !text.is_empty()).map(str::parse::<Invite>).transpose();
        let invite = invite.map_err(|e| {
            self.wrong(
                "invite",
                match e {
                    InviteError::Version { .. } => e.to_string(),
                    e => format!("{e}; copy all of what `tsnode invite` prints on a member's machine"),
                },
            )
        })?;
        match (invite, self.flag("private")?) {
            (Some(_), true) => Err(self.wrong("private", "an invite names its own swarm".into())),
            (Some(invite), false) => Ok(Membering::Invited(invite)),
            (None, true) => Ok(Membering::NewPrivate),
            (None, false) => Ok(Membering::Usual),
        }
    }

    fn model(&self) -> Result<ModelChoice, ConfigError> {
        match (self.text("model"), self.flag("no-model")?) {
            ("", true) => Ok(ModelChoice::None),
            ("", false) => Ok(ModelChoice::Fallback),
            ("embedded", false) => Ok(ModelChoice::Embedded),
            (_, true) => Err(self.wrong("no-model", "a model is named as well".into())),
            (path, false) => Ok(ModelChoice::Path(path.into())),
        }
    }

    /// Who never guesses has no use for one.
    fn draft(&self) -> Result<Option<PathBuf>, ConfigError> {
        match (self.text("draft"), self.model()?) {
            ("", _) => Ok(None),
            (_, ModelChoice::None) => Err(self.wrong("draft", "there is no model to guess for".into())),
            (path, _) => Ok(Some(PathBuf::from(path)).filter(|_| self.text("guess") != "never")),
        }
    }

    /// Encoders to lend, each a folder and what it is to be.
    #[must_use]
    pub fn encoders(&self) -> Vec<(PathBuf, EncoderTask)> {
        let named = [("embedding-model", EncoderTask::Embed), ("rerank-model", EncoderTask::Score)];
        let named = named.map(|(name, task)| (PathBuf::from(self.text(name)), task));
        named.into_iter().filter(|(path, _)| !path.as_os_str().is_empty()).collect()
    }

    /// A peer whose network may not be broken has no wall to pretend.
    fn wall(&self) -> Result<Wall, ConfigError> {
        let wall = self.choice("wall", &[("none", Wall::None), ("nat", Wall::Nat), ("udp", Wall::Udp)])?;
        if wall != Wall::None && !self.flag("faults")? {
            return Err(self.wrong("wall", "pretending a wall needs --faults as well".into()));
        }
        Ok(wall)
    }

    /// What is carried for others cannot be held to a rate: who limits uploads has to wish for it.
    fn relays(&self) -> Result<bool, ConfigError> {
        let wished = !matches!(self.0.get("relay"), None | Some((_, Origin::Default)));
        Ok(self.flag("relay")? && (wished || self.text("upload-mbit").is_empty()))
    }

    /// The owner's limit on uploads, and the network to pretend.
    fn shaping(&self) -> Result<Option<Shaping>, ConfigError> {
        let rate = |name| {
            let mbit = Some(self.text(name)).filter(|text| !text.is_empty()).map(values::above_0).transpose();
            let mbit = mbit.map_err(|error| self.wrong(name, error))?;
            Ok::<_, ConfigError>(mbit.map(|mbit| BytesPerSecond(mbit * 1e6 / 8.0)))
        };
        let latency = Some(self.text("shape-ms")).filter(|text| !text.is_empty());
        let latency = latency.map(|text| values::decimal(text, &(0.0..=60_000.0))).transpose();
        let latency = latency.map_err(|error| self.wrong("shape-ms", error))?;
        let (upload, bandwidth) = (rate("upload-mbit")?, rate("shape-mbit")?);
        if upload.is_none() && bandwidth.is_none() && latency.is_none() {
            return Ok(None);
        }
        let ms = latency.unwrap_or(0.0);
        Ok(Some(Shaping { bandwidth, upload, latency: Duration::from_secs_f64(ms / 1e3) }))
    }
}

/// The file used where none is named.
#[must_use]
pub fn usual_file() -> PathBuf {
    xdg("XDG_CONFIG_HOME", ".config").join("tsnode/config.toml")
}

/// A folder of the XDG specification.
#[must_use]
pub fn xdg(variable: &str, below_home: &str) -> PathBuf {
    let named = std::env::var_os(variable).map(PathBuf::from).filter(|p| p.is_absolute());
    named.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/".into())).join(below_home))
}

/// A value as an error repeats it: no key, and nothing that would fill the screen before the reason.
fn shown(name: &str, value: &str) -> String {
    let cut = value.char_indices().nth(SHOWN_CHARS).map(|(at, _)| at);
    match (name, cut) {
        ("api-key", _) if !value.is_empty() => "…".into(),
        // What follows may be the secret of a swarm.
        ("invite", _) if value.chars().count() > 12 => format!("{}…", value.chars().take(8).collect::<String>()),
        (_, Some(at)) => format!("{:?}…", &value[..at]),
        _ if !value.is_empty() && value.chars().all(|c| c.is_ascii_graphic()) => value.to_owned(),
        _ => format!("{value:?}"),
    }
}

/// Keys of the file, with dashes, and their lines.
fn read(path: &Path) -> Result<BTreeMap<String, (String, usize)>, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| ConfigError::Unreadable { path: path.to_owned(), error: plain::io_error(&e) })?;
    // Without its settings a peer would be another one, in another folder.
    if text.is_empty() {
        return Err(ConfigError::Empty { path: path.to_owned() });
    }
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| ConfigError::Syntax {
        path: path.to_owned(),
        line: e.span().map_or(1, |s| text[..s.start.min(text.len())].lines().count().max(1)),
        error: e.message().to_owned(),
    })?;
    let mut found = BTreeMap::new();
    for (key, value) in table {
        let line =
            text.lines().position(|l| l.trim_start().trim_start_matches('[').starts_with(&key)).map_or(1, |n| n + 1);
        let (name, path) = (key.replace('_', "-"), path.to_owned());
        if !KNOBS.iter().any(|k| k.name == name) {
            let near = values::nearest(&name, KNOBS.map(|k| k.name)).map(|near| near.replace('-', "_"));
            let next =
                near.map_or("`tsnode config show` lists all settings".into(), |n| format!("did you mean `{n}`?"));
            return Err(ConfigError::Unknown { path, line, key, next });
        }
        let value = match value {
            toml::Value::String(text) => text,
            toml::Value::Integer(n) => n.to_string(),
            toml::Value::Float(x) => x.to_string(),
            toml::Value::Boolean(flag) => flag.to_string(),
            _ => return Err(ConfigError::Shape { path, line, key }),
        };
        if found.insert(name, (value, line)).is_some() {
            return Err(ConfigError::Twice { path, line, key });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn gather(
        flags: &[(&str, &str)],
        variables: &[(&str, &str)],
        file: &str,
    ) -> Result<Settings, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, format!("{file}\n# ends here\n")).unwrap();
        let flags = flags.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let find = |name: &str| variables.iter().find(|(k, _)| *k == name).map(|(_, v)| (*v).to_owned());
        Settings::gather(&flags, find, &path, true)
    }

    #[test]
    fn every_rank_needs_a_thread() {
        let threads = |flags: &[(&str, &str)]| gather(flags, &[], "").unwrap().node().map(|node| node.threads);
        assert_eq!(threads(&[("threads", "4")]), Ok(Threads::together(4)));
        assert_eq!(threads(&[("threads", "4"), ("tensor-parallel", "3")]), Ok(Threads { count: 4, ranks: 3 }));
        assert_eq!(threads(&[("cores", "0-2,7")]), Ok(Threads::together(4)));
        assert_eq!(threads(&[("cores", "0-2"), ("threads", "2")]), Ok(Threads::together(2)));
        assert!(threads(&[("cores", "0"), ("threads", "2")]).is_err() && threads(&[("cores", "x")]).is_err());
        for wrong in ["0", "5", "two"] {
            let said = threads(&[("threads", "4"), ("tensor-parallel", wrong)]).unwrap_err().to_string();
            assert!(said.contains("tensor-parallel"), "{said}");
        }
    }

    #[test]
    fn what_kv_goes_through_is_fixed_by_name_or_not_at_all() {
        let of = |flags: &[(&str, &str)]| gather(flags, &[], "").unwrap().node().map(|node| node.fixed_kv);
        let fixed = |text| of(&[("fixed-kv", text)]);
        assert_eq!([of(&[]), fixed("raw")], [Ok(None), Ok(Some(KvCodec::Raw))]);
        assert_eq!([fixed("int3"), fixed("int4")], [Ok(Some(KvCodec::Int3)), Ok(Some(KvCodec::Int4))]);
        assert!(fixed("auto").unwrap_err().to_string().contains("choose one of raw, int8, int4, int3"));
    }

    #[test]
    fn flags_over_variables_over_the_file_over_defaults() {
        let file = "threads = 1\nname = \"a\"\nhttp = \"127.0.0.1:1\"\n";
        let settings = gather(&[("threads", "3")], &[("TSNODE_THREADS", "2"), ("TSNODE_NAME", "b")], file).unwrap();
        let node = settings.node().unwrap();
        assert_eq!((node.threads.count, node.name.as_str(), node.http.port()), (3, "b", 1));
        assert_eq!(node.listen.port(), 7447);
        let origin = |name| settings.iter().find(|(n, _, _)| *n == name).unwrap().2.to_string();
        assert_eq!(
            (origin("threads"), origin("name"), origin("listen")),
            ("flag".into(), "TSNODE_NAME".into(), "default".into())
        );
        assert!(origin("http").ends_with("config.toml:3"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        assert!(matches!(gather(&[], &[], "threads = \n"), Err(ConfigError::Syntax { line: 1, .. })));
        assert!(matches!(gather(&[], &[], "\nthread = 1\n"), Err(ConfigError::Unknown { line: 2, .. })));
        let wrong = gather(&[], &[], "\n\nthreads = \"x\"\n").unwrap().node().unwrap_err().to_string();
        assert!(wrong.contains("threads") && wrong.contains("config.toml:3"), "{wrong}");
        let wrong = gather(&[("invite", "ts1xyz")], &[], "").unwrap().node().unwrap_err().to_string();
        assert!(wrong.contains("invite"), "{wrong}");
    }

    #[test]
    fn the_embedded_model_is_lent_whatever_others_serve_only_where_it_is_named() {
        let model = |flags: &[(&str, &str)]| gather(flags, &[], "").unwrap().node().unwrap().model;
        assert_eq!(model(&[]), ModelChoice::Fallback);
        assert_eq!(model(&[("model", "embedded")]), ModelChoice::Embedded);
        assert_eq!(model(&[("model", "./embedded")]), ModelChoice::Path("./embedded".into()));
        assert_eq!(model(&[("no-model", "true")]), ModelChoice::None);
    }

    #[test]
    fn a_draft_model_wants_a_model_and_drafts() {
        let draft = |flags: &[(&str, &str)]| gather(flags, &[("TSNODE_DRAFT", "small.gguf")], "").unwrap().node();
        assert_eq!(draft(&[]).unwrap().draft, Some("small.gguf".into()));
        assert_eq!(draft(&[("guess", "never")]).unwrap().draft, None);
        let wrong = draft(&[("no-model", "true")]).unwrap_err().to_string();
        assert!(wrong.contains("TSNODE_DRAFT") && wrong.contains("no model"), "{wrong}");
    }

    #[test]
    fn http_beyond_this_host_wants_a_key() {
        let open = gather(&[("http", "0.0.0.0:80")], &[], "").unwrap().node();
        assert!(open.unwrap_err().to_string().contains("--api-key"));
        assert!(gather(&[("http", "0.0.0.0:80"), ("api-key", "k")], &[], "").unwrap().node().is_ok());
    }

    #[test]
    fn owners_set_limits() {
        let flags = [("memory", "2GiB"), ("upload-mbit", "8"), ("hours", "22:00-07:00")];
        let node = gather(&flags, &[], "").unwrap().node().unwrap();
        let upload = node.shaping.and_then(|s| s.upload);
        assert_eq!((node.memory_bytes, upload), (Some(2 << 30), Some(BytesPerSecond(1e6))));
        assert!(node.hours.is_some_and(|h| h.contain(0) && !h.contain(12 * 60)));
        for (name, wrong) in [("upload-mbit", "0"), ("upload-mbit", "inf"), ("hours", "22-7"), ("memory", "much")] {
            let said = gather(&[(name, wrong)], &[], "").unwrap().node().unwrap_err().to_string();
            assert!(said.contains(name), "{said}");
        }
    }

    #[test]
    fn who_limits_uploads_relays_only_when_asked_to() {
        let relays = |flags: &[(&'static str, &str)]| gather(flags, &[], "").unwrap().node().unwrap().relay;
        assert!(relays(&[]) && !relays(&[("relay", "false")]) && !relays(&[("upload-mbit", "8")]));
        assert!(relays(&[("upload-mbit", "8"), ("relay", "true")]));
    }

    #[test]
    fn nothing_is_no_value() {
        for knob in KNOBS {
            for said in [
                gather(&[(knob.name, "")], &[], ""),
                gather(&[(knob.name, " ")], &[], ""),
                gather(&[], &[(&knob.variable(), "")], ""),
                gather(&[], &[], &format!("{} = \"\"\n", knob.name)),
            ] {
                let said = said.unwrap_err().to_string();
                assert!(said.contains("nothing is said") && said.contains("leave it out"), "{}: {said}", knob.name);
            }
        }
    }

    #[test]
    fn a_part_of_an_address_is_enough() {
        let http = |text| gather(&[("http", text)], &[], "").unwrap().node().unwrap().http.to_string();
        assert_eq!((http("17499"), http("localhost:17499")), ("127.0.0.1:17499".into(), "127.0.0.1:17499".into()));
        let ollama = |text| gather(&[("ollama-port", text)], &[], "").unwrap().node().unwrap().ollama_port;
        assert_eq!((ollama("true"), ollama("false")), (true, false));
        let listen = gather(&[("listen", "17500")], &[], "").unwrap().node().unwrap().listen;
        assert_eq!((listen.ip().is_unspecified(), listen.port()), (true, 17500));
    }

    #[test]
    fn a_wall_is_pretended_where_faults_may_be() {
        let wall = |flags: &[(&str, &str)]| gather(flags, &[], "").unwrap().node().map(|node| node.wall);
        assert_eq!(wall(&[("wall", "nat"), ("faults", "true")]), Ok(Wall::Nat));
        assert!(
            wall(&[("wall", "nat")]).unwrap_err().to_string().contains("--wall nat: pretending a wall needs --faults")
        );
        assert_eq!(wall(&[]), Ok(Wall::None));
    }

    /// Every setting with values that it cannot have: what, where and what to do, in our words, and the value is not all there is
    /// to read.
    #[test]
    fn a_bad_value_is_refused_in_our_words() {
        const LIBRARIES: [&str; 9] = [
            "invalid digit",
            "invalid float",
            "invalid socket",
            "non-zero",
            "number too",
            "os error",
            "builder",
            "cannot parse",
            "empty string",
        ];
        // Any text is one of these.
        let texts = [
            "data-dir",
            "name",
            "model",
            "draft",
            "embedding-model",
            "rerank-model",
            "invite-file",
            "api-key",
            "api-key-file",
            "allow-host",
            "log",
            "log-format",
        ];
        let long = "z".repeat(900);
        for knob in KNOBS.iter().filter(|knob| !texts.contains(&knob.name)) {
            for value in ["-1", "99999999999999999999", "nonsense", "\u{7}", "1e999", &long] {
                let is_fine = |said: &str| said.starts_with(&format!("--{} ", knob.name)) && said.len() < 220;
                let said = gather(&[(knob.name, value)], &[], "").unwrap().node().unwrap_err().to_string();
                assert!(is_fine(&said), "{said}");
                assert!(LIBRARIES.iter().all(|words| !said.contains(words)), "{said}");
            }
        }
    }

    #[test]
    fn secrets_are_not_repeated() {
        let invite = format!("ts1{}", "abcdefgh".repeat(40));
        let said = gather(&[("invite", &invite)], &[], "").unwrap().node().unwrap_err().to_string();
        assert!(said.starts_with("--invite ts1abcde…: ") && said.contains("checksum"), "{said}");
    }

    #[test]
    fn keys_of_the_file_are_known_and_said_once() {
        let wrong = |file: &str| gather(&[], &[], file).unwrap_err().to_string();
        assert!(
            wrong("kv_memroy = \"1GiB\"\n")
                .ends_with("config.toml:1: unknown key `kv_memroy`; did you mean `kv_memory`?")
        );
        assert!(wrong("\nsky = 1\n").ends_with(":2: unknown key `sky`; `tsnode config show` lists all settings"));
        assert!(wrong("kv_memory = \"1GiB\"\nkv-memory = \"2GiB\"\n").contains("is said twice"));
        assert!(wrong("threads = [1]\n").contains("`threads` is a list or a table; write one value"));
        assert!(wrong("threads = \n").contains(":1: this is no TOML"));
    }

    #[test]
    fn a_file_that_lost_its_settings_is_not_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        let gather = || Settings::gather(&BTreeMap::new(), |_| None, &path, false);
        assert!(gather().is_ok(), "there is none");
        std::fs::write(&path, "").unwrap();
        let said = gather().unwrap_err().to_string();
        assert!(said.contains("config.toml: it is empty") && said.contains("remove it"), "{said}");
        std::fs::write(&path, "# nothing yet\n").unwrap();
        assert!(gather().is_ok());
    }
}
