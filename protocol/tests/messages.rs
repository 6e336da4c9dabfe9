//! One message of every kind, with a value in every field.

#![expect(clippy::unwrap_used, reason = "an address that cannot be read fails the test")]

use ed25519_dalek::SigningKey;
use tsnode_protocol::{
    Advert, BatchPolicy, BytesPerSecond, Call, ChosenPolicy, Constraint, Device, DeviceKind, DriverVersion,
    EncodeEvent, EncodeRefusal, EncodeRequest, Encoded, EncoderCard, EncoderInput, EncoderTask, Endorsement, Epoch,
    Experts, FlopsPerSecond, Gossip, Gpus, Grammar, Group, GroupLoad, Heartbeat, Invite, InviteId, KvCodec, KvDtype,
    KvStream, LayerProfile, LayerRange, Link, LivenessDigest, Load, Manifest, Misfit, Missed, ModelCard, ModelFile,
    ModelId, ModelOrigin, ModelShape, PartialModel, PathKind, PeerId, Phase, Plan, PlanId, PolicyChoice, PromptCodec,
    PromptLogprob, Quickest, Replayed, RequestClass, RequestId, RingId, Route, RoutePolicy, Sampled, Sampling, Seconds,
    Secret, SeenSpeed, Served, SettingKey, SettingValue, Signed, Stage, StepSize, SwarmId, SwarmSetting, Targets, Term,
    Ticket, TicketKey, TicketNotice, TileHeader, TimedStep, Token, TokenLogprob, Traffic, codec,
    gossip::Certificate,
    kv::{Delivery, KvAnswer, KvHeader, KvPace, KvPart, Packing},
    liveness_digest::{PeerTag, Present},
    proof::{Code, Nonce},
    ring::{
        Admit, AwaitKv, Grow, KvExport, KvTarget, PrefixId, Refusal, RingFrame, RingHello, SharedPrefix, SharedWith,
        Step, StepEntry,
    },
    stream::{
        Computed, ConnectionUse, DecodeEvent, DecodeOrder, DecodeRequest, End, Generation, Meeting, Opening,
        PrefillEvent, PrefillRequest, ProofAnswer, SeenAt, TrainSeen,
    },
    weights::{WeightsFile, WeightsForm, WeightsManifest, WeightsQuery},
};

pub const SWARM: SwarmId = SwarmId([7; 16]);
pub const REQUEST: RequestId = RequestId([9; 16]);

pub fn layers(start: u32, end: u32) -> LayerRange {
    LayerRange { start, end }
}

pub fn stages() -> Vec<Stage> {
    let stage = |peer, start, end| Stage { peer: PeerId([peer; 32]), device: 0, layers: layers(start, end) };
    vec![stage(1, 0, 3), stage(2, 3, 5)]
}

pub fn misfit(r2: f64, mean: f64) -> Misfit {
    Misfit { r2, mean, largest: 2.0 * mean }
}

pub fn settings() -> Vec<SwarmSetting> {
    let targets = Targets { ttft: Some(Seconds(0.5)), tpot: Some(Seconds(0.05)), e2e: None };
    let (at, by) = (1_800_000_000_000, PeerId([3; 32]));
    let set = |key, value| SwarmSetting { key, value, at, by };
    let key = SettingKey::Targets { model: Some(ModelId([5; 16])), class: RequestClass::Batch };
    let (route, batch) = (SettingKey::Route { model: None }, SettingKey::Batch { model: None });
    vec![
        set(key, SettingValue::Targets(targets)),
        set(route, SettingValue::Route(Some(RoutePolicy::Shortest))),
        set(batch, SettingValue::Batch(Some(BatchPolicy::Mixed))),
    ]
}

