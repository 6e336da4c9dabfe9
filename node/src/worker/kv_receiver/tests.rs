//! Broken KV transfers: each refused, counted, and made good by the next one; pages all come back.

use super::*;
use crate::data_plane::doors::Doors;
use crate::data_plane::links::{Incoming, IncomingStream, Links, LinksConfig};
use crate::data_plane::offences::OffenceReporter;
use crate::store::identity::Identity;
use crate::text::grammar::{GrammarError, Grammars};
use crate::worker::compute::Compute;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::{sync::DropGuard, task::TaskTracker};
use tsnode_kernels::{
    engine::{EngineConfig, Input, Output, Slice, Threads},
    source::ModelSource,
};
use tsnode_protocol::{
    KvDtype, KvStream, Manifest, ModelId, SwarmId, TileHeader, Token,
    checksum::Checksum,
    codec,
    kv::{KvPart, Packing},
    limits,
    proof::Membership,
    stream::Opening,
};

const COMPUTED: RequestId = RequestId([1; 16]);
const WAITS: RequestId = RequestId([2; 16]);
const PROMPT: u32 = 150;
const SOON: Duration = Duration::from_secs(10);

pub(in crate::worker) fn links(stop: &CancellationToken) -> (PeerId, Links, Incoming) {
    let identity = Identity::from_seed(&crate::random_bytes());
    let (me, membership) = (identity.peer_id(), Membership::new(SwarmId([1; 16]), None));
    let (offence_reporter, _) = OffenceReporter::channel();
    let listen = "127.0.0.1:0".parse().unwrap();
    let config = LinksConfig {
        identity,
        membership,
        listen,
        shaping: None,
        datagram: None,
        offence_reporter,
        faults: None,
        heartbeats: None,
        carriage: None,
        kv_streams: tsnode_coordinator::kv_streams::KvStreams::Spare(0),
        doors: Doors::default(),
    };
    let (links, incoming, _) = Links::bind(config, stop.clone()).unwrap();
    (me, links, incoming)
}

/// A stage that waits for KV, and a sender that can do as it likes.
struct Bench {
    stage: StageContext,
    kv_receiver: KvReceiver,
    sender: Links,
    incoming: Incoming,
    side: mpsc::Receiver<AdmittedFrame>,
    to_side: SideFrames,
    admissions: AdmissionNo,
    stop: CancellationToken,
    _end: DropGuard,
}

impl Bench {
    async fn new() -> Self {
        let source = ModelSource::embedded().unwrap();
        let (shape, model) = (source.card().shape, source.card().id);
        let config = EngineConfig { threads: Threads::together(1), pool_bytes: 8 << 20, kv_dtype: KvDtype::F16 };
        let mut engine = Engine::new(config).unwrap();
        let loaded = source.load_stage_by(config.threads, shape.all_layers(), &mut |_| ()).unwrap().0;
        let key = engine.load(loaded).unwrap();
        engine.admit(key, COMPUTED, PROMPT).unwrap();
        let prompt: Vec<Token> = (0..PROMPT).map(|n| Token(300 + n * 13 % 3000)).collect();
        let slice = [Slice { request: COMPUTED, start: 0, len: PROMPT }];
        engine.forward(key, &slice, Input::Tokens(&prompt), Output::Hidden).unwrap();
        let stop = CancellationToken::new();
        let (_, sender, _) = links(&stop);
        let (me, links, incoming) = links(&stop);
        let stage = StageContext {
            compute: Compute::start(engine, None).unwrap(),
            links,
            me,
            key,
            model,
            name: "m".into(),
            shape,
            layers: shape.all_layers(),
            dtype: KvDtype::F16,
            position: 0,
            grammars: Grammars::new(|| Err(GrammarError::NoVocabulary("no answer here has a form".into()))),
            held: Arc::default(),
            history: Default::default(),
            tasks: TaskTracker::new(),
        };
        let (to_side, side) = mpsc::channel(8);
        let end = stop.clone().drop_guard();
        Self {
            stage,
            kv_receiver: KvReceiver::default(),
            sender,
            incoming,
            side,
            to_side,
            admissions: 0,
            stop,
            _end: end,
        }
    }

