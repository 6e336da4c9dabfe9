//! The threads that compile grammars and follow them: few, with deep stacks, and none before the first grammar comes.

use super::{GrammarCompiler, GrammarError, GrammarVocabulary};
use std::sync::{
    Arc, Mutex, OnceLock, PoisonError,
    mpsc::{Receiver, SyncSender, sync_channel},
};

/// Threads for one model.
const THREADS: usize = 4;
/// Work that waits for a thread; above it, it is refused. Every sequence of a group has a mask and a compilation at most.
const WAITING: usize = 4096;
/// A thread's stack (bytes, of which what is not used takes no memory): a schema of references to references is followed
/// to its end by recursion, up to some 20 KiB for each.
const STACK: usize = 128 << 20;

type GrammarJob = Box<dyn FnOnce() + Send>;
type LoadVocabulary = Box<dyn Fn() -> Result<GrammarVocabulary, GrammarError> + Send + Sync>;

/// Grammars for one model's tokens, and the threads that work on them, which end with it.
pub struct Grammars {
    load: LoadVocabulary,
    compiler: OnceLock<Result<GrammarCompiler, GrammarError>>,
    threads: OnceLock<Option<SyncSender<GrammarJob>>>,
}

impl Grammars {
    /// For a model whose vocabulary is loaded with the first grammar.
    #[must_use]
    pub fn new(load: impl Fn() -> Result<GrammarVocabulary, GrammarError> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { load: Box::new(load), compiler: OnceLock::new(), threads: OnceLock::new() })
    }

    /// Has a thread do some work, in order of coming.
    ///
    /// # Errors
    /// When there is no thread, or too much waits.
    pub fn run(
        self: &Arc<Self>,
        work: impl FnOnce(Result<&GrammarCompiler, GrammarError>) + Send + 'static,
    ) -> Result<(), GrammarError> {
        let threads = self.threads.get_or_init(start).as_ref().ok_or(GrammarError::Busy)?;
        let this = self.clone();
        let job = move || {
            let load = || (this.load)().and_then(GrammarCompiler::new);
            work(this.compiler.get_or_init(load).as_ref().map_err(Clone::clone));
        };
        threads.try_send(Box::new(job)).map_err(|_| GrammarError::Busy)
    }
}

/// As many threads as half of this machine's processors, if the system gives any.
fn start() -> Option<SyncSender<GrammarJob>> {
    let (jobs, waiting) = sync_channel(WAITING);
    let waiting = Arc::new(Mutex::new(waiting));
    let threads = std::thread::available_parallelism().map_or(1, usize::from) / 2;
    let one = |_| {
        let waiting = waiting.clone();
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
        thread.spawn(move || work(&waiting)).is_ok()
    };
    let started = (0..threads.clamp(1, THREADS)).map(one).filter(|started| *started).count();
    (started > 0).then_some(jobs)
}

/// Takes turns in waiting for work, until nobody can bring any.
fn work(waiting: &Mutex<Receiver<GrammarJob>>) {
    loop {
        let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        // Whoever waits for a result that does not come hears of it by the end of its channel.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}
