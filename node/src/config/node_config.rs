//! A peer's configuration, made of its settings: what they mean together, and which contradict each other.

use super::{
    ConfigError, SettingOrigin, Settings,
    values::{self, ByteSize},
};
use crate::{
    data_plane::links::{Shaping, check_upload},
    faults::Wall,
    hardware::cores::Cores,
    http::hosts::{self, Sites},
    node::{ComputeChoice, Membering, ModelChoice, NodeConfig},
    store::keys::KEYS_FILE,
    text::{Parsers, ReasoningFormat, SpecialText, ToolFormat},
    weights,
};
use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::path::PathBuf;
use std::time::Duration;
use tsnode_coordinator::{
    batcher::Speculation,
    gate::{KvChoice, SplitChoice},
    kv_streams::KvStreams,
    policy::sharing::TurnOrder,
    spot_check::SpotChecks,
    wanted::Glob,
};
use tsnode_kernels::{engine::Threads, source::Precision};
use tsnode_protocol::{BytesPerSecond, EncoderTask, Invite, KvCodec, invite::InviteError, kv::KvPace, limits};

/// The most threads or ranks that are taken for a wish.
const MOST_THREADS: usize = 1024;
/// Requests a minute of each client beyond this host, unless told otherwise.
const REMOTE_RATE: u32 = 600;

impl Settings {
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
            models: self.models()?,
            computed: self.computed()?,
            weights: self.weights_limits()?,
            give_gated: self.flag("give-gated")?,
            default_model: Some(self.text("default-model").to_owned()).filter(|name| !name.is_empty()),
            devices: self.parse("device")?.unwrap_or_default(),
            threads: self.threads()?,
            all_threads: self.all_cores()?.min(MOST_THREADS),
            fixed_limits: self.fixed_limits(),
            cores: self.cores()?.map(|(compute, _)| compute),
            memory_bytes: self.parse::<ByteSize>("memory")?.map(|b| b.0),
            encoders: self.encoders(),
            hours: self.parse("hours")?,
            kv_bytes: self.parse::<ByteSize>("kv-memory")?.map(|b| b.0),
            swap_models: self.flag("swap-models")?,
            keep: self.kept_by_name()?,
            kv_dtype: self.kv_dtype()?,
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
            speculation: self
                .choice("speculative-decoding", &[("auto", Speculation::Measured), ("never", Speculation::Never)])?,
            sharing: self.choice("sharing", &TurnOrder::ALL)?,
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

    /// What the swarm serves is computed as it says: only a model of one's own can be so otherwise.
    fn computed(&self) -> Result<ComputeChoice, ConfigError> {
        let precision = self.choice("precision", &[("stored", Precision::Stored), ("exact", Precision::Exact)])?;
        let computed = ComputeChoice { precision, long_context: self.flag("long-context")? };
        let models = self.models()?;
        let own = !models.is_empty() && models.iter().all(|model| model.choice != ModelChoice::Fallback);
        for (name, chosen) in [("precision", precision == Precision::Exact), ("long-context", computed.long_context)] {
            if chosen && !own {
                return Err(self.wrong(name, "wants the model that is to be computed so: set --model".into()));
            }
        }
        Ok(computed)
    }

    fn tool_format(&self) -> Result<Option<ToolFormat>, ConfigError> {
        let mut choices = vec![("auto", None)];
        choices.extend(ToolFormat::names().map(|name| (name, ToolFormat::named(name))));
        self.choice("tool-call-parser", &choices)
    }

    fn reasoning_format(&self) -> Result<Option<ReasoningFormat>, ConfigError> {
        let choices = [
            ("auto", None),
            ("think", Some(ReasoningFormat::Think)),
            ("gemma4", Some(ReasoningFormat::Gemma4)),
            ("none", Some(ReasoningFormat::None)),
        ];
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
        let text = self.text("kv-streams");
        if text != "auto" {
            let kv_streams = text.parse::<NonZeroU8>().ok().filter(|n| n.get() <= limits::KV_STREAMS);
            let wrong = || self.wrong("kv-streams", format!("choose auto, or from 1 to {}", limits::KV_STREAMS));
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
        let (allowed, origins) = (self.parse("allow-host")?, self.parse("allow-origin")?);
        Ok(Sites::new(http.ip(), &hosts::host_name(), allowed.unwrap_or_default(), origins.unwrap_or_default()))
    }

    fn name(&self) -> String {
        let name = match self.text("name") {
            "" => hosts::host_name(),
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

    /// What may be fetched where no model is named.
    fn weights_limits(&self) -> Result<weights::ProvisionLimits, ConfigError> {
        let budget = match self.text("model-budget") {
            "0" => 0,
            _ => self.parse::<ByteSize>("model-budget")?.map_or(0, |bytes| bytes.0),
        };
        let globs = self.text("allow-models").split(',').map(str::trim).filter(|glob| !glob.is_empty());
        Ok(weights::ProvisionLimits { budget, allowed: globs.map(Glob::new).collect(), named: None })
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
        let wished = !matches!(self.0.get("relay"), None | Some((_, SettingOrigin::Default)));
        Ok(self.flag("relay")? && (wished || self.text("upload-mbit").is_empty()))
    }

    /// The owner's limit on uploads, and the network to pretend.
    fn shaping(&self) -> Result<Option<Shaping>, ConfigError> {
        let rate = |name, check: fn(f64) -> Result<(), String>| {
            let read = |text| values::above_0(text).and_then(|mbit| check(mbit).map(|()| mbit));
            let mbit = Some(self.text(name)).filter(|text| !text.is_empty()).map(read).transpose();
            let mbit = mbit.map_err(|error| self.wrong(name, error))?;
            Ok::<_, ConfigError>(mbit.map(|mbit| BytesPerSecond(mbit * 1e6 / 8.0)))
        };
        let latency = Some(self.text("shape-ms")).filter(|text| !text.is_empty());
        let latency = latency.map(|text| values::decimal(text, &(0.0..=60_000.0))).transpose();
        let latency = latency.map_err(|error| self.wrong("shape-ms", error))?;
        let (upload, bandwidth) = (rate("upload-mbit", check_upload)?, rate("shape-mbit", |_| Ok(()))?);
        if upload.is_none() && bandwidth.is_none() && latency.is_none() {
            return Ok(None);
        }
        let ms = latency.unwrap_or(0.0);
        Ok(Some(Shaping { bandwidth, upload, latency: Duration::from_secs_f64(ms / 1e3) }))
    }
}