/// Every policy, each for a model of its own.
pub fn routed() -> Advert {
    let set = |(n, policy): (u8, RoutePolicy)| {
        let (key, value) = (SettingKey::Route { model: Some(ModelId([n; 16])) }, SettingValue::Route(Some(policy)));
        SwarmSetting { key, value, at: 1_800_000_000_000, by: PeerId([3; 32]) }
    };
    let mut settings: Vec<SwarmSetting> = (1..).zip(RoutePolicy::ALL).map(set).collect();
    settings.extend((1..).zip(BatchPolicy::ALL).map(|(n, policy): (u8, BatchPolicy)| {
        let (key, value) = (SettingKey::Batch { model: Some(ModelId([n; 16])) }, SettingValue::Batch(Some(policy)));
        SwarmSetting { key, value, at: 1_800_000_000_000, by: PeerId([3; 32]) }
    }));
    let (devices, models, partial, origins, encoders, links, invites, traffic) = Default::default();
    Advert { devices, models, partial, origins, encoders, links, invites, traffic, settings, ..advert() }
}

pub fn advert() -> Advert {
    let shape = ModelShape {
        layers: 5,
        hidden: 256,
        intermediate: 512,
        heads: 8,
        kv_heads: 4,
        head_dim: 32,
        vocab: 4096,
        context: 1024,
        layer_bytes: 1 << 20,
        embed_bytes: 2 << 20,
        head_bytes: 2 << 20,
        experts: Some(Experts { count: 8, used: 2, bytes: 1 << 19 }),
        whole: false,
        state_bytes: 0,
    };
    let file = ModelFile { name: "tokenizer.json".into(), bytes: 70_000, hash: [6; 32] };
    let device = Device {
        kind: DeviceKind::Cuda(Gpus {
            first: 1,
            count: 2,
            capability: (8, 9),
            driver: Some(DriverVersion([550, 54, 15])),
            power_limit_mw: Some(450_000),
            clocks_mhz: Some((2520, 10_501)),
            pcie: Some((4, 16)),
            up: BytesPerSecond(25e9),
            down: BytesPerSecond(24e9),
        }),
        name: "a card".into(),
        memory_bytes: 24 << 30,
        kv_bytes: 8 << 30,
        flops: FlopsPerSecond(71e12),
        bandwidth: BytesPerSecond(768e9),
        serves: vec![
            Served {
                model: ModelId([5; 16]),
                memory_bytes: 16 << 30,
                kv_bytes: 6 << 30,
                is_kept: true,
                profile: Some(LayerProfile {
                    model: ModelId([5; 16]),
                    prefill: [1e-4, 2e-6, 3e-10],
                    decode: [4e-5, 5e-9, 6e-6],
                    prompts: misfit(0.999, 0.02),
                    steps: misfit(0.98, 0.03),
                    mixed: misfit(-0.5, 0.2),
                }),
            },
            Served { model: ModelId([7; 16]), memory_bytes: 8 << 30, kv_bytes: 2 << 30, is_kept: false, profile: None },
        ],
    };
    let link =
        Link { to: PeerId([2; 32]), latency: Seconds(0.01), bandwidth: BytesPerSecond(125e6), path: PathKind::Direct };
    let relayed = Link { to: PeerId([3; 32]), path: PathKind::Relayed { via: PeerId([4; 32]) }, ..link };
    let traffic = Traffic {
        model: ModelId([5; 16]),
        rate: 0.25,
        variation: 2.5,
        prompts: std::array::from_fn(|i| 100 << i.min(9)),
        answers: [1; 16],
    };
    let (source, licence) = ("org/tiny@0123456789".into(), Some("apache-2.0".into()));
    let origin = ModelOrigin { model: ModelId([5; 16]), source, licence, is_gated: true, is_given: true };
    Advert {
        name: "peer".into(),
        version: "0.1.0".into(),
        addresses: vec!["/ip4/10.0.0.1/tcp/7446".into()],
        data_addresses: vec!["10.0.0.1:7447".parse().unwrap(), "[::1]:7447".parse().unwrap()],
        devices: vec![device],
        models: vec![
            ModelCard { id: ModelId([5; 16]), name: "tiny".into(), shape, files: vec![file] },
            ModelCard { id: ModelId([7; 16]), name: "other".into(), shape, files: vec![] },
        ],
        partial: vec![PartialModel { model: ModelId([7; 16]), layers: vec![layers(0, 2), layers(3, 5)] }],
        origins: vec![origin],
        encoders: vec![EncoderCard {
            id: ModelId([6; 16]),
            name: "encoder".into(),
            task: EncoderTask::Embed,
            dimensions: 384,
            context: 512,
        }],
        links: vec![link, relayed],
        reachable: true,
        invites: vec![TicketNotice { id: InviteId([4; 8]), key: TicketKey([5; 32]), expires: 1 << 31, counted: true }],
        traffic: vec![traffic],
        settings: settings(),
    }
}

