//! Prompt flow 8: a draft model proposes answers' next tokens for the batcher of a group that this peer leads.
//!
//! The model is whole on this host, whatever the group's stages. It reads what it has not seen of an answer and goes on from
//! there, a token at a time, all answers of a step side by side; by the same draws as the answer itself, so that where both
//! models mean the same they say the same, sampled or not. Its KV lies in pages that count as free: an answer whose pages have
//! gone is read anew while there is room, and is without drafts while there is none.

use super::compute::{Compute, ComputeError};
use std::collections::BTreeMap;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use tsnode_coordinator::{
    batcher::{DraftRequest, Event},
    policy::sharing::arbiter::StepShare,
};
use tsnode_kernels::engine::{Engine, EngineError, Input, RowToSample, Slice, StageKey};
use tsnode_protocol::{ModelShape, RequestId, Sampling, Token};

/// Orders on their way; as frames into a worker, bounded by the sequences a leader takes.
const ORDERS: usize = 4096;
/// Drafts on their way back; the speculator waits above it, its leader never does.
const ANSWERS: usize = 64;
/// Tokens that are read at once: more would keep the step waiting. The rest is read when it is asked again.
const READ_AT_ONCE: usize = 512;
/// Room that is asked for beyond need (tokens).
const AHEAD: u32 = 256;

/// A draft model that is loaded.
#[derive(Clone)]
pub(super) struct DraftModel {
    key: StageKey,
    shape: ModelShape,
    /// Several groups may be led here, and have a sequence of the same name: here each has a name of its own.
    names: Arc<AtomicU64>,
}

impl DraftModel {
    pub fn new(key: StageKey, shape: ModelShape) -> Self {
        Self { key, shape, names: Arc::default() }
    }

    fn name(&self) -> RequestId {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&self.names.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        RequestId(name)
    }
}

/// What a leader says to its speculator.
pub(super) enum SpeculatorOrder {
    /// Propose for a step.
    Propose { step: u64, wanted: Vec<DraftRequest> },
    /// A sequence is no more.
    Forget(RequestId),
}

/// The speculator takes no orders, or gives no answers any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the draft model no longer proposes")]
pub(super) struct SpeculatorGone;

/// The way to a speculator. It ends when this is dropped, and gives its pages back.
pub(super) struct Speculator {
    orders: mpsc::Sender<SpeculatorOrder>,
    answers: mpsc::Receiver<Event>,
}

impl Speculator {
    /// Starts one for a group whose model has so many tokens.
    pub fn start(model: DraftModel, compute: Compute, vocab: u32, tasks: &TaskTracker) -> Self {
        let (orders, ordered) = mpsc::channel(ORDERS);
        let (answer, answers) = mpsc::channel(ANSWERS);
        tasks.spawn(AnswerReader { model, compute, vocab, known: BTreeMap::new() }.run(ordered, answer));
        Self { orders, answers }
    }

    /// # Errors
    /// When it has ended, or takes nothing more.
    pub fn order(&self, order: SpeculatorOrder) -> Result<(), SpeculatorGone> {
        self.orders.try_send(order).map_err(|_| SpeculatorGone)
    }

    /// Its next drafts.
    ///
    /// # Errors
    /// When it has ended.
    pub async fn answer(&mut self) -> Result<Event, SpeculatorGone> {
        self.answers.recv().await.ok_or(SpeculatorGone)
    }
}

/// A sequence as the speculator has it.
#[derive(Debug, Default)]
struct SpeculatedSequence {
    tokens: Vec<Token>,
    /// Of those, as many have KV.
    read: usize,
    /// Drafts that have KV behind them.
    ahead: Vec<Token>,
}

impl SpeculatedSequence {
    /// What was accepted need not be read again. The last token always is, for what follows it.
    fn hear(&mut self, tokens: &[Token]) {
        let drafted = std::mem::take(&mut self.ahead);
        if self.read == self.tokens.len() {
            self.read += drafted.iter().zip(tokens).take_while(|(propose, token)| propose == token).count();
        }
        self.tokens.extend_from_slice(tokens);
        self.read = self.read.min(self.tokens.len().saturating_sub(1));
    }