    /// Pages are reserved, and KV expected.
    async fn expect(&mut self) {
        let key = self.stage.key;
        self.stage.compute.call(move |e| e.admit(key, WAITS, PROMPT)).await.unwrap().unwrap();
        self.admissions += 1;
        self.kv_receiver.expect(ExpectedKv {
            me: self.stage.me,
            request: WAITS,
            tokens: PROMPT,
            codec: KvCodec::Int4,
            patience: SOON,
            stage: self.stage.clone(),
            side: self.to_side.clone(),
            admission: self.admissions,
            ring: self.stop.child_token(),
        });
    }

    async fn free_pages(&self) -> usize {
        self.stage.compute.call(|e| e.pages().free).await.unwrap()
    }

    async fn release(&self) {
        self.kv_receiver.forget(WAITS, self.stage.key);
        let key = self.stage.key;
        self.stage.compute.call(move |e| e.release(key, WAITS)).await.unwrap();
    }

    async fn tiles(&self) -> Vec<(TileHeader, Vec<u8>)> {
        let (key, shape) = (self.stage.key, self.stage.shape);
        let all = move |engine: &mut Engine| {
            let mut tiles = Vec::new();
            for (token_start, token_end) in [(0, 128), (128, PROMPT)] {
                for layer in shape.all_layers().iter() {
                    let head_end = shape.kv_heads;
                    let mut tile = TileHeader { layer, head_start: 0, head_end, token_start, token_end, bytes: 0 };
                    let mut payload = Vec::new();
                    engine.export(key, COMPUTED, &tile, KvCodec::Int4, &mut payload).unwrap();
                    tile.bytes = payload.len() as u32;
                    tiles.push((tile, payload));
                }
            }
            tiles
        };
        self.stage.compute.call(all).await.unwrap()
    }

    /// A whole and correct KV transfer.
    async fn good(&self) -> Sent {
        let header = KvHeader {
            request: WAITS,
            model: self.stage.model,
            dtype: KvDtype::F16,
            codec: KvCodec::Int4,
            layers: self.stage.layers,
            kv_stream: KvStream::WHOLE,
            tokens: PROMPT,
        };
        let parts = self.tiles().await.into_iter().map(|(tile, payload)| SentPart::Tile(tile, payload));
        Sent { header, parts: parts.collect(), flip: false, end: true }
    }

    /// Sends it; what the sender is answered.
    async fn send(&mut self, sent: Sent) -> KvAnswer {
        let addresses = [self.stage.links.local_addr().unwrap()];
        let opening = Opening::Kv(sent.header);
        let (opened, arrived) =
            tokio::join!(self.sender.open(self.stage.me, &addresses, &opening), self.incoming.next());
        let (stream, arrived) = (opened.unwrap(), arrived.unwrap());
        let IncomingStream { peer, opening, stream: theirs } = arrived;
        let Opening::Kv(header) = opening else { panic!("{opening:?}") };
        let kv_receiver = self.kv_receiver.clone();
        let receive = kv_receiver.receive(peer, header, theirs);
        let (answer, ()) =
            timeout(SOON, async { tokio::join!(sent.say(stream, &kv_receiver), receive) }).await.unwrap();
        answer
    }

    async fn heard(&mut self) -> Result<Vec<Delivery>, String> {
        let beside = timeout(SOON, self.side.recv()).await.unwrap().unwrap();
        assert_eq!(beside.admission, self.admissions);
        let RingFrame::KvArrived { arrived, .. } = beside.frame else { panic!("{:?}", beside.frame) };
        arrived
    }
}

enum SentPart {
    Tile(TileHeader, Vec<u8>),
    /// The sequence is released now, at the receiver.
    Released(StageKey),
}