pub fn plan() -> Plan {
    let group = Group::new(ModelId([5; 16]), Phase::Mixed, stages());
    let route = Route { prefill: group.id, decode: group.id, share: 0.75 };
    Plan {
        epoch: Epoch(300),
        term: Term(2),
        parent: Some(PlanId([4; 16])),
        groups: vec![group],
        routes: vec![route],
        chosen: chosen(),
        reason: "two hosts".into(),
    }
}

pub fn chosen() -> Vec<PolicyChoice> {
    let replayed = |policy, in_time| Replayed { policy, in_time, slowness: 3.5 };
    let choice = |policy, other| {
        let tried = vec![replayed(other, 0.75), replayed(policy, 1.0)];
        PolicyChoice { model: ModelId([5; 16]), policy, requests: 300, rate: 0.5, tried }
    };
    let [live, pools] = [RoutePolicy::Live, RoutePolicy::Pools].map(ChosenPolicy::Route);
    let [chunked, mixed] = [BatchPolicy::Chunked, BatchPolicy::Mixed].map(ChosenPolicy::Batch);
    vec![choice(pools, live), choice(mixed, chunked)]
}

pub fn endorsement() -> Gossip {
    Gossip::Endorsement(Endorsement { epoch: Epoch(300), term: Term(2), plan: plan().id() })
}

pub fn present(said: Option<u64>) -> Present {
    Present { peer: PeerTag([5; 8]), said }
}

pub fn gossip() -> Vec<(&'static str, Gossip)> {
    let key = SigningKey::from_bytes(&[1; 32]);
    let seal = |gossip: &Gossip| Signed::seal(&key, SWARM, 3, gossip);
    let load = Load {
        running: 301,
        waiting: 2,
        pending_tokens: 70_000,
        free_pages: 5,
        total_pages: 300,
        step: None,
        chosen: Some(2.5),
        quickest: Quickest::default(),
    };
    let size = StepSize { prompts: 0, pairs: 0, answers: 2, context: 600 };
    let quickest = Quickest { prompts: None, answers: Some(TimedStep { took: Seconds(0.01), size }) };
    let heartbeat = Heartbeat {
        clock: Epoch(301),
        epoch: Epoch(300),
        term: Term(2),
        plan: Some(plan().id()),
        ready: vec![GroupLoad {
            group: plan().groups[0].id,
            load: Load { running: 300, step: Some(Seconds(0.02)), quickest, ..load },
        }],
        load,
        leaving: true,
        cut_off: vec![PeerId([4; 32])],
        seen_speeds: vec![SeenSpeed { group: plan().groups[0].id, phase: Phase::Decode, doublings: 2 }],
    };
    let certificate = Certificate {
        plan: seal(&Gossip::Plan(plan().into())),
        endorsements: vec![seal(&endorsement()), seal(&endorsement())],
    };
    vec![
        ("gossip advert", Gossip::Advert(advert().into())),
        ("gossip heartbeat", Gossip::Heartbeat(heartbeat)),
        ("gossip plan", Gossip::Plan(plan().into())),
        ("gossip endorsement", endorsement()),
        ("gossip call", Gossip::Call(Call { peers: vec![Missed { peer: PeerTag([3; 8]), last: 1 << 62 }] })),
        (
            "gossip liveness digest",
            Gossip::LivenessDigest(LivenessDigest { present: vec![present(Some(1 << 62)), present(None)] }),
        ),
        ("gossip certificate", Gossip::Certificate(certificate.into())),
        ("gossip advert with routing policies", Gossip::Advert(routed().into())),
    ]
}