    fn lose_kv(&mut self) {
        (self.read, self.ahead) = (0, Vec::new());
    }

    fn present(&self) -> u32 {
        (self.read + self.ahead.len()) as u32
    }
}

/// An answer of a step, on its way to the compute thread and back.
#[derive(Debug)]
struct DraftTurn {
    request: RequestId,
    name: RequestId,
    known: SpeculatedSequence,
    most: usize,
    sampling: Sampling,
    drafts: Vec<Token>,
}

impl DraftTurn {
    /// What is computed of it next: what it has not read, then each of its own drafts but the last.
    fn next(&self) -> &[Token] {
        match self.drafts.len() {
            0 => &self.known.tokens[self.known.read..],
            drafts if drafts < self.most => &self.drafts[self.known.ahead.len()..],
            _ => &[],
        }
    }

    /// So many of those have been computed, after which comes a token if that was all.
    fn took(&mut self, tokens: usize, propose: Option<Token>) {
        match self.drafts.last() {
            None => self.known.read += tokens,
            Some(last) => self.known.ahead.push(*last),
        }
        self.drafts.extend(propose);
    }

    /// Makes room for it as far as there is, and goes back to what is right; whether it can be read.
    fn enter(&mut self, engine: &mut Engine, model: &DraftModel) -> bool {
        let DraftModel { key, shape, .. } = model;
        let needs = (self.known.tokens.len() + self.most) as u32;
        let is_foreign = |token: &Token| token.0 >= shape.vocab;
        if needs > shape.context || self.known.tokens[self.known.read..].iter().any(is_foreign) {
            return false;
        }
        let room = (needs + AHEAD).min(shape.context);
        let entered = match engine.held(*key, self.name) {
            None => {
                self.known.lose_kv();
                engine.admit(*key, self.name, room)
            }
            Some(held) => {
                let grown = if held.room < needs { engine.grow(*key, self.name, room) } else { Ok(()) };
                grown.and_then(|()| engine.truncate(*key, self.name, self.known.present()))
            }
        };
        entered.is_ok()
    }

    fn leave(&mut self, engine: &mut Engine, model: &DraftModel) {
        engine.release(model.key, self.name);
        self.known.lose_kv();
        self.drafts.clear();
    }
}

/// Reads answers and proposes how they go on, for as long as a ring lives.
struct AnswerReader {
    model: DraftModel,
    compute: Compute,
    /// Tokens of the model that it drafts for.
    vocab: u32,
    known: BTreeMap<RequestId, (RequestId, SpeculatedSequence)>,
}

impl AnswerReader {
    async fn run(mut self, mut orders: mpsc::Receiver<SpeculatorOrder>, answers: mpsc::Sender<Event>) {
        while let Some(order) = orders.recv().await {
            match order {
                SpeculatorOrder::Forget(request) => {
                    if let Some((name, _)) = self.known.remove(&request) {
                        self.release(vec![name]).await;
                    }
                }
                SpeculatorOrder::Propose { step, wanted } => {
                    let drafts = self.propose(wanted).await;
                    if answers.send(Event::Drafted { step, drafts }).await.is_err() {
                        break;
                    }
                }
            }
        }
        let names = std::mem::take(&mut self.known).into_values().map(|(name, _)| name).collect();
        self.release(names).await;
    }

    /// Proposes; fewer or none where there is no room or something fails.
    async fn propose(&mut self, wanted: Vec<DraftRequest>) -> Vec<(RequestId, Vec<Token>)> {
        let turns: Vec<DraftTurn> = wanted.into_iter().filter_map(|wanted| self.turn(wanted)).collect();
        let names = turns.iter().map(|turn| turn.name).collect();
        match self.compute_turns(turns).await {
            Ok(turns) => turns.into_iter().map(|turn| self.take_back(turn)).collect(),
            Err(error) => {
                tracing::warn!(%error, "the draft model proposes nothing for what it was just asked about");
                self.release(names).await;
                Vec::new()
            }
        }
    }