impl SentPart {
    fn bytes(&self) -> u64 {
        match self {
            Self::Tile(_, payload) => payload.len() as u64,
            Self::Released(_) => 0,
        }
    }
}

/// What a sender says.
struct Sent {
    header: KvHeader,
    parts: Vec<SentPart>,
    /// A bit of the first payload, after its checksum was taken.
    flip: bool,
    /// With a manifest of what was sent.
    end: bool,
}

impl Sent {
    async fn say(self, stream: Stream, kv_receiver: &KvReceiver) -> KvAnswer {
        let Stream { mut sender, mut receiver } = stream;
        let (mut checksum, mut tiles, mut bytes) = (Checksum::default(), 0, 0);
        let mut flip = self.flip;
        let said = async {
            for part in self.parts {
                match part {
                    SentPart::Tile(tile, mut payload) => {
                        checksum.update(&codec::encode(&tile)).update(&payload);
                        (tiles, bytes) = (tiles + 1, bytes + payload.len() as u64);
                        payload[0] ^= u8::from(std::mem::take(&mut flip));
                        sender.send(&KvPart::Tile(tile)).await?;
                        sender.send_bytes(&payload, limits::TILE_BYTES).await?;
                    }
                    SentPart::Released(key) => kv_receiver.forget(WAITS, key),
                }
            }
            if self.end {
                let manifest = Manifest { tiles, bytes, checksum: checksum.finish() };
                sender.send(&KvPart::End(manifest, Packing::default())).await?;
            }
            sender.finish()
        };
        // A receiver that has refused reads no further.
        let _ = said.await;
        loop {
            match receiver.recv::<KvAnswer>().await.unwrap().unwrap() {
                KvAnswer::Credit(_) => {}
                answer => return answer,
            }
        }
    }
}

/// What is wrong, and what it is counted as.
fn broken(mut good: Sent, how: &str, key: StageKey) -> Sent {
    let SentPart::Tile(first, payload) = &good.parts[0] else { panic!() };
    let (first, payload) = (*first, payload.clone());
    match how {
        "manifest" => good.flip = true,
        "cut" => good.end = false,
        "stray" => good.parts.insert(1, SentPart::Tile(first, payload)),
        "incomplete" => drop(good.parts.pop()),
        "foreign" => good.header.model = ModelId([9; 16]),
        "unexpected" => good.parts.insert(2, SentPart::Released(key)),
        "over credit" => {
            let much = TileHeader { bytes: limits::KV_CREDIT as u32, layer: 1, ..first };
            good.parts.insert(1, SentPart::Tile(much, vec![0; limits::KV_CREDIT as usize]));
        }
        "unpack" => {
            let short = TileHeader { bytes: first.bytes - 1, ..first };
            good.parts[0] = SentPart::Tile(short, payload[1..].to_vec());
        }
        other => panic!("{other}"),
    }
    good
}

#[tokio::test]
async fn what_is_broken_is_refused_counted_and_made_good_by_the_next() {
    let mut bench = Bench::new().await;
    let free = bench.free_pages().await;
    let ways = ["manifest", "cut", "stray", "incomplete", "foreign", "unexpected", "over credit", "unpack"];
    for how in ways {
        bench.expect().await;
        let sent = broken(bench.good().await, how, bench.stage.key);
        let answer = bench.send(sent).await;
        assert!(matches!(answer, KvAnswer::Refused(_)), "{how}: {answer:?}");
        if how != "unexpected" {
            bench.heard().await.unwrap_err();
        }
        assert_eq!(bench.kv_receiver.refused().get(how), Some(&1), "{:?}", bench.kv_receiver.refused());
        bench.release().await;
        assert_eq!(bench.free_pages().await, free, "{how}");

        bench.expect().await;
        let good = bench.good().await;
        assert_eq!(bench.send(good).await, KvAnswer::Committed, "after {how}");
        let deliveries = bench.heard().await.unwrap();
        assert_eq!((deliveries.len(), deliveries[0].to, deliveries[0].tiles), (1, bench.stage.me, 8));
        bench.release().await;
        assert_eq!(bench.free_pages().await, free, "after {how}");
    }
    assert_eq!(bench.kv_receiver.refused().values().sum::<u64>(), ways.len() as u64);
}

