//! The most of everything: sizes that come from outside are refused above these, before memory is taken for them.

/// A gossip message, signed and encoded (bytes). A plan for a thousand devices fits in half of it.
pub const GOSSIP_BYTES: usize = 256 * 1024;
/// A control frame on a data stream (bytes): everything but tiles, activations and model files.
pub const FRAME_BYTES: usize = 4 * 1024 * 1024;
/// One KV tile with its header (bytes).
pub const TILE_BYTES: usize = 16 * 1024 * 1024;
/// KV payload that a stage may send on one stream before the receiver has unpacked any of it (bytes): what a link of 1 Gbit/s holds in
/// 128 ms.
pub const KV_CREDIT: u64 = 16 * 1024 * 1024;
/// Connections that carry one stage's KV to another stage.
pub const KV_STREAMS: u8 = 4;
/// The activations of one step between two stages (bytes): 2,048 rows of 16,384 f32 values.
pub const ACTIVATION_BYTES: usize = 128 * 1024 * 1024;
/// A tokenizer or configuration file sent to a gateway without the model (bytes).
pub const MODEL_FILE_BYTES: usize = 64 * 1024 * 1024;
/// Files that hold one model's weights.
pub const WEIGHTS_FILES: usize = 512;
/// Peers in one swarm, as far as any of them keeps count.
pub const PEERS: usize = 4096;
/// Heartbeats that a group's leader passes on in one piece: its group's.
pub const HEARTBEATS: usize = 256;
/// Invites that one peer has out.
pub const INVITES: usize = 64;
/// Devices in one advert.
pub const DEVICES: usize = 64;
/// Peers that one peer says it has cut off.
pub const CUT_OFF: usize = 64;
/// Groups of which one gateway says how quick they were for it, those whose claims are in doubt.
pub const SEEN_SPEEDS: usize = 16;
/// Models in one advert.
pub const MODELS: usize = 64;
/// Pieces in which an advert says what of a model is there.
pub const LAYER_PIECES: usize = 64;
/// Encoders in one advert.
pub const ENCODERS: usize = 16;
/// Values of an encoder's vector.
pub const ENCODER_DIMENSIONS: u32 = 1 << 16;
/// Inputs in one request to an encoder: a gateway cuts longer lists.
pub const ENCODER_INPUTS: usize = 64;
/// Those inputs together (bytes); less than a frame, for their lengths travel with them.
pub const ENCODER_BYTES: usize = 3 * 1024 * 1024;
/// Settings of a swarm in one advert.
pub const SETTINGS: usize = 64;
/// Links in one advert.
pub const LINKS: usize = 1024;
/// Addresses in one advert or invite.
pub const ADDRESSES: usize = 16;
/// Any name or message in text (bytes).
pub const TEXT_BYTES: usize = 256;
/// What is kept of a reason that a peer gives, whatever it says (bytes).
pub const REASON_BYTES: usize = 1024;
/// Groups in one plan.
pub const GROUPS: usize = 1024;
/// Stages in one group.
pub const STAGES: usize = 64;
/// Routes in one plan.
pub const ROUTES: usize = 16 * 1024;
/// Layers in one model.
pub const LAYERS: u32 = 1024;
/// Experts of one layer.
pub const EXPERTS: u32 = 512;
/// Tokens in one sequence, prompt and answer together.
pub const SEQUENCE_TOKENS: u32 = 1 << 20;
/// Prefixes that one ring keeps.
pub const PREFIXES: usize = 256;
/// Sequences in one step.
pub const BATCH: usize = 4096;
/// Tokens that one step chooses: of each sequence one, and one for each draft token that holds.
pub const CHOSEN: usize = 16 * BATCH;
/// The grammar of one answer (bytes): the largest schemas of APIs are some ten thousand.
pub const GRAMMAR_BYTES: usize = 64 * 1024;
/// Tokens that may end the text of one grammar.
pub const GRAMMAR_ENDS: usize = 64;
/// Alternatives reported with one token (the OpenAI API allows 20).
pub const TOP_LOGPROBS: usize = 20;
/// Tokens that end an answer.
pub const STOP_TOKENS: usize = 256;
/// Tokens of a prompt whose log-probabilities one message says: with all alternatives a tenth of a frame.
pub const PROMPT_LOGPROBS: usize = 2048;
/// Body of one HTTP request (bytes).
pub const HTTP_BODY_BYTES: usize = 8 * 1024 * 1024;