    /// What it knows of a sequence goes along. One of which it has lost the beginning is left alone.
    fn turn(&mut self, wanted: DraftRequest) -> Option<DraftTurn> {
        let DraftRequest { request, start, tokens, most, sampling } = wanted;
        let there = self.known.get(&request).map_or(0, |(_, known)| known.tokens.len());
        if there != start as usize || there + tokens.len() == 0 {
            tracing::debug!(%request, "not known to the draft model any more");
            return None;
        }
        let (name, mut known) =
            self.known.remove(&request).unwrap_or_else(|| (self.model.name(), SpeculatedSequence::default()));
        known.hear(&tokens);
        // What is likely is nobody's question here.
        let sampling = Sampling { logprobs: None, min_tokens: 0, ..sampling };
        Some(DraftTurn { request, name, known, most: most as usize, sampling, drafts: Vec::new() })
    }

    async fn compute_turns(&self, mut turns: Vec<DraftTurn>) -> Result<Vec<DraftTurn>, ComputeError> {
        let (model, vocab) = (self.model.clone(), self.vocab);
        // It is for them that it computes: it counts as an answer's step does.
        let shares = turns.iter().map(|turn| StepShare { request: turn.request, prompt_tokens: 0 }).collect();
        let job = move |engine: &mut Engine| {
            take_turns(engine, &model, vocab, &mut turns);
            turns
        };
        self.compute.step(shares, job).await
    }

    fn take_back(&mut self, turn: DraftTurn) -> (RequestId, Vec<Token>) {
        let DraftTurn { request, name, known, drafts, .. } = turn;
        self.known.insert(request, (name, known));
        (request, drafts)
    }

    async fn release(&self, names: Vec<RequestId>) {
        let key = self.model.key;
        let job = move |engine: &mut Engine| names.into_iter().for_each(|name| engine.release(key, name));
        // The compute thread being gone leaves nothing to give back.
        let _ = self.compute.call(job).await;
    }
}

/// Reads what is new of each answer, as far as that may be at once, and proposes on for those that are read.
fn take_turns(engine: &mut Engine, model: &DraftModel, vocab: u32, turns: &mut [DraftTurn]) {
    let mut ready: Vec<&mut DraftTurn> = Vec::with_capacity(turns.len());
    for turn in turns {
        if turn.enter(engine, model) {
            ready.push(turn);
        } else {
            turn.leave(engine, model);
        }
    }
    // All have their pages: none of them gave way to another.
    while !ready.is_empty() {
        if let Err(error) = one_round(engine, model, vocab, &mut ready) {
            tracing::warn!(%error, "the draft model cannot compute a step");
            return ready.iter_mut().for_each(|turn| turn.leave(engine, model));
        }
        // Those that are not read yet are asked about again.
        ready.retain(|turn| !turn.drafts.is_empty() && !turn.next().is_empty());
    }
}

