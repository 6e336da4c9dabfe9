//! Plan flow 4: the planner's own thread, so that a peer hears and speaks while it searches.

use std::io;
use std::sync::Arc;
use tokio::sync::mpsc;
use tsnode_coordinator::{
    control::PlannerInput,
    planner::{PlanDraft, Planner},
};

/// Questions not yet looked at: the control machine has one open at a time.
const QUESTIONS: usize = 1;

/// The way to the planner. Dropping it ends the thread, after the search that is under way: a process that ends does not
/// wait for it.
pub struct PlannerThread {
    questions: mpsc::Sender<Arc<PlannerInput>>,
    answers: mpsc::Receiver<Option<PlanDraft>>,
}

impl PlannerThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread for it.
    pub fn start(planner: Arc<dyn Planner>) -> io::Result<Self> {
        let (questions, mut asked) = mpsc::channel::<Arc<PlannerInput>>(QUESTIONS);
        let (answered, answers) = mpsc::channel(QUESTIONS);
        std::thread::Builder::new().name("planner".into()).spawn(move || {
            while let Some(question) = asked.blocking_recv() {
                if answered.blocking_send(question.answer(&*planner)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { questions, answers })
    }

    /// Has a question answered.
    pub fn ask(&self, question: Arc<PlannerInput>) {
        if self.questions.try_send(question).is_err() {
            tracing::error!("the planner has ended: this peer makes no plans any more");
        }
    }

    /// The next answer; `None` when the planner has ended.
    pub async fn answer(&mut self) -> Option<Option<PlanDraft>> {
        self.answers.recv().await
    }
}
