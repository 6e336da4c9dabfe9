//! When the model inside the program is served: only where no other is. A volunteer who names none in a swarm that serves another
//! model is a gateway to that one.

use crate::Time;
use std::time::Duration;
use tsnode_protocol::{Advert, ModelCard};

/// How long a peer that is likely to meet others waits for the first of them.
const ALONE: Duration = Duration::from_secs(3);
/// How long it listens to peers without a model: those who have one speak at other times.
const LISTENING: Duration = Duration::from_millis(1500);
/// How long after another model was last there the one inside the program takes its place: a peer that starts again is no reason.
const GONE: Duration = Duration::from_secs(60);

/// Whether a peer lends the model inside the program.
#[derive(Clone, Debug)]
pub struct Fallback {
    own: ModelCard,
    state: State,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// It does not know what is served here.
    Listening { since: Time, heard: Option<Time> },
    /// It lends its own.
    Serves,
    /// Another is served, or was at that time.
    Yields { at: Time },
    /// It was told another.
    Never,
}

impl Fallback {
    /// Of a peer that starts with this model, and is likely to meet others or not.
    #[must_use]
    pub fn new(own: ModelCard, now: Time, company: bool) -> Self {
        let state = if company { State::Listening { since: now, heard: None } } else { State::Serves };
        Self { own, state }
    }

    /// Of a peer that was told another model, which has to come first: it lends nothing until then.
    #[must_use]
    pub fn never(own: ModelCard) -> Self {
        Self { own, state: State::Never }
    }

    /// What others have said of themselves. Says whether what this peer lends has changed by that.
    pub fn look<'a>(&mut self, now: Time, others: impl IntoIterator<Item = &'a Advert>) -> bool {
        let before = self.lends();
        let (mut anybody, mut alike, mut another) = (false, false, false);
        for advert in others {
            anybody = true;
            alike |= advert.models.iter().any(|card| card.id == self.own.id);
            another |= advert.models.iter().any(|card| self.gives_way_to(card));
        }
        self.state = match self.state {
            State::Never => State::Never,
            _ if another => State::Yields { at: now },
            State::Listening { since, heard } => {
                let heard = heard.or(anybody.then_some(now));
                let until = heard.map_or(since + ALONE, |at| at + LISTENING);
                if alike || now >= until { State::Serves } else { State::Listening { since, heard } }
            }
            State::Yields { at } if now >= at + GONE => State::Serves,
            ref other => other.clone(),
        };
        before != self.lends()
    }

    /// Whether it lends.
    #[must_use]
    pub fn lends(&self) -> bool {
        self.state == State::Serves
    }

    /// Whether another model is served.
    #[must_use]
    pub fn yields(&self) -> bool {
        matches!(self.state, State::Yields { .. } | State::Never)
    }

    /// Any other; of the models inside two versions of the program one gives way.
    fn gives_way_to(&self, card: &ModelCard) -> bool {
        card.id != self.own.id && (card.name != self.own.name || card.id > self.own.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use tsnode_protocol::ModelId;

    const START: Time = Time::from_secs(100);

    fn own() -> ModelCard {
        ModelCard { id: ModelId([5; 16]), name: "inside".into(), ..sample::card() }
    }

    fn with(id: u8, name: &str) -> Advert {
        sample::lends(0, ModelCard { id: ModelId([id; 16]), name: name.into(), ..sample::card() })
    }

    fn after(seconds: f64) -> Time {
        START + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn who_was_told_another_never_lends_its_own() {
        let mut peer = Fallback::never(own());
        for others in [&[][..], &[sample::gateway(1)], &[with(5, "inside")], &[with(9, "real")]] {
            assert!(!peer.look(after(100.0), others) && !peer.lends() && peer.yields());
        }
    }

    #[test]
    fn who_joins_a_swarm_with_another_model_never_lends_its_own() {
        let mut peer = Fallback::new(own(), START, true);
        assert!(!peer.look(after(0.2), &[sample::gateway(1)]) && !peer.lends() && !peer.yields());
        assert!(!peer.look(after(0.4), &[sample::gateway(1), with(9, "real")]) && !peer.lends() && peer.yields());
    }

    #[test]
    fn who_joins_others_like_it_lends_at_once_and_who_meets_nobody_soon() {
        let mut peer = Fallback::new(own(), START, true);
        assert!(peer.look(after(0.2), &[with(5, "inside")]) && peer.lends());
        let mut alone = Fallback::new(own(), START, true);
        assert!(!alone.look(after(2.9), &[]) && alone.look(after(3.0), &[]) && alone.lends());
        let mut gateways = Fallback::new(own(), START, true);
        assert!(!gateways.look(after(2.0), &[sample::gateway(1)]) && !gateways.look(after(3.4), &[sample::gateway(1)]));
        assert!(gateways.look(after(3.5), &[sample::gateway(1)]) && gateways.lends());
        assert!(Fallback::new(own(), START, false).lends(), "nobody is expected");
    }

    #[test]
    fn a_founder_gives_way_to_a_model_that_is_brought_and_takes_over_when_it_has_been_gone_for_long() {
        let mut founder = Fallback::new(own(), START, false);
        assert!(founder.look(after(5.0), &[with(9, "real")]) && founder.yields());
        assert!(!founder.look(after(30.0), &[]) && !founder.look(after(64.0), &[]), "it may have started again");
        assert!(founder.look(after(65.0), &[]) && founder.lends());
    }

    #[test]
    fn of_two_versions_of_the_program_one_gives_way() {
        let (mut older, mut newer) = (Fallback::new(own(), START, false), Fallback::new(own(), START, false));
        newer.own.id = ModelId([6; 16]);
        assert!(older.look(after(1.0), &[with(6, "inside")]) && older.yields());
        assert!(!newer.look(after(1.0), &[with(5, "inside")]) && newer.lends());
    }
}