fn one_round(
    engine: &mut Engine,
    model: &DraftModel,
    vocab: u32,
    ready: &mut [&mut DraftTurn],
) -> Result<(), EngineError> {
    let mut left = READ_AT_ONCE.max(ready.len());
    let (mut batch, mut tokens, mut picks) = (Vec::new(), Vec::new(), Vec::new());
    for (nth, turn) in ready.iter().enumerate() {
        let next = turn.next();
        // Each gets at least one.
        let len = next.len().min(left - (ready.len() - nth - 1));
        left -= len;
        tokens.extend_from_slice(&next[..len]);
        let start = turn.known.present();
        batch.push(Slice { request: turn.name, start, len: len as u32 });
        if len == next.len() {
            picks.push(RowToSample { row: tokens.len() - 1, sampling: &turn.sampling, position: start + len as u32 });
        }
    }
    let chosen = engine.forward_choosing(model.key, &batch, Input::Tokens(&tokens), &picks)?;
    let mut chosen = chosen.into_iter().map(|sampled| sampled.token);
    for (turn, slice) in ready.iter_mut().zip(&batch) {
        let len = slice.len as usize;
        let propose = if len == turn.next().len() { chosen.next() } else { None };
        // One that the other model does not have ends what can be proposed.
        let is_foreign = propose.is_some_and(|propose| propose.0 >= vocab);
        turn.took(len, propose.filter(|_| !is_foreign));
        if is_foreign {
            turn.most = turn.drafts.len();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_kernels::{
        engine::{EngineConfig, Output, Threads},
        pages::PAGE_BYTES,
        source::ModelSource,
    };
    use tsnode_protocol::KvDtype;

    const SERVED: RequestId = RequestId([7; 16]);

    /// The embedded model, serving and as its own draft model, with so many pages for each layer.
    struct Bench {
        compute: Compute,
        serves: StageKey,
        model: DraftModel,
        speculator: Speculator,
        layers: usize,
    }

    impl Bench {
        async fn new(pages: usize) -> Self {
            let source = ModelSource::embedded().unwrap();
            let shape = source.card().shape;
            let layers = shape.layers as usize;
            let pool_bytes = pages * layers * PAGE_BYTES;
            let config = EngineConfig { threads: Threads::together(1), pool_bytes, kv_dtype: KvDtype::F16 };
            let compute = Compute::start(Engine::new(config).unwrap(), None).unwrap();
            let (serves, beside) = [0; 2].map(|_| source.load_stage(shape.all_layers()).unwrap()).into();
            let keys = compute.call(move |engine| (engine.load(serves), engine.load_beside(beside))).await.unwrap();
            let model = DraftModel::new(keys.1.unwrap(), shape);
            let speculator = Speculator::start(model.clone(), compute.clone(), shape.vocab, &TaskTracker::new());
            Self { compute, serves: keys.0.unwrap(), model, speculator, layers }
        }

        async fn propose(&mut self, wanted: Vec<DraftRequest>) -> Vec<(RequestId, Vec<Token>)> {
            self.speculator.order(SpeculatorOrder::Propose { step: 5, wanted }).unwrap();
            match self.speculator.answer().await {
                Ok(Event::Drafted { step: 5, drafts }) => drafts,
                other => panic!("{other:?}"),
            }
        }

        /// What the model says next, computed as it serves.
        async fn says(&self, tokens: &[Token], next: usize, sampling: &Sampling) -> Vec<Token> {
            let (key, mut all, sampling) = (self.serves, tokens.to_vec(), sampling.clone());
            let job = move |engine: &mut Engine| {
                let known = all.len();
                engine.admit(key, SERVED, (known + next) as u32).unwrap();
                let mut start = 0;
                while all.len() < known + next {
                    let len = all.len() - start;
                    let batch = [Slice { request: SERVED, start: start as u32, len: len as u32 }];
                    let output = Output::Logits { rows: &[len - 1] };
                    let logits = engine.forward(key, &batch, Input::Tokens(&all[start..]), output).unwrap();
                    let position = all.len() as u32;
                    start = all.len();
                    all.push(tsnode_kernels::sampling::sample(logits, &sampling, &[], &[], position).token);
                }
                engine.release(key, SERVED);
                all.split_off(known)
            };
            self.compute.call(job).await.unwrap()
        }

        async fn free(&self) -> usize {
            self.compute.call(|engine| engine.pages().free).await.unwrap() / self.layers
        }

        /// Pages that nobody has at all.
        async fn untouched(&self, pages: usize) -> bool {
            let key = self.model.key;
            let page = 128;
            let job = move |engine: &mut Engine| {
                let had = engine.admit(key, RequestId([9; 16]), pages as u32 * page);
                engine.release(key, RequestId([9; 16]));
                had.is_ok()
            };
            self.compute.call(job).await.unwrap()
        }
    }

    fn wanted(n: u8, start: usize, tokens: &[Token], sampling: &Sampling) -> DraftRequest {
        let tokens = tokens[start..].to_vec();
        DraftRequest { request: RequestId([n; 16]), start: start as u32, tokens, most: 4, sampling: sampling.clone() }
    }

    fn prompt(n: u32, len: u32) -> Vec<Token> {
        (0..len).map(|i| Token(300 + (i * 7 + n * 31) % 3000)).collect()
    }

    #[tokio::test]
    async fn the_same_model_drafts_what_it_says() {
        let mut bench = Bench::new(64).await;
        let warm = Sampling { temperature: 0.8, top_p: 0.95, seed: 11, ..Sampling::greedy() };
        for (n, sampling) in [(1, Sampling::greedy()), (2, warm)] {
            let mut all = prompt(n.into(), 60);
            let mut told = 0;
            // All right, the first wrong, none new, one wrong in the middle.
            for right in [4, 0, 2, 4, 4] {
                let says = bench.says(&all, 5, &sampling).await;
                let drafts = bench.propose(vec![wanted(n, told, &all, &sampling)]).await;
                assert_eq!(drafts, [(RequestId([n; 16]), says[..4].to_vec())], "{n}, {right}");
                told = all.len();
                all.extend_from_slice(&says[..right]);
                // Something else than was proposed.
                all.push(if right == 4 { says[4] } else { Token(says[right].0 ^ 1) });
            }
        }
        bench.speculator.order(SpeculatorOrder::Forget(RequestId([1; 16]))).unwrap();
        assert!(bench.propose(vec![]).await.is_empty());
    }

    #[tokio::test]
    async fn several_are_read_in_turns_and_drafted_side_by_side() {
        let mut bench = Bench::new(64).await;
        let greedy = Sampling::greedy();
        let all: Vec<Vec<Token>> = [30, 700, 45].iter().zip(1..).map(|(len, n)| prompt(n, *len)).collect();
        let ask = |starts: [usize; 3]| {
            let each = all.iter().zip(starts).zip(1..);
            each.map(|((tokens, start), n)| wanted(n, start, tokens, &Sampling::greedy())).collect::<Vec<_>>()
        };
        let first = bench.propose(ask([0, 0, 0])).await;
        assert_eq!(first.iter().map(|(_, g)| g.len()).collect::<Vec<_>>(), [4, 0, 0], "there is more to read");
        let again = bench.propose(ask([30, 700, 45])).await;
        for ((_, drafts), tokens) in again.iter().zip(&all) {
            assert_eq!(*drafts, bench.says(tokens, 4, &greedy).await, "{} tokens", tokens.len());
        }
    }

    #[tokio::test]
    async fn without_pages_there_are_no_drafts_and_nobody_waits() {
        let mut bench = Bench::new(6).await;
        let (greedy, tokens) = (Sampling::greedy(), prompt(1, 300));
        let drafts = bench.propose(vec![wanted(1, 0, &tokens, &greedy)]).await;
        let says = drafts[0].1.clone();
        assert_eq!((says.len(), bench.free().await), (4, 6), "what it has counts as free");
        // An answer needs them all.
        let serves = bench.serves;
        bench.compute.call(move |engine| engine.admit(serves, SERVED, 6 * 128)).await.unwrap().unwrap();
        assert_eq!(bench.propose(vec![wanted(1, 300, &tokens, &greedy)]).await[0].1, []);
        bench.compute.call(move |engine| engine.release(serves, SERVED)).await.unwrap();
        assert_eq!(bench.propose(vec![wanted(1, 300, &tokens, &greedy)]).await[0].1, says, "read anew");
        // Longer than it can be, and with a token that it does not have.
        let long = prompt(2, bench.model.shape.context);
        let foreign = vec![Token(bench.model.shape.vocab)];
        let none = bench.propose(vec![wanted(2, 0, &long, &greedy), wanted(3, 0, &foreign, &greedy)]).await;
        assert!(none.iter().all(|(_, drafts)| drafts.is_empty()), "{none:?}");
        assert!(bench.propose(vec![wanted(4, 0, &tokens, &greedy)]).await[0].1.is_empty(), "the first has them");
        bench.speculator.order(SpeculatorOrder::Forget(RequestId([1; 16]))).unwrap();
        assert_eq!(bench.propose(vec![wanted(4, 300, &tokens, &greedy)]).await[0].1.len(), 4);
        // Its end gives everything back.
        bench.speculator.orders = mpsc::channel(1).0;
        while bench.speculator.answer().await.is_ok() {}
        assert!(bench.untouched(6).await);
    }
}
