//! Spot checks of what this gateway's clients were told: asks groups again, and tells whoever judges what came of it.

use super::leader_reach::LeaderReach;
use crate::data_plane::offences::OffenceReporter;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tsnode_coordinator::{
    gateway::View,
    spot_check::{CheckRequest, CheckStep, CheckedAnswer, Checks, PATIENCE, SpotCheckVerdict, SpotChecks},
};
use tsnode_protocol::{RequestId, Sampled, stream::DecodeEvent};

/// Answers not yet looked at: there are never more checks at once.
const ANSWERS: usize = 64;

/// What a group said to a check.
pub(super) struct CheckReply {
    check: RequestId,
    sampled: Option<Sampled>,
}

/// The checks, and what carries them out.
pub(super) struct Examiner {
    checks: Checks,
    offence_reporter: OffenceReporter,
    tasks: TaskTracker,
    answers: mpsc::Sender<CheckReply>,
}

impl Examiner {
    pub fn new(
        which: SpotChecks,
        offence_reporter: OffenceReporter,
        tasks: TaskTracker,
    ) -> (Self, mpsc::Receiver<CheckReply>) {
        let (answers, receiver) = mpsc::channel(ANSWERS);
        (Self { checks: Checks::new(which), offence_reporter, tasks, answers }, receiver)
    }

    /// An answer has ended well: it may be checked.
    pub fn ended(&mut self, view: &View, served: CheckedAnswer, reach: &LeaderReach) {
        let (check, roll) = (RequestId(crate::random_bytes()), u64::from_le_bytes(crate::random_bytes()));
        if let Some(ask) = self.checks.ended(view, served, check, roll) {
            self.ask(check, ask, reach);
        }
    }

    /// A group has answered.
    pub fn said(&mut self, view: &View, answer: CheckReply, reach: &LeaderReach) {
        match self.checks.said(view, answer.check, answer.sampled) {
            Some(CheckStep::Ask(ask)) => self.ask(answer.check, ask, reach),
            Some(CheckStep::Wait) => {
                tracing::debug!("a group does not say again what it answered: it is asked once more, later")
            }
            Some(CheckStep::Over(verdict)) => {
                // Who does it again is cut off, and that is said; checks that nobody could decide are counted.
                match verdict {
                    SpotCheckVerdict::Passed | SpotCheckVerdict::Unclear => {
                        tracing::debug!(?verdict, "a spot check is over")
                    }
                    _ => tracing::info!(?verdict, "a spot check did not pass"),
                }
                self.offence_reporter.examined(&verdict);
            }
            None => {}
        }
    }

    fn ask(&self, check: RequestId, ask: CheckRequest, reach: &LeaderReach) {
        let (answers, reach) = (self.answers.clone(), reach.clone());
        self.tasks.spawn(async move {
            let sampled = timeout(PATIENCE, first_token(ask, reach)).await.ok().flatten();
            // The loop being gone, nobody wants to know.
            let _ = answers.send(CheckReply { check, sampled }).await;
        });
    }
}

/// The first token that a group gives; then it is hung up on.
async fn first_token(ask: CheckRequest, reach: LeaderReach) -> Option<Sampled> {
    let (_orders, apply_command) = mpsc::channel(1);
    let (events, mut told) = mpsc::channel(8);
    let asked = reach.decode(ask.leader, ask.open, apply_command, events);
    let first = async {
        while let Some(event) = told.recv().await {
            match event {
                DecodeEvent::Token { sampled, .. } => return Some(sampled),
                DecodeEvent::End(_) | DecodeEvent::Refused(_) => return None,
                _ => {}
            }
        }
        None
    };
    let mut first = std::pin::pin!(first);
    tokio::select! {
        sampled = &mut first => sampled,
        // A leader on this peer is asked in no time, and answers by its channel.
        reached = asked => match reached {
            Ok(()) => first.await,
            Err(_) => None,
        },
    }
}
