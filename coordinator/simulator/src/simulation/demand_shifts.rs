//! What clients ask for, as gateways say it: now this model, now that one. Chance has a stream of its own here: without several
//! models a seed's scenario is what it was.

use super::{chronicle::Note, world::World};
use std::time::Duration;
use tsnode_coordinator::{Time, control::Event, rng::Rng, sample};
use tsnode_protocol::{ModelCard, ModelId, Traffic, traffic::LENGTHS};

/// Peers that clients come to, the first ones.
const GATEWAYS: usize = 3;
/// Of the time there are faults, between two turns: more than a plan takes, mostly.
const TURNS: f64 = 4.0;
/// Of a model that is not the one, so many times less is asked.
const LESS: f64 = 20.0;

/// When demand turns over, and to what.
#[derive(Debug)]
pub(super) struct DemandShifts {
    rng: Rng,
    models: Vec<ModelCard>,
    mean: Duration,
    next: Time,
}

impl DemandShifts {
    /// For so many models, over so long a time from now; none where there is only one.
    pub fn new(seed: u64, models: u8, now: Time, span: Duration) -> Option<Self> {
        let models = sample::cards(models);
        let (rng, mean) = (Rng::new(seed ^ 0x64_65_6d_61), span.div_f64(TURNS).max(Duration::from_millis(500)));
        (models.len() > 1).then_some(Self { rng, models, mean, next: now + mean / 2 })
    }

    /// Whether it turns over by now; to which model, and how much is asked of that.
    fn turns(&mut self, now: Time) -> Option<(ModelCard, f64)> {
        if now < self.next {
            return None;
        }
        self.next = now + Duration::from_secs_f64(self.rng.exponential(self.mean.as_secs_f64()));
        let model = self.models[self.rng.below(self.models.len())].clone();
        Some((model, (100.0 * self.rng.unit()).max(0.01)))
    }

    fn said(&self, most: ModelId, rate: f64) -> Vec<Traffic> {
        let of = |card: &ModelCard| {
            let rate = if card.id == most { rate } else { rate / LESS };
            Traffic { model: card.id, rate, variation: 1.0, prompts: [200; LENGTHS], answers: [50; LENGTHS] }
        };
        self.models.iter().map(of).collect()
    }
}

impl World {
    /// Gateways say what they are asked for now, if that has turned over.
    pub(super) fn follow_demand(&mut self, demand: &mut DemandShifts) {
        let Some((model, rate)) = demand.turns(self.now) else { return };
        let what = format!("clients ask mostly for {} now, {rate:.2} times a second at each gateway", model.name);
        self.note(Note::Fault(what));
        for n in 0..GATEWAYS.min(self.peers.len()) {
            self.peers[n].advert.traffic = demand.said(model.id, rate);
            let advert = self.peers[n].advert.clone();
            self.tell(n, Event::Advertise(advert));
        }
    }
}