pub fn generation() -> Generation {
    let sampling = Sampling {
        temperature: 0.8,
        logit_bias: vec![(Token(7), -1.5)],
        seed: u64::MAX,
        logprobs: Some(3),
        prompt_logprobs: Some(1),
        min_tokens: 4,
        ends: vec![Token(1)],
        constraint: Some(Constraint { grammar: Grammar::Regex("[ab]+".into()), ends: vec![Token(1)] }.into()),
        ..Sampling::greedy()
    };
    Generation { sampling, max_new_tokens: 128, stop_tokens: vec![Token(1)], class: RequestClass::Batch }
}

pub fn sampled() -> Sampled {
    let top = vec![TokenLogprob { token: Token(300), logprob: -0.25 }];
    Sampled { token: Token(300), logprob: Some(-0.25), top }
}

pub fn prompt_logprobs() -> Vec<PromptLogprob> {
    vec![PromptLogprob { logprob: -0.5, rank: 2, top: sampled().top }]
}

pub fn target() -> KvTarget {
    KvTarget { peer: PeerId([2; 32]), layers: layers(3, 5), addresses: vec!["10.0.0.1:7447".parse().unwrap()] }
}

pub fn openings() -> Vec<(&'static str, Opening)> {
    let (group, prompt) = (plan().groups[0].id, vec![Token(0), Token(300), Token(70_000)]);
    let decode = DecodeRequest {
        request: REQUEST,
        group,
        prompt: prompt.clone(),
        generation: generation(),
        await_kv: true,
        answered: vec![],
        codec: PromptCodec { codec: KvCodec::Int4, first: Some(64) },
    };
    let prefill = PrefillRequest {
        request: REQUEST,
        group,
        prompt,
        generation: generation(),
        targets: vec![target()],
        codec: KvCodec::Int4,
        pace: KvPace::Whole,
    };
    let hello = RingHello { group, ring: RingId([8; 8]), model: ModelId([5; 16]), stages: stages(), position: 1 };
    let kv = KvHeader {
        request: REQUEST,
        model: ModelId([5; 16]),
        dtype: KvDtype::F16,
        codec: KvCodec::Int4,
        layers: layers(3, 5),
        kv_stream: KvStream { index: 1, of: 2 },
        tokens: 200,
    };
    let encode = EncodeRequest {
        model: ModelId([6; 16]),
        inputs: vec![
            EncoderInput::Text("a text".into()),
            EncoderInput::Tokens(vec![Token(101), Token(300)]),
            EncoderInput::Pair("query".into(), "text".into()),
        ],
        truncate: Some(256),
    };
    vec![
        ("opening prove", Opening::Prove(Nonce([1; 32]), ConnectionUse::KvStream)),
        ("opening decode", Opening::Decode(decode)),
        ("opening prefill", Opening::Prefill(prefill)),
        ("opening ring", Opening::Ring(hello)),
        ("opening kv", Opening::Kv(kv)),
        ("opening file", Opening::File { model: ModelId([5; 16]), name: "tokenizer.json".into() }),
        (
            "opening heartbeat",
            Opening::Heartbeats(vec![Signed::seal(&SigningKey::from_bytes(&[1; 32]), SWARM, 3, &endorsement())]),
        ),
        ("opening probe", Opening::Probe { bytes: 65_536 }),
        ("opening where", Opening::Where),
        ("opening encode", Opening::Encode(encode)),
        ("opening weights", Opening::Weights(ModelId([5; 16]))),
        ("opening meet", Opening::Meet(Meeting { addresses: vec!["192.0.2.7:4001".parse().unwrap()] })),
    ]
}