#[tokio::test]
async fn a_layer_of_another_stage_is_a_stray() {
    let mut bench = Bench::new().await;
    bench.expect().await;
    let mut sent = bench.good().await;
    // The stream announces half of the layers, and sends the others.
    sent.header.layers.end = 2;
    assert!(matches!(bench.send(sent).await, KvAnswer::Refused(_)));
    assert_eq!(bench.kv_receiver.refused().get("stray"), Some(&1));
    bench.heard().await.unwrap_err();
}

/// Of every second layer.
fn half(good: &Sent, index: u8) -> Sent {
    let header = KvHeader { kv_stream: KvStream { index, of: 2 }, ..good.header };
    let carried =
        |part: &&SentPart| matches!(part, SentPart::Tile(tile, _) if header.carried().any(|l| l == tile.layer));
    let parts = good.parts.iter().filter(carried).map(|part| match part {
        SentPart::Tile(tile, payload) => SentPart::Tile(*tile, payload.clone()),
        SentPart::Released(key) => SentPart::Released(*key),
    });
    Sent { header, parts: parts.collect(), flip: false, end: true }
}

#[tokio::test]
async fn what_comes_by_two_connections_is_one_delivery_once_both_are_whole() {
    let mut bench = Bench::new().await;
    bench.expect().await;
    let good = bench.good().await;
    assert_eq!(bench.send(half(&good, 1)).await, KvAnswer::Committed);
    assert!(bench.side.try_recv().is_err(), "every other layer is missing");
    assert_eq!(bench.send(half(&good, 0)).await, KvAnswer::Committed);
    let deliveries = bench.heard().await.unwrap();
    assert_eq!((deliveries.len(), deliveries[0].tiles, deliveries[0].streams), (1, 8, 2));
    assert_eq!(deliveries[0].bytes, good.parts.iter().map(SentPart::bytes).sum::<u64>());
    bench.release().await;
}

#[tokio::test]
async fn a_layer_of_another_kv_stream_is_a_stray() {
    let mut bench = Bench::new().await;
    bench.expect().await;
    let good = bench.good().await;
    let mixed = Sent { header: KvHeader { kv_stream: KvStream { index: 0, of: 2 }, ..good.header }, ..good };
    assert!(matches!(bench.send(mixed).await, KvAnswer::Refused(_)));
    assert_eq!(bench.kv_receiver.refused().get("stray"), Some(&1));
    bench.heard().await.unwrap_err();
}

/// Whoever hears of them would refuse more, and blame this stage for it.
#[tokio::test]
async fn what_comes_in_more_pieces_than_may_be_told_of_is_told_in_as_many_as_may() {
    let mut bench = Bench::new().await;
    bench.expect().await;
    let good = bench.good().await;
    let first = bench.stage.layers.start;
    // Of no layer, each of them.
    for layer in first..=first + limits::STAGES as u32 {
        let header = KvHeader { layers: LayerRange { start: layer, end: layer }, ..good.header };
        let nothing = Sent { header, parts: Vec::new(), flip: false, end: true };
        assert_eq!(bench.send(nothing).await, KvAnswer::Committed);
    }
    assert_eq!(bench.send(good).await, KvAnswer::Committed);
    let deliveries = bench.heard().await.unwrap();
    assert_eq!(deliveries.len(), limits::STAGES);
    let told = RingFrame::KvArrived { request: WAITS, position: 0, arrived: Ok(deliveries) };
    assert_eq!(told.check(), Ok(()));
    bench.release().await;
}
