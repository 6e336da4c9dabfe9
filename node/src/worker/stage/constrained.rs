//! Prompt flow 8: which tokens an answer with a grammar may go on with, found out beside the step that computes the next.
//!
//! All that a grammar's state depends on are the answer's tokens: wherever the sequence is admitted, the state is made of
//! those that are known, and each token that is fed back moves it on. That is done by other threads while the layers are
//! computed; whoever chooses the token waits for what is left of it.

use crate::text::grammar::{Follow, GrammarCompiler, GrammarError, Grammars};
use std::sync::{
    Arc, Mutex, PoisonError,
    mpsc::{Receiver, RecvTimeoutError, sync_channel},
};
use std::time::Duration;
use tsnode_protocol::{Constraint, Token};

/// How long a step waits for a mask. Compiling and masks have limits of some ten milliseconds each, but their threads may have
/// those of many answers to make.
const PATIENCE: Duration = Duration::from_secs(10);

/// A grammar's state, and the tokens allowed in it.
type Masked = Result<(Box<Follow>, Vec<u32>), GrammarError>;

enum State {
    /// On its way.
    Coming(Receiver<Masked>),
    There(Masked),
}

/// An answer's grammar, as far as the answer is.
pub(super) struct Constrained {
    grammars: Arc<Grammars>,
    /// Behind a lock that nobody waits for: sequences are looked at from several threads, one after the other.
    state: Mutex<State>,
}

impl Constrained {
    /// Of an answer that begins with some tokens.
    pub fn begin(grammars: &Arc<Grammars>, constraint: Constraint, answer: Vec<Token>) -> Self {
        let work = move |compiler: Result<&GrammarCompiler, GrammarError>| {
            let mut follow = Box::new(compiler?.compile(&constraint.grammar, &constraint.ends)?);
            follow.consume(&answer)?;
            masked(follow)
        };
        Self { grammars: grammars.clone(), state: Mutex::new(started(grammars, work)) }
    }

    /// The answer has one more token.
    pub fn go_on(&mut self, token: Token) {
        let before = self.take();
        let work = move |_: Result<&GrammarCompiler, GrammarError>| {
            // What it waits for was handed out before it, so that a thread has it.
            let (mut follow, _) = settled(before)?;
            follow.consume(&[token])?;
            masked(follow)
        };
        let state = started(&self.grammars, work);
        *self.state() = state;
    }

    /// The tokens that may come next, a bit each; waits until they are known.
    ///
    /// # Errors
    /// When there are none, or to find them takes more than it may.
    pub fn allowed(&mut self) -> Result<&[u32], GrammarError> {
        let settled = settled(self.take());
        let state = self.state();
        *state = State::There(settled);
        match &*state {
            State::There(Ok((_, mask))) => Ok(mask),
            State::There(Err(error)) => Err(error.clone()),
            State::Coming(_) => Err(GrammarError::Busy),
        }
    }

    fn state(&mut self) -> &mut State {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&mut self) -> State {
        std::mem::replace(self.state(), State::There(Err(GrammarError::Busy)))
    }
}

fn masked(mut follow: Box<Follow>) -> Masked {
    let mask = follow.allowed()?;
    Ok((follow, mask))
}

fn started(
    grammars: &Arc<Grammars>,
    work: impl FnOnce(Result<&GrammarCompiler, GrammarError>) -> Masked + Send + 'static,
) -> State {
    let (answer, coming) = sync_channel(1);
    // The sequence may have ended meanwhile.
    let job = move |compiler: Result<&GrammarCompiler, GrammarError>| drop(answer.send(work(compiler)));
    match grammars.run(job) {
        Ok(()) => State::Coming(coming),
        Err(error) => State::There(Err(error)),
    }
}

fn settled(state: State) -> Masked {
    let coming = match state {
        State::There(masked) => return masked,
        State::Coming(coming) => coming,
    };
    coming.recv_timeout(PATIENCE).unwrap_or_else(|why| {
        Err(match why {
            RecvTimeoutError::Timeout => GrammarError::Busy,
            RecvTimeoutError::Disconnected => GrammarError::Stuck("the work on it broke off".into()),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::grammar::GrammarVocabulary;
    use tsnode_kernels::source::ModelSource;
    use tsnode_protocol::Grammar;

    fn grammars() -> Arc<Grammars> {
        let source = ModelSource::embedded().unwrap();
        let vocab = source.card().shape.vocab;
        Grammars::new(move || GrammarVocabulary::read(source.file("tokenizer.json").unwrap(), vocab))
    }

    fn any_of(mask: &[u32]) -> Token {
        Token((0..).find(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).unwrap())
    }

    #[test]
    fn the_tokens_allowed_are_the_same_however_far_the_answer_was_when_it_came() {
        let grammars = grammars();
        let constraint = Constraint { grammar: Grammar::Regex("[a-z]{40}".into()), ends: vec![Token(1)] };
        let mut first = Constrained::begin(&grammars, constraint.clone(), vec![]);
        let mut answer = Vec::new();
        for _ in 0..8 {
            let mask = first.allowed().unwrap().to_vec();
            let mut later = Constrained::begin(&grammars, constraint.clone(), answer.clone());
            assert_eq!(later.allowed().unwrap(), mask);
            answer.push(any_of(&mask));
            first.go_on(answer[answer.len() - 1]);
        }
        // Nobody has to look at what is between.
        let mut unseen = Constrained::begin(&grammars, constraint, vec![]);
        answer.iter().for_each(|token| unseen.go_on(*token));
        assert_eq!(unseen.allowed(), first.allowed());
    }

    #[test]
    fn what_went_wrong_stays_wrong() {
        let constraint = Constraint { grammar: Grammar::Regex("(".into()), ends: vec![] };
        let mut broken = Constrained::begin(&grammars(), constraint, vec![]);
        assert!(matches!(broken.allowed(), Err(GrammarError::Refused(_))));
        broken.go_on(Token(5));
        assert!(matches!(broken.allowed(), Err(GrammarError::Refused(_))));
    }
}