pub fn ring_frames() -> Vec<(&'static str, RingFrame)> {
    let admit = Admit {
        request: REQUEST,
        tokens: vec![Token(0), Token(9)],
        answered: 1,
        room: 66,
        most: 130,
        shared: Some(SharedPrefix { with: SharedWith::Running(REQUEST), tokens: 1 }),
        sampling: generation().sampling,
        await_kv: Some(AwaitKv { patience_ms: 10_000, codec: KvCodec::Int4, tokens: 1 }),
        export: Some(KvExport { targets: vec![target()], codec: KvCodec::Raw, pace: KvPace::Layers }),
        refused: None,
    };
    let entry =
        StepEntry { request: REQUEST, start: 64, tokens: vec![Token(5), Token(6)], sample: true, prompt: false };
    vec![
        ("ring admit", RingFrame::Admit(admit)),
        ("ring step", RingFrame::Step(Step { step: 1 << 40, entries: vec![entry], rows: 2 })),
        ("ring release", RingFrame::Release(REQUEST)),
        ("ring grow", RingFrame::Grow(Grow { request: REQUEST, room: 130, refused: Some(Refusal::PrefixGone) })),
        ("ring keep", RingFrame::Keep { request: REQUEST, prefix: PrefixId(7), tokens: 120 }),
        ("ring forget", RingFrame::Forget(PrefixId(7))),
        ("ring admitted", RingFrame::Admitted { request: REQUEST, refused: Some(Refusal::Full("no pages".into())) }),
        ("ring grown", RingFrame::Grown { request: REQUEST, refused: Some(Refusal::Never("no stage".into())) }),
        ("ring sampled", RingFrame::Sampled { step: 1 << 40, tokens: vec![(REQUEST, sampled())] }),
        ("ring kv arrived", RingFrame::KvArrived { request: REQUEST, position: 2, arrived: Ok(vec![delivery()]) }),
        ("ring kv failed", RingFrame::KvArrived { request: REQUEST, position: 2, arrived: Err("cut".into()) }),
        ("ring kv sent", RingFrame::KvSent { request: REQUEST, position: 0, bytes: 65_536, failed: None }),
        (
            "ring prompt logprobs",
            RingFrame::PromptLogprobs { request: REQUEST, from: 2048, logprobs: prompt_logprobs() },
        ),
        ("ring failed", RingFrame::Failed { request: REQUEST, reason: "cut".into() }),
    ]
}

pub fn delivery() -> Delivery {
    Delivery {
        from: PeerId([1; 32]),
        to: PeerId([2; 32]),
        bytes: 1 << 33,
        tiles: 8,
        streams: 2,
        pack: Seconds(0.25),
        pack_tail: Seconds(0.125),
        wire: Seconds(2.0),
        unpack: Seconds(0.5),
        unpack_tail: Seconds(0.0),
    }
}

pub fn tile() -> TileHeader {
    TileHeader { layer: 3, head_start: 0, head_end: 4, token_start: 64, token_end: 128, bytes: 32_768 }
}

/// Every kind of message with its bytes.
pub fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let mut all = Vec::new();
    all.extend(gossip().iter().map(|(name, m)| (*name, codec::encode(m))));
    all.extend(openings().iter().map(|(name, m)| (*name, codec::encode(m))));
    all.extend(ring_frames().iter().map(|(name, m)| (*name, codec::encode(m))));
    let sealed = Signed::seal(&SigningKey::from_bytes(&[1; 32]), SWARM, 3, &endorsement());
    let manifest = Manifest { tiles: 8, bytes: 1 << 33, checksum: 3 };
    let packing = Packing { all: Seconds(0.25), tail: Seconds(0.125) };
    let computed = Computed { queued: Seconds(0.25), took: Seconds(1.5) };
    let arrived = DecodeEvent::KvArrived { after: Seconds(0.5), deliveries: vec![delivery()] };
    let invite = Invite {
        swarm: SWARM,
        ticket: Some(Ticket { id: InviteId([4; 8]), secret: Secret([2; 32]), expires: 1_800_000_000 }),
        addresses: vec!["/ip4/10.0.0.1/udp/7446/quic-v1".into()],
    };
    let weights = WeightsManifest {
        form: WeightsForm::Safetensors,
        files: vec![WeightsFile { bytes: 1 << 33, root: [1; 32] }, WeightsFile { bytes: 5, root: [2; 32] }],
    };
    all.extend([
        ("envelope", sealed.to_bytes()),
        ("proof answer", codec::encode(&ProofAnswer { nonce: Nonce([1; 32]), code: Code([2; 32]) })),
        ("kv tile", codec::encode(&KvPart::Tile(tile()))),
        ("kv end", codec::encode(&KvPart::End(manifest, packing))),
        ("kv credit", codec::encode(&KvAnswer::Credit(1 << 20))),
        ("kv committed", codec::encode(&KvAnswer::Committed)),
        ("kv refused", codec::encode(&KvAnswer::Refused("why".into()))),
        ("order begin", codec::encode(&DecodeOrder::Begin(Token(300)))),
        ("order prefill here", codec::encode(&DecodeOrder::PrefillHere { first: Some(Token(3)) })),
        ("decode granted", codec::encode(&DecodeEvent::Granted { cached: 500 })),
        ("decode refused", codec::encode(&DecodeEvent::Refused("full".into()))),
        ("decode kv arrived", codec::encode(&arrived)),
        ("decode computed", codec::encode(&DecodeEvent::Computed(computed))),
        ("decode kv failed", codec::encode(&DecodeEvent::KvFailed("late".into()))),
        ("decode token", codec::encode(&DecodeEvent::Token { index: 4, sampled: sampled() })),
        ("decode end", codec::encode(&DecodeEvent::End(End::Failed("gone".into())))),
        (
            "decode prompt logprobs",
            codec::encode(&DecodeEvent::PromptLogprobs { from: 2048, logprobs: prompt_logprobs() }),
        ),
        ("prefill first", codec::encode(&PrefillEvent::First { sampled: sampled(), computed, cached: 500 })),
        ("prefill kv sent", codec::encode(&PrefillEvent::KvSent { bytes: 1 << 20, after: Seconds(0.5) })),
        ("prefill failed", codec::encode(&PrefillEvent::Failed("gone".into()))),
        ("encoded", codec::encode(&EncodeEvent::Encoded(Encoded { tokens: 5, values: vec![0.25, -1.5] }))),
        ("encoding done", codec::encode(&EncodeEvent::Done { waiting: 300 })),
        (
            "encoding refused",
            codec::encode(&EncodeEvent::Refused(EncodeRefusal::TooLong { index: 1, tokens: 600, context: 512 })),
        ),
        ("train seen", codec::encode(&TrainSeen { rate: Some(BytesPerSecond(1.25e8)) })),
        ("seen at", codec::encode(&SeenAt { address: Some("192.0.2.7:4001".parse().unwrap()) })),
        ("meeting", codec::encode(&Meeting { addresses: vec!["192.0.2.7:4001".parse().unwrap()] })),
        ("invite", codec::encode(&invite)),
        ("weights manifest", codec::encode(&weights)),
        ("weights query", codec::encode(&WeightsQuery::Manifest)),
        ("weights query hashes", codec::encode(&WeightsQuery::Hashes { file: 1 })),
        ("weights query chunk", codec::encode(&WeightsQuery::Chunk { file: 1, chunk: 300 })),
        ("weights query bitfield", codec::encode(&WeightsQuery::Bitfield { file: 1 })),
    ]);
    all
}
